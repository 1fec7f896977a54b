"""Reference material that tests compare with: KubeVirt's verdicts and documents, and the fields of its API.

`golden/` holds a directory per case: `input.yaml` (what a user writes), `kubevirt.yaml` (the KubeVirt object in force),
`verdict.json`, and, where KubeVirt accepts the input, `vmi.yaml` (after its defaults) and `domain.xml`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
GOLDEN = HERE / "golden"
FIELDS = HERE / "golden_fields.json"
_BESIDE = HERE.parents[1] / "shared"


def beside(path: str) -> Path:
    """A path of the material that lies beside the repository, or a skipped test."""
    material = _BESIDE / path
    if not material.exists():
        pytest.skip(f"needs ../shared/{path}")
    return material
