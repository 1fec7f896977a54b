"""Claims on a cluster that has no storage: a default class, and who makes its volumes on the node that a Pod was given.

Directories, and loop devices where a claim is of blocks. Where nodes share their directories, as several on one machine
do, a claim for many is every node's.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cluster.clusters import Cluster, Kubectl
from cluster.manifests import IMAGE, workload
from cluster.rawapi import RawApi
from waiting import eventually

CLASS = PROVISIONER = "virtfleet.io-tests"
DIRECTORY = "/var/tmp/virtfleet-tests"
SELECTED = "volume.kubernetes.io/selected-node"
HOSTNAME = "kubernetes.io/hostname"
PAUSE = 0.5
PATIENCE = 100.0

# In the Pod of a node: a directory, or a loop device over a file, whose name is the answer.
_MAKE = {
    "Filesystem": "mkdir -m 777 {path} && echo {path}",
    "Block": "truncate -s {size} {path} && for i in 1 2 3 4 5; do"
    " d=$(busybox losetup -f) && busybox losetup $d {path} && echo $d && exit; done; exit 1",
}
_REMOVE = "{{ [ ! -b {device} ] || busybox losetup -d {device}; }} && rm -rf {path}"


class Storage:
    """Makes a volume for each claim that waits for one, and takes it away after the claim."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._kubectl, self._nodes = Kubectl(cluster, namespace), cluster.nodes
        self._raw = RawApi(cluster.kubeconfig)
        self._end, self._thread = threading.Event(), threading.Thread(target=self._serve)
        self._shared = False

    @contextmanager
    def serving(self) -> Iterator[None]:
        mounts = {"disks": DIRECTORY, "devices": "/dev"}
        container = {
            "name": "main",
            "image": IMAGE,
            "command": ["/bin/sh", "-c", f"rm -rf {DIRECTORY}/*; exec sleep 100000"],
            "volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts.items()],
            "securityContext": {"privileged": True},
        }
        paths = {"disks": {"path": DIRECTORY, "type": "DirectoryOrCreate"}, "devices": {"path": "/dev"}}
        volumes = [{"name": name, "hostPath": path} for name, path in paths.items()]
        tolerations = [{"operator": "Exists"}]
        self._kubectl.apply(
            workload("DaemonSet", "disks", containers=[container], volumes=volumes, tolerations=tolerations),
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {"name": CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
                "provisioner": PROVISIONER,
                "volumeBindingMode": "WaitForFirstConsumer",
                "reclaimPolicy": "Retain",  # for whoever made it
            },
        )
        self._kubectl("rollout", "status", "daemonset/disks", "--timeout=80s")
        first, *others = self._nodes
        self._run(first, f"touch {DIRECTORY}/seen")
        self._shared = all(self._run(node, f"ls {DIRECTORY}") for node in others)
        self._thread.start()
        try:
            yield
        finally:
            eventually(lambda: not self._volumes(), PATIENCE)
            self._end.set()
            self._thread.join()
            self._kubectl("delete", "storageclass", CLASS)

    def _run(self, node: str, command: str) -> str:
        [pod] = self._kubectl.json("get", "pods", "-l", "app=disks", f"--field-selector=spec.nodeName={node}")["items"]
        return self._kubectl("exec", pod["metadata"]["name"], "--", "/bin/sh", "-c", command).strip()

    def _serve(self) -> None:
        while not self._end.wait(PAUSE):
            try:
                self._look()
            except Exception as error:  # a node may be away; who waits for the volume says so where it stays
                sys.stderr.write(f"storage: {error!r}\n")

    def _look(self) -> None:
        volumes = self._volumes()
        for volume in volumes:
            if volume["status"].get("phase") == "Released":
                self._remove(volume)
        known = {volume["spec"]["claimRef"]["uid"] for volume in volumes}
        for claim in self._list("persistentvolumeclaims"):
            node = (claim["metadata"].get("annotations") or {}).get(SELECTED)
            ours = claim["spec"].get("storageClassName") == CLASS and claim["metadata"]["uid"] not in known
            if node and ours and claim["status"]["phase"] == "Pending":
                self._make(claim, node)

    def _volumes(self) -> list[dict[str, Any]]:
        return self._list(f"persistentvolumes?labelSelector=for%3D{CLASS}")

    def _list(self, what: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._raw("GET", f"/api/v1/{what}").json["items"]
        return found

    def _make(self, claim: dict[str, Any], node: str) -> None:
        meta, spec = claim["metadata"], claim["spec"]
        size, mode = spec["resources"]["requests"]["storage"], spec["volumeMode"]
        path = f"{DIRECTORY}/{meta['uid']}"
        made = self._run(node, _MAKE[mode].format(path=path, size=size.removesuffix("i")))
        here: dict[str, Any] = {"key": HOSTNAME, "operator": "In", "values": [node]}
        if self._shared and "ReadWriteMany" in spec["accessModes"]:
            here = {"key": HOSTNAME, "operator": "Exists"}
        volume = {
            "capacity": {"storage": size},
            "accessModes": spec["accessModes"],
            "volumeMode": mode,
            "storageClassName": CLASS,
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {key: meta[key] for key in ("namespace", "name", "uid")},
            "local": {"path": made},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        }
        labels = {"for": CLASS, "node": node}
        named = {"name": f"pvc-{meta['uid']}", "labels": labels}
        self._kubectl.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": named, "spec": volume})

    def _remove(self, volume: dict[str, Any]) -> None:
        path = f"{DIRECTORY}/{volume['spec']['claimRef']['uid']}"
        node = volume["metadata"]["labels"]["node"]
        self._run(node, _REMOVE.format(device=volume["spec"]["local"]["path"], path=path))
        self._kubectl("delete", "pv", volume["metadata"]["name"], "--wait=false")
