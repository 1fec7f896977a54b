"""What a check came to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

FINE, WARNING, PROBLEM = "fine", "warning", "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `advice` is what to do where it is not fine."""

    level: str
    about: str
    text: str
    advice: str = ""


fine, warning, problem = (partial(Finding, level) for level in (FINE, WARNING, PROBLEM))
