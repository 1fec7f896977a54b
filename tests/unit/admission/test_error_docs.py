"""docs/errors.md shows what admission really says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from .machines import BASE, verdict
from .test_kubevirt_object import KUBEVIRT
from .test_templates import VM

PAGE = Path(__file__).parents[3] / "docs" / "errors.md"
SECTION = re.compile(r"^## (.+?)\n.*?```yaml\n(.+?)```\n\n```\n(.+?)```", re.S | re.M)
SOUND = {obj["kind"]: obj for obj in (BASE, VM, KUBEVIRT)}


def laid_over(below: Any, above: Any) -> Any:
    """Objects are joined, anything else is replaced, null removes."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    joined = {key: laid_over(below.get(key), value) for key, value in above.items()}
    return {key: value for key, value in {**below, **joined}.items() if value is not None}


def merged(fragment: dict[str, Any]) -> dict[str, Any]:
    obj: dict[str, Any] = laid_over(SOUND[fragment.get("kind", "VirtualMachineInstance")], fragment)
    return obj


def answer(obj: dict[str, Any]) -> list[str]:
    return [f"{cause.field or '(object)'}: {cause.message}" for cause in verdict(obj).causes]


@pytest.mark.parametrize(("title", "fragment", "shown"), SECTION.findall(PAGE.read_text()), ids=lambda text: text[:40])
def test_the_page_shows_the_answer(title: str, fragment: str, shown: str) -> None:
    assert answer(merged(yaml.safe_load(fragment))) == shown.splitlines(), title


def test_the_page_has_the_twenty_commonest_mistakes() -> None:
    assert len(SECTION.findall(PAGE.read_text())) >= 20
