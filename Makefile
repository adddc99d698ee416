# Sonde: every command of daily work. `make help` lists them.
# Needs make and Python 3.11 or newer; all else goes into .venv in this folder.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
WORKERS ?= 2
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export NO_MKDOCS_2_WARNING := 1

.PHONY: help setup sandbox engine demo test test-slow test-docker check fmt docs bench

help: ## Show this list
	@echo "Sonde: see inside an agent, step by step"
	@grep -hE '^[a-z-]+:.*## ' Makefile | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

setup: $(VENV)/.installed ## Prepare .venv (every other target does this by itself)

demo: $(VENV)/.installed ## Run a small Twenty Questions study on the embedded model and write its report
	@$(BIN)/sonde study 20q

test: $(VENV)/.installed sandbox ## Run the fast tests
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

test-slow: $(VENV)/.installed-swebench sandbox engine ## Run the tests that need minutes or the embedded model
	@SONDE_SHAPES=off $(BIN)/python -m pytest -q -m slow -n $(WORKERS) --dist worksteal --durations=15

test-docker: $(VENV)/.installed-swebench sandbox engine ## Run those of the slow tests that need a Docker engine
	@SONDE_SHAPES=off $(BIN)/python -m pytest -q -m docker -n $(WORKERS) --dist worksteal --durations=15

check: $(VENV)/.installed ## Lint, format, types and import contracts
	@echo "ruff check";   $(BIN)/ruff check --quiet .
	@echo "ruff format";  $(BIN)/ruff format --quiet --check . || { echo "Not formatted: run 'make fmt'."; exit 1; }
	@echo "pyright";      $(BIN)/pyright
	@echo "import rooms"; out="$$($(BIN)/lint-imports --no-cache 2>&1)" || { echo "$$out"; exit 1; }
	@echo "All checks passed."

fmt: $(VENV)/.installed ## Format the code and apply safe fixes
	@$(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/ruff format .

docs: $(VENV)/.installed-docs ## Build the documentation into site/
	@$(BIN)/python -m mkdocs build --quiet --strict
	@echo "Documentation: site/index.html"

bench: $(VENV)/.installed ## Run every benchmark, one after another
	@shopt -s nullglob; failed=0; \
	for file in benchmarks/bench_*.py; do \
		echo "== $$file"; $(BIN)/python "$$file" || { echo "failed: $$file"; failed=1; }; \
	done; exit $$failed

# A working interpreter is looked for by running it, because a name on the PATH may be an empty shim.
$(BIN)/python:
	@python=""; \
	for name in $${PYTHON:-} python3.11 python3; do \
		if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then python="$$name"; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
		echo "Sonde needs Python 3.11 or newer, as python3.11 or python3 on the PATH (or: make PYTHON=/path/to/python)." >&2; exit 1; \
	fi; \
	if ! "$$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then \
		version="$$("$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"; \
		echo "$$python cannot make virtual environments: its venv module lacks ensurepip." >&2; \
		echo "On Debian or Ubuntu: sudo apt install python$$version-venv" >&2; exit 1; \
	fi; \
	echo "Making $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv $(VENV)

# Agents' commands run in bubblewrap, which is a Debian package and not a Python one.
sandbox:
	@if ! command -v bwrap >/dev/null; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			echo "Installing bubblewrap"; \
			{ apt-get install -y -qq bubblewrap || { apt-get update -qq && apt-get install -y -qq bubblewrap; }; } >/dev/null; \
		else \
			echo "bubblewrap is missing, so the sandbox's tests are skipped. Install it: sudo apt install bubblewrap"; \
		fi; \
	fi

# The tests use the Docker engine that answers, or start their own (tests/docker_engine.py), which root can have from Debian.
engine:
	@if ! docker version >/dev/null 2>&1; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			if ! command -v dockerd >/dev/null || ! command -v debootstrap >/dev/null; then \
				echo "Installing docker.io and debootstrap"; \
				install="apt-get install -y -qq docker.io debootstrap"; \
				{ $$install || { apt-get update -qq && $$install; }; } >/dev/null; \
			fi; \
		else \
			echo "No Docker engine answers, so the Docker sandbox's tests are skipped. Start one, or: sudo apt install docker.io"; \
		fi; \
	fi

# torch goes first and pinned: left to a range, pip may choose a build with gigabytes of accelerator libraries.
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Sonde into $(VENV) (a few minutes the first time)"
	@$(PIP) torch
	@$(PIP) -e ".[all,dev]"
	@$(PIP) --no-deps mini-swe-agent python-dotenv  # its agent class needs no more; with all it asks for it is 700 MB
	@touch $@

# SWE-bench's own harness judges in some of the slow tests, and in them alone.
$(VENV)/.installed-swebench: $(VENV)/.installed
	@echo "Installing SWE-bench's harness (489 MB)"
	@$(PIP) -e ".[swebench]"
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	@echo "Installing the documentation tools"
	@$(PIP) -e ".[docs]"
	@touch $@
