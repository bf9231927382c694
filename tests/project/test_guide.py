"""The pages for those who know oneDNN's guide say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from onernn.backend.onednn.arguments import ARGUMENTS


def test_its_table_of_arguments_is_that_of_the_code(repo: Path) -> None:
    page = (repo / "design" / "0051-onednn-rnn-guide.md").read_text()
    table = page.split("## Execution Arguments")[1].split("##")[0]
    rows = re.findall(r"^\| ([A-Z_]+) \| `(.*?)` \| (?:none|`(.*?)`) \| `test", table, re.MULTILINE)
    assert rows == [(name, place.value, place.gradient) for name, place in ARGUMENTS.items()]


def test_the_files_and_tests_that_it_names_are_there(repo: Path) -> None:
    for name in ("0051-onednn-rnn-guide", "0052-oneapi-rnn-specification", "guide-references"):
        page = (repo / "design" / f"{name}.md").read_text()
        paths = re.findall(r"`([\w/]+/\w+\.(?:py|toml))`|\]\((\S+\.md)\)", page)
        found = [repo / path if path else repo / "design" / link for path, link in paths]
        assert found and [file for file in found if not file.is_file()] == []
