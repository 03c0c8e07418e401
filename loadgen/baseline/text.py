"""Baselines as people read them: one with its conditions, several side by side; computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from loadgen.claims.quantities import bytes_text, count_text

_ROWS = {
    "ttft_ms": "time to first token{of_all}, ms",
    "prefill_tok_s": "prefill, input tok/s",
    "tpot_ms": "time per output token, ms",
    "decode_tok_s_per_request": "decode, tok/s of each request",
    "decode_tok_s": "decode, tok/s of all {batch} together",
    "output_tok_s": "output tok/s, prefill included{together}",
    "total_s": "whole pass, s",
}
_ENGINES = {"transformers": "transformers", "vllm-offline": "vLLM offline"}
_PREFILL = {
    "transformers": "until the first token of the same pass",
    "vllm-offline": "a pass of its own that makes one token of each prompt; decode is the rest",
}
_COMPARED = ("model", "precision", "input_tokens", "output_tokens", "device", "versions", "host")


def title(made: Mapping[str, Any]) -> str:
    """Whose speed it is: `vLLM offline, 16 requests at once (aggregate)`."""
    engine = _ENGINES[made["engine"]]
    batch = made["conditions"]["batch"]
    return f"{engine}, {'one request by itself (single-stream)' if batch == 1 else f'{batch} requests at once (aggregate)'}"


def figures_table(made: Mapping[str, Any]) -> Table:
    """Median and range of every figure."""
    batch = made["conditions"]["batch"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(title(made))
    table.add_column("median", justify="right")
    table.add_column(f"range of {made['conditions']['passes']}", justify="right")
    for name, words in _ROWS.items():
        figure = made["figures"][name]
        if batch == 1 and name == "decode_tok_s":
            continue  # the same as that of each request
        several = batch > 1
        label = words.format(
            batch=batch,
            together=f", all {batch} together" if several else "",
            of_all=" of the last of them" if several else "",
        )
        if figure is None:
            table.add_row(label, "–", "–")
        else:
            table.add_row(label, number(figure["median"]), f"{number(figure['low'])} to {number(figure['high'])}")
    return table


def number(value: float) -> str:
    """Three digits or more, never an exponent."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 100 else f"{value:.1f}"


def condition_lines(made: Mapping[str, Any]) -> Iterator[str]:
    """What the figures hold for."""
    stated, files = made["conditions"], made["conditions"].get("model_files") or {}
    parameters = stated.get("parameters") or files.get("parameters")
    weights = stated.get("weight_bytes") or files.get("weight_bytes")
    size = [count_text(parameters) + " parameters"] if parameters else []
    size += [bytes_text(weights) + " of weights"] if weights else []
    yield f"model      {', '.join([stated['model'], *size])}"
    yield f"precision  {stated['precision'] or 'not told'}"
    yield (
        f"lengths    {stated['input_tokens']} in, {stated['output_tokens']} out, exactly; {stated['prompts']}; "
        f"{stated['decoding']}"
    )
    yield f"passes     {stated['passes']} after {stated['warmup_passes']} of warm-up; loading took {made['load_s']:.1f} s"
    yield f"prefill    {_PREFILL[made['engine']]}"
    if made["figures"]["decode_tok_s"] is None:
        yield (
            "decode     not known: "
            + (
                "one token is all that was made"
                if stated["output_tokens"] == 1
                else "in some pass the whole took no longer than its prefill; ask for more --output-tokens"
            )
        )
    yield f"engine     {', '.join([*_versions(stated), *_settings(stated)])}"
    yield f"host       {_host(stated)}"


def _versions(stated: Mapping[str, Any]) -> list[str]:
    return [f"{name} {version}" for name, version in stated["versions"].items()]


def _settings(stated: Mapping[str, Any]) -> list[str]:
    names = ("attention", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size")
    words = [f"{name} {stated[name]}" for name in names if stated.get(name) is not None]
    for name in ("chunked_prefill", "prefix_caching", "cuda_graphs", "speculative"):
        if stated.get(name) is not None:
            words.append(f"{name} {'on' if stated[name] else 'off'}")
    return words


def _host(stated: Mapping[str, Any]) -> str:
    host, gpus = stated["host"], stated.get("gpus") or []
    where = [f"{one['name']} ({bytes_text(one['memory_bytes'])})" for one in gpus] or [
        f"{stated.get('device') or 'device not told'}, no GPU"
    ]
    count = stated.get("threads")
    threads = [f"{count} thread{'s' * (count > 1)}"] if count else []
    return ", ".join([*where, *([host["cpu"]] if host.get("cpu") else []), f"{host['cores']} cores", *threads])


def side_by_side(every: Sequence[Mapping[str, Any]]) -> Table:
    """One row a baseline, in tokens per second. What one request gets and what all get together are columns of their own."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("", no_wrap=True)
    table.add_column("precision", min_width=9)
    heads = ("in/out", "at\nonce", "TTFT\nms", "prefill\ntok/s", "decode\nof each", "decode\nof all", "with\nprefill")
    for words in heads:
        table.add_column(words, justify="right", no_wrap=True)
    for made in every:
        stated, figures = made["conditions"], made["figures"]
        single = stated["batch"] == 1
        table.add_row(
            _ENGINES[made["engine"]],
            Text(stated["precision"] or "–"),
            f"{stated['input_tokens']}/{stated['output_tokens']}",
            "1" if single else str(stated["batch"]),
            *(_median(figures[name]) for name in ("ttft_ms", "prefill_tok_s", "decode_tok_s_per_request")),
            "" if single else _median(figures["decode_tok_s"]),
            _median(figures["output_tok_s"]),
        )
    return table


def _median(figure: Mapping[str, Any] | None) -> str:
    return "–" if figure is None else number(figure["median"])


def difference_lines(every: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Conditions that are not the same for all, besides how many requests there were at once."""
    for name in _COMPARED:
        values = [_words(made["conditions"], name, every) for made in every]
        if len(set(values)) > 1:
            yield f"not the same: {name.replace('_', ' ')}: {' | '.join(values)}"


def _words(stated: Mapping[str, Any], name: str, every: Sequence[Mapping[str, Any]]) -> str:
    if name == "versions":  # of libraries that all have
        common = set.intersection(*(set(made["conditions"]["versions"]) for made in every))
        return ", ".join(_versions({"versions": {k: v for k, v in stated["versions"].items() if k in common}}))
    if name == "host":
        return _host({**stated, "threads": None})
    return str(stated.get(name))
