# `make demo` and `make test` work from nothing but Python >= 3.11 and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DIFFPRIVLIB := $(CURDIR)/.venv-diffprivlib/bin/python
DIFFPRIVLIB_STAMP := .venv-diffprivlib/.installed
S3_SERVER := $(CURDIR)/.venv-s3/bin/moto_server
S3_STAMP := .venv-s3/.installed
MKDOCS := $(CURDIR)/.venv-docs/bin/mkdocs
DOCS_STAMP := .venv-docs/.installed
MUTATION_STAMP := .venv-mutation/.installed
MUTANTS ?= build/mutants.jsonl
# JOBS: test processes; left out, one for each core. One starts Ray; from four on, another one clusters (tests/conftest.py).
SUITE = DPAUDIT_DIFFPRIVLIB_PYTHON=$(DIFFPRIVLIB) DPAUDIT_S3_SERVER=$(S3_SERVER) DPAUDIT_MKDOCS=$(MKDOCS) \
	$(BIN)/python -m tests.suite $(if $(JOBS),--jobs $(JOBS))
# Empty is as good as not set: where it is set, each of many processes would compile all libraries anew.
export PYTHONDONTWRITEBYTECODE =

.PHONY: diffprivlib libraries s3 docs docs-serve demo light-wheel test nightly lowest mutants bench compare evidence gallery pages house chaos \
	fuzz lint clean

demo: $(STAMP)
	$(BIN)/dpaudit run examples/label-privacy.yaml

test: $(STAMP) $(DIFFPRIVLIB_STAMP) $(S3_STAMP) $(DOCS_STAMP)
	$(SUITE)

# The wheel of dpaudit-light, in build/light: the same package, without ray, torch, catboost and numba.
light-wheel: $(STAMP)
	$(BIN)/python -m tools.light_wheel build/light

# All tests, those marked `nightly` too; coverage with every game; the fuzzer for an hour, as FUZZ says otherwise; mutants.
nightly: $(STAMP) $(DIFFPRIVLIB_STAMP) $(S3_STAMP) $(DOCS_STAMP)
	DPAUDIT_NIGHTLY=yes $(SUITE)
	$(BIN)/python -W ignore -m tests.fuzz $(FUZZ)
	$(MAKE) lowest
	$(MAKE) mutants

# 200 random mutants of estimators, claims and verdict: the share that the tests of the day and of the night catch. Hours;
# goes on where it was stopped, in the file MUTANTS.
mutants: $(STAMP) $(MUTATION_STAMP)
	mkdir -p build
	.venv-mutation/bin/python -m tools.mutants $(MUTANTS)

# The lowest versions that are declared: the command, the demo, and quick tests of many rooms.
LOWEST := .venv-lowest
LOWEST_TESTS ?= tests/engine/test_cli.py tests/engine/test_request.py tests/engine/test_estimate.py \
	tests/engine/test_trackers.py tests/engine/test_outputs.py tests/engine/test_boundless_claims.py \
	tests/estimators/test_binomial.py tests/estimators/test_counts.py tests/estimators/test_scores.py \
	tests/mechanisms/test_catboost.py tests/mechanisms/test_labels.py tests/mechanisms/test_opacus.py \
	tests/test_claims.py tests/test_lowest.py tests/test_registry.py
lowest: $(LOWEST)/.installed
	$(LOWEST)/bin/dpaudit --version
	rm -rf build/lowest
	$(LOWEST)/bin/dpaudit run examples/label-privacy.yaml -o build/lowest
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest $(LOWEST_TESTS)

$(LOWEST)/.installed: pyproject.toml requirements/lowest.txt
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/pip install --quiet --disable-pip-version-check --no-compile -c requirements/lowest.txt torch
	$(LOWEST)/bin/pip install --quiet --disable-pip-version-check --no-compile -c requirements/lowest.txt \
		-e ".[accounting,cluster,dev,diffprivlib,endpoint,mlflow,opacus,text,wandb]"
	touch $@

# An hour of odd tables, specs, data files and run folders; FUZZ="--cases 20000 --seed 7" for so many.
fuzz: $(STAMP)
	$(BIN)/python -W ignore -m tests.fuzz $(FUZZ)

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# The same work by other packages, called as they are, and by ours: processor seconds and answers side by side.
compare: $(STAMP) .peers/.installed
	PYTHONPATH=.peers OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.compare --write
	$(BIN)/python -m tools.pages

.peers/.installed: requirements/peers.txt $(STAMP)
	rm -rf .peers
	$(PIP) --no-deps --target .peers -r requirements/peers.txt
	touch $@

# What bounds and checks find, in the docs: the tightness of `estimate`, the sensitivity as stated, the defect bank. Hours;
# the last two go on where they were stopped, in the folder FOUND.
FOUND ?= build/evidence
evidence: $(STAMP)
	mkdir -p $(FOUND)
	$(BIN)/python -W ignore -m benchmarks.estimate_default --write
	$(BIN)/python -W ignore -m benchmarks.sensitivity_tried $(FOUND)/sensitivity-tried.jsonl --write
	$(BIN)/python -W ignore -m benchmarks.wide_vectors $(FOUND)/wide-vectors.jsonl --write
	$(BIN)/python -W ignore -m tests.bank $(FOUND)/bank.jsonl --only defect
	$(BIN)/python -W ignore -m tests.bank $(FOUND)/bank.jsonl --only twin --seeds 3 --write
	$(BIN)/python -m tools.pages

# Functions of released libraries, each registered, audited, verified: docs/results/gallery.md. An hour; goes on where it was
# stopped. Libraries that need torch are audited if `make libraries` has installed them.
LARGE_LIBRARIES := trainers sdv smartnoise-generators anonymeter nvflare
SMALL_LIBRARIES := $(filter-out $(LARGE_LIBRARIES),$(patsubst requirements/libraries/%.txt,%,$(wildcard requirements/libraries/*.txt)))
gallery: $(STAMP) $(SMALL_LIBRARIES:%=.venv-%/.installed)
	mkdir -p build/gallery
	$(BIN)/python -W ignore -m benchmarks.gallery build/gallery/runs.jsonl --write
	$(BIN)/python -m tools.pages

# The tables of the pages, from docs/data.
pages: $(STAMP)
	$(BIN)/python -m tools.pages

# The site, in build/site; with a server, which builds a page again when its file changes.
docs: $(STAMP) $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(MKDOCS) build --strict

docs-serve: $(STAMP) $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(MKDOCS) serve

# How much a small audit imports, rooms in a circle, files side by side, names with one user.
house: $(STAMP)
	$(BIN)/python -m tools.house

# Every kind of fault, at random moments of a run, twice; goes on where it was stopped.
chaos: $(STAMP)
	DPAUDIT_SEVERAL_NODES=yes $(BIN)/pytest -o addopts="--strict-markers" -q tests/actors/test_pool.py
	$(BIN)/python -m benchmarks.chaos chaos.jsonl --seed $(or $(SEED),0) $(CHAOS)

# Every file but torch's by its hash where requirements/hashes.lock has them: pip takes none beside an editable install, so
# that one comes last, and takes nothing from an index. HASHES=no where an index holds other files of the same versions.
# torch is pinned and first otherwise: a newer release would bring gigabytes of CUDA libraries along. So does the pinned
# one where an index has no other, and then they come by requirements/constraints.txt.
# Not compiled beforehand: of torch and Ray a small part is ever imported, and compiling all takes longer than the tests of a room.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile
PLATFORM := $(shell $(PYTHON) -c 'import platform, sys; print(sys.platform, platform.machine(), *sys.version_info[:2])')
ifeq ($(PLATFORM),linux x86_64 3 11)
HASHES ?= yes
endif

$(STAMP): pyproject.toml requirements/constraints.txt requirements/hashes.lock
	$(PYTHON) -m venv $(VENV)
ifeq ($(HASHES),yes)
	$(PIP) --no-deps --require-hashes -r requirements/hashes.lock
	$(PIP) -c requirements/constraints.txt torch
	$(PIP) --no-deps --no-build-isolation -e .
else
	@echo "Packages are installed by version, not by hash: requirements/hashes.lock is for Python 3.11 on Linux (x86-64)."
	$(PIP) -c requirements/constraints.txt torch
	$(PIP) -c requirements/constraints.txt -e ".[dev,accounting,opacus,text,finetuning]"
endif
	touch $(STAMP)

# diffprivlib needs scikit-learn < 1.9, so it has a Python of its own; audits find it by this variable.
diffprivlib: $(DIFFPRIVLIB_STAMP)
	@echo "export DPAUDIT_DIFFPRIVLIB_PYTHON=$(DIFFPRIVLIB)"

# Every other library likewise: .venv-NAME/bin/python for requirements/libraries/NAME.txt, by `make .venv-NAME/.installed`.
libraries: $(patsubst requirements/libraries/%.txt,.venv-%/.installed,$(wildcard requirements/libraries/*.txt))

# All that is needed is pinned, against what some old releases say of their needs; what builds a wheel obeys the pins too.
.venv-%/.installed: requirements/libraries/%.txt
	$(PYTHON) -m venv .venv-$*
	PIP_CONSTRAINT=$< .venv-$*/bin/pip install --quiet --disable-pip-version-check --no-compile --no-deps -r $<
	touch $@

# A real server that speaks S3, for the tests of run folders there.
s3: $(S3_STAMP)
	@echo "export DPAUDIT_S3_SERVER=$(S3_SERVER)"

$(S3_STAMP): requirements/s3.txt
	$(PYTHON) -m venv .venv-s3
	.venv-s3/bin/pip install --quiet --disable-pip-version-check --no-compile -c requirements/s3.txt "moto[s3]" flask flask-cors
	touch $(S3_STAMP)

$(DOCS_STAMP): requirements/docs.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/pip install --quiet --disable-pip-version-check --no-compile -r requirements/docs.txt
	touch $(DOCS_STAMP)

$(MUTATION_STAMP): requirements/mutation.txt
	$(PYTHON) -m venv .venv-mutation
	.venv-mutation/bin/pip install --quiet --disable-pip-version-check --no-compile --no-deps -r requirements/mutation.txt
	touch $(MUTATION_STAMP)

clean:
	rm -rf $(VENV) .venv-* .peers build *.egg-info .mypy_cache .ruff_cache .pytest_cache
