# make help says what there is. Options of the scenario targets: QUICK=1 JOBS=n SEEDS=n OUT=dir ARGS="...".

SHELL := /bin/bash
.DEFAULT_GOAL := help

# The first Python of a version that the ns3 wheel exists for; PYTHON=/path/to/python chooses another.
SUITS = -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.10; do "$$p" $(SUITS) && echo "$$p" && break; done)

BIN := .venv/bin
READY := .venv/.ready
FLAGS = $(if $(filter-out 0,$(QUICK)),--quick) $(if $(JOBS),--jobs $(JOBS)) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(OUT),--out $(OUT)) $(ARGS)

.PHONY: help venv scenario-rag scenario-chatbot scenario-long-context test lint validate bench clean FORCE

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-22s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo '  options: QUICK=1 (small), JOBS=n, SEEDS=n, OUT=dir, ARGS="more flags of netkv-cosim run"'

venv: $(READY)  ## set up .venv (done by every other target as well)

scenario-rag: venv  ## RAG requests on the 64-GPU fat-tree, every packet
	$(BIN)/netkv-cosim run scenarios/rag.yaml $(FLAGS)

scenario-chatbot: venv  ## short prompts, many requests
	$(BIN)/netkv-cosim run scenarios/chatbot.yaml $(FLAGS)

scenario-long-context: venv  ## prompts of tens of thousands of tokens
	$(BIN)/netkv-cosim run scenarios/long-context.yaml $(FLAGS)

test: venv  ## run the tests; ARGS='-m "not slow"' leaves out the long ones
	$(BIN)/python -m pytest $(ARGS)

lint: venv  ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check . && $(BIN)/mypy && $(BIN)/lint-imports

validate: venv  ## hold the packet model against closed forms, theory and reference figures
	$(BIN)/netkv-cosim validate $(if $(OUT),--out $(OUT)) $(ARGS)

bench: venv  ## speed of the packet model on this machine
	$(BIN)/netkv-cosim bench $(ARGS)

clean:  ## remove .venv and everything built; results stay
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find harness topologies scenarios calibration tests -name __pycache__ -prune -exec rm -rf {} +

# The stamp is written last and holds the directory: a half-built or a moved .venv is made anew.
ifneq ($(file <$(READY)),$(CURDIR))
$(READY): FORCE
endif
$(READY): pyproject.toml
	@"$(PYTHON)" $(SUITS) || { echo "No Python 3.10 to 3.13 found$(PYTHON:%=: % is not one). On Debian or Ubuntu: sudo apt install python3 python3-venv python3-dev; or name one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@"$(PYTHON)" -m harness.doctor
	@test "$$(cat $@ 2>/dev/null)" = "$(CURDIR)" || { echo "Setting up .venv (2-4 minutes, once: cppyy is compiled)"; "$(PYTHON)" -m venv --clear .venv; }
	@rm -f $@
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@printf '%s' "$(CURDIR)" > $@
