"""What is true of an operator stands in its record: no table elsewhere lists operators."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from onernn.ops import OPERATORS

FEW = 3
"""Names that one condition may list."""
GATES = "src/onernn/ir/activations.py"
"""The functions of gates, which the operators of these names take from there."""
BY_FRAMEWORK = ("adapters", "engine", "fuse_passes")
"""Rooms that say which operator of a framework, or which C++, an operator is: dicts do so."""


def names_in(node: ast.AST) -> Iterator[str]:
    """The words that a table or a string cut into words holds itself, not in what is nested."""
    match node:
        case ast.Set(elts=held) | ast.Tuple(elts=held) | ast.List(elts=held):
            parts: list[ast.AST | None] = [*held]
        case ast.Dict(keys=keys, values=values):
            parts = [*keys, *values]
        case ast.MatchOr(patterns=patterns):
            parts = [each.value for each in patterns if isinstance(each, ast.MatchValue)]
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="split")):
            yield from text.split()
            return
        case _:
            return
    for part in parts:
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def tables(source: str, package: str) -> Iterator[tuple[int, set[str]]]:
    """Lines of the tables that list operators, and which."""
    for node in ast.walk(ast.parse(source)):
        found = OPERATORS.keys() & set(names_in(node))
        mapping = isinstance(node, ast.Dict) and package in BY_FRAMEWORK
        if len(found) > FEW and not mapping:
            yield node.lineno, found


def test_no_table_outside_of_operators_lists_operators(repo: Path) -> None:
    folders = [path.parent for path in repo.glob("*/__init__.py")] + [repo / "src" / "onernn"]
    found, packages = [], set()
    for path in (path for folder in folders for path in folder.rglob("*.py")):
        name = str(path.relative_to(repo))
        package = name.removeprefix("src/onernn/").split("/")[0]
        packages.add(package)
        if package == "ops" or name == GATES:
            continue
        for line, names in tables(path.read_text(), package):
            found.append(f"{name}:{line} {sorted(names)}")
    assert {"ir", "ops", "adapters", "engine"} < packages and len(OPERATORS) > 100
    assert not found, "\n".join(sorted(found))


@pytest.mark.parametrize(
    "source, package",
    [
        ("X = {'Add', 'Mul', 'Relu', 'Tanh'}", "adapters"),
        ("X = ['Add', 'Mul', 'Relu', 'Tanh', 'mine']", "core"),
        ("X = frozenset('Add Mul Relu Tanh'.split())", "emit"),
        ("op in ('Add', 'Mul', 'Relu', 'Tanh')", "verification"),
        ("X = {'Add': 1, 'Mul': 2, 'Relu': 3, 'Tanh': 4}", "runtime"),
        ("match op:\n case 'Add' | 'Mul' | 'Relu' | 'Tanh': pass", "fuse_passes"),
    ],
)
def test_tables_are_found(source: str, package: str) -> None:
    ((_, found),) = tables(source, package)
    assert found == {"Add", "Mul", "Relu", "Tanh"}


@pytest.mark.parametrize(
    "source, package",
    [
        ("X = {'Add', 'Mul', 'Relu', 'mine'}", "core"),
        ("X = {'add': 'Add', 'mul': 'Mul', 'relu': 'Relu', 'tanh': 'Tanh'}", "adapters"),
        ("X = {'Add': add, 'Mul': mul, 'Relu': relu}", "engine"),
        ("X = 'Add Mul Relu'", "core"),
    ],
)
def test_what_maps_operators_to_those_of_a_framework_is_none(source: str, package: str) -> None:
    assert not list(tables(source, package))
