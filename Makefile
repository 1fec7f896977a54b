# VirtFleet. `make up` and `make test` are all that a newcomer needs; both install what is missing.
.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
# Kernel, libvirt and guests share two cores with the tests. What failed beside others is named and must pass by itself.
ALONE := { echo "Once more, alone:"; $(PYTEST) -v --last-failed --last-failed-no-failures none; }
# Starting quickly needs compiled modules, whatever the caller's environment says.
unexport PYTHONDONTWRITEBYTECODE

# Of `make images`.
BUILDER ?= $(firstword $(shell command -v podman buildah docker))
REGISTRY ?= virtfleet
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

.PHONY: help bootstrap up down test test-fast test-golden lint bench docs images lock clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

bootstrap:  ## install what is missing (Debian packages, .venv)
	@scripts/bootstrap

up: bootstrap  ## start the local cluster, and guests on it
	@$(BIN)/virtfleet up --nodes examples/nodes.yaml --kubevirt examples/kubevirt.yaml
	@$(BIN)/virtfleet demo

down:  ## stop the local cluster
	@$(BIN)/virtfleet down

lint: bootstrap  ## style, types, import directions
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

test-fast: lint  ## lint and every test that boots no VM, within two minutes
	@$(PYTEST) tests/unit tests/component -q -n 2 --hypothesis-profile=fast -m "not slow and not vm"

test: lint  ## everything
	@$(PYTEST) tests/unit tests/component -q -n 2 || $(ALONE)
	@$(PYTEST) tests/cluster tests/vm -q || $(ALONE)

test-golden: bootstrap  ## boot every reference VMI that can boot here (about ten minutes)
	@BOOT_GOLDEN=1 $(PYTEST) tests/vm/test_golden_boot.py -q

bench: bootstrap  ## measure the product, as ratios to baselines of the same run
	@$(BIN)/python -m bench

docs: bootstrap  ## write what docs/compatibility.md has from the registry of what works
	@$(BIN)/python scripts/compatibility.py

images:  ## VirtFleet's images for a Kubernetes cluster, with REGISTRY=... (podman or buildah; docs/install.md)
	@for name in virt-operator virt-controller virt-api virt-handler virt-launcher virt-launcher-lxc; do \
	  $(BUILDER) build --target $$name -t $(REGISTRY)/$$name:$(VERSION) -f deploy/Containerfile . || exit 1; done

lock:  ## pin the dependencies anew, with hashes
	@.tools/bin/uv pip compile pyproject.toml --extra dev --generate-hashes --python-version 3.11 \
	  --no-emit-index-url --no-annotate --no-header --upgrade -o requirements.lock -q

clean:  ## remove what the build left here (not the cluster's data)
	rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis
