"""Rules of the smaller core kinds: namespaces, nodes, configuration, accounts, volumes, events."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping

import orjson

from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.metadata import label_faults
from virtfleet.local.apiserver.kinds.registry import Cause, Rules, Stored, WriteContext
from virtfleet.local.apiserver.objects import causes

NAMESPACE_LABEL = "kubernetes.io/metadata.name"
NAMESPACE_FINALIZER = "kubernetes"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
CLAIM_FINALIZER = "kubernetes.io/pvc-protection"
VOLUME_FINALIZER = "kubernetes.io/pv-protection"
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
    def prepare_create(self, obj: Obj, ctx: WriteContext) -> None:
        finalizers = obj.get("spec", {}).get("finalizers", [])
        if NAMESPACE_FINALIZER not in finalizers:
            finalizers = [*finalizers, NAMESPACE_FINALIZER]
        obj["spec"] = {"finalizers": finalizers}
        obj["status"] = {"phase": "Active"}
        _label_with_name(obj)

    def prepare_update(self, obj: Obj, old: Obj, ctx: WriteContext) -> None:
        if ctx.subresource != "finalize":
            obj["spec"] = old.get("spec", {})
        if ctx.subresource != "status":
            obj["status"] = old.get("status", {})
        _label_with_name(obj)

    def fields(self, obj: Obj) -> Mapping[str, str]:
        return {"status.phase": obj.get("status", {}).get("phase", ""), "name": obj["metadata"].get("name", "")}


def _label_with_name(obj: Obj) -> None:
    if name := obj["metadata"].get("name"):
        obj["metadata"]["labels"] = {**(obj["metadata"].get("labels") or {}), NAMESPACE_LABEL: name}


class NodeRules(Rules):
    def prepare_create(self, obj: Obj, ctx: WriteContext) -> None:
        obj.setdefault("spec", {})

    def faults(self, obj: Obj) -> Iterator[Cause]:
        seen: set[tuple[str, str]] = set()
        for index, taint in enumerate(obj.get("spec", {}).get("taints", ())):
            at = f"spec.taints[{index}]"
            yield from label_faults({taint.get("key", ""): taint.get("value", "")}, f"{at}.key")
            identity = (taint.get("key", ""), taint.get("effect", ""))
            if identity in seen:
                yield causes.duplicate(at, taint)
            seen.add(identity)

    def fields(self, obj: Obj) -> Mapping[str, str]:
        return {"spec.unschedulable": str(bool(obj.get("spec", {}).get("unschedulable"))).lower()}


class ConfigRules(Rules):
    """ConfigMaps, and what Secrets share with them."""

    maps: tuple[str, ...] = ("data", "binaryData")

    def faults(self, obj: Obj) -> Iterator[Cause]:
        size, binary = 0, obj.get("binaryData", {})
        for name in self.maps:
            for key, value in obj.get(name, {}).items():
                size += len(value)
                yield from (causes.invalid(f"{name}[{key}]", key, why) for why in _key_faults(key))
                if name != "binaryData" and key in binary:
                    yield causes.invalid(f"{name}[{key}]", key, "duplicate of key present in binaryData")
        if size > SIZE_LIMIT:
            yield causes.too_long(self.maps[0], SIZE_LIMIT)

    def validate_update(self, obj: Obj, old: Obj, ctx: WriteContext) -> list[Cause]:
        found = super().validate_update(obj, old, ctx)
        if old.get("immutable"):
            changed = [name for name in (*self.maps, "immutable") if obj.get(name) != old.get(name)]
            found += [causes.forbidden(name, "field is immutable when `immutable` is set") for name in changed]
        return found


def _key_faults(key: str) -> Iterator[str]:
    if len(key) > 253:
        yield "must be no more than 253 bytes"
    if not _KEY.fullmatch(key):
        yield _KEY_FORM
    if key == "." or key.startswith(".."):
        yield "must not be '.' or start with '..'"


class SecretRules(ConfigRules):
    maps = ("data",)

    def prepare_create(self, obj: Obj, ctx: WriteContext) -> None:
        texts = obj.pop("stringData", None)
        if texts:
            encoded = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
            obj["data"] = {**obj.get("data", {}), **encoded}

    def prepare_update(self, obj: Obj, old: Obj, ctx: WriteContext) -> None:
        self.prepare_create(obj, ctx)

    def faults(self, obj: Obj) -> Iterator[Cause]:
        yield from super().faults(obj)
        for key in _SECRET_KEYS.get(obj.get("type", ""), ()):
            if key not in obj.get("data", {}):
                yield causes.required(f"data[{key}]")

    def validate_update(self, obj: Obj, old: Obj, ctx: WriteContext) -> list[Cause]:
        found = super().validate_update(obj, old, ctx)
        if obj.get("type") != old.get("type"):
            found.append(causes.invalid("type", obj.get("type"), "field is immutable"))
        return found

    def fields(self, obj: Obj) -> Mapping[str, str]:
        return {"type": obj.get("type", "")}


class ClaimRules(Rules):
    def __init__(self, stored: Stored) -> None:
        self._stored = stored

    def prepare_create(self, obj: Obj, ctx: WriteContext) -> None:
        spec = obj.setdefault("spec", {})
        obj["status"] = {"phase": "Pending"}
        _add_finalizer(obj, CLAIM_FINALIZER)
        if "storageClassName" not in spec and (name := self._default_class()):
            spec["storageClassName"] = name

    def _default_class(self) -> str | None:
        """The default class; the newest where there are several."""
        classes = (orjson.loads(r.data)["metadata"] for r in self._stored.scan("storage.k8s.io/storageclasses"))
        defaults = [meta for meta in classes if meta.get("annotations", {}).get(DEFAULT_CLASS) == "true"]
        newest = max(defaults, key=lambda meta: (meta["creationTimestamp"], meta["name"]), default=None)
        return newest["name"] if newest else None

    def faults(self, obj: Obj) -> Iterator[Cause]:
        spec = obj.get("spec", {})
        if "storage" not in spec.get("resources", {}).get("requests", {}):
            yield causes.required("spec.resources[storage]")

    def validate_update(self, obj: Obj, old: Obj, ctx: WriteContext) -> list[Cause]:
        found = super().validate_update(obj, old, ctx)
        mutable = {"resources", "volumeAttributesClassName"}
        if not old["spec"].get("volumeName"):
            mutable.add("volumeName")
        if not old["spec"].get("storageClassName"):
            mutable.add("storageClassName")
        spec, was = obj.get("spec", {}), old["spec"]
        if any(spec.get(key) != was.get(key) for key in (spec.keys() | was.keys()) - mutable):
            why = "spec is immutable after creation except resources.requests and volumeAttributesClassName"
            found.append(causes.forbidden("spec", f"{why} for bound claims"))
        return found


class VolumeRules(Rules):
    def prepare_create(self, obj: Obj, ctx: WriteContext) -> None:
        obj.setdefault("spec", {})
        obj["status"] = {"phase": "Pending"}
        _add_finalizer(obj, VOLUME_FINALIZER)

    def faults(self, obj: Obj) -> Iterator[Cause]:
        spec = obj.get("spec", {})
        if "storage" not in spec.get("capacity", {}):
            yield causes.required("spec.capacity")


def _add_finalizer(obj: Obj, finalizer: str) -> None:
    present = obj["metadata"].get("finalizers", [])
    if finalizer not in present:
        obj["metadata"]["finalizers"] = [*present, finalizer]


class EventRules(Rules):
    def faults(self, obj: Obj) -> Iterator[Cause]:
        namespace = obj.get("involvedObject", {}).get("namespace", "")
        if (namespace or "default") != obj["metadata"].get("namespace"):
            yield causes.invalid("involvedObject.namespace", namespace, "does not match event.namespace")

    def fields(self, obj: Obj) -> Mapping[str, str]:
        about = obj.get("involvedObject", {})
        names = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
        source = obj.get("source", {}).get("component", "") or obj.get("reportingComponent", "")
        return {
            **{f"involvedObject.{name}": about.get(name, "") for name in names},
            "reason": obj.get("reason", ""),
            "reportingComponent": obj.get("reportingComponent", ""),
            "source": source,
            "type": obj.get("type", ""),
        }
