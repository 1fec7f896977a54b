"""Every reference VMI that this machine has the devices for boots. Run on demand: `make test-golden`.

It takes about eleven minutes. What cannot boot is listed with what the launcher or libvirt says about it, so that a
case that begins to work, or fails for another reason, is noticed.
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
import yaml

from tests.reference import GOLDEN
from virtfleet.admission.review import complete
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.cli.look.render import pretend_node
from virtfleet.domain import paths
from virtfleet.hypervisors import registry
from virtfleet.installation import Installation
from virtfleet.launcher.alone.standalone import Standalone
from virtfleet.launcher.failure import Failure
from virtfleet.local import guestimage
from virtfleet.protocol.client import Refused
from virtfleet.protocol.messages import Status
from vm.guests import VM, guest

pytestmark = pytest.mark.on_demand("BOOT_GOLDEN", "boots every reference VMI, which takes ten minutes")

_CLAIM_SIZE = 64 << 20
_CONFIGURATION = ("configMap", "secret", "downwardAPI", "sysprep", "serviceAccount")

# case -> what is said of it where it cannot run
CANNOT = {
    "cpu-numa": "unable to map backing store for guest RAM",  # huge pages
    "gpu-ramfb-off": "host doesn't support passthrough of host PCI devices",
    "hostdevice": "host doesn't support passthrough of host PCI devices",
    "bad-machine": "no machine type 'bogus'",
    "hugepages-1gi": "hugetlbfs filesystem is not mounted",
    "machine-440": "no machine type 'pc-i440fx-rhel7.6.0'",  # of another distribution's QEMU
    "net-sriov": "host doesn't support passthrough of host PCI devices",
    "tdx": "launchSecurity",  # libvirt 11.5
    "virtiofs-pvc": "containers of a Pod share them",
    "vol-pvc-lun": "Cannot access storage file '/dev/vol1'",  # a claim that is a block device
}
DARK = {"cdrom-scsi"}  # run, but nothing boots: our guest is a disk, and no CD-ROM


def accepted() -> list[Path]:
    cases = sorted(path.parent for path in GOLDEN.glob("*/domain.xml"))
    return [case for case in cases if json.loads((case / "verdict.json").read_text())["allowed"]]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("case", accepted(), ids=lambda c: c.name)
async def test_a_reference_vmi_boots(case: Path) -> None:
    settings = yaml.safe_load((case / "kubevirt.yaml").read_text())
    vmi, _ = complete(yaml.safe_load((case / "input.yaml").read_text()), Installation(settings))
    options = json.loads((case / "options.json").read_text()) if (case / "options.json").exists() else {}
    wanted = read(VirtualMachineInstance, vmi)
    context = msgspec.structs.replace(
        pretend_node(wanted, Installation(settings)),
        emulated=True,
        block_volumes=frozenset(options.get("block", [])),
    )
    vmi["metadata"]["uid"] = str(uuid.uuid4())
    cache = guestimage.default_cache() / "capabilities"
    try:
        with TemporaryDirectory(prefix="virtfleet-") as directory:
            sources = _stand_ins(vmi, Path(directory))
            async with Standalone(vmi, registry.get("qemu-kvm"), context, sources, cache=cache) as standalone:
                _give_secrets(standalone)
                state = await standalone.start()
                if case.name not in DARK:
                    await VM(standalone).says("virtfleet-guest ready")
                assert state.status is Status.RUNNING
    except (Refused, Failure) as error:
        assert case.name in CANNOT, str(error)
        assert CANNOT[case.name] in str(error)
    else:
        assert case.name not in CANNOT


def _stand_ins(vmi: dict[str, Any], directory: Path) -> dict[str, Path]:
    """Files for claims, and directories for configuration, by volume. The launcher's user reads them."""
    directory.chmod(0o755)
    found = {}
    for volume in vmi["spec"].get("volumes", []):
        path = found[volume["name"]] = directory / volume["name"]
        if "containerDisk" in volume:
            found[volume["name"]] = guest().image
        elif any(kind in volume for kind in _CONFIGURATION):
            path.mkdir()
            (path / "key").write_text("value")
        else:
            path.touch()
            os.truncate(path, _CLAIM_SIZE)
            os.chown(path, 107, 107)
    return found


def _give_secrets(standalone: Standalone) -> None:
    for volume in standalone.vmi["spec"].get("volumes", []):
        for reference, part in (("secretRef", "userdata"), ("networkDataSecretRef", "networkdata")):
            if reference in volume.get("cloudInitNoCloud", {}):
                path = standalone.sandbox.path(paths.cloud_init_secret(volume["name"], part))
                path.mkdir(parents=True)
                (path / part).write_text("#cloud-config")
