"""The contract's own tests, for every hypervisor and for those of third parties.

Derive a test class and run it with pytest:

    from virtfleet.hypervisors.testing import HypervisorContract

    class TestMine(HypervisorContract):
        hypervisor = Mine()
"""

from __future__ import annotations

import re
from typing import Any, ClassVar
from xml.etree import ElementTree

import pytest

from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.domain.context import Context
from virtfleet.hypervisors import features
from virtfleet.hypervisors.base import Connection, DaemonPlan, DaemonSettings, Host, Hypervisor
from virtfleet.hypervisors.support import Level

# Elements that a document must not have where the feature is not supported.
_DEVICES = {"graphics": "graphics", "tpm": "tpm", "watchdog": "watchdog", "sound": "sound", "balloon": "memballoon"}


class DescriptionContract:
    """What VirtFleet expects of the description of a hypervisor, whether it runs VMs yet or not."""

    hypervisor: ClassVar[Hypervisor]

    def test_the_descriptor_is_complete(self) -> None:
        d = self.hypervisor.descriptor
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", d.name)
        assert d.title and d.launcher_image and "://" in d.uri
        assert d.overheads.launcher.value() > 0
        assert not (d.privileged or d.capabilities) or d.root, "a launcher with power on the node runs as root"
        assert not (d.privileged and d.capabilities), "capabilities are instead of a privileged Pod"
        assert re.compile(d.vcpu_thread).groups == (1 if d.vcpu_thread else 0), "one group: the number of the CPU"
        if d.connection is Connection.DAEMON:
            assert d.daemon and d.socket.startswith("/")
        if d.connection is Connection.REMOTE:
            assert not d.device, "a remote hypervisor has no device on the node"

    def test_every_limit_names_a_known_feature_and_a_reason(self) -> None:
        for key, support in self.hypervisor.supports.items():
            assert key.partition("/")[0] in features.BY_KEY, f"there is no feature {key}"
            assert bool(support.reason) == (support.level is not Level.WORKS), f"{key}: users are told the reason"
            assert bool(support.gate) == (support.level is Level.EXPERIMENTAL), f"{key}: an experiment needs a gate"

    def test_the_descriptor_and_the_limits_agree(self) -> None:
        d = self.hypervisor.descriptor
        for key, has in {"cdrom": d.cdrom, "boot-order": d.boot_order, "balloon": d.balloon}.items():
            lacks = features.support(self.hypervisor, key).level is not Level.WORKS
            if self.hypervisor.refusal:  # nothing works there yet; what counts is what could
                lacks = features.support(self.hypervisor, key).level is Level.IMPOSSIBLE
            assert has != lacks, f"{key}: users are told about it by the table of features"

    def test_what_it_does_not_name_is_not_there(self) -> None:
        named = {key.partition("/")[0] for key in self.hypervisor.supports}
        there = {f.key for f in features.at(Level.WORKS, self.hypervisor) if not f.everywhere}
        assert {features.BY_KEY[key].part_of or key for key in there} <= named


class HypervisorContract(DescriptionContract):
    """What VirtFleet expects of a hypervisor."""

    def vmi(self) -> dict[str, Any]:
        """A small VMI that the hypervisor must be able to run. Override it where yours needs something else."""
        d = self.hypervisor.descriptor
        root = (
            {"filesystems": [{"name": "rootfs", "virtiofs": {}}]}
            if d.container
            else {"disks": [{"name": "rootfs", "disk": {"bus": d.disk_bus}}]}
        )
        interfaces = [{"name": "default", "masquerade": {}, "macAddress": "02:00:00:00:00:01"}]
        return {
            "metadata": {"name": "vm", "namespace": "test", "uid": "00000000-0000-4000-8000-000000000000"},
            "spec": {
                "architecture": "amd64",
                "domain": {
                    "memory": {"guest": "128Mi"},
                    "cpu": {"cores": 2},
                    "devices": {**root, "interfaces": interfaces},
                },
                "networks": [{"name": "default", "pod": {}}],
                "volumes": [{"name": "rootfs", "persistentVolumeClaim": {"claimName": "root"}}],
            },
        }

    def build(self, **context: Any) -> ElementTree.Element:
        return self.hypervisor.build(read(VirtualMachineInstance, self.vmi()), Context(**context))

    def plan(self, **settings: Any) -> DaemonPlan:
        return self.hypervisor.daemon(DaemonSettings(**settings))

    def test_a_small_vmi_is_accepted_and_built(self) -> None:
        domain = self.build()
        assert list(features.refusals(self.hypervisor, read(VirtualMachineInstance, self.vmi()))) == []
        assert domain.tag == "domain" and domain.get("type")
        assert domain.findtext("name") == "test_vm", "the launcher finds the domain by namespace and name"
        memory = domain.find("memory")
        assert memory is not None and memory.get("unit") == "b" and memory.text == str(128 * 2**20)
        assert domain.findtext("vcpu") == "2"

    def test_building_is_repeatable(self) -> None:
        assert ElementTree.tostring(self.build()) == ElementTree.tostring(self.build())

    def test_nothing_unsupported_is_in_the_document(self) -> None:
        domain = self.build()
        for key, tag in _DEVICES.items():
            if features.support(self.hypervisor, key).level is not Level.WORKS:
                assert domain.find(f"devices/{tag}") is None, f"{key} does not work"
        d = self.hypervisor.descriptor
        if not d.block_sources:
            assert self.build(block_volumes=frozenset({"rootfs"})).find("devices/disk[@type='block']") is None
        if not d.stacked_images:
            assert domain.find("devices/disk/backingStore") is None

    def test_root_of_a_container_is_nobody_on_the_node(self) -> None:
        if self.hypervisor.descriptor.container:
            ids = [self.build().find(f"idmap/{kind}") for kind in ("uid", "gid")]
            assert all(i is not None and i.get("start") == "0" and int(i.get("target", 0)) > 65535 for i in ids)

    def test_the_pod_asks_for_devices_and_memory(self) -> None:
        vmi, d = read(VirtualMachineInstance, self.vmi()), self.hypervisor.descriptor
        devices = self.hypervisor.devices(vmi, emulated=False)
        assert not d.device or d.device in devices
        assert d.device not in self.hypervisor.devices(vmi, emulated=True)
        assert len(set(devices)) == len(devices), "one of each is enough"
        assert self.hypervisor.memory(vmi) >= 0

    def test_devices_are_known_again(self) -> None:
        """A second document of the same VMI has the same devices, or they would be attached again."""
        domain = self.build()
        devices = [d for kind in ("disk", "interface") for d in domain.iterfind(f"devices/{kind}")]
        known = [self.hypervisor.identity(device) for device in devices]
        assert all(known), "a device of the VMI without an identity could not be detached"
        assert len(set(known)) == len(known)

    def test_a_fitted_document_is_still_the_same_domain(self) -> None:
        fitted = self.hypervisor.adapt(self.build(), Host(libvirt_version=9_000_000))
        assert fitted.findtext("name") == "test_vm"

    def test_the_daemon_runs_inside_its_directories(self) -> None:
        plan = self.plan(runtime_dir="/r", private_dir="/p")
        if self.hypervisor.descriptor.connection is not Connection.DAEMON:
            assert plan.daemon is None
            return
        assert plan.daemon is not None and plan.daemon.command[0].startswith("/")
        for path in plan.files:
            assert path.startswith(("/r/", "/p/", "/etc/libvirt/")), f"{path} lies elsewhere"

    def test_log_filters_reach_the_daemon(self) -> None:
        if self.plan().daemon is None:
            return
        filters = "1:util 3:event"
        assert any(filters in text for text in self.plan(log_filters=filters).files.values())
        with pytest.raises(ValueError, match="configuration"):
            self.plan(log_filters='1:*"\nlisten_tcp = 1')
