"""From kubevirt-aie-webhook's rules to virtHandlerPools. Pure.

The webhook's ConfigMap has, under `config.yaml`, a list of rules: a name, an image, a selector of devices or labels,
and perhaps a nodeSelector. Pools say the same, but always name their nodes, because they also have a handler there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from virtfleet.admission.review import review
from virtfleet.api.kinds import KUBEVIRT
from virtfleet.cli.output import CommandError, pair, refused
from virtfleet.installation import Installation

_LONGEST = 48


def node_selectors(given: Iterable[str]) -> dict[str, dict[str, str]]:
    """`RULE:KEY=VALUE` texts, by rule."""
    labels: dict[str, dict[str, str]] = {}
    for text in given:
        rule, label = pair("--node-selector", text, "RULE:KEY=VALUE")
        key, value = pair("--node-selector", label)
        labels.setdefault(rule, {})[key] = value
    return labels


def kubevirt_of(
    config_map: Mapping[str, Any], selectors: Mapping[str, Mapping[str, str]]
) -> tuple[dict[str, Any], list[str]]:
    """A KubeVirt object with a pool for each rule, and what admission warns of."""
    pools = [_pool(rule, i, selectors) for i, rule in enumerate(_rules(config_map))]
    kubevirt = {
        "apiVersion": KUBEVIRT.api_version,
        "kind": KUBEVIRT.kind,
        "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
        "spec": {
            "configuration": {"developerConfiguration": {"featureGates": ["VirtHandlerPools"]}},
            "virtHandlerPools": pools,
        },
    }
    findings = review(kubevirt, Installation(kubevirt))
    if not findings.allowed:
        raise refused(findings.causes)
    return kubevirt, list(findings.warnings)


def _rules(config_map: Mapping[str, Any]) -> list[dict[str, Any]]:
    text = (config_map.get("data") or {}).get("config.yaml")
    if text is None:
        raise CommandError("the ConfigMap has no key config.yaml")
    try:
        rules = (yaml.safe_load(text) or {}).get("rules")
    except (yaml.YAMLError, AttributeError) as error:
        raise CommandError(f"config.yaml cannot be read: {error}") from None
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise CommandError("config.yaml has no list of rules")
    return rules


def _pool(rule: Mapping[str, Any], number: int, selectors: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    name = str(rule.get("name") or f"rule-{number}")
    labels = (rule.get("nodeSelector") or {}).get("matchLabels") or selectors.get(name)
    if not labels:
        raise CommandError(
            f"rule {name!r} names no nodes, and a pool must; "
            f"say which with --node-selector '{name}:KEY=VALUE' (a label of the nodes that have the device)"
        )
    selector = rule.get("selector") or {}
    return {
        "name": re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_LONGEST].rstrip("-"),
        "virtLauncherImage": rule.get("image") or "",
        "nodeSelector": dict(labels),
        "selector": {key: selector[key] for key in ("deviceNames", "vmLabels") if selector.get(key)},
    }
