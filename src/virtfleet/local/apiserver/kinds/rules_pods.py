"""Pods: what Kubernetes' pod strategy and its built-in admission (service account, priority, tolerations) do."""

from __future__ import annotations

from collections.abc import Mapping
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


class PodRules(Rules):
    """Pods: account, priority, tolerations, and what an update may do."""

    selectable: Mapping[str, Any] = {
        **dict.fromkeys(("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName"), ""),
        **dict.fromkeys(("status.phase", "status.podIP", "status.nominatedNodeName"), ""),
        "spec.hostNetwork": False,
    }

    def __init__(self, stored: Store) -> None:
        self._stored = stored

    def prepare_create(self, obj: Obj) -> None:
        """What a new pod is given."""
        spec = obj.setdefault("spec", {})
        _complete(spec)
        if spec.get("terminationGracePeriodSeconds", 0) < 0:
            spec["terminationGracePeriodSeconds"] = 1
        self._assign_account(obj)
        self._assign_priority(obj)
        _add_tolerations(spec)
        obj["status"] = {"phase": "Pending", "qosClass": pod_spec.qos_class(spec)}

    def prepare_update(self, obj: Obj, old: Obj, subresource: str) -> None:
        """What a status keeps, and what a spec is given."""
        if subresource == "status":
            status = obj.setdefault("status", {})
            if "qosClass" in old.get("status", {}):
                status.setdefault("qosClass", old["status"]["qosClass"])
            if status.get("podIP"):
                if (status.get("podIPs") or [{}])[0].get("ip") != status["podIP"]:
                    status["podIPs"] = [{"ip": status["podIP"]}]
            elif status.get("podIPs"):
                status["podIP"] = status["podIPs"][0].get("ip", "")
        elif subresource == "resize":
            obj["spec"] = _resized(old["spec"], obj.get("spec") or {})
        elif subresource == "ephemeralcontainers":
            obj["spec"] = {**old["spec"], EPHEMERAL: (obj.get("spec") or {}).get(EPHEMERAL) or []}
            pod_spec.complete(obj["spec"])
        else:
            _complete(obj.setdefault("spec", {}))
            _add_tolerations(obj["spec"])

    def faults(self, obj: Obj) -> list[Cause]:
        """What is wrong with the spec of a new pod."""
        too_early = [causes.forbidden(f"spec.{EPHEMERAL}", "cannot be set on create")]
        return pod_spec.faults(obj["spec"], "spec") + (too_early if obj["spec"].get(EPHEMERAL) else [])

    def update_faults(self, obj: Obj, old: Obj, subresource: str) -> list[Cause]:
        """What of a spec may not change."""
        # A binding is what gives the pod its node.
        if subresource in ("status", "binding") or obj["spec"] == old["spec"]:
            return []
        changed = {"resize": _resize_faults, "ephemeralcontainers": _debug_faults}.get(subresource, _change_faults)
        return pod_spec.faults(obj["spec"], "spec") + changed(obj["spec"], old["spec"])

    def grace(self, obj: Obj, asked: int | None) -> int:
        """Only what runs on a node needs time."""
        spec = obj.get("spec", {})
        if not spec.get("nodeName") or obj.get("status", {}).get("phase") in FINAL:
            return 0
        seconds = asked if asked is not None else spec.get("terminationGracePeriodSeconds", 0)
        return int(seconds) if seconds >= 0 else 1

    def _assign_account(self, obj: Obj) -> None:
        """The service account, its image pull secrets, and the volume with its token."""
        spec, namespace = obj["spec"], obj["metadata"].get("namespace", "")
        name = spec.setdefault("serviceAccountName", "default")
        spec["serviceAccount"] = name
        account = self._stored.read("/serviceaccounts", namespace, name) or {}
        # A namespace's `default` account is made by a controller moments after the namespace; a pod may be quicker.
        if not account and name != "default":
            why = f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'
            raise refusals.not_allowed(PODS, obj["metadata"].get("name", ""), why)
        if "imagePullSecrets" not in spec and account.get("imagePullSecrets"):
            spec["imagePullSecrets"] = account["imagePullSecrets"]
        if spec.get("automountServiceAccountToken", account.get("automountServiceAccountToken", True)):
            _mount_token(spec)

    def _assign_priority(self, obj: Obj) -> None:
        spec = obj["spec"]
        name = spec.get("priorityClassName")
        if name:
            chosen = self._stored.read(_CLASSES, "", name)
            if chosen is None:
                raise refusals.not_allowed(
                    PODS, obj["metadata"].get("name", ""), f"no PriorityClass with name {name} was found"
                )
        else:
            defaults = [each for each in self._stored.objects(_CLASSES) if each.get("globalDefault")]
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
        limits = container.get("resources", {}).get("limits")
        if limits:
            requests = container["resources"].setdefault("requests", {})
            container["resources"]["requests"] = {**limits, **requests}
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


def _change_faults(spec: Obj, old: Obj) -> list[Cause]:
    """What of a pod's spec changed and may not."""
    for group in ("containers", "initContainers"):
        if len(spec.get(group, ())) != len(old.get(group, ())):
            return [causes.forbidden(f"spec.{group}", "pod updates may not add or remove containers")]
    faults: list[Cause] = []
    if not all(t in _tolerated(spec) for t in _tolerated(old)):
        why = "existing toleration can not be modified except its tolerationSeconds"
        faults.append(causes.forbidden("spec.tolerations", why))
    deadline, before = spec.get("activeDeadlineSeconds"), old.get("activeDeadlineSeconds")
    if before is not None and deadline is None:
        why = "must not update from a positive integer to nil value"
        faults.append(causes.invalid("spec.activeDeadlineSeconds", deadline, why))
    elif before is not None and deadline > before:
        why = "must be less than or equal to previous value"
        faults.append(causes.invalid("spec.activeDeadlineSeconds", deadline, why))
    mine, theirs = _fixed(spec), _fixed(old)
    changed = sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))
    if changed:
        why = f"pod updates may not change fields other than {MUTABLE}\nchanged: {', '.join(changed)}"
        faults.append(causes.forbidden("spec", why))
    return faults


def _resized(spec: Obj, wanted: Obj) -> Obj:
    """A spec with other resources for its containers; whatever else was sent is not looked at."""
    asked = {container.get("name"): container.get("resources") for container in wanted.get("containers") or ()}
    containers = [{**c, "resources": asked.get(c["name"]) or c.get("resources") or {}} for c in spec["containers"]]
    return {**spec, "containers": containers}


def _resize_faults(spec: Obj, old: Obj) -> list[Cause]:
    """Only processors and memory change in a pod that runs, and its class of service does not."""
    if any(
        _unresizable(new) != _unresizable(was) for new, was in zip(spec["containers"], old["containers"], strict=True)
    ):
        return [causes.forbidden("spec", "only cpu and memory resources are mutable")]
    if pod_spec.qos_class(spec) != pod_spec.qos_class(old):
        why = "Pod QOS Class may not change as a result of resizing"
        return [causes.invalid("spec", pod_spec.qos_class(spec), why)]
    return []


def _unresizable(container: Obj) -> Obj:
    resources = container.get("resources") or {}
    kept = {
        key: {name: amount for name, amount in (resources.get(key) or {}).items() if name not in ("cpu", "memory")}
        for key in ("requests", "limits")
    }
    return {**kept, "claims": resources.get("claims") or []}


def _debug_faults(spec: Obj, old: Obj) -> list[Cause]:
    """Containers to look into a pod with are added, and then stay as they are."""
    field, faults = f"spec.{EPHEMERAL}", []
    there = {container["name"]: container for container in spec[EPHEMERAL]}
    before = {container["name"]: container for container in old.get(EPHEMERAL) or ()}
    for name, container in before.items():
        if there.get(name) != container:
            verb = "changed" if name in there else "removed"
            faults.append(causes.forbidden(field, f'existing ephemeral containers "{name}" may not be {verb}'))
    targets = [container["name"] for container in spec["containers"]]
    for number, container in enumerate(spec[EPHEMERAL]):
        at, target = f"{field}[{number}]", container.get("targetContainerName")
        refused = [name for name in _NOT_EPHEMERAL if container.get(name)]
        faults += [causes.forbidden(f"{at}.{name}", "cannot be set for an Ephemeral Container") for name in refused]
        if target and target not in targets:
            faults.append(causes.not_found(f"{at}.targetContainerName", target))
    return faults


def _tolerated(spec: Obj) -> list[Obj]:
    return [{k: v for k, v in t.items() if k != "tolerationSeconds"} for t in spec.get("tolerations", ())]


def _fixed(spec: Obj) -> dict[str, Any]:
    """The part of a spec that no update may change."""
    mutable = ("activeDeadlineSeconds", "tolerations", "schedulingGates")
    fixed = {key: value for key, value in spec.items() if key not in mutable and value not in ({}, [], None)}
    for group in ("containers", "initContainers"):
        if group in fixed:
            fixed[group] = [{**container, "image": ""} for container in fixed[group]]
    if fixed.get("terminationGracePeriodSeconds", 0) < 0:
        fixed["terminationGracePeriodSeconds"] = 1
    return fixed
