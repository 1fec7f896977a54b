"""Finding devices in trees of files that look like /dev and /sys of some machine."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from virtfleet.api.configuration import PermittedHostDevices
from virtfleet.api.view import read
from virtfleet.handler.assembly import sources, works
from virtfleet.handler.devices import host as hostdevices
from virtfleet.handler.devices.host import Modules, Source
from virtfleet.handler.node.labeller import Facts
from virtfleet.installation import Installation


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine: two GPUs in one IOMMU group, one that its driver keeps, a virtual GPU, and three USB devices."""
    for address, driver, group in (("0000:65:00.0", "vfio-pci", "7"), ("0000:65:00.1", "vfio-pci", "7")):
        _pci(tmp_path, address, driver, group)
    _pci(tmp_path, "0000:66:00.0", "nvidia", "8")
    mdev = tmp_path / "sys/bus/mdev/devices/c2f1e9a4-0000-4000-8000-000000000001"
    (mdev / "mdev_type").mkdir(parents=True)
    (mdev / "mdev_type/name").write_text("GRID T4-1Q\n")
    (mdev / "iommu_group").symlink_to("../../kernel/iommu_groups/12")
    for name, product, number in (("1-1", "0001", 4), ("1-2", "0001", 5), ("1-3", "0002", 6)):
        _usb(tmp_path, name, product, number)
    _touch(tmp_path, "dev/vfio/vfio", "dev/vfio/7", "dev/vfio/12")
    return tmp_path


def _touch(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()


def _pci(root: Path, address: str, driver: str, group: str) -> None:
    device = root / "sys/bus/pci/devices" / address
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "device").write_text("0x1eb8\n")
    (device / "numa_node").write_text("1\n")
    (device / "driver").symlink_to(f"../../drivers/{driver}")
    (device / "iommu_group").symlink_to(f"../../../kernel/iommu_groups/{group}")


def _usb(root: Path, name: str, product: str, number: int) -> None:
    device = root / "sys/bus/usb/devices" / name
    device.mkdir(parents=True)
    for file, content in (("idVendor", "46f4"), ("idProduct", product), ("busnum", "1"), ("devnum", str(number))):
        (device / file).write_text(f"{content}\n")
    _touch(root, f"dev/bus/usb/001/{number:03}")


def one(root: Path, **permitted: object) -> Source:
    (source,) = hostdevices.permitted(root, read(PermittedHostDevices, permitted))
    return source


def test_pci_devices_that_vfio_has_are_offered_by_their_group(root: Path) -> None:
    source = one(root, pciHostDevices=[{"pciVendorSelector": "10DE:1EB8", "resourceName": "nvidia.com/T4"}])
    assert source.variable == "PCI_RESOURCE_NVIDIA_COM_T4"
    (unit,) = source.units().values()
    assert unit.healthy
    assert unit.address == "0000:65:00.0,0000:65:00.1"
    assert unit.nodes == ("/dev/vfio/vfio", "/dev/vfio/7")
    assert unit.numa == 1


def test_a_group_whose_node_is_gone_is_unhealthy(root: Path) -> None:
    source = one(root, pciHostDevices=[{"pciVendorSelector": "10de:1eb8", "resourceName": "nvidia.com/T4"}])
    (root / "dev/vfio/7").unlink()
    assert not source.units()["7"].healthy


def test_mediated_devices_are_found_by_the_name_of_their_type(root: Path) -> None:
    source = one(root, mediatedDevices=[{"mdevNameSelector": "GRID T4-1Q", "resourceName": "nvidia.com/GRID_T4-1Q"}])
    assert source.variable == "MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_T4-1Q"
    assert source.units()["12"].address == "c2f1e9a4-0000-4000-8000-000000000001"


def test_usb_devices_come_in_sets(root: Path) -> None:
    both = [{"vendor": "46f4", "product": "0001"}, {"vendor": "46F4", "product": "0002"}]
    source = one(root, usb=[{"resourceName": "kubevirt.io/pair", "selectors": both}])
    (unit,) = source.units().values()
    assert unit.address == "1:4,1:6"
    assert unit.nodes == ("/dev/bus/usb/001/004", "/dev/bus/usb/001/006")


def test_what_another_plugin_offers_is_left_to_it(root: Path) -> None:
    external = {"pciVendorSelector": "10DE:1EB8", "resourceName": "nvidia.com/T4", "externalResourceProvider": True}
    assert not list(hostdevices.permitted(root, read(PermittedHostDevices, {"pciHostDevices": [external]})))
    assert not list(hostdevices.permitted(root, None))


def test_devices_that_every_vm_shares_are_offered_where_they_exist(tmp_path: Path) -> None:
    _touch(tmp_path, "dev/kvm", "dev/net/tun")
    found = {source.resource: source.units() for source in hostdevices.shared(tmp_path, 3, lambda name: name != "kvm")}
    assert found.keys() == {"devices.kubevirt.io/kvm", "devices.kubevirt.io/tun"}
    assert found["devices.kubevirt.io/tun"].keys() == {"tun0", "tun1", "tun2"}
    assert all(unit.healthy for unit in found["devices.kubevirt.io/tun"].values())
    assert not any(unit.healthy for unit in found["devices.kubevirt.io/kvm"].values()), "it is there but does not work"


def test_a_hypervisors_device_is_of_use_only_if_one_that_runs_on_it_works() -> None:
    broken = Facts(hypervisors={"qemu-kvm": "no guest boots", "cloud-hypervisor": "it is not installed", "lxc": ""})
    assert not works(broken, "kvm")
    assert works(Facts(hypervisors={"qemu-kvm": "", "cloud-hypervisor": "it is not installed"}), "kvm")
    assert works(Facts(), "kvm"), "nothing is known"
    assert works(broken, "tun"), "no hypervisor's"


@pytest.mark.parametrize("gates", [[], ["VSOCK"]])
def test_vsock_is_offered_where_its_gate_is_on(tmp_path: Path, gates: list[str]) -> None:
    _touch(tmp_path, "dev/net/tun", "dev/vhost-vsock")
    spec = {"configuration": {"developerConfiguration": {"featureGates": gates}}}
    cluster = Installation({"metadata": {"name": "kubevirt", "namespace": "kubevirt"}, "spec": spec})
    found = {source.resource for source in sources(tmp_path, cluster, 3, lambda _: True)}
    assert found == {"devices.kubevirt.io/tun", *(["devices.kubevirt.io/vhost-vsock"] if gates else [])}


@pytest.mark.parametrize("has_module", [True, False])
def test_the_kernel_is_asked_once_to_load_what_is_behind_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_module: bool
) -> None:
    driver, asked = tmp_path / "sys/class/misc/vhost-vsock", []

    def opened(path: Path, flags: int) -> int:
        asked.append(path.relative_to(tmp_path))
        if not has_module:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        driver.mkdir(parents=True)
        return os.dup(1)

    monkeypatch.setattr(hostdevices.os, "open", opened)
    modules = Modules(tmp_path)
    assert modules.loaded("tun"), "it needs no module of its own"
    assert [modules.loaded("vhost-vsock") for _ in range(3)] == [has_module] * 3
    assert asked == [Path("dev/vhost-vsock")]
    driver.mkdir(parents=True, exist_ok=True)  # somebody has loaded it
    assert modules.loaded("vhost-vsock") and len(asked) == 1


@pytest.mark.parametrize(("mode", "offered"), [("global", True), ("local", False)])
def test_a_vsock_that_no_handler_reaches_is_not_offered(tmp_path: Path, mode: str, offered: bool) -> None:
    (tmp_path / "sys/class/misc/vhost-vsock").mkdir(parents=True)
    said = tmp_path / "proc/sys/net/vsock/ns_mode"
    said.parent.mkdir(parents=True)
    said.write_text(f"{mode}\n")
    assert Modules(tmp_path).loaded("vhost-vsock") is offered
