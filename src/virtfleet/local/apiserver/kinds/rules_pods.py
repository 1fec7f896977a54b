"""Pods: what Kubernetes' pod strategy and its built-in admission (service account, priority, tolerations) do."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from virtfleet.api.names import FINAL
from virtfleet.kube.resource import PODS, Obj
from virtfleet.local.apiserver.kinds import pod_spec
from virtfleet.local.apiserver.kinds.metadata import generated
from virtfleet.local.apiserver.kinds.registry import Rules
from virtfleet.local.apiserver.objects import causes, refusals
from virtfleet.local.apiserver.objects.causes import Cause
from virtfleet.local.apiserver.objects.store import Store

TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
# One hour and a little: the seven seconds tell tokens that were mounted by default from those asked for.
TOKEN_SECONDS = 3607
EVICTION_SECONDS = 300
EPHEMERAL = "ephemeralContainers"
_CLASSES = "scheduling.k8s.io/priorityclasses"
_NOT_EPHEMERAL = (
    *("ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "resources", "resizePolicy"),
    *("restartPolicy", "restartPolicyRules"),
)
MUTABLE = (
    "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def _begin(stored: Store, obj: Obj) -> None:
    """What a new pod is given."""
    spec = obj.setdefault("spec", {})
    _complete(spec)
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        spec["terminationGracePeriodSeconds"] = 1
    _assign_account(stored, obj)
    _assign_priority(stored, obj)
    _add_tolerations(spec)
    obj["status"] = {"phase": "Pending", "qosClass": pod_spec.qos_class(spec)}


def _keep(obj: Obj, old: Obj, subresource: str) -> None:
    """What a status keeps, and what a spec is given."""
    if subresource == "status":
        status = obj.setdefault("status", {})
        if "qosClass" in old.get("status", {}):
            status.setdefault("qosClass", old["status"]["qosClass"])
        if status.get("podIP") and (status.get("podIPs") or [{}])[0].get("ip") != status["podIP"]:
            status["podIPs"] = [{"ip": status["podIP"]}]
    elif subresource == "resize":
        obj["spec"] = _resized(old["spec"], obj.get("spec") or {})
    elif subresource == "ephemeralcontainers":
        obj["spec"] = {**old["spec"], EPHEMERAL: (obj.get("spec") or {}).get(EPHEMERAL) or []}
        pod_spec.complete(obj["spec"])
    else:
        _complete(obj.setdefault("spec", {}))
        _add_tolerations(obj["spec"])


def _faults(obj: Obj) -> Iterator[Cause]:
    """What is wrong with the spec of a new pod."""
    yield from pod_spec.faults(obj["spec"], "spec")
    if obj["spec"].get(EPHEMERAL):
        yield causes.forbidden(f"spec.{EPHEMERAL}", "cannot be set on create")


def _update_faults(obj: Obj, old: Obj, subresource: str) -> Iterator[Cause]:
    """What of a spec may not change."""
    # A binding is what gives the pod its node.
    if subresource not in ("status", "binding") and obj["spec"] != old["spec"]:
        yield from pod_spec.faults(obj["spec"], "spec")
        changed = {"resize": _resize_faults, "ephemeralcontainers": _debug_faults}.get(subresource, _change_faults)
        yield from changed(obj["spec"], old["spec"])


def _grace(obj: Obj, asked: int | None) -> int:
    """Only what runs on a node needs time."""
    spec = obj.get("spec", {})
    if not spec.get("nodeName") or obj.get("status", {}).get("phase") in FINAL:
        return 0
    return int(asked if asked is not None else spec.get("terminationGracePeriodSeconds", 0))


def _assign_account(stored: Store, obj: Obj) -> None:
    """The service account, its image pull secrets, and the volume with its token."""
    spec, namespace = obj["spec"], obj["metadata"].get("namespace", "")
    name = spec.setdefault("serviceAccountName", "default")
    spec["serviceAccount"] = name
    account = stored.read("/serviceaccounts", namespace, name) or {}
    # A namespace's `default` account is made by a controller moments after the namespace; a pod may be quicker.
    if not account and name != "default":
        why = f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'
        raise refusals.not_allowed(PODS, obj["metadata"].get("name", ""), why)
    if "imagePullSecrets" not in spec and account.get("imagePullSecrets"):
        spec["imagePullSecrets"] = account["imagePullSecrets"]
    if spec.get("automountServiceAccountToken", account.get("automountServiceAccountToken", True)):
        _mount_token(spec)


def _assign_priority(stored: Store, obj: Obj) -> None:
    spec = obj["spec"]
    if name := spec.get("priorityClassName"):
        chosen = stored.read(_CLASSES, "", name)
        if chosen is None:
            why = f"no PriorityClass with name {name} was found"
            raise refusals.not_allowed(PODS, obj["metadata"].get("name", ""), why)
    else:
        defaults = [each for each in stored.objects(_CLASSES) if each.get("globalDefault")]
        chosen = min(defaults, key=lambda each: each["value"], default={})
        if chosen:
            spec["priorityClassName"] = chosen["metadata"]["name"]
    spec["priority"] = chosen.get("value", 0)
    spec.setdefault("preemptionPolicy", chosen.get("preemptionPolicy", "PreemptLowerPriority"))


def _complete(spec: Obj) -> None:
    """Defaults of pods that the templates of workloads do not get."""
    pod_spec.complete(spec)
    spec.setdefault("enableServiceLinks", True)
    for _, container in pod_spec.containers(spec):
        resources = container.get("resources", {})
        if limits := resources.get("limits"):
            resources["requests"] = {**limits, **resources.get("requests", {})}
        if spec.get("hostNetwork"):
            for port in container.get("ports", ()):
                port.setdefault("hostPort", port.get("containerPort", 0))


def _mount_token(spec: Obj) -> None:
    mounting = [
        container
        for place, container in pod_spec.containers(spec)
        if not any(mount.get("mountPath") == TOKEN_PATH for mount in container.get("volumeMounts", ()))
    ]
    if not mounting:
        return
    name = generated("kube-api-access-")
    for container in mounting:
        mount = {"name": name, "readOnly": True, "mountPath": TOKEN_PATH}
        container["volumeMounts"] = [*container.get("volumeMounts", ()), mount]
    namespace = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    authority = {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    sources = [
        {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
        {"configMap": authority},
        {"downwardAPI": {"items": [namespace]}},
    ]
    volume = {"name": name, "projected": {"sources": sources, "defaultMode": 420}}
    spec["volumes"] = [*spec.get("volumes", ()), volume]


def _add_tolerations(spec: Obj) -> None:
    """A node that fails takes its pods with it only after a while."""
    tolerations = spec.get("tolerations", [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(t.get("key", key) in (key, "") and t.get("effect", "NoExecute") == "NoExecute" for t in tolerations):
            added = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": EVICTION_SECONDS}
            tolerations = [*tolerations, added]
    spec["tolerations"] = tolerations


def _change_faults(spec: Obj, old: Obj) -> Iterator[Cause]:
    """What of a pod's spec changed and may not."""
    for group in ("containers", "initContainers"):
        if len(spec.get(group, ())) != len(old.get(group, ())):
            yield causes.forbidden(f"spec.{group}", "pod updates may not add or remove containers")
            return
    if not all(t in _tolerated(spec) for t in _tolerated(old)):
        why = "existing toleration can not be modified except its tolerationSeconds"
        yield causes.forbidden("spec.tolerations", why)
    deadline, before = spec.get("activeDeadlineSeconds"), old.get("activeDeadlineSeconds")
    if before is not None and (deadline is None or deadline > before):
        why = "must be less than or equal to previous value"
        why = "must not update from a positive integer to nil value" if deadline is None else why
        yield causes.invalid("spec.activeDeadlineSeconds", deadline, why)
    mine, theirs = _fixed(spec), _fixed(old)
    changed = sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))
    if changed:
        why = f"pod updates may not change fields other than {MUTABLE}\nchanged: {', '.join(changed)}"
        yield causes.forbidden("spec", why)


def _resized(spec: Obj, wanted: Obj) -> Obj:
    """A spec with other resources for its containers; whatever else was sent is not looked at."""
    asked = {container.get("name"): container.get("resources") for container in wanted.get("containers") or ()}
    containers = [{**c, "resources": asked.get(c["name"]) or c.get("resources") or {}} for c in spec["containers"]]
    return {**spec, "containers": containers}


def _resize_faults(spec: Obj, old: Obj) -> Iterator[Cause]:
    """Only processors and memory change in a pod that runs, and its class of service does not."""
    if [*map(_unresizable, spec["containers"])] != [*map(_unresizable, old["containers"])]:
        yield causes.forbidden("spec", "only cpu and memory resources are mutable")
    elif pod_spec.qos_class(spec) != pod_spec.qos_class(old):
        yield causes.invalid("spec", pod_spec.qos_class(spec), "Pod QOS Class may not change as a result of resizing")


def _unresizable(container: Obj) -> Obj:
    resources = container.get("resources") or {}
    kept = {
        key: {name: amount for name, amount in (resources.get(key) or {}).items() if name not in ("cpu", "memory")}
        for key in ("requests", "limits")
    }
    return {**kept, "claims": resources.get("claims") or []}


def _debug_faults(spec: Obj, old: Obj) -> Iterator[Cause]:
    """Containers to look into a pod with are added, and then stay as they are."""
    field = f"spec.{EPHEMERAL}"
    there = {container["name"]: container for container in spec[EPHEMERAL]}
    for container in old.get(EPHEMERAL) or ():
        name = container["name"]
        if there.get(name) != container:
            verb = "changed" if name in there else "removed"
            yield causes.forbidden(field, f'existing ephemeral containers "{name}" may not be {verb}')
    targets = [container["name"] for container in spec["containers"]]
    for number, container in enumerate(spec[EPHEMERAL]):
        at, target = f"{field}[{number}]", container.get("targetContainerName")
        for name in _NOT_EPHEMERAL:
            if container.get(name):
                yield causes.forbidden(f"{at}.{name}", "cannot be set for an Ephemeral Container")
        if target and target not in targets:
            yield causes.not_found(f"{at}.targetContainerName", target)


def _tolerated(spec: Obj) -> list[Obj]:
    return [{k: v for k, v in t.items() if k != "tolerationSeconds"} for t in spec.get("tolerations", ())]


def _fixed(spec: Obj) -> dict[str, Any]:
    """The part of a spec that no update may change."""
    mutable = ("activeDeadlineSeconds", "tolerations", "schedulingGates")
    fixed = {key: value for key, value in spec.items() if key not in mutable and value not in ({}, [], None)}
    for group in ("containers", "initContainers"):
        if group in fixed:
            fixed[group] = [{**container, "image": ""} for container in fixed[group]]
    return fixed


def rules(stored: Store) -> dict[str, Rules]:
    """By the storage name of the kind."""
    texts = (
        *("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName"),
        *("status.phase", "status.podIP", "status.nominatedNodeName"),
    )
    selectable = {**dict.fromkeys(texts, ""), "spec.hostNetwork": False}
    begin = partial(_begin, stored)
    return {
        "/pods": Rules(
            selectable=selectable, begin=begin, keep=_keep, faults=_faults, on_update=_update_faults, grace=_grace
        )
    }
