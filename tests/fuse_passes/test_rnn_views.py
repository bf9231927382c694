"""Views behind a layer go away where they undo each other, and only there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.arrays import uniform
from support.fusing import check_fused, operators
from support.graphs import new_node, small_graph
from support.layers import random_layer
from support.onnx_models import check, model, read
from support.random_graphs import GRAPHS

from onernn import Cell, Graph, RnnSpec, fuse
from onernn.fuse_passes.views import drop_rnn_views
from onernn.ir.graph import Node, Value

SIZES = [(2, 3), (3, 4), (7, 5)]  # of time and batch; none of them is one of the layer's


def graph_of(chain: list[tuple[str, Any]], spec: RnnSpec) -> Graph:
    """A layer and views behind it: (op, what it is given)."""
    nodes = [new_node("v0 = Rnn x", **random_layer(spec, 0))]
    constants = {}
    for at, (op, given) in enumerate(chain):
        inputs, attributes = [f"v{at}"], {}
        if op == "Transpose":
            attributes["perm"] = given
        else:
            inputs.append(f"c{at}")
            constants[f"c{at}"] = given
        nodes.append(Node(op, tuple(inputs), (f"v{at + 1}",), attributes))
    return small_graph(nodes, f"v{len(chain)}", constants, x=(None, None, spec.input_size))


VIEWS: dict[str, Any] = {
    "Transpose": np.transpose,
    "Reshape": np.reshape,
    "Squeeze": np.squeeze,
    "Unsqueeze": np.expand_dims,
}


def moved(chain: list[tuple[str, Any]], array: np.ndarray) -> np.ndarray | None:
    """By NumPy; None where it cannot be done."""
    for op, given in chain:
        try:
            if op == "Reshape":
                given = [array.shape[at] if n == 0 else n for at, n in enumerate(given)]
            array = VIEWS[op](array, given)
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
        empty = operators(fuse(graph, (drop_rnn_views,))) == ["Rnn"]
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
    graph = replace(graph, outputs=(*graph.outputs, Value("v2")))
    result = check_fused(graph, {"x": uniform(5, 2, 3)}, atol=0)
    assert operators(result).count("Transpose") == 1


def test_channels_that_are_interleaved_stay_so() -> None:
    """(D, O) joined as (O, D): the same shape, other numbers."""
    chain = [("Reshape", (0, 0, 2, -1)), ("Transpose", (0, 1, 3, 2)), ("Reshape", (0, 0, -1))]
    spec = RnnSpec(Cell.LSTM, 3, 4, direction="bidirectional_concat")
    assert len(fuse(graph_of(chain, spec)).model.nodes) == 4


def stack(second: str = "n") -> Any:
    """Two bidirectional layers with sequence_lens, as exporters write them."""
    shapes = {"W0": (2, 9, 4), "R0": (2, 9, 3), "W1": (2, 9, 6), "R1": (2, 9, 3)}
    constants = {name: uniform(*shape, bound=0.5) for name, shape in shapes.items()}
    constants["flat"] = np.array([0, 0, -1])
    gru = 'GRU <direction = "bidirectional", hidden_size = 3, linear_before_reset = 1>'
    nodes = f"""
        Y0 = {gru} (x, W0, R0, , n)
        T0 = Transpose <perm = [0, 2, 1, 3]> (Y0)
        X1 = Reshape (T0, flat)
        Y1 = {gru} (X1, W1, R1, , {second})
        T1 = Transpose <perm = [0, 2, 1, 3]> (Y1)
        y = Reshape (T1, flat)
        """
    feed = {"x": uniform(6, 4, 4), "n": np.array([6, 1, 0, 3], np.int32)}
    if second != "n":
        feed[second] = np.array([2, 6, 5, 3], np.int32)
    return model(nodes, feed, ["y"], constants=constants), feed


@pytest.mark.parametrize("second, times", [("n", 1), ("m", 2)])
def test_layers_are_packed_once_unless_their_lengths_differ(second: str, times: int) -> None:
    proto, feed = stack(second)
    check(proto, feed)
    left = operators(fuse(read(proto)))
    assert left == ["SequenceUnpad", "Rnn", "SequencePad"] or times == 2
    assert left.count("SequenceUnpad") == times
