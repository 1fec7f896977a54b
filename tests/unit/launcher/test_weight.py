"""The launcher runs once for every VM, so it imports as little as possible."""

from __future__ import annotations

import subprocess
import sys
import sysconfig

ALLOWED = {"msgspec", "libvirt", "libvirtmod", "libvirt_qemu", "libvirtmod_qemu", "virtfleet"}
# Of the standard library, what is heavy and of no use to it.
HEAVY = ("argparse", "dataclasses", "ssl")
# Modules that the environment itself brings into every process.
ENVIRONMENT = {"_distutils_hack", "sitecustomize"}
PROGRAM = """
import sys
before = set(sys.modules)
import virtfleet.launcher.__main__, virtfleet.launcher.main, virtfleet.hypervisors.registry as registry
registry.get("qemu-kvm"), registry.get("lxc")
loaded = {name.partition(".")[0] for name, module in sys.modules.items() if module and name not in before}
print(*sorted(loaded - sys.stdlib_module_names))
print(*sorted(name for name in sys.modules if name.startswith("virtfleet.")))
print(*(name for name in sys.argv[1:] if sys.modules.get(name)))
"""


def test_the_launcher_imports_the_standard_library_msgspec_and_libvirt_only() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *HEAVY], capture_output=True, text=True, check=True, timeout=60
    )
    outside, own, heavy = (line.split() for line in done.stdout.splitlines())
    builds = {f"_sysconfigdata__{sys.platform}_{sysconfig.get_config_var('MULTIARCH')}"}
    assert set(outside) <= ALLOWED | ENVIRONMENT | builds
    rooms = {name.split(".")[1] for name in own}
    assert rooms == {"api", "domain", "hypervisors", "launcher", "protocol", "work"}
    assert heavy == []
