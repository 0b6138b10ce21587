# Two commands do everything on a fresh machine: `make up` and `make test`.
# Empty: the default python3, or a faster build of it (clients/tools/find_python.py says which).
PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
# One more than two cores have work for: clusters and Spark make their tests wait half of the time.
JOBS ?= 3
# Hundreds of processes import the same modules: wherever this is set, each would compile them again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help up test java lint types layers unit campaign torture loadtest spark-cluster figures performance docs proto
.PHONY: performance-long bench-etcd profile pictures reference sync-client traces
.PHONY: clean sequences

help: ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 18

define environment
@command -v $(or $(PYTHON),python3) >/dev/null \
	|| { echo "$(or $(PYTHON),python3) is not installed; wbkv needs Python 3.11 or later"; exit 1; }
@test -x $(BIN)/python || { python="$(PYTHON)"; \
	test -n "$$python" || python=$$(python3 clients/tools/find_python.py) || exit 1; \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	|| { echo "wbkv needs Python 3.11 or later; set PYTHON=..."; exit 1; }; \
	$$python -m venv $(VENV); }
endef
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# What a cluster needs is a small part of everything: Spark alone has half a gigabyte.
$(VENV)/serving: pyproject.toml constraints.txt
	@echo "installing the server into $(VENV), once: about half a minute"
	$(environment)
	@$(INSTALL) -e '.[server,cli]'
	@touch $@

$(VENV)/installed: pyproject.toml constraints.txt
	@echo "installing the server, Spark and all tools into $(VENV), once: about two minutes and 1.5 GB"
	$(environment)
	@$(INSTALL) -e '.[dev]'
	@touch $(VENV)/serving $(VENV)/documenting $@

$(VENV)/documenting: pyproject.toml constraints.txt
	$(environment)
	@$(INSTALL) -e '.[docs]'
	@touch $@

up: $(VENV)/serving ## set up, and run a cluster of three nodes until Ctrl-C; its data stays in .wbkv
	@$(BIN)/wbkv up --nodes 3 --partitions 3

test: java lint types layers unit ## set up, and run every check

java: $(VENV)/installed
	@$(BIN)/python -m wbkv_pipeline.java --install

lint: $(VENV)/installed ## ruff: style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed ## mypy, strict
	$(BIN)/mypy

layers: $(VENV)/installed ## import-linter: which package may import which
	$(BIN)/lint-imports --no-cache

unit: java ## pytest: all tests
	$(BIN)/python -m pytest -n $(JOBS)

campaign: $(VENV)/installed ## many seeds of the simulator, for an hour or so
	$(BIN)/wbkv sim --groups 3 --replicas 3 --seeds 0:2000 --faults all
	$(BIN)/wbkv sim --groups 2 --replicas 5 --seeds 0:1000 --faults all
	$(BIN)/wbkv sim --groups 1 --replicas 3 --seeds 0:500 --faults all
	$(BIN)/wbkv sim --groups 6 --replicas 3 --seeds 0:500 --faults all
	$(BIN)/wbkv sim --protocol whitebox-everywhere --seeds 0:1000 --faults all
	$(BIN)/wbkv sim --protocol whitebox-everywhere --store bank --seeds 0:100
	$(BIN)/wbkv sim --protocol ftskeen --seeds 0:1000 --faults all
	$(BIN)/wbkv sim --protocol fastcast --seeds 0:1000 --faults all
	$(BIN)/wbkv sim --protocol fastcast --groups 2 --replicas 5 --seeds 0:500 --faults all
	$(BIN)/wbkv sim --protocol skeen --seeds 0:500 --faults all
	for workload in bank register counter append ring ranges recipes large; do \
		$(BIN)/wbkv sim --store $$workload --seeds 0:200 || exit 1; \
		$(BIN)/wbkv sim --store $$workload --seeds 0:50 --faults links || exit 1; \
		$(BIN)/wbkv sim --store $$workload --seeds 0:50 --faults clocks || exit 1; \
		$(BIN)/wbkv sim --store $$workload --groups 2 --replicas 5 --seeds 0:50 || exit 1; \
		$(BIN)/wbkv sim --store $$workload --groups 4 --seeds 0:50 || exit 1; \
	done
	WBKV_CAMPAIGN=1 $(BIN)/python -m pytest tests/pipeline tests/sim tests/unit/kvstore/storage tests/unit/kvstore/wire

torture: $(VENV)/installed ## random faults of a cluster of processes under load, for half an hour or so
	for seed in 1 2 3 4 5 6; do WBKV_TORTURE=300 WBKV_SEED=$$seed \
		$(BIN)/python -m pytest tests/faults/test_store_faults.py -k torture || exit 1; done

sequences: $(VENV)/installed ## pairs and triples of faults on real processes, for half an hour; goes on where it was
	$(BIN)/python -m tests.faults.campaign
	$(BIN)/python -m tests.faults.campaign --page

loadtest: java ## a short load on a cluster by Locust: totals checked, and a page that reports on it
	$(BIN)/python -m loadtests bank ycsb-b orders --users 20 --seconds 6 --processes 2 --set keys=500 --report

spark-cluster: java ## jobs on a Spark cluster whose executors have nothing of ours, for some minutes
	$(BIN)/python -m benchmarks.spark_cluster

figures: $(VENV)/installed ## the paper's experiments, for three quarters of an hour; goes on where it was
	$(BIN)/python -m benchmarks.paper all || test $$? -eq 1 # some points failed: the tables say which
	$(BIN)/python -m benchmarks.paper.beyond
	$(BIN)/python -m benchmarks.paper tables
	$(BIN)/python -m benchmarks.paper plots

performance: $(VENV)/installed ## the figures of docs/performance.md, for a quarter of an hour; goes on where it was
	$(BIN)/python -m benchmarks.suite

performance-long: java ## those of the Spark jobs, for half an hour
	$(BIN)/python -m benchmarks.suite --long

bench-etcd: $(VENV)/installed ## three nodes of etcd 3.4 beside three of ours, for ten minutes: into docs/performance.md
	@command -v etcd >/dev/null || { echo "etcd is not installed; on Debian: apt-get install etcd-server"; exit 1; }
	$(BIN)/python -m benchmarks.suite etcd --again
	$(BIN)/python -m benchmarks.comparison.plot

profile: $(VENV)/installed ## where the time of a transaction goes, by process and layer, for two minutes
	$(BIN)/python -m benchmarks.suite profile --again

CONVOY := build/convoy
pictures: $(VENV)/installed ## the pictures of docs/protocol.md and docs/convoy.md, from virtual time, for some minutes
	$(BIN)/python -m benchmarks.flows
	mkdir -p $(CONVOY)
	$(BIN)/wbkv bench convoy --json --messages 300 --workload pair > $(CONVOY)/pair.json
	$(BIN)/wbkv bench convoy --json --messages 300 --workload uneven > $(CONVOY)/uneven.json
	$(BIN)/wbkv bench convoy --json --messages 900 --workload random > $(CONVOY)/random.json
	for skew in 0 0.5; do $(BIN)/wbkv bench convoy --json --messages 300 --workload uneven \
		--protocols whitebox --clock hybrid --skew $$skew > $(CONVOY)/hybrid-$$skew.json || exit 1; done
	$(BIN)/python -m benchmarks.convoy_plot $(CONVOY)/pair.json $(CONVOY)/uneven.json $(CONVOY)/random.json \
		$(CONVOY)/hybrid-0.json $(CONVOY)/hybrid-0.5.json --out docs/images/convoy.svg

docs: $(VENV)/documenting ## the documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

traces: $(VENV)/installed ## the simulator's golden traces, after a change of behaviour that is meant
	$(BIN)/python -m tests.sim.traces

proto: $(VENV)/installed ## the wire formats' Python code, from proto/
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=proto --pyi_out=proto proto/wbkv_proto/*.proto
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=proto --pyi_out=proto --grpc_python_out=proto \
		proto/wbkv_proto/v1/*.proto

reference: ## the SDK's reference in docs/reference, from its docstrings
	$(or $(PYTHON),python3) clients/tools/reference.py

sync-client: $(VENV)/installed ## the client for threads, from the one for event loops
	$(BIN)/python clients/tools/sync_client.py

clean: ## remove what was built
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build/site
