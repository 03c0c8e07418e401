"""The server under test before any load: start it if it is ours, ask what it is, and prove that it can be measured.

Every refusal here comes before the first worker sends a byte, and says what to change.
"""

from __future__ import annotations

import difflib
import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from loadgen.api_key import read_api_key, without_key
from loadgen.controller.probe import Prober, unauthorised
from loadgen.datasets.plan import SurveyedDataset, plan_dataset
from loadgen.datasets.workload import DatasetWorkload
from loadgen.errors import LoadgenError, UsageError
from loadgen.prompts.errors import PromptError
from loadgen.prompts.tokenizers import LocalCounter, ServerCounter, TokenCounter
from loadgen.record import RequestRecord
from loadgen.route import PROXY_AUTH, Route, unused_proxy_variable
from loadgen.scenario.model import Scenario
from loadgen.scenario.target import Target as AskedTarget
from loadgen.scenario.workload import ModelShare, RequestClass, path_of
from loadgen.wire.failures import words
from loadgen.wire.kernel_clock import enable_kernel_stamps
from loadgen.workload.carried import CarriedWorkload
from loadgen.workload.plan import ServedModel, plan_workload
from loadgen.workload.synthetic import SyntheticWorkload

_ANSWER_S = 10.0
_VERSIONS = {
    "/version": ("version", ""),  # vLLM, TensorRT-LLM
    "/api/version": ("version", "Ollama "),
    "/props": ("build_info", "llama.cpp "),
    "/info": ("version", "TGI "),
    "/server_info": ("version", "SGLang "),
}
"""Where servers tell their version: the key in what a path answers, and who answers there."""


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
    lacks: tuple[str, ...] = ()
    """What it does not offer of what vLLM does, found while asking it: figures may be missing or coarser for that."""

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
            "lacks": list(self.lacks),
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

    def healthy(self) -> bool:
        """Whether it says that it is ready, in whatever words."""
        request = urllib.request.Request(self.base_url + "/health", headers=self._headers)
        try:
            with self._opener.open(request, timeout=_ANSWER_S):
                return True
        except (OSError, http.client.HTTPException):
            return False


def route_of(target: AskedTarget) -> Route:
    """How a scenario's target is reached. Raises UsageError when its `ca_file` is of no use, or a header's secret is not
    there."""
    return Route.of(insecure=target.insecure, ca_file=target.ca_file, proxy=target.proxy, headers=target.headers)


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
    route = route_of(scenario.target)
    api_key = None if route.authorizes else read_api_key(scenario.target.api_key_env)
    server = _Server(base_url, api_key, route)
    unused = unused_proxy_variable(base_url) if scenario.target.base_url is not None and route.proxy is None else None
    if unused is not None:
        tell(f"{unused} is set, and the load goes straight to the target all the same; --proxy names a proxy to take")
    models = _await_models(server, scenario, tell, pause)
    (model, max_model_len), *more = (
        _choose_model(models, wanted or None, key, base_url) for wanted, key in _named_models(scenario).items()
    )
    tokenizer = scenario.workload.tokenizer
    try:
        local = None if tokenizer is None else LocalCounter(tokenizer)

        def counter_of(name: str) -> TokenCounter:
            return local or ServerCounter(base_url, model=name, api_key=api_key, route=route)

        counter = counter_of(model)
        others = {name: ServedModel(counter_of(name), length) for name, length in more}
        workload: SyntheticWorkload | DatasetWorkload
        if dataset is None:
            workload = plan_workload(
                scenario, counter, model=model, max_model_len=max_model_len, base_url=base_url, others=others
            )
        else:
            workload = plan_dataset(scenario, dataset, counter, model=model, max_model_len=max_model_len)
    except PromptError as error:
        raise UsageError(route.without_secrets(without_key(error.args[0], api_key)), hint=error.hint) from None
    prober = Prober(scenario, base_url, route, api_key, counter.describe(), tell, pause)
    workload, probe = prober.prove(workload)
    version = _version(server)
    return Target(
        base_url=base_url,
        route=route,
        model=model,
        version=version,
        max_model_len=max_model_len,
        workload=workload,
        counted_by=None if workload.recipe is None else counter.describe(),
        counts_every_event=probe.streamed and probe.event_tokens is not None,
        kernel_stamps=probe.kernel_stamps,
        lacks=_lacks(models, version, probe),
    )


def _lacks(models: list[dict[str, Any]] | None, version: str | None, probe: RequestRecord) -> tuple[str, ...]:
    lacking = {
        "a list of models": not models,
        "a version": version is None,
        "token counts in each event": probe.streamed and probe.event_tokens is None,
    }
    return tuple(what for what, missing in lacking.items() if missing)


def _await_models(
    server: _Server, scenario: Scenario, tell: Callable[[str], object], pause: Callable[[float], object]
) -> list[dict[str, Any]] | None:
    """The server's models; None when it has no such list."""
    deadline = time.monotonic() + scenario.target.ready_timeout
    waiting = False
    while True:
        try:
            return list(_model_list(server.get("/v1/models"), server.base_url))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in (401, 403):
                raise unauthorised(server.base_url, error.code, scenario) from None
            if error.code == 404:
                tell(f"{server.base_url} answers 404 to /v1/models, so it does not say which models it serves")
                return None
            if error.code == 407:
                raise _refused_by_proxy(server.base_url) from None
            if error.code == 500 and scenario.target.model is not None and server.healthy():
                return None  # transformers serve without a cache of models
            reason = f"it answered {error.code} to /v1/models"
        except ValueError:
            raise _no_api(server.base_url, "something else than JSON, such as a web page") from None
        except (OSError, http.client.HTTPException) as error:
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


def _model_list(answer: Any, base_url: str) -> Iterable[dict[str, Any]]:
    found = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(found, list) or not all(isinstance(one, dict) and "id" in one for one in found):
        raise _no_api(base_url, "JSON that is no list of models")
    return found


def _no_api(base_url: str, answered: str) -> UsageError:
    return UsageError(
        f"{base_url}/v1/models answers with {answered}: no OpenAI-compatible server is there.",
        hint="check host, port and path of target.base_url, which is the server's root without /v1",
    )


def _refused_by_proxy(base_url: str) -> UsageError:
    return UsageError(
        f"The proxy on the way to {base_url} wants a user and password, or other ones than those given.",
        hint=f"set {PROXY_AUTH} to user:password, or write them into target.proxy before the host",
    )


def _named_models(scenario: Scenario) -> dict[str, str]:
    """Models that the workload names, each with the key that names it; the target's own first, where all requests are for
    others."""
    kinds = [one for one in scenario.workload.kinds() if isinstance(one, RequestClass)]
    named = {
        one.model: f"{path_of(one)}{'models' if isinstance(one, ModelShare) else 'model'}" for one in kinds if one.model
    }
    if scenario.target.model is None and kinds and all(one.model for one in kinds):
        return named
    return {scenario.target.model or "": "target.model", **named}


def _choose_model(
    models: list[dict[str, Any]] | None, wanted: str | None, key: str, base_url: str
) -> tuple[str, int | None]:
    """(name, max_model_len) of the model that `key` names; of the first one where it names none."""
    if not models:
        if wanted is None:
            raise UsageError(
                f"The server at {base_url} lists no model.", hint="name one with --model, or check target.base_url"
            )
        return wanted, None
    names = [str(model["id"]) for model in models]
    if wanted is not None and f"{wanted}:latest" in names:
        return wanted, None  # Ollama lists each with its tag
    if wanted is not None and wanted not in names and wanted.startswith("/"):
        return wanted, None  # transformers serve lists its cache, and serves folders besides
    if wanted is not None and wanted not in names:
        near = difflib.get_close_matches(wanted, names, n=1)
        how = "set --model {}, or leave it out to take the first" if key == "target.model" else "name {} there"
        raise UsageError(
            f"{key} is {wanted!r}, but the server at {base_url} serves {', '.join(map(repr, names))}.",
            hint=how.format(near[0] if near else names[0]),
        )
    chosen = models[names.index(wanted)] if wanted is not None else models[0]
    # An adapter has the length of the model that it is for.
    parent = next((model for model in models if model["id"] == chosen.get("parent")), {})
    length = chosen.get("max_model_len") or parent.get("max_model_len")
    return str(chosen["id"]), length if isinstance(length, int) else None


def _version(server: _Server) -> str | None:
    for path, (key, name) in _VERSIONS.items():
        try:
            return name + str(server.get(path)[key])
        except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
            continue
    return None
