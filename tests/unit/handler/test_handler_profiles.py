"""Seccomp profiles that a handler puts on its node."""

from __future__ import annotations

import json
from pathlib import Path

from virtfleet.domain.paths import seccomp_profile
from virtfleet.handler.node import profiles


def test_launchers_with_capabilities_have_a_profile_that_lets_them_use_these(tmp_path: Path) -> None:
    profiles.install(tmp_path)
    profile = json.loads((tmp_path / "seccomp" / seccomp_profile("lxc")).read_text())
    assert not (tmp_path / "seccomp" / seccomp_profile("qemu-kvm")).exists(), "the runtime's own is enough for it"
    forbidden = {name for rule in profile["syscalls"] if "args" not in rule for name in rule["names"]}
    assert not forbidden & {"pivot_root", "mount", "unshare", "reboot"}
    assert {"init_module", "keyctl", "bpf", "settimeofday", "swapon", "io_uring_setup"} <= forbidden
    profiles.remove(tmp_path)
    assert not list((tmp_path / "seccomp").iterdir())


def test_administrators_may_choose_a_profile_that_allows_what_post_copy_needs(tmp_path: Path) -> None:
    profiles.offer(tmp_path)
    written = (path := tmp_path / "seccomp" / "kubevirt" / "kubevirt.json").stat()
    profile = json.loads(path.read_text())
    forbidden = {name for rule in profile["syscalls"] if "args" not in rule for name in rule["names"]}
    assert "userfaultfd" not in forbidden and {"mount", "bpf", "keyctl", "clone3"} <= forbidden
    profiles.offer(tmp_path)
    assert path.stat().st_ino == written.st_ino, "it is not written again"
    profiles.remove(tmp_path)
    assert not list((tmp_path / "seccomp").iterdir())
