# The project's own commands. Each sets up what it needs: `make test` works on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help setup check test format clean

help: ## Say what there is
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(BIN)/.installed: requirements.lock pyproject.toml
	@echo "setup: virtual environment and dependencies"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $@

setup: $(BIN)/.installed ## Install dependencies, find or build the control planes' programs
	@$(BIN)/tensile sandbox prepare

check: $(BIN)/.installed ## Lint, types, layers, house limits
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/house.py

test: setup ## Every test, on real control planes
	$(BIN)/pytest

format: $(BIN)/.installed ## Put the code in form
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .

clean: ## Remove what setup made here
	rm -rf .venv build *.egg-info
