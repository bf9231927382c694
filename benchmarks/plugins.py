"""Compares frameworks with and without onernn's plug-ins: ``python -m benchmarks.plugins``.

The framework must be installed in the environment. A layer of the framework and the same layer
after `optimize` run alternately in one process, on one thread, and their outputs must agree. A time
is the minimum CPU time of the process over all turns of two equal layers, because the addresses of
arrays change a time by up to a tenth. A ratio is the framework's time divided by the time with the
plug-in. The programs and predictors of Paddle 2.6 have a projection, and a layer over sequences of
different lengths.

With ``--fit`` onernn runs every call. Then the program prints the rows of
`onernn.adapters.common.gain.TABLE` for this CPU. A row has the minimum sizes of calls for which no
ratio is below 0.97 and the sum of the logarithms of the ratios is largest.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import itertools
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.common import gain

Call = Callable[[], Any]
Measured = list[tuple["Row", float]]

FRAMEWORKS = (
    "torch",
    "onnx",
    "mxnet",
    "paddle",
    "paddle_program",
    "paddle_frozen",
    "paddle_predictor",
)
KINDS = ("RNN", "GRU", "LSTM")
UNITS = (32, 128, 512)
BATCHES = ((1, 1), (4, 1), (1, 8), (16, 1), (8, 8), (64, 1), (16, 16), (64, 16), (64, 32))
"""The numbers of steps and sequences of the batches, which have 1 to 2,048 steps in all."""


class Row(NamedTuple):
    """A layer with as many inputs as units, and its batch. ``cell``: whether it is a single cell,
    which runs one step.
    """

    kind: str
    units: int
    steps: int
    sequences: int
    trains: bool = False
    cell: bool = False

    @property
    def name(self) -> str:
        what = f"{self.kind}{'Cell' * self.cell} {self.units}"
        return f"{what}, {self.steps} x {self.sequences}{', trained' * self.trains}"

    @property
    def x(self) -> Any:
        shape = self.steps, self.sequences, self.units
        return np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)


def rows() -> Iterator[Row]:
    for kind, units, trains in itertools.product(KINDS, UNITS, (False, True)):
        for steps, sequences in BATCHES:
            yield Row(kind, units, steps, sequences, trains)
        for sequences in (1, 16):
            yield Row(kind, units, 1, sequences, trains, cell=True)


def of_torch(row: Row) -> tuple[Call, Call]:
    import torch
    from torch import nn

    from onernn.adapters.torch import optimize

    torch.set_num_threads(1)
    torch.manual_seed(0)
    theirs = getattr(nn, f"{row.kind}{'Cell' * row.cell}")(row.units, row.units)
    theirs.train(row.trains)
    x = torch.from_numpy(row.x[0] if row.cell else row.x)

    def call(module: Any) -> Call:
        def run() -> Any:
            with torch.set_grad_enabled(row.trains):
                y = module(x)
                y = y[0] if isinstance(y, tuple) else y
                if row.trains:
                    module.zero_grad()
                    y.sum().backward()
                return y.detach().numpy()

        return run

    return call(theirs), call(optimize(theirs))


def of_onnx(row: Row) -> tuple[Call, Call] | None:
    """Returns calls of ONNX Runtime's session and of onernn's drop-in, for a model of one layer."""
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper

    from onernn.adapters.onnx import InferenceSession

    if row.cell or row.trains:
        return None
    gates, H = {"RNN": 1, "GRU": 3, "LSTM": 4}[row.kind], row.units
    drawn = np.random.default_rng(1)
    sizes = {"W": (1, gates * H, H), "R": (1, gates * H, H), "B": (1, 2 * gates * H)}
    weights = [
        numpy_helper.from_array(drawn.uniform(-1, 1, shape).astype(np.float32) / H**0.5, name)
        for name, shape in sizes.items()
    ]
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in "XY")
    node = helper.make_node(row.kind, ["X", *sizes], ["Y"], hidden_size=H)
    graph = helper.make_graph([node], "layer", [x], [y], weights)
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1

    def call(session: Any) -> Call:
        return lambda: session.run(None, {"X": row.x})[0]

    theirs = onnxruntime.InferenceSession(model, options)
    return call(theirs), call(InferenceSession(model, options))


def of_mxnet(row: Row) -> tuple[Call, Call] | None:
    import mxnet as mx

    from onernn.adapters.mxnet import optimize

    x, rnn = mx.nd.array(row.x), mx.gluon.rnn
    if row.cell:
        return None  # the plug-in leaves single cells to MXNet

    def call(plug: Callable[[Any], Any]) -> Call:
        mx.random.seed(0)
        block = getattr(rnn, row.kind)(row.units, input_size=row.units)
        block.initialize(mx.init.Uniform(1 / math.sqrt(row.units)))
        plug(block)
        block.hybridize(static_alloc=True)

        def run() -> Any:
            if not row.trains:
                return block(x).asnumpy()
            with mx.autograd.record():
                y = block(x)
            y.backward()
            mx.nd.waitall()
            return y.asnumpy()

        return run

    return call(lambda block: block), call(lambda block: optimize(block))


def of_paddle(row: Row) -> tuple[Call, Call] | None:
    import paddle

    from onernn.adapters.paddle import optimize

    if row.cell:
        return None
    paddle.seed(0)
    kind = "SimpleRNN" if row.kind == "RNN" else row.kind
    theirs = getattr(paddle.nn, kind)(row.units, row.units, time_major=True)
    (theirs.train if row.trains else theirs.eval)()
    x = paddle.to_tensor(row.x)

    def call(layer: Any) -> Call:
        def run() -> Any:
            if not row.trains:
                with paddle.no_grad():
                    return layer(x)[0].numpy()
            y, _ = layer(x)
            y.sum().backward()
            layer.clear_gradients()
            return y.numpy()

        return run

    return call(theirs), call(optimize(copy.deepcopy(theirs)))


def saved_paddle_program(row: Row, prefix: str) -> list[Any] | None:
    """Saves and loads a program of Paddle, with a projection and a layer over a LoD as users of
    Paddle 1 built them. Returns the loaded program, its feeds and its fetches, or None if Paddle
    has no such layer.
    """
    import paddle

    if row.kind == "RNN" or row.cell or row.trains:
        return None
    paddle.enable_static()
    paddle.seed(0)
    static, gates = paddle.static, 3 if row.kind == "GRU" else 4
    main, startup, executor = static.Program(), static.Program(), static.Executor()
    with static.program_guard(main, startup):
        x = static.data("x", [-1, row.units], lod_level=1)
        drawn = paddle.nn.initializer.Uniform(-1 / math.sqrt(row.units), 1 / math.sqrt(row.units))
        shapes = (row.units, gates * row.units), (gates * row.units,), (1, gates * row.units)
        wx, b, bias, wh = [
            static.create_parameter(shape, "float32", default_initializer=drawn)
            for shape in (*shapes, shapes[0])
        ]
        block = main.global_block()

        def append(kind: str, inputs: dict[str, Any], outputs: str, **attributes: Any) -> Any:
            made = {slot: [block.create_var(dtype="float32")] for slot in outputs.split()}
            block.append_op(type=kind, inputs=inputs, outputs=made, attrs=attributes)
            return next(iter(made.values()))[0]

        product = append("mul", {"X": x, "Y": wx}, "Out")
        inputs = {"Input": append("elementwise_add", {"X": product, "Y": b}, "Out", axis=1)}
        inputs |= {"Weight": wh, "Bias": bias}
        if row.kind == "GRU":
            y = append("gru", inputs, "Hidden BatchGate BatchResetHiddenPrev BatchHidden")
        else:
            outputs = "Hidden Cell BatchGate BatchCellPreAct"
            y = append("lstm", inputs, outputs, use_peepholes=False)
    executor.run(startup)
    static.save_inference_model(prefix, [x], [y], executor, program=main, clip_extra=False)
    loaded: list[Any] = static.load_inference_model(prefix, executor)
    return loaded


def _lod(row: Row) -> list[list[int]]:
    return [[row.steps * k for k in range(row.sequences + 1)]]


def of_paddle_frozen(row: Row) -> tuple[Call, Call] | None:
    return of_paddle_program(row, frozen=True)


def of_paddle_program(row: Row, *, frozen: bool = False) -> tuple[Call, Call] | None:
    import paddle

    from onernn.adapters.paddle import optimize

    with tempfile.TemporaryDirectory() as folder:
        if not (loaded := saved_paddle_program(row, f"{folder}/model")):
            return None
    program, _, fetches = loaded
    executor, x = paddle.static.Executor(), paddle.base.core.LoDTensor()
    x.set(row.x.reshape(-1, row.units), paddle.CPUPlace())
    x.set_lod(_lod(row))

    def call(program: Any) -> Call:
        feed = {"x": x}
        return lambda: np.asarray(executor.run(program, feed, fetches, return_numpy=False)[0])

    return call(program), call(optimize(program, frozen=frozen))


def of_paddle_predictor(row: Row) -> tuple[Call, Call] | None:
    import paddle

    from onernn.adapters.paddle import optimize

    x = row.x.reshape(-1, row.units)

    def call(plug: Callable[[Any], Any]) -> Call:
        config = paddle.inference.Config(f"{folder}/model.pdmodel", f"{folder}/model.pdiparams")
        config.disable_glog_info()
        predictor = paddle.inference.create_predictor(plug(config))
        given = predictor.get_input_handle("x")
        (name,) = predictor.get_output_names()

        def run() -> Any:
            given.copy_from_cpu(x)
            given.set_lod(_lod(row))
            predictor.run()
            return predictor.get_output_handle(name).copy_to_cpu()

        return run

    with tempfile.TemporaryDirectory() as folder:
        if not saved_paddle_program(row, f"{folder}/model"):
            return None
        return call(lambda config: config), call(optimize)


def least(calls: tuple[Call, ...], seconds: float) -> list[float]:
    """Returns the minimum CPU time of a call of each function. The functions run alternately, some
    milliseconds at a time.
    """
    counts = []
    for call in calls:
        call()
        start = time.process_time()
        call()
        counts.append(max(1, int(0.005 / max(time.process_time() - start, 1e-6))))
    times = [math.inf] * len(calls)
    end = time.process_time() + seconds
    while time.process_time() < end:
        for k, call in enumerate(calls):
            start = time.process_time()
            for _ in range(counts[k]):
                call()
            times[k] = min(times[k], (time.process_time() - start) / counts[k])
    return times


GRID = {
    "units": (1, 128, 512),
    "steps": (1, 4, 16, 64),
    "words": (1, 4, 8, 16, 64, 256, 1024, 2048),
    "share": (0, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 2),
    "turns": (0, 1 / 32, 1 / 8),
    "work": (0, 512, 1024, 2048, 4096, 8192, 32768, 131072),
}
LEAST = 0.97


def fitted(measured: Measured) -> gain.Least:
    """Returns the minimum sizes of the calls that onernn should run.

    No measured ratio above the bounds is below `LEAST`, and the gain is largest. If several bounds
    have the same gain, the highest bounds are returned. Bounds with a single row above them do not
    count, because its ratio may be noise.
    """
    best, most = gain.NEVER, 0.0
    for bounds in itertools.product(*GRID.values()):
        least = gain.Least(**dict(zip(GRID, bounds, strict=True)))
        taken = [r for row, r in measured if least.holds(row.steps, row.sequences, row.units)]
        if len(taken) > 1 and min(taken) >= LEAST:
            gained = sum(map(math.log, taken))
            if gained >= most:
                best, most = least, gained
    return best


def read(file: Path) -> Measured:
    """Returns the rows in a file that has this program's output, with their ratios."""
    known = {row.name: row for row in rows()}
    cells = (line.split("|") for line in file.read_text().splitlines() if line.startswith("|"))
    return [(known[c[1].strip()], float(c[4])) for c in cells if c[1].strip() in known]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    there = [name for name in FRAMEWORKS if importlib.util.find_spec(name.partition("_")[0])]
    parser.add_argument("--framework", choices=FRAMEWORKS, default=there[0] if there else None)
    parser.add_argument("--fit", action="store_true", help="rows of the table of thresholds")
    parser.add_argument("--rows", type=Path, help="fit what was printed into this file")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each row")
    parser.add_argument("--only", default="", help="rows whose names hold this")
    chosen = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    if chosen.fit:
        gain.is_faster = lambda *_: True
    measured = read(chosen.rows) if chosen.rows else []
    of = globals()[f"of_{chosen.framework}"]
    print("| layer, steps x sequences | framework us | onernn us | ratio |\n|---|---|---|---|")
    for row in () if chosen.rows else rows():
        if chosen.only not in row.name or not (pair := of(row)):
            continue
        np.testing.assert_allclose(pair[1](), pair[0](), rtol=1e-4, atol=1e-5)
        times = least((*pair, *(of(row) or ())), chosen.seconds)
        theirs, ours = min(times[::2]), min(times[1::2])
        numbers = f"{theirs * 1e6:.1f} | {ours * 1e6:.1f} | {theirs / ours:.2f}"
        print(f"| {row.name} | {numbers} |", flush=True)
        measured.append((row, theirs / ours))
    for kind, trains in itertools.product(KINDS, (False, True)) if chosen.fit else ():
        case = f"{chosen.framework} {kind}{' trained' * trains}"
        held = [m for m in measured if (m[0].kind, m[0].trains, m[0].cell) == (kind, trains, False)]
        best = fitted(held)
        more = {k: v for k, v in best._asdict().items() if v != gain.Least._field_defaults[k]}
        shown = ", ".join(f"{k}={v:g}" for k, v in more.items())
        print(f'"{case}": {f"Least({shown})" if best != gain.NEVER else "NEVER"},')


if __name__ == "__main__":
    main()
