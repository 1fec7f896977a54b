"""What the controllers keep of a Pod: a projection of a few hundred bytes instead of the object of several thousand.

All controllers share one cache of these. What pods of one template have in common (labels, requests, constraints) is a
`Template` that equal pods share, so that five thousand replicas cost five thousand small records and one template.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from virtfleet.api.names import FINAL
from virtfleet.api.quantity import Quantity
from virtfleet.kube.events import Reference
from virtfleet.kube.resource import Obj

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


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
    hostname: str
    subdomain: str


class Pod(msgspec.Struct, frozen=True, eq=False):
    """One pod, as far as controllers need it."""

    namespace: str
    name: str
    uid: str
    generation: int
    created: float
    deleting: float | None  # when the deletion was asked for
    owner_uid: str  # of the controlling owner, "" without one
    owner_kind: str
    owner_name: str
    node: str
    phase: str
    ready: bool
    ready_since: float
    restarts: int  # of the container that restarted most
    deletion_cost: int
    ips: tuple[str, ...]
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
    def terminal(self) -> bool:
        return self.phase in FINAL

    @property
    def active(self) -> bool:
        """Counts as a replica: neither finished nor on its way out."""
        return not self.terminal and self.deleting is None

    def available(self, min_ready_seconds: int, now: float) -> bool:
        """Ready, and for long enough."""
        return self.ready and (min_ready_seconds == 0 or self.ready_since + min_ready_seconds <= now)


class _Wire(msgspec.Struct, rename="camel"):
    pass


class _Owner(_Wire):
    uid: str
    kind: str
    name: str
    controller: bool | None = None


class _Metadata(_Wire):
    name: str
    uid: str = ""
    namespace: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[_Owner] | None = None


class _Port(_Wire):
    container_port: int = 0
    host_port: int = 0
    name: str = ""
    protocol: str = "TCP"
    host_i_p: str = msgspec.field(default="", name="hostIP")


class _Resources(_Wire):
    requests: dict[str, str | int | float] | None = None


class _Container(_Wire):
    resources: _Resources = msgspec.field(default_factory=_Resources)
    ports: list[_Port] | None = None
    restart_policy: str = ""


class _Claim(_Wire):
    claim_name: str


class _Volume(_Wire):
    name: str
    persistent_volume_claim: _Claim | None = None
    ephemeral: msgspec.Raw | None = None


class _Spec(_Wire):
    node_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: dict[str, Any] | None = None
    tolerations: list[dict[str, Any]] | None = None
    topology_spread_constraints: list[dict[str, Any]] | None = None
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    overhead: dict[str, str | int | float] | None = None
    volumes: list[_Volume] | None = None
    scheduler_name: str = "default-scheduler"
    scheduling_gates: list[msgspec.Raw] | None = None
    host_network: bool | None = None
    hostname: str = ""
    subdomain: str = ""


class _Condition(_Wire):
    type: str
    status: str
    message: str = ""
    last_transition_time: datetime | None = None


class _ContainerStatus(_Wire):
    restart_count: int = 0


class _Address(_Wire):
    ip: str


class _Status(_Wire):
    phase: str = "Pending"
    conditions: list[_Condition] | None = None
    container_statuses: list[_ContainerStatus] | None = None
    pod_i_p: str = msgspec.field(default="", name="podIP")
    pod_i_ps: list[_Address] | None = msgspec.field(default=None, name="podIPs")


class _Pod(_Wire):
    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


_decoder = msgspec.json.Decoder(_Pod)
_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_templates: WeakValueDictionary[bytes, Template] = WeakValueDictionary()


def decode(data: bytes) -> Pod:
    """A pod's projection from its JSON."""
    pod = _decoder.decode(data)
    meta, status = pod.metadata, pod.status
    owner = next((o for o in meta.owner_references or () if o.controller), None)
    conditions = {c.type: c for c in status.conditions or ()}
    ready, scheduled = conditions.get("Ready"), conditions.get("PodScheduled")
    return Pod(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        generation=meta.generation,
        created=_seconds(meta.creation_timestamp),
        deleting=meta.deletion_timestamp.timestamp() if meta.deletion_timestamp else None,
        owner_uid=owner.uid if owner else "",
        owner_kind=owner.kind if owner else "",
        owner_name=owner.name if owner else "",
        node=pod.spec.node_name,
        phase=status.phase or "Pending",
        ready=ready is not None and ready.status == "True",
        ready_since=_seconds(ready.last_transition_time) if ready else 0.0,
        restarts=max((c.restart_count for c in status.container_statuses or ()), default=0),
        deletion_cost=_integer((meta.annotations or {}).get(DELETION_COST, "")),
        ips=tuple(a.ip for a in status.pod_i_ps or ()) or ((status.pod_i_p,) if status.pod_i_p else ()),
        unschedulable=scheduled.message if scheduled and scheduled.status == "False" else "",
        template=_shared(_template(meta, pod.spec)),
    )


def template_of(template: Obj) -> Template:
    """The same of a pod template, before there is a pod."""
    return _template(
        msgspec.convert({"name": "", **(template.get("metadata") or {})}, _Metadata),
        msgspec.convert(template.get("spec") or {}, _Spec),
    )


def _template(meta: _Metadata, spec: _Spec) -> Template:
    containers = spec.containers or []
    return Template(
        labels=meta.labels or {},
        requests=total_requests(spec),
        node_selector=spec.node_selector or {},
        affinity=spec.affinity or {},
        tolerations=tuple(spec.tolerations or ()),
        spread=tuple(spec.topology_spread_constraints or ()),
        host_ports=tuple(
            (p.protocol, p.host_i_p or "0.0.0.0", p.host_port or p.container_port)
            for c in containers
            for p in c.ports or ()
            if p.host_port or spec.host_network
        ),
        ports=tuple((p.name, p.protocol, p.container_port) for c in containers for p in c.ports or () if p.name),
        claims=tuple(_claims(meta.name, spec.volumes or [])),
        scheduler=spec.scheduler_name,
        gated=bool(spec.scheduling_gates),
        hostname=spec.hostname,
        subdomain=spec.subdomain,
    )


def _shared(template: Template) -> Template:
    """The one template that equals this one."""
    key = _encode(template)
    return _templates.setdefault(key, template)


def _claims(pod: str, volumes: list[_Volume]) -> list[str]:
    """Names of the pod's claims; an ephemeral volume's claim is named after pod and volume."""
    return [
        v.persistent_volume_claim.claim_name if v.persistent_volume_claim else f"{pod}-{v.name}"
        for v in volumes
        if v.persistent_volume_claim or v.ephemeral
    ]


def total_requests(spec: _Spec) -> dict[str, int]:
    """What the pod asks of a node.

    Containers add up. Init containers run one after another, each beside the sidecars (init containers that keep
    running) before it, so that the largest of those steps counts where it exceeds the sum.
    """
    running: dict[str, int] = {}
    peak: dict[str, int] = {}
    for init in spec.init_containers or ():
        asks = amounts(init.resources.requests)
        if init.restart_policy == "Always":
            _add(running, asks)
            step = running
        else:
            step = {name: running.get(name, 0) + n for name, n in asks.items()}
        for name, n in step.items():
            peak[name] = max(peak.get(name, 0), n)
    for container in spec.containers or ():
        _add(running, amounts(container.resources.requests))
    total = {name: max(running.get(name, 0), peak.get(name, 0)) for name in running.keys() | peak.keys()}
    _add(total, amounts(spec.overhead))
    return {name: total[name] for name in sorted(total) if total[name]}


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, n in more.items():
        total[name] = total.get(name, 0) + n


def amounts(resources: Mapping[str, str | int | float] | None) -> dict[str, int]:
    """Quantities as integers: cpu in thousandths, everything else in whole units."""
    return {name: _amount(name == "cpu", q) for name, q in (resources or {}).items()}


@lru_cache(maxsize=4096)
def _amount(milli: bool, quantity: str | int | float) -> int:
    parsed = Quantity.parse(quantity)
    return parsed.milli() if milli else parsed.value()


def _seconds(at: datetime | None) -> float:
    return at.timestamp() if at else 0.0


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0
