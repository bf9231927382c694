"""Ranks, offsets and sizes that a pass does not see are not guessed: fused, all is the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.cells import HIDDEN
from support.fusing import departures, fused_once
from support.layers import random_layer
from support.random_graphs import Discard, Sizes
from support.random_models import Models, Written

from onernn import Cell, FuseResult, RnnSpec
from onernn.fuse_passes import passes_for
from onernn.ir.graph import Value
from onernn.ops.control import scan_attributes
from onernn.reorders.gates import GateLayout

SIZES = Sizes(time=3, batch=3, lengths=(2, 0, 3, 1), groups=(1, 3))
SWAP = {"perm": (1, 0, 2)}


class Known(Models):
    """A graph made by hand: sizes as above, layers of one kind, nothing left to chance."""

    def __init__(self) -> None:
        super().__init__(np.random.default_rng(0))
        self.sizes = SIZES

    def chance(self, probability: float) -> bool:
        return False

    def stacked(self, parts: list[str], axis: int) -> str:
        return self.emit(
            "Concat", *(self.emit("Unsqueeze", p, self.ints(axis)) for p in parts), axis=axis
        )


def rnn(
    g: Models, x: str, cell: Cell = Cell.GRU, hidden: int = 3, projected: bool = False, **more: Any
) -> str:
    spec = RnnSpec(cell, g.array(x).shape[-1], hidden, **more)
    layer = random_layer(spec, 1, projected=projected)
    if projected:
        layer["weights"] = [replace(each, bias=None) for each in layer["weights"]]
    return g.add("Rnn", (x,), (g.name("y"),), layer)


def pair(g: Models, x: str, axis: int) -> str:
    both = [rnn(g, x, direction=d) for d in ("left2right", "right2left")]
    return g.emit("Concat", *both, axis=axis)


def behind_projection(g: Models, x: str, cell: Cell, *bias: int, **more: Any) -> str:
    gates = len(cell.gates)
    made = g.emit("MatMul", x, g.constant(g.numbers(4, 2 * gates)))
    made = g.emit("Add", made, g.constant(g.numbers(*bias)))
    layout = GateLayout(tuple(range(gates))[::-1], (-1,) * gates)
    made = g.emit("GateLayout", made, layout=layout)
    return rnn(g, made, cell, 2, projected=True, **more)


def feed_of(g: Known) -> dict[str, Any]:
    return {name: make(SIZES, np.random.default_rng(1)) for name, make in g.makers.items()}


def checked(g: Known, *outputs: str) -> FuseResult:
    graph, feed = g.graph(list(outputs)), feed_of(g)
    for backend, dtype in (("reference", "f32"), ("onednn", "f32"), ("onednn", "bf16")):
        fused_once(graph, passes_for(dtype))
        assert not departures(graph, [feed], backend, dtype)
    return fused_once(graph, passes_for("f32"))


def names(result: FuseResult) -> list[str]:
    return [each.name for each in result.applied if each.name != "identities"]


ACROSS: dict[str, Callable[[Known, str], str]] = {
    "gather": lambda g, x: g.emit("Gather", x, g.constant(np.array([[0, 1], [2, 3], [4, 5]]))),
    "unsqueeze": lambda g, x: g.emit("Unsqueeze", x, g.ints(0)),
}


@pytest.mark.parametrize("how", ACROSS)
def test_words_that_lost_their_offsets_pair_along_channels_only(how: str) -> None:
    for axis, acted in ((1, []), (-1, ["bidirectional"])):
        g = Known()
        x = ACROSS[how](g, g.ragged_input(4))
        assert names(checked(g, pair(g, x, axis))) == acted


def framed_and_back(g: Known, y: str) -> None:
    """Views that would undo each other if y were dense."""
    framed = g.emit("Reshape", y, g.ints(0, 0, 1, -1))
    checked(g, g.emit("Reshape", framed, g.ints(0, 0, -1)))


def test_sentences_of_a_pool_over_two_levels_are_ragged() -> None:
    for axis in (1, -1):
        g = Known()
        x = g.emit("SequencePool", g.ragged_input(4, levels=2), kind="sum", empty=0.0)
        y = pair(g, x, axis)
        assert names(checked(g, y)) == ["bidirectional"]
        framed_and_back(g, y)


def test_the_cells_of_a_ragged_lstm_are_ragged() -> None:
    g = Known()
    layer = random_layer(RnnSpec(Cell.LSTM, 4, 3), 0)
    *_, cells = g.add("Rnn", (g.ragged_input(4),), ("y", "h", "c", "cells"), layer)
    y = rnn(g, cells)
    framed_and_back(g, y)


@pytest.mark.parametrize("ragged", [True, False])
def test_channels_cut_apart_and_joined_run_at_once_where_no_words_move(ragged: bool) -> None:
    g = Known()
    x = g.ragged_input(3) if ragged else g.dense_input("N", 3)
    parts = [g.emit("Relu", part) for part in g.cut(x, 1)]
    joined = g.stacked(parts, 1)
    assert names(checked(g, joined)) == ["restacked_steps"] * (not ragged)


@pytest.mark.parametrize("rank", [1, 2])
def test_steps_of_other_ranks_stay_steps(rank: int) -> None:
    """x (T, N, C), and (T, C) or (T, N, C) of positions: step by step (N, C) + (C,)."""
    g = Known()
    x = g.dense_input(3, "N", 3)
    y = g.emit("Tanh", g.dense_input(*(3, "N", 3)[2 - rank :] if rank == 2 else (3, 3)))
    sums = [g.emit("Add", *pair) for pair in zip(g.cut(x, 0), g.cut(y, 0), strict=True)]
    joined = g.stacked(sums, 0)
    assert names(checked(g, joined)) == (["restacked_steps"] if rank == 2 else [])


@pytest.mark.parametrize("rank", [1, 2])
def test_flattened_numbers_stay_steps(rank: int) -> None:
    """Flatten makes (1, 1) of a number, (N, 1) of (N,)."""
    g = Known()
    steps = g.cut(g.dense_input(*(3, "N")[:rank]), 0)
    flat = [g.emit("Flatten", step) for step in steps]
    joined = g.stacked(flat, 0)
    assert names(checked(g, joined)) == ["restacked_steps"] * (rank == 2)


@pytest.mark.parametrize(
    "axis, moved", [(-1, True), (2, True), (-2, False), (1, False), (-3, False)]
)
def test_a_join_moves_in_front_of_views_along_an_axis_that_stays(axis: int, moved: bool) -> None:
    g = Known()
    parts = [g.emit("Transpose", g.dense_input("T", "N", 4), **SWAP) for _ in range(2)]
    assert names(checked(g, g.emit("Concat", *parts, axis=axis))) == ["moved_views"] * moved


@pytest.mark.parametrize("known", [True, False])
def test_a_join_of_matrices_stays_behind_their_views(known: bool) -> None:
    """An unknown number of axes is not guessed."""
    g = Known()
    parts = [g.emit("Einsum", g.dense_input("N", 3), equation="ab...->ba...") for _ in range(2)]
    y = g.emit("Concat", *parts, axis=-1)
    g.inputs = [value if known else replace(value, shape=None) for value in g.inputs]
    assert names(checked(g, y)) == []


@pytest.mark.parametrize("inner, folded", [(4, False), (3, True)])
def test_a_projection_is_folded_into_onednns_stack_where_it_keeps_the_width(
    inner: int, folded: bool
) -> None:
    g = Known()
    x = g.emit("MatMul", g.dense_input("T", "N", inner), g.constant(g.numbers(inner, 3)))
    y = rnn(g, x, layers=2, stacking="onednn")
    assert names(checked(g, y)) == ["linear_input"] * folded


def test_a_table_is_not_projected_for_onednns_stack() -> None:
    g = Known()
    ids = g.input(lambda sizes, rng: rng.integers(0, 5, sizes.of(("T", "N"))), ("T", "N"))
    x = g.emit("Gather", g.constant(g.numbers(5, 512)), ids)
    result = checked(g, rnn(g, x, Cell.RNN_TANH, hidden=512, layers=2, stacking="onednn"))
    assert names(result) == []
    assert any("own stacking" in refusal.reason for refusal in result.refusals)


@pytest.mark.parametrize("direction", ["bidirectional_concat", "bidirectional_sum"])
@pytest.mark.parametrize("cell", [Cell.RNN_TANH, Cell.LSTM, Cell.LBR_GRU])
def test_both_directions_take_one_projection(cell: Cell, direction: Any) -> None:
    g = Known()
    y = behind_projection(g, g.ragged_input(4), cell, len(cell.gates) * 2, direction=direction)
    assert names(checked(g, y)) == ["linear_rnn"]


def test_a_layer_without_bias_takes_that_of_its_projection() -> None:
    g = Known()
    y = behind_projection(g, g.dense_input("T", "N", 4), Cell.LBR_GRU, 1, 6)
    assert names(checked(g, y)) == ["linear_rnn"]


@pytest.mark.parametrize("bias", [(), (1,), (1, 1), (1, 1, 1)])
def test_one_column_takes_a_bias_of_any_number_of_axes(bias: tuple[int, ...]) -> None:
    for x in (Known.ragged_input, lambda g, width: g.dense_input("T", "N", width)):
        g = Known()
        made = g.emit("MatMul", x(g, 4), g.constant(g.numbers(4, 1)))
        try:
            made = g.emit("Add", made, g.constant(g.numbers(*bias)))
        except Exception:  # three axes are no words
            assert len(bias) == 3
            continue
        checked(g, rnn(g, made))


def test_a_bias_that_adds_an_axis_stays() -> None:
    g = Known()
    made = g.emit("MatMul", g.dense_input("N", 2), g.constant(g.numbers(2, 6)))
    made = g.emit("Add", made, g.constant(g.numbers(1, 1, 6)))
    assert names(checked(g, rnn(g, made))) == []


def test_what_a_late_pass_leaves_goes_to_the_early_ones_at_once() -> None:
    """Each direction has a projection of its own: folded, they read one value and pair."""
    g = Known()
    x = g.dense_input("T", "N", 2)
    weights = [g.constant(g.numbers(2, 8)) for _ in range(2)]
    both = [
        rnn(g, g.emit("MatMul", x, w), direction=d)
        for w, d in zip(weights, ("left2right", "right2left"), strict=True)
    ]
    result = checked(g, g.emit("Concat", *both, axis=2))
    assert names(result) == ["linear_input", "linear_input", "bidirectional"]


def test_bodies_that_see_ragged_values_stay() -> None:
    g = Known()
    x = g.ragged_input(4)
    inner = g.body([x], {})
    y = pair(inner, f"in_{x}", axis=1)
    graph = inner.graph([y])
    undeclared = replace(graph, inputs=(Value(f"in_{x}"),))
    branches = {"then_branch": undeclared, "else_branch": undeclared, "then_taken": 1}
    made = g.emit("If", g.input(lambda *_: np.array(True), ()), x, x, **branches)
    result = checked(g, made)
    assert any("ragged" in refusal.reason for refusal in result.refusals)


@pytest.mark.parametrize("rows, fused", [(3, True), (1, False)])
def test_a_state_that_grows_in_the_first_turn_is_no_layers(rows: int, fused: bool) -> None:
    """A cell repeats the one row that it begins with, a layer would refuse it."""
    g = Known()
    x = g.dense_input("T", "N", 3)
    state = g.constant(g.numbers(rows, HIDDEN))
    inner = g.body([], {"s0": g.known[state], "e": g.array(x)[0]})
    (after,) = Written(inner, 3).step("gru", "e", ["s0"], False)
    attributes = scan_attributes(inner.graph([after, inner.emit("Neg", after)]), 1)
    result = checked(g, *g.emit("Scan", state, x, outputs=2, **attributes))
    assert ("unrolled_cells" in names(result)) == fused


def test_a_state_of_one_row_stays_known_beside_a_state_of_any_shape() -> None:
    """A cell may be read with state and word exchanged: one row beside many is no layer's input."""
    g = Known()
    x, c = g.dense_input("T", "N", HIDDEN), g.dense_input("N", HIDDEN)
    h = g.constant(g.numbers(1, HIDDEN))
    inner = g.body([], {"s0": g.known[h], "s1": g.known[c], "e": g.array(x)[0]})
    after = Written(inner, HIDDEN).step("lstm", "e", ["s0", "s1"], False)
    body = inner.graph([*after, after[0]])
    shapes = {"s0": (None, None), "s1": (None, None), "e": None}
    body = replace(body, inputs=tuple(Value(n, "float32", shapes[n]) for n in shapes))
    made = g.emit("Scan", h, c, x, outputs=3, **scan_attributes(body, 2))
    graph = g.graph([*made])
    undeclared = tuple(replace(v, shape=None) if v.name == c else v for v in graph.inputs)
    assert not departures(replace(graph, inputs=undeclared), [feed_of(g)], "reference", "f32")


def test_names_that_a_pass_would_give_may_be_taken() -> None:
    g = Known()
    x = g.dense_input("T", "N", 3)
    both = []
    for direction in ("left2right", "right2left"):
        both.append((g.name("y"), g.name("h")))
        layer = random_layer(RnnSpec(Cell.LSTM, 3, 3, direction=direction), 0)
        g.add("Rnn", (x, g.constant(g.numbers(1, 1, 3, 3))), both[-1], layer)
    taken = [f"pair/{name}" for name in ("start0", "final0", "state0", "table", "y", "h")]
    for name in taken:
        g.add("Neg", (x,), (name,), {})
    g.add("Concat", (both[0][0], both[1][0]), ("pair",), {"axis": 2})
    total = g.emit("Add", both[0][1], both[1][1])
    assert names(checked(g, "pair", total, *taken)) == ["bidirectional"]


def test_a_gemm_is_a_product_of_matrices() -> None:
    """What else it could be, a pass that sees one would have to guess."""
    g = Known()
    with pytest.raises(Discard, match="expected matrices"):
        g.emit("Gemm", g.dense_input("T", "N", 3), g.constant(g.numbers(3, 2)))
