"""From a scenario's load to the schedule of each level; reads the rate file, draws nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loadgen.arrivals.rate import Rate
from loadgen.arrivals.rate_file import read_rate
from loadgen.arrivals.schedule import Schedule
from loadgen.errors import UsageError
from loadgen.scenario.load_section import Load
from loadgen.scenario.model import Level, Scenario
from loadgen.scenario.replay import replay_length_s, replayed

_LEAST_BURSTS = 10
_LEAST_BURSTS_S = 15.0


def schedules(scenario: Scenario, timestamps_s: Sequence[float] | None = None) -> dict[int, Schedule]:
    """The schedule of each level by its number; empty for a closed loop. The scenario has its seed.

    `timestamps_s`: of the trace, where one is replayed.

    Raises UsageError where the rate file cannot be read, or the warm-up lasts as long as the rate's whole course.
    """
    load = scenario.load
    if not load.open_loop:
        return {}
    if load.replay_speed is not None:
        return {level.level: _replayed(scenario, level, timestamps_s) for level in scenario.levels()}
    course = _course(load)
    if course is not None and load.duration is None and (load.given_warmup_s or 0.0) >= course.length_s:
        raise UsageError(
            f"load.warmup, {load.given_warmup_s:g} s, leaves nothing of the {course.length_s:g} s in which the rate changes.",
            hint="shorten the warm-up, or give load.duration",
        )
    return {
        level.level: _schedule(scenario, level.level, course or _steady(level.request_rate))
        for level in scenario.levels()
    }


def schedule_of(scenario: Scenario, level: Level, timestamps_s: Sequence[float] | None = None) -> Schedule | None:
    """The schedule of one level, whatever number it has; None for users. The scenario has its seed.

    A level of arrivals in a closed loop's scenario is Poisson. Raises as `schedules`.
    """
    load = scenario.load
    if level.concurrency is not None:
        return None
    if level.replay_speed is not None:
        return _replayed(scenario, level, timestamps_s)
    return _schedule(scenario, level.level, _course(load) or _steady(level.request_rate))


def _replayed(scenario: Scenario, level: Level, timestamps_s: Sequence[float] | None) -> Schedule:
    assert timestamps_s is not None and level.replay_speed is not None and scenario.seed is not None
    schedule = replayed(scenario.load, timestamps_s, level.replay_speed, seed=scenario.seed, level=level.level)
    warmup_s, length_s = scenario.load.given_warmup_s or 0.0, replay_length_s(schedule)
    if scenario.load.duration is None and warmup_s >= length_s:
        raise UsageError(
            f"load.warmup, {warmup_s:g} s, leaves nothing of the {length_s:g} s that the trace lasts.",
            hint="shorten the warm-up, or give a longer trace",
        )
    return schedule


def _steady(rate: float | None) -> Rate:
    assert rate is not None, "a level without a course has a rate"
    return Rate.steady(rate)


def _course(load: Load) -> Rate | None:
    if load.rate_file is not None:
        return read_rate(Path(load.rate_file))
    if load.stages is None:
        return None
    times_s, rates, now_s = [0.0], [load.stages[0].from_rate], 0.0
    for stage in load.stages:
        if stage.from_rate != rates[-1]:
            times_s.append(now_s)
            rates.append(stage.from_rate)
        now_s += stage.duration_s
        times_s.append(now_s)
        rates.append(stage.to_rate)
    return Rate(tuple(times_s), tuple(rates))


def _schedule(scenario: Scenario, level: int, rate: Rate) -> Schedule:
    load = scenario.load
    assert scenario.seed is not None
    return Schedule(
        pattern=load.pattern,
        burstiness=load.burstiness or 1.0,
        times_s=rate.times_s,
        rates=rate.rates,
        seed=scenario.seed,
        level=level,
        burst_size=load.burst_size,
        burst_period_s=load.burst_period,
        turns=scenario.workload.mean_turns(),
    )


def given_window_s(load: Load, schedule: Schedule | None) -> float | None:
    """How long the window is, where that does not follow from the work: as given, as the rate's course, ten bursts."""
    if load.duration is not None or schedule is None:
        return load.duration
    if schedule.timestamps_s is not None:
        return replay_length_s(schedule) - (load.given_warmup_s or 0.0)
    if schedule.length_s:
        return schedule.length_s - (load.given_warmup_s or 0.0)
    if schedule.burst_period_s is not None:
        return min(load.max_duration, max(_LEAST_BURSTS_S, _LEAST_BURSTS * schedule.burst_period_s))
    return None
