"""DynamicRNN and StaticRNN of Paddle 1.x: the operators that they appended, beside Paddle 2.6.2."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.graphs import reference
from tests.frameworks.paddle_graphs import Batch, check, numbers, ragged
from tests.frameworks.record_paddle_dynamic_rnn import (
    FIRST,
    LODS,
    O,
    dynamic,
    mixed,
    of_words,
    plain,
    saved,
    static,
    with_static,
)

from onernn import Ragged, UnsupportedError, load

BUILDS: dict[str, Callable[..., Any]] = {
    "zeros": lambda g, x, **_: dynamic(g, x, plain),
    "first": lambda g, x, h: dynamic(g, x, plain, h),
    "static": lambda g, x, h: dynamic(g, x, with_static, h, h),
    "last": lambda g, x, h: g.op("sequence_pool", X=dynamic(g, x, plain, h), pooltype="LAST"),
}


@pytest.mark.parametrize("lod", LODS)
@pytest.mark.parametrize("name", BUILDS)
def test_a_dynamic_rnn_gives_what_paddle_gives(name: str, lod: str, tmp_path: Path) -> None:
    """Sequences keep their places, and a second batch comes; a shorter one fails in Paddle."""
    batches: list[dict[str, Batch]] = []
    for seed, each in enumerate((LODS[lod], LODS["any"])):
        feeds = {"x": ragged(each, 4, seed=seed), "h": numbers(len(each[0]) - 1, O, seed=seed)}
        batches.append(feeds if name != "zeros" else {"x": feeds["x"]})
    check(saved(tmp_path, batches[0], BUILDS[name]), batches)


def test_a_dynamic_rnn_reads_words(tmp_path: Path) -> None:
    x = Ragged.from_lod(np.arange(9)[:, None] % 6, LODS["any"])
    check(saved(tmp_path, {"x": x}, lambda g, x: dynamic(g, x, of_words)), [{"x": x}])


REFUSED: dict[str, Callable[..., Any]] = {
    "its steps: expected that none combines .* 'v_.*' .reduce_mean.": lambda g, x, h: dynamic(
        g, x, mixed, h
    ),
    "'h': expected rows in the order of the sequences' lengths": lambda g, x, h: dynamic(
        g, x, plain, h, ranked=False
    ),
    "input X: expected .*, got steps that Paddle sorts by length": lambda g, x, h: g.row(
        "elementwise_add",
        X=g.row("read_from_array", X=g.steps_of(x), I=g.row("fill_constant", "int64", **FIRST)),
        Y=g.row("mul", X=h, Y=g.parameter(numbers(O, 4))),
    ),
}
"""Which Paddle runs, in the order of its table."""


@pytest.mark.parametrize("reason", REFUSED)
def test_a_loop_that_hangs_on_the_order_of_its_sequences_is_refused(
    reason: str, tmp_path: Path
) -> None:
    feeds = {"x": ragged(LODS["any"], 4), "h": numbers(4, O)}
    saved(tmp_path, feeds, REFUSED[reason]).run(feeds)
    with pytest.raises(UnsupportedError, match=reason):
        reference(load(tmp_path), feeds)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_static_rnn_gives_what_paddle_gives(reverse: bool, tmp_path: Path) -> None:
    feeds = {"x": numbers(5, 2, 4), "h": numbers(2, O)}
    longer = {"x": numbers(7, 2, 4, seed=1), "h": numbers(2, O, seed=1)}
    check(saved(tmp_path, feeds, partial(static, reverse=reverse)), [feeds, longer])
