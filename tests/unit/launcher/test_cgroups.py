"""Which trees of control groups a container's launcher mounts anew."""

from __future__ import annotations

from pathlib import Path

from virtfleet.launcher.libvirtd.cgroups import Hierarchy, hierarchies, usable

HYBRID = """\
25 20 0:22 / /proc rw,nosuid - proc proc rw
31 25 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
32 31 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:8 - cgroup2 cgroup2 rw
33 31 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,release_agent=/lib/systemd/agent,name=systemd
34 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
"""


def test_the_trees_are_found_with_what_mounts_them_again() -> None:
    assert hierarchies(HYBRID) == [
        Hierarchy("/sys/fs/cgroup/unified", "cgroup2", "rw"),
        Hierarchy("/sys/fs/cgroup/systemd", "cgroup", "rw,xattr,name=systemd"),
        Hierarchy("/sys/fs/cgroup/cpu,cpuacct", "cgroup", "rw,cpu,cpuacct"),
    ]


def test_the_new_half_of_a_hybrid_tree_is_hidden_unless_it_has_the_controllers(tmp_path: Path) -> None:
    new, old = Hierarchy(str(tmp_path), "cgroup2", "rw"), Hierarchy("/sys/fs/cgroup/memory", "cgroup", "rw,memory")
    controllers = tmp_path / "cgroup.controllers"
    controllers.write_text("hugetlb\n")
    assert usable([new, old]) == {new: False, old: True}
    assert usable([new]) == {new: True}
    controllers.write_text("cpu memory pids\n")
    assert usable([new, old]) == {new: True, old: True}
