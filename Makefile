# Two commands to know: `make demo` and `make test`. Each makes .venv if needed; a second run
# installs nothing.

PYTHON ?= python3
# Asked for by its exact version: a range lets pip take the newest CUDA build, gigabytes of it.
TORCH ?= torch==2.13.0
MODEL ?= examples/recall/model
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo serve test check protos constraints clean

demo: $(STAMP)
	PYTHONPATH=examples $(BIN)/python -m baton.deploy.demo

serve: $(STAMP)
	$(BIN)/baton serve --model $(MODEL) --prefill 1 --decode 2

test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The generated stubs are committed; tests/test_protos.py fails when they are stale.
protos: $(STAMP)
	$(BIN)/python -m grpc_tools.protoc -I.types --python_out=.types --pyi_out=.types \
		--grpc_python_out=.types .types/baton/proto/*.proto

constraints: $(STAMP)
	{ head -1 constraints.txt; $(BIN)/pip freeze --exclude-editable | \
		grep -vE '^(torch==|nixl-cu|baton)'; } > constraints.new && mv constraints.new constraints.txt

$(STAMP): pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt "$(TORCH)" \
		-e ".[test,oracle,demo]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) build dist *.egg-info
