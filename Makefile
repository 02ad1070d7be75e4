# Commands for developers; .ci/run uses the same ones.
#
#   make run      nsqcy up: nsqlookupd, nsqd, nsqadmin on 127.0.0.1; ARGS="--workers=4" adds flags
#   make test     all tests;  TESTS=tests/unit  some of them;  PYTEST="-k ring"  pytest options
#   make quick    the unit tests for the files changed since main;
#                 BASE=branch compares with a different branch;  ARGS=--list only lists them
#   make lint     ruff, mypy, cython-lint, stubtest, and a language check (release/language.py)
#   make debug    the tests on a build that checks invariants and counts live objects
#   make asan     the tests of the compiled parts, and the daemons that they start, under
#                 AddressSanitizer and UBSan;  TESTS="tests/daemon tests/conformance"  these instead
#   make fuzz     coverage-guided campaigns against every parser, a minute each (needs clang);
#                 ARGS="--minutes=10 --only=wire,headers --keep"
#   make simulate the copy state machine under 100 random fault schedules;
#                 ARGS="--schedules 100000"  more of them;  ARGS=--mutants  with each rule broken once
#   make cov      the tests on a traced build; coverage of .py and .pyx (make trace: the build only)
#   make bench    nsqd compared with other brokers, in 15 minutes: docs/BENCHMARKS.md;
#                 FULL=1 everything;  ARGS="speed" nsqd alone;  ARGS="--only latency" one scenario;
#                 ARGS="memory" memory per object;  ARGS="curves" cost against size, for the page;
#                 ARGS="clients" Python clients;  ARGS="tasks throughput" Celery on several brokers
#   make load     a minute of mixed load from locust on a private cluster: docs/LOADTEST.md;
#                 ARGS="--users=50 --shape=knee"
#   make upgrades  20 upgrades of one nsqd in place under the load of several client libraries:
#                 docs/LOADTEST.md;  ARGS="--upgrades=5 --to=/opt/nsqcy-2/bin/python --encoded"
#   make perfcheck  instructions per message, counted by valgrind, compared with the baseline;
#                 UPDATE=1 updates the baseline;  ARGS=--functions shows them by function
#   make soak     half an hour of chaos on a private cluster under load: docs/LOADTEST.md;
#                 ARGS="--minutes=10 --seed=7";  TESTS=tests/crash  the long tests in that directory,
#                 and 50 times as many runs with random input as in `make test`
#   make clients  install the npm packages that the tests of third-party clients need
#   make docs     the documentation site, in build/site; ARGS=serve serves it on 127.0.0.1:8000 and
#                 rebuilds it when files change
#   make dist     an sdist, and a wheel for each Python version, tested outside this tree without a
#                 compiler;  ARGS="3.12"  for some versions (docs/RELEASING.md)
#   make release  the same for x86_64 and aarch64, built twice with equal bytes; and SBOMs, release
#                 notes and checksums, all in dist/;  ARGS="3.12"  for some versions
#   make audit    known vulnerabilities in nsqcy's dependencies;  ARGS=--strict  as for a release
#   make conf     generate the samples in conf/ and the tables in docs/ (release/pages.py) from the
#                 option, metric, event and check tables; and copy the figures that
#                 `nsqcy capacity` uses from docs/benchmarks.json
#   make dev      install what `make quick` and the linters need, without Spark, browsers and locust
#   make clean    remove everything that was built or installed
#
# There is one build at a time, of type release, debug, trace, asan or fuzz. Changing the type
# cleans up first, because neither Cython nor distutils detects changed macros and directives.

PYTHON ?= $(shell for each in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$each && break; done)
KIND ?= release
CLANG ?= $(shell ls /usr/bin/clang /usr/bin/clang-[0-9]* 2>/dev/null | head -1)
TESTS ?= tests
BASE ?= main
JOBS := $(shell nproc 2>/dev/null || echo 2)

VENV := .venv
BIN := $(VENV)/bin
BUILT := build/$(KIND).built
SOURCES := setup.py $(wildcard cext/nsqcy/*/*.pyx cext/nsqcy/*/*.pxd cext/include/*.h cext/src/*.c)
STUBS := $(subst /,.,$(basename $(wildcard nsqcy/*/*.pyi)))

env_release :=
env_debug := NSQCY_DEBUG=1
env_trace := NSQCY_TRACE=1
env_asan := NSQCY_ASAN=1 NSQCY_DEBUG=1
env_fuzz := NSQCY_FUZZ=1 NSQCY_DEBUG=1 CC=$(CLANG) LDSHARED="$(CLANG) -shared"
BUILD_ENV := $(env_$(KIND))
PIP := $(BIN)/python -W ignore -m pip install -q --disable-pip-version-check

# The tests start thousands of daemons. If PYTHONDONTWRITEBYTECODE were set, each process would
# recompile every module, which takes a third of the startup time.
export PYTHONDONTWRITEBYTECODE :=

.DELETE_ON_ERROR:
.PHONY: run test quick simulate lint audit clients debug asan fuzz trace cov bench load upgrades perfcheck soak dist release docs conf dev build stubtest clean clean-build

# -- setting up

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The packages that setup.py itself needs; a Python 3.11 venv comes with older versions.
$(VENV)/.tools: | $(BIN)/python
	$(PIP) "pip>=25.1" "setuptools>=77.0.3" "Cython>=3.1,<4"
	@touch $@

$(BUILT): $(SOURCES) $(VENV)/.tools
	@for other in $(filter-out $@,$(wildcard build/*.built)); do \
		echo "was $$other: cleaning"; $(MAKE) --no-print-directory clean-build; break; done
	@mkdir -p build
	@echo "compiling cext/ ($(KIND)): about a minute"
	@$(BUILD_ENV) $(BIN)/python setup.py -q build_ext --inplace > build/log 2>&1 || { cat build/log; exit 1; }
	@touch $@

build: $(BUILT)

# An editable install of the package and its dependencies; the extension modules are already built.
INSTALL = NSQCY_BUILT=1 $(PIP) --no-build-isolation -e

$(VENV)/.run: pyproject.toml | $(BUILT)
	$(INSTALL) .
	@touch $@

$(VENV)/.extra-%: pyproject.toml | $(BUILT)
	$(INSTALL) ".[$*]"
	@touch $(VENV)/.run $@

dev: $(BUILT) $(VENV)/.extra-dev

# -- running

run: $(BUILT) $(VENV)/.run
	@exec $(BIN)/nsqcy up --config=conf/dev.ini $(ARGS)

bench: $(BUILT) $(VENV)/.run $(if $(filter clients,$(ARGS)),$(VENV)/.extra-load)
	$(BIN)/python -m loadtest.bench $(or $(ARGS),all) $(if $(FULL),--full)

load: $(BUILT) $(VENV)/.run $(VENV)/.extra-load
	$(BIN)/python -m loadtest.swarm $(ARGS)

upgrades: $(BUILT) $(VENV)/.extra-test node_modules/.ready
	$(BIN)/python -m loadtest.upgrades $(ARGS)

# Needs valgrind. It measures the release build, so a build of a different type is cleaned first.
perfcheck: $(BUILT) $(VENV)/.run
	$(BIN)/python -m loadtest.perfcheck $(if $(UPDATE),--update) $(ARGS)

# -- testing

# Most tests spend most of their time waiting. PYTEST=-n0 runs them one after the other.
test: $(BUILT) $(VENV)/.extra-test
	$(BIN)/python -m pytest -n $$(($(JOBS) + 2)) --dist worksteal $(TESTS) $(PYTEST)

quick: $(BUILT) $(VENV)/.extra-dev
	$(BIN)/python tests/quick.py --base=$(BASE) -n $(JOBS) --dist worksteal $(ARGS) $(PYTEST)

soak: $(BUILT) $(VENV)/.extra-test
ifeq ($(origin TESTS),file)
	$(BIN)/python -m loadtest.chaos $(ARGS)
else
	NSQCY_RUNS=$${NSQCY_RUNS:-50} $(BIN)/python -m pytest $(TESTS) \
		-m "soak or random or hypothesis" --timeout=7200 $(PYTEST)
endif

clients: node_modules/.ready
	@test -d node_modules/nsq-strategies || \
		echo "nsq-strategies is not in the npm registry: its tests are skipped"

# One command for all packages, because npm removes what an earlier --no-save installed.
node_modules/.ready: Makefile
	npm install --prefix "$(CURDIR)" --no-save --no-package-lock --no-audit --no-fund \
		--loglevel=error nsqjs@0.13.0 squeaky@2.6.0 nest-nsq-transport@0.4.0 \
		@nestjs/common@11.2.10 @nestjs/core@11.2.10 @nestjs/microservices@11.2.6 \
		reflect-metadata@0.2.2 rxjs@7.8.2 \
		$$(npm view nsq-strategies@2 name > /dev/null 2>&1 && echo nsq-strategies@2)
	@touch $@

debug:
	$(MAKE) KIND=debug test

# Python's own allocator would hide errors, and Python leaks deliberately at exit. Reports go to
# files, because tests capture the output of their process, and fixtures capture their daemon's. A
# greenlet's stack can only be unwound by frame pointers: docs/internals/testing.md.
REPORTS := $(CURDIR)/build/sanitizer
SAYING = fast_unwind_on_fatal=1:log_path=$(REPORTS)/report
ASAN_LIBRARIES = $$($(CC) -print-file-name=libasan.so) $(CURDIR)/build/ubsan_report.so \
	$$($(CC) -print-file-name=libubsan.so)
ASAN_RUN = LD_PRELOAD="$(ASAN_LIBRARIES)" PYTHONMALLOC=malloc \
	ASAN_OPTIONS=detect_leaks=0:$(SAYING) \
	UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1:$(SAYING)
ASAN_TESTS = $(or $(filter-out tests,$(TESTS)),tests/unit tests/fuzz tests/golden tests/process)

build/ubsan_report.so: tests/support/ubsan_report.c
	@mkdir -p build
	$(CC) -O1 -Wall -fPIC -shared -o $@ $<

# A report makes this fail even if no test fails, because nsqd restarts a worker that dies.
asan: build/ubsan_report.so
	$(MAKE) KIND=asan $(BUILT:$(KIND).built=asan.built) $(VENV)/.extra-test
	@rm -rf $(REPORTS) && mkdir -p $(REPORTS)
	code=0; $(ASAN_RUN) $(BIN)/python -m pytest --timeout=1200 -o faulthandler_timeout=600 $(ASAN_TESTS) $(PYTEST) || code=$$?; \
	for report in $$(ls $(REPORTS)); do code=1; echo "== $(REPORTS)/$$report"; cat $(REPORTS)/$$report; done; \
	exit $$code

# With -shared, clang links no sanitizer runtime of its own, so only the one from atheris is used.
fuzz:
	@test -n "$(CLANG)" || { echo "clang is needed: make fuzz CLANG=..."; exit 1; }
	$(MAKE) KIND=fuzz build/fuzz.built $(VENV)/.extra-test $(VENV)/.extra-fuzz
	PYTHONPATH="$(CURDIR):$(CURDIR)/tests" $(BIN)/python -m fuzz.campaign $(ARGS)

simulate: $(BUILT)
	PYTHONPATH="$(CURDIR):$(CURDIR)/tests" $(BIN)/python -m simulation $(ARGS)

trace:
	$(MAKE) KIND=trace build

# The path is for the plugin, tests/support/cython_coverage.py.
COVERAGE = PYTHONPATH="$(CURDIR)/tests" $(BIN)/coverage

cov: trace
	$(MAKE) KIND=trace $(VENV)/.extra-cov
	$(COVERAGE) run -m pytest $(TESTS) $(PYTEST)
	$(COVERAGE) combine
	$(COVERAGE) report

# -- checking

# mypy also reads the packages that `make test` installs.
lint: $(BUILT) $(VENV)/.extra-test $(VENV)/.extra-dev
	$(BIN)/ruff check -q .
	$(BIN)/ruff format -q --check .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cython-lint cext/nsqcy
	$(BIN)/mypy
	$(BIN)/mypy --strict $(wildcard examples/*.py)
	$(BIN)/python -m release.language
	@$(MAKE) --no-print-directory stubtest

# Compare the stubs with the build: names, signatures, completeness.
stubtest:
	$(BIN)/python -m mypy.stubtest --ignore-disjoint-bases --mypy-config-file pyproject.toml \
		--allowlist tests/meta/stubtest.allow $(STUBS)

# Without network access, checks that need it do not fail, except with ARGS=--strict.
audit: $(BUILT) $(VENV)/.extra-audit
	$(BIN)/python -m release.audit $(ARGS)

# -- making

conf: $(BUILT) $(VENV)/.extra-test
	$(BIN)/python -m nsqcy config sample nsqd > conf/nsqd.ini
	$(BIN)/python -m nsqcy config sample nsqlookupd > conf/nsqlookupd.ini
	$(BIN)/python -m nsqcy config sample nsqadmin > conf/nsqadmin.ini
	$(BIN)/python -m release.pages
	$(BIN)/python -m release.command_help
	$(BIN)/python -m loadtest.bench.measured

# Fails on a dead link, and on a page that the navigation does not list (mkdocs.yml).
docs: $(BUILT) $(VENV)/.extra-docs
	PYTHONPATH="$(CURDIR)" NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs $(or $(ARGS),build) -q

# Wheels are compiled from a copy, with their own compiler: the build in this tree does not change.
dist: $(BUILT) $(VENV)/.extra-test $(VENV)/.extra-dist
	$(BIN)/python -m release.build $(ARGS)
	$(BIN)/python -m pytest -m dist -s tests/wheels $(PYTEST)

release: $(BUILT) $(VENV)/.extra-test $(VENV)/.extra-dist
	$(BIN)/python -m release.assemble $(ARGS)
	$(BIN)/python -m pytest -m dist -s tests/wheels $(PYTEST)

clean-build:
	rm -rf build/cython build/temp.* build/lib.* build/*.built
	rm -f nsqcy/*/*.so cext/nsqcy/*/*.c cext/nsqcy/*/*.html

clean: clean-build
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
	rm -rf $(VENV) node_modules
