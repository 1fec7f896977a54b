"""How commands reach a cluster: the one that options, the environment or kubectl's own configuration name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from virtfleet.kube.client import Client

T = TypeVar("T")

kubeconfig_option = click.option(
    "--kubeconfig", type=click.Path(path_type=Path, dir_okay=False), help="How to reach the cluster."
)


def with_cluster(work: Callable[[Client], Awaitable[T]], kubeconfig: Path | None = None, context: str = "") -> T:
    """What `work` does with the cluster's API."""
    from virtfleet.kube import config
    from virtfleet.kube.client import Client

    async def reach() -> T:
        async with Client(config.load(kubeconfig, context)) as api:
            return await work(api)

    return asyncio.run(reach())


async def oldest_kubevirt(api: Client) -> dict[str, Any] | None:
    """The KubeVirt object that counts, where there is one."""
    from virtfleet.kube.resource import KUBEVIRTS

    return min(await api.list(KUBEVIRTS), key=lambda kv: kv["metadata"].get("creationTimestamp", ""), default=None)


def is_true(obj: dict[str, Any], kind: str) -> bool:
    """Whether an object has that condition."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(c["type"] == kind and c["status"] == "True" for c in conditions)
