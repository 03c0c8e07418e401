"""The pacing loop: one thread, one send a token; keeps the core busy while a token is due soon.

Every stream has the same gap, so the two queues, streams that wait for their first token and streams that decode, are
always in order of their due times. The first is due so long after the request's arrival, by the kernel's stamp; a late
token does not delay the next, unless that would follow within half a gap (`truth.next_due_ns`).
"""

from __future__ import annotations

import heapq
import socket
import time
from collections import deque
from typing import Any, TypeAlias

import orjson

from server.metronome.answer import MAX_MODEL_LEN, Scripts, count_prompt, read_shape
from server.metronome.connections import Connection, Connections
from server.metronome.request import BadRequestError, HttpRequest, awaits_continue, take_request
from server.metronome.truth import COMPLETE, HELD_BACK, KERNEL_ARRIVAL, NEW_CONNECTION, STREAMED, TruthLog

VERSION = "0.32.0+metronome"

_MOST_TOKENS = 64
"""Tokens sent before the next request is looked for."""
_SPIN_NS = 3_000_000
"""Nearer than this, the due time is awaited on the core: epoll rounds its timeout up to whole milliseconds."""
_IDLE_S = 0.2
_NEVER = 1 << 62

_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


class _Answer:
    """One request that is being answered."""

    __slots__ = (
        "arrived_ns",
        "body",
        "connection",
        "due_ns",
        "ends",
        "flags",
        "gone",
        "keep_alive",
        "number",
        "opening",
        "position",
        "read_ns",
        "request_id",
        "send",
        "sends_ns",
        "tokens",
    )

    def __init__(self, connection: _Connection, request: HttpRequest, number: int, tokens: int) -> None:
        self.connection = connection
        self.number = number
        self.tokens = tokens
        self.request_id = request.request_id
        self.keep_alive = request.keep_alive
        self.read_ns = time.monotonic_ns()
        self.arrived_ns = connection.arrived_ns
        self.due_ns = 0
        self.flags = (NEW_CONNECTION if connection.served == 0 else 0) | (
            KERNEL_ARRIVAL if connection.kernel_arrival else 0
        )
        self.opening = self.body = b""
        self.ends: list[int] = []
        self.position = 0
        self.sends_ns: list[int] = []
        self.send = connection.sock.send
        self.gone = False


_Connection: TypeAlias = Connection[_Answer]


class Metronome:
    """The server. `serve` runs until `stop` is called."""

    def __init__(
        self,
        listener: socket.socket,
        *,
        ttft_ns: int,
        itl_ns: int,
        model: str,
        output_tokens: int,
        created_s: int,
        truth: TruthLog | None,
    ) -> None:
        self._ttft_ns = ttft_ns
        self._itl_ns = itl_ns
        self._model = model
        self._output_tokens = output_tokens
        self._created_s = created_s
        self._scripts = Scripts(created_s)
        self._truth = truth
        self._connections: Connections[_Answer] = Connections(listener, on_data=self._take, on_closed=self._abandon)
        self._waiting: deque[_Answer] = deque()
        self._decoding: deque[_Answer] = deque()
        self._whole: list[tuple[int, int, _Answer, bytes]] = []
        """Answers in one piece: (due, number, answer, JSON), a heap, since their lengths differ."""
        self._numbers = 0
        self._stopping = False

    def stop(self) -> None:
        """Has `serve` return; for signal handlers."""
        self._stopping = True

    def serve(self) -> None:
        """Answers until `stop`; then logs what was under way and closes everything."""
        while not self._stopping:
            wait_ns = self._next_due_ns() - time.monotonic_ns()
            if wait_ns < _SPIN_NS:
                self._connections.turn(0)
            else:
                if self._truth is not None:
                    self._truth.flush()
                self._connections.turn(min(_IDLE_S, (wait_ns - _SPIN_NS) / 1e9))
            self._send_due()
        self._connections.close_all()

    def _next_due_ns(self) -> int:
        due_ns = self._decoding[0].due_ns if self._decoding else _NEVER
        if self._waiting:
            due_ns = min(due_ns, self._waiting[0].due_ns)
        return min(due_ns, self._whole[0][0]) if self._whole else due_ns

    def _send_due(self) -> None:
        """Sends what is due, in order of due times, at most so much that requests are not kept waiting."""
        waiting, decoding, itl_ns, monotonic_ns = self._waiting, self._decoding, self._itl_ns, time.monotonic_ns
        half_ns = itl_ns // 2
        now_ns = monotonic_ns()
        for _ in range(_MOST_TOKENS):
            if decoding and not (waiting and waiting[0].due_ns < decoding[0].due_ns):
                if decoding[0].due_ns > now_ns:
                    break
                answer = decoding.popleft()
            elif waiting and waiting[0].due_ns <= now_ns:
                answer = waiting.popleft()
                if not answer.gone and answer.opening:
                    self._connections.send(answer.connection, answer.opening)
            else:
                break
            if answer.gone:
                continue
            position = answer.position
            event = answer.body[answer.ends[position] : answer.ends[position + 1]]
            answer.position = position = position + 1
            now_ns = monotonic_ns()
            answer.sends_ns.append(now_ns)
            # Nearly always the window has room and the whole event goes at once: no call more than that.
            try:
                sent = 0 if answer.connection.unsent else answer.send(event)
            except OSError:
                sent = 0  # told apart below
            if sent != len(event) and not self._connections.send(answer.connection, event[sent:]):
                continue
            if position == answer.tokens:
                self._end(answer)
            else:
                due_ns, soonest_ns = answer.due_ns + itl_ns, now_ns + half_ns
                answer.due_ns = due_ns if due_ns > soonest_ns else soonest_ns
                decoding.append(answer)
        while self._whole and self._whole[0][0] <= now_ns:
            _, _, answer, content = heapq.heappop(self._whole)
            if not answer.gone:
                answer.sends_ns.append(monotonic_ns())
                if self._reply(answer.connection, 200, content):
                    self._end(answer)

    def _end(self, answer: _Answer) -> None:
        """After the last byte of an answer: the connection is free for the next request, or closed."""
        answer.flags |= COMPLETE
        self._log(answer)
        connection = answer.connection
        connection.answer = None
        connection.held_back = False
        connection.served += 1
        if not answer.keep_alive:
            self._connections.close_when_sent(connection)
        elif connection.received:
            self._take(connection)

    def _abandon(self, connection: _Connection) -> None:
        """The client went away, or the server ends: what was under way is logged as far as it came."""
        if connection.answer is not None:
            connection.answer.gone = True
            self._log(connection.answer)
            connection.answer = None

    def _log(self, answer: _Answer) -> None:
        if self._truth is not None:
            self._truth.add(
                number=answer.number,
                request_id=answer.request_id,
                arrived_ns=answer.arrived_ns,
                read_ns=answer.read_ns,
                tokens=answer.tokens,
                sends_ns=answer.sends_ns,
                flags=answer.flags | (HELD_BACK if answer.connection.held_back else 0),
            )

    def _take(self, connection: _Connection) -> None:
        """Answers requests that are there, up to one that takes time."""
        while connection.answer is None and not connection.closing:
            try:
                request = take_request(connection.received)
                if request is None:
                    if awaits_continue(connection.received):
                        self._connections.send(connection, b"HTTP/1.1 100 Continue\r\n\r\n")
                    return
                self._respond(connection, request)
            except BadRequestError as error:
                if self._reply(connection, 400, _error(400, str(error))):
                    self._connections.close_when_sent(connection)

    def _respond(self, connection: _Connection, request: HttpRequest) -> None:
        """Answers at once, or begins to."""
        match request.method, request.path:
            case b"POST", b"/v1/chat/completions" | b"/v1/completions":
                self._generate(connection, request)
                return
            case b"POST", b"/tokenize":
                count = count_prompt(request.json())
                content = {"count": count, "max_model_len": MAX_MODEL_LEN, "tokens": list(range(count))}
                replied = self._reply(connection, 200, orjson.dumps(content))
            case b"GET", b"/v1/models":
                replied = self._reply(connection, 200, orjson.dumps(self._models()))
            case b"GET", b"/version":
                replied = self._reply(connection, 200, orjson.dumps({"version": VERSION}))
            case b"GET", b"/health" | b"/ping" | b"/":
                replied = self._reply(connection, 200, b"")
            case _:
                replied = self._reply(connection, 404, _error(404, "Not Found"))
        if replied and not request.keep_alive:
            self._connections.close_when_sent(connection)

    def _generate(self, connection: _Connection, request: HttpRequest) -> None:
        asked = request.json()
        shape = read_shape(
            "chat" if b"chat" in request.path else "completions",
            asked,
            default_model=self._model,
            default_tokens=self._output_tokens,
        )
        answer = _Answer(connection, request, self._numbers, shape.tokens)
        self._numbers += 1
        answer.due_ns = answer.arrived_ns + self._ttft_ns
        connection.answer = answer
        if asked.get("stream") is not True:
            due_ns = answer.due_ns + (shape.tokens - 1) * self._itl_ns
            heapq.heappush(self._whole, (due_ns, answer.number, answer, self._scripts.whole(shape, answer.number)))
            return
        script = self._scripts.script(shape, answer.number)
        answer.flags |= STREAMED
        answer.opening, answer.body, answer.ends = script.opening, script.body, script.ends
        if self._connections.send(connection, _STREAM_HEAD):
            self._enqueue(answer)

    def _enqueue(self, answer: _Answer) -> None:
        """In order of due times: requests may be read in another order than they arrived in, but hardly ever are."""
        waiting, later = self._waiting, []
        while waiting and waiting[-1].due_ns > answer.due_ns:
            later.append(waiting.pop())
        waiting.append(answer)
        waiting.extend(reversed(later))

    def _models(self) -> dict[str, Any]:
        model = {
            "id": self._model,
            "object": "model",
            "created": self._created_s,
            "owned_by": "metronome",
            "root": self._model,
            "parent": None,
            "max_model_len": MAX_MODEL_LEN,
        }
        return {"object": "list", "data": [model]}

    def _reply(self, connection: _Connection, status: int, content: bytes) -> bool:
        phrase = {200: b"OK", 400: b"Bad Request", 404: b"Not Found"}[status]
        head = b"HTTP/1.1 %d %b\r\nserver: uvicorn\r\ncontent-type: application/json\r\n" % (status, phrase)
        return self._connections.send(connection, head + b"content-length: %d\r\n\r\n" % len(content) + content)


def _error(status: int, message: str) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": "BadRequestError", "param": None, "code": status}})
