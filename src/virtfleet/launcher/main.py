"""The launcher: what runs in the compute container of a VMI's Pod."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from virtfleet.domain import paths
from virtfleet.hypervisors import registry
from virtfleet.launcher import node
from virtfleet.launcher.channels import Channels
from virtfleet.launcher.failure import leave_word
from virtfleet.launcher.libvirtd.daemons import Daemons, plan_for
from virtfleet.launcher.server import Server, Updates
from virtfleet.launcher.sharing import neighbours
from virtfleet.launcher.vm import outliving, states
from virtfleet.launcher.vm.guest import Guest
from virtfleet.protocol.messages import CHANNELS_SOCKET, COMMAND_SOCKET, Shutdown, Status
from virtfleet.work import tasks

logger = logging.getLogger(__name__)

_VERBOSE = 4


class JsonFormatter(logging.Formatter):
    """One JSON object per line, in KubeVirt's keys."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "component": "virt-launcher",
            "level": record.levelname.lower(),
            "msg": record.getMessage(),
            "pos": f"{record.name}:{record.lineno}",
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        }
        if whose := getattr(record, "subcomponent", ""):
            line |= {"subcomponent": whose, "pos": record.funcName}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class Options(msgspec.Struct, rename="kebab", forbid_unknown_fields=True, frozen=True):
    """What the controller says on the command line, as `--name=value`."""

    namespace: str
    name: str
    uid: str
    hypervisor: str = registry.DEFAULT
    verbosity: int = 0
    """Above four: all there is to say."""
    libvirt_log_filters: str = ""
    """In libvirt's own syntax."""
    hook_sidecars: int = 0
    """How many of them are asked about the domain."""
    simulate_crash: bool = False
    """End at once, to see what becomes of the VM."""


def options(words: Sequence[str]) -> Options:
    """Without argparse, which would be half a megabyte for every VM."""
    parted = (word.removeprefix("--").partition("=") for word in words)
    given = {name: value if has_value else "true" for name, has_value, value in parted}
    try:
        return msgspec.convert(given, Options, strict=False)
    except msgspec.ValidationError as error:
        raise SystemExit(f"virt-launcher {' '.join(words)}: {error}") from None


async def launch(wanted: Options) -> int:
    """Run until the domain has ended; the answer is the exit code."""
    hypervisor = registry.get(wanted.hypervisor)
    plan = plan_for(hypervisor, log_filters=wanted.libvirt_log_filters)
    name, updates = f"{wanted.namespace}_{wanted.name}", Updates()
    guest = Guest(name, wanted.uid, hypervisor, plan.uri, updates, wanted.hook_sidecars)
    daemons = Daemons(plan)
    server = Server(Path(COMMAND_SOCKET), guest.handlers(), updates, vmi=wanted.uid)
    daemon = plan.uri.partition("socket=")[2]
    channels = Channels(Path(CHANNELS_SOCKET), daemon, guest.departures.prepared, guest.departures.parted)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: tasks.start(guest.shutdown(Shutdown()), "shutdown by signal"))
    _link_kept(os.environ.get(paths.KEPT, ""), hypervisor.descriptor.scheme)
    daemons.lay_out()
    async with outliving.held(hypervisor.descriptor.outliving, name):
        daemons.start()
        guest.start()
        channels.start()
        await server.start()
        try:
            await guest.ended.wait()
            if updates.latest.state.reason == Status.CRASHED:
                logger.error("the hypervisor has died; its last words: %s", daemons.last_words())
            state = msgspec.json.encode(updates.latest.state).decode()
            logger.info("ended: %s", state)
            leave_word(state)
        finally:
            await server.close()
            await channels.close()
            await guest.close()
            await daemons.stop()
            neighbours.say_goodbye()
    return states.exit_code(updates.latest.state)


def _link_kept(kept: str, driver: str) -> None:
    """Lead a driver of libvirt to the VM's own claim, for what firmware and TPM keep beyond this run. May be repeated.

    This is done before the driver makes such directories itself.
    """
    for name in filter(None, kept.split(":")):
        place, link = Path(paths.VM_STATE, name), Path(paths.PRIVATE, "libvirt", driver, name)
        place.mkdir(mode=0o770, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(link):
            link.symlink_to(place)


def main() -> None:
    Path("/proc/self/comm").write_text("virt-launcher")  # by which people look for it, rather than by Python's
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    if sys.argv[1:2] == [node.COMMAND]:
        from virtfleet.launcher.node import facts

        code = facts.run(sys.argv[2:])
    else:
        wanted = options(sys.argv[1:])
        if wanted.verbosity > _VERBOSE:
            logging.getLogger().setLevel(logging.DEBUG)
        code = 1 if wanted.simulate_crash else asyncio.run(launch(wanted))
    sys.stderr.flush()
    os._exit(code)  # not waiting for threads that wait for libvirt
