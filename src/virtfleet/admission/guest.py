"""Rules for what surrounds the machine: names, DNS, probes, credentials, start and eviction."""

from __future__ import annotations

from ipaddress import ip_address

from virtfleet.admission.findings import Findings
from virtfleet.admission.machine import Machine
from virtfleet.admission.names import dns_label_error, dns_subdomain_error
from virtfleet.admission.sections import Section, read

_PROBES = ("httpGet", "tcpSocket", "exec", "guestAgentPing")
_PROBE_NUMBERS = (*("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"),)
_LARGEST_NUMBER = 2**31 - 1
_DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_EVICTION = ("LiveMigrate", "LiveMigrateIfPossible", "None", "External")
_LONGEST_GRACE = 2**31 - 1  # seconds: 68 years, and a date that every program can write
_MOST_NAMESERVERS, _MOST_SEARCHES, _LONGEST_SEARCHES = 3, 6, 256


def check(m: Machine, found: Findings) -> None:
    _check_names(m, found)
    _check_start(m, found)
    _check_eviction(m, found)
    for name in ("readinessProbe", "livenessProbe"):
        probe = m.spec.get(name)
        if probe is not None:
            _check_probe(m, name, probe, found)
    _check_credentials(m, found)
    _check_dns(m, found)


def _check_names(m: Machine, found: Findings) -> None:
    hostname, subdomain = m.spec.get("hostname") or "", m.spec.get("subdomain") or ""
    if hostname and (why := dns_label_error(hostname)):
        found.invalid(m.at("hostname"), f"{hostname!r} is not a host name: {why}")
    if subdomain and (why := dns_label_error(subdomain)):
        found.invalid(m.at("subdomain"), f"{subdomain!r} is not a subdomain: {why}")
    account = m.spec.get("serviceAccountName") or ""
    if account and (why := dns_subdomain_error(account)):
        found.invalid(m.at("serviceAccountName"), f"{account!r} is not the name of a service account: {why}")
    for field in ("schedulerName", "priorityClassName"):
        name = m.spec.get(field) or ""
        if name and (why := dns_subdomain_error(name)):
            found.invalid(m.at(field), f"{name!r} is not a name: {why}")
    others = [
        read(v, "serviceAccount").get("serviceAccountName") for v in m.volumes if v.get("serviceAccount") is not None
    ]
    if account and any(other != account for other in others):
        found.invalid(
            m.at("serviceAccountName"),
            f"the pod runs as {account} while a serviceAccount volume shows {others[0]}; use one account for both",
        )


def _check_start(m: Machine, found: Findings) -> None:
    grace = m.spec.get("terminationGracePeriodSeconds") or 0
    if grace < 0:
        found.invalid(m.at("terminationGracePeriodSeconds"), f"{grace} seconds is negative; use 0 to stop at once")
    elif grace > _LONGEST_GRACE:
        found.invalid(
            m.at("terminationGracePeriodSeconds"), f"{grace} seconds is too long; use at most {_LONGEST_GRACE}"
        )
    strategy = m.spec.get("startStrategy")
    if strategy is None:
        return
    if strategy != "Paused":
        found.invalid(m.at("startStrategy"), f"start strategy {strategy!r} does not exist; use Paused or leave it out")
    elif m.spec.get("livenessProbe") is not None:
        found.invalid(m.at("startStrategy"), "a paused VM would fail its livenessProbe; remove one of the two")


def _check_eviction(m: Machine, found: Findings) -> None:
    strategy = m.spec.get("evictionStrategy") or m.cluster.eviction_strategy
    if strategy not in _EVICTION:
        found.invalid(
            m.at("evictionStrategy"),
            f"eviction strategy {strategy!r} does not exist; use one of {', '.join(_EVICTION)}",
        )


def _check_probe(m: Machine, name: str, probe: Section, found: Findings) -> None:
    kinds = [kind for kind in _PROBES if probe.get(kind) is not None]
    field = m.at(name)
    if len(kinds) > 1:
        found.invalid(field, f"{name} asks by {' and '.join(kinds)}; keep one")
    elif not kinds:
        found.required(field, f"{name} does not say how to ask; add one of {', '.join(_PROBES)}")
    delay = probe.get("initialDelaySeconds") or 0
    if delay < 0:
        found.invalid(f"{field}.initialDelaySeconds", f"{delay} seconds is negative; use 0 or more")
    for number in _PROBE_NUMBERS:
        if (probe.get(number) or 0) > _LARGEST_NUMBER:
            found.invalid(f"{field}.{number}", f"{probe[number]} is too much; use at most {_LARGEST_NUMBER}")
    if name == "livenessProbe" and (probe.get("successThreshold") or 1) != 1:
        found.invalid(f"{field}.successThreshold", "a VM lives as soon as one livenessProbe succeeds; use 1")
    if not any(network.get("pod") is not None for network in m.networks):
        for kind in ("httpGet", "tcpSocket"):
            if kind in kinds:
                found.invalid(f"{field}.{kind}", f"{kind} reaches the VM over the pod network; add it, or use exec")


def _check_credentials(m: Machine, found: Findings) -> None:
    for i, credential in enumerate(m.spec.get("accessCredentials") or ()):
        path = m.at(f"accessCredentials[{i}]")
        kinds = [kind for kind in ("sshPublicKey", "userPassword") if credential.get(kind) is not None]
        for kind in kinds:
            _check_credential(m, kind, credential[kind], f"{path}.{kind}", found)
        if len(kinds) != 1:
            found.invalid(path, "an access credential is either sshPublicKey or userPassword; set exactly one")


def _check_credential(m: Machine, kind: str, body: Section, path: str, found: Findings) -> None:
    methods = read(body, "propagationMethod")
    known = ("qemuGuestAgent", "noCloud", "configDrive") if kind == "sshPublicKey" else ("qemuGuestAgent",)
    used = [method for method in known if methods.get(method) is not None]
    for method, source in (("noCloud", "cloudInitNoCloud"), ("configDrive", "cloudInitConfigDrive")):
        if method in used and not any(volume.get(source) is not None for volume in m.volumes):
            found.invalid(f"{path}.propagationMethod", f"{method} hands keys over in a {source} volume; add one")
    if kind == "sshPublicKey" and "qemuGuestAgent" in used and not methods["qemuGuestAgent"].get("users"):
        found.invalid(f"{path}.propagationMethod.qemuGuestAgent.users", "name at least one user who gets the keys")
    secret = read(body, "source").get("secret")
    if secret is None:
        found.invalid(f"{path}.source", "the credential comes from a Secret; set source.secret.secretName")
    elif why := dns_subdomain_error(secret.get("secretName") or ""):
        field = f"{path}.source.secret.secretName"
        found.invalid(field, f"{secret.get('secretName')!r} is not the name of a Secret: {why}")
    if len(used) != 1:
        found.invalid(f"{path}.propagationMethod", f"set exactly one propagationMethod of {', '.join(known)}")


def _check_dns(m: Machine, found: Findings) -> None:
    policy, config = m.spec.get("dnsPolicy") or "", m.spec.get("dnsConfig")
    if policy and policy not in _DNS_POLICIES:
        found.unsupported(
            m.at("dnsPolicy"), f"DNS policy {policy!r} does not exist; use one of {', '.join(_DNS_POLICIES)}"
        )
    if policy == "None" and config is None:
        found.required(m.at("dnsConfig"), "dnsPolicy None needs name servers; set dnsConfig.nameservers")
        return
    config = config or {}
    servers, searches = config.get("nameservers") or (), config.get("searches") or ()
    if policy == "None" and not servers:
        found.required("nameservers", "dnsPolicy None needs name servers; set dnsConfig.nameservers")
    if len(servers) > _MOST_NAMESERVERS:
        found.invalid(
            "nameservers", f"{len(servers)} name servers are given and {_MOST_NAMESERVERS} are used; remove some"
        )
    for server in servers:
        try:
            ip_address(server)
        except ValueError:
            found.invalid("nameservers", f"name server {server!r} is not an IP address")
    if len(searches) > _MOST_SEARCHES:
        found.invalid("searchDomains", f"{len(searches)} search domains are given; {_MOST_SEARCHES} are allowed")
    if len(" ".join(searches)) > _LONGEST_SEARCHES:
        found.invalid("searchDomains", f"the search domains have more than {_LONGEST_SEARCHES} characters together")
    for search in searches:
        if why := dns_subdomain_error(search):
            found.invalid("searchDomains", f"{search!r} is not a domain: {why}")
    if any(not option.get("name") for option in config.get("options") or ()):
        found.invalid("options", "a DNS option has no name; set dnsConfig.options[].name")
