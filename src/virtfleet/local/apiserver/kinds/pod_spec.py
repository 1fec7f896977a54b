"""Pod specs, which pods and all workloads contain: completion and checks, as Kubernetes does them.

Pure functions over the decoded spec, whose types the schema has already checked; quantities are in canonical form.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from virtfleet.api.quantity import Quantity
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.metadata import dns_label, label_faults, subdomain
from virtfleet.local.apiserver.objects import causes
from virtfleet.local.apiserver.objects.causes import Cause

# Resources of which a container may be promised less than it may use; of all others the two must be equal.
OVERCOMMITTABLE = ("cpu", "memory", "ephemeral-storage")


def containers(spec: Obj) -> Iterator[tuple[str, Obj]]:
    """Every container with its place, `initContainers[0]`."""
    for group in ("initContainers", "containers", "ephemeralContainers"):
        for index, container in enumerate(spec.get(group, ())):
            yield f"{group}[{index}]", container


def is_sidecar(container: Obj) -> bool:
    """Of an init container: it runs beside the others, from its turn on until they have ended."""
    return container.get("restartPolicy") == "Always"


def complete(spec: Obj) -> None:
    """The defaults that depend on other fields; the schema's come first."""
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for _, container in containers(spec):
        if "imagePullPolicy" not in container:
            container["imagePullPolicy"] = "Always" if _is_latest(container.get("image", "")) else "IfNotPresent"
    for volume in spec.get("volumes", ()):
        if not volume.keys() - {"name"}:
            volume["emptyDir"] = {}


def _is_latest(image: str) -> bool:
    """Whether the image's tag is `latest`, said or implied; a digest pins it."""
    if "@" in image:
        return False
    tag = image.rpartition("/")[2].partition(":")[2]
    return tag in ("", "latest")


def qos_class(spec: Obj) -> str:
    """Guaranteed, Burstable or BestEffort, by cpu and memory of all containers."""
    amounts = [
        container.get("resources", {}) for place, container in containers(spec) if not place.startswith("ephemeral")
    ]

    def present(listed: dict[str, str] | None) -> dict[str, Quantity]:
        parsed = {name: Quantity.parse(amount) for name, amount in (listed or {}).items()}
        return {name: amount for name, amount in parsed.items() if amount and name in ("cpu", "memory")}

    requests = [present(resources.get("requests")) for resources in amounts]
    limits = [present(resources.get("limits")) for resources in amounts]
    if not any(requests) and not any(limits):
        return "BestEffort"
    guaranteed = all(len(most) == 2 and {**most, **least} == most for least, most in zip(requests, limits, strict=True))
    return "Guaranteed" if guaranteed else "Burstable"


def faults(spec: Obj, field: str) -> Iterator[Cause]:
    """What is wrong with a pod spec at `field`."""
    seen: set[str] = set()
    for index, volume in enumerate(spec.get("volumes", ())):
        at = f"{field}.volumes[{index}]"
        yield from _name_faults(volume.get("name"), at, seen)
        for extra in [key for key in volume if key != "name"][1:]:
            yield causes.forbidden(f"{at}.{extra}", "may not specify more than 1 volume type")
    volumes, seen = {volume.get("name") for volume in spec.get("volumes", ())}, set()
    for place, container in containers(spec):
        at = f"{field}.{place}"
        yield from _name_faults(container.get("name"), at, seen)
        yield from _mount_faults(container, at, volumes)
        yield from _resource_faults(container.get("resources", {}), f"{at}.resources")
        for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
            if probe in container:
                yield from _probe_faults(container[probe], f"{at}.{probe}")
    yield from label_faults(spec.get("nodeSelector"), f"{field}.nodeSelector")
    for name, check in (("hostname", dns_label), ("subdomain", dns_label), ("nodeName", subdomain)):
        if spec.get(name) and (why := check(spec[name])):
            yield causes.invalid(f"{field}.{name}", spec[name], why)
    if spec.get("dnsPolicy") == "None" and not spec.get("dnsConfig", {}).get("nameservers"):
        missing = "dnsConfig.nameservers" if "dnsConfig" in spec else "dnsConfig"
        yield causes.required(f"{field}.{missing}", "must provide nameservers when `dnsPolicy` is None")
    for index, toleration in enumerate(spec.get("tolerations", ())):
        yield from _toleration_faults(toleration, f"{field}.tolerations[{index}]")
    yield from _node_affinity_faults(spec, f"{field}.affinity.nodeAffinity")


def _name_faults(name: str | None, field: str, seen: set[str]) -> Iterator[Cause]:
    """Of a volume or container at `field`, beside those `seen` before it."""
    if not name:
        return  # the schema says so
    if why := dns_label(name):
        yield causes.invalid(f"{field}.name", name, why)
    elif name in seen:
        yield causes.duplicate(f"{field}.name", name)
    seen.add(name)


def _mount_faults(container: Obj, field: str, volumes: set[Any]) -> Iterator[Cause]:
    paths: set[str] = set()
    for index, mount in enumerate(container.get("volumeMounts", ())):
        at = f"{field}.volumeMounts[{index}]"
        if mount.get("name") and mount["name"] not in volumes:
            yield causes.not_found(f"{at}.name", mount["name"])
        if (path := mount.get("mountPath", "")) in paths:
            yield causes.invalid(f"{at}.mountPath", path, "must be unique")
        paths.add(path)
    for index, device in enumerate(container.get("volumeDevices", ())):
        if device.get("name") not in volumes:
            yield causes.not_found(f"{field}.volumeDevices[{index}].name", device.get("name"))


def _resource_faults(resources: Obj, field: str) -> Iterator[Cause]:
    """Requests against limits."""
    limits = resources.get("limits", {})
    for kind in ("limits", "requests"):
        for name, amount in resources.get(kind, {}).items():
            if amount.startswith("-"):
                yield causes.invalid(f"{field}.{kind}[{name}]", amount, "must be greater than or equal to 0")
    for name, amount in resources.get("requests", {}).items():
        limit, at = limits.get(name), f"{field}.requests"
        if name in OVERCOMMITTABLE:
            if limit is not None and Quantity.parse(amount) > Quantity.parse(limit):
                yield causes.invalid(at, amount, f"must be less than or equal to {name} limit of {limit}")
        elif limit is None:
            yield causes.required(f"{field}.limits", "Limit must be set for non overcommitable resources")
        elif Quantity.parse(amount) != Quantity.parse(limit):
            yield causes.invalid(at, amount, f"must be equal to {name} limit of {limit}")


def _probe_faults(probe: Obj, field: str) -> Iterator[Cause]:
    handlers = [h for h in ("exec", "httpGet", "tcpSocket", "grpc") if h in probe]
    if not handlers:
        yield causes.required(field, "must specify a handler type")
    for extra in handlers[1:]:
        yield causes.forbidden(f"{field}.{extra}", "may not specify more than 1 handler type")


def _toleration_faults(toleration: Obj, at: str) -> Iterator[Cause]:
    exists = toleration.get("operator", "Equal") == "Exists"
    if not toleration.get("key") and not exists:
        why = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        yield causes.invalid(f"{at}.operator", toleration.get("operator", ""), why)
    if exists and toleration.get("value"):
        yield causes.invalid(f"{at}.operator", toleration["value"], "value must be empty when `operator` is 'Exists'")
    if "tolerationSeconds" in toleration and toleration.get("effect") != "NoExecute":
        why = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        yield causes.invalid(f"{at}.effect", toleration.get("effect", ""), why)


def _node_affinity_faults(spec: Obj, field: str) -> Iterator[Cause]:
    place = "requiredDuringSchedulingIgnoredDuringExecution"
    required = spec.get("affinity", {}).get("nodeAffinity", {}).get(place, {})
    for index, term in enumerate(required.get("nodeSelectorTerms", ())):
        for number, expression in enumerate(term.get("matchExpressions", ())):
            at = f"{field}.{place}.nodeSelectorTerms[{index}].matchExpressions[{number}].values"
            values, operator = expression.get("values", []), expression.get("operator")
            if operator in ("In", "NotIn") and not values:
                yield causes.required(at, "must be specified when `operator` is 'In' or 'NotIn'")
            if operator in ("Exists", "DoesNotExist") and values:
                yield causes.forbidden(at, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
            if operator in ("Gt", "Lt") and len(values) != 1:
                yield causes.required(at, "must be specified single value when `operator` is 'Lt' or 'Gt'")
