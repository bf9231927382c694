"""Sizes that no shape of an input tells: a call finds them, or is told and compares.

Of what a call finds the header tells a bound, and further outputs what was found.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.checking import assert_close
from support.emitting import CHECKED, STRICT, Emitted, build, compiler
from support.taggers import padder, unpadded

from onernn import Graph, Ragged, Session
from onernn.ir.graph import Node, Value
from onernn.ir.ragged import data_of

NODES = (
    Node("NonZero", ("x",), ("where",)),
    Node("Concat", ("where", "where"), ("twice",), {"axis": 1}),
    Node("Compress", ("x", "rows"), ("some",), {"axis": 0}),
    Node("Neg", ("some",), ("negative",)),
    Node("Compress", ("negative", "columns"), ("fewer",), {"axis": 1}),
    Node("SequenceUnpad", ("padded", "lengths"), ("words",)),
    Node("Tanh", ("words",), ("tanh",)),
    Node("SequencePool", ("tanh",), ("pooled",), {"kind": "sum"}),
    Node("SequenceConcat", ("words", "words"), ("joined",)),
    Node("Shape", ("twice",), ("shape",)),
)
INPUTS = (
    Value("x", "float32", (None, 3)),
    Value("rows", "bool", (None,)),
    Value("columns", "bool", (3,)),
    Value("padded", "float32", (None, None, 2)),
    Value("lengths", "int64", (None,)),
)
OUTPUTS = "where twice fewer negative words tanh pooled joined shape"
MODEL = Graph("found", INPUTS, tuple(map(Value, OUTPUTS.split())), NODES, {})


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> Emitted:
    return build({"found": MODEL}, tmp_path_factory.mktemp("found"))["found"]


@pytest.mark.parametrize("seed", range(6))
def test_they_are_what_numpy_finds(emitted: Emitted, seed: int) -> None:
    """`Emitted.run` gives arrays of just these sizes, and compares shapes and offsets, too."""
    rng = np.random.default_rng(seed)
    rows, batch, time = rng.integers(0 if seed > 3 else 1, 5, 3)
    feed = {
        "x": (rng.normal(size=(rows, 3)) * (rng.random((rows, 3)) > 0.5)).astype(np.float32),
        "rows": rng.random(rows) > 0.5,
        "columns": rng.random(3) > 0.5,
        "padded": rng.normal(size=(batch, time, 2)).astype(np.float32),
        "lengths": rng.integers(0, time + 1, batch),
    }
    want = Session(MODEL, backend="reference").run(feed)
    assert isinstance(want["joined"], Ragged)
    status, got = emitted.run(feed, want)
    assert status == 0, got
    for name, value in want.items():
        assert_close(got[name], data_of(value).reshape(-1))


def test_the_header_tells_the_room_that_outputs_need(emitted: Emitted) -> None:
    header = emitted.files["found.hpp"]
    assert isinstance(header, str)
    assert "float* words = nullptr;  ///< (words_words, 2), at most " in header
    assert "std::int64_t* where_chosen = nullptr;  ///< at most x_0 * 3\n" in header
    assert "sequences as joined_offsets tells" in header
    assert "/// May be left out: words_offsets, joined_offsets, where_chosen," in header


@pytest.fixture(scope="module")
def padding(tmp_path_factory: pytest.TempPathFactory) -> Emitted:
    return build({"padding": padder()}, tmp_path_factory.mktemp("padding"))["padding"]


@pytest.mark.parametrize("count", [1, 4, 0])
def test_callers_tell_how_long_the_longest_sentence_is(padding: Emitted, count: int) -> None:
    feed = unpadded(np.random.default_rng(0), count)
    want = Session(padder(), backend="reference").run(feed)
    status, got = padding.run(feed, want)
    assert status == 0, got
    for name, value in want.items():
        assert_close(got[name], data_of(value).reshape(-1))


@pytest.mark.parametrize("by", [-1, 1])
def test_another_length_than_that_is_a_status(
    padding: Emitted, by: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = unpadded(np.random.default_rng(0), 4)
    want = Session(padder(), backend="reference").run(feed)
    sizes = padding.sizes(feed)
    monkeypatch.setattr(padding, "sizes", lambda _: {**sizes, "T": sizes["T"] + by})
    status, _ = padding.run(feed, want)
    assert status == 84  # bad_lengths


@pytest.mark.parametrize("model", ["emitted", "padding"])
def test_the_example_has_room_for_what_is_found(
    model: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    made: Emitted = request.getfixturevalue(model)
    command = [compiler(), *STRICT, *CHECKED, str(made.folder / "main.cpp"), "-o", "example"]
    subprocess.run(command, cwd=tmp_path, check=True)
    weights = made.folder / f"{made.name}.weights"
    done = subprocess.run([tmp_path / "example", weights], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
