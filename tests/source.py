"""The product's own source, read once in a process: what tests of our conventions look at."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

import virtfleet

SOURCE = Path(virtfleet.__file__).parent


class Text(NamedTuple):
    line: int
    text: str


class Call(NamedTuple):
    line: int
    name: str  # dotted, as it is written
    keywords: tuple[str | None, ...]


@dataclass
class Module:
    """What a module says. Its tree is not kept: those of all modules are half a million nodes."""

    texts: list[Text] = field(default_factory=list)  # without those that are there for readers
    imported: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


@cache
def modules() -> dict[str, Module]:
    """By their paths below the package."""
    return {str(path.relative_to(SOURCE)): _read(path) for path in sorted(SOURCE.rglob("*.py"))}


def _read(path: Path) -> Module:
    module = Module()
    nodes = list(ast.walk(ast.parse(path.read_text())))
    explained = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        match node:
            case ast.Constant(value=str(text)) if id(node) not in explained:
                module.texts.append(Text(node.lineno, text))
            case ast.ImportFrom(module=str(origin)):
                module.imported += [f"{origin}.{alias.name}" for alias in node.names]
            case ast.Import():
                module.imported += [alias.name for alias in node.names]
            case ast.Call(func=ast.Attribute() | ast.Name()):
                keywords = tuple(keyword.arg for keyword in node.keywords)
                module.calls.append(Call(node.lineno, _dotted(node.func), keywords))
    return module


def _dotted(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=of, attr=name):
            return f"{_dotted(of)}.{name}"
    return "(...)"
