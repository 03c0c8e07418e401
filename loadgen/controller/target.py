"""The server under test before any load: start it if it is ours, ask what it is, and prove that it can be measured.

Every refusal here comes before the first worker sends a byte, and says what to change.
"""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loadgen import record
from loadgen.api_key import read_api_key, without_key
from loadgen.datasets.plan import SurveyedDataset, plan_dataset
from loadgen.datasets.workload import DatasetWorkload
from loadgen.errors import LoadgenError, UsageError
from loadgen.prompts.errors import PromptError
from loadgen.prompts.recipe import LEVEL_BITS
from loadgen.prompts.tokenizers import LocalCounter, ServerCounter, TokenCounter
from loadgen.record import RequestRecord
from loadgen.route import PROXY_AUTH, Route, unused_proxy_variable
from loadgen.scenario.model import Scenario
from loadgen.scenario.target import Target as AskedTarget
from loadgen.wire.client import Client, Limits
from loadgen.wire.decode import decode
from loadgen.wire.exchange import Exchange
from loadgen.wire.failures import words
from loadgen.wire.kernel_clock import enable_kernel_stamps
from loadgen.wire.wire_loop import WireLoop
from loadgen.workload.carried import CarriedWorkload
from loadgen.workload.plan import plan_workload
from loadgen.workload.synthetic import SyntheticWorkload

_ANSWER_S = 10.0
_PROBE_TOKENS = 4
# Beyond every level of a sweep, so that the probe's prompt is none of the run's.
_PROBE_LEVEL = (1 << LEVEL_BITS) - 1


@dataclass(frozen=True, slots=True)
class Target:
    """A server that answered, what it said of itself, and the prompts that fit it."""

    base_url: str
    route: Route
    model: str
    version: str | None
    max_model_len: int | None
    workload: CarriedWorkload
    counted_by: str | None
    """Who counted the prompt tokens; None where a file has the prompts, which nobody counts."""
    counts_every_event: bool
    """Whether it says with each event how many tokens there are so far."""
    kernel_stamps: bool

    def describe(self) -> dict[str, Any]:
        """For the run's provenance."""
        return {
            "base_url": self.base_url,
            "proxy": self.route.proxy,
            "insecure": self.route.insecure,
            "model": self.model,
            "server_version": self.version,
            "max_model_len": self.max_model_len,
            "precision": None,
            "prompt_tokens_counted_by": self.counted_by,
            "tokens_counted_per_event": self.counts_every_event,
            "arrival_stamps": "kernel" if self.kernel_stamps else "user space",
        }


class _Server:
    """Small questions to the server, each answered or refused within seconds."""

    def __init__(self, base_url: str, api_key: str | None, route: Route) -> None:
        self.base_url = base_url
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._opener = route.opener()

    def get(self, path: str) -> Any:
        """The JSON that a path answers. Raises urllib.error.HTTPError, OSError or ValueError."""
        request = urllib.request.Request(self.base_url + path, headers=self._headers)
        with self._opener.open(request, timeout=_ANSWER_S) as answer:
            return json.loads(answer.read())


def route_of(target: AskedTarget) -> Route:
    """How a scenario's target is reached. Raises UsageError when its `ca_file` is of no use."""
    return Route.of(insecure=target.insecure, ca_file=target.ca_file, proxy=target.proxy)


def inspect(
    scenario: Scenario,
    base_url: str,
    *,
    dataset: SurveyedDataset | None = None,
    tell: Callable[[str], object],
    pause: Callable[[float], object],
) -> Target:
    """Waits for the server, asks for its model, finds the prompts, and sends one request to prove that it streams.

    Raises LoadgenError: exit code 1 when the server cannot be reached or does not stream, 2 when the scenario asks for
    what it does not have. `tell` gets a sentence when there is something to wait for; `pause` sleeps, and raises when
    the run is to end.
    """
    with enable_kernel_stamps():  # well before the probe, which tells whether arrivals are the kernel's
        return _inspect(scenario, base_url, dataset, tell, pause)


def _inspect(
    scenario: Scenario,
    base_url: str,
    dataset: SurveyedDataset | None,
    tell: Callable[[str], object],
    pause: Callable[[float], object],
) -> Target:
    api_key = read_api_key(scenario.target.api_key_env)
    route = route_of(scenario.target)
    server = _Server(base_url, api_key, route)
    unused = unused_proxy_variable(base_url) if scenario.target.base_url is not None and route.proxy is None else None
    if unused is not None:
        tell(f"{unused} is set, and the load goes straight to the target all the same; --proxy names a proxy to take")
    models = _await_models(server, scenario, tell, pause)
    model, max_model_len = _choose_model(models, scenario, base_url)
    tokenizer = scenario.workload.tokenizer
    try:
        counter: TokenCounter = (
            ServerCounter(base_url, model=model, api_key=api_key, route=route)
            if tokenizer is None
            else LocalCounter(tokenizer)
        )
        workload: SyntheticWorkload | DatasetWorkload
        if dataset is None:
            workload = plan_workload(scenario, counter, model=model, max_model_len=max_model_len, base_url=base_url)
        else:
            workload = plan_dataset(scenario, dataset, counter, model=model, max_model_len=max_model_len)
    except PromptError as error:
        raise UsageError(without_key(error.args[0], api_key), hint=error.hint) from None
    probe = _probe(scenario, base_url, route, workload, api_key)
    if probe.status in ("http_400", "http_422"):
        # Strict servers refuse fields that they do not know.
        workload = dataclasses.replace(workload, continuous_usage=False)
        probe = _probe(scenario, base_url, route, workload, api_key)
    _check_probe(probe, scenario, base_url, model, counter.describe())
    return Target(
        base_url=base_url,
        route=route,
        model=model,
        version=_version(server),
        max_model_len=max_model_len,
        workload=workload,
        counted_by=None if workload.recipe is None else counter.describe(),
        counts_every_event=probe.event_tokens is not None,
        kernel_stamps=probe.kernel_stamps,
    )


def _await_models(
    server: _Server, scenario: Scenario, tell: Callable[[str], object], pause: Callable[[float], object]
) -> list[dict[str, Any]] | None:
    """The server's models; None when it has no such list."""
    deadline = time.monotonic() + scenario.target.ready_timeout
    waiting = False
    while True:
        try:
            answer = server.get("/v1/models")
            return list(answer["data"])
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in (401, 403):
                raise _unauthorised(server.base_url, error.code, scenario) from None
            if error.code == 404:
                return None
            if error.code == 407:
                raise _refused_by_proxy(server.base_url) from None
            reason = f"it answered {error.code} to /v1/models"
        except (OSError, ValueError, KeyError, TypeError) as error:
            cause = getattr(error, "reason", error)
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise LoadgenError(
                    f"The server at {server.base_url} cannot be trusted: {words(cause)}.",
                    hint="give the authority that signed it with --ca-file; --insecure accepts any certificate",
                ) from None
            if str(cause).startswith("Tunnel connection failed: 407"):
                raise _refused_by_proxy(server.base_url) from None
            if isinstance(cause, ssl.SSLError):
                reason = words(cause)
            else:
                reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        if time.monotonic() >= deadline:
            raise LoadgenError(
                f"The server at {server.base_url} did not answer within {scenario.target.ready_timeout:g} s: {reason}.",
                hint="check target.base_url and that the server is up; target.ready_timeout sets how long to wait",
            )
        if not waiting:
            waiting = True
            tell(f"waiting up to {scenario.target.ready_timeout:g} s for {server.base_url} ({reason})")
        pause(0.25)


def _refused_by_proxy(base_url: str) -> UsageError:
    return UsageError(
        f"The proxy on the way to {base_url} wants a user and password, or other ones than those given.",
        hint=f"set {PROXY_AUTH} to user:password, or write them into target.proxy before the host",
    )


def _unauthorised(base_url: str, code: int, scenario: Scenario) -> UsageError:
    name = scenario.target.api_key_env
    given = "does not accept the key in" if os.environ.get(name) else "wants an API key, and there is none in"
    return UsageError(
        f"The server at {base_url} answered {code}: it {given} the environment variable {name}.",
        hint=f"{'check the key in' if os.environ.get(name) else 'set'} {name}, or name another variable with "
        "target.api_key_env",
    )


def _choose_model(models: list[dict[str, Any]] | None, scenario: Scenario, base_url: str) -> tuple[str, int | None]:
    wanted = scenario.target.model
    if not models:
        if wanted is None:
            raise UsageError(f"The server at {base_url} lists no model.", hint="name it with --model")
        return wanted, None
    names = [str(model["id"]) for model in models]
    if wanted is not None and wanted not in names:
        near = difflib.get_close_matches(wanted, names, n=1)
        raise UsageError(
            f"target.model is {wanted!r}, but the server at {base_url} serves {', '.join(map(repr, names))}.",
            hint=f"set --model {near[0] if near else names[0]}, or leave it out to take the first",
        )
    chosen = models[names.index(wanted)] if wanted is not None else models[0]
    length = chosen.get("max_model_len")
    return str(chosen["id"]), length if isinstance(length, int) else None


def _version(server: _Server) -> str | None:
    try:
        return str(server.get("/version")["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _probe(
    scenario: Scenario,
    base_url: str,
    route: Route,
    workload: SyntheticWorkload | DatasetWorkload,
    api_key: str | None,
) -> RequestRecord:
    """One short request through the very client that the workers use."""
    planned = workload.build(_PROBE_LEVEL, 0, most_output_tokens=_PROBE_TOKENS)
    exchange = Exchange(
        level=_PROBE_LEVEL,
        index=0,
        user=0,
        worker=0,
        endpoint=scenario.target.endpoint,
        dispatched_ns=time.monotonic_ns(),
        input_tokens_requested=planned.input_tokens,
        output_tokens_requested=planned.output_tokens,
        output_forced=planned.output_forced,
    )

    async def send() -> None:
        client = Client(
            base_url,
            scenario.target.endpoint,
            limits=Limits(total_ns=round(scenario.target.ready_timeout * 1e9)),
            api_key=api_key,
            route=route,
        )
        try:
            await client.send(planned.body, exchange, "loadgen-probe")
        finally:
            await client.close()

    with asyncio.Runner(loop_factory=WireLoop) as runner:
        runner.run(send())
    probe = decode(exchange)
    return dataclasses.replace(probe, reason=without_key(probe.reason, api_key))


def _check_probe(probe: RequestRecord, scenario: Scenario, base_url: str, model: str, counted_by: str) -> None:
    url = f"{base_url} ({scenario.target.endpoint})"
    match probe.status:
        case record.OK:
            pass
        case "http_401" | "http_403":
            raise _unauthorised(base_url, int(probe.status[5:]), scenario)
        case "http_404":
            raise UsageError(
                f"{url} answered 404 to a request for model {model!r}: {probe.reason}",
                hint="check --model and target.endpoint",
            )
        case record.NOT_A_STREAM:
            raise LoadgenError(
                f"{url} does not stream: {probe.reason}",
                hint="time to first token cannot be measured without a stream; check what stands between you and the server",
            )
        case record.SHORT:
            raise UsageError(
                f"{url} ended an answer after {probe.output_tokens} of {probe.output_tokens_requested} tokens although "
                "ignore_eos and min_tokens asked for all: it does not know them.",
                hint="set --no-ignore-eos; answers then have the length that the model gives them",
            )
        case _:
            raise LoadgenError(
                f"A first request to {url} failed ({probe.status}): {probe.reason}",
                hint="send the same request by hand and look at the server's log",
            )
    if probe.output_tokens is None:
        raise LoadgenError(
            f"{url} sends no usage with a stream, so its tokens cannot be counted.",
            hint="the server must support stream_options.include_usage",
        )
    if None not in (probe.input_tokens, probe.input_tokens_requested) and (
        probe.input_tokens != probe.input_tokens_requested
    ):
        raise UsageError(
            f"{url} counted {probe.input_tokens} prompt tokens where {counted_by} counts {probe.input_tokens_requested}.",
            hint="give workload.tokenizer the tokenizer of the served model, or leave it out to ask the server",
        )
