"""VMs that are sent to be expanded: read, or refused. Pure."""

from __future__ import annotations

import orjson

from virtfleet.admission import shape
from virtfleet.admission.findings import Findings
from virtfleet.gateway.machines import bad_request
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import VMS, Obj


def read(body: bytes, namespace: str) -> Obj:
    """The VM that was sent. Raises ApiError where it is none, or another namespace's."""
    if not body:
        raise bad_request("empty request body: send a VirtualMachine")
    try:
        vm = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"Can not unmarshal Request body to struct, error: {error}") from error
    findings = Findings()
    if not isinstance(vm, dict) or (vm.get("apiVersion"), vm.get("kind")) != (VMS.api_version, VMS.kind):
        findings.invalid("kind", f"send a {VMS.kind} of {VMS.api_version}")
    else:
        shape.check(shape.without_nulls(vm), findings)
    if not findings.allowed:
        causes = [{"message": f"{c.field}: {c.message}", "field": c.field} for c in findings.causes]
        why = "; ".join(cause["message"] for cause in causes)
        raise ApiError("BadRequest", f"Object is not a valid VirtualMachine: {why}", details={"causes": causes})
    metadata = vm.get("metadata") or {}
    if metadata.get("namespace") not in (None, "", namespace):
        raise bad_request(f"VM namespace must be empty or {namespace}")
    return {**vm, "metadata": {**metadata, "namespace": namespace}}
