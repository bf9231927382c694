"""Statements of oneDNN's RNN guide and of the oneAPI specification, on every backend.

The equations and the order of gates, as the texts print them, stand in support/oracle.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.arrays import uniform
from support.checking import assert_close, assert_same, check_layer
from support.layers import prepare_on, random_state, random_weights

from onernn import Cell, RnnSpec, RnnWeights, ShapeError
from onernn.backend import open_backend
from onernn.backend.onednn import kernels
from onernn.backend.onednn.kernels import PrimitiveDirection, Shape
from onernn.backend.onednn.library import load_library
from onernn.backend.onednn.precision import PRECISIONS
from onernn.ir.weights import layers_of

BACKENDS = ["reference", "onednn", "kernels", "auto"]
every = pytest.mark.parametrize("backend", BACKENDS)
SIZES = (4, 3, 5)  # T, N, I
UNITS = 6


def check(
    backend: str, spec: RnnSpec, weights: RnnWeights | None = None, meant: RnnSpec | None = None
) -> None:
    """Against the texts' equations, which `support.oracle` has gate by gate.

    ``weights``: those that the layer gets in place of the equations'; ``meant``: the equations'.
    """
    (own,), rng = random_weights(spec, 1), np.random.default_rng(2)
    x = rng.uniform(-1, 1, SIZES).astype(np.float32)
    attention = rng.uniform(0, 1, (*SIZES[:2], 1)).astype(np.float32)
    layer = prepare_on(backend, spec, weights or own, strict=True)
    state, given = random_state(spec, SIZES[1], 3), attention if spec.cell.has_attention else None
    check_layer(layer, meant or spec, [own], x, state, given)


@every
@pytest.mark.parametrize("cell", [Cell.GRU, Cell.LBR_GRU])
def test_minus_one_times_the_update_gate_replaces_u_by_one_minus_u(
    backend: str, cell: Cell
) -> None:
    spec = RnnSpec(cell, SIZES[2], UNITS)
    (weights,) = random_weights(spec, 1)
    turned = {name: array.copy() for name, array in weights.arrays.items()}
    for array in turned.values():
        array[..., 0, :] *= -1
    check(backend, spec, RnnWeights(**turned), replace(spec, update="replace"))


@every
def test_zero_peepholes_and_an_identity_as_projection_change_nothing(backend: str) -> None:
    spec = RnnSpec(Cell.LSTM, 5, UNITS)
    (weights,) = random_weights(spec, 7)
    x = uniform(*SIZES, seed=7)
    opened = open_backend(backend)
    want, _ = opened.prepare(spec, weights, strict=True).run(x)
    more = {
        "peephole": np.zeros((1, 1, 3, UNITS), np.float32),
        "projection": np.eye(UNITS, dtype=np.float32)[None, None],
    }
    for name, array in more.items():
        fields = {"peephole": True} if name == "peephole" else {"projection_size": UNITS}
        other = RnnSpec(Cell.LSTM, 5, UNITS, **fields)  # type: ignore[arg-type]
        same = RnnWeights(**{**weights.arrays, name: array})
        assert_close(np.asarray(opened.prepare(other, same, strict=True).run(x)[0]), want)
        with pytest.raises(ShapeError, match=f"weights {name}: expected none, got"):
            opened.prepare(spec, same)


@every
def test_bias_and_initial_state_are_zero_where_they_are_not_given(backend: str) -> None:
    for cell in (Cell.RNN_TANH, Cell.LSTM, Cell.GRU, Cell.LBR_GRU):
        spec = RnnSpec(cell, 5, UNITS)
        (weights,) = random_weights(spec, 8)
        x = uniform(*SIZES, seed=8)
        opened = open_backend(backend)
        zeros = np.zeros((1, 1, cell.bias_rows, UNITS), np.float32)
        state = tuple(np.zeros((1, 1, 3, UNITS), np.float32) for _ in cell.states)
        bare, given = (RnnWeights(weights.layer, weights.iter, b) for b in (None, zeros))
        y, final = opened.prepare(spec, bare, strict=True).run(x)
        want, ends = opened.prepare(spec, given, strict=True).run(x, state)
        assert_same(y, want)
        assert_same(final, ends)


def test_a_primitive_chooses_the_layout_of_its_weights_and_gets_them_in_it() -> None:
    """Created with "any", then asked; the plain layout is not what it chooses."""
    library, spec = load_library(), RnnSpec(Cell.LSTM, 32, 32)
    if library.effective_isa == "sse41":
        pytest.skip("oneDNN's code for CPUs without AVX reads plain weights")
    (weights,) = layers_of(spec, random_weights(spec, 11))
    direction = PrimitiveDirection(library, spec, weights, PRECISIONS["f32"])
    primitive, packed = direction.get(Shape(4, 8, 32, 32)), direction.packed
    for name in ("weights_layer", "weights_iter"):
        layout = primitive.layouts[name]
        assert layout != direction.plain[name].descriptor
        assert packed.get(name, layout).descriptor == layout
        assert packed.get(name, layout) is packed.get(name, layout)  # packed once
    assert packed.get("bias", primitive.layouts["bias"]) is direction.plain["bias"]


def test_each_weight_has_its_plain_layout() -> None:
    expected = ["ldigo", "ldigo", "ldgo", "ldgo", "ldio"]
    assert list(kernels.WEIGHTS.values()) == expected


def test_gradients_are_float32_also_where_data_are_bf16() -> None:
    spec = RnnSpec(Cell.LSTM, 5, UNITS, peephole=True)
    for backend in BACKENDS[1:]:
        layer = prepare_on(backend, spec, 13, dtype="bf16")
        y, state, tape = layer.run_training(np.ones(SIZES, np.float32))
        found = layer.backward(tape, y, state)
        arrays = [found.x, *found.state, *found.layers[0].arrays.values()]
        assert {np.asarray(a).dtype for a in arrays} == {np.dtype(np.float32)}
