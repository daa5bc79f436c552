# Everything a newcomer needs: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TRANSFORMERS_VERSION = $(shell $(BIN)/python -c "import transformers; print(transformers.__version__)")
SUITE = .cache/transformers-$(TRANSFORMERS_VERSION)/tests

export HF_HUB_DISABLE_TELEMETRY = 1
export TOKENIZERS_PARALLELISM ?= true

.PHONY: demo test check format hf-suite clean help

help:
	@echo "make demo      set up, then train, publish and use a small model, offline, in minutes"
	@echo "make test      set up, then run all tests"
	@echo "make hf-suite  fetch transformers' own model tests, which make test then runs too"
	@echo "make check     lint, formatting and types"
	@echo "make format    put the code into its format"

# Pinned versions of everything, then this project itself, editable.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[train,dev]"
	touch $@

demo: $(READY)
	$(BIN)/accelerate launch --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no \
	    training/run.py training/recipes/demo.toml --overwrite_output_dir

test: $(READY) hf-suite
	$(BIN)/python -m pytest

hf-suite: $(READY)
	test -d $(SUITE) || $(BIN)/python tests/hub/fetch_transformers_suite.py

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/ty check

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .cache runs
