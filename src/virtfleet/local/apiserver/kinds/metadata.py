"""The metadata that all kinds share: names, what clients may set, what an update may change.

Checks and wording are those of Kubernetes' ValidateObjectMeta. That fields have the right JSON types is the schema's
business and has been seen to before.
"""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Callable, Iterator

from virtfleet.api.selectors import label_key_error, label_value_error
from virtfleet.api.times import timestamp
from virtfleet.kube.resource import RBAC, Obj
from virtfleet.local.apiserver.kinds.registry import Kind
from virtfleet.local.apiserver.objects import causes
from virtfleet.local.apiserver.objects.causes import Cause

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_ANNOTATIONS_LIMIT = 256 * 1024
# What people do not mistake for words or for each other; Kubernetes' own alphabet for generated names.
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_GENERATED_LENGTH = 5
_NAME_LIMIT = 63
_STANDARD_FINALIZERS = ("kubernetes", "orphan", "foregroundDeletion")

Check = Callable[[str], str | None]


def _pattern(regex: str, limit: int, what: str) -> Check:
    compiled = re.compile(regex)

    def check(name: str) -> str | None:
        if len(name) > limit:
            return f"must be no more than {limit} bytes"
        return None if compiled.fullmatch(name) else f"{what}, regex used for validation is '{regex}')"

    return check


subdomain = _pattern(
    rf"{_LABEL}(\.{_LABEL})*",
    253,
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character (e.g. 'example.com'",
)
dns_label = _pattern(
    _LABEL,
    63,
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
    "and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc'",
)
dns_label_1035 = _pattern(
    "[a-z]([-a-z0-9]*[a-z0-9])?",
    63,
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123'",
)


def path_segment(name: str) -> str | None:
    """For names that are not host names, such as system:node."""
    if name in (".", ".."):
        return f"may not be '{name}'"
    return next((f"may not contain '{character}'" for character in "/%" if character in name), None)


_NAME_CHECKS: dict[str, Check] = {
    "/namespaces": dns_label,
    "/services": dns_label_1035,
    **{f"{RBAC}/{kind}": path_segment for kind in ("roles", "rolebindings", "clusterroles", "clusterrolebindings")},
    "apiregistration.k8s.io/apiservices": path_segment,
}


def generated(prefix: str) -> str:
    """A name from generateName."""
    suffix = "".join(random.choices(_ALPHABET, k=_GENERATED_LENGTH))
    return prefix[: _NAME_LIMIT - _GENERATED_LENGTH] + suffix


def begin(obj: Obj) -> None:
    """Give a new object what only the server decides, and take away what clients may not bring."""
    meta = obj["metadata"]
    for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
        meta.pop(field, None)
    # Not uuid4: it asks the kernel for every one, and gives the interpreter away for that long.
    meta["uid"] = str(uuid.UUID(int=random.getrandbits(128), version=4))
    meta["creationTimestamp"] = timestamp()


def keep_system_fields(obj: Obj, old: Obj) -> None:
    """Restore on an update what clients do not decide; what they may not even try stays to be checked."""
    meta, was = obj["metadata"], old["metadata"]
    for field in ("generation", "selfLink"):
        meta.pop(field, None)
    for field in ("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
        if field in was:
            meta[field] = was[field]
    if not meta.get("uid"):
        meta["uid"] = was["uid"]


def faults(kind: Kind, obj: Obj) -> Iterator[Cause]:
    """What is wrong with the metadata of an object about to be stored."""
    meta = obj["metadata"]
    yield from _name_faults(kind, meta)
    if meta.get("namespace") and (why := dns_label(meta["namespace"])):
        yield causes.invalid("metadata.namespace", meta["namespace"], why)
    yield from label_faults(meta.get("labels"), "metadata.labels")
    yield from _annotation_faults(meta.get("annotations") or {})
    yield from _owner_faults(meta.get("ownerReferences") or [])
    yield from _finalizer_faults(kind, meta.get("finalizers") or [])


def update_faults(obj: Obj, old: Obj) -> list[Cause]:
    """What an update may not do to metadata."""
    meta, was = obj["metadata"], old["metadata"]
    faults = [
        causes.invalid(f"metadata.{field}", meta.get(field), "field is immutable")
        for field in ("name", "namespace", "uid", "deletionTimestamp", "deletionGracePeriodSeconds")
        if meta.get(field) != was.get(field)
    ]
    extra = sorted(set(meta.get("finalizers") or ()) - set(was.get("finalizers") or ()))
    if extra and was.get("deletionTimestamp"):
        why = "no new finalizers can be added if the object is being deleted, found new finalizers "
        shown = ", ".join(causes.quoted(e) for e in extra)
        faults.append(causes.forbidden("metadata.finalizers", f"{why}[]string{{{shown}}}"))
    return faults * 2  # Kubernetes looks at it for all kinds, and again for each


def _name_faults(kind: Kind, meta: Obj) -> Iterator[Cause]:
    check = _NAME_CHECKS.get(kind.storage, subdomain)
    if prefix := meta.get("generateName"):
        # A trailing dash is fine in a prefix, since something follows it.
        masked = prefix[:-1] + "a" if len(prefix) > 1 and prefix.endswith("-") else prefix
        if why := check(masked):
            yield causes.invalid("metadata.generateName", prefix, why)
    name = meta.get("name")
    if not name:
        yield causes.required("metadata.name", "name or generateName is required")
    elif why := check(name):
        yield causes.invalid("metadata.name", name, why)


_KEY_NAME = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def _key_fault(key: str) -> str | None:
    if not label_key_error(key):
        return None
    prefix, slash, name = key.rpartition("/")
    if slash and (not prefix or subdomain(prefix)):
        return "prefix part " + (subdomain(prefix) or "must be non-empty")
    if len(name) > 63:
        return "name part must be no more than 63 bytes"
    return _KEY_NAME if name else "name part must be non-empty"


def _value_fault(value: str) -> str | None:
    if not label_value_error(value):
        return None
    return "must be no more than 63 bytes" if len(value) > 63 else _VALUE


def label_faults(labels: dict[str, str] | None, field: str) -> Iterator[Cause]:
    """What is wrong with labels."""
    for key, value in (labels or {}).items():
        if why := _key_fault(key):
            yield causes.invalid(field, key, why)
        if why := _value_fault(value):
            yield causes.invalid(field, value, why)


def _annotation_faults(annotations: dict[str, str]) -> Iterator[Cause]:
    field = "metadata.annotations"
    for key in annotations:
        if why := _key_fault(key.lower()):
            yield causes.invalid(field, key, why)
    if len("".join((*annotations, *annotations.values())).encode()) > _ANNOTATIONS_LIMIT:
        yield causes.too_long(field, _ANNOTATIONS_LIMIT)


def _owner_faults(owners: list[Obj]) -> Iterator[Cause]:
    for owner in owners:
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                yield causes.invalid(f"metadata.ownerReferences.{field}", owner.get(field, ""), "must not be empty")
    controllers = [f"{owner.get('kind')}/{owner.get('name')}" for owner in owners if owner.get("controller")]
    if len(controllers) > 1:
        why = 'Only one reference can have Controller set to true. Found "true" in references for '
        yield causes.invalid("metadata.ownerReferences", owners, f"{why}{controllers[0]} and {controllers[1]}")


def _finalizer_faults(kind: Kind, finalizers: list[str]) -> Iterator[Cause]:
    field = "metadata.finalizers"
    for index, name in enumerate(finalizers):
        if why := _key_fault(name or ""):
            yield causes.invalid(field, name, why)
        of_own = kind.custom or kind.resource.group == "apiextensions.k8s.io"
        if "/" not in name and not of_own and name not in _STANDARD_FINALIZERS:
            why = "name is neither a standard finalizer name nor is it fully qualified"
            yield causes.invalid(f"{field}[{index}]", name, why)
    if "orphan" in finalizers and "foregroundDeletion" in finalizers:
        yield causes.invalid(field, finalizers, "finalizer orphan and foregroundDeletion cannot be both set")
