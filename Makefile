# The project's own commands. Each sets up what it needs: `make test` works on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help setup demo check test bench faults format clean

help: ## Say what there is
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(BIN)/.installed: requirements.lock pyproject.toml
	@echo "setup: virtual environment and dependencies"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@$(BIN)/python -m compileall -q tensile
	@touch $@

setup: $(BIN)/.installed ## Install dependencies, find or build the control planes' programs
	@$(BIN)/tensile sandbox prepare

demo: setup ## Clusters, the engine and a workload, shown with kubectl; leaves nothing behind
	@$(BIN)/tensile demo

check: $(BIN)/.installed ## Lint, types, layers, house limits
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/house.py

test: setup ## Every test, on real control planes; two processes share the work
	$(BIN)/pytest -n 2 --no-loadscope-reorder

# PODS, ROUNDS and SEED can be given to both, e.g. `make bench PODS=200 ROUNDS=1`; results are kept in bench/results.
GIVEN = $(if $(PODS),--pods $(PODS)) $(if $(ROUNDS),--rounds $(ROUNDS))
GREAT := --megabytes 1000 --only exec_out exec_in --result streams-1000

bench: setup ## How fast pods come and go, against a bare loop and one cluster alone; writes the README's table (130 min)
	@failed=0; for pods in $(or $(PODS),1000 2000); do \
	$(BIN)/python -m bench.makespan --pods $$pods $(if $(ROUNDS),--rounds $(ROUNDS)) || failed=1; done; \
	for each in latency streams "streams $(GREAT)" follow steady firstsync isolation services webhook; do \
	$(BIN)/python -m bench.$$each $(if $(ROUNDS),--rounds $(ROUNDS)) || failed=1; done; \
	$(BIN)/python bench/bad_files.py || failed=1; $(BIN)/python -m bench.extender || failed=1; \
	$(BIN)/python -m bench.readme; exit $$failed

faults: setup ## Crashes, outages, strangers, refusals, two engines, watches that lie, on clusters of their own (90 min)
	@failed=0; for trial in crash outage away pause credentials strangers; do \
	$(BIN)/python -m bench.$$trial $(GIVEN) $(if $(SEED),--seed $(SEED)) || failed=1; done; \
	for trial in everywrite watches denials twins tokens top likeness placement replicas sequences sequences.real \
	sequences.races sequences.pairs guarded drain burst diagnoses predictions kubectl bugs rights; do $(BIN)/python -m \
	bench.$$trial || failed=1; done; exit $$failed

format: $(BIN)/.installed ## Put the code in form
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .

clean: ## Remove what setup made here
	rm -rf .venv build *.egg-info
