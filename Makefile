# `make demo` and `make test` work from nothing but Python >= 3.11 and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Test processes: one for each core. Only one of them starts Ray (tests/conftest.py).
JOBS ?= logical

.PHONY: demo test bench chaos fuzz lint clean

demo: $(STAMP)
	$(BIN)/dpaudit run examples/label-privacy.yaml

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n $(JOBS) --dist loadgroup

# An hour of odd tables, specs, data files and run folders; FUZZ="--cases 20000 --seed 7" for so many.
fuzz: $(STAMP)
	$(BIN)/python -W ignore -m tests.fuzz $(FUZZ)

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# Faults at random moments of a run; about a minute each.
chaos: $(STAMP)
	$(BIN)/python -m benchmarks.chaos --runs $(or $(RUNS),20) --seed $(or $(SEED),0)

# torch first and pinned: a newer release from the registry would bring gigabytes of CUDA libraries along.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,accounting,opacus,text]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
