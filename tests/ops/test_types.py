"""Inferred types agree with what a run produces, on every recording; and the check can fail."""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.operator_cases import FEED, WALKED, cases, model
from support.random_models import random_trial
from support.typing import Bindings, check_types

from onernn import Ragged, fuse, load
from onernn.engine.session import checked_feed
from onernn.ir.graph import Graph, Node, Value
from onernn.ir.types import UNKNOWN, Size, Type, dense
from onernn.verification.recording import read_arrays, read_inputs

DATA = Path(__file__).parents[1] / "data"
RECORDED = [file.parent.relative_to(DATA).as_posix() for file in sorted(DATA.glob("*/*/io.npz"))]
FILES = ("*.onnx", "*.pt2", "*.keras", "*.h5")
"""Models of one file; those of others are their folders."""


def check_recording(model: Path, recording: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MXNet's two meanings
        graph = load(model)
    feed = checked_feed(graph.inputs, read_inputs(read_arrays(recording), graph.inputs))
    check_types(graph, feed)
    check_types(fuse(graph).model, feed)


@pytest.mark.parametrize("name", RECORDED)
def test_types_of_a_recorded_model_are_what_its_run_shows(name: str) -> None:
    folder = DATA / name
    found = [file for pattern in FILES for file in folder.glob(pattern)]
    check_recording(found[0] if found else folder, folder / "io.npz")


def test_types_of_the_shared_models_are_what_their_runs_show(shared_models: Path) -> None:
    for file in sorted(shared_models.glob("paddle/*/io.npz")):
        check_recording(file.parent, file)
    names = json.loads((shared_models / "mxnet" / "manifest.json").read_text())
    assert names
    for file in sorted(shared_models.glob("mxnet/*-symbol.json")):
        check_recording(file, Path(str(file).replace("-symbol.json", ".npz")))


def test_types_of_every_operator_are_what_its_run_shows() -> None:
    nodes, names = cases()
    more = [Node(op, tuple(i.split(" ")), (f"w{k}",), at) for k, (op, i, at) in enumerate(WALKED)]
    graph = model([*nodes, *more], [*names, *(node.outputs[0] for node in more)])
    check_types(graph, {value.name: FEED[value.name] for value in graph.inputs})
    for node in more:
        assert graph.types[node.outputs[0]].rank is not None, node.label


def test_types_of_random_graphs_are_what_their_runs_show() -> None:
    known = total = 0
    for seed in range(int(os.environ.get("ONERNN_RANDOM_GRAPHS", "100"))):
        trial = random_trial(seed)
        for graph in (trial.graph, fuse(trial.graph).model):
            for feed in trial.feeds:
                unknown = check_types(graph, feed, backend="reference")
                known, total = known + len(graph.types) - len(unknown), total + len(graph.types)
    assert known > 0.9 * total  # else the check says little


RAGGED = Ragged(np.zeros((3, 4), np.float32), [0, 1, 3])
TYPE = Type("float32", (Size.of("x.lod0.words"), Size.of(4)), ("x.lod0",))


@pytest.mark.parametrize(
    "wrong",
    [
        replace(TYPE, dtype="float64"),
        replace(TYPE, shape=(Size.of(3),)),
        replace(TYPE, shape=(Size.of(3), Size.of(5))),
        replace(TYPE, shape=(Size.of("x.lod0.count"), Size.of(4))),
        replace(TYPE, lod=()),
        replace(TYPE, lod=("x.lod0", "x.lod1")),
    ],
    ids=str,
)
def test_a_type_that_is_not_the_values_is_found(wrong: Type) -> None:
    Bindings().check("x", TYPE, RAGGED)
    with pytest.raises(AssertionError, match="^x: "):
        Bindings().check("x", wrong, RAGGED)


def test_offsets_of_one_name_are_the_same() -> None:
    other = Ragged(RAGGED.data, [0, 2, 3])
    seen = Bindings()
    seen.check("x", TYPE, RAGGED)
    with pytest.raises(AssertionError, match="^y: LoD x.lod0"):
        seen.check("y", TYPE, other)


X = Value("x", "float32", (None, 4), 1)
IDS = {"ids": np.array([[0, 1], [1, 0], [0, 0]])}


@pytest.mark.parametrize(
    ("node", "constants", "expected"),
    [
        (Node("Gather", ("x", "ids"), ("y",)), IDS, dense("float32", (3, 2, 4))),
        (Node("Unsqueeze", ("x", "axis"), ("y",)), {"axis": np.array([0])}, "dense"),
        (Node("Unsqueeze", ("x", "axis"), ("y",)), {"axis": np.array([1])}, "ragged"),
        (Node("Squeeze", ("x", "axis"), ("y",)), {"axis": np.array([-2])}, "dense"),
        (Node("SequencePool", ("x",), ("y",), {"kind": "sum"}), {}, "dense"),
        (Node("Transpose", ("x",), ("y",), {"perm": [1, 0]}), {}, "unknown"),
        (Node("Softmax", ("x",), ("y",), {"axis": 0}), {}, "unknown"),
    ],
    ids=lambda found: found.op if isinstance(found, Node) else "",
)
def test_raggedness_follows_the_axis_of_the_words(
    node: Node, constants: dict[str, np.ndarray], expected: Type | str
) -> None:
    found = Graph("g", (X,), (Value("y"),), (node,), constants).types["y"]
    if isinstance(expected, Type):
        assert found == expected
    elif expected == "unknown":
        assert found == UNKNOWN
    else:
        assert found.ragged == (expected == "ragged")


def test_shapes_are_followed_through_integers() -> None:
    """x (A, B, 6) reshaped by its own shape, [Shape(x)[0] * Shape(x)[1], 6], is (A*B, 6)."""
    nodes = (
        Node("Shape", ("x",), ("shape",)),
        Node("Gather", ("shape", "first"), ("rows",)),
        Node("Gather", ("shape", "second"), ("columns",)),
        Node("Mul", ("rows", "columns"), ("product",)),
        Node("Concat", ("product", "six"), ("target",), {"axis": 0}),
        Node("Reshape", ("x", "target"), ("flat",)),
        Node("Reshape", ("flat", "back"), ("y",)),
    )
    constants = {
        "first": np.array([0]),
        "second": np.array([1]),
        "six": np.array([6]),
        "back": np.array([-1, 3, 2]),
    }
    x = Value("x", "float32", (None, None, 6))
    graph = Graph("g", (x,), (Value("y"),), nodes, constants)
    rows = Size.of("x.0") * Size.of("x.1")
    assert graph.types["flat"] == dense("float32", (rows, 6))
    assert graph.types["y"] == dense("float32", (rows, 3, 2))
    assert check_types(graph, {"x": np.zeros((2, 5, 6), np.float32)}) == []


def test_a_size_with_a_name_may_be_one_and_stretch() -> None:
    inputs = (Value("a", "float32", (None, 4)), Value("b", "float32", (None, 1)))
    graph = Graph("g", inputs, (Value("y"),), (Node("Add", ("a", "b"), ("y",)),), {})
    assert graph.types["y"].shape == (None, Size.of(4))
