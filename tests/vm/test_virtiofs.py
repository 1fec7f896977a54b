"""Directories of the Pod in a real guest: what is mounted there, what the guest writes, and what it cannot reach."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.clusters import Cluster, Kubectl
from vm.gated import gates
from vm.guests import PATIENCE, machine
from vm.test_datavolumes import volume
from waiting import eventually

pytestmark = pytest.mark.timeout(600)

NAMESPACE = "virtiofs"
SHARED = {
    "conf": {"configMap": {"name": "settings"}},
    "keys": {"secret": {"secretName": "keys"}},
    "token": {"serviceAccount": {"serviceAccountName": "default"}},
    "about": {"downwardAPI": {"fields": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
    "made": {"dataVolume": {"name": "made"}},
    "data": {"persistentVolumeClaim": {"claimName": "data"}},
}
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
}


class Sharing:
    """A VMI with a file system of every kind, each mounted in its guest at /mnt/<name>."""

    def __init__(self, fleet: Cluster) -> None:
        self.kubectl = Kubectl(fleet, NAMESPACE)

    def wanted(self) -> dict[str, Any]:
        vmi = machine()
        vmi["metadata"] = {"name": "sharing", "labels": {"flavour": "plum"}}
        devices = vmi["spec"]["domain"]["devices"]
        devices["filesystems"] = [{"name": name, "virtiofs": {}} for name in SHARED]
        vmi["spec"]["volumes"] += [{"name": name, **source} for name, source in SHARED.items()]
        return vmi

    def __enter__(self) -> Sharing:
        self.kubectl("create", "namespace", NAMESPACE)
        self.kubectl("create", "configmap", "settings", "--from-literal=colour=blue")
        self.kubectl("create", "secret", "generic", "keys", "--from-literal=user=admin")
        self.kubectl.apply(CLAIM, volume("made", {"blank": {}}, size="8Mi", accessModes=["ReadWriteMany"]))
        eventually(lambda: self.kubectl.apply(self.wanted()), PATIENCE)  # when the gate has been heard of
        eventually(self.answers, 3 * PATIENCE)
        for name in SHARED:
            self.guest(f"mkdir -p /mnt/{name} && mount -t virtiofs {name} /mnt/{name}")
        return self

    def __exit__(self, *_: object) -> None:
        self.kubectl("delete", "vmi,pod,dv,pvc", "--all", "--timeout=80s")
        self.kubectl("delete", "namespace", NAMESPACE, "--wait=false")

    @property
    def pod(self) -> dict[str, Any]:
        [found] = self.kubectl.json("get", "pods", "-l", "kubevirt.io=virt-launcher")["items"]
        assert isinstance(found, dict)
        return found

    def guest(self, command: str) -> str:
        """What a command says in the guest, where it succeeds."""
        probe = ("virt-launcher", "probe", "--timeout", "80", "--", "/bin/sh", "-c", command)
        return self.kubectl("exec", self.pod["metadata"]["name"], "-c", "compute", "--", *probe)

    def guest_cannot(self, command: str) -> str:
        return self.guest(f"if {command}; then echo DONE; fi 2>&1")

    def beside(self, volume: str, command: str) -> str:
        """The same in the container that shares a volume."""
        name = self.pod["metadata"]["name"]
        return self.kubectl("exec", name, "-c", f"virtiofs-{volume}", "--", "/bin/sh", "-c", command)

    def conditions(self) -> dict[str, dict[str, Any]]:
        vmi = self.kubectl.json("get", "vmi", "sharing")
        return {c["type"]: c for c in vmi.get("status", {}).get("conditions", [])}

    def answers(self) -> bool:
        return self.conditions().get("AgentConnected", {}).get("status") == "True"


@pytest.fixture(scope="module")
def sharing(fleet: Cluster) -> Iterator[Sharing]:
    with gates(fleet, "EnableVirtioFsStorageVolumes"), Sharing(fleet) as sharing:
        yield sharing


def test_the_guest_reads_what_the_pod_has(sharing: Sharing) -> None:
    assert sharing.guest("cat /mnt/conf/colour /mnt/keys/user") == "blueadmin"
    assert sharing.guest("cat /mnt/token/namespace") == NAMESPACE
    token = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    assert sharing.guest("cat /mnt/token/token").strip() == sharing.beside("token", f"cat {token}").strip()
    assert 'flavour="plum"' in sharing.guest("cat /mnt/about/labels")
    assert sharing.guest("ls -A /mnt/made") == "disk.img\n"
    assert "Read-only" in sharing.guest_cannot("echo red > /mnt/conf/colour")
    where = sharing.pod["spec"]["containers"][1]["volumeMounts"]
    assert {"name": "conf", "mountPath": "/var/run/kubevirt-private/config-map/conf", "readOnly": True} in where


def test_what_the_guest_writes_is_in_the_volume(sharing: Sharing) -> None:
    assert sharing.guest("ls -A /mnt/data") == ""  # no disk was made in it
    sharing.guest(
        "cd /mnt/data && mkdir -p a/b && echo kept > a/b/first && mv a/b/first a/second && ln a/second a/third"
        " && ln -s second a/link && echo more >> a/link && chmod 640 a/second && touch -d '2001-02-03 04:05' a/third"
        " && head -c 300000 /dev/urandom > large && sync && rmdir a/b"
    )
    here = "/var/run/kubevirt-private/vmi-disks/data"
    seen = f"cd {here} && cat a/second && stat -c '%h %a %u' a/third && readlink a/link && ls a && sha256sum < large"
    *lines, checksum = sharing.beside("data", seen).splitlines()
    assert lines == ["kept", "more", "2 640 107", "second", "link", "second", "third"]
    assert sharing.guest("sha256sum < /mnt/data/large").strip() == checksum
    assert sharing.guest("echo 3 > /proc/sys/vm/drop_caches; sha256sum < /mnt/data/large").strip() == checksum
    sharing.beside("data", f"echo from the pod > {here}/back")
    assert eventually(lambda: sharing.guest("cat /mnt/data/back"), PATIENCE) == "from the pod\n"


def test_nothing_but_the_volume_is_reached(sharing: Sharing) -> None:
    here = "/var/run/kubevirt-private/vmi-disks/data"
    sharing.beside("data", f"cd {here} && ln -sf /etc/passwd out && ln -sfn / up && ln -sf ../../.. parent")
    # A link leads somewhere in the guest's own tree: the guest's passwd has no qemu.
    assert "qemu" in sharing.beside("data", "cat /etc/passwd")
    assert "qemu" not in sharing.guest("cat /mnt/data/out")
    assert sharing.guest("readlink /mnt/data/out") == "/etc/passwd\n"
    assert "virtfleet" in sharing.beside("data", "ls /opt") and sharing.guest_cannot("ls /mnt/data/up/opt") != "DONE\n"
    assert "not permitted" in sharing.guest_cannot("mknod /mnt/data/device c 1 3")
    assert "not permitted" in sharing.guest_cannot("mknod /mnt/data/disk b 7 0")
    sharing.guest("cp /bin/busybox /mnt/data/program")
    assert "not permitted" in sharing.guest_cannot("chmod 4755 /mnt/data/program")
    assert "not permitted" in sharing.guest_cannot("chmod 2755 /mnt/data/program")
    found = sharing.beside("data", f"find {here} ! -user 107 ! -path {here}; find {here} -type f -perm /6000")
    assert found == "", found


def test_sharing_takes_no_right(sharing: Sharing) -> None:
    spec = sharing.pod["spec"]
    for container in spec["containers"]:
        context = container["securityContext"]
        assert (context["allowPrivilegeEscalation"], context["capabilities"]) == (False, {"drop": ["ALL"]})
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsNonRoot"]) == (107, True)
    status = sharing.beside("data", "cat /proc/1/status")
    rights = {line.split()[1] for line in status.splitlines() if line.startswith("Cap")}
    assert rights == {"0000000000000000"} and "Seccomp:\t2" in status and "NoNewPrivs:\t1" in status


def test_the_vm_stays_on_its_node(sharing: Sharing) -> None:
    migratable = sharing.conditions()["LiveMigratable"]
    assert (migratable["status"], migratable["reason"]) == ("False", "VirtIOFSNotLiveMigratable")


def test_a_file_system_that_nobody_serves_is_told_and_the_vm_runs_on(sharing: Sharing) -> None:
    sharing.kubectl(
        "exec",
        sharing.pod["metadata"]["name"],
        "-c",
        "virtiofs-keys",
        "--",
        "/bin/sh",
        "-c",
        "kill -9 $(pidof python3)",
    )
    ready = eventually(
        lambda: (r := sharing.conditions()["Ready"])["reason"] == "FilesystemContainerEnded" and r, PATIENCE
    )
    assert ready["status"] == "False" and "container virtiofs-keys has ended" in ready["message"]
    assert "Restart the VM" in ready["message"]
    events = ("get", "events", "--field-selector", "reason=FilesystemContainerEnded", "-o", "jsonpath={..message}")
    assert "virtiofs-keys" in eventually(lambda: sharing.kubectl(*events), PATIENCE)
    assert sharing.guest("cat /mnt/about/labels")  # the others are as they were


def test_the_pod_ends_with_its_guest(sharing: Sharing) -> None:
    began = time.monotonic()
    sharing.guest("(sleep 1; poweroff -f) >/dev/null 2>&1 &")
    eventually(
        lambda: sharing.kubectl("get", "vmi", "sharing", "-o", "jsonpath={.status.phase}") == "Succeeded", PATIENCE
    )
    eventually(lambda: sharing.pod["status"]["phase"] in ("Succeeded", "Failed"), PATIENCE)
    assert time.monotonic() - began < PATIENCE
