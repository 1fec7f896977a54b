"""The runtime's configuration of a container: security, devices, resources, mounts."""

from __future__ import annotations

from typing import Any

import pytest

from virtfleet.kube import seccomp
from virtfleet.local.node import bundle
from virtfleet.local.node.bundle import Device, HostFacts, Mount, Parts
from virtfleet.local.node.images import Image
from virtfleet.local.node.security import CAPABILITIES, ConfigError, User, bounding_set, capabilities, resolve_user

HERE = HostFacts(
    architecture="x86_64",
    capabilities=[name for name in CAPABILITIES if name != "CAP_SYS_RESOURCE"],
    memory=16 << 30,
    oom_score=0,
    devices=[Device("/dev/kvm", "c", 10, 232)],
    unified=False,
)
IMAGE = Image(name="i:1", layers=("l",), env=("PATH=/bin", "A=image"), entrypoint=("/entry",), command=("arg",))


def pod(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"containers": [], **spec}}


def made(container: dict[str, Any] | None = None, spec: dict[str, Any] | None = None, **parts: Any) -> dict[str, Any]:
    given = {"image": IMAGE, "user": User(), "env": [], "mounts": [], "namespaces": {}, "cgroup": "/c", "rootfs": "/r"}
    whole = pod(**(spec or {}))
    described = {"name": "c", **(container or {})}
    whole["spec"]["containers"] = [described]
    return bundle.config(whole, described, Parts(**{**given, **parts}), HERE)


@pytest.mark.parametrize(
    ("container", "line"),
    [
        ({}, ["/entry", "arg"]),
        ({"args": ["x"]}, ["/entry", "x"]),
        ({"command": ["y"]}, ["y"]),
        ({"command": ["y"], "args": ["z"]}, ["y", "z"]),
    ],
)
def test_a_command_replaces_the_images_entrypoint_and_its_arguments(container: Any, line: list[str]) -> None:
    assert made(container)["process"]["args"] == line


def test_without_any_command_the_container_is_refused() -> None:
    with pytest.raises(ConfigError, match="no command specified"):
        made(image=Image(name="i", layers=()))


def test_variables_of_the_container_override_those_of_devices_and_of_the_image() -> None:
    env = bundle.environment(IMAGE, {"A": "container"}, "host", {"A": "device", "B": "device"})
    assert dict(e.split("=", 1) for e in env) == {"PATH": "/bin", "HOSTNAME": "host", "A": "container", "B": "device"}


def test_capabilities_are_defaults_changed_by_the_spec_within_what_the_machine_has() -> None:
    def granted(**change: list[str]) -> set[str]:
        return set(capabilities({"securityContext": {"capabilities": change}}, HERE.capabilities))

    assert granted(drop=["ALL"]) == set()
    assert granted(drop=["ALL"], add=["NET_BIND_SERVICE"]) == {"CAP_NET_BIND_SERVICE"}
    assert "CAP_CHOWN" in granted() - granted(drop=["CHOWN"])
    assert granted(add=["ALL"]) == set(HERE.capabilities)
    assert "CAP_SYS_RESOURCE" not in granted(add=["SYS_RESOURCE"]), "nobody can give what he has not"
    with pytest.raises(ConfigError, match="CAP_NONSENSE"):
        granted(add=["NONSENSE"])


def test_the_bounding_set_is_read_from_proc() -> None:
    assert bounding_set("Name:\tx\nCapBnd:\t0000000000000041\n") == ["CAP_CHOWN", "CAP_SETGID"]


def test_an_ordinary_container_gets_only_the_devices_that_it_was_given() -> None:
    config = made(devices=[Device("/dev/net/tun", "c", 10, 200, access="rw")])
    assert [d["path"] for d in config["linux"]["devices"]] == ["/dev/net/tun"]
    deny, allow = config["linux"]["resources"]["devices"]
    assert deny == {"allow": False, "access": "rwm"}
    assert allow == {"allow": True, "type": "c", "major": 10, "minor": 200, "access": "rw"}
    assert "/proc/kcore" in config["linux"]["maskedPaths"]


def test_a_privileged_container_gets_all_devices_and_no_masks() -> None:
    config = made({"securityContext": {"privileged": True, "seccompProfile": {"type": "RuntimeDefault"}}})
    assert [d["path"] for d in config["linux"]["devices"]] == ["/dev/kvm"]
    assert config["linux"]["resources"]["devices"] == [{"allow": True, "access": "rwm"}]
    assert "maskedPaths" not in config["linux"] and "seccomp" not in config["linux"]
    assert config["process"]["capabilities"]["bounding"] == HERE.capabilities


def test_no_new_privileges_read_only_root_and_sysctls_come_from_the_security_context() -> None:
    config = made(
        {"securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}},
        {"securityContext": {"sysctls": [{"name": "net.core.somaxconn", "value": "9"}]}},
    )
    assert config["process"]["noNewPrivileges"] and config["root"]["readonly"]
    assert config["linux"]["sysctl"] == {"net.core.somaxconn": "9"}


@pytest.mark.parametrize(
    ("propagations", "root"),
    [(["rprivate"], None), (["rprivate", "rslave"], "rslave"), (["rslave", "rshared"], "rshared")],
)
def test_the_root_passes_on_what_its_most_open_volume_does(propagations: list[str], root: str | None) -> None:
    config = made(mounts=[Mount("/s", f"/d{n}", propagation=p) for n, p in enumerate(propagations)])
    assert config["linux"].get("rootfsPropagation") == root


def test_what_an_image_adds_below_usr_is_stacked_over_the_machines() -> None:
    underlays = {"/usr": ["/usr"], "/opt/x": ["/layer/opt/x", "/opt/x"]}
    mounts = {m["destination"]: m for m in made(underlays=underlays)["mounts"]}
    assert mounts["/usr"]["type"] == "bind" and "ro" in mounts["/usr"]["options"]
    assert mounts["/opt/x"]["options"] == ["ro", "lowerdir=/layer/opt/x:/opt/x"]


PASSWD = "root:x:0:0::/root:/bin/sh\nweb:x:1000:1001::/:/bin/sh\n"
GROUP = "root:x:0:\nweb:x:1001:\nextra:x:2000:web\n"


@pytest.mark.parametrize(
    ("context", "image_user", "user"),
    [
        ({}, "", User(0, 0)),
        ({}, "web", User(1000, 1001, (2000,))),
        ({}, "1000:0", User(1000, 0, (2000,))),
        ({"runAsUser": 5}, "web", User(5, 0)),
        ({"runAsUser": 1000, "runAsGroup": 7}, "", User(1000, 7, (2000,))),
        ({"supplementalGroups": [9], "fsGroup": 8}, "", User(0, 0, (8, 9))),
    ],
)
def test_users_are_resolved_from_the_spec_then_the_image(context: Any, image_user: str, user: User) -> None:
    assert resolve_user(pod(securityContext=context), {"name": "c"}, image_user, PASSWD, GROUP) == user


@pytest.mark.parametrize(
    ("image_user", "words"), [("", "image will run as root"), ("web", "non-numeric user"), ("0", "will run as root")]
)
def test_run_as_non_root_refuses_what_it_cannot_be_sure_of(image_user: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve_user(pod(securityContext={"runAsNonRoot": True}), {"name": "c"}, image_user, PASSWD, GROUP)


def test_an_unknown_user_of_the_image_is_named() -> None:
    with pytest.raises(ConfigError, match="'ghost'"):
        resolve_user(pod(), {"name": "c"}, "ghost", PASSWD, GROUP)


def test_the_default_profile_forbids_namespaces_unless_the_capability_lifts_it() -> None:
    def forbidden(*granted: str) -> set[str]:
        rules = seccomp.profile(granted, "x86_64")["syscalls"]
        return {name for rule in rules if "args" not in rule for name in rule["names"]}

    assert {"mount", "setns", "clone3", "bpf", "io_uring_setup"} <= forbidden()
    assert not {"mount", "setns", "clone3"} & forbidden("CAP_SYS_ADMIN")
    assert "io_uring_setup" in forbidden(*CAPABILITIES), "some are never allowed"
