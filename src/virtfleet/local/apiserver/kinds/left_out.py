"""What people ask a Kubernetes for, and this one does not do. It says so, and what to do instead.

A bare 404 would be taken for a mistake of the caller's, and makes some clients fall over. The same list is in
docs/local-cluster.md, which a test compares.
"""

from __future__ import annotations

from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import Obj

# (group, plural, subresource) -> what to do instead
SUBRESOURCES = {
    ("", "pods", "proxy"): "a Pod's address is reached from this machine as it is",
    ("", "services", "proxy"): "a Service's address is reached from this machine as it is",
    ("", "nodes", "proxy"): "virtfleet logs NODE shows what the node's agent does",
}
# group -> plurals and what to do instead
KINDS = {
    "": {
        "bindings": "create pods/binding",
        "componentstatuses": "virtfleet status tells how the cluster is",
        "endpoints": "EndpointSlices have them",
        "limitranges": "nothing here would apply them",
        "podtemplates": "nothing here would use them",
        "replicationcontrollers": "use a ReplicaSet or a Deployment",
        "resourcequotas": "nothing here would apply them",
    },
    "admissionregistration.k8s.io": dict.fromkeys(
        ("mutatingadmissionpolicies", "mutatingadmissionpolicybindings"), "use a MutatingWebhookConfiguration"
    ),
    "apps": {"statefulsets": "use a Deployment, or a VM with a volume"},
    "authorization.k8s.io": {"localsubjectaccessreviews": "use a SubjectAccessReview with a namespace"},
    "autoscaling": {"horizontalpodautoscalers": "nothing here watches load; kubectl scale changes the number"},
    "batch": {"cronjobs": "a timer of this machine can make the Jobs (kubectl create job)"},
    "certificates.k8s.io": {"certificatesigningrequests": "kubectl create token gives access to a service account"},
    "events.k8s.io": {"events": "core Events have them (kubectl events)"},
    "flowcontrol.apiserver.k8s.io": dict.fromkeys(
        ("flowschemas", "prioritylevelconfigurations"), "requests are answered as they come"
    ),
    "networking.k8s.io": {
        "ingressclasses": "a Service's address is reached from this machine as it is",
        "ingresses": "a Service's address is reached from this machine as it is",
        "ipaddresses": "kubectl get services shows the addresses",
        "networkpolicies": "nothing here would apply them",
        "servicecidrs": "the range is chosen when the cluster is first started",
    },
    "node.k8s.io": {"runtimeclasses": "every node has one runtime"},
    "resource.k8s.io": dict.fromkeys(
        ("deviceclasses", "resourceclaims", "resourceclaimtemplates", "resourceslices"),
        "devices come from device plugins, as resources of containers",
    ),
    "storage.k8s.io": dict.fromkeys(
        ("csidrivers", "csinodes", "csistoragecapacities", "volumeattachments", "volumeattributesclasses"),
        "volumes are directories of this machine; the class `local` makes them",
    ),
}


# Kinds of which clients read all before they begin, or take all away when they end: there are none.
_EMPTY = {
    ("", "limitranges"): "LimitRangeList",
    ("", "resourcequotas"): "ResourceQuotaList",
    ("autoscaling", "horizontalpodautoscalers"): "HorizontalPodAutoscalerList",
    ("networking.k8s.io", "networkpolicies"): "NetworkPolicyList",
    ("resource.k8s.io", "resourceclaims"): "ResourceClaimList",
    ("resource.k8s.io", "resourceclaimtemplates"): "ResourceClaimTemplateList",
}


def empty(group: str, version: str, plural: str, verb: str) -> Obj | None:
    """The answer to a request for all of what is left out, or for all to be deleted, where clients need one."""
    kind = _EMPTY.get((group, plural))
    if kind is None or verb not in ("list", "deletecollection"):
        return None
    return {"kind": kind, "apiVersion": f"{group}/{version}".lstrip("/"), "metadata": {}, "items": []}


def refusal(group: str, plural: str, subresource: str) -> ApiError | None:
    """What is answered to a request for something that is left out; None for anything else."""
    what = f"{plural}.{group}" if group else plural
    instead = KINDS.get(group, {}).get(plural)
    if instead is None:
        what, instead = f"{what}/{subresource}", SUBRESOURCES.get((group, plural, subresource))
    if instead is None:
        return None
    return ApiError("NotFound", f"the local cluster does not serve {what}: {instead}", details={"kind": plural})
