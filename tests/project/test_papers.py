"""What stands beside the code for people: versions agree, targets exist, hooks are the checks."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def makefile(repo: Path) -> str:
    return (repo / "Makefile").read_text()


def test_all_papers_tell_the_same_version(repo: Path) -> None:
    version = tomllib.loads((repo / "pyproject.toml").read_text())["project"]["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    (cited,) = re.findall(r"^version: (.+)$", (repo / "CITATION.cff").read_text(), re.M)
    listed = re.findall(r"^## (\S+?)(?:,? .*)?$", (repo / "CHANGELOG.md").read_text(), re.M)
    assert cited == version and listed[:2] == ["Unreleased", version]


def test_the_hooks_before_a_commit_are_those_of_make_check(repo: Path, makefile: str) -> None:
    (checks,) = re.findall(r"^check: (.+)$", makefile, re.M)
    hooks = (repo / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"entry: make (\S+?),", hooks) == checks.split()


def test_every_target_that_a_page_names_exists(repo: Path, makefile: str) -> None:
    targets = set(re.findall(r"^(?:\.PHONY:)? ?([\w -]+?)(?=:|$)", makefile, re.M))
    known = {name for each in targets for name in each.split()}
    for page in ("CONTRIBUTING.md", "SECURITY.md", ".github/pull_request_template.md"):
        named = set(re.findall(r"`make ([\w-]+)", (repo / page).read_text()))
        assert named and named <= known, (page, named - known)


def test_links_between_papers_lead_somewhere(repo: Path) -> None:
    for page in ("CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "CHANGELOG.md"):
        text = (repo / page).read_text()
        for target in re.findall(r"\]\((?!http)([^)#]+)", text):
            assert (repo / target).exists(), (page, target)
