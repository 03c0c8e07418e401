"""`loadgen check-claim`: a number of tokens per second and its conditions in, whether it can be in words; measures nothing."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from loadgen.errors import UsageError

if TYPE_CHECKING:
    from loadgen.claims.claim import Claim

_MODEL = "Model"
_GPU = "GPU"
_CONDITIONS = "Conditions"


def check_claim(
    tok_s: Annotated[float, typer.Option("--tok-s", metavar="NUMBER", help="Tokens per second that are claimed.")],
    counts: Annotated[
        str | None,
        typer.Option(
            "--counts", metavar="output|total", help="Which tokens: of the output, or input and output together."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Model and weights.", rich_help_panel=_MODEL)
    ] = None,
    params: Annotated[
        str | None, typer.Option("--params", metavar="COUNT", help="Parameters, such as 70B.", rich_help_panel=_MODEL)
    ] = None,
    active_params: Annotated[
        str | None,
        typer.Option(
            "--active-params",
            metavar="COUNT",
            help="Of a mixture of experts: parameters that one token uses.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="The model's config.json, or its folder: parameters, layers, heads.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    layers: Annotated[
        int | None, typer.Option("--layers", min=1, metavar="INT", help="Layers.", rich_help_panel=_MODEL)
    ] = None,
    kv_heads: Annotated[
        int | None,
        typer.Option("--kv-heads", min=1, metavar="INT", help="Key and value heads.", rich_help_panel=_MODEL),
    ] = None,
    head_size: Annotated[
        int | None, typer.Option("--head-size", min=1, metavar="INT", help="Size of a head.", rich_help_panel=_MODEL)
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", metavar="TYPE", help="Of the weights, such as bf16.", rich_help_panel=_MODEL),
    ] = None,
    quantization: Annotated[
        str | None,
        typer.Option(
            "--quantization", metavar="NAME", help="Of the weights: fp8, awq, …; or none.", rich_help_panel=_MODEL
        ),
    ] = None,
    kv_dtype: Annotated[
        str | None,
        typer.Option(
            "--kv-dtype",
            metavar="TYPE",
            help="Of the KV cache; that of the weights by default.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="NAME", help="A known GPU, such as H100.", rich_help_panel=_GPU)
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option("--gpus", min=1, metavar="INT", help="How many share the model.", rich_help_panel=_GPU),
    ] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option(
            "--bandwidth", metavar="BYTES/S", help="Of one GPU's memory, such as 3.35TB/s.", rich_help_panel=_GPU
        ),
    ] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="BYTES", help="Of one GPU, such as 80GB.", rich_help_panel=_GPU)
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", min=1, metavar="INT", help="Requests at once.", rich_help_panel=_CONDITIONS),
    ] = None,
    input_len: Annotated[
        int | None,
        typer.Option("--input-len", min=1, metavar="INT", help="Prompt tokens.", rich_help_panel=_CONDITIONS),
    ] = None,
    output_len: Annotated[
        int | None,
        typer.Option("--output-len", min=1, metavar="INT", help="Output tokens.", rich_help_panel=_CONDITIONS),
    ] = None,
    spec_decode: Annotated[
        int | None,
        typer.Option(
            "--spec-decode",
            min=0,
            metavar="INT",
            help="Tokens drafted a step by speculative decoding; 0 says that there is none.",
            rich_help_panel=_CONDITIONS,
        ),
    ] = None,
    acceptance: Annotated[
        float | None,
        typer.Option(
            "--acceptance",
            min=0,
            max=1,
            metavar="SHARE",
            help="Share of drafted tokens that are right; all by default.",
            rich_help_panel=_CONDITIONS,
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option("--engine", metavar="TEXT", help="Engine and version.", rich_help_panel=_CONDITIONS),
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option("--max-model-len", min=1, metavar="INT", help="Of the server.", rich_help_panel=_CONDITIONS),
    ] = None,
    prefix_caching: Annotated[
        str | None,
        typer.Option("--prefix-caching", metavar="on|off", help="Of the server.", rich_help_panel=_CONDITIONS),
    ] = None,
    cuda_graphs: Annotated[
        str | None,
        typer.Option("--cuda-graphs", metavar="on|off", help="Of the server.", rich_help_panel=_CONDITIONS),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Check a claimed number of tokens per second against what the GPU's memory can deliver, and its conditions.

    The answer is plausible, needs batching, needs speculation or quantization, depends on what is not stated, or impossible,
    with the arithmetic. What is not given counts as not stated. Exit codes: 0 answered; 2 the command line is wrong.
    """
    import orjson

    from loadgen.claims.claim import judge
    from loadgen.claims.stated import missing
    from loadgen.claims.text import claim_lines
    from loadgen.stats.digits import digits

    output_tok_s = _of_the_output(tok_s, counts, input_len, output_len)
    for option, value in (("--prefix-caching", prefix_caching), ("--cuda-graphs", cuda_graphs)):
        if value not in (None, "on", "off"):
            raise UsageError(f"{option} is {value!r}; it takes on or off.")
    try:
        claim = _claim(
            output_tok_s,
            model={
                "params": params,
                "active_params": active_params,
                "config": config,
                "layers": layers,
                "kv_heads": kv_heads,
                "head_size": head_size,
                "dtype": dtype,
                "quantization": quantization,
                "kv_dtype": kv_dtype,
            },
            gpu={"name": gpu, "bandwidth": bandwidth, "memory": memory, "count": gpus or 1},
            conditions={
                "gpus_stated": gpus is not None,
                "precision_stated": bool(dtype or quantization or config),
                "concurrency": concurrency,
                "length": (input_len or 0) + (output_len or 0) / 2,
                "draft_tokens": spec_decode or 0,
                "acceptance": acceptance,
            },
        )
    except ValueError as error:
        raise UsageError(f"The claim cannot be checked: {error}.", hint="docs/claims.md has worked examples") from None
    lacking = missing(
        {
            "model and weights": model or config,
            "precision and quantization": dtype or quantization or config,
            "GPU": gpu,
            "number of GPUs": gpus,
            "engine and version": engine,
            "concurrency and batch": concurrency,
            "input length": input_len,
            "output length": output_len,
            "max_model_len": max_model_len,
            "what tok/s means": counts,
            "speculative decoding": spec_decode,
            "prefix caching": prefix_caching,
            "CUDA graphs": cuda_graphs,
        }
    )
    judged = judge(claim)
    if as_json:
        told = {**judged, "missing": [{"condition": one.name, "why": one.why} for one in lacking]}
        sys.stdout.write(orjson.dumps(told, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode())
        return
    if output_tok_s != tok_s:
        typer.echo(f"Of {digits(tok_s)} tokens/s of input and output, {digits(output_tok_s)} are output.")
    for line in claim_lines(claim, judged, lacking):
        typer.echo(line)


def _of_the_output(tok_s: float, counts: str | None, input_len: int | None, output_len: int | None) -> float:
    if not 0 < tok_s < float("inf"):
        raise UsageError(f"--tok-s is {tok_s:g}; it takes a number above 0.")
    if counts not in (None, "output", "total"):
        raise UsageError(f"--counts is {counts!r}; it takes output or total.")
    if counts != "total":
        return tok_s
    if input_len is None or output_len is None:
        raise UsageError(
            "--counts total counts prompts too, and nothing says how much of it is output.",
            hint="give --input-len and --output-len",
        )
    return tok_s * output_len / (input_len + output_len)


def _claim(tok_s: float, *, model: dict, gpu: dict, conditions: dict) -> Claim:  # type: ignore[type-arg]
    from loadgen.claims.claim import Claim
    from loadgen.claims.figures import gpu_figures, model_figures

    figures, kv_known = model_figures(**model)
    return Claim(tok_s=tok_s, model=figures, kv_known=kv_known, gpu=gpu_figures(**gpu), **conditions)
