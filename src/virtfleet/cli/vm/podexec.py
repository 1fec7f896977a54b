"""A command in a container of a Pod, and what it prints: the part of `kubectl exec` that other commands need."""

from __future__ import annotations

from urllib.parse import urlencode

import aiohttp

from virtfleet.kube.client import Client
from virtfleet.kube.resource import PODS

_PROTOCOL = "v4.channel.k8s.io"
_STDOUT = 1  # the first byte of a message says what it belongs to


async def output(api: Client, namespace: str, pod: str, container: str, *command: str) -> str:
    """Standard output of the command, whatever its exit code."""
    query = urlencode([("container", container), ("stdout", "true"), *(("command", word) for word in command)])
    printed = bytearray()
    async with api.websocket(f"{PODS.path(namespace, pod, 'exec')}?{query}", protocols=[_PROTOCOL]) as connection:
        async for message in connection:
            if message.type is aiohttp.WSMsgType.BINARY and message.data[:1] == bytes([_STDOUT]):
                printed += message.data[1:]
    return printed.decode(errors="replace")
