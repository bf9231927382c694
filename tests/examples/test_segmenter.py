"""The example: ours gives Paddle's own tags and scores on held-out text, and the demo's line."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.interpreters import run_python

from onernn import Ragged, Session, load, verify

THE_LINE = "the quick brown fox jumps over the lazy dog"


@pytest.fixture
def folder(repo: Path) -> Path:
    return repo / "examples" / "segmenter"


def segment(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return run_python(folder / "segment.py", *arguments, **more)


@pytest.mark.parametrize("backend", ["onednn", "reference"])
def test_tags_are_paddles_own_and_scores_to_rounding(folder: Path, backend: str) -> None:
    report = verify(load(folder), folder / "heldout.npz", backend=backend)
    assert report.passed, report
    scores, path = report.outputs
    assert scores.max_rel <= 1e-5 and path.max_abs == 0


def test_the_right_tags_are_mostly_what_training_measured(folder: Path) -> None:
    # Word F1 of Paddle on all held-out lines stands in training.json; tags agree a little more.
    measured = json.loads((folder / "training.json").read_text())["heldout_word_f1"]
    assert measured >= 0.93
    with np.load(folder / "heldout.npz") as recorded:
        batch = Ragged(recorded["in__letters"], recorded["lod__letters"])
        right = recorded["tags"]
    model = load(folder)
    (tags,) = [
        v for v in Session(model).run({"letters": batch}).values() if v.data.dtype == np.int64
    ]
    assert (tags.data[:, 0] == right).mean() > measured - 0.01


def test_the_demo_prints_its_line(folder: Path) -> None:
    run = segment(folder, THE_LINE.replace(" ", ""))
    assert run.stdout == THE_LINE + "\n" and run.stderr == ""


def test_lines_of_standard_input_are_split_one_by_one(folder: Path) -> None:
    run = segment(folder, "--show", input="thequickbrownfox\n\nthe lazydog\n")
    assert run.stdout.splitlines() == ["the quick brown fox", "", "the lazy dog"]
    for part in ("fused", "linear_rnn", "GRU bidirectional_concat, f32", "crf_decoding"):
        assert part in run.stderr


def test_the_model_holds_no_path_of_where_it_was_made(folder: Path) -> None:
    assert sum(f.stat().st_size for f in folder.glob("model.*")) < 4_000_000
    content = (folder / "model.pdmodel").read_bytes()
    assert b"op_callstack" not in content and b"/home" not in content and b".py" not in content
