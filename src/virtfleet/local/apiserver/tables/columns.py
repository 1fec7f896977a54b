"""Printer columns of the built-in kinds: what `kubectl get` and `get -o wide` show, in Kubernetes' words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.registry import Column
from virtfleet.local.apiserver.tables import pod_columns
from virtfleet.local.apiserver.tables.ages import since

NONE = "<none>"
_SHOWN = 3  # of a list of addresses
_ACCESS_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}
_ROLE_LABEL = "node-role.kubernetes.io/"


def _at(*path: str, default: Any = "") -> Callable[[Obj], Any]:
    def value(obj: Obj) -> Any:
        found: Any = obj
        for part in path:
            found = (found or {}).get(part)
        return default if found is None else found

    return value


def _column(name: str, path: Callable[[Obj], Any], type_: str = "string", *, wide: bool = False) -> Column:
    return Column(name, type_, priority=1 if wide else 0, path=path)


NAME = Column("Name", format="name", path=_at("metadata", "name"))
AGE = _column("Age", lambda obj: since(obj["metadata"].get("creationTimestamp")))


def _labels(labels: dict[str, str] | None) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or NONE


def _selector(selector: Obj | None) -> str:
    """A label selector as text."""
    if selector is None:
        return NONE
    parts = [f"{key}={value}" for key, value in sorted(selector.get("matchLabels", {}).items())]
    for expression in selector.get("matchExpressions", ()):
        key, values = expression["key"], ",".join(sorted(expression.get("values", ())))
        parts.append({"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})", "Exists": key}.get(
            expression["operator"], f"!{key}"))  # fmt: skip
    return ",".join(parts) or NONE


def _few(texts: list[str]) -> str:
    more = f" + {len(texts) - _SHOWN} more..." if len(texts) > _SHOWN else ""
    return (",".join(texts[:_SHOWN]) + more) or NONE


def _template(part: str) -> Callable[[Obj], str]:
    def value(obj: Obj) -> str:
        return ",".join(c.get(part, "") for c in obj["spec"]["template"]["spec"].get("containers", ()))

    return value


WORKLOAD_WIDE = (
    _column("Containers", _template("name"), wide=True),
    _column("Images", _template("image"), wide=True),
    _column("Selector", lambda obj: _selector(obj["spec"].get("selector")), wide=True),
)


def _node_status(node: Obj) -> str:
    ready = [c for c in node.get("status", {}).get("conditions", ()) if c["type"] == "Ready"]
    words = ["Ready" if c["status"] == "True" else "NotReady" for c in ready] or ["Unknown"]
    return ",".join([*words, *(["SchedulingDisabled"] if node.get("spec", {}).get("unschedulable") else [])])


def _node_roles(node: Obj) -> str:
    labels = node["metadata"].get("labels", {})
    roles = {key.removeprefix(_ROLE_LABEL) for key in labels if key.startswith(_ROLE_LABEL)}
    roles.add(labels.get("kubernetes.io/role", ""))
    return ",".join(sorted(roles - {""})) or NONE


def _node_address(type_: str) -> Callable[[Obj], str]:
    def value(node: Obj) -> str:
        addresses = node.get("status", {}).get("addresses", ())
        return next((a["address"] for a in addresses if a["type"] == type_), NONE)

    return value


def _kernel(node: Obj) -> str:
    info = node.get("status", {}).get("nodeInfo", {})
    architecture = f" ({info['architecture']})" if info.get("architecture") else ""
    return (info.get("kernelVersion") or "<unknown>") + architecture


def _external_ip(service: Obj) -> str:
    spec = service["spec"]
    addresses: list[str] = list(spec.get("externalIPs", ()))
    if spec.get("type") == "ExternalName":
        return str(spec.get("externalName", ""))
    if spec.get("type") == "LoadBalancer":
        ingress = service.get("status", {}).get("loadBalancer", {}).get("ingress", ())
        addresses = [i.get("ip") or i.get("hostname", "") for i in ingress] + addresses
        return ",".join(addresses) or "<pending>"
    return ",".join(addresses) or NONE


def _service_ports(service: Obj) -> str:
    def text(port: Obj) -> str:
        node = f":{port['nodePort']}" if port.get("nodePort") else ""
        return f"{port['port']}{node}/{port.get('protocol', 'TCP')}"

    return ",".join(map(text, service["spec"].get("ports", ()))) or NONE


def _first_seen(event: Obj) -> str:
    return since(event.get("firstTimestamp") or event.get("eventTime"))


def _last_seen(event: Obj) -> str:
    last = (event.get("series") or {}).get("lastObservedTime") or event.get("lastTimestamp")
    return since(last) if last else _first_seen(event)


def _event_object(event: Obj) -> str:
    about = event.get("involvedObject", {})
    return "/".join(part for part in (about.get("kind", "").lower(), about.get("name", "")) if part)


def _event_source(event: Obj) -> str:
    source = event.get("source", {})
    component = source.get("component") or event.get("reportingComponent", "")
    host = source.get("host") or event.get("reportingInstance", "")
    return f"{component}, {host}" if host else str(component)


def _event_count(event: Obj) -> int:
    return int((event.get("series") or {}).get("count") or event.get("count") or 1)


def _subjects(kind: str) -> Callable[[Obj], str]:
    def value(binding: Obj) -> str:
        subjects = [s for s in binding.get("subjects", ()) if s.get("kind") == kind]
        return ", ".join(f"{s['namespace']}/{s['name']}" if kind == "ServiceAccount" else s["name"] for s in subjects)

    return value


BINDING = (
    NAME,
    _column("Role", lambda b: f"{b['roleRef'].get('kind', '')}/{b['roleRef'].get('name', '')}"),
    AGE,
    _column("Users", _subjects("User"), wide=True),
    _column("Groups", _subjects("Group"), wide=True),
    _column("ServiceAccounts", _subjects("ServiceAccount"), wide=True),
)


def _modes(modes: Iterable[str]) -> str:
    return ",".join(short for mode, short in _ACCESS_MODES.items() if mode in modes)


def _phase(obj: Obj) -> str:
    return "Terminating" if obj["metadata"].get("deletionTimestamp") else obj.get("status", {}).get("phase", "")


def _if_bound(value: Callable[[Obj], Any]) -> Callable[[Obj], Any]:
    return lambda claim: value(claim) if claim["spec"].get("volumeName") else ""


def _claim_of(volume: Obj) -> str:
    claim = volume["spec"].get("claimRef")
    return f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else ""


def _class_name(storage_class: Obj) -> str:
    meta = storage_class["metadata"]
    default = meta.get("annotations", {}).get("storageclass.kubernetes.io/is-default-class") == "true"
    return f"{meta['name']} (default)" if default else str(meta["name"])


def _api_service(api_service: Obj) -> str:
    service = api_service["spec"].get("service")
    return f"{service['namespace']}/{service['name']}" if service else "Local"


def _availability(api_service: Obj) -> str:
    for condition in api_service.get("status", {}).get("conditions", ()):
        if condition["type"] == "Available":
            status, reason = condition["status"], condition.get("reason", "")
            return str(status) if status == "True" else f"{status} ({reason})"
    return "Unknown"


def _slice_ports(endpoint_slice: Obj) -> str:
    ports = endpoint_slice.get("ports") or []
    return _few([str(port["port"]) if port.get("port") else "*" for port in ports]).replace(NONE, "<unset>")


def _slice_addresses(endpoint_slice: Obj) -> str:
    addresses = [a for endpoint in endpoint_slice.get("endpoints") or () for a in endpoint.get("addresses", ())]
    return _few(addresses).replace(NONE, "<unset>")


def _count(*fields: str) -> Callable[[Obj], int]:
    return lambda obj: sum(len(obj.get(field) or ()) for field in fields)


_VOLUME_MODE = _column("VolumeMode", _at("spec", "volumeMode", default="<unset>"), wide=True)
_WEBHOOKS = (NAME, _column("Webhooks", _count("webhooks"), "integer"), AGE)
_CREATED = _column("Created At", _at("metadata", "creationTimestamp"))

COLUMNS: dict[str, tuple[Column, ...]] = {
    "/pods": (NAME, *pod_columns.COLUMNS[:3], AGE, *pod_columns.COLUMNS[3:]),
    "/nodes": (
        NAME,
        _column("Status", _node_status),
        _column("Roles", _node_roles),
        AGE,
        _column("Version", _at("status", "nodeInfo", "kubeletVersion")),
        _column("Internal-IP", _node_address("InternalIP"), wide=True),
        _column("External-IP", _node_address("ExternalIP"), wide=True),
        _column("OS-Image", _at("status", "nodeInfo", "osImage", default="<unknown>"), wide=True),
        _column("Kernel-Version", _kernel, wide=True),
        _column(
            "Container-Runtime", _at("status", "nodeInfo", "containerRuntimeVersion", default="<unknown>"), wide=True
        ),
    ),
    "/services": (
        NAME,
        _column("Type", _at("spec", "type")),
        _column("Cluster-IP", _at("spec", "clusterIP", default=NONE)),
        _column("External-IP", _external_ip),
        _column("Port(s)", _service_ports),
        AGE,
        _column("Selector", lambda obj: _labels(obj["spec"].get("selector")), wide=True),
    ),
    "/namespaces": (NAME, _column("Status", _at("status", "phase")), AGE),
    "/configmaps": (NAME, _column("Data", _count("data", "binaryData")), AGE),
    "/secrets": (NAME, _column("Type", _at("type")), _column("Data", _count("data")), AGE),
    "/events": (
        _column("Last Seen", _last_seen),
        _column("Type", _at("type")),
        _column("Reason", _at("reason")),
        _column("Object", _event_object),
        _column("Subobject", _at("involvedObject", "fieldPath"), wide=True),
        _column("Source", _event_source, wide=True),
        _column("Message", lambda obj: obj.get("message", "").strip()),
        _column("First Seen", _first_seen, wide=True),
        _column("Count", _event_count, wide=True),
        Column("Name", format="name", priority=1, path=_at("metadata", "name")),
    ),
    "/persistentvolumes": (
        NAME,
        _column("Capacity", _at("spec", "capacity", "storage")),
        _column("Access Modes", lambda obj: _modes(obj["spec"].get("accessModes", ()))),
        _column("Reclaim Policy", _at("spec", "persistentVolumeReclaimPolicy")),
        _column("Status", _phase),
        _column("Claim", _claim_of),
        _column("StorageClass", _at("spec", "storageClassName")),
        _column("Reason", _at("status", "reason")),
        AGE,
        _VOLUME_MODE,
    ),
    "/persistentvolumeclaims": (
        NAME,
        _column("Status", _phase),
        _column("Volume", _at("spec", "volumeName")),
        _column("Capacity", _if_bound(_at("status", "capacity", "storage"))),
        _column("Access Modes", _if_bound(lambda obj: _modes(obj.get("status", {}).get("accessModes", ())))),
        _column("StorageClass", _at("spec", "storageClassName")),
        AGE,
        _VOLUME_MODE,
    ),
    "apps/deployments": (
        NAME,
        _column("Ready", lambda o: f"{o.get('status', {}).get('readyReplicas', 0)}/{o['spec'].get('replicas', 0)}"),
        _column("Up-to-date", _at("status", "updatedReplicas", default=0)),
        _column("Available", _at("status", "availableReplicas", default=0)),
        AGE,
        *WORKLOAD_WIDE,
    ),
    "apps/replicasets": (
        NAME,
        _column("Desired", _at("spec", "replicas", default=0), "integer"),
        _column("Current", _at("status", "replicas", default=0), "integer"),
        _column("Ready", _at("status", "readyReplicas", default=0), "integer"),
        AGE,
        *WORKLOAD_WIDE,
    ),
    "apps/daemonsets": (
        NAME,
        _column("Desired", _at("status", "desiredNumberScheduled", default=0), "integer"),
        _column("Current", _at("status", "currentNumberScheduled", default=0), "integer"),
        _column("Ready", _at("status", "numberReady", default=0), "integer"),
        _column("Up-to-date", _at("status", "updatedNumberScheduled", default=0), "integer"),
        _column("Available", _at("status", "numberAvailable", default=0), "integer"),
        _column("Node Selector", lambda obj: _labels(obj["spec"]["template"]["spec"].get("nodeSelector"))),
        AGE,
        *WORKLOAD_WIDE,
    ),
    "apps/controllerrevisions": (NAME, _column("Revision", _at("revision", default=0)), AGE),
    "coordination.k8s.io/leases": (NAME, _column("Holder", _at("spec", "holderIdentity")), AGE),
    "discovery.k8s.io/endpointslices": (
        NAME,
        _column("AddressType", _at("addressType")),
        _column("Ports", _slice_ports),
        _column("Endpoints", _slice_addresses),
        AGE,
    ),
    "policy/poddisruptionbudgets": (
        NAME,
        _column("Min Available", lambda obj: str(obj["spec"].get("minAvailable", "N/A"))),
        _column("Max Unavailable", lambda obj: str(obj["spec"].get("maxUnavailable", "N/A"))),
        _column("Allowed Disruptions", _at("status", "disruptionsAllowed", default=0), "integer"),
        AGE,
    ),
    "rbac.authorization.k8s.io/roles": (NAME, _CREATED),
    "rbac.authorization.k8s.io/clusterroles": (NAME, _CREATED),
    "rbac.authorization.k8s.io/rolebindings": BINDING,
    "rbac.authorization.k8s.io/clusterrolebindings": BINDING,
    "scheduling.k8s.io/priorityclasses": (
        NAME,
        _column("Value", _at("value", default=0), "integer"),
        _column("Global-Default", _at("globalDefault", default=False), "boolean"),
        AGE,
        _column("PreemptionPolicy", _at("preemptionPolicy")),
    ),
    "storage.k8s.io/storageclasses": (
        Column("Name", format="name", path=_class_name),
        _column("Provisioner", _at("provisioner")),
        _column("ReclaimPolicy", _at("reclaimPolicy")),
        _column("VolumeBindingMode", _at("volumeBindingMode")),
        _column("AllowVolumeExpansion", _at("allowVolumeExpansion", default=False)),
        AGE,
    ),
    "admissionregistration.k8s.io/mutatingwebhookconfigurations": _WEBHOOKS,
    "admissionregistration.k8s.io/validatingadmissionpolicies": (
        NAME,
        _column("Validations", lambda obj: len(obj["spec"].get("validations") or ()), "integer"),
        AGE,
    ),
    "admissionregistration.k8s.io/validatingadmissionpolicybindings": (
        NAME,
        _column("PolicyName", _at("spec", "policyName")),
        AGE,
    ),
    "admissionregistration.k8s.io/validatingwebhookconfigurations": _WEBHOOKS,
    "apiextensions.k8s.io/customresourcedefinitions": (NAME, _CREATED),
    "apiregistration.k8s.io/apiservices": (
        NAME,
        _column("Service", _api_service),
        _column("Available", _availability),
        AGE,
    ),
}
