"""libvirt's drivers of hypervisors that are not here take their documents. Only the missing program is a stand-in.

VMware's driver writes a configuration file of its own from each document, and asks `vmrun` what runs. OpenVZ's makes a
container with one call of `vzctl` after the other; it looks for /proc/vz, so it has a /proc of its own here.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.unit.test_hypervisors_schema import vmi_for
from virtfleet.domain import paths
from virtfleet.domain.context import Context
from virtfleet.domain.xml import text
from virtfleet.hypervisors import registry
from virtfleet.hypervisors.base import Evidence

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="mounts in a namespace of its own need root")

VMRUN = """#!/bin/sh
[ "$3" = list ] && echo "Total running VMs: 0"
exit 0
"""
VMWARE = """#!/bin/sh
echo "VMware Workstation 17.0.0 build-1"
"""
VZCTL = """#!/bin/sh
printf '%s ' "$@" >> {log}; echo >> {log}
[ "$1" = --help ] && echo "vzctl version 4.9.4"
[ "$2" = create ] && : > /etc/vz/conf/$3.conf
exit 0
"""
NODE_OF_OPENVZ = """set -e
mkdir {here}/proc {here}/run
mount -t proc none {here}/proc
mount -t tmpfs none /proc
mkdir /proc/vz
ln -s {here}/proc/self /proc/self
mount -t overlay -o lowerdir={here}/bin:/usr/sbin none /usr/sbin
mount -t tmpfs none {here}/run
mkdir -p {here}/run/upper/vz/conf {here}/run/work
mount -t overlay -o lowerdir=/etc,upperdir={here}/run/upper,workdir={here}/run/work none /etc
echo 'VE_PRIVATE=/vz/private/$VEID' > /etc/vz/vz.conf
virsh -c openvz:///system define {here}/domain.xml
"""


def programs(directory: Path, **scripts: str) -> Path:
    directory.mkdir()
    for name, script in scripts.items():
        (directory / name).write_text(script)
        (directory / name).chmod(0o755)
    return directory


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def vmware(here: Path, domain: dict[str, object]) -> dict[str, str]:
    """What the driver writes down for a domain."""
    hypervisor = registry.get("vmware")
    document = text(hypervisor.build(vmi_for(hypervisor, domain), Context()))
    disks = here / "disks"
    for place in ("vmi-disks/own", "cloud-init-data/ns/vm", "config-map-disks"):
        (disks / place).mkdir(parents=True)
    (here / "domain.xml").write_text(document.replace(paths.PRIVATE, str(disks)).replace("disk.img", "disk.vmdk"))
    found = programs(here / "bin", vmrun=VMRUN, vmware=VMWARE)
    path = f"{found}:{os.environ['PATH']}"
    run("virsh", "-c", hypervisor.descriptor.uri, "define", str(here / "domain.xml"), PATH=path, HOME=str(here))
    [written] = disks.rglob("*.vmx")
    entries = (line.partition(" = ") for line in written.read_text().splitlines() if " = " in line)
    return {key: value.strip('"') for key, _, value in entries}


def test_vmware_writes_the_machine_down(tmp_path: Path) -> None:
    machine = vmware(tmp_path, {"cpu": {"cores": 2}})
    assert (machine["displayName"], machine["memsize"], machine["numvcpus"]) == ("ns_vm", "128", "2")
    assert machine["scsi0:0.fileName"].endswith("disk.vmdk")
    assert machine["scsi0:1.deviceType"] == "cdrom-image", "what is made of configuration is an ISO image"


def test_openvz_makes_the_container(tmp_path: Path) -> None:
    hypervisor, log = registry.get("openvz"), tmp_path / "log"
    vmi = vmi_for(hypervisor, {"cpu": {"cores": 2}})
    document = hypervisor.build(vmi, Context())
    (tmp_path / "domain.xml").write_text(text(document))
    programs(tmp_path / "bin", vzctl=VZCTL.format(log=log), vzlist="#!/bin/sh\nexit 0\n")
    run("unshare", "--mount", "sh", "-c", NODE_OF_OPENVZ.format(here=tmp_path))
    calls, number = log.read_text(errors="replace"), document.findtext("name")
    assert f"--quiet create {number} --name {number} --ostemplate" in calls
    assert f"set {number} --netif_add eth0,DE:AD:00:00:BE:AF" in calls.replace("de:ad:00:00:be:af", "DE:AD:00:00:BE:AF")
    assert f"set {number} --cpus 2 --save" in calls
    assert f"set {number} --kmemsize {128 * 2**20} --save" in calls


def test_who_says_that_a_driver_took_its_documents_is_tested_here() -> None:
    said = {name for name in registry.names() if registry.get(name).evidence is Evidence.DRIVER}
    assert said == {"vmware", "openvz"}
