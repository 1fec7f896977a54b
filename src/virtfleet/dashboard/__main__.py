"""`python -m virtfleet.dashboard`: virt-dashboard, in a cluster. Its own service account is not even mounted."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from virtfleet.dashboard.guard import Guard
from virtfleet.dashboard.server import Dashboard
from virtfleet.dashboard.visitors import Visitors
from virtfleet.kube import component, process
from virtfleet.kube.config import Config
from virtfleet.kube.credentials import Material, StoredCredentials

NAME = "virt-dashboard"
AUTHORITY = Path("/etc/virtfleet/cluster/ca.crt")


async def run(options: argparse.Namespace) -> None:
    """virt-dashboard, for as long as it is not ended."""
    visitors = Visitors(lambda token: _of_visitor(options, token), header=options.token_header)
    service = f"{NAME}.{options.namespace}"
    hosts = {NAME, service, f"{service}.svc", f"{service}.svc.cluster.local", "localhost", "127.0.0.1"}
    guard = Guard(visitors, frozenset({*hosts, *options.host_name}), f"__Host-{NAME}", https=True)
    try:
        await component.serve(options, Dashboard(guard).routes())
    finally:
        await visitors.close()


def _of_visitor(options: argparse.Namespace, token: str) -> Config:
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    server = f"https://{f'[{host}]' if ':' in host else host}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    credentials = StoredCredentials(token=Material("the visitor's token", token.encode()))
    return Config(server, credentials, ca=Material("the cluster's CA", options.cluster_authority))


def main() -> int:
    """The process."""
    parser = component.arguments(NAME, "The fleet in a browser, with each visitor's own rights.")
    parser.add_argument(
        "--namespace", default=os.environ.get("POD_NAMESPACE") or "kubevirt", help="of the installation"
    )
    parser.add_argument("--host-name", action="append", default=[], help="a name under which browsers come; repeatable")
    parser.add_argument("--token-header", default="", help="a header in which a proxy in front puts visitors' tokens")
    parser.add_argument(
        "--cluster-authority", type=Path, default=AUTHORITY, help="who the API server's certificate is of"
    )
    options = parser.parse_args()
    component.start_logging(NAME, options)
    return process.run(run(options))


if __name__ == "__main__":
    sys.exit(main())
