"""Seccomp profiles of launchers that have capabilities, put where the kubelet looks for them."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import msgspec

from virtfleet.domain.paths import seccomp_profile
from virtfleet.hypervisors import registry
from virtfleet.kube import seccomp

_PROFILES = "seccomp"
CHOICE = "kubevirt/kubevirt.json"


def install(kubelet: Path) -> None:
    """Have a profile for each hypervisor that needs one. Pods that exist keep the one that they began with."""
    for name in registry.names():
        descriptor = registry.get(name).descriptor
        if descriptor.capabilities and not descriptor.privileged:
            granted = [f"CAP_{capability}" for capability in descriptor.capabilities]
            _write(kubelet / _PROFILES / seccomp_profile(name), seccomp.profile(granted, os.uname().machine))


def offer(kubelet: Path) -> None:
    """Have the profile that administrators may choose for launchers, under the name that it has in KubeVirt.

    It allows what post-copy needs, which runtimes' own may not.
    """
    _write(kubelet / _PROFILES / CHOICE, seccomp.profile((), os.uname().machine, allowed=("userfaultfd",)))


def remove(kubelet: Path) -> None:
    shutil.rmtree((kubelet / _PROFILES / seccomp_profile("")).parent, ignore_errors=True)
    choice = kubelet / _PROFILES / CHOICE
    choice.unlink(missing_ok=True)
    with suppress(OSError):  # of others, or not there
        choice.parent.rmdir()


def _write(path: Path, profile: dict[str, object]) -> None:
    content = msgspec.json.encode(profile)
    if path.exists() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(content)
    fresh.replace(path)
