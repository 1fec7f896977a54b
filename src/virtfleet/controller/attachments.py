"""Pods that attach volumes of running VMs to their nodes: one for each volume of each launcher Pod.

What is in use is in the launcher's own file system, so that nothing of it goes when such a Pod does. It is what tells
the cluster that the volume is needed on the node, so one that ends is followed by another while it still holds on.
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from virtfleet.api import conditions, names
from virtfleet.controller import lifecycle
from virtfleet.controller.datavolumes import records as datavolumes
from virtfleet.controller.datavolumes.records import DataVolume
from virtfleet.controller.launcherpod import LauncherPod, PodStatus
from virtfleet.controller.records.cluster import Claim
from virtfleet.controller.records.instance import Instance
from virtfleet.controller.records.kept import Kept, owner_uids
from virtfleet.controller.records.machine import Volume, Volumes
from virtfleet.hypervisors import registry
from virtfleet.installation import Installation, in_force
from virtfleet.kube.api import KubeApi
from virtfleet.kube.cache import Cache
from virtfleet.kube.errors import ignoring, is_already_exists, is_conflict, is_not_found
from virtfleet.kube.events import Recorder
from virtfleet.kube.resource import PERSISTENT_VOLUMES, PODS, Obj
from virtfleet.pods import attachment
from virtfleet.pods.attachment import Held, Launcher
from virtfleet.pools.placement import near

_ATTACHMENTS = f"{names.APP_LABEL}={names.HOTPLUG_APP}"
_AT_ONCE = 1  # seconds: its process waits for nothing


class AttachmentPod(Kept):
    """A Pod that attaches a volume."""

    resource = PODS
    spec: Volumes = msgspec.field(default_factory=Volumes)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def volume(self) -> str:
        return self.metadata.annotations.attached_volume

    @property
    def claim(self) -> str:
        return next((volume.claim for volume in self.spec.volumes if volume.claim), "")

    @property
    def stays(self) -> bool:
        return not self.deleting and self.status.phase not in names.FINAL

    @property
    def ready(self) -> bool:
        """Its container runs, so the volume is on the node."""
        running = [status.state.running is not None for status in self.status.container_statuses]
        return self.stays and self.status.phase == "Running" and bool(running) and all(running)

    @property
    def trouble(self) -> str:
        """Why it does not run yet, as far as somebody says so."""
        placed = conditions.find(self.status.conditions, lifecycle.POD_SCHEDULED)
        if placed and placed["status"] == "False":
            return f"no node takes Pod {self.name}: {placed.get('message') or ''}"
        waiting = [s.state.waiting for s in self.status.container_statuses if s.state.waiting]
        return next((f"{w.reason}: {w.message}" for w in waiting if w.message), f"Pod {self.name} does not run yet")


_decode = msgspec.json.Decoder(AttachmentPod).decode


def vmi_keys(pod: AttachmentPod) -> list[str]:
    """The key of the VMI that a Pod was made for."""
    return [f"{pod.namespace}/{pod.metadata.annotations.owner_vmi}"]


def attachment_cache(api: KubeApi) -> Cache[AttachmentPod]:
    return Cache(api, PODS, labels=_ATTACHMENTS, decode=_decode, indexes={"vmi": vmi_keys, "owner": owner_uids})


class Attachments:
    """Finds, makes and deletes them. That there is none is believed when the API server says so."""

    def __init__(
        self,
        api: KubeApi,
        recorder: Recorder,
        *,
        cache: Cache[AttachmentPod],
        claims: Cache[Claim],
        volumes: Cache[DataVolume],
        installations: Cache[Installation],
    ) -> None:
        self._volumes = volumes
        self.cache = cache
        self._api = api
        self._recorder = recorder
        self._claims = claims
        self._installations = installations

    def of(self, launcher: str, volume: str, claim: str) -> list[AttachmentPod]:
        """Those of one volume of a launcher Pod, as far as is known; the earliest first."""
        return _oldest_first(
            pod for pod in self.cache.by_index("owner", launcher) if (pod.volume, pod.claim) == (volume, claim)
        )

    def claim(self, vmi: Instance, name: str) -> Claim | None:
        """A claim that is there, and holds what it is meant to hold."""
        key = f"{vmi.namespace}/{name}"
        return None if datavolumes.unfilled(self._volumes, self._claims, [key]) else self._claims.get(key)

    async def near(self, vmi: Instance, pod: Obj) -> Obj:
        """A launcher Pod that goes where the volumes are which follow it: the scheduler sees only those that it has."""
        for name in dict.fromkeys(vmi.spec.plugged.values()):
            claim = self.claim(vmi, name)
            if claim is None or not claim.spec.volume_name:
                continue
            with ignoring(is_not_found):
                volume = await self._api.get(PERSISTENT_VOLUMES, claim.spec.volume_name)
                where = ((volume["spec"].get("nodeAffinity") or {}).get("required") or {}).get("nodeSelectorTerms")
                if where:
                    pod["spec"]["affinity"] = near(pod["spec"].get("affinity") or {}, where)
        return pod

    async def ensure(self, vmi: Instance, launcher: LauncherPod, volume: Volume) -> AttachmentPod | None:
        """The Pod for a volume, made where there is none that stays; None while there can be none."""
        known = self.of(launcher.uid, volume.name, volume.claim)
        claim = self.claim(vmi, volume.claim)
        if not any(pod.stays for pod in known) and claim is not None:
            known = await self._listed(vmi.namespace, launcher.uid, volume)
            if not any(pod.stays for pod in known):
                known.append(await self._create(vmi, launcher, volume, claim, known[-1].uid if known else ""))
        return next((pod for pod in reversed(known) if pod.stays), None)

    async def target(self, vmi: Instance, launcher: LauncherPod) -> tuple[list[AttachmentPod], str]:
        """The Pods for a VM that is to come to a launcher Pod, and what is still missing."""
        pods = []
        claims = vmi.spec.plugged
        left = [s.name for s in vmi.status.volume_status if s.hotplug_volume and claims.get(s.name) != s.claim]
        missing = f"volume {left[0]} is being unplugged" if left else ""
        for volume in vmi.spec.volumes:
            if not volume.plugged:
                continue
            pod = await self.ensure(vmi, launcher, volume)
            if pod and pod.ready:
                pods.append(pod)
            else:
                missing = f"volume {volume.name}: {pod.trouble if pod else f'there is no claim {volume.claim}'}"
        return pods, missing

    async def delete(self, vmi: Instance, pod: AttachmentPod) -> None:
        """Delete a Pod whose volume nobody uses any more. One that somebody else deleted so ends at once, too."""
        with ignoring(is_not_found, is_conflict):
            answer = await self._api.delete(PODS, pod.name, pod.namespace, uid=pod.uid, grace=_AT_ONCE)
            if "deletionTimestamp" in answer.get("metadata", {}):
                self.cache.observe(answer)
            if not pod.deleting:
                self._recorder.normal(vmi.reference, "SuccessfulDelete", f"Deleted attachment pod {pod.name}")

    async def _listed(self, namespace: str, launcher: str, volume: Volume) -> list[AttachmentPod]:
        found = [self._seen(pod) for pod in await self._api.list(PODS, namespace, labels=_ATTACHMENTS)]
        return _oldest_first(
            pod
            for pod in found
            if pod.controlled_by(launcher) and (pod.volume, pod.claim) == (volume.name, volume.claim)
        )

    async def _create(
        self, vmi: Instance, launcher: LauncherPod, volume: Volume, claim: Claim, before: str
    ) -> AttachmentPod:
        source = volume.persistent_volume_claim
        held = Held(volume.name, volume.claim, claim.block, bool(source and source.read_only))
        there = Launcher(
            launcher.name,
            launcher.uid,
            launcher.namespace,
            launcher.node,
            launcher.image,
            launcher.spec.tolerations,
            launcher.spec.image_pull_secrets,
        )
        settings = in_force(self._installations.list())
        hypervisor = registry.get(launcher.hypervisor or registry.DEFAULT).descriptor
        wanted = attachment.render(there, held, hypervisor, settings, vmi=(vmi.name, vmi.uid), before=before)
        with ignoring(is_already_exists):
            pod = self._seen(await self._api.create(PODS, wanted))
            self._recorder.normal(vmi.reference, "SuccessfulCreate", f"Created attachment pod {pod.name}")
            return pod
        return self._seen(await self._api.get(PODS, wanted["metadata"]["name"], vmi.namespace))

    def _seen(self, obj: Obj) -> AttachmentPod:
        self.cache.observe(obj)
        return _decode(orjson.dumps(obj))


def _oldest_first(pods: Any) -> list[AttachmentPod]:
    return sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp, pod.name))
