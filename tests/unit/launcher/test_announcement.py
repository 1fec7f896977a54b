"""To whom a launcher says that a guest has come."""

from __future__ import annotations

from virtfleet.launcher.guestnet.network import routers

TABLE = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0100F40A\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t0100F40A\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\t0\t0
k6t-eth0\t0002000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""


def test_the_routers_are_those_of_the_default_routes() -> None:
    assert [*routers(TABLE)] == ["10.244.0.1"]
    assert [*routers(TABLE.splitlines()[0])] == []
