"""A Linux guest that boots by EFI and moves: what firmware, TPM and disks hold, and its place on the network."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from component.moving import Move, Place
from virtfleet.api.migration import MigrationOptions
from virtfleet.domain import paths
from virtfleet.local import guestimage
from virtfleet.protocol.channels import Channel
from virtfleet.protocol.messages import Status
from virtfleet.work.tasks import held
from vm.guests import admitted, eventually, guest, machine, user_data

pytestmark = pytest.mark.timeout(300)
POST_COPY = MigrationOptions(allow_post_copy=True, allow_workload_disruption=True, completion_timeout_per_gi_b=1)

# Tells which ways of saying "I am here now" a guest has used on a network, as soon as it has used all of them.
ANNOUNCED = """
import socket, sys, time
mac = bytes.fromhex(sys.argv[1].replace(":", ""))
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
packets.bind(("k6t-eth0", 0))
packets.settimeout(1)
seen, end = set(), time.monotonic() + 90
print("listening", flush=True)
while len(seen) < 3 and time.monotonic() < end:
    try:
        frame = packets.recv(2048)
    except TimeoutError:
        continue
    if frame[6:12] != mac:
        continue
    kind, body = frame[12:14].hex(), frame[14:]
    if kind == "8035":
        seen.add("RARP")
    elif kind == "0806" and body[14:18] == body[24:28]:
        seen.add("gratuitous ARP")
    elif kind == "86dd" and body[6] == 58 and body[40] == 136 and frame[:6].hex() == "333300000001":
        seen.add("neighbour advertisement")
print(*sorted(seen), sep=", ")
"""


def kept(place: Path, name: str) -> bytes:
    """The one file of a name that a launcher's libvirt keeps."""
    (found,) = [path for path in place.rglob(name) if path.is_file()]
    return found.read_bytes()


async def typed(place: Place, line: str) -> None:
    _, writer = await asyncio.open_unix_connection(place.console)
    writer.write(f"\n{line}\n".encode())
    await writer.drain()
    writer.close()


@pytest.mark.usefixtures("user_faults")
async def test_firmware_tpm_and_disks_move_with_a_guest_that_says_where_it_is_now() -> None:
    seed = user_data("echo kept | dd of=/dev/vdb conv=fsync", "echo kept > /root/kept")
    wanted = machine([{"name": "data", "emptyDisk": {"capacity": "8Mi"}}, seed])
    wanted["spec"]["domain"] |= {
        "memory": {"guest": "256Mi"},
        "firmware": {"bootloader": {"efi": {"secureBoot": False}}},
    }
    wanted["spec"]["domain"]["devices"]["tpm"] = {}
    vmi, image = admitted(wanted), guest().image
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="vfm-")))
        os.chmod(directory, 0o755)
        source, target, third = [
            await stack.enter_async_context(Place(vmi, image, guestimage.default_cache() / "capabilities"))
            for _ in range(3)
        ]
        await source.start()
        await eventually(lambda: re.search(r"virtfleet-guest ready name=guest address=10\.0\.2\.2", source.said))
        await target.open()
        mac = vmi["spec"]["domain"]["devices"]["interfaces"][0]["macAddress"]
        announced = held(target.sandbox.run(sys.executable, "-c", ANNOUNCED, mac), "announcements")
        move = Move(source, target)
        await move.begin(MigrationOptions())
        assert await move.outcome() == "moved", source.log.read_text()
        await move.close()
        await typed(target, "dd if=/dev/vdb bs=5 count=1 2>/dev/null; cat /root/kept; uname -s | tr a-z A-Z")
        await eventually(lambda: re.search(r"kept\s+kept\s+LINUX", target.said))
        assert target.latest.status is Status.RUNNING
        here, there = (place.sandbox.path(paths.PRIVATE) for place in (source, target))
        assert target.latest.abi is not None
        for name in ("*_VARS.fd", "tpm2-00.permall"):
            assert kept(there, name) == kept(here, name), f"{name} is another one"
        template = Path(target.latest.abi.variables)
        assert kept(here, "*_VARS.fd") != kept(template.parent, template.name), "firmware keeps something in them"
        assert "RARP, gratuitous ARP, neighbour advertisement" in await announced

        # Once more, and this time it runs there before its memory is there, when the connection breaks.
        await typed(target, "while :; do echo tick; sleep 0.2; done")
        await eventually(lambda: target.said.count("tick") > 3)
        await third.open()
        move = Move(target, third, slow=0.01)
        await move.begin(POST_COPY)
        await eventually(lambda: "tick" in third.said)
        assert target.report(move.uid).mode == "PostCopy"
        move.cut(Channel.MEMORY)
        assert await move.outcome() == "moved", target.log.read_text()[-4000:]
        await move.close()
        before = third.said.count("tick")
        await eventually(lambda: third.said.count("tick") > before + 3)
        assert "post-copy broke and is taken up again" in target.log.read_text()
