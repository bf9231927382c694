"""Blocks of the manual that need torch: they run, and print what their page shows."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support import manual

FRAMEWORK = "torch"
pytest.importorskip(FRAMEWORK)

PAGES = [
    page
    for page in sorted((manual.REPO / "docs").rglob("*.md"))
    if any(
        (block.key, block.value) == ("runs in", FRAMEWORK)
        for block in manual.blocks(page.read_text())
    )
]


def test_there_are_such_pages() -> None:
    assert PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_shows_is_what_comes_out(page: Path) -> None:
    said = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = manual.started(page, f"--has={FRAMEWORK}", **said)
    assert done.returncode == 0, done.stdout[-6000:]
