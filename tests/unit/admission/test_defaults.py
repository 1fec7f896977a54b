"""What a VMI gets when its owner says nothing, and what of it the cluster decides."""

from __future__ import annotations

from typing import Any

import pytest

from virtfleet.admission.review import complete, review
from virtfleet.hypervisors import registry

from .machines import BASE, GONE, cluster, completed, edited, vmi

DEVICES = "domain.devices"
NO_NETWORK = {f"{DEVICES}.interfaces": GONE, "networks": GONE}


def at(spec: dict[str, Any], path: str) -> Any:
    value: Any = spec
    for step in path.replace("[", ".").replace("]", "").split("."):
        value = value[int(step)] if isinstance(value, list) else value.get(step)
        if value is None:
            return None
    return value


@pytest.mark.parametrize(
    ("edits", "path", "value"),
    [
        ({}, "architecture", "amd64"),
        ({}, "domain.machine.type", "q35"),
        ({"architecture": "arm64"}, "domain.machine.type", "virt"),
        ({"architecture": "s390x"}, "domain.machine.type", "s390-ccw-virtio"),
        ({}, "domain.cpu", {"cores": 1, "sockets": 1, "threads": 1, "maxSockets": 4, "model": "host-model"}),
        ({"domain.resources.limits": {"cpu": "3"}}, "domain.cpu.sockets", 3),
        ({"domain.resources.requests": {"cpu": "1500m"}}, "domain.cpu.sockets", 2),
        ({"domain.resources.limits": {"cpu": "3"}}, "domain.resources.requests.cpu", "3"),
        ({"domain.cpu.cores": 3}, "domain.cpu", {"cores": 3, "model": "host-model"}),
        ({"domain.cpu": {"sockets": 200, "cores": 2, "threads": 1}}, "domain.cpu.maxSockets", 256),
        ({"domain.cpu": {"sockets": 300, "cores": 2, "threads": 1}}, "domain.cpu.maxSockets", 300),
        ({"architecture": "arm64"}, "domain.cpu.model", "host-passthrough"),
        ({"architecture": "arm64"}, "domain.cpu.maxSockets", None),
        ({}, "domain.memory.maxGuest", "4Gi"),
        ({"domain.memory.guest": "1024Mi"}, "domain.memory.guest", "1Gi"),
        ({"domain.memory.guest": "512Mi"}, "domain.memory.maxGuest", None),
        ({"domain.memory.guest": "1025Mi"}, "domain.memory.maxGuest", None),
        ({"domain.memory": GONE, "domain.resources.requests": {"memory": "2Gi"}}, "domain.memory.guest", "2Gi"),
        ({"domain.memory": GONE, "domain.resources.limits": {"memory": "2Gi"}}, "domain.memory.guest", "2Gi"),
        ({"domain.memory": {"hugepages": {"pageSize": "2Mi"}}}, "domain.memory.guest", "2Mi"),
        ({"domain.launchSecurity": {"sev": {}}}, "domain.memory.maxGuest", None),
        ({}, "evictionStrategy", "None"),
        ({}, "volumes[0].containerDisk.imagePullPolicy", "IfNotPresent"),
        ({"volumes[0].containerDisk.image": "disk"}, "volumes[0].containerDisk.imagePullPolicy", "Always"),
        ({"volumes[0].containerDisk.image": "a/disk:latest"}, "volumes[0].containerDisk.imagePullPolicy", "Always"),
        (NO_NETWORK, f"{DEVICES}.interfaces", [{"name": "default", "bridge": {}}]),
        (NO_NETWORK, "networks", [{"name": "default", "pod": {}}]),
        ({**NO_NETWORK, f"{DEVICES}.autoattachPodInterface": False}, f"{DEVICES}.interfaces", None),
        ({f"{DEVICES}.disks": GONE}, f"{DEVICES}.disks", [{"name": "root", "disk": {"bus": "sata"}}]),
        ({f"{DEVICES}.disks": GONE, "architecture": "arm64"}, f"{DEVICES}.disks[0].disk.bus", "virtio"),
        (
            {f"{DEVICES}.disks[0]": {"name": "root", "cdrom": {}}},
            f"{DEVICES}.disks[0].cdrom",
            {"bus": "sata", "readonly": True, "tray": "closed"},
        ),
        ({f"{DEVICES}.inputs": [{"name": "t", "type": "tablet"}]}, f"{DEVICES}.inputs[0].bus", "usb"),
        ({f"{DEVICES}.watchdog": {"name": "w"}}, f"{DEVICES}.watchdog.i6300esb.action", "reset"),
        (
            {f"{DEVICES}.watchdog": {"name": "w"}, "architecture": "s390x"},
            f"{DEVICES}.watchdog.diag288.action",
            "reset",
        ),
        ({}, "domain.features.acpi.enabled", True),
        ({"architecture": "s390x"}, "domain.features.acpi.enabled", False),
        ({"domain.features.smm": {}}, "domain.features.smm.enabled", True),
        ({"domain.features.hyperv.spinlocks": {}}, "domain.features.hyperv.spinlocks.spinlocks", 4096),
        ({"domain.features.hyperv.synictimer": {}}, "domain.features.hyperv.vpindex.enabled", True),
        ({"domain.features.hyperv.evmcs": {}}, "domain.cpu.features", [{"name": "vmx", "policy": "require"}]),
        ({"domain.clock.timer.hpet": {}}, "domain.clock.timer.hpet.present", True),
        ({"architecture": "arm64"}, "domain.firmware.bootloader", {"efi": {"secureBoot": False}}),
        ({"readinessProbe": {"exec": {"command": ["x"]}}}, "readinessProbe.failureThreshold", 3),
        ({"volumes[0]": {"name": "root", "emptyDisk": {"capacity": "2048Mi"}}}, "volumes[0].emptyDisk.capacity", "2Gi"),
    ],
)
def test_defaults(edits: dict[str, Any], path: str, value: Any) -> None:
    assert at(completed(edits), path) == value


@pytest.mark.parametrize(
    ("configuration", "edits", "path", "value"),
    [
        ({"machineType": "pc-q35-9"}, {}, "domain.machine.type", "pc-q35-9"),
        ({"architectureConfiguration": {"amd64": {"machineType": "q35x"}}}, {}, "domain.machine.type", "q35x"),
        ({"cpuModel": "EPYC"}, {}, "domain.cpu.model", "EPYC"),
        ({"cpuRequest": "200m"}, {}, "domain.resources.requests.cpu", "200m"),
        ({"cpuRequest": "100m"}, {}, "domain.resources.requests", None),
        ({"cpuRequest": "200m"}, {"domain.cpu.dedicatedCpuPlacement": True}, "domain.resources.requests", None),
        ({"evictionStrategy": "LiveMigrate"}, {}, "evictionStrategy", "LiveMigrate"),
        ({"network": {"defaultNetworkInterface": "masquerade"}}, NO_NETWORK, f"{DEVICES}.interfaces[0].masquerade", {}),
        ({"liveUpdateConfiguration": {"maxCpuSockets": 8}}, {}, "domain.cpu.maxSockets", 8),
        ({"liveUpdateConfiguration": {"maxGuest": "8Gi"}}, {}, "domain.memory.maxGuest", "8Gi"),
        ({"liveUpdateConfiguration": {"maxHotplugRatio": 2}}, {}, "domain.memory.maxGuest", "2Gi"),
        ({"vmRolloutStrategy": "Stage"}, {}, "domain.memory.maxGuest", None),
        ({"vmRolloutStrategy": "Stage"}, {}, "domain.cpu.maxSockets", None),
    ],
)
def test_the_cluster_decides_defaults(
    configuration: dict[str, Any], edits: dict[str, Any], path: str, value: Any
) -> None:
    assert at(completed(edits, cluster(**configuration)), path) == value


def test_a_new_vmi_gets_a_first_status_a_finalizer_and_its_bus_layout() -> None:
    obj, _ = complete(BASE, cluster())
    assert obj["metadata"]["finalizers"] == ["kubevirt.io/foregroundDeleteVirtualMachine"]
    assert obj["metadata"]["annotations"] == {"kubevirt.io/pci-topology-version": "v3"}
    assert obj["status"]["phase"] == "Pending"
    assert obj["status"]["runtimeUser"] == 107
    assert obj["status"]["memory"]["guestRequested"] == "1Gi"


@pytest.mark.parametrize("name", [name for name in registry.names() if not registry.get(name).refusal])
def test_defaults_never_ask_for_what_the_hypervisor_lacks(name: str) -> None:
    hypervisor = registry.get(name)
    where = cluster(evictionStrategy="LiveMigrate", hypervisors=[{"name": name}])
    disks = hypervisor.has("container-disk") and not hypervisor.descriptor.container
    volumes = {} if disks else {"volumes": GONE}  # else they become disks
    # Whoever names no network wants one, and is told where there is none.
    network = {} if hypervisor.has("net-bridge") else {f"{DEVICES}.autoattachPodInterface": False}
    least = vmi({"hypervisor": name, f"{DEVICES}.disks": GONE, **volumes, **NO_NETWORK, **network})
    obj, found = complete(least, where)
    assert found.allowed
    assert review(obj, where).causes == []


def test_completing_twice_changes_nothing() -> None:
    once, _ = complete(BASE, cluster())
    twice, _ = complete(once, cluster())
    assert once == twice


def test_completing_leaves_the_original_and_unknown_fields_alone() -> None:
    original = vmi({"someday": {"new": 1}})
    before = edited(original, {})
    obj, _ = complete(original, cluster())
    assert original == before
    assert obj["spec"]["someday"] == {"new": 1}


def test_explicit_values_are_kept() -> None:
    edits = {
        "evictionStrategy": "External",
        "domain.machine.type": "pc-q35-8",
        "domain.cpu": {"cores": 2, "sockets": 1, "threads": 1, "model": "EPYC", "maxSockets": 1},
        "domain.memory.maxGuest": "1Gi",
        "domain.features.acpi": {"enabled": False},
        "domain.firmware.uuid": "5d307ca9-b3ef-428c-8861-06e72d69f223",
    }
    spec = completed(edits)
    assert {path: at(spec, path) for path in edits} == edits


def test_a_vm_settles_identity_and_machine_once() -> None:
    vm = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": "vm"},
        "spec": {"runStrategy": "Halted", "template": {"spec": BASE["spec"]}},
    }
    obj, found = complete(vm, cluster())
    assert found.allowed
    template = obj["spec"]["template"]
    assert template["spec"]["domain"]["firmware"].keys() == {"uuid", "serial"}
    assert template["spec"]["domain"]["machine"] == {"type": "q35"}
    assert template["metadata"]["annotations"] == {"kubevirt.io/pci-topology-version": "v3"}
    assert "cpu" not in template["spec"]["domain"], "what an instance gets is decided when it starts"
    assert complete(obj, cluster())[0] == obj


def test_a_migration_is_labelled_with_its_vmi() -> None:
    migration = {"kind": "VirtualMachineInstanceMigration", "metadata": {"name": "m"}, "spec": {"vmiName": "vm"}}
    obj, _ = complete(migration, cluster())
    assert obj["metadata"]["labels"] == {"kubevirt.io/vmi-name": "vm"}
    assert obj["metadata"]["finalizers"] == ["kubevirt.io/migrationJobFinalize"]
