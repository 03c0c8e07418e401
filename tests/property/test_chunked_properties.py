"""The chunk follower beside a parser that reads byte by byte: for any body and any cuts both give the same payload."""

from __future__ import annotations

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from loadgen.wire.chunked import ChunkedBody


class ByteByByte:
    """A chunked decoder that shares nothing with ours."""

    def __init__(self) -> None:
        self.payload = bytearray()
        self.ended = False
        self._line = bytearray()
        self._left = 0
        self._after_data = 0

    def feed(self, data: bytes) -> bytes:
        before = len(self.payload)
        for byte in data:
            self._one(byte)
        return bytes(self.payload[before:])

    def _one(self, byte: int) -> None:
        if self._left:
            self.payload.append(byte)
            self._left -= 1
            self._after_data = 2 if self._left == 0 else 0
        elif self._after_data:
            assert byte == b"\r\n"[2 - self._after_data]
            self._after_data -= 1
        elif not self.ended:
            self._line.append(byte)
            if self._line.endswith(b"\r\n"):
                self._left = int(bytes(self._line[:-2]).partition(b";")[0], 16)
                self.ended = self._left == 0
                self._line.clear()


def through(reads: list[bytes]) -> tuple[list[bytes], ByteByByte, int]:
    """(payload of each read, the parser that saw what it had to see, bytes that it saw)."""
    body, parser = ChunkedBody(), ByteByByte()
    payloads, seen = [], 0
    for data in reads:
        whole = body.whole(data)
        if whole is not None:
            payloads.append(whole)
            continue
        before, chunks, after = body.take(data)
        seen += len(before) + len(after)
        payloads.append(parser.feed(before) + b"".join(chunks) + parser.feed(after))
    return payloads, parser, seen


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges) if a < b]


CHUNKS = st.lists(st.binary(min_size=1, max_size=40), max_size=12)
FORMS = st.lists(st.sampled_from([b"%x", b"%X", b"%04x", b"%x;name=value"]), min_size=12, max_size=12)


@given(CHUNKS, FORMS, st.lists(st.integers(0, 2000), max_size=20))
@example([b"abc", b"\r\n0\r\n\r\n", b"x"], [b"%x"] * 12, [])
def test_every_cut_gives_each_read_the_payload_that_came_with_it(
    chunks: list[bytes], forms: list[bytes], places: list[int]
) -> None:
    framed = [form % len(chunk) + b"\r\n" + chunk + b"\r\n" for form, chunk in zip(forms, chunks, strict=False)]
    reads = cut(b"".join(framed) + b"0\r\n\r\n", places)
    oracle = ByteByByte()
    expected = [oracle.feed(read) for read in reads]
    payloads, parser, _ = through(reads)
    assert payloads == expected
    assert parser.ended


@given(CHUNKS)
def test_a_chunk_a_read_is_never_shown_to_the_parser(chunks: list[bytes]) -> None:
    reads = [b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks]
    payloads, _, seen = through([*reads, b"0\r\n\r\n"])
    assert payloads == [*chunks, b""]
    assert seen == len(b"0\r\n\r\n")


@given(
    CHUNKS,
    st.sampled_from([b"g\r\n", b"-3\r\nabc\r\n", b"+3\r\nabc\r\n", b" 3\r\nabc\r\n", b"0x3\r\nabc\r\n", b"\r\n"]),
)
def test_broken_framing_reaches_the_parser_byte_for_byte(chunks: list[bytes], broken: bytes) -> None:
    body = ChunkedBody()
    for chunk in chunks:
        assert body.take(b"%x\r\n%b\r\n" % (len(chunk), chunk)) == (b"", [chunk], b"")
    later = [broken, b"3\r\nabc\r\n", b"rest"]
    assert [body.take(data) for data in later] == [(b"", [], broken), (later[1], [], b""), (later[2], [], b"")]
    assert body.whole(b"3\r\nabc\r\n") is None


def test_a_chunk_without_its_line_end_reaches_the_parser() -> None:
    body = ChunkedBody()
    assert body.take(b"3\r\nabcde3\r\nabc\r\n") == (b"", [], b"3\r\nabcde3\r\nabc\r\n")


def test_a_read_is_one_whole_chunk_only_if_its_first_line_says_just_that() -> None:
    for length in range(600):
        for digits in (1, 2, 3):
            size = length - digits - 4
            if size < 0 or size >= 16**digits:
                continue
            data = b"%0*x\r\n" % (digits, size) + b"x" * size + b"\r\n"
            # A chunk of no byte is the last one, and the parser has to see it.
            assert ChunkedBody().whole(data) in ((None,) if size == 0 else (b"x" * size, None))
            for other in (size - 1, size + 1):
                if other >= 0:
                    wrong = b"%0*x\r\n" % (digits, other) + data[digits + 2 :]
                    assert len(wrong) != length or ChunkedBody().whole(wrong) is None
    assert ChunkedBody().whole(b"5\r\nhello\r\n") == b"hello"
    assert ChunkedBody().whole(b"f\r\n" + b"x" * 16 + b"\r\n") is None
