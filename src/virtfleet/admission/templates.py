"""Rules and defaults of the kinds that make VMIs, and of migrations."""

from __future__ import annotations

from uuid import uuid4

from virtfleet.admission import hypervisor, memory_hotplug
from virtfleet.admission.case import Case
from virtfleet.admission.defaults import complete_vmi_spec, set_pci_topology
from virtfleet.admission.findings import Findings
from virtfleet.admission.hypervisor import warn_of_absent
from virtfleet.admission.network import check_discontinued
from virtfleet.admission.sections import Obj, Section, copy_of, default, extend, read
from virtfleet.admission.updates import Asker
from virtfleet.admission.vmi import check_metadata, check_reserved, check_spec
from virtfleet.api import names
from virtfleet.api.kubernetes import DataVolume
from virtfleet.api.quantity import Quantity
from virtfleet.api.selectors import SelectorError, from_label_selector, label_key_error, label_value_error
from virtfleet.api.view import part
from virtfleet.api.view import read as read_view
from virtfleet.api.vm import VirtualMachine
from virtfleet.hypervisors import notyet
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
    _settle_machine(spec, cluster)
    set_pci_topology(extend(vm, "spec", "template", "metadata", "annotations"), spec)


def settle_vm(vm: Obj, _: Section, by: Asker) -> None:
    """A changed VM keeps having a machine type."""
    if read(vm, "spec").get("template") is not None:
        _settle_machine(extend(vm, "spec", "template", "spec"), by.cluster)


def _settle_machine(spec: Obj, cluster: Installation) -> None:
    default(spec, "architecture", cluster.default_architecture)
    default(extend(spec, "domain", "machine"), "type", cluster.machine_type(spec["architecture"]))


def check_new_vm(vm: Section, by: Asker, findings: Findings) -> None:
    if case := _check_vm(vm, by, findings):
        check_discontinued(case)


def _check_vm(vm: Section, by: Asker, findings: Findings) -> Case | None:
    """A VM and its template; where there is one, the case of that."""
    spec = read(vm, "spec")
    _check_run_strategy(spec, by.cluster, findings)
    template = spec.get("template")
    if template is None:
        findings.required(_TEMPLATE, "a VM needs a template for its instances; set spec.template.spec")
        return None
    check_metadata(read(template, "metadata"), f"{_TEMPLATE}.metadata", by, findings)
    case = _check_template(template, by.cluster, findings)
    _check_room_to_grow(case)
    _check_data_volumes(vm, case)
    warn_of_absent(notyet.VM, spec, findings)
    if spec.get("running") is not None:
        findings.warn("spec.running is deprecated; use spec.runStrategy, Always for true and Halted for false")
    return case


def check_vm_update(vm: Section, old: Section, by: Asker, findings: Findings) -> None:
    if read(vm, "metadata").get("deletionTimestamp") is not None:
        return
    _check_vm(vm, by, findings)
    # While a snapshot or a restore goes on, it must find the VM as it was.
    status = read(vm, "status")
    spec, old_spec = read(vm, "spec"), read(old, "spec")
    switched = any(spec.get(field) != old_spec.get(field) for field in ("running", "runStrategy"))
    if snapshot := status.get("snapshotInProgress"):
        volumes = (read(s, "template", "spec").get("volumes") or [] for s in (spec, old_spec))
        if next(volumes) != next(volumes):
            findings.unsupported("spec", f"snapshot {snapshot} is being taken; change volumes when it is complete")
        if switched:
            findings.unsupported(
                "spec", f"snapshot {snapshot} is being taken; start or stop the VM when it is complete"
            )
    if switched and (restore := status.get("restoreInProgress")):
        findings.unsupported("spec", f"restore {restore} goes on; start or stop the VM when it is complete")


def _check_template(template: Section, cluster: Installation, findings: Findings) -> Case:
    """The instance that a template would make."""
    spec = copy_of(read(template, "spec"))
    complete_vmi_spec(spec, cluster)
    case = check_spec({**template, "spec": spec}, cluster, f"{_TEMPLATE}.spec", findings)
    hypervisor.check(case)
    return case


def _check_run_strategy(spec: Section, cluster: Installation, findings: Findings) -> None:
    running, strategy = spec.get("running"), spec.get("runStrategy")
    if running is not None and strategy is not None:
        findings.invalid(
            "spec.running", "running and runStrategy say the same thing; remove running, which is deprecated"
        )
    if running is None and strategy is None:
        findings.invalid("spec.running", "say when the VM runs; set spec.runStrategy, for example Always or Halted")
    if strategy == "WaitAsReceiver":
        if not cluster.enabled("DecentralizedLiveMigration"):
            findings.gate_is_off("spec.runStrategy", "DecentralizedLiveMigration", "runStrategy WaitAsReceiver")
    elif strategy is not None:
        findings.check_choice("spec.runStrategy", "run strategy", strategy, _RUN_STRATEGIES)


def _check_room_to_grow(case: Case) -> None:
    most = case.memory.max_guest
    why = memory_hotplug.why_not(case.vmi, Quantity.parse(most)) if most is not None else None
    if case.cluster.live_update and why:
        case.invalid("domain.memory.guest", why)


def _check_data_volumes(vm: Section, case: Case) -> None:
    view, findings = read_view(VirtualMachine, vm), case.whole
    namespace = view.metadata.namespace
    used = {
        name
        for volume in case.spec.volumes
        for name in (part(volume, "persistentVolumeClaim.claimName"), part(volume, "dataVolume.name"))
    }
    for i, template in enumerate(view.spec.data_volume_templates):
        path, name, own = f"spec.dataVolumeTemplate[{i}]", template.metadata.name, template.metadata.namespace
        if own and namespace and own != namespace:
            findings.invalid(
                f"spec.dataVolumeTemplates[{i}]", f"namespace {own} is not the VM's, {namespace}; remove namespace"
            )
        if not name:
            findings.required(f"{path}.name", "the data volume needs a name; set metadata.name")
        elif fault := _data_volume_fault(read_view(DataVolume, template.spec or {})):
            findings.invalid(f"{path}.{fault[0]}", fault[1])
        elif name not in used:
            findings.required(path, f"data volume {name} is not used; add a volume with dataVolume.name: {name}")


def _data_volume_fault(spec: DataVolume) -> tuple[str, str] | None:
    """What is wrong with one data volume, and where; what is found first says enough."""
    claims = [claim for claim in (spec.pvc, spec.storage) if claim is not None]
    if len(claims) != 1:
        return "PVC.Storage", "describe the claim in spec.storage or in spec.pvc, in exactly one of them"
    populated = claims[0].data_source is not None or claims[0].data_source_ref is not None
    sourced = spec.source is not None or spec.source_ref is not None
    if populated and sourced:
        return "source", "data comes from dataSource or from source, not from both; remove one"
    if not populated and not sourced:
        return "source.sourceRef", "say where the data comes from; set spec.source, for example blank: {}"
    if spec.source is not None and len(spec.source) != 1:
        return "source", f"spec.source needs exactly one kind and has {len(spec.source)}"
    return None


def check_replica_set(replica_set: Section, by: Asker, findings: Findings) -> None:
    spec = read(replica_set, "spec")
    template = spec.get("template")
    if template is None:
        findings.required(_TEMPLATE, "a replica set needs a template for its instances; set spec.template.spec")
        return
    if (spec.get("replicas") or 0) < 0:
        findings.invalid("spec.replicas", f"{spec['replicas']} replicas is negative; use 0 or more")
    check_reserved(read(template, "metadata"), f"{_TEMPLATE}.metadata", by, findings)
    _check_template(template, by.cluster, findings)
    try:
        selects = from_label_selector(spec.get("selector")).matches(read(template, "metadata", "labels"))
    except (SelectorError, KeyError) as error:
        findings.invalid("spec.selector", f"the selector cannot be read: {error}")
        return
    if not selects:
        findings.invalid("spec.selector", "the selector does not match spec.template.metadata.labels; make them agree")


def complete_migration(migration: Obj, _: Installation) -> None:
    metadata = extend(migration, "metadata")
    extend(metadata, "labels")[names.MIGRATION_VMI] = read(migration, "spec").get("vmiName") or ""
    finalizers = metadata.setdefault("finalizers", [])
    if names.MIGRATION_FINALIZER not in finalizers:
        finalizers.append(names.MIGRATION_FINALIZER)


def check_migration(migration: Section, by: Asker, findings: Findings) -> None:
    spec = read(migration, "spec")
    if not spec.get("vmiName"):
        findings.required("spec.vmiName", "name the VMI that is to migrate; set spec.vmiName")
    if spec.get("priority") is not None and not (by.trusted and by.user.name.endswith("-controller")):
        findings.forbidden("spec.migrationPriority", "only virt-controller sets the priority of migrations; remove it")
    send, receive = spec.get("sendTo"), spec.get("receive")
    if send is None and receive is None:
        return
    if not by.cluster.enabled("DecentralizedLiveMigration"):
        findings.gate_is_off("", "DecentralizedLiveMigration", "a migration with sendTo or receive")
    if send is not None and receive is not None and send.get("migrationID") != receive.get("migrationID"):
        findings.invalid("", "spec.sendTo.migrationID and spec.receive.migrationID differ; one migration has one")


def check_migration_update(migration: Section, old: Section, _: Asker, findings: Findings) -> None:
    if read(migration, "spec") != read(old, "spec"):
        findings.unsupported("spec", "update of Migration object's spec is restricted; delete it and make another")
    ended = read(migration, "status").get("phase") in names.FINAL
    label = read(old, "metadata", "labels").get(names.MIGRATION_VMI)
    if not ended and label is not None and read(migration, "metadata", "labels").get(names.MIGRATION_VMI) != label:
        findings.unsupported("metadata.labels", f"label {names.MIGRATION_VMI} must stay while the migration runs")


def check_policy(policy: Section, findings: Findings) -> None:
    """A policy for migrations, of which numbers may be missing and not be negative."""
    spec = read(policy, "spec")
    for field in ("completionTimeoutPerGiB", "maxDowntimeMs"):
        if (spec.get(field) or 0) < 0:
            findings.invalid(f"spec.{field}", f"{field} is {spec[field]} and must not be negative; use 0 or more")
    bandwidth = spec.get("bandwidthPerMigration")
    if bandwidth is not None and Quantity.parse(bandwidth).value() < 0:
        findings.invalid("spec.bandwidthPerMigration", f"{bandwidth} is negative; use 0, for no limit, or more")
    selectors = read(spec, "selectors")
    for kind in ("namespaceSelector", "virtualMachineInstanceSelector"):
        for key, value in (selectors.get(kind) or {}).items():
            if why := label_key_error(key) or label_value_error(value):
                findings.invalid(f"spec.selectors.{kind}", f"{key}={value} can be no label: {why}")
