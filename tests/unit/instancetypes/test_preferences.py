"""Preferences: whatever they and the VM say, the VM's own words stay, and twice is once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtfleet.admission.sections import copy_of
from virtfleet.api.instancetype import VirtualMachinePreferenceSpec
from virtfleet.api.view import fields
from virtfleet.instancetypes.preferences import prefer

BUSES = st.sampled_from(["virtio", "sata", "scsi"])
SWITCH = st.booleans()
STATE = st.fixed_dictionaries({}, optional={"enabled": SWITCH})
WORD = st.sampled_from(["a", "b"])


def some(**parts: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=parts)


PREFERENCES = some(
    clock=some(preferredClockOffset=some(timezone=WORD), preferredTimer=some(hpet=some(present=SWITCH))),
    cpu=some(preferredCPUFeatures=st.lists(st.fixed_dictionaries({"name": WORD}), max_size=2, unique_by=str)),
    devices=some(
        preferredDiskBus=BUSES,
        preferredCdromBus=BUSES,
        preferredLunBus=BUSES,
        preferredDiskCache=WORD,
        preferredDiskDedicatedIoThread=SWITCH,
        preferredInterfaceModel=WORD,
        preferredInterfaceMasquerade=st.just({}),
        preferredInputBus=WORD,
        preferredSoundModel=WORD,
        preferredTPM=some(persistent=SWITCH),
        preferredVideoType=WORD,
        preferredPanicDeviceModel=WORD,
        preferredDisableHotplug=SWITCH,
        preferredAutoattachSerialConsole=SWITCH,
    ),
    features=some(preferredAcpi=STATE, preferredSmm=STATE, preferredHyperv=some(relaxed=STATE, vapic=STATE)),
    firmware=some(
        preferredUseBios=SWITCH,
        preferredUseBiosSerial=SWITCH,
        preferredUseEfi=SWITCH,
        preferredUseSecureBoot=SWITCH,
        preferredEfi=some(secureBoot=SWITCH),
    ),
    machine=some(preferredMachineType=WORD),
    preferredSubdomain=WORD,
    preferredTerminationGracePeriodSeconds=st.integers(0, 9),
    annotations=st.dictionaries(WORD, WORD),
    preferredArchitecture=WORD,
)
DISK = st.one_of(
    st.fixed_dictionaries({"name": WORD}, optional={"cache": WORD}),
    st.builds(lambda kind, bus: {"name": "a", kind: bus}, st.sampled_from(["disk", "lun", "cdrom"]), some(bus=BUSES)),
)
INTERFACE = st.fixed_dictionaries({"name": WORD}, optional={"model": WORD, "bridge": st.just({})})
TEMPLATES = st.fixed_dictionaries(
    {
        "spec": st.fixed_dictionaries(
            {
                "domain": some(
                    devices=some(
                        disks=st.lists(DISK, max_size=2),
                        interfaces=st.lists(INTERFACE, max_size=2),
                        inputs=st.lists(some(bus=WORD), max_size=1),
                        sound=some(model=WORD),
                        tpm=some(persistent=SWITCH),
                        video=some(type=WORD),
                        panicDevices=st.lists(some(model=WORD), max_size=1),
                        disableHotplug=SWITCH,
                    ),
                    cpu=some(features=st.lists(st.fixed_dictionaries({"name": WORD}), max_size=1)),
                    features=some(acpi=STATE, hyperv=some(relaxed=STATE)),
                    firmware=some(bootloader=some(bios=some(useSerial=SWITCH)), uuid=WORD),
                    clock=some(utc=st.just({"offsetSeconds": 1})),
                    machine=some(type=WORD),
                )
            },
            optional={"subdomain": WORD, "networks": st.just([{"name": "a", "pod": {}}])},
        )
    },
    optional={"metadata": some(annotations=st.dictionaries(WORD, WORD))},
)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """What is said, field by field; that something is there at all is said too."""
    if isinstance(value, dict | list):
        yield path, type(value)
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(child, (*path, key))
    else:
        yield path, value


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(TEMPLATES, PREFERENCES)
def test_the_vms_own_words_stay_and_twice_is_once(template: dict[str, Any], preference: dict[str, Any]) -> None:
    msgspec.convert(preference, VirtualMachinePreferenceSpec)
    once, said = copy_of(template), copy_of(preference)
    prefer(once, preference)
    assert preference == said
    now = dict(leaves(once))
    assert [path for path, value in leaves(template) if now.get(path) != value] == []
    twice = copy_of(once)
    prefer(twice, preference)
    assert twice == once
    loader = once["spec"]["domain"].get("firmware", {}).get("bootloader", {})
    assert not ("bios" in loader and "efi" in loader)


@pytest.mark.parametrize(
    ("preference", "domain"),
    [
        ({"features": {"preferredAcpi": {}}}, {"features": {"acpi": {}}}),
        (
            {"firmware": {"preferredUseBios": True, "preferredUseBiosSerial": True}},
            {"firmware": {"bootloader": {"bios": {"useSerial": True}}}},
        ),
        (
            {"firmware": {"preferredUseEfi": True, "preferredUseSecureBoot": True}},
            {"firmware": {"bootloader": {"efi": {"secureBoot": True}}}},
        ),
        (
            {"firmware": {"preferredEfi": {"persistent": True}, "preferredUseSecureBoot": True}},
            {"firmware": {"bootloader": {"efi": {"persistent": True}}}},
        ),
        (
            {"devices": {"preferredTPM": {"persistent": True}, "preferredRng": {}}},
            {"devices": {"tpm": {"persistent": True}, "rng": {}}},
        ),
        ({"devices": {"preferredNetworkInterfaceMultiQueue": True}}, {"devices": {"networkInterfaceMultiqueue": True}}),
        ({"devices": {"preferredPanicDeviceModel": "isa"}}, {"devices": {"panicDevices": [{"model": "isa"}]}}),
        ({"devices": {"preferredVideoType": "virtio"}}, {"devices": {"video": {"type": "virtio"}}}),
        ({"clock": {"preferredClockOffset": {"utc": {}}}}, {"clock": {"utc": {}}}),
        ({"machine": {"preferredMachineType": "q35"}}, {"machine": {"type": "q35"}}),
        ({"preferredLaunchSecurity": {"sev": {}}}, {"launchSecurity": {"sev": {}}}),
    ],
)
def test_what_a_silent_vm_gets(preference: dict[str, Any], domain: dict[str, Any]) -> None:
    template: dict[str, Any] = {"spec": {"domain": {}}}
    prefer(template, preference)
    wanted = {"devices": {}, **domain} if "devices" in preference else domain
    assert template["spec"]["domain"] == wanted


def test_every_preferred_field_has_an_effect() -> None:
    """By asking for each alone, of a VM that has one device of each kind."""
    values: dict[Any, Any] = {bool: True, str: "virtio", int: 7}
    without: list[str] = []
    for section, field in fields(VirtualMachinePreferenceSpec).items():
        if field.inside is None or section in ("requirements", "volumes", "preferredLaunchSecurity"):
            continue
        for name, inner in fields(field.inside).items():
            hint = field.inside.__annotations__[inner.attribute]
            value = {} if inner.inside else next((v for kind, v in values.items() if kind.__name__ in str(hint)), {})
            if name in ("preferredClockOffset", "preferredCPUFeatures", "preferredHyperv"):
                value = {"utc": {}} if "Clock" in name else [{"name": "x"}] if "CPU" in name else {"relaxed": {}}
            made = full()
            prefer(made, {section: {name: value}})
            if made == full() and name not in ("preferredCPUTopology", "spreadOptions"):  # of instance types
                without.append(name)
    assert without == ["preferredUseBiosSerial", "preferredUseSecureBoot"]  # which add to another one


def full() -> dict[str, Any]:
    network = {"networks": [{"name": "n", "pod": {}}]}
    disks = [{"name": "d", "disk": {}}, {"name": "v", "disk": {"bus": "virtio"}}, {"name": "l", "lun": {}}]
    return {
        "spec": {
            **network,
            "domain": {
                "devices": {
                    "disks": [*disks, {"name": "c", "cdrom": {}}],
                    "interfaces": [{"name": "n"}],
                    "inputs": [{"name": "i"}],
                    "gpus": [{"name": "g"}],
                    "sound": {"name": "s"},
                }
            },
        }
    }
