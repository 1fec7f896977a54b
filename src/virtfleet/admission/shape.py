"""Whether an object has the types that its kind says, before anything looks at values.

The views of `virtfleet.api` are the one source of types. What they hand on as it is (affinity, DNS) is described here.
Rules and defaults after this step may rely on types, on quantities that can be read, and on there being no nulls.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import msgspec
import orjson

from virtfleet.admission.findings import NOT_SUPPORTED, Findings
from virtfleet.admission.sections import Obj, Section, read
from virtfleet.api import kinds
from virtfleet.api.kinds import OwnKind
from virtfleet.api.kubernetes import Affinity, DataVolume, DNSConfig, DownwardFile, SpreadConstraint
from virtfleet.api.quantity import Quantity, QuantityError
from virtfleet.api.view import View, fields

_INDEX = re.compile(r"\[\d+\]")
LARGEST = 2**60  # room to multiply without leaving the numbers that Kubernetes can hold

_WRONG_TYPE = re.compile(r"Expected `(?P<wanted>.+?)`, got `(?P<got>.+?)`(?: - at `(?P<path>.+)`)?")
_TYPE_WORDS = {
    "str": "text", "int": "a whole number", "float": "a number", "bool": "true or false", "array": "a list",
    "object": "an object", "null": "nothing",
}  # fmt: skip

# Where kinds say quantities that are no part of an instance.
_QUANTITIES: Mapping[OwnKind, tuple[str, ...]] = {
    kinds.KUBEVIRT: (
        "configuration.cpuRequest",
        "configuration.liveUpdateConfiguration.maxGuest",
        "configuration.migrations.bandwidthPerMigration",
    ),
    kinds.POLICY: ("bandwidthPerMigration",),
    **dict.fromkeys(kinds.TYPES, ("memory.guest", "memory.maxGuest")),
    **dict.fromkeys(kinds.PREFERENCES, ("requirements.memory.guest",)),
}


def without_nulls(obj: Mapping[str, Any]) -> Obj:
    """A copy without the fields that are null: the API server drops those, too."""
    raw = orjson.dumps(obj)
    copy: Obj = orjson.loads(raw)
    if b"null" in raw:
        _drop_nulls(copy)
    return copy


def _drop_nulls(value: Any) -> None:
    if isinstance(value, dict):
        for key in [key for key, child in value.items() if child is None]:
            del value[key]
        for child in value.values():
            _drop_nulls(child)
    elif isinstance(value, list):
        for child in value:
            _drop_nulls(child)


def check(obj: Section, findings: Findings) -> bool:
    """Types of a whole object, and the fields that it must have.

    True where the types are right, so that rules can say what else is wrong although a field is missing.
    """
    name = obj.get("kind")
    kind = kinds.BY_NAME.get(name) if isinstance(name, str) else None
    if kind is None:
        findings.unsupported("kind", f"kind {name!r} is not one of {', '.join(kind.kind for kind in kinds.BUILT)}")
        return False
    if kind.refusal:
        findings.unsupported("kind", kind.refusal)
        return False
    if not _converts(obj, kind.view, "", findings):
        return False
    wrong_types = Findings()
    for path, value, view in _handed_on(kind, obj):
        _converts(value, view, path, wrong_types)
    _check_quantities(_said(read(obj, "spec"), _QUANTITIES.get(kind, ())), "spec", wrong_types)
    if kind.instance:
        _check_quantities(_quantities(read(obj, *kind.instance.split("."))), kind.instance, wrong_types)
    findings.causes += wrong_types.causes
    # The status is written by components, and the API server checks it.
    _check_fields({key: value for key, value in obj.items() if key != "status"}, kind.view, "", findings)
    return wrong_types.allowed


def _handed_on(kind: OwnKind, obj: Section) -> Iterator[tuple[str, Any, Any]]:
    """Parts that the views hand on as they are: path, value, and what it should be."""
    if kind is kinds.KUBEVIRT:
        for part in ("infra", "workloads"):
            placement = read(obj, "spec", part, "nodePlacement")
            yield f"spec.{part}.nodePlacement.affinity", placement.get("affinity", {}), Affinity
    if not kind.instance:
        return
    path = kind.instance
    spec = read(obj, *path.split("."))
    yield f"{path}.affinity", spec.get("affinity", {}), Affinity
    yield f"{path}.topologySpreadConstraints", spec.get("topologySpreadConstraints", []), list[SpreadConstraint]
    yield f"{path}.dnsConfig", spec.get("dnsConfig", {}), DNSConfig
    for i, volume in enumerate(spec.get("volumes", ())):
        if files := read(volume, "downwardAPI").get("fields"):
            yield f"{path}.volumes[{i}].downwardAPI.fields", files, list[DownwardFile]
    if kind is kinds.VM:
        for i, template in enumerate(read(obj, "spec").get("dataVolumeTemplates", ())):
            yield f"spec.dataVolumeTemplates[{i}].spec", template.get("spec", {}), DataVolume


def _converts(value: Any, view: Any, path: str, findings: Findings) -> bool:
    try:
        msgspec.convert(value, view)
    except msgspec.ValidationError as error:
        findings.invalid(*_explained(str(error), path))
        return False
    return True


def _explained(error: str, path: str) -> tuple[str, str]:
    """Field and message for what msgspec says."""
    match = _WRONG_TYPE.match(error)
    if not match:
        return path, error
    field = path + (match["path"] or "$").removeprefix("$")
    wanted = " or ".join(_TYPE_WORDS.get(w, w) for w in match["wanted"].split(" | ") if w != "null")
    field = field.removeprefix(".")
    name = field.rpartition(".")[2] or "the object"
    return field, f"{name} must be {wanted}, not {_TYPE_WORDS.get(match['got'], match['got'])}"


def _check_quantities(quantities: Iterable[tuple[str, Any]], path: str, findings: Findings) -> None:
    for field, amount in quantities:
        try:
            if abs(Quantity.parse(amount).value()) > LARGEST:
                findings.invalid(f"{path}.{field}", f"{amount!r} is more than any machine has; check the unit")
        except QuantityError:
            findings.invalid(f"{path}.{field}", f"{amount!r} is not a quantity; write it like 512Mi, 2Gi, 500m or 2")


def _quantities(spec: Section) -> Iterator[tuple[str, Any]]:
    for kind in ("requests", "limits"):
        for name, amount in read(spec, "domain", "resources", kind).items():
            yield f"domain.resources.{kind}.{name}", amount
    yield from _said(spec, ("domain.memory.guest", "domain.memory.maxGuest"))
    for i, volume in enumerate(spec.get("volumes") or ()):
        for source in ("emptyDisk", "hostDisk"):
            if "capacity" in read(volume, source):
                yield f"volumes[{i}].{source}.capacity", volume[source]["capacity"]


def _said(spec: Section, fields: Iterable[str]) -> Iterator[tuple[str, Any]]:
    for field in fields:
        *parents, last = field.split(".")
        section = read(spec, *parents)
        if last in section:
            yield field, section[last]


def _check_fields(obj: Section, view: type[View], path: str, findings: Findings) -> None:
    """Required fields and fixed sets of values, as the API server checks them."""
    for name, field in fields(view).items():
        at, value = f"{path}{name}", obj.get(name)
        if value is None:
            if field.required:
                findings.missing(at)
        elif field.inside and isinstance(value, list):
            for i, item in enumerate(value):
                _check_fields(item, field.inside, f"{at}[{i}].", findings)
        elif field.inside:
            _check_fields(value, field.inside, f"{at}.", findings)
        elif field.values:
            findings.check_choice(at, name, value, ("", *field.values), NOT_SUPPORTED)


def meant(kind: str, path: str) -> str:
    """The field that was probably meant with one that does not exist, `spec.domain.devices.disk`; "" for no idea."""
    *parents, name = _INDEX.sub("", path).split(".")
    view: type[View] | None = kinds.BY_NAME[kind].view
    for parent in parents:
        known = fields(view).get(parent) if view else None
        view = known.inside if known else None
    names = {field.lower(): field for field in fields(view)} if view else {}
    close = get_close_matches(name.lower(), names, n=1, cutoff=0.75)
    return names[close[0]] if close else ""
