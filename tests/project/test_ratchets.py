"""The counts of `make check`: tokens of code, and wordings that a reader has to read twice."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def ratchets(repo: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(repo / "tools")
    return importlib.import_module("ratchets")


@pytest.fixture
def words(ratchets: Any) -> Any:
    return importlib.import_module("words")


def test_comments_docstrings_and_layout_are_not_counted(ratchets: Any) -> None:
    code = "def f(x):\n    return x + 1\n"  # def f ( x ) : return x + 1
    documented = 'def f(x):\n    """Returns more."""\n\n    # one more\n    return x + 1\n'
    assert ratchets.count_tokens(code) == ratchets.count_tokens(documented) == 10


def test_a_string_that_is_a_value_is_counted(ratchets: Any) -> None:
    assert ratchets.count_tokens('x = """text"""\n') == 3


@pytest.mark.parametrize("count, risen", [(4, 0), (5, 0), (6, 1)])
def test_only_a_count_above_its_limit_fails(ratchets: Any, count: int, risen: int) -> None:
    lines = ratchets.list_risen({"tokens": {"ops": count}}, {"tokens": {"ops": 5}})
    assert len(lines) == risen and all("ops" in line and "6" in line for line in lines)


def test_a_package_without_a_limit_may_hold_nothing(ratchets: Any) -> None:
    assert ratchets.list_risen({"words": {"new": 1}}, {"words": {}})


@pytest.mark.parametrize(
    "text, kind",
    [
        ("A test comes behind the change, as everybody knows.", "K2"),
        ("This array is no matrix, so it is refused.", "K3"),
        ("The layer runs where it is fast enough.", "K7"),
        ("MXNet gave other results in this version.", "K9"),
        ("The batch has five sentences in it.", "K14"),
    ],
)
def test_each_wording_is_found_by_its_kind(words: Any, text: str, kind: str) -> None:
    assert kind in words.find_kinds(text)


def test_plain_sentences_have_no_hit(words: Any) -> None:
    for text in (
        "If the model has several outputs, `--labels-of NAME` selects one.",
        "The layer reads every step once and returns its last state.",
    ):
        assert words.find_kinds(text) == []


def test_sentences_of_code_are_docstrings_messages_and_comments(words: Any) -> None:
    code = (
        'def f(x):\n    """Returns the first of all values."""\n'
        "    # A comment in two lines is\n    # one sentence in the end.\n"
        '    raise ValueError(f"x: expected more than {x} values")\n'
    )
    assert sorted(words.python_sentences(code)) == [
        ("comment", "A comment in two lines is one sentence in the end."),
        ("docstring", "Returns the first of all values."),
        ("message", "x: expected more than {x} values"),
    ]


def test_a_limit_rises_only_with_a_design_note(
    ratchets: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = tmp_path / "limits.json"
    limits.write_text('{"tokens": {"ops": 1}, "words": {}}')
    monkeypatch.setattr(ratchets, "LIMITS", limits)
    monkeypatch.setattr(ratchets, "count_all", lambda: {"tokens": {"ops": 3}, "words": {}})
    monkeypatch.setattr("sys.argv", ["ratchets", "--raise", "2", "ops", "none.md"])
    with pytest.raises(SystemExit):
        ratchets.main()
    assert json.loads(limits.read_text())["tokens"] == {"ops": 1}
    monkeypatch.setattr("sys.argv", ["ratchets", "--raise", "2", "ops", "0008-onnx.md"])
    ratchets.main()
    kept = json.loads(limits.read_text())
    assert kept["tokens"] == {"ops": 3} and kept["raised"] == [[2, "ops", "0008-onnx.md"]]
