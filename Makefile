# `make help` lists what there is.

PYTHON ?= python3
VENV ?= .venv
VENV_PYTHON ?= $(VENV)/bin/python
HOST ?= 127.0.0.1
PORT ?= 7860
JOBS ?= 2
GPU_JOBS ?= 4
ARGS ?=

# With another VENV_PYTHON, nothing is made or installed: what that Python has is used as it is.
ifeq ($(VENV_PYTHON),$(VENV)/bin/python)
RUN_READY := $(VENV)/run-ready
DEV_READY := $(VENV)/dev-ready
endif

# Each process would compile our source anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run test test-all test-triton test-gpu bench bench-cpu space lock mutants lint format clean

# Say how long a recipe took, whether it fails or not.
TIMED = begun=$$(date +%s); \
	trap 'took=$$(($$(date +%s) - begun)); echo "make $@ took $$((took / 60)) min $$((took % 60)) s."' EXIT;

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: $(RUN_READY) ## Start the page on http://127.0.0.1:7860 (HOST= and PORT= change that)
	$(VENV_PYTHON) app.py --host $(HOST) --port $(PORT)

# A browser's tests wait for what is drawn, so they run apart from the others; of both, JOBS run at a time.
PYTEST = $(VENV_PYTHON) -m pytest -m 'not gpu' $(1)
AT_ONCE = -n $(JOBS) --dist loadgroup
RUN_TESTS = $(TIMED) CHROMIUM="$$(scripts/find-chromium)" && export CHROMIUM && \
	$(if $(ARGS),$(PYTEST) $(ARGS),$(PYTEST) $(AT_ONCE) --ignore tests/page && $(PYTEST) $(AT_ONCE) tests/page)

test: $(DEV_READY) ## Run every test that needs no GPU (ARGS= goes to pytest, which then runs one test after the other)
	@$(call RUN_TESTS)

test-all: $(DEV_READY) ## The same with every combination of values, not only every pair, and more drawn examples
	@$(call RUN_TESTS,--all-combinations)

# On a GPU, tests mostly compile: several at a time where pytest-xdist is there, and then alone those that compare times.
GPU_TESTS = $(VENV_PYTHON) -m pytest -o testpaths=tests -m
GPU_AT_ONCE = $(shell $(VENV_PYTHON) -c 'import xdist; print("-n $(GPU_JOBS) --dist worksteal")' 2>/dev/null)

test-gpu: $(DEV_READY) ## Run the tests that need a GPU (VENV_PYTHON=python3: with the Python that you have)
	@$(TIMED) $(if $(ARGS),$(GPU_TESTS) gpu $(ARGS), \
		first=0; $(GPU_TESTS) 'gpu and not idle_gpu' $(GPU_AT_ONCE) || first=$$?; \
		$(GPU_TESTS) 'gpu and idle_gpu' && exit $$first)

# Tests of what the compiler's output says and of what the interpreter computes, with the Triton that ZeroGPU has. It lies
# in front of the virtual environment's own, beside the same torch: without its dependencies, which bring CUDA's libraries.
TRITON ?= 3.6.0
TRITON_TESTS = tests/oracle/test_compiled.py tests/oracle/test_truth.py tests/kernels/test_contract.py \
	tests/kernels/test_interpreter.py tests/kernels/test_timeline.py tests/kernels/test_sliced_operands.py
OTHER_TRITON = $(abspath $(VENV))/triton-$(TRITON)

$(OTHER_TRITON)/ready: | $(DEV_READY)
	$(VENV_PYTHON) -m pip install -q --no-compile --no-deps --target $(OTHER_TRITON) triton==$(TRITON)
	touch $@

test-triton: $(OTHER_TRITON)/ready $(DEV_READY) ## Run the tests that depend on Triton with another version (TRITON=3.6.0)
	@$(TIMED) set -e; export PYTHONPATH="$(OTHER_TRITON)"; \
	$(VENV_PYTHON) -c 'import triton; assert triton.__version__ == "$(TRITON)", triton.__version__'; \
	$(call PYTEST,$(AT_ONCE)) $(or $(ARGS),$(TRITON_TESTS))

bench: $(RUN_READY) ## Time the kernels beside the library, on a GPU (ARGS="--only transpose"; VENV_PYTHON=python3)
	@$(TIMED) $(VENV_PYTHON) -m benchmarks.l2 && $(VENV_PYTHON) -m benchmarks.kernels $(ARGS)

bench-cpu: $(DEV_READY) ## Time the models and the page, on any machine
	@$(TIMED) set -e; for name in start schedule coalescing reuse history; do \
		echo "== $$name"; $(VENV_PYTHON) -m benchmarks.$$name; done

space: ## Write a folder to push as a Hugging Face Space (PROFILE=cpu, gpu or zero)
	$(PYTHON) -m scripts.make_space $(PROFILE)

# torch and Triton come in builds for each kind of machine, with hashes of their own, and bring NVIDIA's libraries.
LOCK = uv pip compile requirements.txt --universal --python-version 3.11 --generate-hashes --no-header --upgrade -q

lock: ## Write requirements.lock anew, with the latest versions that requirements.txt allows (needs uv)
	$(LOCK) -o .lock
	$(LOCK) -o requirements.lock $$(sed -nE 's/^(torch|triton|nvidia-[a-z0-9-]+|cuda-[a-z]+)==.*/--no-emit-package \1/p' .lock)
	rm .lock

# mutmut changes one expression of a model or reader at a time, in a copy under mutants/, and runs the tests that reach it.
# `python -m mutmut results` lists the changes that no test found, `python -m mutmut show NAME` one of them.
mutants: $(DEV_READY) ## Score the tests: change the models' and readers' code (ARGS="visualize.predict.traffic*" narrows it)
	$(VENV_PYTHON) -m pip install -q mutmut~=3.8.1
	@$(TIMED) $(VENV_PYTHON) -m mutmut run --max-children $(JOBS) $(ARGS)

lint: $(DEV_READY) ## Check style, format, types, layers and the page's scripts
	@$(TIMED) set -ex; \
	$(VENV_PYTHON) -m ruff check .; \
	$(VENV_PYTHON) -m ruff format --check .; \
	$(VENV_PYTHON) -m mypy; \
	scripts="$$($(VENV_PYTHON) -c 'import sysconfig; print(sysconfig.get_path("scripts"))')"; \
	"$$scripts/lint-imports" --no-cache --no-logo; \
	"$$scripts/oxlint" --deny-warnings visualize

format: $(DEV_READY) ## Mend the style and format that can be mended by machine
	$(VENV_PYTHON) -m ruff check --fix --exit-zero --quiet .
	$(VENV_PYTHON) -m ruff format .

clean: ## Remove the virtual environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis mutants
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/run-ready: requirements.lock requirements.txt
	@$(PYTHON) -c 'import sys; (3, 11) <= sys.version_info[:2] <= (3, 13) or sys.exit("$(PYTHON) is Python " \
		+ sys.version.split()[0] + "; Tilescope needs 3.11, 3.12 or 3.13: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(VENV_PYTHON) -m pip install --require-hashes -r requirements.lock
	$(VENV_PYTHON) -m pip install -r requirements.txt
	touch $@

$(VENV)/dev-ready: requirements-dev.txt requirements-mcp.txt requirements-cluster.txt $(VENV)/run-ready
	$(VENV_PYTHON) -m pip install -r requirements-dev.txt
	touch $@
