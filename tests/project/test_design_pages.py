"""Pages that point to tests: each of these exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def tests(repo: Path) -> set[str]:
    files = [*(repo / "tests").rglob("test_*.py")]
    return {
        name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)
    }


def rows(page: str) -> list[list[str]]:
    """The cells of the first table's rows."""
    lines = [line for line in page.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_each_line_of_paddles_document_names_tests_that_there_are(
    repo: Path, tests: set[str]
) -> None:
    found = rows((repo / "design" / "0017-paddles-gru-document.md").read_text())
    assert len(found) > 10
    for line, ours, shown in found:
        named = re.findall(r"`(test_\w+)`", shown)
        assert line and ours and named, line
        assert not set(named) - tests, line


def test_every_fault_that_an_adapter_knows_is_on_the_audit_s_page(repo: Path) -> None:
    page = (repo / "design" / "0018-audit.md").read_text()
    for framework in ("paddle", "mxnet"):
        files = (repo / "adapters" / framework).rglob("*.py")
        source = "\n".join(file.read_text() for file in files if "faults" in str(file))
        ids = re.findall(r'_fault\(\s*\w+,\s*f?"([^"]+)"', source)
        assert ids
        for name in ids:
            for one in [name.format(name=n) for n in ("lengths", "clip")]:
                assert one in page or one.startswith("export_"), one


def test_each_promise_of_security_names_tests_that_there_are(repo: Path, tests: set[str]) -> None:
    found = rows((repo / "design" / "0024-what-may-be-trusted.md").read_text())
    assert [row[0][0] for row in found] == list("1234567")
    for promise, _, shown in found:
        named = set(re.findall(r"`(test_\w+)`", shown))
        assert named and not named - tests, promise


def test_an_unknown_test_would_be_seen(tests: set[str]) -> None:
    assert "test_an_unknown_test_would_be_seen" in tests
    assert "test_nobody_wrote_this_one" not in tests
