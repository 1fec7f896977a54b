"""What the API server itself keeps handlers to: each writes to its own Node only, and there what handlers write. Pure.

Labels decide which VMs a node gets, and taints which Pods, so a node that was broken into must not write those of
others. RBAC cannot tell one handler from the next, for they share a service account; their tokens can, because
Kubernetes says in the token of a Pod on which node the Pod is.
"""

from __future__ import annotations

from virtfleet.api import names
from virtfleet.installation import Installation
from virtfleet.kube.resource import ADMISSION, Obj
from virtfleet.operator import roles

POLICY = "kubevirt-node-restriction-policy"
BINDING = "kubevirt-node-restriction-binding"
_NODE = "authentication.kubernetes.io/node-name"
_LABELS = [names.SCHEDULABLE, names.CPU_MANAGER, names.DEPRECATED_CPU_MANAGER, *names.NODE_FACTS]
_ANNOTATIONS = [names.HANDLER_HEARTBEAT, names.HANDLER_VERSION]
# What the server itself changes with every write, beside what the other conditions are about.
_APART = "['labels', 'annotations', 'managedFields', 'resourceVersion']"


def render(installation: Installation) -> list[Obj]:
    handler = f"system:serviceaccount:{installation.namespace}:{roles.HANDLER}"
    rule = {"apiGroups": [""], "apiVersions": ["*"], "operations": ["*"], "resources": ["nodes"], "scope": "*"}
    validations = {
        f"has(request.userInfo.extra) && '{_NODE}' in request.userInfo.extra": (
            "the token of this handler does not name its node; it needs one that is bound to its Pod"
        ),
        f"request.userInfo.extra['{_NODE}'] == [request.name]": (
            "this user cannot modify this node: a handler may change the one that it runs on only"
        ),
        "request.operation == 'UPDATE' && object.spec == oldObject.spec": "this user cannot modify spec of node",
        f"object.metadata.all(k, k in {_APART} || (k in oldObject.metadata && object.metadata[k] == "
        f"oldObject.metadata[k])) && oldObject.metadata.all(k, k in {_APART} || k in object.metadata)": (
            "this user can only change allowed metadata fields: labels and annotations"
        ),
        **_others_stay("labels", f"k.contains('{names.NODE_DOMAIN}') || k in {_LABELS}"),
        **_others_stay("annotations", f"k in {_ANNOTATIONS}"),
    }
    policy = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "handlers", "expression": f"request.userInfo.username == '{handler}'"}],
        "validations": [
            {"expression": text, "message": why, "reason": "Forbidden"} for text, why in validations.items()
        ],
    }
    binding = {"policyName": POLICY, "validationActions": ["Deny"]}
    return [
        _object(installation, "ValidatingAdmissionPolicy", POLICY, policy),
        _object(installation, "ValidatingAdmissionPolicyBinding", BINDING, binding),
    ]


def _object(installation: Installation, kind: str, name: str, spec: Obj) -> Obj:
    metadata = installation.metadata(name, namespaced=False)
    return {"apiVersion": f"{ADMISSION}/v1", "kind": kind, "metadata": metadata, "spec": spec}


def _others_stay(field: str, own: str) -> dict[str, str]:
    """Expressions that say that of a map only what is a handler's `own` is new, gone or changed; with KubeVirt's words.

    Theirs are all keys with their name in it. Here, they are those that handlers write.
    """
    new, old = (f"(has({each}.metadata.{field}) ? {each}.metadata.{field} : {{}})" for each in ("object", "oldObject"))
    return {
        f"{new}.all(k, {own} || k in {old}) && {old}.all(k, {own} || k in {new})": (
            f"this user cannot add/delete non kubevirt-owned {field}, which are those that handlers do not write"
        ),
        f"{new}.all(k, {own} || !(k in {old}) || {new}[k] == {old}[k])": (
            f"this user cannot update non kubevirt-owned {field}, which are those that handlers do not write"
        ),
    }
