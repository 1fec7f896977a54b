"""Custom kinds: CustomResourceDefinitions turned into served kinds, and their end.

Definitions are followed through the store's own notifications, which come before a write is answered: whoever created
a definition can use the kind at once. When a definition is deleted its objects go first; then it is let go.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import orjson

from virtfleet.kube.api import Patch
from virtfleet.kube.controller import Controller
from virtfleet.kube.resource import Obj, Resource
from virtfleet.local.apiserver.kinds.builtin import OBJECT_META, facts
from virtfleet.local.apiserver.kinds.registry import ALL_VERBS, Column, Kind, Kinds, Rules
from virtfleet.local.apiserver.kinds.rules_crds import CLEANUP_FINALIZER, STORAGE
from virtfleet.local.apiserver.kinds.schema import SchemaNode, StructuralSchema, compile_node
from virtfleet.local.apiserver.kinds.schema_validation import Validator, json_schema
from virtfleet.local.apiserver.objects.deletion import DeleteOptions
from virtfleet.local.apiserver.objects.operations import Call, Operations
from virtfleet.local.apiserver.objects.selection import Selection
from virtfleet.local.apiserver.objects.store import Change
from virtfleet.local.apiserver.rights.access import MASTER

_CHANGING = frozenset({"get", "update", "patch"})
_METADATA = {
    "description": "Identity, labels and ownership of the object.",
    "allOf": [{"$ref": f"#/components/schemas/{OBJECT_META}"}],
}


class CustomKinds:
    """Keeps `kinds` in step with the stored definitions. Run `controller`, which finishes deletions."""

    def __init__(self, kinds: Kinds, operations: Operations) -> None:
        self._kinds = kinds
        self._operations = operations
        self._store = operations.store
        self._served: dict[str, bytes] = {}  # what the kinds of a definition were made from, by its name
        self._followed: set[str] = set()  # storages whose deletions matter to a definition that waits for them
        self.controller = Controller("definitions", self.reconcile)

    def load(self) -> None:
        """Serve what is stored, and follow changes from now on. To be called before anybody is served."""
        self._store.follow(STORAGE, self._changed)

    def _changed(self, change: Change) -> None:
        crd = orjson.loads(change.record.data)
        name, spec = crd["metadata"]["name"], crd["spec"]
        if change.type == "DELETED":
            self._served.pop(name, None)
            self._kinds.remove(spec["group"], spec["names"]["plural"])
            return
        self.controller.queue.add(name)
        ending = bool(crd["metadata"].get("deletionTimestamp"))
        made_from = orjson.dumps([spec, ending])
        if self._served.get(name) != made_from:
            self._served[name] = made_from
            self._kinds.remove(spec["group"], spec["names"]["plural"])
            for version in spec["versions"]:
                if version.get("served"):
                    self._kinds.add(custom_kind(spec, version, ending=ending))

    async def reconcile(self, name: str) -> None:
        """Delete the objects of a definition that is going; when the last is gone, let the definition go."""
        crd = self._store.read(STORAGE, "", name) or {"metadata": {}}
        held = CLEANUP_FINALIZER in crd["metadata"].get("finalizers", ())
        if not held or not crd["metadata"].get("deletionTimestamp"):
            return
        kind = custom_kind(crd["spec"], next(v for v in crd["spec"]["versions"] if v["storage"]))
        if kind.storage not in self._followed:
            self._followed.add(kind.storage)
            again = self.controller.queue.add
            self._store.listen(kind.storage, lambda change: again(name) if change.type == "DELETED" else None)
        await self._operations.delete_collection(Selection(kind), DeleteOptions(), Call(MASTER))
        if next(iter(self._store.scan(kind.storage)), None) is None:
            kept = [f for f in crd["metadata"]["finalizers"] if f != CLEANUP_FINALIZER] or None
            patch = {"metadata": {"finalizers": kept, "resourceVersion": crd["metadata"]["resourceVersion"]}}
            definitions = self._kinds.find("apiextensions.k8s.io", "v1", "customresourcedefinitions")
            assert definitions is not None, "definitions are a built-in kind"
            await self._operations.patch(definitions, "", name, Patch.MERGE, orjson.dumps(patch), Call(MASTER))


def custom_kind(spec: Obj, version: Obj, *, ending: bool = False) -> Kind:
    """One version of a definition as a served kind; while the definition is `ending`, nothing new is created."""
    names = spec["names"]
    resource = Resource(spec["group"], version["name"], names["plural"], names["kind"], spec["scope"] == "Namespaced")
    subresources = version.get("subresources", {})
    scale = subresources.get("scale") or {}
    return Kind(
        resource,
        singular=names["singular"],
        list_kind=names["listKind"],
        short_names=tuple(names.get("shortNames", ())),
        categories=tuple(names.get("categories", ())),
        verbs=ALL_VERBS - {"create"} if ending else ALL_VERBS,
        subresources={name: _CHANGING for name in ("status", "scale") if name in subresources},
        subresource_kinds={"scale": ("autoscaling", "v1", "Scale")} if scale else {},
        columns=tuple(map(_column, version.get("additionalPrinterColumns", ()))),
        schema=custom_schema(resource, version["schema"]["openAPIV3Schema"]),
        rules=Rules(selectable={each["jsonPath"].lstrip("."): "" for each in version.get("selectableFields", ())}),
        scale={
            key: scale[f"{key}Path"].lstrip(".")
            for key in ("specReplicas", "statusReplicas", "labelSelector")
            if f"{key}Path" in scale
        },
        custom=True,
    )


def _column(column: Obj) -> Column:
    optional = {key: column[key] for key in ("format", "description", "priority") if key in column}
    return Column(column["name"], column["type"], path=column["jsonPath"], **optional)


def custom_schema(resource: Resource, schema: dict[str, Any]) -> StructuralSchema:
    """The schema of a definition's version, with the fields that every object has."""
    root, validator = _compiled(orjson.dumps(schema))

    def openapi() -> dict[str, Any]:
        group = ".".join(reversed(resource.group.split(".")))
        gvk = {"group": resource.group, "version": resource.version, "kind": resource.kind}
        properties = schema.get("properties", {}) | {
            "apiVersion": {"type": "string", "description": "Group and version of the kind."},
            "kind": {"type": "string", "description": "Name of the kind."},
            "metadata": _METADATA,
        }
        own = {**schema, "properties": properties, "x-kubernetes-group-version-kind": [gvk]}
        return {f"{group}.{resource.version}.{resource.kind}": own, **facts().openapi(OBJECT_META)}

    return StructuralSchema(resource, root, validator, openapi)


@lru_cache(maxsize=64)
def _compiled(text: bytes) -> tuple[Callable[[], SchemaNode], Validator]:
    """What objects are shaped and validated with: versions of a kind often share a schema, which takes a while."""
    schema = orjson.loads(text)

    @cache
    def root() -> SchemaNode:
        node = compile_node(schema, typed=False)
        string = SchemaNode(type="string", typed=True, go_type="string")
        node.fields |= {"apiVersion": string, "kind": string, "metadata": facts().node(OBJECT_META)}
        return node

    return root, Validator(lambda: json_schema(schema), typed=False)
