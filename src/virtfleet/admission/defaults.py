"""Defaults of a VMI: what its owner left out and every later step relies on.

The same fields with the same values as in KubeVirt, in the same order, because later defaults look at earlier ones.
All functions here change the object they are given, which is `complete`'s own copy.
"""

from __future__ import annotations

from uuid import uuid4

from virtfleet.admission.hyperv import enable_dependencies
from virtfleet.admission.hypervisor import hypervisor_of
from virtfleet.admission.memory_hotplug import why_not
from virtfleet.admission.sections import Obj, default, extend, read
from virtfleet.admission.shape import LARGEST
from virtfleet.api import names, probes, times, traits
from virtfleet.api.disks import TARGETS
from virtfleet.api.domainspec import CPU, FeatureHyperv, Timer
from virtfleet.api.quantity import BINARY, Quantity
from virtfleet.api.view import fields
from virtfleet.api.view import read as view
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.hypervisors.features import support
from virtfleet.hypervisors.support import Level
from virtfleet.installation import Installation

NON_ROOT_USER = 107

_MAX_VCPUS = 512  # machine types differ in how many they take; none here takes more
_DISK_BUS = {"arm64": "virtio", "s390x": "virtio"}


def complete_vmi(vmi: Obj, cluster: Installation) -> None:
    """All that a new VMI gets: spec, annotations, finalizer and the first status."""
    spec, hypervisor = extend(vmi, "spec"), hypervisor_of(vmi, cluster)

    def supports(feature: str) -> bool:
        standing = support(hypervisor, feature, spec["architecture"])
        return standing.level is Level.WORKS or standing.admitted

    default(spec, "architecture", cluster.default_architecture)
    if cluster.eviction_strategy == "LiveMigrate" and not supports("live-migration"):
        default(spec, "evictionStrategy", "None")
    complete_vmi_spec(spec, cluster)
    _set_device_defaults(spec)
    enable_dependencies(spec)
    _set_architecture_defaults(spec, hypervisor.descriptor.disk_bus)
    default(spec["domain"]["cpu"], "model", cluster.cpu_model)
    _set_first_status(vmi, cluster)
    if cluster.live_update and supports("cpu-hotplug"):
        _reserve_sockets(spec, cluster)
    if cluster.live_update and supports("memory-hotplug"):
        _reserve_memory(spec, cluster)
    _set_annotations(vmi, cluster)
    finalizers = vmi["metadata"].setdefault("finalizers", [])
    if names.VMI_FINALIZER not in finalizers:
        finalizers.append(names.VMI_FINALIZER)


def complete_vmi_spec(spec: Obj, cluster: Installation) -> None:
    """The part of the defaults that validation of a template needs, too."""
    domain = extend(spec, "domain")
    default(spec, "architecture", cluster.default_architecture)
    default(extend(domain, "machine"), "type", cluster.machine_type(spec["architecture"]))
    _set_quantities(spec)
    _set_cpu_request(domain, cluster)
    _set_memory_and_topology(spec)
    _set_pull_policies(spec)
    default(spec, "evictionStrategy", cluster.eviction_strategy)
    complete_devices(spec, cluster)


def complete_devices(spec: Obj, cluster: Installation) -> None:
    """The devices that every VM gets, where it does not say otherwise."""
    extend(spec, "domain", "devices")
    _set_network(spec, cluster)
    _set_disks_for_volumes(spec)


def _set_quantities(spec: Obj) -> None:
    """Quantities in their canonical form, so that `1024Mi` and `1Gi` are one value for everybody after this."""
    resources = extend(spec, "domain", "resources")
    sections = [resources.get("requests"), resources.get("limits")]
    for amounts in filter(None, sections):
        for name, amount in amounts.items():
            amounts[name] = str(Quantity.parse(amount))
    memory = spec["domain"].get("memory") or {}
    for name in ("guest", "maxGuest"):
        if memory.get(name) is not None:
            memory[name] = str(Quantity.parse(memory[name]))
    for volume in spec.get("volumes") or ():
        for source in ("emptyDisk", "hostDisk"):
            if volume.get(source):
                volume[source]["capacity"] = str(Quantity.parse(volume[source].get("capacity") or 0))


def _set_cpu_request(domain: Obj, cluster: Installation) -> None:
    resources = domain["resources"]
    limit = read(resources, "limits").get("cpu")
    request = read(resources, "requests").get("cpu")
    if limit is not None and Quantity.parse(limit) and not Quantity.parse(request or 0):
        extend(resources, "requests")["cpu"] = limit
    elif request is None and cluster.cpu_request and not read(domain, "cpu").get("dedicatedCpuPlacement"):
        extend(resources, "requests")["cpu"] = str(cluster.cpu_request)


def _set_memory_and_topology(spec: Obj) -> None:
    vmi = view(VirtualMachineInstance, {"spec": spec})
    memory, cpu = extend(spec["domain"], "memory"), extend(spec["domain"], "cpu")
    if (guest := traits.guest_memory(vmi)) is not None:
        memory["guest"] = str(guest)
    if not (cpu.get("cores") or cpu.get("sockets") or cpu.get("threads")):
        cpu |= traits.topology(vmi)._asdict()


def _set_pull_policies(spec: Obj) -> None:
    for volume in spec.get("volumes") or ():
        disk = volume.get("containerDisk")
        if disk:
            image = disk.get("image") or ""
            moving = image.endswith(":latest") or not (":" in image or "@" in image)
            default(disk, "imagePullPolicy", "Always" if moving else "IfNotPresent")


def _set_network(spec: Obj, cluster: Installation) -> None:
    devices = spec["domain"]["devices"]
    if devices.get("autoattachPodInterface") is False or spec.get("networks") or devices.get("interfaces"):
        return
    if cluster.network_interface == "bridge" and not cluster.bridge_on_pod_network:
        return  # validation says why there is no network
    if cluster.network_interface in ("bridge", "masquerade"):
        devices["interfaces"] = [{"name": "default", cluster.network_interface: {}}]
        spec["networks"] = [{"name": "default", "pod": {}}]


def _set_disks_for_volumes(spec: Obj) -> None:
    devices = spec["domain"]["devices"]
    named = {d.get("name") for kind in ("disks", "filesystems") for d in devices.get(kind) or ()}
    missing = [{"name": v["name"]} for v in spec.get("volumes") or () if v.get("name") and v["name"] not in named]
    if missing:
        devices["disks"] = [*(devices.get("disks") or ()), *missing]


def _set_device_defaults(spec: Obj) -> None:
    """What does not depend on the cluster: each part that is there gets its missing fields."""
    domain = spec["domain"]
    default(extend(domain, "firmware"), "uuid", str(uuid4()))
    features = extend(domain, "features")
    _enable(extend(features, "acpi"), spec["architecture"] != "s390x")
    for name in ("apic", "smm", "pvspinlock"):
        _enable(features.get(name))
    _set_hyperv_defaults(features.get("hyperv") or {})
    timers = read(domain, "clock", "timer")
    for timer in (timers[name] for name in fields(Timer) if name in timers):
        timer.setdefault("present", True)
    devices = domain["devices"]
    for disk in devices.get("disks") or ():
        _set_disk_target(disk)
    for device in devices.get("inputs") or ():
        default(device, "bus", "usb")
        default(device, "type", "tablet")
    for gpu in devices.get("gpus") or ():
        _enable(read(gpu, "virtualGPUOptions", "display").get("ramFB"))
    for probe in filter(None, (spec.get("readinessProbe"), spec.get("livenessProbe"))):
        for name, value in probes.DEFAULTS.items():
            if (probe.get(name) or 0) < 1:
                probe[name] = value


def _enable(feature: Obj | None, enabled: bool = True) -> None:
    if feature is not None and feature.get("enabled") is None:
        feature["enabled"] = enabled


def _set_hyperv_defaults(hyperv: Obj) -> None:
    for name in fields(FeatureHyperv):
        _enable(hyperv.get(name))
    for name, parts in (("synictimer", ("direct",)), ("tlbflush", ("direct", "extended"))):
        for part in parts:
            _enable((hyperv.get(name) or {}).get(part))
    spinlocks = hyperv.get("spinlocks")
    if spinlocks and spinlocks["enabled"] and spinlocks.get("spinlocks") is None:
        spinlocks["spinlocks"] = 4096


def _set_disk_target(disk: Obj) -> None:
    if not any(disk.get(kind) is not None for kind in TARGETS):
        disk["disk"] = {}
    cdrom = disk.get("cdrom")
    if cdrom is not None:
        if cdrom.get("readonly") is None:
            cdrom["readonly"] = True
        default(cdrom, "tray", "closed")
    _enable(read(disk, "blockSize").get("matchVolume"))


def _set_architecture_defaults(spec: Obj, hypervisors_bus: str) -> None:
    architecture, domain = spec["architecture"], spec["domain"]
    bus = _DISK_BUS.get(architecture, hypervisors_bus)
    for disk in domain["devices"].get("disks") or ():
        for kind in TARGETS:
            if disk.get(kind) is not None:
                default(disk[kind], "bus", bus)
    watchdog = domain["devices"].get("watchdog")
    if watchdog is not None and architecture != "arm64":
        device = "diag288" if architecture == "s390x" else "i6300esb"
        default(extend(watchdog, device), "action", "reset")
    if architecture == "arm64":
        default(domain["cpu"], "model", "host-passthrough")
        firmware = domain["firmware"]
        if firmware.get("bootloader") is None:
            firmware["bootloader"] = {"efi": {}}
        efi = firmware["bootloader"].get("efi")
        if efi is not None and efi.get("secureBoot") is None:
            efi["secureBoot"] = False


def _set_first_status(vmi: Obj, cluster: Installation) -> None:
    domain = vmi["spec"]["domain"]
    status = extend(vmi, "status")
    guest = domain["memory"].get("guest")
    if guest is not None:
        status["memory"] = {"guestAtBoot": guest, "guestCurrent": guest, "guestRequested": guest}
    if status.get("currentCPUTopology") is None:
        topology = {name: domain["cpu"].get(name) for name in ("cores", "sockets", "threads")}
        status["currentCPUTopology"] = {name: count for name, count in topology.items() if count}
    if not cluster.enabled("Root"):
        status["runtimeUser"] = NON_ROOT_USER
    if status.get("phase") != "Pending":
        status["phase"] = "Pending"
        seen = status.setdefault("phaseTransitionTimestamps", [])
        seen.append({"phase": "Pending", "phaseTransitionTimestamp": times.timestamp()})


def _reserve_sockets(spec: Obj, cluster: Installation) -> None:
    """Room for CPUs that are added while the guest runs."""
    cpu = view(CPU, spec["domain"]["cpu"])
    if cpu.max_sockets:
        return
    sockets, most = cpu.sockets or 0, cluster.max_sockets
    if most:
        most = max(most, sockets)
    else:
        most, per_socket = sockets * cluster.max_hotplug_ratio, traits.stated_vcpus(cpu, 1)
        if most * per_socket > _MAX_VCPUS:
            most = max(_MAX_VCPUS // per_socket, sockets)
    if most:
        spec["domain"]["cpu"]["maxSockets"] = most


def _reserve_memory(spec: Obj, cluster: Installation) -> None:
    """Room for memory that is added while the guest runs, where its kind of machine allows that."""
    memory = spec["domain"]["memory"]
    if memory.get("maxGuest") is not None or memory.get("guest") is None:
        return
    most = cluster.max_guest
    if most is None:
        most = Quantity.of(Quantity.parse(memory["guest"]).value() * cluster.max_hotplug_ratio, BINARY)
    if most.value() <= LARGEST and why_not(view(VirtualMachineInstance, {"spec": spec}), most) is None:
        memory["maxGuest"] = str(most)


def _set_annotations(vmi: Obj, cluster: Installation) -> None:
    annotations = extend(vmi, "metadata", "annotations")
    set_pci_topology(annotations, vmi["spec"])
    domain = vmi["spec"]["domain"]
    parity = names.EMULATOR_THREAD_EVEN_PARITY in cluster.annotations and cluster.enabled("AlignCPUs")
    if domain["cpu"].get("isolateEmulatorThread") and parity:
        annotations[names.EMULATOR_THREAD_EVEN_PARITY] = ""
    if read(domain, "launchSecurity").get("tdx") is not None and cluster.qgs_socket:
        annotations[names.QGS_SOCKET_PATH] = cluster.qgs_socket
    if not annotations:
        del vmi["metadata"]["annotations"]


def set_pci_topology(annotations: Obj, spec: Obj) -> None:
    """Mark machines with a PCIe bus as having the present layout of ports, which must outlive updates."""
    machine = read(spec, "domain", "machine").get("type") or ""
    if spec.get("architecture") in ("amd64", "arm64") and ("q35" in machine or machine.startswith("virt")):
        annotations.setdefault(names.PCI_TOPOLOGY_VERSION, "v3")
