# Two commands do everything: `make reproduce` and `make test`. Both set up what they need.
SCALE ?= desk
CORES ?= $(shell nproc)
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: help env reproduce front reproduce-ray record-links test lint clean

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | column -t -s '	'

env: $(VENV)/.installed  ## the environment, in .venv

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "slowlink needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --editable .
	touch $@

reproduce: env  ## run everything (SCALE=smoke|desk|paper) and say where the report is
	$(BIN)/snakemake --cores $(CORES) --config scale=$(SCALE)
	@echo "report: $(CURDIR)/reports/html/$(SCALE)/index.html"

front: reproduce  ## the picture and the table at the head of the README, from a whole run
	$(BIN)/python -m workflow.front results/$(SCALE)

reproduce-ray: $(VENV)/.installed-extras  ## the policies on real workers, Ray actors; installs extras
	$(BIN)/snakemake --cores $(CORES) lpsp_ray --config scale=$(SCALE)

$(VENV)/.installed-extras: $(VENV)/.installed
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --editable '.[ray,browser]'
	touch $@

LINKS := results/paper/geomx/emulated.parquet
RECORD := data/recorded/geomx_emulated.json
record-links: env  ## every cell of GeoMX's tables on emulated links (15 min), kept in data/recorded
	$(BIN)/snakemake --cores $(CORES) --config scale=paper -- $(LINKS)
	$(BIN)/python -c 'from workflow.documents.geomx.links import record; record("$(LINKS)", "$(RECORD)", "make record-links")'

lint: env  ## formatters, linter and the one-way arrows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow/rules
	$(BIN)/lint-imports --no-cache

test: lint $(VENV)/.installed-extras  ## checks and tests, those on Ray and in a browser too
	$(BIN)/python -m pytest -n auto --dist loadfile --max-worker-restart 0 -m "not alone"
	$(BIN)/python -m pytest -m alone

clean:  ## results and reports, not the data
	rm -rf results logs reports/html .snakemake
