"""Admission webhooks: the last word on a write by servers that administrators registered.

Mutating webhooks are called one after the other, ordered by the name of their configuration; each sees what those
before it did. Validating ones are called all at once. What a webhook is asked and what it may answer is
AdmissionReview v1.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

import aiohttp
import orjson

from virtfleet.kube import proxy
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, Obj
from virtfleet.local.apiserver.extensions import services
from virtfleet.local.apiserver.extensions.admission import Admission, AdmissionRequest
from virtfleet.local.apiserver.extensions.webhook_rules import ExpressionError, Webhook, all_hold, follow
from virtfleet.local.apiserver.kinds.registry import Kind, Kinds
from virtfleet.local.apiserver.objects import json_patch
from virtfleet.local.apiserver.objects.store import Store
from virtfleet.local.apiserver.rights.reviews import user_info
from virtfleet.work.tasks import all_of

log = logging.getLogger(__name__)

_REVIEW = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}
_NO_LIMIT = aiohttp.ClientTimeout(total=None)  # the webhook's own holds for all attempts together


class CallFailed(Exception):
    """A webhook that gave no usable answer; whether that refuses the write is its failurePolicy's to say."""


class Webhooks(Admission):
    """The part of admission that asks webhooks. `session` reaches Services by name."""

    def __init__(self, store: Store, kinds: Kinds, session: aiohttp.ClientSession) -> None:
        self._store, self._kinds, self._session = store, kinds, session
        self._mutating: list[Webhook] = []
        self._validating: list[Webhook] = []
        for res, webhooks in ((MUTATING_WEBHOOKS, self._mutating), (VALIDATING_WEBHOOKS, self._validating)):
            follow(store, res, partial(_read, webhooks))

    # --- admission ---------------------------------------------------------------------------------------------------

    async def mutate(self, request: AdmissionRequest) -> Obj | None:
        """The object after all mutating webhooks."""
        for webhook, kind in self._matching(self._mutating, request):
            await self._mutate_by(webhook, kind, request)
        return request.obj

    async def validate(self, request: AdmissionRequest) -> None:
        """Ask all validating webhooks, at the same time."""
        asked = self._matching(self._validating, request)
        await all_of(*(self._ask(webhook, kind, request, mutating=False) for webhook, kind in asked))

    def _matching(self, webhooks: list[Webhook], request: AdmissionRequest) -> Iterator[tuple[Webhook, Kind]]:
        """The webhooks to ask, each with the version of the kind that it wants to see. Later ones see changes."""
        for webhook in list(webhooks):
            kind = webhook.matcher.kind_of(request, self._kinds, self._store)
            if kind and _concerns(webhook, kind, request):
                yield webhook, kind

    async def _mutate_by(self, webhook: Webhook, kind: Kind, request: AdmissionRequest) -> None:
        """Ask one webhook and apply its patch."""
        response = await self._ask(webhook, kind, request, mutating=True)
        patch = response.get("patch") if response else None
        if not patch:
            return
        if request.obj is None:
            why = "attempted to modify the object, which is not supported for this operation"
            raise _internal(f'admission webhook "{webhook.name}" {why}')
        try:
            changed = json_patch.apply(orjson.loads(orjson.dumps(request.obj)), json_patch.operations(patch))
        except json_patch.JsonPatchError as error:
            raise _internal(str(error)) from error
        # The webhook may have been shown another version than the one that is being written.
        request.obj = _in_version(changed, _form(request.kind, request.subresource))

    async def _ask(self, webhook: Webhook, kind: Kind, request: AdmissionRequest, *, mutating: bool) -> Obj | None:
        """The webhook's answer, which allows the request; None where it could not be had and that does not matter."""
        if request.dry_run and webhook.side_effects not in ("None", "NoneOnDryRun"):
            raise ApiError("BadRequest", f'admission webhook "{webhook.name}" does not support dry run')
        uid = str(uuid.uuid4())
        try:
            answer = await self._call(webhook, {**_REVIEW, "request": {"uid": uid, **described(kind, request)}})
            response = _checked(answer, uid, mutating=mutating)
        except CallFailed as error:
            message = f'failed calling webhook "{webhook.name}": {error}'
            if webhook.failure_policy == "Ignore":
                log.warning("%s; its failurePolicy is Ignore, so the request goes on", message)
                return None
            raise _internal(message) from error
        request.warnings += [str(w) for w in response.get("warnings") or ()]
        if response.get("allowed") is not True:
            raise _denied(webhook.name, response.get("status") or {})
        return response

    async def _call(self, webhook: Webhook, review: Obj) -> Any:
        try:
            context = services.trusting(webhook.ca_bundle)
        except (ssl.SSLError, ValueError) as error:
            raise CallFailed(f"could not get REST client: unable to load root certificates: {error}") from error
        url = f"{webhook.url}{'&' if '?' in webhook.url else '?'}timeout={webhook.timeout}s"
        body = orjson.dumps(review)
        try:
            async with asyncio.timeout(webhook.timeout):
                try:
                    return await self._post(url, body, context)
                except aiohttp.ServerDisconnectedError:
                    # A kept connection that the server had closed meanwhile. Asking again is harmless.
                    return await self._post(url, body, context)
        except TimeoutError as error:
            raise CallFailed(f'failed to call webhook: Post "{url}": context deadline exceeded') from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise CallFailed(f'failed to call webhook: Post "{url}": {proxy.explain(error)}') from error

    async def _post(self, url: str, body: bytes, context: ssl.SSLContext) -> Any:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        post = self._session.post(
            url, data=body, headers=headers, ssl=context, timeout=_NO_LIMIT, allow_redirects=False
        )
        async with post as answer:
            said = await answer.read()
            if answer.status != 200:
                excerpt = said[:200].decode(errors="replace").strip()
                raise CallFailed(f"failed to call webhook: the server answered {answer.status}: {excerpt}")
            return orjson.loads(said)


def _read(webhooks: list[Webhook], configurations: list[Obj]) -> None:
    webhooks[:] = [webhook for each in configurations for webhook in Webhook.of_configuration(each)]


def asked_of(kind: Kind, request: AdmissionRequest) -> Obj:
    """What a condition is asked about a write."""
    asked = described(kind, request)
    return {"request": asked, "object": asked["object"], "oldObject": asked["oldObject"]}


def _concerns(webhook: Webhook, kind: Kind, request: AdmissionRequest) -> bool:
    """Whether the webhook's own conditions let it be asked."""
    try:
        return not webhook.conditions or all_hold(webhook.conditions, asked_of(kind, request))
    except ExpressionError as error:
        if webhook.failure_policy == "Ignore":
            return False
        raise ApiError("Forbidden", f'webhook "{webhook.name}": its matchConditions have no answer: {error}') from error


def _form(kind: Kind, subresource: str) -> tuple[str, str, str]:
    """Group, version and kind of what is written."""
    resource = kind.resource
    return kind.subresource_kinds.get(subresource, (resource.group, resource.version, resource.kind))


def described(kind: Kind, request: AdmissionRequest) -> Obj:
    """A write as those who have a say in it see it, in the version of `kind`."""
    asked, shown = request.kind.resource, kind.resource
    form, asked_form = _form(kind, request.subresource), _form(request.kind, request.subresource)
    body: Obj = {
        "kind": dict(zip(("group", "version", "kind"), form, strict=True)),
        "resource": {"group": shown.group, "version": shown.version, "resource": shown.plural},
        "requestKind": dict(zip(("group", "version", "kind"), asked_form, strict=True)),
        "requestResource": {"group": asked.group, "version": asked.version, "resource": asked.plural},
        "name": request.name,
        "operation": request.operation,
        "userInfo": user_info(request.user),
        "object": _in_version(request.obj, form) if request.obj else None,
        "oldObject": _in_version(request.old, form) if request.old else None,
        "dryRun": request.dry_run,
        "options": request.options,
    }
    if request.namespace:
        body["namespace"] = request.namespace
    if request.subresource:
        body["subResource"] = body["requestSubResource"] = request.subresource
    return body


def _in_version(obj: Obj, form: tuple[str, str, str]) -> Obj:
    group, version, kind = form
    return {**obj, "apiVersion": f"{group}/{version}".removeprefix("/"), "kind": kind}


def _checked(answer: Any, uid: str, *, mutating: bool) -> Obj:
    """The response of an AdmissionReview, its patch decoded, or CallFailed with what is wrong with it."""

    def bad(why: str) -> CallFailed:
        return CallFailed(f"received invalid webhook response: {why}")

    if not isinstance(answer, dict) or not isinstance(answer.get("response"), dict):
        raise bad("webhook response was absent")
    response: Obj = dict(answer["response"])
    if response.get("uid") != uid:
        raise bad(f'expected response.uid="{uid}", got "{response.get("uid", "")}"')
    said = (answer.get("apiVersion"), answer.get("kind"))
    if said != ("admission.k8s.io/v1", "AdmissionReview"):
        expected = "admission.k8s.io/v1, Kind=AdmissionReview"
        raise bad(f"expected webhook response of {expected}, got {said[0] or ''}, Kind={said[1] or ''}")
    patch, patch_type = response.get("patch"), response.get("patchType")
    for is_wrong, why in (
        (not mutating and patch, "validating webhook may not return response.patch"),
        (not mutating and patch_type is not None, "validating webhook may not return response.patchType"),
        (patch and patch_type is None, "webhook returned response.patch but not response.patchType"),
        (not patch and patch_type is not None, "webhook returned response.patchType but not response.patch"),
    ):
        if is_wrong:
            raise bad(why)
    if patch and patch_type != "JSONPatch":
        raise CallFailed(f'unsupported patch type "{patch_type}"')
    if patch:
        try:
            response["patch"] = orjson.loads(base64.b64decode(patch, validate=True))
        except ValueError as error:
            raise CallFailed(f"received undecodable patch in webhook response: {error}") from error
    return response


def _denied(name: str, status: Obj) -> ApiError:
    denied = f'admission webhook "{name}" denied the request'
    why = status.get("message") or status.get("reason")
    message = f"{denied}: {why}" if why else f"{denied} without explanation"
    code = status.get("code") or 0
    code = code if code >= 400 else 400
    return ApiError(status.get("reason") or "", message, code=code, details=status.get("details"))


def _internal(message: str) -> ApiError:
    details = {"causes": [{"message": message}]}
    return ApiError("InternalError", f"Internal error occurred: {message}", details=details)
