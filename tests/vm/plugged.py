"""Volumes of a VM that is used: claims, the real virtctl, and what the guest sees."""

from __future__ import annotations

import json
from typing import Any

from cluster.clusters import VIRTFLEET
from vm.accessed import NO_QUESTIONS, Used
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

    def virtctl(self, *words: str) -> str:
        return self.used.does(virtctl(), "-n", self.used.namespace, *words)

    def refused(self, *words: str) -> str:
        done = self.used.run(virtctl(), "-n", self.used.namespace, *words)
        assert done.returncode != 0, done.stdout
        return done.stderr + done.stdout

    def guest(self, command: str, *, within: float = PATIENCE) -> str:
        """What a command says in the guest that ends well, over its network."""
        ssh = (VIRTFLEET, "ssh", "-n", self.used.namespace, "root@web", "-i", str(self.used.key), *NO_QUESTIONS)

        def answered() -> str:
            done = self.used.run(*ssh, f"{command} && echo it ended well")
            return done.stdout if done.stdout.rstrip().endswith("it ended well") else ""

        return eventually(answered, within).removesuffix("it ended well\n")

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
