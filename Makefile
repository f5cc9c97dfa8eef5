# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed

.PHONY: demo test lint benchmark clean

demo: $(INSTALLED)
	$(BIN)/specdec demo

test: $(INSTALLED)
	$(BIN)/python -m pytest
	$(BIN)/python -m pytest plugins/specdec-example

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

benchmark: $(INSTALLED)
	$(BIN)/python -m benchmarks compare

$(INSTALLED): pyproject.toml constraints.txt plugins/specdec-example/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]" --editable plugins/specdec-example
	touch $@

clean:
	rm -rf $(VENV)
