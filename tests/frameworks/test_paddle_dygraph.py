"""Layers of paddle.nn whose kernel is ours: numbers, gradients, training, what stays theirs."""

from __future__ import annotations

import copy
import itertools
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support.arrays import uniform
from tests.frameworks.live_properties import *  # noqa: F403

from onernn import ShapeError, UnsupportedError
from onernn.adapters import paddle as plugin
from onernn.adapters.paddle.live_layer import view_eager
from onernn.ir.arrays import Array

MODES = ("GRU", "LSTM", "SimpleRNN")
T, N, I, O = 6, 4, 5, 3  # noqa: E741
LENGTHS = [4, 6, 1, 3]


pytestmark = pytest.mark.usefixtures("dynamic_mode")

optimize = partial(plugin.optimize, backend="kernels")


def layer(mode: str, layers: int = 1, directions: int = 1, **more: Any) -> Any:
    way = "bidirect" if directions == 2 else "forward"
    return getattr(paddle.nn, mode)(I, O, num_layers=layers, direction=way, **more)


def by_memory(parameter: Any, rows: slice, values: Array) -> None:
    view_eager(parameter, parameter.name)[rows] = values


def by_set_value(parameter: Any, rows: slice, values: Array) -> None:
    written = parameter.numpy()
    written[rows] = values
    parameter.set_value(written)


def by_optimizer(parameter: Any, rows: slice, values: Array) -> None:
    written = parameter.numpy()
    written[rows] = values
    change = paddle.to_tensor(parameter.numpy() - written)
    paddle.add_n([(parameter * change).sum()]).backward()
    paddle.optimizer.SGD(1.0, [parameter]).step()
    parameter.clear_gradient()


class PaddleHost:
    """See `Host`."""

    freezes, units = False, O
    ways = (by_memory, by_set_value, by_optimizer)
    restore = staticmethod(plugin.restore)

    def __init__(self, mode: str, dtype: str) -> None:
        self.mode, self.dtype, self.is_rounded = mode, dtype, dtype != "f32"

    def layer(self) -> Any:
        return layer(self.mode, 1, 2)

    def copy(self, made: Any) -> Any:
        result = self.layer()
        result.set_state_dict(made.state_dict())
        return result

    def optimize(self, made: Any, **options: Any) -> Any:
        return optimize(made, dtype=self.dtype, **options)

    def run(self, made: Any, steps: int) -> list[Array]:
        with paddle.no_grad():
            y, last = made(paddle.to_tensor(values(N, steps, I)))
        return [each.numpy() for each in (y, *(last if isinstance(last, tuple) else (last,)))]

    def parameters(self, made: Any) -> Any:
        return dict(made.named_parameters(include_sublayers=False))


@pytest.fixture(params=itertools.product(MODES, ("f32", "bf16", "f16")), ids="-".join)
def host(request: pytest.FixtureRequest) -> PaddleHost:
    return PaddleHost(*request.param)


def twins(mode: str, *sizes: int, **more: Any) -> tuple[Any, Any]:
    """Paddle's layer, and ours of the same numbers."""
    theirs = layer(mode, *sizes, **more)
    return theirs, optimize(copy.deepcopy(theirs))


def values(*shape: int, seed: int = 0) -> Array:
    return uniform(*shape, seed=[seed, *shape])


def whole(made: Any, x: Any, states: list[Any], lengths: Any = None) -> list[Any]:
    """Output and final states of a call."""
    y, final = made(x, tuple(states) if len(states) > 1 else states[0], lengths)
    return [y, *(final if isinstance(final, tuple) else [final])]


def by_sentence(made: Any, x: Any, states: list[Any], time_major: bool) -> list[Any]:
    """The same from calls for one sentence each, of its own length.

    Paddle's gradients of bidirectional layers with lengths and initial states are wrong: their
    backward direction takes what it started from for zero.
    """
    calls = []
    for n, length in enumerate(LENGTHS):
        own = x[:length, n : n + 1] if time_major else x[n : n + 1, :length]
        y, *final = whole(made, own, [s[:, n : n + 1] for s in states])
        behind = [0, T - length, 0, 0, 0, 0] if time_major else [0, 0, 0, T - length, 0, 0]
        calls.append([paddle.nn.functional.pad(y, behind), *final])
    y, *finals = map(list, zip(*calls, strict=True))
    return [paddle.concat(y, 1 if time_major else 0), *(paddle.concat(f, 1) for f in finals)]


def close(got: Any, expected: Any) -> None:
    one, other = (np.asarray(each) for each in (got, expected))
    assert_allclose(one, other, rtol=0, atol=1e-6 + 1e-5 * np.abs(other).max(initial=0))


@pytest.mark.parametrize("lengths", [False, True], ids=["whole", "lengths"])
@pytest.mark.parametrize("time_major", [False, True], ids=["batch-first", "time-major"])
@pytest.mark.parametrize("mode, layers, directions", list(itertools.product(MODES, (1, 2), (1, 2))))
def test_numbers_and_gradients_are_those_of_paddle(
    mode: str, layers: int, directions: int, time_major: bool, lengths: bool
) -> None:
    theirs, ours = twins(mode, layers, directions, time_major=time_major)
    shape = (layers * directions, N, O)
    given = [values(*((T, N, I) if time_major else (N, T, I)))]
    given += [values(*shape, seed=k) for k in range(1 + (mode == "LSTM"))]
    results: list[list[Array]] = []
    for made in (theirs, ours):
        x, *states = (paddle.to_tensor(each, stop_gradient=False) for each in given)
        if lengths and made is theirs:
            outputs = by_sentence(made, x, states, time_major)
        else:
            sizes = paddle.to_tensor(LENGTHS, "int32") if lengths else None
            outputs = whole(made, x, states, sizes)
        heads = [paddle.to_tensor(values(*each.shape, seed=9)) for each in outputs]
        paddle.add_n([(o * h).sum() for o, h in zip(outputs, heads, strict=True)]).backward()
        graded = [x, *states, *made.parameters(include_sublayers=False)]
        results.append([*(o.numpy() for o in outputs), *(each.grad.numpy() for each in graded)])
    assert len(results[0]) == len(results[1])
    for got, expected in zip(*results[::-1], strict=True):
        close(got, expected)


def test_layers_of_any_depth_become_ours_in_place() -> None:
    class Own(paddle.nn.GRU):
        def forward(self, x: Any) -> Any:
            return super().forward(x)[0] * 2

    class Net(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = paddle.nn.LayerList([paddle.nn.Sequential(Own(I, O)), layer("LSTM")])

        def forward(self, x: Any) -> Any:
            return self.blocks[0](x), self.blocks[1](x)[0]

    net = Net()
    x, kept = paddle.to_tensor(values(N, T, I)), list(net.parameters())
    expected, names = [each.numpy() for each in net(x)], list(net.state_dict())
    assert optimize(net) is net
    assert isinstance(net.blocks[0][0], Own) and isinstance(net.blocks[1], paddle.nn.LSTM)
    assert all(one is other for one, other in zip(net.parameters(), kept, strict=True))
    assert list(net.state_dict()) == names
    for got, want in zip(net(x), expected, strict=True):
        close(got, want)
    ours = type(net.blocks[1])
    optimize(net, dtype="bf16")
    assert type(net.blocks[1]).__mro__[1] is paddle.nn.LSTM  # not on top of ours
    narrow = net(x)[1].numpy()
    apart = np.abs(narrow - expected[1]).max()
    assert 0 < apart < 2e-2
    assert type(optimize(net).blocks[1]) is ours


def test_gradients_go_where_they_are_asked_for() -> None:
    """Paddle's own kernel wants them all: it fails where a parameter is frozen."""
    theirs, ours = twins("LSTM")
    ours.weight_hh_l0.stop_gradient = True
    x = paddle.to_tensor(values(N, T, I))
    for made in (theirs, ours):
        made(x)[1][1].sum().backward()  # of the last cell alone
    assert x.grad is None and ours.weight_hh_l0.grad is None
    close(ours.weight_ih_l0.grad, theirs.weight_ih_l0.grad)
    with paddle.no_grad():
        assert ours(x)[0].stop_gradient
    for each in ours.parameters():
        each.stop_gradient = True
    assert ours(x)[0].stop_gradient


def test_going_backward_twice_is_right_and_deeper_is_an_error() -> None:
    theirs, ours = twins("GRU")
    x = paddle.to_tensor(values(N, T, I), stop_gradient=False)
    y, h = ours(x)
    y.sum().backward(retain_graph=True)
    h.sum().backward()
    y, h = theirs(x)
    y.sum().backward(retain_graph=True)
    h.sum().backward()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        close(one.grad, other.grad)
    with pytest.raises(Exception, match="create_graph"):
        (grad,) = paddle.grad([ours(x)[0].sum()], [x], create_graph=True)
        grad.sum().backward()
    x.clear_grad()
    ours(x)[0].sum().backward()  # and it goes on
    assert np.abs(x.grad.numpy()).max() > 0


@pytest.mark.parametrize(
    "reason, more, options, dtype",
    [
        ("dropout between its layers", {"num_layers": 2, "dropout": 0.5}, {}, "float32"),
        ("u8", {}, {"dtype": "u8"}, "float32"),
        ("onednn", {}, {"backend": "onednn"}, "float32"),
        ("float64", {}, {}, "float64"),
    ],
)
def test_what_ours_does_not_train_stays_with_paddle_and_is_told_once(
    reason: str,
    more: dict[str, Any],
    options: dict[str, Any],
    dtype: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    paddle.set_default_dtype(dtype)
    try:
        theirs = paddle.nn.LSTM(I, O, **more)
    finally:
        paddle.set_default_dtype("float32")
    ours = optimize(copy.deepcopy(theirs), **options)
    x = paddle.to_tensor(values(N, T, I).astype(dtype))
    results = []
    for made in (theirs, ours):
        paddle.seed(7)  # of the dropout
        made(x)
        results.append(made(x)[0])
    results[1].sum().backward()
    close(results[1], results[0])
    assert caplog.text.count("stays with Paddle") == 1 and re.search(reason, caplog.text)


def test_dropout_is_nothing_in_evaluation(caplog: pytest.LogCaptureFixture) -> None:
    theirs, ours = twins("LSTM", 2, dropout=0.5)
    x = paddle.to_tensor(values(N, T, I))
    for made in (theirs, ours):
        made.eval()
    close(ours(x)[0], theirs(x)[0])
    assert "stays" not in caplog.text


@pytest.mark.parametrize("left_out", ["bias_ih_attr", "bias_hh_attr"])
def test_a_bias_that_is_left_out_is_zero(left_out: str) -> None:
    """Paddle's own kernel crashes: its list of weights is too short."""
    theirs, bare = layer("GRU", 2), layer("GRU", 2, **{left_out: False})
    optimize(bare)
    for one, other in zip(theirs, bare, strict=True):
        for mine, its in zip(one.parameters(), other.parameters(), strict=True):
            mine.set_value(its.numpy())
    x = paddle.to_tensor(values(N, T, I))
    for made in (theirs, bare):
        made(x)[0].sum().backward()
    close(bare(x)[0], theirs(x)[0])
    close(bare[1].cell.weight_ih.grad, theirs[1].cell.weight_ih.grad)
    with pytest.raises(UnsupportedError, match="u8"):  # and not a crash
        optimize(bare, dtype="u8")(x)


def test_layers_that_paddle_composes_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UnsupportedError, match=r"Linear holds no SimpleRNN, LSTM, GRU, RNN or"):
        optimize(paddle.nn.Linear(2, 2))
    composed = layer("GRU")
    composed.could_use_cudnn = False
    with pytest.raises(UnsupportedError, match="gru_"):
        optimize(composed)
    both = optimize(paddle.nn.LayerList([composed, layer("GRU")]))
    name, reason = composed.full_name(), "Paddle computes it by small operators"
    assert f"stays with Paddle: {name}: {reason}" in caplog.text
    lines = plugin.explain(both).splitlines()
    assert lines[0] == f"{both[1].full_name()}: onernn: GRU, f32"
    assert lines[1] == f"{name}: stays with Paddle: {reason}"
    assert type(both[0]) is paddle.nn.GRU is not type(both[1])
    if paddle.__version__ >= "3":
        with pytest.raises(UnsupportedError, match="a projection"):
            optimize(layer("LSTM", proj_size=2))


def test_tensors_of_any_strides_and_no_sentences() -> None:
    theirs, ours = twins("GRU", time_major=True)
    x = paddle.to_tensor(values(N, T, I)).transpose([1, 0, 2])
    close(ours(x)[0], theirs(x)[0])
    assert [each.shape for each in ours(paddle.zeros([T, 0, I]))] == [[T, 0, O], [1, 0, O]]
    y, h = ours(paddle.zeros([0, N, I]))  # Paddle divides by this zero
    assert y.shape == [0, N, O] and not h.numpy().any()


def test_wrong_shapes_are_refused_by_name() -> None:
    ours = optimize(layer("GRU"))
    with pytest.raises(ShapeError, match=r"x: expected \(T, N, 5\)"):
        ours(paddle.zeros([N, T, I + 1]))
    with pytest.raises(ShapeError, match="initial_states: expected"):
        ours(paddle.zeros([N, T, I]), paddle.zeros([1, N, O + 1]))
    with pytest.raises(ShapeError, match="lengths: expected 0 to .*, got 7 for sequence 0"):
        ours(paddle.zeros([1, T, I]), None, paddle.to_tensor([T + 1]))
    with pytest.raises(ShapeError, match="inputs: expected 3 axes"):
        ours(paddle.zeros([T, I]), paddle.zeros([1, T, O]))


def test_two_threads_run_one_layer() -> None:
    theirs, ours = twins("LSTM", 2, 2)
    xs = [paddle.to_tensor(values(n, T, I)) for n in (1, 4, 2, 3) * 5]

    def run(x: Any) -> Array:
        with paddle.no_grad():
            return np.asarray(ours(x)[0])

    expected = [theirs(x)[0].numpy() for x in xs]
    with ThreadPoolExecutor(2) as pool:
        for got, want in zip(pool.map(run, xs), expected, strict=True):
            close(got, want)


@pytest.mark.parametrize("threads", [2, 3, 64])
def test_any_number_of_threads_gives_the_bits_of_one(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONERNN_TEAM", "1")
    made, x = layer("LSTM", 2, 2), paddle.to_tensor(values(N, T, I))
    expected = optimize(copy.deepcopy(made))(x)[0].numpy()
    monkeypatch.setenv("ONERNN_TEAM", str(threads))
    ours = optimize(copy.deepcopy(made), threads=threads)
    assert_array_equal(ours(x)[0].numpy(), expected)
    with paddle.no_grad():
        assert_array_equal(ours(x)[0].numpy(), expected)


@pytest.mark.skipif(paddle.__version__ >= "3", reason="jit.save of nn.GRU needs PIR from 3.0 on")
@pytest.mark.parametrize("of_cells", [False, True])
def test_what_is_saved_are_operators_of_paddle(of_cells: bool, tmp_path: Path) -> None:
    ours = optimize(paddle.nn.RNN(paddle.nn.GRUCell(I, O)) if of_cells else layer("GRU"))
    ours.eval()
    x = paddle.to_tensor(values(N, T, I))
    expected = ours(x)[0]
    spec = [paddle.static.InputSpec([None, T, I], "float32")]
    paddle.jit.save(ours, str(tmp_path / "model"), input_spec=spec)
    loaded = paddle.jit.load(str(tmp_path / "model"))
    close(loaded(x)[0], expected)
    (recurrent,) = {op.type for op in loaded.program().global_block().ops} & {"rnn", "while"}
    assert (recurrent == "while") == of_cells


def test_what_paddle_is_faster_for_it_runs_and_that_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "onernn")
    theirs = paddle.nn.GRU(I, 128)
    ours = plugin.optimize(copy.deepcopy(theirs))
    step, many = paddle.to_tensor(values(1, 1, I)), paddle.to_tensor(values(4, 32, I))
    for made in (theirs, ours):
        made.eval()
    with paddle.no_grad():
        for _ in range(2):
            assert_array_equal(ours(step)[0].numpy(), theirs(step)[0].numpy())
        got, expected = ours(many)[0].numpy(), theirs(many)[0].numpy()
    close(got, expected)
    assert (got != expected).any()  # ours ran, whose last bits are others
    assert caplog.text.count("runs so few steps at least as fast") == 1
    with paddle.no_grad():  # a bf16 that somebody asked for is what he gets
        narrow = plugin.optimize(ours, dtype="bf16")(step)[0].numpy()
    assert (narrow != theirs(step)[0].numpy()).any()


def test_what_paddle_fails_at_is_never_left_to_it() -> None:
    """Paddle goes backward in training only, and only where every parameter is trained."""
    for frozen in (False, True):
        ours = plugin.optimize(layer("LSTM"))
        ours.training = frozen
        ours.weight_hh_l0.stop_gradient = frozen
        ours(paddle.to_tensor(values(1, 2, I)))[0].sum().backward()
        assert float(ours.weight_ih_l0.grad.abs().sum()) > 0


CELLS = {
    "LSTM": paddle.nn.LSTMCell,
    "GRU": paddle.nn.GRUCell,
    "SimpleRNN": partial(paddle.nn.SimpleRNNCell, activation="relu"),
}


@pytest.mark.parametrize("stated", [False, True], ids=["zeros", "states"])
@pytest.mark.parametrize("time_major", [False, True], ids=["batch-first", "time-major"])
@pytest.mark.parametrize("way", ["forward", "reverse", "both"])
@pytest.mark.parametrize("mode", MODES)
def test_layers_of_cells_become_ours(mode: str, way: str, time_major: bool, stated: bool) -> None:
    cells = [CELLS[mode](I, O) for _ in range(1 + (way == "both"))]
    wrap = paddle.nn.BiRNN if way == "both" else partial(paddle.nn.RNN, is_reverse=way == "reverse")
    theirs = wrap(*cells, time_major=time_major)
    ours = optimize(copy.deepcopy(theirs))
    begin = [paddle.to_tensor(values(N, O, seed=k)) for k in range(4)]
    states: Any = tuple(begin[:2]) if mode == "LSTM" else begin[0]
    if way == "both":
        states = (states, tuple(begin[2:]) if mode == "LSTM" else begin[1])
    results = []
    for made in (ours, theirs):
        x = paddle.to_tensor(values(*((T, N, I) if time_major else (N, T, I))), stop_gradient=False)
        y, last = made(x, states if stated else None)
        ends = paddle.utils.flatten(last)
        paddle.add_n([(each * each).sum() for each in (y, *ends)]).backward()
        parameters = made.parameters()
        results.append([y, *ends, x.grad, *(each.grad for each in parameters)])
    for got, expected in zip(*results, strict=True):
        close(got, expected)


def test_layers_of_other_cells_stay() -> None:
    class Cell(paddle.nn.GRUCell):
        pass

    hooked = paddle.nn.GRUCell(I, O)
    hooked.register_forward_post_hook(lambda *_: None)
    for cell, reason in (
        (Cell(I, O), "is not of paddle.nn"),
        (hooked, "hooks"),
    ):
        with pytest.raises(UnsupportedError, match=reason):
            optimize(paddle.nn.RNN(cell))
    pair = paddle.nn.BiRNN(paddle.nn.GRUCell(I, O), paddle.nn.GRUCell(I, O + 1))
    with pytest.raises(UnsupportedError, match="not alike"):
        optimize(pair)


def test_lengths_of_cells_are_left_to_paddle() -> None:
    """Behind a length Paddle goes on from what stands there, and so does what it gives."""
    theirs = paddle.nn.RNN(paddle.nn.LSTMCell(I, O))
    ours = optimize(copy.deepcopy(theirs))
    x, lengths = paddle.to_tensor(values(N, T, I)), paddle.to_tensor(LENGTHS, "int32")
    for got, expected in zip(
        *(paddle.utils.flatten(m(x, None, lengths)) for m in (ours, theirs)), strict=True
    ):
        assert_array_equal(got.numpy(), expected.numpy())
    assert "sequence_length" in plugin.explain(ours)
