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
from support.graphs import new_node, reference, small
from support.taggers import documents, of_documents, padder, unpadded

from onernn import Ragged
from onernn.engine.emit import write_cpp

NODES = (
    new_node("where = NonZero x"),
    new_node("twice = Concat where where", axis=1),
    new_node("some = Compress x rows", axis=0),
    new_node("negative = Neg some"),
    new_node("fewer = Compress negative columns", axis=1),
    new_node("words = SequenceUnpad padded lengths"),
    new_node("tanh = Tanh words"),
    new_node("pooled = SequencePool tanh", kind="sum"),
    new_node("joined = SequenceConcat words words"),
    new_node("shape = Shape twice"),
    new_node("longest = ReduceMax lengths", keepdims=0),
    new_node("steps = Range nothing longest one"),
    new_node("tail = Unsqueeze longest axis"),
    new_node("begun = Slice padded axis tail first"),
    new_node("twofold = SequencePad joined"),
    new_node("divisors = Add lengths three"),
    new_node("rest = Mod lengths divisors"),
    new_node("waves = STFT signal hop window"),
)
INPUTS = {
    "x": (None, 3),
    "rows": ("bool", None),
    "columns": ("bool", 3),
    "padded": (None, None, 2),
    "lengths": ("int64", None),
    "signal": (None, None, 1),
}
CONSTANTS = {
    "nothing": np.int64(0),
    "one": np.int64(1),
    "three": np.int64(3),
    "axis": [0],
    "first": [1],
}
CONSTANTS |= {"hop": np.int64(2), "window": np.float32([1, 2, 3, 2, 1])}
FOUND = "where twice fewer negative words tanh pooled joined shape"
MODEL = small(NODES, INPUTS, f"{FOUND} steps begun twofold rest waves", **CONSTANTS)


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
        "signal": rng.normal(size=(batch, 5 + time, 1)).astype(np.float32),
    }
    want = reference(MODEL, feed)
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
    assert_computes(emitted[name], feed, reference(MODELS[name], feed))


@pytest.mark.parametrize("by", [-1, 1])
def test_another_length_than_that_is_a_status(
    by: int, emitted: dict[str, Emitted], monkeypatch: pytest.MonkeyPatch
) -> None:
    padding, feed = emitted["padding"], unpadded(np.random.default_rng(0), 4)
    want = reference(MODELS["padding"], feed)
    sizes = padding.sizes(feed)
    monkeypatch.setattr(padding, "sizes", lambda _: {**sizes, "T": sizes["T"] + by})
    assert padding.run(feed, want)[0] == 84  # bad_lengths


@pytest.mark.parametrize("by", [(1, 0, 0, 0), (0, 99, 0, 0), (0, 0, 0, 1), (0, 0, 0, -1)])
def test_offsets_of_documents_that_are_none_are_a_status(
    by: tuple[int, ...], emitted: dict[str, Emitted]
) -> None:
    """They begin elsewhere than at 0, fall, or end elsewhere than at the last sentence."""
    feed = of_documents(np.random.default_rng(0), 3)
    want = reference(MODELS["documents"], feed)
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
