"""What admission and the subresources need of instance types and preferences, which are read for each VM.

Nobody who has just created a type is to be told that there is none, so nothing here is answered from memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from virtfleet.admission import shape
from virtfleet.admission.defaults import complete_vmi_spec
from virtfleet.admission.findings import Findings
from virtfleet.admission.sections import Section, copy_of, read
from virtfleet.api import kinds
from virtfleet.installation import Installation
from virtfleet.instancetypes import applying, finding, inference, matching, requirements
from virtfleet.instancetypes.applying import Conflict
from virtfleet.instancetypes.matching import is_typed
from virtfleet.kube.api import KubeApi
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import Obj


def concerns(request: Obj) -> bool:
    """Whether a review is about a VM that names a type and has a template."""
    vm = request.get("object") or {}
    spec, metadata = vm.get("spec"), vm.get("metadata")
    if request["kind"]["kind"] != kinds.VM.kind or not isinstance(spec, dict) or not isinstance(metadata, dict):
        return False
    return is_typed(vm) and spec.get("template") is not None and not metadata.get("deletionTimestamp")


@dataclass
class TypedVms:
    """Completes and expands VMs that name a type."""

    _api: KubeApi

    async def completed(self, request: Obj, findings: Findings) -> Obj:
        """The VM with the names that it leaves to volumes, and with what of its preference is settled at once."""
        vm = _of(request)
        if not shape.check(vm, Findings()):
            return vm  # which admission explains
        matching.check(vm, request.get("oldObject") or {}, findings)
        if not findings.allowed:
            return vm
        try:
            vm = await inference.inferred(self._api, vm)
            preference = (await finding.find_if_any(self._api, vm)).preference
        except ApiError as error:
            if error.code >= 500:
                raise
            findings.invalid("", error.message)
            return vm
        return matching.settled(vm, preference) if preference is not None else vm

    async def expanded(self, request: Obj, cluster: Installation, findings: Findings) -> Obj:
        """The VM with all that it will have, and what speaks against that. A type that is not there may come later."""
        vm = _of(request)
        if not shape.check(vm, Findings()):
            return vm
        try:
            types = await finding.find_if_any(self._api, vm)
            template = applying.expanded(vm["spec"]["template"], types, cluster)
        except Conflict as conflict:
            conflict.tell(findings)
            return vm
        except ApiError as error:
            if error.code >= 500:
                raise
            findings.invalid("spec", error.message)
            return vm
        spec = copy_of(template["spec"])
        complete_vmi_spec(spec, cluster)
        requirements.check(types, spec, findings)
        return applying.with_template(vm, template)

    async def standing_alone(self, vm: Section, cluster: Installation) -> Obj:
        """The VM without types and with all that they say. Raises ApiError, and Conflict."""
        if not is_typed(vm):
            return dict(vm)
        return applying.standing_alone(vm, await finding.find(self._api, vm), cluster)


def _of(request: Obj) -> Obj:
    vm = shape.without_nulls(request["object"])
    return {**vm, "metadata": {**read(vm, "metadata"), "namespace": request["namespace"]}}
