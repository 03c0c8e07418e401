/* The physical limit: a closed loop of streaming requests that does only what any client must.
 *
 * One thread, epoll, one connection a stream, kept alive. Connects, sends a request, receives, finds the end of every
 * event, stamps it with the monotonic clock right after the read that completed it. Parses no JSON and keeps nothing but
 * the stamps: one array a request, appended to a file when the run has ended.
 *
 * Usage: c_client PORT STREAMS RAMP_MS LOAD_MS MAX_EVENTS BODY_FILE LOG_FILE
 * Log, native unsigned 64-bit numbers, for each finished request: start_ns, n, n instants of events (with `[DONE]`).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { READ_BYTES = 1 << 16 };

typedef struct {
    int fd;
    int open;        /* a request is under way */
    int line_feeds;  /* in a row, at the end of what was read so far: the second ends an event */
    char tail[5];    /* last bytes read: the body ends with "0\r\n\r\n" */
    size_t tail_len;
    int in_headers;  /* of the response */
    uint64_t start_ns;
    uint64_t *stamps;
    uint64_t n;
} Stream;

typedef struct {
    uint64_t *words;
    size_t n, room;
} Log;

static char request[1 << 20];
static size_t request_len;
static uint64_t max_events, failed;
static Log stamps_log;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void keep(const Stream *s) {
    size_t need = stamps_log.n + 2 + s->n;
    if (need > stamps_log.room) {
        stamps_log.room = need * 2;
        stamps_log.words = realloc(stamps_log.words, stamps_log.room * sizeof(uint64_t));
        if (!stamps_log.words) die("realloc");
    }
    stamps_log.words[stamps_log.n++] = s->start_ns;
    stamps_log.words[stamps_log.n++] = s->n;
    memcpy(stamps_log.words + stamps_log.n, s->stamps, s->n * sizeof(uint64_t));
    stamps_log.n += s->n;
}

static void begin(Stream *s) {
    s->open = 1;
    s->n = 0;
    s->line_feeds = 0;
    s->in_headers = 1;
    s->tail_len = 0;
    s->start_ns = now_ns();
    if (send(s->fd, request, request_len, MSG_NOSIGNAL) != (ssize_t)request_len) die("send");
}

/* Counts the events that end in `bytes` and stamps them; gives whether the body is complete. */
static int take(Stream *s, const char *bytes, size_t n, uint64_t stamp_ns) {
    for (size_t i = 0; i < n;) {
        char c = bytes[i];
        if (c == '\n') {
            if (++s->line_feeds == 2) {
                if (s->in_headers) {
                    s->in_headers = 0; /* that was the empty line after them */
                } else if (s->n < max_events) {
                    s->stamps[s->n++] = stamp_ns;
                }
                s->line_feeds = 0;
            }
            i++;
        } else if (c == '\r' && s->in_headers) {
            i++; /* the headers' line ends are CR LF; an event's are LF, and those of the chunks between do not count */
        } else {
            s->line_feeds = 0;
            const char *next = memchr(bytes + i, '\n', n - i);
            i = next ? (size_t)(next - bytes) : n;
        }
    }
    size_t from = n > 5 ? n - 5 : 0;
    for (size_t i = from; i < n; i++) {
        if (s->tail_len == 5) memmove(s->tail, s->tail + 1, --s->tail_len);
        s->tail[s->tail_len++] = bytes[i];
    }
    return s->tail_len == 5 && memcmp(s->tail, "0\r\n\r\n", 5) == 0;
}

static void connect_stream(Stream *s, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int on = 1;
    s->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (s->fd < 0 || connect(s->fd, (struct sockaddr *)&to, sizeof to) < 0) die("connect");
    setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    s->stamps = malloc(max_events * sizeof(uint64_t));
}

int main(int argc, char **argv) {
    if (argc != 8) {
        fprintf(stderr, "usage: %s PORT STREAMS RAMP_MS LOAD_MS MAX_EVENTS BODY_FILE LOG_FILE\n", argv[0]);
        return 2;
    }
    int port = atoi(argv[1]), streams = atoi(argv[2]);
    uint64_t ramp_ns = strtoull(argv[3], 0, 10) * 1000000ull, load_ns = strtoull(argv[4], 0, 10) * 1000000ull;
    max_events = strtoull(argv[5], 0, 10);

    static char body[1 << 19], bytes[READ_BYTES];
    FILE *file = fopen(argv[6], "rb");
    if (!file) die(argv[6]);
    size_t body_len = fread(body, 1, sizeof body, file);
    fclose(file);
    request_len = (size_t)snprintf(request, sizeof request,
                                   "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n"
                                   "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                                   port, body_len);
    memcpy(request + request_len, body, body_len);
    request_len += body_len;

    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);

    int epoll = epoll_create1(0), live = 0, begun = 0;
    Stream *all = calloc((size_t)streams, sizeof(Stream));
    struct epoll_event *ready = calloc((size_t)streams, sizeof *ready);
    for (int i = 0; i < streams; i++) {
        connect_stream(&all[i], port);
        struct epoll_event watch = {.events = EPOLLIN, .data.ptr = &all[i]};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, all[i].fd, &watch) < 0) die("epoll_ctl");
    }

    uint64_t from_ns = now_ns(), end_ns = from_ns + load_ns;
    while (begun < streams || live > 0) {
        uint64_t now = now_ns();
        while (begun < streams && from_ns + ramp_ns * (uint64_t)begun / (uint64_t)streams <= now) {
            begin(&all[begun++]);
            live++;
        }
        int count = epoll_wait(epoll, ready, streams, begun < streams ? 1 : 100);
        if (count < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < count; i++) {
            Stream *s = ready[i].data.ptr;
            ssize_t n = recv(s->fd, bytes, sizeof bytes, 0);
            uint64_t stamp_ns = now_ns();
            if (n <= 0) {
                failed += (uint64_t)s->open;
                live -= s->open;
                s->open = 0;
                epoll_ctl(epoll, EPOLL_CTL_DEL, s->fd, 0);
            } else if (take(s, bytes, (size_t)n, stamp_ns) && s->open) {
                keep(s);
                s->open = 0;
                if (stamp_ns < end_ns) begin(s);
                else live--;
            }
        }
    }
    FILE *log = fopen(argv[7], "wb");
    if (!log || fwrite(stamps_log.words, sizeof(uint64_t), stamps_log.n, log) != stamps_log.n || fclose(log)) die(argv[7]);
    printf("failed %llu\n", (unsigned long long)failed);
    return 0;
}
