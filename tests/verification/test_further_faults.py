"""Faults beside a recording and between two models that no file of `fault_pairs` has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from support.layers import random_weights

from onernn import Cell, Graph, RnnSpec, Session
from onernn.ir.graph import Node, Value
from onernn.verification.references import Against
from onernn.verification.verifying import verify

T, N, WIDTH, HIDDEN = 9, 7, 6, 8
LENGTHS = np.array([9, 3, 5, 7, 4, 6, 8])
Pair = tuple[Graph, Graph]
FAULTS: dict[str, tuple[str, Callable[[], Pair]]] = {}


def fault(cause: str) -> Callable[[Callable[[], Pair]], Callable[[], Pair]]:
    """The sound model and the one with the fault."""

    def register(function: Callable[[], Pair]) -> Callable[[], Pair]:
        FAULTS[function.__name__] = (cause, function)
        return function

    return register


def layer(spec: RnnSpec, x: str, y: str, seed: int = 0, **changes: object) -> Node:
    weights = replace(random_weights(spec, seed)[0], **changes)  # type: ignore[arg-type]
    return Node("Rnn", (x,), (y, f"{y}.h"), {"spec": spec, "weights": weights})


def graph(*nodes: Node, output: str = "y", **constants: np.ndarray) -> Graph:
    inputs = (
        Value("x", "float32", (None, None, WIDTH)),
        Value("lengths", "int64", (None,)),
        Value("ids", "int64", (None, None)),
    )
    made = Graph("model", inputs, (Value(output),), nodes, constants)
    read = {name for node in nodes for name in node.inputs}
    return replace(made, inputs=tuple(value for value in inputs if value.name in read))


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).normal(0, 0.5, shape).astype(np.float32)


def feed(model: Graph) -> dict[str, np.ndarray]:
    words = np.where(
        np.arange(T) < LENGTHS[:, None], np.random.default_rng(0).integers(1, 20, (N, T)), 0
    )
    every = {"x": numbers(T, N, WIDTH), "lengths": LENGTHS, "ids": words}
    return {value.name: every[value.name] for value in model.inputs}


def gates(spec: RnnSpec, change: Callable[[np.ndarray], np.ndarray]) -> dict[str, np.ndarray]:
    arrays = random_weights(spec, 0)[0].arrays
    return {name: change(arrays[name]) for name in ("layer", "iter", "bias")}


@fault("gates_swapped")
def gates_of_each_unit_together() -> Pair:
    spec = RnnSpec(Cell.LSTM, WIDTH, HIDDEN)
    wrong = gates(spec, lambda a: a.swapaxes(-1, -2).reshape(a.shape))
    return graph(layer(spec, "x", "y")), graph(layer(spec, "x", "y", **wrong))


@fault("gates_swapped")
def gates_of_paddle_swapped_before_a_sign_is_turned() -> Pair:
    """The file has (u, r, c); reading it negates u."""
    spec = RnnSpec(Cell.GRU, WIDTH, HIDDEN)

    def swapped(array: np.ndarray) -> np.ndarray:
        filed = array.copy()
        filed[..., 0, :] *= -1
        read = filed[..., [1, 0, 2], :]
        read[..., 0, :] *= -1
        return read

    return graph(layer(spec, "x", "y")), graph(layer(spec, "x", "y", **gates(spec, swapped)))


@fault("layers_exchanged")
def first_and_second_of_three_layers() -> Pair:
    spec = RnnSpec(Cell.GRU, WIDTH, WIDTH)

    def stack(*seeds: int) -> Graph:
        return graph(*(layer(spec, a, b, s) for a, b, s in zip("xab", "aby", seeds, strict=True)))

    return stack(1, 2, 3), stack(2, 1, 3)


@fault("operator_changed")
def log_softmax_for_softmax() -> Pair:
    spec = RnnSpec(Cell.GRU, WIDTH, HIDDEN)
    nodes = layer(spec, "x", "h"), Node("MatMul", ("h", "w"), ("s",))
    ends = (Node(op, ("s",), ("y",), {"axis": -1}) for op in ("Softmax", "LogSoftmax"))
    sound, wrong = (graph(*nodes, end, w=numbers(HIDDEN, 5)) for end in ends)
    return sound, wrong


@fault("operator_missing")
def bias_of_a_dense_layer_dropped() -> Pair:
    spec = RnnSpec(Cell.GRU, WIDTH, HIDDEN)
    nodes = layer(spec, "x", "h"), Node("MatMul", ("h", "w"), ("s",))
    add = Node("Add", ("s", "b"), ("y",))
    sound = graph(*nodes, add, w=numbers(HIDDEN, 5), b=numbers(5))
    return sound, graph(*nodes, w=numbers(HIDDEN, 5), output="s")


@fault("operator_changed")
def relu_for_tanh_in_every_step_of_an_unrolled_cell() -> Pair:
    def unrolled(op: str) -> Graph:
        nodes = [Node("Slice", ("x", "zero", "one", "zero"), ("s0",))]
        for step in range(3):
            nodes += [
                Node("MatMul", (f"s{step}", "w"), (f"p{step}",)),
                Node(op, (f"p{step}",), (f"s{step + 1}",)),
            ]
        constants = {"zero": np.array([0]), "one": np.array([1]), "w": numbers(WIDTH, WIDTH)}
        return graph(*nodes, output="s3", **constants)

    return unrolled("Tanh"), unrolled("Relu")


@fault("direction_swapped")
def backward_outputs_in_reverse_order() -> Pair:
    spec = RnnSpec(Cell.LSTM, WIDTH, HIDDEN, direction="right2left")
    node, turned = layer(spec, "x", "y"), layer(spec, "x", "t")
    back = Node("Slice", ("t", "last", "before", "time", "last"), ("y",))
    cut = {"last": np.array([-1]), "before": np.array([-(2**62)]), "time": np.array([0])}
    return graph(node), graph(turned, back, **cut)


@fault("mask_ignored")
def lengths_that_were_sorted() -> Pair:
    """As pack_padded_sequence does; without them the layer runs to the end of the padding."""
    spec = RnnSpec(Cell.GRU, WIDTH, HIDDEN)
    count = np.array([N])
    ordered = Node("TopK", ("lengths", "count"), ("sorted", "order"), {"axis": 0})
    taken = Node("Gather", ("x", "order"), ("batch",), {"axis": 1})
    cut = Node("SequenceUnpad", ("batch", "sorted"), ("words",), {"time_major": 1})
    sound = graph(ordered, taken, cut, layer(spec, "words", "y"), output="y.h", count=count)
    wrong = graph(ordered, taken, layer(spec, "batch", "y"), output="y.h", count=count)
    return sound, wrong


@fault("mask_ignored")
def mask_of_an_embedding() -> Pair:
    """Words that are 0 at the end of a sentence, as Keras's mask_zero skips them."""
    spec = RnnSpec(Cell.GRU, WIDTH, HIDDEN)
    look = Node("Gather", ("table", "ids"), ("rows",), {"axis": 0})
    major = Node("Transpose", ("rows",), ("steps",), {"perm": (1, 0, 2)})
    some = Node("Cast", ("ids",), ("some",), {"to": "bool"})
    ones = Node("Cast", ("some",), ("ones",), {"to": "int64"})
    count = Node("ReduceSum", ("ones", "time"), ("words",), {"keepdims": 0})
    cut = Node("SequenceUnpad", ("steps", "words"), ("ragged",), {"time_major": 1})
    table = {"table": numbers(20, WIDTH)}
    nodes = look, major, some, ones, count, cut, layer(spec, "ragged", "y")
    sound = graph(*nodes, output="y.h", time=np.array([1]), **table)
    return sound, graph(look, major, layer(spec, "steps", "y"), output="y.h", **table)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_beside_a_recording(name: str) -> None:
    wanted, make = FAULTS[name]
    sound, wrong = make()
    given = feed(sound)
    outputs = Session(sound, backend="reference").run(given)
    arrays = {f"in__{name}": value for name, value in given.items()}
    (expected,) = outputs.values()
    report = verify(wrong, {**arrays, "out__0": expected}, seconds=600)
    assert not report.passed
    assert [each.id for each in report.causes] == [wanted], report.causes


TWO_MODELS = ["gates_of_each_unit_together", "gates_of_paddle_swapped_before_a_sign_is_turned"]


@pytest.mark.parametrize("name", TWO_MODELS)
def test_gates_are_named_between_two_models(name: str) -> None:
    wanted, make = FAULTS[name]
    sound, wrong = make()
    report = verify(wrong, against=Against(sound))
    assert [(each.id, each.evidence) for each in report.causes] == [(wanted, "proved")]
    assert report.causes[0].text.startswith("matches when gates ")
