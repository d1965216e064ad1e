# `make help` lists the targets.

PYTHON ?= python3
VENV ?= .venv
VENV_PYTHON ?= $(VENV)/bin/python
HOST ?= 127.0.0.1
PORT ?= 7860
JOBS ?= 3
GPU_JOBS ?= 4
ARGS ?=

# Another VENV_PYTHON is used unchanged: nothing is created or installed.
ifeq ($(VENV_PYTHON),$(VENV)/bin/python)
VENV_READY := $(VENV_PYTHON)
RUN_READY := $(VENV)/run-ready
DEV_READY := $(VENV)/dev-ready
endif

# Without bytecode, each process would compile the source again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run test test-all test-triton test-gpu bench bench-cpu space wheel try-wheel lock mutants lint format clean

# Print how long a recipe took, even if it fails.
TIMED = begun=$$(date +%s); \
	trap 'took=$$(($$(date +%s) - begun)); echo "make $@ took $$((took / 60)) min $$((took % 60)) s."' EXIT;

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: $(RUN_READY) ## Serve the page on http://127.0.0.1:7860 (HOST=, PORT=)
	$(VENV_PYTHON) app.py --host $(HOST) --port $(PORT)

# Browser tests wait for drawings, so they run after all other tests. JOBS tests run in parallel: more than CI's two cores,
# because a third of their time is waiting for processes and browsers.
PYTEST = $(VENV_PYTHON) -m pytest -m 'not gpu' $(1)
IN_PARALLEL = -n $(JOBS) --dist loadgroup
RUN_TESTS = $(TIMED) CHROMIUM="$$(scripts/find-chromium)" && export CHROMIUM && \
	$(if $(ARGS),$(PYTEST) $(ARGS),$(PYTEST) $(IN_PARALLEL) --ignore tests/visualize/page && $(PYTEST) $(IN_PARALLEL) tests/visualize/page)

test: $(DEV_READY) ## Run the tests that need no GPU (ARGS= goes to pytest, without parallel tests)
	@$(call RUN_TESTS)

test-all: $(DEV_READY) ## Run the same tests with every combination of values, not only every pair, and more random examples
	@$(call RUN_TESTS,--all-combinations)

# GPU tests mostly compile: with pytest-xdist they run in parallel, and then those that compare times run alone.
GPU_TESTS = $(VENV_PYTHON) -m pytest -o testpaths=tests -m
GPU_IN_PARALLEL = $(shell $(VENV_PYTHON) -c 'import xdist; print("-n $(GPU_JOBS) --dist worksteal")' 2>/dev/null)

test-gpu: $(DEV_READY) ## Run the tests that need a GPU (VENV_PYTHON=python3 uses your own Python)
	@$(TIMED) $(if $(ARGS),$(GPU_TESTS) gpu $(ARGS), \
		first=0; $(GPU_TESTS) 'gpu and not idle_gpu' $(GPU_IN_PARALLEL) || first=$$?; \
		$(GPU_TESTS) 'gpu and idle_gpu' && exit $$first)

# Tests that read the compiler's output, run the interpreter or capture scripts, by default with the oldest supported
# version of Triton. PYTHONPATH puts it before the virtual environment's own Triton. It is installed without dependencies,
# because they include CUDA's libraries. Triton 3.9 warns unless TRITON_DEFAULT_FP_FUSION is set.
TRITON ?= 3.6.0
TRITON_TESTS = tests/tilescope/oracle/test_compiled.py tests/tilescope/oracle/test_truth.py tests/tilescope/oracle/test_evaluated.py \
	tests/tilescope/measure/test_interpreter.py tests/tilescope/measure/test_timeline.py tests/tilescope/oracle/test_captured_examples.py
OTHER_TRITON = $(abspath $(VENV))/triton-$(TRITON)/site-packages

$(abspath $(VENV))/triton-%/site-packages/ready: | $(VENV_READY)
	$(VENV_PYTHON) -m pip install -q --no-compile --no-deps --target $(@D) triton==$*
	touch $@

test-triton: $(OTHER_TRITON)/ready $(DEV_READY) ## Run the tests that depend on Triton with another version (TRITON=3.6.0)
	@$(TIMED) set -e; export PYTHONPATH="$(OTHER_TRITON)" TRITON_DEFAULT_FP_FUSION=1; \
	$(VENV_PYTHON) -c 'import triton; assert triton.__version__ == "$(TRITON)", triton.__version__'; \
	$(call PYTEST,$(IN_PARALLEL)) $(or $(ARGS),$(TRITON_TESTS))

bench: $(RUN_READY) ## Time the kernels beside the library on a GPU (ARGS="--only transpose")
	@$(TIMED) $(VENV_PYTHON) -m benchmarks.l2 && $(VENV_PYTHON) -m benchmarks.kernels $(ARGS)

bench-cpu: $(DEV_READY) ## Time the models and the page on any machine
	@$(TIMED) set -e; for name in "page start" models reuse; do \
		echo "== $$name"; $(VENV_PYTHON) -m benchmarks.$$name; done

space: ## Write a folder to push as a Hugging Face Space (PROFILE=cpu, gpu or zero)
	$(PYTHON) -m scripts.make_space $(PROFILE)

# The hashes of torch, Triton and NVIDIA's libraries differ between kinds of machines, so the lock file omits them.
LOCK = uv pip compile requirements.txt --universal --python-version 3.11 --generate-hashes --no-header --upgrade -q

lock: ## Regenerate requirements.txt from pyproject.toml, and requirements.lock with the latest allowed versions (needs uv)
	$(PYTHON) -m scripts.requirements pinned base page > requirements.txt
	$(LOCK) -o .lock
	$(LOCK) -o requirements.lock $$(sed -nE 's/^(torch|triton|nvidia-[a-z0-9-]+|cuda-[a-z]+)==.*/--no-emit-package \1/p' .lock)
	rm .lock

# mutmut changes one expression at a time, in a copy under mutants/, and runs the tests that reach it. `python -m mutmut
# results` lists the changes that no test detected, and `python -m mutmut show NAME` shows one of them.
mutants: $(DEV_READY) ## Run mutation tests of the models and the IR readers (ARGS="tilescope.evaluate.declared*" selects some)
	$(VENV_PYTHON) -m pip install -q mutmut~=3.8.1
	@$(TIMED) $(VENV_PYTHON) -m mutmut run --max-children $(JOBS) $(ARGS)

lint: $(DEV_READY) ## Check style, format, types, layers, the page's scripts and the outputs in the README
	@$(TIMED) set -ex; \
	$(VENV_PYTHON) -m ruff check .; \
	$(VENV_PYTHON) -m ruff format --check .; \
	$(VENV_PYTHON) -m mypy; \
	$(VENV_PYTHON) -m scripts.readme_outputs --check; \
	scripts="$$($(VENV_PYTHON) -c 'import sysconfig; print(sysconfig.get_path("scripts"))')"; \
	"$$scripts/lint-imports" --no-cache --no-logo; \
	"$$scripts/oxlint" --deny-warnings visualize tests/visualize/scripts

format: $(DEV_READY) ## Fix style and format where a tool can
	$(VENV_PYTHON) -m ruff check --fix --exit-zero --quiet .
	$(VENV_PYTHON) -m ruff format .

wheel: | $(VENV_READY) ## Write the wheel to dist/ (pip builds it in an environment of its own, without torch)
	rm -rf dist
	$(VENV_PYTHON) -m pip wheel -q --no-deps --wheel-dir dist .

try-wheel: wheel $(DEV_READY) ## Install the wheel in an empty environment beside torch and Triton, and run its commands
	@$(TIMED) $(VENV_PYTHON) -m scripts.try_wheel

clean: ## Remove the virtual environment and all caches
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis mutants
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; (3, 11) <= sys.version_info[:2] <= (3, 13) or sys.exit("$(PYTHON) is Python " \
		+ sys.version.split()[0] + "; Tilescope needs 3.11, 3.12 or 3.13: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/run-ready: requirements.lock requirements.txt | $(VENV)/bin/python
	$(VENV_PYTHON) -m pip install --require-hashes -r requirements.lock
	$(VENV_PYTHON) -m pip install -r requirements.txt
	touch $@

$(VENV)/dev-ready: pyproject.toml $(VENV)/run-ready
	$(VENV_PYTHON) -m scripts.requirements mcp cluster dev | $(VENV_PYTHON) -m pip install -r /dev/stdin
	touch $@
