"""Pods that attach volumes of running VMs to their nodes: one for each volume of each launcher Pod.

What is in use is in the launcher's own file system, so that nothing of it goes when such a Pod does. It is what tells
the cluster that the volume is needed on the node, so one that ends is followed by another while it still holds on.
"""

from __future__ import annotations

from collections.abc import Iterable

from virtfleet.controller.datavolumes import records as datavolumes
from virtfleet.controller.launcherpod import AttachmentPod, LauncherPod
from virtfleet.controller.records.cluster import Claim
from virtfleet.controller.records.guest import Volume
from virtfleet.controller.records.instance import Instance
from virtfleet.controller.shared import Part, Shared
from virtfleet.hypervisors import registry
from virtfleet.kube.errors import ignoring, is_already_exists, is_not_found
from virtfleet.kube.resource import PERSISTENT_VOLUMES, Obj
from virtfleet.pods import attachment
from virtfleet.pods.attachment import Held, Launcher
from virtfleet.pools.placement import near

_AT_ONCE = 1  # seconds: its process waits for nothing


class Attachments(Part):
    """Finds, makes and deletes them. That there is none is believed when the API server says so."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._attached = shared.attached

    def of(self, launcher: str, volume: str, claim: str) -> list[AttachmentPod]:
        """Those of one volume of a launcher Pod, as far as is known; the earliest first."""
        return _oldest_first(volume, claim, self._attached.by_index("owner", launcher))

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
        if await self._attached.remove(pod.key, pod.uid, grace=_AT_ONCE) and not pod.deleting:
            self._recorder.normal(vmi.reference, "SuccessfulDelete", f"Deleted attachment pod {pod.name}")

    async def _listed(self, namespace: str, launcher: str, volume: Volume) -> list[AttachmentPod]:
        pods = [pod for pod in await self._attached.listed(namespace) if pod.controlled_by(launcher)]
        return _oldest_first(volume.name, volume.claim, pods)

    async def _create(
        self, vmi: Instance, launcher: LauncherPod, volume: Volume, claim: Claim, before: str
    ) -> AttachmentPod:
        source = volume.persistent_volume_claim
        held = Held(volume.name, volume.claim, claim.block, bool(source and source.read_only))
        of_spec = launcher.node, launcher.image, launcher.spec.tolerations, launcher.spec.image_pull_secrets
        there = Launcher(launcher.name, launcher.uid, launcher.namespace, *of_spec)
        hypervisor = registry.get(launcher.hypervisor or registry.DEFAULT).descriptor
        wanted = attachment.render(there, held, hypervisor, self._settings, vmi=(vmi.name, vmi.uid), before=before)
        with ignoring(is_already_exists):
            made = await self._attached.create(wanted)
            self._recorder.normal(vmi.reference, "SuccessfulCreate", f"Created attachment pod {made.name}")
            return made
        return await self._attached.fetch(f"{vmi.namespace}/{wanted['metadata']['name']}")


def _oldest_first(volume: str, claim: str, pods: Iterable[AttachmentPod]) -> list[AttachmentPod]:
    """Those that attach this volume of this claim."""
    ours = (pod for pod in pods if (pod.volume, pod.claim) == (volume, claim))
    return sorted(ours, key=lambda pod: (pod.metadata.creation_timestamp, pod.name))
