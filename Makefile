# The project's own commands. Each sets up what it needs: `make test` works on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help setup demo wheel sdist sbom dist notes image docs check unit test touched test-all bench faults model behaviour mutation \
	packaging conformance keep generate format clean

help: ## Say what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(BIN)/.installed: requirements.lock pyproject.toml
	@echo "setup: virtual environment (step 1 of 3)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "setup: $$(grep -c '^[a-z].*==' requirements.lock) Python packages (step 2 of 3, about a minute)"
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@echo "setup: tensile itself (step 3 of 3)"
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@$(BIN)/python -m compileall -q tensile
	@touch $@

setup: $(BIN)/.installed ## Install dependencies, find or build the control planes' programs
	@$(BIN)/tensile sandbox prepare

demo: setup ## Clusters, the engine and a workload, shown with kubectl; leaves nothing behind
	@$(BIN)/tensile demo

# A build starts from a copy, so that what an earlier one left here never gets into it; modes and dates are set, so that
# the same commit gives the same bytes on every machine.
DIST ?= dist
COPY = build/$@
DATE = $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2>/dev/null),1577836800)
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' tensile/__init__.py)
STEM = tensile_kube-$(VERSION)

define copy
@rm -rf $(COPY) && mkdir -p $(COPY) $(DIST) && cp -R LICENSE README.md pyproject.toml tensile $(COPY)
@find $(COPY) -name __pycache__ -prune -exec rm -rf {} + && chmod -R u=rwX,go=rX $(COPY)
endef

wheel: $(BIN)/.installed ## Build the wheel into dist/
	$(copy)
	@umask 022 && SOURCE_DATE_EPOCH=$(DATE) $(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps \
	--no-build-isolation --wheel-dir $(DIST) $(COPY)
	@echo "$(DIST)/$(STEM)-py3-none-any.whl"

# setuptools writes the present time into an archive and the files' dates, so it is packed again.
sdist: $(BIN)/.installed ## Build the source distribution into dist/
	$(copy)
	@cd $(COPY) && $(abspath $(BIN))/python -c "import setuptools.build_meta as b; b.build_sdist('.')" > /dev/null
	@tar -C $(COPY) -xzf $(COPY)/$(STEM).tar.gz && chmod -R u=rwX,go=rX $(COPY)/$(STEM)
	@tar -C $(COPY) --sort=name --format=ustar --owner=0 --group=0 --numeric-owner --mtime=@$(DATE) -cf - $(STEM) \
	| gzip -9n > $(DIST)/$(STEM).tar.gz
	@echo "$(DIST)/$(STEM).tar.gz"

# The list is read from an environment with what the program needs and nothing else, by a tool with packages of its own.
# The tool does not look for a version that pyproject.toml only refers to.
SBOM := build/sbom-venv
RUN := build/run-venv
INSTALL = $(SBOM)/bin/pip --python $(RUN)/bin/python install --quiet --disable-pip-version-check --no-compile --no-deps

$(SBOM)/.installed: bench/packaging/requirements.txt
	@echo "sbom: virtual environment and packages"
	@test -x $(SBOM)/bin/pip || $(PYTHON) -m venv $(SBOM)
	@$(SBOM)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r bench/packaging/requirements.txt
	@touch $@

sbom: $(SBOM)/.installed wheel ## List the packages that the wheel is tested with, as CycloneDX JSON in dist/
	@rm -rf $(RUN) && $(PYTHON) -m venv --without-pip $(RUN)
	@$(INSTALL) --require-hashes -r requirements.run.lock
	@$(INSTALL) --no-index $(DIST)/$(STEM)-py3-none-any.whl
	@sed 's/^dynamic = .*/version = "$(VERSION)"/' pyproject.toml > $(RUN)/pyproject.toml
	@SOURCE_DATE_EPOCH=$(DATE) $(SBOM)/bin/cyclonedx-py environment $(RUN)/bin/python --mc-type application \
	--pyproject $(RUN)/pyproject.toml --output-reproducible --output-format JSON --output-file $(DIST)/$(STEM).cdx.json
	@echo "$(DIST)/$(STEM).cdx.json"

dist: wheel sdist sbom ## All that a release consists of, with checksums, into dist/
	@cd $(DIST) && sha256sum $(STEM)-py3-none-any.whl $(STEM).tar.gz $(STEM).cdx.json > SHA256SUMS
	@echo "$(DIST)/SHA256SUMS"

notes: ## Print what the changelog says of this version; fails if it says nothing, or if TAG is of another version
	@[ "$(or $(TAG),v$(VERSION))" = "v$(VERSION)" ] || { echo "notes: $(TAG) is not v$(VERSION)" >&2; exit 1; }
	@awk '/^## / { shown = index($$0, "## [$(VERSION)] - ") == 1 } shown { print; found = 1 } END { exit !found }' \
	CHANGELOG.md

# podman and buildah take the same words: `make image BUILDER=buildah`.
BUILDER ?= docker

image: ## Build the container image tensile-kube:VERSION
	$(BUILDER) build --build-arg VERSION=$(VERSION) --build-arg REVISION=$(shell git rev-parse HEAD 2>/dev/null) \
	--build-arg SOURCE_DATE_EPOCH=$(DATE) $(if $(BASE),--build-arg BASE=$(BASE)) --tag tensile-kube:$(VERSION) .

# The site has packages of its own, which nothing else needs. MkDocs warns of what the theme's authors plan; not shown.
SITE ?= build/docs
DOCS := build/docs-venv

$(DOCS)/.installed: docs/site/requirements.txt
	@echo "docs: virtual environment and packages"
	@test -x $(DOCS)/bin/pip || $(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r docs/site/requirements.txt
	@touch $@

docs: $(DOCS)/.installed ## Build the documentation site into build/docs; it needs no network when it is read
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet --strict --site-dir $(abspath $(SITE))
	@echo "$(SITE)/index.html; with search: python3 -m http.server --directory $(SITE)"

check: $(BIN)/.installed ## Lint, types, layers, house limits
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/house.py

# Tests start the program many times, and pytest rewrites each file of tests: both take far longer where Python keeps
# nothing of what it compiles, as images of containers have it.
unit test touched test-all: export PYTHONDONTWRITEBYTECODE =

# How long each test took stays in build/tests, in the form that CI servers read.
TEST = $(BIN)/pytest --no-loadscope-reorder --durations=25 --durations-min=1 --junitxml=build/tests/$@.xml

# Half of the time these tests wait, so there are more processes than cores. Each collects its share only.
unit: $(BIN)/.installed ## Tests of decisions and protocols, which start neither control planes nor the program
	$(TEST) -n 6 --shares -m "not real and not slow and not process"

test: setup ## Those, and the engine on real control planes, in one sandbox
	$(TEST) -n 3 -m "not slow"

touched: setup ## Of what test-all adds to test, what a change since BASE touches; BASE is where the branch left origin/main
	@tests=$$($(BIN)/python tests/kit/touched.py); [ -z "$$tests" ] || $(TEST) -n 2 -m slow $$tests || [ $$? -eq 5 ]

test-all touched: export TENSILE_THOROUGH = 1
# The release of Kubernetes beside the pinned one on which the main job is tested (tests/e2e/test_older_kubernetes.py).
# Where it cannot be built, those tests are skipped, with the reason.
OLDER = $(shell sed -n 's/^OLDER = "\(.*\)"/\1/p' tests/e2e/test_older_kubernetes.py)

test-all: setup ## Every test: also sandboxes of their own, campaigns, documentation, demo, installation (30 min)
	-TENSILE_KUBERNETES_VERSION=$(OLDER) $(BIN)/tensile sandbox prepare
	$(TEST) -n 2

# What takes hours, a target for each folder of bench/. PODS, ROUNDS and SEED can be given to the first two, e.g.
# `make bench PODS=200 ROUNDS=1`; a run writes into build/results.
GIVEN = $(if $(PODS),--pods $(PODS)) $(if $(ROUNDS),--rounds $(ROUNDS))
GREAT := --megabytes 1000 --only exec_out exec_in --result streams-1000
each = for one in $(1); do $(BIN)/python -m bench.$$one || failed=1; done

bench: setup ## How fast pods come and go, against a bare loop and one cluster alone (130 min)
	@failed=0; for pods in $(or $(PODS),1000 2000); do \
	$(BIN)/python -m bench.speed.makespan --pods $$pods $(if $(ROUNDS),--rounds $(ROUNDS)) || failed=1; done; \
	for one in latency streams "streams $(GREAT)" follow steady firstsync isolation services webhook; do \
	$(BIN)/python -m bench.speed.$$one $(if $(ROUNDS),--rounds $(ROUNDS)) || failed=1; done; \
	$(call each,speed.bad_files speed.extender); exit $$failed

faults: setup ## Crashes, outages, name conflicts, refusals, two engines, wrong watches, hostile lowers, every alert
	@failed=0; for trial in crash outage unreachable pause credentials name_conflicts; do \
	$(BIN)/python -m bench.faults.$$trial $(GIVEN) $(if $(SEED),--seed $(SEED)) || failed=1; done; \
	$(call each,$(addprefix faults.,every_write watches denials two_engines tokens replicas kubelet_api drain \
	webhook_rollout hostile alert_rules)); \
	exit $$failed

model: setup ## Random sequences of writes, faults and hostile tenants, compared with a model, in memory and on real clusters
	@failed=0; $(call each,$(addprefix model.,sequences sequences.real sequences.races sequences.pairs hostility \
	hostility.real)); exit $$failed

behaviour: setup ## Virtual nodes, plan and doctor compared with a real node, a real scheduler and what then happens
	@failed=0; $(call each,$(addprefix conformance.,kubectl top dryrun placement burst preemption predictions costs \
	stale diagnoses)); exit $$failed

mutation: setup ## Bugs put into the engine and permissions removed from it: a test has to fail for each
	@failed=0; $(call each,mutation.bugs mutation.rights); exit $$failed

keep: ## Take the results of build/results into bench/results, and their figures into the pages
	@cp build/results/*.json bench/results/ && $(BIN)/python -m bench.speed.readme

packaging: setup ## The wheel and the image, each in a place of its own
	@failed=0; $(call each,packaging.install packaging.image); exit $$failed

# FOCUS, ONLY (direct or through), RUNS, PROCS and SERIAL can be given, e.g. `make conformance FOCUS=StatefulSet`.
conformance: setup ## Kubernetes' own conformance tests, on a real node and through the virtual node before it (1 h)
	@$(BIN)/python -m bench.conformance $(if $(FOCUS),--focus '$(FOCUS)') $(if $(ONLY),--only $(ONLY)) \
	$(if $(RUNS),--runs $(RUNS)) $(if $(PROCS),--procs $(PROCS)) $(if $(SERIAL),--serial)

generate: $(BIN)/.installed ## Write the generated pages and tables again: topology, commands, conditions, licences, pictures
	@for page in topologypage commandspage conditionspage troubleshootingpage rightstable kubelet_rights \
	licencespage; do \
	PYTHONPATH=tests/kit $(BIN)/python -m $$page || exit 1; done
	@for picture in clusters demo; do $(BIN)/python -m docs.pictures.$$picture || exit 1; done

format: $(BIN)/.installed ## Put the code in form
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .

clean: ## Remove what setup made here
	rm -rf .venv build dist *.egg-info
