# `make demo` and `make test` work on a bare checkout: they create $(VENV), install and run.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# Any argument of pip, for example PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu" for the CPU build of torch.
PIP_ARGS ?=
# Test processes; a file stays in one, with what it has set up. In the order of their names: by the number of tests, long files of few
# tests came last, and one process waited for the other.
JOBS ?= 2
SPREAD = -n $(JOBS) --dist loadfile --no-loadscope-reorder

.PHONY: help demo test test-slow screenshots lint check matrix lowest bench soak lines mutate golden golden-all clean

help:
	@echo "make demo       capture, replay, load and show, on the model that ships with tokentape"
	@echo "make test       the tests; test-slow adds the long ones"
	@echo "make screenshots  every page of the tests' warehouse at three widths, into build/screenshots"
	@echo "make lint       ruff and mypy"
	@echo "make check      lint + test: what CI runs"
	@echo "make matrix     the tests under every Python from 3.11 to 3.14 that is installed"
	@echo "make lowest     the tests with the oldest releases that pyproject.toml allows; needs uv"
	@echo "make bench      speed, last line JSON"
	@echo "make soak       kills, full disks, second writers, rot over every command, in a folder and on S3: SOAK_MINUTES=45 SOAK_SEED=0"
	@echo "make lines      lines of Python by room, product and tests"
	@echo "make mutate     whether the tests notice a wrong line: FILES=\"hw/clock.py policies/lru.py\" SITES=30"
	@echo "make golden     print the golden counts of the tests, as golden_hits.toml has them"
	@echo "make golden-all whether another revision makes the same numbers: BASE=main [NEW=...] [LIVE=1] [PARTS=demo,kelle]"
	@echo "make clean      remove $(VENV) and caches; tapes and results stay"

# One stamp per set of extras; a changed pyproject.toml installs again.
$(VENV)/installed-%: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tokentape needs Python 3.11 or later; set PYTHON=")'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -e '.[$*]'
	touch $@

demo: $(VENV)/installed-all
	$(BIN)/tokentape demo

# One thread each: as many processes as cores are at work already. Commands that tests start use what the ones before compiled.
test test-slow screenshots: export OMP_NUM_THREADS = 1
test test-slow screenshots bench: export PYTHONDONTWRITEBYTECODE =

test: $(VENV)/installed-test
	$(BIN)/python -m pytest $(SPREAD)

test-slow: $(VENV)/installed-test
	$(BIN)/python -m pytest $(SPREAD) -m ""

screenshots: $(VENV)/installed-test
	mkdir -p build/screenshots
	SCREENSHOTS=build/screenshots $(BIN)/python -m pytest tests/dashboards/test_browser.py -k draws_in_silence_on

# mypy finds packages by folders, not by setup.py: .links/tokentape has the rooms where they are installed.
ROOMS = $(shell sed -n '/^rooms = /s/[^a-z ]//gp' pyproject.toml | cut -d' ' -f3-)

.links:
	mkdir -p .links/tokentape
	ln -sfn $(foreach name,$(ROOMS) $(wildcard tokentape/*.py),../../$(name)) .links/tokentape

lint: $(VENV)/installed-test .links
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint test

matrix:
	@for version in 3.11 3.12 3.13 3.14; do \
	  if command -v python$$version >/dev/null; then $(MAKE) test PYTHON=python$$version VENV=.venv-$$version || exit 1; \
	  else echo "python$$version is not installed: left out"; fi; done

lowest:
	uv venv --quiet --allow-existing --seed .venv-lowest
	uv pip install --quiet --python .venv-lowest --resolution lowest-direct -e '.[test]'
	touch .venv-lowest/installed-test
	$(MAKE) test VENV=.venv-lowest

bench: $(VENV)/installed-test
	@$(BIN)/python -m bench

# A loss is repeated by its seed and round: python -m bench.soak --seed SEED --rounds N:N+1
SOAK_MINUTES ?= 45
SOAK_SEED ?= 0

soak: $(VENV)/installed-test
	@$(BIN)/python -m bench.soak --minutes $(SOAK_MINUTES) --seed $(SOAK_SEED)

lines:
	@$(PYTHON) -m bench.lines

# What docs/development.md scores, unless FILES says otherwise.
FILES ?= hw/clock.py warehouse/load.py warehouse/tape.py
SITES ?= 30

mutate: $(VENV)/installed-mutate
	@$(BIN)/python -m bench.mutate $(FILES) --sites $(SITES)

golden: $(VENV)/installed-test
	@cd tests/policies && PYTHONPATH=.. ../../$(BIN)/python -c "import test_caches as t; [print(name, '=', hits) for name, hits in t.golden_counts().items()]"

# The working tree beside BASE, unless NEW names a revision. LIVE=1 measures inside the live model too, at the smallest size.
BASE ?= HEAD
NEW ?=
LIVE ?=
PARTS ?=

golden-all: $(VENV)/installed-all
	@$(BIN)/python -m bench.golden_all --base "$(BASE)" $(if $(NEW),--new "$(NEW)") $(if $(LIVE),--live) $(if $(PARTS),--parts $(PARTS)) --workers $(JOBS)

clean:
	rm -rf $(VENV) .venv-3.* build *.egg-info .pytest_cache .mypy_cache .links .ruff_cache .hypothesis
