"""The same trials on every hypervisor that this machine can run; `make test-xen` has them for Xen."""

from __future__ import annotations

import os

import libvirt
import pytest

from virtfleet.hypervisors import registry
from virtfleet.hypervisors.base import Evidence
from virtfleet.launcher.node import trial
from virtfleet.local import guestimage
from vm import same
from vm.guests import guest

NAMES = [name for name in registry.names() if registry.get(name).evidence is Evidence.GUESTS]


def _marks(name: str) -> list[pytest.MarkDecorator]:
    hypervisor = registry.get(name)
    steps = trial.steps(hypervisor, emulated=bool(hypervisor.descriptor.emulation))
    return [pytest.mark.lacks(f"{step}: {missing}") for step, missing in steps if missing][:1]


@pytest.mark.timeout(600)  # four guests, one after the other
@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in NAMES])
async def test_a_guest_does_all_that_the_registry_says(name: str) -> None:
    hypervisor, made = registry.get(name), guest()
    cache = guestimage.default_cache() / "capabilities"
    place = same.Place(image=made.image, boot=made.kernel.parent, cache=cache)
    report = await same.try_all(hypervisor, place)
    report.versions = f"libvirt {same.dotted(libvirt.getVersion())}"
    report.write(os.environ.get("VIRTFLEET_RESULTS", ""))
    assert not report.failures
    assert same.PASSED in report.results.values()
