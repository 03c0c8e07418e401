"""Options that people bring from other load tools and that mean nothing, or something else, here: what to give instead, and why;
values only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Foreign:
    """Options of other tools with one meaning."""

    options: tuple[str, ...]
    why: str
    """What there is in its place, as a sentence."""
    instead: str
    """What to write, as a hint."""


@dataclass(frozen=True, slots=True)
class OtherMeaning:
    """Options that there are here, with a value that only another tool can mean."""

    options: tuple[str, ...]
    values: str
    """Regular expression of the whole value."""
    example: str
    """A value of the kind."""
    why: str
    """With `{option}` and `{value}`."""
    instead: str
    """The same."""

    def told(self, option: str, value: str) -> tuple[str, str]:
        """What is wrong with it, and what to write."""
        return self.why.format(option=option, value=value), self.instead.format(option=option, value=value)


_RATES = ("--request-rate", "--rate", "--qps")
_URL = r"https?://.*"

OTHER_MEANINGS = (
    OtherMeaning(
        ("-H", "--header"),
        _URL,
        "http://HOST:PORT",
        "{option} with a URL is the target to Locust, and would be a header named http here.",
        "give it as --base-url",
    ),
    OtherMeaning(
        ("-u",),
        _URL,
        "http://HOST:PORT",
        "There is no option {option}. The target is one URL.",
        "give it as --base-url",
    ),
    OtherMeaning(
        ("-c",),
        r"\d+",
        "50",
        "{option} is the scenario file, and {value} is a number of users to hey and oha.",
        "give --concurrency {value}",
    ),
    OtherMeaning(
        ("-m",),
        r"GET|POST|PUT|HEAD",
        "POST",
        "{option} is the model, and {value} is the method to hey and oha; requests are always POST.",
        "leave it out",
    ),
    OtherMeaning(
        ("--warmup",),
        r"0*\.0*[1-9]\d*",
        "0.1",
        "{option} {value}: without a unit that is a share of the level to guidellm, and would be seconds here.",
        "give the unit, such as --warmup 500ms, or a time such as --warmup 10s",
    ),
    OtherMeaning(
        _RATES,
        r"inf|infinity|\.inf",
        "inf",
        "{option} {value}: without a limit, arrivals would come all at once.",
        "give a rate; --concurrency N keeps N requests in flight, each user asking again as soon as it is answered",
    ),
)

USERS = ("--concurrency", "--max-concurrency")
ARRIVALS = _RATES
"""To vLLM bench and aiperf the users are a limit of the arrivals; here the two are different loads."""

FOREIGN = (
    Foreign(
        ("--num-prompts", "--num-requests", "--request-count", "--max-requests", "--number", "--num-conversations")
        + ("--conversation-num", "--iterations", "-n", "-i"),
        "A level is measured for a time, so that its first and its last requests count in no figure.",
        "give --duration 60s; without one a level lasts about 200 requests and three times the P95 of their latency",
    ),
    Foreign(
        ("-z",),
        "The time that a level is measured has a name of its own.",
        "give --duration 60s",
    ),
    Foreign(
        ("--num-warmups", "--num-warmup-requests", "--warmup-request-count", "--warmup-num", "--warmup-percent"),
        "A level warms up until it is steady, or for a given time.",
        "leave it out, or give --warmup 10s",
    ),
    Foreign(
        ("--cooldown", "--cooldown-percent", "--benchmark-grace-period", "--stop-timeout"),
        "A level ends with its window, and what is under way then may still end.",
        "leave it out, or give --drain-timeout 30s",
    ),
    Foreign(("--host", "--port", "--target"), "The target is one URL.", "give --base-url http://HOST:PORT"),
    Foreign(
        ("--backend", "--backend-type", "--backend-kwargs", "--api", "--protocol", "--request-format", "--request-type")
        + ("--chat",),
        "Targets speak the OpenAI API, and the endpoint is chosen.",
        "give --endpoint chat or --endpoint completions",
    ),
    Foreign(
        ("--served-model-name", "--model-names"),
        "The model is named once, as the server's /v1/models does.",
        "give --model NAME, and --tokenizer where its tokenizer has another name; several models are --models "
        "'{NAME: 70%, OTHER: 30%}'",
    ),
    Foreign(
        ("--lora-modules", "--lora-assignment"),
        "Adapters are models by share, each with figures of its own.",
        "give --models '{base: 70%, adapter: 30%}'",
    ),
    Foreign(
        ("--users", "--streams", "--parallel", "-u", "--num-users", "--vus"),
        "The number of requests in flight is the concurrency; several numbers are a sweep.",
        "give --concurrency 8,16,32",
    ),
    Foreign(
        ("--spawn-rate", "-r", "--hatch-rate", "--rampup", "--concurrency-ramp-duration"),
        "Users begin spread over the ramp.",
        "leave it out, or give --ramp 10s",
    ),
    Foreign(
        ("--ramp-up-strategy", "--ramp-up-start-rps", "--ramp-up-end-rps", "--request-rate-ramp-duration", "--stage")
        + ("--request-rate-series",),
        "A request rate that changes is given in stages, or as a file.",
        "give --stages 60s:2-10,60s:10, or --rate-file FILE",
    ),
    Foreign(
        ("--open-loop", "--rps", "-q"),
        "A request rate makes an open loop.",
        "give --request-rate 4, and --max-in-flight 64 where requests under way should have a limit",
    ),
    Foreign(
        ("--rate-type", "--profile", "--max-seconds"),
        "The load follows from the option that gives it: --concurrency for users, --request-rate for arrivals.",
        "give one of them, and --duration 60s",
    ),
    Foreign(
        ("--fixed-schedule",),
        "A trace is replayed at a speed, its own being 1.",
        "give --dataset-path FILE --replay-speed 1",
    ),
    Foreign(
        ("--conversation-turn-delay-mean",),
        "The time between turns is a duration with its unit, not a number of milliseconds.",
        "give --turn-think-time 500ms",
    ),
    Foreign(
        ("--goodput", "--ttft-sla-ms", "--tpot-sla-ms", "--itl-sla-ms", "--e2e-sla-ms", "--error-rate-sla")
        + ("--max-fail-ratio", "--sla-params"),
        "Limits are given together, and goodput follows from those on latencies.",
        "give --slo 'ttft_p95<500ms,tpot_p95<50ms,error_rate<1%'",
    ),
    Foreign(
        ("--max-errors", "--max-error-rate", "--max-global-error-rate", "--failed-request-threshold"),
        "A run stops by the share of requests that fail; a limit on it without a stop stands under --slo.",
        "give --stop-on-error-rate 5%",
    ),
    Foreign(
        ("--read-timeout",),
        "Each part of a request has a timeout of its own.",
        "give --total-timeout 600s, --first-token-timeout or --between-tokens-timeout",
    ),
    Foreign(
        ("--percentile-metrics", "--metric-percentiles"),
        "P50, P90, P95 and P99 of every latency are always there.",
        "leave it out; they are in the table and in summary.json of the run folder",
    ),
    Foreign(
        ("--save-result", "--save-detailed", "--append-result", "--result-dir", "--result-filename", "--summary-file")
        + ("--artifact-dir", "--output-artifact-dir", "--outputs-dir", "--csv", "--html", "--json", "--output-path")
        + ("--output-formats", "--outputs"),
        "Every run leaves a folder with its raw data, reports and figures.",
        "give -o FOLDER; `loadgen export FOLDER --format vllm` or `--format csv` writes it for other tools",
    ),
    Foreign(
        ("--metadata", "--label"),
        "A run has a name, and records its scenario, target and versions by itself.",
        "give --name NAME",
    ),
    Foreign(
        ("--data", "--dataset", "--public-dataset", "--hf-name", "--hf-subset", "--hf-split"),
        "Prompts are made of given lengths, or come from a file that is there.",
        "give --isl 512 --osl 128, or --dataset-path FILE",
    ),
    Foreign(
        ("--random-prefix-len", "--prefix-length", "--prompt-prefix-length", "--shared-system-prompt-length"),
        "A beginning that all requests share is part of the prompt's tokens, not beside them.",
        "give --shared-prefix-tokens 256, and a longer --isl by as much",
    ),
    Foreign(
        ("--max-prompt-length", "--min-prompt-length"),
        "The prompt's tokens are a number, or a distribution with its bounds.",
        "give --isl 512, or --isl '{distribution: uniform, min: 128, max: 1024}'",
    ),
    Foreign(
        ("--max-tokens", "--sharegpt-output-len", "--custom-output-len", "--hf-output-len", "--spec-bench-output-len"),
        "The tokens of an answer are asked for in one way, whatever the prompts come from.",
        "give --osl 128",
    ),
    Foreign(
        ("--temperature", "--top-p", "--top-k", "--min-p", "--logprobs", "--presence-penalty", "--frequency-penalty")
        + ("--repetition-penalty", "--use-beam-search", "--stop", "--n-choices", "--extra-inputs", "--extra-args"),
        "What else a request should say stands in its body.",
        """give --extra-body '{"temperature": 0.7}'""",
    ),
    Foreign(
        ("--trust-remote-code", "--tokenizer-trust-remote-code"),
        "No code of a model's repository is run here.",
        "leave it out; without --tokenizer the server counts the tokens itself",
    ),
    Foreign(
        ("--streaming",),
        "Answers are streamed unless told otherwise.",
        "leave it out",
    ),
    Foreign(
        ("--workers-max", "--max-workers"),
        "There are as many workers as are asked for.",
        "leave it out, or give --workers 2",
    ),
    Foreign(
        ("--config_file", "--scenario"),
        "The scenario is the argument of the command.",
        "give --config FILE, or just FILE; keys of another tool's file are not known",
    ),
    Foreign(
        ("--headless", "--processes", "--locustfile", "-f", "--master", "--worker", "--master-host", "--master-port")
        + ("--autostart", "--autoquit", "--only-summary", "--print-stats", "--reset-stats", "--tags", "--exclude-tags")
        + ("-T", "-E", "--loglevel", "-L"),
        "That is plain Locust's, with which locustfiles run.",
        "see docs/locustfile.md; a scenario has --workers and --expect-workers",
    ),
    Foreign(
        ("--disable-tqdm", "--ui", "--ui-type", "--no-gpu-telemetry", "--display", "--disable-progress")
        + ("--disable-console", "--log-level", "--debug"),
        "There is nothing of that name.",
        "leave it out; without a terminal no progress is drawn",
    ),
)
"""In the order of docs/coming-from.md."""
