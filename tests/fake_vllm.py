"""Plays `vllm serve` on the simulator: its arguments, its log, its second process, its names; and its failures on demand.

`python fake_vllm.py serve MODEL --flag…` or `… --model MODEL --flag…`. FAKE_VLLM in the environment is what goes wrong:
`die:FILE` (its log is that file, then it ends), `hang` (it never answers), `other_model_len` (it runs with another
context than was asked), `no_nonce` (it does not serve the second name).
"""

import argparse
import os
import sys
import time
from pathlib import Path

MODE = os.environ.get("FAKE_VLLM", "")
LIMITS = ("max_num_seqs", "max_model_len", "max_num_batched_tokens", "block_size")


def engine() -> None:
    """The process that vLLM calls EngineCore: it ends at SIGTERM, and outlives an API server that is killed."""
    if os.fork() == 0:
        while True:
            time.sleep(60)


def main() -> None:
    words = sys.argv[1:]
    if words[:1] == ["serve"]:
        words = ["--model", *words[1:]]
    parser = argparse.ArgumentParser(prog="vllm serve", allow_abbrev=False)
    parser.add_argument("--model")
    parser.add_argument("--mark")  # tells the processes of one test from all others
    parser.add_argument("--served-model-name", nargs="+", default=["fake"])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--enforce-eager", action=argparse.BooleanOptionalAction)
    parser.add_argument("--swap-space")
    for name in LIMITS:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int)
    given = parser.parse_args(words)
    if MODE.startswith("die:"):
        print(Path(MODE.removeprefix("die:")).read_text(), flush=True)
        sys.exit(1)
    engine()
    if MODE == "hang":
        print("Loading safetensors checkpoint shards:   0% Completed", flush=True)
        while True:
            time.sleep(60)
    serve({name: value for name in LIMITS if (value := getattr(given, name)) is not None}, given)


def serve(chosen: dict[str, int], given: argparse.Namespace) -> None:
    """The simulator with every name that was asked for."""
    from aiohttp import web

    from server.simulator import serve, start_log
    from server.simulator.http import Simulator
    from server.simulator.settings import SimulatorSettings
    from server.simulator.tokenizer import folder

    names = given.served_model_name[:1] if MODE == "no_nonce" else given.served_model_name

    class Named(Simulator):
        async def _models(self, request: web.Request) -> web.StreamResponse:
            length = 4096 if MODE == "other_model_len" else self._settings.max_model_len
            data = [{"id": name, "object": "model", "root": "/models/fake", "max_model_len": length} for name in names]
            return web.json_response({"object": "list", "data": data})

    settings = SimulatorSettings(served_model_name=names[0], step_overhead_ms=2, decode_time_per_seq_ms=0.1, **chosen)
    if given.enforce_eager:
        config = start_log.engine_config
        start_log.engine_config = lambda one: config(one).replace("enforce_eager=False", "enforce_eager=True")
    serve.Simulator = Named  # type: ignore[misc]
    serve.run(settings, host=given.host, port=given.port, tokenizer=folder())


if __name__ == "__main__":
    main()
