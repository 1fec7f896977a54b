"""What an installation consists of, as the KubeVirt object says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pools.nodes import pod_admits

from virtfleet import __version__
from virtfleet.api.names import DEPLOYMENT_ID
from virtfleet.operator import roles
from virtfleet.operator.customize import PatchError
from virtfleet.operator.handlers import CONTENT

from .fleets import daemon_set, objects, pod_spec, pool

DEPLOY = Path(__file__).resolve().parents[3] / "deploy" / "operator.yaml"


def test_the_manifest_has_what_must_be_there_before_a_kubevirt_object() -> None:
    kinds = [obj["kind"] for obj in yaml.safe_load_all(DEPLOY.read_text())]
    assert kinds == [
        "Namespace",
        "CustomResourceDefinition",
        "PriorityClass",
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
        "Deployment",
        "PodDisruptionBudget",
    ]


def test_rendering_is_deterministic_and_every_object_is_managed() -> None:
    first, second = objects(virtHandlerPools=[pool("a"), pool("b")]), objects(virtHandlerPools=[pool("a"), pool("b")])
    assert first == second
    for obj in first.values():
        assert obj["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "virt-operator"
        assert obj["metadata"]["annotations"]["virtfleet.io/applied"]


def test_a_busy_node_hears_its_handler_as_well_as_any_guest() -> None:
    """The kernel shares CPUs out by requests, and guests of one CPU have 100m: who has 10m starts VMs last of all."""
    made = objects(virtHandlerPools=[pool("a")])
    for name in ("virt-handler", "virt-handler-a"):
        assert pod_spec(made["DaemonSet", name])["containers"][0]["resources"]["requests"]["cpu"] == "100m"
    assert pod_spec(made["Deployment", "virt-controller"])["containers"][0]["resources"]["requests"]["cpu"] == "50m"


# -- rights


def test_every_component_has_an_account_of_its_own() -> None:
    made = objects()
    users = {
        "virt-api": "kubevirt-apiserver",
        "virt-controller": "kubevirt-controller",
        "virt-handler": "kubevirt-handler",
    }
    for component, account in users.items():
        kind = "DaemonSet" if component == "virt-handler" else "Deployment"
        assert pod_spec(made[kind, component])["serviceAccountName"] == account
        assert ("ServiceAccount", account) in made
        [subject] = made["ClusterRoleBinding", account]["subjects"]
        assert subject == {"kind": "ServiceAccount", "name": account, "namespace": "kubevirt"}


def test_no_component_may_do_everything_or_read_secrets() -> None:
    for account, rules in {**roles.CLUSTER_RULES, "operator": roles.operator_cluster_rules()}.items():
        for rule in rules:
            assert "*" not in {*rule["verbs"], *rule["resources"], *rule["apiGroups"]}, account
            assert "secrets" not in rule["resources"], account
            assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"]), account


def test_reading_the_clusters_sizes_is_a_role_by_kubevirts_name() -> None:
    [rule] = objects()["ClusterRole", "instancetype.kubevirt.io:view"]["rules"]
    assert set(rule["resources"]) == {"virtualmachineclusterinstancetypes", "virtualmachineclusterpreferences"}
    assert set(rule["verbs"]) == {"get", "list", "watch"}


def test_handlers_may_not_make_anything() -> None:
    verbs = {
        verb for rule in roles.CLUSTER_RULES[roles.HANDLER] for verb in rule["verbs"] if rule["resources"] != ["events"]
    }
    assert verbs == {"get", "list", "watch", "patch", "update"}


def test_the_operator_holds_every_right_that_it_grants() -> None:
    def atoms(rules: list[roles.Rule]) -> set[tuple[str, ...]]:
        return {
            (group, resource, verb, name)
            for rule in rules
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
            for name in rule.get("resourceNames", [""])
        }

    held = atoms(roles.operator_cluster_rules())
    for table in (roles.CLUSTER_RULES, roles.PEOPLE):
        for account, rules in table.items():
            assert atoms(rules) <= held, account
    for account, rules in roles.OWN_RULES.items():
        assert atoms(rules) <= atoms(roles.operator_own_rules()), account


# -- handlers


def test_each_pool_has_a_daemon_set_with_its_images_in_every_place() -> None:
    made = objects(
        virtHandlerPools=[pool("gpu", handler="registry.example.com/virt-handler:gpu")],
        imagePullSecrets=[{"name": "regcred"}],
    )
    spec = pod_spec(made["DaemonSet", "virt-handler-gpu"])
    launcher = "registry.example.com/virt-launcher:gpu"
    images = {c["name"]: c["image"] for c in (*spec["initContainers"], *spec["containers"])}
    assert images == {
        "virt-launcher": launcher,
        "virt-handler": "registry.example.com/virt-handler:gpu",
        "virt-launcher-image-holder": launcher,
    }
    assert spec["imagePullSecrets"] == [{"name": "regcred"}]
    primary = pod_spec(made["DaemonSet", "virt-handler"])
    assert {c["image"].rpartition("/")[2] for c in (*primary["initContainers"], *primary["containers"])} == {
        f"virt-launcher:{__version__}",
        f"virt-handler:{__version__}",
    }


def test_a_pool_that_overrides_one_image_keeps_the_other() -> None:
    additional = {"name": "edge", "nodeSelector": {"edge": "true"}}
    spec = pod_spec(daemon_set("virt-handler-edge", additionalVirtHandlers=[additional]))
    assert spec["containers"][0]["image"] == f"virtfleet/virt-handler:{__version__}"
    assert spec["initContainers"][0]["image"] == f"virtfleet/virt-launcher:{__version__}"


def test_a_pool_of_a_hypervisor_is_described_by_that_hypervisors_launcher() -> None:
    entry = {**pool("containers", hypervisor="lxc"), "virtLauncherImage": "", "virtHandlerImage": "h:1"}
    spec = pod_spec(daemon_set("virt-handler-containers", virtHandlerPools=[entry]))
    assert spec["initContainers"][0]["image"] == f"virtfleet/virt-launcher-lxc:{__version__}"


def test_nodes_are_described_for_every_listed_hypervisor_by_its_own_launcher() -> None:
    listed = {"hypervisors": [{"name": "qemu-kvm"}, {"name": "lxc"}]}
    own = {**pool("boxes", hypervisor="lxc"), "virtLauncherImage": "", "virtHandlerImage": "h:1"}

    def described(name: str) -> dict[str, tuple[str, str]]:
        pods = pod_spec(daemon_set(name, configuration=listed, virtHandlerPools=[own, pool("edge")]))
        return {c["name"]: (c["image"], c["args"][-1]) for c in pods["initContainers"]}

    everything = "--directory=/var/lib/kubevirt-node-labeller"
    assert described("virt-handler") == {
        "virt-launcher": (f"virtfleet/virt-launcher:{__version__}", everything),
        "virt-launcher-lxc": (f"virtfleet/virt-launcher-lxc:{__version__}", "--hypervisor=lxc"),
    }
    assert described("virt-handler-boxes") == {
        "virt-launcher": (f"virtfleet/virt-launcher-lxc:{__version__}", everything)
    }
    assert len(described("virt-handler-edge")) == 1, "a pool's own image is for whatever runs there"


def test_pools_keep_placement_tolerations_and_the_limit_of_vms() -> None:
    placement = {
        "nodeSelector": {"role": "compute"},
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    }
    made = objects(
        virtHandlerPools=[pool("gpu")],
        workloads={"nodePlacement": placement},
        configuration={
            "virtualMachineInstancesPerNode": 7,
            "developerConfiguration": {"featureGates": ["VirtHandlerPools"]},
        },
    )
    for name in ("virt-handler", "virt-handler-gpu"):
        spec = pod_spec(made["DaemonSet", name])
        assert spec["nodeSelector"]["kubernetes.io/os"] == "linux"
        assert spec["nodeSelector"]["role"] == "compute"
        assert {"key": "dedicated", "operator": "Exists"} in spec["tolerations"]
        assert "--max-devices=7" in spec["containers"][0]["args"]
    gpu, linux = pod_spec(made["DaemonSet", "virt-handler-gpu"]), {"kubernetes.io/os": "linux", "role": "compute"}
    assert pod_admits(gpu, {**linux, "pool": "gpu"}) and not pod_admits(gpu, linux)


def test_the_scheduler_places_one_handler_a_node() -> None:
    anti = pod_spec(daemon_set())["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    handlers = {
        "matchLabels": {"kubevirt.io": "virt-handler"},
        "matchExpressions": [{"key": "virtfleet.io/stand-in", "operator": "DoesNotExist"}],
    }
    assert anti == [{"labelSelector": handlers, "topologyKey": "kubernetes.io/hostname"}]


def test_a_change_of_pools_changes_no_handlers_content() -> None:
    def content(**spec: Any) -> str:
        template = daemon_set(**spec)["spec"]["template"]
        mark: str = template["metadata"]["annotations"]["virtfleet.io/handler-content"]
        return mark

    assert content() == content(virtHandlerPools=[pool("gpu")])
    assert content() != content(imageTag="v2")
    patch = {"resourceType": "DaemonSet", "resourceName": "virt-handler", "type": "merge"}
    changed = {**patch, "patch": '{"spec":{"template":{"spec":{"hostNetwork":true}}}}'}
    assert content() != content(customizeComponents={"patches": [changed]})


# -- control plane


def test_the_control_plane_goes_where_infra_says() -> None:
    placement = {"nodeSelector": {"infra": "true"}, "tolerations": [{"key": "infra", "operator": "Exists"}]}
    made = objects(infra={"replicas": 3, "nodePlacement": placement})
    for name in ("virt-api", "virt-controller"):
        deployment = made["Deployment", name]
        assert deployment["spec"]["replicas"] == 3
        assert pod_spec(deployment)["nodeSelector"] == {"kubernetes.io/os": "linux", "infra": "true"}
        assert {"key": "infra", "operator": "Exists"} in pod_spec(deployment)["tolerations"]
    assert "infra" not in pod_spec(made["DaemonSet", "virt-handler"])["nodeSelector"]


def test_a_single_replica_has_no_budget_that_would_block_drains() -> None:
    assert ("PodDisruptionBudget", "virt-api-pdb") in objects()
    assert ("PodDisruptionBudget", "virt-api-pdb") not in objects(infra={"replicas": 1})
    assert objects(infra={"replicas": 3})["PodDisruptionBudget", "virt-api-pdb"]["spec"]["minAvailable"] == 2


def test_images_policy_and_flags_are_those_of_the_kubevirt_object() -> None:
    made = objects(
        imageRegistry="registry.example.com/vf",
        imageTag="v3",
        imagePullPolicy="Always",
        customizeComponents={"flags": {"api": {"port": "9443"}, "handler": {"debug": ""}}},
    )
    [virt_api] = pod_spec(made["Deployment", "virt-api"])["containers"]
    assert virt_api["image"] == "registry.example.com/vf/virt-api:v3"
    assert virt_api["imagePullPolicy"] == "Always"
    assert "--port=9443" in virt_api["args"]
    assert "--debug" in pod_spec(made["DaemonSet", "virt-handler"])["containers"][0]["args"]


def test_the_kubevirt_object_stays_editable_while_virt_api_is_down() -> None:
    webhooks = objects()["ValidatingWebhookConfiguration", "virt-api-validator"]["webhooks"]
    policies = {resource: w["failurePolicy"] for w in webhooks for rule in w["rules"] for resource in rule["resources"]}
    assert policies.pop("kubevirts") == "Ignore"
    assert policies.pop("pods/eviction") == "Ignore"  # VMs have their budgets then, and others are none of our business
    assert set(policies.values()) == {"Fail"}


# -- customizeComponents


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        ("json", '[{"op": "replace", "path": "/spec/replicas", "value": 5}]'),
        ("merge", '{"spec": {"replicas": 5}}'),
        (
            "strategic",
            '{"spec": {"replicas": 5, "template": {"spec": {"containers": [{"name": "virt-api", "tty": true}]}}}}',
        ),
    ],
)
def test_administrators_patch_components(kind: str, patch: str) -> None:
    patches = [{"resourceType": "Deployment", "resourceName": "virt-api", "type": kind, "patch": patch}]
    deployment = objects(customizeComponents={"patches": patches})["Deployment", "virt-api"]
    assert deployment["spec"]["replicas"] == 5
    [container] = pod_spec(deployment)["containers"]
    assert container["image"] == f"virtfleet/virt-api:{__version__}"
    assert container.get("tty") is (True if kind == "strategic" else None)


def test_a_strategic_patch_deletes_an_item_and_a_star_means_every_object_of_a_kind() -> None:
    patch = '{"spec":{"template":{"spec":{"volumes":[{"name":"node-labeller","$patch":"delete"}]}}}}'
    patches = [{"resourceType": "daemonset", "resourceName": "*", "type": "strategic", "patch": patch}]
    made = objects(virtHandlerPools=[pool("gpu")], customizeComponents={"patches": patches})
    for name in ("virt-handler", "virt-handler-gpu"):
        assert "node-labeller" not in {v["name"] for v in pod_spec(made["DaemonSet", name])["volumes"]}


@pytest.mark.parametrize(
    "patch",
    [
        {"type": "json", "patch": '[{"op": "replace", "path": "/spec/nothing/here", "value": 1}]'},
        {"type": "json", "patch": "no json"},
        {"type": "odd", "patch": "{}"},
    ],
)
def test_a_patch_that_cannot_be_applied_is_named(patch: dict[str, str]) -> None:
    with pytest.raises(PatchError, match=r"patches\[0\].*Deployment virt-api"):
        objects(customizeComponents={"patches": [{"resourceType": "Deployment", "resourceName": "virt-api", **patch}]})


def test_what_people_and_guests_talk_to_has_a_limit_on_its_memory() -> None:
    def limit(vms: int) -> str:
        made = objects(configuration={"virtualMachineInstancesPerNode": vms})
        return str(pod_spec(made["DaemonSet", "virt-handler"])["containers"][0]["resources"]["limits"]["memory"])

    made = objects()
    assert pod_spec(made["Deployment", "virt-api"])["containers"][0]["resources"]["limits"] == {"memory": "768Mi"}
    assert limit(110) == "824Mi"
    assert limit(500) == "2384Mi", "each launcher may have said something"


def test_handlers_are_put_on_the_network_that_migrations_have_for_themselves() -> None:
    def annotations(**migrations: str) -> dict[str, str]:
        made = objects(configuration={"migrations": migrations})
        return made["DaemonSet", "virt-handler"]["spec"]["template"]["metadata"]["annotations"]

    assert annotations(network="kubevirt/fast")["k8s.v1.cni.cncf.io/networks"] == "kubevirt/fast@migration0"
    assert "k8s.v1.cni.cncf.io/networks" not in annotations()
    assert annotations(network="kubevirt/fast")[CONTENT] != annotations()[CONTENT], "handlers are replaced for it"


# -- the dashboard


def test_there_is_no_dashboard_unless_somebody_asks_for_one() -> None:
    assert not [key for key in objects() if "dashboard" in key[1]]


def test_the_dashboard_has_an_account_without_rights_and_without_a_token() -> None:
    made = objects(configuration={"dashboard": {"hosts": ["vms.example"], "tokenHeader": "X-Token"}})
    assert {kind for kind, name in made if "dashboard" in name} == {"ServiceAccount", "Service", "Deployment"}
    spec = pod_spec(made["Deployment", "virt-dashboard"])
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("kubevirt-dashboard", False)
    assert spec["containers"][0]["args"] == ["--host-name=vms.example", "--token-header=X-Token"]
    for (kind, name), obj in made.items():
        if kind.endswith("Binding"):
            assert "kubevirt-dashboard" not in str(obj.get("subjects")), name


def test_pods_say_of_which_deployment_they_are_and_are_not_replaced_for_that_alone() -> None:
    def notes(kind: str, name: str, **spec: Any) -> dict[str, str]:
        made: dict[str, str] = objects(**spec)[kind, name]["spec"]["template"]["metadata"]["annotations"]
        return made

    pinned = [pool("a", handler="h:1")]
    one, other = (notes("DaemonSet", "virt-handler-a", virtHandlerPools=pinned, imageTag=tag) for tag in ("1", "2"))
    assert one[DEPLOYMENT_ID] != other[DEPLOYMENT_ID] and one[CONTENT] == other[CONTENT]
    for component in ("virt-api", "virt-controller"):
        same = notes("Deployment", component, imageTag="1", virtHandlerPools=pinned, infra={"replicas": 3})
        assert same[DEPLOYMENT_ID] == one[DEPLOYMENT_ID]
    assert objects()["Deployment", "virt-api"]["metadata"]["annotations"]["kubevirt.io/generation"] == "1"


@pytest.mark.parametrize(("strategy", "label"), [(None, "true"), ("AggregateToDefault", "true"), ("Manual", "false")])
def test_roles_for_people_are_added_to_those_of_kubernetes_unless_that_is_left_to_the_administrator(
    strategy: str | None, label: str
) -> None:
    made = objects(configuration={"roleAggregationStrategy": strategy} if strategy else {})
    for name in ("view", "edit", "admin"):
        labels = made["ClusterRole", f"kubevirt.io:{name}"]["metadata"]["labels"]
        assert labels[f"rbac.authorization.k8s.io/aggregate-to-{name}"] == label
