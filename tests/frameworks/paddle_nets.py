"""What cases of Paddle 3 have in common: a net, what it reads, and how results are compared."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from onernn.ir.arrays import Array

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


def close(got: Any, expected: Any, rounding: float = 4e-6) -> None:
    """``rounding``: of two orders of summing up T * O products of numbers around 1, in float32."""
    one, other = (np.asarray(each) for each in (got, expected))
    assert one.shape == other.shape, (one.shape, other.shape)
    assert np.abs(other).max() > 1e-3  # zeros would be close to anything
    np.testing.assert_allclose(one, other, rtol=0, atol=rounding * max(1, np.abs(other).max()))


def all_close(got: Iterable[Any], expected: Iterable[Any], rounding: float = 4e-6) -> None:
    for one, other in zip(got, expected, strict=True):
        close(one, other, rounding)


def fed() -> list[Any]:
    """The variables of `data` in the program that is being built."""
    return [
        paddle.static.data("x", [None, None, I]),
        paddle.static.data("lengths", [None], "int32"),
    ]


def run_program(
    build: Callable[[Any], list[Any]], *feeds: Mapping[str, Array]
) -> tuple[Any, list[list[Array]]]:
    """A program that ``build`` fills, and what its runs give for the values that it wants."""
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        wanted = build(main)
    with paddle.static.scope_guard(paddle.static.Scope()):
        executor = paddle.static.Executor()
        executor.run(startup)
        return main, [executor.run(main, feed=feed, fetch_list=wanted) for feed in feeds]


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
