"""What the server says about itself: health and version."""

from __future__ import annotations

import platform
from collections.abc import Mapping

from aiohttp import web

from virtfleet import __version__
from virtfleet.api.names import ARCHITECTURES
from virtfleet.kube.resource import Obj

HEALTH = ("/livez", "/readyz", "/healthz")
KUBERNETES_MINOR = 36  # whose behaviour this server follows


def health(name: str, troubles: Mapping[str, str], verbose: bool) -> web.Response:
    """`ok`, or check by check what is and what is not. A trouble that is empty is none."""
    passed = not any(troubles.values())
    if passed and not verbose:
        return web.Response(text="ok")
    lines = [f"[-]{check} failed: {why}" if why else f"[+]{check} ok" for check, why in troubles.items()]
    lines.append(f"{name} check {'passed' if passed else 'failed'}")
    return web.Response(text="\n".join(lines) + "\n", status=200 if passed else 500)


def version() -> Obj:
    """The version of Kubernetes that this is, in a way."""
    machine = platform.machine()
    return {
        "major": "1",
        "minor": str(KUBERNETES_MINOR),
        "gitVersion": f"v1.{KUBERNETES_MINOR}.0+virtfleet-{__version__}",
        "gitTreeState": "clean",
        "platform": f"linux/{ARCHITECTURES.get(machine, machine)}",
    }
