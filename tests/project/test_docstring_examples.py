"""Public names: each has a section in the reference, and an example that prints what it shows."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support import docstrings
from support.docstrings import NAMES, docstring, framework_of
from support.public_api import LISTED, NAMED, READ

import onernn
import onernn.backend

PUBLIC = {f"{m}.{n}" for m in LISTED for n in importlib.import_module(m).__all__}
PUBLIC |= {f"{m}.{n}" for m, names in NAMED.items() for n in names if m != "onernn.recording"}
PUBLIC |= {f"{m}.{n}" for m, (_, names) in READ.items() for n in names}

WITHOUT = {
    "onernn.AuditReport": "the example of audit shows it",
    "onernn.FuseResult": "the example of fuse shows it",
    "onernn.Repair": "the example of repair shows it",
    "onernn.Report": "the example of verify shows it",
    "onernn.Shared": "the example of share shows it",
    "onernn.backend.Gradients": "the example of Stack.backward shows it",
    "onernn.backend.Tape": "the example of Stack.backward shows it",
    "onernn.scoring.Summary": "the example of score shows it",
    "onernn.verification.quantizing.Quantized": "the example of quantize shows it",
    "onernn.verification.suite.Case": "the kit makes cases and passes them to Conformance",
    "onernn.backend.Layout": "a type, which has no docstring",
    "onernn.backend.State": "a type, which has no docstring",
    "onernn.LibraryError": "it needs a machine without a library",
    "onernn.MissingDependencyError": "it needs a machine without a package",
    "onernn.UnforeseenError": "it reports mistakes of onernn",
}
"""Names without an example, and why."""


def test_the_reference_has_every_public_name_in_one_section() -> None:
    assert sorted({*NAMES}) == sorted(NAMES), "a name is in two sections"
    assert PUBLIC - {*NAMES} == set(), "add the name to a section of docs/generated_pages.py"


@pytest.mark.parametrize("path", NAMES)
def test_an_example_prints_what_its_docstring_shows(
    path: str, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = ">>> " in docstring(path)
    assert shown != (path in WITHOUT), f"{path}: write an example, or say in WITHOUT why not"
    if not shown:
        return
    if (framework := framework_of(path)) and find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed: see tests/frameworks")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(onernn.backend, "_REGISTERED", {})
    count, problems = docstrings.run(path)
    assert count and not problems, problems


def test_a_wrong_example_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = onernn.RnnSpec.__doc__
    assert right is not None and "(4, 2, 512)" in right
    monkeypatch.setattr(onernn.RnnSpec, "__doc__", right.replace("(4, 2, 512)", "(3, 2, 512)"))
    count, problems = docstrings.run("onernn.RnnSpec")
    assert count and "(4, 2, 512)" in problems


def test_examples_that_need_a_framework_run_where_it_is(repo: Path) -> None:
    for framework in {*map(framework_of, NAMES)} - {""}:
        files = (repo / "tests" / "frameworks").glob(f"test_{framework}_*.py")
        asked = f'_examples("{framework}")'
        assert any(asked in file.read_text() for file in files), framework


def _members(found: type) -> dict[str, Any]:
    """The public attributes that onernn's classes define, without values of enumerations."""
    ours = [each for each in found.__mro__ if each.__module__.startswith("onernn")]
    every = {name: value for each in reversed(ours) for name, value in vars(each).items()}
    kinds = (property, staticmethod, classmethod)
    return {
        name: value
        for name, value in every.items()
        if name[0] != "_"
        and not isinstance(value, enum.Enum)
        and (inspect.isfunction(value) or isinstance(value, kinds))
    }


@pytest.mark.parametrize("path", [name for name in NAMES if not framework_of(name)])
def test_what_help_shows_is_complete(path: str) -> None:
    module, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(module), name)
    if not callable(found) or path.endswith((".State", ".Layout")):
        return
    assert inspect.getdoc(found), path
    shown = str(inspect.signature(found)) if path not in _NO_SIGNATURE else ""
    assert "_MISSING_TYPE" not in shown and not re.search(r"\*\*options: '?Any", shown), shown
    if isinstance(found, type):
        bare = [n for n, value in _members(found).items() if not inspect.getdoc(value)]
        assert bare == [], f"{path}: no docstring"
        field = getattr(found, "_fields", ("",))[0]
        assert "Alias for field" not in (inspect.getdoc(getattr(found, field, None)) or ""), path


_NO_SIGNATURE = ("onernn.Cell", "onernn.adapters.onnx.InferenceSession")
