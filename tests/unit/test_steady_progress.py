"""What a worker tells while a level runs: every token in one bin of the controller's clock, every request once."""

import numpy as np
import pytest

from loadgen.stats.progress import BIN_NS, Progress, ProgressLog
from tests.level_records import MS, normal, request


def test_tokens_fall_into_the_bins_in_which_they_were_noted() -> None:
    log = ProgressLog(now_ns=0, clock_offset_ns=0)
    for at_ms, total in ((50, 5), (100, 9), (150, 9), (200, 20), (310, 20)):
        log.note_tokens(at_ms * MS, total)
    told = log.take()
    assert (told.first_bin, told.tokens) == (0, [9, 11, 0])


def test_a_step_across_bins_is_spread_over_its_time() -> None:
    log = ProgressLog(now_ns=0, clock_offset_ns=0)
    log.note_tokens(250 * MS, 50)
    assert log.take().tokens == pytest.approx([20, 20])
    log.note_tokens(300 * MS, 50)
    assert log.take().tokens == pytest.approx([10])


def test_nothing_is_told_twice_and_no_token_is_lost() -> None:
    rng = np.random.default_rng(3)
    log = ProgressLog(now_ns=7 * MS, clock_offset_ns=0)
    now_ns, total, told, next_bin = 7 * MS, 0, 0.0, 0
    for _ in range(200):
        now_ns += int(rng.integers(1, 180 * MS))
        total += int(rng.integers(0, 30))
        log.note_tokens(now_ns, total)
        if rng.integers(3) == 0:
            progress = log.take()
            assert progress.first_bin == next_bin, "bins follow each other"
            next_bin += len(progress.tokens)
            told += sum(progress.tokens)
    log.note_tokens(now_ns + BIN_NS, total)
    assert told + sum(log.take().tokens) == pytest.approx(total)


def test_instants_and_bins_are_of_the_controllers_clock() -> None:
    ahead_ns = 5 * BIN_NS
    log = ProgressLog(now_ns=12 * BIN_NS, clock_offset_ns=ahead_ns)
    log.note_tokens(13 * BIN_NS, 4)
    log.note_finished(normal(3, 50, 10, sent_ms=1200, user=8))
    told = log.take()
    assert (told.first_bin, told.tokens) == (7, [4])
    assert (told.user, told.dispatched_ns, told.finished_ns) == ([8], [700 * MS], [770 * MS])
    assert told.ttft_ns == [50 * MS], "a duration has no offset"


def test_a_failed_request_is_told_without_ttft_and_one_that_we_cut_off_is_not_told() -> None:
    log = ProgressLog(now_ns=0, clock_offset_ns=0)
    for number, status in enumerate(("http_503", "cancelled", "truncated", "censored")):
        log.note_finished(request(0, [5, 6], status=status, user=number))
    told = log.take()
    assert (told.user, told.ttft_ns) == ([0, 2], [None, None])


def test_a_total_or_a_clock_that_goes_back_adds_nothing() -> None:
    log = ProgressLog(now_ns=0, clock_offset_ns=0)
    log.note_tokens(100 * MS, 10)
    log.note_tokens(90 * MS, 11)
    log.note_tokens(200 * MS, 8)
    log.note_tokens(300 * MS, 12)
    assert log.take().tokens == [10, 0, 2]


def test_progress_survives_the_wire() -> None:
    log = ProgressLog(now_ns=0, clock_offset_ns=0)
    log.note_tokens(150 * MS, 3)
    log.note_finished(normal(3, 50, 10))
    told = log.take()
    assert Progress.decode(told.encode()) == told
    with pytest.raises(TypeError):
        Progress.decode({**told.encode(), "surprise": 1})
