"""Physical CPUs and NUMA nodes of a VM that has CPUs of its own."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from virtfleet.api import traits
from virtfleet.api.quantity import Quantity
from virtfleet.domain.context import NumaCell
from virtfleet.domain.cpupool import CpuPool
from virtfleet.domain.errors import DomainError
from virtfleet.domain.xml import add, child
from virtfleet.hypervisors.qemu.draft import Draft
from virtfleet.hypervisors.qemu.iothreads import threads


def pinning(draft: Draft) -> None:
    cpu = draft.vmi.spec.domain.cpu
    if not cpu or not cpu.dedicated_cpu_placement:
        return
    passthrough = cpu.numa is not None and cpu.numa.guest_mapping_passthrough is not None
    pool = CpuPool(draft.topology, draft.context.cells, draft.context.cpus, may_cross_cells=not passthrough)
    tune = add(draft.root, "cputune")
    pinned = pool.take_cores()
    for vcpu, thread in enumerate(pinned):
        add(tune, "vcpupin", vcpu=vcpu, cpuset=thread)
    io = threads(draft.vmi)
    for thread in range(1, io.pool + 1):
        add(tune, "iothreadpin", iothread=thread, cpuset=pool.take_thread("an I/O thread"))
    emulator = ",".join(str(pool.take_thread("the emulator")) for _ in range(traits.emulator_cpus(draft.vmi)))
    if emulator:
        add(tune, "emulatorpin", cpuset=emulator)
    if io.total and not io.pool:
        _pin_io_threads(tune, draft, io.total, emulator)

    features = child(draft.root, "features")
    if draft.vmi.spec.architecture == "amd64":
        add(child(features, "kvm"), "hint-dedicated", state="on")
    if cpu.realtime:
        child(features, "pmu").set("state", "off")
    if passthrough and draft.context.cells:
        _numa(draft, pinned)


def _pin_io_threads(tune: Element, draft: Draft, count: int, emulator: str) -> None:
    """I/O threads share the CPUs of the guest evenly, or live on the emulator's."""
    vcpus, cpus = traits.topology(draft.vmi).vcpus, draft.context.cpus
    if emulator:
        add(tune, "iothreadpin", iothread=1, cpuset=emulator)
    elif count >= vcpus:
        for thread in range(1, count + 1):
            add(tune, "iothreadpin", iothread=thread, cpuset=cpus[thread % vcpus])
    else:
        start = 0
        for thread in range(1, count + 1):
            end = start + vcpus // count + (1 if thread <= vcpus % count else 0)
            add(tune, "iothreadpin", iothread=thread, cpuset=",".join(map(str, cpus[start:end])))
            start = end


def _numa(draft: Draft, pinned: list[int]) -> None:
    """Show the guest the NUMA nodes that its CPUs are on, each with its share of the memory."""
    node_of = {cpu: cell.id for cell in draft.context.cells for cpu, _ in cell.cpus}
    vcpus_on: dict[int, list[int]] = {}
    for vcpu, thread in enumerate(pinned):
        vcpus_on.setdefault(node_of[thread], []).append(vcpu)
    cells = [cell for cell in draft.context.cells if cell.id in vcpus_on]
    page = _page_size(draft)
    shares = _shares(traits.whole_bytes(traits.memory(draft.vmi)), page, len(cells))

    backing = child(draft.root, "memoryBacking")
    add(backing, "allocation", mode="immediate")
    if traits.realtime(draft.vmi):
        add(backing, "nosharepages")
    tune = add(draft.root, "numatune")
    add(tune, "memory", mode="strict", nodeset=",".join(str(cell.id) for cell in cells))
    numa = add(child(draft.root, "cpu"), "numa")
    guest_ids = {cell.id: number for number, cell in enumerate(cells)}
    for cell, share in zip(cells, shares, strict=True):
        number = guest_ids[cell.id]
        vcpus = ",".join(map(str, vcpus_on[cell.id]))
        _distances(add(numa, "cell", id=number, cpus=vcpus, memory=share, unit="b"), cell, guest_ids)
        add(tune, "memnode", cellid=number, mode="strict", nodeset=cell.id)
        add(child(backing, "hugepages"), "page", size=page, unit="b", nodeset=number)


def _distances(element: Element, cell: NumaCell, guest_ids: dict[int, int]) -> None:
    known = [(guest_ids[node], value) for node, value in cell.distances if node in guest_ids]
    if known:
        distances = add(element, "distances")
        for number, value in known:
            add(distances, "sibling", id=number, value=value)


def _page_size(draft: Draft) -> int:
    memory = draft.vmi.spec.domain.memory
    if not memory or not memory.hugepages:
        raise DomainError("spec.domain.cpu.numa: a NUMA topology can only be passed through to VMs with huge pages")
    return traits.whole_bytes(Quantity.parse(memory.hugepages.page_size))


def _shares(total: int, page: int, cells: int) -> list[int]:
    """Memory of each cell in whole pages; pages that cannot be shared evenly go to the first cells."""
    if total < cells * page:
        raise DomainError(f"spec.domain.memory: {total} bytes are less than a huge page for each of {cells} NUMA nodes")
    if total % page:
        raise DomainError(f"spec.domain.memory: {total} bytes are no multiple of the huge page size {page}")
    pages, more = divmod(total // page, cells)
    return [(pages + (1 if number < more else 0)) * page for number in range(cells)]
