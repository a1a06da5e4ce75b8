# Everything happens in .venv; a second call finds its stamp there and starts at once.
#   make lab       install, and open JupyterLab on your own copy of the first chapter
#   make test      install what tests need; lint, type check, tests, and the chapters run in full
#   make install   only install
#   make outputs CHAPTER=3   execute a chapter in place, or all of them: for those who write the book
#   make course    write the pages that are made from the course file
# Another interpreter: make PYTHON=python3.12 install

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
PYTEST := $(PY) -m pytest -m "not chaos and not mutants" --nbval-lax --nbval-current-env --nbval-cell-timeout=120
INSTALLED := $(VENV)/.installed
TESTABLE := $(VENV)/.testable
PLACE := $(VENV)/.place
NBGRADER := $(VENV)/nbgrader
CHAPTERS := $(wildcard notebooks)
CODE := $(wildcard labkit tests notebooks exercises solutions)
# Tests that look at all processes and all shared memory of this machine run by themselves; the others in two lanes,
# the longest files first. A file, or a notebook, is never divided.
ALONE := $(wildcard tests/world tests/wire tests/chaos)
LONG := $(wildcard tests/browser tests/grading)
SHORT := $(filter-out $(ALONE) $(LONG) tests/__pycache__ tests/conftest.py tests/leftovers.py,$(wildcard tests/*))
LANES := -n 2 --dist loadfile --no-loadscope-reorder

# An environment that was moved or copied with its folder still points to the old one: make it anew.
ifneq ($(wildcard $(PLACE)),)
ifneq ($(shell cat $(PLACE)),$(CURDIR))
.PHONY: $(PY)
endif
endif

.DEFAULT_GOAL := help
CHAPTER ?=
.PHONY: help install lab outputs course test again lint format bench browser chaos mutants newcomer nbgrader clean

help:
	@sed -n '2,7s/^# *//p' Makefile

install: $(INSTALLED)

lab: $(INSTALLED)
	@$(PY) -m labkit.cli lab

outputs: $(TESTABLE)
	@$(PY) -m labkit.commands.outputs $(CHAPTER)

course: $(INSTALLED)
	@$(PY) -m labkit.course.build

test: lint
	@rm -f $(VENV)/.outcome
	@alone=0; $(PYTEST) $(ALONE) || alone=$$?; \
	  lanes=0; $(PYTEST) $(LANES) $(LONG) $(CHAPTERS) $(SHORT) || lanes=$$?; \
	  outcome=$$(( alone > lanes ? alone : lanes )); echo $$outcome > $(VENV)/.outcome; exit $$outcome

again: $(TESTABLE)
	$(PYTEST) $(FILES)

lint: $(TESTABLE)
	$(PY) -m ruff check $(CODE)
	$(PY) -m ruff format --check $(CODE)
	$(PY) -m mypy

format: $(TESTABLE)
	$(PY) -m ruff check --fix $(CODE)
	$(PY) -m ruff format $(CODE)

# The long list of seeded failures, of which `make test` runs a slice.
chaos: $(TESTABLE)
	$(PY) -m pytest -m chaos tests

# Every chapter in JupyterLab; `make test` opens the three that changed last.
browser: $(TESTABLE)
	LABKIT_BROWSER=all $(PY) -m pytest tests/browser

# Every wrong and every right answer in the zoo of the exercises, at all world sizes.
mutants: $(TESTABLE)
	$(PY) -m pytest -m mutants tests/grading

# Every command of README.md and INSTRUCTORS.md, on a fresh clone of what is committed.
newcomer: $(TESTABLE)
	$(PY) -m pytest -m newcomer --durations=0 -v tests/newcomer

# The same notebooks in nbgrader itself. It gets an environment of its own, which sees this one's packages through a .pth file.
nbgrader: $(TESTABLE) $(NBGRADER)/.installed
	$(NBGRADER)/bin/python -m pytest tests/grading/test_release_nbgrader.py

$(NBGRADER)/.installed: constraints.txt
	$(PY) -m venv --without-pip $(NBGRADER)
	$(NBGRADER)/bin/python -c 'import sys, sysconfig, pathlib; \
	  pathlib.Path(sysconfig.get_path("purelib"), "labkit.pth").write_text(f"import site; site.addsitedir({sys.argv[1]!r})\n")' \
	  "$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
	$(NBGRADER)/bin/python -m pip --disable-pip-version-check install "nbgrader==0.9.6" -c constraints.txt
	@touch $@

bench: $(INSTALLED)
	$(PY) -m labkit.cli bench launch
	$(PY) -m labkit.cli bench collectives
	$(PY) -m labkit.cli bench trace

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): $(PY) pyproject.toml constraints.txt
	$(PIP) install -e . -c constraints.txt
	@touch $@

$(TESTABLE): $(PY) pyproject.toml constraints.txt
	$(PIP) install -e ".[test]" -c constraints.txt
	@touch $(INSTALLED) $@

# Some systems ship Python without ensurepip, which puts pip into a new environment; then the
# system's own pip does it.
$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "labkit needs Python 3.11 or newer, and '$(PYTHON)' is not: install one and say make PYTHON=python3.12" >&2; \
	  exit 1; }
	rm -rf $(VENV)
	@if $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then $(PYTHON) -m venv $(VENV); \
	else $(PYTHON) -m venv --without-pip $(VENV) && \
	  $(PYTHON) -m pip --python $(PY) install pip; fi || { rm -rf $(VENV); \
	  echo "could not make $(VENV): install venv and pip for $(PYTHON)," \
	    "on Debian or Ubuntu with: apt install python3-venv python3-pip" >&2; exit 1; }
	@pwd -P > $(PLACE)
