"""How others check this cluster's service-account tokens: the OpenID documents with the issuer and its public keys."""

from __future__ import annotations

import orjson
from aiohttp import web

from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.discovery import Document
from virtfleet.local.apiserver.tokens import ISSUER, SigningKeys

_JWKS = "/openid/v1/jwks"


class OpenId:
    """`url` is where clients reach the API server."""

    def __init__(self, keys: SigningKeys, url: str) -> None:
        self._documents: dict[str, tuple[Obj, str]] = {
            _JWKS: (keys.jwks(), "application/jwk-set+json"),
            "/.well-known/openid-configuration": (
                {
                    "issuer": ISSUER,
                    "jwks_uri": url + _JWKS,
                    "response_types_supported": ["id_token"],
                    "subject_types_supported": ["public"],
                    "id_token_signing_alg_values_supported": ["ES256"],
                },
                "application/json",
            ),
        }

    def handler(self, path: str) -> Document | None:
        return self._answer if path in self._documents else None

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        document, content_type = self._documents[request.path.rstrip("/")]
        return web.Response(body=orjson.dumps(document), content_type=content_type)
