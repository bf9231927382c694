"""Writes the Paddle half of the corpus: saved models, inputs and float64 expectations.

    python -m fault_corpus.make_paddle

Run with PaddlePaddle 2.6.2; 3.3.1 reads the same files. Nothing here is computed by Paddle.
"""

from __future__ import annotations

import zlib  # noqa: F401  # Paddle 2.6.2 has its own; loading Python's afterwards crashes
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from fault_corpus.oracle import F64, paddle_gru, paddle_lstm

HERE = Path(__file__).parent / "paddle"
GRU = ("BatchGate", "BatchResetHiddenPrev", "BatchHidden", "Hidden")
FUSION_GRU = ("ReorderedH0", "XX", "BatchedInput", "BatchedOut", "Hidden")
LSTM = ("BatchGate", "BatchCellPreAct", "Hidden", "Cell")
CHANNELS = 4
MODELS: dict[str, Callable[[], Model]] = {}


def model(function: Callable[[], Any]) -> Callable[[], Any]:
    MODELS[function.__name__] = function
    return function


class Model:
    """A legacy static graph over ragged words x (W, 4), its parameters and its recordings."""

    def __init__(self, seed: int, state: bool = False, size: int = 5, bound: float = 2) -> None:
        self.size, self.bound = size, bound
        self.rng = np.random.default_rng(seed)
        self.main, self.startup = paddle.static.Program(), paddle.static.Program()
        self.scope, self.feeds = paddle.static.Scope(), []
        with paddle.static.program_guard(self.main, self.startup):
            self.feeds.append(paddle.static.data("x", [-1, CHANNELS], "float32", lod_level=1))
            if state:
                self.feeds.append(paddle.static.data("h0", [-1, size], "float32"))
        self.fetches: list[Any] = []
        self.recordings: list[dict[str, Any]] = []

    def array(self, *shape: int) -> F64:
        """Returns random values within 1 / sqrt(rows), so that rounding errors do not grow."""
        return self.rng.uniform(-1, 1, shape).astype(np.float32) / np.float32(np.sqrt(shape[0]))

    def parameter(self, array: F64) -> Any:
        block = self.main.global_block()
        made = block.create_var(
            name=f"w_{len(block.vars)}", shape=list(array.shape), dtype="float32", persistable=True
        )
        self.scope.var(made.name).get_tensor().set(array, paddle.CPUPlace())
        return made

    def op(
        self, type: str, inputs: Mapping[str, Any], outputs: Sequence[str] = ("Out",), **attrs: Any
    ) -> list[Any]:
        block = self.main.global_block()
        made = [
            block.create_var(name=f"{type}_{len(block.vars) + k}", dtype="float32")
            for k in range(len(outputs))
        ]
        with paddle.static.program_guard(self.main, self.startup):
            block.append_op(
                type=type,
                inputs={slot: [value] for slot, value in inputs.items()},
                outputs={slot: [value] for slot, value in zip(outputs, made, strict=True)},
                attrs=attrs,
            )
        return made

    def fc(self, weight: F64, bias: F64 | None = None) -> Any:
        """Adds mul, and elementwise_add for a bias: the pattern that Paddle's passes match."""
        inputs = {"X": self.feeds[0], "Y": self.parameter(weight)}
        (out,) = self.op("mul", inputs, x_num_col_dims=1, y_num_col_dims=1)
        if bias is not None:
            (out,) = self.op("elementwise_add", {"X": out, "Y": self.parameter(bias)}, axis=1)
        return out

    def words(self, offsets: list[int]) -> dict[str, Any]:
        x = self.rng.uniform(-self.bound, self.bound, (offsets[-1], CHANNELS)).astype(np.float32)
        return {"in__x": x, "lod__x": np.array(offsets)}

    def record(self, given: Mapping[str, Any], *outputs: F64) -> None:
        expected: dict[str, Any] = {}
        for k, array in enumerate(outputs):
            expected |= {f"out__{k}": array, f"outlod__{k}": given["lod__x"]}
        self.recordings.append({**given, **expected})

    def save(self, folder: Path, clip_extra: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        executor = paddle.static.Executor(paddle.CPUPlace())
        with paddle.static.scope_guard(self.scope):
            paddle.static.save_inference_model(
                str(folder / "model"),
                self.feeds,
                self.fetches,
                executor,
                program=self.main,
                clip_extra=clip_extra,
            )
        _strip_call_stacks(folder / "model.pdmodel")
        for k, recording in enumerate(self.recordings):
            np.savez_compressed(folder / f"io{k or ''}.npz", **recording)


def _strip_call_stacks(file: Path) -> None:
    """Removes the paths of the machine that made the file."""
    from paddle.base.proto import framework_pb2

    program = framework_pb2.ProgramDesc.FromString(file.read_bytes())
    for op in (op for block in program.blocks for op in block.ops):
        kept = [each for each in op.attrs if each.name != "op_callstack"]
        del op.attrs[:]
        op.attrs.extend(kept)
    file.write_bytes(program.SerializeToString(deterministic=True))


def _gru(
    m: Model,
    runs: Sequence[list[int]],
    *,
    fc_bias: bool = True,
    gru_bias: bool = True,
    state: bool = False,
    fused: bool = False,
    count: int = 1,
    **attrs: Any,
) -> Model:
    """Adds ``count`` layers mul (+ elementwise_add) + gru, or fusion_gru, which share a bias."""
    shared = m.array(1, 3 * m.size) * gru_bias
    shared_variable = m.parameter(shared) if gru_bias else None
    layers = []
    for _ in range(count):
        wx, wh = m.array(CHANNELS, 3 * m.size), m.array(m.size, 3 * m.size)
        bx = m.array(3 * m.size) * fc_bias
        inputs = {"H0": m.feeds[1]} if state else {}
        if fused:
            inputs |= {"X": m.feeds[0], "WeightX": m.parameter(wx), "WeightH": m.parameter(wh)}
            inputs["Bias"] = m.parameter(shared + bx)
            m.fetches.append(m.op("fusion_gru", inputs, FUSION_GRU, **attrs)[-1])
        else:
            inputs |= {"Input": m.fc(wx, bx if fc_bias else None), "Weight": m.parameter(wh)}
            inputs |= {"Bias": shared_variable} if gru_bias else {}
            m.fetches.append(m.op("gru", inputs, GRU, **attrs)[-1])
        layers.append((wx, wh, bx))
    meaning = [attrs.get("origin_mode", False), attrs.get("activation", "tanh")]
    for offsets in runs:
        given = m.words(offsets)
        h0 = m.array(len(offsets) - 1, m.size) if state else None
        given |= {} if h0 is None else {"in__h0": h0}
        x = given["in__x"].astype(np.float64)
        projected = [(x @ wx + bx + shared[0], wh) for wx, wh, bx in layers]
        m.record(given, *(paddle_gru(p, offsets, wh, h0, *meaning) for p, wh in projected))
    return m


def _lstm(m: Model, *, fc_bias: bool = False, cell_read: bool = False, **attrs: Any) -> Model:
    """Adds mul (+ elementwise_add) + lstm; fetches Hidden, and with ``cell_read`` tanh(Cell)."""
    wx, wh, b = (m.array(rows, 4 * m.size) for rows in (CHANNELS, m.size, 1))
    bx = m.array(4 * m.size) * fc_bias
    projected = m.fc(wx, bx if fc_bias else None)
    inputs = {"Input": projected, "Weight": m.parameter(wh), "Bias": m.parameter(b)}
    hidden, cell = m.op("lstm", inputs, LSTM, use_peepholes=False, **attrs)[-2:]
    m.fetches = [hidden, *m.op("tanh", {"X": cell})] if cell_read else [hidden]
    given = m.words(RAGGED)
    projected64 = given["in__x"].astype(np.float64) @ wx + bx + b
    expected = paddle_lstm(projected64, RAGGED, wh, attrs.get("candidate_activation", "tanh"))
    m.record(given, *(expected[0], np.tanh(expected[1]))[: len(m.fetches)])
    return m


RAGGED = [0, 3, 4, 9, 11]


@model
def state_dropped() -> Model:
    return _gru(Model(1, state=True), [RAGGED], state=True)


@model
def bias_shared() -> Model:
    return _gru(Model(2), [RAGGED], count=2)


@model
def origin_mode_ignored() -> Model:
    return _gru(Model(3), [RAGGED], fused=True, origin_mode=True)


@model
def not_fused_origin_mode() -> Model:
    return _gru(Model(4), [RAGGED], origin_mode=True)


@model
def not_fused_without_bias() -> Model:
    return _gru(Model(5), [RAGGED], fc_bias=False, gru_bias=False)


@model
def empty_sentences() -> Model:
    return _gru(Model(6), [[0, 3, 3, 5]], fused=True)


@model
def empty_sentences_fused() -> Model:
    return _gru(Model(6), [[0, 3, 3, 5]])


@model
def state_stale() -> Model:
    return _gru(Model(7, state=True), [RAGGED] * 2, state=True, fused=True)


@model
def batch_stale() -> Model:
    return _gru(Model(8), [[0, 5, 10], [0, 5, 7, 8, 10]], fused=True)


@model
def outputs_clipped() -> Model:
    return _gru(Model(9), [RAGGED])


@model
def cell_unwritten() -> Model:
    return _lstm(Model(10), cell_read=True)


@model
def not_fused_fc_lstm() -> Model:
    return _lstm(Model(12), fc_bias=True)


@model
def activations_dropped() -> Model:
    return _lstm(Model(13), candidate_activation="relu")


@model
def activations_refused() -> Model:
    return _gru(Model(14), [RAGGED], fused=True, activation="relu")


@model
def int8_gru() -> Model:
    """Makes a larger layer than the remaining models: int8 loses too little with few units."""
    return _gru(Model(11, size=8, bound=6), [[0, 3, 4, 9, 11, 31]])


if __name__ == "__main__":
    paddle.enable_static()
    for name, make in MODELS.items():
        make().save(HERE / name, clip_extra=name == "outputs_clipped")
        print(name)
