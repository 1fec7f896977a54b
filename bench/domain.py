"""How long it takes to read a VMI and to build its domain, and how quickly the command line answers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from resource import RUSAGE_CHILDREN, getrusage
from time import process_time
from timeit import repeat

import msgspec

from bench.report import Figure
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.domain.context import Context
from virtfleet.domain.xml import text
from virtfleet.hypervisors import registry

TITLE = "domain: from a VMI to libvirt's XML"

VMI = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "VirtualMachineInstance",
    "metadata": {"name": "vm", "namespace": "default", "uid": "11111111-1111-4111-8111-111111111111"},
    "spec": {
        "architecture": "amd64",
        "domain": {
            "cpu": {"cores": 2, "sockets": 1, "threads": 1, "maxSockets": 4, "model": "host-model"},
            "memory": {"guest": "2Gi", "maxGuest": "8Gi"},
            "machine": {"type": "q35"},
            "features": {"acpi": {"enabled": True}, "smm": {"enabled": True}},
            "firmware": {"uuid": "aaaaaaaa-aaaa-4aaa-aaaa-aaaaaaaaaaaa", "bootloader": {"efi": {}}},
            "devices": {
                "rng": {},
                "disks": [{"name": f"disk{i}", "disk": {"bus": "virtio"}} for i in range(3)],
                "interfaces": [{"name": "default", "masquerade": {}}, {"name": "red", "bridge": {}}],
            },
        },
        "networks": [{"name": "default", "pod": {}}, {"name": "red", "multus": {"networkName": "red"}}],
        "volumes": [
            {"name": "disk0", "containerDisk": {"image": "example.com/guest"}},
            {"name": "disk1", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "disk2", "cloudInitNoCloud": {"userData": "#cloud-config"}},
        ],
    },
}


def run() -> list[Figure]:
    hypervisor, context = registry.get("qemu-kvm"), Context()
    vmi, raw = read(VirtualMachineInstance, VMI), msgspec.json.encode(VMI)
    as_dict = _ms(lambda: msgspec.json.decode(raw))
    return [
        Figure(
            "read a VMI from JSON",
            _ms(lambda: msgspec.json.decode(raw, type=VirtualMachineInstance)),
            "ms",
            as_dict,
            "reading it as a dict",
        ),
        Figure("build its domain", _ms(lambda: hypervisor.build(vmi, context)), "ms"),
        Figure("build and write its domain", _ms(lambda: text(hypervisor.build(vmi, context))), "ms", aim="< 0.5 ms"),
        Figure("virtfleet render domain, CPU time", _command(), "ms", _python(), "starting Python", aim="< 150 ms"),
    ]


def _ms(action: Callable[[], object], number: int = 300) -> float:
    """CPU time, which other processes disturb least."""
    return min(repeat(action, number=number, repeat=7, timer=process_time)) / number * 1000


def _python() -> float:
    return _elapsed([sys.executable, "-c", "pass"], "")


def _command() -> float:
    command = [sys.executable, "-c", "from virtfleet.cli import main; main()", "render", "domain", "-f", "-"]
    return _elapsed(command, msgspec.json.encode(VMI).decode())


def _elapsed(command: list[str], stdin: str) -> float:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    times = []
    for _ in range(7):
        before = getrusage(RUSAGE_CHILDREN)
        subprocess.run(command, input=stdin, text=True, check=True, capture_output=True, env=environment)
        after = getrusage(RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times) * 1000
