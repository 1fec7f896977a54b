"""The health of one running container: its startup probe, then liveness and readiness."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import aiohttp

from virtfleet.kube.resource import Obj
from virtfleet.local.node.containers import Container
from virtfleet.local.node.runtime import Runtime
from virtfleet.work import tasks

_MAX_ANSWER = 10 * 1024
_USER_AGENT = "kube-probe/virtfleet"
Wake = Callable[[], None]
Tell = Callable[[str, str], None]  # an event's reason and message


class _Failure(Exception):
    """The probe was carried out, and the answer is no."""


class Health:
    """`started`, `ready` and `unhealthy` are current; `wake` is called when one of them has changed.

    `known` is the status that an earlier agent wrote of this very run.
    """

    def __init__(
        self, runtime: Runtime, container: Obj, run: Container, address: str, wake: Wake, warn: Tell, known: Obj
    ) -> None:
        self._runtime, self._container, self._run, self._address = runtime, container, run, address
        self._wake, self._warn = wake, warn
        self.started = bool(known.get("started")) or not container.get("startupProbe")
        self.ready = bool(known.get("ready")) or (self.started and not container.get("readinessProbe"))
        self.unhealthy = ""
        self._task = tasks.keep(self._live, f"health: {run.name}")

    def stop(self) -> None:
        self._task.cancel()

    async def _live(self) -> None:
        if not self.started:
            await self._probe("startup")
            if self.unhealthy:
                return
        self.started = True
        self.ready = self.ready or not self._container.get("readinessProbe")
        self._wake()
        async with asyncio.TaskGroup() as group:
            for kind in ("liveness", "readiness"):
                if self._container.get(f"{kind}Probe"):
                    group.create_task(self._probe(kind))

    async def _probe(self, kind: str) -> None:
        """Ask as long as the answer can change anything. An answer counts when it was given often enough in a row."""
        probe = self._container[f"{kind}Probe"]
        enough = {True: probe.get("successThreshold") or 1, False: probe.get("failureThreshold") or 3}
        last, row = False, 0
        await asyncio.sleep(probe.get("initialDelaySeconds") or 0)
        while True:
            good = await self._succeeds(kind, probe)
            last, row = good, row + 1 if good == last else 1
            counts = row >= enough[good]
            if counts and kind == "readiness" and self.ready != good:
                self.ready = good
                self._wake()
            elif counts and kind != "readiness" and not good:
                self.unhealthy = f"Container {self._run.name} failed {kind} probe, will be restarted"
                self._wake()
                return
            elif counts and kind == "startup":
                return
            # Many containers of one node begin at one moment; their probes need not stay in step.
            await asyncio.sleep((probe.get("periodSeconds") or 10) * random.uniform(0.95, 1.05))

    async def _succeeds(self, kind: str, probe: Obj) -> bool:
        timeout = float(probe.get("timeoutSeconds") or 1)
        try:
            if "exec" in probe:
                await self._execute(probe["exec"].get("command") or [], timeout)
            elif "httpGet" in probe:
                await self._http_get(probe["httpGet"], timeout)
            else:
                await self._tcp(probe["tcpSocket"], timeout)
        except _Failure as failure:
            self._warn("Unhealthy", f"{kind.capitalize()} probe failed: {failure}")
            return False
        return True

    async def _execute(self, command: list[str], timeout: float) -> None:
        try:
            code, output = await self._runtime.run_in(self._run, command, timeout)
        except TimeoutError:
            raise _Failure(f"command timed out after {timeout:g}s") from None
        if code:
            raise _Failure(output.strip() or f"command exited with {code}")

    async def _http_get(self, action: Obj, timeout: float) -> None:
        host, port = self._target(action)
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
                    raise _Failure(f"HTTP probe failed with statuscode: {answer.status}")
        except TimeoutError:
            raise _Failure(f'Get "{url}": context deadline exceeded (Client.Timeout exceeded)') from None
        except (aiohttp.ClientError, OSError) as error:
            raise _Failure(f'Get "{url}": {error}') from None

    async def _tcp(self, action: Obj, timeout: float) -> None:
        host, port = self._target(action)
        try:
            async with asyncio.timeout(timeout):
                _, writer = await asyncio.open_connection(host, port)
                writer.close()
        except TimeoutError:
            raise _Failure(f"dial tcp {host}:{port}: i/o timeout") from None
        except OSError as error:
            raise _Failure(f"dial tcp {host}:{port}: {error}") from None

    def _target(self, action: Obj) -> tuple[str, int]:
        """Where to ask. The port may be the name of one of the container's."""
        host, port = action.get("host") or self._address, action["port"]
        ports = self._container.get("ports") or ()
        try:
            return host, int(next((each["containerPort"] for each in ports if each.get("name") == port), port))
        except ValueError:
            raise _Failure(f"the container has no port named {port!r}") from None
