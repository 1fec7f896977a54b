"""Uploads of disks, as far as `virtctl image-upload` goes, where CDI is not installed.

Whoever may create an UploadTokenRequest in a namespace gets a token for one claim of it, good for some minutes.
With that anybody who reaches virt-api sends an image, and virt-api hands it on to the importer that waits for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import struct
import time
from dataclasses import dataclass
from typing import Final

import msgspec
import orjson
from aiohttp import hdrs, web

from virtfleet.api import names
from virtfleet.api.kinds import DATA_VOLUME
from virtfleet.gateway.frontproxy import FrontProxy, answer, telling
from virtfleet.kube import certificates
from virtfleet.kube.api import KubeApi
from virtfleet.kube.component import MountedCredential
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import PERSISTENT_VOLUME_CLAIMS, PODS, Obj
from virtfleet.pods.importer import pod_name
from virtfleet.protocol import importing

log = logging.getLogger(__name__)

VERSION: Final = DATA_VOLUME.versions[0]
TOKENS: Final = "uploadtokenrequests"
_KIND: Final = "UploadTokenRequest"
_GROUP_VERSION: Final = f"{names.CDI_UPLOADS}/{VERSION}"
_PLACES: Final = (f"/{VERSION}/upload", f"/{VERSION}/upload-async")
_LIFE: Final = 300  # seconds of a token
_DIAL: Final = 10.0
_PATIENCE: Final = 3600.0  # seconds in which an importer makes a disk of what it has got
_LENGTH: Final = struct.Struct(">I")
_LONGEST_ANSWER: Final = 1 << 16


class _Spec(msgspec.Struct, rename="camel"):
    pvc_name: str = ""


class _Request(msgspec.Struct):
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _Answer(msgspec.Struct):
    done: bool = False
    message: str = ""


@dataclass
class Uploads:
    """`routes` of virt-api."""

    _api: KubeApi
    _front_proxy: FrontProxy
    _credential: MountedCredential

    def routes(self) -> list[web.RouteDef]:
        root = f"/apis/{_GROUP_VERSION}"
        return [
            self._front_proxy.document(f"/apis/{names.CDI_UPLOADS}", orjson.dumps(group())),
            self._front_proxy.document(root, orjson.dumps(_resources())),
            web.post(f"{root}/namespaces/{{namespace}}/{TOKENS}", telling(self._token)),
            *(web.post(place, telling(self._upload)) for place in _PLACES),
            *(web.head(place, telling(self._asked)) for place in _PLACES),
        ]

    # -- tokens

    @property
    def _key(self) -> bytes:
        """What tokens are signed with: something that all virt-apis have and nobody else."""
        return hashlib.sha256(b"upload tokens\n" + self._credential.current().key).digest()

    async def _token(self, request: web.Request) -> web.StreamResponse:
        """For whom the API server lets through, which is whoever may create them."""
        import jwt  # brings a whole library of cryptography along, 9 MiB, and few clusters need it

        namespace = request.match_info["namespace"]
        user = self._front_proxy.user(request)
        body = await request.read()
        try:
            claim = msgspec.json.decode(body, type=_Request).spec.pvc_name
            made = orjson.loads(body)
        except msgspec.MsgspecError as error:
            raise ApiError("BadRequest", f"the request cannot be read: {error}") from None
        if not claim:
            raise ApiError("BadRequest", "spec.pvcName: name the claim that is uploaded to")
        there = await self._api.get(PERSISTENT_VOLUME_CLAIMS, claim, namespace)
        _check_open(there)
        log.info("token for uploads to %s/%s for %s", namespace, claim, user.name)
        claims = {"ns": namespace, "claim": claim, "uid": there["metadata"]["uid"], "exp": int(time.time()) + _LIFE}
        token = jwt.encode(claims, self._key, algorithm="HS256")
        made |= {"apiVersion": _GROUP_VERSION, "kind": _KIND, "status": {"token": token}}
        made["metadata"] = {**(made.get("metadata") or {}), "namespace": namespace}
        return answer(made, 201)

    def _claim(self, request: web.Request) -> dict[str, str]:
        import jwt

        scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        try:
            if scheme.lower() != "bearer":
                raise jwt.InvalidTokenError("no token")
            claims: dict[str, str] = jwt.decode(
                token, self._key, algorithms=["HS256"], options={"require": ["exp", "ns", "claim", "uid"]}
            )
        except jwt.InvalidTokenError as error:
            raise ApiError("Unauthorized", f"the upload token is not good: {error}; ask for another one") from None
        return claims

    async def _asked(self, request: web.Request) -> web.StreamResponse:
        """Whether uploads are taken here."""
        self._claim(request)
        return web.Response()

    # -- data

    async def _upload(self, request: web.Request) -> web.StreamResponse:
        try:
            await self._hand_on(request, self._claim(request))
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            log.warning("an upload broke off: %s", error)
            why = f"the importer does not answer: {error}; upload again"
            raise ApiError("ServiceUnavailable", why) from error
        return web.Response()

    async def _hand_on(self, request: web.Request, claims: dict[str, str]) -> None:
        name, namespace = claims["claim"], claims["ns"]
        claim = await self._api.get(PERSISTENT_VOLUME_CLAIMS, name, namespace)
        if claim["metadata"]["uid"] != claims["uid"]:
            raise ApiError("Conflict", f"claim {name} is another one by now; ask for another token")
        _check_open(claim)
        pod = await self._api.get(PODS, pod_name(name, claims["uid"]), namespace)
        address = (pod.get("status") or {}).get("podIP") or ""
        if not address:
            raise ApiError("ServiceUnavailable", f"the importer of claim {name} does not run yet; upload again")
        # The importer's certificate vouches for nothing; it is found by the address that its node gave it.
        context = certificates.client_context(credential=self._credential.current(), insecure=True)
        async with asyncio.timeout(_DIAL):
            reader, writer = await asyncio.open_connection(address, importing.PORT, ssl=context)
        try:
            try:
                async for piece in request.content.iter_chunked(importing.MOST_AT_ONCE):
                    writer.write(_LENGTH.pack(len(piece)) + piece)
                    await writer.drain()
                writer.write(_LENGTH.pack(0))
                await writer.drain()
            except ConnectionError:
                log.debug("the importer of %s/%s has heard enough", namespace, name)  # and says why
            async with asyncio.timeout(_PATIENCE):
                (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                if length > _LONGEST_ANSWER:
                    raise ApiError("InternalError", "the importer's answer is too long")
                said = msgspec.json.decode(await reader.readexactly(length), type=_Answer)
        finally:
            writer.close()
        if not said.done:
            raise ApiError("BadRequest", said.message)


def _check_open(claim: Obj) -> None:
    meta = claim["metadata"]
    notes = meta.get("annotations") or {}
    if names.UPLOAD_TARGET not in notes:
        raise ApiError("BadRequest", f"claim {meta['name']} does not wait for an upload")
    if notes.get(names.FILLING_PHASE) == "Succeeded":
        raise ApiError("Conflict", f"claim {meta['name']} is filled already")


def group() -> Obj:
    """The group, for discovery."""
    version = {"groupVersion": _GROUP_VERSION, "version": VERSION}
    return {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": names.CDI_UPLOADS,
        "versions": [version],
        "preferredVersion": version,
    }


def _resources() -> Obj:
    tokens = {"name": TOKENS, "singularName": _KIND.lower(), "namespaced": True, "kind": _KIND, "verbs": ["create"]}
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": _GROUP_VERSION, "resources": [tokens]}
