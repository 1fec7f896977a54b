"""What is tried inside of the dom0: `python -m xen.inside define DIRECTORY`, or `... life KIND FILES`.

The one has libvirt define every document there and translate it into Xen's own configuration. The other runs a VM in a
sandbox: its console, a pause, its end by its own will; then another, which is killed. Both end with a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from pathlib import Path
from typing import Any

import libvirt

from virtfleet.admission.review import complete
from virtfleet.hypervisors import registry
from virtfleet.installation import Installation
from virtfleet.launcher.alone.standalone import KERNEL_BOOT, Standalone
from virtfleet.protocol.client import Refused
from virtfleet.protocol.messages import DomainState, GetState, Kill, Pause, Shutdown, Status, Unpause
from vm.guests import VM, eventually

PATIENCE = 240.0  # a guest of a machine that is emulated itself
_READY = "virtfleet-guest ready"
_PROGRAMS = ("libvirtd", "launcher", "xen-qemu-system-i386")


def define(directory: Path) -> dict[str, str]:
    """What libvirt says against each document, by its name."""
    connection, against = libvirt.open("xen:///system"), {}
    for file in sorted(directory.glob("*.xml")):
        try:
            domain = connection.defineXMLFlags(file.read_text(), libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
            try:
                connection.domainXMLToNative("xen-xl", domain.XMLDesc())
            finally:
                domain.undefine()
        except libvirt.libvirtError as error:
            against[file.stem] = str(error)
    return against


def machine(kind: str) -> dict[str, Any]:
    """A VMI that boots our guest as a guest of this kind."""
    boot = {"image": "x", "kernelPath": "/vmlinuz", "initrdPath": "/initrd"}
    kernel = {"kernelBoot": {"container": boot, "kernelArgs": "console=hvc0 quiet panic=5"}}
    domain: dict[str, Any] = {
        "memory": {"guest": "192Mi"},
        "devices": {"autoattachPodInterface": False, "disks": [{"name": "root", "disk": {}}]},
        **({} if kind == "xenfv" else {"firmware": kernel, "machine": {"type": kind}}),
    }
    volumes = [{"name": "root", "containerDisk": {"image": "x"}}]
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": kind, "namespace": "default"},
        "spec": {"hypervisor": "xen", "domain": domain, "volumes": volumes},
    }


def started(kind: str, files: Path) -> Standalone:
    settings = {
        "hypervisors": [{"name": "xen"}],
        "architectureConfiguration": {"amd64": {"emulatedMachines": ["q35*", "xen*"]}},
    }
    cluster = Installation({"spec": {"configuration": settings}})
    vmi, found = complete(machine(kind), cluster)
    others = [cause for cause in found.causes if cause.field != "spec.hypervisor"]  # which is refused so far
    assert not others, others
    vmi["metadata"]["uid"] = str(uuid.uuid4())
    sources = {KERNEL_BOOT: files, "root": files / "guest.qcow2"}
    return Standalone(vmi, registry.get("xen"), cluster.context("amd64"), sources)


async def _ready(vm: VM) -> None:
    try:
        await eventually(lambda: _READY in vm.output, PATIENCE)
    except AssertionError:
        raise AssertionError(vm.output[-2000:] + vm.standalone.log.read_text()[-4000:]) from None


async def state(vm: VM) -> DomainState:
    return await vm.client.call(GetState())


async def life(kind: str, files: Path) -> dict[str, Any]:
    """What a VM does, and how it ends."""
    seen: dict[str, Any] = {}
    async with started(kind, files) as standalone:
        try:
            await standalone.start()
        except Refused:
            sys.stderr.write(standalone.log.read_text(errors="replace")[-4000:])
            raise
        vm = VM(standalone)
        await _ready(vm)
        await vm.client.call(Pause())
        seen["paused"] = (await state(vm)).status
        await vm.client.call(Unpause())
        seen["unpaused"] = (await state(vm)).status
        present = vm.processes()
        seen["resident"] = {program: vm.resident(program) for program in _PROGRAMS if program in present}
        await vm.client.call(Shutdown(grace_seconds=int(PATIENCE)))
        last, status = await vm.ending()
        seen["shut down"] = [last.status, last.reason, status]
    async with started(kind, files) as standalone:
        await standalone.start()
        vm = VM(standalone)
        assert (await state(vm)).status in (Status.RUNNING, Status.BLOCKED)
        await vm.client.call(Kill())
        last, status = await vm.ending()
        seen["killed"] = [last.status, last.reason, status]
    return seen


if __name__ == "__main__":
    if sys.argv[1] == "define":
        answer: dict[str, Any] = define(Path(sys.argv[2]))
    else:
        answer = asyncio.run(life(sys.argv[2], Path(sys.argv[3])))
    sys.stdout.write(json.dumps(answer) + "\n")
