# Everything runs in .venv, which scripts/setup.sh makes on first use and refreshes when it is out of date.
PYTHON ?= python3
export PYTHON

PY := .venv/bin/python

# Another environment must not leak into this one, and compiled modules are kept: without them each
# start of the engine takes twice as long.
unexport PYTHONDONTWRITEBYTECODE PYTHONHOME PYTHONPATH VIRTUAL_ENV

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types format bench schemas docs clean
# Two goals at once would share .venv and the cores, and mix their output.
.NOTPARALLEL:

help: ## list the goals
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: ## make or refresh .venv (a second when nothing changed)
	@bash scripts/setup.sh

demo: setup ## convert, prove and package the tiny example pair
	@$(PY) examples/demo.py

# pytest comes last, so that its closing line ends the output.
test: lint types ## lint, types and all tests
	@.venv/bin/pytest

lint: setup ## ruff: rules and formatting
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

types: setup ## mypy --strict on the installed wheel
	@bash scripts/typecheck.sh

format: setup ## apply ruff's fixes and formatting
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

bench: setup ## speed and memory against cp and speculators convert
	@$(PY) benchmarks/run.py

schemas: setup ## write schemas/*.schema.json anew from the models
	@$(PY) -m dflash_pack.schemas

docs: setup ## write the table of docs/formats.md anew
	@$(PY) tests/formats_table.py

clean: ## remove .venv and caches, nothing else
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dflash_pack.egg-info
	@find dflash_pack converters schemas tests examples benchmarks -type d -name __pycache__ -prune -exec rm -rf {} +
