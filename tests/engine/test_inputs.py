"""What callers bring: taken with every number as it is, rounded, or refused; on every way in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.graphs import new_node
from support.layers import random_weights

from onernn import Cell, Graph, Ragged, RnnSpec, Session, ShapeError
from onernn.backend import open_backend
from onernn.engine.compiling import compile_model
from onernn.ir.graph import Value
from onernn.ir.ragged import convert

pytestmark = pytest.mark.usefixtures("built")
Run = Callable[[Any], Any]


def model(dtype: str | None, lod_depth: int = 0) -> Graph:
    value = Value("x", dtype, dtype and (None, 1), lod_depth)
    nodes = (new_node("y = Mul x x"),)
    return Graph("m", (value,), (Value("y", dtype),), nodes, {})


def of_session(_: Path) -> Run:
    return Session(model("float32")).run


def of_a_session_that_has_run(_: Path) -> Run:
    session = Session(model("float32"))
    session.run({"x": np.ones((2, 1), np.float32)})
    return session.run


def of_a_ragged_input(_: Path) -> Run:
    session = Session(model("float32", 1))
    return lambda feed: session.run(
        {name: Ragged(x, [0, len(x)]) for name, x in feed.items()} if type(feed) is dict else feed
    )


def of_a_compiled_file(folder: Path) -> Run:
    compile_model(model("float32"), folder / "m.onernn")
    return Session(folder / "m.onernn").run


def of_streams(_: Path) -> Run:
    streams = Session(model("float32")).streams(1, {}, inputs={"x": (1, 1)})
    stream = streams.open()

    def run(feed: Any) -> Any:
        feed = {n: x[:1] for n, x in feed.items()} if type(feed) is dict else feed
        streams.push(stream, feed if isinstance(feed, dict) else {"x": feed})
        return streams.pull(stream)[0]

    return run


WAYS = [
    of_session,
    of_a_session_that_has_run,
    of_a_ragged_input,
    of_a_compiled_file,
    of_streams,
]
everywhere = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)


@everywhere
@pytest.mark.parametrize("value", [1e39, -1e39, 2.0**128])
def test_a_float_that_would_become_infinite_is_refused(
    way: Callable[[Path], Run], value: float, tmp_path: Path
) -> None:
    run = way(tmp_path)
    with pytest.raises(ShapeError, match="'?x'?: .*float64.* which float32 cannot hold"):
        run({"x": np.array([[value], [1.0]])})
    done = run({"x": np.array([[np.inf], [1.0]])})["y"]  # infinity itself is a float32
    assert np.isinf(done.data[0] if isinstance(done, Ragged) else done[0]).all()


@everywhere
def test_a_float64_is_rounded_to_float32(way: Callable[[Path], Run], tmp_path: Path) -> None:
    x = np.array([[1 / 3]])
    done = way(tmp_path)({"x": x})["y"]
    want = x.astype(np.float32) ** 2
    assert (done.data if isinstance(done, Ragged) else done).tolist() == want.tolist()


@everywhere
def test_masked_elements_are_refused(way: Callable[[Path], Run], tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match="masked elements"):
        way(tmp_path)({"x": np.ma.masked_equal([[np.float32(1)]], 1)})


@pytest.mark.parametrize("way", WAYS[:4], ids=lambda way: way.__name__)
@pytest.mark.parametrize(
    "feed",
    [
        *(None, [], [np.ones((1, 1), np.float32)], np.ones((1, 1), np.float32), 3, "x"),
        *({1: np.ones((1, 1), np.float32)}, {"x": np.ones((1, 1), np.float32), None: 1}),
    ],
    ids=repr,
)
def test_what_is_no_dict_of_arrays_by_name_is_refused(
    way: Callable[[Path], Run], feed: Any, tmp_path: Path
) -> None:
    run = way(tmp_path) if type(feed) is not dict or way is not of_a_ragged_input else None
    with pytest.raises(ShapeError, match="inputs: expected"):
        (run or Session(model("float32", 1)).run)(feed)


@pytest.mark.parametrize("dtype", ["float32", None], ids=str)
@pytest.mark.parametrize(
    "value",
    [
        *(None, "text", {}, {3}, [[1.0], [1.0, 2.0]], [[None]], [["1"]], [[2**70]]),
        *(np.ones((1, 1), complex), np.array([["2020-01-01"]], "M8[D]")),
    ],
    ids=repr,
)
def test_a_value_that_is_no_array_of_numbers_is_refused(dtype: str | None, value: Any) -> None:
    with pytest.raises(ShapeError, match="input '?x'?: "):
        Session(model(dtype)).run({"x": value})


@given(
    st.sampled_from(["int8", "uint8", "int32", "uint64", "int64", "float16", "float32", "float64"]),
    st.sampled_from(["int8", "int32", "int64", "float16", "float32", "float64"]),
    st.lists(st.sampled_from([0, 1, -1, 127, 2**31, 2**63, 70000, 1e39, 0.5, np.inf, np.nan])),
)
def test_a_converted_number_is_the_nearest_one_or_refused(
    given: str, wanted: str, numbers: list[float]
) -> None:
    limits = np.iinfo(given) if given[0] in "iu" else np.finfo(given)
    if given[0] in "iu":
        numbers = [int(n) for n in numbers if np.isfinite(n)]
        numbers = [n for n in numbers if limits.min <= n <= limits.max]
    with np.errstate(over="ignore"):
        array = np.array(numbers, given)
    try:
        result = convert(array, wanted, "x")
    except ShapeError:
        to = np.iinfo(wanted) if wanted[0] == "i" else np.finfo(wanted)
        finite = [n for n in array.tolist() if np.isfinite(n)]
        beyond = any(not int(to.min) <= n <= int(to.max) for n in finite)
        assert beyond or not np.can_cast(given, wanted, "same_kind")
        return
    assert result.dtype == wanted
    for number, kept in zip(array.tolist(), result.tolist(), strict=True):
        assert np.isnan(number) == np.isnan(kept) and np.isfinite(number) == np.isfinite(kept)
        if wanted[0] == "i":
            assert kept == number
        elif np.isfinite(number):
            assert abs(kept - number) <= abs(number) * np.finfo(wanted).eps


@pytest.mark.parametrize("backend", ["kernels", "onednn", "reference"])
def test_a_layer_refuses_what_its_dtype_cannot_hold(backend: str) -> None:
    spec = RnnSpec(Cell.LSTM, 3, 4)
    layer = open_backend(backend).prepare(spec, random_weights(spec, 0))
    x, h = np.full((2, 1, 3), 1e39), np.full((1, 1, 1, 4), 1e39)
    with pytest.raises(ShapeError, match="x: .* which float32 cannot hold"):
        layer.run(x)
    with pytest.raises(ShapeError, match="state h: .* which float32 cannot hold"):
        layer.run(x * 0, (h, h * 0))
    with pytest.raises(ShapeError, match="masked elements"):
        layer.run(np.ma.masked_equal(x, 1e39))
    with pytest.raises(ShapeError, match="masked elements"):
        layer.run(x * 0, (np.ma.masked_equal(h, 1e39), h * 0))
