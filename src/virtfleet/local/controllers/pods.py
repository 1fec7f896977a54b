"""What the controllers keep of a Pod: a projection of a few hundred bytes instead of the object of several thousand.

All controllers share one cache of these. What pods of one template have in common (labels, requests, constraints) is a
`Template` that equal pods share, so that five thousand replicas cost five thousand small records and one template.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

import msgspec
import orjson

from virtfleet.api.conditions import find, holds
from virtfleet.api.names import FINAL
from virtfleet.api.quantity import Quantity
from virtfleet.api.times import seconds
from virtfleet.kube.events import Reference
from virtfleet.kube.resource import PODS, Obj, Resource, owner_reference
from virtfleet.local.apiserver.kinds.pod_spec import is_sidecar

JOB_TRACKING = "batch.kubernetes.io/job-tracking"  # a finalizer


class Template(msgspec.Struct, frozen=True, weakref=True, eq=False):
    """What pods of one template share: labels and everything of the spec that a controller looks at."""

    labels: dict[str, str]
    requests: dict[str, int]  # cpu in thousandths, everything else in whole units; without the pod itself
    node_selector: dict[str, str]
    affinity: dict[str, Any]
    tolerations: tuple[dict[str, Any], ...]
    spread: tuple[dict[str, Any], ...]  # topologySpreadConstraints
    host_ports: tuple[tuple[str, str, int], ...]  # protocol, address, port
    ports: tuple[tuple[str, str, int], ...]  # name, protocol, port; of named container ports
    claims: tuple[str, ...]
    scheduler: str
    gated: bool


class Pod(msgspec.Struct, frozen=True, eq=False):
    """One pod, as far as controllers need it."""

    namespace: str
    name: str
    uid: str
    created: float
    deleting: float | None  # when the deletion was asked for
    owner_uid: str  # of the controlling owner, "" without one
    owner_kind: str
    owner_name: str
    node: str
    phase: str
    ready: bool
    ips: tuple[str, ...]
    tracked: bool  # its job has still to count it
    restarts: int
    unschedulable: str  # what the scheduler said about it last
    template: Template

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def reference(self) -> Reference:
        return Reference("v1", "Pod", self.namespace, self.name, self.uid)

    @property
    def labels(self) -> dict[str, str]:
        return self.template.labels

    @property
    def claims(self) -> list[str]:
        """The keys of the claims that the pod uses."""
        return [f"{self.namespace}/{claim}" for claim in self.template.claims]

    @property
    def terminal(self) -> bool:
        return self.phase in FINAL

    @property
    def active(self) -> bool:
        """Counts as a replica: neither finished nor on its way out."""
        return not self.terminal and self.deleting is None


INDEXES: dict[str, Callable[[Pod], Iterable[str]]] = {
    "namespace": lambda pod: (pod.namespace,),
    "owner": lambda pod: (pod.owner_uid,) if pod.owner_uid else (),
    "node": lambda pod: (pod.node,) if pod.node else (),
    "claim": lambda pod: pod.claims,
    "job": lambda pod: (f"{pod.namespace}/{pod.owner_name}",) if pod.owner_kind == "Job" else (),
}
_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_templates: WeakValueDictionary[bytes, Template] = WeakValueDictionary()


def decode(data: bytes) -> Pod:
    """A pod's projection from its JSON."""
    pod = orjson.loads(data)
    meta, status = pod["metadata"], pod.get("status") or {}
    owner: Obj = next((o for o in meta.get("ownerReferences") or () if o.get("controller")), {})
    conditions = status.get("conditions") or ()
    scheduled = find(conditions, "PodScheduled") or {}
    template = template_of(pod)
    return Pod(
        namespace=meta.get("namespace", ""),
        name=meta["name"],
        uid=meta.get("uid", ""),
        created=_moment(meta, "creationTimestamp") or 0.0,
        deleting=_moment(meta, "deletionTimestamp"),
        owner_uid=owner.get("uid", ""),
        owner_kind=owner.get("kind", ""),
        owner_name=owner.get("name", ""),
        node=(pod.get("spec") or {}).get("nodeName") or "",
        phase=status.get("phase") or "Pending",
        ready=holds(conditions, "Ready"),
        ips=tuple(a["ip"] for a in status.get("podIPs") or ()) or tuple(filter(None, [status.get("podIP")])),
        tracked=JOB_TRACKING in (meta.get("finalizers") or ()),
        restarts=sum(s.get("restartCount", 0) for s in status.get("containerStatuses") or ()),
        unschedulable=scheduled.get("message") or "" if scheduled.get("status") == "False" else "",
        template=_templates.setdefault(_encode(template), template),  # the one that equals this one
    )


def template_of(pod: Obj) -> Template:
    """What matters of a pod, or of a pod template before there is a pod."""
    spec = pod.get("spec") or {}
    ports = [p for c in spec.get("containers") or () for p in c.get("ports") or ()]
    claims = [v["persistentVolumeClaim"] for v in spec.get("volumes") or () if v.get("persistentVolumeClaim")]
    return Template(
        labels=(pod.get("metadata") or {}).get("labels") or {},
        requests=total_requests(_as_it_is(pod)),
        node_selector=spec.get("nodeSelector") or {},
        affinity=spec.get("affinity") or {},
        tolerations=tuple(spec.get("tolerations") or ()),
        spread=tuple(spec.get("topologySpreadConstraints") or ()),
        host_ports=tuple(
            (p.get("protocol", "TCP"), p.get("hostIP") or "0.0.0.0", p.get("hostPort") or p.get("containerPort", 0))
            for p in ports
            if p.get("hostPort") or spec.get("hostNetwork")
        ),
        ports=tuple((p["name"], p.get("protocol", "TCP"), p.get("containerPort", 0)) for p in ports if p.get("name")),
        claims=tuple(claim["claimName"] for claim in claims),
        scheduler=spec.get("schedulerName", "default-scheduler"),
        gated=bool(spec.get("schedulingGates")),
    )


def _as_it_is(pod: Obj) -> Obj:
    """The spec; with the requests that the pod keeps, where its node will never have what it asks for by now."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    pending = find(status.get("conditions") or (), "PodResizePending") or {}
    if (pending.get("status"), pending.get("reason")) != ("True", "Infeasible"):
        return spec
    has = {s["name"]: {"requests": s.get("allocatedResources") or {}} for s in status.get("containerStatuses") or ()}
    return {**spec, "containers": [{**c, "resources": has.get(c["name"], {})} for c in spec["containers"]]}


def owned(made: Resource, owner: Obj, resource: Resource, **meta: Any) -> Obj:
    """A new object of the kind `made`, controlled by `owner`, which is one of `resource`, and beside it."""
    beside = {"namespace": owner["metadata"]["namespace"], "ownerReferences": [owner_reference(owner, resource)]}
    return {"apiVersion": made.api_version, "kind": made.kind, "metadata": {**meta, **beside}}


def pod_from_template(template: Obj, owner: Obj, resource: Resource) -> Obj:
    """A pod as the template says, controlled by `owner` and named after it."""
    meta = template.get("metadata") or {}
    kept = {k: meta[k] for k in ("labels", "annotations", "finalizers") if meta.get(k)}
    name = f"{owner['metadata']['name']}-"
    return {**owned(PODS, owner, resource, generateName=name, **kept), "spec": template["spec"]}


def template_hash(template: Any, among: str | int = 0) -> str:
    """A short name for a version of a template, for labels and names of objects; another one `among` other things."""
    data = orjson.dumps([template, among], option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(data, digest_size=5).hexdigest()


def owners_of(kind: str) -> Callable[[Pod], Iterable[str]]:
    """For `Controller.follow`: the key of the pod's owner, where that is of this kind."""
    return lambda pod: (f"{pod.namespace}/{pod.owner_name}",) if pod.owner_kind == kind else ()


def total_requests(spec: Obj) -> dict[str, int]:
    """What the pod asks of a node: its containers together, or what is most while it is initialized.

    Sidecars run from their turn on, beside all others.
    """
    beside, most = Counter[str](), Counter[str]()
    for container in spec.get("initContainers") or ():
        asked = beside + _requests(container)
        most |= asked
        beside = asked if is_sidecar(container) else beside
    for container in spec.get("containers") or ():
        beside += _requests(container)
    total = (most | beside) + Counter(amounts(spec.get("overhead")))
    return {name: total[name] for name in sorted(total)}


def _requests(container: Obj) -> Counter[str]:
    return Counter(amounts((container.get("resources") or {}).get("requests")))


def amounts(resources: Mapping[str, str | int | float] | None) -> dict[str, int]:
    """Quantities as integers: cpu in thousandths, everything else in whole units."""
    return {name: _amount(name == "cpu", q) for name, q in (resources or {}).items()}


@lru_cache(maxsize=4096)
def _amount(milli: bool, quantity: str | int | float) -> int:
    parsed = Quantity.parse(quantity)
    return parsed.milli() if milli else parsed.value()


def _moment(obj: Obj, field: str) -> float | None:
    return seconds(obj[field]) if obj.get(field) else None
