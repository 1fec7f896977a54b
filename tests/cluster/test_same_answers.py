"""The local API server answers as Kubernetes does, question by question.

`answers.json` holds what a real Kubernetes answered. The same questions go to the cluster under test, whichever it is:
so the recording is checked wherever KUBECONFIG names a real cluster, and the local server everywhere. To record anew:
`RECORD_ANSWERS=1 KUBECONFIG=... pytest tests/cluster/test_same_answers.py`.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from clusters import KUBECONFIG
from questions import CRDS, MANAGERS_COUNT, STORIES, Step, crd
from rawapi import Answer, RawApi

from waiting import eventually

RECORDING = Path(__file__).parent / "answers.json"
# Who wrote which field, words for people, and hashes.
_LEFT_OUT = {"managedFields", "remainingItemCount", "description", "storageVersionHash"}
_CONTROLLERS = ("kube-controller-manager", "virtfleet")
# Where the two may differ: numbers, names and times that each server hands out by itself.
_OWN = (
    (re.compile(r'"(resourceVersion|uid|continue)": ?"[^"]+"'), r'"\1": "<own>"'),
    (re.compile(r'"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"'), '"<time>"'),
    (re.compile(r"kube-api-access-\w{5}"), "kube-api-access-<own>"),
    (re.compile(r'(?<=[\[ ])"\d+s"'), '"<age>"'),
    (re.compile(r"gen-\w{5}"), "gen-<own>"),
    (re.compile(r'"(clusterIP|creationTimestamp)": ?"\d[^"]*"'), r'"\1": "<own>"'),
    (re.compile(r"0/\d+ nodes are available: \d+"), "0/<n> nodes are available: <n>"),
    (re.compile(r'"clusterIPs": ?\["\d[^"]*"\]'), '"clusterIPs": ["<own>"]'),
)
# What the local server answers otherwise, and why.
OTHERWISE: dict[str, tuple[Any, str]] = {
    "strictness 04 POST /api/v1/namespaces/{ns}/configmaps?fieldValidation=Strict": (
        [422, {"causes": [["metadata.name", "FieldValueRequired"]], "reason": "Invalid"}],
        "neither VirtFleet nor kubectl nor virtctl sends a field twice",
    ),
    "strictness 13 POST /api/v1/namespaces/{ns}/configmaps": (
        [415, {"causes": [], "reason": "UnsupportedMediaType"}],
        "neither VirtFleet nor kubectl nor virtctl sends YAML",
    ),
    "lists 27 GET /api/v1/namespaces/{ns}/configmaps/l1": (
        [406, {"causes": [], "reason": "NotAcceptable"}],
        "neither VirtFleet nor kubectl nor virtctl asks for metadata alone",
    ),
    "custom kinds 03 POST /apis/{cluster}.example.com/v1/namespaces/{ns}/gadgets": (
        [422, {"causes": [["spec.size", "FieldValueTypeInvalid"]], "reason": "Invalid"}],
        "Kubernetes adds a cause whose field is `<nil>`: its check of the minimum stumbles over the wrong type",
    ),
}


def test_every_question_has_the_answer_that_kubernetes_gives(raw: RawApi) -> None:
    asked = dict(_ask_all(raw))
    if os.environ.get("RECORD_ANSWERS"):
        RECORDING.write_text(json.dumps(asked, indent=1, sort_keys=True) + "\n")
    known = json.loads(RECORDING.read_text())
    assert len(known) >= 200
    if not KUBECONFIG:
        known |= {key: answer for key, (answer, _why) in OTHERWISE.items()}
    different = {key: (known.get(key), answer) for key, answer in asked.items() if known.get(key) != answer}
    lines = [
        f"{key}\n  Kubernetes: {_short(want)}\n  here:       {_short(got)}" for key, (want, got) in different.items()
    ]
    assert not different, f"{len(different)} of {len(asked)} answers differ:\n" + "\n".join(lines)


def _ask_all(raw: RawApi) -> Iterator[tuple[str, Any]]:
    run = uuid.uuid4().hex[:8]
    definition = json.loads(json.dumps(crd()).replace("{cluster}", f"q{run}"))
    raw("POST", CRDS, definition)
    plain = f"/apis/q{run}.example.com/v1/gadgets"
    try:
        eventually(lambda: raw("GET", plain).code == 200)
        for story, steps in STORIES.items():
            names = {"ns": f"q{run}-{story.replace(' ', '').lower()}", "cluster": f"q{run}"}
            space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": names["ns"]}}
            assert raw("POST", "/api/v1/namespaces", space).code == 201
            account = f"/api/v1/namespaces/{names['ns']}/serviceaccounts/default"
            eventually(lambda account=account: raw("GET", account).code == 200)
            try:
                for number, step in enumerate(steps):
                    answer = _ask(raw, step, names)
                    if story in MANAGERS_COUNT:
                        answer = _managed(answer)
                    yield f"{story} {number:02} {step.method} {step.path}", _normal(answer, names)
            finally:
                _let_go(raw, names["ns"])
                raw("DELETE", f"/api/v1/namespaces/{names['ns']}")
    finally:
        raw("DELETE", f"{CRDS}/{definition['metadata']['name']}")


def _let_go(raw: RawApi, namespace: str) -> None:
    """Nobody else takes the finalizers off that questions leave behind, and the namespace would stay."""
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    for held in (obj for obj in raw("GET", maps).json["items"] if "finalizers" in obj["metadata"]):
        change = json.dumps({"metadata": {"finalizers": None}}).encode()
        raw("PATCH", f"{maps}/{held['metadata']['name']}", change, Content_Type="application/merge-patch+json")


def _ask(raw: RawApi, step: Step, names: dict[str, str]) -> Answer:
    body = step.body
    if body is not None and not isinstance(body, bytes):
        body = _filled(json.dumps(body), names).encode()
    path = quote(_filled(step.path, names), safe="/?&=%,!")
    return raw(step.method, path, body, **step.headers)


def _filled(text: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def _normal(answer: Answer, names: dict[str, str]) -> Any:
    """What must agree: the code, and the body without what each server hands out by itself."""
    text = answer.body.decode(errors="replace")
    for name, value in names.items():
        text = text.replace(value, f"<{name}>")
    try:
        bodies = [json.loads(part) for part in ([text] if _whole(text) else text.splitlines())]
        parts = [_trimmed(body) for body in bodies if not _periodic(body)]
    except ValueError:
        parts = []  # not JSON: the code has to do
    masked = json.dumps(parts, sort_keys=True)
    for pattern, instead in _OWN:
        masked = pattern.sub(instead, masked)
    return [answer.code, *json.loads(masked)]


def _periodic(event: Any) -> bool:
    """A bookmark that comes when the server likes, and does not mark the end of the initial events."""
    if not isinstance(event, dict) or event.get("type") != "BOOKMARK":
        return False
    return "k8s.io/initial-events-end" not in event["object"]["metadata"].get("annotations", {})


def _whole(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _trimmed(value: Any) -> Any:
    """Without who wrote which field, and of refusals without their words: code, reason and fields must agree."""
    match value:
        case {"kind": "Status", "status": "Failure", **rest}:
            details = rest.get("details") or {}
            causes = sorted((c.get("field", ""), c.get("reason", "")) for c in details.get("causes", []))
            return {"reason": rest.get("reason", ""), "causes": [list(cause) for cause in causes]}
        case dict():
            return {k: _trimmed(v) for k, v in value.items() if k not in _LEFT_OUT and not _of_scheduler(k, v)}
        case list():
            return [_trimmed(part) for part in value]
    return value


def _managed(answer: Answer) -> Answer:
    """An answer that tells who manages what, in an order that does not depend on seconds, and but for controllers."""
    obj = answer.json
    if "metadata" in obj and obj["kind"] != "Status":
        entries = [e for e in obj["metadata"].pop("managedFields", ()) if e["manager"] not in _CONTROLLERS]
        obj["managers"] = sorted(entries, key=lambda e: (e["operation"], e["manager"], e.get("subresource", "")))
    if obj["kind"] == "Deployment":
        obj.pop("status", None)
    return replace(answer, body=json.dumps(obj).encode())


def _of_scheduler(key: str, value: Any) -> bool:
    """Why no node takes a Pod is a scheduler's word, which comes when it likes."""
    return key == "conditions" and isinstance(value, list) and {c.get("type") for c in value} == {"PodScheduled"}


def _short(answer: Any) -> str:
    text = json.dumps(answer)
    return text if len(text) <= 1500 else f"{text[:1500]}..."
