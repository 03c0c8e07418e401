"""Options that people bring from other load tools and that mean nothing here: what to give instead, and why; values and one check."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from loadgen.errors import UsageError


@dataclass(frozen=True, slots=True)
class Foreign:
    """Options of other tools with one meaning."""

    options: tuple[str, ...]
    why: str
    """What there is in its place, as a sentence."""
    instead: str
    """What to write, as a hint."""


FOREIGN = (
    Foreign(
        ("--num-prompts", "--num-requests", "--request-count", "--max-requests", "--number", "--num-conversations"),
        "A level is measured for a time, so that its first and its last requests count in no figure.",
        "give --duration 60s; without one a level lasts about 200 requests and three times the P95 of their latency",
    ),
    Foreign(
        ("--num-warmups", "--num-warmup-requests", "--warmup-request-count", "--warmup-num"),
        "A level warms up until it is steady, or for a given time.",
        "leave it out, or give --warmup 10s",
    ),
    Foreign(("--host", "--port", "--target"), "The target is one URL.", "give --base-url http://HOST:PORT"),
    Foreign(
        ("--backend", "--api", "--request-format", "--chat"),
        "Targets speak the OpenAI API, and the endpoint is chosen.",
        "give --endpoint chat or --endpoint completions",
    ),
    Foreign(
        ("--users", "--streams", "--parallel", "-u", "--num-users"),
        "The number of requests in flight is the concurrency; several numbers are a sweep.",
        "give --concurrency 8,16,32",
    ),
    Foreign(
        ("--spawn-rate", "-r", "--hatch-rate"),
        "Users begin spread over the ramp.",
        "leave it out, or give --ramp 10s",
    ),
    Foreign(
        ("--goodput", "--ttft-sla-ms", "--tpot-sla-ms", "--error-rate-sla", "--max-fail-ratio", "--sla-params"),
        "Limits are given together, and goodput follows from those on latencies.",
        "give --slo 'ttft_p95<500ms,tpot_p95<50ms,error_rate<1%'",
    ),
    Foreign(
        ("--percentile-metrics", "--metric-percentiles"),
        "P50, P90, P95 and P99 of every latency are always there.",
        "leave it out; they are in the table and in summary.json of the run folder",
    ),
    Foreign(
        ("--save-result", "--save-detailed", "--append-result", "--result-dir", "--result-filename", "--summary-file")
        + ("--artifact-dir", "--outputs-dir", "--csv", "--output-path", "--output-formats"),
        "Every run leaves a folder with its raw data, reports and figures.",
        "give -o FOLDER; `loadgen export FOLDER --format vllm` or `--format csv` writes it for other tools",
    ),
    Foreign(
        ("--rate-type", "--profile", "--max-seconds"),
        "The load follows from the option that gives it: --concurrency for users, --request-rate for arrivals.",
        "give one of them, and --duration 60s",
    ),
    Foreign(
        ("--data", "--dataset"),
        "Prompts are made of given lengths, or come from a file.",
        "give --isl 512 --osl 128, or --dataset-path FILE",
    ),
    Foreign(
        ("--streaming",),
        "Answers are streamed unless told otherwise.",
        "leave it out",
    ),
    Foreign(
        ("--headless", "--processes", "--locustfile", "-f", "--master", "--worker"),
        "That is plain Locust's, with which locustfiles run.",
        "see docs/locustfile.md; a scenario has --workers and --expect-workers",
    ),
    Foreign(
        ("--disable-tqdm", "--ui", "--ui-type", "--no-gpu-telemetry", "--display"),
        "There is nothing of that name.",
        "leave it out; without a terminal no progress is drawn",
    ),
)
"""In the order of docs/coming-from.md."""

_BY_OPTION = {option: one for one in FOREIGN for option in one.options}
UNLIMITED = ("inf", "infinity", ".inf")


def refuse_foreign(args: Sequence[str], known: Collection[str]) -> None:
    """UsageError for the first of the words of a command line that is another tool's option. `known`: the command's own."""
    for word, following in zip_longest(args, args[1:], fillvalue=""):
        if word == "--":
            return
        option, _, value = word.partition("=")
        found = None if option in known else _BY_OPTION.get(option)
        if found is not None:
            raise UsageError(f"There is no option {option}. {found.why}", hint=found.instead)
        if option in ("--request-rate", "--rate", "--qps") and (value or following).lower() in UNLIMITED:
            raise UsageError(
                f"{option} {value or following}: without a limit, arrivals would come all at once.",
                hint="give a rate; --concurrency N keeps N requests in flight, each user asking again as soon as it is answered",
            )
