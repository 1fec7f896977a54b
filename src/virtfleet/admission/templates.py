"""Rules and defaults of the kinds that make VMIs, and of migrations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from virtfleet.admission import hypervisor, memory_hotplug
from virtfleet.admission.defaults import complete_vmi_spec, set_pci_topology
from virtfleet.admission.findings import Findings
from virtfleet.admission.hypervisor import warn_of_absent
from virtfleet.admission.machine import Machine
from virtfleet.admission.network import check_discontinued
from virtfleet.admission.sections import Obj, Section, copy_of, default, extend, read
from virtfleet.admission.vmi import check_metadata, check_reserved, check_spec
from virtfleet.api import names
from virtfleet.api.quantity import Quantity
from virtfleet.api.selectors import SelectorError, from_label_selector
from virtfleet.hypervisors import features, notyet
from virtfleet.installation import Installation

_RUN_STRATEGIES = ("Halted", "Manual", "Always", "RerunOnFailure", "Once")
_TEMPLATE = "spec.template"


def complete_vm(vm: Obj, cluster: Installation) -> None:
    """A new VM settles what must not change from one start to the next: identity, machine type, bus layout."""
    if read(vm, "spec").get("template") is None:
        return  # validation says so
    spec = extend(vm, "spec", "template", "spec")
    firmware = extend(spec, "domain", "firmware")
    default(firmware, "uuid", str(uuid4()))
    default(firmware, "serial", str(uuid4()))
    settle_machine(spec, cluster)
    set_pci_topology(extend(vm, "spec", "template", "metadata", "annotations"), spec)


def settle_machine(spec: Obj, cluster: Installation) -> None:
    default(spec, "architecture", cluster.default_architecture)
    default(extend(spec, "domain", "machine"), "type", cluster.machine_type(spec["architecture"]))


def check_new_vm(vm: Section, cluster: Installation, trusted: bool, found: Findings) -> None:
    check_vm(vm, cluster, trusted, found)
    # KubeVirt leaves the template out of these paths.
    check_discontinued(Machine(read(vm, "spec", "template", "spec"), cluster, "spec"), found)


def check_vm(vm: Section, cluster: Installation, trusted: bool, found: Findings) -> None:
    spec = read(vm, "spec")
    _check_run_strategy(spec, cluster, found)
    template = spec.get("template")
    if template is None:
        found.required(_TEMPLATE, "a VM needs a template for its instances; set spec.template.spec")
        return
    completed = _completed(template, cluster)
    check_metadata(read(template, "metadata"), f"{_TEMPLATE}.metadata", cluster, trusted, found)
    check_spec(completed, cluster, f"{_TEMPLATE}.spec", found)
    hypervisor.check({**template, "spec": completed}, cluster, f"{_TEMPLATE}.spec", found)
    _check_room_to_grow(completed, cluster, found)
    _check_data_volumes(vm, completed, found)
    warn_of_absent(notyet.VM, spec, found)
    if spec.get("running") is not None:
        found.warn("spec.running is deprecated; use spec.runStrategy, Always for true and Halted for false")


def check_vm_update(vm: Section, old: Section, found: Findings) -> None:
    """While a snapshot or a restore goes on, it must find the VM as it was."""
    status = read(vm, "status")
    spec, old_spec = read(vm, "spec"), read(old, "spec")
    switched = any(spec.get(field) != old_spec.get(field) for field in ("running", "runStrategy"))
    if snapshot := status.get("snapshotInProgress"):
        volumes = (read(s, "template", "spec").get("volumes") or [] for s in (spec, old_spec))
        if next(volumes) != next(volumes):
            found.unsupported("spec", f"snapshot {snapshot} is being taken; change volumes when it is complete")
        if switched:
            found.unsupported("spec", f"snapshot {snapshot} is being taken; start or stop the VM when it is complete")
    if switched and (restore := status.get("restoreInProgress")):
        found.unsupported("spec", f"restore {restore} goes on; start or stop the VM when it is complete")


def _completed(template: Section, cluster: Installation) -> Obj:
    spec = copy_of(read(template, "spec"))
    complete_vmi_spec(spec, cluster)
    return spec


def _check_run_strategy(spec: Section, cluster: Installation, found: Findings) -> None:
    running, strategy = spec.get("running"), spec.get("runStrategy")
    if running is not None and strategy is not None:
        found.invalid("spec.running", "running and runStrategy say the same thing; remove running, which is deprecated")
    if running is None and strategy is None:
        found.invalid("spec.running", "say when the VM runs; set spec.runStrategy, for example Always or Halted")
    if strategy == "WaitAsReceiver":
        if not cluster.enabled("DecentralizedLiveMigration"):
            found.gate_is_off("spec.runStrategy", "DecentralizedLiveMigration", "runStrategy WaitAsReceiver")
    elif strategy is not None and strategy not in _RUN_STRATEGIES:
        known = ", ".join(_RUN_STRATEGIES)
        found.invalid("spec.runStrategy", f"run strategy {strategy!r} does not exist; use one of {known}")


def _check_room_to_grow(spec: Section, cluster: Installation, found: Findings) -> None:
    max_guest = read(spec, "domain", "memory").get("maxGuest")
    if cluster.live_update and max_guest is not None:
        why = memory_hotplug.why_not(spec, Quantity.parse(max_guest))
        if why:
            found.invalid(f"{_TEMPLATE}.spec.domain.memory.guest", why)


def _check_data_volumes(vm: Section, spec: Section, found: Findings) -> None:
    namespace = read(vm, "metadata").get("namespace")
    used = {
        name
        for volume in spec.get("volumes") or ()
        for name in (read(volume, "persistentVolumeClaim").get("claimName"), read(volume, "dataVolume").get("name"))
    }
    for i, template in enumerate(read(vm, "spec").get("dataVolumeTemplates") or ()):
        path, metadata = f"spec.dataVolumeTemplate[{i}]", read(template, "metadata")
        name, own = metadata.get("name"), metadata.get("namespace")
        if own and namespace and own != namespace:
            found.invalid(
                f"spec.dataVolumeTemplates[{i}]", f"namespace {own} is not the VM's, {namespace}; remove namespace"
            )
        if not name:
            found.required(f"{path}.name", "the data volume needs a name; set metadata.name")
        elif not _check_data_volume(read(template, "spec"), path, found) and name not in used:
            found.required(path, f"data volume {name} is not used; add a volume with dataVolume.name: {name}")


def _check_data_volume(spec: Section, path: str, found: Findings) -> bool:
    """Whether something is wrong with one data volume; what was found first says enough."""
    claims = [kind for kind in ("pvc", "storage") if spec.get(kind) is not None]
    if len(claims) != 1:
        found.invalid(
            f"{path}.PVC.Storage", "describe the claim in spec.storage or in spec.pvc, in exactly one of them"
        )
        return True
    claim = spec[claims[0]]
    populated = claim.get("dataSource") is not None or claim.get("dataSourceRef") is not None
    sourced = spec.get("source") is not None or spec.get("sourceRef") is not None
    if populated and sourced:
        found.invalid(f"{path}.source", "data comes from dataSource or from source, not from both; remove one")
        return True
    if not populated and not sourced:
        found.invalid(
            f"{path}.source.sourceRef", "say where the data comes from; set spec.source, for example blank: {}"
        )
        return True
    sources = [kind for kind, body in read(spec, "source").items() if body is not None]
    if spec.get("source") is not None and len(sources) != 1:
        found.invalid(f"{path}.source", f"spec.source needs exactly one kind and has {len(sources)}")
        return True
    return False


def check_replica_set(replica_set: Section, cluster: Installation, trusted: bool, found: Findings) -> None:
    spec = read(replica_set, "spec")
    template = spec.get("template")
    if template is None:
        found.required(_TEMPLATE, "a replica set needs a template for its instances; set spec.template.spec")
        return
    if (spec.get("replicas") or 0) < 0:
        found.invalid("spec.replicas", f"{spec['replicas']} replicas is negative; use 0 or more")
    completed = _completed(template, cluster)
    check_reserved(read(template, "metadata"), f"{_TEMPLATE}.metadata", trusted, found)
    check_spec(completed, cluster, f"{_TEMPLATE}.spec", found)
    hypervisor.check({**template, "spec": completed}, cluster, f"{_TEMPLATE}.spec", found)
    try:
        selects = from_label_selector(spec.get("selector")).matches(read(template, "metadata", "labels"))
    except (SelectorError, KeyError) as error:
        found.invalid("spec.selector", f"the selector cannot be read: {error}")
        return
    if not selects:
        found.invalid("spec.selector", "the selector does not match spec.template.metadata.labels; make them agree")


def complete_migration(migration: Obj, _: Installation) -> None:
    metadata = extend(migration, "metadata")
    extend(metadata, "labels")[names.MIGRATION_VMI] = read(migration, "spec").get("vmiName") or ""
    finalizers = metadata.setdefault("finalizers", [])
    if names.MIGRATION_FINALIZER not in finalizers:
        finalizers.append(names.MIGRATION_FINALIZER)


def check_migration(migration: Section, cluster: Installation, user: str, found: Findings) -> None:
    spec = read(migration, "spec")
    if not spec.get("vmiName"):
        found.required("spec.vmiName", "name the VMI that is to migrate; set spec.vmiName")
    if spec.get("priority") is not None and not (user in cluster.service_accounts and user.endswith("-controller")):
        found.forbidden("spec.migrationPriority", "only virt-controller sets the priority of migrations; remove it")
    send, receive = spec.get("sendTo"), spec.get("receive")
    if send is None and receive is None:
        return
    if not cluster.enabled("DecentralizedLiveMigration"):
        found.gate_is_off("", "DecentralizedLiveMigration", "a migration with sendTo or receive")
    if send is not None and receive is not None and send.get("migrationID") != receive.get("migrationID"):
        found.invalid("", "spec.sendTo.migrationID and spec.receive.migrationID differ; one migration has one")


def check_migration_target(migration: Section, vmi: Section | None, others: Sequence[Section], found: Findings) -> None:
    """What a new migration finds in the cluster: its VMI, and other migrations of that VMI."""
    name = read(migration, "spec").get("vmiName")
    if vmi is None:
        found.not_found("spec.vmiName", f"there is no VMI {name!r} in this namespace; check the name")
        return
    status = read(vmi, "status")
    if status.get("phase") in names.FINAL:
        found.invalid("spec.vmiName", f"VMI {name} has ended and cannot migrate; start its VM again first")
    decentralized = any(read(migration, "spec").get(f) is not None for f in ("sendTo", "receive"))
    for condition in status.get("conditions") or ():
        blocked = condition.get("type") == names.VMICondition.LIVE_MIGRATABLE and condition.get("status") == "False"
        reason = condition.get("reason") or names.NotMigratable.OTHER
        copied = reason == names.NotMigratable.DISKS and decentralized
        if blocked and not copied:
            found.invalid("spec.vmiName", f"VMI {name} cannot migrate, {reason}: {condition.get('message') or ''}")
    for other in others:
        if read(other, "status").get("phase") not in names.FINAL:
            found.invalid(
                "spec.vmiName",
                f"VMI {name} already migrates by {read(other, 'metadata').get('name')}; wait or delete that",
            )
    if found.allowed and features.BY_KEY["live-migration"].not_yet:
        found.unsupported(
            "spec.vmiName", f"VMI {name} cannot migrate, {names.NotMigratable.NOT_YET}: {features.IMMOBILE}"
        )


def check_migration_update(migration: Section, old: Section, found: Findings) -> None:
    if _differs(migration, old, "spec"):
        found.unsupported("spec", "the spec of a migration cannot change; delete it and make another")
    ended = read(migration, "status").get("phase") in names.FINAL
    label = read(old, "metadata", "labels").get(names.MIGRATION_VMI)
    if not ended and label is not None and read(migration, "metadata", "labels").get(names.MIGRATION_VMI) != label:
        found.unsupported("metadata.labels", f"label {names.MIGRATION_VMI} must stay while the migration runs")


def _differs(new: Section, old: Section, field: str) -> bool:
    empty: dict[str, Any] = {}
    return (new.get(field) or empty) != (old.get(field) or empty)
