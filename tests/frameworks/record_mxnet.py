"""Writes what MXNet computed, for tests that have no MXNet.

    python -m tests.frameworks.record_mxnet tests/data/mxnet
    python -m tests.frameworks.record_mxnet --add Pad_edge \\
        "S.Pad(x, mode='edge', pad_width=(0, 0, 0, 0, 1, 2))" x=2,3,5

Run in an environment with MXNet 1.9.1. ``operators.jsonl``: a small symbol for each operator, run
again, or added to; the folders: models saved in the ways that MXNet had.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from support.arrays import uniform
from support.recorded_operators import Recorded, read_recorded, write_recorded
from tests.frameworks.mxnet_crnn import Crnn
from tests.frameworks.mxnet_graphs import Block, numpy_mode, run, run_recorded, save, stacked
from tests.frameworks.mxnet_models import (
    _flat,
    around,
    contractive,
    looped,
    masked,
    unrolled,
)

from onernn.ir.arrays import Array

T, N, C, H = 5, 3, 4, 6
MODELS: dict[str, Callable[[Path], None]] = {}


def model(function: Callable[[Path], None]) -> Callable[[Path], None]:
    MODELS[function.__name__] = function
    return function


def words(*shape: int, seed: int = 0) -> Array:
    return uniform(*shape, seed=seed)


def record(folder: Path, inputs: dict[str, Array], outputs: list[Array], name: str = "io") -> None:
    arrays = {f"in__{key}": array for key, array in inputs.items()}
    arrays |= {f"out__{at}": array for at, array in enumerate(outputs)}
    np.savez(folder / f"{name}.npz", **arrays)


def exported(folder: Path, block: Any, *inputs: Array, gluon: bool = False) -> None:
    """As gluon's users save: export, and save_parameters."""
    rng = np.random.default_rng(1)
    block.initialize()
    block.hybridize()
    made = [mx.nd.array(array) for array in inputs]
    block(*made)
    for name, parameter in block.collect_params().items():
        bound = 1 / np.sqrt(parameter.shape[-1])
        low = 0.1 * bound if name.endswith("running_var") else -bound
        parameter.set_data(mx.nd.array(rng.uniform(low, bound, parameter.shape)))
    flat = _flat(block(*made))
    block.export(str(folder / "model"))
    if gluon:
        block.save_parameters(str(folder / "gluon.params.saved"))
    names = [f"data{k}" if len(inputs) > 1 else "data" for k in range(len(inputs))]
    record(folder, dict(zip(names, inputs, strict=True)), [each.asnumpy() for each in flat])


@model
def gluon_language_model(folder: Path) -> None:
    ids = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 0, 1]], np.float32)
    block = around(lambda: mx.gluon.rnn.LSTM(H, 2, dropout=0.2))
    exported(folder, block, ids, words(2, 3, H), words(2, 3, H, seed=2), gluon=True)


@model
def gluon_bidirectional_ntc(folder: Path) -> None:
    ids = np.array([[1, 2, 3, 4], [4, 5, 6, 7]], np.float32)
    block = around(lambda: mx.gluon.rnn.GRU(H, 2, bidirectional=True, layout="NTC"))
    exported(folder, block, ids, gluon=True)


@model
def gluon_unrolled_stack(folder: Path) -> None:
    cells = mx.gluon.rnn
    both = lambda: cells.BidirectionalCell(cells.GRUCell(H), cells.GRUCell(H))  # noqa: E731
    stack = lambda: stacked(both(), cells.LSTMCell(H), cells.RNNCell(H))  # noqa: E731
    exported(
        folder, unrolled(stack, T, layout="NTC", merge_outputs=True), words(N, T, C), gluon=True
    )


@model
def gluon_lengths(folder: Path) -> None:
    block = masked(lambda: mx.gluon.rnn.GRUCell(H), T)
    exported(folder, block, words(N, T, C), np.array([5, 1, 3], np.float32))


@model
def gluon_foreach(folder: Path) -> None:
    block = looped(lambda: mx.gluon.rnn.LSTMCell(H, input_size=C))
    exported(folder, block, words(T, N, C), words(N, H), words(N, H, seed=2))


@model
def gluon_crnn(folder: Path) -> None:
    exported(folder, Crnn(), words(N, 1, 16, 20))


def run_controlled(net: Any, F: Any, x: Any) -> Any:  # noqa: N803
    """A projected LSTM unrolled, a loop over its mean while a count is small, and a branch."""
    begin = [F.mean(F.slice_axis(x, axis=2, begin=0, end=size), axis=1) for size in (C, H)]
    y, _ = net.cell.unroll(T, x, begin, layout="NTC", merge_outputs=True)
    rows, (_, state) = F.contrib.while_loop(
        lambda n, s: n < 3,
        lambda n, s: (s * 0.5, [n + 1, F.tanh(s + F.sum(y, axis=1))]),
        [F.zeros((1,)), F.mean(y, axis=1)],
        max_iterations=4,
    )
    kept = F.slice_axis(rows, axis=0, begin=0, end=3)
    turned = F.contrib.cond(F.sum(x) > 0, lambda: -state, lambda: state * 2)
    return y, kept, turned


@model
def gluon_control(folder: Path) -> None:
    cell = lambda: mx.gluon.contrib.rnn.LSTMPCell(H, C, input_size=H)  # noqa: E731
    exported(folder, Block(run_controlled, cell=cell), words(N, T, H))


@model
def numpy_mode_model(folder: Path) -> None:
    with numpy_mode():
        block = mx.gluon.rnn.GRU(H, 1, bidirectional=True, layout="NTC")
        block.initialize(mx.init.Uniform(0.3))
        block.hybridize()
        x = words(N, T, C)
        block(mx.np.array(x))
        block.export(str(folder / "model"))
        symbol = mx.sym.load(str(folder / "model-symbol.json"))
        saved = mx.npx.load(str(folder / "model-0000.params"))
    arrays = {key.split(":", 1)[1]: value.asnumpy() for key, value in saved.items()}
    names = [name for name in symbol.list_arguments() if name not in arrays]
    values = dict(zip(names, [x, np.zeros((2, N, H), np.float32)], strict=False))
    record(folder, values, run(symbol, {**values, **arrays}, numpy=True))


def _legacy(folder: Path, cell: Any) -> tuple[Any, dict[str, Array]]:
    """Sentences' classes by an unrolled cell."""
    outputs, _ = cell.unroll(T, mx.sym.Variable("data"), layout="NTC", merge_outputs=True)
    hidden = mx.sym.Reshape(outputs, shape=(-1, 2 * H))
    scores = mx.sym.FullyConnected(hidden, num_hidden=4, name="fc")
    symbol, x = mx.sym.SoftmaxOutput(scores, name="softmax"), words(N, T, C)
    params = contractive(symbol, {"data": x})
    params.pop("softmax_label")
    record(folder, {"data": x}, run(symbol, {"data": x, **params}))
    return symbol, params


@model
def legacy_fused_checkpoint(folder: Path) -> None:
    """As mx.rnn.save_rnn_checkpoint writes it: an array for each gate."""
    cell = mx.rnn.FusedRNNCell(H, 2, "lstm", bidirectional=True, prefix="lstm_")
    symbol, params = _legacy(folder, cell)
    made = {name: mx.nd.array(array) for name, array in params.items()}
    mx.rnn.save_rnn_checkpoint(cell, str(folder / "model"), 0, symbol, made, {})


@model
def legacy_unfused(folder: Path) -> None:
    cell = mx.rnn.FusedRNNCell(H, 2, "gru", bidirectional=True, prefix="gru_")
    save(*_legacy(folder, cell.unfuse()), folder / "model")


def added(name: str, expression: str, *inputs: str) -> Recorded:
    """An expression of `S` (mx.sym), or `NP` and `NPX` in NumPy mode, over inputs ``name=sizes``;
    those with a name in capitals are parameters."""
    numpy = "NP" in expression
    arrays = {}
    for seed, (key, _, sizes) in enumerate(each.partition("=") for each in inputs):
        arrays[key] = 2 * words(*map(int, sizes.split(",")), seed=seed)
    with numpy_mode(numpy):
        made = {key: mx.sym.Variable(key) for key in arrays}
        if numpy:
            made = {key: each.as_np_ndarray() for key, each in made.items()}
        known = {"S": mx.sym, "NP": mx.sym.np, "NPX": mx.sym.npx, **made}
        symbol = json.loads(eval(expression, known).tojson())
    params = {key: array for key, array in arrays.items() if key.isupper()}
    given = {key: array for key, array in arrays.items() if key not in params}
    return Recorded(name, symbol, given, params, {})


if __name__ == "__main__":
    cases = read_recorded()
    if sys.argv[1] == "--add":
        cases = [*(case for case in cases if case.name != sys.argv[2]), added(*sys.argv[2:])]
    write_recorded(replace(case, outputs=run_recorded(case)) for case in cases)
    if sys.argv[1] != "--add":
        target = Path(sys.argv[1])
        for name, make in MODELS.items():
            (target / name).mkdir(parents=True, exist_ok=True)
            make(target / name)
