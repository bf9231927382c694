"""Programs of Paddle's int8 and bf16 passes, as 2.6.2 ran them: record_paddle_int8.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onernn import Graph, Ragged, Session, UnsupportedError, load
from onernn.adapters.paddle.lower import lower
from onernn.adapters.paddle.partition import LiveProgram
from onernn.adapters.paddle.read import Operator, read_program
from onernn.backend.onednn.library import load_library
from onernn.ir.arrays import Array
from onernn.ir.ragged import data_of
from onernn.ir.rnn import Recurrent
from onernn.verification.recording import read_arrays

DATA = Path(__file__).parents[2] / "data" / "paddle_int8"
INT8 = ["gru_bytes", "gru_fused", "gru_state", "lstm_reverse", "lstm_state", "multi_gru"]
BF16 = ["gru_bf16", "lstm_bf16"]
STEP = 0.5 / 127
"""What a byte of h stands for: the recorded range is 0.5."""


def feeds(name: str) -> dict[str, Any]:
    arrays = read_arrays(DATA / name / "io.npz", ("in__", "lod__"))
    data = {k[4:]: v for k, v in arrays.items() if k.startswith("in__")}
    lods = {k[5:]: v for k, v in arrays.items() if k.startswith("lod__")}
    return {k: Ragged(v, lods[k]) if k in lods else v for k, v in data.items()}


def differences(model: Graph, name: str, backend: str = "auto") -> list[Array]:
    """Ours minus Paddle's, an array for each output."""
    wanted = read_arrays(DATA / name / "io.npz", ("out__",)).values()
    made = Session(model, backend=backend).run(feeds(name)).values()
    return [data_of(y) - want for y, want in zip(made, wanted, strict=True)]


def has_vnni() -> bool:
    return load_library().sums_u8_exactly


@pytest.mark.parametrize("backend", ["auto", "onednn"])
@pytest.mark.parametrize("name", INT8)
def test_an_int8_layer_gives_paddles_numbers(name: str, backend: str) -> None:
    """To the bit where Paddle recorded; on another CPU a tanh may round to the next byte."""
    if not has_vnni():
        pytest.skip("oneDNN's int8 layers need AVX-512 VNNI")
    model = load(DATA / name)
    (rnn,) = (Recurrent.of(node) for node in model.nodes if node.op == "Rnn")
    assert rnn.precision.dtype == "u8" and rnn.x == "x"  # bytes are made inside the layer
    (apart,) = differences(model, name, backend)
    assert np.abs(apart).max() < 2.5 * STEP
    assert (apart == 0).mean() > 0.9
    (wide,) = differences(model, name, "reference")
    assert np.abs(wide).max() > 2.5 * STEP  # float32 is no answer


@pytest.mark.parametrize("name", ["lstm_reverse", "lstm_state"])
def test_kernels_have_the_scales_too(name: str) -> None:
    """They round h for products alone; an LSTM whose h stays in range is near."""
    (apart,) = differences(load(DATA / name), name, "kernels")
    assert 0 < np.abs(apart).max() < 2.5 * STEP


@pytest.mark.parametrize("backend", ["auto", "onednn", "kernels"])
@pytest.mark.parametrize("name", BF16)
def test_a_bf16_layer_gives_paddles_numbers(name: str, backend: str) -> None:
    model = load(DATA / name)
    (rnn,) = (Recurrent.of(node) for node in model.nodes if node.op == "Rnn")
    assert rnn.precision.dtype == "bf16"
    (apart,) = differences(model, name, backend)
    assert np.abs(apart).max() <= 2.0**-8  # h is below 1: half a unit of bf16, and what it moves


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_bytes_are_rounded_as_paddle_rounds_them(backend: str) -> None:
    """Numbers between two bytes, beside them, and beyond all."""
    found = differences(load(DATA / "bytes_around"), "bytes_around", backend)
    assert len(found) == 8 and not any(apart.any() for apart in found)


def changed(name: str, change: Callable[[Operator], Operator]) -> Graph:
    program = read_program(DATA / name)
    return lower(replace(program, operators=tuple(map(change, program.operators))))


def having(type: str, **attributes: Any) -> Callable[[Operator], Operator]:  # noqa: A002
    """Another value of attributes of the operators of a type."""
    return lambda op: (
        replace(op, attributes={**op.attributes, **attributes}) if op.type == type else op
    )


@pytest.mark.parametrize(
    "name, change, reason",
    [
        ("gru_fused", having("fusion_gru", Scale_weights=(1.0, 2.0)), "expected 1 or 15 values"),
        ("gru_fused", having("fusion_gru", Scale_weights=(-1.0,)), "positive, finite values"),
        ("gru_fused", having("fusion_gru", Scale_data=0.0), "Scale_data=0, Shift_data=128"),
        ("gru_fused", having("fusion_gru", Shift_data=300.0), "Shift_data=300: expected"),
        ("gru_fused", having("fusion_gru", activation="relu"), "activations sigmoid and tanh"),
        ("gru_bf16", having("fusion_gru", activation="relu"), "activations sigmoid and tanh"),
        ("gru_fused", having("quantize", Shift=0.0), "expected float32 or uint8, got int8"),
        ("gru_bf16", having("quantize", Scale=2.0), "bfloat16=True: expected .* got 2 and 0"),
        ("bytes_around", having("requantize", Shift_out=1.0), "Shift_out: expected a total shift"),
    ],
)
def test_what_paddle_has_not_is_refused_by_name(
    name: str, change: Callable[[Operator], Operator], reason: str
) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        Session(changed(name, change))


def test_bytes_that_another_operator_computes_with_are_refused() -> None:
    """An fc in int8 has scales of its own: on bytes it would compute something else."""

    def relu(op: Operator) -> Operator:
        inputs = {"X": op.inputs["Input"]}
        outputs = {"Out": op.outputs["Output"]}
        return replace(op, type="relu", inputs=inputs, outputs=outputs, attributes={})

    because = "input X: expected float32, because Paddle's relu"
    for name, message in (("gru_bytes", because), ("gru_bf16", "relu")):
        model = changed(name, lambda op: relu(op) if op.type == "dequantize" else op)
        with pytest.raises(UnsupportedError, match=message):
            Session(model)


def test_attributes_alone_change_nothing() -> None:
    """Paddle chooses its kernel by the numbers in X: in float32 it runs in float32 (recorded)."""
    folder = DATA.parent / "paddle" / "fusion_lstm"
    program = read_program(folder)
    told = {"mkldnn_data_type": "int8", "Scale_data": 90.0, "Shift_data": 128.0}
    change = having("fusion_lstm", **told, Scale_weights=(3.0,))
    model = lower(replace(program, operators=tuple(map(change, program.operators))))
    assert all(not Recurrent.of(n).precision for n in model.nodes if n.op == "Rnn")


def test_states_that_do_not_saturate_are_told() -> None:
    """Without VNNI the kernels run a layer whose states Paddle keeps in bytes."""
    explained = Session(load(DATA / "gru_fused")).explain()
    assert ("states are not cut" in explained) != has_vnni()


def test_another_scale_in_front_is_kept() -> None:
    """Bytes of one scale in a layer of another one stand for other numbers, in Paddle, too."""
    if not has_vnni():
        pytest.skip("oneDNN's int8 layers need AVX-512 VNNI")
    model = changed("gru_fused", having("quantize", Scale=100.0))
    (rnn,) = (Recurrent.of(node) for node in model.nodes if node.op == "Rnn")
    assert rnn.x != "x"
    y = data_of(next(iter(Session(model).run(feeds("gru_fused")).values())))
    (apart,) = differences(load(DATA / "gru_fused"), "gru_fused")
    (want,) = read_arrays(DATA / "gru_fused" / "io.npz", ("out__",)).values()
    assert np.abs(y - want).max() > 10 * STEP > np.abs(apart).max()


@pytest.mark.parametrize("name", [*INT8, *BF16])
def test_inside_paddle_such_layers_stay_with_paddle(name: str) -> None:
    """What stands in front of one gives bytes there, not floats."""
    folder = DATA / name
    arrays = read_program(folder).parameters
    live = LiveProgram((folder / "model.pdmodel").read_bytes(), lambda _: arrays)
    parts, refusals = live.parts()
    assert not parts and "Paddle runs it in int8 or bf16" in {each.reason for each in refusals}
