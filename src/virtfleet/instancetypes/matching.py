"""What a VM says of its instance type and its preference, `spec.instancetype` and `spec.preference`. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from virtfleet.admission.findings import Findings
from virtfleet.admission.sections import Obj, Section, copy_of, default, extend, read
from virtfleet.api import kinds, names
from virtfleet.api.kinds import OwnKind

_POLICIES = ("Reject", "Ignore")


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One of the two, and what is called after it."""

    field: str
    """Where a VM's spec names it."""
    kinds: tuple[OwnKind, OwnKind]
    """That of a namespace, and that of the whole cluster."""
    annotations: tuple[str, str]
    """On the VM's instances, by the kind that it is of."""
    missing: str
    """The reason of a VM's failure whose one cannot be found."""

    @property
    def ref(self) -> str:
        """Where a VM's status says which one is in force."""
        return f"{self.field}Ref"

    @property
    def label(self) -> str:
        """Of volumes: the one that is for VMs with their data."""
        return f"{kinds.TYPES[0].group}/default-{self.field}"

    def kind(self, matcher: Section) -> OwnKind | None:
        """The kind that a VM means, in any of its spellings; None where it is none."""
        said = str(matcher.get("kind") or "").lower()
        if not said:
            return self.kinds[1]
        return next((kind for kind in self.kinds if said in (kind.singular, kind.plural)), None)


INSTANCETYPE: Final = Part("instancetype", kinds.TYPES, names.INSTANCETYPES, "FailedFindInstancetype")
PREFERENCE: Final = Part("preference", kinds.PREFERENCES, names.PREFERENCES, "FailedFindPreference")
PARTS: Final = (INSTANCETYPE, PREFERENCE)


@dataclass(frozen=True, slots=True)
class Types:
    """The specs of a VM's instance type and preference, as far as it has them."""

    instancetype: Section | None = None
    preference: Section | None = None


def named(vm: Section, part: Part) -> Section | None:
    """What a VM says of it, if anything."""
    matcher: Section | None = read(vm, "spec").get(part.field)
    return matcher


def is_typed(vm: Section) -> bool:
    return any(named(vm, part) is not None for part in PARTS)


def marks(vm: Section) -> dict[str, str]:
    """Annotations of the VM's instances: what they were made of."""
    marks = {}
    for part in PARTS:
        matcher = named(vm, part)
        if matcher is not None and (kind := part.kind(matcher)):
            marks[part.annotations[part.kinds.index(kind)]] = str(matcher.get("name") or "")
    return marks


def check(vm: Section, old: Section, findings: Findings) -> None:
    """Whether a VM says enough, and nothing twice. `old` is empty where it is new."""
    for part in PARTS:
        if (matcher := named(vm, part)) is not None:
            _check(matcher, named(old, part), part, findings.below(f"spec.{part.field}"))


def _check(matcher: Section, old: Section | None, part: Part, findings: Findings) -> None:
    what = f"{part.field.capitalize()}Matcher"
    if not matcher.get("name") and not matcher.get("inferFromVolume"):
        findings.not_found("", f"Either Name or InferFromVolume should be provided within the {what}")
    if part.kind(matcher) is None:
        known = " or ".join(kind.kind for kind in part.kinds)
        findings.invalid("kind", f"got unexpected kind in {what}: {matcher['kind']}; use one of {known}")
    if matcher.get("inferFromVolume"):
        for field in ("name", "kind"):
            if matcher.get(field):
                message = f"{field.capitalize()} already set, should be cleared before setting inferFromVolume"
                findings.unsupported(field, message)
    policy = matcher.get("inferFromVolumeFailurePolicy")
    if policy is not None and policy not in _POLICIES:
        message = f"Invalid value '{policy}' for InferFromVolumeFailurePolicy; use {' or '.join(_POLICIES)}"
        findings.invalid("inferFromVolumeFailurePolicy", message)
    revision = matcher.get("revisionName")
    if old and revision and revision == old.get("revisionName") and matcher.get("name") != old.get("name"):
        message = "the Matcher Name has been updated without updating the RevisionName; remove revisionName"
        findings.invalid("revisionName", message)


def settled(vm: Section, preference: Section) -> Obj:
    """The VM with what of its preference must not change from one start to the next, or comes before the first one."""
    vm = copy_of(vm)
    if read(vm, "spec").get("template") is None:
        return vm  # validation says so
    spec = extend(vm, "spec", "template", "spec")
    if architecture := preference.get("preferredArchitecture"):
        default(spec, "architecture", architecture)
    if machine := read(preference, "machine").get("preferredMachineType"):
        default(extend(spec, "domain", "machine"), "type", machine)
    if storage_class := read(preference, "volumes").get("preferredStorageClassName"):
        for template in vm["spec"].get("dataVolumeTemplates") or ():
            for claim in ("pvc", "storage"):
                if read(template, "spec").get(claim) is not None:
                    default(template["spec"][claim], "storageClassName", storage_class)
    return vm
