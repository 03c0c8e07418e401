"""A target that is gone is told from one that is slow, refuses now and then, or answers with errors."""

from __future__ import annotations

import socket

import pytest

from loadgen.controller.target_watch import GONE_S, TargetGoneError, TargetWatch, why_no_connection


class Watched:
    """A watch in virtual time."""

    def __init__(self, refuses: str | None = "Connection refused") -> None:
        self.now_s = 100.0
        self.counts: dict[str, int] = {}
        self.refuses = refuses
        self.tried = 0
        self.watch = TargetWatch("http://target", clock=lambda: self.now_s, refuses=self._try)

    def _try(self, base_url: str) -> str | None:
        self.tried += 1
        return self.refuses

    def passes(self, seconds: float, **a_second: int) -> None:
        for _ in range(round(seconds)):
            self.now_s += 1
            for status, count in a_second.items():
                self.counts[status] = self.counts.get(status, 0) + count
            self.watch.look([self.counts, {}])


def test_a_target_that_refuses_while_nothing_is_answered_is_gone() -> None:
    watched = Watched()
    watched.passes(10, ok=4)
    watched.passes(GONE_S - 1, connect=8)
    with pytest.raises(TargetGoneError, match="takes no connections any more \\(Connection refused\\)"):
        watched.passes(2, connect=8)


def test_one_that_answers_now_and_then_or_with_errors_is_there() -> None:
    watched = Watched()
    for _ in range(5):
        watched.passes(3, connect=5)
        watched.passes(1, http_503=1)
    watched.passes(30, http_500=3)
    watched.passes(30)  # long requests, none of which ends
    assert watched.tried == 0


def test_one_that_takes_a_connection_of_our_own_is_there() -> None:
    watched = Watched(refuses=None)
    watched.passes(30, connect=5)
    assert watched.tried >= 4


def test_trying_to_connect_says_why_it_cannot_be_done() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert why_no_connection(url) is None
    assert why_no_connection(url) == "Connection refused"
