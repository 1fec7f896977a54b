"""Volumes of a VM that is used: claims, the real virtctl, and what the guest sees."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from vm.accessed import Used
from vm.guests import PATIENCE
from vm.test_virtctl import virtctl
from waiting import eventually


def claim(name: str, *, block: bool = False, mode: str = "ReadWriteMany", size: str = "64Mi") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": [mode],
            "volumeMode": "Block" if block else "Filesystem",
            "resources": {"requests": {"storage": size}},
        },
    }


class Plugged:
    """The VM `web` of somebody who plugs."""

    def __init__(self, used: Used) -> None:
        self.used = used
        self.kubectl = used.kubectl
        self.guest = used.in_guest

    def virtctl(self, *words: str) -> str:
        return self.used.does(virtctl(), "-n", self.used.namespace, *words)

    def refused(self, *words: str) -> str:
        done = self.used.run(virtctl(), "-n", self.used.namespace, *words)
        assert done.returncode != 0, done.stdout
        return done.stderr + done.stdout

    def edit(
        self,
        *,
        volumes: Sequence[dict[str, Any]] = (),
        disks: Sequence[dict[str, Any]] = (),
        without: Sequence[str] = ("cd",),
    ) -> None:
        """Change the VM's template: these volumes and disks beside its own, and not some that it has. Drives stay."""
        spec = self.used.vm()["spec"]["template"]["spec"]
        own = [volume for volume in spec["volumes"] if volume["name"] not in without]
        shown = [d for d in spec["domain"]["devices"]["disks"] if d["name"] not in without or "cdrom" in d]
        change = {"volumes": [*own, *volumes], "domain": {"devices": {"disks": [*shown, *disks]}}}
        patch = {"spec": {"template": {"spec": change}}}
        self.kubectl("patch", "vm", "web", "--type=merge", "-p", json.dumps(patch))

    def status(self, volume: str) -> dict[str, Any]:
        """What the VMI says of a volume; nothing where it says nothing."""
        vmi = self.used.vmi() or {"status": {}}
        return next((s for s in vmi["status"].get("volumeStatus", ()) if s["name"] == volume), {})

    def ready(self, volume: str) -> dict[str, Any]:
        def found() -> dict[str, Any]:
            status = self.status(volume)
            return status if status.get("phase") == "Ready" else {}

        try:
            return eventually(found, PATIENCE)
        except AssertionError:
            raise AssertionError(json.dumps([self.status(volume), self.attachments()], indent=1)) from None

    def gone(self, volume: str) -> None:
        def left() -> bool:
            return not self.status(volume) and not [p for p in self.attachments() if volume in json.dumps(p)]

        eventually(left, PATIENCE)

    def attachments(self) -> list[dict[str, Any]]:
        """The Pods that attach volumes."""
        found: list[dict[str, Any]] = self.kubectl.json("get", "pods", "-l", "kubevirt.io=hotplug-disk")["items"]
        return found

    def events(self, about: str) -> set[str]:
        """Reasons of events whose message speaks of something."""
        return {e["reason"] for e in self.kubectl.json("get", "events")["items"] if about in e.get("message", "")}

    def disk(self, volume: str) -> str:
        """The guest's name of a disk, by the serial number that virtctl gives it; "" where there is none."""
        by_serial = "for d in /sys/block/*; do s=$(cat $d/serial $d/device/vpd_pg80 2>/dev/null | tr -dc 'a-z0-9-');"
        found = self.guest(f'{by_serial} [ "${{s%{volume}}}" != "$s" ] && echo ${{d##*/}}; done; true')
        return found.strip()

    def sees(self, volume: str) -> str:
        return eventually(lambda: self.disk(volume), PATIENCE)

    @contextmanager
    def writing(self, disk: str) -> Iterator[None]:
        """The guest writes to a disk meanwhile and reads back what it wrote; none of it may fail."""
        script = (
            "rm -f /tmp/stop /tmp/bad /tmp/rounds; while [ ! -e /tmp/stop ]; do"
            " head -c 262144 /dev/urandom > /tmp/new;"
            f" dd if=/tmp/new of=/dev/{disk} bs=64k conv=fsync 2>>/tmp/said || echo write >> /tmp/bad;"
            f" echo 1 > /proc/sys/vm/drop_caches; dd if=/dev/{disk} of=/tmp/old bs=64k count=4 2>>/tmp/said;"
            " cmp /tmp/new /tmp/old || echo read >> /tmp/bad; echo round >> /tmp/rounds; done; touch /tmp/stopped"
        )
        self.guest(f"rm -f /tmp/stopped; ( {script} ) >/dev/null 2>&1 </dev/null & true")
        self.guest("test -s /tmp/rounds")
        try:
            yield
        except BaseException:
            self.guest("touch /tmp/stop")  # or what comes next would find it still writing
            raise
        rounds = int(self.guest("wc -l < /tmp/rounds"))
        eventually(lambda: int(self.guest("wc -l < /tmp/rounds")) > rounds, PATIENCE)  # and it still does
        self.guest("touch /tmp/stop; while [ ! -e /tmp/stopped ]; do sleep 0.1; done")
        said = self.guest("cat /tmp/bad /tmp/said 2>/dev/null | grep -v records | tail -5; true")
        assert not self.guest("cat /tmp/bad 2>/dev/null; true").strip(), said
        assert not self.guest(f"dmesg | grep -i 'error.*{disk}'; true").strip()
