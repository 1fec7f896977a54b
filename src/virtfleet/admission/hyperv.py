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
        cpu = extend(spec, "domain", "cpu")
        features = cpu.get("features") or []
        if vmx := next((feature for feature in features if feature.get("name") == "vmx"), None):
            vmx["policy"] = "require"
        else:
            cpu["features"] = [*features, {"name": "vmx", "policy": "require"}]


def check(case: Case) -> None:
    features = case.domain.features
    if features is None or features.hyperv is None:
        return
    hyperv = features.hyperv
    for name, needed in _NEEDS:
        if part(hyperv, f"{name}.enabled") is True and part(hyperv, f"{needed}.enabled") is not True:
            lacking = f"features.hyperv.{name} needs features.hyperv.{needed}, which is disabled"
            case.invalid(f"{_PATH}.{name}", f"{lacking}; enable {needed} or disable {name}")
    if is_on(hyperv.evmcs):
        what = "features.hyperv.evmcs needs the CPU feature vmx"
        if not case.cpu.features:
            case.required("domain.cpu.features", f"{what}; add it with policy require")
        for i, feature in enumerate(case.cpu.features):
            if feature.name == "vmx" and feature.policy != "require":
                case.invalid(f"domain.cpu.features[{i}].policy", f"{what} with policy require; change the policy")
    if features.hyperv_passthrough is not None:
        both = "features.hyperv and features.hypervPassthrough exclude each other; keep one of them"
        case.invalid("domain.features.hyperv", both)
