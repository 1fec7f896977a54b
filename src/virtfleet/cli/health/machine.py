"""Whether this machine can be a cluster: its kernel, what it provides, its disk, the cluster's port and processes."""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from virtfleet.cli.health.finding import Finding, fine, problem, warning

_KERNEL = (5, 10)  # what Debian 11 has; nothing older is tried
_CONTROLLERS = ("cpu", "memory", "pids")
_PROGRAMS = ("runc", "conmon", "skopeo", "nft", "ip")
_BOOTSTRAP = "scripts/bootstrap installs what is missing."
_LITTLE = 2 << 30
_SOON = timedelta(days=14)


def checks(data: Path) -> Iterator[Finding]:
    """Everything about the machine, and about the cluster in `data` as far as files and processes tell."""
    yield _root()
    yield kernel(os.uname().release)
    yield groups(Path("/sys/fs/cgroup"))
    yield _hypervisor()
    yield _programs()
    yield _disk(data)
    yield from _cluster(data)


def _root() -> Finding:
    if os.geteuid() == 0:
        return fine("user", "root, who may run containers")
    return warning("user", "not root: nodes run real containers, which needs root", "Run `virtfleet up` as root.")


def kernel(release: str) -> Finding:
    version = re.match(r"(\d+)\.(\d+)", release)
    if version and tuple(map(int, version.groups())) >= _KERNEL:
        return fine("kernel", release)
    least = ".".join(map(str, _KERNEL))
    return problem("kernel", f"{release} is older than {least}", f"Install a kernel of {least} or later.")


def groups(root: Path) -> Finding:
    """Version 2, or every hierarchy of version 1 that containers need."""
    try:
        version, there = 2, (root / "cgroup.controllers").read_text().split()
    except OSError:
        version, there = 1, [path.name for path in root.glob("*/")]
    if missing := [name for name in _CONTROLLERS if name not in there]:
        return problem(
            "cgroups", f"{root} lacks {', '.join(missing)}", "Have the kernel offer these controllers, and mount them."
        )
    return fine("cgroups", f"version {version}")


def _hypervisor() -> Finding:
    """Whether guests run on hardware, which is tried by running one."""
    from virtfleet.hypervisors import registry
    from virtfleet.launcher.libvirtd.daemons import lacking
    from virtfleet.launcher.node import trial
    from virtfleet.local.guestimage import default_cache

    hypervisor = registry.get(registry.DEFAULT)
    title = hypervisor.descriptor.title
    if missing := lacking(hypervisor):
        return problem("hypervisor", missing, _BOOTSTRAP)
    if reason := trial.trouble(hypervisor, default_cache()):
        return warning(
            "hypervisor",
            f"{title}: {reason}; guests are emulated, and slow",
            "Switch virtualization on in the firmware (nested, where this is a VM), and load its kernel module.",
        )
    return fine("hypervisor", f"{title}: a guest was run")


def _programs() -> Finding:
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    missing = [name for name in _PROGRAMS if not shutil.which(name, path=path)]
    if missing:
        return problem("programs", f"not installed: {', '.join(missing)}", _BOOTSTRAP)
    return fine("programs", "container tools are installed")


def _disk(data: Path) -> Finding:
    place = next(path for path in (data, *data.parents) if path.exists())
    disk = os.statvfs(place)
    if disk.f_flag & os.ST_RDONLY:
        return problem("disk", f"the one that holds {data} is read-only", "Repair it and mount it anew.")
    free = disk.f_frsize * disk.f_bavail
    text = f"{free / (1 << 30):.1f} GiB are free where {data} is"
    if free < _LITTLE:
        return warning("disk", text, "Make room: images, volumes and the guests' disks lie there.")
    return fine("disk", text)


def _cluster(data: Path) -> Iterator[Finding]:
    from virtfleet.cli.home import cluster
    from virtfleet.local.directory import DEFAULT_PORT

    settings = cluster.load(data)
    children = cluster.children(data) if settings else None
    port = settings.port if settings else DEFAULT_PORT
    if children is None and not port_is_free(port):
        yield problem("port", f"{port} is in use by another program", "Choose another with: virtfleet up --port N")
    if settings is None:
        yield warning("processes", f"there is no cluster in {data}", "Start one with: virtfleet up")
        return
    if children is None:
        yield problem("processes", "no process of the cluster is running", f"Start it with: virtfleet up --data {data}")
    for child in children or ():
        if not child["running"]:
            why = f": it {child['reason']}" if child["reason"] else ""
            yield problem("processes", f"{child['name']} does not run{why}", f"Its log: virtfleet logs {child['name']}")
        elif child["restarts"]:
            yield warning(
                "processes",
                f"{child['name']} was started again {child['restarts']} times; last because it {child['reason']}",
                f"Its log: virtfleet logs {child['name']}",
            )
    if children and all(child["running"] and not child["restarts"] for child in children):
        yield fine("processes", f"{len(children)} run")
    yield from certificates(data / "pki", datetime.now(UTC))


def port_is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def certificates(root: Path, now: datetime) -> Iterator[Finding]:
    """Those of the cluster's directory; keys are not looked at."""
    from cryptography import x509

    certificates = []
    for file in sorted(root.rglob("*.crt")):
        try:
            certificates += [
                (file, each.not_valid_after_utc) for each in x509.load_pem_x509_certificates(file.read_bytes())[:1]
            ]
        except (OSError, ValueError) as error:
            yield problem("certificates", f"{file}: {error}", "`virtfleet down`, then `virtfleet up` makes it anew.")
    late = [(file, end) for file, end in certificates if end < now + _SOON]
    for file, end in late:
        state = "has ended" if end < now else "ends"
        yield problem(
            "certificates", f"{file} {state} on {end:%Y-%m-%d}", "`virtfleet down`, then `virtfleet up` renews it."
        )
    if certificates and not late:
        yield fine(
            "certificates", f"the first of {len(certificates)} ends on {min(end for _, end in certificates):%Y-%m-%d}"
        )
