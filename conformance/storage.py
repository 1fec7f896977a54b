"""The storage class that the suite asks for, where the cluster has none: directories that all nodes have.

The nodes of ../shared/kube see this machine's files, so each claim gets a directory below the suite's own, and a volume
that is bound to it beforehand. They go with the class. Specs make classes of their own from it, whose claims are bound
when the scheduler has chosen a node for their first consumer; those are served alike.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CLASS = "local"  # the suite's configuration names it
_LABEL = "virtfleet-conformance"
PROVISIONER = "directories.conformance.virtfleet.io"
_ASKED = (
    "metadata.namespace",
    "metadata.name",
    "metadata.uid",
    "spec.storageClassName",
    "spec.volumeName",
    "spec.resources.requests.storage",
    "spec.accessModes[0]",
    r"metadata.annotations.volume\.kubernetes\.io/selected-node",
)
_CLASS = "c0:.metadata.name,c1:.provisioner,c2:.volumeBindingMode"
_COLUMNS = ",".join(f"c{number}:.{field}" for number, field in enumerate(_ASKED))
_NONE = "<none>"
_DEFAULT = {"storageclass.kubernetes.io/is-default-class": "true"}  # specs leave it out
_PAUSE = 2.0  # seconds

Kubectl = Callable[..., subprocess.CompletedProcess[str]]


@contextmanager
def served(kubectl: Kubectl, directory: Path) -> Iterator[None]:
    """Claims of the class get volumes meanwhile; nothing happens where the cluster has such a class."""
    if kubectl("get", "storageclass", CLASS, check=False).returncode == 0:
        yield
        return
    _apply(kubectl, _class())
    over = threading.Event()
    serving = threading.Thread(target=_serve, args=(kubectl, directory, over))
    serving.start()
    try:
        yield
    finally:
        over.set()
        serving.join()
        kubectl("delete", "pv", "-l", _LABEL, "--wait=false", check=False)
        kubectl("delete", "storageclass", CLASS, check=False)
        shutil.rmtree(directory, ignore_errors=True)


def _serve(kubectl: Kubectl, directory: Path, over: threading.Event) -> None:
    made: set[str] = set()
    while not over.wait(_PAUSE):
        _serve_once(kubectl, directory, made)


def _serve_once(kubectl: Kubectl, directory: Path, made: set[str]) -> None:
    claims = [claim for claim in _rows(kubectl, "pvc", "-A", columns=_COLUMNS) if claim[4] == _NONE]
    if all(claim[2] in made for claim in claims):
        return
    served = {name: mode for name, by, mode in _rows(kubectl, "storageclass", columns=_CLASS) if by == PROVISIONER}
    for namespace, name, uid, wanted, _, size, mode, node in claims:
        if uid in made or wanted not in served or (served[wanted] != "Immediate" and node == _NONE):
            continue
        made.add(uid)
        place = directory / uid
        place.mkdir(parents=True)
        place.chmod(0o777)  # whoever the Pods run as
        _apply(kubectl, _volume(place, {"namespace": namespace, "name": name, "uid": uid}, wanted, size, mode))


def _rows(kubectl: Kubectl, *what: str, columns: str) -> list[list[str]]:
    found = kubectl("get", *what, "--no-headers", "-o", f"custom-columns={columns}", check=False)
    return [line.split() for line in found.stdout.splitlines()]


def _class() -> dict[str, Any]:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": CLASS, "labels": {_LABEL: ""}, "annotations": _DEFAULT},
        "provisioner": PROVISIONER,
        "volumeBindingMode": "Immediate",
    }


def _volume(place: Path, claim: dict[str, str], named: str, size: str, mode: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"conformance-{claim['uid']}", "labels": {_LABEL: ""}},
        "spec": {
            "storageClassName": named,
            "capacity": {"storage": size},
            "accessModes": [mode],
            "claimRef": claim,
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(place)},
        },
    }


def _apply(kubectl: Kubectl, document: dict[str, Any]) -> None:
    kubectl("apply", "-f", "-", check=False, given=json.dumps(document))
