"""The VM or VMI that a request is about, and the refusals that speak of it.

Objects are read from the API server for each request: whoever has just seen a VMI run may pause it at once. Codes and
the first words of refusals are KubeVirt's, because tools look for them; what to do about it is added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from virtfleet.api import names
from virtfleet.api.names import FINAL, Phase
from virtfleet.api.view import read
from virtfleet.api.vm import VirtualMachine
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.kube.api import KubeApi
from virtfleet.kube.errors import ApiError, ignoring, is_not_found
from virtfleet.kube.resource import VMIS, VMS, Obj, Resource

VM_NOT_RUNNING = "VM is not running"
VMI_NOT_RUNNING = "VMI is not running"


V = TypeVar("V", VirtualMachine, VirtualMachineInstance)


@dataclass(frozen=True, slots=True)
class _Vm(Generic[V]):
    """An object, as it is and as it is read."""

    object: Obj
    view: V

    @property
    def name(self) -> str:
        """Its name."""
        return self.view.metadata.name

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return self.view.metadata.namespace

    def patch(self, **changed: Obj) -> Obj:
        """A merge patch, which is refused where somebody else has changed it in between."""
        return {"metadata": {"resourceVersion": self.view.metadata.resource_version}, **changed}

    def conflict(self, why: str) -> ApiError:
        """It is not in the state that the request needs."""
        kind = (VMS if isinstance(self.view, VirtualMachine) else VMIS).kind.lower()
        message = f'Operation cannot be fulfilled on {kind}.{names.GROUP} "{self.name}": {why}'
        return ApiError("Conflict", message, details=_details(kind, self.name))

    def has(self, condition: str) -> bool:
        """Whether a condition holds."""
        return any(c.type == condition and c.status == "True" for c in self.view.status.conditions)


class Vm(_Vm[VirtualMachine]):
    """A VM."""

    @property
    def strategy(self) -> str:
        """Its run strategy, also where it is said in the old way."""
        spec = self.view.spec
        return spec.run_strategy or ("Always" if spec.running else "Halted")


class Vmi(_Vm[VirtualMachineInstance]):
    """A VMI."""

    @property
    def phase(self) -> str:
        """Its phase, empty at first."""
        return self.view.status.phase

    @property
    def running(self) -> bool:
        """Whether its guest runs."""
        return self.phase == Phase.RUNNING

    @property
    def final(self) -> bool:
        """Whether it is over."""
        return self.phase in FINAL


class Options(msgspec.Struct, rename="camel", kw_only=True):
    """The body of a request; any may ask that nothing is done."""

    dry_run: list[str] | None = None


@dataclass
class Vms:
    """Reads VMs and VMIs."""

    _api: KubeApi

    async def vm(self, namespace: str, name: str) -> Vm:
        """A VM. Raises ApiError where there is none."""
        obj = await self._get(VMS, namespace, name)
        return Vm(obj, read(VirtualMachine, obj))

    async def vmi(self, namespace: str, name: str) -> Vmi:
        """A VMI. Raises ApiError where there is none."""
        obj = await self._get(VMIS, namespace, name)
        return Vmi(obj, read(VirtualMachineInstance, obj))

    async def vmi_if_any(self, namespace: str, name: str) -> Vmi | None:
        """A VMI, if there is one."""
        with ignoring(is_not_found):
            return await self.vmi(namespace, name)
        return None

    async def vmi_of_vm(self, namespace: str, name: str) -> Vmi:
        """The instance that a VM runs now."""
        vm = await self.vm(namespace, name)
        vmi = await self.vmi_if_any(namespace, name)
        if vmi is None or vm.view.metadata.uid not in [o.uid for o in vmi.view.metadata.owner_references]:
            raise vm.conflict(f"VMI is not started; start it with virtctl start {name}")
        return vmi

    async def _get(self, resource: Resource, namespace: str, name: str) -> Obj:
        with ignoring(is_not_found):
            return await self._api.get(resource, name, namespace)
        kind = resource.kind.lower()
        message = f'{kind}.{names.GROUP} "{name}" not found in namespace {namespace}'
        raise ApiError("NotFound", message, details=_details(kind, name))


def bad_request(why: str) -> ApiError:
    """The request itself is wrong."""
    return ApiError("BadRequest", why)


def _details(kind: str, name: str) -> dict[str, Any]:
    return {"name": name, "group": names.GROUP, "kind": kind}
