"""The reference pages that are written by hand, compared with the code."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.manual import REPO, blocks

from onernn import Graph, Node, Value, convert

REFERENCE = REPO / "docs" / "reference"
SOURCES = ("adapters", "fuse_passes", "reorders", "src")


def rows_of(page: str) -> list[list[str]]:
    """Returns the cells of all rows of a page's tables, with their heads."""
    lines = re.findall(r"^\| ?(.*?) ?\|$", page, re.MULTILINE)
    rows = [[cell.strip() for cell in line.split(" | ")] for line in lines]
    return [row for row in rows if not set(row[0]) <= set("-:|")]


def code(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


# Environment variables.


class Reads:
    """The names that Python sources read from the environment.

    A name is a text, a constant of any of the sources, or the variable of a loop over texts.
    """

    def __init__(self, sources: Iterable[str]) -> None:
        self.names: set[str] = set()
        trees = [ast.parse(source) for source in sources]
        self._constants = {
            target.id: node.value
            for tree in trees
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for tree in trees:
            self._loops = {
                node.target.id: node.iter
                for node in ast.walk(tree)
                if isinstance(node, ast.For | ast.comprehension)
                if isinstance(node.target, ast.Name)
            }
            for node in ast.walk(tree):
                for asked in names_asked(node):
                    self.names.update(self._texts(asked))

    def _texts(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Constant):
            yield node.value
        elif isinstance(node, ast.Name):
            origin = self._loops.get(node.id) or self._constants.get(node.id)
            assert origin is not None, f"what is {node.id}?"
            yield from self._texts(origin)
        elif isinstance(node, ast.Starred):
            yield from self._texts(node.value)
        else:
            assert isinstance(node, ast.Tuple), ast.unparse(node)
            for each in node.elts:
                yield from self._texts(each)


def names_asked(node: ast.AST) -> list[ast.expr]:
    """Returns the expressions by which a node reads the environment."""
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        if called.endswith(("environ.get", "getenv")):
            return node.args[:1]
        if called == "map" and ast.unparse(node.args[0]).endswith("environ.get"):
            return node.args[1:]
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        return [node.slice] if ast.unparse(node.value).endswith("environ") else []
    elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]).endswith("environ"):
        return [node.left]
    return []


def test_the_page_lists_every_environment_variable_that_is_read() -> None:
    files = [file for source in SOURCES for file in (REPO / source).rglob("*.py")]
    names = Reads(file.read_text() for file in [*files, REPO / "setup.py"]).names
    for file in (REPO / "src").rglob("*.[ch]pp"):
        names.update(re.findall(r'getenv\("(\w+)"\)', file.read_text()))
    page = (REFERENCE / "environment.md").read_text()
    listed = [name for row in rows_of(page) for name in code(row[0])]
    assert len(listed) == len(set(listed)) and set(listed) == names


def test_each_way_to_read_a_variable_is_found() -> None:
    source = """
import os
ONE = "A"
SOME = (ONE, "B")
a = os.environ.get("C", "")
b = os.environ["D"] if "E" in os.environ else os.getenv("F")
c = any(map(os.environ.get, SOME))
d = [os.environ.get(name) for name in ("G", *SOME)]
os.environ["H"] = "written, and not read"
"""
    assert Reads([source]).names == set("ABCDEFG")


# Exit codes and --json.


def command_functions() -> dict[str, ast.FunctionDef]:
    """Returns the functions of all commands, by the commands' names."""
    from typer.main import get_command

    from onernn.cli import app

    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    functions = {
        node.name: node
        for file in (REPO / "src" / "onernn").glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    return {name: functions[command.callback.__name__] for name, command in commands.items()}


def test_the_page_lists_every_command_that_may_end_with_1() -> None:
    """A command does so by an `Exit` of its own; a program of paddle-run may do so, too."""
    page = (REFERENCE / "exit_codes.md").read_text()
    part = page[page.index("The commands that can return 1") : page.index("## JSON")]
    listed = [code(row[0])[0] for row in rows_of(part)[1:]]
    functions = command_functions()
    able = [name for name in functions if "typer.Exit(" in ast.unparse(functions[name])]
    assert sorted(listed) == sorted([*able, "paddle-run"])


TAGGER = "tests/data/onnx/torch_tagger"
JSON = {
    "onernn --version": "--version",
    "onernn": "",
    "audit": f"audit {TAGGER}/model.onnx",
    "compile": f"compile {TAGGER}/model.onnx -o OUT/model.onernn",
    "convert": f"convert {TAGGER}/model.onnx OUT/model.onnx --check {TAGGER}/io.npz",
    "doctor": "doctor",
    "emit": f"emit {TAGGER}/model.onnx -o OUT/emitted --static T=4,N=2",
    "inspect": f"inspect {TAGGER}/model.onnx",
    "join": "join OUT/first.onnx OUT/second.onnx -o OUT/joined.onnx",
    "plug": f"plug {TAGGER}/model.onnx -o OUT/plugged.onnx",
    "quantize": f"quantize {TAGGER}/model.onnx OUT/quantized.onnx --data {TAGGER}/io.npz",
    "repair": f"repair {TAGGER}/model.onnx --against {TAGGER}/model.onnx -o OUT/repaired.onnx",
    "run": f"run {TAGGER}/model.onnx --input {TAGGER}/io.npz --output OUT/out.npz",
    "samples": "samples OUT/samples",
    "score": "score examples/segmenter OUT/rows.jsonl OUT/scored",
    "verify": f"verify {TAGGER}/model.onnx --data {TAGGER}/io.npz",
    "weights": f"weights {TAGGER}/model.onnx --to torch --output OUT/weights.npz",
}
"""A call of each command, by its name on the page."""
COMMON = {"status", "outputs", "cause"}


def listed_keys() -> dict[str, list[str]]:
    page = (REFERENCE / "exit_codes.md").read_text()
    rows = rows_of(page[page.index("| command | keys |") :])[1:]
    return {code(row[0])[0]: code(row[1]) for row in rows}


def test_every_command_has_a_row_of_keys() -> None:
    commands = {*command_functions(), "onernn --version", "onernn"} - {"paddle-run"}
    assert set(listed_keys()) == set(JSON) == commands


@pytest.mark.parametrize("command", JSON)
def test_the_page_lists_the_keys_of_json(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from onernn import cli

    (tmp_path / "rows.jsonl").write_text('{"letters": [1, 2, 3]}\n')
    for name, (of, made) in {"first": ("x", "y"), "second": ("y", "z")}.items():
        node, inputs = Node("Add", (of, of), (made,)), (Value(of, "float32", (3,)),)
        convert(Graph(name, inputs, (Value(made),), (node,), {}), tmp_path / f"{name}.onnx")
    monkeypatch.chdir(REPO)
    words = JSON[command].replace("OUT", str(tmp_path)).split()
    monkeypatch.setattr("sys.argv", ["onernn", *words, "--json"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    printed = capsys.readouterr()
    assert not stop.value.code, printed
    keys = json.loads(printed.out)
    assert keys.keys() >= COMMON
    assert [key for key in keys if key not in COMMON] == listed_keys()[command]


# Messages.


def texts(source: str) -> Iterator[str]:
    """Yields the texts of a Python source, with ... in place of values."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts = [
                each.value if isinstance(each, ast.Constant) else "..." for each in node.values
            ]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_messages_of_the_page_of_troubles_are_those_of_the_code() -> None:
    """Who searches for a message finds its row: the sources, or outputs on the page, have it."""
    page = (REPO / "docs" / "troubleshooting.md").read_text()
    files = [file for source in SOURCES for file in (REPO / source).rglob("*.py")]
    there = [text for file in files for text in texts(file.read_text())]
    there += [block.text for block in blocks(page) if block.prints]
    tables = page[: page.index("## Results")]
    messages = {code(row[0])[0] for row in rows_of(tables) if row[0] != "message"}
    foreign = {"onernn:Layer(-1) is not a registered function/op"}  # ONNX Runtime's
    assert len(messages) > 20 and foreign < messages
    for message in messages - foreign:
        for part in message.split("..."):
            assert any(part in text for text in there), message


# Versions.


def test_the_page_has_the_versions_of_the_package() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    page = (REFERENCE / "versions.md").read_text()
    pythons = re.findall(r"^\| (3\.\d+) \|", page, re.MULTILINE)
    supported = [f"Programming Language :: Python :: {each}" for each in pythons]
    assert supported == [each for each in project["classifiers"] if ":: Python :: 3." in each]
    for requirement in project["dependencies"]:
        if found := re.match(r"numpy>=(\S+); python_version (\S+) '3\.(\d+)'", requirement):
            python = int(found[3]) - (found[2] == "<")
            assert f"| 3.{python} | {found[1]} and newer |" in page, requirement


def test_the_front_page_and_the_page_of_versions_agree() -> None:
    rows = rows_of((REFERENCE / "versions.md").read_text())
    front = rows_of((REPO / "README.md").read_text())
    start = next(k for k, row in enumerate(front) if row[-1] == "tested with")
    shown = front[start + 1 : start + 6]
    assert len(shown) == 5 and all(row in rows for row in shown)


def test_versions_of_frameworks_that_make_installs_are_on_the_page() -> None:
    page = (REFERENCE / "versions.md").read_text()
    calls = r"call framework,(?:paddle|mxnet|torch|keras|openvino)-([\d.]+),"
    versions = re.findall(calls, (REPO / "Makefile").read_text())
    assert len(versions) > 5
    assert not [each for each in versions if not re.search(rf"\b{re.escape(each)}\b", page)]


# What claims to be generated.


def test_what_the_reference_says_of_its_pages_is_true() -> None:
    """A page that is generated from the code is in docs/generated; a page that a test is said to
    compare is named by a test.
    """
    tests = "\n".join(file.read_text() for file in (REPO / "tests").rglob("test_*.py"))
    linked: list[str] = []
    for row in rows_of((REFERENCE / "index.md").read_text())[1:]:
        pages = re.findall(r"\]\(([^)]+)\)", row[0])
        linked += pages
        for page in pages:
            assert page.startswith("../generated/") == (row[2] == "generated from the code"), row
            assert "a test compares" not in row[2] or f'"{page}"' in tests, row
    there = {page.name for page in REFERENCE.glob("*.md")} - {"index.md"}
    assert there == {page for page in linked if "/" not in page}


def test_no_other_page_claims_to_be_generated_from_the_code() -> None:
    for page in (REPO / "docs").rglob("*.md"):
        if page.parent != REFERENCE and "generated" not in page.relative_to(REPO).parts:
            text = " ".join(page.read_text().split())
            assert not re.search(r"(?:page|table) is (?:made|generated) from", text), page
