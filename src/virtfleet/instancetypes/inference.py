"""Names of a VM's instance type and preference, from labels of the volume that it boots from.

The labels are on the claim or data volume itself, or on what its data comes from. A VM may name sources in namespaces
that its owner cannot read: of those nobody is told more than whether the label is there.
"""

from __future__ import annotations

from virtfleet.admission.sections import Obj, Section, copy_of, read
from virtfleet.instancetypes.matching import INSTANCETYPE, PARTS, Part, named
from virtfleet.kube.api import KubeApi
from virtfleet.kube.errors import ApiError, ignoring, is_not_found
from virtfleet.kube.resource import DATA_SOURCES, DATA_VOLUMES, PERSISTENT_VOLUME_CLAIMS, VOLUME_SNAPSHOTS, Resource


class Nothing(Exception):
    """A volume says nothing of it, which a VM may have chosen to ignore."""


async def inferred(api: KubeApi, vm: Section) -> Obj:
    """The VM with the names in the place of the volumes. Raises ApiError where there are none."""
    vm = copy_of(vm)
    for part in PARTS:
        matcher = named(vm, part)
        if matcher is None or not (volume := matcher.get("inferFromVolume")):
            continue
        ignored = matcher.get("inferFromVolumeFailurePolicy") == "Ignore"
        try:
            obj = await _Search(api, vm, part).volume(volume)
        except Nothing as why:
            if not ignored:
                raise ApiError("BadRequest", f"{why}; set spec.{part.field}.name instead") from why
            del vm["spec"][part.field]
            continue
        except ApiError as error:
            raise ApiError("BadRequest", f"spec.{part.field}.inferFromVolume {volume}: {error.message}") from error
        vm["spec"][part.field] = obj
        if ignored and part is INSTANCETYPE:  # it says what the VM has where nothing is found
            read(vm, "spec", "template", "spec").get("domain", {}).pop("memory", None)
    return vm


class _Search:
    """For one of the labels, from a volume to whatever carries it."""

    def __init__(self, api: KubeApi, vm: Obj, part: Part) -> None:
        self._api = api
        self._vm = vm
        self._label = part.label
        self._namespace = vm["metadata"]["namespace"]

    async def volume(self, name: str) -> Obj:
        for volume in read(self._vm, "spec", "template", "spec").get("volumes") or ():
            if volume.get("name") != name:
                continue
            if volume.get("persistentVolumeClaim") is not None:
                return await self._object(PERSISTENT_VOLUME_CLAIMS, read(volume, "persistentVolumeClaim"), "claimName")
            if volume.get("dataVolume") is not None:
                return await self._data_volume(str(read(volume, "dataVolume").get("name") or ""))
            raise Nothing(f"unable to infer defaults from volume {name} as type is not supported")
        raise ApiError("BadRequest", f"unable to find volume {name} to infer defaults")

    async def _data_volume(self, name: str) -> Obj:
        for template in read(self._vm, "spec").get("dataVolumeTemplates") or ():
            if read(template, "metadata").get("name") == name:
                return await self._sources(read(template, "spec"))
        with ignoring(is_not_found):
            obj = await self._api.get(DATA_VOLUMES, name, self._namespace)
            return self._named(obj) or await self._sources(read(obj, "spec"))
        # Data volumes may go when their claim is full, which has the same name.
        return await self._object(PERSISTENT_VOLUME_CLAIMS, {"name": name})

    async def _sources(self, spec: Section) -> Obj:
        if (ref := spec.get("sourceRef")) is None:
            what = "unable to infer defaults from DataVolumeSpec as DataVolumeSource is not supported"
            return await self._source(read(spec, "source"), what)
        if ref.get("kind") != DATA_SOURCES.kind:
            kind = ref.get("kind")
            raise Nothing(f"unable to infer defaults from DataVolumeSourceRef as Kind {kind} is not supported")
        obj = await self._get(DATA_SOURCES, ref)
        what = "unable to infer defaults from DataSource that doesn't provide DataVolumeSourcePVC or "
        return self._named(obj) or await self._source(read(obj, "spec", "source"), what + "DataVolumeSourceSnapshot")

    async def _source(self, source: Section, otherwise: str) -> Obj:
        for field, resource in (("pvc", PERSISTENT_VOLUME_CLAIMS), ("snapshot", VOLUME_SNAPSHOTS)):
            if source.get(field) is not None:
                return await self._object(resource, read(source, field))
        raise Nothing(otherwise)

    async def _object(self, resource: Resource, source: Section, name: str = "name") -> Obj:
        return self._named(await self._get(resource, source, name)) or self._missing()

    async def _get(self, resource: Resource, source: Section, name: str = "name") -> Obj:
        namespace = source.get("namespace") or self._namespace
        if namespace == self._namespace:
            return await self._api.get(resource, str(source.get(name) or ""), namespace)
        with ignoring(is_not_found):
            return await self._api.get(resource, str(source.get(name) or ""), namespace)
        return self._missing()

    def _named(self, obj: Section) -> Obj | None:
        labels = read(obj, "metadata", "labels")
        if self._label not in labels:
            return None
        kind = labels.get(f"{self._label}-kind")
        return {"name": labels[self._label], **({"kind": kind} if kind else {})}

    def _missing(self) -> Obj:
        raise Nothing(f"unable to find required {self._label} label on the volume")
