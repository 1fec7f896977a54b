"""The aggregated API `subresources.kubevirt.io`: from a request to whoever carries it out.

Each request passes the same gates: it comes from the API server's front proxy, and the user whom that names may ask for
this subresource of this object. Only then is anything looked at.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import orjson
from aiohttp import hdrs, web

import virtfleet
from virtfleet.admission import shape
from virtfleet.admission.findings import Findings
from virtfleet.api import names
from virtfleet.api.subresources import GROUP, TABLE, VERSIONS, VM, Server, Subresource
from virtfleet.gateway import authorization, discovery, objectgraph, portforward, volumes
from virtfleet.gateway.frontproxy import FrontProxy, answer, failure
from virtfleet.gateway.handlers import Handlers
from virtfleet.gateway.instancetypes import TypedVms
from virtfleet.gateway.knowledge import Knowledge, NotYet
from virtfleet.gateway.moving import EvacuateCancelOptions, MigrateOptions, Moving
from virtfleet.gateway.power import Power, RestartOptions, StartOptions, StopOptions
from virtfleet.gateway.preconditions import CHECKS
from virtfleet.gateway.vms import Options, Vm, Vmi, Vms, bad_request
from virtfleet.installation import Installation
from virtfleet.instancetypes.applying import Conflict
from virtfleet.kube.api import KubeApi
from virtfleet.kube.errors import ApiError, is_conflict
from virtfleet.kube.resource import VMS, Obj

log = logging.getLogger(__name__)

T = TypeVar("T", bound=msgspec.Struct)
_ATTEMPTS = 5
# What VirtFleet does not do yet, and what to do instead.
_NO_SEV = "SEV attestation is not there yet; start the VM without launchSecurity.sev.attestation"

INSTEAD = {
    "memorydump": "memory cannot be dumped to a claim yet; use a crash dump of the guest's own",
    "removememorydump": "memory cannot be dumped to a claim yet, so there is no dump to forget",
    "backup": "backups are not there yet; copy the disks inside the guest, or their claims while the VM is stopped",
    "redefine-checkpoint": "backups are not there yet, and neither are checkpoints",
    "sev/fetchcertchain": _NO_SEV,
    "sev/querylaunchmeasurement": _NO_SEV,
    "sev/setupsession": _NO_SEV,
    "sev/injectlaunchsecret": _NO_SEV,
}
# What KubeVirt's clients read without looking for a Status: of a conflict they show no words but those of a plain 500.
_RAW = ("guestosinfo",)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that passed the gates."""

    request: web.Request
    subresource: Subresource
    namespace: str
    name: str

    async def options(self, form: type[T]) -> T:
        """The body, which may be missing."""
        body = await self.request.read()
        try:
            return msgspec.json.decode(body or b"{}", type=form)
        except msgspec.MsgspecError as error:
            raise bad_request(f"Can not unmarshal Request body to struct, error: {error}") from error


Serve = Callable[[Asked], Awaitable[web.StreamResponse]]


class Subresources:
    """`routes` of virt-api. What it needs of others is given to it; run their caches."""

    def __init__(self, api: KubeApi, front_proxy: FrontProxy, handlers: Handlers, knowledge: Knowledge) -> None:
        self._api = api
        self._front_proxy = front_proxy
        self._handlers = handlers
        self._knowledge = knowledge
        self._typed = TypedVms(api)
        self._vms = vms = Vms(api)
        self._moving = Moving(api, vms, knowledge)
        power, plugging = Power(api, vms), volumes.Plugging(api, vms)
        self._own: dict[str, Serve] = {  # of VMs and VMIs alike
            "portforward": self._port_forward,
            "start": self._accepted(power.start, StartOptions),
            "stop": self._accepted(power.stop, StopOptions),
            "restart": self._accepted(power.restart, RestartOptions),
            "migrate": self._accepted(self._moving.migrate, MigrateOptions),
            "evacuate/cancel": self._cancel_evacuation,
            "addvolume": self._plugged(plugging.add, volumes.AddVolumeOptions),
            "removevolume": self._plugged(plugging.remove, volumes.RemoveVolumeOptions),
            "objectgraph": self._object_graph,
            "expand-spec": self._expand,
            "expand-vm-spec": self._expand_sent,
            "version": self._version,
            "guestfs": self._guestfs,
            "healthz": self._healthz,
        }

    def routes(self) -> list[web.RouteDef]:
        """Documents, and all subresources in all versions."""
        documents: dict[str, Any] = {
            "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [discovery.group()]},
            f"/apis/{GROUP}": discovery.group(),
            "/openapi/v2": discovery.swagger(),
            "/openapi/v3": discovery.openapi_index(),
        }
        served = []
        for version in VERSIONS:
            root = f"/apis/{GROUP}/{version}"
            documents |= {
                root: discovery.resources(version),
                f"/openapi/v3{root}": orjson.Fragment(discovery.openapi(version)),
            }
            for entry in TABLE:
                serve = self._guarded(entry, version)
                served += [web.route(entry.method, root + path, serve) for path in entry.paths()]
        written = {path: orjson.dumps(document) for path, document in documents.items()}
        return [*(self._front_proxy.document(path, body) for path, body in written.items()), *served]

    def _guarded(self, entry: Subresource, version: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        otherwise = self._ask_handler if entry.server is Server.HANDLER else _refuse
        serve = self._own.get(entry.name or entry.resource, otherwise)

        async def guarded(request: web.Request) -> web.StreamResponse:
            namespace, name = request.match_info.get("namespace", ""), request.match_info.get("name", "")
            try:
                user = self._front_proxy.user(request)
                await authorization.require(self._api, user, entry, version, namespace, name)
                if entry.websocket and request.headers.get(hdrs.UPGRADE, "").lower() != "websocket":
                    raise bad_request(f"{entry.rbac} is a stream; open it as a websocket, for example with virtctl")
                log.info("%s %s of %s/%s for %s", entry.verb, entry.rbac, namespace, name, user.name)
                return await serve(Asked(request, entry, namespace, name))
            except ApiError as error:
                if entry.name in _RAW and is_conflict(error):
                    return web.Response(text=error.message, status=500)
                return failure(error)
            except NotYet as why:
                return failure(ApiError("ServiceUnavailable", str(why)))
            except ConnectionError:
                # The client is gone, or a stream that is passed on broke off, which must not look like its end.
                if request.transport is not None:
                    request.transport.abort()
                return web.Response(status=499)
            except Exception as error:
                log.exception("%s %s failed", request.method, request.path)
                return failure(ApiError("InternalError", f"Internal error occurred: {error}"))

        return guarded

    # --- carried out by the handler of the VMI's node

    async def _ask_handler(self, asked: Asked) -> web.StreamResponse:
        body = None if asked.subresource.websocket else await asked.request.read()
        vmi = await self._vms.vmi(asked.namespace, asked.name)
        CHECKS[asked.subresource.name](vmi)
        if body and (await asked.options(Options)).dry_run:
            return web.Response(status=202)
        return await self._handlers.forward(asked.request, vmi, asked.subresource.name, body)

    # --- carried out here

    async def _port_forward(self, asked: Asked) -> web.StreamResponse:
        return await portforward.forward(asked.request, await self._vmi(asked), self._api)

    def _accepted(self, carry_out: Callable[[str, str, T], Awaitable[None]], form: type[T]) -> Serve:
        """What is asked of a VM by its name, and carried out later."""

        async def serve(asked: Asked) -> web.StreamResponse:
            await carry_out(asked.namespace, asked.name, await asked.options(form))
            return web.Response(status=202)

        return serve

    async def _cancel_evacuation(self, asked: Asked) -> web.StreamResponse:
        options = await asked.options(EvacuateCancelOptions)
        await self._moving.cancel_evacuation(await self._vmi(asked), options)
        return web.Response()

    def _plugged(self, carry_out: Callable[[Vm | Vmi, T, Installation], Awaitable[None]], form: type[T]) -> Serve:
        async def serve(asked: Asked) -> web.StreamResponse:
            """A change that lost a race is decided anew, by what there is then."""
            options = await asked.options(form)
            for left in reversed(range(_ATTEMPTS)):
                machine = await self._machine(asked)
                try:
                    await carry_out(machine, options, self._knowledge.cluster())
                    break
                except ApiError as error:
                    if not left or not is_conflict(error):
                        raise
            return web.Response(status=202)

        return serve

    async def _object_graph(self, asked: Asked) -> web.StreamResponse:
        options = await asked.options(objectgraph.ObjectGraphOptions)
        machine = await self._machine(asked)
        if isinstance(machine, Vmi):
            return answer(objectgraph.of_vmi(machine, options))
        return answer(objectgraph.of_vm(machine, await self._vms.vmi_if_any(asked.namespace, asked.name), options))

    async def _expand(self, asked: Asked) -> web.StreamResponse:
        vm = await self._vms.vm(asked.namespace, asked.name)
        return await self._expanded(vm.object, "InternalError", "Internal error occurred: ")

    async def _expand_sent(self, asked: Asked) -> web.StreamResponse:
        return await self._expanded(_vm_sent(await asked.request.read(), asked.namespace), "BadRequest")

    async def _expanded(self, vm: Obj, otherwise: str, words: str = "") -> web.StreamResponse:
        """A VM that cannot be expanded is the request's fault where it was sent, as in KubeVirt."""
        try:
            return answer(await self._typed.standing_alone(vm, self._knowledge.cluster()))
        except (ApiError, Conflict) as error:
            raise ApiError(otherwise, f"{words}{error}") from error

    async def _version(self, asked: Asked) -> web.StreamResponse:
        made_with = f"{platform.python_implementation()} {platform.python_version()}"
        runs_on = f"linux/{names.ARCHITECTURES.get(platform.machine(), platform.machine())}"
        unknown = dict.fromkeys(("gitCommit", "gitTreeState", "buildDate", "goVersion"), "")
        version = f"v{virtfleet.__version__}"
        return answer({"gitVersion": version, **unknown, "compiler": made_with, "platform": runs_on})

    async def _guestfs(self, asked: Asked) -> web.StreamResponse:
        cluster = self._knowledge.cluster()
        return answer(
            {"registry": cluster.registry, "tag": cluster.tag, "digest": "", "imagePrefix": "", "gsImage": ""}
        )

    async def _healthz(self, asked: Asked) -> web.StreamResponse:
        why = self._knowledge.missing()
        state = {"connectivity": "failed", "error": why} if why else {"connectivity": "ok"}
        return answer({"apiserver": state}, status=500 if why else 200)

    async def _vmi(self, asked: Asked) -> Vmi:
        """The instance that the request is about, if by its VM or by itself."""
        of_vm = asked.subresource.resource == VM
        return await (self._vms.vmi_of_vm if of_vm else self._vms.vmi)(asked.namespace, asked.name)

    async def _machine(self, asked: Asked) -> Vm | Vmi:
        of_vm = asked.subresource.resource == VM
        return await (self._vms.vm if of_vm else self._vms.vmi)(asked.namespace, asked.name)


async def _refuse(asked: Asked) -> web.StreamResponse:
    raise bad_request(INSTEAD[asked.subresource.name])


def _vm_sent(body: bytes, namespace: str) -> Obj:
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
