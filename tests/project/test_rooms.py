"""The rooms: what setuptools ships, what the links show to the checkers, what an import costs."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import onernn

FACE = {"load", "fuse", "convert", "verify"}  # functions: a module so named would hide one
HEAVY = ("cffi", "google.protobuf", "typer", "rich", "paddle", "torch", "onnx", "mxnet")

PROBE = """
import sys
before = set(sys.modules)
{statement}
print(*sorted(set(sys.modules) - before))
"""


@pytest.fixture(scope="module")
def setuptools_of(repo: Path) -> dict[str, Any]:
    project = tomllib.loads((repo / "pyproject.toml").read_text())
    found: dict[str, Any] = project["tool"]["setuptools"]
    return found


@pytest.fixture(scope="module")
def rooms(repo: Path, setuptools_of: dict[str, Any]) -> dict[str, Path]:
    """Import name -> folder, the face left out."""
    folders = dict(setuptools_of["package-dir"])
    assert folders.pop("onernn") == "src/onernn"
    assert folders.pop("") == "src"  # the pytest plugin stands beside the package
    return {name: repo / folder for name, folder in folders.items()}


def folders_with_code(name: str, room: Path) -> dict[str, Path]:
    """Package name -> folder, at every depth."""
    folders = {file.parent for file in room.rglob("*.py")}
    return {".".join([name, *f.relative_to(room).parts]): f for f in folders}


def modules(repo: Path, rooms: dict[str, Path]) -> list[Path]:
    """Every .py file that is shipped; the links are not followed."""
    inside = [file for room in rooms.values() for file in room.rglob("*.py")]
    return [*inside, *(repo / "src" / "onernn").glob("*.py"), *(repo / "src").glob("*.py")]


def imported_by(statement: str, cwd: Path) -> set[str]:
    """What ``statement`` adds to ``sys.modules`` of a new interpreter."""
    command = [sys.executable, "-c", PROBE.format(statement=statement)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_every_folder_with_code_is_shipped_and_nothing_else(
    setuptools_of: dict[str, Any], rooms: dict[str, Path]
) -> None:
    there: dict[str, Path] = {}
    for name, room in rooms.items():
        there |= folders_with_code(name, room)
    listed = setuptools_of["packages"]
    assert sorted(listed) == sorted(["onernn", *there])
    assert [name for name, folder in there.items() if not (folder / "__init__.py").is_file()] == []


def test_every_module_beside_the_package_is_shipped(
    repo: Path, setuptools_of: dict[str, Any]
) -> None:
    beside = {file.stem for file in (repo / "src").glob("*.py")}
    assert beside == set(setuptools_of["py-modules"])


def test_every_package_in_the_checkout_is_a_room(repo: Path, rooms: dict[str, Path]) -> None:
    packages = {file.parent for file in repo.glob("*/__init__.py")}
    assert packages == set(rooms.values())


def test_each_room_has_one_link(repo: Path, rooms: dict[str, Path]) -> None:
    links = {p.name: p for p in (repo / "src" / "onernn").iterdir() if p.is_symlink()}
    assert sorted(f"onernn.{name}" for name in links) == sorted(rooms)
    for name, link in links.items():
        assert str(link.readlink()) == f"../../{name}"  # relative: a clone stands elsewhere
        assert link.resolve() == rooms[f"onernn.{name}"]


def test_importing_onernn_imports_numpy_and_nothing_heavier(tmp_path: Path) -> None:
    added = imported_by("import onernn", tmp_path)
    assert "onernn" in added
    assert added.isdisjoint(HEAVY)
    packages = {name.split(".")[0] for name in added} - sys.stdlib_module_names
    assert packages <= {"onernn", "numpy"}


def test_verification_is_imported_when_it_is_asked_for(tmp_path: Path) -> None:
    assert not any(
        n.startswith("onernn.verification") for n in imported_by("import onernn", tmp_path)
    )
    names = "from onernn import *; AuditReport, Report, audit, convert, verify, load"
    assert "onernn.verification.verifying" in imported_by(names, tmp_path)
    with pytest.raises(AttributeError, match="module 'onernn' has no attribute 'verfy'"):
        onernn.verfy  # noqa: B018


@pytest.mark.parametrize("heavy", ["cffi", "google.protobuf", "typer", "rich"])
def test_the_probe_sees_heavy_imports(tmp_path: Path, heavy: str) -> None:
    assert heavy in imported_by(f"import {heavy}", tmp_path)


def test_no_module_is_named_like_a_function_of_the_face(repo: Path, rooms: dict[str, Path]) -> None:
    files = modules(repo, rooms)
    assert [file for file in files if {file.stem, file.parent.name} & FACE] == []


def relative_imports(source: str) -> list[int]:
    """The lines of them."""
    nodes = ast.walk(ast.parse(source))
    return [node.lineno for node in nodes if isinstance(node, ast.ImportFrom) and node.level]


def test_no_relative_imports(repo: Path, rooms: dict[str, Path]) -> None:
    files = [*modules(repo, rooms), *(repo / "tests").rglob("*.py")]
    found = {str(f): lines for f in files if (lines := relative_imports(f.read_text()))}
    assert found == {}


def test_relative_imports_are_seen() -> None:
    assert relative_imports("import os\nfrom . import x\nfrom ..y import z\nfrom a import b") == [
        2,
        3,
    ]
