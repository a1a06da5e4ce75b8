# Everything happens in .venv; a second call finds its stamp there and starts at once.
#   make lab       install, and open JupyterLab on your own copy of the first chapter
#   make check     lint, types, and every test that starts no process: minutes
#   make test      that, and real ranks, every chapter run in full, and what changed in a browser: 20 to 35 minutes on two cores
#   make test-all  everything: chaos, the whole zoo, all chapters in a browser, nbgrader, README's commands; hours
#   make test-gpu  what only a GPU can show, in under five minutes; README has the table to fill in
#   make install   only install
#   make outputs CHAPTER=3   execute a chapter in place, or all of them: for those who write the book
#   make course    write the pages that are made from the course file
# Another interpreter: make PYTHON=python3.12 install

# Hundreds of processes import the same modules: their bytecode is kept, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
PYTEST := $(PY) -m pytest --nbval-lax --nbval-current-env --nbval-cell-timeout=120
INSTALLED := $(VENV)/.installed
TESTABLE := $(VENV)/.testable
PLACE := $(VENV)/.place
NBGRADER := $(VENV)/nbgrader
CODE := $(wildcard labkit tests notebooks exercises solutions)
# Two lanes; a file, or a notebook, is never divided.
LANES := -n 2 --dist loadfile --no-loadscope-reorder
ALL := $(wildcard notebooks) tests

# An environment that was moved or copied with its folder still points to the old one: make it anew.
ifneq ($(wildcard $(PLACE)),)
ifneq ($(shell cat $(PLACE)),$(CURDIR))
.PHONY: $(PY)
endif
endif

.DEFAULT_GOAL := help
CHAPTER ?=
.PHONY: help install lab outputs course check test test-all test-gpu again lint format newcomer bench nbgrader clean

help:
	@sed -n '2,10s/^# *//p' Makefile

install: $(INSTALLED)

lab: $(INSTALLED)
	@$(PY) -m labkit.cli lab

outputs: $(TESTABLE)
	@$(PY) -m labkit.commands.outputs $(CHAPTER)

course: $(INSTALLED)
	@$(PY) -m labkit.course.build

check: lint
	$(PYTEST) $(LANES) -m "not ranks and not long" tests

test: lint
	@rm -f $(VENV)/.outcome
	@outcome=0; $(PYTEST) $(LANES) -m "not long" $(ALL) || outcome=$$?; echo $$outcome > $(VENV)/.outcome; exit $$outcome

# ONLY=tests/grading: the long lane of one room.
ONLY ?= $(ALL)
test-all: lint nbgrader
	LABKIT_LONG=1 $(PYTEST) $(LANES) $(ONLY)

test-gpu: $(TESTABLE)
	$(PY) -m pytest -v --durations=0 -m gpu tests/wire

again: $(TESTABLE)
	$(PYTEST) -m "not long" $(FILES)

lint: $(TESTABLE)
	$(PY) -m ruff check $(CODE)
	$(PY) -m ruff format --check $(CODE)
	$(PY) -m mypy

format: $(TESTABLE)
	$(PY) -m ruff check --fix $(CODE)
	$(PY) -m ruff format $(CODE)

# Every command of README.md and INSTRUCTORS.md, on a fresh clone of what is committed.
newcomer: $(TESTABLE)
	$(PY) -m pytest --durations=0 -v tests/newcomer

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
