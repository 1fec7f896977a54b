"""Physical CPUs and NUMA nodes of this machine, for VMs that get CPUs of their own."""

from __future__ import annotations

from pathlib import Path

from virtfleet.domain.context import NumaCell

SYSFS = Path("/sys/devices/system")


def cells(sysfs: Path = SYSFS) -> tuple[NumaCell, ...]:
    """The machine's NUMA nodes, with the threads of each CPU's core and the distances to other nodes."""
    nodes = []
    for node in sorted((sysfs / "node").glob("node[0-9]*"), key=lambda path: int(path.name.removeprefix("node"))):
        cpus = tuple((cpu, _siblings(sysfs, cpu)) for cpu in ranges((node / "cpulist").read_text()))
        distances = tuple(enumerate(int(d) for d in (node / "distance").read_text().split()))
        nodes.append(NumaCell(int(node.name.removeprefix("node")), cpus, distances))
    return tuple(nodes)


def _siblings(sysfs: Path, cpu: int) -> tuple[int, ...]:
    try:
        return ranges((sysfs / f"cpu/cpu{cpu}/topology/thread_siblings_list").read_text())
    except OSError:
        return (cpu,)


def ranges(text: str) -> tuple[int, ...]:
    """The kernel's lists, such as 0-3,8."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)
