"""The launcher's command line, which it reads itself."""

from __future__ import annotations

import pytest

from virtfleet.hypervisors import registry
from virtfleet.launcher.main import Options, options

WHOSE = ("--namespace=default", "--name=vm", "--uid=1-2")


def test_what_the_controller_says_is_read() -> None:
    filters = "--libvirt-log-filters=3:remote 4:event=x"
    told = options((*WHOSE, "--hypervisor=lxc", "--verbosity=5", filters, "--hook-sidecars=2", "--simulate-crash"))
    assert told == Options("default", "vm", "1-2", "lxc", 5, "3:remote 4:event=x", 2, True)
    assert options((*WHOSE, "--libvirt-log-filters=")).libvirt_log_filters == ""
    assert options(WHOSE) == Options("default", "vm", "1-2", registry.DEFAULT)


@pytest.mark.parametrize(
    ("words", "trouble"),
    [
        (WHOSE[1:], "missing required field `namespace`"),
        ((*WHOSE, "--nmae=x"), "unknown field `nmae`"),
        ((*WHOSE, "--verbosity=much"), "Expected `int`"),
    ],
)
def test_what_nobody_understands_is_said(words: tuple[str, ...], trouble: str) -> None:
    with pytest.raises(SystemExit, match=trouble):
        options(words)
