"""What people ask a Kubernetes for, and this one does not do. It says so, and what to do instead.

A bare 404 would be taken for a mistake of the caller's, and makes some clients fall over. The same list is in
docs/local-cluster.md, which a test compares.
"""

from __future__ import annotations

from virtfleet.kube.errors import ApiError

# (group, plural, subresource) -> what to do instead
SUBRESOURCES = {
    ("", "pods", "attach"): "kubectl logs -f shows what it prints, and kubectl exec -it runs a shell in it",
    (
        "",
        "pods",
        "portforward",
    ): "a Pod's address (kubectl get pods -o wide) is reached from this machine as it "
    "is; for a VM, use virtfleet port-forward",
    ("", "pods", "ephemeralcontainers"): "kubectl exec runs programs in the containers that are there",
    ("", "pods", "proxy"): "a Pod's address is reached from this machine as it is",
    ("", "services", "proxy"): "a Service's address is reached from this machine as it is",
    ("", "nodes", "proxy"): "virtfleet logs NODE shows what the node's agent does",
}
# group -> plurals and what to do instead
KINDS = {
    "": {
        "endpoints": "EndpointSlices have them",
        "limitranges": "nothing here would apply them",
        "podtemplates": "nothing here would use them",
        "replicationcontrollers": "use a ReplicaSet or a Deployment",
        "resourcequotas": "nothing here would apply them",
    },
    "apps": {"statefulsets": "use a Deployment, or a VM with a volume"},
    "authorization.k8s.io": {"localsubjectaccessreviews": "use a SubjectAccessReview with a namespace"},
    "autoscaling": {"horizontalpodautoscalers": "use kubectl scale"},
    "batch": {
        "cronjobs": "a timer of this machine can make the Jobs (kubectl create job)",
    },
    "events.k8s.io": {"events": "core Events have them (kubectl events)"},
    "networking.k8s.io": {
        "ingresses": "a Service's address is reached from this machine as it is",
        "networkpolicies": "nothing here would apply them",
    },
}


def refusal(group: str, plural: str, subresource: str) -> ApiError | None:
    """What is answered to a request for something that is left out; None for anything else."""
    what = f"{plural}.{group}" if group else plural
    instead = KINDS.get(group, {}).get(plural)
    if instead is None:
        what, instead = f"{what}/{subresource}", SUBRESOURCES.get((group, plural, subresource))
    if instead is None:
        return None
    # Not a word on names: kubectl debug knows by that that it is the feature that is missing, and not the Pod.
    return ApiError("NotFound", f"the local cluster does not serve {what}: {instead}", details={"kind": plural})
