"""What `kubectl get -o json` would say, over plain HTTP.

A test that waits looks again and again, and a kubectl for each look took a fifth of the machine from what it waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from cluster.rawapi import RawApi

_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_SELECTORS = {"-l": "labelSelector", "--selector": "labelSelector", "--field-selector": "fieldSelector"}


@dataclass(frozen=True)
class Question:
    """Which objects: all of a kind, or one by name."""

    kind: str
    name: str
    namespace: str
    everywhere: bool
    selectors: dict[str, str]


def question(words: Sequence[str], namespace: str) -> Question | None:
    """What is asked for by kubectl's words; None where that is more than this reads."""
    plain, selectors, everywhere = [], {}, False
    rest = iter(words)
    for word in rest:
        option, has_value, value = word.partition("=")
        if word == "-A":
            everywhere = True
        elif word == "-n":
            namespace = next(rest)
        elif option in _SELECTORS:
            selectors[_SELECTORS[option]] = value if has_value else next(rest)
        elif word.startswith("-") or "/" in word or "," in word:
            return None
        else:
            plain.append(word)
    if not 1 <= len(plain) <= 2:
        return None
    return Question(plain[0], plain[1] if plain[1:] else "", namespace, everywhere, selectors)


class Reader:
    """One cluster's objects, by the names that people use for their kinds."""

    def __init__(self, kubeconfig: Path) -> None:
        self._api = RawApi(kubeconfig)
        self._kinds: dict[str, tuple[str, str, bool]] = {}

    def get(self, asked: Question) -> Any:
        """The object or a list of them; None where the cluster knows no such kind."""
        if asked.kind not in self._kinds:
            self._kinds = self._discover()
        if asked.kind not in self._kinds:
            return None
        root, plural, namespaced = self._kinds[asked.kind]
        place = f"/namespaces/{asked.namespace}" if namespaced and not asked.everywhere else ""
        name = f"/{asked.name}" if asked.name else ""
        query = f"?{urlencode(asked.selectors)}" if asked.selectors else ""
        answer = self._api.look(f"{root}{place}/{plural}{name}{query}")
        assert answer.code == 200, f"Error from server ({answer.reason}): {answer.message}"
        found = answer.json
        for item in found.get("items", ()) if not asked.name else ():  # which kubectl writes as objects of their own
            item |= {"apiVersion": found["apiVersion"], "kind": found["kind"].removesuffix("List")}
        return found

    def _discover(self) -> dict[str, tuple[str, str, bool]]:
        """Where each kind is served; the first of several groups with the same name has it, as with kubectl."""
        found: dict[str, tuple[str, str, bool]] = {}
        for path in ("/api", "/apis"):
            for group in self._api.look(path, Accept=_DISCOVERY).json["items"]:
                name = group["metadata"].get("name", "")
                for version in group["versions"]:
                    root = f"/apis/{name}/{version['version']}" if name else f"/api/{version['version']}"
                    for kind in version["resources"]:
                        where = (root, kind["resource"], kind["scope"] == "Namespaced")
                        words = (kind["resource"], kind.get("singularResource", ""), *kind.get("shortNames", ()))
                        for word in (*words, f"{kind['resource']}.{name}", kind["responseKind"]["kind"].lower()):
                            found.setdefault(word, where)
        return found
