"""The help of all commands: 80 columns, no types of the library that parses them, said once."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer
from support.command_line import onernn

from onernn.adapters.registry import ADAPTERS, RUNTIMES
from onernn.cli import app
from onernn.commands import COMMON

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
OPTIONS = {name: [o for o in each.params if o.opts[0][0] == "-"] for name, each in COMMANDS.items()}

INTERNAL = re.compile(r"<[a-z]|\{|list\[|range>|[<>]=|\(dynamic\)|Ellipsis|None")
"""Types, ranges and marks of typer and click, and values of Python."""


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")


def help_of(*command: str) -> str:
    done = onernn(*command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)], ids=" ".join)
def test_a_help_fits_80_columns_and_shows_no_internal_types(command: tuple[str, ...]) -> None:
    lines = help_of(*command).splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert [line for line in lines if INTERNAL.search(line)] == []
    cut = [line for line in lines if line.endswith("...") and not line.startswith("Usage: ")]
    assert cut == []


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_has_every_option_and_its_summary_is_whole_in_the_list(name: str) -> None:
    text = help_of(name)
    for option in OPTIONS[name]:
        assert all(re.search(rf"^  .*{flag}\b", text, re.M) for flag in option.opts), option.opts
    summary = words(COMMANDS[name].help.partition("\n\n")[0])
    assert summary.endswith(".") and len(summary) < 72
    assert f"{name} {summary}" in words(help_of())
    assert summary in words(text)


def test_a_value_has_a_name_that_says_what_it_is() -> None:
    """Without metavar=, the name of an option's value would repeat the option."""
    for name, options in OPTIONS.items():
        assert [each.opts for each in options if not each.is_flag and not each.metavar] == [], name


def test_what_many_commands_share_is_explained_once() -> None:
    whole = words(help_of())
    common = {
        o.opts[0]: o for each in OPTIONS.values() for o in each if o.rich_help_panel == COMMON
    }
    assert {"--semantics", "--dtype", "--backend", "--params", "--rules"} <= common.keys()
    texts = [each.files for each in ADAPTERS]
    texts += [words(option.help).partition(". ")[2] for option in common.values()]
    for name in COMMANDS:
        text = words(help_of(name))
        assert [each for each in texts if each and each in text] == [], name
    assert [each for each in texts if whole.count(each) == 0] == []
    lines = [line.strip() for name in COMMANDS for line in help_of(name).splitlines()]
    repeated = {line for line in lines if len(line) > 40 and lines.count(line) > 5}
    assert len(repeated) <= len(common) + 3, repeated  # a line each; MODEL, --help and the title


@pytest.mark.parametrize(
    "name", [n for n, every in OPTIONS.items() for o in every if "--output" in o.opts]
)
def test_o_is_output(name: str) -> None:
    (output,) = (each for each in OPTIONS[name] if "--output" in each.opts)
    assert "-o" in output.opts


@pytest.mark.parametrize("name", ["verify", "inspect"])
def test_a_page_is_a_report_or_html(name: str) -> None:
    assert any({"--report", "--html"} <= set(each.opts) for each in OPTIONS[name])


@pytest.mark.parametrize("name", ["verify", "repair"])
def test_against_names_all_frameworks(name: str) -> None:
    assert f"({', '.join(RUNTIMES)})" in words(help_of(name))
