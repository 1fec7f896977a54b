"""Where things lie inside the launcher's Pod.

The controller mounts them, the handler fills them, the launcher uses them, and domain documents name them, so the paths
are part of what all of them agree on. They are KubeVirt's.
"""

from __future__ import annotations

import posixpath

USER = 107
"""Whom launchers, and with them the hypervisors that need no root, run as: QEMU's user in the images."""

CAPABILITIES, DOMAIN_CAPABILITIES, HYPERVISORS = "capabilities.xml", "domain-capabilities.xml", "hypervisors.json"
"""What the launcher image finds out about its node for virt-handler, as files in one directory."""

PRIVATE = "/var/run/kubevirt-private"
SHARE = "/var/run/kubevirt"
SOCKETS = f"{SHARE}/sockets"
CONTAINER_DISKS = f"{SHARE}/container-disks"
IMAGE_VOLUMES = f"{SHARE}/image-volumes"
EPHEMERAL_DISKS = "/var/run/kubevirt-ephemeral-disks"
LIBVIRT = "/var/run/libvirt"
EMPTY_DISKS = f"{LIBVIRT}/empty-disks"
HOTPLUG_DISKS = f"{SHARE}/hotplug-disks"
CLAIMS = f"{PRIVATE}/vmi-disks"
SECRETS = f"{PRIVATE}/secret"
DOWNWARD_METRICS_DISK = f"{PRIVATE}/downwardapi-disks/vhostmd0"
DOWNWARD_METRICS_SOCKET = f"{PRIVATE}/downwardmetrics-channel/downwardmetrics.sock"
SERVICE_ACCOUNT_DISK = f"{PRIVATE}/service-account-disk/service-account.iso"
PR_HELPER_SOCKET = f"{SHARE}/daemons/pr/pr-helper.sock"
VM_STATE = f"{PRIVATE}/vm-state"
"""Where a VM's claim is mounted that firmware and TPM keep things in from one run to the next."""
KEPT = "VIRTFLEET_KEPT"
"""Variable of the launcher: which directories of libvirt's lie there."""
OUTLIVING = "/var/lib/virtfleet/outliving"
"""Directory of the node, in its Pods at the same place: whose domains do not end with their launcher."""
HOOKS = "/var/run/kubevirt-hooks"
"""Where hook sidecars listen; each of them sees its own directory under this name."""
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where Kubernetes mounts a Pod's token."""
VIRTIOFS = f"{SHARE}/virtiofs-containers"
PASST_LOG = f"{SHARE}/passt.log"


def seccomp_profile(hypervisor: str) -> str:
    """The profile of its launchers, below the kubelet's directory of such profiles."""
    return f"virtfleet/{hypervisor}.json"


def container_disk(volume_index: int) -> str:
    return f"{CONTAINER_DISKS}/disk_{volume_index}.img"


def image_volume(volume_index: int) -> str:
    """The whole image of a containerDisk, as Kubernetes mounts it; `container_disk` is the disk found in it."""
    return f"{IMAGE_VOLUMES}/disk_{volume_index}"


IMAGE_HOLDER = "container-disk"
"""Program of a container that holds an image, where images are no volumes."""
HELD_AT = "VIRTFLEET_HELD_AT"
"""Variable of such a container: where the launcher looks for its image. The launcher's own lists all of them."""


def held_name(path: str) -> str:
    """A name for what is held at a path, as parts of objects have them."""
    return posixpath.basename(path).replace("_", "-")


def kernel_boot_image() -> str:
    """The whole image that a kernel is booted from; `kernel_boot` are the files found in it."""
    return f"{IMAGE_VOLUMES}/kernel-boot"


def kernel_boot(artifact: str) -> str:
    return f"{CONTAINER_DISKS}/kernel-boot/{posixpath.basename(artifact)}"


def ephemeral_disk(volume: str) -> str:
    return f"{EPHEMERAL_DISKS}/disk-data/{volume}/disk.qcow2"


def empty_disk(volume: str) -> str:
    return f"{EMPTY_DISKS}/{volume}.qcow2"


def raw_disk(volume: str) -> str:
    """A disk of its own for a hypervisor that cannot stack images."""
    return f"{EPHEMERAL_DISKS}/disk-data/{volume}/disk.raw"


def container_root(volume: str) -> str:
    """Root file system of a container image, for hypervisors that run containers."""
    return f"{EPHEMERAL_DISKS}/rootfs/{volume}"


def mapped_dir(volume: str) -> str:
    """A claim as a container sees it, whose users are others on the node."""
    return f"{EPHEMERAL_DISKS}/mapped/{volume}"


def claim_image(volume: str) -> str:
    return host_disk(volume, "disk.img")


def host_disk(volume: str, path: str) -> str:
    return f"{claim_dir(volume)}/{posixpath.basename(path)}"


def claim_device(volume: str) -> str:
    return f"/dev/{volume}"


def hotplug_place(volume: str) -> str:
    """Where the handler mounts what is plugged in: the directory of a claim, or its device."""
    return f"{HOTPLUG_DISKS}/{volume}"


def hotplug_image(volume: str) -> str:
    """The image in the directory of such a claim, under the name that a domain knows it by."""
    return f"{HOTPLUG_DISKS}/{volume}.img"


def attached(volume: str, *, block: bool) -> str:
    """The same claim in the Pod that attaches it to the node."""
    return f"{'/dev' if block else ''}/attached/{volume}"


def cloud_init(namespace: str, name: str, config_drive: bool) -> str:
    return f"{EPHEMERAL_DISKS}/cloud-init-data/{namespace}/{name}/{'configdrive' if config_drive else 'noCloud'}.iso"


def cloud_init_seed(namespace: str, name: str) -> str:
    """The files of a NoCloud disk as a directory, for guests that share a kernel with the node."""
    return f"{EPHEMERAL_DISKS}/cloud-init-data/{namespace}/{name}/seed"


def cloud_init_secret(volume: str, part: str) -> str:
    """Where the Secret with a cloud-init volume's `userdata` or `networkdata` is mounted in the Pod."""
    return f"{PRIVATE}/cloud-init-secrets/{volume}/{part}"


def access_credential(secret: str) -> str:
    """Where a Secret with SSH keys or passwords for the guest is mounted in the Pod."""
    return f"{SECRETS}/{secret}-access-cred"


def claim_dir(volume: str) -> str:
    """Where a claim with a file system is mounted in the Pod, and the directory of a hostDisk."""
    return f"{CLAIMS}/{volume}"


def config_dir(kind: str, volume: str) -> str:
    """Where a ConfigMap, Secret or downward API volume is mounted in the Pod."""
    return f"{PRIVATE}/{kind}/{volume}"


def config_disk(kind: str, volume: str) -> str:
    """An ISO image made from a ConfigMap, Secret, downward API or sysprep volume."""
    return f"{PRIVATE}/{kind}-disks/{volume}.iso"


def virtiofs_socket(volume: str) -> str:
    """Where a container shares a volume with the guest."""
    return f"{VIRTIOFS}/{volume}.sock"


def hook_sidecar(number: int) -> str:
    """The name of a hook sidecar's container, and of its directory."""
    return f"hook-sidecar-{number}"


def ignition(namespace: str, name: str) -> str:
    return f"{LIBVIRT}/ignition-dir/{namespace}/{name}/data.ign"


USB_REDIRECTIONS = 4
"""How many USB devices of others a VM can have at once."""


def usb_redirection(number: int) -> str:
    """The name of the socket through which a guest gets one of them."""
    return f"virt-usbredir-{number}"


def vmi_socket(uid: str, name: str) -> str:
    """A socket of one VM: virt-vnc, virt-serial0, virt-usbredir-0 and so on."""
    return f"{PRIVATE}/{uid}/{name}"
