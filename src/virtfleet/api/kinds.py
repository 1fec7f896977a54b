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
Operations = tuple[str, ...]

READ: Final = ("get", "list", "watch")
WRITE: Final = (*READ, "create", "update", "patch", "delete")
_SHOWN: Final = ("get", "list")
_CHANGES: Final = ("CREATE", "UPDATE")


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
    versions: tuple[str, ...] = (names.VERSION, "v1alpha3")
    """The first one is stored."""
    deprecated: tuple[str, ...] = ("v1alpha3",)
    namespaced: bool = True
    status: bool = True
    """Whether the status is a resource of its own."""
    scaled: bool = False
    """Whether it has replicas that autoscalers may change."""
    module: str = ""
    """Where in `virtfleet.api` its view is, which has the kind's name."""
    instance: str = ""
    """Where in an object the spec of an instance is."""
    completed: Operations = ()
    """Operations in which it gets defaults."""
    mutator: str = ""
    """The webhook that gives them."""
    checked: Operations = _CHANGES
    """Operations that admission has a say in."""
    validators: tuple[tuple[str, Operations], ...] = ()
    """Webhooks of its own for them: people and tools read their names in refusals, and know these."""
    vital: bool = False
    """Whether it stays editable while virt-api is down: an edit may be what brings virt-api back."""
    refusal: str = ""
    """Why there can be none yet, and what to do instead."""
    yields: bool = False
    """Whether it is CDI's, and left to that where it is installed."""

    @property
    def view(self) -> type[KubernetesObject]:
        if self.refusal:
            return Unread
        view: type[KubernetesObject] = getattr(import_module(f"virtfleet.api.{self.module}"), self.kind)
        return view

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.versions[0]}"


def _column(name: str, path: str, kind: str = "string") -> Column:
    return {"name": name, "type": kind, "jsonPath": path}


def _condition(kind: str, *, wide: bool = False) -> Column:
    column = _column(kind, f".status.conditions[?(@.type=='{kind.replace('-', '')}')].status")
    return {**column, "priority": 1} if wide else column


def _mark(name: str, where: str, key: str) -> Column:
    """A column for who wants to see more, of a label or an annotation."""
    path = key.replace(".", "\\.")
    return {**_column(name, f".metadata.{where}.{path}"), "priority": 1}


_AGE: Final = _column("Age", ".metadata.creationTimestamp", "date")
_PHASE: Final = _column("Phase", ".status.phase")
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
    validators=(("virtualmachine-validator.kubevirt.io", _CHANGES),),
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
        _mark("Pool", "labels", names.HANDLER_POOL),
        _mark("Hypervisor", "annotations", names.LAUNCHER_HYPERVISOR),
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
    validators=(
        ("migration-create-validator.kubevirt.io", ("CREATE",)),
        ("migration-update-validator.kubevirt.io", ("UPDATE",)),
    ),
)
POLICY: Final = OwnKind(
    "MigrationPolicy",
    "migrationpolicies",
    (),
    (_AGE,),
    (Right("virt-controller", READ), *_READERS),
    group=f"migrations.{names.GROUP}",
    versions=("v1alpha1",),
    deprecated=(),
    namespaced=False,
    module="migration",
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


def _type(kind: str, short_names: str, *columns: Column) -> OwnKind:
    """An instance type or a preference. Everybody may read those of the whole cluster; some are the operator's."""
    namespaced = "Cluster" not in kind
    bundled = (Right("everybody", READ), Right("virt-operator", (*READ, "create", "patch", "delete")))
    return OwnKind(
        kind,
        f"{kind.lower()}s",
        tuple(name + end for name in short_names.split() for end in ("", "s")),
        (*columns, _AGE),
        (
            *(Right(component, ("get",)) for component in ("virt-api", "virt-controller")),
            *_TENANTS,
            *(() if namespaced else bundled),
        ),
        group=f"instancetype.{names.GROUP}",
        versions=("v1beta1",),
        deprecated=(),
        namespaced=namespaced,
        status=False,
        module="instancetype",
    )


_SIZES: Final = (_column("CPU", ".spec.cpu.guest", "integer"), _column("Memory", ".spec.memory.guest"))
TYPES: Final = (
    _type("VirtualMachineInstancetype", "vminstancetype vmf", *_SIZES),
    _type("VirtualMachineClusterInstancetype", "vmclusterinstancetype vmcf", *_SIZES),
)
PREFERENCES: Final = (
    _type("VirtualMachinePreference", "vmpref vmp"),
    _type("VirtualMachineClusterPreference", "vmcp"),
)
"""Of both, that of a namespace and that of the whole cluster."""


def _of_cdi(kind: str, short_names: tuple[str, ...], columns: tuple[Column, ...], *rights: Right) -> OwnKind:
    """A kind that CDI serves where it is installed."""
    return OwnKind(
        kind,
        f"{kind.lower()}s",
        short_names,
        (*columns, _AGE),
        (Right("virt-api", ("get",)), *rights, *_TENANTS),
        group=names.CDI_GROUP,
        versions=("v1beta1",),
        deprecated=(),
        module="datavolume",
        yields=True,
    )


DATA_VOLUME: Final = _of_cdi(
    "DataVolume",
    ("dv", "dvs"),
    (_PHASE, _column("Progress", ".status.progress"), _column("Restarts", ".status.restartCount", "integer")),
    *_CONTROLLED,
)
DATA_SOURCE: Final = _of_cdi("DataSource", ("das",), (), Right("virt-controller", READ))


def _unbuilt(kind: str, group: str, versions: str, short_names: str, refusal: str, **facts: Any) -> OwnKind:
    """A kind of which there are none. Who will be able to create one may try, and is told by admission what to do."""
    facts.setdefault("plural", f"{kind.lower()}s")
    facts.setdefault("deprecated", ())
    facts.setdefault("rights", _TENANTS)
    return OwnKind(
        kind,
        group=group,
        versions=tuple(versions.split()),
        short_names=tuple(name + end for name in short_names.split() for end in ("", "s")),
        checked=("CREATE",),
        refusal=f"VirtFleet does not {refusal} instead",
        **facts,
    )


_PRESETS: Final = "apply presets, which KubeVirt is about to remove; write the fields into the VM"
_POOLS: Final = (
    "have pools of VMs yet; create VMs one by one, or a VirtualMachineInstanceReplicaSet if they keep no state,"
)
_SNAPSHOTS: Final = "take snapshots of VMs yet; stop the VM and make a VolumeSnapshot of each of its claims"
_RESTORES: Final = "restore VMs yet; make claims from your VolumeSnapshots and name them in the VM"
_CLONES: Final = "clone VMs yet; clone the VM's claims and create a VM that names the clones"
_EXPORTS: Final = "export VMs yet; stop the VM and copy from its claims with a Pod of your own"
_BACKUPS: Final = "back up VMs yet; stop the VM and back up its claims"

_BETA: Final = "v1beta1 v1alpha1"
_SNAPSHOT, _BACKUP = (f"{part}.{names.GROUP}" for part in ("snapshot", "backup"))
_OLD: Final = ("v1", "v1alpha3")

KINDS: Final = (
    VM,
    VMI,
    REPLICA_SET,
    MIGRATION,
    POLICY,
    KUBEVIRT,
    *TYPES,
    *PREFERENCES,
    DATA_VOLUME,
    DATA_SOURCE,
    _unbuilt(
        "VirtualMachineInstancePreset", names.GROUP, "v1 v1alpha3", "vmipreset", _PRESETS, deprecated=_OLD, status=False
    ),
    _unbuilt("VirtualMachinePool", f"pool.{names.GROUP}", _BETA, "vmpool", _POOLS, scaled=True),
    _unbuilt("VirtualMachineSnapshot", _SNAPSHOT, _BETA, "vmsnapshot", _SNAPSHOTS),
    _unbuilt("VirtualMachineSnapshotContent", _SNAPSHOT, _BETA, "vmsnapshotcontent", _SNAPSHOTS),
    _unbuilt("VirtualMachineRestore", _SNAPSHOT, _BETA, "vmrestore", _RESTORES),
    _unbuilt("VirtualMachineClone", f"clone.{names.GROUP}", _BETA, "vmclone", _CLONES),
    _unbuilt(
        "VirtualMachineExport", f"export.{names.GROUP}", "v1 v1beta1", "vmexport", _EXPORTS, deprecated=("v1beta1",)
    ),
    _unbuilt("VirtualMachineBackup", _BACKUP, "v1alpha1", "vmbackup", _BACKUPS),
    _unbuilt("VirtualMachineBackupTracker", _BACKUP, "v1alpha1", "vmbackuptracker", _BACKUPS),
)
BY_NAME: Final = {kind.kind: kind for kind in KINDS}
BUILT: Final = tuple(kind for kind in KINDS if not kind.refusal)
