"""Names as Kubernetes wants them. Each function says why a name is wrong, or None."""

from __future__ import annotations

import re

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_PORT = re.compile(r"[a-z0-9-]{1,15}")


def dns_label_error(name: str) -> str | None:
    if len(name) > 63 or not LABEL.fullmatch(name):
        return "use at most 63 lower case letters, digits and '-', with a letter or digit at both ends"
    return None


def dns_subdomain_error(name: str) -> str | None:
    if len(name) > 253 or not _SUBDOMAIN.fullmatch(name):
        return (
            "use at most 253 lower case letters, digits, '-' and '.', with a letter or digit at both ends of each part"
        )
    return None


def port_name_error(name: str) -> str | None:
    sound = _PORT.fullmatch(name) and "--" not in name and not name.startswith("-") and not name.endswith("-")
    if not sound or not re.search("[a-z]", name):
        return "use at most 15 lower case letters, digits and single '-', at least one letter, no '-' at the ends"
    return None
