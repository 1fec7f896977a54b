"""`virtfleet render`: what VirtFleet would make of an object, without a cluster.

The same pure functions that the components call, so what is printed is what would be created. What only a node knows of
a domain (addresses of devices, its CPUs) is made up, and stays the same from call to call.
"""

from __future__ import annotations

import uuid
from itertools import count
from pathlib import Path
from typing import Any

import click
import msgspec

from virtfleet.api.devices import GPU, HostDevice
from virtfleet.api.kinds import VMI
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.cli.manifests import cluster_of, completed_instances, files_option, kubevirt_option, objects
from virtfleet.cli.output import CommandError, Group, yaml_documents
from virtfleet.domain import xml
from virtfleet.domain.context import AssignedDevice, Context, Host, NumaCell
from virtfleet.hypervisors import registry
from virtfleet.installation import Installation

_CPUS = 64
_SLOTS, _FUNCTIONS = 32, 8  # of a PCI bus, and of a slot
_CID = 3  # the first address on vsock that a guest can have; in a cluster, the controller gives it one


@click.group(cls=Group)
def render() -> None:
    """What VirtFleet would make of an object, without a cluster."""


@render.command()
@kubevirt_option
def operator(kubevirt_file: str | None) -> None:
    """Print what the operator would install for a KubeVirt object. Certificates are made on the cluster only."""
    from virtfleet.operator.render import render as installed

    click.echo(yaml_documents(installed(cluster_of(kubevirt_file))), nl=False)


@render.command()
@files_option
@kubevirt_option
@click.option("--block-volume", "block_volumes", multiple=True, help="A volume whose claim is a block device.")
def pod(files: tuple[str, ...], kubevirt_file: str | None, block_volumes: tuple[str, ...]) -> None:
    """Print the launcher Pods of VMIs. For a VM or a replica set, of the VMI that it makes."""
    from virtfleet.pods.launcher import render as launcher
    from virtfleet.reasons.instances import identified

    made = list(objects(files))
    cluster = cluster_of(kubevirt_file, beside=made)
    vmis = map(identified, completed_instances(made, cluster))
    click.echo(yaml_documents(launcher(vmi, cluster, block_volumes=block_volumes) for vmi in vmis), nl=False)


@render.command()
@files_option
@kubevirt_option
def vmi(files: tuple[str, ...], kubevirt_file: str | None) -> None:
    """Print VMIs with their defaults. For a VM or a replica set, the VMI that it makes."""
    made = list(objects(files))
    click.echo(yaml_documents(completed_instances(made, cluster_of(kubevirt_file, beside=made))), nl=False)


@render.command()
@click.option("-f", "--filename", required=True, help="File with the VirtualMachineInstance; - is standard input.")
@kubevirt_option
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
    installation = cluster_of(kubevirt_file)
    try:
        vmi = read(VirtualMachineInstance, _one_vmi(filename))
    except msgspec.ValidationError as error:
        raise CommandError(str(error)) from None
    default = installation.fleet.default_hypervisor
    chosen = registry.get(hypervisor or registry.resolve(vmi.spec.hypervisor, "", default))
    if vmi.spec.domain.devices.autoattach_vsock and vmi.status.vsock_cid is None:
        vmi.status.vsock_cid = _CID
    context = msgspec.structs.replace(
        pretend_node(vmi, installation),
        block_volumes=frozenset(block_volumes),
        disk_formats={volume.name: disk_format for volume in vmi.spec.volumes if volume.container_disk},
    )
    document = chosen.build(vmi, context)
    if adapted:
        document = chosen.adapt(document, msgspec.structs.replace(context, host=this_machine()))
    click.echo(xml.text(document, pretty=True))


def _one_vmi(file: str) -> dict[str, Any]:
    """The VMI in a file, without nulls, as the API server would store it."""
    from virtfleet.admission.shape import without_nulls

    vmi = next((obj for obj in objects([file]) if obj["kind"] == VMI.kind), None)
    if vmi is None:
        raise CommandError(
            f"{file} has no VirtualMachineInstance", "`virtfleet render vmi` makes a VMI of other kinds."
        )
    return without_nulls(vmi)


def pretend_node(vmi: VirtualMachineInstance, installation: Installation) -> Context:
    """A node with one NUMA cell that has every device the VM asks for."""
    permitted = installation.configuration.permitted_host_devices
    mediated = {device.resource_name for device in permitted.mediated_devices} if permitted else set()
    usb = {device.resource_name for device in permitted.usb} if permitted else set()
    ports, slots = count(1), count(1)  # no two devices of a node share an address

    def assigned(device: GPU | HostDevice) -> AssignedDevice:
        if device.device_name in mediated:
            return AssignedDevice("mdev", str(uuid.uuid5(uuid.NAMESPACE_OID, device.name)))
        if device.device_name in usb:
            return AssignedDevice("usb", f"1:{next(ports)}")
        bus, slot = divmod(next(slots), _SLOTS)
        return AssignedDevice("pci", f"0000:{0x81 + bus:02x}:{slot:02x}.0")

    functions = (interface.name for interface in vmi.spec.domain.devices.interfaces if interface.sriov)
    return msgspec.structs.replace(
        installation.context(vmi.spec.architecture),
        host_devices={device.name: assigned(device) for device in vmi.spec.domain.devices.host_devices},
        gpus={device.name: assigned(device) for device in vmi.spec.domain.devices.gpus},
        sriov={
            name: "0000:65:{:02x}.{}".format(*divmod(number, _FUNCTIONS)) for number, name in enumerate(functions, 1)
        },
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
