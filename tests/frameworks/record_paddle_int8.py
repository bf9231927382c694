"""Writes int8 and bf16 programs, as Paddle's own passes make them, with its inputs and outputs.

    python -m tests.frameworks.record_paddle_int8 tests/data/paddle_int8

Run in an environment with PaddlePaddle 2.6.2, on a CPU with AVX-512 VNNI and BF16, where oneDNN has
int8 and bf16 primitives. Layers and scales: `cpu_quantize_pass` and `cpu_bfloat16_pass`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tests.frameworks.paddle_graphs import SavedModel, Variable, core, paddle
from tests.frameworks.record_paddle import Builder, record_runs
from tests.frameworks.recording import record_each, registry, strip_call_stacks

if not hasattr(np, "Inf"):  # Paddle 2.6.2's pass asks NumPy 1 for it
    np.Inf = np.inf

IrGraph = paddle.base.framework.IrGraph
Quantizer = paddle.static.quantization.Quant2Int8MkldnnPass
MODELS, model = registry()
RANGE = 0.5
"""The largest magnitude of x and h that bytes hold: some of both are beyond it."""


def int8(b: Builder) -> Any:
    """The program with its recurrent operators in int8; x holds numbers up to `RANGE`."""
    with paddle.static.scope_guard(b.graph._scope):
        made = Quantizer(
            {"fusion_gru", "fusion_lstm", "multi_gru"},
            _scope=b.graph._scope,
            _place=paddle.CPUPlace(),
            _core=core,
        )
        graph = IrGraph(core.Graph(b.graph._main.desc), for_test=True)
        graph = made._optimize_fp32_graph(graph)
        scale = made._convert_scale2tensor(np.array(1 / RANGE, np.float64))
        made._var_quant_scales["x"] = (False, scale)
        for step in (made._compute_weight_scales, made._quantize_fp32_graph, made._cleanup):
            graph = step(graph)
        return graph.to_program()


def bf16(b: Builder) -> Any:
    graph = core.Graph(b.graph._main.desc)
    placement = core.get_pass("cpu_bfloat16_placement_pass")
    placement.set("bfloat16_enabled_op_types", {"fusion_gru", "fusion_lstm"})
    placement.apply(graph)
    core.get_pass("cpu_bfloat16_pass").apply(graph)
    return IrGraph(graph, for_test=True).to_program()


def plain(b: Builder) -> Any:
    return b.graph._main


def gru(b: Builder, **attributes: Any) -> Variable:
    shapes = {"WeightX": (4, 15), "WeightH": (5, 15), "Bias": (1, 15)}
    weights = {slot: b.parameter(*shape) for slot, shape in shapes.items()}
    return b.op("fusion_gru", X=b.x, **weights, use_mkldnn=True, **attributes)


def lstm(b: Builder, *states: Variable, **attributes: Any) -> Variable:
    shapes = {"WeightX": (4, 20), "WeightH": (5, 20), "Bias": (1, 20)}
    inputs = {slot: b.parameter(*shape) for slot, shape in shapes.items()}
    inputs |= dict(zip(("H0", "C0"), states, strict=False))
    options = {"use_mkldnn": True, "use_peepholes": False, **attributes}
    return b.op("fusion_lstm", X=b.x, **inputs, **options)[0]


@model
def gru_fused() -> Any:
    """As a user's program becomes: Paddle's pass folds the projection first."""
    b = Builder(1)
    return b, [b.fc_gru()], int8


@model
def gru_state() -> Any:
    b = Builder(2)
    return b, [gru(b, H0=b.feed("h0", b.array(5, 5)), origin_mode=True)], int8


@model
def lstm_state() -> Any:
    b = Builder(3)
    return b, [lstm(b, b.feed("h0", b.array(5, 5)), b.feed("c0", b.array(5, 5)))], int8


@model
def lstm_reverse() -> Any:
    b = Builder(4)
    return b, [lstm(b, is_reverse=True)], int8


@model
def multi_gru() -> Any:
    """Two layers: the upper one reads the bytes of the lower one."""
    b, weights = Builder(5), {"WeightX": [], "WeightH": [], "Bias": []}
    for rows in (4, 4, 10, 10):
        for slot, size in zip(weights, (rows, 5, 1), strict=True):
            weights[slot].append(b.parameter(size, 15))
    out = b.op("multi_gru", X=b.x, **weights, layers=2, use_mkldnn=True)
    return b, [out], int8


@model
def gru_bytes() -> Any:
    """One scale for all weights, and the hidden states as bytes, beside what these stand for."""
    b, scale = Builder(6), {"Scale": 127 / RANGE, "Shift": 128.0}
    b.x = b.op("quantize", Input=b.x, gives="uint8", **scale)
    told = {"mkldnn_data_type": "int8", "Scale_data": 127 / RANGE, "Shift_data": 128.0}
    hidden = gru(b, **told, Scale_weights=[250.0])
    return b, [b.op("dequantize", Input=hidden, **scale)], plain


@model
def gru_bf16() -> Any:
    b = Builder(7)
    return b, [gru(b, is_reverse=True)], bf16


@model
def lstm_bf16() -> Any:
    b = Builder(8)
    return b, [lstm(b)], bf16


@model
def bytes_around() -> Any:
    """Between floats and bytes, of numbers that lie between two bytes, and beyond all of them."""
    b, outs = Builder(9), []
    steps = np.arange(-150, 410, 0.5)
    scales = [(63.0, 0.0, True), (63.0, 128.0, True), (100.3, 127.0, False), (17.7, 0.0, False)]
    for at, (scale, shift, negative) in enumerate(scales):
        at_ties = ((steps - shift) / scale).astype(np.float32)
        near = [np.nextafter(at_ties, np.float32(end)) for end in (-1e9, 1e9)]
        x = b.feed(f"x{at}", np.stack([at_ties, *near], axis=1))
        gives = "int8" if negative and not shift else "uint8"
        to = {"Scale": scale, "Shift": shift}
        told = to | {"is_negative_input": negative}
        q = b.op("quantize", Input=x, gives=gives, **told)
        outs.append(b.op("dequantize", Input=q, **to))
        again = {"Scale_in": scale, "Shift_in": 0.0, "Scale_out": 31.7, "Shift_out": 9.0}
        again |= {"Shift_in": shift, "Shift_out": 200.0} if shift else {}
        q = b.op("requantize", Input=q, gives="uint8", **again)
        outs.append(b.op("dequantize", Input=q))
    return b, outs, plain


def record(name: str, folder: Path) -> None:
    b, fetches, rewritten = MODELS[name]()
    outs = [b.op("scale", X=each, scale=1.0) for each in fetches]
    program = rewritten(b)
    folder.mkdir(parents=True, exist_ok=True)
    block = program.global_block()
    read = {name for op in block.ops for name in op.input_arg_names}
    with paddle.static.scope_guard(b.graph._scope):
        paddle.static.save_inference_model(
            str(folder / "model"),
            [block.var(name) for name in b.feeds if name in read],
            [block.var(each.name) for each in outs],
            paddle.static.Executor(paddle.CPUPlace()),
            program=program,
            clip_extra=False,
        )
    strip_call_stacks(folder / "model.pdmodel")
    record_runs(SavedModel(folder / "model"), b.feeds)


if __name__ == "__main__":
    record_each(MODELS, record)
