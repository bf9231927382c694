"""The pages for those who know oneDNN's guide say what the code says."""

from __future__ import annotations

import re
from pathlib import Path


def test_the_files_and_tests_that_it_names_are_there(repo: Path) -> None:
    for name in ("0051-onednn-rnn-guide", "0052-oneapi-rnn-specification", "guide-references"):
        page = (repo / "design" / f"{name}.md").read_text()
        paths = re.findall(r"`([\w/]+/\w+\.(?:py|toml))`|\]\((\S+\.md)\)", page)
        found = [repo / path if path else repo / "design" / link for path, link in paths]
        assert found and [file for file in found if not file.is_file()] == []
