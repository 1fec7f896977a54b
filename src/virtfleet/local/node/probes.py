"""Startup, liveness and readiness probes: how one is carried out, and when its results count."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import aiohttp

from virtfleet.kube.resource import Obj

_MAX_ANSWER = 10 * 1024
_USER_AGENT = "kube-probe/virtfleet"

Execute = Callable[[Sequence[str], float], Awaitable[tuple[int, str]]]  # argv, timeout -> exit code, output


class ProbeFailure(Exception):
    """The probe was carried out, and the answer is no."""


@dataclass(slots=True)
class Tally:
    """Counts results in a row and tells when they count."""

    success_threshold: int = 1
    failure_threshold: int = 3
    _last: bool | None = None
    _row: int = 0

    def count(self, success: bool) -> bool:
        """Take in one result; True when its threshold is reached (again)."""
        self._row = self._row + 1 if success == self._last else 1
        self._last = success
        return self._row >= (self.success_threshold if success else self.failure_threshold)


async def attempt(probe: Obj, container: Obj, address: str, execute: Execute) -> None:
    """Once. Raises ProbeFailure with the words that the event will have."""
    timeout = float(probe.get("timeoutSeconds") or 1)
    if "exec" in probe:
        try:
            code, output = await execute(probe["exec"].get("command") or [], timeout)
        except TimeoutError:
            raise ProbeFailure(f"command timed out after {timeout:g}s") from None
        if code:
            raise ProbeFailure(output.strip() or f"command exited with {code}")
    elif "httpGet" in probe:
        await _http_get(probe["httpGet"], container, address, timeout)
    elif "tcpSocket" in probe:
        await _tcp(probe["tcpSocket"], container, address, timeout)
    else:
        raise ProbeFailure("the probe has no handler that this node knows")


async def _http_get(action: Obj, container: Obj, address: str, timeout: float) -> None:
    host, port = action.get("host") or address, _port(action["port"], container)
    scheme, path = (action.get("scheme") or "HTTP").lower(), "/" + (action.get("path") or "/").lstrip("/")
    headers = {"User-Agent": _USER_AGENT, "Accept": "*/*"}
    headers |= {header["name"]: header["value"] for header in action.get("httpHeaders") or ()}
    url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{path}"
    limit = aiohttp.ClientTimeout(total=timeout)
    try:
        async with (
            aiohttp.ClientSession(timeout=limit, headers=headers, auto_decompress=False) as session,
            # The certificate is the container's own business: the probe asks whether it answers.
            session.get(url, ssl=False, allow_redirects=False) as answer,
        ):
            await answer.content.read(_MAX_ANSWER)
            if not 200 <= answer.status < 400:
                raise ProbeFailure(f"HTTP probe failed with statuscode: {answer.status}")
    except TimeoutError:
        raise ProbeFailure(f'Get "{url}": context deadline exceeded (Client.Timeout exceeded)') from None
    except (aiohttp.ClientError, OSError) as error:
        raise ProbeFailure(f'Get "{url}": {error}') from None


async def _tcp(action: Obj, container: Obj, address: str, timeout: float) -> None:
    host, port = action.get("host") or address, _port(action["port"], container)
    try:
        async with asyncio.timeout(timeout):
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
    except TimeoutError:
        raise ProbeFailure(f"dial tcp {host}:{port}: i/o timeout") from None
    except (OSError, socket.gaierror) as error:
        raise ProbeFailure(f"dial tcp {host}:{port}: {error}") from None


def _port(port: int | str, container: Obj) -> int:
    """A port of a probe, which may be the name of one of the container's."""
    if isinstance(port, int) or port.isdigit():
        return int(port)
    for declared in container.get("ports") or ():
        if declared.get("name") == port:
            return int(declared["containerPort"])
    raise ProbeFailure(f"the container has no port named {port!r}")
