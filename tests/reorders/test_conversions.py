"""Recurrent layers through every pair of layouts: the same layer, to the bit."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from support import onnx_rnn
from support.graphs import new_node
from support.layers import DIRECTIONS, random_weights
from support.oracle import run_oracle

import onernn
from onernn import Activation, Cell, RnnSpec, RnnWeights, ShapeError, UnsupportedError
from onernn.adapters.weight_conversion import read_layer
from onernn.reorders.layers import PivotLayer
from onernn.reorders.layouts import FRAMEWORKS, table

FIELDS = ("layer", "iter", "bias", "peephole", "projection")


@st.composite
def layers(draw: st.DrawFn) -> PivotLayer:
    cell = draw(st.sampled_from(list(Cell)))
    more: dict[str, Any] = {}
    if cell is Cell.LSTM:
        more["peephole"] = draw(st.booleans())
        more["projection_size"] = draw(st.sampled_from([None, None, 2]))
    spec = RnnSpec(
        cell,
        draw(st.sampled_from([1, 2, 5])),
        draw(st.sampled_from([3, 4])),
        layers=draw(st.integers(1, 3)),
        direction=draw(st.sampled_from(DIRECTIONS)),
        **more,
    )
    weights = random_weights(spec, draw(st.integers(0, 99)))
    if draw(st.booleans()):  # without biases
        weights = [RnnWeights(w.layer, w.iter, None, w.peephole, w.projection) for w in weights]
    return PivotLayer.of(spec, weights)


def options(name: str, spec: RnnSpec) -> dict[str, Any]:
    """What a layout's arrays do not tell: attributes of the framework's layer."""
    function = spec.cell.activations[0].name
    if name.startswith("onednn"):
        return {"cell": spec.cell.value, "direction": spec.direction}
    if name == "onnx":
        lbr = spec.cell.linear_before_reset
        return {"linear_before_reset": lbr, "direction": spec.direction, "function": function}
    if name == "keras":
        found = {"reset_after": spec.cell.linear_before_reset, "function": function}
        return found | ({"merge": spec.direction} if spec.directions == 2 else {})
    if name in ("torch", "paddle-rnn"):
        return {"nonlinearity": function}
    if name in ("mxnet-gluon", "mxnet-gates"):
        return {"function": function}
    if name == "mxnet":
        mode = {"rnn_tanh": "rnn_tanh", "rnn_relu": "rnn_relu", "lbr_gru": "gru", "lstm": "lstm"}
        sizes = {"layers": spec.layers, "directions": spec.directions}
        return {"mode": mode[spec.cell.value], "hidden": spec.hidden_size, **sizes} | {
            "projection": spec.projection_size
        }
    return {}


def assert_same(got: PivotLayer, want: PivotLayer, *, direction: bool = True) -> None:
    for name in ("cell", "input_size", "hidden_size", "layers", "projection_size", "peephole"):
        assert getattr(got.spec, name) == getattr(want.spec, name), name
    assert not direction or got.spec.direction == want.spec.direction
    for mine, theirs in zip(got.weights, want.weights, strict=True):
        for field in FIELDS:
            one, other = getattr(mine, field), getattr(theirs, field)
            if one is None or other is None:
                # No bias and a bias of zeros are the same, where a layout must have one.
                assert (
                    one is other or field == "bias" and not np.any(one if other is None else other)
                )
            else:
                assert_array_equal(one, other)
                assert one.dtype == other.dtype


def says(name: str, layer: PivotLayer) -> bool:
    try:
        FRAMEWORKS[name].check(layer)
    except UnsupportedError:
        return False
    return True


@given(layers())
@settings(max_examples=25)
def test_layers_go_through_every_pair_of_layouts_and_back(layer: PivotLayer) -> None:
    able = [name for name in FRAMEWORKS if says(name, layer)]
    assert {"onednn", "onednn-ldgoi"} <= set(able)
    direct = {name: onernn.convert_weights(layer, name) for name in able}
    for first in able:
        middle = read_layer(direct[first], first, **options(first, layer.spec))
        # is_reverse is an attribute of Paddle's operators, not in the arrays.
        assert_same(middle, layer, direction=first not in ("paddle-gru", "paddle-lstm"))
        middle = PivotLayer(layer.spec, middle.weights)
        for second in able:
            again = onernn.convert_weights(middle, second)
            for name in {*again, *direct[second]} - zero_biases(again, direct[second]):
                assert_array_equal(again[name], direct[second][name], strict=True)


def zero_biases(one: dict, other: dict) -> set[str]:
    """Biases that one of them lacks, and that are zeros in the other."""
    lone = set(one) ^ set(other)
    return {name for name in lone if not np.any({**one, **other}[name])}


@given(layers(), st.sampled_from([n for n in FRAMEWORKS if not n.startswith("onednn")]))
def test_what_a_layout_cannot_say_is_refused_by_name(layer: PivotLayer, name: str) -> None:
    framework = FRAMEWORKS[name]
    if says(name, layer):
        assert framework.write(layer)
        return
    with pytest.raises(UnsupportedError, match=re.escape(f"{framework.title} has no ")):
        onernn.convert_weights(layer, name)


def one(cell: Cell, **more: Any) -> PivotLayer:
    spec = RnnSpec(cell, 3, 4, **more)
    return PivotLayer.of(spec, random_weights(spec, 0))


OBSTACLES = [
    ("torch", one(Cell.GRU), "GRU with the reset gate before the product"),
    ("torch", one(Cell.LSTM, peephole=True), "peepholes"),
    ("torch", one(Cell.AUGRU), r"GRU with attention \(AUGRU\)"),
    ("torch", one(Cell.RNN_SIGMOID), "plain RNN with sigmoid"),
    ("torch", one(Cell.LSTM, direction="right2left"), "layers that run right2left"),
    ("torch", one(Cell.LSTM, gate_clip=1.0), "clipped gates"),
    ("torch", one(Cell.LSTM, cell_clip=(-1, 1)), "a clipped cell state"),
    ("torch", one(Cell.LSTM, input_forget=True), "coupled input and forget gates"),
    ("torch", one(Cell.LBR_GRU, activations=("tanh", "tanh")), "tanh, tanh, only with sigmoid"),
    ("onnx", one(Cell.LSTM, projection_size=2), "a projection"),
    ("onnx", one(Cell.LSTM, direction="bidirectional_sum"), "run bidirectional_sum"),
    ("keras", one(Cell.LSTM, projection_size=2), "a projection"),
    ("paddle-gru", one(Cell.LBR_GRU), "GRU with the reset gate behind the product"),
    ("paddle-gru", one(Cell.GRU, layers=2), "stacks of layers"),
    ("paddle-rnn", one(Cell.GRU), "GRU with the reset gate before the product"),
    ("mxnet", one(Cell.LSTM, peephole=True), "peepholes"),
    ("onnx", one(Cell.GRU, update="replace", activations=("tanh", "tanh")), "replaces with its"),
    ("mxnet-gates", one(Cell.LSTM, projection_size=2), "a projection"),
]


@pytest.mark.parametrize("name, layer, obstacle", OBSTACLES)
def test_the_obstacle_is_named(name: str, layer: PivotLayer, obstacle: str) -> None:
    with pytest.raises(UnsupportedError, match=f"has no .*{obstacle}"):
        onernn.convert_weights(layer, name)


def test_an_input_that_is_projected_already_has_no_input_weights_to_write() -> None:
    spec = RnnSpec(Cell.LSTM, 16, 4)
    layer = PivotLayer.of(spec, random_weights(spec, 0, projected=True))
    with pytest.raises(UnsupportedError, match="projected"):
        onernn.convert_weights(layer, "torch")


def test_layers_come_as_specs_nodes_and_arrays() -> None:
    layer = one(Cell.LSTM)
    want = onernn.convert_weights(layer, "torch")
    node = new_node("y = Rnn x", spec=layer.spec, weights=layer.weights[0])
    for form in ((layer.spec, layer.weights), (layer.spec, layer.weights[0]), node):
        got = onernn.convert_weights(form, "torch")
        assert set(got) == set(want)
        for key in want:
            assert_array_equal(got[key], want[key])
    wrong = (
        (want, "onnx", "", "source="),
        (layer, "caffe", "", "'caffe': .*onednn"),
        (3, "torch", "", "int"),
        (layer, "torch", "onnx", "source"),
    )
    for form, name, source, told in wrong:
        with pytest.raises(UnsupportedError, match=told):
            onernn.convert_weights(form, name, **({"source": source} if source else {}))


def test_arrays_that_nobody_reads_or_that_are_missing_are_named() -> None:
    state = onernn.convert_weights(one(Cell.LSTM), "torch")
    with pytest.raises(ShapeError, match="got running_mean"):
        read_layer({**state, "running_mean": np.zeros(3)}, "torch")
    del state["bias_hh_l0"]
    with pytest.raises(ShapeError, match="bias_hh is missing|bias_hh_l0 is missing"):
        read_layer(state, "torch")
    for name in FRAMEWORKS:
        with pytest.raises((ShapeError, UnsupportedError, TypeError)):
            read_layer({}, name)


@pytest.mark.parametrize("shape", [(4,), (4, 5), (0, 4), (4, 4, 4), ()])
@pytest.mark.parametrize("name", [n for n in FRAMEWORKS if n != "mxnet"])
def test_arrays_of_odd_shapes_are_refused(name: str, shape: tuple[int, ...]) -> None:
    layer = one(Cell.LBR_GRU if name not in ("paddle-gru", "paddle-lstm") else Cell.GRU)
    if name == "paddle-lstm":
        layer = one(Cell.LSTM)
    arrays = onernn.convert_weights(layer, name)
    for key in arrays:
        broken = {**arrays, key: np.zeros(shape, np.float32)}
        if broken[key].shape == arrays[key].shape:
            continue
        with pytest.raises((ShapeError, UnsupportedError, ValueError)):
            read_layer(broken, name, **options(name, layer.spec))


def test_the_table_in_the_documentation_is_what_the_code_says(repo: Path) -> None:
    page = (repo / "design" / "0029-an-adapter-is-a-record.md").read_text()
    assert table() in page


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng([*shape]).uniform(-0.5, 0.5, shape)


# Layers of 3 channels and 4 units as each framework documents them: arrays of its names, and what
# ONNX calls W, R and B of the same layer. ONNX's gates: z, r, h and i, o, f, c.
DOCUMENTED: dict[str, tuple[str, dict[str, np.ndarray], str, Callable[..., list[Any]]]] = {
    "PyTorch's GRU: r, z, n": (
        "torch",
        {"weight_ih_l0": drawn(12, 3), "weight_hh_l0": drawn(12, 4), "bias_ih_l0": drawn(12),
         "bias_hh_l0": drawn(12)},
        "rzn",
        lambda w, r, b, d: [w, r, [b, d]],
    ),
    "Keras's GRU, a bias for each product": (
        "keras",
        {"kernel": drawn(3, 12), "recurrent_kernel": drawn(4, 12), "bias": drawn(2, 12)},
        "zrn",
        lambda w, r, b: [w.T, r.T, b],
    ),
    "Keras's GRU, reset before the product": (
        "keras",
        {"kernel": drawn(3, 12), "recurrent_kernel": drawn(4, 12), "bias": drawn(12)},
        "zrn",
        lambda w, r, b: [w.T, r.T, [b, 0 * b]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DOCUMENTED)
def test_arrays_are_what_the_framework_documents(name: str) -> None:
    framework, arrays, order, as_onnx = DOCUMENTED[name]
    layer, x = read_layer(arrays, framework), drawn(5, 1, 3)
    (y,), _ = run_oracle(
        layer.spec,
        list(layer.weights),
        [x[:, 0]],
        tuple(np.zeros((1, 1, 1, 4)) for _ in layer.spec.cell.states),
    )
    rows = [order.index(gate) for gate in ("iofc" if len(order) == 4 else "zrn")]

    def gates(array: Any) -> np.ndarray:
        """Rows of gates in ONNX's order, behind an axis of one direction."""
        return np.reshape(array, (len(order), 4, -1))[rows].reshape(1, 4 * len(order), -1)

    w, r, b = as_onnx(*arrays.values())
    given = {"X": x, "W": gates(w), "R": gates(r)}
    given["B"] = np.concatenate([gates(each) for each in b], axis=1)[..., 0]
    attributes = {} if len(order) == 4 else {"linear_before_reset": int("before" not in name)}
    want = onnx_rnn.run_oracle(
        onnx_rnn.Case("LSTM" if len(order) == 4 else "GRU", attributes, given, ["Y"], hidden=4)
    )
    assert_allclose(y, want["Y"][:, 0, 0], rtol=1e-12)


def test_ldgoi_places_each_scalar_by_its_address() -> None:
    layer = one(Cell.LSTM)
    ldigo = onernn.convert_weights(layer, "onednn")["weights_layer"]
    ldgoi = onernn.convert_weights(layer, "onednn-ldgoi")["weights_layer"]
    for i, g, o in itertools.product(range(3), range(4), range(4)):
        assert ldgoi.reshape(-1)[(g * 4 + o) * 3 + i] == ldigo.reshape(-1)[(i * 4 + g) * 4 + o]


def test_keras_functions_other_than_the_usual_ones_travel_with_the_layer() -> None:
    hard = Activation("hardsigmoid", 0.2, 0.5)
    arrays = onernn.convert_weights(one(Cell.LSTM), "keras")
    layer = read_layer(arrays, "keras", activations=(hard, Activation("tanh"), Activation("tanh")))
    assert layer.spec.functions[0] == hard
    with pytest.raises(UnsupportedError, match="PyTorch has no LSTM with functions hardsigmoid"):
        onernn.convert_weights(layer, "torch")
