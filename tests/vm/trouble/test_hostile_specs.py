"""Mutated VMIs on a real cluster: each that is admitted runs or says why it does not.

`HOSTILE_VMIS=200 pytest tests/vm/trouble/test_hostile_specs.py` takes more of them than every run of the tests does.
"""

from __future__ import annotations

import itertools
import json
import os
from typing import Any

import pytest

import hostile
from vm.trouble.fleet import Fleet, tiny
from waiting import eventually

NUMBER = int(os.environ.get("HOSTILE_VMIS", "6"))
SEED = int(os.environ.get("HOSTILE_SEED", "7"))
AT_ONCE = 6
BOUND = 150.0  # seconds in which each runs or is explained
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240 + int(NUMBER / AT_ONCE * BOUND))]
# Every VMI has this condition while it does not run; it explains nothing.
_SAYS_NOTHING = {"GuestNotRunning", "PodNotExists", "PodConditionMissing"}


def sound() -> dict[str, Any]:
    """A VMI that runs, with something of many kinds to mutate."""
    vmi = tiny("x", volumes=[{"name": "scratch", "emptyDisk": {"capacity": "64Mi"}}])
    vmi["spec"] |= {
        "hostname": "guest",
        "schedulerName": "default-scheduler",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"operator": "Exists"}],
        "dnsConfig": {"searches": ["x.y"]},
    }
    vmi["spec"]["networks"] = [{"name": "default", "pod": {"vmNetworkCIDR": "10.0.2.0/24"}}]
    vmi["spec"]["domain"] |= {
        "cpu": {"cores": 1, "sockets": 1, "threads": 1},
        "resources": {"requests": {"memory": "64Mi", "cpu": "10m"}},
        "firmware": {"serial": "abc"},
        "clock": {"utc": {}, "timer": {"rtc": {"tickPolicy": "catchup"}}},
    }
    return vmi


def admitted(fleet: Fleet) -> dict[str, str]:
    """Names of the next that the API server takes, with what was sent."""
    taken: dict[str, str] = {}
    for sent in itertools.islice(_MUTATIONS, 50 * AT_ONCE):
        obj = json.loads(sent.text)
        if obj["metadata"].get("name") is None:
            continue
        done = fleet.kubectl.run("create", "--validate=false", "-f", "-", stdin=sent.text.decode())
        assert "Internal error" not in done.stderr and "InternalError" not in done.stderr, done.stderr
        if done.returncode == 0:
            taken[obj["metadata"]["name"]] = sent.text.decode()
        if len(taken) == AT_ONCE:
            break
    return taken


_MUTATIONS = hostile.instances(SEED, sound())


def explained(vmi: dict[str, Any]) -> bool:
    status = vmi.get("status") or {}
    if status.get("phase") in ("Running", "Succeeded"):
        return True
    if status.get("phase") == "Failed" and status.get("reason"):
        return True
    return any(
        c["status"] == "False" and c.get("message") and c.get("reason") not in {"", *_SAYS_NOTHING}
        for c in status.get("conditions") or ()
    )


@pytest.mark.thorough("specs are judged by the same code in both homes")
def test_what_is_admitted_runs_or_says_why_not(fleet: Fleet) -> None:
    seen = 0
    while seen < NUMBER:
        sent = admitted(fleet)
        seen += len(sent)

        def unexplained(sent: dict[str, str] = sent) -> list[str]:
            found = {vmi["metadata"]["name"]: vmi for vmi in fleet.kubectl.json("get", "vmis")["items"]}
            return [
                f"{text[:1500]}: {found.get(name, {}).get('status')}"
                for name, text in sent.items()
                if name in found and not explained(found[name])
            ]

        last: list[list[str]] = [[]]

        def all_explained(last: list[list[str]] = last) -> bool:
            last[0] = unexplained()
            return not last[0]

        try:
            eventually(all_explained, BOUND)
        except AssertionError:
            pytest.fail("\n".join(last[0]))
        fleet.kubectl("delete", "vmis", "--all", "--wait=false")  # some have decades to shut down
        fleet.kubectl(
            "delete", "pods", "-l", "kubevirt.io=virt-launcher", "--force", "--grace-period=0", "--wait=false"
        )
