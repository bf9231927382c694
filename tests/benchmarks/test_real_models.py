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
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("| segmenter")]
    _, name, call, framework, *ways, emitted, _ = map(str.strip, row.split("|"))
    alone, inside, drop_in, converted = ways
    assert (name, call, drop_in, converted) == ("segmenter (paddle)", "8 x 1 sentence", "-", "-")
    assert alone.endswith("MB") and emitted == "equal"
    assert all(each.endswith("MB") or each == "no paddle here" for each in (framework, inside))
    assert page.read_text() == before  # one row is no table


def test_what_differs_is_never_a_time(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(repo))
    cell = import_module("benchmarks.real_models").cell
    host = {"median": 3.0, "first": 0.2, "resident": 50.0}
    assert cell("alone", {**host, "median": 1.5}, host) == "2.00; 200 ms, 50 MB"
    assert cell("framework", host, host) == "3 ms; 200 ms, 50 MB"
    assert cell("emitted", {"max_abs": 0.0}, host) == "equal"
    assert cell("alone", {"rejected": "off by 1"}, host) == "**differs**: off by 1"
    assert cell("alone", {"rejected": "off, 0 allowed"}, host, "a_fault") == "off: a_fault"
    assert cell("alone", {"failed": "crash"}, host) == "**failed**: crash"
    assert cell("emitted", {"left out": "a | b"}, host) == "refused: a / b"


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
