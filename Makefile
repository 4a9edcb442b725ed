# Four words for everything: make test, make lint, make docs, make bench; and make demo to begin with.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all lint types docs site bench bench-wait figures wheel fuzz clean

# torch comes first and alone: with torch pinned and present, nothing pulls another build of it.
$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "rebasin needs Python 3.11 or newer: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/developing: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(VENV)/installed
	$(BIN)/rebasin demo --force
	@echo "rebasin is installed in $(BIN); begin with: . $(BIN)/activate"

# make test                             all but the sweeps
# make test FILE=tests/spec             … of one folder or file; a small one takes less time in one process
# make test-all                         the sweeps: large networks, many seeds
FILE ?= tests
PARALLEL = $(if $(filter tests tests/cli tests/matchers,$(FILE:/=)),-n auto --maxprocesses 4 --dist worksteal)
# Bytecode is kept even where the environment forbids it: tests start many processes, and pytest reads its own.
test test-all: export PYTHONDONTWRITEBYTECODE =
test: $(VENV)/developing
	$(BIN)/python -m pytest $(PARALLEL) -m "not sweep" $(FILE)

test-all: $(VENV)/developing
	$(BIN)/python -m pytest $(PARALLEL) -m sweep $(FILE)

lint: types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# make types                            mypy: no file may have more errors than tests/types_left.txt says
# make types WRITE=--write              … and writes that list, which only shrinks
WRITE ?=
types: $(VENV)/developing
	$(BIN)/python -m tests.types_left $(WRITE)

docs: $(VENV)/developing
	$(BIN)/python docs/generate.py

# The documents as a site in site/; a dead link fails
site: $(VENV)/developing
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# make bench                                          trains two pairs of mlps on MNIST first, once
# make bench BENCH_PAIRS="a.safetensors:b.safetensors …"     with these pairs instead
# make bench BENCH=--quick                              a few rows, one run
# make bench OTHER=FOLDER/bin/python                     against the package rebasin 0.0.47, installed there
BENCH_PAIRS ?=
BENCH ?=
OTHER ?=
TRAINED = $(if $(BENCH_PAIRS),--pairs $(BENCH_PAIRS),--train runs/bench)
bench: $(VENV)/developing
	$(BIN)/python benchmarks/weight_matching.py $(TRAINED) $(BENCH)
	$(BIN)/python benchmarks/limit.py $(TRAINED) $(BENCH)
	$(BIN)/python benchmarks/exactness.py $(TRAINED) $(BENCH)
	$(BIN)/python benchmarks/straight_through.py $(TRAINED) $(BENCH)
	$(BIN)/python benchmarks/against_rebasin.py $(TRAINED) $(BENCH) --python "$(OTHER)"
	$(BIN)/python benchmarks/growth.py $(filter --quick,$(BENCH))
	$(BIN)/python benchmarks/assignment.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/memory.py --many
	$(BIN)/python benchmarks/learning.py $(filter --quick,$(BENCH))
	$(BIN)/python benchmarks/large.py $(if $(filter --quick,$(BENCH)),--rows resnet50) $(BENCH)

# make figures                                          40 figures of the documents, computed anew
# make figures DRAW="--seed 7 --draw 100"                 others; REBASIN_DATA for those of MNIST
DRAW ?=
figures: $(VENV)/developing
	$(BIN)/python benchmarks/figures.py $(DRAW)

# make bench-wait                                       whole commands from the shell, as a user waits for them
# make bench-wait BENCH="--against OTHER/bin/python"      beside another version of rebasin
bench-wait: $(VENV)/developing
	$(BIN)/python benchmarks/waiting.py --work runs/waiting $(BENCH)

# Build the wheel, install it without development packages in a fresh environment, run --help and one merge.
wheel: $(VENV)/developing
	PATH="$(CURDIR)/$(BIN):$$PATH" sh tests/check_wheel.sh

# make fuzz MINUTES=30                                  drawn inputs for as long; docs/contributing.md
MINUTES ?= 5
FUZZ ?=
fuzz: $(VENV)/developing
	$(BIN)/python -m tests.fuzz.fuzz --minutes $(MINUTES) $(FUZZ)

clean:
	rm -rf $(VENV) build dist site *.egg-info rebasin-demo
