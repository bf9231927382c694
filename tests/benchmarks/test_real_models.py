"""The table of real models, on one that this repository has; and the signals that models get."""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checking import assert_same
from support.interpreters import run_python


@pytest.fixture
def signals(repo: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(repo))
    return import_module("benchmarks.signals")


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler")
def test_a_model_has_a_row_in_which_each_way_tells_its_costs_or_why_not(repo: Path) -> None:
    page = repo / "docs" / "models.md"
    before = page.read_text()
    done = run_python("-m", "benchmarks.real_models", "segmenter", cwd=repo)
    lines = [line for line in done.stdout.splitlines() if line.startswith("| segmenter")]
    speed, costs = ([*map(str.strip, line.split("|"))][1:-1] for line in lines)
    name, call, framework, _, inside, drop_in, converted, emitted = speed
    assert (name, call, drop_in, converted) == ("segmenter (paddle)", "8 x 1 sentence", "-", "-")
    assert costs[2].endswith("MB") and emitted == "equal"
    assert (
        costs[1].endswith("MB")
        and costs[3].endswith("MB")
        or (framework == inside == "- (1)" and "1. no paddle here" in done.stdout)
    )
    assert page.read_text() == before  # one row is no table


def test_what_differs_is_never_a_time(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(repo))
    cell, made = (getattr(import_module("benchmarks.real_models"), n) for n in ("cell", "Cell"))
    host = {"median": 3.0, "first": 0.2, "resident": 50.0}
    assert cell("alone", {**host, "median": 1.5}, host) == made("2.00", "200 ms, 50 MB")
    assert cell("framework", host, host) == made("3", "200 ms, 50 MB")
    assert cell("emitted", {"max_abs": 0.0}, host) == made("equal")
    assert cell("alone", {"rejected": "off by 1"}, host) == made("**differs**", "", "off by 1")
    known = cell("alone", {"rejected": "off, 0 allowed"}, host, "a_fault")
    assert known == made("differs", "", "off: a_fault")
    assert cell("alone", {"failed": "crash"}, host) == made("**failed**", "", "crash")
    assert cell("emitted", {"left out": "a | b"}, host) == made("refused", "", "a | b")
    assert cell("alone", "-", host) == made("-")
    assert cell("inside", "no paddle here", "no paddle here") == made("-", "", "no paddle here")


def test_reasons_are_listed_once_below_a_table_of_short_cells(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(repo)
    module = import_module("benchmarks.real_models")
    refused = module.Cell("refused", reason="an If")
    row = [module.Cell("1.5", "9 ms, 2 MB"), *[module.Cell("2.00", "3 ms, 1 MB")] * 3, refused]
    lines = module.tables([("a", "1 step", [*row, refused]), ("b", "2 steps", [*row, refused])])
    assert "| a | 1 step | 1.5 | 2.00 | 2.00 | 2.00 | refused (1) | refused (1) |" in lines
    assert "| b | 9 ms, 2 MB | 3 ms, 1 MB | 3 ms, 1 MB | 3 ms, 1 MB |" in lines
    assert [line for line in lines if "an If" in line] == ["1. an If"]


@pytest.mark.parametrize("name", ["frames", "magnitudes", "log_powers", "image"])
def test_signals_are_made_again_to_the_bit_and_change_over_time(signals: Any, name: str) -> None:
    one, other = (signals.SIGNALS[name](200, 65, np.random.default_rng(3)) for _ in range(2))
    assert one.shape == (200, 65) and one.dtype == np.float32 and np.isfinite(one).all()
    assert_same(one, other)
    assert one.std(axis=0).min() > 0


def test_speech_has_a_pitch_and_pauses(signals: Any) -> None:
    sound = signals.speech(4 * signals.RATE, np.random.default_rng(0))
    loud = np.abs(sound).reshape(-1, 800).max(axis=1)
    assert loud.min() < 0.02 < 0.1 < loud.max() <= 1
    spectrum = np.abs(np.fft.rfft(sound))
    assert spectrum[4 * 80 : 4 * 1500].mean() > 3 * spectrum[4 * 6000 :].mean()
