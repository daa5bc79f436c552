# Everything a newcomer needs: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OLDEST := .venv-oldest
READY := $(VENV)/.ready
TRANSFORMERS_VERSION = $(shell $(BIN)/python -c "import transformers; print(transformers.__version__)")
SUITE = .cache/transformers-$(TRANSFORMERS_VERSION)/tests

export HF_HUB_DISABLE_TELEMETRY = 1
export TOKENIZERS_PARALLELISM ?= true

.PHONY: demo test test-oldest gpu check format hf-suite clean help

help:
	@echo "make demo      set up, then train, publish and use a small model, offline, in minutes"
	@echo "make test      set up, then run all tests"
	@echo "make test-oldest  set up the oldest transformers that we promise, and run the tests that depend on it"
	@echo "make hf-suite  fetch transformers' own model tests, which make test then runs too"
	@echo "make gpu       on a machine with a GPU, with its own Python: all that only a GPU can show, in nine minutes"
	@echo "make check     lint, formatting and types"
	@echo "make format    put the code into its format"

# Pinned versions of everything, then this project itself, editable.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[train,dev]"
	touch $@

demo: $(READY)
	$(BIN)/accelerate launch --quiet --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no \
	    training/run.py training/recipes/demo.toml --overwrite_output_dir

test: $(READY) hf-suite
	$(BIN)/python -m pytest

# The oldest transformers that we promise to work with.
test-oldest: $(OLDEST)/.ready
	$(OLDEST)/bin/python -m pytest tests/parity tests/hub tests/e2e/test_the_whole_way.py tests/e2e/test_pipeline.py \
	    tests/unit/test_configuration.py tests/unit/test_generation.py

$(OLDEST)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(OLDEST)
	grep -Ev "^(transformers|huggingface_hub)==" constraints.txt > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --constraint $(OLDEST)/constraints.txt --editable ".[train,dev]" \
	    transformers==5.17.0
	touch $@

# Uses the machine's own Python and torch, whose CUDA fits its driver.
gpu:
	$(PYTHON) training/gpu.py

hf-suite: $(READY)
	test -d $(SUITE) || { \
	    $(BIN)/python -m pip download --quiet --no-deps --no-binary transformers --dest .cache \
	        transformers==$(TRANSFORMERS_VERSION) && \
	    tar -xzf .cache/transformers-$(TRANSFORMERS_VERSION).tar.gz -C .cache \
	        transformers-$(TRANSFORMERS_VERSION)/tests && \
	    rm .cache/transformers-$(TRANSFORMERS_VERSION).tar.gz; } || \
	    echo "transformers' own tests could not be fetched: they will be skipped"

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/ty check

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(OLDEST) .cache runs
