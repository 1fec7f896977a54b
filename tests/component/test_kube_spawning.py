"""Commands that are started beside gRPC all run. In a process of its own, because gRPC's threads stay."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, grpc, sys
from virtfleet.kube import process

async def commands(busy):
    codes = [await (await asyncio.create_subprocess_exec("/bin/true")).wait() for _ in range(300)]
    busy.cancel()
    return codes

async def plugins(path):
    while True:
        server = grpc.aio.server()
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            try:
                await channel.unary_unary("/none/None")(b"", timeout=5)
            except grpc.aio.AioRpcError:
                pass  # it was answered, which is enough
        await server.stop(None)

async def main():
    codes = await commands(asyncio.create_task(plugins(sys.argv[1])))
    assert not any(codes), codes

sys.exit(process.run(main(), process.spawning_loop))
"""


@pytest.mark.slow
def test_every_command_runs_however_busy_grpc_is(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr  # gRPC itself may write there what it cancelled at the end
