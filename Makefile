# `make help` lists what there is.

PYTHON ?= python3
VENV ?= .venv
VENV_PYTHON ?= $(VENV)/bin/python
HOST ?= 127.0.0.1
PORT ?= 7860
ARGS ?=

# With another VENV_PYTHON, nothing is made or installed: what that Python has is used as it is.
ifeq ($(VENV_PYTHON),$(VENV)/bin/python)
RUN_READY := $(VENV)/run-ready
DEV_READY := $(VENV)/dev-ready
endif

.DEFAULT_GOAL := help
.PHONY: help run test test-gpu lint format clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: $(RUN_READY) ## Start the page on http://127.0.0.1:7860 (HOST= and PORT= change that)
	$(VENV_PYTHON) app.py --host $(HOST) --port $(PORT)

# A browser's tests wait for what is drawn, so they run alone, after all others, of which two files run at a time.
test: $(DEV_READY) ## Run every test that needs no GPU (ARGS= goes to pytest, which then runs one test after the other)
	CHROMIUM="$$(scripts/find-chromium)" && export CHROMIUM && test_all="$(VENV_PYTHON) -m pytest -m 'not gpu'" && \
	if [ -n "$(ARGS)" ]; then eval "$$test_all" $(ARGS); \
	else eval "$$test_all -n 2 --dist loadfile --ignore tests/page" && eval "$$test_all tests/page"; fi

test-gpu: $(DEV_READY) ## Run the tests that need a GPU (VENV_PYTHON=python3: with the Python that you have)
	$(VENV_PYTHON) -m pytest -m gpu $(ARGS)

lint: $(DEV_READY) ## Check style, format and types
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m ruff format --check .
	$(VENV_PYTHON) -m mypy

format: $(DEV_READY) ## Mend the style and format that can be mended by machine
	$(VENV_PYTHON) -m ruff check --fix --exit-zero --quiet .
	$(VENV_PYTHON) -m ruff format .

clean: ## Remove the virtual environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/run-ready: requirements.txt
	@$(PYTHON) -c 'import sys; (3, 11) <= sys.version_info[:2] <= (3, 13) or sys.exit("$(PYTHON) is Python " \
		+ sys.version.split()[0] + "; Tilescope needs 3.11, 3.12 or 3.13: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(VENV_PYTHON) -m pip install -r requirements.txt
	touch $@

$(VENV)/dev-ready: requirements-dev.txt $(VENV)/run-ready
	$(VENV_PYTHON) -m pip install -r requirements-dev.txt
	touch $@
