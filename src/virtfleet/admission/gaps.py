"""What KubeVirt does and VirtFleet does not do yet, told before somebody waits for it in vain.

Verdicts are KubeVirt's, so that manifests keep working; a field may be admitted without anything coming of it.
Every such gap is declared here once: the field, how to see that it is asked for, what happens instead, and what to do.
Whoever applies the object reads that as a warning, and docs/compatibility.md has the same fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from virtfleet.admission.findings import Findings
from virtfleet.admission.machine import Machine, is_on
from virtfleet.admission.sections import Section, read
from virtfleet.api.feature_gates import FeatureGates

_HOOKS = "hooks.kubevirt.io/hookSidecars"
_ISTIO = "sidecar.istio.io/inject"
_NO_START = "the VM does not start"
_BY_DEVICE_NAME = "name the device by deviceName, as a device plugin offers it"


@dataclass(frozen=True, slots=True)
class Gap:
    """`asked` is given what `field` is below: a spec under review, an object's spec, or annotations."""

    field: str
    asked: Callable[[Any], object]
    instead: str
    advice: str

    def warning(self, path: str) -> str:
        return f"{path}.{self.field} is accepted, but VirtFleet does not do it yet: {self.instead}; {self.advice}"


# --- the spec of a VMI


def _devices(kind: str, *fields: str) -> Callable[[Machine], bool]:
    """Whether one of the devices of a kind has the field."""
    return lambda m: any(_at(device, *fields) for device in m.devices.get(kind) or ())


def _volume(source: str) -> Callable[[Machine], bool]:
    return lambda m: any(volume.get(source) is not None for volume in m.volumes)


def _interface(binding: str) -> Callable[[Machine], bool]:
    return lambda m: any(interface.get(binding) is not None for interface in m.interfaces)


def _at(section: Section, *fields: str) -> Any:
    return read(section, *fields[:-1]).get(fields[-1])


def _by_agent(m: Machine) -> bool:
    return any(
        read(credential, kind, "propagationMethod").get("qemuGuestAgent") is not None
        for credential in m.spec.get("accessCredentials") or ()
        for kind in ("sshPublicKey", "userPassword")
    )


def _tagged(m: Machine) -> bool:
    return any(_devices(kind, "tag")(m) for kind in ("disks", "interfaces", "gpus", "hostDevices"))


def _persistent(m: Machine) -> bool:
    return is_on(m.devices, "tpm") and bool(m.devices["tpm"].get("persistent"))


SPEC = (
    Gap(
        "evictionStrategy",
        lambda m: m.spec.get("evictionStrategy") in ("LiveMigrate", "LiveMigrateIfPossible", "External"),
        "VMs do not move: LiveMigrate and External hold a drain back, LiveMigrateIfPossible shuts the guest down",
        "stop the VM when it suits you, and then drain its node",
    ),
    Gap(
        "domain.devices.tpm.persistent",
        _persistent,
        "what the TPM keeps is lost whenever the VM stops",
        "keep keys that it guards, such as BitLocker's, elsewhere too",
    ),
    Gap(
        "domain.firmware.bootloader.efi.persistent",
        lambda m: _at(m.domain, "firmware", "bootloader", "efi", "persistent"),
        "EFI variables, boot entries among them, are lost whenever the VM stops",
        "boot from the disk's default loader, EFI/BOOT",
    ),
    Gap(
        "accessCredentials[].qemuGuestAgent",
        _by_agent,
        "keys and passwords do not reach the guest through its agent",
        "hand SSH keys over by noCloud or configDrive, and passwords by cloud-init",
    ),
    Gap(
        "domain.devices.interfaces[].sriov",
        _interface("sriov"),
        f"no virtual function is assigned and {_NO_START}",
        "use bridge on a multus network, or pass a function through in hostDevices",
    ),
    Gap(
        "domain.devices.interfaces[].binding",
        _interface("binding"),
        f"plugins are not run, so the interface is missing or {_NO_START}",
        "use masquerade or bridge",
    ),
    Gap(
        "domain.devices.interfaces[].passtBinding",
        _interface("passtBinding"),
        f"passt is not run and {_NO_START}",
        "use masquerade",
    ),
    Gap(
        "networks[].resourceClaim",
        lambda m: any(network.get("resourceClaim") is not None for network in m.networks),
        f"no virtual function is assigned and {_NO_START}",
        "use a multus network with bridge",
    ),
    Gap("domain.devices.gpus[].claimName", _devices("gpus", "claimName"), _NO_START, _BY_DEVICE_NAME),
    Gap("domain.devices.hostDevices[].claimName", _devices("hostDevices", "claimName"), _NO_START, _BY_DEVICE_NAME),
    Gap(
        "domain.devices.disks[].lun.reservation",
        _devices("disks", "lun", "reservation"),
        "no node offers devices.kubevirt.io/pr-helper, so the VM finds no node",
        "remove reservation",
    ),
    Gap(
        "domain.devices.disks[].blockSize.matchVolume",
        lambda m: any(is_on(read(disk, "blockSize"), "matchVolume") for disk in m.disks),
        f"block sizes are not looked up and {_NO_START}",
        "write them into blockSize.custom",
    ),
    Gap(
        "domain.devices.disks[].changedBlockTracking",
        _devices("disks", "changedBlockTracking"),
        "changed blocks are not recorded",
        "back up whole disks",
    ),
    Gap(
        "domain.devices.*[].tag",
        _tagged,
        "the guest is not told the tags of its devices",
        "know disks by serial and interfaces by macAddress",
    ),
    Gap(
        "volumes[].memoryDump",
        _volume("memoryDump"),
        f"memory is not dumped and {_NO_START}",
        "remove the volume and use a crash dump of the guest's own",
    ),
    Gap(
        "volumes[].dataVolume",
        _volume("dataVolume"),
        "the VM starts as soon as the claim can be mounted, also while CDI still fills it",
        "start the VM when the DataVolume has Succeeded",
    ),
    Gap(
        "volumes[].hostDisk",
        _volume("hostDisk"),
        "virt-handler does not prepare the file, which the VM opens as user 107",
        "make it and its directory on the node writable for that user",
    ),
    Gap(
        "domain.devices.autoattachVSOCK",
        lambda m: m.devices.get("autoattachVSOCK"),
        "the guest has no vsock",
        "reach it over the network, as virtctl port-forward does",
    ),
    Gap(
        "domain.devices.clientPassthrough",
        lambda m: m.devices.get("clientPassthrough") is not None,
        "the guest has the USB ports, but nothing can be plugged into them",
        "pass a device of the node through in hostDevices",
    ),
    Gap(
        "domain.launchSecurity.tdx",
        lambda m: _at(m.domain, "launchSecurity", "tdx") is not None,
        "no node offers devices.kubevirt.io/tdx, so the VM finds no node",
        "remove it",
    ),
    Gap(
        "domain.launchSecurity.sev.attestation",
        lambda m: _at(m.domain, "launchSecurity", "sev", "attestation") is not None,
        "the guest is not attested and stays paused until virtctl unpause",
        "remove attestation",
    ),
)

FILESYSTEMS = Gap(
    "domain.devices.filesystems",
    lambda m: m.devices.get("filesystems"),
    f"VirtFleet's launcher image has no virtiofsd and {_NO_START}",
    "show the volume as a disk",
)
"""Only of machines: hypervisors that run containers mount directories themselves."""

ANNOTATIONS = (
    Gap(
        f"annotations[{_HOOKS}]",
        lambda annotations: annotations.get(_HOOKS),
        "no hook sidecar is started, and the domain stays as it is",
        "remove it",
    ),
    Gap(
        f"annotations[{_ISTIO}]",
        lambda annotations: str(annotations.get(_ISTIO)).lower() == "true",
        "the guest's traffic does not pass Istio's proxy",
        "remove it",
    ),
)

# --- the specs of other kinds


def _set(*fields: str) -> Callable[[Section], Any]:
    """Whether something is said in a field, other than that it is off."""
    return lambda spec: _at(spec, *fields) not in (None, False, "", [], {})


VM = (
    Gap(
        "instancetype",
        _set("instancetype"),
        "there are no instance types, and the VM starts with what its template says",
        "write CPU and memory into spec.template.spec.domain",
    ),
    Gap(
        "preference",
        _set("preference"),
        "there are no preferences, and the VM starts with what its template says",
        "write devices and firmware into spec.template.spec.domain",
    ),
    Gap(
        "dataVolumeTemplates",
        _set("dataVolumeTemplates"),
        "no data volumes are made, and the VM waits for their claims",
        "create the DataVolumes or the claims yourself, under the same names",
    ),
    Gap(
        "updateVolumesStrategy",
        lambda spec: spec.get("updateVolumesStrategy") == "Migration",
        "volumes do not migrate; other ones are used after a restart, with what is on them",
        "copy the data yourself while the VM is stopped",
    ),
    Gap(
        "runStrategy",
        lambda spec: spec.get("runStrategy") == "WaitAsReceiver",
        "no VM is received from another cluster, so this one never starts",
        "use another runStrategy",
    ),
)

MIGRATION = (
    "the migration is accepted, but VirtFleet does not do it yet: it fails at once, and the VM runs on where it is; "
    "restart the VM to have it placed anew"
)

_CONFIGURED = "configuration"
_PACED = "requests are paced by VirtFleet itself"
_NO_MOVES = "VMs do not move"
_REMOVE = "remove it"


def _configured(field: str, instead: str, advice: str = _REMOVE) -> Gap:
    path = field.split(".")
    return Gap(f"{_CONFIGURED}.{field}", _set(_CONFIGURED, *path), instead, advice)


KUBEVIRT = (
    _configured("migrations", f"{_NO_MOVES}, and these limits have no effect"),
    Gap(
        "configuration.evictionStrategy",
        lambda spec: _at(spec, _CONFIGURED, "evictionStrategy") not in (None, "", "None"),
        f"{_NO_MOVES}: LiveMigrate and External hold a drain back, LiveMigrateIfPossible shuts guests down",
        "stop VMs when it suits, and then drain their nodes",
    ),
    Gap(
        "workloadUpdateStrategy",
        _set("workloadUpdateStrategy", "workloadUpdateMethods"),
        "running VMs keep the launcher that they were started with",
        "restart VMs to update their launchers",
    ),
    _configured(
        "liveUpdateConfiguration",
        "room is kept free, but CPUs and memory come with the next restart",
        "restart VMs with the condition RestartRequired",
    ),
    Gap(
        "configuration.vmRolloutStrategy",
        lambda spec: _at(spec, _CONFIGURED, "vmRolloutStrategy") == "LiveUpdate",
        "every change of a VM waits for its restart, as with Stage",
        "restart VMs with the condition RestartRequired",
    ),
    _configured("vmStateStorageClass", "state of TPM and EFI is not kept"),
    _configured("mediatedDevicesConfiguration", "no mediated devices are made", "make them on the nodes yourself"),
    Gap(
        "configuration.network.binding",
        _set(_CONFIGURED, "network", "binding"),
        "plugins are not run, and VMs that use one do not start or lack the interface",
        "use masquerade or bridge",
    ),
    _configured("tlsConfiguration", "servers speak TLS 1.2 and newer with the ciphers of their library"),
    Gap(
        "configuration.roleAggregationStrategy",
        lambda spec: _at(spec, _CONFIGURED, "roleAggregationStrategy") == "Manual",
        "the roles for people are aggregated to view, edit and admin anyhow",
        "restrict those roles instead",
    ),
    _configured(
        "autoCPULimitNamespaceLabelSelector", "no VM gets a CPU limit by it", "set domain.resources.limits.cpu"
    ),
    _configured("ksmConfiguration", "pages are not merged on any node", "switch KSM on at the nodes yourself"),
    _configured("supportContainerResources", "helper containers have resources of VirtFleet's choice"),
    _configured("persistentReservationConfiguration.enabled", "no node gets a helper for SCSI reservations"),
    _configured("confidentialCompute", "no node offers devices.kubevirt.io/tdx"),
    _configured("changedBlockTrackingLabelSelectors", "changed blocks are not recorded"),
    _configured("commonInstancetypesDeployment.enabled", "there are no instance types"),
    _configured("instancetype", "there are no instance types"),
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
    *(
        Gap(name, _set(name), "no ServiceMonitor is made", "scrape Pods with the label prometheus.kubevirt.io=true")
        for name in ("monitorNamespace", "monitorAccount", "serviceMonitorNamespace")
    ),
    Gap("synchronizationPort", _set("synchronizationPort"), "VMs do not move between clusters", _REMOVE),
)

GATES = frozenset(
    (
        "Root", "Sidecar", "VSOCK", "WorkloadEncryptionTDX", "EnableVirtioFsStorageVolumes",
        "ContainerPathVolumes", "HypervStrictCheck", "PCINUMAAwareTopology", "GPUsWithDRA", "HostDevicesWithDRA",
        "NetworkDevicesWithDRA", "PasstBinding", "UtilityVolumes", "DeclarativeHotplugVolumes", "IncrementalBackup",
        "Snapshot", "OCIExport", "Template", "Plugins", "VMStatsCollector", "VGPULiveMigration",
        "GraceIOVirtualization", "IOMMUFD", "CrossArchitectureVirtualization", "MigrationStallDetection",
        "MigrationDowntimeTuning", "DecentralizedLiveMigration", "OptOutRoleAggregation", "KubevirtSeccompProfile",
        "PodSecondaryInterfaceNamingUpgrade", "ExternalNetResourceInjection",
    )
)  # fmt: skip
"""Gates of features that are not there, or not yet more than their rules."""


# --- what is told


def check_spec(machine: Machine, found: Findings, *, containers: bool) -> None:
    """The spec of a VMI or of a template. `containers`: the hypervisor's guests are containers."""
    gaps = SPEC if containers else (*SPEC, FILESYSTEMS)
    _tell(gaps, machine, machine.path, found)


def check_metadata(metadata: Section, path: str, found: Findings) -> None:
    _tell(ANNOTATIONS, read(metadata, "annotations"), path, found)


def check_vm(spec: Section, found: Findings) -> None:
    _tell(VM, spec, "spec", found)


def check_migration(found: Findings) -> None:
    found.warn(MIGRATION)


def check_kubevirt(kubevirt: Section, found: Findings) -> None:
    _tell(KUBEVIRT, read(kubevirt, "spec"), "spec", found)
    for gate in sorted(FeatureGates.of(kubevirt).switched_on & GATES):
        found.warn(f"feature gate {gate} is accepted, but VirtFleet does not have that feature yet")


def _tell(gaps: tuple[Gap, ...], asked_in: Any, path: str, found: Findings) -> None:
    for gap in gaps:
        if gap.asked(asked_in):
            found.warn(gap.warning(path))
