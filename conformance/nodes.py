"""What the suite expects of nodes: disk images in their own directories, post-copy, and a control plane among them.

KubeVirt's test clusters get the images from a DaemonSet of its own, which the suite looks for. Ours takes the disk of
the stand-in guest from the guests' builder, whose files the nodes of ../shared/kube see.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conformance.storage import Kubectl

IMAGES, LOCAL = "/tmp/hostImages", "/mnt/local-storage"  # where specs look, on each node
_NAME, _NAMESPACE = "disks-images-provider", "kubevirt"
_WHERE = ("-n", _NAMESPACE)
_ROLE = "node-role.kubernetes.io/control-plane"
_SOURCE = "/source"
# Post-copy needs user faults for ordinary users, which nodes have until the suite is through.
_USER_FAULTS = """setting=/proc/sys/vm/unprivileged_userfaultfd
if [ "$(cat $setting)" = 0 ]; then trap "echo 0 > $setting; exit 0" TERM; echo 1 > $setting; fi
sleep infinity & wait"""


@contextmanager
def prepared(kubectl: Kubectl, image: str, disk: Path) -> Iterator[None]:
    """`image` has a shell, and `disk` is that of a guest. What lies on the nodes stays there."""
    labelled = _label(kubectl)
    kubectl("apply", "-f", "-", check=False, given=json.dumps(_provider(image, disk)))
    if kubectl("rollout", "status", f"daemonset/{_NAME}", *_WHERE, "--timeout=100s", check=False).returncode:
        print(f"conformance: nodes have no disk images below {IMAGES}; specs that look there fail", file=sys.stderr)
    try:
        yield
    finally:
        kubectl("delete", "daemonset", _NAME, *_WHERE, "--wait=false", check=False)
        if labelled:
            kubectl("label", "node", labelled, f"{_ROLE}-", check=False)


def _label(kubectl: Kubectl) -> str:
    """Have a node of the control plane; the answer is the one that was made it."""
    if kubectl("get", "nodes", "-l", _ROLE, "-o", "name", check=False).stdout.strip():
        return ""
    first = next(iter(kubectl("get", "nodes", "-o", "name", check=False).stdout.split()), "").rpartition("/")[2]
    if first:
        kubectl("label", "node", first, f"{_ROLE}=", check=False)
    return first


def script(disk: str, images: str = IMAGES, local: str = LOCAL) -> str:
    """Images that a process of the runner has for itself; one kind cannot be read by launchers.

    And an empty directory for a claim, which lies on a device of its own in KubeVirt's clusters and does not here.
    """
    return f"""set -e
put() {{ [ -e "$2" ] || {{ mkdir -p "${{2%/*}}"; cp "$1" "$2.new"; truncate -s 1G "$2.new"; mv "$2.new" "$2"; }}; }}
for n in 1 2 3 4 5 6 7 8; do
  for kind in alpine alpine-nopriv custom; do
    put {disk} {images}/$kind$n/disk.img
    chmod 777 {images}/$kind$n {images}/$kind$n/disk.img
  done
  chmod 640 {images}/alpine-nopriv$n/disk.img
done
put /dev/null {local}/hotplug-test/disk.img
chmod 777 {local}/hotplug-test {local}/hotplug-test/disk.img
mkdir -p {images}/mount_hp/test
chmod 777 {images}/mount_hp {images}/mount_hp/test
"""


def _provider(image: str, disk: Path) -> dict[str, Any]:
    places = {"images": IMAGES, "local": LOCAL, "source": str(disk.parent)}
    mounted = {"images": IMAGES, "local": LOCAL, "source": _SOURCE}
    common = {"image": image, "imagePullPolicy": "IfNotPresent"}
    filling = {
        "name": "filling",
        **common,
        "command": ["sh", "-c", script(f"{_SOURCE}/{disk.name}")],
        "securityContext": {"runAsUser": 0},  # the image's own user may not write to directories of nodes
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in mounted.items()],
    }
    serving = {
        "name": "serving",
        **common,
        "command": ["sh", "-c", _USER_FAULTS],
        "securityContext": {"runAsUser": 0, "privileged": True},
    }
    labels = {"app": _NAME}
    made = {"type": "DirectoryOrCreate"}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": _NAME, "namespace": _NAMESPACE},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "initContainers": [filling],
                    "containers": [serving],
                    "terminationGracePeriodSeconds": 5,
                    "tolerations": [{"operator": "Exists"}],
                    "volumes": [{"name": name, "hostPath": {"path": p, **made}} for name, p in places.items()],
                },
            },
        },
    }
