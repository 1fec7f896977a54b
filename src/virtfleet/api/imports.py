"""What a DataVolume asks for: where its disk comes from, and the claim that it goes to. Pure.

One reading for admission, which refuses what cannot be done, and for the controller, which does it. Sources are read
field by field: a field that nobody here knows is not passed over, because the disk would be another one than was meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from virtfleet.api.kinds import DATA_SOURCE
from virtfleet.api.quantity import Quantity, QuantityError
from virtfleet.api.view import View

Section = Mapping[str, Any]

BLANK, HTTP, REGISTRY, CLAIM, SNAPSHOT, UPLOAD = "blank", "http", "registry", "pvc", "snapshot", "upload"
GIVEN: Final = "dataSource"
"""Of a claim that is filled by its own storage."""
_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    BLANK: frozenset(),
    UPLOAD: frozenset(),
    HTTP: frozenset(("url", "secretRef", "certConfigMap", "extraHeaders", "secretExtraHeaders", "checksum")),
    REGISTRY: frozenset(("url", "pullMethod", "platform")),
    CLAIM: frozenset(("name", "namespace")),
    SNAPSHOT: frozenset(("name", "namespace")),
}
_INSTEAD: Final = {
    "s3": "use http with an address that the store signs",
    "gcs": "use http with an address that the store signs",
    "imageio": "download the disk and use upload",
    "vddk": "convert the disk and use upload",
    "secretRef": "give the namespace's service account an image pull secret, and remove it",
    "certConfigMap": "have the nodes trust the registry, and remove it",
    "imageStream": "name the image in url",
    "insecureSkipVerify": "give the server's authority in certConfigMap",
}
_MOST_HEADERS: Final = 32
_OVERHEAD: Final = 0.06
"""Part of a claim that its file system takes, as CDI has it."""
_MIB: Final = 1 << 20
_FILE_SYSTEM, _DEVICE = "Filesystem", "Block"


class _Resources(View):
    requests: dict[str, str | int | float] | None = None


class _Claim(View):
    """Types of what is read here of a claim; the API server checks the claim itself."""

    access_modes: list[str] | None = None
    volume_mode: str | None = None
    resources: _Resources | None = None
    data_source: dict[str, Any] | None = None
    data_source_ref: dict[str, Any] | None = None


class _Body(View):
    """The same of sources."""

    url: str | None = None
    name: str | None = None
    namespace: str | None = None
    secret_ref: str | None = None
    cert_config_map: str | None = None
    extra_headers: list[str] | None = None
    secret_extra_headers: list[str] | None = None
    checksum: str | None = None
    platform: dict[str, str] | None = None


class _Spec(View):
    pvc: _Claim | None = None
    storage: _Claim | None = None
    source: dict[str, _Body | None] | None = None
    source_ref: dict[str, str | None] | None = None


class Unusable(ValueError):
    """Something that cannot be done, and the field that asks for it."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.message = message


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a claim is to be filled with."""

    source: str
    """One of the words above."""
    body: Section = field(default_factory=dict)
    """What is said of the source."""


def wanted(dv: Section, named: Section | None = None) -> Wanted:
    """Where the data comes from. `named` is the DataSource of sourceRef, where it is known."""
    spec = _spec(dv)
    _check_rest(spec)
    claim = spec.get("pvc") or spec.get("storage") or {}
    source, reference = spec.get("source"), spec.get("sourceRef")
    if claim.get("dataSource") or claim.get("dataSourceRef"):
        if source is not None or reference is not None:
            raise Unusable("spec.source", "data comes from dataSource or from source, not from both; remove one")
        return Wanted(GIVEN)
    if (source is None) == (reference is None):
        raise Unusable(
            "spec.source", "say where the data comes from; set one of source, such as blank: {}, and sourceRef"
        )
    namespace = (dv.get("metadata") or {}).get("namespace") or ""
    if reference is None:
        return _read("spec.source", source or {}, namespace)
    source = _referred(reference, namespace, named)
    return Wanted(GIVEN) if source is None else _read("spec.sourceRef", source, namespace)


def _spec(dv: Section) -> Section:
    spec: Section = dv.get("spec") or {}
    try:
        msgspec.convert(spec, _Spec)
    except msgspec.ValidationError as error:
        raise Unusable("spec", str(error).replace("$.", "spec.")) from None
    return spec


def _check_rest(spec: Section) -> None:
    if (spec.get("pvc") is None) == (spec.get("storage") is None):
        raise Unusable("spec.storage", "describe the claim in spec.storage or in spec.pvc, in exactly one of them")
    if spec.get("contentType") == "archive":
        raise Unusable(
            "spec.contentType", "archives are not unpacked; make a disk of it, or copy it with a Pod of your own"
        )
    if spec.get("checkpoints"):
        raise Unusable("spec.checkpoints", "disks are not imported in several steps; remove checkpoints")


def _referred(reference: Section, namespace: str, named: Section | None) -> Section | None:
    """The source that a DataSource names; None while that is not asked for."""
    if reference.get("kind") != DATA_SOURCE.kind:
        raise Unusable("spec.sourceRef.kind", f"must be {DATA_SOURCE.kind}")
    if not reference.get("name"):
        raise Unusable("spec.sourceRef.name", "name the DataSource")
    if (reference.get("namespace") or namespace) != namespace:
        raise Unusable("spec.sourceRef.namespace", _elsewhere(namespace))
    if named is None:
        return None
    source: Section = (named.get("spec") or {}).get("source") or {}
    try:
        msgspec.convert(source, dict[str, _Body | None])
    except msgspec.ValidationError as error:
        raise Unusable("spec.sourceRef", f"the DataSource is not usable: {error}") from None
    return source


def _read(path: str, source: Section, namespace: str) -> Wanted:
    if len(source) != 1:
        raise Unusable(
            path, f"exactly one source is needed, and there are {len(source)}; use one of {', '.join(_FIELDS)}"
        )
    [(kind, body)] = source.items()
    body = body or {}
    if kind not in _FIELDS:
        advice = _INSTEAD.get(kind, f"use one of {', '.join(_FIELDS)}")
        raise Unusable(f"{path}.{kind}", f"VirtFleet does not import from {kind}; {advice}")
    for name, value in body.items():
        if name not in _FIELDS[kind] and value not in (None, "", False, [], {}):
            advice = _INSTEAD.get(name, "remove it")
            raise Unusable(f"{path}.{kind}.{name}", f"VirtFleet does not do that; {advice}")
    if kind == HTTP:
        _check_http(f"{path}.{kind}", body)
    elif kind == REGISTRY and not image(body):
        raise Unusable(f"{path}.{kind}.url", "must name an image, as docker://registry.example/name:tag")
    elif kind in (CLAIM, SNAPSHOT):
        _check_name(f"{path}.{kind}", body, namespace)
    return Wanted(kind, body)


def _check_http(path: str, body: Section) -> None:
    address = urlsplit(str(body.get("url") or ""))
    if address.scheme not in ("http", "https") or not address.hostname:
        raise Unusable(f"{path}.url", "must be the address of a file on a web server, http:// or https://")
    for name in ("extraHeaders", "secretExtraHeaders"):
        if len(body.get(name) or ()) > _MOST_HEADERS:
            raise Unusable(f"{path}.{name}", f"at most {_MOST_HEADERS} are sent")


def _check_name(path: str, body: Section, namespace: str) -> None:
    if not body.get("name"):
        raise Unusable(f"{path}.name", "name what is copied")
    if (body.get("namespace") or namespace) != namespace:
        raise Unusable(f"{path}.namespace", _elsewhere(namespace))


def _elsewhere(namespace: str) -> str:
    where = f"the DataVolume's, {namespace}" if namespace else "the DataVolume's"
    return f"VirtFleet copies within one namespace only; it must be {where}, or upload the disk there"


def image(body: Section) -> str:
    """The image of a registry's source, in the words of a container; empty where there is none."""
    scheme, _, reference = str(body.get("url") or "").partition("://")
    named = reference if scheme == "docker" else ""
    return "" if any(c.isspace() for c in named) else named


# --- the claim


def size(dv: Section) -> int:
    """Bytes that the disk is to have; 0 where only what is copied says so."""
    spec = _spec(dv)
    where = "pvc" if spec.get("pvc") is not None else "storage"
    path = f"spec.{where}.resources.requests.storage"
    amount = (((spec.get(where) or {}).get("resources") or {}).get("requests") or {}).get("storage")
    if amount is None:
        if where == "storage" and ((spec.get("source") or {}).get(CLAIM) or spec.get("sourceRef")):
            return 0
        raise Unusable(path, "say how large the disk is, for example 10Gi")
    try:
        value = Quantity.parse(amount).value()
    except QuantityError as error:
        raise Unusable(path, str(error)) from None
    if value <= 0:
        raise Unusable(path, "must be more than nothing")
    return value


def claim_spec(dv: Section, copied: Section | None = None) -> dict[str, Any]:
    """The claim to be made. `copied` is the claim that it is a copy of, whose words count where none are said."""
    spec = _spec(dv)
    if spec.get("pvc") is not None:
        return {"accessModes": ["ReadWriteOnce"], **spec["pvc"]}
    asked, of = spec.get("storage") or {}, (copied or {}).get("spec") or {}
    mode = asked.get("volumeMode") or of.get("volumeMode") or _FILE_SYSTEM
    made = {key: value for key, value in asked.items() if value is not None and key != "volumeMode"}
    made.setdefault("accessModes", of.get("accessModes") or ["ReadWriteOnce"])
    made["volumeMode"] = mode
    requests = dict((asked.get("resources") or {}).get("requests") or {})
    if wanted_size := size(dv):
        # The file system takes its part, and the disk is to have what was asked for.
        grown = wanted_size if mode == _DEVICE else int(wanted_size / (1 - _OVERHEAD))
        requests["storage"] = str(-(-grown // _MIB) * _MIB)
    elif "storage" in (of_requests := (of.get("resources") or {}).get("requests") or {}):
        requests["storage"] = of_requests["storage"]
    return {**made, "resources": {**(asked.get("resources") or {}), "requests": requests}}
