"""Seccomp profiles of launchers that have capabilities, put where the kubelet looks for them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec

from virtfleet.domain.paths import seccomp_profile
from virtfleet.hypervisors import registry
from virtfleet.kube import seccomp

_PROFILES = "seccomp"


def install(kubelet: Path) -> None:
    """Have a profile for each hypervisor that needs one. Pods that exist keep the one that they began with."""
    for name in registry.names():
        descriptor = registry.get(name).descriptor
        if descriptor.capabilities and not descriptor.privileged:
            granted = [f"CAP_{capability}" for capability in descriptor.capabilities]
            _write(kubelet / _PROFILES / seccomp_profile(name), seccomp.profile(granted, os.uname().machine))


def remove(kubelet: Path) -> None:
    shutil.rmtree((kubelet / _PROFILES / seccomp_profile("")).parent, ignore_errors=True)


def _write(path: Path, profile: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(msgspec.json.encode(profile))
    fresh.replace(path)
