"""`virt-launcher node-labeller --directory DIR`: what this node can run, found out by the image that will run it.

An init container of virt-handler runs this with the launcher image of its pool, and virt-handler turns the files into
labels: so the labels speak of the hypervisors and emulators in that image, and the image is pulled before the first VM.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from pathlib import Path

import libvirt
import msgspec

from virtfleet.domain import paths
from virtfleet.hypervisors import registry
from virtfleet.hypervisors.base import Hypervisor
from virtfleet.launcher import probe
from virtfleet.launcher.connection import Connection
from virtfleet.launcher.daemons import Daemons, lacking, plan_for
from virtfleet.launcher.failure import Failure

logger = logging.getLogger(__name__)

COMMAND = "node-labeller"
_EMULATED = "qemu"  # libvirt's domain type for guests whose CPUs are emulated


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"virt-launcher {COMMAND}", description="Finds out what this node can run.")
    parser.add_argument("--directory", type=Path, required=True, help="where virt-handler looks for it")
    return parser.parse_args(arguments)


def find_out(directory: Path) -> None:
    """Write the facts. A hypervisor that does not work here is a fact too, so this fails only where nothing can."""
    directory.mkdir(parents=True, exist_ok=True)
    verdicts = {name: probe.hypervisor(registry.get(name), directory) for name in registry.names()}
    _write(directory / paths.HYPERVISORS, msgspec.json.encode({name: v.reason for name, v in verdicts.items()}))
    hypervisor = registry.get(registry.DEFAULT)
    if missing := lacking(hypervisor):
        logger.warning("nothing is known of this node's CPUs: %s", missing)
        return
    _become(paths.USER, directory, Path("/var/run"))  # this container's own, where libvirt makes its directories
    asyncio.run(_ask_libvirt(hypervisor, directory, emulated=not verdicts[registry.DEFAULT].works))


def _become(user: int, *directories: Path) -> None:
    """Ask libvirt as the user that launchers are: it answers differently to root. Devices were tried as root before."""
    if os.geteuid() != 0:
        return
    for directory in directories:
        directory.mkdir(parents=True, exist_ok=True)
        os.chown(directory, user, user)
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


async def _ask_libvirt(hypervisor: Hypervisor, directory: Path, *, emulated: bool) -> None:
    plan = plan_for(hypervisor)
    daemons = Daemons(plan)
    connection = Connection(plan.uri, lambda _: None)
    daemons.start()
    connection.start()
    try:
        host = await connection.run(lambda c: c.getCapabilities())
        domain_type = _EMULATED if emulated else None
        guests = await connection.run(lambda c: c.getDomainCapabilities(None, None, None, domain_type, 0))
    except (libvirt.libvirtError, Failure) as error:
        logger.error("libvirt does not say what this node can run: %s", error)
        return
    finally:
        await connection.stop()
        await daemons.stop()
    _write(directory / paths.CAPABILITIES, host.encode())
    _write(directory / paths.DOMAIN_CAPABILITIES, guests.encode())


def _write(path: Path, content: bytes) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(content)
    fresh.replace(path)


def run(arguments: list[str]) -> int:
    find_out(options(arguments).directory)
    return 0
