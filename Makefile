# Every target sets up what it needs in .venv, from nothing; `make` alone lists them.

VENV  := .venv
READY := $(VENV)/.ready
BIN   := $(VENV)/bin

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test lint format docs soak clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## train, register, serve and prove a fraud model beside a hand-written service
	@$(BIN)/tailproof demo --beside examples/handmade.py

setup: $(READY) ## only create .venv with everything in it

test: lint ## format, lint, types and tests (not the soak tests)
	@echo "[tests]"
	@$(BIN)/python -m pytest -q -m "not soak"

lint: $(READY)
	@echo "[format, lint, types]"
	@$(BIN)/ruff format --check --quiet . || { echo "run: make format" >&2; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy

format: $(READY) ## rewrite the code to the project's format
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix .

docs: $(READY) ## rewrite the generated parts of the documents
	@$(BIN)/python -m tailproof.reference README.md docs/configuration.md

soak: $(READY) ## the full figures of every promise; takes minutes
	@$(BIN)/python -m pytest -q -m soak

clean: ## remove .venv, caches and what the demo left
	@rm -rf $(VENV) .tailproof .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The first Python that is new enough and can make environments. PYTHON=... chooses another.
$(READY): pyproject.toml
	@for python in $(PYTHON) python3 python3.13 python3.12 python3.11 python3.14 python; do \
	  "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
	    2>/dev/null && break; python=; \
	done; \
	if [ -z "$$python" ]; then echo "no Python >= 3.11 with venv found" >&2; exit 1; fi; \
	$(BIN)/python -m pip --version >/dev/null 2>&1 || "$$python" -m venv --clear $(VENV)
	@echo "[set-up] $$($(BIN)/python --version) in $(VENV)"
	@echo "[set-up] installing packages (a minute or two the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(READY)
