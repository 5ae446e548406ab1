# Everything runs in .venv, which `make install` makes; only python3, pip and make are needed.
PYTHON ?= python3
BIN := .venv/bin
SCHEDULES ?= 10000
KILLS ?= 10
KILLED ?= all
FUZZ ?= 10000
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: docs install run test test-deploy test-portable mutants lint accept bench studies clean

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) -e .
	touch $@

.venv/installed-dev: .venv/installed
	$(PIP) -e ".[nvflare,dev]"
	touch $@

.venv/installed-docs: .venv/installed
	$(PIP) -e ".[docs]"
	touch $@

.venv/installed-bench: .venv/installed-dev
	$(PIP) -e ".[bench]"
	touch $@

# A table of real engines, handled like anybody's: which way of sharing fits, what does it give each
# engine? A minute or so; ends with report.html.
run: install
	mkdir -p fedkin-runs
	$(BIN)/fedkin data export engines fedkin-runs/engines.csv
	$(BIN)/fedkin fit auto fedkin-runs/engines.csv --client engine --target sensor_7 --out fedkin-runs/engines
	cp fedkin-runs/engines/report.html report.html
	@echo "open report.html in a browser: $(CURDIR)/report.html"

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Three workers for two cores: tests of real federations begin first and mostly wait
# (tests/conftest.py). Of the tests of test-deploy it runs a short form.
test: lint
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# Deployment tests that take minutes: organisations on their kits alone, long schedules of faults, and
# kills of real processes under every method (a kill takes a quarter of a minute: an hour in all);
# more or fewer: make test-deploy SCHEDULES=100000 KILLS=2
test-deploy: .venv/installed-dev
	FEDKIN_SCHEDULES=$(SCHEDULES) FEDKIN_FUZZ=$(FUZZ) FEDKIN_KILLS=$(KILLS) FEDKIN_KILLED="$(KILLED)" \
	  $(BIN)/python -m pytest -m deploy tests/deployment

# Results must not hang on rounding: tests with the kernels of older processors (tests/portable.py);
# of some kernels and tests: make test-portable KERNELS="--kernel haswell-1" TESTS=tests/maths
test-portable: .venv/installed-dev
	$(BIN)/python -m tests.portable $(KERNELS) $(TESTS)

# Breaks one line of the mathematics at a time and sees whether a test notices (tests/mutants.py);
# a quarter of an hour, not part of CI; some of them by words of their names:
# make mutants MUTANTS="jitter BIC"
mutants: .venv/installed-dev
	$(BIN)/python -m tests.mutants $(MUTANTS)

# Runs the studies that promise something, says which promises hold, and fails if one does not;
# hours, as far as their rows in docs are not of this code. KEPT=--kept judges the rows that are there.
accept: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m reproduction accept $(KEPT)

# The documentation, without network, a warning is an error: docs/_build/html/index.html; runs the
# examples of the gallery, a minute or two.
docs: .venv/installed-docs
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo wrote docs/_build/html/index.html

# One table against peers and the scaling curves: benchmarks/results.md; a quarter of an hour on an
# idle machine, SIZE=--quick minutes.
bench: .venv/installed-bench
	$(BIN)/python -m benchmarks.run $(SIZE)

# Every table and figure of the papers, and the promises: docs/reproduction.md; hours at full size,
# SIZE=--quick minutes (into reproduction-run then: docs hold full-size rows).
studies: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m reproduction run all $(SIZE) $(if $(SIZE),,--out docs)

clean:
	rm -rf .venv report.html docs/_build docs/gallery docs/generated docs/api.md .pytest_cache .mypy_cache .ruff_cache .hypothesis
