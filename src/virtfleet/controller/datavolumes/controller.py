"""The controller of DataVolumes, and of claims that somebody uploads to. A DataVolume and its claim share their name.

It stands back where CDI is installed. That a disk is whole is written on its claim, when its importer has ended well
and never before; an importer that is lost is made anew and begins at the beginning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from virtfleet.api import conditions, imports, kinds, names
from virtfleet.api.conditions import Condition
from virtfleet.api.imports import Unusable, Wanted
from virtfleet.api.quantity import Quantity
from virtfleet.controller.datavolumes.records import FAILED, PENDING, SUCCEEDED, DataVolume, Importer
from virtfleet.controller.records.cluster import Claim, labels_of
from virtfleet.controller.shared import Part, Shared
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ApiError, ignoring, is_already_exists, is_conflict, is_not_found
from virtfleet.kube.resource import (
    DATA_SOURCES,
    DATA_VOLUMES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    Obj,
    owner_reference,
)
from virtfleet.pods import importer as pods
from virtfleet.pods.importer import Filling
from virtfleet.protocol.importing import Job, Source

WORKERS = 4
AGAIN = 5.0
"""Seconds after which is looked again for what nobody tells of: a source that is used, or not there."""
_NOT_COPIED = ("kubectl.kubernetes.io/last-applied-configuration",)
_VERBS = {imports.UPLOAD: "Upload", imports.CLAIM: "Clone"}
_UNKNOWN, _ALL = "N/A", "100.0%"


class Waiting(Exception):
    """What is missing for now."""


@dataclass(frozen=True, slots=True)
class Clients:
    """By what uploads know virt-api: an authority (PEM), and the name in its certificate."""

    authority: str = ""
    name: str = ""


class DataVolumes(Part):
    """The controller."""

    def __init__(self, shared: Shared, clients: Callable[[], Clients]) -> None:
        super().__init__(shared)
        self._importers = shared.importers
        self._cdi = shared.cdi
        self._clients = clients
        self.controller = Controller(
            kinds.DATA_VOLUME.singular, self.reconcile, [self._nodes, self._installations], workers=WORKERS
        )
        self.controller.follow(self._volumes)
        self.controller.follow(self._claims, self._of_claim)
        self.controller.follow(self._importers, lambda importer: [importer.claim_key])
        self.controller.follow(self._cdi, lambda _: self._volumes.keys())

    async def reconcile(self, key: str) -> float | None:
        """Have the claim, and an importer for as long as it is to be filled."""
        if self._cdi.list():
            return None
        volume, claim = self._volumes.get(key), self._claims.get(key)
        importer = self._importer(key)
        leaves = claim is not None and claim.deleting  # it stays for as long as a Pod has it
        if volume and not volume.deleting and not leaves:
            return await self._fill(volume, claim, importer)
        if claim and self._is_uploaded_to(claim) and not leaves:
            await self._upload(claim, importer)
        else:
            await self._dismiss(importer)
        return None

    # -- DataVolumes

    async def _fill(self, volume: DataVolume, claim: Claim | None, importer: Importer | None) -> float | None:
        obj = volume.object()
        trouble, wanted, again, at = "", Wanted(imports.BLANK), None, volume.phase
        if at in (SUCCEEDED, FAILED):
            await self._dismiss(importer)
            return None
        try:
            wanted, copied = await self._source(obj)
            claim = claim or await self._create_claim(volume, obj, copied)
            if not claim.controlled_by(volume.uid):
                raise Waiting(f"claim {claim.name} exists and is not the DataVolume's; delete one of the two")
            at, importer, trouble = await self._advance(volume, obj, wanted, claim, importer)
        except Unusable as error:
            at, trouble = FAILED, str(error)
        except Waiting as error:
            at, trouble, again = PENDING, str(error), AGAIN
        except ApiError as error:
            if is_conflict(error) or error.code >= 500:
                raise
            at, trouble, again = PENDING, f"refused by the API server: {error.message}", AGAIN
        await self._write(volume, obj, at, claim, importer, trouble)
        if at in (SUCCEEDED, FAILED):
            await self._dismiss(importer)
        return again

    async def _advance(
        self, volume: DataVolume, obj: Obj, wanted: Wanted, claim: Claim, importer: Importer | None
    ) -> tuple[str, Importer | None, str]:
        """The phase, the importer, and what stands in the way."""
        if claim.filled:
            return SUCCEEDED, importer, ""
        if wanted.source in (imports.GIVEN, imports.SNAPSHOT):
            return (SUCCEEDED if claim.bound else PENDING), None, ""
        importer = importer or await self._begin(claim, self._filling(obj, wanted, claim))
        end = await self._end_of(claim, importer)
        return end or phase_of(wanted.source, importer), importer, importer.words

    async def _source(self, obj: Obj) -> tuple[Wanted, Obj | None]:
        """Where the data comes from, and the claim that is copied."""
        named, namespace = None, obj["metadata"]["namespace"]
        if reference := (obj.get("spec") or {}).get("sourceRef"):
            with ignoring(is_not_found):
                named = await self._api.get(DATA_SOURCES, str(reference.get("name") or ""), namespace)
            if named is None:
                imports.wanted(obj)
                raise Waiting(f"there is no DataSource {reference.get('name')} in namespace {namespace}; create it")
        wanted = imports.wanted(obj, named)
        if wanted.source != imports.CLAIM:
            return wanted, None
        with ignoring(is_not_found):
            return wanted, await self._api.get(PERSISTENT_VOLUME_CLAIMS, wanted.body["name"], namespace)
        raise Waiting(f"there is no claim {wanted.body['name']} in namespace {namespace} to copy; create it")

    async def _create_claim(self, volume: DataVolume, obj: Obj, copied: Obj | None) -> Claim:
        meta, spec = obj["metadata"], imports.claim_spec(obj, copied)
        wanted = imports.wanted(obj) if "source" in obj["spec"] else None
        if wanted and wanted.source == imports.SNAPSHOT:
            spec["dataSource"] = {
                "apiGroup": "snapshot.storage.k8s.io",
                "kind": "VolumeSnapshot",
                "name": wanted.body["name"],
            }
        notes = {key: value for key, value in (meta.get("annotations") or {}).items() if key not in _NOT_COPIED}
        if (obj["spec"].get("source") or {}).get(imports.UPLOAD) is not None:
            notes[names.UPLOAD_TARGET] = ""
        of_claim = {
            "name": volume.name,
            "namespace": volume.namespace,
            "labels": dict(meta.get("labels") or {}),
            "annotations": notes,
            "ownerReferences": [owner_reference(obj, DATA_VOLUMES)],
        }
        with ignoring(is_already_exists):
            claim = await self._claims.create(PERSISTENT_VOLUME_CLAIMS.object(of_claim, spec=spec))
            self._recorder.normal(volume.reference, PENDING, f"PVC {claim.name} Pending")
            return claim
        return await self._claims.fetch(volume.key)

    # -- claims that are uploaded to

    def _is_uploaded_to(self, claim: Claim) -> bool:
        marked = claim.metadata.annotations.upload_target is not None
        return marked and not claim.filled and claim.controller is None

    async def _upload(self, claim: Claim, importer: Importer | None) -> None:
        if claim.metadata.annotations.filling_phase == FAILED:
            return await self._dismiss(importer)
        owner = {
            "apiVersion": PERSISTENT_VOLUME_CLAIMS.api_version,
            "kind": PERSISTENT_VOLUME_CLAIMS.kind,
            "name": claim.name,
            "uid": claim.uid,
            "controller": True,
        }
        if importer is None:
            job = self._job(Wanted(imports.UPLOAD), claim, _room(claim))
            importer = await self._begin(claim, Filling(claim.name, claim.namespace, claim.uid, owner, job))
        if await self._end_of(claim, importer):
            await self._dismiss(importer)

    # -- importers

    def _importer(self, key: str) -> Importer | None:
        return next(iter(self._importers.by_index("claim", key)), None)

    def _filling(self, obj: Obj, wanted: Wanted, claim: Claim) -> Filling:
        spec, body = obj["spec"], wanted.body
        job = self._job(wanted, claim, imports.size(obj) or _room(claim), preallocate=bool(spec.get("preallocation")))
        return Filling(
            claim.name,
            claim.namespace,
            claim.uid,
            owner_reference(obj, DATA_VOLUMES),
            job,
            image=imports.image(body) if wanted.source == imports.REGISTRY else "",
            architecture=(body.get("platform") or {}).get("architecture") or "",
            source=self._source_claim(wanted, claim).name if wanted.source == imports.CLAIM else "",
            credentials=body.get("secretRef") or "",
            authorities=body.get("certConfigMap") or "",
            headers=tuple(body.get("secretExtraHeaders") or ()),
            priority_class=spec.get("priorityClassName") or "",
            service_account=spec.get("serviceAccountName") or "",
        )

    def _job(self, wanted: Wanted, claim: Claim, size: int, *, preallocate: bool = False) -> Job:
        body, upload = wanted.body, wanted.source == imports.UPLOAD
        clients = self._clients() if upload else Clients()
        return Job(
            Source(wanted.source),
            size,
            block=claim.block,
            source_block=wanted.source == imports.CLAIM and self._source_claim(wanted, claim).block,
            url=(body.get("url") or "") if wanted.source == imports.HTTP else "",
            headers=tuple(body.get("extraHeaders") or ()),
            checksum=body.get("checksum") or "",
            preallocate=preallocate,
            clients=clients.authority,
            client=clients.name,
        )

    def _source_claim(self, wanted: Wanted, claim: Claim) -> Claim:
        """The claim that is copied; a copy of one that is still filled would be half of it."""
        name = wanted.body["name"]
        source = self._claims.get(f"{claim.namespace}/{name}")
        if source is None:
            raise Waiting(f"there is no claim {name} in namespace {claim.namespace} to copy; create it")
        volume = self._volumes.get(source.key)
        unfinished = volume is not None and source.controlled_by(volume.uid) and volume.phase != SUCCEEDED
        if unfinished or self._is_uploaded_to(source):
            raise Waiting(f"claim {name} is not filled yet")
        return source

    async def _begin(self, claim: Claim, filling: Filling) -> Importer:
        if filling.source:
            await self._unused(filling)
        wanted = pods.render(filling, self._settings, labels_of(self._nodes))
        with ignoring(is_already_exists):
            return await self._importers.create(wanted)
        there = await self._importers.fetch(f"{claim.namespace}/{wanted['metadata']['name']}")
        if there.claim_key != claim.key:
            raise Waiting(f"Pod {there.name} exists and is no importer; delete it")
        return there

    async def _unused(self, filling: Filling) -> None:
        """A disk that is written to while it is copied is copied into pieces."""
        for pod in await self._api.list(PODS, filling.namespace):
            used = [(v.get("persistentVolumeClaim") or {}).get("claimName") for v in pod["spec"].get("volumes") or ()]
            ended = (pod.get("status") or {}).get("phase") in names.FINAL
            if filling.source in used and not ended and not _reads_only(pod):
                raise Waiting(f"claim {filling.source} is used by Pod {pod['metadata']['name']}; stop that first")

    async def _end_of(self, claim: Claim, importer: Importer) -> str:
        """What an importer has come to, written on the claim: a phase where that is the end."""
        end = SUCCEEDED if importer.done else FAILED if importer.hopeless else ""
        if importer.deleting:
            return ""
        if importer.lost and not end:
            await self._dismiss(importer)
        else:
            await self._note(claim, end or importer.status.phase or PENDING, ready=importer.ready and not end)
        return end

    async def _note(self, claim: Claim, phase: str, *, ready: bool) -> None:
        known = claim.metadata.annotations
        wanted = {names.FILLING_PHASE: phase, names.FILLING_READY: "true" if ready else "false"}
        if [known.filling_phase, known.filling_ready] != [*wanted.values()]:
            patch = {"metadata": {"uid": claim.uid, "annotations": wanted}}
            with ignoring(is_not_found):
                await self._claims.change(claim.key, patch)

    async def _dismiss(self, importer: Importer | None) -> None:
        if importer and not importer.deleting:
            await self._importers.remove(importer.key, importer.uid)

    # -- telling

    async def _write(
        self, volume: DataVolume, obj: Obj, at: str, claim: Claim | None, importer: Importer | None, trouble: str
    ) -> None:
        old = obj.get("status") or {}
        status = status_of(old, volume.name, at, claim, importer, trouble, time.time())
        if all(old.get(key) == value for key, value in status.items()):
            return
        patch = {"metadata": {"resourceVersion": volume.metadata.resource_version}, "status": status}
        with ignoring(is_not_found):
            await self._volumes.change(volume.key, patch, subresource="status")
            if trouble and trouble != volume.trouble:
                self._recorder.warning(volume.reference, "Error", trouble)
            elif at != volume.phase:
                self._recorder.normal(volume.reference, at, f"{at} of {volume.name}")

    # -- what it depends on

    def _of_claim(self, claim: Claim) -> list[str]:
        ours = self._volumes.get(claim.key) or self._importer(claim.key)
        return [claim.key] if ours or claim.metadata.annotations.upload_target is not None else []


def _room(claim: Claim) -> int:
    """Bytes that a claim asks for."""
    amounts: Mapping[str, str] = claim.spec.resources.get("requests") or {}
    return Quantity.parse(amounts.get("storage") or "0").value()


def _reads_only(pod: Obj) -> bool:
    """Another importer that copies the same claim."""
    labels = pod["metadata"].get("labels") or {}
    return labels.get(names.APP_LABEL) == names.IMPORTER_APP


# --- what a status says, in CDI's words


def phase_of(source: str, importer: Importer) -> str:
    """How far it is, as far as it is not at its end."""
    if importer.done or importer.lost:
        return PENDING
    verb = _VERBS.get(source, "Import")
    if source == imports.UPLOAD:
        return f"{verb}Ready" if importer.ready else f"{verb}Scheduled"
    begun = importer.running or importer.restarts
    # An image is imported by the node that pulls it.
    begun = begun or (source == imports.REGISTRY and importer.pulled_in_vain)
    return f"{verb}InProgress" if begun else f"{verb}Scheduled"


def status_of(
    old: Obj, name: str, at: str, claim: Claim | None, importer: Importer | None, trouble: str, now: float
) -> Obj:
    """The whole status; `trouble` is what stands in its way."""
    held: list[Condition] = old.get("conditions") or []
    bound = claim is not None and claim.bound
    words = f"PVC {name} Bound" if bound else f"PVC {name} Pending" if claim else "No PVC found"
    held = _put(held, "Bound", bound, "Bound" if bound else "Pending" if claim else "NotFound", words, now)
    done = at == SUCCEEDED
    held = _put(held, "Ready", done, "" if done else "TransferFailed" if at == FAILED else "TransferRunning", "", now)
    if done:
        held = _put(held, "Running", False, "Completed", "the disk is whole", now)
    elif trouble:
        held = _put(held, "Running", False, "Error", trouble, now)
    else:
        running = importer is not None and importer.running
        held = _put(held, "Running", running, "Pod is running" if running else "Pending", "", now)
    return {
        "claimName": name,
        "phase": at,
        "progress": _ALL if done else _UNKNOWN,
        "restartCount": importer.restarts if importer else old.get("restartCount") or 0,
        "conditions": held,
    }


def _put(held: list[Condition], kind: str, holds: bool, reason: str, message: str, now: float) -> list[Condition]:
    return conditions.put(held, kind, "True" if holds else "False", now, reason=reason, message=message)
