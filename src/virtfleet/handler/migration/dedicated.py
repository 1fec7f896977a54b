"""The network that migrations have for themselves, where the cluster is set up so: Multus puts handlers on it."""

from __future__ import annotations

import msgspec

from virtfleet.api.names import MIGRATION_INTERFACE
from virtfleet.work.commands import CommandError, run


class _Address(msgspec.Struct):
    local: str = ""
    scope: str = ""


class _Link(msgspec.Struct):
    addr_info: list[_Address] = []


async def address(interface: str = MIGRATION_INTERFACE) -> str:
    """This handler's address on that network; empty where it is not on it."""
    try:
        printed = await run("ip", "-json", "addr", "show", "dev", interface)
    except CommandError:
        return ""  # there is no such interface
    links = msgspec.json.decode(printed, type=list[_Link])
    return next((each.local for link in links for each in link.addr_info if each.scope == "global"), "")


def refusal(node: str, network: str) -> str:
    """Why no VM comes to a node that is not on the network."""
    return (
        f"virt-handler of node {node} is not on network {network}, which migrations are to use: Multus has not attached"
        " it. Install Multus and that NetworkAttachmentDefinition, or remove configuration.migrations.network"
    )
