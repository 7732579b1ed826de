# Everything a contributor, CI and a first-time user runs. Works in any checkout directory.
#   VENV=DIR     the virtual environment (default .venv)
#   PYTHON=PROG  the Python it is made with (default: the first of python3, python3.13 … 3.11 that is new enough)

VENV   ?= .venv
PYTHON ?=
SHELL  := /bin/bash

# The name holds a checksum of the checkout's path: an environment copied or moved along is set up again.
STAMP := $(VENV)/.turngate-$(shell pwd | cksum | cut -d' ' -f1)
export VENV PYTHON

.DEFAULT_GOAL := help
.PHONY: help setup demo test chaos lint bench lock openapi histories clean

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create the virtual environment from the lock (quick when nothing changed)

$(STAMP): requirements.lock pyproject.toml scripts/setup
	@scripts/setup
	@touch "$@"

demo: setup ## Run the demo: an agent with a gated call, approvable in the browser
	@"$(VENV)/bin/turngate" demo

test: setup ## Run everything CI runs: lint, types, import contracts, all tests
	@scripts/system-packages
	@scripts/check

chaos: setup ## Kill and stop every process under 1,000 gated calls, then check that nothing was lost or done twice
	@scripts/system-packages
	@"$(VENV)/bin/python" tests/chaos/run.py

lint: setup ## Run lint, types and import contracts only
	@scripts/check --no-tests

bench: setup ## Measure the numbers the design promises
	@"$(VENV)/bin/python" tests/bench/run.py

lock: ## Resolve requirements.lock again from pyproject.toml
	@scripts/lock

openapi: setup ## Write docs/openapi.json from the API's code
	@scripts/openapi

histories: setup ## Record the workflow histories of this version that tests/replay replays
	@"$(VENV)/bin/python" tests/replay/record.py

clean: ## Remove the virtual environment and every cache; data (.turngate) stays
	@rm -rf "$(VENV)" dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
