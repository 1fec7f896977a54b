"""The contract's own tests, for every hypervisor and for those of third parties.

Derive a test class and run it with pytest, or with anything that calls methods named test_*:

    from virtfleet.hypervisors.testing import HypervisorContract

    class TestMine(HypervisorContract):
        hypervisor = Mine()
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar
from xml.etree import ElementTree

from virtfleet.api.migration import MigrationOptions
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain.context import Context, Host
from virtfleet.domain.errors import DomainError
from virtfleet.hypervisors import features
from virtfleet.hypervisors.base import Connection, DaemonPlan, DaemonSettings, Hypervisor
from virtfleet.hypervisors.migration import Migration, Mode, Route
from virtfleet.hypervisors.proof import Device, Program, TinyGuest
from virtfleet.hypervisors.support import Level

# Elements that a document must not have where the feature is not supported.
_DEVICES = {"graphics": "graphics", "tpm": "tpm", "watchdog": "watchdog", "sound": "sound", "balloon": "memballoon"}
_ROUTE = Route(libvirt="/libvirt", memory="/memory", disks="/disks")


def refused(call: Callable[[], object], error: type[Exception], word: str = "") -> bool:
    """Whether a call ends with this error, whose message has a word in it."""
    try:
        call()
    except error as refusal:
        return word in str(refusal)
    return False


class DescriptionContract:
    """What VirtFleet expects of the description of a hypervisor, whether it runs VMs yet or not."""

    hypervisor: ClassVar[Hypervisor]

    def test_the_descriptor_is_complete(self) -> None:
        d = self.hypervisor.descriptor
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", d.name)
        assert d.title and d.launcher_image and "://" in d.uri
        assert d.overheads.total().value() > 0
        assert not (d.privileged or d.capabilities) or d.root, "a launcher with power on the node runs as root"
        assert not (d.privileged and d.capabilities), "capabilities are instead of a privileged Pod"
        assert re.compile(d.vcpu_thread).groups == (1 if d.vcpu_thread else 0), "one group: the number of the CPU"
        assert bool(d.daemon) == (d.connection is Connection.DAEMON)
        assert not (d.connection is Connection.REMOTE and d.device), "a remote hypervisor has no device on the node"
        assert d.device or not d.emulation, "CPUs are emulated for want of a device"

    def test_every_limit_names_a_known_feature_and_a_reason(self) -> None:
        for key, support in self.hypervisor.supports.items():
            assert key.partition("/")[0] in features.BY_KEY, f"there is no feature {key}"
            assert bool(support.reason) == (support.level is not Level.WORKS), f"{key}: users are told the reason"
            assert bool(support.gate) == (support.level is Level.EXPERIMENTAL), f"{key}: an experiment needs a gate"

    def test_what_it_does_not_name_is_not_there(self) -> None:
        named = {key.partition("/")[0] for key in self.hypervisor.supports}
        there = {f.key for f in features.at(Level.WORKS, self.hypervisor) if not f.everywhere}
        assert {features.BY_KEY[key].part_of or key for key in there} <= named
        assert not any(self.hypervisor.has(feature.key) for feature in features.FEATURES if feature.key not in named)

    def test_steps_of_a_migration_are_its_own_or_refused(self) -> None:
        """A hypervisor that names live migration takes the steps; one that does not takes none of them."""
        steps, vmi, nothing = self.hypervisor.migration, read(VMI, {}), ElementTree.Element("domain")
        named = self.hypervisor.supports.get("live-migration")
        if not self.hypervisor.refusal and named and named.level in (Level.WORKS, Level.EXPERIMENTAL):
            own = {step for step in vars(Migration) if not step.startswith("_")}
            lacking = [step for step in own if getattr(type(steps), step) is getattr(Migration, step)]
            assert not lacking, f"live-migration is named as a feature, but these steps are not there: {lacking}"
            return
        assert list(steps.obstacles(vmi)), "what cannot move must say so"
        assert steps.abort(Mode.PRE_COPY)
        assert refused(lambda: steps.destination(nothing, nothing), DomainError)
        assert refused(lambda: steps.run(vmi, nothing, nothing, _ROUTE, MigrationOptions()), DomainError)
        assert refused(lambda: steps.finish(source=True), DomainError)


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
        connected = self.hypervisor.has("net-masquerade")
        claim = {"persistentVolumeClaim": {"claimName": "root"}}
        own = {"hostDisk": {"path": "/disks/root.img", "type": "Disk"}}
        return {
            "metadata": {"name": "vm", "namespace": "test", "uid": "00000000-0000-4000-8000-000000000000"},
            "spec": {
                "architecture": "amd64",
                "domain": {
                    "memory": {"guest": "128Mi"},
                    "cpu": {"cores": 2},
                    "devices": {**root, "interfaces": interfaces if connected else []},
                },
                "networks": [{"name": "default", "pod": {}}] if connected else [],
                "volumes": [{"name": "rootfs", **(claim if self.hypervisor.has("claim") else own)}],
            },
        }

    def build(self, **context: Any) -> ElementTree.Element:
        return self.hypervisor.build(read(VMI, self.vmi()), Context(**context))

    def plan(self, **settings: Any) -> DaemonPlan:
        return self.hypervisor.daemon(DaemonSettings(**settings))

    def test_a_small_vmi_is_accepted_and_built(self) -> None:
        domain = self.build()
        assert list(features.refusals(self.hypervisor, read(VMI, self.vmi()))) == []
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
            if features.support(self.hypervisor, key).level not in (Level.WORKS, Level.EXPERIMENTAL):
                assert domain.find(f"devices/{tag}") is None, f"{key} does not work"

    def test_cpus_are_emulated_only_where_it_says_so(self) -> None:
        emulation = self.hypervisor.descriptor.emulation
        if emulation:
            assert self.build(emulated=True).get("type") == emulation != self.build().get("type")
        elif self.hypervisor.descriptor.device:
            assert refused(lambda: self.build(emulated=True), DomainError), "it cannot run without its device"

    def test_root_of_a_container_is_nobody_on_the_node(self) -> None:
        if self.hypervisor.descriptor.container:
            ids = [self.build().find(f"idmap/{kind}") for kind in ("uid", "gid")]
            assert all(i is not None and i.get("start") == "0" and int(i.get("target", 0)) > 65535 for i in ids)

    def test_the_pod_asks_for_devices_and_memory(self) -> None:
        vmi, d = read(VMI, self.vmi()), self.hypervisor.descriptor
        devices = self.hypervisor.devices(vmi, emulated=False)
        assert not d.device or d.device in devices
        assert (d.device in self.hypervisor.devices(vmi, emulated=True)) == (bool(d.device) and not d.emulation)
        assert len(set(devices)) == len(devices), "one of each is enough"
        assert self.hypervisor.memory(vmi) >= 0

    def test_a_node_proves_its_device_before_guests_use_it(self) -> None:
        for machine in ("x86_64", "aarch64", "s390x"):
            steps = self.hypervisor.proof(machine)
            devices = [step.name for step in steps if isinstance(step, Device)]
            assert not (device := self.hypervisor.descriptor.device) or devices[:1] == [device]
            for number, step in enumerate(steps):
                assert isinstance(step, Device | Program | TinyGuest)
                if isinstance(step, TinyGuest):
                    assert Program(step.command[0]) in steps[:number], "a missing program is a reason of its own"
                    assert step.files and step.does and 0 < step.seconds <= 60, "a guest that hangs is given up"

    def test_devices_are_known_again(self) -> None:
        """A second document of the same VMI has the same devices, or they would be attached again."""
        domain = self.build()
        devices = [d for kind in ("disk", "interface") for d in domain.iterfind(f"devices/{kind}")]
        known = [self.hypervisor.identity(device) for device in devices]
        assert all(known), "a device of the VMI without an identity could not be detached"
        assert len(set(known)) == len(known)

    def test_a_fitted_document_is_still_the_same_domain(self) -> None:
        fitted = self.hypervisor.adapt(self.build(), Context(host=Host(libvirt_version=9_000_000)))
        assert fitted.findtext("name") == "test_vm"

    def test_the_daemon_runs_inside_its_directories(self) -> None:
        plan = self.plan(runtime_dir="/r", private_dir="/p")
        if self.hypervisor.descriptor.connection is not Connection.DAEMON:
            assert plan.daemon is None
            return
        assert plan.daemon is not None and plan.daemon.command[0].startswith("/")
        for path in plan.files:
            assert path.startswith(("/r/", "/p/", "/etc/libvirt/")), f"{path} lies elsewhere"

    def test_settings_reach_the_daemon_and_nothing_else_does(self) -> None:
        if self.plan().daemon is None:
            return
        for setting, value in (
            ("log_filters", "1:util 3:event"),
            ("host_uuid", "00000000-0000-4000-8000-000000000001"),
        ):
            assert any(value in text for text in self.plan(**{setting: value}).files.values())
        assert refused(lambda: self.plan(log_filters='1:*"\nlisten_tcp = 1'), ValueError, "configuration")
