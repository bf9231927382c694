"""Programs of Paddle 3 with our operator: ``python paddle_pir_cases.py CASE``.

What stock Paddle gives, beside what it gives with the added line. A process has one case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import paddle
import pytest
from paddle_nets import (
    MODES,
    STEPS,
    I,
    N,
    O,
    T,
    all_close,
    close,
    data,
    fed,
    net,
    operators,
    run_case,
    run_program,
)

from onernn import UnsupportedError
from onernn.adapters.paddle import optimize, register_operators
from onernn.ir.arrays import Array

Line = Callable[[Any, Sequence[Any]], Any]


def stock(*_: Any) -> None:
    """No line."""


def ours(program: Any, _: Any = None) -> None:
    optimize(program)


def ran(
    line: Line, *, train: bool, early: bool = False, **more: Any
) -> tuple[Any, list[list[Array]]]:
    """A program, and what its runs gave: loss, output, state and gradients of the parameters."""

    def build(main: Any) -> list[Any]:
        y, last = net(train=train, **more)(*fed())
        loss = (y * y).mean() + (last * last).mean()
        wanted = [loss, y, last]
        if early:
            line(main, wanted)
        if train:
            pairs = paddle.static.append_backward(loss)
            gradients = [pair for pair in pairs if pair[1] is not None]
            wanted += [gradient for _, gradient in gradients]
            paddle.optimizer.SGD(0.1).apply_gradients(gradients)
        if not early:
            line(main, wanted)
        return wanted

    return run_program(build, *[data(more.get("time_major", False))] * STEPS)


def same_runs(ours: list[list[Array]], theirs: list[list[Array]]) -> None:
    for got, expected in zip(ours, theirs, strict=True):
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=2e-5 * max(1, np.abs(other).max()))
    assert abs(theirs[0][0] - theirs[-1][0]) > 1e-3 or len(theirs[0]) == 3  # it learns


def case_programs() -> None:
    paddle.enable_static()
    for kind in MODES:
        _, theirs = ran(stock, train=False, kind=kind)
        main, got = ran(ours, train=False, kind=kind)
        assert operators(main) == ["custom_op.onernn_rnn"]
        assert len(main.replaced) == 1 and not main.refusals
        same_runs(got, theirs)


def case_training() -> None:
    paddle.enable_static()
    for kind in MODES:
        _, theirs = ran(stock, train=True, kind=kind)
        for early in (False, True):
            main, got = ran(ours, train=True, early=early, kind=kind)
            assert operators(main) == ["custom_op.onernn_rnn", "custom_op.onernn_rnn_grad"]
            same_runs(got, theirs)


def case_time_major() -> None:
    """Its own result may be fetched, and must not vanish from what a run gives."""
    paddle.enable_static()
    with pytest.raises(UnsupportedError, match="fetch_list"):
        ran(ours, train=True, time_major=True)
    main, got = ran(
        lambda program, wanted: optimize(program, fetch_list=wanted), train=True, time_major=True
    )
    assert operators(main) == ["custom_op.onernn_rnn", "custom_op.onernn_rnn_grad"]
    same_runs(got, ran(stock, train=True, time_major=True)[1])
    layer = paddle.nn.GRU(I, O, time_major=True)
    with paddle.static.program_guard(paddle.static.Program()):
        y, _ = layer(fed()[0])
        for listed in ([], [y]):
            with pytest.raises(UnsupportedError, match=r"paddle\.assign\(\)"):
                optimize(y.block.program, fetch_list=listed)


def case_inner_blocks() -> None:
    paddle.enable_static()
    value, results = np.abs(data()["x"]), []
    for line in (ours, stock):

        def build(main: Any, line: Line = line) -> list[Any]:
            x, _ = fed()
            layer, square = net(kind="LSTM").body, paddle.nn.GRU(I, I)
            square.eval()
            chosen = paddle.static.nn.cond(
                x.sum() > 0, lambda: layer(x)[0].sum(), lambda: x.sum() * 2
            )
            count = paddle.full([1], 0, "int64")
            _, turned = paddle.static.nn.while_loop(
                lambda k, _: k < 3, lambda k, v: [k + 1, square(v)[0]], [count, x]
            )
            line(main, [])
            return [chosen, turned]

        main, runs = run_program(build, *({**data(), "x": x} for x in (value, -value)))
        results.append([each for run in runs for each in run])
        if line is ours:
            assert operators(main) == ["custom_op.onernn_rnn"] * 2
    all_close(*results)


def case_training_inside() -> None:
    """Of a conditional block, where the operator was there before the gradients."""
    paddle.enable_static()

    def losses(line: Line, early: bool) -> list[float]:
        def build(main: Any) -> list[Any]:
            x, _ = fed()
            layer = net(train=True, kind="LSTM").body
            made = paddle.static.nn.cond(
                x.sum() > -1e9, lambda: (layer(x)[0] - 0.5).square().mean(), lambda: x.sum()
            )
            loss = made * 1.0
            if early:
                line(main, [])
            paddle.optimizer.Adam(0.01).minimize(loss)
            if not early:
                line(main, [])
            return [loss]

        return [float(run[0]) for run in run_program(build, *[data()] * STEPS)[1]]

    theirs = losses(stock, True)
    np.testing.assert_allclose(losses(ours, True), theirs, rtol=1e-4)
    assert theirs[-1] < theirs[0]
    with pytest.raises(UnsupportedError, match="before its gradients are appended"):
        losses(ours, False)


def optimized(train: bool = False) -> tuple[Any, Any, Any, Any]:
    """(program, executor, net, output), with the operator and initialized."""
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        made = net(train=train)
        y, _ = made(*fed())
        optimize(main)
    executor = paddle.static.Executor()
    executor.run(startup)
    return main, executor, made, y


def case_clone() -> None:
    """A program for tests that is cloned from the one that is trained has the operator, too."""
    paddle.enable_static()
    main, executor, _, y = optimized(train=True)
    mapping = paddle.pir.IrMapping()
    test = main.clone(mapping)
    assert operators(test) == ["custom_op.onernn_rnn"]
    one = executor.run(main, feed=data(), fetch_list=[y])
    close(one[0], executor.run(test, feed=data(), fetch_list=[mapping.look_up(y)])[0])


def case_refusals() -> None:
    paddle.enable_static()
    for more, options, reason in (
        ({"train": True, "dropout": 0.5}, {}, r"eval\(\)"),
        ({"train": False}, {"dtype": "u8"}, "f32, bf16 or f16"),
        ({"train": False}, {"backend": "onednn"}, "backend='kernels'"),
        ({"train": True}, {"dtype": "f16"}, "no training in f16"),
    ):
        with pytest.raises(UnsupportedError, match=reason):
            ran(lambda program, _, o=options: optimize(program, **o), **more)


def case_gradients_twice() -> None:
    """The way back overwrites what the way forward left; a second one makes that anew."""
    paddle.enable_static()
    results = []
    for line in (stock, ours):

        def build(main: Any, line: Line = line) -> list[Any]:
            x, lengths = fed()
            x.stop_gradient = False
            y, last = net(train=True)(x, lengths)
            wanted = [paddle.static.gradients([(v * v).sum()], [x])[0] for v in (y, last)]
            line(main, [])
            return wanted

        main, (run,) = run_program(build, data())
        results.append(run)
    assert operators(main).count("custom_op.onernn_rnn_grad") == 2
    all_close(*results, rounding=2e-5)


def case_weights_that_change() -> None:
    """Parameters that a program sets are the ones that its next run reads."""
    paddle.enable_static()
    main, executor, made, y = optimized()
    (first,) = executor.run(main, feed=data(), fetch_list=[y])
    name = made.body._all_weights[0].name
    held = paddle.static.global_scope().find_var(name).get_tensor()
    held.set(np.array(held) * 2, paddle.CPUPlace())
    (second,) = executor.run(main, feed=data(), fetch_list=[y])
    assert np.abs(first - second).max() > 1e-3
    held.set(np.array(held) / 2, paddle.CPUPlace())
    np.testing.assert_array_equal(executor.run(main, feed=data(), fetch_list=[y])[0], first)


def case_initial_states() -> None:
    """Their gradients; without lengths, with which Paddle's own are wrong in two directions."""
    paddle.enable_static()
    results = []
    for line in (stock, ours):

        def build(main: Any, line: Line = line) -> list[Any]:
            x, _ = fed()
            h, c = (paddle.static.data(name, [4, None, O]) for name in "hc")
            for each in (x, h, c):
                each.stop_gradient = False
            y, last = net(train=True, kind="LSTM").body(x, (h, c))
            line(main, [])
            loss = (y * y).sum() + (last[0] * last[1]).sum()
            return [y, *last, *paddle.static.gradients([loss], [x, h, c])]

        given = np.random.default_rng(1).normal(size=(2, 4, N, O)).astype(np.float32)
        _, (run,) = run_program(build, {**data(), "h": given[0], "c": given[1]})
        results.append(run)
    all_close(*results, rounding=2e-5)


def case_wrong_arguments() -> None:
    """As a file may have them: each is refused, none reads or writes where it must not."""
    register_operators()
    run = paddle._C_ops._run_custom_op
    layer, state = paddle.nn.LSTM(I, O), paddle.zeros([1, N, O])
    x, weights = paddle.to_tensor(data()["x"]), layer._all_weights
    inputs = [x, state, state, *weights]
    right = {"mode": "LSTM", "gates": [0, 1, 2, 3], "layers": 1, "two": False, "hidden": O}
    right |= {"time_major": False, "is_test": True, "fixed": False, "stored": 0, "threads": 1}

    def call(given: list[Any], lengths: Any = None, **changed: Any) -> Any:
        return run("onernn_rnn", given, lengths, *{**right, **changed}.values())[0]

    close(call(inputs), layer(x)[0])
    turned = paddle.to_tensor(data(time_major=True)["x"]).transpose([1, 0, 2])
    close(call([turned, *inputs[1:]]), layer(x)[0])
    assert call([x[:, :0], *inputs[1:]]).shape == [N, 0, O]
    assert call([x[:0], state[:, :0], state[:, :0], *weights]).shape == [0, T, O]
    wrong: list[tuple[list[Any], Any, dict[str, Any]]] = [
        ([], None, {}),
        ([x], None, {}),
        ([x[0], *inputs[1:]], None, {}),
        ([x.astype("float64"), *inputs[1:]], None, {}),
        ([x, state[:, :1], *inputs[2:]], None, {}),
        ([*inputs[:3], *weights[::-1]], None, {}),
        *(
            (inputs, None, {name: value})
            for name, values in {
                "mode": ["XX"],
                "gates": [[0, 1, 2, 9], [0, 1, 2], [0, 0, 1, 2]],
                "layers": [2**30, 0, -1],
                "two": [True],
                "hidden": [O + 1, 0, -1],
                "stored": [7],
                "threads": [0, 10**6],
            }.items()
            for value in values
        ),
        *(
            (inputs, lengths, {})
            for lengths in (
                paddle.full([N], T + 1, "int32"),
                paddle.full([N], -1, "int64"),
                paddle.full([N], 1.0),
                paddle.full([N + 1], 1, "int32"),
            )
        ),
    ]
    for given, lengths, changed in wrong:
        with pytest.raises(Exception, match="onernn_rnn: "):
            call(given, lengths, **changed)


def case_bad_lengths() -> None:
    paddle.enable_static()
    main, executor, _, y = optimized()
    for wrong, reason in (
        ([6, 2, 4, 7], "7 of 6 steps"),
        ([6, -2, 4, 1], "-2"),
        ([6, 2], "4 numbers"),
    ):
        feed = {**data(), "lengths": np.array(wrong, np.int32)}
        with pytest.raises(Exception, match="onernn_rnn") as error:
            executor.run(main, feed=feed, fetch_list=[y])
        assert reason in str(error.value)
    empty = {"x": np.zeros((N, 0, I), np.float32), "lengths": np.zeros(N, np.int32)}
    assert executor.run(main, feed=empty, fetch_list=[y])[0].shape == (N, 0, 2)


if __name__ == "__main__":
    run_case(globals())
