"""`loadgen kv-cache`: a model's shape in, the bytes of its KV cache and how many sequences fit out; measures nothing."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from loadgen.errors import UsageError
from server.roofline import MEMORY_UTILIZATION


def kv_cache(
    length: Annotated[int, typer.Option("--length", min=1, metavar="INT", help="Tokens of one sequence.")],
    batch: Annotated[int, typer.Option("--batch", min=1, metavar="INT", help="Sequences.")] = 1,
    layers: Annotated[int | None, typer.Option("--layers", min=1, metavar="INT", help="Layers.")] = None,
    kv_heads: Annotated[
        int | None, typer.Option("--kv-heads", min=1, metavar="INT", help="Key and value heads.")
    ] = None,
    head_size: Annotated[int | None, typer.Option("--head-size", min=1, metavar="INT", help="Size of a head.")] = None,
    config: Annotated[
        str | None,
        typer.Option("--config", metavar="FILE", help="The model's config.json in place of its shape, or its folder."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", metavar="TYPE", help="Of the cache's values; the config's, else fp16."),
    ] = None,
    params: Annotated[
        str | None, typer.Option("--params", metavar="COUNT", help="Parameters, such as 7B, for what fits.")
    ] = None,
    weight_dtype: Annotated[
        str | None, typer.Option("--weight-dtype", metavar="TYPE", help="Of the weights; the config's, else fp16.")
    ] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", metavar="NAME", help="A known GPU, such as H100.")] = None,
    gpus: Annotated[int, typer.Option("--gpus", min=1, metavar="INT", help="How many share the model.")] = 1,
    memory: Annotated[str | None, typer.Option("--memory", metavar="BYTES", help="Of one GPU, such as 80GB.")] = None,
    gpu_memory_utilization: Annotated[
        float,
        typer.Option(
            "--gpu-memory-utilization",
            min=0.01,
            max=1,
            metavar="SHARE",
            help="Share of it that the server uses; vLLM's default.",
        ),
    ] = MEMORY_UTILIZATION,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Work out the bytes of a KV cache from a model's shape, and how many sequences fit into a GPU's memory.

    Without --params or --config nothing but the cache is taken to be in memory. Exit codes: 0 answered; 2 the command
    line is wrong.
    """
    import orjson

    from loadgen.claims.figures import gpu_figures, model_figures
    from loadgen.claims.kv_cache import kv_cache as worked_out
    from loadgen.claims.quantities import bytes_text

    try:
        model, known = model_figures(
            params=params,
            weights=False,
            config=config,
            layers=layers,
            kv_heads=kv_heads,
            head_size=head_size,
            dtype=weight_dtype or (None if config else "fp16"),
            kv_dtype=dtype or (None if config else "fp16"),
        )
        if not known:
            raise ValueError("the KV cache needs --layers, --kv-heads and --head-size, or --config")
        if gpu is None and memory is None:
            place = None
        else:
            place = gpu_figures(name=gpu, bandwidth=None if gpu else "1TB/s", memory=memory, count=gpus)
    except ValueError as error:
        raise UsageError(
            f"The KV cache cannot be worked out: {error}.", hint="docs/claims.md has worked examples"
        ) from None
    made = worked_out(model, length=length, batch=batch, gpu=place, memory_utilization=gpu_memory_utilization)
    if as_json:
        sys.stdout.write(orjson.dumps(made, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode())
        return
    typer.echo(f"a token         {made['bytes_per_token']:,} bytes")
    typer.echo(
        f"a sequence      {made['bytes_per_sequence']:,} bytes of {length} tokens ({bytes_text(made['bytes_per_sequence'])})"
    )
    if batch > 1:
        typer.echo(f"{f'{batch} sequences':<15} {made['bytes']:,} bytes ({bytes_text(made['bytes'])})")
    weights = "no weights (give --params)"
    if made["weight_bytes"] is not None:
        weights = f"weights of {bytes_text(made['weight_bytes'])}"
    if made["tokens_that_fit"] is not None:
        typer.echo(
            f"fit             {made['sequences_that_fit']:,} sequences of {length} tokens ({made['tokens_that_fit']:,} tokens) "
            f"beside {weights} in {gpu_memory_utilization:g} of the memory; activations and CUDA graphs take some of it"
        )
