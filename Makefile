# The one entry point. `make` alone lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(VENV)/tools/bin/uv
WORKERS ?= 2
export PYTHONPATH :=

.PHONY: help setup demo test test-fast fuzz soak lint types contracts check docs house bench lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(UV): requirements-tools.lock
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "headwater needs Python 3.11 or later; set PYTHON=python3.x")'
	@echo "setup: installing uv into $(VENV)/tools"
	@$(PYTHON) -m venv $(VENV)/tools
	@$(VENV)/tools/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-tools.lock
	@touch $@

$(VENV)/.installed: $(UV) requirements.lock pyproject.toml
	@echo "setup: installing Python packages from requirements.lock"
	@test -x $(BIN)/python || $(UV) venv --quiet --allow-existing --python $(PYTHON) $(VENV)
	@$(UV) pip sync --quiet --python $(BIN)/python --require-hashes --compile-bytecode requirements.lock
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q src
	@touch $@

setup: $(VENV)/.installed ## install everything: Python packages, then the JVM packages into a cache
	@$(BIN)/headwater setup

demo: setup ## the main job end to end, in a temporary folder
	@$(BIN)/python examples/demo.py

# Tests start many JVMs for a short time each: on two cores the optimising compiler costs more than it saves.
test test-fast fuzz: export JDK_JAVA_OPTIONS ?= -XX:TieredStopAtLevel=1

test: setup ## all tests, in two processes: each starts Spark once
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-fast: $(VENV)/.installed ## the tests that need no Spark
	@$(BIN)/python -m pytest -m "not spark and not slow" $(ARGS)

fuzz: setup ## the property tests with new random cases: make fuzz ARGS=tests/property/test_view_sql.py
	@HEADWATER_HYPOTHESIS=search $(BIN)/python -m pytest $(or $(ARGS),tests/property)

soak: setup ## an hour of steady load on a service, and its memory: make soak ARGS="--minutes 10"
	@$(BIN)/python -m bench.soak $(ARGS)

lint: $(VENV)/.installed ## ruff: style and format
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(VENV)/.installed ## mypy, strict
	@$(BIN)/mypy

contracts: $(VENV)/.installed ## import-linter: imports point down only
	@PYTHONPATH=src $(BIN)/lint-imports

check: lint types contracts ## lint, types and import contracts

docs: $(VENV)/.installed ## regenerate docs/reference from the code
	@$(BIN)/python -m tools.reference

house: setup ## how large and how tangled the source is
	@$(BIN)/python -m tools.house $(ARGS)

bench: setup ## a benchmark: make bench NAME=commits|produce|ingest|query|query-worker|refresh|view-read|shared-scan|care|streaming|kafka|start
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements-bench.lock
	@$(BIN)/python -m bench.$(subst -,_,$(NAME)) $(ARGS)

lock: $(UV) ## resolve the lock files anew
	@$(UV) pip compile --quiet --universal --generate-hashes --no-header --no-annotate --python-version 3.11 --group dev pyproject.toml -o requirements.lock
	@$(UV) pip compile --quiet --universal --generate-hashes --no-header --no-annotate --python-version 3.11 -c requirements.lock --group bench -o requirements-bench.lock
	@$(UV) pip compile --quiet --universal --generate-hashes --no-header --no-annotate --python-version 3.11 --group tools -o requirements-tools.lock

clean: ## remove the environment and caches
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
