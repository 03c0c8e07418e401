# Targets for people and for .ci/run alike; `make` lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-alone check fmt live k8s-check bench bench-quick fuzz docs clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup: $(STAMP) ## make the virtual environment (.venv) with everything in it

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 14) else "llm-loadgen needs Python 3.11, 3.12 or 3.13; name one: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: setup ## start the simulator, sweep the concurrency, print the table, write the report (about 75 s)
	$(BIN)/loadgen run scenarios/chat-capacity.yaml

test: setup ## the everyday tests
	$(BIN)/python -m pytest -q -n 3 --dist loadfile -m "not alone"

test-alone: setup ## the tests that compare instants, which need the machine for themselves
	$(BIN)/python -m pytest -q -m alone

check: setup ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

fmt: setup ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

live: setup ## measure real vLLM serving a real model on this machine's CPU (builds both once, then about 4 minutes)
	$(BIN)/python -m pytest -o addopts= -ra tests/live

k8s-check: setup ## the Kubernetes manifests, rules and dashboard: rendered, validated, run on this machine (about two minutes)
	$(BIN)/python -m pytest -q tests/k8s

bench: setup ## the tool's own speed and truth, side by side with others (about an hour, writes docs/benchmarks.md)
	$(BIN)/python bench/prompts.py
	$(BIN)/python bench/stamps.py
	$(BIN)/python -m bench.side_by_side --new

bench-quick: setup ## the same in about 5 minutes: one run of two loads, shown and not kept
	$(BIN)/python bench/prompts.py
	$(BIN)/python bench/stamps.py
	$(BIN)/python -m bench.side_by_side --quick

SECONDS ?= 300

fuzz: setup ## look for streams that are read wrongly, SECONDS long after some minutes of hypothesis (what it finds becomes a test)
	FUZZ_EXAMPLES=1500 $(BIN)/python -m pytest -q -o timeout=0 tests/property/test_sse_properties.py tests/property/test_stream_properties.py
	$(BIN)/python -m tests.fuzz.run --seconds $(SECONDS)

docs: setup ## write the reference pages again from the code
	$(BIN)/python -m loadgen.cli.reference --write

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build
