"""`python -m virtfleet.local.node --data DIR --node JSON`: the agent of one node of the local cluster in DIR."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # read when grpc is imported

import msgspec

from virtfleet.kube import config, process
from virtfleet.kube.client import Client
from virtfleet.local import directory, signsoflife
from virtfleet.local.directory import Settings
from virtfleet.local.node.agent import Agent
from virtfleet.local.node.layout import Layout
from virtfleet.local.node.network import network_of, range_of
from virtfleet.local.nodesfile import NodeSpec


async def _run(data: Path, settings: Settings, spec: NodeSpec, kubeconfig: Path) -> None:
    layout = Layout(data, settings.name, spec.name)
    net = network_of(settings)
    async with Client(config.load(kubeconfig)) as api:
        await Agent(layout, api, net, range_of(layout, net), spec).run()


def main() -> int:
    parser = argparse.ArgumentParser(prog="virtfleet.local.node", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the cluster's directory")
    parser.add_argument("--node", required=True, help="the node as the nodes file has it, in JSON")
    parser.add_argument("--kubeconfig", type=Path, required=True, help="how the agent reaches the API server")
    arguments = parser.parse_args()
    settings = directory.load(arguments.data)
    if settings is None:
        sys.exit(f"there is no cluster in {arguments.data}; start one with: virtfleet up --data {arguments.data}")
    spec = msgspec.json.decode(arguments.node, type=NodeSpec)
    process.log_as_json(f"node {spec.name}")
    agent = _run(arguments.data.resolve(), settings, spec, arguments.kubeconfig)
    return process.run(signsoflife.giving(agent), process.spawning_loop)


if __name__ == "__main__":
    sys.exit(main())
