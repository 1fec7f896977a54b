"""What changes in a running domain when the VMI does."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from virtfleet.hypervisors import registry
from virtfleet.hypervisors.base import own_alias
from virtfleet.launcher.vm import live


def changes(running: ET.Element, wanted: ET.Element) -> live.Changes:
    return live.changes(running, wanted, own_alias)


def domain(*parts: str) -> ET.Element:
    return ET.fromstring(f"<domain><devices>{''.join(parts)}</devices></domain>")


def disk(name: str, target: str = "vda", *, device: str = "disk", file: str = "/x") -> str:
    source = f"<source file='{file}'/>" if file else ""
    return f"<disk device='{device}'>{source}<target dev='{target}'/><alias name='ua-{name}'/></disk>"


def interface(name: str, link: str = "") -> str:
    state = f"<link state='{link}'/>" if link else ""
    return f"<interface><target dev='tap0'/>{state}<alias name='ua-{name}'/></interface>"


def test_nothing_changes_where_nothing_differs() -> None:
    same = (disk("root"), interface("default"))
    assert changes(domain(*same), domain(*same)) == ([], [], [])


def test_new_devices_are_added_and_old_ones_removed() -> None:
    change = changes(domain(disk("root"), disk("old", "vdb")), domain(disk("root"), interface("new")))
    assert [key for device in change.detach for key in known(device)] == [("disk", "old")]
    assert [key for device in change.attach for key in known(device)] == [("interface", "new")]
    assert change.update == []


def test_a_disk_and_an_interface_of_one_name_are_two_devices() -> None:
    change = changes(domain(disk("data")), domain(disk("data"), interface("data")))
    assert [device.tag for device in change.attach] == ["interface"]


def test_a_link_goes_down_and_up() -> None:
    down = changes(domain(interface("default")), domain(interface("default", "down"))).update
    assert [device.find("link").get("state") for device in down] == ["down"]  # type: ignore[union-attr]
    up = changes(domain(interface("default", "down")), domain(interface("default"))).update
    assert [device.find("link").get("state") for device in up] == ["up"]  # type: ignore[union-attr]


def test_a_cdrom_gets_another_medium_and_a_disk_does_not() -> None:
    full, empty = disk("cd", "sda", device="cdrom"), disk("cd", "sda", device="cdrom", file="")
    assert len(changes(domain(empty), domain(full)).update) == 1
    assert len(changes(domain(full), domain(empty)).update) == 1
    assert changes(domain(disk("root", file="/a")), domain(disk("root", file="/b"))).update == []


def test_devices_that_libvirt_named_itself_are_left_alone() -> None:
    own = "<disk><target dev='sdz'/><alias name='sata0-0-0'/></disk>"
    assert changes(domain(own), domain()) == ([], [], [])


def test_a_containers_interfaces_are_known_by_their_addresses() -> None:
    """libvirt's LXC driver forgets aliases and names the ends of a pair itself."""
    lxc = registry.get("lxc").identity
    made = domain("<interface><mac address='02:0A:00:00:00:01'/><alias name='ua-default'/></interface>")
    runs = domain("<interface><mac address='02:0a:00:00:00:01'/><target dev='vnet0'/></interface>")
    assert live.changes(runs, made, lxc) == ([], [], [])
    other = domain("<interface><mac address='02:0a:00:00:00:02'/><alias name='ua-more'/></interface>")
    change = live.changes(runs, other, lxc)
    assert (len(change.detach), len(change.attach)) == (1, 1)


def test_links_are_told_by_hardware_address() -> None:
    up = "<interface><mac address='02:0A:00:00:00:01'/></interface>"
    down = "<interface><mac address='02:0a:00:00:00:02'/><link state='down'/></interface>"
    assert live.links(domain(up, down)) == {"02:0a:00:00:00:01": "up", "02:0a:00:00:00:02": "down"}


def known(device: ET.Element) -> list[tuple[str, str]]:
    root = ET.Element("domain")
    ET.SubElement(root, "devices").append(device)
    return list(live.devices(root, own_alias))


def test_a_drive_that_became_empty_shows_nothing() -> None:
    left = "<disk device='cdrom'><source index='9'/><target dev='sdc'/><alias name='ua-cd'/></disk>"
    assert live.disks(domain(left, disk("full", "sdd", device="cdrom"))) == {"full": "sdd"}
