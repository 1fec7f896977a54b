"""How `virtfleet port-forward` reads ports."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtfleet.cli.output import CommandError
from virtfleet.cli.vm.portforward import Forwarded, forwarded

PORT = st.integers(1, 65535)


@given(st.sampled_from(["tcp", "udp"]), st.integers(0, 65535), PORT)
def test_protocol_local_and_remote_port_are_read(protocol: str, local: int, remote: int) -> None:
    assert forwarded(f"{protocol}/{local}:{remote}") == Forwarded(protocol, local, remote)


@given(PORT)
def test_tcp_and_the_same_port_are_meant_where_nothing_else_is_said(port: int) -> None:
    assert forwarded(str(port)) == Forwarded("tcp", port, port)


@pytest.mark.parametrize(
    "text", ["", "0", "http", "80:", ":80", "65536", "80:65536", "80:0", "icmp/8", "tcp/", "1:2:3"]
)
def test_what_names_no_ports_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match="names no ports"):
        forwarded(text)
