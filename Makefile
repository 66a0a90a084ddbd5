# Two commands do everything: `make reproduce` and `make test`. Both set up what they need.
SCALE ?= desk
CORES ?= $(shell nproc)
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# Hundreds of processes import the same files: none compiles them anew, whatever is usual here.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help env ns3 lock reproduce front reproduce-ray record-links record-ray record-checked
.PHONY: record-survival record-crowd record-dds
.PHONY: lint test test-fast docs clean

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | column -t -s '	'

env: $(VENV)/.installed  ## the environment, in .venv

$(VENV)/.installed: pyproject.toml requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "slowlink needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python .ci/install.py
	touch $@

# $(VENV)/.installed-dev and others: what an extra of pyproject.toml adds.
$(VENV)/.installed-%: $(VENV)/.installed
	$(BIN)/python .ci/install.py $(subst -, ,$*)
	touch $@

ns3: $(VENV)/.installed-ns3  ## ns-3 for RAT's packet check, which needs a C++ compiler

lock: $(VENV)/.installed-install  ## requirements.lock and environment.yml anew from pyproject.toml
	$(BIN)/python .ci/lock.py

reproduce: env  ## run everything (SCALE=smoke|desk|paper) and say where the report is
	$(BIN)/snakemake --cores $(CORES) --config scale=$(SCALE)
	@echo "report: $(CURDIR)/reports/html/$(SCALE)/index.html"

front: reproduce  ## the head of the README, and how long jobs take, from a whole run
	$(BIN)/python -m slowlink.workflow.front results/$(SCALE)
	$(BIN)/python -m slowlink.workflow.progress logs/$(SCALE)

reproduce-ray: $(VENV)/.installed-ray  ## LPSP's policies on real workers that Ray places; installs Ray
	$(BIN)/snakemake --cores $(CORES) lpsp_ray --config scale=$(SCALE)

LINKS := results/paper/geomx/emulated.parquet
RECORD := data/recorded/geomx_emulated.json
record-links: env  ## every cell of GeoMX's tables on emulated links (15 min), kept in data/recorded
	$(BIN)/snakemake --cores $(CORES) --config scale=paper -- $(LINKS)
	$(BIN)/python -c 'from slowlink.workflow.documents.geomx.links import record; record("$(LINKS)", "$(RECORD)", "make record-links")'

record-ray: $(VENV)/.installed-ray  ## LPSP's policies on real workers (2 min), kept in data/recorded
	$(BIN)/python -c 'from slowlink.workflow.documents.lpsp.experiments import record; record("make record-ray")'

record-checked: env  ## advice held against real steps, what is not recorded yet (20 min), kept in data/recorded
	$(BIN)/python -c 'from slowlink.workflow.matrix.checked import record; record()'

record-survival: env  ## live runs that are disturbed, what is not recorded yet (30 min), kept in data/recorded
	$(BIN)/python -c 'from slowlink.workflow.matrix.survival import record; record()'

record-dds: env  ## DDS's live runs of its length, what is not recorded yet (65 min), kept in data/recorded
	$(BIN)/python -c 'from slowlink.workflow.documents.dds.recorded import record; record()'

record-crowd: env  ## live runs of up to 100 members, what is not recorded yet (10 min), kept in data/recorded
	$(BIN)/python -c 'from slowlink.workflow.matrix.crowd import record; record()'

# The package as a wheel has it, with the rooms inside, since the linter follows no other way to them.
WHOLE := .cache/package
ROOMS := methods testbed reports workflow

lint: $(VENV)/.installed-dev  ## formatters, linter and the one-way arrows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow/rules
	rm -rf $(WHOLE) && mkdir -p $(WHOLE) && cp -r slowlink $(WHOLE) && cp -r $(ROOMS) $(WHOLE)/slowlink
	cd $(WHOLE) && $(CURDIR)/$(BIN)/lint-imports --no-cache --config $(CURDIR)/pyproject.toml

# Tests beside each other in the order that tests/conftest.py gives them.
BESIDE := $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --max-worker-restart 0
# The packet check is tested where a C++ compiler works.
COMPILES = $(shell echo 'int main() {}' | $(CXX) -x c++ -o /dev/null - 2>/dev/null && echo yes)

test: lint $(VENV)/.installed-dev-ray-browser-docs $(if $(COMPILES),ns3)  ## checks and tests, those on Ray, in a browser and of the site too
	$(BESIDE) -m "not alone"
	$(BIN)/python -m pytest -m alone

test-fast: $(VENV)/.installed-dev  ## the tests that start nothing and take no time, for the inner loop
	$(BESIDE) -n $(CORES) -m "not alone and not slow"

docs: $(VENV)/.installed-docs  ## the site of README, docs and docstrings, in .cache/site
	$(BIN)/python -m sphinx -q -W --keep-going -d .cache/doctrees -c docs . .cache/site
	@echo "site: $(CURDIR)/.cache/site/index.html"

clean:  ## results and reports, not the data
	rm -rf results logs reports/html .snakemake
