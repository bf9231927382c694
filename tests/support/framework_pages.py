"""Tests of the manual's blocks that need a framework: they run, and print what their page shows."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support import manual


def checked_pages(framework: str) -> type:
    """A class of tests for the pages with blocks that run where ``framework`` is."""
    wanted = ("runs in", framework)
    pages = [
        page
        for page in sorted((manual.REPO / "docs").rglob("*.md"))
        if any((block.key, block.value) == wanted for block in manual.blocks(page.read_text()))
    ]

    class TestPages:
        def test_there_are_such_pages(self) -> None:
            assert pages

        @pytest.mark.parametrize("page", pages, ids=lambda page: page.stem)
        def test_what_a_page_shows_is_what_comes_out(self, page: Path) -> None:
            said = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            done = manual.started(page, f"--has={framework}", **said)
            assert done.returncode == 0, done.stdout[-6000:]

    return TestPages
