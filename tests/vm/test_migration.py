"""VMs that move while they run, through the API of a real installation: the guest goes on, and only where it should."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.clusters import VIRTFLEET, Cluster
from vm.accessed import Used, a_vm
from vm.guests import PATIENCE
from waiting import eventually

NAMESPACE = "moving"
FINAL = ("Succeeded", "Failed")
FIND = "disk=/dev/$(basename $(dirname $(grep -lx data /sys/block/*/serial)))"
FORGET = "echo 3 >/proc/sys/vm/drop_caches"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def web(fleet: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Used]:
    with Used(fleet, NAMESPACE, tmp_path_factory.mktemp("home")) as used:
        yield used


def node(web: Used) -> str:
    vmi = web.vmi()
    assert vmi
    return str(vmi["status"]["nodeName"])


def pods(web: Used) -> list[str]:
    found = web.kubectl.json("get", "pods", "-l", "kubevirt.io=virt-launcher")["items"]
    return [p["metadata"]["name"] for p in found if p["status"]["phase"] not in FINAL]


def migrations(web: Used) -> dict[str, dict[str, Any]]:
    found = web.kubectl.json("get", "vmim")["items"]
    return {m["metadata"]["name"]: m.get("status") or {} for m in found}


def test_a_guest_moves_there_and_back_and_notices_nothing(web: Used) -> None:
    boot = web.boot_id()
    web.in_guest("echo kept > /root/kept; echo kept > /tmp/kept; sync; echo done")
    before = float(web.in_guest("cat /proc/uptime").split()[0])
    visited = [node(web)]
    for _ in range(2):
        told = json.loads(web.does(VIRTFLEET, "migrate", "-n", NAMESPACE, "web", "--watch", "-o", "json"))
        visited.append(node(web))
        assert (told["source"], told["target"]) == tuple(visited[-2:])
        assert told["metrics"]["totalBytes"] > 32 << 20, "the memory of the guest"
        assert 0 < told["metrics"]["downtimeMilliseconds"] <= told["metrics"]["elapsedMilliseconds"], told
        assert web.boot_id() == boot
        after = float(web.in_guest("cat /proc/uptime").split()[0])
        assert after > before, "a guest's time never goes back"
        before = after
        eventually(lambda: len(pods(web)) == 1, PATIENCE)
    assert visited[0] != visited[1] != visited[2]
    assert web.in_guest("cat /root/kept /tmp/kept").split() == ["kept", "kept"]
    done = [m for m in migrations(web).values() if m["phase"] == "Succeeded"]
    assert len(done) == 2
    phases = [t["phase"] for t in done[0]["phaseTransitionTimestamps"]]
    assert phases[0] == "Pending" and phases[-1] == "Succeeded" and "TargetReady" in phases, phases
    vm = web.vm()
    assert vm["status"]["printableStatus"] == "Running"
    reasons = {event["reason"] for event in web.kubectl.json("get", "events")["items"]}
    assert {"SuccessfulCreate", "SuccessfulHandOver", "SuccessfulMigration", "Migrated"} <= reasons


def test_a_migration_that_is_deleted_leaves_the_guest_where_it_is(web: Used) -> None:
    boot, here = web.boot_id(), node(web)
    web.kubectl.apply(
        {
            "apiVersion": "migrations.kubevirt.io/v1alpha1",
            "kind": "MigrationPolicy",
            "metadata": {"name": "crawl"},
            "spec": {
                "bandwidthPerMigration": "1Mi",
                "selectors": {"namespaceSelector": {"kubernetes.io/metadata.name": NAMESPACE}},
            },
        }
    )
    try:
        web.kubectl.apply(
            {
                "apiVersion": "kubevirt.io/v1",
                "kind": "VirtualMachineInstanceMigration",
                "metadata": {"name": "slow"},
                "spec": {"vmiName": "web"},
            }
        )
        eventually(lambda: migrations(web)["slow"].get("phase") == "Running", PATIENCE)
        eventually(lambda: migrations(web)["slow"]["migrationState"].get("migrationMetrics"), PATIENCE)
        far = migrations(web)["slow"]["migrationState"]["migrationMetrics"]
        assert 0 < far["remainingBytes"] <= far["totalBytes"], "how far it is can be read while it lasts"
        web.kubectl("delete", "vmim", "slow", "--timeout=60s")
    finally:
        web.kubectl("delete", "migrationpolicy", "crawl")
    eventually(lambda: len(pods(web)) == 1, PATIENCE)
    assert node(web) == here
    assert web.boot_id() == boot
    vmi = web.vmi()
    assert vmi
    state = vmi["status"]["migrationState"]
    assert (state["failed"], state["abortStatus"]) == (True, "Succeeded"), state
    web.does(VIRTFLEET, "migrate", "-n", NAMESPACE, "web", "--watch")
    assert node(web) != here, "the next one is not held up"


def test_the_data_of_a_claim_that_only_its_node_has_goes_to_another_claim_with_the_guest(web: Used) -> None:
    claims = ("before", "after")
    web.kubectl.apply(*(_claim(name, "ReadWriteOnce") for name in claims))
    vm = a_vm(web.key.with_suffix(".pub").read_text().strip())
    vm["metadata"]["name"] = "carrier"
    vm["spec"]["updateVolumesStrategy"] = "Migration"
    machine = vm["spec"]["template"]["spec"]
    machine["domain"]["devices"]["disks"].append({"name": "data", "disk": {"bus": "virtio"}, "serial": "data"})
    on = [[*machine["volumes"], {"name": "data", "persistentVolumeClaim": {"claimName": name}}] for name in claims]
    machine["volumes"] = on[0]
    web.kubectl.apply(vm)

    def vmi() -> dict[str, Any]:
        found: dict[str, Any] = web.kubectl.json("get", "vmi", "carrier")
        return found

    def condition(kind: str) -> dict[str, Any]:
        return next((c for c in vmi()["status"]["conditions"] if c["type"] == kind), {})

    eventually(lambda: condition("AgentConnected").get("status") == "True", 2 * PATIENCE)
    written = web.in_guest(f"{FIND}; dd if=/dev/urandom of=$disk bs=1M count=5 conv=fsync; md5sum <$disk", "carrier")
    boot, here = web.boot_id("carrier"), vmi()["status"]["nodeName"]
    assert condition("LiveMigratable")["reason"] == "DisksNotLiveMigratable"
    web.kubectl(
        "patch", "vm", "carrier", "--type=merge", "-p", json.dumps({"spec": {"template": {"spec": {"volumes": on[1]}}}})
    )
    eventually(lambda: vmi()["status"]["nodeName"] != here, PATIENCE)
    eventually(lambda: "volumeUpdateState" not in web.kubectl.json("get", "vm", "carrier")["status"], PATIENCE)
    assert web.in_guest(f"{FIND}; {FORGET}; md5sum <$disk", "carrier") == written
    assert web.boot_id("carrier") == boot
    status = vmi()["status"]
    assert "migratedVolumes" not in status and not condition("VolumesChange")
    assert [v["persistentVolumeClaimInfo"]["claimName"] for v in status["volumeStatus"] if v["name"] == "data"] == [
        "after"
    ]
    assert "PVC after is not shared" in eventually(lambda: condition("LiveMigratable").get("message"), PATIENCE)
    web.kubectl("delete", "pvc", "before", "--timeout=60s")  # nobody uses it any more


def _claim(name: str, mode: str) -> dict[str, Any]:
    spec = {"accessModes": [mode], "resources": {"requests": {"storage": "32Mi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


@pytest.mark.thorough("what is kept is the launcher's in both homes")
def test_what_firmware_and_tpm_remember_goes_along_and_outlives_a_restart(web: Used) -> None:
    """So does what is on a claim that all nodes share, of which nobody has said how it is to be cached."""
    web.kubectl.apply(_claim("shared", "ReadWriteMany"))
    vm = a_vm(web.key.with_suffix(".pub").read_text().strip())
    vm["metadata"]["name"] = "keeper"
    machine = vm["spec"]["template"]["spec"]
    machine["domain"]["devices"]["disks"].append({"name": "data", "disk": {"bus": "virtio"}, "serial": "data"})
    machine["volumes"].append({"name": "data", "persistentVolumeClaim": {"claimName": "shared"}})
    domain = vm["spec"]["template"]["spec"]["domain"]
    efi = {"persistent": True, "secureBoot": False}
    domain |= {"memory": {"guest": "256Mi"}, "firmware": {"bootloader": {"efi": efi}}}
    domain["devices"]["tpm"] = {"persistent": True}
    own = web.key.with_suffix(".pub").read_text().strip()
    about = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}}
    web.kubectl.apply({**about, "stringData": {"own": own}})
    by_agent = {
        "source": {"secret": {"secretName": "keys"}},
        "propagationMethod": {"qemuGuestAgent": {"users": ["root"]}},
    }
    vm["spec"]["template"]["spec"]["accessCredentials"] = [{"sshPublicKey": by_agent}]
    web.kubectl.apply(vm)
    variable = "/sys/firmware/efi/efivars/Kept-c0ffee00-0000-4000-8000-000000000000"
    look = f"insmod /lib/modules/efivarfs.ko; mount -t efivarfs none /sys/firmware/efi/efivars; cat {variable}"
    write = f"printf '\\007\\000\\000\\000from-before' >{variable}; cat {variable}"
    assert "from-before" in web.in_guest(f"{look}; {write}", "keeper")
    synchronized = "jsonpath={.status.conditions[?(@.type=='AccessCredentialsSynchronized')].status}"
    eventually(lambda: web.kubectl("get", "vmi", "keeper", "-o", synchronized) == "True", PATIENCE)
    web.kubectl.apply({**about, "stringData": {"own": own, "new": own.replace(own.split()[-1], "somebody-else")}})
    eventually(lambda: "somebody-else" in web.in_guest("cat /root/.ssh/authorized_keys", "keeper"), PATIENCE)
    seed = _seed(web)
    written = web.in_guest(f"{FIND}; dd if=/dev/urandom of=$disk bs=1M count=5 conv=fsync; md5sum <$disk", "keeper")
    web.does(VIRTFLEET, "migrate", "-n", NAMESPACE, "keeper", "--watch")
    assert web.in_guest(f"{FIND}; {FORGET}; md5sum <$disk", "keeper") == written

    def claims() -> list[str]:
        found = web.kubectl.json("get", "pvc", "-l", "persistent-state-for=keeper")["items"]
        return [claim["metadata"]["name"] for claim in found]

    (claim,) = eventually(lambda: claims() if len(claims()) == 1 else None, PATIENCE)
    assert claim.startswith("persistent-state-for-keeper-")
    uid = web.kubectl.json("get", "vmi", "keeper")["metadata"]["uid"]
    web.does(VIRTFLEET, "restart", "-n", NAMESPACE, "keeper")

    def again() -> bool:
        found = web.kubectl.run("get", "vmi", "keeper", "-o", "jsonpath={.metadata.uid} {.status.phase}").stdout.split()
        return len(found) == 2 and found[0] != uid and found[1] == "Running"

    eventually(again, PATIENCE)
    assert "from-before" in web.in_guest(look, "keeper")
    assert _seed(web) == seed, "it is the same TPM"
    assert claims() == [claim]


def _seed(web: Used) -> str:
    """The first of the secrets that a TPM is made with, where its emulator keeps it."""
    launcher = next(pod for pod in pods(web) if pod.startswith("virt-launcher-keeper-"))
    state = "/var/run/kubevirt-private/vm-state/swtpm"
    show = f"dd if=$(find {state} -name '*permall') bs=1 skip=548 count=64 2>/dev/null | md5sum"
    return web.kubectl("exec", launcher, "--", "sh", "-c", show)
