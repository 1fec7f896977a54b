"""What hook sidecars make of a VM: its domain's document, and its cloud-init data.

A sidecar is the VM owner's program. What it answers is bounded and used within this Pod only, where its owner could as
well have written it to the launcher: whoever believes a launcher nothing, believes a sidecar nothing.
"""

from __future__ import annotations

import logging
from typing import Any
from xml.etree import ElementTree as ET

import msgspec

from virtfleet.api.disks import Volume
from virtfleet.domain import paths
from virtfleet.domain.xml import text
from virtfleet.hypervisors.base import Hypervisor
from virtfleet.launcher.failure import Failure
from virtfleet.launcher.storage import seeds
from virtfleet.launcher.storage.seeds import Files
from virtfleet.launcher.vm import live
from virtfleet.launcher.vm.hookcalls import Call
from virtfleet.work import commands

logger = logging.getLogger(__name__)

_LIMIT = 120.0  # seconds, of which sidecars have one to come up
_FAREWELL = 10.0
_XML, _VMI, _LEGACY_SEED, _SEED = 1, 2, 1, 3  # numbers of fields


class Hooks:
    """The sidecars of one launcher."""

    def __init__(self, count: int, hypervisor: Hypervisor, directory: str = paths.HOOKS) -> None:
        self._count = count
        self._directory = directory
        self._identity = hypervisor.identity
        self.own: frozenset[tuple[str, str]] = frozenset()
        """Devices that sidecars have added or removed, which the VMI therefore says nothing of."""

    async def define(self, document: ET.Element, vmi: bytes) -> ET.Element:
        """The document as the sidecars want it."""
        if not self._count:
            return document
        answer = await self._ask("OnDefineDomain", {_XML: text(document).encode(), _VMI: vmi}, (_XML,))
        try:
            changed = ET.fromstring(answer[_XML])
        except ET.ParseError as error:
            raise Failure(f"a hook sidecar's domain is not XML: {error}") from None
        for known in ("name", "uuid"):
            if changed.findtext(known) != document.findtext(known):
                raise Failure(f"a hook sidecar has changed the domain's {known}; it must stay what it is")
        before, after = (live.devices(each, self._identity).keys() for each in (document, changed))
        self.own = frozenset(before ^ after)
        return changed

    async def seed(self, vmi: bytes, volume: Volume, files: Files) -> Files:
        """The files of a cloud-init disk as the sidecars want them."""
        if not self._count:
            return files
        layout = seeds.layout(volume)
        user, network = (files.get(name, b"").decode(errors="replace") for name in (layout.user, layout.network))
        metadata = {layout.metadata_field: msgspec.json.decode(files[layout.metadata])}
        data = {"DataSource": layout.name, "UserData": user, "NetworkData": network, "VolumeName": volume.name}
        legacy = msgspec.json.encode({"userData": user, "networkData": network})
        asked = {_LEGACY_SEED: legacy, _VMI: vmi, _SEED: msgspec.json.encode(data | metadata)}
        answer = await self._ask("PreCloudInitIso", asked, (_LEGACY_SEED, _SEED))
        if answer.items() <= asked.items():
            return files
        try:
            if answer[_SEED] == asked[_SEED]:
                old = msgspec.json.decode(answer[_LEGACY_SEED], type=dict[str, str])
                answered: dict[str, Any] = {"UserData": old.get("userData"), "NetworkData": old.get("networkData")}
            else:
                answered = msgspec.json.decode(answer[_SEED], type=dict[str, Any])
            said = {layout.user: answered.get("UserData"), layout.network: answered.get("NetworkData")}
            changed = {name: value.encode() for name, value in said.items() if value}
        except (msgspec.MsgspecError, AttributeError) as error:
            raise Failure(f"a hook sidecar's cloud-init data cannot be read: {error}") from None
        kept = answered.get(layout.metadata_field) or metadata[layout.metadata_field]
        return {layout.user: b"", **changed, layout.metadata: msgspec.json.encode(kept)}

    async def say_goodbye(self) -> None:
        """Tell sidecars that the VM has ended. Nobody waits long for them."""
        if self._count:
            try:
                await self._ask("Shutdown", {}, (), limit=_FAREWELL)
            except Failure as error:
                logger.info("hook sidecars were not told of the end: %s", error)

    async def _ask(
        self, point: str, fields: dict[int, bytes], passed_on: tuple[int, ...], limit: float = _LIMIT
    ) -> dict[int, bytes]:
        """In a child, because the library that speaks to them would stay in memory as long as the VM lives."""
        call = Call(count=self._count, point=point, fields=fields, passed_on=passed_on)
        child = commands.python("virtfleet.launcher.vm.hookcalls")
        try:
            said = await commands.run(*child, self._directory, feed=msgspec.json.encode(call), limit=limit)
            return msgspec.json.decode(said, type=dict[int, bytes])
        except (commands.CommandError, msgspec.MsgspecError) as error:
            raise Failure(f"hook sidecars: {error}") from None
