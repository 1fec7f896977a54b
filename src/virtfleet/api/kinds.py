"""Every kind that VirtFleet serves, declared once.

Definitions, resources of the client, roles, webhooks and the tables of admission follow from these records. They are
facts and nothing else: a view is loaded when it is asked for, because most processes need names only.

A kind with a `refusal` is KubeVirt's and not built yet. It is served and empty, so that tools that list or delete it
find nothing instead of failing, and whoever creates one is told what to do instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from virtfleet.api import names
from virtfleet.api.meta import KubernetesObject, Unread

Column = dict[str, Any]
Verbs = tuple[str, ...]

READ: Final = ("get", "list", "watch")
WRITE: Final = (*READ, "create", "update", "patch", "delete")
_SHOWN: Final = ("get", "list")
_CHANGES: Final = ("CREATE", "UPDATE")


@dataclass(frozen=True, slots=True)
class Version:
    """A served version of a kind."""

    name: str
    deprecated: bool = False


@dataclass(frozen=True, slots=True)
class Right:
    """What a component, or people with a role, may do with objects of a kind, or with a subresource of them."""

    holder: str
    verbs: Verbs
    subresource: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class OwnKind:
    """All that there is to know of a kind besides what its controller does."""

    kind: str
    plural: str
    short_names: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    rights: tuple[Right, ...] = ()
    group: str = names.GROUP
    versions: tuple[Version, ...] = (Version(names.VERSION), Version("v1alpha3", deprecated=True))
    """The first one is stored."""
    namespaced: bool = True
    status: bool = True
    """Whether the status is a resource of its own."""
    scaled: bool = False
    """Whether it has replicas that autoscalers may change."""
    module: str = ""
    """Where in `virtfleet.api` its view is, which has the kind's name."""
    instance: str = ""
    """Where in an object the spec of an instance is."""
    completed: Verbs = ()
    """Operations in which it gets defaults."""
    mutator: str = ""
    """The webhook that gives them."""
    checked: Verbs = _CHANGES
    """Operations that admission has a say in."""
    vital: bool = False
    """Whether it stays editable while virt-api is down: an edit may be what brings virt-api back."""
    refusal: str = ""
    """Why there can be none yet, and what to do instead."""

    @property
    def view(self) -> type[KubernetesObject]:
        if self.refusal:
            return Unread
        found: type[KubernetesObject] = getattr(import_module(f"virtfleet.api.{self.module}"), self.kind)
        return found

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.versions[0].name}"


def _column(name: str, path: str, kind: str = "string") -> Column:
    return {"name": name, "type": kind, "jsonPath": path}


def _condition(kind: str, *, wide: bool = False) -> Column:
    column = _column(kind, f".status.conditions[?(@.type=='{kind.replace('-', '')}')].status")
    return {**column, "priority": 1} if wide else column


_AGE: Final = _column("Age", ".metadata.creationTimestamp", "date")
_PHASE: Final = _column("Phase", ".status.phase")
_SOURCE: Final = (_column("SourceKind", ".spec.source.kind"), _column("SourceName", ".spec.source.name"))
_READY_TO_USE: Final = (
    _column("ReadyToUse", ".status.readyToUse", "boolean"),
    _column("CreationTime", ".status.creationTime", "date"),
    _column("Error", ".status.error.message"),
)
_REPLICAS: Final = (
    _column("Desired", ".spec.replicas", "integer"),
    _column("Current", ".status.replicas", "integer"),
    _column("Ready", ".status.readyReplicas", "integer"),
    _AGE,
)
_CONTROLLED: Final = (
    Right("virt-controller", WRITE),
    Right("virt-controller", ("patch", "update"), "status"),
    Right("virt-controller", ("update",), "finalizers"),
)
_TENANTS: Final = (
    Right("view", READ),
    Right("edit", WRITE),
    Right("admin", (*WRITE, "deletecollection")),
)
_READERS: Final = tuple(Right(role, READ) for role in ("view", "edit", "admin"))

VM: Final = OwnKind(
    "VirtualMachine",
    "virtualmachines",
    ("vm", "vms"),
    (_AGE, _column("Status", ".status.printableStatus"), _condition("Ready")),
    (Right("virt-api", ("get", "patch")), Right("virt-api", ("patch",), "status"), *_CONTROLLED, *_TENANTS),
    module="vm",
    instance="spec.template.spec",
    completed=_CHANGES,
    mutator="virtualmachines-mutator.kubevirt.io",
)
VMI: Final = OwnKind(
    "VirtualMachineInstance",
    "virtualmachineinstances",
    ("vmi", "vmis"),
    (
        _AGE,
        _PHASE,
        _column("IP", ".status.interfaces[0].ipAddress"),
        _column("NodeName", ".status.nodeName"),
        _condition("Ready"),
        _condition("Live-Migratable", wide=True),
        _condition("Paused", wide=True),
    ),
    (
        Right("virt-api", (*READ, "patch")),
        Right("virt-handler", (*READ, "patch", "update")),
        *_CONTROLLED,
        *_TENANTS,
    ),
    status=False,  # labels, finalizers and status of an instance change in one write
    module="vmi",
    instance="spec",
    completed=_CHANGES,
    mutator="virtualmachineinstances-mutator.kubevirt.io",
)
REPLICA_SET: Final = OwnKind(
    "VirtualMachineInstanceReplicaSet",
    "virtualmachineinstancereplicasets",
    ("vmirs", "vmirss"),
    _REPLICAS,
    (*_CONTROLLED, *_TENANTS),
    scaled=True,
    module="replicaset",
    instance="spec.template.spec",
)
MIGRATION: Final = OwnKind(
    "VirtualMachineInstanceMigration",
    "virtualmachineinstancemigrations",
    ("vmim", "vmims"),
    (_PHASE, _column("VMI", ".spec.vmiName")),
    (
        Right("virt-api", (*READ, "create")),
        Right("virt-handler", READ),
        *_CONTROLLED,
        *_READERS,
        Right("migrate", (*WRITE, "deletecollection")),
    ),
    module="migration",
    completed=("CREATE",),
    mutator="migrations-mutator.kubevirt.io",
)
KUBEVIRT: Final = OwnKind(
    "KubeVirt",
    "kubevirts",
    ("kv", "kvs"),
    (_AGE, _PHASE, _column("Health", ".status.health")),
    (
        Right("virt-operator", (*READ, "patch")),
        *(Right("virt-operator", ("patch", "update"), part) for part in ("status", "finalizers")),
        *(Right(component, READ) for component in ("virt-api", "virt-controller", "virt-handler")),
        *(Right(role, _SHOWN) for role in ("view", "edit", "admin", "everybody")),
    ),
    module="kubevirt",
    checked=(*_CHANGES, "DELETE"),
    vital=True,
)


def _unbuilt(
    group: str, versions: tuple[Version, ...], kind: str, short_names: tuple[str, ...], refusal: str, **facts: Any
) -> OwnKind:
    """A kind of which there are none. Who may write others may delete it; creating it is refused to everybody."""
    leave = (
        Right("view", READ),
        Right("edit", (*READ, "delete")),
        Right("admin", (*READ, "delete", "deletecollection")),
    )
    known = {"plural": f"{kind.lower()}s", "rights": leave, **facts}
    return OwnKind(
        kind,
        short_names=short_names,
        group=f"{group}.{names.GROUP}" if group else names.GROUP,
        versions=versions,
        checked=("CREATE",),
        refusal=refusal,
        **known,
    )


_BETA: Final = (Version("v1beta1"), Version("v1alpha1"))
_SNAPSHOTS: Final = (
    "VirtFleet does not take snapshots of VMs yet; stop the VM and make a VolumeSnapshot of each of its claims instead"
)
_BACKUPS: Final = "VirtFleet does not back up VMs yet; stop the VM and back up its claims instead"
_TYPES: Final = (
    "VirtFleet does not have instance types yet; write CPU and memory into spec.template.spec.domain of the VM instead"
)
_PREFERENCES: Final = (
    "VirtFleet does not have preferences yet; write devices and firmware into spec.template.spec.domain of the VM "
    "instead"
)

KINDS: Final = (
    VM,
    VMI,
    REPLICA_SET,
    MIGRATION,
    KUBEVIRT,
    _unbuilt(
        "",
        (Version("v1", deprecated=True), Version("v1alpha3", deprecated=True)),
        "VirtualMachineInstancePreset",
        ("vmipreset", "vmipresets"),
        "VirtFleet does not apply presets, which KubeVirt is about to remove; write the fields into the VM instead",
        status=False,
    ),
    _unbuilt(
        "pool",
        _BETA,
        "VirtualMachinePool",
        ("vmpool", "vmpools"),
        "VirtFleet does not have pools of VMs yet; create the VMs one by one instead, or a "
        "VirtualMachineInstanceReplicaSet for VMs without state",
        columns=_REPLICAS,
        scaled=True,
    ),
    _unbuilt(
        "snapshot",
        _BETA,
        "VirtualMachineSnapshot",
        ("vmsnapshot", "vmsnapshots"),
        _SNAPSHOTS,
        columns=(*_SOURCE, _PHASE, *_READY_TO_USE),
    ),
    _unbuilt(
        "snapshot",
        _BETA,
        "VirtualMachineSnapshotContent",
        ("vmsnapshotcontent", "vmsnapshotcontents"),
        _SNAPSHOTS,
        columns=_READY_TO_USE,
    ),
    _unbuilt(
        "snapshot",
        _BETA,
        "VirtualMachineRestore",
        ("vmrestore", "vmrestores"),
        "VirtFleet does not restore VMs yet; make claims from your VolumeSnapshots and name them in the VM instead",
        columns=(
            _column("TargetKind", ".spec.target.kind"),
            _column("TargetName", ".spec.target.name"),
            _column("Complete", ".status.complete", "boolean"),
            _column("RestoreTime", ".status.restoreTime", "date"),
        ),
    ),
    _unbuilt(
        "clone",
        _BETA,
        "VirtualMachineClone",
        ("vmclone", "vmclones"),
        "VirtFleet does not clone VMs yet; clone the VM's claims and create a VM that names the clones instead",
        columns=(
            _PHASE,
            _column("SourceVirtualMachine", ".spec.source.name"),
            _column("TargetVirtualMachine", ".spec.target.name"),
        ),
    ),
    _unbuilt(
        "export",
        (Version("v1"), Version("v1beta1", deprecated=True)),
        "VirtualMachineExport",
        ("vmexport", "vmexports"),
        "VirtFleet does not export VMs yet; stop the VM and copy from its claims with a Pod of your own instead",
        columns=(*_SOURCE, _PHASE),
    ),
    _unbuilt(
        "backup",
        (Version("v1alpha1"),),
        "VirtualMachineBackup",
        ("vmbackup", "vmbackups"),
        _BACKUPS,
        columns=(
            *_SOURCE,
            _column("Type", ".status.type"),
            _column("CheckpointName", ".status.checkpointName"),
        ),
    ),
    _unbuilt(
        "backup",
        (Version("v1alpha1"),),
        "VirtualMachineBackupTracker",
        ("vmbackuptracker", "vmbackuptrackers"),
        _BACKUPS,
        columns=(
            *_SOURCE,
            _column("LatestCheckpoint", ".status.latestCheckpoint.name"),
            _column("CheckpointTime", ".status.latestCheckpoint.creationTime", "date"),
        ),
    ),
    *(
        _unbuilt("instancetype", (Version("v1beta1"),), kind, short, refusal, namespaced=namespaced, status=False)
        for kind, short, refusal, namespaced in (
            ("VirtualMachineInstancetype", ("vminstancetype", "vminstancetypes", "vmf", "vmfs"), _TYPES, True),
            (
                "VirtualMachineClusterInstancetype",
                ("vmclusterinstancetype", "vmclusterinstancetypes", "vmcf", "vmcfs"),
                _TYPES,
                False,
            ),
            ("VirtualMachinePreference", ("vmpref", "vmprefs", "vmp", "vmps"), _PREFERENCES, True),
            ("VirtualMachineClusterPreference", ("vmcp", "vmcps"), _PREFERENCES, False),
        )
    ),
    _unbuilt(
        "migrations",
        (Version("v1alpha1"),),
        "MigrationPolicy",
        (),
        "VirtFleet does not move VMs yet, so that policies would have no effect; restart a VM to have it placed anew "
        "instead",
        plural="migrationpolicies",
        namespaced=False,
        rights=_READERS,
    ),
)
BY_NAME: Final = {kind.kind: kind for kind in KINDS}
BUILT: Final = tuple(kind for kind in KINDS if not kind.refusal)
