"""Where the local cluster's API server is reached, and the certificates that go with it."""

from __future__ import annotations

import os
from pathlib import Path

from virtfleet.local.apiserver.rights.pki import Pki
from virtfleet.local.directory import DEFAULT, Settings
from virtfleet.local.node.network import network_of

LOOPBACK = "127.0.0.1"


def address_for_pods(settings: Settings) -> str:
    """Pods reach the server on their bridge. Without root there is neither bridge nor pod."""
    return str(network_of(settings).gateway) if os.geteuid() == 0 else LOOPBACK


def cluster_ip(settings: Settings) -> str:
    """Of the Service `kubernetes`."""
    return str(network_of(settings).services[1])


def server_url(settings: Settings) -> str:
    """For people and node agents."""
    return f"https://{LOOPBACK}:{settings.port}"


def open_pki(data: Path, settings: Settings) -> Pki:
    return Pki(data, hosts=(address_for_pods(settings), cluster_ip(settings)), name=context(data, settings))


def context(data: Path, settings: Settings) -> str:
    """What kubeconfigs call the cluster: those of two clusters can be used together."""
    return "virtfleet" if data == DEFAULT else f"virtfleet-{settings.name}"
