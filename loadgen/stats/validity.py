"""Takes a level object, gives the reasons why it must not be trusted, and warnings; pure, all rules in one list.

An *invalid* rule makes the level count for nothing: no answer rests on it. A *suspect* rule leaves it valid and says
what to look at. Each rule says its evidence with numbers and what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from loadgen.stats import audit_rules, client_rules, open_rules, remedies, sample_rules, server_rules
from loadgen.stats.client_rules import Level
from loadgen.stats.soak_rules import is_shorter_soak, soak_cut_short
from loadgen.stats.turns import turns_of_the_start


@dataclass(frozen=True, slots=True)
class Rule:
    """`evidence` gives a sentence with the numbers when the rule fires, else None."""

    name: str
    severity: Literal["invalid", "suspect"]
    evidence: Callable[[Level], str | None]
    remedy: str
    better_remedy: Callable[[Level], str | None] | None = None
    """One that fits the level, where it tells more; else None."""

    def found(self, level: Level, evidence: str) -> dict[str, str]:
        """What is reported of a level."""
        better = None if self.better_remedy is None else self.better_remedy(level)
        return {"rule": self.name, "evidence": evidence, "remedy": better or self.remedy}


RULES: tuple[Rule, ...] = (
    Rule("interrupted", "invalid", sample_rules.interrupted, "Run the level again.", remedies.after_a_stop),
    Rule(
        "soak_cut_short",
        "suspect",
        soak_cut_short,
        "Take it as a shorter soak. What needs the whole time, such as a slow leak, a new soak must show: one cannot be taken up again.",
    ),
    Rule(
        "worker_lost",
        "invalid",
        sample_rules.worker_lost,
        "Read the worker's log (out of memory? killed?), then run the level again.",
    ),
    Rule(
        "worker_late",
        "invalid",
        sample_rules.worker_late,
        "Start every worker before the run, then run the level again.",
    ),
    Rule(
        "worker_stalled",
        "invalid",
        client_rules.worker_stalled,
        "Look for what stopped it (suspended? swapping? a debugger?), then run the level again.",
    ),
    Rule(
        "records_missing",
        "invalid",
        sample_rules.records_missing,
        "Restore the spools of the run folder from a copy (`loadgen recover --spool`), or run the level again.",
    ),
    Rule(
        "load_exceeded",
        "invalid",
        sample_rules.load_exceeded,
        "Lengthen the warm-up, so that requests of the level before have ended when the window opens.",
    ),
    Rule(
        "no_request_succeeded",
        "invalid",
        sample_rules.none_succeeded,
        "Send one request by hand to see what the target answers; check the URL, the model's name and the key.",
        remedies.unanswered,
    ),
    Rule(
        "too_few_samples", "invalid", sample_rules.too_few, "Measure longer: raise `duration`, or shorten the outputs."
    ),
    Rule(
        "load_not_reached",
        "invalid",
        sample_rules.load_not_reached,
        "Lengthen the warm-up, or look for what holds users back: slow connects, failures, a limit on connections.",
    ),
    Rule(
        "rate_not_reached",
        "invalid",
        open_rules.rate_not_reached,
        "Allow more requests in flight, or use more workers; or ask for the rate that was reached.",
    ),
    Rule(
        "server_restarted",
        "invalid",
        server_rules.server_restarted,
        "Read the server's log (out of memory? killed by its supervisor?), then run the level again.",
    ),
    Rule(
        "settings_mismatch",
        "invalid",
        server_rules.settings_mismatch,
        "Read the server's log for why it took other settings; ask for those, or mend what keeps it from the wanted ones.",
    ),
    Rule(
        "other_traffic",
        "invalid",
        server_rules.other_traffic,
        "Keep others away from the server while it is measured, or measure one of its own. Where it is shared and meant to be, "
        "say `target.shared: true` (`--shared-target`).",
    ),
    Rule(
        "client_late",
        "invalid",
        client_rules.client_late,
        "Use more workers or more hosts, and stop what else runs on this one.",
    ),
    Rule(
        "sends_late",
        "invalid",
        client_rules.sends_late,
        "Use more workers or more hosts, or a lower rate: latencies from the schedule hold the client's own delay.",
    ),
    Rule("client_cpu", "invalid", client_rules.client_cpu, "Use more workers or more hosts: fewer users a worker."),
    Rule(
        "no_token_counts",
        "invalid",
        sample_rules.no_token_counts,
        "Make the server send usage (`stream_options.include_usage`), or name a tokenizer.",
    ),
    Rule("cut_off", "invalid", sample_rules.cut_off, "Give the drain more time, or shorten the outputs."),
    Rule(
        "stamps_disagree",
        "invalid",
        audit_rules.stamps_disagree,
        "Look for a wall clock that is being stepped and for lost packets on the way, then run the level again.",
    ),
    Rule(
        "saturated",
        "suspect",
        open_rules.saturated,
        "The most that the server does is the completed rate; latencies here only say how long the load lasted. Ask for less.",
    ),
    Rule(
        "cap_reached",
        "suspect",
        open_rules.cap_reached,
        "Raise max_in_flight, or read latencies from the schedule, which hold that wait.",
    ),
    Rule(
        "not_settled",
        "suspect",
        sample_rules.not_settled,
        "Give it more time with max_warmup, or look for what makes the server change: a cache that fills, other traffic.",
    ),
    Rule(
        "drifting",
        "suspect",
        sample_rules.drifting,
        "Lengthen the warm-up, or look for what changed meanwhile; the figures are a mean over that change.",
    ),
    Rule("few_samples", "suspect", sample_rules.few, "Measure longer before trusting P95."),
    Rule(
        "some_cut_off",
        "suspect",
        sample_rules.some_cut_off,
        "Give the drain more time: the tail is longer than it looks.",
    ),
    Rule(
        "audit_incomplete",
        "suspect",
        audit_rules.audit_incomplete,
        "Audit a shorter or lighter run; see that nothing between client and target changes addresses or ports.",
    ),
    Rule(
        "load_changed",
        "suspect",
        sample_rules.load_changed,
        "Make the steps longer than several end-to-end latencies.",
    ),
    Rule(
        "errors",
        "suspect",
        sample_rules.errors,
        "See why they failed before comparing latencies: the report lists every reason.",
    ),
    Rule(
        "client_somewhat_late",
        "suspect",
        client_rules.client_somewhat_late,
        "Use more workers if throughput is the question.",
    ),
    Rule(
        "client_collected",
        "suspect",
        client_rules.client_collected,
        "Look at the worker's memory: use more workers, and see whether many connections fail. What the longest latencies "
        "hold may be that pause.",
    ),
    Rule(
        "coalesced",
        "suspect",
        client_rules.coalesced,
        "Look for a proxy that buffers, or a server that sends several tokens at once.",
    ),
    Rule(
        "some_other_traffic",
        "suspect",
        server_rules.some_other_traffic,
        "Look for who else uses the server: health checks that generate, another client, a run that did not end.",
    ),
    Rule(
        "beside_other_traffic",
        "suspect",
        server_rules.beside_other_traffic,
        "Read the figures with that load in mind, and compare them only with those beside the like; for what the server "
        "itself can do, measure it alone.",
    ),
    Rule(
        "prefix_cache_did_the_work",
        "suspect",
        server_rules.prefix_cache_did_the_work,
        "Use another seed, restart the server or switch its prefix cache off; or state the share that production shares.",
    ),
    Rule(
        "tokens_disagree",
        "suspect",
        server_rules.tokens_disagree,
        "See whether a gateway spreads requests over several servers (then the metrics are of one of them), or changes them.",
    ),
    Rule(
        "short_outputs",
        "suspect",
        server_rules.short_outputs,
        "Force the length (`ignore_eos`) to compare servers, or ask for as many tokens as answers really have.",
    ),
    Rule(
        "clock_drift",
        "suspect",
        server_rules.clock_drift,
        "See whether the worker's host was suspended, and how far it is; measure longer, or use workers nearer by.",
    ),
    Rule(
        "some_token_counts", "suspect", sample_rules.some_token_counts, "Make the server send usage for every request."
    ),
    Rule(
        "estimated_tokens",
        "suspect",
        sample_rules.tokenized,
        "Make the server send usage (`stream_options.include_usage`).",
    ),
    Rule(
        "dataset_repeated",
        "suspect",
        sample_rules.dataset_repeated,
        "Give a larger dataset, measure shorter, or switch the server's prefix cache off.",
    ),
    Rule(
        "turns_of_the_start",
        "suspect",
        turns_of_the_start,
        "Lengthen the warm-up to the time that a conversation takes; latencies here are those of the first turns.",
    ),
    Rule(
        "input_length",
        "suspect",
        sample_rules.input_mismatch,
        "Use the model's own tokenizer and chat template for the prompts.",
    ),
    Rule(
        "client_not_watched",
        "suspect",
        client_rules.not_watched,
        "Update the workers: without it nobody knows whether the client kept up.",
    ),
)
"""Every reason to distrust a level, in the order in which they are reported."""


_BESIDE_INTERRUPTED = frozenset({"interrupted", "worker_lost", "worker_late", "worker_stalled", "records_missing"})


def judge(level: Level) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """(reasons why the level is invalid, warnings), each {rule, evidence, remedy}."""
    reasons: list[dict[str, str]] = []
    warnings: list[dict[str, str]] = []
    for rule in RULES:
        if evidence := rule.evidence(level):
            (reasons if rule.severity == "invalid" else warnings).append(rule.found(level, evidence))
    if level["interrupted"] and not is_shorter_soak(level):
        # The rest follows from that, and its remedies would lead astray.
        return [found for found in reasons if found["rule"] in _BESIDE_INTERRUPTED], []
    return reasons, warnings
