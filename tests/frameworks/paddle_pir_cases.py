"""Programs of Paddle 3 with our operator: ``python paddle_pir_cases.py CASE``.

What stock Paddle gives, beside what it gives with the added line. A process has one case.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import paddle
from paddle_nets import (
    MODES,
    STEPS,
    Built,
    I,
    N,
    O,
    T,
    all_close,
    close,
    data,
    net,
    operators,
    refused,
    run_case,
)

from onernn import UnsupportedError
from onernn.adapters.paddle import optimize, restore
from onernn.adapters.paddle.custom_operators import register_operators
from onernn.ir.arrays import Array

OURS, GRAD = "custom_op.onernn_rnn", "custom_op.onernn_rnn_grad"


def stock(*_: Any) -> None:
    """No line."""


def run_program(
    line: Callable[[Any, Sequence[Any]], Any] = stock,
    *,
    train: bool,
    early: bool = False,
    plug: Callable[[Any], Any] = lambda layer: layer,
    behind: Callable[[Any], Any] = stock,
    **more: Any,
) -> tuple[Any, list[list[Array]]]:
    """A program, and what its runs gave: loss, output, state and gradients of the parameters."""
    paddle.enable_static()

    def build(main: Any, x: Any, lengths: Any) -> list[Any]:
        y, last = plug(net(train=train, **more))(x, lengths)
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
        behind(main)
        return wanted

    built, feed = Built(build), data(more.get("time_major", False))
    return built.main, [built.run(**feed) for _ in range(STEPS)]


def plugged(program: Any, _: Any = None) -> None:
    optimize(program)


def same_runs(ours: list[list[Array]], theirs: list[list[Array]]) -> None:
    for got, expected in zip(ours, theirs, strict=True):
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=2e-5 * max(1, np.abs(other).max()))
    assert abs(theirs[0][0] - theirs[-1][0]) > 1e-3 or len(theirs[0]) == 3  # it learns


def case_programs() -> None:
    for kind in MODES:
        main, ours = run_program(plugged, train=False, kind=kind)
        assert operators(main) == [OURS]
        assert len(main.replaced) == 1 and not main.refusals
        same_runs(ours, run_program(train=False, kind=kind)[1])


def case_training() -> None:
    for kind in MODES:
        _, theirs = run_program(train=True, kind=kind)
        for early in (False, True):
            main, ours = run_program(plugged, train=True, early=early, kind=kind)
            assert operators(main) == [OURS, GRAD]
            same_runs(ours, theirs)


def case_time_major() -> None:
    """Its own result may be fetched, and must not vanish from what a run gives."""
    told: Any = {"train": True, "time_major": True}
    with refused(UnsupportedError, "fetch_list"):
        run_program(plugged, **told)
    main, ours = run_program(lambda p, wanted: optimize(p, fetch_list=wanted), **told)
    assert operators(main) == [OURS, GRAD]
    same_runs(ours, run_program(**told)[1])
    layer = paddle.nn.GRU(I, O, time_major=True)
    with paddle.static.program_guard(paddle.static.Program()):
        y, _ = layer(paddle.static.data("x", [None, None, I]))
        for listed in ([], [y]):
            with refused(UnsupportedError, "paddle.assign()"):
                optimize(y.block.program, fetch_list=listed)


def case_inner_blocks() -> None:
    paddle.enable_static()

    def run(line: Callable[[Any], Any]) -> tuple[Any, list[Array]]:
        def build(main: Any, x: Any, _: Any) -> list[Any]:
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
            return [chosen, turned]

        built, value = Built(build), np.abs(data()["x"])
        return built.main, [each for x in (value, -value) for each in built.run(x=x)]

    main, ours = run(optimize)
    assert operators(main) == [OURS] * 2
    all_close(ours, run(stock)[1])


def case_training_inside() -> None:
    """Of a conditional block, where the operator was there before the gradients."""
    paddle.enable_static()

    def run(line: Callable[[Any], Any], early: bool) -> list[float]:
        def build(main: Any, x: Any, _: Any) -> list[Any]:
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
            elif line is optimize:
                with refused(UnsupportedError, "inner block"):
                    restore(main)
            return [loss]

        built = Built(build)
        return [float(built.run()[0]) for _ in range(STEPS)]

    theirs = run(stock, True)
    np.testing.assert_allclose(run(optimize, True), theirs, rtol=1e-4)
    assert theirs[-1] < theirs[0]
    with refused(UnsupportedError, "before its gradients are appended"):
        run(optimize, False)


def plain(**more: Any) -> tuple[Built, list[str]]:
    """A net with the line, which fetches the output; and the names of its weights."""
    paddle.enable_static()
    names: list[str] = []

    def build(main: Any, x: Any, lengths: Any) -> list[Any]:
        made = net(**more)
        y, _ = made(x, lengths)
        names.extend(each.name for each in made.body._all_weights)
        plugged(main)
        return [y]

    return Built(build), names


def case_clone() -> None:
    """A program for tests that is cloned from the one that is trained has the operator, too."""
    (built, _), mapping = plain(train=True), paddle.pir.IrMapping()
    test = built.main.clone(mapping)
    assert operators(test) == [OURS]
    other = built.run(test, [mapping.look_up(built.wanted[0])])
    all_close(built.run(), other)


def case_restored() -> None:
    """In place: what the builder holds is fetched as before, gradients among it."""

    def back(program: Any) -> None:
        assert operators(program) == [OURS, GRAD]
        assert restore(program) is program and not program.replaced

    def line(program: Any, wanted: Sequence[Any]) -> None:
        optimize(program, fetch_list=wanted)

    for kind, time_major in itertools.product(MODES, (False, True)):
        told: Any = {"train": True, "kind": kind, "time_major": time_major}
        _, theirs = run_program(**told)
        for way in ({"line": line}, {"line": line, "early": True}, {"plug": optimize}):
            main, ours = run_program(behind=back, **way, **told)
            assert operators(main) == ["pd_op.rnn", "pd_op.rnn_grad"]
            same_runs(ours, theirs)


def case_refusals() -> None:
    for more, options, reason in (
        ({"train": True, "dropout": 0.5}, {}, "eval()"),
        ({"train": False}, {"dtype": "u8"}, "'f32', 'bf16' or 'f16'"),
        ({"train": False}, {"backend": "onednn"}, "'kernels'"),
        ({"train": True}, {"dtype": "f16"}, "dtype='f16'"),
    ):
        with refused(UnsupportedError, reason):
            run_program(lambda program, _, o=options: optimize(program, **o), **more)


def both(build: Callable[[Any, Any], list[Any]], **feed: Array) -> Any:
    """The program with the line behind ``build(x, lengths)``: the same as without."""
    paddle.enable_static()
    runs = []
    for line in (stock, optimize):

        def whole(main: Any, x: Any, lengths: Any, line: Any = line) -> list[Any]:
            x.stop_gradient = False
            wanted = build(x, lengths)
            line(main)
            return wanted

        built = Built(whole)
        runs.append(built.run(**feed))
    all_close(*runs, 2e-5)
    return built.main


def case_gradients_twice() -> None:
    """The way back overwrites what the way forward left; a second one makes that anew."""

    def build(x: Any, lengths: Any) -> list[Any]:
        outputs = net(train=True)(x, lengths)
        return [paddle.static.gradients([(y * y).sum()], [x])[0] for y in outputs]

    assert operators(both(build)).count(GRAD) == 2


def case_weights_that_change() -> None:
    """Parameters that a program sets are the ones that its next run reads."""
    built, names = plain()
    (first,) = built.run()
    held = built.scope.find_var(names[0]).get_tensor()
    held.set(np.array(held) * 2, paddle.CPUPlace())
    assert np.abs(first - built.run()[0]).max() > 1e-3
    held.set(np.array(held) / 2, paddle.CPUPlace())
    np.testing.assert_array_equal(built.run()[0], first)


def case_initial_states() -> None:
    """Their gradients; without lengths, with which Paddle's own are wrong in two directions."""

    def build(x: Any, _: Any) -> list[Any]:
        h, c = (paddle.static.data(name, [4, None, O]) for name in "hc")
        for each in (h, c):
            each.stop_gradient = False
        y, last = net(train=True, kind="LSTM").body(x, (h, c))
        loss = (y * y).sum() + (last[0] * last[1]).sum()
        return [y, *last, *paddle.static.gradients([loss], [x, h, c])]

    h, c = np.random.default_rng(1).normal(size=(2, 4, N, O)).astype(np.float32)
    both(build, h=h, c=c)


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
        with refused(Exception, "onernn_rnn: "):
            call(given, lengths, **changed)


def case_bad_lengths() -> None:
    built, _ = plain()
    for wrong, told in (
        ([6, 2, 4, 7], "7 of 6 steps"),
        ([6, -2, 4, 1], "-2"),
        ([6, 2], "4 numbers"),
    ):
        with refused(Exception, told, "onernn_rnn"):
            built.run(lengths=np.array(wrong, np.int32))
    empty = {"x": np.zeros((N, 0, I), np.float32), "lengths": np.zeros(N, np.int32)}
    assert built.run(**empty)[0].shape == (N, 0, 2)


if __name__ == "__main__":
    run_case(globals())
