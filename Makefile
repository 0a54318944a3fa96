# Everything starts from a bare clone: each target makes the environment it needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
RUN    ?= runs/tour
JOBS   ?= 2
KILLS  ?= 200
FUZZ   ?= 10000

# Threads that spin while they wait bring small matrix work to a halt on a busy machine.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: audit test lint types unit test-slow test-flower test-ray test-gpu bench bench-gpu torture docs wheel clean

audit: $(VENV)/.ready
	$(BIN)/keyhole audit --out $(RUN)

test: lint types unit

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.ready-dev
	$(BIN)/mypy

unit: $(VENV)/.ready-dev
	$(BIN)/pytest -n $(JOBS) --dist loadfile -m "not slow and not gpu and not flower and not ray and not torture" --cov --cov-report=term

test-slow: $(VENV)/.ready-dev
	$(BIN)/pytest -m slow tests

test-flower: $(VENV)/.ready-dev
	$(BIN)/pytest -m flower tests

# Two Ray nodes on this machine: one is killed, and so is the driver. RAY_SEED names the moments.
test-ray: $(VENV)/.ready-dev
	$(BIN)/pytest -m ray tests

test-gpu: $(VENV)/.ready-dev
	$(BIN)/pytest -m gpu tests

# Ratios to plain loops and other tools, all in one table; results/ keeps those that docs quote.
bench: $(VENV)/.ready
	$(BIN)/python benchmarks/all.py

bench-gpu: $(VENV)/.ready
	$(BIN)/python benchmarks/all.py --device cuda

# Runs killed at every moment and hostile inputs; a count and a seed bound them.
torture: $(VENV)/.ready-dev
	KILLS=$(KILLS) FUZZ=$(FUZZ) $(BIN)/pytest -m torture -s tests/torture

# The site, docs/_build/html/index.html; a warning is an error.
docs: $(VENV)/.ready-docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

# What is released, in dist/.
wheel: $(VENV)/.ready-dev
	rm -rf build dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	  || { echo "keyhole needs Python 3.11, 3.12 or 3.13; name one with: make PYTHON=python3.12 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.ready: pyproject.toml | $(VENV)/bin/python
	@echo "Installing keyhole into $(VENV) (PyTorch is large: some minutes, 6 GB) ..."
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.ready-dev: pyproject.toml | $(VENV)/bin/python
	@echo "Installing keyhole with its development tools into $(VENV) (some minutes) ..."
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/.ready

$(VENV)/.ready-docs: pyproject.toml | $(VENV)/bin/python
	@echo "Installing keyhole with what builds its site into $(VENV) (some minutes) ..."
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@ $(VENV)/.ready

clean:
	rm -rf $(VENV) runs build dist docs/_build src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage
