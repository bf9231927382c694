"""Programs of Paddle 3 with our operator: ``python paddle_pir_cases.py CASE``.

What stock Paddle gives, beside what it gives with the added line. A process has one case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import paddle
from paddle_nets import MODES, STEPS, I, N, O, T, close, data, net, operators, run_case

from onernn import UnsupportedError
from onernn.adapters.paddle import optimize, register_operators
from onernn.ir.arrays import Array


def run_program(
    line: Callable[[Any, Sequence[Any]], Any], *, train: bool, early: bool = False, **more: Any
) -> tuple[Any, list[list[Array]]]:
    """A program, and what its runs gave: loss, output, state and gradients of the parameters."""
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        time_major = more.get("time_major", False)
        x = paddle.static.data("x", [None, None, I])
        lengths = paddle.static.data("lengths", [None], "int32")
        made = net(train=train, **more)
        y, last = made(x, lengths)
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
    with paddle.static.scope_guard(paddle.static.Scope()):
        executor = paddle.static.Executor()
        executor.run(startup)
        feed = data(time_major)
        runs = [executor.run(main, feed=feed, fetch_list=wanted) for _ in range(STEPS)]
    return main, runs


def same_runs(ours: list[list[Array]], theirs: list[list[Array]]) -> None:
    for got, expected in zip(ours, theirs, strict=True):
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=2e-5 * max(1, np.abs(other).max()))
    assert abs(theirs[0][0] - theirs[-1][0]) > 1e-3 or len(theirs[0]) == 3  # it learns


def case_programs() -> None:
    paddle.enable_static()
    for kind in MODES:
        _, theirs = run_program(lambda *_: None, train=False, kind=kind)
        main, ours = run_program(lambda program, _: optimize(program), train=False, kind=kind)
        assert operators(main) == ["custom_op.onernn_rnn"]
        assert len(main.replaced) == 1 and not main.refusals
        same_runs(ours, theirs)


def case_training() -> None:
    paddle.enable_static()
    for kind in MODES:
        _, theirs = run_program(lambda *_: None, train=True, kind=kind)
        for early in (False, True):
            main, ours = run_program(
                lambda program, _: optimize(program), train=True, early=early, kind=kind
            )
            assert operators(main) == ["custom_op.onernn_rnn", "custom_op.onernn_rnn_grad"]
            same_runs(ours, theirs)


def case_time_major() -> None:
    """Its own result may be fetched, and must not vanish from what a run gives."""
    paddle.enable_static()
    try:
        run_program(lambda program, _: optimize(program), train=True, time_major=True)
    except UnsupportedError as error:
        assert "fetch_list" in str(error)
    else:
        raise AssertionError("a result that may be fetched is gone")
    main, ours = run_program(
        lambda program, wanted: optimize(program, fetch_list=wanted), train=True, time_major=True
    )
    assert operators(main) == ["custom_op.onernn_rnn", "custom_op.onernn_rnn_grad"]
    same_runs(ours, run_program(lambda *_: None, train=True, time_major=True)[1])
    layer = paddle.nn.GRU(I, O, time_major=True)
    with paddle.static.program_guard(paddle.static.Program()):
        y, _ = layer(paddle.static.data("x", [None, None, I]))
        for listed in ([], [y]):
            try:
                optimize(y.block.program, fetch_list=listed)
            except UnsupportedError as error:
                assert "paddle.assign()" in str(error)
            else:
                raise AssertionError("a result that is fetched is gone")


def case_inner_blocks() -> None:
    paddle.enable_static()

    def run(line: Callable[[Any], Any]) -> tuple[Any, list[Array]]:
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup):
            x = paddle.static.data("x", [None, None, I])
            layer, square = net(kind="LSTM").body, paddle.nn.GRU(I, I)
            square.eval()
            chosen = paddle.static.nn.cond(
                x.sum() > 0, lambda: layer(x)[0].sum(), lambda: x.sum() * 2
            )
            count = paddle.full([1], 0, "int64")
            _, turned = paddle.static.nn.while_loop(
                lambda k, _: k < 3, lambda k, v: [k + 1, square(v)[0]], [count, x]
            )
            line(main)
        with paddle.static.scope_guard(paddle.static.Scope()):
            executor = paddle.static.Executor()
            executor.run(startup)
            value, wanted = np.abs(data()["x"]), [chosen, turned]
            return main, [
                each
                for x in (value, -value)
                for each in executor.run(main, feed={"x": x}, fetch_list=wanted)
            ]

    main, ours = run(optimize)
    assert operators(main) == ["custom_op.onernn_rnn"] * 2
    for one, other in zip(ours, run(lambda _: None)[1], strict=True):
        close(one, other)


def case_training_inside() -> None:
    """Of a conditional block, where the operator was there before the gradients."""
    paddle.enable_static()

    def run(line: Callable[[Any], Any], early: bool) -> list[float]:
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup):
            x = paddle.static.data("x", [None, None, I])
            layer = net(train=True, kind="LSTM").body
            made = paddle.static.nn.cond(
                x.sum() > -1e9, lambda: (layer(x)[0] - 0.5).square().mean(), lambda: x.sum()
            )
            loss = made * 1.0
            if early:
                line(main)
            paddle.optimizer.Adam(0.01).minimize(loss)
            if not early:
                line(main)
        with paddle.static.scope_guard(paddle.static.Scope()):
            executor = paddle.static.Executor()
            executor.run(startup)
            feed = {"x": data()["x"]}
            return [
                float(executor.run(main, feed=feed, fetch_list=[loss])[0]) for _ in range(STEPS)
            ]

    theirs = run(lambda _: None, True)
    np.testing.assert_allclose(run(optimize, True), theirs, rtol=1e-4)
    assert theirs[-1] < theirs[0]
    try:
        run(optimize, False)
    except UnsupportedError as error:
        assert "before its gradients are appended" in str(error)
    else:
        raise AssertionError("a gradient lost what it reads")


def case_clone() -> None:
    """A program for tests that is cloned from the one that is trained has the operator, too."""
    paddle.enable_static()
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        x, lengths = (
            paddle.static.data("x", [None, None, I]),
            paddle.static.data("lengths", [None], "int32"),
        )
        y, _ = net(train=True)(x, lengths)
        optimize(main)
    mapping = paddle.pir.IrMapping()
    test = main.clone(mapping)
    assert operators(test) == ["custom_op.onernn_rnn"]
    executor = paddle.static.Executor()
    executor.run(startup)
    one = executor.run(main, feed=data(), fetch_list=[y])
    other = executor.run(test, feed=data(), fetch_list=[mapping.look_up(y)])
    close(one[0], other[0])


def case_refusals() -> None:
    paddle.enable_static()
    for more, reason in (
        ({"train": True, "dropout": 0.5}, "eval()"),
        ({"train": False, "options": {"dtype": "u8"}}, "f32, bf16 or f16"),
        ({"train": False, "options": {"backend": "onednn"}}, "backend='kernels'"),
        ({"train": True, "options": {"dtype": "f16"}}, "no training in f16"),
    ):
        options = more.pop("options", {})
        try:
            run_program(lambda program, _, o=options: optimize(program, **o), **more)
        except UnsupportedError as error:
            assert reason in str(error), error
        else:
            raise AssertionError(reason)


def case_gradients_twice() -> None:
    """The way back overwrites what the way forward left; a second one makes that anew."""
    paddle.enable_static()
    runs = []
    for line in (lambda _: None, optimize):
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup):
            x = paddle.static.data("x", [None, None, I])
            x.stop_gradient = False
            lengths = paddle.static.data("lengths", [None], "int32")
            y, last = net(train=True)(x, lengths)
            (one,) = paddle.static.gradients([(y * y).sum()], [x])
            (two,) = paddle.static.gradients([(last * last).sum()], [x])
            line(main)
        with paddle.static.scope_guard(paddle.static.Scope()):
            executor = paddle.static.Executor()
            executor.run(startup)
            runs.append(executor.run(main, feed=data(), fetch_list=[one, two]))
    assert operators(main).count("custom_op.onernn_rnn_grad") == 2
    for one, other in zip(*runs, strict=True):
        close(one, other, 2e-5)


def case_weights_that_change() -> None:
    """Parameters that a program sets are the ones that its next run reads."""
    paddle.enable_static()
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        x, lengths = (
            paddle.static.data("x", [None, None, I]),
            paddle.static.data("lengths", [None], "int32"),
        )
        made = net()
        y, _ = made(x, lengths)
        optimize(main)
    executor, scope = paddle.static.Executor(), paddle.static.global_scope()
    executor.run(startup)
    (first,) = executor.run(main, feed=data(), fetch_list=[y])
    name = made.body._all_weights[0].name
    held = scope.find_var(name).get_tensor()
    held.set(np.array(held) * 2, paddle.CPUPlace())
    (second,) = executor.run(main, feed=data(), fetch_list=[y])
    assert np.abs(first - second).max() > 1e-3
    held.set(np.array(held) / 2, paddle.CPUPlace())
    np.testing.assert_array_equal(executor.run(main, feed=data(), fetch_list=[y])[0], first)


def case_initial_states() -> None:
    """Their gradients; without lengths, with which Paddle's own are wrong in two directions."""
    paddle.enable_static()
    runs = []
    for line in (lambda _: None, optimize):
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup):
            x = paddle.static.data("x", [None, None, I])
            h, c = (paddle.static.data(name, [4, None, O]) for name in "hc")
            for each in (x, h, c):
                each.stop_gradient = False
            y, last = net(train=True, kind="LSTM").body(x, (h, c))
            line(main)
            loss = (y * y).sum() + (last[0] * last[1]).sum()
            wanted = [y, *last, *paddle.static.gradients([loss], [x, h, c])]
        with paddle.static.scope_guard(paddle.static.Scope()):
            executor = paddle.static.Executor()
            executor.run(startup)
            given = np.random.default_rng(1).normal(size=(2, 4, N, O)).astype(np.float32)
            feed = {"x": data()["x"], "h": given[0], "c": given[1]}
            runs.append(executor.run(main, feed=feed, fetch_list=wanted))
    for one, other in zip(*runs, strict=True):
        close(one, other, 2e-5)


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
        try:
            call(given, lengths, **changed)
        except Exception as error:
            assert "onernn_rnn: " in str(error), error
        else:
            raise AssertionError(f"{len(given)} inputs, {lengths}, {changed}")


def case_bad_lengths() -> None:
    paddle.enable_static()
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        x, lengths = (
            paddle.static.data("x", [None, None, I]),
            paddle.static.data("lengths", [None], "int32"),
        )
        y, _ = net()(x, lengths)
        optimize(main)
    executor = paddle.static.Executor()
    executor.run(startup)
    for wrong, told in (
        ([6, 2, 4, 7], "7 of 6 steps"),
        ([6, -2, 4, 1], "-2"),
        ([6, 2], "4 numbers"),
    ):
        feed = {**data(), "lengths": np.array(wrong, np.int32)}
        try:
            executor.run(main, feed=feed, fetch_list=[y])
        except Exception as error:
            assert told in str(error) and "onernn_rnn" in str(error), error
        else:
            raise AssertionError(wrong)
    empty = {"x": np.zeros((N, 0, I), np.float32), "lengths": np.zeros(N, np.int32)}
    assert executor.run(main, feed=empty, fetch_list=[y])[0].shape == (N, 0, 2)


if __name__ == "__main__":
    run_case(globals())
