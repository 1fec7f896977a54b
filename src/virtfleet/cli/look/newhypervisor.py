"""The files of a package that adds a hypervisor to VirtFleet: what `virtfleet hypervisors new` writes.

`examples/hypervisor-plugin/` is what it writes for the name `mock`; a test keeps the two the same.
"""

from __future__ import annotations

import re
from string import Template
from typing import Final

from virtfleet.hypervisors import registry

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")

_README: Final = """\
# The hypervisor `$name`

This package adds the hypervisor `$name` to VirtFleet without touching VirtFleet. It works as it is, on libvirt's test
driver, which keeps its domains in memory. To make it yours,

1. describe your hypervisor in the `Descriptor`;
2. name in `supports` what libvirt's driver for it can do, and what it cannot and why: users see the reason when a VM
   asks for it, and what is not named is refused;
3. build the domain document in `build`, with what `virtfleet.domain` offers;
4. run VirtFleet's own tests against it: `pytest tests`.

`pyproject.toml` registers the class under the entry-point group `virtfleet.hypervisors`. Install the package beside
VirtFleet (`uv pip install .`), and `virtfleet hypervisors` lists it; `virtfleet hypervisors check $name` tries it on a
machine.
"""

_PROJECT: Final = """\
[build-system]
requires = ["setuptools>=69"]
build-backend = "setuptools.build_meta"

[project]
name = "virtfleet-$name"
version = "0.1.0"
description = "The hypervisor $name for VirtFleet"
requires-python = ">=3.11"
dependencies = ["virtfleet"]

# The name is what users write into spec.hypervisor, the value is the class.
[project.entry-points."virtfleet.hypervisors"]
$name = "virtfleet_$module:$class_"

[tool.setuptools.packages.find]
where = ["src"]
"""

_CLASS: Final = '''\
"""The hypervisor $name. It pretends, on libvirt's test driver, which keeps its domains in memory.

It has all that a hypervisor's developer has to write: a descriptor, what works, what cannot and why, and the domain.
"""

from __future__ import annotations

from typing import ClassVar
from xml.etree.ElementTree import Element

from virtfleet.api import traits
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.domain import common
from virtfleet.domain.context import Context
from virtfleet.domain.xml import add
from virtfleet.hypervisors.base import Connection, DaemonPlan, DaemonSettings, Descriptor, Events, Hypervisor, Overheads
from virtfleet.hypervisors.support import Supports, impossible, works


class $class_(Hypervisor):
    """libvirt's test driver."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="$name",
        title="libvirt's test driver",
        overheads=Overheads(daemon="0", vmm="0"),
        launcher_image="virt-launcher-$name",
        connection=Connection.LIBRARY,
        events=Events.NATIVE,
        uri="test:///default",
        disk_bus="virtio",
    )
    supports: ClassVar[Supports] = {
        **works("disk-image disk-virtio container-disk claim ephemeral-disk net-masquerade net-bridge"),
        **impossible(("graphics sound", "the test driver has no devices that a guest could see or hear")),
    }

    def build(self, vmi: VirtualMachineInstance, context: Context) -> Element:
        root = common.document(vmi, "test")
        common.memory(root, vmi)
        common.vcpus(root, traits.topology(vmi).vcpus)
        add(add(root, "os"), "type", "hvm")
        return root

    def daemon(self, settings: DaemonSettings) -> DaemonPlan:
        return DaemonPlan(uri=self.descriptor.uri)
'''

_TESTS: Final = '''\
"""The contract that VirtFleet holds every hypervisor to."""

from virtfleet_$module import $class_

from virtfleet.hypervisors.testing import HypervisorContract


class Test$class_(HypervisorContract):
    """It keeps it."""

    hypervisor = $class_()
'''


def files(name: str) -> dict[str, str]:
    """The package's files by their path. Raises ValueError for a name that no hypervisor can have."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a hypervisor: lower-case letters, digits and - between them")
    if name in registry.names() or name in registry.ALIASES:
        raise ValueError(f"there is a hypervisor {name!r} already; choose another name")
    module = name.replace("-", "_")
    words = {"name": name, "module": module, "class_": "".join(part.capitalize() for part in name.split("-"))}
    written = {
        "README.md": _README,
        "pyproject.toml": _PROJECT,
        f"src/virtfleet_{module}/__init__.py": _CLASS,
        "tests/test_contract.py": _TESTS,
    }
    return {path: Template(text).substitute(words) for path, text in written.items()}
