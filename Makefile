# Everything a newcomer needs: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TRITON := .cache/triton

export HF_HUB_DISABLE_TELEMETRY = 1
export TOKENIZERS_PARALLELISM ?= true

.PHONY: demo test test-kernels test-oldest test-matrix gpu check format hf-suite browser clean help

help:
	@echo "make demo      set up, then train, publish and use a small model, offline, in minutes"
	@echo "make test      set up, then run all tests"
	@echo "make test-kernels  run the tests of the kernels for GPUs in Triton's interpreter, on any machine"
	@echo "make test-oldest  run the tests that depend on transformers on the oldest release that we promise"
	@echo "make test-matrix  run them on every promised release of transformers and torch that pip's index has, in an hour"
	@echo "make hf-suite  fetch transformers' own model tests, which make test then runs too"
	@echo "make gpu       on a machine with a GPU, with its own Python: all that only a GPU can show, in ten minutes"
	@echo "make check     lint, formatting and types"
	@echo "make format    put the code into its format"
	@echo "make clean     remove the environment, caches and runs/ with all trained models"

# Pinned versions of everything, then this project itself, editable.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[train,demo,dev]"
	touch $@

demo: $(READY)
	$(BIN)/accelerate launch --quiet --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no \
	    training/run.py training/recipes/demo.toml --overwrite_output_dir

# In their order: the long ones, which go the whole way, come first, so that neither process waits for the other.
test: $(READY) hf-suite browser
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

# Beside the environment, not in it: there PyTorch would find Triton, which without a GPU is of no use to it.
$(TRITON): constraints.txt $(READY)
	rm -rf $@
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt --target $@ triton
	touch $@

test-kernels: $(TRITON)
	TRITON_INTERPRET=1 PYTHONPATH=$(TRITON) $(BIN)/python -m pytest --numprocesses 2 --dist loadfile \
	    tests/unit/training/gpu

# tests/matrix.py lays the releases over what is set up; the oldest ones are read from pyproject.toml.
test-oldest: $(READY)
	$(BIN)/python tests/matrix.py oldest

test-matrix: $(READY)
	$(BIN)/python tests/matrix.py

# Uses the machine's own Python and torch, whose CUDA fits its driver.
gpu:
	$(PYTHON) training/benchmarks/gpu.py

# For the tests that look at pages; where Debian's packages cannot be installed, these are skipped and say so.
browser:
	@command -v chromium > /dev/null || { test "$$(id -u)" = 0 && timeout 600 sh -c \
	    "apt-get update && apt-get install --yes --no-install-recommends chromium" > /dev/null 2>&1; } \
	    || echo "Pages are not tested in a browser: no chromium on the path, and none can be installed."

hf-suite: $(READY)
	$(BIN)/python tests/transformers_suite.py

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/ty check

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .cache runs
