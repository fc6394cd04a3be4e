# Two commands matter: `make demo` and `make test`. Each sets up what it needs.
SHELL := /bin/sh
.DEFAULT_GOAL := help

export SAM_CLI_TELEMETRY := 0
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export PYTHONPATH := $(CURDIR):$(CURDIR)/functions
PY := .venv/bin/python

.PHONY: help setup demo test lint types check-stack unit local bench lock clean

help: ## Show what can be made
	@awk -F':.*## ' '/^[a-z%-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Make .venv with Python 3.13 and all packages, pinned by hash
	@tools/setup.sh

demo: setup ## A real campaign, end to end, on this machine (KEEP=1 leaves it running)
	@$(PY) -m local.demo $(if $(KEEP),--keep)

test: setup lint types check-stack unit local ## All checks and tests: what CI runs

lint: setup
	ruff check .
	ruff format --check .

types: setup
	mypy functions local

check-stack: setup ## The template and the machines, by SAM's, CloudFormation's and ASL's own linters
	$(PY) tools/check_stack.py

unit: setup
	$(PY) -m pytest tests/unit tests/stack -n 2

local: setup ## Tests against the one-machine cloud
	$(PY) -m pytest tests/local -n 2 --dist loadfile -m "not own_cloud"
	$(PY) -m pytest tests/local -m own_cloud

bench: setup ## Speed: each prints its figures as ratios or beside a bare loop
	@for each in bench/bench_*.py; do echo "== $$each"; $(PY) $$each || exit 1; done

bench-%: setup ## One of them: bench-list, bench-send, …
	@$(PY) bench/bench_$*.py

COMPILE := uv pip compile --quiet --upgrade --generate-hashes --no-header --python-version 3.13

lock: setup ## Resolve the .in files anew; what runs in Lambda is what the tests ran with
	$(COMPILE) requirements-dev.in -o requirements-dev.txt
	$(COMPILE) -c requirements-dev.txt functions/requirements.in -o functions/requirements.txt
	$(COMPILE) -c requirements-dev.txt layers/list/requirements.in -o layers/list/requirements.txt
	$(COMPILE) tools/uv.in -o tools/uv.txt

clean: ## Remove everything that was made here
	rm -rf .venv .aws-sam .local tools/node_modules
