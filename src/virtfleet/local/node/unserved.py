"""What a pod may ask of a Kubernetes node and not of this one: it fails at once, and its status says why. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.pod_spec import is_sidecar

_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def unserved(pod: Obj) -> str:
    """The fields of the pod that this node cannot act on, as a message; "" where there are none."""
    fields = list(_fields(pod["spec"]))
    return f"the local cluster has nothing for {', '.join(fields)}; leave that out" if fields else ""


def _fields(spec: Obj) -> Iterator[str]:
    if spec.get("shareProcessNamespace"):
        yield "spec.shareProcessNamespace"
    for kind in ("initContainers", "containers"):
        for number, container in enumerate(spec.get(kind) or ()):
            at = f"spec.{kind}[{number}]"
            if container.get("restartPolicy") and not (kind == "initContainers" and is_sidecar(container)):
                yield f"{at}.restartPolicy"
            if container.get("lifecycle"):
                yield f"{at}.lifecycle"
            yield from (f"{at}.{probe}.grpc" for probe in _PROBES if "grpc" in (container.get(probe) or {}))
