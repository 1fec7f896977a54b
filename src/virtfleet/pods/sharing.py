"""Containers that share directories of the Pod with the guest: one for each file system of the VMI. Pure.

Each runs as the launcher does, without any right, and sees its volume and the sockets of the VM's file systems.
"""

from __future__ import annotations

from typing import Any, Final

from virtfleet.api import traits
from virtfleet.api.disks import Volume
from virtfleet.api.quantity import DECIMAL, Quantity
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import paths
from virtfleet.hypervisors.base import Descriptor
from virtfleet.installation import Installation
from virtfleet.pods import security
from virtfleet.pods.volumes import Mounted

KIND: Final = "virtiofs"
"""Of these containers, in the installation's words."""
_SOCKETS: Final = "virtiofs-containers"
_LEAST: Final = {"cpu": "10m", "memory": "20M"}
_CPU: Final = "500m"
_MEMORY: Final = Quantity.parse("80M")
# Where the compute container has as much as it may use, or the Pod could not keep CPUs of its own.
_SAME: Final = {"cpu": "100m", "memory": str(_MEMORY)}


def containers(
    vmi: VMI, hypervisor: Descriptor, settings: Installation, image: str, mounted: Mounted
) -> list[dict[str, Any]]:
    """The sharing containers, on the launcher's image. ValueError is about a volume that can be none as things are."""
    if hypervisor.container:  # a container has directories mounted, without anybody in between
        return []
    shared = [wanted.name for wanted in vmi.spec.domain.devices.filesystems if wanted.virtiofs]
    if not shared:
        return []
    mounted.add(_SOCKETS, {"emptyDir": {}}, paths.VIRTIOFS)
    volumes = {volume.name: volume for volume in vmi.spec.volumes}
    given = resources(vmi, settings)
    return [_container(volumes[name], mounted, settings, hypervisor, image, given) for name in shared]


def resources(vmi: VMI, settings: Installation) -> dict[str, Any]:
    """What one container may use.

    A page of the guest's memory counts for whoever touches it first. That is the container, where the guest reads a
    file into memory that it has not used yet: so as much more may be counted there as the guest has, unless all of its
    memory was touched by the hypervisor before.
    """
    touched = traits.memory_is_there(vmi)
    guest = 0 if touched else traits.memory(vmi).value()
    most = {"cpu": _CPU, "memory": str(Quantity.of(_MEMORY.value() + guest, DECIMAL))}
    chosen = settings.support_resources(KIND)
    limits = {**(_SAME if traits.guaranteed(vmi) else most), **chosen.get("limits", {})}
    requests = {**_LEAST, **chosen.get("requests", {})}
    return {"requests": dict(limits) if traits.guaranteed(vmi) else requests, "limits": limits}


def _container(
    volume: Volume, mounted: Mounted, settings: Installation, hypervisor: Descriptor, image: str, given: dict[str, Any]
) -> dict[str, Any]:
    arguments = [f"--socket-path={paths.virtiofs_socket(volume.name)}"]
    mounts = [mount for mount in mounted.mounts if mount["name"] in (_SOCKETS, volume.name)]
    if volume.service_account:  # which every container of the Pod has at this place
        arguments += [f"--shared-dir={paths.SERVICE_ACCOUNT}", "--as-root"]
    elif mount := mounted.mount_of(volume.name):
        arguments += [f"--shared-dir={mount['mountPath']}"]
    else:
        raise ValueError(
            f"spec.domain.devices.filesystems: volume {volume.name!r} is no directory of the VM's Pod: use a claim with"
            " volumeMode Filesystem that is not hotpluggable"
        )
    return {
        "name": f"virtiofs-{volume.name}",
        **settings.pulled(image),
        "args": ["share", *arguments],
        "resources": given,
        "securityContext": security.of_container(hypervisor),
        "volumeMounts": mounts,
    }
