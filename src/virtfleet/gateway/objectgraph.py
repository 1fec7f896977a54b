"""The objects that a VM consists of and depends on, as a tree: what to keep together in a backup or a move. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from virtfleet.api.disks import Volume
from virtfleet.api.selectors import Selector, SelectorError, from_label_selector
from virtfleet.api.vmi import VirtualMachineInstanceSpec
from virtfleet.gateway.vms import Vm, Vmi, bad_request
from virtfleet.instancetypes.finding import reference
from virtfleet.instancetypes.matching import PARTS, named
from virtfleet.kube.resource import CONTROLLER_REVISIONS, DATA_VOLUMES, VMIS, VMS, Obj
from virtfleet.pods.launcher import pod_name

DEPENDENCY = "kubevirt.io/dependency-type"

# kind -> API group, kind of dependency
_KINDS = {
    VMS.kind: (VMS.group, "compute"),
    VMIS.kind: (VMIS.group, "compute"),
    "Pod": ("", "compute"),
    DATA_VOLUMES.kind: (DATA_VOLUMES.group, "storage"),
    "PersistentVolumeClaim": ("", "storage"),
    "ConfigMap": ("", "config"),
    "Secret": ("", "config"),
    "ServiceAccount": ("", "config"),
    "NetworkAttachmentDefinition": ("k8s.cni.cncf.io", "network"),
    CONTROLLER_REVISIONS.kind: (CONTROLLER_REVISIONS.group, "config"),
    **{kind.kind: (kind.group, "config") for part in PARTS for kind in part.kinds},
}


class ObjectGraphOptions(msgspec.Struct, rename="camel"):
    """The body of a request for a graph."""

    include_optional_nodes: bool | None = None
    label_selector: dict[str, Any] | None = None


def of_vm(vm: Vm, vmi: Vmi | None, options: ObjectGraphOptions) -> Obj:
    """The graph of a VM and of its instance, if it runs."""
    namespace, spec = vm.view.metadata.namespace, vm.view.spec.template.spec
    instance = [_node(VMIS.kind, vmi.name, namespace, [_launcher(vmi)])] if vmi else []
    children = [*instance, *_types(vm.object, namespace), *_dependencies(spec, namespace)]
    return _root(VMS.kind, vm.name, namespace, children, options)


def of_vmi(vmi: Vmi, options: ObjectGraphOptions) -> Obj:
    """The graph of a VMI."""
    children = [_launcher(vmi), *_dependencies(vmi.view.spec, vmi.namespace)]
    return _root(VMIS.kind, vmi.name, vmi.namespace, children, options)


def _root(kind: str, name: str, namespace: str, children: list[Obj], options: ObjectGraphOptions) -> Obj:
    try:
        selector = from_label_selector(options.label_selector or {})
    except (SelectorError, KeyError, TypeError) as error:
        raise bad_request(f"labelSelector: {error}") from error
    kept = _chosen(children, selector, options.include_optional_nodes is not False)
    return _node(kind, name, namespace, kept)


def _node(kind: str, name: str, namespace: str, children: Iterable[Obj] = (), *, optional: bool = False) -> Obj:
    group, dependency = _KINDS[kind]
    node: Obj = {
        "objectReference": {"apiGroup": group, "kind": kind, "name": name, "namespace": namespace},
        "labels": {DEPENDENCY: dependency},
    }
    if optional:
        node["optional"] = True
    if below := list(children):
        node["children"] = below
    return node


def _chosen(nodes: Iterable[Obj], selector: Selector, optional: bool) -> list[Obj]:
    return [
        {**node, "children": _chosen(node["children"], selector, optional)} if "children" in node else node
        for node in nodes
        if selector.matches(node["labels"]) and (optional or not node.get("optional"))
    ]


def _types(vm: Obj, namespace: str) -> Iterator[Obj]:
    """What the VM was made of, which it can do without, and what it keeps of that."""
    for part in PARTS:
        if (matcher := named(vm, part)) is None:
            continue
        if kind := part.kind(matcher):
            name, place = str(matcher.get("name") or ""), namespace if kind.namespaced else ""
            yield _node(kind.kind, name, place, optional=True)
        if kept := reference(vm, part) or matcher.get("revisionName"):
            yield _node(CONTROLLER_REVISIONS.kind, str(kept), namespace)


def _launcher(vmi: Vmi) -> Obj:
    moved = vmi.view.status.migration_state
    uid = moved.migration_uid if moved and moved.completed and not moved.failed else vmi.view.metadata.uid
    return _node("Pod", pod_name(vmi.name, uid), vmi.namespace)


def _dependencies(spec: VirtualMachineInstanceSpec, namespace: str) -> Iterator[Obj]:
    for credential in spec.access_credentials:
        for kind in (credential.ssh_public_key, credential.user_password):
            if kind and kind.source and kind.source.secret:
                yield _node("Secret", kind.source.secret.secret_name, namespace)
    for volume in spec.volumes:
        yield from _of_volume(volume, namespace)
    for network in spec.networks:
        if network.multus:
            place, _, name = network.multus.network_name.rpartition("/")
            yield _node("NetworkAttachmentDefinition", name, place or namespace, optional=True)


def _of_volume(volume: Volume, namespace: str) -> Iterator[Obj]:
    if volume.data_volume:
        name = volume.data_volume.name
        yield _node(DATA_VOLUMES.kind, name, namespace, [_node("PersistentVolumeClaim", name, namespace)])
    for claim in (volume.persistent_volume_claim, volume.ephemeral and volume.ephemeral.persistent_volume_claim):
        if claim:
            yield _node("PersistentVolumeClaim", claim.claim_name, namespace)
    if volume.config_map:
        yield _node("ConfigMap", volume.config_map.name, namespace)
    if volume.secret:
        yield _node("Secret", volume.secret.secret_name, namespace)
    if volume.service_account:
        yield _node("ServiceAccount", volume.service_account.service_account_name, namespace)
    for cloud_init in (volume.cloud_init_no_cloud, volume.cloud_init_config_drive):
        references = (cloud_init.secret_ref, cloud_init.network_data_secret_ref) if cloud_init else ()
        yield from (_node("Secret", reference.name, namespace) for reference in references if reference)
