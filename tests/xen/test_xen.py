"""VMs on a real Xen. On demand: `make test-xen`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import yaml

from virtfleet.api.quantity import Quantity
from virtfleet.hypervisors import registry
from vm.guests import user_data
from vm.same import Report, guest
from xen.machine import DOMAINS, LIMIT, TREE, Shell
from xen.reference import documents

VMM = "xen-qemu-system-i386"
XEN = registry.get("xen")
MACHINES = {"amd64": {"emulatedMachines": ["q35*", "xenpv*"]}}
SETTINGS = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "KubeVirt",
    "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
    "spec": {"configuration": {"hypervisors": [{"name": "xen"}], "architectureConfiguration": MACHINES}},
}


def _without_extensions() -> dict[str, Any]:
    vmi = guest(XEN)
    vmi["metadata"]["name"] = "pv"
    vmi["spec"]["domain"]["machine"] = {"type": "xenpv"}
    seed = user_data("echo hello from the seed", "poweroff")
    vmi["spec"]["volumes"] = [seed if volume["name"] == "seed" else volume for volume in vmi["spec"]["volumes"][:2]]
    vmi["spec"]["domain"]["devices"]["disks"] = vmi["spec"]["domain"]["devices"]["disks"][:2]
    return vmi


def inside(dom0: Shell, *arguments: str) -> dict[str, Any]:
    """Run the part of a test that is in the dom0."""
    program = f"PYTHONPATH={TREE}/tests:{TREE} {TREE}/.venv/bin/python -m xen.inside"
    answer = dom0.run(f"{program} {' '.join(arguments)} 2>/tmp/errors || {{ cat /tmp/errors; false; }}", LIMIT)
    return dict(json.loads(answer.splitlines()[-1]))


def test_documents_of_the_references_are_accepted(dom0: Shell, files: Path) -> None:
    drivers = "/usr/lib/x86_64-linux-gnu/libvirt/connection-driver"
    dom0.run(f"mkdir -p /tmp/drivers /var/log/libvirt && ln -s {drivers}/libvirt_driver_libxl.so /tmp/drivers/")
    dom0.run("printf 'unix_sock_group = \"root\"\\n' > /tmp/libvirtd.conf")
    dom0.run("LIBVIRT_DRIVER_DIR=/tmp/drivers libvirtd -d -f /tmp/libvirtd.conf -p /tmp/libvirtd.pid")
    dom0.run("until virsh -q -c xen:///system list; do usleep 200000; done", LIMIT)
    for name, document in documents().items():
        (files / f"{name}.xml").write_text(document)
    assert inside(dom0, "define", str(files)) == {}
    dom0.run("kill $(cat /tmp/libvirtd.pid)")


def kib(quantity: str) -> int:
    return Quantity.parse(quantity).value() // 1024


def test_guests_do_all_that_the_registry_says(dom0: Shell, files: Path) -> None:
    report = msgspec.convert(inside(dom0, "same", str(files)), Report)
    report.write(os.environ.get("VIRTFLEET_RESULTS", ""))
    assert not report.failures
    assert dom0.run(DOMAINS) == "", "nothing is left in Xen"
    overheads = XEN.descriptor.overheads
    for program, planned in (("libvirtd", overheads.daemon), ("launcher", overheads.launcher), (VMM, overheads.vmm)):
        assert report.resident[program] <= kib(planned), f"{program} needs more than is planned"


def test_a_guest_without_extensions_of_the_processor_is_launched(dom0: Shell, files: Path) -> None:
    (files / "pv.yaml").write_text(yaml.safe_dump_all([_without_extensions(), SETTINGS]))
    disks = f"--disk root={files}/guest.qcow2 --disk kernel-boot={files}"
    said = dom0.run(f"{TREE}/.venv/bin/virtfleet launch -f {files}/pv.yaml {disks}", LIMIT)
    assert "hello from the seed" in said and "pv: Shutoff (Shutdown)" in said
    assert dom0.run(DOMAINS) == ""


def test_a_guest_boots_from_its_disk_by_the_bios(dom0: Shell) -> None:
    seen = inside(dom0, "check")
    assert "the guest is heard on its console" in seen["steps"]
    assert not any(seen["steps"].values()), seen["steps"]
    sys.stderr.write(f"HVM: {seen['resident']} KiB resident of {VMM}\n")
    assert 0 < seen["resident"] <= kib(XEN.descriptor.overheads.vmm), "it needs more than is planned"
    assert dom0.run(DOMAINS) == ""
