"""PersistentVolumes: claims find their volume, and the class `local` makes new ones below a directory of this machine.

A volume's object is written before its directory, and removed after it, so that nothing on the disk is ever without an
object that leads to its removal.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from virtfleet.kube.cache import key_of
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import PERSISTENT_VOLUME_CLAIMS, Obj
from virtfleet.local.controllers.caches import Caches, about
from virtfleet.local.controllers.claims import best_match, is_bound, is_for, mode_of, selected_node, size_of, waits
from virtfleet.local.controllers.nodes import NodeView

PROVISIONER = "local.virtfleet.io/path"  # of the class `local` in bootstrap.yaml
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
CLAIM_PROTECTION = "kubernetes.io/pvc-protection"
VOLUME_PROTECTION = "kubernetes.io/pv-protection"
HOSTNAME = "kubernetes.io/hostname"
RAW_FILE = "disk.img"
ONE_NODE = {"ReadWriteOnce", "ReadWriteOncePod"}


def new_volume(claim: Obj, storage_class: Obj, directory: Path, node: NodeView | None) -> Obj:
    """The volume for a claim.

    Every node of the local cluster is this machine, so a volume that many nodes may use is tied to none; one for a
    single node is tied to the node of its first pod, as it would be on a real local disk.
    """
    name, wanted = f"pvc-{claim['metadata']['uid']}", claim["spec"]
    block, path = mode_of(claim) == "Block", directory / name
    spec: Obj = {
        "capacity": {"storage": wanted["resources"]["requests"]["storage"]},
        "accessModes": wanted["accessModes"],
        "persistentVolumeReclaimPolicy": storage_class.get("reclaimPolicy") or "Delete",
        "storageClassName": storage_class["metadata"]["name"],
        "volumeMode": mode_of(claim),
        "claimRef": _reference(claim),
        "hostPath": {"path": str(path / RAW_FILE if block else path), "type": "File" if block else "Directory"},
    }
    if node and set(wanted["accessModes"]) <= ONE_NODE:
        term = {"key": HOSTNAME, "operator": "In", "values": [node.labels.get(HOSTNAME, node.name)]}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {PROVISIONED_BY: PROVISIONER}},
        "spec": spec,
    }


def _reference(claim: Obj) -> Obj:
    meta = {field: claim["metadata"][field] for field in ("namespace", "name", "uid")}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **meta}


def _claim_key(reference: Obj) -> str:
    """What users wrote into a volume may lack a part; then it names no claim."""
    return f"{reference.get('namespace', '')}/{reference.get('name', '')}"


def make_storage(directory: Path, size: int | None) -> None:
    """Make a volume's directory, and the raw file of `size` bytes that a block volume is."""
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o777)  # whatever user the pod runs as
    if size is not None and not (directory / RAW_FILE).exists():
        part = directory / f"{RAW_FILE}.part"
        with part.open("wb") as file:
            os.truncate(file.fileno(), size)
        part.chmod(0o666)
        part.rename(directory / RAW_FILE)


class Volumes:
    """The controllers of claims and of volumes."""

    def __init__(self, caches: Caches, directory: Path) -> None:
        self._claims, self._volumes, self._classes = caches.claims, caches.volumes, caches.classes
        self._nodes, self._pods = caches.nodes, caches.pods
        self._recorder = caches.recorder("persistentvolume-controller")
        self._directory = directory
        self._storage = asyncio.Lock()  # nothing is made while it is being removed
        needed = [caches.claims, caches.volumes, caches.classes, caches.nodes, caches.pods]
        # One worker: two claims must not choose the same volume.
        claims = Controller("claims", self.reconcile_claim, needed)
        claims.follow(self._claims)
        claims.follow(self._pods, lambda pod: pod.claims)
        claims.follow(self._volumes, self._interested)
        claims.follow(self._classes, lambda _: self._unbound())
        volumes = Controller("volumes", self.reconcile_volume, needed)
        volumes.follow(self._volumes)
        volumes.follow(self._claims, lambda c: [c["spec"]["volumeName"]] if c["spec"].get("volumeName") else [])
        self.controllers = [claims, volumes]

    def _unbound(self) -> Iterable[str]:
        return [key_of(c) for c in self._claims.list() if not is_bound(c)]

    def _interested(self, volume: Obj) -> Iterable[str]:
        ref = volume["spec"].get("claimRef")
        return [_claim_key(ref)] if ref else self._unbound()

    # -- claims

    async def reconcile_claim(self, key: str) -> None:
        """Protect the claim while it is used, and bind it."""
        claim = self._claims.get(key)
        if claim is None:
            return
        if claim["metadata"].get("deletionTimestamp"):
            # A pod without a node is in nobody's way: the scheduler lets none start with a claim that is being deleted.
            if not any(p.node and not p.terminal for p in self._pods.by_index("claim", key)):
                await self._claims.release(key, claim["metadata"]["uid"], CLAIM_PROTECTION)
            return
        if claim["spec"].get("volumeName"):
            await self._settle(claim)
            return
        storage_class, chosen = self._classes.get(claim["spec"].get("storageClassName") or ""), selected_node(claim)
        if waits(storage_class) and not chosen:
            self._say(claim, "WaitForFirstConsumer", "waiting for first consumer to be created before binding")
            return
        node = self._nodes.get(chosen)
        volume = best_match(claim, self._volumes.list(), node)
        if volume is not None:
            await self._bind(claim, volume)
        elif storage_class is None:
            reason = "no persistent volumes available for this claim and no storage class is set"
            self._say(claim, "FailedBinding", reason)
        elif storage_class.get("provisioner") == PROVISIONER:
            await self._provision(claim, storage_class, node)

    async def _provision(self, claim: Obj, storage_class: Obj, node: NodeView | None) -> None:
        """Write the volume's object, and bind the claim to it."""
        try:
            volume = await self._volumes.create(new_volume(claim, storage_class, self._directory, node))
        except ApiError as error:
            self._warn(claim, "ProvisioningFailed", error.message)
            raise
        self._say(claim, "ProvisioningSucceeded", f"Successfully provisioned volume {volume['metadata']['name']}")
        await self._bind(claim, volume)

    async def _bind(self, claim: Obj, volume: Obj) -> None:
        """Volume first, claim second: a claim that names its volume has it for sure."""
        await self._make(claim, volume)
        if not (volume["spec"].get("claimRef") or {}).get("uid"):
            await self._volumes.patch(key_of(volume), {"spec": {"claimRef": _reference(claim)}})
        notes = {"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"}
        patch = {"metadata": {"annotations": notes}, "spec": {"volumeName": volume["metadata"]["name"]}}
        if bound := await self._claims.patch(key_of(claim), patch, uid=claim["metadata"]["uid"]):
            await self._settle(bound)

    async def _settle(self, claim: Obj) -> None:
        """Say on a claim that names its volume how it stands."""
        volume = self._volumes.get(claim["spec"]["volumeName"])
        if volume is None:
            if is_bound(claim):
                await self._claims.write_status(claim, {"phase": "Lost"})
                self._warn(claim, "ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
            return
        spec = volume["spec"]
        if not spec.get("claimRef") or (is_for(volume, claim) and not spec["claimRef"].get("uid")):
            await self._bind(claim, volume)  # the user named the volume
        elif is_for(volume, claim) and not is_bound(claim):
            await self._make(claim, volume)
            status = {"phase": "Bound", "accessModes": spec.get("accessModes"), "capacity": spec.get("capacity")}
            await self._claims.write_status(claim, status)

    async def _make(self, claim: Obj, volume: Obj) -> None:
        """Make the storage of a volume that is ours; making it again changes nothing."""
        directory = self._storage_of(volume)
        if directory is None:
            return
        async with self._storage:
            # Only for an object that is there to stay, so that what is made for it will be removed with it.
            live = await self._volumes.find(key_of(volume))
            if live is None or live["metadata"].get("deletionTimestamp"):
                return
            try:
                size = size_of(volume) if mode_of(volume) == "Block" else None
                await asyncio.to_thread(make_storage, directory, size)
            except OSError as error:
                self._warn(claim, "ProvisioningFailed", f"cannot make {directory}: {error.strerror}")
                raise

    def _storage_of(self, volume: Obj) -> Path | None:
        """Where the data of a volume is that was made here, whatever its object says of other places."""
        name, notes = volume["metadata"]["name"], volume["metadata"].get("annotations") or {}
        ours = notes.get(PROVISIONED_BY) == PROVISIONER and name.startswith("pvc-")
        return self._directory / name if ours else None

    # -- volumes

    async def reconcile_volume(self, name: str) -> None:
        """Say what state the volume is in, and reclaim it when its claim is gone."""
        volume = self._volumes.get(name)
        if volume is None:
            return
        phase = await self._phase(volume)
        await self._volumes.write_status(volume, {"phase": phase})
        if phase == "Released" and volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete":
            await self._reclaim(volume)
        if volume["metadata"].get("deletionTimestamp") and phase != "Bound":
            await self._volumes.release(name, volume["metadata"]["uid"], VOLUME_PROTECTION)

    async def _phase(self, volume: Obj) -> str:
        ref = volume["spec"].get("claimRef") or {}
        if not ref.get("uid"):
            return "Available"
        key = _claim_key(ref)
        claim = self._claims.get(key)
        if claim is None or claim["metadata"]["uid"] != ref["uid"]:
            # Data is at stake, and the cache may not know a claim that was just made.
            claim = await self._claims.find(key)
        return "Bound" if claim and claim["metadata"]["uid"] == ref["uid"] else "Released"

    async def _reclaim(self, volume: Obj) -> None:
        """Remove the data, then the object."""
        directory = self._storage_of(volume)
        if directory is None:
            return
        async with self._storage:
            with contextlib.suppress(FileNotFoundError):
                await asyncio.to_thread(shutil.rmtree, directory)
            await self._volumes.remove(key_of(volume), volume["metadata"]["uid"])

    # -- events

    def _say(self, claim: Obj, reason: str, message: str) -> None:
        self._recorder.normal(about(claim, PERSISTENT_VOLUME_CLAIMS), reason, message)

    def _warn(self, claim: Obj, reason: str, message: str) -> None:
        self._recorder.warning(about(claim, PERSISTENT_VOLUME_CLAIMS), reason, message)
