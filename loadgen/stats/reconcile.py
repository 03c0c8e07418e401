"""Takes the columns of a level's requests and the server's scrapes, gives what each counted of the same time; pure.

Both counted between the same two scrapes. A scrape is true at some instant between its question and its answer, and a
token that the server has counted is on its way for a moment, so counts may differ by what happened around the two scrapes;
a larger difference has a cause, and says which.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from loadgen.server_metrics.sample import ServerSample
from loadgen.stats.columns import MISSING, Columns, Flags, Ints
from loadgen.stats.digits import digits
from loadgen.stats.load import within
from loadgen.stats.server_window import ServerWindow

ON_ITS_WAY_NS = 50_000_000
"""A token may arrive so long after the server counted it: up to 50 ms were seen of a vLLM on a busy core."""
LEAST_IN_FLIGHT = 1.0
LEAST_IN_FLIGHT_SHARE = 0.05
"""The server's gauges are as old as its last step, so they differ a little from ours at any instant."""


def reconciliation(c: Columns, scrapes: ServerWindow, latencies: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """{first_tokens, finished_requests, output_tokens, prompt_tokens, in_flight}, each {server, client, difference};
    {ttft, e2el}, each {server_ms, client_ms, difference_ms}; and what follows from them.

    `latencies` as `loadgen.stats.server_latencies.latencies_between` gives them. None where the server does not tell.
    """
    span = scrapes.span_ns
    arrived, begun = within(c.arrivals_ns, span), within(c.first_token_ns, span)
    ended = within(c.last_token_ns, span) & c.ok
    # A histogram is not in every sample: one that was not kept at both ends has counted a shorter time.
    of_the_span = all("ttft" in one.histograms for one in (scrapes.first, scrapes.last))
    ttft_n = latencies.get("ttft", {}).get("n") if of_the_span else None
    whole = _came_whole(c).any()
    counted = {
        "first_tokens": _both(ttft_n, None if whole else int(begun.sum())),
        "finished_requests": _both(scrapes.rise("requests"), int(ended.sum())),
        "output_tokens": _both(scrapes.rise("generation_tokens"), float(c.tokens[arrived].sum())),
        "prompt_tokens": _both(scrapes.rise("prompt_tokens"), None if whole else _prompt_tokens(c, begun)),
    }
    anchored = c.sent_ns != MISSING
    in_flight = _both(*_in_flight(c, scrapes))
    ttft_ms = _mean_ms((c.first_token_ns - c.sent_ns)[begun & anchored])
    e2el_ms = _mean_ms((c.last_token_ns - c.sent_ns)[ended & anchored])
    ttft = _both_ms(_mean_of(latencies, "ttft"), ttft_ms)
    tolerance = _tolerance(c, scrapes)
    others = _others_share(counted, in_flight, tolerance)
    return {
        **counted,
        "in_flight": in_flight,
        "ttft": ttft,
        "e2el": _both_ms(_mean_of(latencies, "e2el"), e2el_ms),
        "tolerance_requests": tolerance["first_tokens"],
        "tolerance_tokens": tolerance["output_tokens"],
        "other_traffic_share": others,
        "tokens_beyond_tolerance": _beyond(counted["output_tokens"], tolerance["output_tokens"]),
        "text": "; ".join(_in_words(counted, in_flight, ttft, others, min_scrape_ms(scrapes))) or None,
    }


def min_scrape_ms(scrapes: ServerWindow) -> float:
    """The shortest time from a question to its answer: the way there and back cannot take longer, where it is the same."""
    return min(one.answered_ns - one.asked_ns for one in scrapes.samples) / 1e6


def _in_words(
    counted: dict[str, dict[str, float | None]],
    in_flight: dict[str, float | None],
    ttft: dict[str, float | None],
    others: float | None,
    scrape_ms: float,
) -> Iterator[str]:
    """What differs, and to what it is put down."""
    tokens = counted["output_tokens"]
    if tokens["server"] is not None and tokens["client"] is not None:
        yield f"{tokens['server']:,.0f} output tokens by the server's count, {tokens['client']:,.0f} by ours"
    if others:
        yield f"{others * 100:.3g} % of its work was for others"
    if ttft["difference_ms"] is not None:
        outside_ms = -ttft["difference_ms"]
        against = f"a scrape takes there and back ({scrape_ms:.3g} ms)"
        told = f"{outside_ms:.3g} ms of TTFT pass outside the server's account"
        if outside_ms <= scrape_ms:
            yield f"{told}, no longer than {against}"
        else:
            yield f"{told}, longer than {against}: in a gateway, or the server's front end"
    if in_flight["difference"] is not None:
        yield f"{digits(-in_flight['difference'], 3)} more requests are in flight here than run or wait there"


def _both(server: float | None, client: float | None) -> dict[str, float | None]:
    difference = None if server is None or client is None else server - client
    return {"server": server, "client": client, "difference": difference}


def _both_ms(server_ms: float | None, client_ms: float | None) -> dict[str, float | None]:
    return {f"{name}_ms": value for name, value in _both(server_ms, client_ms).items()}


def _prompt_tokens(c: Columns, begun: Flags) -> float | None:
    prompt = np.where(c.input_tokens != MISSING, c.input_tokens, c.input_tokens_requested)
    return None if (prompt[begun] == MISSING).any() else float(prompt[begun].sum())


def _mean_of(latencies: dict[str, dict[str, Any]], name: str) -> float | None:
    mean_ms: float | None = latencies.get(name, {}).get("mean_ms")
    return mean_ms


def _mean_ms(values_ns: Ints) -> float | None:
    return float(values_ns.mean()) / 1e6 if values_ns.size else None


def _in_flight(c: Columns, scrapes: ServerWindow) -> tuple[float | None, float | None]:
    """Means over the scrapes: requests that run or wait by the server's account, and those that we had in flight then."""
    told = [one for one in scrapes.samples if "running" in one.gauges and "waiting" in one.gauges]
    if not told:
        return None, None
    server = np.mean([one.gauges["running"] + one.gauges["waiting"] for one in told])
    return float(server), float(np.mean(in_flight_at(c, np.array([one.at_ns for one in told], np.int64))))


def in_flight_at(c: Columns, instants_ns: Ints) -> Ints:
    """shape (instants,): requests sent and not finished at each instant."""
    begun, ended = np.sort(c.on_the_wire_ns), np.sort(c.finished_ns)
    return np.searchsorted(begun, instants_ns, "right") - np.searchsorted(ended, instants_ns, "right")


def _came_whole(c: Columns) -> Flags:
    """Requests whose answer was no stream: when its first token came nobody here knows."""
    whole: Flags = c.ok & (c.first_token_ns == MISSING) & (c.last_token_ns != MISSING)
    return whole


def _tolerance(c: Columns, scrapes: ServerWindow) -> dict[str, float]:
    """By how much the two counts of something may differ for no reason but when they were taken."""
    edges = (scrapes.first, scrapes.last)
    lost = ~c.ok & within(c.finished_ns, scrapes.span_ns)  # the server goes on until it notices, maybe to the end
    asked = np.where(c.output_tokens_requested != MISSING, c.output_tokens_requested, 0)
    received = np.bincount(c.request, c.tokens, c.n).astype(np.float64)
    undelivered = float(np.maximum(asked - received, 0)[lost].sum())
    around_tokens = sum(float(c.tokens[_around(c.arrivals_ns, edge)].sum()) for edge in edges)
    around_firsts = sum(int(_around(c.first_token_ns, edge).sum()) for edge in edges)
    if scrapes.last.kind != "vllm" or _came_whole(c).any():
        # Either side counts a request's tokens when it ends, so what is under way at the window's ends is counted late.
        open_ones = sum(int(in_flight_at(c, np.array([edge.at_ns], np.int64))[0]) for edge in edges)
        mean_tokens = float(received[c.ok].mean()) if c.ok.any() else 0.0
        around_tokens += open_ones * mean_tokens
        around_firsts += open_ones
    return {
        "first_tokens": float(around_firsts + int(lost.sum())),
        "output_tokens": around_tokens + undelivered,
    }


def _around(instants_ns: Ints, edge: ServerSample) -> Flags:
    return (instants_ns >= edge.asked_ns) & (instants_ns < edge.answered_ns + ON_ITS_WAY_NS)


def _others_share(
    counted: dict[str, dict[str, float | None]], in_flight: dict[str, float | None], tolerance: dict[str, float]
) -> float | None:
    """Share of the server's requests or tokens that nobody here sent; None where it does not tell enough.

    More tokens alone prove nothing (each side may count them its own way); more requests do, begun or in flight.
    """
    requests = _beyond(counted["first_tokens"], tolerance["first_tokens"])
    tokens = _beyond(counted["output_tokens"], tolerance["output_tokens"])
    if requests is None and tokens is None:
        return None
    more = in_flight["difference"] or 0.0
    others_in_flight = more > max(LEAST_IN_FLIGHT, LEAST_IN_FLIGHT_SHARE * (in_flight["client"] or 0.0))
    shares = []
    if requests is not None and requests > 0:
        shares.append(requests / (counted["first_tokens"]["server"] or 1.0))
    if tokens is not None and tokens > 0 and (others_in_flight or shares or requests is None):
        shares.append(tokens / (counted["output_tokens"]["server"] or 1.0))
    return max(shares, default=0.0)


def _beyond(both: dict[str, float | None], tolerance: float) -> float | None:
    """The part of server − client that the tolerance does not explain: positive where the server counted more."""
    difference = both["difference"]
    if difference is None:
        return None
    return float(np.sign(difference) * max(0.0, abs(difference) - tolerance))
