"""The virt-handler DaemonSets: the primary one, and one for each pool. Pure.

Where they may run is exact: every node is admitted by exactly one of them (`pools.placement`). Anti-affinity among all
handlers makes the scheduler wait for a node's old handler to be gone before it places the new one, however the node
came to change its owner: by a change of pools or of its labels.

The DaemonSets do not update their Pods themselves (OnDelete), because a change of pools changes every affinity and
would restart every handler. The operator replaces those Pods whose *content* changed, by canary; see `rollout`.
"""

from __future__ import annotations

from typing import Any

from virtfleet.api import names
from virtfleet.installation import Installation
from virtfleet.kube.component import PORT
from virtfleet.kube.resource import Obj
from virtfleet.operator import amounts, deployments, roles
from virtfleet.operator.endpoints import METRICS_LABEL
from virtfleet.operator.objects import digest
from virtfleet.pods.networks import NETWORKS
from virtfleet.pools.model import Pool
from virtfleet.pools.placement import apart, handler_placement

VIRT_HANDLER = "virt-handler"
CONTENT = "virtfleet.io/handler-content"
"""Annotation of handler Pods: what they were made of, but for their placement."""

PLACEMENT = ("nodeSelector", "affinity", "tolerations")
NODE_FACTS = "/var/lib/kubevirt-node-labeller"
# Time for a handler to see live migrations through that end at its node.
_GRACE = 330

# volume -> path on the node, path in the container, how mounts below it spread
_NODE_DIRECTORIES: dict[str, tuple[str, str, str]] = {
    "virt-share-dir": ("/var/run/kubevirt", "/var/run/kubevirt", "Bidirectional"),
    "virt-private-dir": ("/var/run/kubevirt-private", "/var/run/kubevirt-private", ""),
    # A short path, because those of sockets may not exceed 108 bytes.
    "kubelet-pods": ("/var/lib/kubelet/pods", "/pods", "Bidirectional"),
    "kubelet": ("/var/lib/kubelet", "/var/lib/kubelet", "HostToContainer"),
    "node-labeller": (NODE_FACTS, NODE_FACTS, ""),
    # Devices that come while the handler runs; those that a privileged container has are of its beginning.
    "devices": ("/dev", "/dev", "HostToContainer"),
    # A container sees only its own control groups; a handler tunes those of launchers.
    "cgroups": ("/sys/fs/cgroup", "/sys/fs/cgroup", "HostToContainer"),
}


def render(installation: Installation) -> list[Obj]:
    return [_daemon_set(installation, pool) for pool in (None, *installation.fleet.pools)]


def _daemon_set(installation: Installation, pool: Pool | None) -> Obj:
    name = pool.daemon_set if pool else VIRT_HANDLER
    # The primary's selector also fits the Pods of pools; owner references tell them apart, and it cannot be changed.
    selector = {names.APP_LABEL: VIRT_HANDLER, **({names.HANDLER_POOL: pool.name} if pool else {})}
    workloads = installation.placement("workloads")
    labels = {**installation.labels, **selector, METRICS_LABEL: "true"}
    attached = attachment(installation.migrations.network)
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": installation.metadata(name, selector),
        "spec": {
            "selector": {"matchLabels": selector},
            "updateStrategy": {"type": "OnDelete"},
            "template": {
                "metadata": {"labels": labels, **({"annotations": attached} if attached else {})},
                "spec": {
                    **_content(installation, pool),
                    **_alone(handler_placement(installation.fleet.pools, pool, workloads)),
                },
            },
        },
    }


def attachment(network: str) -> dict[str, str]:
    """Annotations that have Multus put handlers on the network that migrations have for themselves."""
    return {NETWORKS: f"{network}@{names.MIGRATION_INTERFACE}"} if network else {}


def marked(daemon_set: Obj) -> Obj:
    """The DaemonSet, with its Pods marked by what they are made of."""
    spec = daemon_set["spec"]
    metadata, pod = spec["template"]["metadata"], spec["template"]["spec"]
    content = {key: value for key, value in pod.items() if key not in PLACEMENT}
    annotations = {**metadata.get("annotations", {}), CONTENT: digest([metadata, content])}
    template = {**spec["template"], "metadata": {**metadata, "annotations": annotations}}
    return {**daemon_set, "spec": {**spec, "template": template}}


def _alone(placement: dict[str, Any]) -> dict[str, Any]:
    """The placement with the rule that a node has one handler at a time."""
    others = {
        "labelSelector": {
            "matchLabels": {names.APP_LABEL: VIRT_HANDLER},
            "matchExpressions": [{"key": names.STAND_IN, "operator": "DoesNotExist"}],
        },
        "topologyKey": "kubernetes.io/hostname",
    }
    critical = {"key": "CriticalAddonsOnly", "operator": "Exists"}
    return {
        **placement,
        "affinity": apart(placement.get("affinity") or {}, others),
        "tolerations": [critical, *(placement.get("tolerations") or ())],
    }


def _content(installation: Installation, pool: Pool | None) -> dict[str, Any]:
    """The Pod's spec but for its placement."""
    handler = (pool.handler_image if pool else "") or installation.image(VIRT_HANDLER)
    launchers = installation.fleet.node_images(pool)
    containers = [_handler(installation, pool, handler)]
    if installation.pulling():
        # Keeps private launcher images on the node, where launcher Pods may use them without the secret.
        containers += [_image_holder(installation, image, name) for name, image in launchers.items()]
    return {
        "serviceAccountName": roles.HANDLER,
        "priorityClassName": names.PRIORITY_CLASS,
        "hostPID": True,
        "terminationGracePeriodSeconds": _GRACE,
        "initContainers": [_describe_node(installation, image, name) for name, image in launchers.items()],
        "containers": containers,
        "volumes": [
            deployments.certificates(VIRT_HANDLER),
            *(
                {"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
                for name, (path, _, _) in _NODE_DIRECTORIES.items()
            ),
        ],
        **installation.pulling(),
    }


def _handler(installation: Installation, pool: Pool | None, image: str) -> dict[str, Any]:
    arguments = [f"--verbosity={installation.verbosity('virt_handler')}", f"--max-devices={installation.vms_per_node}"]
    if pool:
        arguments.append(f"--pool={pool.name}")
    node = {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}}}
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}}
    return {
        "name": VIRT_HANDLER,
        "image": image,
        "imagePullPolicy": installation.pull_policy,
        "args": [*arguments, *installation.flags("handler")],
        "env": [*deployments.IDENTITY, node, address],
        "ports": [{"name": "https", "containerPort": PORT, "protocol": "TCP"}],
        "startupProbe": deployments.probe("/livez", period=1, failures=120),
        "livenessProbe": deployments.probe("/livez", period=45),
        # Ready is who holds the node's lock, of two handlers on one node only one, and reaches the API server.
        "readinessProbe": deployments.probe("/readyz", period=1),
        "resources": amounts.of(VIRT_HANDLER, vms=installation.vms_per_node),
        "securityContext": {"privileged": True},
        "volumeMounts": [
            deployments.CERTIFICATES_MOUNT,
            *(
                {"name": name, "mountPath": path, **({"mountPropagation": spread} if spread else {})}
                for name, (_, path, spread) in _NODE_DIRECTORIES.items()
            ),
        ],
    }


def _describe_node(installation: Installation, image: str, only: str) -> dict[str, Any]:
    """Pulls a launcher image, and lets the hypervisor in it say what the node can do, for the node's labels."""
    return {
        "name": f"virt-launcher-{only}" if only else "virt-launcher",
        "image": image,
        "imagePullPolicy": installation.pull_policy,
        "args": ["node-labeller", f"--directory={NODE_FACTS}", *([f"--hypervisor={only}"] if only else ())],
        "resources": {"requests": {"cpu": "10m", "memory": "96Mi"}},
        "securityContext": {"privileged": True},
        "volumeMounts": [{"name": "node-labeller", "mountPath": NODE_FACTS}],
    }


def _image_holder(installation: Installation, image: str, only: str) -> dict[str, Any]:
    small = {"cpu": "100m", "memory": "20Mi"}
    return {
        "name": f"virt-launcher-{only}-image-holder" if only else "virt-launcher-image-holder",
        "image": image,
        "imagePullPolicy": installation.pull_policy,
        "command": ["sleep", "infinity"],
        "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}, "limits": small},
        "securityContext": deployments.RESTRICTED,
    }
