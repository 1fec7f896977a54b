"""What a check came to."""

from __future__ import annotations

from dataclasses import dataclass

FINE, WARNING, PROBLEM = "fine", "warning", "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `advice` is what to do where it is not fine."""

    about: str
    level: str
    text: str
    advice: str = ""


def fine(about: str, text: str) -> Finding:
    return Finding(about, FINE, text)


def warning(about: str, text: str, advice: str = "") -> Finding:
    return Finding(about, WARNING, text, advice)


def problem(about: str, text: str, advice: str = "") -> Finding:
    return Finding(about, PROBLEM, text, advice)
