"""Rules for what surrounds the machine: names, DNS, probes, credentials, start and eviction."""

from __future__ import annotations

from virtfleet.admission.case import Case
from virtfleet.admission.findings import NOT_SUPPORTED
from virtfleet.admission.names import dns_label_error, dns_subdomain_error
from virtfleet.api.addresses import plain_ip
from virtfleet.api.kubernetes import DNSConfig
from virtfleet.api.probes import ACTIONS, OVER_THE_NETWORK, Probe
from virtfleet.api.view import given, part, read
from virtfleet.api.vmi import SSHPublicKeyAccessCredential, UserPasswordAccessCredential

_PROBE_NUMBERS = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")
_LARGEST_NUMBER = 2**31 - 1
_DNS_POLICIES = ("", "ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_EVICTION = ("LiveMigrate", "LiveMigrateIfPossible", "None", "External")
_LONGEST_GRACE = 2**31 - 1  # seconds: 68 years, and a date that every program can write
_MOST_NAMESERVERS, _MOST_SEARCHES, _LONGEST_SEARCHES = 3, 6, 256
_CREDENTIALS = {
    "sshPublicKey": ("qemuGuestAgent", "noCloud", "configDrive"),
    "userPassword": ("qemuGuestAgent",),
}


def check(case: Case) -> None:
    _check_names(case)
    _check_start(case)
    strategy = case.spec.eviction_strategy or case.cluster.eviction_strategy
    case.check_choice("evictionStrategy", "eviction strategy", strategy, _EVICTION)
    for name, probe in (("readinessProbe", case.spec.readiness_probe), ("livenessProbe", case.spec.liveness_probe)):
        if probe is not None:
            _check_probe(case, name, probe)
    _check_credentials(case)
    _check_dns(case)


def _check_names(case: Case) -> None:
    spec, account = case.spec, case.spec.service_account_name
    if spec.hostname and (why := dns_label_error(spec.hostname)):
        case.invalid("hostname", f"{spec.hostname!r} is not a host name: {why}")
    if spec.subdomain and (why := dns_label_error(spec.subdomain)):
        case.invalid("subdomain", f"{spec.subdomain!r} is not a subdomain: {why}")
    if account and (why := dns_subdomain_error(account)):
        case.invalid("serviceAccountName", f"{account!r} is not the name of a service account: {why}")
    for field, name in (("schedulerName", spec.scheduler_name), ("priorityClassName", spec.priority_class_name)):
        if name and (why := dns_subdomain_error(name)):
            case.invalid(field, f"{name!r} is not a name: {why}")
    others = [v.service_account.service_account_name for v in spec.volumes if v.service_account is not None]
    if account and any(other != account for other in others):
        message = f"the pod runs as {account} while a serviceAccount volume shows {others[0]}; use one account for both"
        case.invalid("serviceAccountName", message)


def _check_start(case: Case) -> None:
    field, grace = "terminationGracePeriodSeconds", case.spec.termination_grace_period_seconds or 0
    if grace < 0:
        case.invalid(field, f"{grace} seconds is negative; use 0 to stop at once")
    elif grace > _LONGEST_GRACE:
        case.invalid(field, f"{grace} seconds is too long; use at most {_LONGEST_GRACE}")
    strategy = case.spec.start_strategy
    if case.says("startStrategy") and strategy != "Paused":
        case.invalid("startStrategy", f"start strategy {strategy!r} does not exist; use Paused or leave it out")
    elif strategy and case.spec.liveness_probe is not None:
        case.invalid("startStrategy", "a paused VM would fail its livenessProbe; remove one of the two")


def _check_probe(case: Case, name: str, probe: Probe) -> None:
    actions = given(probe, ACTIONS)
    if len(actions) > 1:
        case.invalid(name, f"{name} asks by {' and '.join(actions)}; keep one")
    elif not actions:
        case.required(name, f"{name} does not say how to ask; add one of {', '.join(ACTIONS)}")
    delay = probe.initial_delay_seconds or 0
    if delay < 0:
        case.invalid(f"{name}.initialDelaySeconds", f"{delay} seconds is negative; use 0 or more")
    for field in _PROBE_NUMBERS:
        if (number := part(probe, field) or 0) > _LARGEST_NUMBER:
            case.invalid(f"{name}.{field}", f"{number} is too much; use at most {_LARGEST_NUMBER}")
    if name == "livenessProbe" and (probe.success_threshold or 1) != 1:
        case.invalid(f"{name}.successThreshold", "a VM lives as soon as one livenessProbe succeeds; use 1")
    if all(network.pod is None for network in case.spec.networks):
        for action in given(probe, OVER_THE_NETWORK):
            case.invalid(f"{name}.{action}", f"{action} reaches the VM over the pod network; add it, or use exec")


def _check_credentials(case: Case) -> None:
    for i, credential in enumerate(case.spec.access_credentials):
        path, kinds = f"accessCredentials[{i}]", given(credential, _CREDENTIALS)
        for kind in kinds:
            _check_credential(case, kind, part(credential, kind), f"{path}.{kind}")
        if len(kinds) != 1:
            case.invalid(path, "an access credential is either sshPublicKey or userPassword; set exactly one")


def _check_credential(
    case: Case, kind: str, body: SSHPublicKeyAccessCredential | UserPasswordAccessCredential, path: str
) -> None:
    method, known = f"{path}.propagationMethod", _CREDENTIALS[kind]
    used = given(body.propagation_method, known) if body.propagation_method else []
    for way, source in (("noCloud", "cloudInitNoCloud"), ("configDrive", "cloudInitConfigDrive")):
        if way in used and all(part(volume, source) is None for volume in case.spec.volumes):
            case.invalid(method, f"{way} hands keys over in a {source} volume; add one")
    by_agent = kind == "sshPublicKey" and "qemuGuestAgent" in used
    if by_agent and not part(body, "propagationMethod.qemuGuestAgent.users"):
        case.invalid(f"{method}.qemuGuestAgent.users", "name at least one user who gets the keys")
    secret = body.source.secret if body.source else None
    if secret is None:
        case.invalid(f"{path}.source", "the credential comes from a Secret; set source.secret.secretName")
    elif why := dns_subdomain_error(secret.secret_name):
        case.invalid(f"{path}.source.secret.secretName", f"{secret.secret_name!r} is not the name of a Secret: {why}")
    if len(used) != 1:
        case.invalid(method, f"set exactly one propagationMethod of {', '.join(known)}")


def _check_dns(case: Case) -> None:
    policy, findings = case.spec.dns_policy, case.whole  # KubeVirt names these fields without their path
    case.check_choice("dnsPolicy", "DNS policy", policy, _DNS_POLICIES, NOT_SUPPORTED)
    if policy == "None" and case.spec.dns_config is None:
        case.required("dnsConfig", "dnsPolicy None needs name servers; set dnsConfig.nameservers")
        return
    config = read(DNSConfig, case.spec.dns_config or {})
    servers, searches = config.nameservers, config.searches
    if policy == "None" and not servers:
        findings.required("nameservers", "dnsPolicy None needs name servers; set dnsConfig.nameservers")
    if len(servers) > _MOST_NAMESERVERS:
        findings.invalid(
            "nameservers", f"{len(servers)} name servers are given and {_MOST_NAMESERVERS} are used; remove some"
        )
    for server in servers:
        try:
            plain_ip(server)
        except ValueError:
            findings.invalid("nameservers", f"name server {server!r} is not an IP address")
    if len(searches) > _MOST_SEARCHES:
        findings.invalid("searchDomains", f"{len(searches)} search domains are given; {_MOST_SEARCHES} are allowed")
    if len(" ".join(searches)) > _LONGEST_SEARCHES:
        findings.invalid("searchDomains", f"the search domains have more than {_LONGEST_SEARCHES} characters together")
    for search in searches:
        if why := dns_subdomain_error(search):
            findings.invalid("searchDomains", f"{search!r} is not a domain: {why}")
    if any(not option.name for option in config.options):
        findings.invalid("options", "a DNS option has no name; set dnsConfig.options[].name")
