"""What is taken for the SELinux context of a launcher: other modules of the kernel write to the same place."""

from __future__ import annotations

import pytest

from virtfleet.handler.pods.process import PodProcess


@pytest.mark.parametrize(
    ("said", "context"),
    [
        (b"system_u:system_r:container_t:s0:c111,c222\0", "system_u:system_r:container_t:s0:c111,c222"),
        (b"system_u:system_r:spc_t:s0", "system_u:system_r:spc_t:s0"),
        (b"system_u:system_r:container_t:s0:c0.c1023\n", "system_u:system_r:container_t:s0:c0.c1023"),
        (b"cri-containerd.apparmor.d (enforce)\n", "none"),
        (b"unconfined\n", "none"),
        (b"", "none"),
        (b"a:b:c:s0 and more", "none"),
    ],
)
def test_only_a_context_is_taken_for_one(said: bytes, context: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PodProcess, "read", lambda *_: said)
    assert PodProcess.__new__(PodProcess).selinux_context() == context


def test_a_kernel_without_such_modules_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> bytes:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(PodProcess, "read", read)
    assert PodProcess.__new__(PodProcess).selinux_context() == "none"
