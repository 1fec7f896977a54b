"""Which hypervisor a VMI runs on, what it refuses, and what it plans and does besides the document."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID
from xml.etree.ElementTree import Element

import pytest
from click.testing import CliRunner

from bench import footprint
from bench.report import as_text
from tests.unit.domain_samples import NODE, Sample, vmi
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.cli.main import main
from virtfleet.domain import paths
from virtfleet.domain.context import AssignedDevice, Context
from virtfleet.domain.errors import DomainError
from virtfleet.hypervisors import registry
from virtfleet.hypervisors.base import DaemonSettings
from virtfleet.hypervisors.containers import IDS, first_id
from virtfleet.hypervisors.features import refusals
from virtfleet.installation import Installation
from virtfleet.pods import sharing
from virtfleet.pods.volumes import mounted

QEMU = registry.get("qemu-kvm")


# --- which one


@pytest.mark.parametrize(
    ("asked", "resolved"),
    [
        (("lxc", "mshv", "xen"), "lxc"),
        (("", "mshv", "xen"), "mshv"),
        (("", "", "xen"), "xen"),
        (("", "", ""), "qemu-kvm"),
        (("kvm", "", ""), "qemu-kvm"),
        (("", "", "hyperv-direct"), "mshv"),
    ],
)
def test_the_vmi_decides_then_the_pool_then_the_cluster(asked: tuple[str, str, str], resolved: str) -> None:
    assert registry.resolve(*asked) == resolved


def test_all_twelve_names_are_known_and_others_are_refused_with_the_list() -> None:
    assert len(registry.names()) >= 12
    with pytest.raises(
        registry.UnknownHypervisor, match=r"no hypervisor 'vaporware'.*qemu-kvm, mshv, cloud-hypervisor"
    ):
        registry.get("vaporware")


# --- what is refused


def refused(name: str, spec: dict[str, Any]) -> dict[str, str]:
    found = refusals(registry.get(name), read(VirtualMachineInstance, {"spec": spec}))
    return {r.field: r.message for r in found}


def test_cloud_hypervisor_refuses_what_its_driver_cannot_do_with_field_and_reason() -> None:
    devices = {
        "autoattachGraphicsDevice": True,
        "tpm": {},
        "disks": [{"name": "d", "cdrom": {"bus": "sata"}}],
    }
    found = refused("cloud-hypervisor", {"domain": {"devices": devices}, "evictionStrategy": "LiveMigrate"})
    assert set(found) == {
        "spec.domain.devices.autoattachGraphicsDevice",
        "spec.domain.devices.tpm",
        "spec.domain.devices.disks",
        "spec.evictionStrategy",
    }
    assert found["spec.evictionStrategy"] == (
        "hypervisor cloud-hypervisor does not support live migration: libvirt's driver cannot migrate, "
        "although Cloud Hypervisor could"
    )


def test_what_is_not_asked_for_is_not_refused() -> None:
    spec = {"domain": {"devices": {"tpm": {"enabled": False}, "autoattachGraphicsDevice": False}}}
    assert refused("cloud-hypervisor", spec) == {}
    assert refused("qemu-kvm", {"domain": {"devices": {"tpm": {}, "sound": {"name": "s"}}}}) == {}


def test_support_can_differ_between_architectures() -> None:
    watchdog = {"domain": {"devices": {"watchdog": {"name": "w", "i6300esb": {}}}}}
    assert refused("qemu-kvm", {"architecture": "amd64", **watchdog}) == {}
    for name in ("qemu-kvm", "mshv"):
        assert "spec.domain.devices.watchdog" in refused(name, {"architecture": "arm64", **watchdog})


# --- containers


def lxc(spec: dict[str, Any]) -> Element:
    obj = {"metadata": {"name": "c", "namespace": "n", "uid": "u"}, "spec": spec}
    return registry.get("lxc").build(read(VirtualMachineInstance, obj), Context(block_volumes=frozenset({"device"})))


BOX: dict[str, Any] = {
    "domain": {
        "devices": {
            "filesystems": [{"name": "rootfs", "virtiofs": {}}, {"name": "more", "virtiofs": {}}],
            "disks": [{"name": "seed"}],
        },
        "firmware": {"kernelBoot": {"kernelArgs": "quiet init=/bin/busybox -- sh -c 'sleep 1'"}},
    },
    "volumes": [
        {"name": "rootfs", "containerDisk": {"image": "x"}},
        {"name": "more", "persistentVolumeClaim": {"claimName": "x"}},
        {"name": "seed", "cloudInitNoCloud": {}},
    ],
}


def test_a_container_has_directories_and_the_command_line_names_its_init() -> None:
    domain = lxc(BOX)
    found = {
        f.find("target").get("dir"): f.find("source").get("dir")  # type: ignore[union-attr]
        for f in domain.iterfind("devices/filesystem[@type='mount']")
    }
    assert found == {
        "/": paths.container_root("rootfs"),
        "/mnt/more": paths.mapped_dir("more"),
        "/var/lib/cloud/seed/nocloud": paths.cloud_init_seed("n", "c"),
    }
    assert domain.findtext("os/init") == "/bin/busybox"
    assert [a.text for a in domain.iterfind("os/initarg")] == ["sh", "-c", "sleep 1"]
    with pytest.raises(DomainError, match="a container needs a root"):
        lxc({})


def test_a_container_mounts_no_file_system_that_somebody_else_made() -> None:
    for source in ({"emptyDisk": {}}, {"containerDisk": {"image": "x"}}, {"persistentVolumeClaim": {"claimName": "x"}}):
        devices = {**BOX["domain"]["devices"], "disks": [{"name": "d"}]}
        with pytest.raises(DomainError, match="a file system that somebody else made"):
            lxc({"domain": {"devices": devices}, "volumes": [*BOX["volumes"], {"name": "d", **source}]})


def test_files_of_the_launcher_stay_the_launchers() -> None:
    lent = {"name": "rootfs", "containerPath": {"path": "/", "readOnly": False}}
    domain = lxc({"domain": {"devices": {"filesystems": [{"name": "rootfs"}]}}, "volumes": [lent]})
    assert domain.find("devices/filesystem/readonly") is not None


def test_who_is_root_is_not_a_container_by_that() -> None:
    assert [name for name in registry.names() if registry.get(name).descriptor.container] == ["lxc", "openvz"]
    devices = {"filesystems": [{"name": "data", "virtiofs": {}}]}
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "x"}}]
    asked = read(VirtualMachineInstance, {"spec": {"domain": {"devices": devices}, "volumes": volumes}})
    found = mounted(asked, ())
    for name, count in (("xen", 1), ("qemu-kvm", 1), ("lxc", 0)):
        descriptor = registry.get(name).descriptor
        assert len(sharing.containers(asked, descriptor, Installation({}), "image", found)) == count, name


def test_users_of_containers_are_others_on_the_node_and_others_for_each_guest() -> None:
    firsts = [first_id(str(UUID(int=number))) for number in range(200)]
    assert all(first % IDS == 0 and 524288 <= first <= 1879048192 - IDS for first in firsts)
    assert len(set(firsts)) > 195
    assert firsts == [first_id(str(UUID(int=number))) for number in range(200)]


# --- Cloud Hypervisor


def test_cloud_hypervisor_gets_raw_files_on_virtio_and_boots_a_firmware() -> None:
    fields = {
        "domain.devices.disks": [{"name": n, "disk": {"bus": "virtio"}} for n in ("root", "block", "seed")],
        "volumes": [
            {"name": "root", "containerDisk": {"image": "x"}},
            {"name": "block", "persistentVolumeClaim": {"claimName": "x"}},
            {"name": "seed", "cloudInitNoCloud": {"userData": "x"}},
        ],
    }
    ch = registry.get("cloud-hypervisor")
    domain = ch.build(vmi(Sample("", fields, ())), NODE)
    assert [d.get("type") for d in domain.iterfind("devices/disk")] == ["file"] * 3
    assert [s.get("file") for s in domain.iterfind("devices/disk/source")] == [
        "/var/run/kubevirt-ephemeral-disks/disk-data/root/disk.raw",
        "/dev/block",
        "/var/run/kubevirt-ephemeral-disks/cloud-init-data/default/vmi/noCloud.iso",
    ]
    assert domain.findtext("os/kernel") == "/usr/share/cloud-hypervisor/hypervisor-fw"
    with pytest.raises(DomainError, match="cannot emulate"):
        ch.build(vmi(Sample("", fields, ())), Context(emulated=True))


# --- what runs beside a guest


def test_overheads_say_where_they_are_estimates() -> None:
    measured = [h for h in registry.names() if not registry.get(h).descriptor.overheads.estimate]
    assert measured[:3] == ["qemu-kvm", "xen", "lxc"], "those that the benchmark of the launcher measures, and test-xen"


def test_a_constant_below_what_is_seen_fails_the_benchmark() -> None:
    planned = QEMU.descriptor
    fine, wrong = footprint.figures({"launcher": 30 * 1024, "daemon": 900 * 1024}, planned)
    assert not fine.problem and "BELOW" in wrong.problem
    assert "BELOW" in as_text("", [wrong])


# --- daemons and tuning


def test_the_modular_daemon_is_used_where_it_is_installed_else_libvirtd_with_one_driver() -> None:
    modular, monolithic = (
        QEMU.daemon(DaemonSettings()),
        QEMU.daemon(DaemonSettings(modular=False, driver_dir="/drivers")),
    )
    assert modular.daemon and modular.daemon.command[0] == "/usr/sbin/virtqemud"
    assert modular.uri == "qemu+unix:///session?socket=/var/run/libvirt/virtqemud-sock"
    assert monolithic.daemon and monolithic.daemon.command[0] == "/usr/sbin/libvirtd"
    assert monolithic.daemon.environment["LIBVIRT_DRIVER_DIR"] == "/drivers"
    assert modular.log_daemon is None, "the launcher keeps its logs short"
    assert modular.logs == (
        "/var/run/kubevirt-private/libvirt/qemu/log/*.log",
        "/var/run/kubevirt-private/*/virt-serial*-log",
    )


def test_memory_is_locked_for_devices_that_write_into_it() -> None:
    gpu = vmi(Sample("", {"domain.devices.gpus": [{"name": "g"}]}, ()))

    def given(kind: str) -> Context:
        return Context(gpus={"g": AssignedDevice(kind, "address")})

    assert QEMU.tuning(gpu, given("pci")).lock_memory
    assert QEMU.tuning(gpu, given("mdev")).lock_memory
    assert not QEMU.tuning(gpu, given("usb")).lock_memory
    assert not QEMU.tuning(gpu, given("emulated")).lock_memory
    assert registry.get("cloud-hypervisor").tuning(gpu, given("pci")).lock_memory
    dedicated = vmi(
        Sample("", {"domain.cpu": {"cores": 1, "dedicatedCpuPlacement": True, "realtime": {"mask": "0"}}}, ())
    )
    tuning = QEMU.tuning(dedicated, Context())
    assert tuning.lock_memory
    assert tuning.kernel_threads == ("kvm-pit",)
    assert tuning.realtime_vcpus == "0"
    assert registry.get("mshv").tuning(dedicated, Context()).kernel_threads == ()


# --- the command


def test_the_command_lists_hypervisors_and_their_features() -> None:
    listed = json.loads(CliRunner().invoke(main, ["hypervisors", "-o", "json"]).stdout)
    assert [h["name"] for h in listed][:2] == ["qemu-kvm", "mshv"]
    assert "xen" in CliRunner().invoke(main, ["hypervisors", "-o", "wide"]).stdout
    features = json.loads(CliRunner().invoke(main, ["hypervisors", "features", "lxc", "-o", "json"]).stdout)
    assert {f["support"] for f in features} == {"works", "absent", "impossible"}
    assert {f["hypervisor"] for f in features} == {"lxc"}
    beside = json.loads(CliRunner().invoke(main, ["hypervisors", "features", "-o", "json"]).stdout)
    assert {f["hypervisor"] for f in beside} == {h["name"] for h in listed if not h["refusal"]}
    assert "live-migration" in CliRunner().invoke(main, ["hypervisors", "features"]).stdout
    unknown = CliRunner().invoke(main, ["hypervisors", "features", "nothing"])
    assert unknown.exit_code == 1 and "no hypervisor 'nothing'" in unknown.output
