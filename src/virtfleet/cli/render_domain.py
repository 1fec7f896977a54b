"""`virtfleet render domain`: the libvirt domain of a VMI.

What only a node knows (addresses of devices, its CPUs) is made up, and stays the same from call to call.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import click
import msgspec

from virtfleet.api.feature_gates import FeatureGates
from virtfleet.api.kubevirt import KubeVirt
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.cli.manifests import objects
from virtfleet.cli.output import CommandError
from virtfleet.domain import xml
from virtfleet.domain.cluster import cluster_context
from virtfleet.domain.context import AssignedDevice, Context, NumaCell
from virtfleet.domain.errors import DomainError
from virtfleet.hypervisors import registry
from virtfleet.hypervisors.base import Host

_CPUS = 64


@click.command()
@click.option("-f", "--filename", required=True, help="File with the VirtualMachineInstance; - is standard input.")
@click.option("--kubevirt", "kubevirt_file", help="File with the KubeVirt object in force; defaults where left out.")
@click.option("--hypervisor", default="", help="Hypervisor to use instead of the one that the objects say.")
@click.option("--block-volume", "block_volumes", multiple=True, help="A volume whose claim is a block device.")
@click.option("--disk-format", type=click.Choice(["raw", "qcow2"]), default="qcow2", help="Format of containerDisks.")
@click.option("--adapted", is_flag=True, help="Fitted to the libvirt and firmware of this machine.")
def domain(
    filename: str,
    kubevirt_file: str | None,
    hypervisor: str,
    block_volumes: tuple[str, ...],
    disk_format: str,
    adapted: bool,
) -> None:
    """The libvirt domain of a VirtualMachineInstance."""
    settings = _one(kubevirt_file, "KubeVirt") if kubevirt_file else {}
    try:
        vmi = read(VirtualMachineInstance, _one(filename, "VirtualMachineInstance"))
        kubevirt = read(KubeVirt, settings)
    except msgspec.ValidationError as error:
        raise CommandError(str(error)) from None
    configured = kubevirt.spec.configuration.hypervisors
    try:
        chosen = registry.get(
            hypervisor or registry.resolve(vmi.spec.hypervisor, "", configured[0].name if configured else "")
        )
        cluster = cluster_context(kubevirt, FeatureGates.of(settings), vmi.spec.architecture)
        context = msgspec.structs.replace(
            pretend_node(vmi, kubevirt, cluster),
            block_volumes=frozenset(block_volumes),
            disk_formats={volume.name: disk_format for volume in vmi.spec.volumes if volume.container_disk},
        )
        document = chosen.build(vmi, context)
        if adapted:
            document = chosen.adapt(document, this_machine())
    except (DomainError, registry.UnknownHypervisor) as error:
        raise CommandError(str(error)) from None
    click.echo(xml.text(document, pretty=True))


def _one(file: str, kind: str) -> dict[str, Any]:
    """The object of a kind in a file, without nulls, as the API server would store it."""
    from virtfleet.admission.shape import without_nulls

    found = next((obj for obj in objects([file]) if obj["kind"] == kind), None)
    if found is None:
        raise CommandError(f"{file} has no {kind}", "`virtfleet render vmi` makes a VMI of other kinds.")
    return without_nulls(found)


def pretend_node(vmi: VirtualMachineInstance, kubevirt: KubeVirt, cluster: Context) -> Context:
    """A node with one NUMA cell that has every device the VM asks for."""
    permitted = kubevirt.spec.configuration.permitted_host_devices
    mediated = {device.resource_name for device in permitted.mediated_devices} if permitted else set()
    usb = {device.resource_name for device in permitted.usb} if permitted else set()

    def assign(devices: list[Any]) -> dict[str, AssignedDevice]:
        taken: dict[str, AssignedDevice] = {}
        for number, device in enumerate(devices, start=1):
            if device.device_name in mediated:
                address = uuid.uuid5(uuid.NAMESPACE_OID, device.name)
                taken[device.name] = AssignedDevice("mdev", str(address))
            elif device.device_name in usb:
                taken[device.name] = AssignedDevice("usb", f"1:{number}")
            else:
                taken[device.name] = AssignedDevice("pci", f"0000:81:{number:02x}.0")
        return taken

    functions = [interface.name for interface in vmi.spec.domain.devices.interfaces if interface.sriov]
    return msgspec.structs.replace(
        cluster,
        gpus=assign(vmi.spec.domain.devices.gpus),
        host_devices=assign(vmi.spec.domain.devices.host_devices),
        sriov={name: f"0000:65:00.{number}" for number, name in enumerate(functions, start=1)},
        cpus=tuple(range(_CPUS)),
        cells=(NumaCell(0, tuple((cpu, ()) for cpu in range(_CPUS)), ((0, 10),)),),
    )


def this_machine() -> Host:
    """The libvirt and firmware that are installed here."""
    import libvirt  # a native library, which only this option needs

    files = (path for pattern in ("*_CODE*.fd", "*_VARS*.fd") for path in Path("/usr/share").glob(f"*/{pattern}"))
    return Host(
        libvirt_version=libvirt.getVersion(),
        firmware=frozenset(map(str, files)),
        vhost_net=Path("/dev/vhost-net").exists(),
    )
