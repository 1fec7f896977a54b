"""The contract of a hypervisor: what VirtFleet must know of one to run VMs with it.

Most of it is data, a `Descriptor`; the rest is a handful of methods that decide and do nothing else: which domain
document, which files and processes for the libvirt daemon, which limits for the hypervisor's process. Whoever acts on
them (controller, handler, launcher) knows no hypervisor by name.

To add one, derive from `Hypervisor`, register the class under the entry-point group `virtfleet.hypervisors`, and run
`virtfleet.hypervisors.testing` against it.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from typing import ClassVar, Final
from xml.etree.ElementTree import Element

import msgspec

from virtfleet.api import traits
from virtfleet.api.quantity import Quantity
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain.context import Context
from virtfleet.domain.xml import attribute
from virtfleet.hypervisors.migration import Ask, Migration
from virtfleet.hypervisors.proof import Device, Learned, Program, Step
from virtfleet.hypervisors.support import Level, Supports

_OWN: Final = "ua-"  # libvirt keeps aliases with this prefix for its users
_MI: Final = 1024 * 1024
PAGE_TABLES: Final = 512  # one part of the guest's memory in so many
PER_VCPU: Final = 8 * _MI
VFIO: Final = 1024 * _MI


class Connection(enum.Enum):
    """How libvirt's driver reaches the hypervisor."""

    DAEMON = "daemon"  # through a libvirt daemon inside the launcher's Pod
    LIBRARY = "in-library"  # inside the client library, on the node
    REMOTE = "remote"  # over the network, with credentials


class Events(enum.Enum):
    """How changes of a domain become known."""

    NATIVE = "native"
    POLLED = "polled"


class Evidence(enum.Enum):
    """How far somebody has seen that a hypervisor's documents are right."""

    GUESTS = "runs here, tested"  # guests ran by them
    DRIVER = "document tested by the driver"  # libvirt's own driver took them
    SCHEMA = "document tested by the schema"  # libvirt's schema of domains allows them
    NONE = "not tested by VirtFleet"


class Overheads(msgspec.Struct, frozen=True, kw_only=True):
    """Resident memory of each process beside the guest's own memory, with a little room.

    `python -m bench launcher` measures again, and fails where a figure here is below what it sees.
    """

    daemon: str
    vmm: str
    monitor: str = "2Mi"
    launcher: str = "44Mi"
    log_daemon: str = "0"
    emulation: str = "0"
    """What the VMM needs more where it emulates CPUs: buffers for translated code."""
    estimate: str = ""
    """Where daemon and VMM could not be measured: what their figures are taken from. "" where they were."""

    def total(self, *, emulated: bool = False) -> Quantity:
        """All of them."""
        always = (self.monitor, self.launcher, self.log_daemon, self.daemon, self.vmm)
        return sum(map(Quantity.parse, (*always, self.emulation) if emulated else always), Quantity.parse("0"))


class Outliving(msgspec.Struct, frozen=True, kw_only=True):
    """How domains are found and ended that live in the hypervisor, not in the Pod: a killed launcher leaves them."""

    listing: tuple[str, ...]
    """Command whose lines begin with the name and the number of a domain."""
    ending: tuple[tuple[str, ...], ...]
    """Commands that end the domain of the number `{id}`; of those before the last, each may fail."""


class Descriptor(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a hypervisor without running it."""

    name: str
    title: str
    overheads: Overheads
    launcher_image: str
    """Name of the launcher image for this hypervisor, in the installation's registry."""

    connection: Connection = Connection.DAEMON
    events: Events = Events.NATIVE
    uri: str
    daemon: str = ""
    """Modular libvirt daemon; "" where the driver has none."""
    driver: str = ""
    """What libvirt calls the driver that a monolithic daemon loads, where that is not the scheme of its URI."""
    root: bool = False
    """Whether the launcher runs as root."""
    capabilities: tuple[str, ...] = ()
    """Of a launcher that is root, where these are enough."""
    privileged: bool = False
    """Whether nothing less than a privileged Pod is."""
    container: bool = False
    """Whether guests are containers, processes on the node's own kernel."""

    outliving: Outliving | None = None
    """Where domains do not end with the processes of their Pod."""
    node_paths: dict[str, str] = {}
    """What its Pods have of the node, by the place in the Pod."""

    device: str = ""
    """Device node under /dev and resource under devices.kubevirt.io; "" where nodes are found by label."""
    emulation: str = ""
    """libvirt's type of domains whose CPUs are emulated for want of the device; "" where it cannot do without it."""
    machines: bool = False
    """Whether its libvirt describes the CPUs and machine types of a node, which is labelled with them; a VM of another
    machine type waits for a node."""
    learned: Learned | None = None
    """What its libvirt finds out about programs, where that is worth keeping."""
    program: str = ""
    """One that must be installed, with `{machine}` for the kind of the node's CPUs; "" where there is none."""
    processes: tuple[str, ...] = ()
    """How command names of the hypervisor's process begin."""
    vcpu_thread: str = ""
    """Pattern of the names of threads that run virtual CPUs; the first group is the CPU's number."""

    disk_bus: str = "sata"
    """Bus of disks that do not choose one."""

    @property
    def scheme(self) -> str:
        """libvirt's name for its driver."""
        return self.uri.partition(":")[0]

    @property
    def by_leave(self) -> bool:
        """Whether VMs may have it only where the administrator lists it, because its launcher has power on the node."""
        return self.root or self.privileged or bool(self.capabilities)


class DaemonSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the launcher tells a hypervisor about the place where its daemon shall run."""

    runtime_dir: str = "/var/run"
    private_dir: str = "/var/run/kubevirt-private"
    log_filters: str = ""
    """libvirt's own filter syntax; the daemon's default where empty."""
    host_uuid: str = ""
    """What the daemon takes itself for: libvirt moves no domain to the same host, and Pods may share a machine."""
    modular: bool = True
    """Whether the modular daemon is installed."""
    driver_dir: str = ""
    """Directory with the one driver that a monolithic daemon shall load."""


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process that the launcher starts and keeps alive."""

    command: tuple[str, ...]
    environment: dict[str, str] = {}


class DaemonPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How to set up and start libvirt for one VM."""

    uri: str
    directories: tuple[str, ...] = ()
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    """Symbolic links and where they lead."""
    mounts: dict[str, str] = {}
    """File systems of the kernel's own that the driver looks for, and their types, by the place below /proc or /sys."""
    daemon: Process | None = None
    log_daemon: Process | None = None
    logs: tuple[str, ...] = ()
    """Patterns of files that processes append to without an end, and which the launcher keeps short.

    Those of the first tell why the hypervisor has died.
    """


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """What the handler does to the hypervisor's process, which the process may not do itself."""

    lock_memory: bool = False
    realtime_vcpus: str | None = None
    """Virtual CPUs with real-time priority, "" for all of them."""
    isolate_emulator: bool = False
    kernel_threads: tuple[str, ...] = ()
    """Kernel threads that serve the VM and follow its CPUs."""


class Hypervisor(ABC):
    """One hypervisor."""

    descriptor: ClassVar[Descriptor]
    supports: ClassVar[Supports] = {}
    """What works, what works as an experiment, and what is impossible. What is not named here is refused."""
    refusal: ClassVar[str] = ""
    """Why no VM can run on it yet."""
    evidence: ClassVar[Evidence] = Evidence.NONE
    migration: ClassVar[Migration] = Migration()
    """The steps by which a running VM moves; refused unless the hypervisor brings its own."""

    def has(self, feature: str) -> bool:
        """Whether a feature works, by the table of its own; `features.support` knows what VirtFleet does of it."""
        return feature in self.supports and self.supports[feature].level is Level.WORKS

    @abstractmethod
    def build(self, vmi: VMI, context: Context) -> Element:
        """The domain document of a VMI."""

    def adapt(self, domain: Element, context: Context) -> Element:
        """Fit a domain document to the libvirt and firmware that are really there, in place."""
        return domain

    def make_room(self, domain: Element, vmi: VMI) -> None:
        """Leave places in a document, which is otherwise complete, for devices that come while the domain runs."""
        return None

    def more_memory(self, running: Element, memory: int) -> Element | None:
        """The device by which the guest of a running domain comes to so many bytes, to be added, or changed if it is
        there; None where there is nothing to do, or no such device."""
        return None

    def daemon(self, settings: DaemonSettings) -> DaemonPlan:
        """How to set up and start libvirt for one VM: not at all, where the driver is inside the client library."""
        return DaemonPlan(uri=self.descriptor.uri)

    def proof(self, machine: str) -> tuple[Step, ...]:
        """How a node with CPUs of the kind `machine` (x86_64 and so on) proves that it works there."""
        device, program = self.descriptor.device, self.descriptor.program.format(machine=machine)
        return (*((Device(device),) if device else ()), *((Program(program),) if program else ()))

    def tuning(self, vmi: VMI, context: Context) -> Tuning:
        """What the handler does to the hypervisor's process."""
        return Tuning()

    def devices(self, vmi: VMI, *, emulated: bool) -> tuple[str, ...]:
        """Devices under devices.kubevirt.io that its Pod asks for. Those that the VMI names itself come on top."""
        without = not self.descriptor.device or (emulated and self.descriptor.emulation)
        own = () if without else (self.descriptor.device,)
        return (*own, "tun") if traits.taps(vmi) else own

    def memory(self, vmi: VMI) -> int:
        """Bytes beside the guest's memory that grow with the VMI; what every VM needs is in the overheads."""
        if self.descriptor.container:
            return 0  # all that a container takes is its own
        amount = -(-traits.memory(vmi).value() // PAGE_TABLES) + PER_VCPU * traits.topology(vmi).vcpus
        return amount + VFIO if traits.vfio(vmi) else amount

    def identity(self, device: Element) -> str:
        """What a disk or interface is known by, in a document made anew and in that of the running domain alike.

        "" for a device that is not the VMI's. A driver of libvirt that forgets aliases needs something else that stays.
        """
        return own_alias(device)

    def sweep(self, running: Element, ask: Ask) -> bool:
        """Have the VMM let go of what no device of the running domain has any more; whether nothing is left of it."""
        return True


def own_alias(device: Element) -> str:
    """The name in the VMI, from the alias that the device's document carries; "" where it is not one of ours."""
    name = attribute(device, "alias", "name")
    return name.removeprefix(_OWN) if name.startswith(_OWN) else ""
