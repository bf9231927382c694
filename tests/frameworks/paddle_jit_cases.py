"""Layers that Paddle 3 traces, saves, loads and predicts with: ``python paddle_jit_cases.py CASE``.

What stock Paddle gives, beside what it gives with the added line. A process has one case.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from numpy.testing import assert_allclose, assert_array_equal
from paddle import profiler
from paddle_nets import (
    FILES,
    MODES,
    STEPS,
    Built,
    I,
    O,
    all_close,
    close,
    config_of,
    data,
    net,
    operators,
    predict,
    run_case,
    served,
    spec,
    tensors,
)
from paddle_scripts import KINDS

import onernn
from onernn.adapters.paddle import optimize, restore
from onernn.ir.arrays import Array


def case_translated_layer() -> None:
    made = net()
    paddle.jit.save(made, str(FILES / "model"), input_spec=spec())
    loaded = paddle.jit.load(str(FILES / "model"))
    theirs = loaded(*tensors())
    for layer in (loaded, paddle.jit.load(str(FILES / "model"))):
        assert optimize(layer) is layer
        assert operators(layer.program()) == ["custom_op.onernn_rnn"]
        all_close(layer(*tensors()), theirs)
    assert operators(restore(layer).program()) == ["pd_op.rnn"]
    all_close(layer(*tensors()), theirs)
    paddle.jit.save(loaded, str(FILES / "again"), input_spec=spec())
    all_close(paddle.jit.load(str(FILES / "again"))(*tensors()), theirs)


def predicted(config: Any) -> list[Array]:
    predictor = paddle.inference.create_predictor(config)
    results = [predict(each, data()) for each in (predictor, predictor.clone())]
    for one, other in zip(*results, strict=True):
        assert_array_equal(one, other)
    return results[0]


def case_predictors() -> None:
    made, folder = net(kind="LSTM"), FILES / "predictor"
    paddle.jit.save(made, str(folder / "model"), input_spec=spec())
    theirs = predicted(config_of(folder))
    for config in (config_of(folder), paddle.inference.Config(str(folder))):
        assert optimize(config) is config
        all_close(predicted(config), theirs)
    other = net(kind="LSTM")
    for each in other.parameters():  # other numbers, which a predictor that is gone has not packed
        each.set_value(each * 0.5)
    paddle.jit.save(other, str(folder / "model"), input_spec=spec())
    ours = predicted(optimize(config_of(folder)))
    all_close(ours, predicted(config_of(folder)))
    paddle.jit.save(made, str(folder / "model"), input_spec=spec())
    narrow = predicted(optimize(config_of(folder), dtype="bf16"))
    assert 1e-5 < np.abs(narrow[0] - theirs[0]).max() < 2e-2


def single_step(**options: Any) -> Any:
    """A program of one step of one sequence, with the line, and what it gives."""
    paddle.seed(3)

    def build(main: Any, x: Any, _: Any) -> list[Any]:
        layer = paddle.nn.LSTM(I, O)
        layer.eval()
        last = layer(x)[1][0].sum()
        if options:
            optimize(main, fetch_list=[last], **options)
        return [last]

    built, x = Built(build, (1, 1, I)), np.ones((1, 1, I), np.float32)
    (result,) = built.run(x=x)
    with profiler.Profiler(
        targets=[profiler.ProfilerTarget.CPU], on_trace_ready=lambda _: None
    ) as recorded:
        built.run(x=x)
    recorded.export(str(FILES / "events.json"), format="json")
    return built.main, result


def case_single_steps() -> None:
    """Paddle is faster for them, so they are its own; the profiler shows which ones are ours."""
    paddle.enable_static()
    _, expected = single_step()
    for backend, ours in (("auto", []), ("kernels", ["custom_op.onernn_rnn"])):
        main, got = single_step(backend=backend)
        assert operators(main) == (ours or ["pd_op.rnn"])
        assert len(main.replaced) == len(ours) != len(main.refusals)
        close(got, expected)
        assert ("onernn_rnn" in (FILES / "events.json").read_text()) == bool(ours)
    assert "few steps" in single_step(backend="auto")[0].refusals[0].reason


LOADED = """
import sys
import numpy as np
import paddle
sys.path.insert(0, {here!r})
from paddle_jit_cases import predicted
from paddle_nets import data, tensors
layer = paddle.jit.load({prefix!r})
config = paddle.inference.Config({prefix!r} + ".json", {prefix!r} + ".pdiparams")
np.savez({out!r}, layer=layer(*tensors())[0].numpy(), predictor=predicted(config)[0])
paddle.enable_static()
executor = paddle.static.Executor()
program, names, fetches = paddle.static.load_inference_model({prefix!r}, executor)
np.savez({out!r} + "2.npz", program=executor.run(program, feed=data(), fetch_list=fetches)[0])
"""


def case_saved() -> None:
    """What was optimized is saved with Paddle's own operators: it loads without onernn."""
    theirs = net()(*tensors())[0].numpy()
    layer, static = FILES / "layer", FILES / "static"
    paddle.jit.save(optimize(net()), str(layer), input_spec=spec())
    paddle.jit.save(net(), str(FILES / "stock"), input_spec=spec())
    paddle.enable_static()
    executor = paddle.static.Executor()
    program, names, fetches = paddle.static.load_inference_model(str(FILES / "stock"), executor)
    optimize(program)
    fed = [op.result(0) for op in program.global_block().ops if op.name() == "pd_op.data"]
    paddle.static.save_inference_model(str(static), fed, fetches, executor, program=program)
    for prefix in (layer, static):
        assert "onernn_rnn" not in prefix.with_suffix(".json").read_text()
        out = str(prefix.with_suffix(".npz"))
        code = LOADED.format(
            here=str(Path(__file__).parent),
            prefix=str(prefix),
            out=out,
        )
        subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
        for array in [*np.load(out).values(), *np.load(f"{out}2.npz").values()]:
            close(array, theirs)
        close([*onernn.Session(f"{prefix}.json").run(data()).values()][0], theirs)


def learned(made: Any, *, call: Callable[[Any], Any] = lambda made: made) -> list[Array]:
    """Losses of some steps of Adam, and the gradients of the first one."""
    called, losses, gradients = call(made), [], []
    optimizer = paddle.optimizer.Adam(0.01, parameters=made.parameters())
    for _ in range(STEPS):
        y, last = called(*tensors())
        loss = ((y - 0.5) ** 2).mean() + (last * last).mean()
        loss.backward()
        gradients = gradients or [each.grad.numpy().copy() for each in made.parameters()]
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    assert losses[-1] < losses[0]
    return [np.array(losses), *gradients]


def case_to_static() -> None:
    for full_graph in (True, False):
        for kind in MODES:

            def call(made: Any, full_graph: bool = full_graph) -> Any:
                return paddle.jit.to_static(made, full_graph=full_graph)

            close(
                call(optimize(net(kind=kind)))(*tensors())[0],
                net(kind=kind)(*tensors())[0],
            )
            theirs = learned(net(train=True, kind=kind), call=call)
            before = learned(optimize(net(train=True, kind=kind)), call=call)
            after = learned(net(train=True, kind=kind), call=lambda m: optimize(call(m)))
            for ours in (before, after):
                for one, other in zip(ours, theirs, strict=True):
                    assert_allclose(one, other, rtol=0, atol=2e-5)
    whole = paddle.jit.to_static(optimize(net()), full_graph=True)
    for line, name in ((optimize, "custom_op.onernn_rnn"), (restore, "pd_op.rnn")) * 2:
        line(whole)(*tensors())
        assert operators(whole.forward.concrete_program.main_program) == [name]


def case_cells() -> None:
    """RNN and BiRNN of cells, as they are and traced; they are saved as ``rnn`` in place of loops,
    in which Paddle 3.3.1's predictor hangs.
    """
    nn = paddle.nn
    for make in (nn.LSTMCell, nn.GRUCell, nn.SimpleRNNCell):
        for wrap in (
            lambda make=make: nn.RNN(make(I, O)),
            lambda make=make: nn.RNN(make(I, O), is_reverse=True),
            lambda make=make: nn.BiRNN(make(I, O), make(I, O)),
        ):
            paddle.seed(7)
            theirs = wrap()
            for call in (
                lambda made: made,
                lambda made: paddle.jit.to_static(made, full_graph=True),
                lambda made: paddle.jit.to_static(made, full_graph=False),
            ):
                paddle.seed(7)
                ours = optimize(wrap())
                results = []
                for layer, called in ((theirs, theirs), (ours, call(ours))):
                    x = paddle.to_tensor(data()["x"], stop_gradient=False)
                    y, last = called(x)
                    states = paddle.utils.flatten(last)
                    loss = (y * y).sum() + paddle.add_n([(s * s).sum() for s in states])
                    gradients = paddle.grad(loss, [x, *layer.parameters()])
                    results.append([y, *states, *gradients])
                all_close(*results[::-1], 2e-5)
    layer = optimize(nn.BiRNN(nn.GRUCell(I, O), nn.GRUCell(I, O)))
    layer.eval()
    paddle.jit.save(layer, str(FILES / "cells"), input_spec=spec()[:1])
    loaded = paddle.jit.load(str(FILES / "cells"))
    assert operators(loaded.program()) == ["pd_op.rnn"]
    close(loaded(*tensors()[:1])[0], layer(*tensors()[:1])[0])


def case_mixed_precision() -> None:
    def call(made: Any, level: str) -> Any:
        def run(*given: Any) -> Any:
            with paddle.amp.auto_cast(dtype="bfloat16", level=level):
                return made(*given)

        return run

    for level in ("O1", "O2"):
        results = [
            learned(made, call=lambda made, level=level: call(made, level))
            for made in (optimize(net(train=True)), net(train=True))
        ]
        for one, other in zip(*results, strict=True):
            assert_allclose(one, other, rtol=0, atol=2e-5)
    paddle.enable_static()
    losses = []
    for line in (optimize, lambda _: None):

        def build(main: Any, x: Any, lengths: Any, line: Any = line) -> list[Any]:
            made = net(train=True)
            with paddle.amp.auto_cast(dtype="bfloat16", level="O1"):
                y, _ = made(x, lengths)
                loss = ((y - 0.5) ** 2).mean()
            paddle.optimizer.Adam(0.01).minimize(loss)
            line(main)
            return [loss]

        built = Built(build)
        losses.append(np.array([float(built.run()[0]) for _ in range(STEPS)]))
    # The linear layer computes in bfloat16, where a number that rounds the other way is 1/256 off.
    assert_allclose(*losses, rtol=2**-8)
    assert losses[0][-1] < losses[0][0]


class Outputs(paddle.io.Dataset):
    """What a layer makes of random sequences, in the workers of a DataLoader."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def __len__(self) -> int:
        return 8

    def __getitem__(self, at: int) -> Array:
        x = np.random.default_rng(at).normal(size=(1, 9, I)).astype(np.float32)
        with paddle.no_grad():
            return self.layer(paddle.to_tensor(x))[0].numpy()[0]


def case_workers() -> None:
    """They are forked from a process whose layers have threads, and which goes on."""
    for threads in (1, 2):
        layer = paddle.nn.LSTM(I, O)
        layer.eval()
        expected = np.stack([Outputs(layer)[at] for at in range(8)])
        optimize(layer, threads=threads)
        close(np.stack([Outputs(layer)[at] for at in range(8)]), expected)
        for _ in range(2):
            loader = paddle.io.DataLoader(Outputs(layer), batch_size=4, num_workers=2)
            close(np.concatenate([np.asarray(each) for each in loader]), expected)
            layer(paddle.ones([2, 5, I]))[0].sum().backward()


def case_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    paddle.jit.save(net(), str(FILES / "shared"), input_spec=spec())
    layer = optimize(paddle.jit.load(str(FILES / "shared")), threads=2)
    expected = layer(*tensors())[0].numpy()
    config = optimize(config_of(FILES, "shared"))
    predictors = [paddle.inference.create_predictor(config)]
    predictors += [predictors[0].clone() for _ in range(3)]

    def run(predictor: Any) -> None:
        for _ in range(20):
            close(predict(predictor, data())[0], expected)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, predictors))


def case_networks_that_ran_compiled() -> None:
    for kind in KINDS[:3]:
        served(kind, FILES / kind.__name__)


if __name__ == "__main__":
    run_case(globals())
