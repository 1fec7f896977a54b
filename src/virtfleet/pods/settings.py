"""What launcher Pods take from the KubeVirt object, read once per version of it and used for every VMI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from virtfleet.pods.images import Images
from virtfleet.pools.launcher import Fleet

DEFAULT_CPU_RATIO = 10
DEFAULT_VERBOSITY = 2


@dataclass(frozen=True, slots=True)
class Settings:
    """The cluster's side of a launcher Pod."""

    fleet: Fleet
    pull_policy: str = ""
    pull_secrets: tuple[str, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels that nodes with VMs must have."""
    emulation: bool = False
    """Whether VMs may run without the hypervisor's device."""
    memory_overcommit: int = 100
    """Guest memory in percent of what is requested."""
    cpu_ratio: int = DEFAULT_CPU_RATIO
    """Virtual CPUs for one CPU that is requested."""
    overhead_ratio: Fraction = Fraction(1)
    runtime_class: str = ""
    selinux_type: str = ""
    seccomp: Mapping[str, str] = field(default_factory=lambda: {"type": "RuntimeDefault"})
    verbosity: int = DEFAULT_VERBOSITY

    @staticmethod
    def of(kubevirt: Mapping[str, Any]) -> Settings:
        spec = kubevirt.get("spec") or {}
        configuration = spec.get("configuration") or {}
        developer = configuration.get("developerConfiguration") or {}
        return Settings(
            fleet=Fleet.of(kubevirt, Images.of(kubevirt).launcher),
            pull_policy=configuration.get("imagePullPolicy") or spec.get("imagePullPolicy") or "",
            pull_secrets=tuple(s["name"] for s in spec.get("imagePullSecrets") or () if s.get("name")),
            node_selector=developer.get("nodeSelectors") or {},
            emulation=bool(developer.get("useEmulation")),
            memory_overcommit=developer.get("memoryOvercommit") or 100,
            cpu_ratio=developer.get("cpuAllocationRatio") or DEFAULT_CPU_RATIO,
            overhead_ratio=Fraction(configuration.get("additionalGuestMemoryOverheadRatio") or 1),
            runtime_class=configuration.get("defaultRuntimeClass") or "",
            selinux_type=configuration.get("selinuxLauncherType") or "",
            seccomp=_seccomp(configuration),
            verbosity=(developer.get("logVerbosity") or {}).get("virtLauncher") or DEFAULT_VERBOSITY,
        )


def _seccomp(configuration: Mapping[str, Any]) -> dict[str, str]:
    profile = (configuration.get("seccompConfiguration") or {}).get("virtualMachineInstanceProfile") or {}
    custom = (profile.get("customProfile") or {}).get("localhostProfile")
    return {"type": "Localhost", "localhostProfile": custom} if custom else {"type": "RuntimeDefault"}
