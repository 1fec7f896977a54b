"""The files that cloud-init finds."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.domain import paths
from virtfleet.hypervisors import asking
from virtfleet.launcher.failure import Failure
from virtfleet.launcher.storage import seeds


def vmi(source: dict[str, Any], kind: str = "cloudInitNoCloud", **spec: Any) -> VirtualMachineInstance:
    return read(
        VirtualMachineInstance,
        {
            "metadata": {"name": "web.example", "namespace": "team", "uid": "u"},
            "spec": {"volumes": [{"name": "seed", kind: source}], **spec},
        },
    )


def no_cloud(source: dict[str, Any], **spec: Any) -> seeds.Files:
    machine = vmi(source, **spec)
    return seeds.files(machine, machine.spec.volumes[0])


def test_plain_and_encoded_data_are_the_same_to_the_guest() -> None:
    encoded = base64.b64encode(b"#!/bin/sh\n").decode()
    for source in ({"userData": "#!/bin/sh\n"}, {"userDataBase64": encoded}):
        assert no_cloud(source)["user-data"] == b"#!/bin/sh\n"


def test_metadata_names_the_guest_and_stays_the_same_over_restarts() -> None:
    first, second = (json.loads(no_cloud({"userData": "x"})["meta-data"]) for _ in range(2))
    assert first == second
    assert first["local-hostname"] == "web"
    assert json.loads(no_cloud({"userData": "x"}, hostname="db")["meta-data"])["local-hostname"] == "db"


def test_network_data_has_a_file_of_its_own_only_where_it_is_set() -> None:
    assert "network-config" not in no_cloud({"userData": "x"})
    assert no_cloud({"networkData": "version: 2"})["network-config"] == b"version: 2"


def test_a_config_drive_has_openstacks_layout() -> None:
    machine = vmi({"userData": "x", "networkData": "{}"}, "cloudInitConfigDrive")
    files = seeds.files(machine, machine.spec.volumes[0])
    assert sorted(files) == [f"openstack/latest/{n}" for n in ("meta_data.json", "network_data.json", "user_data")]
    assert json.loads(files["openstack/latest/meta_data.json"])["instance_id"] == "web.example.team"


def test_data_from_a_secret_is_read_where_the_pod_mounts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "cloud_init_secret", lambda volume, part: str(tmp_path / volume / part))
    with pytest.raises(Failure, match="no key userdata"):
        no_cloud({"secretRef": {"name": "s"}})
    (tmp_path / "seed/userdata").mkdir(parents=True)
    (tmp_path / "seed/userdata/userData").write_text("from the secret")
    assert no_cloud({"secretRef": {"name": "s"}})["user-data"] == b"from the secret"


def test_ssh_keys_come_from_every_file_of_the_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "access_credential", lambda secret: str(tmp_path / secret))
    (tmp_path / "keys/..data").mkdir(parents=True)
    (tmp_path / "keys/a").write_text("ssh-ed25519 A\n\nssh-ed25519 B\n")
    (tmp_path / "keys/b").write_text("ssh-ed25519 C")
    credential = {
        "sshPublicKey": {"source": {"secret": {"secretName": "keys"}}, "propagationMethod": {"noCloud": {}}},
    }
    metadata = json.loads(no_cloud({"userData": "x"}, accessCredentials=[credential])["meta-data"])
    assert list(metadata["public-keys"].values()) == ["ssh-ed25519 A", "ssh-ed25519 B", "ssh-ed25519 C"]


def test_a_seed_without_data_and_data_that_is_not_base64_are_refused_by_name() -> None:
    with pytest.raises(Failure, match=r"'seed'.*there is neither"):
        no_cloud({})
    with pytest.raises(Failure, match="userDataBase64 is not base64"):
        no_cloud({"userDataBase64": "@@@"})


def test_a_config_drive_tells_the_tags_of_devices_whose_place_is_known() -> None:
    tagged = {"name": "default", "tag": "blue", "macAddress": "9a:50:e8:6f:f3:fe"}
    disk = {"name": "seed", "tag": "red", "disk": {"bus": "virtio", "pciAddress": "0000:02:00.0"}}
    devices = {"interfaces": [{**tagged, "pciAddress": "0000:01:00.0"}, {**tagged, "tag": "lost"}], "disks": [disk]}
    machine = vmi({"userData": "x"}, "cloudInitConfigDrive", domain={"devices": devices})
    data = json.loads(seeds.files(machine, machine.spec.volumes[0])["openstack/latest/meta_data.json"])
    nic = {"type": "nic", "bus": "pci", "address": "0000:01:00.0", "mac": "9a:50:e8:6f:f3:fe", "tags": ["blue"]}
    assert data["devices"] == [nic, {"type": "disk", "bus": "pci", "address": "0000:02:00.0", "tags": ["red"]}]
    assert list(data) == ["instance_id", "hostname", "uuid", "devices"]
    assert asking.tags(machine), "of one, the guest is not told"
    machine.spec.domain.devices.interfaces.pop()
    assert not asking.tags(machine)
