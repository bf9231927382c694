"""Cells written out step by step are found by structure, become one rnn, and compute the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from support.arrays import uniform
from support.cells import BATCH, HIDDEN, INPUT, Unrolled
from support.fusing import check_fused, fired, layer_nodes, operators, reasons
from support.graphs import new_node, small_graph

from onernn import Cell, FuseResult, Graph, fuse
from onernn.ir.graph import Node
from onernn.ops.control import scan_attributes

Step = Callable[[Unrolled, str, tuple[str, ...]], tuple[str, ...]]


def projected(u: Unrolled, x: str, states: tuple[str, ...]) -> tuple[str, ...]:
    h, c = u.lstm(x, *states)
    return u.emit("Gemm", h, u.weight("projection", HIDDEN, HIDDEN), transB=1), c


CELLS: dict[str, tuple[Step, Cell, tuple[str, ...]]] = {
    "rnn tanh": (lambda u, x, s: (u.rnn(x, *s),), Cell.RNN_TANH, ("h0",)),
    "rnn relu": (lambda u, x, s: (u.rnn(x, *s, act="Relu"),), Cell.RNN_RELU, ("h0",)),
    "lstm": (lambda u, x, s: u.lstm(x, *s), Cell.LSTM, ("h0", "c0")),
    "lstm, other order": (lambda u, x, s: u.lstm(x, *s, order="ogif"), Cell.LSTM, ("h0", "c0")),
    "lstm, gates apart": (lambda u, x, s: u.lstm_apart(x, *s), Cell.LSTM, ("h0", "c0")),
    "lstm, projected": (projected, Cell.LSTM, ("h0", "c0")),
    "gru": (lambda u, x, s: (u.gru(x, *s),), Cell.LBR_GRU, ("h0",)),
    "gru, ones like z": (lambda u, x, s: (u.gru(x, *s, ones=True),), Cell.LBR_GRU, ("h0",)),
    "gru, z lets in": (lambda u, x, s: (u.gru(x, *s, turned=True),), Cell.LBR_GRU, ("h0",)),
    "gru, reset before": (lambda u, x, s: (u.gru_before(x, *s),), Cell.GRU, ("h0",)),
}


def feed(steps: int, seed: int = 0) -> dict[str, np.ndarray]:
    shapes = {"x": (BATCH, steps, INPUT), "h0": (BATCH, HIDDEN), "c0": (BATCH, HIDDEN)}
    return {name: uniform(*shape, seed=[seed, *shape]) for name, shape in shapes.items()}


def checked(graph: Graph, steps: int) -> FuseResult:
    given = {value.name: feed(steps)[value.name] for value in graph.inputs}
    return check_fused(graph, given, backends=("reference", "onednn"))


def chain(
    u: Unrolled, cell: str | Step, states: tuple[str, ...] = (), xs: list[str] | None = None
) -> tuple[list[str], tuple[str, ...]]:
    """Of one of `CELLS`, from its states, over all steps, unless told."""
    step, _, begin = CELLS[cell] if isinstance(cell, str) else (cell, None, ("h0",))
    outputs, states = [], states or begin
    for x in xs or u.x:
        states = step(u, x, states)
        outputs.append(states[0])
    return outputs, states


# One step of an Elman cell alone is a sum of two projections, which is refused below; one of a
# projected LSTM is a plain one's with a projection behind it.
ONE_STEP = [name for name in CELLS if not name.startswith("rnn") and "projected" not in name]
LENGTHS = [(name, n) for name in CELLS for n in (1, 2, 5) if n > 1 or name in ONE_STEP]


@pytest.mark.parametrize("name, steps", LENGTHS)
def test_a_chain_of_cells_becomes_one_rnn(name: str, steps: int) -> None:
    u, cell = Unrolled(steps), CELLS[name][1]
    outputs, states = chain(u, name)
    result = checked(u.graph(u.stacked(outputs), *states), steps)
    (rnn,) = layer_nodes(result)
    spec = rnn.attributes["spec"]
    assert (spec.cell, spec.direction) == (cell, "left2right")
    assert (spec.input_size, spec.hidden_size) == (INPUT, HIDDEN)
    assert not {"Sigmoid", "Tanh", "Gemm", "Mul"} & {*operators(result)}
    assert {op.type for op in rnn.origin} >= {"native_Gemm", "native_Add"}
    assert "unrolled_cells" in fired(result)


@pytest.mark.parametrize("name", CELLS)
def test_a_chain_over_the_steps_backwards_is_a_rnn_right_to_left(name: str) -> None:
    u = Unrolled(4)
    outputs, states = chain(u, name, xs=u.x[::-1])
    result = checked(u.graph(u.stacked(outputs[::-1]), u.stacked(outputs), *states), 4)
    (rnn,) = layer_nodes(result)
    assert rnn.attributes["spec"].direction == "right2left"
    assert rnn.attributes["spec"].cell is CELLS[name][1]


@pytest.mark.parametrize("name", CELLS)
def test_both_directions_joined_step_by_step_become_one_rnn(name: str) -> None:
    u = Unrolled(4)
    zeros = u.constant(np.zeros((1, HIDDEN), np.float32))
    begin = (zeros,) * (2 if "lstm" in name else 1)
    forwards, _ = chain(u, name, begin)
    backwards, _ = chain(u, name, begin, u.x[::-1])
    joined = [
        u.emit("Concat", one, other, axis=1)
        for one, other in zip(forwards, backwards[::-1], strict=True)
    ]
    result = checked(u.graph(u.stacked(joined)), 4)
    (rnn,) = layer_nodes(result)
    assert rnn.attributes["spec"].direction == "bidirectional_concat"
    assert rnn.inputs[1:] in ((), ("",), ("", ""))


def test_a_narrower_projection_is_the_recurrent_width() -> None:
    u, narrow = Unrolled(3), HIDDEN - 1

    def step(u: Unrolled, x: str, states: tuple[str, ...]) -> tuple[str, ...]:
        h, c = u.lstm(x, *states)
        return u.emit("MatMul", h, u.weight("narrow", HIDDEN, narrow)), c

    u.weight("lstm_h_w", 4 * HIDDEN, narrow)
    zeros = (u.constant(np.zeros((1, size), np.float32)) for size in (narrow, HIDDEN))
    outputs, states = chain(u, step, tuple(zeros))
    (rnn,) = layer_nodes(checked(u.graph(u.stacked(outputs), *states), 3))
    spec = rnn.attributes["spec"]
    assert (spec.hidden_size, spec.projection_size) == (HIDDEN, narrow)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_projection_that_no_step_reads_is_none_of_the_state(steps: int) -> None:
    u = Unrolled(steps)
    outputs, states = chain(u, "lstm")
    weight = u.weight("out", HIDDEN, HIDDEN)
    made = [u.emit("MatMul", each, weight) for each in outputs]
    (rnn,) = layer_nodes(checked(u.graph(u.stacked(made), *states), steps))
    assert rnn.attributes["spec"].projection_size is None


def test_layers_above_one_another_each_become_one() -> None:
    u = Unrolled(4)
    lower_layer, _ = chain(u, "gru")
    upper, _ = chain(u, lambda u, x, s: (u.gru(x, *s, name="upper"),), xs=lower_layer)
    result = checked(u.graph(u.stacked(upper, axis=0)), 4)
    assert sum(each.attributes["spec"].layers for each in layer_nodes(result)) == 2
    assert not {"Gemm", "Sigmoid", "Split"} & {*operators(result)}


def test_element_wise_operators_between_run_over_all_steps_at_once() -> None:
    u = Unrolled(3)
    halved = [u.emit("Mul", u.emit("Relu", x), u.constant(np.float32([0.5]))) for x in u.x]
    outputs, _ = chain(u, "gru", xs=halved)
    moved = [u.emit("Add", out, step) for out, step in zip(outputs, outputs[:1] * 3, strict=True)]
    result = checked(u.graph(u.stacked(outputs), u.stacked(moved)), 3)
    counts = map(operators(result).count, ("Relu", "Mul", "Rnn"))
    assert [*counts] == [1, 1, 1]


def test_inputs_that_come_from_nowhere_together_are_copied_together() -> None:
    u = Unrolled(3)
    others = [u.x[2], u.x[0], u.emit("Neg", u.x[1])]
    outputs, _ = chain(u, "lstm", xs=others)
    (rnn,) = layer_nodes(checked(u.graph(*outputs), 3))
    assert rnn.attributes["spec"].cell is Cell.LSTM


def test_single_outputs_of_the_chain_stay_available() -> None:
    u = Unrolled(5)
    outputs, _ = chain(u, "lstm")
    result = checked(u.graph(outputs[1], outputs[4]), 5)
    assert len(layer_nodes(result)) == 1


def test_states_of_zeros_are_left_out() -> None:
    u = Unrolled(3)
    for shape in ((1, HIDDEN), (BATCH, HIDDEN)):
        zeros = u.constant(np.zeros(shape, np.float32))
        outputs, _ = chain(u, "lstm", (zeros, "c0"))
        (rnn,) = layer_nodes(checked(u.graph(outputs[-1]), 3))
        assert rnn.inputs[1] == "" and rnn.inputs[2] != ""


def refused(u: Unrolled, *outputs: str) -> set[str]:
    found = reasons(checked(u.graph(*outputs), u.steps))
    return {each for each in found if each.startswith("unrolled_cells")}


def test_a_cell_state_that_somebody_else_reads_is_left_alone() -> None:
    u = Unrolled(3)
    h, c = u.lstm(u.x[0], "h0", "c0")
    first = c
    for x in u.x[1:]:
        h, c = u.lstm(x, h, c)
    assert refused(u, h, first) == {f"unrolled_cells: {first!r} has another user"}


def test_a_gate_that_somebody_else_reads_is_left_alone() -> None:
    u = Unrolled(3)
    outputs, _ = chain(u, "gru")
    gate = next(node.outputs[0] for node in u.nodes if node.op == "Sigmoid")
    assert refused(u, outputs[-1], gate) == {f"unrolled_cells: {gate!r} has another user"}


def test_a_decoder_that_reads_its_own_output_is_left_alone() -> None:
    u = Unrolled(3)
    h, x = "h0", u.x[0]
    for _ in range(3):
        h = u.gru(x, h)
        x = u.emit("Add", u.emit("Gemm", h, u.weight("back", HIDDEN, INPUT)), u.x[1])
    assert "unrolled_cells: its input depends on its own output" in refused(u, h)


def test_a_state_that_is_one_for_all_sentences_is_left_alone() -> None:
    u = Unrolled(2)
    learned = u.constant(np.full((1, HIDDEN), 0.5, np.float32), "learned")
    outputs, _ = chain(u, "gru", (learned,))
    assert refused(u, outputs[-1]) == {"unrolled_cells: 'learned' is one state for all sequences"}


def test_inputs_of_constants_only_are_left_alone() -> None:
    u = Unrolled(2)
    start = u.emit("Neg", u.constant(np.ones((1, INPUT), np.float32)))
    outputs, _ = chain(u, "gru", xs=[start, u.x[0]])
    assert refused(u, outputs[-1]) == {"unrolled_cells: its input depends on constants only"}


def not_fused(u: Unrolled, *outputs: str) -> None:
    assert layer_nodes(checked(u.graph(*outputs), u.steps)) == []


def test_one_sum_of_projections_is_no_elman_cell() -> None:
    u = Unrolled(1)
    not_fused(u, u.rnn(u.x[0], "h0"))


def test_other_weights_in_each_step_are_a_chain_each() -> None:
    u = Unrolled(3)
    h = "h0"
    for k, x in enumerate(u.x):
        h = u.rnn(x, h, name=f"rnn{k}")
    not_fused(u, h)


def test_weights_that_are_computed_are_no_cell() -> None:
    u = Unrolled(2)
    u.weight("raw", 3 * HIDDEN, INPUT)
    u.constants["gru_x_w"] = u.constants["raw"]
    outputs, _ = chain(u, "gru")
    computed = new_node("relu_w = Relu raw")
    nodes = [
        replace(node, inputs=tuple("relu_w" if i == "gru_x_w" else i for i in node.inputs))
        for node in u.nodes
    ]
    u.nodes = [computed, *nodes]
    not_fused(u, outputs[-1])


@pytest.mark.parametrize("swap", ["Sigmoid", "Tanh", "Sub", "Mul"])
def test_a_formula_that_is_another_one_is_no_cell(swap: str) -> None:
    """Each operator of a GRU exchanged in turn: the numbers would be wrong."""
    other = {"Sigmoid": "Tanh", "Tanh": "Sigmoid", "Sub": "Add", "Mul": "Add"}[swap]
    u = Unrolled(2)
    outputs, _ = chain(u, "gru")
    for at, node in enumerate(u.nodes):
        if node.op == swap:
            kept, u.nodes[at] = node, replace(node, op=other)
            result = checked(u.graph(*outputs), 2)
            specs = [each.attributes["spec"] for each in layer_nodes(result)]
            functions = [each.functions for each in specs if each.cell is Cell.LBR_GRU]
            assert functions.count(Cell.LBR_GRU.activations) < 2
            u.nodes[at] = kept


def scan(step: Step, begin: tuple[str, ...], *, collects: str = "h") -> Graph:
    """The cell as the body of a scan over x (T, N, I)."""
    u = Unrolled(1)
    u.nodes.clear()
    u._count = 100
    states = step(u, "x_t", tuple(f"{name}_in" for name in begin))
    out = states[0] if collects == "h" else u.emit("Neg", states[0])
    shapes = {f"{name}_in": (None, HIDDEN) for name in begin} | {"x_t": (None, INPUT)}
    body = small_graph(u.nodes, " ".join((*states, out)), u.constants, **shapes).prune()
    outputs = tuple(f"{name}_out" for name in (*begin, "y"))
    node = Node("Scan", (*begin, "x"), outputs, scan_attributes(body, len(begin)))
    return small_graph([node], " ".join(outputs), **dict.fromkeys(("x", *begin)))


@pytest.mark.parametrize("name", CELLS)
def test_a_scan_over_one_cell_becomes_a_rnn(name: str) -> None:
    step, cell, begin = CELLS[name]
    given = feed(5)
    given = {"x": given["x"].swapaxes(0, 1), **{k: given[k] for k in begin}}
    result = check_fused(scan(step, begin), given, backends=("reference", "onednn"))
    assert [each.attributes["spec"].cell for each in layer_nodes(result)] == [cell]
    assert "scanned_cells" in fired(result)


def test_a_scan_that_collects_something_else_is_left_alone() -> None:
    step, _, begin = CELLS["gru"]
    result = fuse(scan(step, begin, collects="other"))
    assert layer_nodes(result) == [] and reasons(result)[0].startswith("scanned_cells")


def test_a_body_that_is_no_cell_is_left_alone() -> None:
    graph = scan(
        lambda u, x, s: (u.emit("Add", s[0], u.emit("Gemm", x, u.weight("w", INPUT, HIDDEN))),),
        ("h0",),
    )
    assert reasons(fuse(graph)) == ["scanned_cells: its body is not one recurrent cell"]
