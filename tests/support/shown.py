"""Tables in design pages whose last column, "shown by", names the tests that show each row.

Loaded by conftest.py as a plugin: tests that a page names have the mark ``shown``, and with
``--shown`` a run fails that ends without having seen each of them pass. A test that is skipped for
a reason that names "this CPU" is only listed: another machine shows it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

REPO = Path(__file__).resolve().parents[2]
WITHOUT_TEST = ("refused, because", "deliberately otherwise, because", "nothing to show:")
_CELLS = re.compile(r"(?<!\\)\|")
_TESTS = re.compile(r"`(test_\w+)`")
_LONG = "pytest.mark.long"


class Row(NamedTuple):
    page: str
    cells: list[str]

    @property
    def tests(self) -> list[str]:
        return _TESTS.findall(self.cells[-1])

    @property
    def gives_a_reason(self) -> bool:
        """Whether the last column says why no test is there."""
        start = next((text for text in WITHOUT_TEST if self.cells[-1].startswith(text)), None)
        return start is not None and len(self.cells[-1]) > len(start) + 10


def rows_of(page: str, text: str) -> Iterator[Row]:
    """Of each table whose last column is called "shown by"."""
    table = list[list[str]]()
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            cells = _CELLS.split(line.strip().removeprefix("|").removesuffix("|"))
            table.append([cell.strip() for cell in cells])
            continue
        if table and table[0][-1] == "shown by":
            yield from (Row(page, cells) for cells in table[2:])
        table = []


@cache
def rows() -> list[Row]:
    pages = sorted((REPO / "design").glob("*.md"))
    return [row for page in pages for row in rows_of(page.name, page.read_text())]


def names() -> set[str]:
    return {name for row in rows() for name in row.tests}


class Test(NamedTuple):
    file: Path
    arguments: set[str]
    """Its fixtures and parameters."""
    long: bool
    """Whether `make long` runs it, and `make test` does not."""


@cache
def tests() -> dict[str, list[Test]]:
    """The tests of each name; what checks nothing, or is always skipped, is none."""
    found = dict[str, list[Test]]()
    for file in sorted((REPO / "tests").rglob("test_*.py")):
        body = ast.parse(file.read_text()).body
        whole = any("pytestmark" in text and _LONG in text for text in map(ast.unparse, body))
        body += [node for each in body if isinstance(each, ast.ClassDef) for node in each.body]
        for node in body:
            if isinstance(node, ast.FunctionDef) and not _checks_nothing(node):
                arguments = {argument.arg for argument in node.args.args}
                long = whole or _LONG in map(ast.unparse, node.decorator_list)
                found.setdefault(node.name, []).append(Test(file, arguments, long))
    return found


def _checks_nothing(test: ast.FunctionDef) -> bool:
    marks = {ast.unparse(mark).partition("(")[0] for mark in test.decorator_list}
    checks = (ast.Assert, ast.With, ast.Call)
    inside = [node for statement in test.body for node in ast.walk(statement)]
    return bool(marks & {"pytest.mark.skip", "pytest.mark.xfail"}) or not any(
        isinstance(node, checks) for node in inside
    )


def beside_frameworks_only(name: str) -> bool:
    return all("frameworks" in test.file.parts for test in tests().get(name, ()))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shown",
        action="store_true",
        help="fail where a test that a design page names was not run, or was skipped",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "shown: a design page names this test")
    config.addinivalue_line("markers", "long: run by `make long`, not by `make test`")
    if config.getoption("--shown") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Seen(config.option.markexpr))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    named = names()
    for item in items:
        if item.name.partition("[")[0] in named:
            item.add_marker("shown")


class Seen:
    """What became of the tests of a run, and at its end what was not shown.

    Tests beside a framework run in environments of their own, so they are not asked for here; of
    others those that have the ``marks``.
    """

    def __init__(self, marks: str = "") -> None:
        kinds = {"long": {True}, "not long": {False}}.get(marks, {True, False})
        self.wanted = {
            name
            for name in names()
            if not beside_frameworks_only(name)
            and not kinds.isdisjoint(test.long for test in tests().get(name, ()))
        }
        self.passed = set[str]()
        self.elsewhere = set[str]()
        self.missing = list[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.rpartition("::")[2].partition("[")[0]
        if report.when == "call" and report.passed:
            self.passed.add(name)
        elif report.skipped and "this CPU" in report.longreprtext:
            self.elsewhere.add(name)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.elsewhere &= self.wanted - self.passed
        self.missing = sorted(self.wanted - self.passed - self.elsewhere)
        if self.missing and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for title, names in [
            ("named by design pages, but not for this CPU", sorted(self.elsewhere)),
            ("named by design pages, but not seen to pass", self.missing),
        ]:
            if names:
                terminalreporter.section(title)
                for name in names:
                    terminalreporter.line(name)
