"""What a handler and a launcher say to each other.

Launchers live as long as their VMs, so a handler talks to launchers of its own version and of earlier ones. Therefore
messages and their fields are only ever added, every field has a default, and unknown ones are ignored; which requests a
launcher understands, it says in its greeting. A VMI travels as the JSON of the object, so that nothing of it is lost.

What a launcher sends has bounds, which a handler holds it to, because a guest may have taken its place. They are far
beyond what real guests have; a launcher cuts off what is more (`launcher.server.fit`).
"""

from __future__ import annotations

import enum
from typing import Annotated, Final, Generic, TypeVar, get_args

import msgspec
from msgspec import Meta

from virtfleet.domain import paths
from virtfleet.domain.abi import MOST_DEVICES, MOST_FEATURES
from virtfleet.domain.context import Context

COMMAND_SOCKET: Final = f"{paths.SOCKETS}/launcher-sock"
CHANNELS_SOCKET: Final = f"{paths.SOCKETS}/channels-sock"  # of migrations; descriptors are passed over it

Word = Annotated[str, Meta(max_length=64)]
Name = Annotated[str, Meta(max_length=256)]
Line = Annotated[str, Meta(max_length=1024)]
Names = Annotated[dict[Name, Name], Meta(max_length=512)]
Output = Annotated[bytes, Meta(max_length=128 << 10)]


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all messages."""


A = TypeVar("A", bound=Message)


class Request(Message, Generic[A], frozen=True, kw_only=True):
    """Base of what a handler asks for; its parameter is the answer."""


class Status(enum.StrEnum):
    """What the domain does; the names are KubeVirt's. Shutoff and Crashed are final."""

    ABSENT = ""  # not started yet
    RUNNING = "Running"
    BLOCKED = "Blocked"
    PAUSED = "Paused"
    SHUTTING_DOWN = "Shutdown"
    SUSPENDED = "PMSuspended"
    SHUTOFF = "Shutoff"
    CRASHED = "Crashed"

    @property
    def ended(self) -> bool:
        return self in (Status.SHUTOFF, Status.CRASHED)


class GuestDevice(Message, frozen=True):
    """A device of the domain, and where the guest sees it."""

    name: Name = ""
    address: Word = ""
    mac: Word = ""
    target: Word = ""


class GuestABI(Message, frozen=True):
    """What the guest relies on of its machine; the fields are those of the API's GuestABI."""

    machine: Word = ""
    loader: Name = ""
    variables: Name = ""
    secure_boot: bool = False
    devices: Annotated[list[GuestDevice], Meta(max_length=MOST_DEVICES)] = []
    cpu_model: Word = ""
    cpu_features: Annotated[list[Word], Meta(max_length=MOST_FEATURES)] = []


class MigrationReport(Message, frozen=True):
    """How far a migration of the domain is, as its launcher sees it."""

    uid: Word = ""
    running: bool = False
    """Whether libvirt is at it."""
    left: bool = False
    """Source: the domain has been handed over, and nothing of the guest runs here."""
    complete: bool = False
    """Target: all of the guest is here, and it waits to be let run."""
    failure: Line = ""
    """Source: why the guest stays; it was never elsewhere."""
    asks: Line = ""
    """Source: what went wrong when the target may have had all of the guest. It stands still until `Stay` comes."""
    mode: Word = ""
    aborted: bool = False
    elapsed_seconds: float = 0
    total_bytes: int = 0
    left_bytes: int = 0
    rate: int = 0
    """Bytes a second."""
    dirty_rate: int = 0
    """Bytes a second that the guest writes anew."""
    downtime_ms: int = 0


class Credentials(Message, frozen=True):
    """How far the guest's users have the keys and passwords that its agent was given."""

    synchronized: bool = False
    message: Line = ""
    """Why not."""


class DomainState(Message, frozen=True):
    """What the domain does, and why."""

    status: Status = Status.ABSENT
    reason: Word = ""
    name: Name = ""
    uuid: Word = ""
    machine: Word = ""
    """Machine type that it really has: the version behind an alias. Empty where the hypervisor has none."""
    agent: bool = False
    """Whether the guest's agent is there."""
    frozen: bool = False
    """Whether the guest's file systems were frozen, and nobody has thawed them."""
    stopping: bool = False
    """Whether a shutdown was asked for."""
    killed: bool = False
    """Whether it was ended by force because its grace period was over."""
    disks: Names = {}
    """Target of each disk in the guest, by volume."""
    links: Names = {}
    """up or down, by the hardware address of each interface."""
    abi: GuestABI | None = None
    topology: tuple[int, int, int] = (0, 0, 0)
    """Sockets, cores and threads that the guest has now; zero where a launcher of an earlier version does not say."""
    boot_memory: int = 0
    """Bytes that the guest started with."""
    memory: int = 0
    """Bytes that it has now."""
    requested_memory: int = 0
    """Bytes that it was offered: of what was added, it may have taken less."""
    migration: MigrationReport | None = None
    """The latest one."""
    credentials: Credentials | None = None
    """Where there are any for the agent."""


class Event(Message, frozen=True):
    """Something that happened to the domain and that is not a state: a guest's panic, an I/O error, its watchdog."""

    kind: Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z]*\Z")] = ""
    """It becomes the reason of an Event."""
    detail: Line = ""


class Update(Message, frozen=True):
    """One item of a watch: the state as it is now, and what happened just before, if anything."""

    state: DomainState = DomainState()
    event: Event | None = None


class Lease(Message, frozen=True):
    """What the launcher tells one interface of the guest by DHCP."""

    device: str = ""
    """Bridge or interface of the Pod that the guest is reached by."""
    mac: str = ""
    address: str = ""
    """With the length of the prefix: 10.0.2.2/24."""
    server: str = ""
    routers: list[str] = []
    routes: list[tuple[str, str]] = []
    """Destination and gateway of further routes."""
    dns: list[str] = []
    search: list[str] = []
    ntp: list[str] = []
    mtu: int = 0
    hostname: str = ""
    tftp_server: str = ""
    boot_file: str = ""
    options: dict[int, str] = {}
    """Private options, by number."""


class Lease6(Message, frozen=True):
    """What the launcher tells one interface of the guest by DHCPv6 and router advertisement."""

    device: str = ""
    """Bridge of the Pod that the guest is reached by, and that is its router."""
    address: str = ""
    """With the length of the prefix: fd10:0:2::2/120."""
    dns: list[str] = []
    search: list[str] = []
    mtu: int = 0


class NodeFacts(Message, frozen=True):
    """What only the handler knows: facts of the node, and what it prepared for the VM."""

    context: Context = Context()
    taps: dict[str, str] = {}
    leases: list[Lease] = []
    leases6: list[Lease6] = []
    sockets: int = 0
    """Up to how many the Pod of a VM that runs has room for; 0 where nothing is to change."""
    memory: int = 0
    """The same of the guest's memory, in bytes."""


class Hello(Message, frozen=True):
    """The first message of either side."""

    version: Word = ""
    requests: Annotated[list[Word], Meta(max_length=256)] = []
    vmi: Word = ""
    """UID of the VMI that a launcher is for."""


class Document(Message, frozen=True):
    """A document of libvirt's."""

    xml: Annotated[str, Meta(max_length=256 << 10)] = ""


class Done(Message, frozen=True):
    """It is done; there is nothing to say about it."""


class Picture(Message, frozen=True):
    """A picture as PNG."""

    png: bytes = b""


class GuestInterface(Message, frozen=True):
    """A network interface as the guest sees it."""

    name: Name = ""
    mac: Word = ""
    addresses: Annotated[list[Word], Meta(max_length=32)] = []


class GuestUser(Message, frozen=True):
    """Somebody who is logged in."""

    name: Name = ""
    domain: Name = ""
    login_time: float = 0


class GuestFilesystem(Message, frozen=True):
    """A file system that the guest has mounted."""

    name: Name = ""
    mountpoint: Line = ""
    type: Word = ""
    used_bytes: int = 0
    total_bytes: int = 0
    disks: Annotated[list[Name], Meta(max_length=32)] = []
    """Serial numbers of the disks that it lies on."""


class GuestInfo(Message, frozen=True):
    """What the guest's agent tells, in the form in which it tells it."""

    agent_version: Word = ""
    commands: Annotated[list[Word], Meta(max_length=512)] = []
    os: Names = {}
    hostname: Name = ""
    timezone: Name = ""
    interfaces: Annotated[list[GuestInterface], Meta(max_length=512)] = []
    users: Annotated[list[GuestUser], Meta(max_length=512)] = []
    filesystems: Annotated[list[GuestFilesystem], Meta(max_length=512)] = []


class Stats(Message, frozen=True):
    """What the VM has used so far, under libvirt's own names: cpu.time, balloon.rss, block.0.rd.bytes..."""

    values: Annotated[dict[Word, int | float | Line | bool], Meta(max_length=8192)] = {}


class Executed(Message, frozen=True):
    """How a command in the guest ended."""

    exit_code: int = 0
    stdout: Output = b""
    stderr: Output = b""


class Sync(Request[DomainState], frozen=True):
    """Make the domain as the VMI says: started if it was not yet, with devices added and removed if it runs."""

    vmi: bytes = b""
    node: NodeFacts = NodeFacts()
    emulators: dict[str, dict[str, bytes]] = {}
    """What the node's own launcher image found out about emulators; see the module of that name."""


class Prepare(Sync, frozen=True):
    """Make everything ready as for a start, and start nothing: the domain comes from another node."""

    migration: str = ""
    """UID of the migration by which it comes."""


class GetDocument(Request[Document], frozen=True):
    """Target: the document that was prepared; the source makes of it the one that the domain gets there."""


class Depart(Request[Done], frozen=True):
    """Source: begin to move the domain; how far it is, the state says. Asked again for the same one, it is a no-op."""

    migration: str = ""
    vmi: bytes = b""
    document: str = ""
    """That of the target."""
    options: bytes = b""
    """JSON of MigrationOptions: the settings in force for this migration."""


class AbortDeparture(Request[Done], frozen=True):
    """Source: end the migration and leave the domain here."""

    migration: str = ""


class Stay(Request[Done], frozen=True):
    """Source: the VMI's status says that the migration has failed, so the guest will not run elsewhere and may here."""

    migration: str = ""


class Arrive(Request[DomainState], frozen=True):
    """Target: the source has let go, so let the guest run (or stand, where its owner paused it), and say so around."""

    migration: str = ""


class Watch(Request[Update], frozen=True):
    """The state now, then every change, until the connection ends."""


class GetState(Request[DomainState], frozen=True):
    """The state now."""


class Shutdown(Request[Done], frozen=True):
    """Ask the guest to shut down, and kill it when the grace period is over. None: as the VMI says."""

    grace_seconds: int | None = None


class Kill(Request[Done], frozen=True):
    """End the domain at once."""


class Pause(Request[Done], frozen=True):
    """Stop the guest's CPUs."""


class Unpause(Request[Done], frozen=True):
    """Let the guest's CPUs go on."""


class SoftReboot(Request[Done], frozen=True):
    """Ask the guest to reboot, by its agent or by ACPI."""


class Reset(Request[Done], frozen=True):
    """Reboot as if by the reset button."""


class Freeze(Request[Done], frozen=True):
    """Make the guest's file systems quiet, and thaw them by ourselves when nobody did in time; 0 is no limit."""

    timeout_seconds: int = 300


class Unfreeze(Request[Done], frozen=True):
    """Let the guest's file systems go on."""


class Screenshot(Request[Picture], frozen=True):
    """A picture of the guest's screen."""


class GetGuestInfo(Request[GuestInfo], frozen=True):
    """What the guest's agent tells."""


class GetStats(Request[Stats], frozen=True):
    """What the VM has used so far."""


class GuestPing(Request[Done], frozen=True):
    """Whether the guest's agent answers."""

    timeout_seconds: int = 5


class GuestExec(Request[Executed], frozen=True):
    """Run a command in the guest, by its agent."""

    command: list[str] = []
    timeout_seconds: int = 5


def answer_to(request: type[Request[A]]) -> type[A]:
    """The kind of message that answers a request."""
    answer: type[A] = get_args(request.__orig_bases__[0])[0]  # type: ignore[attr-defined]
    return answer
