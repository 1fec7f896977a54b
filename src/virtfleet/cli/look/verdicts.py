"""The API server's verdict on a new object, without an API server.

The stations of a write are the local API server's own: schema, defaults, mutating admission, validation, validating
admission. Where it would ask virt-api's webhooks, admission's rules are asked directly. Nothing is written.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from virtfleet.admission.findings import INVALID, REQUIRED, Cause, Findings
from virtfleet.admission.review import complete, review
from virtfleet.admission.shape import meant
from virtfleet.api import crds, kinds, names
from virtfleet.cli.manifests import Manifest
from virtfleet.installation import Installation
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import KUBEVIRTS, Obj
from virtfleet.local.apiserver.extensions.admission import Admission, AdmissionRequest
from virtfleet.local.apiserver.kinds.crds import custom_kind
from virtfleet.local.apiserver.kinds.registry import Kind, Kinds
from virtfleet.local.apiserver.objects.operations import Call, Operations
from virtfleet.local.apiserver.objects.store import Store
from virtfleet.local.apiserver.rights.access import MASTER

ALLOWED, REFUSED, UNCHECKED = "allowed", "refused", "unchecked"
_CDI = "cdi.kubevirt.io"
_UNKNOWN = re.compile(r'unknown field "(.*)"')


@dataclass(slots=True)
class Verdict:
    """What becomes of one object."""

    manifest: Manifest
    verdict: str = ALLOWED
    causes: list[Cause] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    note: str = ""
    """Why it was not checked."""

    def refuse(self, *causes: Cause) -> Verdict:
        self.verdict = REFUSED
        self.causes += causes
        return self


class Rules(Admission):
    """Admission for one installation, asked directly. `warnings` are told of refused objects, too."""

    def __init__(self, cluster: Installation) -> None:
        self._cluster = cluster
        self.warnings: list[str] = []

    async def mutate(self, request: AdmissionRequest) -> Obj | None:
        if request.obj is None or not kinds.BY_NAME[request.kind.resource.kind].completed:
            return request.obj
        completed, findings = complete(request.obj, self._cluster)
        _refuse(findings)
        return completed

    async def validate(self, request: AdmissionRequest) -> None:
        obj, kind = request.obj or {}, request.kind.resource.kind
        findings = review(obj, Installation(obj) if kind == KUBEVIRTS.kind else self._cluster)
        self.warnings += findings.warnings
        _refuse(findings)


def _refuse(findings: Findings) -> None:
    if not findings.allowed:
        raise ApiError("Invalid", findings.causes[0].message, details={"causes": [asdict(c) for c in findings.causes]})


@dataclass(frozen=True, slots=True)
class Judge:
    """Says of one object after the other what the API server would say. `served` are groups that others serve."""

    _operations: Operations
    _rules: Rules
    _served: Container[str]

    async def verdict(self, manifest: Manifest) -> Verdict:
        verdict, obj = Verdict(manifest), manifest.obj
        unset = [f for f in ("apiVersion", "kind") if not (isinstance(obj.get(f), str) and obj[f])]
        if missing := [Cause(f, REQUIRED, f"{f} is not set") for f in unset]:
            return verdict.refuse(*missing)
        kind = self._operations.kinds.of_kind(obj["apiVersion"], obj["kind"])
        if kind is None:
            return self._foreign(verdict)
        await self._try(kind, verdict)
        return verdict

    def _foreign(self, verdict: Verdict) -> Verdict:
        """A kind that VirtFleet does not serve."""
        version, kind = verdict.manifest.obj["apiVersion"], verdict.manifest.obj["kind"]
        group = version.rpartition("/")[0]
        if version in self._served or not f".{group}".endswith(f".{names.GROUP}"):
            verdict.verdict, verdict.note = UNCHECKED, f"{version} is not VirtFleet's"
            return verdict
        own = sorted({k.resource.api_version for k in self._operations.kinds if k.resource.kind == kind})
        instead = f"use apiVersion {own[0]}" if own else "VirtFleet does not have that kind (docs/compatibility.md)"
        if group == _CDI:
            instead = "it is CDI's, and there where CDI is installed"
        message = f'no matches for kind "{kind}" in version "{version}"; {instead}'
        return verdict.refuse(Cause("apiVersion", INVALID, message))

    async def _try(self, kind: Kind, verdict: Verdict) -> None:
        call, self._rules.warnings = Call(MASTER, dry_run=True, field_validation="Warn"), []
        namespace = verdict.manifest.namespace if kind.resource.namespaced else ""
        try:
            if namespace:
                await self._allow_namespace(namespace)
            await self._operations.create(kind, namespace, deepcopy(verdict.manifest.obj), call)
        except ApiError as error:
            verdict.refuse(*_causes(error))
        for warning in call.warnings:
            if unknown := _UNKNOWN.fullmatch(warning):
                hint = meant(kind.resource.kind, unknown[1])
                verdict.refuse(Cause(unknown[1], INVALID, warning + (f"; did you mean {hint}?" if hint else "")))
        verdict.warnings = self._rules.warnings

    async def _allow_namespace(self, name: str) -> None:
        """Whether the namespace is there is not the manifest's fault."""
        store = self._operations.store
        if store.get("/namespaces", "", name) is None:
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            await store.write("/namespaces", "", name, namespace, base=None)


@asynccontextmanager
async def judging(cluster: Installation, served: Container[str] = ()) -> AsyncIterator[Judge]:
    own, rules = Kinds(), Rules(cluster)
    for definition in crds.definitions():
        for version in definition["spec"]["versions"]:
            own.add(custom_kind(definition["spec"], version))
    with tempfile.TemporaryDirectory(prefix="virtfleet-validate-") as directory:
        operations = Operations(Store(Path(directory)), own, rules)
        try:
            yield Judge(operations, rules, served)
        finally:
            await operations.store.close()


def _causes(error: ApiError) -> list[Cause]:
    causes: list[dict[str, Any]] = (error.details or {}).get("causes") or [{"message": error.message}]
    return [Cause(c.get("field", ""), c.get("reason", error.reason), c["message"]) for c in causes]
