# Two commands matter: `make run` and `make check`. Both set everything up first, on any machine with Python 3.11.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# A CPU build of torch, for tests; a free range would pull several gigabytes of GPU libraries.
TORCH ?= torch==2.13.0
# Tests that run at once: many wait for processes of their own, so more than there are cores.
WORKERS ?= 4

.PHONY: run check test test-fast lint format bench docs clean

run: $(VENV)/.installed
	$(BIN)/bouquet run -c 'strategy="sequential-rules"'

check: lint test

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test-fast: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.installed-dev
	$(BIN)/mkdocs build --strict

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.torch: | $(BIN)/python
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	@touch $@

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/.torch
	$(BIN)/python -m pip install --quiet "$(TORCH)" --editable ".[dev]"
	@touch $@ $(VENV)/.installed
