"""A place like a Pod for one launcher, on a machine without a cluster.

The launcher gets mount, network and process namespaces of its own, in which the paths of a Pod are directories that
nobody else uses, and runs as the same unprivileged user. Its directory can be reached from outside, so that whoever
made the sandbox talks to the launcher as a handler would. Everything ends with the process that made it: processes and
interfaces by the kernel's doing, directories when the next sandbox is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from virtfleet.domain import paths
from virtfleet.domain.paths import USER
from virtfleet.hypervisors.base import Descriptor
from virtfleet.launcher.alone.inside import BOUND
from virtfleet.launcher.failure import Failure
from virtfleet.launcher.libvirtd import cgroups
from virtfleet.protocol.messages import Lease
from virtfleet.work import commands

_RUN = "/var/run/"
_PREFIX = "vf-"  # short, because paths of sockets must be
_MARK = ".virtfleet-sandbox"  # in directories that are ours to remove, whatever others are called
_TOOLS = ("unshare", "setpriv", "nsenter", "ip", "catatonit", "mount")
_NETWORK_DEVICES = ("net/tun", "vhost-net")
_POD_DIRS = (
    *(paths.PRIVATE, paths.SHARE, paths.SOCKETS, paths.CONTAINER_DISKS, paths.IMAGE_VOLUMES),
    *(paths.HOTPLUG_DISKS, paths.EPHEMERAL_DISKS, paths.LIBVIRT),
)


class Sandbox:
    """One sandbox. Use it as a context; the launcher runs from `start` until its VM has ended."""

    def __init__(self, descriptor: Descriptor, arguments: Sequence[str]) -> None:
        self._descriptor = descriptor
        self._arguments = arguments
        self._user = 0 if descriptor.root else USER
        self.directory = Path()
        self.process: asyncio.subprocess.Process | None = None
        self._lock = -1

    def __enter__(self) -> Sandbox:
        if os.geteuid() != 0:
            raise Failure("namespaces and network interfaces need root; run this as root")
        for tool in _TOOLS:
            if not shutil.which(tool):
                raise Failure(f"{tool} is missing; scripts/bootstrap installs what is needed")
        sweep()
        self.directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self.directory.chmod(0o755)
        self._lock = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        (self.directory / _MARK).touch()
        for path in _POD_DIRS:
            self.path(path).mkdir(parents=True, exist_ok=True)
        for directory, _, _ in os.walk(self.directory):
            os.chown(directory, self._user, self._user)
        return self

    def __exit__(self, *_: object) -> None:
        if self.process and self.process.returncode is None:
            self.process.kill()
        cgroups.remove(self.directory.name)
        shutil.rmtree(self.directory, ignore_errors=True)
        os.close(self._lock)

    def path(self, inside: str) -> Path:
        """Where a path of the Pod is found from outside."""
        return self.directory / "run" / inside.removeprefix(_RUN)

    @property
    def log(self) -> Path:
        """What the launcher and its daemons say."""
        return self.directory / "log"

    async def start(self) -> None:
        """Start the launcher."""
        devices = ",".join(filter(None, (self._descriptor.device, *_NETWORK_DEVICES)))
        # What the sandbox has of the machine at another place; its own processes' /proc hides some of it.
        moved = {place: path for place, path in self._descriptor.node_paths.items() if place != path}
        opened = {place: os.open(path, os.O_RDONLY | os.O_CLOEXEC) for place, path in moved.items()}
        bound = " ".join(f"{descriptor}:{place}" for place, descriptor in opened.items())
        inside = [*commands.python("virtfleet.launcher.alone.inside"), str(self.directory), str(self._user), devices]
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.process = await asyncio.create_subprocess_exec(
            *("setpriv", "--pdeathsig", "KILL", "--"),
            *("unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc", "--"),
            *("catatonit", "--", *inside, *self._arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # the terminal is not theirs to take
            pass_fds=tuple(opened.values()),
            env=os.environ | {BOUND: bound},
        )
        for descriptor in (log, *opened.values()):
            os.close(descriptor)

    async def add_network(self, number: int, mac: str, hostname: str) -> tuple[str, Lease]:
        """A network that ends here: a tap for one interface of the guest, and what DHCP tells it on its bridge."""
        tap, bridge = f"tap{number}", "k6t-eth0" if number == 0 else f"k6t-net{number}"
        network = f"10.0.{2 + number}"
        lines = (
            "link set lo up",
            f"link add {bridge} type bridge",
            f"addr add {network}.1/24 dev {bridge}",
            f"link set {bridge} up",
            f"tuntap add dev {tap} mode tap user {self._user}",
            f"link set {tap} master {bridge}",
            f"link set {tap} up\n",
        )
        await self.run("ip", "-batch", "-", feed="\n".join(lines))
        address, server = f"{network}.2/24", f"{network}.1"
        return tap, Lease(device=bridge, mac=mac, address=address, server=server, mtu=1500, hostname=hostname)

    async def run(self, *command: str, feed: str = "") -> str:
        """Run a command in the sandbox's network."""
        network = f"--net=/proc/{await self._first_process()}/ns/net"
        try:
            return await commands.run("nsenter", network, *command, feed=feed)
        except commands.CommandError as error:
            raise Failure(f"{command[0]}: {error}") from None

    async def _first_process(self) -> int:
        """The sandbox's process 1, which appears a moment after the start."""
        assert self.process is not None
        while self.process.returncode is None:
            if child := _child_elsewhere(self.process.pid):
                return child
            await asyncio.sleep(0.01)
        raise Failure("the launcher ended before its network was made")


def _child_elsewhere(parent: int) -> int:
    """A child that has a network of its own, or 0."""
    own = os.readlink("/proc/self/ns/net")
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            if os.readlink(f"/proc/{child}/ns/net") != own:
                return int(child)
    return 0


def sweep() -> None:
    """Remove what sandboxes left whose makers were killed."""
    for directory in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if (directory / _MARK).exists():
                    cgroups.remove(directory.name)
                    shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(fd)
