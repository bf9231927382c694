"""Calibrated layers as files: QuantizeLinear and DequantizeLinear around RNN, GRU and LSTM.

onnxruntime runs them in float32, ours in bytes, with the bits of the session that was written.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
from support.arrays import uniform
from support.checking import assert_close, sentences_of
from support.graphs import new_node
from support.layers import random_weights
from support.onnx_models import parameters, parsed, quiet
from support.onnx_written import graph_over
from support.oracle import run_oracle

from onernn import Cell, Graph, ModelFormatError, RnnSpec, Session, UnsupportedError, convert, load
from onernn.adapters.onnx.table import KEY
from onernn.ir.graph import Value
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.rnn import Recurrent
from onernn.ir.weights import OWN, LayerPrecision, PartScales, Scale

pytestmark = pytest.mark.usefixtures("built")

OF_X, OF_H = Scale(40.0, 30.0), Scale(120.0, 128.0)  # x from -0.75 to 5.6
SPECS = {
    "lstm": RnnSpec(Cell.LSTM, 12, 20, peephole=True),
    "gru": RnnSpec(Cell.GRU, 12, 20, layers=2, direction="bidirectional_concat"),
    "lbr": RnnSpec(Cell.LBR_GRU, 12, 20, direction="right2left"),
    "rnn": RnnSpec(Cell.RNN_TANH, 12, 20, direction="bidirectional_sum"),
}


def calibrated(spec: RnnSpec, *, columns: bool = True, apart: bool = False) -> LayerPrecision:
    """Scales; ``columns``: of weights, too; ``apart``: another one of x for each direction."""
    rng, parts = np.random.default_rng(0), []
    for k in range(spec.layers * spec.directions):
        given = rng.uniform(200, 400, (2, spec.gates, spec.hidden_size)) if columns else ()
        moved = k if apart else k // spec.directions
        parts.append(PartScales(Scale(OF_X.factor + moved, OF_X.shift + moved), OF_H, *given))
    return LayerPrecision("u8", tuple(parts))


def graph_of(spec: RnnSpec, precision: LayerPrecision = OWN, *, ragged: bool = False) -> Graph:
    at = {"spec": spec, "weights": random_weights(spec, 0), "precision": precision}
    axes = (None, spec.input_size) if ragged else (None, None, spec.input_size)
    return graph_over(Value("x", "float32", axes, int(ragged)), new_node("y = Rnn x", **at))


def needs_kernels() -> None:
    if os.environ.get("ONERNN_TEST_BACKEND") == "onednn":
        pytest.skip("another default backend: it has no such scales, and computes in float32")


def batch(seed: int = 0, T: int = 6, N: int = 4) -> Any:
    return np.random.default_rng(seed).uniform(-1, 3, (T, N, 12)).astype(np.float32)


def written(model: Graph, folder: Path) -> Path:
    file = folder / "model.onnx"
    convert(model, file)
    return file


def ran(model: Graph | Path, x: Any, **options: Any) -> Any:
    return data_of(next(iter(Session(model, **options).run({"x": x}).values())))


def changed(change: Callable[[Any], None], folder: Path) -> Path:
    """The file of a calibrated LSTM with this change."""
    file = written(graph_of(SPECS["lstm"], calibrated(SPECS["lstm"])), folder)
    model = onnx.load(file)
    change(model)
    onnx.save(model, file)
    return file


def told(change: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Another text in the metadata; ``change`` edits what is told, or gives the text."""

    def edit(model: Any) -> None:
        (entry,) = (each for each in model.metadata_props if each.key == KEY)
        data = json.loads(entry.value)
        text = change(data)
        entry.value = text if isinstance(text, str) else json.dumps(data)

    return edit


@pytest.mark.parametrize("backend", ["auto", "kernels"])
@pytest.mark.parametrize(
    "precision",
    [
        calibrated,
        lambda spec: calibrated(spec, columns=False),
        lambda spec: calibrated(spec, apart=True),
        lambda _: LayerPrecision("u8"),
        lambda _: LayerPrecision("bf16"),
    ],
    ids=["calibrated", "own columns", "directions apart", "u8", "bf16"],
)
@pytest.mark.parametrize("name", SPECS)
def test_a_file_gives_the_bits_of_the_session_that_was_written(
    name: str, precision: Any, backend: str, tmp_path: Path
) -> None:
    if backend == "auto":
        needs_kernels()
    model, x = graph_of(SPECS[name], precision(SPECS[name])), batch()
    want = ran(model, x, backend=backend)
    file = written(model, tmp_path)
    back = load(file)
    assert not back.notes
    np.testing.assert_array_equal(ran(back, x, backend=backend), want)
    again = written(back, tmp_path)  # and is written as it was read
    np.testing.assert_array_equal(ran(again, x, backend=backend), want)
    assert (ran(model, x, backend="reference") != want).any()


def test_ragged_sentences_keep_their_bits_in_padded_tensors(tmp_path: Path) -> None:
    needs_kernels()
    spec = SPECS["gru"]
    model = graph_of(spec, calibrated(spec), ragged=True)
    x = Ragged(batch(T=9, N=1)[:, 0], [0, 4, 4, 9])
    want = next(iter(Session(model).run({"x": x}).values()))
    file = written(model, tmp_path)
    feed = {"x": x.to_padded(time=5), "x_lengths": x.lengths.astype(np.int32)}
    (got,) = Session(file).run(feed).values()
    np.testing.assert_array_equal(got, want.to_padded(time=5))
    onnxruntime.InferenceSession(file).run(None, feed)


def held(array: Any, factor: Any, shift: Any = 0, low: int = -128, high: int = 127) -> Any:
    """float64: what a byte holds of numbers."""
    q = np.clip(np.rint(np.float64(array) * factor) + shift, low, high)
    return (q - shift) / factor


@pytest.mark.parametrize("name", ["lstm", "lbr"])
def test_onnxruntime_computes_in_float32_from_what_bytes_hold(name: str, tmp_path: Path) -> None:
    """The oracle rounds x and the weights itself; h is not rounded there."""
    spec = SPECS[name]
    model, x = graph_of(spec, calibrated(spec)), batch()
    (y,) = onnxruntime.InferenceSession(written(model, tmp_path)).run(None, {"x": x})
    (weights,), (part,) = random_weights(spec, 0), calibrated(spec).parts
    of = {"layer": part.layer, "iter": part.iter}
    held_weights = {k: held(getattr(weights, k), of[k]).astype(np.float32) for k in of}
    rounded = replace(weights, **held_weights)
    zeros = tuple(np.zeros((1, 1, 4, 20)) for _ in spec.cell.states)
    inside = sentences_of(held(x, *OF_X, low=0, high=255))
    want, _ = run_oracle(spec, [rounded], inside, zeros)
    for got, exact in zip(sentences_of(y), want, strict=True):
        assert_close(got, exact, 0, 1e-5)
    plain, _ = run_oracle(spec, [weights], sentences_of(x), zeros)
    assert np.abs(np.stack(plain) - np.stack(want)).max() > 1e-3


def test_a_file_holds_bytes_with_a_scale_for_each_channel(tmp_path: Path) -> None:
    spec = SPECS["gru"]
    model = onnx.load(written(graph_of(spec, calibrated(spec)), tmp_path))
    onnx.checker.check_model(model, full_check=True)
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("GRU") == 2 and kinds.count("QuantizeLinear") == 2
    arrays = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    assert arrays["GRU/W/bytes"].dtype == np.int8 and arrays["GRU/W/bytes"].shape == (120, 12)
    assert arrays["GRU/W/scale"].shape == (120,)
    matrices = [a for a in arrays.values() if a.dtype == np.float32 and a.ndim > 1 and len(a) > 2]
    assert not matrices


def halved(model: Any) -> None:
    """The scale of W is half of what it was."""
    (each,) = (each for each in model.graph.initializer if each.name == "LSTM/W/scale")
    each.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(each) / 2, each.name))


def of_the_part(**fields: Any) -> Callable[[Any], None]:
    return told(lambda data: data["layers"]["LSTM/Y"]["parts"][0].update(fields))


def one_more(model: Any) -> None:
    """A layer reads x itself, and no longer its bytes."""
    (rnn,) = (node for node in model.graph.node if node.op_type == "LSTM")
    rnn.input[0] = "x"


@pytest.mark.parametrize(
    "change, note",
    [
        (told(lambda data: data.update(version=2)), "version 2 is ignored, expected 1"),
        (
            told(lambda d: d.update(layers={"LSTM/Z": d["layers"]["LSTM/Y"]})),
            "'LSTM/Z': the model has no such layer",
        ),
        (halved, "expected weights that are multiples"),
        (of_the_part(data=[41.0, 30.0]), "expected an input that is quantized"),
        (of_the_part(data=[40.0, 31.0]), "expected an input that is quantized"),
        (one_more, "expected an input that is quantized"),
        (of_the_part(iter={"shape": [1], "float32": "AACAPw=="}), r"expected \(4, 20\)"),
        (told(lambda d: d["layers"]["LSTM/Y"]["parts"].append({})), "1 parts, got 2"),
        (lambda model: model.ClearField("metadata_props"), ""),  # a file of any other tool
    ],
)
def test_metadata_that_do_not_fit_are_left_aside_and_told(
    change: Callable[[Any], None], note: str, tmp_path: Path
) -> None:
    """What runs then is the float32 model that the graph says."""
    file, x = changed(change, tmp_path), batch()
    model = load(file)
    assert bool(model.notes) == bool(note) and re.search(note, " ".join(model.notes))
    assert not any(Recurrent.of(n).precision for n in model.nodes if n.op == "Rnn")
    (want,) = onnxruntime.InferenceSession(file).run(None, {"x": x})
    for backend in ("auto", "reference"):
        assert_close(ran(model, x, backend=backend), want, 0, 1e-5)


@pytest.mark.parametrize(
    "change",
    [
        told(lambda _: "{"),
        told(lambda _: "[" * 100_000),
        told(lambda _: "[]"),
        told(lambda _: '{"version": 1}'),
        told(lambda _: '{"version": 1, "layers": {"LSTM/Y": {"dtype": "u7", "parts": []}}}'),
        told(lambda _: '{"version": 1, "layers": {"LSTM/Y": {"dtype": "bf16", "parts": [{}]}}}'),
        of_the_part(data=[0.0, 30.0]),
        of_the_part(data=[float("nan"), 30.0]),
        of_the_part(data=[40.0, 300.0]),
        of_the_part(data=["a", "b"]),
        of_the_part(data=[1.0]),
        of_the_part(iter={"shape": [4, 20], "float32": "AACAPw=="}),
        of_the_part(iter={"shape": [1], "float32": "?"}),
        of_the_part(iter={"shape": [2**70], "float32": "AACAPw=="}),
        of_the_part(iter=3),
    ],
)
def test_damaged_metadata_are_refused(change: Callable[[Any], None], tmp_path: Path) -> None:
    file = changed(change, tmp_path)
    with pytest.raises(ModelFormatError, match=rf"metadata {KEY}"):
        load(file)


@pytest.mark.parametrize(
    "spec, dtype, reason",
    [
        (RnnSpec(Cell.LSTM, 12, 20, projection_size=9), "u8", "projection"),
        (RnnSpec(Cell.LSTM, 12, 20, cell_clip=(-1.0, 1.0)), "u8", "cell"),
        (RnnSpec(Cell.GRU, 12, 20, update="replace"), "u8", "update"),
        (SPECS["lstm"], "int3", ""),
    ],
)
def test_a_layer_that_onnx_cannot_say_is_refused_with_its_precision(
    spec: RnnSpec, dtype: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match=rf"an ONNX file.*{reason}.*computes in {dtype}"):
        written(graph_of(spec, LayerPrecision(dtype)), tmp_path)
    assert not list(tmp_path.iterdir())


def quantized_by_onnxruntime(
    op: str, folder: Path, *, only: list[str] | None, per_channel: bool, data: Any
) -> Path:
    """A layer and a product behind it, as its static quantizer writes them (QDQ)."""
    arrays = parameters(op, 12, 20) | {"p": uniform(20, 5, bound=0.5)}
    made = parsed(
        f"""(float[T, 4, 12] x, float[1, 4, 20] h) => (float[T, 1, 4, 5] y) {{
        [layer] ys = {op} <hidden_size = 20> (x, W, R, B, , h)
        y = MatMul (ys, p)
        }}""",
        arrays,
    )
    onnx.save(made, folder / "plain.onnx")
    reader = SimpleNamespace(get_next=iter([*map(fed, range(4)), None]).__next__)
    quantize_static(
        folder / "plain.onnx",
        folder / "quantized.onnx",
        reader,
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=only,
        per_channel=per_channel,
        activation_type=data,
        weight_type=QuantType.QInt8,
    )
    return folder / "quantized.onnx"


def fed(seed: int) -> dict[str, np.ndarray]:
    return {"x": batch(seed), "h": uniform(1, 4, 20, seed=seed)}


@pytest.mark.parametrize("data", [QuantType.QUInt8, QuantType.QInt8, QuantType.QUInt16], ids=str)
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_what_onnxruntimes_quantizer_writes_runs_as_it_says(
    op: str, data: Any, tmp_path: Path
) -> None:
    """In float32, around a layer too. Its own optimizer is off, which rounds products of 16 bits
    again. A byte may be the next one where a number lies between two: then the product moves."""
    for only, per_channel in ((None, False), ([op], True)):
        file = quantized_by_onnxruntime(op, tmp_path, only=only, per_channel=per_channel, data=data)
        named = [node.op_type for node in onnx.load(file).graph.node]
        assert (named.index("QuantizeLinear") < named.index(op)) == bool(only)
        level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options = quiet(graph_optimization_level=level)
        (want,) = onnxruntime.InferenceSession(file, options).run(None, fed(9))
        session = Session(load(file))
        assert [each.dtype for each in session.explained] == ["f32"]
        apart = np.abs(data_of(session.run(fed(9))["y"]) - want)
        assert np.median(apart) < 1e-6 and apart.max() < 0.05
