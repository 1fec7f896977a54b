"""Devices of a VM but for disks and network interfaces."""

from __future__ import annotations

from msgspec import field

from virtfleet.api.disks import Disk
from virtfleet.api.meta import FeatureState
from virtfleet.api.networks import Interface
from virtfleet.api.view import Empty, Required, View


class Devices(View):
    """Devices of the VM."""

    disks: list[Disk] = []
    """Disks, LUNs and CD-ROM drives, each naming a volume."""
    interfaces: list[Interface] = []
    """Network interfaces, each naming a network."""
    filesystems: list[Filesystem] = []
    """Directories shared with the guest, each naming a volume."""
    gpus: list[GPU] = []
    """Graphics devices of the node, whole or virtual."""
    host_devices: list[HostDevice] = []
    """Other devices of the node."""
    inputs: list[Input] = []
    """Input devices."""
    watchdog: Watchdog | None = None
    """A watchdog that resets a stuck guest."""
    rng: Empty | None = None
    """A source of randomness for the guest."""
    tpm: TPMDevice | None = None
    """A virtual TPM."""
    sound: SoundDevice | None = None
    """A sound card."""
    video: VideoDevice | None = None
    """Another video device than the default one."""
    panic_devices: list[PanicDevice] = []
    """Devices that report a guest's panic."""
    downward_metrics: Empty | None = None
    """A channel with metrics of the node for the guest."""
    client_passthrough: Empty | None = None
    """Let users plug USB devices of their own machine into the VM."""
    autoattach_graphics_device: bool | None = None
    """False removes the default graphics device and VNC."""
    autoattach_serial_console: bool | None = None
    """False removes the default serial console."""
    log_serial_console: bool | None = None
    """Whether the serial console's output is logged."""
    autoattach_pod_interface: bool | None = None
    """False leaves a VM without interfaces without the default one."""
    autoattach_mem_balloon: bool | None = None
    """False removes the memory balloon."""
    autoattach_input_device: bool | None = None
    """Add an input device where none is given."""
    autoattach_vsock: bool | None = field(name="autoattachVSOCK", default=None)
    """Add a socket between guest and host."""
    block_multi_queue: bool | None = None
    """One queue per virtual CPU on virtio disks."""
    network_interface_multiqueue: bool | None = None
    """One queue per virtual CPU on virtio interfaces."""
    disable_hotplug: bool | None = None
    """Refuse that devices are added while the VM runs."""
    use_virtio_transitional: bool | None = None
    """Virtio devices that old guests understand."""


class Input(View):
    """An input device."""

    name: Required[str] = ""
    """Name of the device."""
    type: Required[str] = ""
    """tablet."""
    bus: str = ""
    """usb or virtio."""


class VGPUOptions(View):
    """Settings of a virtual GPU."""

    display: VGPUDisplayOptions | None = None
    """Whether it serves as the VM's display."""


class VGPUDisplayOptions(View):
    """Display of a virtual GPU."""

    enabled: bool | None = None
    """Whether it is the VM's display."""
    ram_fb: FeatureState | None = field(name="ramFB", default=None)
    """A framebuffer for the time before the guest's driver has started."""


class HostDevice(View):
    """A device of the node."""

    name: Required[str] = ""
    """Name of the device in the VM."""
    device_name: str = ""
    """Resource that a device plugin offers, for example nvidia.com/TU104GL_Tesla_T4."""
    tag: str = ""
    """Name that cloud-init shows to the guest."""
    claim_name: str = ""
    """Resource claim that the device comes from."""
    request_name: str = ""
    """Request within that claim."""


class GPU(HostDevice):
    """A graphics device of the node."""

    virtual_gpu_options: VGPUOptions | None = field(name="virtualGPUOptions", default=None)
    """Settings of a virtual GPU."""


class Filesystem(View):
    """A volume as a directory in the guest."""

    name: Required[str] = ""
    """Volume, and tag under which the guest mounts it."""
    virtiofs: Required[Empty] | None = None
    """Share it by virtiofs."""


class Watchdog(View):
    """A watchdog."""

    name: Required[str] = ""
    """Name of the device."""
    i6300esb: WatchdogDevice | None = None
    """Intel's device, for x86."""
    diag288: WatchdogDevice | None = None
    """The device of IBM Z."""


class WatchdogDevice(View):
    """What happens when the guest stops answering."""

    action: str = ""
    """reset, poweroff or shutdown."""


class TPMDevice(FeatureState):
    """A virtual TPM 2.0."""

    persistent: bool | None = None
    """Keep its state over restarts."""


class SoundDevice(View):
    """A sound card."""

    name: Required[str] = ""
    """Name of the device."""
    model: str = ""
    """ich9 or ac97."""


class VideoDevice(View):
    """A video device."""

    type: str = ""
    """virtio, vga, bochs, cirrus or ramfb."""


class PanicDevice(View):
    """A device that reports a guest's panic."""

    model: str = ""
    """isa, hyperv or pvpanic."""
