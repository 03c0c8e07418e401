"""Server-sent events read one byte at a time as the WHATWG words it: slow, and the measure of `loadgen.wire.sse.parse`."""

from loadgen.wire.sse import STRAY, Event

WORD = set(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")


def by_the_rules(body: bytes) -> tuple[list[Event], list[Event]]:
    """Line after line, as the standard words it, with our two additions: stray lines, and errors without data."""
    events: list[Event] = []
    data: list[bytes] = []
    comments: list[bytes] = []
    stray: list[bytes] = []
    name = line = b""
    at = 3 if body.startswith(b"\xef\xbb\xbf") else 0

    def field() -> None:
        nonlocal name
        key, colon, value = line.partition(b":")
        value = value[1:] if value[:1] == b" " else value
        if key == b"data":
            data.append(value)
        elif key == b"event":
            name = value
        elif key == b"":
            comments.append(value)
        elif key not in (b"id", b"retry") and (not colon or set(key) - WORD or key.lower() == b"error"):
            stray.append(line)

    def dispatched() -> list[Event]:
        found = [(b"\n".join(stray), at, STRAY)] if stray else []
        if data:
            found.append((b"\n".join(data), at, name))
        elif b"error" in name.lower():
            found.append((b"\n".join(comments), at, name))
        for lines in (data, comments, stray):
            lines.clear()
        return found

    while at < len(body):
        byte = body[at : at + 1]
        at += 1
        if byte not in (b"\r", b"\n"):
            line += byte
            continue
        if line:
            field()
        else:
            events += dispatched()
            name = b""
        line = b""
        if byte == b"\r" and body[at : at + 1] == b"\n":
            at += 1
    if line:
        field()
    return events, dispatched()
