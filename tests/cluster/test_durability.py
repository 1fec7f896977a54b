"""Whatever happens to the server's process or its disk: what was answered stays, and everything converges."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import Cluster, Kubectl, free_port
from rawapi import RawApi

from virtfleet.local import supervisor
from waiting import eventually


def server_pid(cluster: Cluster) -> int:
    assert cluster.data is not None
    children = supervisor.ask(cluster.data, op="status")["children"]
    pid = next(c["pid"] for c in children if c["name"] == "control-plane")
    assert pid is not None
    return int(pid)


def test_nothing_that_was_answered_is_lost_when_the_server_is_killed_again_and_again(local_cluster: Cluster) -> None:
    """Writers go on through a series of kill -9; then every acknowledged write must be there, and in full."""
    raw = RawApi(local_cluster.kubeconfig)
    path = "/api/v1/namespaces/default/configmaps"
    acknowledged: dict[str, str] = {}
    stop = threading.Event()

    def write(writer: int) -> None:
        n = 0
        while not stop.is_set():
            n += 1
            name, value = f"w{writer}-{n}", f"{writer}/{n}" * 50
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"v": value}}
            try:
                code = raw("POST", path, body).code
            except OSError:
                continue  # not answered: it may be there or not, but never in part
            if code == 201:
                acknowledged[name] = value

    writers = [threading.Thread(target=write, args=(w,)) for w in range(4)]
    for writer in writers:
        writer.start()
    dice = random.Random(7)
    try:
        for _ in range(10):
            before = len(acknowledged)
            wanted = before + dice.randint(1, 30)
            eventually(lambda wanted=wanted: len(acknowledged) >= wanted, 60)
            os.kill(server_pid(local_cluster), signal.SIGKILL)
            eventually(lambda: raw("GET", "/readyz").code == 200, 60)
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    items = [i for i in raw("GET", path).json["items"] if i["metadata"]["name"].startswith("w")]
    stored = {i["metadata"]["name"]: i["data"]["v"] for i in items}
    assert {name: stored.get(name) for name in acknowledged} == acknowledged
    for name, value in stored.items():
        writer, n = name[1:].split("-")
        assert value == f"{writer}/{n}" * 50


def test_a_watch_goes_on_after_a_restart_from_where_it_was(local_cluster: Cluster) -> None:
    kubectl = Kubectl(local_cluster)
    kubectl("create", "configmap", "a")
    raw = RawApi(local_cluster.kubeconfig)
    version = raw("GET", "/api/v1/namespaces/default/configmaps").json["metadata"]["resourceVersion"]
    kubectl("create", "configmap", "b")
    os.kill(server_pid(local_cluster), signal.SIGKILL)
    eventually(lambda: raw("GET", "/readyz").code == 200, 60)
    watch = f"/api/v1/namespaces/default/configmaps?watch=1&resourceVersion={version}&timeoutSeconds=1"
    assert b'"name":"b"' in raw("GET", watch).body.replace(b'": "', b'":"')


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    mount = tmp_path / "disk"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "vft-small", str(mount)], check=True)
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


@pytest.mark.local_home("it breaks the cluster")
def test_a_full_disk_is_said_clearly_and_writes_go_on_when_there_is_room(small_disk: Path) -> None:
    data = small_disk / "c"
    cluster = Cluster(data / "kubeconfig", data, free_port())
    (small_disk / "nodes.yaml").write_text("nodes: []")
    done = cluster.virtfleet("up", "--port", str(cluster.port), "--nodes", str(small_disk / "nodes.yaml"), check=False)
    assert done.returncode == 0, done.stderr
    try:
        raw = RawApi(cluster.kubeconfig)
        path = "/api/v1/namespaces/default/configmaps"

        def write(n: int) -> int:
            body = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": f"c{n}"},
                "data": {"v": "x" * 500_000},
            }
            answer = raw("POST", path, body)
            if answer.code != 201:
                assert answer.code in (500, 503, 507), answer.body
                assert "disk" in answer.message.lower(), answer.message
            return answer.code

        written = []
        for n in range(100):
            if write(n) != 201:
                break
            written.append(f"c{n}")
        else:
            pytest.fail("the disk never filled up")
        assert raw("GET", path).code == 200  # reading goes on
        subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
        eventually(lambda: write(1000) == 201)
        stored = {i["metadata"]["name"] for i in raw("GET", path).json["items"]}
        assert set(written) <= stored
    finally:
        cluster.virtfleet("down")
