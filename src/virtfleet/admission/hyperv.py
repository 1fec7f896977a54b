"""Hyper-V enlightenments that need one another."""

from __future__ import annotations

from virtfleet.admission.case import Case
from virtfleet.admission.sections import Obj, Section, extend, read
from virtfleet.api.meta import is_on
from virtfleet.api.view import part

# Leaves first: enabling what one needs may bring in the need of the next.
_NEEDS = (
    ("evmcs", "vapic"),
    ("ipi", "vpindex"),
    ("tlbflush", "vpindex"),
    ("synictimer", "synic"),
    ("synic", "vpindex"),
)
# KubeVirt repeats the path; tools look for it.
_PATH = "domain.features.hyperv.domain.features.hyperv"


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


def check(case: Case) -> None:
    features = case.domain.features
    if features is None or features.hyperv is None:
        return
    hyperv = features.hyperv
    for name, needed in _NEEDS:
        if part(hyperv, f"{name}.enabled") is True and part(hyperv, f"{needed}.enabled") is not True:
            case.invalid(
                f"{_PATH}.{name}",
                f"features.hyperv.{name} needs features.hyperv.{needed}, which is disabled; enable {needed} or "
                f"disable {name}",
            )
    if is_on(hyperv.evmcs):
        _check_vmx(case)
    if features.hyperv_passthrough is not None:
        case.invalid(
            "domain.features.hyperv",
            "features.hyperv and features.hypervPassthrough exclude each other; keep one of them",
        )


def _check_vmx(case: Case) -> None:
    if not case.cpu.features:
        case.required(
            "domain.cpu.features", "features.hyperv.evmcs needs the CPU feature vmx; add it with policy require"
        )
    for i, feature in enumerate(case.cpu.features):
        if feature.name == "vmx" and feature.policy != "require":
            case.invalid(
                f"domain.cpu.features[{i}].policy",
                "features.hyperv.evmcs needs the CPU feature vmx with policy require; change the policy",
            )
