"""The language model example beside MXNet: the same perplexity from the same files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.interpreters import run_python


def test_mxnet_computes_the_recorded_perplexity(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = repo / "examples" / "mxnet_language_model"
    monkeypatch.syspath_prepend(str(folder))
    from perplexity import perplexity
    from train import Stateful, loaded

    told = json.loads((folder / "training.json").read_text())
    with np.load(folder / "heldout.npz") as saved:
        theirs, _ = perplexity(Stateful(loaded(folder)), saved["ids"])
    assert abs(theirs - told["perplexity"]) < 1e-4


def test_what_the_training_script_saves_is_read(repo: Path, tmp_path: Path) -> None:
    """A short training, in a process of its own: its perplexity is ours, whatever it is."""
    script = repo / "examples" / "mxnet_language_model" / "train.py"
    short = ["--epochs", "0.2", "--limit", "12000", "--words", "200", "--output", str(tmp_path)]
    run_python(script, *short)
    told = json.loads((tmp_path / "training.json").read_text())
    probe = (
        "import sys, pathlib, numpy\n"
        f"sys.path.insert(0, {str(script.parent)!r})\n"
        "from perplexity import LanguageModel, perplexity\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "ids = numpy.load(folder / 'heldout.npz')['ids']\n"
        "print(perplexity(LanguageModel(folder), ids)[0], 'mxnet' in sys.modules)\n"
    )
    ours, imported = run_python("-c", probe).stdout.split()
    assert imported == "False"
    assert abs(float(ours) - told["perplexity"]) < 1e-4
