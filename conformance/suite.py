"""The suite's programs and what they need of a cluster: guests, helpers, VirtFleet of this tree, and then a run."""

from __future__ import annotations

import json
import lzma
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from conformance import helperimage, nodes, storage
from conformance.report import Spec, focus, specs

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT / ".." / "shared"
FUNCTEST = Path(os.environ.get("FUNCTEST", SHARED / "functest"))
LOAD = os.environ.get("VIRTFLEET_LOAD", str(SHARED / "kube" / "load"))
WORK = ROOT / "dist" / "conformance"
KUBEVIRT = ROOT / "conformance" / "kubevirt.yaml"
BIN = ROOT / ".venv" / "bin"
VIRTFLEET, KUBECTL = BIN / "virtfleet", BIN / "kubectl"
PREFIX, TAG = "ft", "devel"
GUESTS = Path("/var/tmp/functest-guests")  # of the guests' builder
PATIENCE = 300
GRACE = 90  # seconds that the runner has to clean up after its own limit, before it is killed
_DNS = ("kube-dns", "-n", "kube-system")


class Trouble(Exception):
    """The suite cannot be run here, and why."""


def kubectl(*arguments: str, check: bool = True, given: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [KUBECTL, *arguments]
    return subprocess.run(command, check=check, capture_output=True, text=True, timeout=120, input=given)


def require() -> None:
    if "KUBECONFIG" not in os.environ:
        raise Trouble("KUBECONFIG names the cluster to test on; it is not set")
    if not (FUNCTEST / "functest.xz").exists():
        raise Trouble(f"there is no {FUNCTEST}/functest.xz; FUNCTEST names the directory that has KubeVirt's suite")


def bring_images(of_virtfleet: bool) -> None:
    """Images of this tree, of the guests, and of the suite's helpers, on every node."""
    WORK.mkdir(parents=True, exist_ok=True)
    guests = WORK / "guests"
    archives = []
    if of_virtfleet:
        _do([sys.executable, "scripts/images"])
        archives.append(ROOT / "dist" / "virtfleet-images.tar")
    _do([sys.executable, "-m", "conformance.guests", "--archives", str(guests)])
    helperimage.write(WORK / "helpers.tar", PREFIX, TAG, GUESTS / "root" / "bin")
    for archive in (*archives, *sorted(guests.glob("*.tar")), WORK / "helpers.tar"):
        _do([*shlex.split(LOAD), str(archive)])


def bring_guests_home(data: str) -> None:
    """Images of the guests and of the suite's helpers, on the nodes of the local cluster."""
    _do([sys.executable, "-m", "conformance.guests", "--data", data])


@contextmanager
def installed() -> Iterator[None]:
    """VirtFleet and what else the suite looks for in a cluster, unless it is there; then no more."""
    dns = kubectl("get", "service", *_DNS, check=False).returncode != 0
    if dns:
        kubectl("create", "service", "clusterip", *_DNS, "--tcp=53:53")
    ours = kubectl("get", "kubevirt", "-n", "kubevirt", "kubevirt", check=False).returncode != 0
    where = ("--kubeconfig", os.environ["KUBECONFIG"], f"--timeout={PATIENCE}")
    try:
        if ours:
            _do([str(VIRTFLEET), "install", "--kubevirt", str(KUBEVIRT), *where])
        disk = GUESTS / "alpine" / "disk.raw"
        with storage.served(kubectl, WORK / "volumes"), nodes.prepared(kubectl, f"{PREFIX}/vm-killer:{TAG}", disk):
            yield
    finally:
        if ours:
            _do([str(VIRTFLEET), "uninstall", "--force", *where])
        if dns:
            kubectl("delete", "service", *_DNS)


def every() -> list[Spec]:
    """All specs of the suite, without running one; listed once for each suite."""
    kept = WORK / "reports" / "list.json"
    if kept.exists() and kept.stat().st_mtime > (FUNCTEST / "functest.xz").stat().st_mtime:
        return specs(json.loads(kept.read_text()))
    return specs(_run("list", 1, PATIENCE, "--dry-run"))


def run(name: str, chosen: Iterable[Spec], processes: int, seconds: int) -> list[dict[str, Any]]:
    """The runner's report of these specs; those that it did not come to in time are not in it."""
    return _run(name, processes, seconds, f"--focus={focus(spec.name for spec in chosen)}")


def _run(name: str, processes: int, seconds: int, *arguments: str) -> list[dict[str, Any]]:
    reports = WORK / "reports"
    report = reports / f"{name}.json"
    report.unlink(missing_ok=True)
    artifacts = reports / "artifacts" / name
    artifacts.mkdir(parents=True, exist_ok=True)
    # Without the limit of failures it collects logs for minutes.
    environment = os.environ | {"ARTIFACTS": str(artifacts), "REPORTER_MAX_FAILS": "-1"}
    runner_of = {
        "procs": processes,
        "timeout": f"{seconds}s",
        "output-dir": reports,
        "json-report": report.name,
        "output-interceptor-mode": "none",
    }
    suite_of = {
        "kubeconfig": os.environ["KUBECONFIG"],
        "installed-namespace": "kubevirt",
        "config": _configuration(),
        "kubectl-path": KUBECTL,
        "virtctl-path": _program(SHARED / "kube" / "virtctl.xz", "virtctl"),
        **dict.fromkeys(("container-prefix", "utility-container-prefix"), PREFIX),
        **dict.fromkeys(("container-tag", "utility-container-tag"), TAG),
        "artifacts": artifacts,
    }
    ginkgo, program = (_program(FUNCTEST / f"{each}.xz", f"{each}.test") for each in ("ginkgo", "functest"))
    told = [f"--{option}={value}" for option, value in runner_of.items()]
    asked = [f"-{option}={value}" for option, value in suite_of.items()]
    command = [ginkgo, "run", "--no-color", "-v", *told, *arguments, program, "--", *asked]
    # The runner has a limit of its own, and cleans up after that. Where it does not end by then, all of it is killed.
    with (
        (reports / f"{name}.log").open("wb") as log,
        subprocess.Popen(
            command, env=environment, cwd=WORK, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        ) as runner,
    ):
        try:
            runner.wait(seconds + GRACE)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(runner.pid, signal.SIGKILL)
    if not report.exists():
        raise Trouble(f"the suite reported nothing; its log is {reports / name}.log")
    answer: list[dict[str, Any]] = json.loads(report.read_text())
    return answer


def _configuration() -> Path:
    """What the suite is told of the cluster's storage. Its CSI class is one whose volumes are made as claims ask."""
    file = WORK / "config.json"
    named = {"storageClassRhel": "rhel", "storageClassWindows": "windows"}
    file.write_text(json.dumps(named | dict.fromkeys(("storageRWOFileSystem", "storageClassCSI"), storage.CLASS)))
    return file


def _program(packed: Path, name: str) -> Path:
    """A program of the suite, unpacked once for each version."""
    program = WORK / "bin" / name
    if not program.exists() or program.stat().st_mtime < packed.stat().st_mtime:
        program.parent.mkdir(parents=True, exist_ok=True)
        with lzma.open(packed) as source, program.open("wb") as target:
            shutil.copyfileobj(source, target)
        program.chmod(0o755)
    return program


def _do(command: Sequence[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    if done.returncode:
        raise Trouble(f"{shlex.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
