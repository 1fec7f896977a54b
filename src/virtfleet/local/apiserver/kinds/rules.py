"""Which built-in kind follows which rules."""

from __future__ import annotations

import ipaddress

from virtfleet.local.apiserver.kinds.registry import Kinds, Rules
from virtfleet.local.apiserver.kinds.rules_crds import CrdRules
from virtfleet.local.apiserver.kinds.rules_objects import (
    ClaimRules,
    ConfigRules,
    EventRules,
    NamespaceRules,
    NodeRules,
    SecretRules,
    VolumeRules,
)
from virtfleet.local.apiserver.kinds.rules_pods import PodRules
from virtfleet.local.apiserver.kinds.rules_policies import (
    AdmissionPolicyRules,
    APIServiceRules,
    BindingRules,
    DisruptionBudgetRules,
    RoleRules,
    WebhookRules,
)
from virtfleet.local.apiserver.kinds.rules_services import ServiceRules
from virtfleet.local.apiserver.kinds.rules_workloads import DaemonSetRules, DeploymentRules, JobRules, ReplicaSetRules
from virtfleet.local.apiserver.objects.store import Store


def builtin_rules(kinds: Kinds, stored: Store, services: ipaddress.IPv4Network) -> dict[str, Rules]:
    """By the storage name of the kind."""
    return {
        "/configmaps": ConfigRules(),
        "/events": EventRules(),
        "/namespaces": NamespaceRules(),
        "/nodes": NodeRules(),
        "/persistentvolumeclaims": ClaimRules(stored),
        "/persistentvolumes": VolumeRules(),
        "/pods": PodRules(stored),
        "/secrets": SecretRules(),
        "/services": ServiceRules(stored, services),
        "admissionregistration.k8s.io/mutatingwebhookconfigurations": WebhookRules(),
        "admissionregistration.k8s.io/validatingadmissionpolicies": AdmissionPolicyRules(),
        "admissionregistration.k8s.io/validatingwebhookconfigurations": WebhookRules(),
        "apiextensions.k8s.io/customresourcedefinitions": CrdRules(kinds),
        "apiregistration.k8s.io/apiservices": APIServiceRules(),
        "apps/daemonsets": DaemonSetRules(),
        "apps/deployments": DeploymentRules(),
        "apps/replicasets": ReplicaSetRules(),
        "batch/jobs": JobRules(),
        "policy/poddisruptionbudgets": DisruptionBudgetRules(),
        "rbac.authorization.k8s.io/clusterrolebindings": BindingRules(["ClusterRole"]),
        "rbac.authorization.k8s.io/clusterroles": RoleRules(namespaced=False),
        "rbac.authorization.k8s.io/rolebindings": BindingRules(["Role", "ClusterRole"]),
        "rbac.authorization.k8s.io/roles": RoleRules(namespaced=True),
    }
