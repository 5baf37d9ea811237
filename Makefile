# make demo | test | docs | notebooks | links | soak | fuzz | check | bench | kernels | dist | lock
# Everything is set up in .venv from requirements.lock; uv is put into .uv if the machine has none.
# The demo needs less, and gets by with requirements-demo.lock as long as nothing else is set up.
# PyFlink wants older packages than the rest, so what runs on Flink has its own: .flink.

PYTHON ?= python3
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
RUN := .venv/bin

# Tests start hundreds of processes. Without bytecode each of them would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-local test-flink docs notebooks links soak fuzz check bench kernels dist lock clean

demo: $(if $(wildcard .venv/.ready),.venv/.ready,.venv/.demo)
	$(RUN)/tacit demo

test: .venv/.ready
	@tests/install-services
	@$(MAKE) --no-print-directory --jobs=2 --keep-going test-local test-flink

test-local: .venv/.ready
	$(RUN)/tacit warm
	$(RUN)/pytest

# Beside the other tests: a job mostly waits for its processes to start and for checkpoints. Java
# compiles as little as possible: none of its processes lives for long.
test-flink: export JAVA_TOOL_OPTIONS = -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
test-flink: .flink/.ready
	@.flink/bin/pytest -q -o addopts= -m 'not soak' -W ignore tests/flink >.flink/tests.log 2>&1; status=$$?; \
	  echo "Tests on Flink:"; cat .flink/tests.log; exit $$status

soak: .venv/.ready .flink/.ready
	@tests/install-services
	$(RUN)/pytest -m hypothesis --hypothesis-profile=thorough tests
	$(RUN)/pytest -m soak tests
	$(RUN)/pytest -n0 -s tests/soak/crashes.py
	$(RUN)/pytest -n0 -s tests/soak/kafka_kills.py
	$(RUN)/pytest -n0 -s tests/soak/service_kills.py
	$(RUN)/pytest -n0 -s tests/soak/kernel_kills.py
	$(RUN)/pytest -n0 -s tests/soak/ledger_year.py
	$(RUN)/pytest -n0 -s tests/soak/held_out.py
	$(RUN)/pytest -n0 tests/soak/count_coverage.py
	$(RUN)/pytest tests/soak/neighbours.py
	$(RUN)/python -m tests.mutants
	.flink/bin/pytest -q -o addopts= -m soak -W ignore tests/flink
	.flink/bin/pytest -q -s -o addopts= -W ignore tests/soak/flink_kills.py tests/soak/flink_answers.py \
	  tests/soak/flink_deployment.py tests/soak/flink_slots.py

fuzz: .fuzz/.ready
	.fuzz/bin/python -m tests.fuzz.run

check: .venv/.ready
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy
	$(RUN)/lint-imports

bench: .venv/.ready
	$(RUN)/python -m benchmarks

docs: .venv/.ready
	$(RUN)/python -m sphinx --fail-on-warning --keep-going --quiet --jobs auto docs build/docs
	@echo "Open build/docs/index.html"

notebooks: .venv/.ready
	$(RUN)/python docs/run_notebooks.py

links: .venv/.ready
	$(RUN)/python -m sphinx --builder linkcheck --quiet docs build/links

dist: .venv/.ready
	rm -rf dist
	$(RUN)/python -m hatchling build -d dist
	$(RUN)/python -m twine check --strict dist/*

kernels: .venv/.ready
	$(RUN)/python -m tests.kernels.scenarios

lock: | $(UV)
	$(UV) pip compile pyproject.toml --group dev --group docs --group bench --universal --python-version 3.11 \
	  --generate-hashes --no-header --no-annotate --quiet --output-file requirements.lock
	$(UV) pip compile pyproject.toml --extra plot --extra ledger --group demo --universal \
	  --python-version 3.11 --constraint requirements.lock \
	  --generate-hashes --no-header --no-annotate --quiet --output-file requirements-demo.lock
	$(UV) pip compile pyproject.toml --extra flink --group flink --universal --python-version 3.11 \
	  --generate-hashes --no-header --no-annotate --quiet --output-file requirements-flink.lock
	$(UV) pip compile pyproject.toml --extra mqtt --extra kafka --group fuzz --universal --python-version 3.11 \
	  --generate-hashes --no-header --no-annotate --quiet --output-file requirements-fuzz.lock

clean:
	rm -rf .venv .uv .flink .fuzz

.uv/bin/uv:
	@echo "Installing uv, which installs everything else, in .uv ..."
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --no-compile \
	    --target .uv uv 2>/dev/null \
	  || { $(PYTHON) -m venv .uv && .uv/bin/python -m pip install --quiet uv; }

.venv/.demo: requirements-demo.lock pyproject.toml | $(UV)
	@echo "Installing what the demo needs, in .venv ..."
	@$(UV) venv --quiet --clear --no-project --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" .venv
	@sed -En '/^(llvmlite|numba|numpy)==/,/[^\\]$$/p' requirements-demo.lock >.venv/compiler.lock
	@$(UV) pip sync --python .venv --require-hashes .venv/compiler.lock
	@echo "Compiling hot loops for this machine while the rest is installed ..."
	@PYTHONPATH=src $(RUN)/python -m tacit.kernels $$$$ $$PPID \
	    demo:answers demo:planning </dev/null >/dev/null 2>&1 & \
	  $(UV) pip sync --python .venv --require-hashes requirements-demo.lock && \
	  $(UV) pip install --quiet --python .venv --no-deps --no-build-isolation --editable .
	@touch $@

.venv/.ready: requirements.lock pyproject.toml | $(UV)
	$(UV) venv --quiet --clear --no-project --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" .venv
	$(UV) pip sync --quiet --compile-bytecode --python .venv --require-hashes requirements.lock
	$(UV) pip install --quiet --python .venv --no-deps --no-build-isolation --editable .
	touch $@

.flink/.ready: requirements-flink.lock pyproject.toml | $(UV)
	$(UV) venv --quiet --clear --no-project --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" .flink
	$(UV) pip sync --quiet --compile-bytecode --python .flink --require-hashes requirements-flink.lock
	$(UV) pip install --quiet --python .flink --no-deps --no-build-isolation --editable .
	touch $@

.fuzz/.ready: requirements-fuzz.lock pyproject.toml | $(UV)
	$(UV) venv --quiet --clear --no-project --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" .fuzz
	$(UV) pip sync --quiet --compile-bytecode --python .fuzz --require-hashes requirements-fuzz.lock
	$(UV) pip install --quiet --python .fuzz --no-deps --no-build-isolation --editable .
	touch $@
