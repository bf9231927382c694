"""Pages that point to tests: each of these exists, runs, and each row of a table has one."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from support import shown
from support.interpreters import run_python

PAGES = {
    "0017-paddles-gru-document.md",
    "0024-what-may-be-trusted.md",
    "0051-onednn-rnn-guide.md",
    "0052-oneapi-rnn-specification.md",
    "0053-sofies-operators.md",
    "0054-mxnets-rnn-operator.md",
    "guide-references.md",
}

OUTSIDE = {"shared", "shared_models", "peer_suites"}
"""Fixtures of what lies beside a checkout."""


def test_the_pages_of_references_are_read() -> None:
    for page in PAGES:
        assert len([row for row in shown.rows() if row.page == page]) > 5, page


@pytest.mark.parametrize("row", shown.rows(), ids=lambda row: f"{row.page[:4]} {row.cells[0][:40]}")
def test_each_row_names_tests_that_there_are_or_says_why_not(row: shown.Row) -> None:
    assert row.cells[0] and (all(row.cells) or row.gives_a_reason)
    assert row.tests or row.gives_a_reason
    assert not set(row.tests) - shown.tests().keys()
    # What stands beside a framework alone is not run by make test.
    assert not row.tests or not all(map(shown.beside_frameworks_only, row.tests))
    # A checkout alone has what they need.
    for name in row.tests:
        assert not any(test.arguments & OUTSIDE for test in shown.tests()[name]), name


def test_every_fault_that_an_adapter_knows_is_on_the_audit_s_page(repo: Path) -> None:
    page = (repo / "design" / "0018-audit.md").read_text()
    for framework in ("paddle", "mxnet"):
        files = (repo / "adapters" / framework).rglob("*.py")
        source = "\n".join(file.read_text() for file in files if "faults" in str(file))
        ids = re.findall(r'fault\(\s*(?:\w+,\s*)?f?"([^"]+)"', source)
        assert ids
        for name in ids:
            for one in [name.format(name=n) for n in ("lengths", "clip")]:
                assert one in page or one.startswith("export_"), one


def test_the_index_has_a_line_for_each_page(repo: Path) -> None:
    pages = sorted(page.name for page in (repo / "design").glob("*.md") if page.stem != "README")
    listed = re.findall(r"\]\(([\w-]+\.md)\)", (repo / "design" / "README.md").read_text())
    assert sorted(listed) == pages


def test_each_promise_of_security_has_a_row() -> None:
    promises = [row.cells[0][0] for row in shown.rows() if row.page.startswith("0024")]
    assert promises == list("1234567")


def test_an_unknown_test_would_be_seen() -> None:
    there = shown.tests()
    assert "test_an_unknown_test_would_be_seen" in there
    assert "test_nobody_wrote_this_one" not in there
    table = "| it | shown by |\n|---|---|\n| a \\| b | `test_x`, `test_y` |\n| d | {} |"
    first, second = shown.rows_of("page", table.format("refused, because no CPU has it"))
    assert first.tests == ["test_x", "test_y"] and not first.gives_a_reason
    assert second.gives_a_reason and not second.tests
    assert not [*shown.rows_of("page", table.format("refused"))][1].gives_a_reason


RUN = """
import pytest
def test_weight(): assert True
@pytest.mark.parametrize("x", [0, 1])
def test_sign(x): {sign}
"""


@pytest.mark.parametrize(
    "sign, options, code",
    [
        ("assert x < 2", ["--shown"], 0),
        ("assert x < 2", ["--shown", "-m", "shown"], 0),
        ("pytest.skip()", ["--shown"], 1),
        ("pytest.skip('this CPU has no bf16')", ["--shown"], 0),
        ("pytest.skip()", [], 0),
        ("assert x < 2", ["--shown", "-n", "2", "-k", "weight"], 1),
    ],
    ids=["all", "chosen", "skipped", "skipped for this CPU", "not asked for", "not run"],
)
def test_a_run_fails_that_has_not_shown_what_pages_say(
    tmp_path: Path, sign: str, options: list[str], code: int
) -> None:
    table = "| it | shown by |\n|---|---|\n| gates | `test_weight`, `test_sign` |\n"
    files = {
        "design/page.md": table,
        "tests/conftest.py": 'pytest_plugins = ["support.shown"]',
        "tests/support/shown.py": Path(shown.__file__).read_text(),
        "tests/test_it.py": RUN.format(sign=sign),
        "pytest.ini": "[pytest]\npythonpath = tests\ntestpaths = tests\n",
    }
    for file, text in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    command = ["-m", "pytest", "-p", "xdist", "-p", "no:cacheprovider", *options]
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = run_python(*command, cwd=tmp_path, env=alone, status=code)
    assert ("not seen" in done.stdout) == bool(code)
