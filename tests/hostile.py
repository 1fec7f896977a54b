"""Objects that nobody should write: random ones and mutations of sound ones, the same for the same seed.

What comes out is the JSON text of an object, because some of it (a key that is there twice, a number of 400 digits) is
no Python object any more.
"""

from __future__ import annotations

import copy
import itertools
import json
import random
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
import yaml

from virtfleet.api.kubevirt import KubeVirt
from virtfleet.api.migration import VirtualMachineInstanceMigration
from virtfleet.api.replicaset import VirtualMachineInstanceReplicaSet
from virtfleet.api.view import View
from virtfleet.api.vm import VirtualMachine
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import Obj, Resource

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "tests" / "golden"

VIEWS: dict[str, type[View]] = {
    "VirtualMachineInstance": VirtualMachineInstance,
    "VirtualMachine": VirtualMachine,
    "VirtualMachineInstanceReplicaSet": VirtualMachineInstanceReplicaSet,
    "VirtualMachineInstanceMigration": VirtualMachineInstanceMigration,
    "KubeVirt": KubeVirt,
}
WEIGHTS = (60, 14, 10, 4, 12)
_SPEC_OF_INSTANCE = {"VirtualMachineInstance": ("spec",), "VirtualMachine": ("spec", "template", "spec")}
_SPEC_OF_INSTANCE["VirtualMachineInstanceReplicaSet"] = _SPEC_OF_INSTANCE["VirtualMachine"]

INTEGERS = (0, 1, -1, 2, 7, 255, 65_535, 65_536, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, -(2**63), 2**64)
NUMBERS = (*INTEGERS, 10**400, 0.5, -0.0, 1e300, 5e-324)
WORDS = (
    *(
        "",
        " ",
        "x",
        "-",
        "--help",
        "-1",
        "0",
        "null",
        "true",
        "..",
        "../../../etc/passwd",
        "/",
        "//",
        "a/b",
        "/dev/sda",
    ),
    *("1", "1Gi", "-1Gi", "64Mi", "0.5", "1e99", "1Ei", "8Ei", "9" * 400, "1e999999999", "0x10", "１"),
    *("10.0.2.0/24", "10.0.0.0/33", "1.1.1.1/32", "10.10.010.0/24", "fd10:0:2::/120", "::/0", "127.0.0.1", "0.0.0.0"),
    *("02:00:00:00:00:01", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00", "0000:81:01.0", "0000:00:00.0"),
    *("virtio", "sata", "scsi", "usb", "ide", "tablet", "q35", "pc", "amd64", "arm64", "s390x", "riscv64"),
    *(
        "lxc",
        "qemu-kvm",
        "xen",
        "bogus",
        "host-passthrough",
        "host-model",
        "Always",
        "LiveMigrate",
        "External",
        "Paused",
    ),
    *(
        "<&\"'>]]>",
        "$(reboot)",
        "`reboot`",
        "; reboot",
        "%s%n",
        "{}",
        "{{ x }}",
        "a\nb",
        "a\tb",
        "a\rb",
        "\x00",
        "\x1b[31m",
    ),
    *("é", "日本", "\u202e", "\ufeff", "\ud800", "\U0001f4a5", "A" * 64, "a" * 254, "a" * 10_000, "kubevirt.io/x"),
)
_NESTED = re.compile(r'"@nested (\d+)@"')  # deeper than Python objects can be copied
UNKNOWN = ("surprise", "Spec", "spec ", "__proto__", "$ref", "x" * 300, "é", "")
# A spec with one of many things, so that mutations reach what examples do not show.
RICH: dict[str, Any] = {
    "terminationGracePeriodSeconds": 30,
    "hostname": "guest",
    "subdomain": "sub",
    "schedulerName": "default-scheduler",
    "evictionStrategy": "None",
    "nodeSelector": {"a": "b"},
    "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule"}],
    "dnsConfig": {"nameservers": ["10.0.0.1"], "searches": ["x.y"]},
    "dnsPolicy": "None",
    "readinessProbe": {"tcpSocket": {"port": 80}, "periodSeconds": 5},
    "livenessProbe": {"httpGet": {"port": 80, "path": "/"}, "initialDelaySeconds": 3},
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
    "accessCredentials": [
        {"sshPublicKey": {"source": {"secret": {"secretName": "k"}}, "propagationMethod": {"noCloud": {}}}}
    ],
    "domain": {
        "cpu": {"cores": 2, "sockets": 1, "threads": 1, "model": "Skylake", "features": [{"name": "aes"}]},
        "memory": {"guest": "1Gi", "maxGuest": "4Gi"},
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
        "machine": {"type": "q35"},
        "firmware": {"bootloader": {"efi": {"secureBoot": False}}, "serial": "abc"},
        "clock": {"utc": {"offsetSeconds": 5}, "timer": {"hpet": {"present": False}, "rtc": {"tickPolicy": "catchup"}}},
        "features": {"acpi": {}, "hyperv": {"spinlocks": {"spinlocks": 8191}, "vendorid": {"vendorid": "x"}}},
        "ioThreadsPolicy": "auto",
        "chassis": {"manufacturer": "m", "serial": "s"},
        "devices": {
            "rng": {},
            "watchdog": {"name": "w", "i6300esb": {"action": "reset"}},
            "tpm": {},
            "sound": {"name": "s", "model": "ich9"},
            "inputs": [{"name": "t", "type": "tablet", "bus": "virtio"}],
            "blockMultiQueue": True,
            "networkInterfaceMultiqueue": True,
            "disks": [
                {"name": "root", "disk": {"bus": "virtio"}, "bootOrder": 1, "serial": "abc", "cache": "none"},
                {"name": "seed", "cdrom": {"bus": "sata"}},
                {"name": "scratch", "disk": {}, "blockSize": {"custom": {"logical": 512, "physical": 512}}},
                {"name": "conf", "disk": {}},
                {"name": "claim", "lun": {"bus": "scsi"}},
            ],
            "interfaces": [
                {
                    "name": "default",
                    "masquerade": {},
                    "model": "virtio",
                    "macAddress": "02:00:00:00:00:01",
                    "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
                    "dhcpOptions": {"ntpServers": ["10.0.0.1"], "privateOptions": [{"option": 240, "value": "x"}]},
                },
                {"name": "blue", "bridge": {}, "acpiIndex": 5},
            ],
        },
    },
    "networks": [
        {"name": "default", "pod": {"vmNetworkCIDR": "10.0.2.0/24", "vmIPv6NetworkCIDR": "fd10:0:2::/120"}},
        {"name": "blue", "multus": {"networkName": "ns/blue"}},
    ],
    "volumes": [
        {"name": "root", "containerDisk": {"image": "registry.example.com/disk:v1", "path": "/disk/x.img"}},
        {"name": "seed", "cloudInitNoCloud": {"userData": "#cloud-config"}},
        {"name": "scratch", "emptyDisk": {"capacity": "1Gi"}},
        {"name": "conf", "configMap": {"name": "c"}},
        {"name": "claim", "persistentVolumeClaim": {"claimName": "c"}},
    ],
}  # fmt: skip


class Sent(NamedTuple):
    """One object as it is sent to the API server, for its kind."""

    number: int
    kind: str
    text: bytes


def sent(seed: int, number: int) -> Iterator[Sent]:
    """So many objects."""
    rng = random.Random(seed)
    seeds = _seeds()
    for i in range(number):
        kind = rng.choices(list(VIEWS), WEIGHTS)[0]
        yield Sent(i, kind, _Maker(rng, seeds, kind).text(i))


def instances(seed: int, *sound: dict[str, Any]) -> Iterator[Sent]:
    """Mutations of these VMIs, without end."""
    rng = random.Random(seed)
    kind = "VirtualMachineInstance"
    for i in itertools.count():
        yield Sent(i, kind, _Maker(rng, {kind: list(sound)}, kind).text(i))


def _seeds() -> dict[str, list[Any]]:
    """Sound objects, by kind."""
    files = [*(ROOT / "examples").rglob("*.yaml"), *REFERENCE.glob("*/input.yaml"), *REFERENCE.glob("*/kubevirt.yaml")]
    found: dict[str, list[Any]] = {kind: [] for kind in VIEWS}
    for file in sorted(files):
        for obj in yaml.load_all(file.read_text(), Loader=yaml.CSafeLoader):
            if isinstance(obj, dict) and obj.get("kind") in found:
                found[obj["kind"]].append(obj)
    instance = {"metadata": {"labels": {"app": "a"}}, "spec": RICH}
    found["VirtualMachineInstance"] += [instance] * 4
    found["VirtualMachine"].append({"spec": {"runStrategy": "Always", "template": instance}})
    found["VirtualMachineInstanceReplicaSet"].append(
        {"spec": {"replicas": 2, "selector": {"matchLabels": {"app": "a"}}, "template": instance}}
    )
    found["VirtualMachineInstanceMigration"].append({"spec": {"vmiName": "x"}})
    return found


class _Maker:
    """Makes one object."""

    def __init__(self, rng: random.Random, seeds: dict[str, list[Any]], kind: str) -> None:
        self._rng, self._seeds, self._kind = rng, seeds, kind

    def text(self, number: int) -> bytes:
        rng = self._rng
        obj = self._sound()
        for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 5, 8))):
            self._mutate(obj)
        obj["apiVersion"], obj["kind"] = "kubevirt.io/v1", self._kind
        if not isinstance(obj.get("metadata"), dict):
            obj["metadata"] = {}
        if rng.random() < 0.97:
            obj["metadata"] |= {"name": f"hostile-{number}", "namespace": "default"}
        text = _NESTED.sub(_nested, json.dumps(obj))
        if rng.random() < 0.02:
            text = text.replace('"spec": {', '"spec": {"domain": {}, ', 1)  # a key that is there twice
        return text.encode()

    def _sound(self) -> Any:
        rng = self._rng
        if rng.random() < 0.1:  # made of nothing but types
            return {"spec": self._random(_hints(VIEWS[self._kind])["spec"], 4)}
        obj = copy.deepcopy(rng.choice(self._seeds[self._kind]))
        path = _SPEC_OF_INSTANCE.get(self._kind)
        if path and rng.random() < 0.3:  # joined with another one
            other = copy.deepcopy(rng.choice(self._seeds[self._kind]))
            for key in path:
                obj, other = obj.setdefault(key, {}), other.get(key) or {}
            for key in rng.sample(sorted(other), min(len(other), rng.randint(1, 3))):
                obj[key] = other[key]
            joined: Any = obj
            for key in reversed(path):
                joined = {key: joined}
            return joined
        return obj

    def _mutate(self, obj: Any) -> None:
        rng = self._rng
        places = list(_places(obj.get("spec"), obj, "spec"))
        if rng.random() < 0.06:
            places += _places(obj.get("metadata"), obj, "metadata")
        if not places:
            obj["spec"] = {}
            return
        parent, key = rng.choice(places)
        match rng.randrange(12):
            case 0 | 1 | 2 | 3:
                parent[key] = self._like(parent[key])
            case 4 | 5:
                parent[key] = self._anything()
            case 6:
                del parent[key]
            case 7:
                if isinstance(parent, list):
                    parent.extend(copy.deepcopy(parent[key]) for _ in range(rng.choice((1, 1, 2, 300))))
            case 8:
                if isinstance(parent[key], dict):
                    parent[key][rng.choice(UNKNOWN)] = self._anything()
            case 9:
                other, at = rng.choice(places)
                parent[key] = copy.deepcopy(other[at])
            case 10:
                self._add_field(obj)
            case 11:
                if rng.random() < 0.2:
                    parent[key] = f"@nested {rng.choice((10, 60, 200, 900, 5000))}@"
                else:
                    self._add_field(obj)

    def _add_field(self, obj: Any) -> None:
        """A field that the views know, at its place."""
        rng, view, at = self._rng, VIEWS[self._kind], obj
        hints = {"spec": _hints(view)["spec"]}
        names = {"spec": "spec"}
        for _ in range(rng.randint(1, 6)):
            name = rng.choice(sorted(hints))
            inner = _view_in(hints[name])
            if inner is None or not isinstance(at.get(names[name]), dict):
                at[names[name]] = self._random(hints[name], 2)
                return
            at = at[names[name]]
            hints = _hints(inner)
            names = _names(inner)

    def _random(self, hint: Any, depth: int) -> Any:
        """A value of a type, mostly."""
        rng = self._rng
        if rng.random() < 0.04:
            return self._anything()
        choices = [a for a in get_args(hint) if a is not type(None)]
        origin = get_origin(hint)
        if origin is list:
            return [self._random(choices[0], depth - 1) for _ in range(rng.choice((0, 1, 1, 2)))] if depth > 0 else []
        if origin is dict:
            return {
                rng.choice(("a", "x.io/y", *WORDS)): self._random(choices[1], depth - 1)
                for _ in range(rng.randint(0, 2))
            }
        if isinstance(hint, type) and issubclass(hint, View):
            fields = _names(hint)
            some = rng.sample(sorted(fields), min(len(fields), rng.randint(0, 4))) if depth > 0 else ()
            hints = _hints(hint)
            return {fields[name]: self._random(hints[name], depth - 1) for name in some}
        if choices:
            return self._random(rng.choice(choices) if origin is not None else choices[0], depth)
        simple = {bool: (True, False), int: INTEGERS, float: NUMBERS, str: WORDS}.get(hint)
        return rng.choice(simple) if simple else self._anything()

    def _like(self, value: Any) -> Any:
        """Another value of the same type."""
        rng = self._rng
        match value:
            case bool():
                return not value
            case int() | float():
                return rng.choice(NUMBERS)
            case str():
                return rng.choice(WORDS)
            case list():
                return rng.choice(([], value[:1], value * 2, [{}], [None]))
            case dict():
                return rng.choice(({}, {k: v for k, v in value.items() if rng.random() < 0.5}))
        return self._anything()

    def _anything(self) -> Any:
        rng = self._rng
        return rng.choice((None, True, False, [], {}, [[]], [{}], {"": {}}, rng.choice(NUMBERS), rng.choice(WORDS)))


def _places(value: Any, parent: Any, key: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    if isinstance(parent, list) or key in parent:
        yield parent, key
    if depth > 20:
        return
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for inner, child in list(children)[:40]:
        yield from _places(child, value, inner, depth + 1)


def _nested(match: re.Match[str]) -> str:
    depth = int(match[1])
    return '[{"a":' * depth + "null" + "}]" * depth


@cache
def _hints(view: type[View]) -> dict[str, Any]:
    return get_type_hints(view)


@cache
def _names(view: type[View]) -> dict[str, str]:
    """Of its fields, and how they are called in an object."""
    return {field.name: field.encode_name for field in msgspec.structs.fields(view)}


def _view_in(hint: Any) -> type[View] | None:
    if isinstance(hint, type) and issubclass(hint, View):
        return hint
    if get_origin(hint) in (list, dict):
        return None
    return next((found for a in get_args(hint) if (found := _view_in(a))), None)


class NoObjects:
    """An API server on which there is nothing to read."""

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Obj:
        raise ApiError("NotFound", f'{resource} "{name}" not found')
