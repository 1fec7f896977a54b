"""The roles and bindings that every cluster has from its first moment, as Kubernetes defines them.

Left out are roles for components and kinds that the local cluster does not have. One binding is ours: system:node is
bound to the group system:nodes, where Kubernetes has an authorizer of its own for nodes.
"""

from __future__ import annotations

from virtfleet.kube.resource import CLUSTER_ROLES, Obj

READ = ("get", "list", "watch")
WRITE = ("create", "update", "patch", "delete", "deletecollection")
AUTO_UPDATE = "rbac.authorization.kubernetes.io/autoupdate"

_GROUP = CLUSTER_ROLES.group
_HEALTH = ("/livez", "/readyz", "/healthz", "/version", "/version/")
_EVENTS = ("", "events.k8s.io")


def _rule(verbs: tuple[str, ...] | str, groups: tuple[str, ...] | str, *resources: str) -> Obj:
    verbs, groups = ((verbs,) if isinstance(verbs, str) else verbs), ((groups,) if isinstance(groups, str) else groups)
    return {"verbs": list(verbs), "apiGroups": list(groups), "resources": list(resources)}


def _get(*urls: str) -> Obj:
    return {"verbs": ["get"], "nonResourceURLs": list(urls)}


_VIEW = [
    _rule(
        READ,
        "",
        "pods",
        "serviceaccounts",
        "services",
        "services/status",
        "endpoints",
        "persistentvolumeclaims",
        "persistentvolumeclaims/status",
        "configmaps",
    ),
    _rule(
        READ,
        "",
        "limitranges",
        "resourcequotas",
        "bindings",
        "pods/status",
        "pods/log",
        "resourcequotas/status",
        "namespaces/status",
    ),
    _rule(READ, "", "namespaces"),
    _rule(READ, _EVENTS, "events"),
    _rule(READ, "discovery.k8s.io", "endpointslices"),
    _rule(
        READ,
        "apps",
        "controllerrevisions",
        "daemonsets",
        "daemonsets/status",
        "deployments",
        "deployments/status",
        "deployments/scale",
        "replicasets",
        "replicasets/status",
        "replicasets/scale",
        "statefulsets",
        "statefulsets/status",
        "statefulsets/scale",
    ),
    _rule(READ, "policy", "poddisruptionbudgets", "poddisruptionbudgets/status"),
]
_EDIT = [
    _rule(READ, "", "pods/attach", "pods/proxy", "pods/exec", "pods/portforward", "secrets", "services/proxy"),
    _rule("impersonate", "", "serviceaccounts"),
    _rule(WRITE, "", "pods", "pods/attach", "pods/proxy", "pods/exec", "pods/portforward"),
    _rule("create", "", "pods/eviction", "serviceaccounts/token"),
    _rule(
        WRITE, "", "serviceaccounts", "services", "services/proxy", "persistentvolumeclaims", "configmaps", "secrets"
    ),
    _rule(WRITE, _EVENTS, "events"),
    _rule(
        WRITE,
        "apps",
        "daemonsets",
        "deployments",
        "deployments/scale",
        "deployments/rollback",
        "replicasets",
        "replicasets/scale",
        "statefulsets",
        "statefulsets/scale",
    ),
    _rule(WRITE, "policy", "poddisruptionbudgets"),
    _rule((*READ, *WRITE), "coordination.k8s.io", "leases"),
]
_ADMIN = [
    _rule("create", "authorization.k8s.io", "localsubjectaccessreviews"),
    _rule((*READ, *WRITE), _GROUP, "roles", "rolebindings"),
]
_NODE = [
    _rule("create", "authentication.k8s.io", "tokenreviews"),
    _rule("create", "authorization.k8s.io", "subjectaccessreviews", "localsubjectaccessreviews"),
    _rule(READ, "", "services", "pods", "secrets", "configmaps", "serviceaccounts"),
    _rule(("create", *READ, "update", "patch"), "", "nodes"),
    _rule(("update", "patch"), "", "nodes/status", "pods/status"),
    _rule(("create", "update", "patch"), _EVENTS, "events"),
    _rule(("create", "delete"), "", "pods"),
    _rule("create", "", "pods/eviction", "serviceaccounts/token"),
    _rule("get", "", "persistentvolumeclaims", "persistentvolumes", "endpoints"),
    _rule(("get", "update", "patch"), "", "persistentvolumeclaims/status"),
    _rule(("get", "create", "update", "patch", "delete"), "coordination.k8s.io", "leases"),
]


def _role(name: str, *rules: Obj, part_of: str = "", sum_of: str = "") -> Obj:
    role = _default("ClusterRole", name)
    if part_of:
        role["metadata"]["labels"][f"{_GROUP}/aggregate-to-{part_of}"] = "true"
    if sum_of:
        selector = {"matchLabels": {f"{_GROUP}/aggregate-to-{sum_of}": "true"}}
        return {**role, "aggregationRule": {"clusterRoleSelectors": [selector]}, "rules": []}
    return {**role, "rules": list(rules)}


def _default(kind: str, name: str) -> Obj:
    meta = {
        "name": name,
        "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
        "annotations": {AUTO_UPDATE: "true"},
    }
    return {"apiVersion": f"{_GROUP}/v1", "kind": kind, "metadata": meta}


def cluster_roles() -> list[Obj]:
    everything = {"verbs": ["*"], "nonResourceURLs": ["*"]}
    return [
        _role("cluster-admin", _rule("*", "*", "*"), everything),
        _role("admin", sum_of="admin"),
        _role("edit", sum_of="edit", part_of="admin"),
        _role("view", sum_of="view", part_of="edit"),
        _role("system:aggregate-to-admin", *_ADMIN, part_of="admin"),
        _role("system:aggregate-to-edit", *_EDIT, part_of="edit"),
        _role("system:aggregate-to-view", *_VIEW, part_of="view"),
        _role("system:discovery", _get(*_HEALTH, "/openapi", "/openapi/*", "/api", "/api/*", "/apis", "/apis/*")),
        _role("system:public-info-viewer", _get(*_HEALTH)),
        _role("system:monitoring", _get("/metrics", "/livez/*", "/readyz/*", "/healthz/*", *_HEALTH[:3])),
        _role(
            "system:basic-user",
            _rule("create", "authorization.k8s.io", "selfsubjectaccessreviews", "selfsubjectrulesreviews"),
            _rule("create", "authentication.k8s.io", "selfsubjectreviews"),
        ),
        _role(
            "system:auth-delegator",
            _rule("create", "authentication.k8s.io", "tokenreviews"),
            _rule("create", "authorization.k8s.io", "subjectaccessreviews"),
        ),
        _role("system:node", *_NODE),
    ]


def cluster_role_bindings() -> list[Obj]:
    return [
        _binding("cluster-admin", "system:masters"),
        _binding("system:discovery", "system:authenticated"),
        _binding("system:basic-user", "system:authenticated"),
        _binding("system:public-info-viewer", "system:authenticated", "system:unauthenticated"),
        _binding("system:monitoring", "system:monitoring"),
        _binding("system:node", "system:nodes"),
    ]


def _binding(role: str, *groups: str) -> Obj:
    return {
        **_default("ClusterRoleBinding", role),
        "roleRef": {"apiGroup": _GROUP, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": _GROUP, "kind": "Group", "name": g} for g in groups],
    }


def roles() -> list[Obj]:
    """Roles of kube-system: reading what aggregated servers check their callers with."""
    role = _default("Role", "extension-apiserver-authentication-reader")
    role["metadata"]["namespace"] = "kube-system"
    rule = {**_rule(READ, "", "configmaps"), "resourceNames": ["extension-apiserver-authentication"]}
    return [{**role, "rules": [rule]}]
