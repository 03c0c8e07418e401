"""Takes a claimed number of tokens per second and its conditions, gives what the roofline says of it; pure.

A step of decoding reads the weights once and the KV cache of every sequence, so B sequences get at most
B · bandwidth / (weights + B · KV) tokens a second. All that is left out only adds time: what is above the ceiling cannot be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from loadgen.claims.kv_cache import sequences_that_fit
from loadgen.claims.quantities import bytes_text
from loadgen.stats.digits import digits
from server.roofline import Gpu, Model, accepted_tokens, bytes_per_step, decode_ceiling

PLAUSIBLE = "plausible"
NEEDS_BATCHING = "needs batching"
NEEDS_LESS_TO_READ = "needs speculation or quantization"
DEPENDS = "depends on what is not stated"
IMPOSSIBLE = "impossible"
_BEST_FIRST = (PLAUSIBLE, NEEDS_BATCHING, NEEDS_LESS_TO_READ, IMPOSSIBLE)

FOUR_BITS = 0.5
"""Bytes of a weight in the smallest precision in use."""
USUAL_GPUS = (1, 2, 4, 8, 16, 32, 64)
"""Of one server, or of several as one: what may be meant where their number is not stated."""
USUAL_SIZES = (2.0, 1.0, FOUR_BITS)
"""Bytes of a weight that may be meant where the precision is not stated."""
MOST_ACCEPTED = 5.0
"""Tokens a step beyond which no speculation is believed: published averages are 2 to 5."""
MOST_SEQUENCES = 1 << 20
USUAL_SHARE = 0.85
"""Of the ceiling, above which a claim is asked how: a line of ours, not a law."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What is claimed, and of what. None: not stated."""

    tok_s: float
    """Output tokens per second."""
    model: Model
    kv_known: bool
    """Whether the model's layers and heads are; else its KV cache counts as nothing."""
    gpu: Gpu
    concurrency: int | None = None
    length: float = 0.0
    """Tokens of a sequence's context on average: the input and half of the output; 0 where not stated."""
    draft_tokens: int = 0
    """Of speculative decoding, each step; 0 without."""
    acceptance: float | None = None
    """Share of drafted tokens that are right; None: all, the most there can be."""
    gpus_stated: bool = True
    """Whether the number of GPUs is; else `gpu` is one of them."""
    precision_stated: bool = True
    """Whether the weights' precision is; else the model's is the usual one."""

    @property
    def tokens_per_step(self) -> float:
        """What one sequence gets of a step at most."""
        return accepted_tokens(self.draft_tokens, 1.0 if self.acceptance is None else self.acceptance)

    def ceiling(self, batch: int, *, tokens_per_step: float | None = None) -> float:
        """Most tokens/s of so many sequences together; with other tokens a step where given."""
        each = self.tokens_per_step if tokens_per_step is None else tokens_per_step
        return decode_ceiling(self.model, self.gpu, batch=batch, length=self.length, tokens_per_step=each)

    @property
    def weights_fit(self) -> bool:
        """Whether the GPUs' memory holds the weights."""
        return self.model.weight_bytes <= self.gpu.memory_bytes

    def most_that_fit(self) -> int | None:
        """Sequences of this length beside the weights, in all of the memory: no server takes more. None where the KV cache or
        the memory is not known."""
        return sequences_that_fit(self.model, self.gpu, length=self.length, memory_utilization=1.0)

    @property
    def running(self) -> int:
        """Sequences that a step computes: the stated ones as far as they fit, for the others wait; 1 where none are stated."""
        fit, stated = self.most_that_fit(), self.concurrency or 1
        return stated if fit is None else max(1, min(stated, fit))

    def least_batch(self) -> int | None:
        """Fewest sequences whose ceiling is at least what is claimed; None where no number that fits is enough."""
        fit = self.most_that_fit()
        most = MOST_SEQUENCES if fit is None else min(fit, MOST_SEQUENCES)
        if most < 1 or self.ceiling(most) < self.tok_s:
            return None
        low, high = 1, most
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.ceiling(middle) >= self.tok_s else (middle + 1, high)
        return low


def judge(claim: Claim) -> dict[str, Any]:
    """{verdict, nature, single_stream_ceiling, ceiling, least_batch, most_that_fit, share, reasons, …}, JSON-able.

    `nature`: `single stream` or `aggregate`, None where nothing can be said. `ceiling` is at the stated concurrency, else
    of one stream; `share` is the claim over it. What no assumption of ours rules out is not called impossible: where the number of
    GPUs or the precision is not stated, the usual ones are tried, and the figures are those of the first of them.
    """
    batch = claim.running
    single, at = claim.ceiling(1), claim.ceiling(batch)
    least = claim.least_batch()
    verdict, nature, reasons = _verdict(claim)
    if verdict != PLAUSIBLE and not (claim.gpus_stated and claim.precision_stated):
        verdict, nature, reasons = _as_far_as_stated(claim, verdict, nature, reasons)
    return {
        "verdict": verdict,
        "nature": nature,
        "tok_s": claim.tok_s,
        "bytes_per_step": bytes_per_step(claim.model, tokens=batch, context_tokens=batch * claim.length),
        "weight_bytes": claim.model.weight_bytes,
        "single_stream_ceiling": single,
        "ceiling": at,
        "share": claim.tok_s / at,
        "least_batch": least,
        "most_that_fit": claim.most_that_fit(),
        "tokens_per_step": claim.tokens_per_step,
        "reasons": reasons,
    }


def _verdict(claim: Claim) -> tuple[str, str | None, list[str]]:
    users, single, at, least = claim.concurrency, claim.ceiling(1), claim.ceiling(claim.running), claim.least_batch()
    if not claim.weights_fit:
        return IMPOSSIBLE, None, [_does_not_fit(claim)]
    if claim.most_that_fit() == 0:
        return IMPOSSIBLE, None, [_out_of_reach(claim)]
    if claim.tok_s <= at:
        if users is not None and users > 1 and claim.tok_s > single:
            return PLAUSIBLE, "aggregate", [_of_each(claim, users), *_closeness(claim, at)]
        nature = "single stream" if users == 1 or users is None else "aggregate"
        return PLAUSIBLE, nature, _closeness(claim, at)
    if users is None and least is not None:
        return NEEDS_BATCHING, "aggregate", [_needs(claim, least), *_otherwise(claim, 1)]
    batch = claim.running
    remedies = _otherwise(claim, batch)
    also = [] if least is None else [_needs(claim, least)]
    if remedies:
        return NEEDS_LESS_TO_READ, None if users is None else _kind(users), [*remedies, *also]
    if least is not None:
        return (
            NEEDS_BATCHING,
            "aggregate",
            [
                f"at concurrency {batch} neither 4-bit weights nor {MOST_ACCEPTED:g} accepted tokens a step would be enough",
                *also,
            ],
        )
    return IMPOSSIBLE, None if users is None else _kind(users), [_out_of_reach(claim)]


def _as_far_as_stated(
    claim: Claim, verdict: str, nature: str | None, reasons: list[str]
) -> tuple[str, str | None, list[str]]:
    """The same where other GPUs or another precision, as far as they are not stated, would give no better verdict; else what it
    depends on. A sum of many requests that more GPUs would make the speed of one stays one, and says so.
    """
    usual = f"{_assumed(claim, 1)}: {verdict}"
    best, text = verdict, ""
    for count, size in product(
        (1,) if claim.gpus_stated else USUAL_GPUS,
        (claim.model.weight_bytes_per_parameter,) if claim.precision_stated else USUAL_SIZES,
    ):
        model = replace(claim.model, weight_bytes_per_parameter=size)
        other = replace(claim, gpu=claim.gpu.times(count), model=model)
        found, _, why = _verdict(other)
        if _BEST_FIRST.index(found) < _BEST_FIRST.index(best):
            best, text = found, f"{_assumed(other, count)}: {found}, {why[0]}"
    if best == verdict:
        if verdict == IMPOSSIBLE:  # with the last of them, the most GPUs and the smallest weights
            return verdict, nature, [f"even {_assumed(other, count)}: {reason}" for reason in why]
        return verdict, nature, reasons
    if verdict == NEEDS_BATCHING and claim.concurrency is None:
        return verdict, nature, [*reasons, f"or {text}"]
    return DEPENDS, None, [*(f"{usual}, since {reason}" for reason in reasons[:1]), text]


def _assumed(claim: Claim, count: int) -> str:
    """What of the conditions is an assumption of ours, in words."""
    gpus = [] if claim.gpus_stated else ["on one GPU" if count == 1 else f"on {count} GPUs"]
    bits = [] if claim.precision_stated else [f"with {claim.model.weight_bytes_per_parameter * 8:g}-bit weights"]
    return " ".join([*gpus, *bits])


def _kind(users: int) -> str:
    return "single stream" if users == 1 else "aggregate"


def _of_each(claim: Claim, users: int) -> str:
    waiting = "" if claim.running == users else f", though only {claim.running:,} fit into memory and the others wait"
    return f"it is the sum of {users} requests: each gets {digits(claim.tok_s / users, 3)} tokens/s{waiting}"


def _closeness(claim: Claim, at: float) -> list[str]:
    share = claim.tok_s / at
    if share <= USUAL_SHARE:
        return [f"it is {share:.0%} of the ceiling"]
    return [f"it is {share:.0%} of the ceiling, which is unusually close: ask how"]


def _needs(claim: Claim, least: int) -> str:
    each = claim.tok_s / least
    fit = claim.most_that_fit()
    room = "" if fit is None else f" ({fit:,} fit into memory)"
    return f"at least {least} requests at once{room} make it possible, each with at most {digits(each, 3)} tokens/s"


def _otherwise(claim: Claim, batch: int) -> list[str]:
    """What would make it possible at this batch, in words: smaller weights, speculation, or both; empty where nothing does."""
    now, size = claim.ceiling(batch), claim.model.weight_bytes_per_parameter
    found = []
    # Smaller weights leave room for more sequences, too.
    quantized = replace(claim, model=replace(claim.model, weight_bytes_per_parameter=FOUR_BITS))
    smaller = quantized.ceiling(quantized.running) if size > FOUR_BITS else None
    if smaller is not None and smaller >= claim.tok_s:
        found.append(f"4-bit weights would lift the ceiling from {digits(now, 3)} to {digits(smaller, 3)} tokens/s")
    nearly = claim.tok_s * (1 - 1e-9)
    per_step = claim.tok_s / now
    # Speculation reads no more, but computes every token: it is no way past the arithmetic.
    speculate = claim.draft_tokens == 0 and per_step <= MOST_ACCEPTED
    if speculate and claim.ceiling(batch, tokens_per_step=per_step) >= nearly:
        found.append(f"speculative decoding with {per_step:.1f} tokens accepted a step on average would be enough")
    both = None if smaller is None or claim.draft_tokens else claim.tok_s / smaller
    if (
        not found
        and both is not None
        and both <= MOST_ACCEPTED
        and quantized.ceiling(quantized.running, tokens_per_step=both) >= nearly
    ):
        found.append(f"it takes both 4-bit weights and {both:.1f} tokens accepted a step by speculative decoding")
    return found


def _does_not_fit(claim: Claim) -> str:
    return (
        f"the weights take {bytes_text(claim.model.weight_bytes)}, and {claim.gpu.name} has "
        f"{bytes_text(claim.gpu.memory_bytes)}: more GPUs, or smaller weights"
    )


def _out_of_reach(claim: Claim) -> str:
    fit = claim.most_that_fit()
    if fit == 0:
        return "not one sequence of this length fits beside the weights"
    most = claim.ceiling(MOST_SEQUENCES if fit is None else min(fit, MOST_SEQUENCES))
    held = "any number of requests" if fit is None else f"the {fit:,} requests that fit into memory"
    return f"{held} get at most {digits(most)} tokens/s together"
