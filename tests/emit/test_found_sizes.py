"""Sizes that no shape of an input tells: a call finds them, or is told and compares.

Of what a call finds the header tells a bound, and further outputs what was found.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.compiling import CHECKED, PLAIN, compile_program
from support.emitting import Emitted, assert_computes, build
from support.graphs import new_node
from support.taggers import documents, of_documents, padder, unpadded

from onernn import Graph, Ragged, Session
from onernn.engine.emit import write_cpp
from onernn.ir.graph import Value

NODES = (
    new_node("NonZero", "x", "where"),
    new_node("Concat", "where where", "twice", axis=1),
    new_node("Compress", "x rows", "some", axis=0),
    new_node("Neg", "some", "negative"),
    new_node("Compress", "negative columns", "fewer", axis=1),
    new_node("SequenceUnpad", "padded lengths", "words"),
    new_node("Tanh", "words", "tanh"),
    new_node("SequencePool", "tanh", "pooled", kind="sum"),
    new_node("SequenceConcat", "words words", "joined"),
    new_node("Shape", "twice", "shape"),
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


MODELS = {"found": MODEL, "padding": padder(), "documents": documents()}
FEEDS = {"padding": unpadded, "documents": of_documents}


@pytest.fixture(scope="module", params=[PLAIN, pytest.param(CHECKED, marks=pytest.mark.long)])
def emitted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Emitted]:
    return build(MODELS, tmp_path_factory.mktemp("found"), request.param)


@pytest.mark.parametrize("seed", range(6))
def test_they_are_what_numpy_finds(emitted: dict[str, Emitted], seed: int) -> None:
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
    assert_computes(emitted["found"], feed, want)


def test_the_header_tells_the_room_that_outputs_need(emitted: dict[str, Emitted]) -> None:
    header = emitted["found"].files["found.hpp"]
    assert isinstance(header, str)
    assert "float* words = nullptr;  ///< (words_words, 2), at most " in header
    assert "std::int64_t* where_chosen = nullptr;  ///< at most x_0 * 3\n" in header
    assert "sequences as joined_offsets tells" in header
    assert "/// May be left out: words_offsets, joined_offsets, where_chosen," in header


@pytest.mark.parametrize("count", [3, 1, 0, 9])
@pytest.mark.parametrize("name", FEEDS)
def test_sentences_and_documents_of_all_sizes_run(
    name: str, count: int, emitted: dict[str, Emitted]
) -> None:
    """Callers tell how long the longest sentence is."""
    feed = FEEDS[name](np.random.default_rng(count), count)
    assert_computes(emitted[name], feed, Session(MODELS[name], backend="reference").run(feed))


@pytest.mark.parametrize("by", [-1, 1])
def test_another_length_than_that_is_a_status(
    by: int, emitted: dict[str, Emitted], monkeypatch: pytest.MonkeyPatch
) -> None:
    padding, feed = emitted["padding"], unpadded(np.random.default_rng(0), 4)
    want = Session(MODELS["padding"], backend="reference").run(feed)
    sizes = padding.sizes(feed)
    monkeypatch.setattr(padding, "sizes", lambda _: {**sizes, "T": sizes["T"] + by})
    assert padding.run(feed, want)[0] == 84  # bad_lengths


@pytest.mark.parametrize("by", [(1, 0, 0, 0), (0, 99, 0, 0), (0, 0, 0, 1), (0, 0, 0, -1)])
def test_offsets_of_documents_that_are_none_are_a_status(
    by: tuple[int, ...], emitted: dict[str, Emitted]
) -> None:
    """They begin elsewhere than at 0, fall, or end elsewhere than at the last sentence."""
    feed = of_documents(np.random.default_rng(0), 3)
    want = Session(MODELS["documents"], backend="reference").run(feed)
    object.__setattr__(feed["x"], "outer", (feed["x"].outer[0] + by,))
    assert emitted["documents"].run(feed, want)[0] == 84  # bad_lengths


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_the_example_has_room_for_what_is_found(name: str, tmp_path: Path) -> None:
    write_cpp(MODELS[name], tmp_path, name=name)
    compile_program(tmp_path / "main.cpp", tmp_path / "example", CHECKED, tmp_path)
    command = [tmp_path / "example", tmp_path / f"{name}.weights"]
    done = subprocess.run(command, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
