"""libvirt for one QEMU VM: its configuration, and the processes to start.

The daemon runs as the launcher's own unprivileged user, in libvirt's session mode, with its directories where the
Pod's user may write. QEMU writes its log through virtlogd, so that a restart of the daemon loses nothing.
"""

from __future__ import annotations

from virtfleet.hypervisors.base import DaemonPlan, DaemonSettings, Process

_QEMU_CONF = """\
stdio_handler = "logd"
vnc_listen = "0.0.0.0"
vnc_tls = 0
vnc_sasl = 0
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
namespaces = [ ]
cgroup_controllers = [ ]
"""
# A session's own qemu.conf has no user: QEMU runs as the daemon does.


def plan(settings: DaemonSettings, *, modular: str) -> DaemonPlan:
    """How to run libvirt for QEMU, with its modular daemon or with the monolithic one."""
    name = modular if settings.modular else "libvirtd"
    socket = f"{settings.runtime_dir}/libvirt/{name.removesuffix('d') if name == 'libvirtd' else name}-sock"
    configuration = f"{settings.runtime_dir}/libvirt/{name}.conf"
    private = f"{settings.private_dir}/libvirt"
    environment = {
        "XDG_RUNTIME_DIR": settings.runtime_dir,
        "XDG_CONFIG_HOME": settings.private_dir,
        "XDG_CACHE_HOME": settings.private_dir,
        "XDG_DATA_HOME": settings.private_dir,
    }
    if not settings.modular and settings.driver_dir:
        environment["LIBVIRT_DRIVER_DIR"] = settings.driver_dir
    log_configuration = f"{settings.runtime_dir}/libvirt/virtlogd.conf"
    return DaemonPlan(
        uri=f"qemu+unix:///session?socket={socket}",
        directories=(f"{settings.runtime_dir}/libvirt", private, f"{private}/qemu/nvram"),
        files={
            f"{private}/qemu.conf": _qemu_conf(settings),
            configuration: _daemon_conf(settings),
            log_configuration: 'log_outputs = "1:stderr"\n',
        },
        daemon=Process(command=(f"/usr/sbin/{name}", "-f", configuration), environment=environment),
        log_daemon=Process(command=("/usr/sbin/virtlogd", "-f", log_configuration), environment=environment),
    )


def _qemu_conf(settings: DaemonSettings) -> str:
    text = _QEMU_CONF
    if settings.hugepages:
        text += 'hugetlbfs_mount = "/dev/hugepages"\n'
    if settings.shared_filesystems:
        text += f"shared_filesystems = [ {', '.join(map(_quoted, settings.shared_filesystems))} ]\n"
    return text


def _daemon_conf(settings: DaemonSettings) -> str:
    text = 'log_outputs = "1:stderr"\n'
    if settings.log_filters:
        text += f"log_filters = {_quoted(settings.log_filters)}\n"
    return text


def _quoted(value: str) -> str:
    if '"' in value or "\n" in value:
        raise ValueError(f"{value!r} cannot be written into libvirt's configuration")
    return f'"{value}"'
