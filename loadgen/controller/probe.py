"""One short request of each class before any load, through the client that the workers use: does the target answer as asked?

What the further keys of a class (tools, say) add to its prompts shows here: the server counts them, and the class's own words
become that much fewer.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from loadgen import record
from loadgen.api_key import without_key
from loadgen.datasets.workload import DatasetWorkload
from loadgen.errors import LoadgenError, UsageError
from loadgen.prompts.errors import PromptError
from loadgen.prompts.recipe import LEVEL_BITS
from loadgen.record import RequestRecord
from loadgen.route import Route
from loadgen.scenario.model import Scenario
from loadgen.wire.client import Client, Limits
from loadgen.wire.decode import decode
from loadgen.wire.exchange import Exchange
from loadgen.wire.request import adds_to_prompt, structure_in
from loadgen.wire.wire_loop import WireLoop
from loadgen.workload.planned import PlannedRequest
from loadgen.workload.synthetic import SyntheticWorkload

_TOKENS = 4
# Beyond every level of a sweep, so that a probe's prompt is none of the run's.
_LEVEL = (1 << LEVEL_BITS) - 1

Workload = SyntheticWorkload | DatasetWorkload


def unauthorised(base_url: str, code: int, scenario: Scenario) -> UsageError:
    """The refusal of a server that wants a key, or another one."""
    name = scenario.target.api_key_env
    given = "does not accept the key in" if os.environ.get(name) else "wants an API key, and there is none in"
    return UsageError(
        f"The server at {base_url} answered {code}: it {given} the environment variable {name}.",
        hint=f"{'check the key in' if os.environ.get(name) else 'set'} {name}, or name another variable with "
        "target.api_key_env",
    )


@dataclass(frozen=True, slots=True)
class Prober:
    """Asks one target; nothing else is asked of it at the same time."""

    scenario: Scenario
    base_url: str
    route: Route
    api_key: str | None
    counted_by: str
    """Who counted the prompts."""
    tell: Callable[[str], object]
    """Gets a sentence about what cannot be exact."""
    pause: Callable[[float], object]
    """Lets others work between two questions, and raises when the run is to end."""

    def prove(self, workload: Workload) -> tuple[Workload, RequestRecord]:
        """(the workload as this server takes it, the record of the first class's probe).

        Raises LoadgenError: exit code 1 when the server does not answer as it should, 2 when the scenario asks for what it
        does not have.
        """
        proofs = []
        for kind in range(workload.kinds):
            self.pause(0)
            probe = self._ask(workload, kind)
            if probe.status in ("http_400", "http_422") and workload.continuous_usage:
                # Strict servers refuse fields that they do not know.
                plain = dataclasses.replace(workload, continuous_usage=False)
                again = self._ask(plain, kind)
                if again.status == record.OK:
                    workload, probe = plain, again
            self._check(probe, workload, kind)
            workload = self._exact(workload, kind, probe)
            proofs.append(probe)
        return workload, proofs[0]

    def _ask(self, workload: Workload, kind: int, *, again: bool = False) -> RequestRecord:
        """The record of one request of a class. Where its keys may make the prompt longer, nobody knows by how much, the
        first one has the shortest prompt that there is."""
        shortest = not again and adds_to_prompt(workload.extra_body_of(kind))
        planned = workload.probe(_LEVEL, 2 * kind + again, kind, most_output_tokens=_TOKENS, shortest=shortest)
        exchange = self._exchange(planned)

        async def send() -> None:
            client = Client(
                self.base_url,
                self.scenario.target.endpoint,
                limits=Limits(total_ns=round(self.scenario.target.ready_timeout * 1e9)),
                api_key=self.api_key,
                route=self.route,
            )
            try:
                await client.send(planned.body, exchange, "loadgen-probe")
            finally:
                await client.close()

        with asyncio.Runner(loop_factory=WireLoop) as runner:
            runner.run(send())
        probe = decode(exchange)
        return dataclasses.replace(probe, reason=self.route.without_secrets(without_key(probe.reason, self.api_key)))

    def _exchange(self, planned: PlannedRequest) -> Exchange:
        return Exchange(
            level=_LEVEL,
            index=planned.k,
            user=0,
            worker=0,
            endpoint=self.scenario.target.endpoint,
            dispatched_ns=time.monotonic_ns(),
            input_tokens_requested=planned.input_tokens,
            output_tokens_requested=planned.output_tokens,
            output_forced=planned.output_forced,
            streamed=planned.streamed,
        )

    def _check(self, probe: RequestRecord, workload: Workload, kind: int) -> None:
        url, model = self._url(workload, kind), workload.model_of(kind)
        match probe.status:
            case record.OK:
                pass
            case record.EMPTY if probe.output_tokens and structure_in(workload.extra_body_of(kind)):
                pass  # so few tokens of a call, say, may show none of it
            case "http_401" | "http_403":
                raise unauthorised(self.base_url, int(probe.status[5:]), self.scenario)
            case "http_404":
                raise UsageError(
                    f"{url} answered 404 to a request for model {model!r}: {probe.reason}",
                    hint="check --model and target.endpoint",
                )
            case record.NOT_A_STREAM:
                raise LoadgenError(
                    f"{url} does not stream: {probe.reason}",
                    hint="time to first token cannot be measured without a stream; check what stands between you and the "
                    "server, or measure whole answers with --no-stream",
                )
            case record.SHORT:
                raise UsageError(
                    f"{url} ended an answer after {probe.output_tokens} of {probe.output_tokens_requested} tokens although "
                    "ignore_eos and min_tokens asked for all: it does not know them.",
                    hint="set --no-ignore-eos; answers then have the length that the model gives them",
                )
            case "http_400" | "http_422" if any(key in probe.reason for key in ("ignore_eos", "min_tokens")):
                raise UsageError(
                    f"{url} refuses ignore_eos and min_tokens, which ask for answers of an exact length: {probe.reason}",
                    hint="set --no-ignore-eos; answers then have the length that the model gives them",
                )
            case _:
                raise LoadgenError(
                    f"A first request to {url} failed ({probe.status}): {probe.reason}",
                    hint="send the same request by hand and look at the server's log",
                )
        if probe.output_tokens is None:
            how = "with a stream" if probe.streamed else "with an answer"
            raise LoadgenError(
                f"{url} sends no usage {how}, so its tokens cannot be counted.",
                hint="the server must support stream_options.include_usage"
                if probe.streamed
                else "the server must put usage into its answers",
            )

    def _url(self, workload: Workload, kind: int) -> str:
        of_class = ""
        if isinstance(workload, SyntheticWorkload) and workload.kinds > 1:
            of_class = f", class {workload.classes[kind].name}"
        return f"{self.base_url} ({self.scenario.target.endpoint}{of_class})"

    def _exact(self, workload: Workload, kind: int, probe: RequestRecord) -> Workload:
        """The workload with a class whose prompts have the tokens that the server counts.

        Keys such as `tools` cost the same in every prompt, so a longer one is tried to see that it is exact now. Raises
        UsageError where nothing of the kind explains a difference, or nothing is left for the prompt's own words.
        """
        counted, asked = probe.input_tokens, probe.input_tokens_requested
        if counted is None or asked is None or counted == asked:
            return workload
        url, more = self._url(workload, kind), counted - asked
        if not adds_to_prompt(workload.extra_body_of(kind)):
            raise UsageError(
                f"{url} counted {counted} prompt tokens where {self.counted_by} counts {asked}.",
                hint="give workload.tokenizer the tokenizer of the served model, or leave it out to ask the server",
            )
        try:
            mended = workload.with_template_tokens(kind, more)
        except PromptError as error:
            raise UsageError(
                f"extra_body adds {more} tokens to each prompt at {url}. {error.args[0]}", hint=error.hint
            ) from None
        probe = self._ask(mended, kind, again=True)
        self._check(probe, mended, kind)
        if probe.input_tokens == probe.input_tokens_requested:
            return mended
        self.tell(
            f"{url} counted {probe.input_tokens} prompt tokens where {probe.input_tokens_requested} were asked for: what "
            "extra_body adds to a prompt is not the same for all, so prompts are not exact, and are not compared"
        )
        return workload.uncounted(kind)
