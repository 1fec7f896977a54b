"""Identities of API resources: where a kind lives on the server.

`Resource` is enough to build every URL of a kind. Components name the kinds they use through the constants here, so
that no path is spelled twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from virtfleet.api import kinds
from virtfleet.api.kinds import OwnKind

Obj = dict[str, Any]  # a Kubernetes object: a plain dict, the truth; typed views are for reading


@dataclass(frozen=True, slots=True)
class Resource:
    """One served version of one kind."""

    group: str  # "" for core
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL path of the collection, of one object, or of a subresource of it."""
        parts = [self.root]
        if namespace and self.namespaced:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name:
            parts.append(name)
            if subresource:
                parts.append(subresource)
        return "/".join(parts)

    @property
    def storage(self) -> str:
        """The name under which the local API server stores all versions of the kind."""
        return f"{self.group}/{self.plural}"

    def object(self, metadata: Obj, **parts: Any) -> Obj:
        """One of the kind."""
        return {"apiVersion": self.api_version, "kind": self.kind, "metadata": metadata, **parts}

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


def owner_reference(owner: Obj, resource: Resource) -> Obj:
    """The reference that makes `owner` the controller of an object."""
    meta = owner["metadata"]
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


RBAC, ADMISSION = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"

NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
EVENTS = Resource("", "v1", "events", "Event")
PERSISTENT_VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
PERSISTENT_VOLUME_CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
JOBS = Resource("batch", "v1", "jobs", "Job")
CONTROLLER_REVISIONS = Resource("apps", "v1", "controllerrevisions", "ControllerRevision")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
POD_DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
VOLUME_SNAPSHOTS = Resource("snapshot.storage.k8s.io", "v1", "volumesnapshots", "VolumeSnapshot")
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False)
CLUSTER_ROLES = Resource(RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False)
CLUSTER_ROLE_BINDINGS = Resource(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False)
ROLES = Resource(RBAC, "v1", "roles", "Role")
ROLE_BINDINGS = Resource(RBAC, "v1", "rolebindings", "RoleBinding")
NETWORK_ATTACHMENTS = Resource("k8s.cni.cncf.io", "v1", "network-attachment-definitions", "NetworkAttachmentDefinition")
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
SERVICE_MONITORS = Resource("monitoring.coreos.com", "v1", "servicemonitors", "ServiceMonitor")
API_SERVICES = Resource("apiregistration.k8s.io", "v1", "apiservices", "APIService", namespaced=False)
MUTATING_WEBHOOKS = Resource(ADMISSION, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", False)
VALIDATING_WEBHOOKS = Resource(
    ADMISSION, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", False
)
POLICIES = Resource(ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", False)
POLICY_BINDINGS = Resource(
    ADMISSION, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", False
)
SUBJECT_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)


def of_kind(own: OwnKind) -> Resource:
    """One of VirtFleet's own kinds, in the version that is stored."""
    return Resource(own.group, own.versions[0], own.plural, own.kind, own.namespaced)


VMS = of_kind(kinds.VM)
VMIS = of_kind(kinds.VMI)
VMI_REPLICA_SETS = of_kind(kinds.REPLICA_SET)
VMI_MIGRATIONS = of_kind(kinds.MIGRATION)
MIGRATION_POLICIES = of_kind(kinds.POLICY)
KUBEVIRTS = of_kind(kinds.KUBEVIRT)
CLUSTER_INSTANCETYPES = of_kind(kinds.TYPES[1])
CLUSTER_PREFERENCES = of_kind(kinds.PREFERENCES[1])
DATA_VOLUMES = of_kind(kinds.DATA_VOLUME)
DATA_SOURCES = of_kind(kinds.DATA_SOURCE)
