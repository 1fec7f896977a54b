"""Ends a container in grace: its preStop hook, its stop signal, time to finish, and only then the hard way."""

from __future__ import annotations

import asyncio
import signal
import time

from virtfleet.kube.resource import Obj
from virtfleet.local.node.containers import UNKNOWN_EXIT, Container
from virtfleet.local.node.probes import ProbeFailure, http_get
from virtfleet.local.node.runtime import Runtime

_LEAST = 2.0  # seconds that a container has after its signal, however long its hook took
_KILL_PATIENCE = 30.0  # a process in the kernel's hands may take a while even then


class HookFailure(Exception):
    """A lifecycle hook did not succeed."""


async def stop(runtime: Runtime, container: Obj, run: Container, grace: float, address: str) -> str:
    """End the container within `grace` seconds. The answer is what went wrong with its hook, if anything did."""
    trouble, deadline = "", time.monotonic() + grace
    hook = (container.get("lifecycle") or {}).get("preStop")
    if hook and grace > 0 and not run.finished:
        try:
            await run_hook(runtime, hook, container, run, address, grace)
        except HookFailure as error:
            trouble = f"PreStopHook failed: {error}"
    if grace > 0:
        runtime.kill(run, run.stop_number)
        await runtime.wait(run, max(_LEAST, deadline - time.monotonic()))
    if not run.finished:
        runtime.kill(run, signal.SIGKILL)
        if not await runtime.wait(run, _KILL_PATIENCE):
            run.fail(time.time(), UNKNOWN_EXIT, "ContainerStatusUnknown", "The container did not end when killed")
    return trouble


async def run_hook(runtime: Runtime, hook: Obj, container: Obj, run: Container, address: str, timeout: float) -> None:
    """postStart or preStop."""
    try:
        if "exec" in hook:
            code, output = await runtime.run_in(run, hook["exec"].get("command") or [], timeout)
            if code:
                raise HookFailure(f"command exited with {code}: {output.strip()}")
        elif "httpGet" in hook:
            await http_get(hook["httpGet"], container, address, timeout)
        elif "sleep" in hook:
            await runtime.wait(run, min(float(hook["sleep"]["seconds"]), timeout))
    except TimeoutError:
        raise HookFailure(f"not done after {timeout:g}s") from None
    except (ProbeFailure, OSError, asyncio.IncompleteReadError) as error:
        raise HookFailure(str(error)) from None
