"""What cases of Paddle 3 have in common: a net, what it reads, and how results are compared."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.inference

import onernn
from onernn import Ragged
from onernn.adapters.paddle import optimize
from onernn.ir.arrays import Array
from onernn.ir.ragged import Batch, data_of

I, O, N, T = 5, 19, 4, 6  # noqa: E741  # 19: a panel of kernels has 16 units
STEPS = 20
_FOLDER = tempfile.TemporaryDirectory()
FILES = Path(_FOLDER.name)
LENGTHS = np.array([6, 2, 4, 1], np.int32)
MODES = ("GRU", "LSTM", "SimpleRNN")


class Net(paddle.nn.Layer):
    """Two bidirectional layers with lengths, and a linear one behind them."""

    def __init__(self, kind: str = "GRU", **more: Any) -> None:
        super().__init__()
        more = {"num_layers": 2, "direction": "bidirect", **more}
        self.body = getattr(paddle.nn, kind)(I, O, **more)
        self.head = paddle.nn.Linear(O * self.body.num_directions, 2)

    def forward(self, x: Any, lengths: Any) -> Any:
        y, last = self.body(x, sequence_length=lengths)
        return self.head(y), last[0] if isinstance(last, tuple) else last


def data(time_major: bool = False) -> dict[str, Array]:
    x = np.random.default_rng(0).normal(size=(N, T, I)).astype(np.float32)
    return {"x": np.ascontiguousarray(x.swapaxes(0, 1)) if time_major else x, "lengths": LENGTHS}


def tensors() -> list[Any]:
    return [paddle.to_tensor(each) for each in data().values()]


def net(*, train: bool = False, kind: str = "GRU", **more: Any) -> Net:
    paddle.seed(3)
    with paddle.utils.unique_name.guard():
        made = Net(kind, **more)
    (made.train if train else made.eval)()
    return made


class Built:
    """A program in a scope of its own. ``build(program, x, lengths)`` gives what its runs fetch.

    ``sizes``: those of x.
    """

    def __init__(
        self,
        build: Callable[[Any, Any, Any], Sequence[Any]],
        sizes: Sequence[int | None] = (None, None, I),
    ) -> None:
        self.main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(self.main, startup):
            x = paddle.static.data("x", list(sizes))
            lengths = paddle.static.data("lengths", [None], "int32")
            self.wanted = build(self.main, x, lengths)
        self.scope, self.executor = paddle.static.Scope(), paddle.static.Executor()
        with paddle.static.scope_guard(self.scope):
            self.executor.run(startup)

    def run(self, program: Any = None, wanted: Any = None, **feed: Array) -> list[Array]:
        """With `data`, but for what is fed."""
        with paddle.static.scope_guard(self.scope):
            fed, fetched = {**data(), **feed}, wanted or self.wanted
            return list(self.executor.run(program or self.main, feed=fed, fetch_list=fetched))


def refused(kind: type[Exception], *words: str) -> Any:
    """A block that must raise an error of this kind with these words."""

    class Refused(AbstractContextManager[None]):
        def __exit__(self, _: object, error: BaseException | None, *__: object) -> bool:
            assert isinstance(error, kind), error or f"no error: {words}"
            assert all(word in str(error) for word in words), error
            return True

    return Refused()


def all_close(got: Any, expected: Any, rounding: float = 4e-6) -> None:
    for one, other in zip(got, expected, strict=True):
        close(one, other, rounding)


def close(got: Any, expected: Any, rounding: float = 4e-6) -> None:
    """``rounding``: of two orders of summing up T * O products of numbers around 1, in float32."""
    one, other = (np.asarray(each) for each in (got, expected))
    assert one.shape == other.shape, (one.shape, other.shape)
    assert np.abs(other).max() > 1e-3  # zeros would be close to anything
    np.testing.assert_allclose(one, other, rtol=0, atol=rounding * max(1, np.abs(other).max()))


def predict(predictor: Any, feeds: Mapping[str, Batch]) -> list[Batch]:
    """What a predictor of paddle.inference gives for a batch."""
    for name, value in feeds.items():
        handle = predictor.get_input_handle(name)
        handle.copy_from_cpu(np.ascontiguousarray(data_of(value)))
        if isinstance(value, Ragged):
            handle.set_lod([list(map(int, level)) for level in value.lod])
    predictor.run()
    outputs = [predictor.get_output_handle(name) for name in predictor.get_output_names()]
    return [
        Ragged.from_lod(each.copy_to_cpu(), each.lod()) if each.lod() else each.copy_to_cpu()
        for each in outputs
    ]


def config_of(folder: Path, name: str = "model") -> Any:
    """A Config of a program in the format of this Paddle, which logs nothing."""
    suffixes = [suffix for suffix in ("json", "pdmodel") if (folder / f"{name}.{suffix}").exists()]
    files = (str(folder / f"{name}.{suffix}") for suffix in (suffixes[0], "pdiparams"))
    config = paddle.inference.Config(*files)
    config.disable_glog_info()
    return config


OURS = partial(optimize, backend="kernels")


def served(kind: Any, folder: Path) -> None:
    """The files of a plugged network: in Paddle's predictor, in a plugged one, without Paddle."""
    net = kind()
    net.eval()
    given = [paddle.to_tensor(each) for each in kind.given.values()]
    expected = [each.numpy() for each in paddle.utils.flatten(net(*given))]
    spec = []
    for name, each in kind.given.items():
        sizes = [None] * each.ndim
        if each.dtype == np.float32:
            sizes = [None, *each.shape[1:-2], None, each.shape[-1]]
        spec.append(paddle.static.InputSpec(sizes, str(each.dtype), name))
    compiled = paddle.jit.to_static(OURS(net), input_spec=spec, full_graph=True)
    all_close([each.numpy() for each in paddle.utils.flatten(compiled(*given))], expected)
    paddle.jit.save(net, str(folder / "m"))
    for plug in (lambda config: config, OURS):
        predictor = paddle.inference.create_predictor(plug(config_of(folder, "m")))
        all_close(predict(predictor, kind.given), expected)
    all_close(onernn.Session(folder / "m").run(kind.given).values(), expected)


def spec() -> list[Any]:
    of = paddle.static.InputSpec
    return [of([None, None, I], "float32", "x"), of([None], "int32", "lengths")]


def operators(program: Any) -> list[str]:
    """Recurrent ones, those of inner blocks among them."""
    found = []
    blocks = [program.global_block()]
    for block in blocks:
        found += [op.name() for op in block.ops if "rnn" in op.name()]
        blocks += [inner for op in block.ops for inner in op.blocks()]
    return found


def run_case(cases: Mapping[str, Any]) -> None:
    """The one that the command line names, of a file's globals; a failed one raises."""
    cases[f"case_{sys.argv[1]}"]()
    print("whole")
