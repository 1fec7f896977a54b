"""The small pure parts of the node agent: addresses, paths, names, files, variables, logs."""

from __future__ import annotations

import os
import threading
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from virtfleet.kube.confined import read_inside
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import Obj
from virtfleet.local.node import lifecycle, server, services, volumes
from virtfleet.local.node.environment import Facts, declared, expand, field, resource
from virtfleet.local.node.execution import outcome
from virtfleet.local.node.images import ImageError, ImageStore, canonical
from virtfleet.local.node.layout import Layout
from virtfleet.local.node.network import ClusterNetwork
from virtfleet.local.node.runtime import pidfd, start_time
from virtfleet.local.node.sandbox import Sandbox, render_hosts, render_resolv_conf
from virtfleet.local.node.security import ConfigError
from virtfleet.local.node.volumes import File

NETWORK = ClusterNetwork("c")
FACTS = Facts(["10.1.0.2", "fd00::2"], ["10.0.0.1"], {"cpu": "8", "memory": "1Gi"})


def pod(**spec: Any) -> dict[str, Any]:
    metadata = {"name": "p", "namespace": "n", "uid": "u", "labels": {"b": "2", "a": 'x"y'}}
    return {"metadata": metadata, "spec": {"containers": [{"name": "c"}], **spec}}


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/var/lib/kubelet/pods", "/d/nodes/n/root/var/lib/kubelet/pods"),
        ("/var/run/kubevirt-private", "/d/nodes/n/root/var/run/kubevirt-private"),
        ("/run/kubevirt/x", "/d/nodes/n/root/var/run/kubevirt/x"),
        ("/var/lib/kubelets", "/var/lib/kubelets"),
        ("/dev/kvm", "/dev/kvm"),
        ("/", "/"),
    ],
)
def test_each_node_has_its_own_kubelet_and_kubevirt_directories(path: str, place: str) -> None:
    assert Layout(Path("/d"), "c", "n").host_path(path) == Path(place)


def test_names_of_interfaces_fit_the_kernel_and_differ_by_cluster() -> None:
    other = ClusterNetwork("other-cluster-with-a-long-name")
    assert len(NETWORK.interface("uid")) <= 15 and len(NETWORK.bridge) <= 15
    assert NETWORK.tag != other.tag and NETWORK.pods6 != other.pods6
    assert NETWORK.node_range(1) == IPv4Network("10.244.1.0/24")
    with pytest.raises(ValueError, match="no room"):
        NETWORK.node_range(256)


@pytest.mark.parametrize(
    ("name", "one"),
    [
        ("busybox", "busybox:latest"),
        ("docker.io/library/busybox:1", "busybox:1"),
        ("localhost:5000/a/b", "localhost:5000/a/b:latest"),
        ("quay.io/a/b:v1", "quay.io/a/b:v1"),
        ("a@sha256:1", "a@sha256:1"),
    ],
)
def test_an_image_has_one_spelling(name: str, one: str) -> None:
    assert canonical(name) == one


def test_a_derived_image_has_its_files_where_the_images_links_lead(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "store", {"/usr": "/usr"})
    store.create()
    base = tmp_path / "base"
    (base / "usr/lib").mkdir(parents=True)
    (base / "lib").symlink_to("usr/lib")
    store.add_layer(base, "base")
    from virtfleet.local.node.images import Image

    store.put(Image(name="base:1", layers=("base",), on_host=True, env=("A=1", "B=1")))
    (tmp_path / "f").write_text("content")
    made = store.derive("new", "base:1", [(tmp_path / "f", "/lib/sub/f")], {"B": "2", "C": "3"})
    assert (store.trees(made)[0] / "usr/lib/sub/f").read_text() == "content"
    assert made.env == ("A=1", "B=2", "C=3") and made.name == "new:latest"
    (stack,) = store.underlays(made).values()
    assert stack[0].endswith("/usr") and stack[-1] == "/usr"
    store.remove("base:1")
    assert store.trees(made)[-1].is_dir(), "a layer stays as long as an image has it"
    store.remove("new")
    assert not list(store.layers.iterdir())
    with pytest.raises(ImageError, match="there is no image new:latest"):
        store.remove("new")


def test_services_become_one_transaction_with_refusals_for_those_without_endpoints() -> None:
    def service(name: str, address: str) -> dict[str, Any]:
        metadata = {"namespace": "n", "name": name}
        return {"metadata": metadata, "spec": {"clusterIP": address, "ports": [{"port": 80, "name": "web"}]}}

    def endpoints(ready: bool | None) -> dict[str, Any]:
        return {
            "metadata": {"namespace": "n", "labels": {"kubernetes.io/service-name": "up"}},
            "ports": [{"name": "web", "port": 8080}, {"name": "other", "port": 1}],
            "endpoints": [{"addresses": ["10.244.1.9"], "conditions": {"ready": ready}}],
        }

    objects = [service("up", "10.96.0.2"), service("down", "10.96.0.3"), service("headless", "None")]
    found = services.frontends(objects, [endpoints(None)])
    assert [(f.name, f.backends) for f in found] == [("n/down:web", ()), ("n/up:web", (("10.244.1.9", 8080),))]
    text = services.render(NETWORK, found)
    assert "10.96.0.2 . tcp . 80 : goto to_" in text and "0 : 10.244.1.9 . 8080" in text
    assert "elements = { 10.96.0.3 . tcp . 80 }" in text
    assert text == services.render(NETWORK, services.frontends(objects[::-1], [endpoints(None)]))
    assert not services.frontends(objects, [endpoints(False)])[1].backends, "only what is ready"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "p"),
        ("metadata.labels", 'a="x\\"y"\nb="2"'),
        ("metadata.labels['b']", "2"),
        ("metadata.annotations['none']", ""),
        ("spec.nodeName", "n1"),
        ("status.podIP", "10.1.0.2"),
        ("status.podIPs", "10.1.0.2,fd00::2"),
        ("status.hostIP", "10.0.0.1"),
    ],
)
def test_a_container_can_learn_of_its_pod(path: str, value: str) -> None:
    assert field(pod(nodeName="n1"), path, FACTS) == value


def test_an_unknown_field_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"spec\.volumes"):
        field(pod(), "spec.volumes", FACTS)


@pytest.mark.parametrize(
    ("reference", "value"),
    [
        ({"resource": "limits.cpu"}, "2"),
        ({"resource": "limits.cpu", "divisor": "1m"}, "1500"),
        ({"resource": "limits.memory", "divisor": "1Mi"}, "1024"),
        ({"resource": "requests.memory", "divisor": "1Mi"}, "64"),
        ({"resource": "requests.cpu", "divisor": "1m"}, "1500"),
    ],
)
def test_resources_are_counted_in_units_of_the_divisor(reference: Any, value: str) -> None:
    amounts = {"limits": {"cpu": "1500m"}, "requests": {"memory": "64Mi"}}
    assert resource(pod(containers=[{"name": "c", "resources": amounts}]), reference, "c", FACTS) == value


def test_variables_refer_to_those_before_them() -> None:
    assert expand("$(A)/$(B)/$$(A)/$C", {"A": "1"}) == "1/$(B)/$(A)/$C"


async def test_variables_come_from_objects_and_missing_ones_are_named() -> None:
    objects = {"cm": {"kind": "ConfigMap", "data": {"k": "v"}}}

    class Api:
        async def get(self, _: Any, name: str, namespace: str) -> Any:
            if name not in objects:
                raise ApiError("NotFound", f'configmaps "{name}" not found')
            return objects[name]

    async def values(**container: Any) -> dict[str, str]:
        return await declared(pod(), {"name": "c", **container}, Api(), FACTS, {"GIVEN": "1"})

    def key(name: str, key: str, **more: Any) -> list[Any]:
        return [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": name, "key": key, **more}}}]

    assert await values(env=key("cm", "k")) == {"GIVEN": "1", "X": "v"}
    assert await values(env=key("none", "k", optional=True)) == {"GIVEN": "1"}
    assert await values(envFrom=[{"prefix": "P_", "configMapRef": {"name": "cm"}}]) == {"GIVEN": "1", "P_k": "v"}
    with pytest.raises(ConfigError, match="couldn't find key z in ConfigMap n/cm"):
        await values(env=key("cm", "z"))
    with pytest.raises(ConfigError, match='configmaps "none" not found'):
        await values(env=key("none", "k"))


def test_a_volume_of_files_changes_all_at_once(tmp_path: Path) -> None:
    first = {"a": File(b"1", 0o644), "dir/b": File(b"1", 0o400)}
    volumes.write(tmp_path, first)
    before = os.readlink(tmp_path / "..data")
    volumes.write(tmp_path, first)
    assert os.readlink(tmp_path / "..data") == before, "nothing to do"
    volumes.write(tmp_path, {"a": File(b"2", 0o644), "c": File(b"2", 0o644)})
    assert os.readlink(tmp_path / "..data") != before
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith("..")) == ["a", "c"]
    assert (tmp_path / "a").read_text() == "2"
    assert len([p for p in tmp_path.iterdir() if p.name.startswith("..")]) == 2, "the version before is gone"


def test_keys_of_an_object_become_files_with_their_modes() -> None:
    obj = {"kind": "ConfigMap", "data": {"k": "v", "l": "w"}, "binaryData": {"b": "AA=="}}
    assert volumes.keyed(obj, {}, 0o644)["b"] == File(b"\0", 0o644)
    items = [{"key": "k", "path": "x/y", "mode": 0o400}]
    assert volumes.keyed(obj, {"items": items}, 0o644) == {"x/y": File(b"v", 0o400)}
    with pytest.raises(ConfigError, match="non-existent config key: z"):
        volumes.keyed(obj, {"items": [{"key": "z", "path": "z"}]}, 0o644)


def test_a_link_in_a_container_does_not_lead_out_of_it(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/passwd").symlink_to("/etc/target")
    (root / "etc/target").write_text("inside")
    (root / "up").symlink_to("../../../etc/passwd")
    assert read_inside(root, "/etc/passwd") == b"inside"
    assert read_inside(root, "up") == b"inside"
    with pytest.raises(FileNotFoundError):
        read_inside(root, "/etc/shadow")


def test_hosts_and_resolv_conf_say_who_and_where_the_pod_is() -> None:
    sandbox = Sandbox(pod="u", hostname="web-0", boot="b", namespaces={}, address="10.1.0.2")
    hosts = render_hosts(pod(subdomain="web", hostAliases=[{"ip": "1.2.3.4", "hostnames": ["x", "y"]}]), sandbox)
    assert "10.1.0.2\tweb-0.web.n.svc.cluster.local web-0\n" in hosts and "1.2.3.4\tx y\n" in hosts
    machine = "nameserver 9.9.9.9\nsearch here\n"
    config = {"nameservers": ["1.1.1.1"], "options": [{"name": "ndots", "value": "2"}]}
    assert render_resolv_conf(pod(dnsConfig=config), machine) == (
        "nameserver 1.1.1.1\nnameserver 9.9.9.9\nsearch here\noptions ndots:2\n"
    )
    assert "9.9.9.9" not in render_resolv_conf(pod(dnsConfig=config, dnsPolicy="None"), machine)


def test_log_entries_are_read_joined_and_cut_from_the_end(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(b"".join(b"2024-05-06T07:08:09.123456789+00:00 stdout F line %d\n" % n for n in range(5000)))
    tail, size = server.last_lines(path, 2)
    assert [server.parse(raw).text for raw in tail] == [b"line 4998", b"line 4999"]  # type: ignore[union-attr]
    assert size == path.stat().st_size
    partial = server.parse(b"2024-05-06T07:08:09.1Z stderr P half")
    assert partial and partial.render(False) == b"half" and partial.moment() == pytest.approx(1714979289.1)
    assert server.parse(b"torn") is None


def test_the_error_channel_carries_the_exit_code() -> None:
    assert outcome(0)["status"] == "Success"
    assert outcome(3)["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]


# --- other resources for pods that run


def _asking(uid: str, memory: str, *, allocated: str = "", phase: str = "Running") -> Obj:
    status: Obj = {"phase": phase}
    if allocated:
        status["containerStatuses"] = [{"name": "c", "allocatedResources": {"memory": allocated}}]
    container = {"name": "c", "resources": {"requests": {"memory": memory}}}
    return {"metadata": {"uid": uid}, "spec": {"containers": [container]}, "status": status}


@pytest.mark.parametrize(
    ("asked", "others", "reason"),
    [
        ("4Gi", [], ""),
        ("9Gi", [], lifecycle.INFEASIBLE),
        ("4Gi", [_asking("b", "4Gi")], ""),
        ("5Gi", [_asking("b", "4Gi")], lifecycle.DEFERRED),
        ("5Gi", [_asking("b", "4Gi", phase="Succeeded")], ""),
        ("5Gi", [_asking("b", "4Gi", allocated="2Gi")], ""),
        ("5Gi", [_asking("b", "2Gi", allocated="4Gi")], lifecycle.DEFERRED),
        ("8Gi", [_asking("a", "4Gi")], ""),
    ],
)
def test_a_pod_grows_as_far_as_its_node_has_room(asked: str, others: list[Obj], reason: str) -> None:
    short = lifecycle.shortage(_asking("a", asked), others, {"memory": "8Gi", "cpu": "2"})
    assert (short.reason if short else "") == reason


def test_a_number_that_a_thread_has_now_is_not_the_process_that_had_it() -> None:
    """An agent that starts looks for the processes that it remembers, whoever has their numbers by then."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        assert thread.native_id
        with pidfd(thread.native_id, 1) as found:
            assert found is None
    finally:
        over.set()
        thread.join()
    with pidfd(os.getpid(), start_time(os.getpid())) as found:
        assert found is not None
