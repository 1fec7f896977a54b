"""libvirt daemons inside a launcher's Pod: where their files lie, and how they are started.

A hypervisor's modular daemon is used where it is installed; else the monolithic libvirtd, with only the one driver that
is needed. Both run as the launcher's own unprivileged user in libvirt's session mode, or as root in its system mode.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from virtfleet.hypervisors.base import DaemonPlan, DaemonSettings, Descriptor, Process

_LOG = 'log_outputs = "1:stderr"\n'
DEBUGGING = "3:remote 4:event 3:util.json 3:util.object 3:util.dbus 3:util.netlink 3:node_device 3:rpc 3:access 1:*"
"""Filters for all that helps to find a mistake, by libvirt's own advice: less of what is said often."""


def plan(
    descriptor: Descriptor,
    settings: DaemonSettings,
    driver_files: Mapping[str, str],
    *,
    directories: tuple[str, ...] = (),
    logs: tuple[str, ...] = (),
) -> DaemonPlan:
    """How to run libvirt for one VM. `driver_files` are configuration files of the driver, by their name.

    Of `directories` and `logs`, those that are not absolute lie in libvirt's private directory.
    """
    name = descriptor.daemon if settings.modular else "libvirtd"
    runtime = f"{settings.runtime_dir}/libvirt"
    private = f"{settings.private_dir}/libvirt"
    configuration = f"{runtime}/{name}.conf"
    socket = f"{runtime}/{'libvirt' if name == 'libvirtd' else name}-sock"
    environment = _environment(descriptor, settings)
    files = {f"{'/etc/libvirt' if descriptor.root else private}/{file}": text for file, text in driver_files.items()}
    files[configuration] = _daemon_configuration(descriptor, settings, runtime)
    return DaemonPlan(
        uri=_address(descriptor, socket),
        directories=(runtime, private, *(f"{private}/{directory}" for directory in directories)),
        files=files,
        # People and tools know the modular daemon's socket.
        links={f"{runtime}/{descriptor.daemon}-sock": socket} if descriptor.daemon and not settings.modular else {},
        daemon=Process(
            command=(f"/usr/sbin/{name}", "-f", configuration, "-p", f"{runtime}/{name}.pid"), environment=environment
        ),
        logs=tuple(posixpath.join(private, log) for log in logs),
    )


def uri(descriptor: Descriptor) -> str:
    """Where everybody in the launcher's Pod finds the VM's libvirt; empty where it has none of its own."""
    socket = f"{DaemonSettings().runtime_dir}/libvirt/{descriptor.daemon}-sock"
    return _address(descriptor, socket) if descriptor.daemon else ""


def _address(descriptor: Descriptor, socket: str) -> str:
    return f"{descriptor.scheme}+unix:///{'system' if descriptor.root else 'session'}?socket={socket}"


def _environment(descriptor: Descriptor, settings: DaemonSettings) -> dict[str, str]:
    environment = {}
    if not descriptor.root:
        homes = ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME")
        environment = {"XDG_RUNTIME_DIR": settings.runtime_dir, **dict.fromkeys(homes, settings.private_dir)}
    if not settings.modular and settings.driver_dir:
        environment["LIBVIRT_DRIVER_DIR"] = settings.driver_dir
    return environment


def _daemon_configuration(descriptor: Descriptor, settings: DaemonSettings, runtime: str) -> str:
    text = _LOG
    if descriptor.root:
        text += f'unix_sock_dir = {quoted(runtime)}\nunix_sock_rw_perms = "0700"\nunix_sock_ro_perms = "0700"\n'
    if settings.host_uuid:
        text += f"host_uuid = {quoted(settings.host_uuid)}\n"
    if settings.log_filters:
        text += f"log_filters = {quoted(settings.log_filters)}\n"
    return text


def quoted(value: str) -> str:
    """A string of libvirt's configuration files, which know no escapes."""
    if '"' in value or "\n" in value:
        raise ValueError(f"{value!r} cannot be written into libvirt's configuration")
    return f'"{value}"'
