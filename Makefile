# VirtFleet. `make up` and `make test` are all that a newcomer needs; both install what is missing.
.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := .venv/bin
# Tests start clusters of their own; only `test-kube` takes the one that KUBECONFIG names.
PYTEST := env -u KUBECONFIG $(BIN)/python -m pytest
# What fails beside others and passes alone is written into tests/ledger.json, and fails the run the second time.
LANE := env -u KUBECONFIG $(BIN)/python scripts/lane
# Starting quickly needs compiled modules, whatever the caller's environment says.
unexport PYTHONDONTWRITEBYTECODE

# Of `make images`.
REGISTRY ?= docker.io/virtfleet

.PHONY: help bootstrap up down test whole test-fast quick test-kube conformance test-golden test-xen results lint bench docs site pages manifests images lock clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

bootstrap:  ## install what is missing (Debian packages, .venv)
	@scripts/bootstrap

up: bootstrap  ## start the local cluster, and guests on it
	@$(BIN)/virtfleet up --nodes examples/nodes.yaml --kubevirt examples/kubevirt.yaml
	@$(BIN)/virtfleet demo

down:  ## stop the local cluster
	@$(BIN)/virtfleet down

lint: bootstrap  ## style, types, import directions, links of the documentation
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@scripts/site

# Most tests wait, so lint goes on beside them.
test-fast: bootstrap  ## lint and every test that boots no VM, within two minutes
	@$(MAKE) --no-print-directory -j 2 lint quick

quick:
	@$(PYTEST) tests/unit tests/component -q -n 5 --dist worksteal --hypothesis-profile=fast -m "not slow and not vm"

# Clusters and VMs, each of two processes with clusters of its own, beside all other tests: each lane waits for much.
test: bootstrap  ## everything
	@$(MAKE) --no-print-directory -j 2 lint whole

whole:
	@$(LANE) tests/cluster tests/vm -q -n 2 --dist loadgroup -- tests/unit tests/component -q -n 2 --dist worksteal

# UPGRADE=1: from the version before to this one and back instead.
test-kube: bootstrap  ## the tests of clusters and VMs on the Kubernetes that KUBECONFIG names, with images of this tree
	@scripts/test-kube

# LABEL=sig-network, NAMES=REGEX: only those; NEW=1: only what has not passed yet; SLICE=1: a few minutes, and a verdict.
conformance: bootstrap  ## KubeVirt's own tests on the Kubernetes that KUBECONFIG names; writes docs/conformance.md
	@$(BIN)/python -m conformance $(if $(LABEL),--label $(LABEL)) $(if $(NAMES),--names '$(NAMES)') $(if $(NEW),--new) $(if $(SLICE),--slice) $(CONFORMANCE_ARGS)

test-golden: bootstrap  ## boot every reference VMI that can boot here (about ten minutes)
	@BOOT_GOLDEN=1 $(PYTEST) tests/vm/test_golden_boot.py -q

test-xen: bootstrap  ## boot a real Xen in an emulated machine, and guests on it (fifteen minutes at most); NODE=1: as a node of a cluster
	@began=$$SECONDS; TEST_XEN=1 timeout 900 $(PYTEST) tests/xen/$(if $(NODE),test_xen_node.py,test_xen.py) -q -s; status=$$?; \
	  echo "test-xen: $$((SECONDS - began)) s"; exit $$status

results: export VIRTFLEET_RESULTS = docs/results
results: bootstrap  ## the same trials on qemu-kvm, lxc and Xen; writes the table of docs/hypervisors.md
	@$(PYTEST) tests/vm/test_same.py -q
	@$(MAKE) --no-print-directory test-xen
	@$(BIN)/python scripts/results.py

bench: bootstrap  ## measure the product, as ratios to baselines of the same run
	@$(BIN)/python -m bench

docs: bootstrap  ## write what docs/compatibility.md has from the registry of what works
	@$(BIN)/python scripts/compatibility.py

pages:  ## build the dashboard's pages from web/ (needs npm)
	@cd web && npm ci --ignore-scripts --no-audit --no-fund && npm run --silent check && npm run --silent build

site: bootstrap  ## the documentation as a site, in dist/site
	@scripts/site

manifests: bootstrap  ## write deploy/: the operator's manifest, a kustomization and a Helm chart
	@$(BIN)/python scripts/manifests.py

images: bootstrap  ## VirtFleet's images for a Kubernetes cluster, with REGISTRY=... (docs/install.md); CHECK=1 builds twice
	@$(BIN)/python scripts/images --registry $(REGISTRY) $(if $(CHECK),--check)

lock:  ## pin the dependencies anew, with hashes
	@.tools/bin/uv pip compile pyproject.toml --extra dev --generate-hashes --python-version 3.11 \
	  --no-emit-index-url --no-annotate --no-header --upgrade -o requirements.lock -q
	@echo mkdocs-material | .tools/bin/uv pip compile - --generate-hashes --python-version 3.11 \
	  --no-emit-index-url --no-annotate --no-header --upgrade -o docs/requirements.lock -q
	@cd tests/vm/clients && ../../../.tools/bin/uv pip compile requirements.in --override left-out.txt --generate-hashes \
	  --python-version 3.11 --no-emit-index-url --no-annotate --no-header --upgrade -o requirements.lock -q
	@echo ansible | .tools/bin/uv pip compile - --no-deps --generate-hashes --python-version 3.11 \
	  --no-emit-index-url --no-annotate --no-header --upgrade -o tests/vm/clients/collections.lock -q

clean:  ## remove what the build left here (not the cluster's data)
	rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis
