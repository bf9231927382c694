"""The release check can fail, and knows the oldest of what each Python takes."""

from __future__ import annotations

import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def check(repo: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """tools/release/check.py as a module."""
    spec = spec_from_file_location("release_check", repo / "tools" / "release" / "check.py")
    assert spec and spec.loader
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "release_check", module)  # its dataclass asks for it
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def wheel(repo: Path, tmp_path: Path) -> Path:
    """A wheel that holds only what it depends on."""
    project = tomllib.loads((repo / "pyproject.toml").read_text())["project"]
    lines = ["Name: onernn", *(f"Requires-Dist: {each}" for each in project["dependencies"])]
    lines.append('Requires-Dist: torch>=2.1; extra == "torch"')
    with zipfile.ZipFile(tmp_path / "onernn-0-py3-none-any.whl", "w") as archive:
        archive.writestr("onernn-0.dist-info/METADATA", "\n".join(lines) + "\n\n")
    return tmp_path / "onernn-0-py3-none-any.whl"


@pytest.mark.parametrize("python, numpy", [("3.11", "1.23.5"), ("3.12", "1.26"), ("3.13", "2.1")])
def test_every_dependency_has_an_oldest_version_on_each_python(
    check: Any, wheel: Path, python: str, numpy: str
) -> None:
    found = list(check.lowest(wheel, python))
    assert f"numpy=={numpy}" in found and "protobuf==4.25" in found
    assert not [each for each in found if each.startswith("torch")]
    assert len({each.partition("==")[0] for each in found}) == len(found)


def test_a_dependency_without_an_oldest_version_does_not_hold(check: Any, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as archive:
        archive.writestr("x.dist-info/METADATA", "Name: x\nRequires-Dist: rich\n\n")
    with pytest.raises(check.Failure, match="rich "):
        list(check.lowest(tmp_path / "x.whl", "3.11"))


def test_wheels_that_differ_are_told_by_the_file_that_differs(check: Any, tmp_path: Path) -> None:
    for name, content in (("a", b"1"), ("b", b"2")):
        with zipfile.ZipFile(tmp_path / f"{name}.whl", "w") as archive:
            archive.writestr(zipfile.ZipInfo("same"), b"0")
            archive.writestr(zipfile.ZipInfo("other"), content)
    assert check.differences(tmp_path / "a.whl", tmp_path / "b.whl") == ["  other"]


def test_what_does_not_hold_is_told_and_all_else_is_checked_still(
    check: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def wrong(_: object) -> Iterator[str]:
        """Nothing holds."""
        yield "so far"
        raise check.Failure("this one")

    def right(_: object) -> Iterator[str]:
        """All holds."""
        yield "fine"

    monkeypatch.setattr(sys, "argv", ["check.py", "--out", str(tmp_path)])
    monkeypatch.setattr(check, "CHECKS", (wrong, right))
    assert check.main() == 1
    told = capsys.readouterr().out
    assert "FAILED: this one" in told and "fine" in told and "does not hold: wrong" in told
    monkeypatch.setattr(check, "CHECKS", (right,))
    assert check.main() == 0


@pytest.mark.parametrize(
    "text, free",
    [
        ("Apache-2.0", True),
        ("BSD License", True),
        ("MIT", True),
        ("Python Software Foundation License", True),
        ("GNU General Public License v3 (GPLv3)", False),
        ("LIMITED", False),
        ("", False),
    ],
)
def test_licences_that_nobody_looked_at_are_seen(check: Any, text: str, free: bool) -> None:
    assert bool(check.FREE.search(text)) == free


def test_the_interpreter_that_runs_this_is_found(check: Any) -> None:
    assert check.interpreter("{}.{}".format(*sys.version_info[:2]))
    assert check.interpreter("2.0") is None
