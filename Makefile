# Everything runs in .venv, which `make install` makes; only python3, pip and make are needed.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: install run test lint accept bench studies clean

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) -e .
	touch $@

.venv/installed-dev: .venv/installed
	$(PIP) -e ".[nvflare,dev]"
	touch $@

.venv/installed-bench: .venv/installed-dev
	$(PIP) -e ".[bench]"
	touch $@

# The main job on shipped real data; writes report.html and says where.
run: install
	$(BIN)/python examples/turbofan.py report.html

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The deployment tests start a real federation each; the rest runs on two workers beside them.
test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

# Full-size runs behind the promises; results are CSV files beside the scripts.
accept: .venv/installed-dev
	$(BIN)/python -m benchmarks.accept.fmlr
	$(BIN)/python -m benchmarks.accept.fedgrem
	$(BIN)/python -m benchmarks.accept.pen_digits
	$(BIN)/python -m benchmarks.accept.clustering
	$(BIN)/python -m benchmarks.accept.odcl figure_2 appendix_d few_rows spoilt homogeneous rounds
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.accept.fgpr

# One table against peers and the scaling curves: benchmarks/results.md; a quarter of an hour on an
# idle machine, SIZE=--quick minutes.
bench: .venv/installed-bench
	$(BIN)/python -m benchmarks.run $(SIZE)

# Every table and figure of the papers: docs/reproduction.md; hours at full size, SIZE=--quick minutes.
studies: install
	$(BIN)/python -m reproduction run all $(SIZE) --out docs

clean:
	rm -rf .venv report.html .pytest_cache .mypy_cache .ruff_cache .hypothesis
