# Everything a contributor, CI and a first-time user runs. Works in any checkout directory.
#   VENV=DIR     the virtual environment (default .venv)
#   PYTHON=PROG  the Python it is made with (default: the first of python3, python3.13 … 3.11 that is new enough)

VENV   ?= .venv
PYTHON ?=
SHELL  := /bin/bash

# Three stamps for one environment: what running needs is installed; what testing and linting need is, too; and what the long
# tests of deploy/ need.
# The names hold a checksum of the checkout's path: an environment copied or moved along is set up again.
CHECKOUT := $(shell pwd | cksum | cut -d' ' -f1)
RUN_STAMP := $(VENV)/.turngate-run-$(CHECKOUT)
DEV_STAMP := $(VENV)/.turngate-dev-$(CHECKOUT)
ALL_STAMP := $(VENV)/.turngate-all-$(CHECKOUT)
export VENV PYTHON

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo test test-all mutants chaos cluster lint bench dist lock sbom openapi histories clean
# The two set-ups write to the same environment.
.NOTPARALLEL:

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(RUN_STAMP) ## Create the virtual environment with what running needs (quick when nothing changed)

setup-dev: $(DEV_STAMP) ## The same with what testing and linting need on top

$(RUN_STAMP): requirements.lock pyproject.toml scripts/setup
	@scripts/setup
	@touch "$@"

$(DEV_STAMP): requirements.lock requirements-dev.lock pyproject.toml scripts/setup
	@scripts/setup --dev
	@touch "$(RUN_STAMP)" "$@"

$(ALL_STAMP): requirements.lock requirements-dev.lock requirements-all.lock pyproject.toml scripts/setup
	@scripts/setup --all
	@touch "$(RUN_STAMP)" "$(DEV_STAMP)" "$@"

demo: setup ## Run the demo: an agent with a gated call, approvable in the browser
	@"$(VENV)/bin/turngate" demo

test: setup-dev ## Run everything CI runs: lint, types, import contracts, all tests but the exhaustive ones
	@scripts/system-packages
	@scripts/check

test-all: $(ALL_STAMP) ## The same with every test, which takes twice as long
	@scripts/system-packages
	@scripts/check --all

mutants: setup-dev ## Change the code that decides whether something runs, COUNT times, and see which tests notice (SEED, COUNT; 3 h)
	@scripts/system-packages
	@"$(VENV)/bin/python" tests/mutants/run.py $(if $(SEED),--seed $(SEED)) $(if $(COUNT),--count $(COUNT))

chaos: setup-dev ## Kill and stop every process under 1,000 gated calls, then check that nothing was lost or done twice
	@scripts/system-packages
	@"$(VENV)/bin/python" tests/chaos/run.py

cluster: setup-dev ## Run Turngate on a real Temporal cluster, which Go builds: story, upgrade, throughput, chaos (25 min)
	@scripts/system-packages
	@scripts/cluster run

lint: setup-dev ## Run lint, types and import contracts only
	@scripts/check --no-tests

bench: setup-dev ## Measure the numbers the design promises
	@"$(VENV)/bin/python" tests/bench/run.py

dist: setup ## Build the wheel and the source archive into dist/
	@scripts/dist

lock: ## Resolve the locks again from pyproject.toml, and write the bill of materials
	@scripts/lock
	@$(MAKE) --no-print-directory sbom

sbom: setup-dev ## Write sbom.cdx.json, the bill of materials in the wheel, from requirements.lock
	@"$(VENV)/bin/cyclonedx-py" requirements --output-reproducible --index-url "" --pyproject pyproject.toml -o sbom.cdx.json requirements.lock

openapi: setup-dev ## Write docs/openapi.json from the API's code
	@scripts/openapi

histories: setup-dev ## Record the workflow histories of this version that tests/replay replays
	@"$(VENV)/bin/python" tests/replay/record.py

clean: ## Remove the virtual environment and every cache; your data stays
	@rm -rf "$(VENV)" dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .mutants
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
