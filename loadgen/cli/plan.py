"""`loadgen plan`: a run and a rate in, replicas, cost and settings out; measures nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadgen.errors import UsageError

if TYPE_CHECKING:
    from loadgen.planning.demand import Demand
    from loadgen.scenario.slo import Slo


def plan(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, as `loadgen run` printed it.")],
    target_rps: Annotated[str, typer.Option("--target-rps", metavar="NUMBER", help="Requests/s to serve, on average.")],
    peak_factor: Annotated[
        float, typer.Option("--peak-factor", metavar="NUMBER", help="The busiest time over the average.")
    ] = 1.0,
    headroom: Annotated[
        str, typer.Option("--headroom", metavar="PERCENT", help="Share of a replica's capacity to keep free.")
    ] = "20%",
    gpu_cost_per_hour: Annotated[
        float | None,
        typer.Option("--gpu-cost-per-hour", metavar="NUMBER", help="Price of one GPU for an hour, in any currency."),
    ] = None,
    gpus_per_replica: Annotated[
        int | None,
        typer.Option(
            "--gpus-per-replica", metavar="INT", help="GPUs of one replica; by default what the settings say, else 1."
        ),
    ] = None,
    slo: Annotated[
        str | None,
        typer.Option("--slo", metavar="CONDITIONS", help="Limits in place of the run's, such as 'ttft_p95<500ms'."),
    ] = None,
    other_lengths: Annotated[
        list[Path] | None,
        typer.Option(
            "--other-lengths",
            metavar="RUN",
            help="Run of the same server with other lengths, to say by measurement what they would change; may be repeated.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Plan a deployment from a run: replicas with one to spare, load and cost, sensitivity to lengths, settings to deploy.

    It rests on the highest valid level at which every limit held. Exit codes: 0 planned; 1 no request of the run
    succeeded; 2 the command line is wrong, or the run has no limits; 3 no level is valid; 99 no valid level keeps them.
    """
    import orjson

    from loadgen.measured_run import read_run
    from loadgen.planning.plan import make_plan
    from loadgen.planning.text import plan_lines
    from loadgen.run_choice import chosen_run

    demand = _demand(_number("--target-rps", target_rps), peak_factor, headroom)
    _check_number("--gpu-cost-per-hour", gpu_cost_per_hour)
    if gpus_per_replica is not None and gpus_per_replica < 1:
        raise UsageError(f"--gpus-per-replica is {gpus_per_replica}; it takes 1 or more.")
    limits = None if slo is None else _limits(slo)
    made = make_plan(
        read_run(chosen_run(run), slo=limits),
        demand,
        gpu_cost_per_hour=gpu_cost_per_hour,
        gpus_per_replica=gpus_per_replica,
        other_lengths=[read_run(chosen_run(path), slo=limits) for path in other_lengths or ()],
    )
    if as_json:
        sys.stdout.write(orjson.dumps(made, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode())
    else:
        for line in plan_lines(made):
            typer.echo(line)
    raise typer.Exit(made["exit_code"])


def _demand(target_rps: float, peak_factor: float, headroom: str) -> Demand:
    from loadgen.planning.demand import Demand
    from loadgen.scenario.quantities import parse_share

    _check_number("--target-rps", target_rps)
    if not 1 <= peak_factor < float("inf"):
        raise UsageError(
            f"--peak-factor is {peak_factor:g}; the busiest time is at least the average.",
            hint="write 1.5, for example",
        )
    try:
        share = parse_share(headroom)
    except ValueError as error:
        raise UsageError(f"--headroom is {headroom!r}. {error}", hint="write --headroom 20%") from None
    if share >= 1:
        raise UsageError("--headroom is 100 %, which leaves nothing to plan with.", hint="write --headroom 20%")
    return Demand(target_rps, peak_factor, share)


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(
            f"{option} is {text!r}; it takes a number without a unit.", hint=f"write {option} 40"
        ) from None


def _check_number(option: str, value: float | None) -> None:
    if value is not None and not 0 < value < float("inf"):
        raise UsageError(f"{option} is {value:g}; it takes a number above 0.")


def _limits(text: str) -> Slo:
    from difflib import get_close_matches

    from pydantic import ValidationError

    from loadgen.scenario.slo import Slo, parse_conditions

    try:
        return Slo(**parse_conditions(text))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        wrong = f"{key}: {first['msg'].removeprefix('Value error, ')}"
        if first["type"] == "extra_forbidden":
            near = get_close_matches(key, Slo.model_fields, n=1)
            meant = f"; {near[0]} is" if near else f"; the limits are {', '.join(Slo.model_fields)}"
            wrong = f"{key} is no limit{meant}."
    except ValueError as error:
        wrong = str(error)
    raise UsageError(f"--slo is {text!r}. {wrong}", hint="write for example --slo 'ttft_p95<500ms,error_rate<1%'")
