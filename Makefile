# Everything runs inside .venv, which `make setup` fills with the versions pinned in constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --progress-bar off

# the theme announces its successor with every build
export NO_MKDOCS_2_WARNING := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test chaos check-results fuzz bench docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/stamp ## create .venv with everything needed here

.venv/stamp: pyproject.toml constraints.txt
	@test -x $(BIN)/python || { echo "creating .venv"; $(PYTHON) -m venv .venv; }
	@echo "installing torch"
	@$(PIP) -c constraints.txt torch
	@echo "installing capsroute and its tools"
	@$(PIP) -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup ## render toys, train the paper's network on them, and write the report
	@$(BIN)/capsroute train toys --report

test: setup check-results ## formatting, lint, types, tests, stored results and the docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto
	$(BIN)/mkdocs build --quiet --strict

chaos: setup ## kill, starve, double and damage training runs for some minutes, and compare what they leave
	OMP_NUM_THREADS=1 PYTHONPATH=. $(BIN)/python tests/lab/chaos.py --rounds 25
	OMP_NUM_THREADS=1 PYTHONPATH=. $(BIN)/python tests/lab/chaos.py --rounds 3 --work render

fuzz: setup ## try 20,000 random cases of routing
	OMP_NUM_THREADS=1 $(BIN)/pytest -q tests/routing/test_fuzz.py --fuzz 20000

check-results: setup ## compare tables in README and docs with the stored measurements
	$(BIN)/python benchmarks/report.py --check
	$(BIN)/python results/report.py --check
	$(BIN)/python benchmarks/heads.py --check
	$(BIN)/python benchmarks/heads_noise.py --check
	$(BIN)/python benchmarks/texts.py --check
	$(BIN)/python benchmarks/lm.py --check
	$(BIN)/python benchmarks/promises.py --check

bench: setup ## measure time and memory on this CPU, then rewrite tables and plots
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/report.py

docs: setup ## build the site into site/
	$(BIN)/mkdocs build --strict

clean: ## remove .venv and everything built
	rm -rf .venv site build dist .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
