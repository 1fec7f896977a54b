"""`virt-launcher node-labeller --directory DIR`: what this node can run, found out by the image that will run it.

An init container of virt-handler runs this with the launcher image of its pool, and virt-handler turns the files into
labels: so the labels speak of the hypervisors and emulators in that image, and the image is pulled before the first VM.
What libvirt learns of the emulators meanwhile is kept for launchers.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import libvirt
import msgspec

from virtfleet.domain import paths
from virtfleet.hypervisors import registry
from virtfleet.hypervisors.base import Hypervisor
from virtfleet.launcher.failure import Failure
from virtfleet.launcher.libvirtd.connection import Connection
from virtfleet.launcher.libvirtd.daemons import Daemons, lacking, plan_for
from virtfleet.launcher.node import COMMAND, emulators, keep, trial

logger = logging.getLogger(__name__)


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"virt-launcher {COMMAND}", description="Finds out what this node can run.")
    parser.add_argument("--directory", type=Path, required=True, help="where virt-handler looks for it")
    parser.add_argument("--hypervisor", help="only whether this one works; what is known of others stays")
    parser.add_argument("--emulators-of", metavar="HYPERVISOR", help="only what its launchers want to know")
    return parser.parse_args(arguments)


class Answers(msgspec.Struct):
    """What libvirt says."""

    host: str
    guests: str
    emulators: emulators.Files


def find_out(directory: Path) -> None:
    """Write the facts. A hypervisor that does not work here is a fact too, so this fails only where nothing can."""
    directory.mkdir(parents=True, exist_ok=True)
    os.chown(directory, os.geteuid(), -1)
    troubles = {name: trial.trouble(registry.get(name), directory) for name in registry.names()}
    keep(directory / paths.HYPERVISORS, msgspec.json.encode(troubles))
    hypervisor = _describing(troubles)
    if hypervisor is None:
        logger.warning("nothing is known of this node's CPUs: no hypervisor in this image can describe them")
        return
    works = not troubles[hypervisor.descriptor.name]
    # This container's own: where libvirt makes its directories, and the device that launchers are given.
    theirs = ["/var/run", *([f"/dev/{hypervisor.descriptor.device}"] if works else [])]
    packed = _as_launcher(theirs, lambda: asyncio.run(_ask_libvirt(hypervisor, emulated=not works)))
    if packed:
        answers = msgspec.msgpack.decode(packed, type=Answers)
        keep(directory / paths.CAPABILITIES, answers.host.encode())
        keep(directory / paths.DOMAIN_CAPABILITIES, answers.guests.encode())
        emulators.save(directory, emulators.programs(hypervisor), answers.emulators)


def add(directory: Path, hypervisor: str) -> None:
    """Whether this hypervisor works, beside what the node's own launcher image found out."""
    path = directory / paths.HYPERVISORS
    known = msgspec.json.decode(path.read_bytes(), type=dict[str, str]) if path.exists() else {}
    keep(path, msgspec.json.encode({**known, hypervisor: trial.trouble(registry.get(hypervisor), directory)}))


def _describing(troubles: Mapping[str, str]) -> Hypervisor | None:
    """The hypervisor whose libvirt describes the node's CPUs and machine types: one that works, if there is one."""
    able = [h for h in map(registry.get, troubles) if h.descriptor.machines and not h.refusal and not lacking(h)]
    return next((h for h in able if not troubles[h.descriptor.name]), next(iter(able), None))


def _as_launcher(theirs: list[str], ask: Callable[[], bytes]) -> bytes:
    """What is said to the user that launchers are: libvirt answers differently to root. The files remain root's."""
    if os.geteuid() != 0:
        return ask()
    for path in theirs:
        os.chown(path, paths.USER, paths.USER)
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(paths.USER)
            os.setuid(paths.USER)
            with open(sending, "wb") as answer:
                answer.write(ask())
        except Exception:
            logger.exception("libvirt could not be asked what this node can run")
        finally:
            os._exit(0)
    os.close(sending)
    with open(receiving, "rb") as answer:
        packed = answer.read()
    os.waitpid(child, 0)
    return packed


async def _ask_libvirt(hypervisor: Hypervisor, *, emulated: bool) -> bytes:
    """The answers, as they go from one process to the other; nothing where libvirt has none."""
    plan = plan_for(hypervisor)
    daemons = Daemons(plan)
    connection = Connection(plan.uri, lambda _: None)
    daemons.lay_out()
    daemons.start()
    connection.start()
    try:
        host = await connection.run(lambda c: c.getCapabilities())
        domain_type = hypervisor.descriptor.emulation if emulated else None
        guests = await connection.run(lambda c: c.getDomainCapabilities(None, None, None, domain_type, 0))
    except (libvirt.libvirtError, Failure) as error:
        logger.error("libvirt does not say what this node can run: %s", error)
        return b""
    finally:
        await connection.stop()
        await daemons.stop()
    return msgspec.msgpack.encode(Answers(host, guests, emulators.learned(hypervisor)))


def run(arguments: list[str]) -> int:
    wanted = options(arguments)
    if wanted.emulators_of:
        hypervisor = registry.get(wanted.emulators_of)
        packed = asyncio.run(_ask_libvirt(hypervisor, emulated=True))
        files = msgspec.msgpack.decode(packed, type=Answers).emulators
        emulators.save(wanted.directory, emulators.programs(hypervisor), files)
    elif wanted.hypervisor:
        add(wanted.directory, wanted.hypervisor)
    else:
        find_out(wanted.directory)
    return 0
