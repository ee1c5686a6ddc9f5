# make help says what there is. Options of scenarios, tables and figures: QUICK=1 JOBS=n SEEDS=n OUT=dir BACKEND=name ARGS="...".

SHELL := /bin/bash
.DEFAULT_GOAL := help

# The first Python of a version that the ns3 wheel exists for; PYTHON=/path/to/python chooses another.
SUITS = -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.10; do "$$p" $(SUITS) && echo "$$p" && break; done)

BIN := .venv/bin
READY := .venv/.ready
OPTIONS = $(if $(filter-out 0,$(QUICK)),--quick) $(if $(JOBS),--jobs $(JOBS)) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(OUT),--out $(OUT)) $(ARGS)
FLAGS = $(if $(BACKEND),--backend $(BACKEND)) $(OPTIONS)

# The tables and figures of the NetKV paper; fig4 is table4's sweep.
PAPER := table2 table3 table4 table5 table6 fig1 fig2 fig3 fig5
# Figure 2 is about the age of what the oracle knows, and in the fluid model that never ages.
LEFT_OUT = $(if $(filter fluid,$(BACKEND)),fig2)

.PHONY: help venv scenario-rag scenario-chatbot scenario-long-context $(PAPER) fig4 paper reference test lint validate bench clean FORCE

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-22s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo '  options: QUICK=1 (small), JOBS=n, SEEDS=n, OUT=dir, BACKEND=packet|fluid|both, ARGS="more flags"'

venv: $(READY)  ## set up .venv (done by every other target as well)

scenario-rag: venv  ## RAG requests on the 64-GPU fat-tree, every packet
	$(BIN)/netkv-cosim run scenarios/rag.yaml $(FLAGS)

scenario-chatbot: venv  ## short prompts, many requests
	$(BIN)/netkv-cosim run scenarios/chatbot.yaml $(FLAGS)

scenario-long-context: venv  ## prompts of tens of thousands of tokens
	$(BIN)/netkv-cosim run scenarios/long-context.yaml $(FLAGS)

table2: venv  ## RAG at 100 and 200 % of the load
	$(BIN)/netkv-cosim sweep scenarios/sweeps/load.yaml $(FLAGS)

table3: venv  ## gains by context length
	$(BIN)/netkv-cosim sweep scenarios/sweeps/context-length.yaml $(FLAGS)

table4: venv  ## ablation: what each part of NetKV adds
	$(BIN)/netkv-cosim sweep scenarios/sweeps/ablation.yaml $(FLAGS)

fig4: venv  ## the same sweep as table4, which draws both
	$(BIN)/netkv-cosim sweep scenarios/sweeps/ablation.yaml $(FLAGS)

table5: venv  ## what the fluid model overestimates
	$(BIN)/netkv-cosim calibrate table5 $(OPTIONS)

table6: venv  ## shares of the tiers
	$(BIN)/netkv-cosim sweep scenarios/sweeps/tier-shift.yaml $(FLAGS)

fig1: venv  ## gain by oversubscription, background and workload
	$(BIN)/netkv-cosim sweep scenarios/sweeps/topology.yaml $(FLAGS)

fig2: venv  ## refresh interval of the oracle
	$(BIN)/netkv-cosim sweep scenarios/sweeps/staleness.yaml $(FLAGS)

fig3: venv  ## share of prompts with a common beginning
	$(BIN)/netkv-cosim sweep scenarios/sweeps/prefix-sharing.yaml $(FLAGS)

fig5: venv  ## 64 to 1024 GPUs, and the time of a decision
	$(BIN)/netkv-cosim sweep scenarios/sweeps/scale.yaml $(FLAGS)

paper: venv  ## all tables and figures of the paper; with OUT=dir in a directory each below it
	@$(if $(LEFT_OUT),echo "$(LEFT_OUT) is left out: the fluid model's oracle never ages";) for t in $(filter-out $(LEFT_OUT),$(PAPER)); do $(MAKE) --no-print-directory $$t $(if $(OUT),OUT=$(OUT)/$$t) || left+=" $$t"; done; [ -z "$$left" ] || { echo "Not complete:$$left" >&2; exit 1; }

reference: OUT := $(or $(OUT),results/paper)
reference: venv  ## run all of them in full and copy tables and figures to results/reference/paper; ARGS=--resume goes on
	$(MAKE) --no-print-directory paper OUT=$(OUT)
	for t in $(filter-out $(LEFT_OUT),$(PAPER)); do rm -rf results/reference/paper/$$t && mkdir -p results/reference/paper/$$t && find $(OUT)/$$t -maxdepth 2 \( -path '*/tables/*' -o -path '*/figures/*.png' -o -name provenance.csv -o -name 'table5.*' -o -name gains.csv \) -exec cp -t results/reference/paper/$$t {} +; done

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
