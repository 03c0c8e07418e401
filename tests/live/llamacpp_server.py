"""Runs llama.cpp's own HTTP server in this process: takes a GGUF file, a port and a number of slots; serves until it is ended.

Run with the Python of an environment that has xllamacpp.
"""

import sys
import threading

import xllamacpp

CONTEXT_TOKENS = 2048
"""Of each slot."""


def main(model: str, port: int, slots: int) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = "smollm2"
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_parallel = slots
    params.n_ctx = CONTEXT_TOKENS * slots
    params.endpoint_metrics = True
    params.cpuparams.n_threads = 1
    server = xllamacpp.Server(params)
    print("listening on", server.listening_address, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
