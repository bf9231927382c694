"""The recipes of design/guide-recipes.md: each is followed in a copy, where its code runs.

A block stands behind a line that says where it goes: a new file, the end of a file, or above, below
or in place of a line, whose indentation it takes on.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import indent
from typing import NamedTuple

import pytest
from support.interpreters import run_program, run_python

from onernn.kernels import build

pytestmark = pytest.mark.long

BLOCK = re.compile(r"(?P<lead>[^\n]+:)\n```\w+\n(?P<text>.*?)```\n", re.S)
NEW = re.compile(r".*\bNew file `(?P<file>[^`]+)`:")
CHANGE = re.compile(
    r".*\bIn `(?P<file>[^`]+)`, (?P<place>at the end|above|below|in place of)( `(?P<line>.+)`)?:"
)
LAST = "That is all:"


class Step(NamedTuple):
    """A change of a file; ``place`` is "new", "at the end", or how it stands to ``line``."""

    file: str
    place: str
    line: str
    text: str


class Recipe(NamedTuple):
    steps: list[Step]
    use: str


def recipe(page: str, title: str) -> Recipe:
    """The steps of one recipe and the code that uses them."""
    (section,) = re.findall(rf"^### {title}\n(.*?)(?=^###? |\Z)", page, re.S | re.M)
    steps, uses = [], []
    for lead, text in BLOCK.findall(section):
        if lead == LAST:
            uses.append(text)
        elif found := NEW.fullmatch(lead):
            steps.append(Step(found["file"], "new", "", text))
        else:
            found = CHANGE.fullmatch(lead)
            assert found, f"{title}: where does this go? {lead}"
            steps.append(Step(found["file"], found["place"], found["line"] or "", text))
    assert steps and len(uses) == 1, title
    assert section.count("```") == 2 * (len(steps) + 1), f"{title}: a block without its place"
    return Recipe(steps, uses[0])


def follow(folder: Path, step: Step) -> None:
    file = folder / step.file
    if step.place == "new":
        assert not file.exists(), step.file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(step.text)
        return
    lines = file.read_text().splitlines(keepends=True)
    if step.place == "at the end":
        apart = "\n\n" if step.text.startswith(("def ", "class ", "@")) else ""
        lines.append(apart + step.text)
    else:
        (at,) = (k for k, line in enumerate(lines) if line.rstrip("\n") == step.line)
        margin = " " * (len(step.line) - len(step.line.lstrip()))
        start = at + (step.place == "below")
        stop = at + (step.place != "above")
        lines[start : max(start, stop)] = [indent(step.text, margin)]
    file.write_text("".join(lines))


@pytest.fixture
def copy(repo: Path, tmp_path: Path) -> Path:
    """The sources, without tests."""
    folder = tmp_path / "copy"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    packages = [file.parent.name for file in repo.glob("*/__init__.py")]
    for name in [*packages, "src"]:
        shutil.copytree(repo / name, folder / name, symlinks=True, ignore=ignored)
    shutil.copy(repo / "pyproject.toml", folder)
    return folder


def run(code: str, copy: Path, *more: Path) -> subprocess.CompletedProcess[str]:
    """The code in a new process, in which onernn is the copy."""
    work = copy.parent / "work"
    work.mkdir(exist_ok=True)
    paths = os.pathsep.join(map(str, (copy / "src", *more)))
    code = f"import onernn\nassert onernn.__file__.startswith({str(copy)!r})\n{code}"
    environment = os.environ | {"PYTHONPATH": paths}
    return run_python("-c", code, cwd=work, env=environment, status=None)


def followed(page: Path, title: str, copy: Path) -> None:
    """The recipe's code runs in the copy when all steps are done, and not before."""
    steps, use = recipe(page.read_text(), title)
    assert run(use, copy).returncode, f"{title}: it runs without the recipe"
    for step in steps:
        follow(copy, step)
    done = run(use, copy)
    assert done.returncode == 0, f"{title}: {done.stderr}"
    ruff = shutil.which("ruff", path=Path(sys.executable).parent)
    files = sorted({step.file for step in steps if step.file.endswith(".py")})
    if ruff:
        for command in (("check",), ("format", "--check")):
            run_program(ruff, *command, *files, cwd=copy)


@pytest.fixture
def page(repo: Path) -> Path:
    return repo / "design" / "guide-recipes.md"


EMITTED = """
from pathlib import Path
import numpy as np
from support.emitting import build
x = np.linspace(-3, 3, 6, dtype=np.float32).reshape(2, 3)
(emitted,) = build({"m": onernn.load("model.onnx")}, Path("built").resolve(), ("-O0",)).values()
status, outputs = emitted.run({"x": x}, {"y": x})
assert status == 0, outputs
assert np.allclose(outputs["y"], np.sinh(x).ravel(), rtol=1e-6), outputs
"""
FROM_MXNET = """
from pathlib import Path
import numpy as np
Path("m-symbol.json").write_text('''{"nodes": [
  {"op": "null", "name": "x", "inputs": []},
  {"op": "sinh", "name": "y", "inputs": [[0, 0, 0]]}
], "arg_nodes": [0], "heads": [[1, 0, 0]], "attrs": {"mxnet_version": ["int", 10901]}}''')
x = np.linspace(-3, 3, 6, dtype=np.float32).reshape(2, 3)
(y,) = onernn.Session("m-symbol.json").run({"x": x}).values()
assert np.allclose(y, np.sinh(x), rtol=1e-6), y
"""
IN_ONNX_RUNTIME = """
import numpy as np
import onnxruntime
x = np.linspace(-3, 3, 6, dtype=np.float32).reshape(2, 3)
session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
assert np.allclose(session.run(None, {"x": x})[0], np.sinh(x), rtol=1e-6)
"""


def test_an_operator_is_added_by_its_recipe(page: Path, copy: Path, repo: Path) -> None:
    followed(page, "An operator", copy)
    compiled = [EMITTED] if shutil.which(os.environ.get("CXX", "g++")) else []
    for code in (FROM_MXNET, IN_ONNX_RUNTIME, *compiled):
        done = run(code, copy, repo / "tests")
        assert done.returncode == 0, done.stderr


KERNEL = """
from pathlib import Path
import numpy as np
from support.emitting import build
from onernn.ir.graph import Graph, Node, Value
x = np.array([[1, 3, 2], [5, np.nan, 7]], np.float32)
node = Node("CumMax", ("x",), ("y",), {"axis": 1})
graph = Graph("m", (Value("x", "float32", ("N", 3)),), (Value("y"),), (node,), {})
(emitted,) = build({"m": graph}, Path("cum_max").resolve(), ("-O0",)).values()
status, outputs = emitted.run({"x": x}, {"y": x})
assert status == 0, outputs
want = np.maximum.accumulate(x, 1).ravel()
assert np.array_equal(outputs["y"], want, equal_nan=True), outputs
"""


def test_an_operator_with_a_kernel_is_added_by_its_recipe(
    page: Path, copy: Path, repo: Path
) -> None:
    """The source that lists the function is compiled, and compiles only if it says all counts."""
    followed(page, "An operator with a kernel", copy)
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if not compiler:
        return
    done = run(KERNEL, copy, repo / "tests")
    assert done.returncode == 0, done.stderr
    kernels = copy / "src" / "onernn" / "kernels"
    table = kernels / "library" / "axes.cpp"
    flags = (*build.COMPILE, *next(iter(build.isas().values())), "-O0", "-fsyntax-only")
    for text, status in ((table.read_text(), 0), (without_counts(table.read_text()), 1)):
        table.write_text(text)
        compiled = subprocess.run([compiler, *flags, table], cwd=kernels, capture_output=True)
        assert compiled.returncode == status, compiled.stderr.decode()
    assert b"say how many numbers each pointer has" in compiled.stderr


def without_counts(table: str) -> str:
    return table.replace("NUMBERS(cum_max, ALONG)", "NUMBERS(cum_max, Of<2, 3, 4>)")


PLAIN = ("A pass", "A framework", "A rule", "A fault", "A cell", "A backend", "A data type")


@pytest.mark.parametrize("title", PLAIN)
def test_others_are_added_by_their_recipes(page: Path, copy: Path, title: str) -> None:
    followed(page, title, copy)


def test_every_recipe_has_a_test(page: Path) -> None:
    titles = re.findall(r"^### (.+)$", page.read_text(), re.M)
    tested = re.findall(r'\(page, "(.+?)", copy\)', Path(__file__).read_text())
    assert titles and set(titles) == {*tested, *PLAIN}


def test_every_file_that_the_pages_name_is_there(page: Path, repo: Path) -> None:
    text = page.read_text()
    made = {
        step.file
        for title in re.findall(r"^### (.+)$", text, re.M)
        for step in recipe(text, title).steps
        if step.place == "new"
    }
    both = text + (repo / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`((?:\w+/)+[\w.]+)`", both)) - made
    toys = {name for name in named if "toy" in name or "double_negation" in name}
    stored = [name for name in sorted(named - toys) if not name.startswith("out/")]
    assert [name for name in stored if not (repo / name).exists()] == []
