"""Packages: what setuptools ships, what the links show to checkers, what an import costs."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.interpreters import run_python

import onernn
from onernn.adapters.converting import write_model
from onernn.ir.graph import Value
from onernn.ir.rnn import Recurrent

FUNCTIONS = {"load", "fuse", "convert", "verify"}  # functions: a module so named would hide one
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
    settings: dict[str, Any] = project["tool"]["setuptools"]
    return settings


@pytest.fixture(scope="module")
def packages(repo: Path, setuptools_of: dict[str, Any]) -> dict[str, Path]:
    """Returns the folders of the packages that are not in src, by import name."""
    folders = dict(setuptools_of["package-dir"])
    assert folders.pop("") == "src"
    return {name: repo / folder for name, folder in folders.items()}


def modules(repo: Path, packages: dict[str, Path]) -> list[Path]:
    """Returns every .py file that is shipped. It follows no link."""
    return [file for each in [*packages.values(), repo / "src"] for file in each.rglob("*.py")]


def imported_by(statement: str, cwd: Path) -> set[str]:
    """Returns what ``statement`` adds to ``sys.modules`` of a new interpreter."""
    return set(run_python("-c", PROBE.format(statement=statement), cwd=cwd).stdout.split())


def test_every_folder_with_code_is_a_package(repo: Path, packages: dict[str, Path]) -> None:
    folders = {file.parent for file in modules(repo, packages)} - {repo / "src"}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_every_module_outside_of_packages_is_shipped(
    repo: Path, setuptools_of: dict[str, Any]
) -> None:
    beside = {file.stem for file in (repo / "src").glob("*.py")}
    assert beside == set(setuptools_of["py-modules"])


def test_every_package_in_the_checkout_is_shipped(repo: Path, packages: dict[str, Path]) -> None:
    folders = {file.parent for file in repo.glob("*/__init__.py")}
    assert folders == set(packages.values())


def test_each_package_at_the_top_has_one_link(repo: Path, packages: dict[str, Path]) -> None:
    links = {p.name: p for p in (repo / "src" / "onernn").iterdir() if p.is_symlink()}
    assert sorted(f"onernn.{name}" for name in links) == sorted(packages)
    for name, link in links.items():
        assert str(link.readlink()) == f"../../{name}"  # relative, so a clone can be anywhere
        assert link.resolve() == packages[f"onernn.{name}"]


def test_importing_onernn_imports_numpy_and_nothing_heavier(tmp_path: Path) -> None:
    added = imported_by("import onernn", tmp_path)
    assert "onernn" in added
    assert added.isdisjoint(HEAVY)
    others = {name.split(".")[0] for name in added} - sys.stdlib_module_names
    assert others <= {"onernn", "numpy"}


SLOW = (
    *("asyncio", "argparse", "concurrent", "email", "importlib.metadata", "json", "logging"),
    *("subprocess", "tempfile", "zipfile", "google.protobuf.descriptor_pool"),
    *("onernn.adapters.mxnet.read", "onernn.adapters.weight_conversion", "onernn.reorders.torch"),
    *("onernn.adapters.mxnet.attributes", "onernn.reorders.mxnet"),
    *("onernn.backend.onednn.library", "onernn.backend.reference", "onernn.engine.emit"),
    *("onernn.backend.compiled.training", "onernn.verification", "onernn.fuse_passes.over_time"),
)
"""What running a model on kernels does not need: together they take as long as all that it does."""


def test_running_a_model_imports_no_more_than_it_needs(tmp_path: Path, built: Path) -> None:
    spec = onernn.RnnSpec(onernn.Cell.LSTM, 3, 4)
    shapes = ((1, 1, 3, 4, 4), (1, 1, 4, 4, 4), (1, 1, 4, 4))
    weights = onernn.RnnWeights(*(np.full(shape, 0.1, np.float32) for shape in shapes))
    x, y = (Value(name, "float32", (None, 1, size)) for name, size in (("x", 3), ("y", 4)))
    node = Recurrent(spec, weights, x="x", y="y").node()
    write_model(onernn.Graph("m", (x,), (y,), (node,), {}), tmp_path / "m.onnx")
    run = "onernn.Session('m.onnx', backend='kernels').run({'x': numpy.ones((5, 1, 3), 'float32')})"
    added = imported_by(f"import numpy, onernn; {run}", tmp_path)
    assert "onernn.engine.plan" in added and "onernn.adapters.onnx.lower" in added
    assert {name for name in added if name.startswith(SLOW)} == set()


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


def test_no_module_has_the_name_of_a_public_function(repo: Path, packages: dict[str, Path]) -> None:
    files = modules(repo, packages)
    assert [file for file in files if {file.stem, file.parent.name} & FUNCTIONS] == []
