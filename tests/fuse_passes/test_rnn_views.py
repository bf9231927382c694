"""Views behind a layer go away where they undo each other, and only there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.arrays import uniform
from support.graphs import new_node
from support.layers import random_weights
from support.onnx_models import check, model, read
from support.random_graphs import GRAPHS

from onernn import Cell, Graph, RnnSpec, Session, fuse
from onernn.fuse_passes.views import drop_rnn_views
from onernn.ir.graph import Node, Value

SIZES = [(2, 3), (3, 4), (7, 5)]  # of time and batch; none of them is one of the layer's


def graph_of(chain: list[tuple[str, Any]], spec: RnnSpec) -> Graph:
    """A layer and views behind it: (op, what it is given)."""
    nodes = [new_node("v0 = Rnn x", spec=spec, weights=random_weights(spec, 0))]
    constants = {}
    for at, (op, given) in enumerate(chain):
        inputs, attributes = [f"v{at}"], {}
        if op == "Transpose":
            attributes["perm"] = given
        else:
            inputs.append(f"c{at}")
            constants[f"c{at}"] = np.array(given, np.int64)
        nodes.append(Node(op, tuple(inputs), (f"v{at + 1}",), attributes))
    inputs = (Value("x", "float32", (None, None, spec.input_size)),)
    return Graph("g", inputs, (Value(f"v{len(chain)}"),), tuple(nodes), constants)


def moved(chain: list[tuple[str, Any]], array: np.ndarray) -> np.ndarray | None:
    """By NumPy; None where it cannot be done."""
    for op, given in chain:
        try:
            if op == "Transpose":
                array = array.transpose(given)
            elif op == "Reshape":
                sizes = [array.shape[at] if n == 0 else n for at, n in enumerate(given)]
                array = array.reshape(sizes)
            elif op == "Squeeze":
                array = np.squeeze(array, tuple(given))
            else:
                array = np.expand_dims(array, tuple(given))
        except (ValueError, IndexError):
            return None
    return array


def is_identity(chain: list[tuple[str, Any]], width: int) -> bool:
    for time, batch in SIZES:
        array = np.arange(time * batch * width).reshape(time, batch, width)
        got = moved(chain, array)
        if got is None or got.shape != array.shape or not np.array_equal(got, array):
            return False
    return True


def random_chain(rng: np.random.Generator, rank: int = 3) -> list[tuple[str, Any]]:
    shapes = [(0, 0, 2, -1), (0, 0, -1), (0, 0, 2, 6), (0, 0, 12), (0, 0, 1, -1), (0, -1), (-1, 12)]
    shapes += [(0, 0, -1, 6), (0, 0, 3, 4), (2, 3, 12), (0, 0, 6, 2), (0, 0, 0)]
    chain: list[tuple[str, Any]] = []
    for _ in range(rng.integers(1, 6)):
        kind = rng.choice(["Transpose", "Reshape", "Squeeze", "Unsqueeze"], p=[0.4, 0.4, 0.1, 0.1])
        if kind == "Transpose":
            if rng.integers(2):
                given: Any = (0, 2, 1, *range(3, rank))[:rank] if rank > 2 else tuple(range(rank))
            else:
                given = tuple(map(int, rng.permutation(rank)))
        elif kind == "Reshape":
            given = shapes[rng.integers(len(shapes))]
            rank = len(given)
        else:
            given = (int(rng.integers(rank)),)
            rank += 1 if kind == "Unsqueeze" else -1
            if rank < 1:
                return chain or [("Reshape", (0, 0, -1))]
        chain.append((str(kind), given))
    return chain


@pytest.mark.parametrize("direction", ["bidirectional_concat", "left2right"])
def test_views_go_away_if_and_only_if_they_undo_each_other(direction: Any) -> None:
    hidden = 6 if direction == "bidirectional_concat" else 12
    spec = RnnSpec(Cell.GRU, 3, hidden, direction=direction)
    rng = np.random.default_rng(0)
    # Channels split into other factors than directions and units are not followed.
    known = [(0, 0, 1, -1)]
    known += [(0, 0, 2, -1), (0, 0, 2, 6), (0, 0, -1, 6)] if spec.directions == 2 else []
    gone = kept = 0
    for _ in range(5 * GRAPHS):
        chain = random_chain(rng)
        graph = graph_of(chain, spec)
        fused = fuse(graph, (drop_rnn_views,)).model
        empty = not {"Reshape", "Squeeze", "Transpose", "Unsqueeze"} & {
            node.op for node in fused.nodes
        }
        identity = is_identity(chain, spec.output_size)
        assert identity or not empty, chain
        other = any(
            op == "Reshape" and len(given) > 3 and given not in known for op, given in chain
        )
        assert empty or not identity or other, chain
        gone, kept = gone + empty, kept + (not empty)
    assert min(gone, kept) > GRAPHS / 6


def test_values_that_others_read_stay() -> None:
    chain = [("Reshape", (0, 0, 2, -1)), ("Transpose", (0, 2, 1, 3)), ("Transpose", (0, 2, 1, 3))]
    spec = RnnSpec(Cell.LSTM, 3, 4, direction="bidirectional_concat")
    graph = graph_of([*chain, ("Reshape", (0, 0, -1))], spec)
    outputs = (*graph.outputs, Value("v2"))
    graph = Graph("g", graph.inputs, outputs, graph.nodes, graph.constants)
    x = uniform(5, 2, 3)
    got, want = (Session(graph, passes=p).run({"x": x}) for p in (None, ()))
    assert [node.op for node in fuse(graph).model.nodes].count("Transpose") == 1
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])


def test_channels_that_are_interleaved_stay_so() -> None:
    """(D, O) joined as (O, D): the same shape, other numbers."""
    chain = [("Reshape", (0, 0, 2, -1)), ("Transpose", (0, 1, 3, 2)), ("Reshape", (0, 0, -1))]
    spec = RnnSpec(Cell.LSTM, 3, 4, direction="bidirectional_concat")
    assert len(fuse(graph_of(chain, spec)).model.nodes) == 4


def stack(second: str = "n", **more: Any) -> Any:
    """Two bidirectional layers with sequence_lens, as exporters write them."""
    rng = np.random.default_rng(0)
    shapes = {"W0": (2, 9, 4), "R0": (2, 9, 3), "W1": (2, 9, 6), "R1": (2, 9, 3)}
    constants = {k: rng.uniform(-0.5, 0.5, s).astype(np.float32) for k, s in shapes.items()}
    constants["flat"] = np.array([0, 0, -1])
    told = {"hidden_size": 3, "linear_before_reset": 1, **more}
    numbers = ", ".join(f"{name} = {value}" for name, value in told.items())
    gru = f'GRU <direction = "bidirectional", {numbers}>'
    nodes = f"""
        Y0 = {gru} (x, W0, R0, , n)
        T0 = Transpose <perm = [0, 2, 1, 3]> (Y0)
        X1 = Reshape (T0, flat)
        Y1 = {gru} (X1, W1, R1, , {second})
        T1 = Transpose <perm = [0, 2, 1, 3]> (Y1)
        y = Reshape (T1, flat)
        """
    x = rng.uniform(-1, 1, (6, 4, 4)).astype(np.float32)
    feed = {"x": x, "n": np.array([6, 1, 0, 3], np.int32)}
    if second != "n":
        feed[second] = np.array([2, 6, 5, 3], np.int32)
    return model(nodes, feed, ["y"], constants=constants), feed


def test_a_stack_with_lengths_is_packed_once() -> None:
    proto, feed = stack()
    check(proto, feed)
    ops = [node.op for node in fuse(read(proto)).model.nodes]
    assert [op for op in ops if op != "Identity"] == ["SequenceUnpad", "Rnn", "SequencePad"]


def test_layers_of_other_lengths_are_packed_anew() -> None:
    proto, feed = stack("m")
    check(proto, feed)
    ops = [node.op for node in fuse(read(proto)).model.nodes]
    assert ops.count("SequenceUnpad") == 2
