# Every target first makes .venv from pinned versions, once; nothing has to be installed by hand.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.stamp
PIP := -m pip --quiet --disable-pip-version-check
PIP_INSTALL := $(PY) $(PIP) install -c constraints.txt
COMPILED := .venv-compiled

# The tests start thousands of processes. With this variable each would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

# The folder of a torch that $(PYTHON) already has, such as a GPU build; it is used then. Empty if there is none: the
# pinned one is installed.
TORCH_AT = $(shell $(PYTHON) -c 'import importlib.util as u, pathlib as p; \
	s = u.find_spec("torch"); print(p.Path(s.origin).parents[1] if s and s.origin else "")')

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv fuzz test test-exhaustive test-engines test-cluster test-wheel compiled test-compiled lint format types docs examples bench clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' Makefile

venv: $(STAMP) ## make .venv (PYTHON=... picks the interpreter)

$(PY):
	@echo 'Making $(VENV): about a minute, once.'
	$(PYTHON) -m venv $(if $(TORCH_AT),--system-site-packages) $(VENV)
	$(if $(TORCH_AT),echo '$(TORCH_AT)' > $(VENV)/lib/$$(ls $(VENV)/lib)/site-packages/torch.pth)

$(STAMP): pyproject.toml setup.py constraints.txt | $(PY)
	$(PIP_INSTALL) setuptools
	$(PIP_INSTALL) --no-build-isolation -e '.[dev]' \
		$$(test -e $(VENV)/lib/*/site-packages/torch.pth || echo torch $(if $(filter Linux,$(shell uname)),triton))
	touch $@

fuzz: $(STAMP) ## fuzz the built-in target for a minute
	$(VENV)/bin/hybridfuzz fuzz --time 60s

test: $(STAMP) ## the tests that need no engine
	$(PY) -m pytest -n auto

test-exhaustive: $(STAMP) ## those that show at length what the others show
	$(PY) -m pytest -m exhaustive -n 2 --dist loadfile

test-engines: $(STAMP) ## the tests that drive real engines
	$(PY) -m pytest -m 'engine and not exhaustive' -n 2 --dist loadfile

# Only these need Ray.
$(VENV)/.cluster-stamp: $(STAMP)
	$(PIP_INSTALL) --no-build-isolation -e '.[cluster]'
	touch $@

test-cluster: $(VENV)/.cluster-stamp ## drills on a Ray cluster of this machine
	$(PY) -m pytest -m cluster tests/harness/workers/cluster

test-wheel: $(STAMP) ## the installed wheel in an empty environment, from an empty folder
	$(PY) -m pytest -m wheel tests/test_packaging.py

# A wheel in an environment of its own: an extension beside a source that is edited would win over it.
$(COMPILED)/.stamp: $(STAMP) $(wildcard *.py) $(shell find harness reference targets -name '*.py')
	@echo 'Compiling into $(COMPILED): two minutes.'
	rm -rf build/lib* build/temp* build/wheel $(COMPILED)
	HYBRIDFUZZ_COMPILE=1 $(PY) $(PIP) wheel --no-build-isolation --no-deps --wheel-dir build/wheel .
	$(PYTHON) -m venv $(COMPILED)
	$(COMPILED)/bin/python $(PIP) install -c constraints.txt build/wheel/*.whl
	touch $@

compiled: $(COMPILED)/.stamp ## make .venv-compiled, with the hot modules in C (needs a C compiler)

test-compiled: $(COMPILED)/.stamp ## the tests of the compiled build
	$(PY) -m pytest -m compiled tests/test_compiled.py

lint: $(STAMP) ## ruff: rules and format
	$(PY) -m ruff check
	$(PY) -m ruff format --check

format: $(STAMP) ## ruff: fix what it can
	$(PY) -m ruff check --fix
	$(PY) -m ruff format

types: $(STAMP) ## mypy, strict
	$(PY) -m mypy

# Only this needs the site's packages: `make fuzz` on a fresh machine does not wait for them.
$(VENV)/.docs-stamp: $(STAMP)
	$(PIP_INSTALL) --no-build-isolation -e '.[docs]'
	touch $@

docs: $(VENV)/.docs-stamp ## the documentation as a site, in build/site (a broken link fails)
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict # not --quiet: MkDocs would not count the warnings

# A campaign that finds something ends with 1.
examples: $(STAMP) ## a bug report and the page of a campaign, in build/examples
	rm -rf build/examples
	$(PY) docs/example_reports.py hybrid
	$(VENV)/bin/hybridfuzz fuzz --target hybrid:finished-row-not-cleared --traces 200 -o build/examples/campaign || test $$? -eq 1

bench: $(STAMP) ## the figures in the documentation
	$(PY) benchmarks/run.py

clean: ## remove .venv, builds and caches (reports stay)
	rm -rf $(VENV) $(COMPILED) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
