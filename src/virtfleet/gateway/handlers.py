"""The way to the virt-handler of a VMI's node.

Both sides prove who they are: virt-api with its client certificate, the handler with a certificate of the
installation's authority for the name virt-handler. Whatever else answers at the address, another component with its own
certificate included, is not spoken to.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from datetime import UTC, datetime
from functools import lru_cache

import aiohttp
import msgspec
from aiohttp import web
from multidict import CIMultiDict

from virtfleet.api import names
from virtfleet.gateway.vms import Vmi
from virtfleet.kube import certificates, proxy
from virtfleet.kube.api import KubeApi
from virtfleet.kube.cache import Cache
from virtfleet.kube.certificates import Credential
from virtfleet.kube.component import MountedCredential
from virtfleet.kube.errors import ApiError
from virtfleet.kube.pods import PodView
from virtfleet.kube.resource import PODS, VMIS

log = logging.getLogger(__name__)

VIRT_HANDLER = "virt-handler"
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_PATIENCE = 30.0  # seconds in which a handler answers what is no stream; it waits less for its launchers
_HANDOVER = 10.0  # seconds that a node may be without a handler, which take a second or two as a rule
# A handler has no use for anything else that a client sends, least of all for words about users.
_PASSED_ON = ("accept", "content-type", "sec-websocket-")


def _age(pod: PodView) -> datetime:
    return pod.metadata.creation_timestamp or _LONG_AGO


def _started(pod: PodView) -> bool:
    return not pod.ending and any(c.name == VIRT_HANDLER and c.started for c in pod.status.container_statuses)


class Handlers:
    """Run `pods`. `namespace` is that of the installation, `credential` virt-api's own."""

    def __init__(
        self, api: KubeApi, namespace: str, credential: MountedCredential, session: aiohttp.ClientSession, port: int
    ) -> None:
        self.pods: Cache[PodView] = Cache(
            api,
            PODS,
            namespace=namespace,
            labels=f"{names.APP_LABEL}={VIRT_HANDLER}",
            decode=msgspec.json.Decoder(PodView).decode,
            indexes={"node": lambda pod: (pod.node,)},
        )
        self._news = asyncio.Event()
        self.pods.on_change(lambda *_: self._news.set())
        self._credential = credential
        self._session = session
        self._port = port

    async def forward(
        self, request: web.Request, vmi: Vmi, subresource: str, body: bytes | None = None
    ) -> web.StreamResponse:
        """Let the handler of the VMI's node answer. `body` is the request's; a stream has none."""
        node = vmi.view.status.node_name
        path = f"/v1/namespaces/{vmi.namespace}/{VMIS.plural}/{vmi.name}/{subresource}"
        query = f"?{request.query_string}" if request.query_string else ""
        headers = CIMultiDict((k, v) for k, v in request.headers.items() if k.lower().startswith(_PASSED_ON))
        try:
            return await proxy.forward(
                request,
                self._session,
                f"https://{await self._address(node)}:{self._port}{path}{query}",
                ssl=_tls(self._credential.current()),
                server_name=VIRT_HANDLER,
                headers=headers,
                body=body,
                patience=None if body is None else _PATIENCE,
            )
        except ApiError as error:
            log.warning("%s of VMI %s/%s: %s", subresource, vmi.namespace, vmi.name, error.message)
            raise

    def missing(self) -> str:
        """Why not every handler can be found, or nothing."""
        return "" if self.pods.synced.is_set() else "the virt-handlers have not been read yet"

    async def _address(self, node: str) -> str:
        """That of the node's handler. One that is being replaced is waited for, so that nobody notices it."""
        try:
            async with asyncio.timeout(_HANDOVER):
                while not (acting := self._acting(node)):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            # One that does not reach the API server is not ready, and serves its VMs all the same; whoever only waits
            # for the node came after it, and says so.
            here = [pod for pod in self.pods.by_index("node", node) if pod.status.pod_ip and _started(pod)]
            acting = sorted(here, key=_age)[:1]
        if not acting:
            raise ApiError(
                "ServiceUnavailable",
                f"no virt-handler is ready on node {node}; "
                f"see kubectl get pods -A -o wide -l {names.APP_LABEL}={VIRT_HANDLER}",
            )
        # Where the API server shows two for a moment, the younger one is taking over.
        address = max(acting, key=_age).status.pod_ip
        return f"[{address}]" if ":" in address else address

    def _acting(self, node: str) -> list[PodView]:
        return [pod for pod in self.pods.by_index("node", node) if pod.ready and pod.status.pod_ip]


@lru_cache(1)
def _tls(credential: Credential) -> ssl.SSLContext:
    return certificates.client_context(credential.bundle, credential)
