"""Rules of the smaller core kinds: namespaces, nodes, configuration, accounts, volumes, events."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.registry import Rules
from virtfleet.local.apiserver.objects import causes
from virtfleet.local.apiserver.objects.causes import Cause
from virtfleet.local.apiserver.objects.store import Store

NAMESPACE_LABEL = "kubernetes.io/metadata.name"
NAMESPACE_FINALIZER = "kubernetes"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
SIZE_LIMIT = 1024 * 1024  # of values as they are stored
_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_KEY_FORM = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' "
    "(e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
# What a secret of a type must hold.
_SECRET_KEYS = {
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
}


def _begin_namespace(obj: Obj) -> None:
    """The finalizer keeps it until its content is gone."""
    finalizers = obj.get("spec", {}).get("finalizers", [])
    obj["spec"] = {"finalizers": list(dict.fromkeys([*finalizers, NAMESPACE_FINALIZER]))}


def _keep_namespace(obj: Obj, old: Obj, subresource: str) -> None:
    """Only its own subresources change spec and status."""
    if subresource != "finalize":
        obj["spec"] = old.get("spec", {})
    if subresource != "status":
        obj["status"] = old.get("status", {})


def _complete_namespace(obj: Obj) -> None:
    if name := obj["metadata"].get("name"):
        obj["metadata"]["labels"] = {**(obj["metadata"].get("labels") or {}), NAMESPACE_LABEL: name}


def _complete_node(obj: Obj) -> None:
    """A node always has a spec."""
    obj.setdefault("spec", {})


def _config_faults(maps: tuple[str, ...], obj: Obj) -> Iterator[Cause]:
    """Of a ConfigMap or Secret, whose values are in `maps`."""
    size, binary = 0, obj.get("binaryData", {})
    for name in maps:
        for key, value in obj.get(name, {}).items():
            size += len(value)
            yield from (causes.invalid(f"{name}[{key}]", key, why) for why in _key_faults(key))
            if name != "binaryData" and key in binary:
                yield causes.invalid(f"{name}[{key}]", key, "duplicate of key present in binaryData")
    if size > SIZE_LIMIT:
        yield causes.too_long(maps[0], SIZE_LIMIT)
    for key in _SECRET_KEYS.get(obj.get("type", ""), ()):
        if key not in obj.get("data", {}):
            yield causes.required(f"data[{key}]")


def _config_changes(maps: tuple[str, ...], obj: Obj, old: Obj, _subresource: str) -> Iterator[Cause]:
    """What is immutable stays."""
    yield from _config_faults(maps, obj)
    for name in (*maps, "immutable"):
        if old.get("immutable") and obj.get(name) != old.get(name):
            yield causes.forbidden(name, "field is immutable when `immutable` is set")


def _config(*maps: str, **more: Any) -> Rules:
    return Rules(faults=partial(_config_faults, maps), on_update=partial(_config_changes, maps), **more)


def _key_faults(key: str) -> Iterator[str]:
    if len(key) > 253:
        yield "must be no more than 253 bytes"
    if not _KEY.fullmatch(key):
        yield _KEY_FORM
    if key == "." or key.startswith(".."):
        yield "must not be '.' or start with '..'"


def _complete_secret(obj: Obj) -> None:
    """Texts are kept in base64."""
    if texts := obj.pop("stringData", None):
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
        obj["data"] = {**obj.get("data", {}), **encoded}


def _begin_claim(stored: Store, obj: Obj) -> None:
    """Where no class is named, the default one is meant; the newest where there are several."""
    spec = obj.setdefault("spec", {})
    if "storageClassName" not in spec:
        classes = (each["metadata"] for each in stored.objects("storage.k8s.io/storageclasses"))
        defaults = [meta for meta in classes if meta.get("annotations", {}).get(DEFAULT_CLASS) == "true"]
        for newest in sorted(defaults, key=lambda meta: (meta["creationTimestamp"], meta["name"]))[-1:]:
            spec["storageClassName"] = newest["name"]


def _claim_faults(obj: Obj) -> Iterator[Cause]:
    if "storage" not in obj.get("spec", {}).get("resources", {}).get("requests", {}):
        yield causes.required("spec.resources[storage]")


def _claim_changes(obj: Obj, old: Obj, _subresource: str) -> Iterator[Cause]:
    """Little of a claim changes."""
    yield from _claim_faults(obj)
    mutable = {"resources", "volumeAttributesClassName"}
    spec, was = obj.get("spec", {}), old["spec"]
    mutable |= {field for field in ("volumeName", "storageClassName") if not was.get(field)}
    if any(spec.get(key) != was.get(key) for key in (spec.keys() | was.keys()) - mutable):
        why = "spec is immutable after creation except resources.requests and volumeAttributesClassName"
        yield causes.forbidden("spec", f"{why} for bound claims")


def _volume_faults(obj: Obj) -> Iterator[Cause]:
    if "storage" not in obj.get("spec", {}).get("capacity", {}):
        yield causes.required("spec.capacity")


def _event_faults(obj: Obj) -> Iterator[Cause]:
    """In the namespace of what it is about."""
    namespace = obj.get("involvedObject", {}).get("namespace", "")
    if (namespace or "default") != obj["metadata"].get("namespace"):
        yield causes.invalid("involvedObject.namespace", namespace, "does not match event.namespace")


def rules(stored: Store) -> dict[str, Rules]:
    """By the storage name of the kind."""
    involved = (f"involvedObject.{name}" for name in ("kind", "namespace", "name", "uid", "apiVersion", "fieldPath"))
    told = dict.fromkeys((*involved, "reason", "reportingComponent", "type"), "")
    return {
        "/configmaps": _config("data", "binaryData"),
        "/events": Rules(selectable=told, faults=_event_faults),
        "/namespaces": Rules(
            status={"phase": "Active"},
            selectable={"status.phase": ""},
            begin=_begin_namespace,
            keep=_keep_namespace,
            complete=_complete_namespace,
        ),
        "/nodes": Rules(selectable={"spec.unschedulable": False}, complete=_complete_node),
        "/persistentvolumeclaims": Rules(
            status={"phase": "Pending"},
            finalizer="kubernetes.io/pvc-protection",
            begin=partial(_begin_claim, stored),
            faults=_claim_faults,
            on_update=_claim_changes,
        ),
        "/persistentvolumes": Rules(
            status={"phase": "Pending"}, finalizer="kubernetes.io/pv-protection", faults=_volume_faults
        ),
        "/secrets": _config(
            "data", fixed={"type": "field is immutable"}, selectable={"type": ""}, complete=_complete_secret
        ),
    }
