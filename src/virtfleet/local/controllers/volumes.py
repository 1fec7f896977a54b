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
from typing import Any

from virtfleet.api.times import timestamp
from virtfleet.kube.api import KubeApi
from virtfleet.kube.cache import Cache
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ApiError, is_already_exists, is_not_found
from virtfleet.kube.events import Recorder, Reference
from virtfleet.kube.resource import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, Obj
from virtfleet.local.controllers import presence
from virtfleet.local.controllers.claims import (
    CLAIM_PROTECTION,
    PROVISIONED_BY,
    VOLUME_PROTECTION,
    Claim,
    StorageClass,
    Volume,
    best_match,
)
from virtfleet.local.controllers.nodes import Node
from virtfleet.local.controllers.pods import Pod
from virtfleet.local.controllers.podstore import PodStore

PROVISIONER = "local.virtfleet.io/path"
HOSTNAME = "kubernetes.io/hostname"
RAW_FILE = "disk.img"
ONE_NODE = {"ReadWriteOnce", "ReadWriteOncePod"}

# What `virtfleet up` creates, so that claims without a class get a volume.
LOCAL_CLASS: Obj = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "local", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": PROVISIONER,
    "reclaimPolicy": "Delete",
    "volumeBindingMode": "WaitForFirstConsumer",
}


def new_volume(claim: Claim, storage_class: StorageClass, directory: Path, node: Node | None) -> Obj:
    """The volume for a claim.

    Every node of the local cluster is this machine, so a volume that many nodes may use is tied to none; one for a
    single node is tied to the node of its first pod, as it would be on a real local disk.
    """
    name = f"pvc-{claim.metadata.uid}"
    block = claim.spec.volume_mode == "Block"
    path = directory / name
    spec: Obj = {
        "capacity": {"storage": (claim.spec.resources.requests or {})["storage"]},
        "accessModes": claim.spec.access_modes,
        "persistentVolumeReclaimPolicy": storage_class.reclaim_policy,
        "storageClassName": storage_class.metadata.name,
        "volumeMode": claim.spec.volume_mode,
        "claimRef": _reference(claim),
        "hostPath": {"path": str(path / RAW_FILE if block else path), "type": "File" if block else "Directory"},
    }
    if node and set(claim.spec.access_modes) <= ONE_NODE:
        key, value = (HOSTNAME, node.labels[HOSTNAME]) if HOSTNAME in node.labels else ("metadata.name", node.name)
        term = {"key": key, "operator": "In", "values": [value]}
        where = "matchExpressions" if key == HOSTNAME else "matchFields"
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{where: [term]}]}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {PROVISIONED_BY: PROVISIONER}},
        "spec": spec,
    }


def _reference(claim: Claim) -> Obj:
    meta = claim.metadata
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": meta.namespace,
        "name": meta.name,
        "uid": meta.uid,
    }


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


def remove_storage(directory: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(directory)


class Volumes:
    """The controller of claims and of volumes."""

    def __init__(
        self,
        api: KubeApi,
        claims: Cache[Claim],
        volumes: Cache[Volume],
        classes: Cache[StorageClass],
        nodes: Cache[Node],
        pods: PodStore,
        recorder: Recorder,
        directory: Path,
    ) -> None:
        self._api = api
        self._claims = claims
        self._volumes = volumes
        self._classes = classes
        self._nodes = nodes
        self._pods = pods
        self._recorder = recorder
        self._directory = directory
        self._storage = asyncio.Lock()  # nothing is made while it is being removed
        needed: list[Cache[Any]] = [claims, volumes, classes, nodes, pods.cache]
        # One worker: two claims must not choose the same volume.
        self._of_claims = Controller("claims", self.reconcile_claim, needed)
        self._of_claims.follow(claims)
        self._of_claims.follow(pods.cache, _claims_of)
        self._of_claims.follow(volumes, self._interested)
        self._of_claims.follow(classes, lambda _: self._unbound())
        self._of_volumes = Controller("volumes", self.reconcile_volume, needed)
        self._of_volumes.follow(volumes)
        self._of_volumes.follow(claims, lambda claim: [claim.spec.volume_name] if claim.spec.volume_name else [])

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._of_claims.run())
            group.create_task(self._of_volumes.run())

    def _unbound(self) -> Iterable[str]:
        return [c.key for c in self._claims.list() if not c.bound]

    def _interested(self, volume: Volume) -> Iterable[str]:
        ref = volume.spec.claim_ref
        return [f"{ref.namespace}/{ref.name}"] if ref else self._unbound()

    # -- claims

    async def reconcile_claim(self, key: str) -> None:
        """Protect the claim while it is used, and bind it."""
        claim = self._claims.get(key)
        if claim is None:
            return
        if claim.metadata.deletion_timestamp is not None:
            # A pod without a node is in nobody's way: the scheduler lets none start with a claim that is being deleted.
            if not any(p.node and not p.terminal for p in self._pods.using_claim(key)):
                await self._release(claim)
            return
        if claim.spec.volume_name:
            await self._settle(claim)
            return
        storage_class = self._classes.get(claim.spec.storage_class_name or "")
        waits = storage_class is not None and storage_class.waits
        if waits and not claim.selected_node:
            self._say(claim, "WaitForFirstConsumer", "waiting for first consumer to be created before binding")
            return
        node = self._nodes.get(claim.selected_node) if claim.selected_node else None
        volume = best_match(claim, self._volumes.list(), lambda v: node is None or v.admits(node.name, node.labels))
        if volume is not None:
            await self._bind(claim, volume)
        elif storage_class is not None and storage_class.provisioner == PROVISIONER:
            await self._provision(claim, storage_class, node)
        elif storage_class is None:
            reason = "no persistent volumes available for this claim and no storage class is set"
            self._say(claim, "FailedBinding", reason)

    async def _provision(self, claim: Claim, storage_class: StorageClass, node: Node | None) -> None:
        """Write the volume's object; the next look at the claim finds it and binds it."""
        volume = new_volume(claim, storage_class, self._directory, node)
        try:
            answer = await self._api.create(PERSISTENT_VOLUMES, volume)
        except ApiError as error:
            if not is_already_exists(error):
                self._warn(claim, "ProvisioningFailed", error.message)
                raise
            answer = await self._api.get(PERSISTENT_VOLUMES, volume["metadata"]["name"])
        self._volumes.observe(answer)
        name = answer["metadata"]["name"]
        self._say(claim, "ProvisioningSucceeded", f"Successfully provisioned volume {name}")
        made = self._volumes.get(name)
        if made is not None:
            await self._bind(claim, made)

    async def _bind(self, claim: Claim, volume: Volume) -> None:
        """Volume first, claim second: a claim that names its volume has it for sure."""
        await self._make(claim, volume)
        if volume.spec.claim_ref is None or not volume.spec.claim_ref.uid:
            await self._patch_volume(volume, {"spec": {"claimRef": _reference(claim)}})
        patch: Obj = {
            "metadata": {
                "uid": claim.metadata.uid,
                "annotations": {
                    "pv.kubernetes.io/bind-completed": "yes",
                    "pv.kubernetes.io/bound-by-controller": "yes",
                },
            },
            "spec": {"volumeName": volume.metadata.name},
        }
        answer = await self._patch_claim(claim, patch)
        if answer:
            await self._settle(self._claims.get(claim.key) or claim)

    async def _settle(self, claim: Claim) -> None:
        """Say on a claim that names its volume how it stands."""
        volume = self._volumes.get(claim.spec.volume_name)
        if volume is None:
            if claim.bound:
                await self._patch_claim(claim, {"status": {"phase": "Lost"}}, subresource="status")
                self._warn(claim, "ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
            return
        if volume.spec.claim_ref is None or (volume.is_for(claim) and not volume.spec.claim_ref.uid):
            await self._bind(claim, volume)  # the user named the volume
        elif volume.is_for(claim) and not claim.bound:
            await self._make(claim, volume)
            status = {"phase": "Bound", "accessModes": volume.spec.access_modes, "capacity": volume.spec.capacity}
            await self._patch_claim(claim, {"status": status}, subresource="status")

    async def _make(self, claim: Claim, volume: Volume) -> None:
        """Make the storage of a volume that is ours; making it again changes nothing."""
        directory = self._storage_of(volume)
        if directory is None:
            return
        size = volume.size if volume.spec.volume_mode == "Block" else None
        async with self._storage:
            if not await self._is_there(volume):
                return
            try:
                await asyncio.to_thread(make_storage, directory, size)
            except OSError as error:
                self._warn(claim, "ProvisioningFailed", f"cannot make {directory}: {error.strerror}")
                raise

    async def _is_there(self, volume: Volume) -> bool:
        """Whether the volume's object is there to stay, so that what is made for it will be removed with it."""
        live = await presence.find(self._api, PERSISTENT_VOLUMES, volume.metadata.name)
        return live is not None and not live["metadata"].get("deletionTimestamp")

    def _storage_of(self, volume: Volume) -> Path | None:
        """Where the data of a volume is that was made here, whatever its object says of other places."""
        ours = volume.provisioner == PROVISIONER and volume.metadata.name.startswith("pvc-")
        return self._directory / volume.metadata.name if ours else None

    async def _release(self, claim: Claim) -> None:
        """Nobody uses the claim any more: let it go."""
        if CLAIM_PROTECTION in (claim.metadata.finalizers or ()):
            await self._patch_claim(claim, _unprotected(claim.metadata.uid, CLAIM_PROTECTION))

    async def _patch_claim(self, claim: Claim, patch: Obj, subresource: str | None = None) -> Obj | None:
        meta = claim.metadata
        answer = await presence.patch(
            self._api, PERSISTENT_VOLUME_CLAIMS, meta.name, patch, meta.namespace, subresource=subresource
        )
        if answer:
            self._claims.observe(answer)
        return answer

    # -- volumes

    async def reconcile_volume(self, name: str) -> None:
        """Say what state the volume is in, and reclaim it when its claim is gone."""
        volume = self._volumes.get(name)
        if volume is None:
            return
        phase = await self._phase(volume)
        if phase != volume.status.phase:
            status = {"phase": phase, "lastPhaseTransitionTime": timestamp()}
            await self._patch_volume(volume, {"status": status}, subresource="status")
        if phase == "Released" and volume.spec.persistent_volume_reclaim_policy == "Delete":
            await self._reclaim(volume)
        protected = VOLUME_PROTECTION in (volume.metadata.finalizers or ())
        if volume.metadata.deletion_timestamp is not None and phase != "Bound" and protected:
            await self._patch_volume(volume, _unprotected(volume.metadata.uid, VOLUME_PROTECTION))

    async def _phase(self, volume: Volume) -> str:
        ref = volume.spec.claim_ref
        if ref is None or not ref.uid:
            return "Available"
        claim = self._claims.get(f"{ref.namespace}/{ref.name}")
        if claim is None or claim.metadata.uid != ref.uid:
            # Data is at stake, and the cache may not know a claim that was just made.
            live = await presence.find(self._api, PERSISTENT_VOLUME_CLAIMS, ref.name, ref.namespace)
            if live is None or live["metadata"]["uid"] != ref.uid:
                return "Released"
        return "Bound"

    async def _reclaim(self, volume: Volume) -> None:
        """Remove the data, then the object."""
        directory = self._storage_of(volume)
        if directory is None:
            return
        async with self._storage:
            await asyncio.to_thread(remove_storage, directory)
            try:
                await self._api.delete(PERSISTENT_VOLUMES, volume.metadata.name, uid=volume.metadata.uid)
            except ApiError as error:
                if not is_not_found(error):
                    raise

    async def _patch_volume(self, volume: Volume, patch: Obj, subresource: str | None = None) -> None:
        name = volume.metadata.name
        if answer := await presence.patch(self._api, PERSISTENT_VOLUMES, name, patch, subresource=subresource):
            self._volumes.observe(answer)

    # -- events

    def _say(self, claim: Claim, reason: str, message: str) -> None:
        self._recorder.normal(_about(claim), reason, message)

    def _warn(self, claim: Claim, reason: str, message: str) -> None:
        self._recorder.warning(_about(claim), reason, message)


def _unprotected(uid: str, finalizer: str) -> Obj:
    """A strategic merge patch that takes one finalizer off and leaves those of others."""
    return {"metadata": {"uid": uid, "$deleteFromPrimitiveList/finalizers": [finalizer]}}


def _about(claim: Claim) -> Reference:
    meta = claim.metadata
    return Reference("v1", "PersistentVolumeClaim", meta.namespace, meta.name, meta.uid)


def _claims_of(pod: Pod) -> Iterable[str]:
    return [f"{pod.namespace}/{claim}" for claim in pod.template.claims]
