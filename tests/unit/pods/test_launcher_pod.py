"""The launcher Pod: whose it is, what it may do, what it asks for, and where things lie in it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
import yaml
from admission.machines import edited
from hypothesis import given
from hypothesis import strategies as st

from tests.reference import GOLDEN
from virtfleet import __version__
from virtfleet.api.quantity import Quantity
from virtfleet.hypervisors import registry
from virtfleet.installation import Installation
from virtfleet.local.apiserver.kinds.pod_spec import qos_class
from virtfleet.pods.launcher import Unrenderable, pod_name, render, vmi_id

from .machines import UID, compute, kubevirt, machine, mounts, pod, volumes
from .restricted import violations


def test_a_vmi_has_one_pod_whoever_renders_it() -> None:
    first, second = pod(), pod()
    assert first == second
    assert first["metadata"]["name"] == "virt-launcher-vmi-0f6a1a24"
    [owner] = first["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == (
        "VirtualMachineInstance",
        "vmi",
        UID,
        True,
    )


@given(st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,250}[a-z0-9])?", fullmatch=True), st.uuids())
def test_pod_names_are_legal_and_end_in_the_uid(name: str, uid: Any) -> None:
    made = pod_name(name, str(uid))
    assert len(made) <= 253
    assert made.endswith(str(uid)[:8])
    assert ".-" not in made.replace(name, "") and not made.startswith("-")


def test_services_of_virtctl_expose_find_the_pod_of_a_long_name_by_its_digest() -> None:
    assert vmi_id("a" * 63) == "a" * 63
    assert vmi_id("a" * 70) == f"{'a' * 54}-ed6c69d9"


def test_people_find_the_pod_by_the_vms_name() -> None:
    made = pod({"metadata.labels": {"app": "web"}})
    labels, annotations = made["metadata"]["labels"], made["metadata"]["annotations"]
    assert labels == {
        "app": "web",
        "kubevirt.io": "virt-launcher",
        "kubevirt.io/domain": "vmi",
        "vm.kubevirt.io/name": "vmi",
        "vmi.kubevirt.io/id": "vmi",
        "kubevirt.io/created-by": UID,
    }
    assert annotations["kubevirt.io/domain"] == "vmi"
    assert annotations["kubectl.kubernetes.io/default-container"] == "compute"
    assert annotations["descheduler.alpha.kubernetes.io/request-evict-only"] == ""


def test_an_ordinary_pod_meets_the_restricted_profile() -> None:
    made = pod()
    assert violations(made) == set()
    assert made["spec"]["securityContext"]["runAsUser"] == 107
    assert made["spec"]["automountServiceAccountToken"] is False
    assert made["spec"]["enableServiceLinks"] is False


LXC = {
    "hypervisor": "lxc",
    "domain.devices.disks": [],
    "domain.devices.filesystems": [{"name": "rootfs", "virtiofs": {}}],
    "volumes": [{"name": "rootfs", "containerDisk": {"image": "box"}}],
}


def test_containers_as_vms_need_root_and_say_so() -> None:
    made = pod(LXC, kubevirt(configuration={"hypervisors": [{"name": "qemu-kvm"}, {"name": "lxc"}]}))
    root = {"allowPrivilegeEscalation", "capabilities", "runAsNonRoot", "runAsUser", "seLinuxOptions"}
    assert violations(made) == root
    profile = {"type": "Localhost", "localhostProfile": "virtfleet/lxc.json"}
    assert made["spec"]["securityContext"]["seccompProfile"] == profile, "the one that virt-handler puts on its node"
    context = compute(made)["securityContext"]
    assert context["capabilities"]["drop"] == ["ALL"]
    assert not {"SYS_MODULE", "SYS_RAWIO", "SYS_PTRACE", "SYS_TIME"} & set(context["capabilities"]["add"])
    assert made["spec"]["nodeSelector"]["hypervisor.node.kubevirt.io/lxc"] == "true"
    assert compute(made)["image"] == f"virtfleet/virt-launcher-lxc:{__version__}"


def test_a_domain_outside_of_its_pod_needs_three_places_of_the_node() -> None:
    where = kubevirt(configuration={"hypervisors": [{"name": "qemu-kvm"}, {"name": "xen"}]})
    made = pod({"hypervisor": "xen"}, where)
    seen = {mounts(made)[name]: v["hostPath"]["path"] for name, v in volumes(made).items() if "hostPath" in v}
    assert seen == {
        "/dev/pts": "/dev/pts",
        "/var/run/kubevirt-private/node-network": "/proc/1/ns/net",
        "/var/lib/virtfleet/outliving": "/var/lib/virtfleet/outliving",
    }
    assert not any("hostPath" in volume for volume in volumes(pod()).values()), "others have nothing of it"


def test_a_container_asks_for_nothing_that_only_machines_need() -> None:
    made = pod(LXC, kubevirt(configuration={"hypervisors": [{"name": "qemu-kvm"}, {"name": "lxc"}]}))
    asked = compute(made)["resources"]["requests"]
    assert [name for name in asked if name.startswith("devices.kubevirt.io/")] == ["devices.kubevirt.io/fuse"]
    beside = registry.get("lxc").descriptor.overheads.total().value()
    assert Quantity.parse(asked["memory"]).value() == 2**30 + beside  # neither video memory nor stacks of virtual CPUs


def test_a_disk_of_the_node_is_the_one_volume_that_the_restricted_profile_refuses() -> None:
    disk = {"hostDisk": {"path": "/data/images/disk.img", "type": "Disk"}}
    where = kubevirt("HostDisk")
    made = pod({"volumes[0]": {"name": "root", **disk}}, where)
    assert violations(made) == {"hostPath"}
    assert volumes(made)["root"] == {"hostPath": {"path": "/data/images", "type": "Directory"}}
    assert mounts(made)["root"] == "/var/run/kubevirt-private/vmi-disks/root"


def test_an_selinux_type_of_ones_own_goes_beyond_the_restricted_profile() -> None:
    assert violations(pod(where=kubevirt(configuration={"selinuxLauncherType": "container_kvm_t"}))) == set()
    assert violations(pod(where=kubevirt(configuration={"selinuxLauncherType": "mine_t"}))) == {"seLinuxOptions"}


def test_a_configured_seccomp_profile_is_used() -> None:
    profile = {"customProfile": {"localhostProfile": "kubevirt/kubevirt.json"}}
    where = kubevirt(configuration={"seccompConfiguration": {"virtualMachineInstanceProfile": profile}})
    context = pod(where=where)["spec"]["securityContext"]
    assert context["seccompProfile"] == {"type": "Localhost", "localhostProfile": "kubevirt/kubevirt.json"}


# -- images


POOL = {
    "name": "megaslop",
    "virtLauncherImage": "registry.example.com/virt-launcher:megaslop",
    "nodeSelector": {"superduper.io/megaslop": "true"},
    "selector": {"deviceNames": ["superduper.io/MegaSlop_9000"]},
}
DEVICE = {"domain.devices.hostDevices": [{"name": "slop", "deviceName": "superduper.io/MegaSlop_9000"}]}


def test_every_container_of_a_matched_vmi_has_the_pools_image() -> None:
    shared = {
        "domain.devices.filesystems": [{"name": "shared", "virtiofs": {}}],
        "volumes[1]": {"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}},
    }
    where = kubevirt("VirtHandlerPools", "HostDevices", "EnableVirtioFsStorageVolumes", virtHandlerPools=[POOL])
    made = pod({**DEVICE, **shared}, where)
    assert [c["name"] for c in made["spec"]["containers"]] == ["compute", "virtiofs-shared"]
    assert {c["image"] for c in made["spec"]["containers"]} == {POOL["virtLauncherImage"]}
    assert made["metadata"]["labels"]["kubevirt.io/handler-pool"] == "megaslop"
    assert made["metadata"]["annotations"]["kubevirt.io/handler-pool"] == "megaslop"
    terms = made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [term] = terms["nodeSelectorTerms"]
    assert term == {"matchExpressions": [{"key": "superduper.io/megaslop", "operator": "In", "values": ["true"]}]}


def test_an_unmatched_vmi_has_the_default_image_and_no_mark_of_a_pool() -> None:
    made = pod(where=kubevirt("VirtHandlerPools", virtHandlerPools=[POOL]))
    assert compute(made)["image"] == f"virtfleet/virt-launcher:{__version__}"
    assert "kubevirt.io/handler-pool" not in made["metadata"]["labels"] | made["metadata"]["annotations"]
    assert "affinity" not in made["spec"]


def test_images_come_from_the_installations_registry_with_its_tag_policy_and_secrets() -> None:
    where = kubevirt(
        imageRegistry="registry.example.com/vf",
        imageTag="v2",
        imagePullPolicy="Always",
        imagePullSecrets=[{"name": "regcred"}],
    )
    disk = {"image": "private.example.com/disk", "imagePullSecret": "diskcred", "imagePullPolicy": "IfNotPresent"}
    made = pod({"volumes[0]": {"name": "root", "containerDisk": disk}}, where)
    assert compute(made)["image"] == "registry.example.com/vf/virt-launcher:v2"
    assert compute(made)["imagePullPolicy"] == "Always"
    assert made["spec"]["imagePullSecrets"] == [{"name": "regcred"}, {"name": "diskcred"}]


def test_a_vmi_whose_hypervisor_contradicts_its_pool_gets_no_pod() -> None:
    where = kubevirt("VirtHandlerPools", "HostDevices", virtHandlerPools=[{**POOL, "hypervisor": "mshv"}])
    with pytest.raises(Unrenderable, match=r"qemu-kvm.*megaslop.*mshv"):
        pod({**DEVICE, "hypervisor": "qemu-kvm"}, where)


# -- resources


def amounts(made: dict[str, Any], kind: str = "requests") -> dict[str, str]:
    found: dict[str, str] = compute(made)["resources"].get(kind, {})
    return found


MI = 1024 * 1024
OVERHEADS = registry.get("qemu-kvm").descriptor.overheads
PROCESSES = OVERHEADS.total().value() // MI
BESIDE = PROCESSES + 1024 // 512 + 8 + 32  # page tables of 1Gi, one CPU, video


def test_memory_is_the_guests_and_what_runs_beside_it() -> None:
    assert amounts(pod())["memory"] == f"{1024 + BESIDE}Mi"
    assert "memory" not in amounts(pod(), "limits")


@pytest.mark.parametrize(
    ("edits", "more"),
    [
        ({"domain.cpu.sockets": 3}, 16),
        ({"domain.devices.autoattachGraphicsDevice": False}, -32),
        ({"domain.devices.tpm": {}}, 53),
        ({"domain.devices.gpus": [{"name": "g", "deviceName": "x.io/gpu"}]}, 1024),
        ({"domain.ioThreadsPolicy": "shared"}, 8),
        ({"readinessProbe": {"guestAgentPing": {}}}, 110),
        ({"readinessProbe": {"guestAgentPing": {}}, "livenessProbe": {"exec": {"command": ["true"]}}}, 120),
        ({"readinessProbe": {"tcpSocket": {"port": 22}}}, 0),
    ],
)
def test_what_a_vm_has_costs_memory_beside_the_guest(edits: dict[str, Any], more: int) -> None:
    assert amounts(pod(edits, kubevirt("GPU")))["memory"] == f"{1024 + BESIDE + more}Mi"


def test_emulated_vms_need_no_device_but_room_for_translated_code() -> None:
    made = pod(where=kubevirt(configuration={"developerConfiguration": {"useEmulation": True}}))
    assert amounts(made)["memory"] == f"{1024 + BESIDE + Quantity.parse(OVERHEADS.emulation).value() // MI}Mi"
    assert {k: v for k, v in amounts(made).items() if "/" in k} == {"devices.kubevirt.io/tun": "1"}


def test_an_administrator_can_raise_the_overhead_and_overcommit_memory() -> None:
    where = kubevirt(
        configuration={
            "additionalGuestMemoryOverheadRatio": "2",
            "developerConfiguration": {"memoryOvercommit": 200, "cpuAllocationRatio": 4},
        }
    )
    made = amounts(pod({"domain.cpu.sockets": 2}, where))
    assert made["memory"] == f"{512 + 2 * (BESIDE + 8)}Mi"
    assert made["cpu"] == "500m"


def test_a_virtual_cpu_asks_for_a_tenth_of_a_cpu_unless_the_vmi_says_otherwise() -> None:
    assert amounts(pod())["cpu"] == "100m"
    assert amounts(pod({"domain.resources.requests.cpu": "2"}))["cpu"] == "2"


def test_memory_limits_grow_by_the_overhead_too() -> None:
    made = pod({"domain.resources": {"requests": {"memory": "512Mi"}, "limits": {"memory": "1Gi"}}})
    assert amounts(made)["memory"] == f"{512 + BESIDE}Mi"
    assert amounts(made, "limits")["memory"] == f"{1024 + BESIDE}Mi"
    overcommitted = {"domain.resources": {"requests": {"memory": "1Gi"}, "overcommitGuestOverhead": True}}
    assert amounts(pod(overcommitted))["memory"] == "1Gi"


def test_dedicated_cpus_make_a_guaranteed_pod() -> None:
    cpu = {"sockets": 2, "cores": 1, "threads": 1, "dedicatedCpuPlacement": True, "isolateEmulatorThread": True}
    made = pod({"domain.cpu": cpu}, kubevirt("CPUManager"))
    for resource in ("cpu", "memory"):
        assert amounts(made)[resource] == amounts(made, "limits")[resource]
    assert amounts(made)["cpu"] == "3"
    assert made["spec"]["nodeSelector"]["kubevirt.io/cpumanager"] == "true"
    parity = {"metadata.annotations": {"alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity": ""}}
    assert amounts(pod({"domain.cpu": cpu, **parity}, kubevirt("CPUManager", "AlignCPUs")))["cpu"] == "4"


def test_a_guest_in_huge_pages_leaves_only_the_overhead_in_ordinary_memory() -> None:
    made = pod({"domain.memory": {"guest": "1Gi", "hugepages": {"pageSize": "2Mi"}}})
    assert amounts(made)["hugepages-2Mi"] == amounts(made, "limits")["hugepages-2Mi"] == "1Gi"
    assert amounts(made)["memory"] == f"{BESIDE}Mi"
    assert volumes(made)["hugepages"] == {"emptyDir": {"medium": "HugePages"}}


def test_devices_are_asked_for_by_their_resources() -> None:
    devices = {
        "domain.devices.gpus": [{"name": "g1", "deviceName": "x.io/gpu"}, {"name": "g2", "deviceName": "x.io/gpu"}],
        "domain.devices.hostDevices": [{"name": "h", "deviceName": "x.io/fpga"}],
    }
    made = pod(devices, kubevirt("GPU", "HostDevices"))
    expected = {
        "devices.kubevirt.io/kvm": "1",
        "devices.kubevirt.io/tun": "1",
        "devices.kubevirt.io/vhost-net": "1",
        "x.io/fpga": "1",
        "x.io/gpu": "2",
    }
    assert {k: v for k, v in amounts(made).items() if "/" in k} == expected
    assert amounts(made, "limits") == expected


@pytest.mark.parametrize("wanted", [True, False])
def test_a_vm_with_vsock_asks_for_a_node_that_has_it(wanted: bool) -> None:
    made = pod({"domain.devices.autoattachVSOCK": wanted}, kubevirt("VSOCK"))
    expected = {"devices.kubevirt.io/vhost-vsock": "1"} if wanted else {}
    for kind in ("requests", "limits"):
        assert {k: v for k, v in amounts(made, kind).items() if "vsock" in k} == expected


def test_devices_of_resource_claims_are_claimed() -> None:
    claimed = {
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "one-gpu"}],
        "domain.devices.gpus": [{"name": "g", "claimName": "gpus", "requestName": "gpu"}],
    }
    made = pod(claimed, kubevirt("GPU", "GPUsWithDRA"))
    assert made["spec"]["resourceClaims"] == claimed["resourceClaims"]
    assert compute(made)["resources"]["claims"] == [{"name": "gpus", "request": "gpu"}]


# -- volumes


def test_a_container_disk_is_a_read_only_image_volume() -> None:
    made = pod()
    assert volumes(made)["root"]["image"]["reference"] == "registry.example.com/disk:v1"
    [mount] = [m for m in compute(made)["volumeMounts"] if m["name"] == "root"]
    assert mount == {"name": "root", "mountPath": "/var/run/kubevirt/image-volumes/disk_0", "readOnly": True}


def test_claims_are_files_or_block_devices_where_the_domain_expects_them() -> None:
    edits = {
        "volumes[1]": {"name": "file", "persistentVolumeClaim": {"claimName": "c1"}},
        "volumes[2]": {"name": "block", "dataVolume": {"name": "c2"}},
        "volumes[3]": {"name": "layer", "ephemeral": {"persistentVolumeClaim": {"claimName": "c3"}}},
    }
    disks = [{"name": n, "disk": {"bus": "virtio"}} for n in ("root", "file", "block", "layer")]
    made = pod({**edits, "domain.devices.disks": disks}, block_volumes={"block"})
    assert mounts(made)["file"] == "/var/run/kubevirt-private/vmi-disks/file"
    assert compute(made)["volumeDevices"] == [{"name": "block", "devicePath": "/dev/block"}]
    assert volumes(made)["block"] == {"persistentVolumeClaim": {"claimName": "c2"}}
    assert volumes(made)["layer"] == {"persistentVolumeClaim": {"claimName": "c3", "readOnly": True}}


def test_a_claim_that_may_be_detached_comes_through_a_pod_of_its_own() -> None:
    edits = {
        "volumes[1]": {"name": "data", "persistentVolumeClaim": {"claimName": "c", "hotpluggable": True}},
        "domain.devices.disks[1]": {"name": "data", "disk": {"bus": "scsi"}},
    }
    assert "data" not in volumes(pod(edits))
    running = edited(machine(edits), {"status.volumeStatus": [{"name": "root"}, {"name": "data", "hotplugVolume": {}}]})
    assert "data" not in volumes(render(running, Installation(kubevirt())))


def test_configuration_is_mounted_and_no_component_reads_it() -> None:
    kinds = {
        "settings": {"configMap": {"name": "cm"}},
        "keys": {"secret": {"secretName": "s", "optional": True}},
        "answers": {"sysprep": {"configMap": {"name": "unattend"}}},
        "self": {"downwardAPI": {"fields": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        "init": {"cloudInitNoCloud": {"secretRef": {"name": "ud"}, "networkDataSecretRef": {"name": "nd"}}},
    }
    edits: dict[str, Any] = {f"volumes[{i}]": {"name": n, **kinds[n]} for i, n in enumerate(kinds, start=1)}
    disks = [{"name": n, "disk": {"bus": "virtio"}} for n in ("root", *kinds)]
    made = pod({**edits, "domain.devices.disks": disks})
    private = "/var/run/kubevirt-private"
    where = mounts(made)
    assert where["settings"] == f"{private}/config-map/settings"
    assert where["keys"] == f"{private}/secret/keys"
    assert where["answers"] == f"{private}/sysprep/answers"
    assert where["self"] == f"{private}/downwardapi/self"
    assert where["init-userdata"] == f"{private}/cloud-init-secrets/init/userdata"
    assert where["init-networkdata"] == f"{private}/cloud-init-secrets/init/networkdata"
    assert volumes(made)["keys"] == {"secret": {"secretName": "s", "optional": True}}
    assert violations(made) == set()


def test_a_volume_that_has_a_name_of_the_pods_own_is_refused_by_name() -> None:
    disks = {"domain.devices.disks": [{"name": "sockets", "disk": {"bus": "virtio"}}]}
    claim = {"name": "sockets", "persistentVolumeClaim": {"claimName": "c"}}
    with pytest.raises(Unrenderable, match=r"'sockets'.*rename"):
        pod({"volumes": [claim], **disks})


def test_a_secret_with_credentials_is_mounted_once() -> None:
    method = {"qemuGuestAgent": {"users": ["u"]}}
    source = {"secret": {"secretName": "keys"}}
    credential = {"sshPublicKey": {"source": source, "propagationMethod": method}}
    made = pod({"accessCredentials": [credential, credential]})
    assert mounts(made)["access-cred-0"] == "/var/run/kubevirt-private/secret/keys-access-cred"


def test_only_a_vm_that_shows_its_token_gets_one() -> None:
    account = {"name": "token", "serviceAccount": {"serviceAccountName": "robot"}}
    disks = [{"name": n, "disk": {"bus": "virtio"}} for n in ("root", "token")]
    made = pod({"volumes[1]": account, "domain.devices.disks": disks})
    assert made["spec"]["serviceAccountName"] == "robot"
    assert made["spec"]["automountServiceAccountToken"] is True


# -- passed on


def test_what_the_vmi_says_of_scheduling_and_names_is_passed_on() -> None:
    said = {
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
        ],
        "schedulerName": "other",
        "priorityClassName": "high",
        "hostname": "box",
        "subdomain": "fleet",
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["10.0.0.10"]},
    }
    made = pod({**said, "nodeSelector": {"zone": "a"}, "terminationGracePeriodSeconds": 60})
    old = pod({"dnsConfig": {"nameservers": ["10.0.0.010"], "searches": ["here"]}})
    assert old["spec"]["dnsConfig"] == {"nameservers": ["10.0.0.10"], "searches": ["here"]}
    assert said.items() <= made["spec"].items()
    assert made["spec"]["nodeSelector"] == {
        "kubevirt.io/schedulable": "true",
        "kubernetes.io/arch": "amd64",
        "virtfleet.io/image-volumes": "true",
        "zone": "a",
    }
    assert made["spec"]["terminationGracePeriodSeconds"] == 90


@pytest.mark.parametrize(
    ("machine_type", "asked_for"),
    [
        ("pc-q35-9.9", True),
        ("pc-q35-rhel9.6.0", True),
        ("pc-i440fx-rhel7.6.0", True),
        ("virt-rhel9.2.0", True),
        ("s390-ccw-virtio-7.2", True),
        ("q35", False),
        ("virt", False),
        ("s390-ccw-virtio", False),
    ],
)
def test_a_machine_type_of_one_version_waits_for_a_node_that_has_it(machine_type: str, asked_for: bool) -> None:
    label = f"machine-type.node.kubevirt.io/{machine_type}"
    selector = pod({"domain.machine": {"type": machine_type}})["spec"]["nodeSelector"]
    assert (selector.get(label) == "true") is asked_for


def test_named_cpu_models_and_features_are_looked_for_on_nodes() -> None:
    features = [{"name": "apic", "policy": "require"}, {"name": "hle", "policy": "disable"}]
    selector = pod({"domain.cpu.model": "Haswell", "domain.cpu.features": features})["spec"]["nodeSelector"]
    assert selector["cpu-model.node.kubevirt.io/Haswell"] == "true"
    assert selector["cpu-feature.node.kubevirt.io/apic"] == "true"
    assert "cpu-feature.node.kubevirt.io/hle" not in selector
    assert not any("cpu-model" in key for key in pod({"domain.cpu.model": "host-model"})["spec"]["nodeSelector"])


def test_probes_go_to_the_guest_by_network_or_through_its_agent() -> None:
    http = {"httpGet": {"port": 80, "path": "/healthz"}, "periodSeconds": 5}
    made = pod({"livenessProbe": http, "readinessProbe": {"exec": {"command": ["cat", "/ok"]}, "timeoutSeconds": 3}})
    assert http.items() <= compute(made)["livenessProbe"].items()
    inside = compute(made)["readinessProbe"]
    assert inside["timeoutSeconds"] == 3
    assert inside["exec"] == {"command": ["virt-launcher", "probe", "--timeout", "3", "--", "cat", "/ok"]}


def test_secondary_networks_are_told_to_multus() -> None:
    edits = {
        "networks[1]": {"name": "storage", "multus": {"networkName": "infra/storage-net"}},
        "domain.devices.interfaces[1]": {"name": "storage", "bridge": {}, "macAddress": "02:00:00:00:00:01"},
    }
    networks = yaml.safe_load(pod(edits)["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"])
    [attachment] = networks
    assert (attachment["name"], attachment["namespace"]) == ("storage-net", "infra")
    assert attachment["mac"] == "02:00:00:00:00:01"
    assert len(attachment["interface"]) < 16


def test_the_launcher_learns_from_its_arguments_whose_it_is() -> None:
    made = pod({"metadata.annotations": {"kubevirt.io/libvirt-log-filters": "1:qemu"}})
    assert compute(made)["args"] == [
        "--namespace=default",
        "--name=vmi",
        f"--uid={UID}",
        "--hypervisor=qemu-kvm",
        "--verbosity=2",
        "--libvirt-log-filters=1:qemu",
    ]


@pytest.mark.parametrize(
    ("labels", "verbosity", "speaks"),
    [
        ({"debugLogs": "true"}, 2, True),
        ({"debugLogs": "false"}, 2, False),
        ({"logVerbosity": "10"}, 10, True),
        ({"logVerbosity": "3"}, 3, False),
        ({"logVerbosity": "-1"}, 2, False),
        ({"logVerbosity": "much"}, 2, False),
    ],
)
def test_labels_say_how_much_a_launcher_and_its_libvirt_log(
    labels: dict[str, str], verbosity: int, speaks: bool
) -> None:
    given = compute(pod({"metadata.labels": labels}))["args"]
    assert f"--verbosity={verbosity}" in given
    assert any(argument.startswith("--libvirt-log-filters=") for argument in given) is speaks


def test_a_forbidden_cpu_feature_keeps_a_vm_off_nodes_that_have_it() -> None:
    def required(edits: dict[str, Any]) -> list[Any]:
        affinity = pod(edits)["spec"].get("affinity", {}).get("nodeAffinity", {})
        terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
        return [term["matchExpressions"] for term in terms]

    features = {"domain.cpu.features": [{"name": "svm", "policy": "forbid"}, {"name": "aes", "policy": "optional"}]}
    off = {"key": "cpu-feature.node.kubevirt.io/svm", "operator": "DoesNotExist"}
    assert required(features) == [[off]]
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    own = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}
        }
    }
    assert required({**features, "affinity": own}) == [[zone, off]]
    assert required({"affinity": own}) == [[zone]]


def test_virsh_in_a_launcher_knows_where_to_go() -> None:
    where = "qemu+unix:///session?socket=/var/run/libvirt/virtqemud-sock"
    assert compute(pod({}))["env"] == [{"name": "LIBVIRT_DEFAULT_URI", "value": where}]


def test_a_launcher_that_is_to_crash_is_told_so() -> None:
    made = pod({"metadata.annotations": {"kubevirt.io/func-test-virt-launcher-fail-fast": ""}})
    assert compute(made)["args"][-1] == "--simulate-crash"


def test_rendering_leaves_the_vmi_as_it_is() -> None:
    where = kubevirt("VirtHandlerPools", "HostDevices", virtHandlerPools=[POOL])
    vmi = machine(DEVICE, where)
    before = orjson.dumps(vmi)
    render(vmi, Installation(where))
    assert orjson.dumps(vmi) == before


def test_every_reference_vmi_has_a_pod_with_sound_amounts() -> None:
    verdicts = {c: orjson.loads((c / "verdict.json").read_bytes()) for c in sorted(GOLDEN.iterdir())}
    cases = [case for case, verdict in verdicts.items() if verdict["allowed"]]
    assert cases
    for case in cases:
        vmi = yaml.safe_load((case / "vmi.yaml").read_text())
        vmi["metadata"].setdefault("uid", UID)
        made = render(vmi, Installation({}))
        requests, limits = amounts(made), amounts(made, "limits")
        assert Quantity.parse(requests["memory"]) > Quantity.of(0), case.name
        for name, limit in limits.items():
            assert Quantity.parse(requests[name]) <= Quantity.parse(limit), (case.name, name)
        names = [v["name"] for v in made["spec"]["volumes"]]
        assert len(names) == len(set(names)), case.name
        assert {m["name"] for c in made["spec"]["containers"] for m in c["volumeMounts"]} <= set(names), case.name


def console_log(made: dict[str, Any]) -> dict[str, Any] | None:
    return next((c for c in made["spec"].get("initContainers", ()) if c["name"] == "guest-console-log"), None)


def test_a_container_prints_the_console_unless_somebody_says_no() -> None:
    logged, no_console = "domain.devices.logSerialConsole", {"domain.devices.autoattachSerialConsole": False}
    made = pod({})
    container = console_log(made)
    assert container is not None
    assert container["restartPolicy"] == "Always", "or the Pod would not end with its launcher"
    assert container["command"][-1] == f"/var/run/kubevirt-private/{UID}/virt-serial0-log"
    assert container["image"] == compute(made)["image"]
    assert violations(made) == set()
    off = kubevirt(configuration={"virtualMachineOptions": {"disableSerialConsoleLog": {}}})
    assert [bool(console_log(pod(*asked))) for asked in (({}, off), ({logged: True}, off))] == [False, True]
    assert console_log(pod({logged: False})) is None
    assert console_log(pod({logged: True, **no_console})) is None


def test_the_container_of_the_console_asks_for_little_and_spoils_no_guarantee() -> None:
    container = console_log(pod({}))
    assert container and container["resources"]["requests"] == {"cpu": "1m", "memory": "2M"}
    assert qos_class(pod({})["spec"]) == "Burstable"
    amounts = {"cpu": "1", "memory": "256Mi"}
    for edits in (
        {"domain.cpu": {"cores": 2, "dedicatedCpuPlacement": True}},
        {"domain.resources": {"requests": amounts, "limits": amounts}},
    ):
        made = pod(edits)
        assert console_log(made) and qos_class(made["spec"]) == "Guaranteed"


def test_no_container_prints_what_a_hypervisor_does_not_log() -> None:
    assert (
        console_log(pod(LXC, kubevirt(configuration={"hypervisors": [{"name": "qemu-kvm"}, {"name": "lxc"}]}))) is None
    )


def test_what_firmware_and_tpm_keep_lies_in_a_claim() -> None:
    efi = {"domain.firmware": {"bootloader": {"efi": {"persistent": True, "secureBoot": False}}}}
    tpm = {"domain.devices.tpm": {"persistent": True}}
    for edits, kept in ((efi, "nvram"), (tpm, "swtpm"), (efi | tpm, "nvram:swtpm")):
        made = pod(edits)
        [volume] = [v for v in made["spec"]["volumes"] if v["name"] == "vm-state"]
        assert volume["persistentVolumeClaim"] == {"claimName": "persistent-state-for-vmi"}
        assert mounts(made)["vm-state"] == "/var/run/kubevirt-private/vm-state"
        assert {"name": "VIRTFLEET_KEPT", "value": kept} in compute(made)["env"]
    for edits in ({"domain.devices.tpm": {"persistent": True, "enabled": False}}, {"domain.devices.tpm": {}}):
        assert "vm-state" not in mounts(pod(edits))


@pytest.mark.parametrize(("model", "kept_away"), [("host-model", True), ("", True), ("Haswell", False)])
def test_guests_with_the_nodes_cpu_do_not_go_where_that_is_obsolete(model: str, kept_away: bool) -> None:
    where = kubevirt(configuration={"obsoleteCPUModels": {"EPYC": True}})
    edits = {"domain.cpu": {"model": model} if model else {}}
    affinity = pod(edits, where)["spec"].get("affinity") or {}
    required = (affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    obsolete = {"key": "node-labeller.kubevirt.io/obsolete-host-model", "operator": "DoesNotExist"}
    assert [obsolete in term["matchExpressions"] for term in required.get("nodeSelectorTerms") or ()] == [
        True
    ] * kept_away
    assert "affinity" not in pod(edits)["spec"], "nobody asked for it"
