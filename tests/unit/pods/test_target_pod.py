"""The Pod that a VM migrates into: what its node must have, and what it has from the source."""

from __future__ import annotations

from typing import Any

import pytest
from admission.machines import edited

from virtfleet.api import names
from virtfleet.installation import Installation
from virtfleet.pods.target import Move, render_target

from .machines import kubevirt, machine

INTEL = {f"{names.CPU_VENDOR}Intel": "true"}
SKYLAKE = {f"{names.HOST_MODEL_CPU}Skylake": "true"}
OTHERS = {"zone": "a", f"{names.CPU_FEATURE}avx2": "true"}


def target(status: dict[str, Any], cpu: dict[str, Any] | None = None, **configuration: Any) -> dict[str, Any]:
    where = kubevirt(configuration=configuration)
    vmi = edited(machine({"domain.cpu": cpu} if cpu else {}, where), {"status": status})
    move = Move("move", "4f6a1a24-0000", "", {**INTEL, **SKYLAKE, **OTHERS}, {})
    return render_target(vmi, Installation(where), move)


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        ("Haswell", INTEL),
        ("host-model", {**INTEL, f"{names.CPU_FEATURE}avx2": "true"}),
        ("host-passthrough", {**INTEL, **SKYLAKE}),
    ],
)
def test_a_guest_stays_on_cpus_like_those_that_it_knows(model: str, wanted: dict[str, str]) -> None:
    status = {"guestABI": {"machine": "q35", "cpu": {"model": "Skylake", "features": ["avx2"]}}}
    selector = target(status, {"model": model})["spec"]["nodeSelector"]
    assert {*selector} & {*INTEL, *SKYLAKE, *OTHERS} == wanted.keys()


CONTEXT = "system_u:system_r:container_t:s0:c111,c222"


@pytest.mark.parametrize(
    ("context", "matches", "level"),
    [
        (CONTEXT, None, "s0:c111,c222"),
        (CONTEXT, True, "s0:c111,c222"),
        (CONTEXT, False, None),
        ("", None, None),
        ("none", None, None),
    ],
)
def test_the_level_of_selinux_is_the_sources(context: str, matches: bool | None, level: str | None) -> None:
    migrations = {} if matches is None else {"matchSELinuxLevelOnMigration": matches}
    pod = target({"selinuxContext": context}, migrations=migrations, selinuxLauncherType="virt_launcher.process")
    options = {"type": "virt_launcher.process", **({"level": level} if level else {})}
    assert pod["spec"]["securityContext"]["seLinuxOptions"] == options
