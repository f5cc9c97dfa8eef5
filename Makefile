# Two commands do everything on a fresh machine: `make demo` and `make test`. `make real-model` fetches a larger model.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
CONVERTS := $(VENV)/converts

.PHONY: demo test lint benchmark real-model clean

demo: $(INSTALLED)
	$(BIN)/specdec demo

test: $(INSTALLED)
	$(BIN)/python -m pytest -n auto --dist loadfile
	$(BIN)/python -m pytest plugins/specdec-example

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

benchmark: $(INSTALLED)
	$(BIN)/python -m benchmarks compare

real-model: $(CONVERTS)
	@$(BIN)/python -m specdec.demo.smollm2

$(INSTALLED): pyproject.toml constraints.txt plugins/specdec-example/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]" --editable plugins/specdec-example
	touch $@

$(CONVERTS): $(INSTALLED)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[real-model]"
	touch $@

clean:
	rm -rf $(VENV)
