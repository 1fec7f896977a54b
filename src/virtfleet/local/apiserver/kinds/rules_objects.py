"""Rules of the smaller core kinds: namespaces, nodes, configuration, accounts, volumes, events."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any

from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.metadata import label_faults
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


class NamespaceRules(Rules):
    """Held by a finalizer of its spec, labelled with its name."""

    initial_status: Mapping[str, Any] = {"phase": "Active"}
    selectable: Mapping[str, Any] = {"status.phase": ""}

    def prepare_create(self, obj: Obj) -> None:
        """The finalizer keeps it until its content is gone."""
        finalizers = obj.get("spec", {}).get("finalizers", [])
        if NAMESPACE_FINALIZER not in finalizers:
            finalizers = [*finalizers, NAMESPACE_FINALIZER]
        obj["spec"] = {"finalizers": finalizers}
        super().prepare_create(obj)

    def prepare_update(self, obj: Obj, old: Obj, subresource: str) -> None:
        """Only its own subresources change spec and status."""
        if subresource != "finalize":
            obj["spec"] = old.get("spec", {})
        if subresource != "status":
            obj["status"] = old.get("status", {})
        self.complete(obj)

    def complete(self, obj: Obj) -> None:
        """The label with its name."""
        if name := obj["metadata"].get("name"):
            obj["metadata"]["labels"] = {**(obj["metadata"].get("labels") or {}), NAMESPACE_LABEL: name}


class NodeRules(Rules):
    """Taints, each once."""

    selectable: Mapping[str, Any] = {"spec.unschedulable": False}

    def complete(self, obj: Obj) -> None:
        """A node always has a spec."""
        obj.setdefault("spec", {})

    def faults(self, obj: Obj) -> Iterator[Cause]:
        """What is wrong with one."""
        seen: set[tuple[str, str]] = set()
        for index, taint in enumerate(obj.get("spec", {}).get("taints", ())):
            at = f"spec.taints[{index}]"
            yield from label_faults({taint.get("key", ""): taint.get("value", "")}, f"{at}.key")
            identity = (taint.get("key", ""), taint.get("effect", ""))
            if identity in seen:
                yield causes.duplicate(at, taint)
            seen.add(identity)


class ConfigRules(Rules):
    """ConfigMaps, and what Secrets share with them."""

    maps: tuple[str, ...] = ("data", "binaryData")

    def faults(self, obj: Obj) -> Iterator[Cause]:
        """What is wrong with one."""
        size, binary = 0, obj.get("binaryData", {})
        for name in self.maps:
            for key, value in obj.get(name, {}).items():
                size += len(value)
                yield from (causes.invalid(f"{name}[{key}]", key, why) for why in _key_faults(key))
                if name != "binaryData" and key in binary:
                    yield causes.invalid(f"{name}[{key}]", key, "duplicate of key present in binaryData")
        if size > SIZE_LIMIT:
            yield causes.too_long(self.maps[0], SIZE_LIMIT)

    def update_faults(self, obj: Obj, old: Obj, subresource: str) -> list[Cause]:
        """What is immutable stays."""
        faults = super().update_faults(obj, old, subresource)
        if old.get("immutable"):
            changed = [name for name in (*self.maps, "immutable") if obj.get(name) != old.get(name)]
            faults += [causes.forbidden(name, "field is immutable when `immutable` is set") for name in changed]
        return faults


def _key_faults(key: str) -> Iterator[str]:
    if len(key) > 253:
        yield "must be no more than 253 bytes"
    if not _KEY.fullmatch(key):
        yield _KEY_FORM
    if key == "." or key.startswith(".."):
        yield "must not be '.' or start with '..'"


class SecretRules(ConfigRules):
    """What its type promises is there."""

    maps = ("data",)
    fixed: Mapping[str, str] = {"type": "field is immutable"}
    selectable: Mapping[str, Any] = {"type": ""}

    def complete(self, obj: Obj) -> None:
        """Texts are kept in base64."""
        texts = obj.pop("stringData", None)
        if texts:
            encoded = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
            obj["data"] = {**obj.get("data", {}), **encoded}

    def faults(self, obj: Obj) -> Iterator[Cause]:
        """What is wrong with one."""
        yield from super().faults(obj)
        for key in _SECRET_KEYS.get(obj.get("type", ""), ()):
            if key not in obj.get("data", {}):
                yield causes.required(f"data[{key}]")


class ClaimRules(Rules):
    """Storage that somebody wants."""

    initial_status: Mapping[str, Any] = {"phase": "Pending"}
    finalizer = "kubernetes.io/pvc-protection"

    def __init__(self, stored: Store) -> None:
        self._stored = stored

    def prepare_create(self, obj: Obj) -> None:
        """Where no class is named, the default one is meant."""
        super().prepare_create(obj)
        spec = obj.setdefault("spec", {})
        if "storageClassName" not in spec and (name := self._default_class()):
            spec["storageClassName"] = name

    def _default_class(self) -> str | None:
        """The default class; the newest where there are several."""
        classes = (each["metadata"] for each in self._stored.objects("storage.k8s.io/storageclasses"))
        defaults = [meta for meta in classes if meta.get("annotations", {}).get(DEFAULT_CLASS) == "true"]
        newest = max(defaults, key=lambda meta: (meta["creationTimestamp"], meta["name"]), default=None)
        return newest["name"] if newest else None

    def faults(self, obj: Obj) -> Iterator[Cause]:
        """What is wrong with one."""
        spec = obj.get("spec", {})
        if "storage" not in spec.get("resources", {}).get("requests", {}):
            yield causes.required("spec.resources[storage]")

    def update_faults(self, obj: Obj, old: Obj, subresource: str) -> list[Cause]:
        """Little of a claim changes."""
        faults = super().update_faults(obj, old, subresource)
        mutable = {"resources", "volumeAttributesClassName"}
        if not old["spec"].get("volumeName"):
            mutable.add("volumeName")
        if not old["spec"].get("storageClassName"):
            mutable.add("storageClassName")
        spec, was = obj.get("spec", {}), old["spec"]
        if any(spec.get(key) != was.get(key) for key in (spec.keys() | was.keys()) - mutable):
            why = "spec is immutable after creation except resources.requests and volumeAttributesClassName"
            faults.append(causes.forbidden("spec", f"{why} for bound claims"))
        return faults


class VolumeRules(Rules):
    """Storage that is there."""

    initial_status: Mapping[str, Any] = {"phase": "Pending"}
    finalizer = "kubernetes.io/pv-protection"

    def faults(self, obj: Obj) -> Iterator[Cause]:
        """What is wrong with one."""
        spec = obj.get("spec", {})
        if "storage" not in spec.get("capacity", {}):
            yield causes.required("spec.capacity")


class EventRules(Rules):
    """In the namespace of what it is about."""

    selectable: Mapping[str, Any] = dict.fromkeys(
        (
            *(f"involvedObject.{name}" for name in ("kind", "namespace", "name", "uid", "apiVersion", "fieldPath")),
            "reason",
            "reportingComponent",
            "type",
        ),
        "",
    )

    def faults(self, obj: Obj) -> Iterator[Cause]:
        """What is wrong with one."""
        namespace = obj.get("involvedObject", {}).get("namespace", "")
        if (namespace or "default") != obj["metadata"].get("namespace"):
            yield causes.invalid("involvedObject.namespace", namespace, "does not match event.namespace")
