"""The Pod that fills a claim with a disk: the launcher image, unprivileged, with the claim and what it is filled from.

It has no access to the API and no part of the node but its own scratch space. Secrets and ConfigMaps that it is given
are of the claim's own namespace, because a Pod can have no others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from virtfleet.api import names
from virtfleet.hypervisors import registry
from virtfleet.installation import Installation
from virtfleet.pods import heldimages, security
from virtfleet.pods.placement import ARCHITECTURE
from virtfleet.pods.volumes import Mounted
from virtfleet.protocol import importing
from virtfleet.protocol.importing import Job, Source

IMPORTER: Final = "importer"
_LONGEST_NAME: Final = 63
_RESOURCES: Final = {"requests": {"cpu": "100m", "memory": "60M"}, "limits": {"cpu": "1", "memory": "600M"}}
_SMALL: Final = {"requests": {"cpu": "10m", "memory": "20M"}, "limits": {"cpu": "1", "memory": "100M"}}
_TOOLS, _TOOLS_PATH, _PROGRAM = "tools", "/virtfleet-tools", "/bin/busybox"
_TARGET, _SOURCE, _IMAGE, _SCRATCH = "target", "source", "image", "scratch"
_GRACE: Final = 1  # seconds: whatever it has done is done again
_PULLED: Final = "IfNotPresent"


@dataclass(frozen=True, slots=True)
class Filling:
    """A claim, and what it is filled from beside what the job says."""

    name: str
    namespace: str
    uid: str
    owner: Mapping[str, Any]
    """The reference to whoever the Pod belongs to."""
    job: Job
    image: str = ""
    """Of a container disk."""
    architecture: str = ""
    """Of the image's platform."""
    source: str = ""
    """The claim that is copied."""
    credentials: str = ""
    """A Secret with the name and the password for a web server."""
    authorities: str = ""
    """A ConfigMap with the certificates of those that vouch for a web server."""
    headers: tuple[str, ...] = ()
    """Secrets with headers for a web server."""
    priority_class: str = ""
    service_account: str = ""


def pod_name(claim: str, uid: str) -> str:
    """The name of the one Pod that fills a claim."""
    suffix = hashlib.blake2s(uid.encode(), digest_size=4).hexdigest()
    return f"{IMPORTER}-{claim[: _LONGEST_NAME - len(IMPORTER) - len(suffix) - 2].rstrip('-.')}-{suffix}"


def render(filling: Filling, settings: Installation, nodes: heldimages.Nodes) -> dict[str, Any]:
    """The Pod. `nodes` are those of the cluster, for what they can mount."""
    job, parts, before = filling.job, Mounted(), list[dict[str, Any]]()
    # Where VMs can run, because a volume that is made for its first user stays where that one was.
    selector = {**settings.node_selector, names.SCHEDULABLE: "true"}
    if filling.architecture:
        selector[ARCHITECTURE] = filling.architecture
    parts.add_claim(_TARGET, filling.name, (importing.TARGET, importing.TARGET_DEVICE), block=job.block)
    if job.source is Source.CLAIM:
        places = (importing.SOURCE, importing.SOURCE_DEVICE)
        parts.add_claim(_SOURCE, filling.source, places, block=job.source_block, read_only=True)
    if job.source in (Source.HTTP, Source.UPLOAD, Source.REGISTRY):
        parts.add(_SCRATCH, _space(job.size), importing.SCRATCH)
    if job.source is Source.REGISTRY:
        if heldimages.needed({"nodeSelector": selector}, nodes):
            before = _copied_image(parts, filling, settings)
        else:
            image = {"image": {"reference": filling.image, "pullPolicy": _PULLED}}
            parts.add(_IMAGE, image, importing.IMAGE, read_only=True)
            selector[names.IMAGE_VOLUMES] = "true"
    _given(parts, filling)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(filling.name, filling.uid),
            "namespace": filling.namespace,
            "labels": {names.APP_LABEL: names.IMPORTER_APP},
            "annotations": {names.FILLED_CLAIM: filling.name},
            "ownerReferences": [dict(filling.owner)],
        },
        "spec": {
            "restartPolicy": "OnFailure",
            "nodeSelector": selector,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": _GRACE,
            # That of an ordinary launcher.
            "securityContext": security.of_pod(registry.get(registry.DEFAULT).descriptor, settings),
            **({"initContainers": before} if before else {}),
            "containers": [_container(job, parts, settings)],
            "volumes": parts.volumes,
            **({"priorityClassName": filling.priority_class} if filling.priority_class else {}),
            **({"serviceAccountName": filling.service_account} if filling.service_account else {}),
            **settings.pulling(),
        },
    }


def _container(job: Job, parts: Mounted, settings: Installation) -> dict[str, Any]:
    port = {"containerPort": importing.PORT, "protocol": "TCP"}
    listening = {"readinessProbe": {"tcpSocket": {"port": importing.PORT}, "periodSeconds": 1}, "ports": [port]}
    return {
        "name": IMPORTER,
        **settings.pulled(settings.fleet.default_image),
        "args": ["import", msgspec.json.encode(job).decode()],
        "resources": _RESOURCES,
        "securityContext": security.CONFINED,
        "volumeMounts": parts.mounts,
        **({"volumeDevices": parts.devices} if parts.devices else {}),
        **(listening if job.source is Source.UPLOAD else {}),
    }


def _copied_image(parts: Mounted, filling: Filling, settings: Installation) -> list[dict[str, Any]]:
    """A container of the image, which copies its disk out: where a node cannot mount an image as a volume."""
    parts.add(_IMAGE, _space(filling.job.size), importing.IMAGE)
    parts.volumes.append({"name": _TOOLS, "emptyDir": {}})
    tools = {"name": _TOOLS, "mountPath": _TOOLS_PATH}
    common = {"resources": _SMALL, "securityContext": security.CONFINED}
    return [
        {
            "name": _TOOLS,
            **settings.pulled(settings.fleet.default_image),
            "command": [_PROGRAM, "cp", _PROGRAM, f"{_TOOLS_PATH}/busybox"],
            "volumeMounts": [tools],
            **common,
        },
        {
            "name": "image",
            "image": filling.image,
            "imagePullPolicy": _PULLED,
            "command": [f"{_TOOLS_PATH}/busybox", "cp", "-rP", "/disk", f"{importing.IMAGE}/"],
            "volumeMounts": [{**tools, "readOnly": True}, {"name": _IMAGE, "mountPath": importing.IMAGE}],
            **common,
        },
    ]


def _space(size: int) -> dict[str, Any]:
    return {"emptyDir": {"sizeLimit": str(importing.scratch(size))}}


def _given(parts: Mounted, filling: Filling) -> None:
    """What of the namespace the importer reads."""
    if filling.credentials:
        source = {"secret": {"secretName": filling.credentials}}
        parts.add("credentials", source, importing.CREDENTIALS, read_only=True)
    if filling.authorities:
        parts.add("authorities", {"configMap": {"name": filling.authorities}}, importing.AUTHORITIES, read_only=True)
    for number, secret in enumerate(filling.headers):
        path = f"{importing.HEADERS}/{number}"
        parts.add(f"headers-{number}", {"secret": {"secretName": secret}}, path, read_only=True)
