"""What KubeVirt does and VirtFleet does not do yet, in fields of VMs and of the KubeVirt object.

Verdicts are KubeVirt's, so that manifests keep working; a field may be admitted without anything coming of it. Whoever
applies the object reads that as a warning, and docs/compatibility.md lists the same fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from virtfleet.hypervisors.features import FEATURES, NotYet

Section = Mapping[str, Any]


class AbsentField(msgspec.Struct, frozen=True):
    """A field of a spec that is admitted and has no effect; `asked` is given the spec."""

    field: str
    asked: Callable[[Section], object]
    not_yet: NotYet


def _at(spec: Section, *fields: str) -> Any:
    for field in fields[:-1]:
        spec = spec.get(field) or {}
    return spec.get(fields[-1])


def _set(*fields: str) -> Callable[[Section], Any]:
    """Whether something is said in a field, other than that it is off."""
    return lambda spec: _at(spec, *fields) not in (None, False, "", [], {})


def _absent(
    field: str, instead: str, advice: str = "remove it", *, asked: Callable[[Section], object] | None = None
) -> AbsentField:
    """By default, it is asked for where anything is said in the field."""
    return AbsentField(field, asked or _set(*field.split(".")), NotYet(instead, advice))


def _configured(field: str, instead: str, advice: str = "remove it") -> AbsentField:
    return _absent(f"configuration.{field}", instead, advice)


VM: Final = (
    _absent(
        "runStrategy",
        "no VM is received from another cluster, so this one never starts",
        "use another runStrategy",
        asked=lambda spec: spec.get("runStrategy") == "WaitAsReceiver",
    ),
)

_SUPPORT = ("configuration", "supportContainerResources")
_PACED = "requests are paced by VirtFleet itself"


KUBEVIRT: Final = (
    _configured("migrations.utilityVolumesTimeout", "there are no utility volumes to wait for"),
    _configured("mediatedDevicesConfiguration", "no mediated devices are made", "make them on the nodes yourself"),
    _absent(
        "configuration.network.binding",
        "plugins are not run, and VMs that use one do not start or lack the interface",
        "use masquerade or bridge",
    ),
    _configured("ksmConfiguration", "pages are not merged on any node", "switch KSM on at the nodes yourself"),
    _absent(
        "configuration.supportContainerResources",
        "helper containers have resources of VirtFleet's choice, but for those of type virtiofs",
        asked=lambda spec: any(each.get("type") != "virtiofs" for each in _at(spec, *_SUPPORT) or ()),
    ),
    _configured("persistentReservationConfiguration.enabled", "no node gets a helper for SCSI reservations"),
    _configured("confidentialCompute", "no node offers devices.kubevirt.io/tdx"),
    _configured("changedBlockTrackingLabelSelectors", "changed blocks are not recorded"),
    _configured("virtTemplateDeployment.enabled", "there are no VM templates"),
    _configured("minCPUModel", "nodes offer all models but those of obsoleteCPUModels", "use obsoleteCPUModels"),
    _configured("supportedGuestAgentVersions", "agents of all versions are asked"),
    *(_configured(f"{name}Configuration", _PACED) for name in ("api", "controller", "handler", "webhook")),
    _configured("developerConfiguration.clusterProfiler", "there is no profiler", "use py-spy on the processes"),
    _configured("developerConfiguration.diskVerification", "images are inspected without a limit of their own"),
    _configured("developerConfiguration.minimumClusterTSCFrequency", "guests' time stamp counters are not pinned"),
    _configured("developerConfiguration.minimumReservePVCBytes", "disk images fill their claims"),
    _configured("developerConfiguration.pvcTolerateLessSpaceUpToPercent", "disk images are as large as their claims"),
    *(
        _configured(f"developerConfiguration.logVerbosity.{name}", "it has no effect")
        for name in ("virtOperator", "nodeVerbosity", "virtSynchronizationController")
    ),
    _absent("synchronizationPort", "VMs do not move between clusters"),
)

EMPTY_GATES: Final = frozenset(
    (
        "Root", "WorkloadEncryptionTDX", "HypervStrictCheck", "PCINUMAAwareTopology", "GPUsWithDRA",
        "HostDevicesWithDRA", "NetworkDevicesWithDRA", "PasstBinding", "UtilityVolumes",
        "IncrementalBackup", "Snapshot", "OCIExport", "Template", "Plugins", "VMStatsCollector", "VGPULiveMigration",
        "GraceIOVirtualization", "IOMMUFD", "CrossArchitectureVirtualization", "DecentralizedLiveMigration",
        "PodSecondaryInterfaceNamingUpgrade", "ExternalNetResourceInjection",
    )
)  # fmt: skip
"""Gates of features that are not there, or not yet more than their rules."""
CONTAINER_GATES: Final = frozenset(("ContainerPathVolumes",))
"""Gates of features that only hypervisors have whose guests are containers: they mount directories themselves."""
DOWNTIME_GATES: Final = frozenset(("MigrationStallDetection", "MigrationDowntimeTuning"))
"""Gates of which only the longest pause of a guest is there: the pace of a migration has rules of its own."""


_ADVICE: Final = {f.not_yet.gate: f.not_yet.advice for f in FEATURES if f.not_yet and f.not_yet.gate}


def behind(gate: str) -> str:
    """What is missing behind a gate, or nothing."""
    if gate in EMPTY_GATES:
        return "VirtFleet does not have that feature yet"
    return "only guests that are containers have that feature yet" if gate in CONTAINER_GATES else ""


def lacking(gate: str) -> str:
    """What of a gate that is on is missing: all of it, or a part."""
    return behind(gate) or ("only maxDowntimeMs is there of that feature" if gate in DOWNTIME_GATES else "")


def instead_of(gate: str) -> str:
    """What to do instead of switching a gate on behind which something is missing."""
    return _ADVICE.get(gate, "remove it")
