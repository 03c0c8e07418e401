"""The benchmark's truth: which of the server's requests a tool's are, and the true figures by each definition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.side_by_side import footprint
from bench.side_by_side.measured import Ints, Measured, ToolError
from bench.side_by_side.rungs import OUTPUT_TOKENS, Rung
from bench.side_by_side.truth import Served, compare, match, percentiles, served
from server.metronome.truth import COMPLETE, STREAMED, TruthLog, load_truth

MS = 1_000_000
COLD = Rung(2, 100, start="cold")


def server(arrived_ms: list[float], *, ttft_ms: float = 50, gap_ms: float = 10) -> Served:
    """Answers exactly on time."""
    arrived = np.array([round(at * MS) for at in arrived_ms], np.int64)
    sends = arrived[:, None] + round(ttft_ms * MS) + np.arange(OUTPUT_TOKENS) * round(gap_ms * MS)
    return Served(arrived, sends, 0)


def tool(truth: Served, *, late_ms: float = 0, **more: object) -> Measured:
    """A tool that begins on time and is late with every token by as much."""
    stamps = truth.sends_ns + round(late_ms * MS)
    gaps = list(np.diff(stamps, axis=1) / MS)
    fields: dict[str, object] = {"gaps_ms": gaps} | more
    return Measured(truth.arrived_ns, (stamps[:, 0] - truth.arrived_ns) / MS, **fields)  # type: ignore[arg-type]


def starts(*at_ms: float) -> Ints:
    return np.array([round(at * MS) for at in at_ms], np.int64)


def test_each_request_is_the_first_arrival_after_its_beginning_that_is_nobody_elses() -> None:
    assert match(starts(0, 0, 100), starts(5, 6, 104)).tolist() == [0, 1, 2]


def test_a_request_that_the_tool_does_not_count_is_passed_over() -> None:
    assert match(starts(100), starts(5, 6, 104)).tolist() == [2]


def test_a_request_that_never_reached_the_server_has_no_match() -> None:
    assert match(starts(0, 500), starts(5)).tolist() == [0, -1]


def test_a_late_tool_is_wrong_by_its_lateness_and_the_truth_is_not() -> None:
    truth = server([0, 1])
    found = compare(tool(truth, late_ms=30), truth, COLD)
    assert found["ttft_true_ms"] == [50, 50, 50]
    assert found["ttft_ms"] == [80, 80, 80]
    assert found["itl_ms"] == found["itl_true_ms"] == [10, 10, 10]


def test_a_server_that_was_late_itself_is_no_error_of_the_tool() -> None:
    truth = server([0, 1], ttft_ms=57)
    found = compare(tool(truth), truth, COLD)
    assert found["ttft_ms"] == found["ttft_true_ms"] == [57, 57, 57]


def test_gaps_between_chunks_are_compared_with_gaps_between_chunks() -> None:
    truth = server([0, 1])
    gaps = [np.concatenate([[0.01], row]) for row in np.diff(truth.sends_ns, axis=1) / MS]
    found = compare(tool(truth, gaps_ms=gaps, role_gaps=True), truth, COLD)
    assert found["itl_kind"] == "between chunks"
    assert found["itl_true_ms"] == [10, 10, 10]


def test_a_mean_of_a_request_is_compared_with_the_true_mean() -> None:
    truth = server([0, 1])
    truth.sends_ns[0, 1:] += 99 * MS  # one stall in one request
    means = np.array([11.0, 10.0])
    found = compare(tool(truth, gaps_ms=None, mean_gap_ms=means), truth, COLD)
    assert found["itl_ms"] == found["itl_true_ms"] == [10, 11, 11]


def test_only_requests_that_began_in_the_steady_window_count() -> None:
    rung = Rung(2, 100, window_s=1.0)
    opens_ms = rung.skip_s * 1000
    truth = server([0, opens_ms - 1, opens_ms + 1, opens_ms + 999, opens_ms + 1001])
    assert compare(tool(truth), truth, rung)["requests"] == 2


def test_a_tools_own_window_and_figures_go_first() -> None:
    truth = server([0, 100, 200])
    own = tool(truth, window_ns=(50 * MS, 150 * MS), reported={"ttft_ms": [51.0, 52.0, 53.0]})
    found = compare(own, truth, Rung(2, 100))
    assert (found["requests"], found["ttft_ms"]) == (1, [51, 52, 53])


def test_load_is_the_share_of_what_a_client_without_a_pause_would_get() -> None:
    rung = Rung(1, 100, window_s=1.0)
    step_ms = rung.request_s * 1000
    truth = server([i * step_ms for i in range(12)])
    assert compare(tool(truth), truth, rung)["load_share"] == pytest.approx(1, abs=0.06)


def test_nothing_counted_is_no_result() -> None:
    truth = server([0])
    with pytest.raises(ToolError, match="counted no request"):
        compare(Measured(starts(), np.empty(0), []), truth, COLD)
    with pytest.raises(ToolError, match="none of the tool's requests"):
        compare(tool(server([900])), truth, COLD)


def test_percentiles_are_nearest_rank() -> None:
    assert percentiles(np.arange(1.0, 101.0)) == [50, 95, 99]


def test_only_complete_streams_of_the_benchmarks_length_are_served(tmp_path: Path) -> None:
    log = TruthLog(tmp_path / "log", ttft_ns=50 * MS, itl_ns=10 * MS)
    sends = [i * MS for i in range(OUTPUT_TOKENS)]
    for number, (tokens, flags) in enumerate(
        [(OUTPUT_TOKENS, COMPLETE | STREAMED), (8, COMPLETE | STREAMED), (OUTPUT_TOKENS, STREAMED)]
    ):
        log.add(
            number=number,
            request_id=b"",
            arrived_ns=100 - number,
            read_ns=0,
            tokens=tokens,
            sends_ns=sends[:tokens],
            flags=flags,
        )
    log.close()
    found = served(load_truth(tmp_path / "log"))
    assert found.arrived_ns.tolist() == [100]
    assert found.sends_ns.tolist() == [sends]


def test_processor_time_of_a_window_is_interpolated() -> None:
    samples = [{"t_ns": i * 10**9, "cpu_ns": i * i * 10**8} for i in range(5)]
    assert footprint.cpu_s(samples, 10**9, 3 * 10**9) == pytest.approx(0.8)
    assert footprint.cpu_s(samples, round(1.5e9), 3 * 10**9) == pytest.approx(0.9 - 0.25)
    assert footprint.cpu_s(samples, 10**9, 5 * 10**9) is None


def test_memory_that_was_never_read_is_not_zero() -> None:
    assert footprint.peak_mb([{"pss_mb": None}], "pss_mb") is None
    assert footprint.peak_mb([{"pss_mb": None}, {"pss_mb": 7.5}], "pss_mb") == 7.5


def test_the_window_of_a_tool_that_is_very_late_opens_with_its_next_request() -> None:
    rung = Rung(2, 100, window_s=1.0)
    after_ms = rung.skip_s * 1000 + 5000
    truth = server([0, after_ms, after_ms + 500, after_ms + 1500])
    assert compare(tool(truth), truth, rung)["requests"] == 2
    with pytest.raises(ToolError, match="none of its 1 complete requests began after the ramp"):
        compare(tool(server([0])), truth, rung)
