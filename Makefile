# `make demo` and `make test` need Python 3.10 or newer, nothing else: they set themselves up in .venv.
#
#     make demo ARGS=--keep            options go on to the program
#     make demo STORE=gcs              Google Cloud Storage in place of S3
#     make test ARGS="-n 0 tests/unit"  some tests, in one process
#     PYTHON=python3.12 make test      another interpreter than the machine's python3

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test lint check bench faults mutants docs clean
SHELL := /bin/sh
export PYTHON
unexport MAKEFLAGS MFLAGS

RUN := .venv/bin/python
STORE := s3
# Two more than cores, at most four: tests wait two fifths of their time for servers and processes.
WORKERS := --numprocesses=$(shell cores=$$(nproc); echo $$((cores < 2 ? 3 : 4))) --dist=worksteal
AGAIN := --reruns=1 -rR

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1	/p' Makefile

demo: ## flights from a local S3 server into Iggy, end to end; STORE=gcs for GCS
	@case "$(STORE)" in s3|gcs) ;; *) echo "error: STORE is s3 or gcs, not $(STORE)" >&2; exit 2;; esac
	@scripts/setup demo
	@$(RUN) -m $(STORE)_source demo $(ARGS)

test: ## all tests
	@scripts/setup test
	@$(RUN) -m pytest $(WORKERS) $(AGAIN) $(ARGS)

lint: ## style, types, words, and who may import whom
	@scripts/setup lint
	@$(RUN) -m ruff check --quiet .
	@$(RUN) -m ruff format --check --quiet . || { echo "error: run ruff format on what is listed above" >&2; exit 1; }
	@$(RUN) -m mypy --no-error-summary
	@$(RUN) -m codespell_lib README.md CHANGELOG.md SECURITY.md docs examples framework transformers s3_source gcs_source benchmarks scripts
	@$(RUN) -m codespell_lib -D docs/development/vocabulary.txt README.md SECURITY.md docs/README.md docs/glossary.md docs/guides docs/tutorials docs/concepts docs/development examples framework transformers s3_source gcs_source benchmarks scripts
	@said=$$($(RUN) -c 'from importlinter.cli import lint_imports_command as run; run()') || { echo "$$said" >&2; exit 1; }
	@echo "lint: style, types, words and imports are as they should be"

check: lint test ## lint, then test

bench: ## the benchmarks, as a table
	@scripts/setup test
	@$(RUN) -m benchmarks $(ARGS)

faults: ## kills and broken connections by the hundred, and a checker that counts
	@scripts/setup test
	@$(RUN) -m tests.faults $(ARGS)

mutants: ## mistakes planted in the core, which the tests must find; ARGS="--sample 100" for a few
	@scripts/setup mutants
	@$(RUN) scripts/mutants.py $(ARGS)

docs: ## the reference pages that are written from the code
	@scripts/setup test
	@$(RUN) docs/generate.py

clean: ## removes .venv, .python, the demo's folder and every cache
	@rm -rf .venv .python .setup.log .demo .demo-gcs .faults .mutants .mutated .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
