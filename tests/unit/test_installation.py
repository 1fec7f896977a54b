"""The one reading of the KubeVirt object: every default, and what takes its place."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property
from typing import Any

import pytest

import virtfleet
from virtfleet.domain.context import Context
from virtfleet.installation import Installation


def configured(**configuration: Any) -> Installation:
    return Installation({"spec": {"configuration": configuration}})


def developing(**developer: Any) -> Installation:
    return configured(developerConfiguration=developer)


def test_an_object_that_says_nothing_has_all_defaults() -> None:
    nothing = Installation({})
    asked = {name for name, how in vars(Installation).items() if isinstance(how, property | cached_property)}
    assert {name: getattr(nothing, name) for name in asked - {"configuration", "fleet", "gates", "labels"}} == {
        "_network": nothing._network,
        "_smbios": Context().smbios,
        "annotations": {},
        "bridge_on_pod_network": True,
        "cpu_model": "host-model",
        "common_instancetypes": True,
        "cpu_ratio": 10,
        "cpu_request": None,
        "default_architecture": "amd64",
        "emulation": False,
        "eviction_strategy": "None",
        "known_architecture": "",
        "live_update": True,
        "max_guest": None,
        "max_hotplug_ratio": 4,
        "max_sockets": 0,
        "memory_overcommit": 100,
        "migrations": nothing.migrations,
        "namespace": "kubevirt",
        "network_interface": "bridge",
        "node_selector": {},
        "overhead_ratio": 1,
        "permitted_devices": None,
        "persistent_reservation": False,
        "plugs_by_template": True,
        "pull_policy": "IfNotPresent",
        "pull_secrets": [],
        "qgs_socket": "/var/run/tdx-qgs/qgs.socket",
        "reference_policy": "reference",
        "registry": "virtfleet",
        "replicas": 2,
        "seccomp": {"type": "RuntimeDefault"},
        "serial_console_log": True,
        "service_accounts": nothing.service_accounts,
        "settled": False,
        "spec": {},
        "tag": virtfleet.__version__,
        "uninstalled_with_vms": True,
        "uninstalling": False,
        "vms_per_node": 110,
    }
    assert nothing.verbosity("virt_launcher") == nothing.verbosity("virt_handler") == 2
    assert nothing.lifespan("ca") == (timedelta(days=7), timedelta(days=7) / 5)
    assert nothing.lifespan("server") == (timedelta(days=1), timedelta(days=1) / 5)


@pytest.mark.parametrize("architecture", ["", "amd64", "arm64", "another"])
def test_domains_without_a_cluster_are_those_of_one_that_says_nothing(architecture: str) -> None:
    assert Installation({}).context(architecture) == Context()


@pytest.mark.parametrize(
    ("asked", "found", "default"),
    [("", "", "amd64"), ("", "arm64", "arm64"), ("s390x", "arm64", "s390x"), ("s390x", "", "s390x")],
)
def test_the_default_architecture_is_the_administrators_else_the_first_that_was_found(
    asked: str, found: str, default: str
) -> None:
    kubevirt = {
        "spec": {"configuration": {"architectureConfiguration": {"defaultArchitecture": asked}}},
        "status": {"defaultArchitecture": found},
    }
    assert Installation(kubevirt).default_architecture == default
    assert Installation(kubevirt).known_architecture == (asked or found)


def test_machine_types_of_an_architecture_come_after_those_of_the_cluster() -> None:
    arm = {"arm64": {"machineType": "virt-9.0", "emulatedMachines": ["virt-9*"], "ovmfPath": "/arm"}}
    one = configured(architectureConfiguration=arm, ovmfPath="/all")
    assert (one.machine_type("arm64"), one.emulated_machines("arm64")) == ("virt-9.0", ["virt-9*"])
    assert (one.machine_type("amd64"), one.emulated_machines("amd64")) == ("q35", ["q35*", "pc-q35*"])
    assert (one.context("arm64").firmware_dir, one.context("amd64").firmware_dir) == ("/arm", "/all")
    both = configured(architectureConfiguration=arm, machineType="pc", emulatedMachines=["pc*"])
    assert (both.machine_type("arm64"), both.emulated_machines("arm64")) == ("pc", ["pc*"])


def test_a_vms_architecture_is_never_taken_for_another_field() -> None:
    named = configured(architectureConfiguration={"defaultArchitecture": "arm64"}, ovmfPath="/all")
    assert named.context("default_architecture").firmware_dir == "/all"
    assert named.machine_type("default_architecture") == "q35"


def test_a_level_for_launchers_means_the_pod_and_the_domain() -> None:
    loud = developing(logVerbosity={"virtLauncher": 6, "virtAPI": 0})
    assert (loud.verbosity("virt_launcher"), loud.verbosity("virt_api")) == (6, 2)
    assert loud.context("amd64").verbose and not developing(logVerbosity={"virtLauncher": 5}).context("amd64").verbose


def test_an_empty_path_of_the_quote_service_means_that_there_is_none() -> None:
    assert configured(confidentialCompute={"tdx": {"attestation": {"qgsSocketPath": ""}}}).qgs_socket == ""
    assert configured(confidentialCompute={"tdx": {"attestation": {}}}).qgs_socket != ""


def test_the_first_hypervisor_that_is_listed_is_the_default_by_its_real_name() -> None:
    listed = configured(hypervisors=[{"name": "kvm"}, {"name": "xen", "virtLauncherImage": "launcher:xen"}])
    assert (listed.fleet.default_hypervisor, listed.fleet.images) == (
        "qemu-kvm",
        {"qemu-kvm": "", "xen": "launcher:xen"},
    )


def test_it_is_settled_when_the_operator_says_so_of_this_version_and_of_what_it_says_now() -> None:
    status = {
        "phase": "Deployed",
        "observedGeneration": 3,
        "targetDeploymentConfig": "x",
        "observedDeploymentConfig": "x",
        "observedKubeVirtVersion": "1.0",
        "observedKubeVirtRegistry": "virtfleet",
    }
    kubevirt = {"metadata": {"generation": 3}, "spec": {"imageTag": "1.0"}, "status": status}
    assert Installation(kubevirt).settled
    changes = (
        "phase",
        "observedGeneration",
        "targetDeploymentConfig",
        "observedKubeVirtVersion",
        "observedKubeVirtRegistry",
    )
    for field in changes:
        assert not Installation({**kubevirt, "status": {**status, field: "other"}}).settled, field
