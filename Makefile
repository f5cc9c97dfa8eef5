# Two commands do everything on a fresh machine: `make demo` and `make test`. `make real-model` fetches SmolLM2,
# `make test-all` also runs the tests that `make test` leaves out for their time, with ten times the random cases,
# `make test-changed` runs the tests that a change needs, BASE=REV being what it is compared with,
# `make openvino` installs that plug-in and tests it,
# `make distributed` runs the tests with several processes that `make test` leaves out,
# `make clients` installs other projects' clients of the server and tests them,
# `make head` trains SmolLM2's draft head in three hours, and `make head RESUME=--resume` goes on with an interrupted run,
# `make docs` builds the documentation in build/site and tests it.
# On Linux without a GPU, `make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu` downloads torch's smaller CPU build.
PYTHON ?= python3
BASE ?= main
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
SHOWS := $(VENV)/shows
CONVERTS := $(VENV)/converts
HAS_OPENVINO := $(VENV)/has-openvino
WRITES_DOCS := $(VENV)/writes-docs
CHECK_PYTHON := $(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'specdec needs Python 3.11 or later: add PYTHON=python3.11, or a later one, to this command')"
INSTALL := $(PYTHON) .ci/install.py $(BIN)/python
# Most modules are never imported: those that are, Python compiles then.
PIP := $(BIN)/pip install --quiet --no-compile --constraint constraints.txt
# Packages are installed without bytecode: an environment that forbids it would have each process compile torch again.
unexport PYTHONDONTWRITEBYTECODE
VLLM := build/environments/vllm/bin/python
# The plug-ins that `make test` installs and tests.
PLUGINS := $(addprefix plugins/specdec-,datastore distributed example flash vllm)

.PHONY: demo test test-all test-changed lint docs benchmark real-model head openvino vllm-check distributed clients clean

demo: $(SHOWS)
	@$(BIN)/specdec demo

test: $(INSTALLED)
	$(BIN)/python -m pytest tests $(PLUGINS) -n auto --dist worksteal --ignore tests/site

test-all: $(INSTALLED)
	$(BIN)/python -m pytest tests $(PLUGINS) -n auto --dist worksteal --ignore tests/site \
	    -m "not processes" --hypothesis-profile nightly

test-changed: $(INSTALLED)
	@mkdir -p build
	@$(BIN)/python -m tests.selection --base $(BASE) > build/selected
	$(BIN)/python -m pytest $$(cat build/selected) -n auto --dist worksteal --ignore tests/site

distributed: $(INSTALLED)
	$(BIN)/python -m pytest plugins/specdec-distributed -m "processes or not processes" -n auto

clients: $(INSTALLED)
	$(BIN)/python -m tests.apps.serving.clients.environments
	$(BIN)/python -m pytest tests/apps/serving/clients

openvino: $(HAS_OPENVINO)
	$(BIN)/python -m pytest plugins/specdec-openvino -n auto --dist worksteal

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(WRITES_DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	$(BIN)/python -m pytest tests/site

# vLLM has an environment of its own, which takes minutes to make. The plug-in is installed again in an existing one, for
# new entry points.
vllm-check: real-model
	$(BIN)/python -m benchmarks environments vllm
	$(VLLM) -m pip install --quiet --editable . --editable plugins/specdec-vllm
	$(VLLM) plugins/specdec-vllm/check.py
	$(VLLM) plugins/specdec-vllm/check.py --model smollm2

benchmark: $(INSTALLED)
	$(BIN)/python -m benchmarks compare

real-model: $(CONVERTS)
	@$(BIN)/python -m specdec.demo.smollm2

head: real-model
	$(BIN)/specdec train head --model smollm2 --minutes 180 $(RESUME)

# specdec itself fetches SmolLM2, when the demo starts.
$(SHOWS): pyproject.toml constraints.txt plugins/specdec-openvino/pyproject.toml
	@$(CHECK_PYTHON)
	@echo "on a fresh machine this takes about two minutes"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(INSTALL) torch $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) --constraint constraints.txt torch
	@$(INSTALL) "specdec and transformers" --constraint constraints.txt --editable ".[real-model]"
	@$(INSTALL) OpenVINO --constraint constraints.txt --editable plugins/specdec-openvino \
	    || echo "the demo runs without OpenVINO"
	@touch $@

$(INSTALLED): pyproject.toml constraints.txt $(PLUGINS:%=%/pyproject.toml)
	@$(CHECK_PYTHON)
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	$(PIP) --editable ".[dev]" $(PLUGINS:%=--editable %)
	touch $@

$(WRITES_DOCS): $(INSTALLED)
	$(PIP) --editable ".[docs]"
	touch $@

$(HAS_OPENVINO): $(INSTALLED) plugins/specdec-openvino/pyproject.toml
	$(PIP) --editable "plugins/specdec-openvino[rounded]"
	touch $@

$(CONVERTS): $(INSTALLED)
	$(PIP) --editable ".[real-model]"
	touch $@

clean:
	rm -rf $(VENV)
