"""Hyper-V enlightenments that need one another."""

from __future__ import annotations

from virtfleet.admission.findings import Findings
from virtfleet.admission.sections import Obj, Section, extend, read

# Leaves first: enabling what one needs may bring in the need of the next.
_NEEDS = (
    ("evmcs", "vapic"),
    ("ipi", "vpindex"),
    ("tlbflush", "vpindex"),
    ("synictimer", "synic"),
    ("synic", "vpindex"),
)
# KubeVirt repeats the path; tools look for it.
_PATH = "spec.domain.features.hyperv.domain.features.hyperv"


def _enabled(hyperv: Section, name: str) -> bool:
    return read(hyperv, name).get("enabled") is True


def enable_dependencies(spec: Obj) -> None:
    """Switch on what enabled enlightenments need, unless the owner switched it off: then validation objects."""
    hyperv = read(spec, "domain", "features").get("hyperv")
    if not hyperv:
        return
    for name, needed in _NEEDS:
        if not _enabled(hyperv, name):
            continue
        if read(hyperv, needed).get("enabled") is None:
            extend(hyperv, needed)["enabled"] = True
        elif not _enabled(hyperv, needed):
            return
    if hyperv.get("evmcs") is not None and hyperv["evmcs"].get("enabled") is not False:
        _require_vmx(extend(spec, "domain", "cpu"))


def _require_vmx(cpu: Obj) -> None:
    features = cpu.get("features") or []
    for feature in features:
        if feature.get("name") == "vmx":
            feature["policy"] = "require"
            return
    cpu["features"] = [*features, {"name": "vmx", "policy": "require"}]


def check(spec: Section, found: Findings) -> None:
    features = read(spec, "domain", "features")
    hyperv = features.get("hyperv")
    if hyperv is None:
        return
    for name, needed in _NEEDS:
        if _enabled(hyperv, name) and not _enabled(hyperv, needed):
            found.invalid(
                f"{_PATH}.{name}",
                f"features.hyperv.{name} needs features.hyperv.{needed}, which is disabled; enable {needed} or "
                f"disable {name}",
            )
    _check_vmx(read(spec, "domain", "cpu"), hyperv, found)
    if features.get("hypervPassthrough") is not None:
        found.invalid(
            "spec.domain.features.hyperv",
            "features.hyperv and features.hypervPassthrough exclude each other; keep one of them",
        )


def _check_vmx(cpu: Section, hyperv: Section, found: Findings) -> None:
    if hyperv.get("evmcs") is None or hyperv["evmcs"].get("enabled") is False:
        return
    features = cpu.get("features") or ()
    if not features:
        found.required(
            "spec.domain.cpu.features", "features.hyperv.evmcs needs the CPU feature vmx; add it with policy require"
        )
    for i, feature in enumerate(features):
        if feature.get("name") == "vmx" and feature.get("policy") != "require":
            found.invalid(
                f"spec.domain.cpu.features[{i}].policy",
                "features.hyperv.evmcs needs the CPU feature vmx with policy require; change the policy",
            )
