"""What each component may do in the cluster: one service account per component, as few rights as it can work with.

The operator may grant only what it holds itself, so its own rights are those of all components and what it needs to
manage objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from virtfleet.api import names
from virtfleet.api.kinds import KINDS, READ, Verbs
from virtfleet.api.subresources import GROUP, TABLE, Role
from virtfleet.installation import Installation
from virtfleet.kube.resource import ADMISSION, RBAC, Obj

OPERATOR = "kubevirt-operator"
API, CONTROLLER, HANDLER = "kubevirt-apiserver", "kubevirt-controller", "kubevirt-handler"

Rule = dict[str, list[str]]

_READ = list(READ)


def rule(group: str, resources: Iterable[str], verbs: Iterable[str], only: Iterable[str] = ()) -> Rule:
    made = {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
    return {**made, "resourceNames": list(only)} if only else made


def _own(holder: str) -> list[Rule]:
    """What the records of our own kinds grant to a component, or to people with a role."""
    granted: dict[tuple[str, Verbs], list[str]] = {}
    for kind in KINDS:
        for right in kind.rights:
            if right.holder == holder:
                resource = f"{kind.plural}/{right.subresource}".rstrip("/")
                granted.setdefault((kind.group, right.verbs), []).append(resource)
    return [rule(group, resources, verbs) for (group, verbs), resources in granted.items()]


_EVENTS = rule("", ["events"], ["create", "patch"])

# service account -> rules in the whole cluster
CLUSTER_RULES: dict[str, list[Rule]] = {
    API: [
        *_own("virt-api"),
        rule("", ["pods"], ["get", "list"]),  # where a guest is reached, whose Pod is evicted
        rule("", ["nodes"], ["get"]),  # whether one is drained by a taint
        rule("apps", ["controllerrevisions"], ["get"]),  # the instance type of a VM as it was
        # Volumes, whose labels name the instance type of VMs with their data.
        rule("", ["persistentvolumeclaims"], ["get"]),
        rule("snapshot.storage.k8s.io", ["volumesnapshots"], ["get"]),
        rule("authorization.k8s.io", ["subjectaccessreviews"], ["create"]),
        # How the API server proves itself when it passes requests on.
        rule("", ["configmaps"], _READ, ["extension-apiserver-authentication"]),
    ],
    CONTROLLER: [
        *_own("virt-controller"),
        rule("", ["pods"], [*_READ, "create", "patch", "delete"]),
        rule("", ["pods/eviction"], ["create"]),
        rule("", ["pods/status"], ["patch"]),  # the readiness gate of launcher Pods
        rule("", ["pods/resize"], ["patch"]),  # VMs that grow
        rule("", ["nodes"], [*_READ, "patch"]),
        rule("", ["namespaces"], _READ),
        # Those of DataVolumes, and for what VMs remember.
        rule("", ["persistentvolumeclaims"], [*_READ, "create", "patch", "delete"]),
        rule("apiextensions.k8s.io", ["customresourcedefinitions"], _READ, [names.CDI_DEFINITION]),  # is it installed
        rule("storage.k8s.io", ["storageclasses"], ["list"]),
        rule("", ["persistentvolumes"], ["get"]),  # where volumes are that follow a VM
        rule("k8s.cni.cncf.io", ["network-attachment-definitions"], ["get"]),
        rule("policy", ["poddisruptionbudgets"], [*_READ, "create", "patch", "delete"]),
        rule("apps", ["controllerrevisions"], [*_READ, "create", "delete"]),
        _EVENTS,
    ],
    HANDLER: [
        *_own("virt-handler"),
        rule("", ["nodes"], [*_READ, "patch"]),
        _EVENTS,
    ],
}  # fmt: skip

# What Prometheus' account may see of the installation's namespace, to find what it scrapes.
SCRAPES = [
    rule("", ["services", "endpoints", "pods"], _READ),
    rule("discovery.k8s.io", ["endpointslices"], _READ),
]
_LEASES = rule("coordination.k8s.io", ["leases"], ["get", "watch", "create", "update"])
# service account -> rules in the installation's own namespace
OWN_RULES: dict[str, list[Rule]] = {
    API: [rule("", ["pods"], _READ)],  # where the handler of a node is
    CONTROLLER: [_LEASES],
}


def _subresources(*roles: Role) -> list[Rule]:
    """What the table of subresources grants to any of these roles.

    The API server checks a subresource up to its first slash before it passes a request on, virt-api checks it whole;
    both are granted, so that whoever may ask is let through.
    """
    rules = []
    for verb in ("get", "update"):
        granted = [entry for entry in TABLE if entry.role in roles and entry.verb == verb]
        resources = dict.fromkeys(name for entry in granted for name in (entry.asked_as, entry.rbac))
        rules.append(rule(GROUP, sorted(resources), [verb]))
    return [each for each in rules if each["resources"]]


_UPLOADS = rule(names.CDI_UPLOADS, ["uploadtokenrequests"], ["create"])

# What people may do with VMs, as KubeVirt has it. The first three are added to Kubernetes' own roles of that name;
# migrations concern the whole cluster and have a role of their own, which administrators bind.
PEOPLE: dict[str, list[Rule]] = {
    "view": [*_own("view"), *_subresources(Role.VIEW)],
    "edit": [*_own("edit"), *_subresources(Role.VIEW, Role.EDIT), _UPLOADS],
    "admin": [*_own("admin"), *_subresources(Role.VIEW, Role.EDIT, Role.ADMIN), _UPLOADS],
    "migrate": [*_own("migrate"), *_subresources(Role.MIGRATE)],
}
_AGGREGATED = ("view", "edit", "admin")

# Everybody may ask which version runs, as virtctl does first.
EVERYBODY = [
    *_own("everybody"),
    rule(GROUP, sorted(entry.rbac for entry in TABLE if entry.role is Role.EVERYBODY), ["get", "list"]),
]

# Reading the cluster's instance types and preferences has a role of its own, too, by KubeVirt's name.
_SIZES = f"instancetype.{names.GROUP}"

# What the operator itself does: it watches and writes the kinds that it installs.
_INSTALLS = {
    "": ["serviceaccounts", "services", "configmaps", "secrets"],
    "apps": ["deployments", "daemonsets"],
    "policy": ["poddisruptionbudgets"],
    RBAC: ["roles", "rolebindings"],
}
_INSTALLS_CLUSTER_WIDE = {
    RBAC: ["clusterroles", "clusterrolebindings"],
    "apiextensions.k8s.io": ["customresourcedefinitions"],
    ADMISSION: [
        "mutatingwebhookconfigurations",
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
        "validatingwebhookconfigurations",
    ],
    "apiregistration.k8s.io": ["apiservices"],
    "monitoring.coreos.com": ["servicemonitors"],  # in a namespace that is Prometheus' own
}
_MANAGE = [*_READ, "create", "patch", "delete"]


def operator_cluster_rules() -> list[Rule]:
    granted = [rules for table in (CLUSTER_RULES, PEOPLE) for account in table for rules in table[account]]
    own = [
        *_own("virt-operator"),
        rule("", ["nodes"], [*_READ, "patch"]),
        *(rule(group, resources, _MANAGE) for group, resources in _INSTALLS_CLUSTER_WIDE.items()),
    ]
    return _distinct([*own, *granted, *EVERYBODY])


def operator_own_rules() -> list[Rule]:
    handlers = rule("", ["pods"], [*_READ, "create", "delete"])  # handlers, and proofs of what they need
    own = [_LEASES, handlers, *(rule(group, resources, _MANAGE) for group, resources in _INSTALLS.items())]
    return _distinct([*own, *SCRAPES, *(rules for account in OWN_RULES.values() for rules in account)])


def _distinct(rules: Sequence[Rule]) -> list[Rule]:
    return [each for number, each in enumerate(rules) if each not in rules[:number]]


def render(installation: Installation) -> list[Obj]:
    """Service accounts, roles and bindings of the components, and the roles for people."""
    objects: list[Obj] = []
    for account, rules in CLUSTER_RULES.items():
        objects += [service_account(installation, account), *granted(installation, account, rules)]
    for account, rules in OWN_RULES.items():
        objects += granted(installation, account, rules, namespaced=True)
    aggregated = "false" if installation.configuration.role_aggregation_strategy == "Manual" else "true"
    for name, rules in PEOPLE.items():
        label = {f"{RBAC}/aggregate-to-{name}": aggregated} if name in _AGGREGATED else {}
        metadata = installation.metadata(f"{names.GROUP}:{name}", label, namespaced=False)
        objects.append(_role("ClusterRole", metadata, rules))
    shown = [each for each in EVERYBODY if each["apiGroups"] == [_SIZES]]
    objects.append(_role("ClusterRole", installation.metadata(f"{_SIZES}:view", namespaced=False), shown))
    metadata = installation.metadata(f"{names.GROUP}:default", namespaced=False)
    everybody = {"kind": "Group", "name": "system:authenticated", "apiGroup": RBAC}
    return [*objects, _role("ClusterRole", metadata, EVERYBODY), _binding("ClusterRole", metadata, everybody)]


def service_account(installation: Installation, name: str) -> Obj:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": installation.metadata(name)}


def granted(
    installation: Installation, name: str, rules: list[Rule], subject: Obj | None = None, *, namespaced: bool = False
) -> list[Obj]:
    """A role, in the cluster or in the installation's namespace, and its binding: to ours of its name, or a subject."""
    kind, metadata = "Role" if namespaced else "ClusterRole", installation.metadata(name, namespaced=namespaced)
    own = {"kind": "ServiceAccount", "name": name, "namespace": installation.namespace}
    return [_role(kind, metadata, rules), _binding(kind, metadata, subject or own)]


def _role(kind: str, metadata: dict[str, Any], rules: list[Rule]) -> Obj:
    return {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": metadata, "rules": rules}


def _binding(kind: str, metadata: dict[str, Any], subject: dict[str, str]) -> Obj:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": f"{kind}Binding",
        "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": metadata["name"]},
        "subjects": [subject],
    }
