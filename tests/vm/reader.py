"""Somebody who follows a page of the documentation on a cluster: what their commands find, and in which namespace."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from cluster.clusters import BIN, Cluster


def environment(cluster: Cluster, home: Path, namespace: str = "default", **tools: str) -> dict[str, str]:
    """Variables for `docblocks`, with a kubeconfig of that namespace; `tools` are programs beside our own."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    for context in config["contexts"]:
        context["context"]["namespace"] = namespace
    kubeconfig, programs = home / f"kubeconfig-{namespace}", home / "bin"
    kubeconfig.write_text(yaml.safe_dump(config))
    programs.mkdir(exist_ok=True)
    for name, program in tools.items():
        (programs / name).unlink(missing_ok=True)
        (programs / name).symlink_to(program)
    path = os.pathsep.join((str(programs), str(BIN), os.environ["PATH"]))
    data = {"VIRTFLEET_DATA": str(cluster.data)} if cluster.data else {}
    return {"PATH": path, "KUBECONFIG": str(kubeconfig), "HOME": str(home), **data}
