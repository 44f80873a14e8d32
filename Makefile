# Every target needs only Python >= 3.10 (no root, torch or GPU) and creates a virtual environment in .venv.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.10; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
# The demo needs the package only, without the developers' tools.
DEMO := .venv-demo
# Most slow tests wait for processes that they started, so more tests than cores can run at once.
JOBS ?= 4

.DEFAULT_GOAL := help
.PHONY: help demo test cuda check fix bench

help: ## print this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 8

demo: $(DEMO)/installed ## run two simulated ranks, a real sidecar and a live table on any machine; ARGS="--duration 20s --once"
	@trap '' INT; $(DEMO)/bin/gpufrag demo $(ARGS) || [ $$? -eq 130 ]

test: $(STAMP) ## run the test suite, without a GPU; ARGS="tests/model -k heap" selects tests, JOBS=0 uses one process
	@$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile $(ARGS)

cuda: $(STAMP) ## run the agent's tests in the CUDA build of torch, without a GPU; downloads torch once; TORCH=2.11.0 selects a release
	@PYTHONPATH=tests $(BIN)/python -m fake_cuda run $(if $(TORCH),--torch $(TORCH)) -- $(abspath $(BIN)/python) -m pytest -m cuda tests/cuda_torch $(ARGS)

check: $(STAMP) ## run CI's other checks: lint, format, types, import direction
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

fix: $(STAMP) ## apply automatic lint and format fixes
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(STAMP) ## measure the time to read and measure a heap of 100,000 blocks
	@$(BIN)/python benchmarks/measure.py $(ARGS)

define make_venv
test -n "$(PYTHON)" || { echo "gpufrag needs Python 3.10 or newer: install it, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
$(1)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(1)
$(1)/bin/python -m pip install --quiet --disable-pip-version-check --editable '$(2)'
touch $(1)/installed
endef

$(STAMP): pyproject.toml
	@$(call make_venv,$(VENV),.[dev])

$(DEMO)/installed: pyproject.toml
	@$(call make_venv,$(DEMO),.)
