"""The guest's network in real network namespaces: a cluster, a Pod in it, and a guest behind the Pod's bridge."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from component.namespaces import Namespace
from tests.waiting import eventually
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.handler.network.networks import NetworkError, Networks, Wired, arrived
from virtfleet.pods.networks import pod_interface

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("nft") or not os.path.exists("/dev/net/tun"), reason="needs root, nft and tun"
)

OPEN_TAP = """
import fcntl, os, struct
fd = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(fd, 0x400454CA, struct.pack("16sH22x", b"tap0", 0x0002 | 0x1000 | 0x4000))
"""


@pytest.fixture
def cluster() -> Iterator[Namespace]:
    found = Namespace()
    yield found
    found.close()


@pytest.fixture
def pod(cluster: Namespace) -> Iterator[Namespace]:
    found = Namespace()
    cluster.ip(
        f"link add toPod mtu 1400 type veth peer name eth0 mtu 1400 netns {found.process.number}",
        "addr add 10.9.0.1/24 dev toPod",
        "link set toPod up",
    )
    found.ip("link set eth0 up", "addr add 10.9.0.7/24 dev eth0", "route add default via 10.9.0.1")
    yield found
    found.close()


@contextmanager
def guest(pod: Namespace, address: str, gateway: str, mac: str) -> Iterator[Namespace]:
    """A guest that is plugged into the Pod's bridge, as a container of libvirt would be."""
    found = Namespace()
    pod.ip(
        f"link add port type veth peer name eth0 address {mac} netns {found.process.number}",
        "link set port master k6t-eth0 up",
    )
    found.ip("link set eth0 up", f"addr add {address} dev eth0", f"route add default via {gateway} onlink dev eth0")
    try:
        yield found
    finally:
        found.close()


def vmi(binding: str = "masquerade", **interface: Any) -> VMI:
    spec = {
        "domain": {"devices": {"interfaces": [{"name": "default", binding: {}, **interface}]}},
        "networks": [{"name": "default", "pod": {}}],
    }
    return read(VMI, {"metadata": {"name": "vm", "namespace": "default", "uid": "u1"}, "spec": spec})


async def set_up(tmp_path: Path, pod: Namespace, wanted: VMI) -> Wired:
    (found,) = await Networks(tmp_path / "memory").set_up(pod.process, wanted)
    return found


async def test_a_masqueraded_guest_is_reached_and_reaches_out(
    tmp_path: Path, cluster: Namespace, pod: Namespace
) -> None:
    found = await set_up(tmp_path, pod, vmi())
    assert found.lease
    with guest(pod, found.lease.address, found.lease.server, found.mac) as inside:
        with inside.serving(80):
            assert cluster.ask("10.9.0.7", 80) == "10.9.0.1", "the guest sees who calls"
            assert pod.ask("127.0.0.1", 80) == "10.0.2.1", "also from inside the Pod"
        with cluster.serving(8080):
            assert inside.ask("10.9.0.1", 8080) == "10.9.0.7", "the cluster sees the Pod"


async def test_only_the_listed_ports_are_forwarded(tmp_path: Path, cluster: Namespace, pod: Namespace) -> None:
    found = await set_up(tmp_path, pod, vmi(ports=[{"port": 80}]))
    assert found.lease
    with (
        guest(pod, found.lease.address, found.lease.server, found.mac) as inside,
        inside.serving(80),
        inside.serving(81),
    ):
        assert cluster.ask("10.9.0.7", 80) == "10.9.0.1"
        assert cluster.ask("10.9.0.7", 81) == ""


async def test_a_bridged_guest_is_the_pod(tmp_path: Path, cluster: Namespace, pod: Namespace) -> None:
    found = await set_up(tmp_path, pod, vmi("bridge"))
    assert found.lease
    assert found.lease.address == "10.9.0.7/24"
    assert found.lease.routers == ["10.9.0.1"]
    with guest(pod, found.lease.address, "10.9.0.1", found.mac) as inside:
        with inside.serving(80):
            # The kernel takes up to a second to notice that the Pod's interface is up again.
            assert eventually(lambda: cluster.ask("10.9.0.7", 80)) == "10.9.0.1"
        with cluster.serving(8080):
            assert inside.ask("10.9.0.1", 8080) == "10.9.0.7"


async def test_a_bridged_guest_reaches_out_where_the_cluster_sends_it_back_what_it_says(
    tmp_path: Path, cluster: Namespace, pod: Namespace
) -> None:
    """Bridges of Kubernetes networks are often in hairpin mode, so that a Pod can reach itself through a Service."""
    cluster.ip(
        "link add cni0 type bridge",
        "addr flush dev toPod",
        "link set toPod master cni0",
        "link set toPod type bridge_slave hairpin on",
        "addr add 10.9.0.1/24 dev cni0",
        "link set cni0 up",
    )
    found = await set_up(tmp_path, pod, vmi("bridge"))
    assert found.lease
    with guest(pod, found.lease.address, "10.9.0.1", found.mac) as inside, cluster.serving(8080):
        assert eventually(lambda: inside.ask("10.9.0.1", 8080)) == "10.9.0.7"


@pytest.mark.parametrize("binding", ["masquerade", "bridge"])
async def test_setting_up_again_changes_nothing(tmp_path: Path, pod: Namespace, binding: str) -> None:
    first = await set_up(tmp_path, pod, vmi(binding))
    links, rules = pod.links(), pod.run("nft", "list", "ruleset").stdout
    again = await set_up(tmp_path, pod, vmi(binding))
    assert again == first
    assert pod.links() == links
    assert pod.run("nft", "list", "ruleset").stdout == rules


async def test_what_was_interrupted_is_finished(tmp_path: Path, pod: Namespace) -> None:
    first = await set_up(tmp_path, pod, vmi("bridge"))
    pod.ip("link delete tap0", "link delete eth0", "addr flush dev k6t-eth0")
    again = await set_up(tmp_path, pod, vmi("bridge"))
    assert again == first
    assert "169.254.75.10/32" in pod.show("addr", "show", "k6t-eth0")
    assert "10.9.0.7/24" in pod.show("addr", "show", "eth0")


@pytest.fixture
def tun() -> Iterator[str]:
    """A tun device that everybody may open, as the handler makes it in a launcher's Pod."""
    with tempfile.TemporaryDirectory(prefix="vfh") as directory:
        os.chmod(directory, 0o755)
        node = f"{directory}/tun"
        os.mknod(node, 0o020666, os.stat("/dev/net/tun").st_rdev)
        os.chmod(node, 0o666)
        yield node


async def test_the_tap_belongs_to_the_launchers_user_and_has_the_pods_mtu(
    tmp_path: Path, pod: Namespace, tun: str
) -> None:
    await set_up(tmp_path, pod, vmi())
    assert "mtu 1400" in pod.show("link", "show", "tap0")
    script = "import os; os.setgroups([]); os.setgid({0}); os.setuid({0});" + OPEN_TAP.replace("/dev/net/tun", tun)
    assert not pod.run("/usr/bin/python3", "-c", script.format(107)).returncode
    refused = pod.run("/usr/bin/python3", "-c", script.format(108))
    assert "PermissionError" in refused.stderr


async def test_a_network_that_the_pod_does_not_have_is_named(tmp_path: Path, pod: Namespace) -> None:
    pod.ip("link delete eth0")
    with pytest.raises(NetworkError, match="no interface eth0 for network 'default'"):
        await set_up(tmp_path, pod, vmi())


async def test_what_was_set_up_is_known_without_the_pod_and_can_be_forgotten(tmp_path: Path, pod: Namespace) -> None:
    networks = Networks(tmp_path)
    assert networks.known("pod-uid", pod.process, vmi()) == []
    (found,) = await networks.set_up(pod.process, vmi())
    assert [w.addresses for w in networks.known("pod-uid", pod.process, vmi())] == [found.addresses]
    networks.forget("pod-uid")
    assert networks.known("pod-uid", pod.process, vmi()) == []


def test_a_record_that_a_crash_broke_is_none(tmp_path: Path) -> None:
    (tmp_path / "pod-uid.json").write_bytes(b"")
    assert Networks(tmp_path).known("pod-uid", 0, vmi()) == []


@pytest.mark.slow
async def test_an_interface_comes_to_a_pod_and_is_given_back(
    tmp_path: Path, cluster: Namespace, pod: Namespace
) -> None:
    """Beside one that a guest uses, which notices nothing; and again, after it was interrupted anywhere."""

    def wanted(**more: Any) -> VMI:
        spec = {
            "domain": {"devices": {"interfaces": [{"name": "default", "masquerade": {}}, {"name": "more", **more}]}},
            "networks": [{"name": "default", "pod": {}}, {"name": "more", "multus": {"networkName": "blue"}}],
        }
        return read(VMI, {"metadata": {"name": "vm", "namespace": "default", "uid": "u1"}, "spec": spec})

    networks, here = Networks(tmp_path / "memory"), wanted(bridge={})
    link = pod_interface("more")
    [first] = await networks.set_up(pod.process, vmi())
    before = pod.links()
    assert arrived(pod.process, here) == []
    for _ in range(2):
        cluster.ip(
            f"link add toMore type veth peer name {link} address 02:00:00:00:00:07 netns {pod.process.number}",
            "link set toMore up",
        )
        pod.ip(f"link set dev {link} up", f"addr add 10.7.0.2/24 dev {link}")
        assert arrived(pod.process, here) == ["more"]
        for _ in range(2):  # as after a restart
            _, more = await networks.set_up(pod.process, here, ["more"])
        assert more.mac == "02:00:00:00:00:07" and more.lease and more.lease.address == "10.7.0.2/24"
        assert networks.known("pod-uid", pod.process, here) == [first, more]
        going = wanted(bridge={}, state="absent")
        assert await networks.take_down(pod.process, going, [more.mac]) == ["more"], "the guest has it"
        assert await networks.take_down(pod.process, going, []) == []
        assert networks.known("pod-uid", pod.process, going) == [first]
        shown = json.loads(pod.show("-json", "addr", "show", "dev", link))[0]
        assert shown["address"] == "02:00:00:00:00:07" and shown["addr_info"][0]["local"] == "10.7.0.2"
        cluster.ip("link delete toMore")
        eventually(lambda: pod.links() == before)
