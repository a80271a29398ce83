# Every target sets up what it needs: a virtual environment in .venv with rescind installed from this tree.
# PYTHON=python3.12 chooses the interpreter for a new .venv; ARGS="..." goes to the command being run.

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint bench docs clean

BIN := .venv/bin
READY := .venv/ready
ARGS ?=

# Without PYTHON, python3 is taken when it is new enough, otherwise the first newer one that runs.
PYTHONS := $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.14)
NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
CORES := -c 'import os; print(max(2, os.cpu_count() or 2))'

# Two makes in one tree must not fill .venv at the same time; where flock is missing, they are trusted not to.
LOCKED := $(if $(shell command -v flock 2>/dev/null),flock Makefile)

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-6s  %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo '  ARGS="..." is handed on to demo, test and bench, as in: make test ARGS="-k cancel -x"'
	@echo '  PYTHON=... chooses the interpreter for a new .venv (3.11 or newer)'

demo: $(READY) ## watch jobs being cancelled, in under 20 seconds
	@$(BIN)/rescind demo $(ARGS)

test: lint ## lint, then every test
	@$(BIN)/pytest -q -n "$$($(BIN)/python $(CORES))" $(ARGS)

lint: $(READY) ## style, types and the direction of imports
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo 'Not formatted; run: $(BIN)/ruff format .' >&2; exit 1; }
	@$(BIN)/mypy
	@report=$$($(BIN)/lint-imports --no-logo) || { echo "$$report" >&2; exit 1; }; \
	  echo "$$report" | grep '^Contracts:'

bench: $(READY) ## measure, beside other queues
	@$(BIN)/python -m bench $(ARGS)

docs: $(READY) ## write the pages that come from the code
	@$(BIN)/python docs/render.py

clean: ## remove .venv and everything else that can be made again
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	@find src tests bench docs -name __pycache__ -type d -prune -exec rm -rf {} +

# The outer make takes the lock and asks again; the inner one works, unless another make did so meanwhile.
ifndef HAS_LOCK
$(READY): pyproject.toml constraints.txt
	@$(LOCKED) $(MAKE) -s HAS_LOCK=1 $(READY)
else
$(READY): pyproject.toml constraints.txt
	@$(BIN)/python $(NEW_ENOUGH) 2>/dev/null || { \
	  found=; for python in $(PYTHONS); do \
	    if $$python $(NEW_ENOUGH) 2>/dev/null; then found=$$python; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo 'rescind needs Python 3.11 or newer; none of these is: $(PYTHONS).' >&2; \
	    echo 'Install one, or name it: make PYTHON=/path/to/python3.12' >&2; exit 1; \
	  fi; \
	  echo "Making .venv with $$($$found --version)"; \
	  $$found -m venv --clear .venv || { \
	    rm -rf .venv; \
	    echo 'No virtual environment could be made; on Debian: apt install python3-venv' >&2; exit 1; \
	  }; \
	}
	@echo 'Installing rescind and its tools into .venv'
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
endif
