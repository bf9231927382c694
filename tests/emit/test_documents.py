"""Generated C++ of values under two LoD levels: sentences of words, documents of sentences."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.checking import assert_close
from support.emitting import CHECKED, STRICT, Emitted, build, compiler
from support.taggers import documents, of_documents

from onernn import Session
from onernn.ir.ragged import data_of


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> Emitted:
    return build({"documents": documents()}, tmp_path_factory.mktemp("documents"))["documents"]


@pytest.mark.parametrize("count", [3, 1, 0, 9])
def test_it_runs_documents_of_all_sizes(emitted: Emitted, count: int) -> None:
    feed = of_documents(np.random.default_rng(count), count)
    want = Session(documents(), backend="reference").run(feed)
    status, got = emitted.run(feed, want)
    assert status == 0, got
    for name, value in want.items():
        assert_close(got[name], data_of(value).reshape(-1))


@pytest.mark.parametrize("by", [(1, 0, 0, 0), (0, 99, 0, 0), (0, 0, 0, 1), (0, 0, 0, -1)])
def test_offsets_of_documents_that_are_none_are_a_status(
    emitted: Emitted, by: tuple[int, ...]
) -> None:
    """They begin elsewhere than at 0, fall, or end elsewhere than at the last sentence."""
    feed = of_documents(np.random.default_rng(0), 3)
    want = Session(documents(), backend="reference").run(feed)
    object.__setattr__(feed["x"], "outer", (feed["x"].outer[0] + by,))
    assert emitted.run(feed, want)[0] == 84  # bad_lengths


def test_the_example_runs(emitted: Emitted, tmp_path: Path) -> None:
    command = [compiler(), *STRICT, *CHECKED, str(emitted.folder / "main.cpp"), "-o", "example"]
    subprocess.run(command, cwd=tmp_path, check=True)
    weights = emitted.folder / "documents.weights"
    done = subprocess.run([tmp_path / "example", weights], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
