# From a fresh checkout this needs make, Python 3.10 or newer with venv, and a C++ compiler (without
# one the package runs on pure torch). Everything is installed into .venv, by stamp files: once, and
# again when the sources of the build change.

PYTHON ?= python3
JOBS ?= auto
DEMO_ARGS ?=
PYTEST_ARGS ?=
PYTHONS ?=
BENCH_ARGS ?=

BIN := .venv/bin
SOURCES := pyproject.toml setup.py $(wildcard csrc/*)

.DEFAULT_GOAL := help
.PHONY: help demo test lint types bench static-report docs docs-serve links doctor wheels packages
.PHONY: clean distclean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16
	@echo
	@echo "Variables: PYTHON=$(PYTHON) (makes .venv), JOBS=$(JOBS) (test processes, 4 at most),"
	@echo "           PYTEST_ARGS, BENCH_ARGS, DEMO_ARGS (handed on to pytest, to the benchmarks and"
	@echo "           to slipform demo),"
	@echo "           PYTHONS (versions for wheels and packages, such as \"3.10 3.13\"; all found)"

demo: .venv/train.stamp  ## train one small model with three losses and compare, in runs/demo
	$(BIN)/slipform demo $(DEMO_ARGS)

test: .venv/test.stamp  ## all tests
	$(BIN)/python -m pytest -n $(JOBS) --maxprocesses 4 $(PYTEST_ARGS)

lint: .venv/dev.stamp  ## ruff, clang-format and mypy, as the pre-commit hooks run them
	$(BIN)/pre-commit run --all-files --show-diff-on-failure

types: .venv/dev.stamp  ## mypy alone
	@mkdir -p build/types && ln -sfn ../../training build/types/slipform_training
	$(BIN)/mypy

bench: .venv/test.stamp  ## a few minutes of throughput, memory and accuracy beside peers
	$(BIN)/python -m pytest benchmarks -p no:xdist --benchmark-quiet $(BENCH_ARGS)

static-report: .venv/test.stamp  ## the Triton kernels as compiled for GPUs, without one
	$(BIN)/python -m benchmarks.static_report

docs: .venv/docs.stamp  ## the documentation site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

docs-serve: .venv/docs.stamp  ## the same on http://127.0.0.1:8000, rebuilt while pages are edited
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --watch README.md --watch slipform_kernels --watch training

links: .venv/test.stamp  ## ask for every external link of the documents, over the network
	cd tests && ../$(BIN)/python -m support.links

doctor: .venv/train.stamp  ## what is available on this machine, and how to get what is not
	$(BIN)/slipform doctor

wheels: .venv/dev.stamp  ## source distribution and a wheel for each Python found, in dist
	$(BIN)/python -m release.distributions $(PYTHONS)

packages: .venv/dev.stamp  ## both installed and tried in fresh environments of each Python found
	$(BIN)/python -m release.environments $(PYTHONS)

clean:  ## remove builds and caches
	rm -rf build dist ./*.egg-info slipform_kernels/_native*.so slipform_kernels/_build_info.json
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis .venv/*.stamp
	find slipform_kernels training tests benchmarks docs examples release -name __pycache__ -type d \
	    -exec rm -rf {} +

distclean: clean  ## remove the environment and the results of the demo as well
	rm -rf .venv runs

.venv/python.stamp:
	@command -v $(PYTHON) >/dev/null || { \
	    echo "make: no '$(PYTHON)' here; name a Python 3.10 or newer: make PYTHON=python3.11 ..." >&2; \
	    exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "make: '$(PYTHON)' is $$($(PYTHON) --version 2>&1), but 3.10 or newer is needed;" \
	         "name one: make PYTHON=python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "make: '$(PYTHON)' comes without venv; on Debian and Ubuntu: apt-get install python3-venv" >&2; \
	    exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@

.venv/%.stamp: .venv/python.stamp $(SOURCES)
	@echo "Installing slipform-kernels[$*] into .venv; with torch this takes minutes the first time."
	$(BIN)/python -m pip install --disable-pip-version-check -e ".[$*]"
	@$(BIN)/python -c 'from slipform_kernels import doctor; print(doctor.native_line())'
	@touch $@
