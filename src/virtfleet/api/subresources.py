"""Every subresource of `subresources.kubevirt.io`, declared once.

virt-api's routes, discovery and OpenAPI documents, the ClusterRoles for people and docs/subresources.md are made from
this table or checked against it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from virtfleet.api import kinds, names

GROUP: Final = f"subresources.{names.GROUP}"
VERSIONS: Final = ("v1", "v1alpha3")  # the preferred one first
PROTOCOL: Final = "plain.kubevirt.io"
"""The websocket subprotocol of all streams: binary messages are bytes of the stream, nothing else has a meaning."""

VM: Final = kinds.VM.plural
VMI: Final = kinds.VMI.plural


class Role(enum.Enum):
    """The least of KubeVirt's roles that includes a right."""

    EVERYBODY = "everybody"  # who is authenticated
    VIEW = "view"
    EDIT = "edit"
    ADMIN = "admin"
    MIGRATE = "migrate"  # a role of its own, in none of the others
    CLUSTER_ADMIN = "cluster-admin"  # who may do anything


class Server(enum.Enum):
    """Who carries out a request."""

    GATEWAY = "virt-api"
    HANDLER = "virt-handler"  # that of the VMI's node
    NOBODY = "refused"  # known, checked, and answered with what to do instead


@dataclass(frozen=True, slots=True)
class Subresource:
    """`name` is below an object of `resource`; without a name, `resource` itself is asked, which is no object then."""

    resource: str
    name: str
    method: str
    role: Role
    server: Server
    does: str
    errors: str = ""
    websocket: bool = False
    namespaced: bool = True
    tails: tuple[str, ...] = ("",)  # what may follow the name in a path, and is no matter of rights

    @property
    def verb(self) -> str:
        """What RBAC calls the method."""
        return {"GET": "get", "PUT": "update"}[self.method]

    @property
    def rbac(self) -> str:
        """What RBAC calls it."""
        return f"{self.resource}/{self.name}" if self.name else self.resource

    @property
    def asked_as(self) -> str:
        """What the API server asks RBAC for before it passes a request on: it knows no slash in a subresource."""
        return f"{self.resource}/{self.name.partition('/')[0]}" if self.name else self.resource

    def paths(self) -> Iterator[str]:
        """Below the group's version, with {parameters}."""
        place = f"/namespaces/{{namespace}}/{self.resource}" if self.namespaced else f"/{self.resource}"
        for tail in self.tails:
            yield f"{place}/{{name}}/{self.name}{tail}" if self.name else place


_NO_VM = "404 no such VM"
_NO_VMI = "404 no such VMI"
_NOT_RUNNING = f"{_NO_VMI}; 409 not running"
_AGENT = f"{_NOT_RUNNING}, or no guest agent"
_PORTS = ("/{port}", "/{port}/{protocol}")


def _stream(name: str, does: str, errors: str, role: Role = Role.EDIT) -> Subresource:
    return Subresource(VMI, name, "GET", role, Server.HANDLER, does, errors, websocket=True)


def _look(name: str, does: str, errors: str = _AGENT) -> Subresource:
    return Subresource(VMI, name, "GET", Role.VIEW, Server.HANDLER, does, errors)


def _steer(name: str, does: str, errors: str) -> Subresource:
    return Subresource(VMI, name, "PUT", Role.EDIT, Server.HANDLER, does, errors)


def _change(name: str, does: str, errors: str, role: Role = Role.EDIT) -> Subresource:
    return Subresource(VM, name, "PUT", role, Server.GATEWAY, does, errors)


def _refused(resource: str, name: str, method: str, role: Role, does: str) -> Subresource:
    return Subresource(resource, name, method, role, Server.NOBODY, does, "400 always; says what to do instead")


def _of_both(name: str, does: str, errors: str, method: str = "PUT", role: Role = Role.EDIT) -> list[Subresource]:
    return [
        Subresource(resource, name, method, role, Server.GATEWAY, does, f"{missing}; {errors}")
        for resource, missing in ((VM, _NO_VM), (VMI, _NO_VMI))
    ]


def _installation(name: str, does: str, errors: str = "") -> Subresource:
    return Subresource(name, "", "GET", Role.EVERYBODY, Server.GATEWAY, does, errors, namespaced=False)


TABLE: Final = (
    # Streams
    _stream(
        "console",
        "the serial console; a second one takes over",
        f"{_NO_VMI}; 400 not running, or without a serial console; 409 failed",
    ),
    _stream(
        "vnc",
        "the screen, as VNC; a second one takes over unless `preserveSession=true`",
        f"{_NO_VMI}; 400 not running, or without a screen",
    ),
    Subresource(
        VMI,
        "vnc/screenshot",
        "GET",
        Role.ADMIN,
        Server.HANDLER,
        "a picture of the screen (PNG)",
        f"{_NO_VMI}; 400 not running, or without a screen",
    ),
    *(
        Subresource(
            resource,
            "portforward",
            "GET",
            Role.EDIT,
            Server.GATEWAY,
            "a connection to a port of the guest, `tcp` (also without saying so) or `udp`",
            f"{missing}; 400 no such port or protocol, or no address yet; 409 paused; 500 nothing answers there",
            websocket=True,
            tails=_PORTS,
        )
        for resource, missing in ((VM, f"{_NO_VM}; 409 not started"), (VMI, _NO_VMI))
    ),
    _stream(
        "usbredir",
        "a USB device of the caller's, redirected; up to four at once",
        f"{_NO_VMI}; 400 not running, or without `clientPassthrough`; 503 all four are in use",
    ),
    _stream(
        "vsock",
        "a connection to the vsock port `port` of the guest, with TLS unless `tls=false`; up to 64 at once",
        f"{_NO_VMI}; 400 no such port, not running, or without `autoattachVSOCK`; 409 started without a vsock; "
        "503 64 are open. That nothing answers there is told when the stream ends (1011)",
        Role.CLUSTER_ADMIN,
    ),
    # What the guest does
    _steer("pause", "freezes the guest's CPUs", f"{_NOT_RUNNING}, or paused already; 403 it has a liveness probe"),
    _steer("unpause", "lets a paused guest go on", f"{_NOT_RUNNING}, or not paused"),
    _steer("reset", "resets the guest's hardware, as its button would", f"{_NO_VMI}; 400 not on a node"),
    _steer(
        "softreboot",
        "asks the guest to reboot, through its agent or ACPI",
        f"{_NOT_RUNNING}, paused, or neither agent nor ACPI",
    ),
    _steer("freeze", "freezes the guest's file systems", _NOT_RUNNING),
    _steer("unfreeze", "thaws the guest's file systems", _NOT_RUNNING),
    _look(
        "guestosinfo",
        "what the guest agent tells of the operating system",
        f"{_NO_VMI}; 500, in plain words, not running, or no guest agent",
    ),
    _look("userlist", "who is logged in, as the guest agent tells"),
    _look("filesystemlist", "mounted file systems, as the guest agent tells"),
    # What the VM does
    _change("start", "starts the VM, `paused` if asked", f"{_NO_VM}; 409 running, or its run strategy starts it"),
    _change("stop", "stops the VM, within `gracePeriod` seconds if given", f"{_NO_VM}; 409 not running"),
    _change(
        "restart",
        "stops the VM and starts it again, at once with `gracePeriodSeconds: 0`",
        f"{_NO_VM}; 400 another grace period; 409 not running, or run strategy Halted or Once",
    ),
    _change(
        "migrate",
        "makes a VirtualMachineInstanceMigration, as admission allows it",
        f"{_NO_VM} or VMI; 409 not running; 422 otherwise",
        Role.MIGRATE,
    ),
    *_of_both(
        "evacuate/cancel",
        "takes back that the VMI is to leave its node",
        "409 another node than `evacuationNodeName` is left; 400 the node has the drain taint",
    ),
    *_of_both(
        "addvolume",
        "plugs a volume in; of a VM also into its template",
        "409 name or source is in use, or a VMI does not run; 422 not allowed; 400 otherwise",
    ),
    *_of_both(
        "removevolume",
        "unplugs a volume; of a VM also from its template",
        "409 no such volume, or not hotpluggable; 400 otherwise",
    ),
    _refused(VM, "memorydump", "PUT", Role.EDIT, "writes the guest's memory to a claim"),
    _refused(VM, "removememorydump", "PUT", Role.EDIT, "forgets a memory dump"),
    _refused(VMI, "backup", "PUT", Role.CLUSTER_ADMIN, "copies the VMI's disks"),
    _refused(VMI, "redefine-checkpoint", "PUT", Role.CLUSTER_ADMIN, "restores a checkpoint of backups"),
    _refused(VMI, "sev/fetchcertchain", "GET", Role.VIEW, "SEV attestation: the node's certificates"),
    _refused(VMI, "sev/querylaunchmeasurement", "GET", Role.VIEW, "SEV attestation: the measurement"),
    _refused(VMI, "sev/setupsession", "PUT", Role.EDIT, "SEV attestation: the session"),
    _refused(VMI, "sev/injectlaunchsecret", "PUT", Role.EDIT, "SEV attestation: a secret"),
    # What belongs together
    *_of_both(
        "objectgraph",
        "the objects that it consists of and depends on",
        "400 the selector is none",
        "GET",
        Role.VIEW,
    ),
    Subresource(
        VM,
        "expand-spec",
        "GET",
        Role.VIEW,
        Server.GATEWAY,
        "the VM with what instance type and preference add",
        f"{_NO_VM}; 500 its instance type or preference is not there, or contradicts it",
    ),
    Subresource(
        "expand-vm-spec",
        "",
        "PUT",
        Role.VIEW,
        Server.GATEWAY,
        "the same for a VM that is sent",
        "400 not a VM, of another namespace, or its instance type or preference is not there or contradicts it",
    ),
    # The installation
    _installation("version", "the version of VirtFleet"),
    _installation("guestfs", "where `virtctl guestfs` finds its image", "503 no KubeVirt object yet"),
    _installation("healthz", "whether virt-api reaches the API server", "500 it does not"),
)
