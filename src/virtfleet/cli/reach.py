"""How commands reach a cluster: the one that options, the environment or kubectl's own configuration name.

Where none of them names one, it is the cluster of this machine (`virtfleet up`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from virtfleet.kube.client import Client
    from virtfleet.kube.config import Config

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Where:
    """A cluster, as the command line names it."""

    kubeconfig: Path | None = None
    context: str = ""

    def config(self) -> Config:
        """How to reach it."""
        from virtfleet.kube import config

        named = self.kubeconfig or os.environ.get("KUBECONFIG") or os.environ.get("KUBERNETES_SERVICE_HOST")
        files = [] if named else known_files()
        return config.load(files[0] if files else self.kubeconfig, self.context)

    def arguments(self) -> list[str]:
        """The options that name the same cluster to another command."""
        named = ["--kubeconfig", str(self.kubeconfig.absolute())] if self.kubeconfig else []
        return [*named, "--context", self.context] if self.context else named


def known_files() -> list[Path]:
    """Where nothing names a cluster: kubectl's own configuration, and then the cluster of this machine."""
    from virtfleet.local.directory import default_directory

    files = []
    with contextlib.suppress(RuntimeError):  # a user without a home
        files.append(Path.home() / ".kube" / "config")
    with contextlib.suppress(RuntimeError):
        files.append(default_directory() / "kubeconfig")
    return [file for file in files if file.exists()]


def cluster_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--kubeconfig FILE` and `--context NAME`, which the function gets as `where`."""

    @click.option("--kubeconfig", type=click.Path(path_type=Path, dir_okay=False), help="How to reach the cluster.")
    @click.option("--context", default="", help="The kubeconfig's context, where it is not the current one.")
    @functools.wraps(function)
    def command(*args: Any, kubeconfig: Path | None, context: str, **others: Any) -> Any:
        return function(*args, where=Where(kubeconfig, context), **others)

    return command


def with_cluster(
    work: Callable[[Client], Awaitable[T]], where: Where, *, patience: float = 10.0, idle: float = 300.0
) -> T:
    """What `work` does with the cluster's API; `patience` and `idle` are the client's."""
    from virtfleet.kube.client import Client

    async def reach() -> T:
        async with Client(where.config(), patience=patience, idle=idle) as api:
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
