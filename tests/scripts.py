"""The programs in scripts/, as modules."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType


def load(name: str) -> ModuleType:
    path = Path(__file__).resolve().parents[1] / "scripts" / name
    module = f"scripts_{name.partition('.')[0]}"
    spec = importlib.util.spec_from_loader(module, SourceFileLoader(module, str(path)))
    assert spec and spec.loader
    sys.modules[module] = made = importlib.util.module_from_spec(spec)  # dataclasses look there
    spec.loader.exec_module(made)
    return made
