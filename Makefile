# The verbs of this repository. Each makes its own virtual environment from requirements.lock; repeat runs are quick.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: man help demo test test-fast lint docs browse format test-servers test-terraform test-spark-alone crash crash-matrix chaos explore
.PHONY: spark-restarts spark-kills sim mutants cases bench wheels release-check clean setup

VENV   ?= .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.stamp

REMOTE   ?=
ENDPOINT ?=
KEEP     ?=
FAST     ?=
ROUNDS   ?=
WORKERS  ?= 2
# They run a second time without the compiled kernels: whatever encodes and decodes records on this disk.
PURE_TESTS := tests/unit/format tests/unit/local tests/property tests/crash
# Coverage costs a third of the time: it is measured on request.
COV      ?=

help:  ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## make .venv from requirements.lock, and the compiled kernels in place (done by every other target)

$(STAMP): requirements.lock pyproject.toml scripts/setup hatch_build.py $(wildcard tiered/format/*.pyx tiered/format/*.pxi)
	@VENV="$(VENV)" scripts/setup

demo: $(STAMP)  ## the main job end to end, then a stream on Spark; on an embedded store (FAST=1 leaves Spark out, REMOTE=s3://bucket/prefix ENDPOINT=http://... for another store, KEEP=1 keeps it)
	@$(if $(FAST),,scripts/java-check)
	@$(PY) -m demo $(if $(FAST),--fast) $(if $(REMOTE),--remote "$(REMOTE)") $(if $(ENDPOINT),--endpoint-url "$(ENDPOINT)") $(if $(KEEP),--keep)

test: $(STAMP)  ## all tests that need no server of their own, on two processes, then those of the pure kernels (WORKERS=n; COV=1 measures coverage)
	@scripts/java-check
	@TIERED_REQUIRE_EXTENSION=1 scripts/quick-temp $(PY) -m pytest -m "not servers" -q -n $(WORKERS) $(if $(CI),--tb=short) \
	  $(if $(COV),--cov --cov-report=)
	@TIERED_NO_EXTENSION=1 scripts/quick-temp $(PY) -m pytest -m "not servers" -q -n $(WORKERS) $(if $(CI),--tb=short) $(PURE_TESTS) \
	  $(if $(COV),--cov --cov-append --cov-report=term:skip-covered --cov-report=html:build/coverage)

test-fast: $(STAMP)  ## the tests that mirror the product, without Java, servers, builds and long histories (about three minutes on two cores)
	@scripts/quick-temp $(PY) -m pytest tests/unit -m "not servers and not spark and not long" --ignore tests/unit/house/test_build.py -q -n $(WORKERS)

lint: $(STAMP)  ## ruff, mypy --strict, import-linter, tidiness, wording, the table of mutants
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports --no-cache
	@$(PY) scripts/tidy.py
	@$(PY) scripts/words.py
	@$(PY) scripts/mutants.py --check

docs: $(STAMP)  ## the site in build/site; a broken link or block of a page fails it
	@VENV="$(VENV)" scripts/docs

browse: docs  ## look at each page of the site in headless Chromium: width, copy buttons, search
	@$(PY) scripts/browse.py

man: $(STAMP)  ## man pages of all commands in build/man, from their --help
	@$(PY) scripts/man_pages.py build/man

format: $(STAMP)  ## let ruff format the tree
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/ruff check --fix .

test-servers: $(STAMP)  ## the contract on real MinIO, SeaweedFS and LocalStack, and files against a real Kafka (REMOTE=s3://bucket/prefix: on your bucket, below a new prefix that is deleted afterwards)
ifdef REMOTE
	@TIERED_TEST_REMOTE="$(REMOTE)" TIERED_TEST_ENDPOINT="$(ENDPOINT)" $(PY) -m pytest -m servers tests/integration/servers/test_remote.py -q
else
	@localstack/setup
	@$(PY) -m pytest -m servers tests/integration tests/damage -q
endif

test-terraform:  ## validate, test and apply the modules against a local endpoint
	@$(MAKE) --no-print-directory $(STAMP)
	@terraform/test

cases: $(STAMP)  ## the acceptance cases of Kafka's log, and which of them pass
	@$(PY) scripts/cases.py --run

test-spark-alone: $(STAMP)  ## all verbs of tiered spark in an environment that has tieredlog[spark] and nothing else
	@scripts/java-check
	@scripts/spark-alone

crash: $(STAMP)  ## an exception at every instruction of a call, and 5,000 signals at random instants (long; `make test` runs a sample)
	@TIERED_INSTANTS=all $(PY) -m pytest -m crash -q tests/crash

crash-matrix: $(STAMP)  ## every call of every operation cut short and failed (minutes; SEED=n repeats a run)
	@TIERED_CRASH_MATRIX=all TIERED_CRASH_SEED=$(if $(SEED),$(SEED),random) scripts/quick-temp $(PY) -m pytest -q -o timeout=1800 tests/crash/matrix

spark-restarts: $(STAMP)  ## a stream into the sink whose driver is killed at nine points, then its workers (EACH=n kills a point, WORKERS_KILLED=n, ROWS=steady, SEED=n)
	@scripts/java-check
	@$(PY) -m tests.spark.restarts --each $(if $(EACH),$(EACH),1) --workers $(if $(WORKERS_KILLED),$(WORKERS_KILLED),1) $(if $(ROWS),--rows $(ROWS)) $(if $(SEED),--seed $(SEED))

spark-kills: $(STAMP)  ## each Spark job, its driver killed at random, then run again and compared (EACH=n kills a job, SEED=n)
	@scripts/java-check
	@$(PY) -m tests.spark.kills --each $(if $(EACH),$(EACH),1) $(if $(SEED),--seed $(SEED))

chaos: $(STAMP)  ## processes behind a network that breaks requests, killed and stopped at random (MINUTES=10, STORE=minio, SEED=n)
	@$(PY) -m tests.chaos $(if $(MINUTES),--minutes $(MINUTES)) $(if $(STORE),--store $(STORE)) $(if $(SEED),--seed $(SEED))
	@$(PY) -m tests.chaos.groups $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

explore: $(STAMP)  ## every interleaving of the protocol's requests within a bound (minutes; FAULTS=n and BOUND=states go deeper, SCENE=name)
	@$(PY) -m tests.explore $(if $(FAULTS),--faults $(FAULTS)) $(if $(BOUND),--bound $(BOUND)) $(if $(SCENE),--scene $(SCENE))

sim: $(STAMP)  ## seeds of the simulation (SEEDS=0-199; WORLD=tiers for both tiers, WORLD=groups, instead of the bucket; TRACE=1)
	@$(PY) -m tests.sim $(if $(SEEDS),$(SEEDS),0-199) --world $(if $(WORLD),$(WORLD),bucket) --workers $(WORKERS) $(if $(TRACE),--trace)

mutants: $(STAMP)  ## break one guard of the protocol or of the disk at a time and see a test fail (ONLY=part of a name)
	@$(PY) scripts/mutants.py $(ONLY)

bench: $(STAMP)  ## figures beside aiokafka, confluent-kafka and plain boto3, as ratios inside one run, with a picture in build/bench (SHORT=1: what CI looks at; GATE=1 fails below 75 % of the recorded ratio, or below parity where more is promised; RECORD=1 records)
	@$(PY) -m bench $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SHORT),--short) $(if $(GATE),--gate) $(if $(RECORD),--record)

wheels: $(STAMP)  ## wheels with compiled kernels in dist, one for each of PYTHONS that is found (default: 3.11 3.12 3.13)
	@scripts/wheels $(PYTHONS)

release-check: wheels  ## the wheels in fresh environments: version, contents, README, format 1, an upgrade and its rollback
	@$(PY) scripts/release_check.py $(PYTHONS)

clean:  ## remove everything that the other targets made, .venv and caches included
	@rm -rf $(VENV) build dist .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis htmlcov .coverage
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
