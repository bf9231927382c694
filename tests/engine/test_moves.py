"""Operators that only move elements put each one where NumPy does, whatever the sizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from support.graphs import new_node, small
from support.planning import as_it_is

from onernn import Session
from onernn.ir.graph import Node

pytestmark = pytest.mark.usefixtures("built")
FAR = 2**62
DTYPES = [np.float32, np.int64, np.bool_]


def run(op: str, arrays: list[Any], at: dict[str, Any], **constants: Any) -> Any:
    """The output of one operator, of inputs with open sizes; a plan runs it."""
    feed = {f"x{k}": array for k, array in enumerate(arrays)}
    node = Node(op, (*feed, *constants), ("y",), at)
    graph = small((node,), feed, **constants)
    session = Session(graph, backend="kernels")
    plan = session._plan(feed)
    assert plan is not None and not plan.outside
    return session.run(feed)["y"]


def numbered(shape: tuple[int, ...], dtype: Any = np.int64) -> Any:
    return (np.arange(np.prod(shape)) % 251).astype(dtype).reshape(shape)


def moves() -> Iterator[tuple[str, list[Any], dict[str, Any], dict[str, Any], Any]]:
    """(operator, arrays, attributes, constants, what NumPy gives) of arrays of numbers."""
    for shape in [(3, 33, 2, 17), (1, 20, 1, 40), (5, 0, 2, 2), (16, 1, 16, 3)]:
        x = numbered(shape)
        for perm in itertools.permutations(range(4)):
            yield "Transpose", [x], {"perm": list(perm)}, {}, x.transpose(perm)
    x = numbered((5, 7, 18))
    for axis, (start, end) in itertools.product(range(3), [(0, 3), (1, 5), (2, 2), (-3, 99)]):
        ends = {"starts": [start], "ends": [end], "axes": [axis]}
        yield "Slice", [x], {}, ends, x[(*[slice(None)] * axis, slice(start, end))]
    for axis, sizes in itertools.product(range(3), [(1, 1), (4, 0, 19), (2,)]):
        shapes = [(*(3, 4, 5)[:axis], size, *(3, 4, 5)[axis + 1 :]) for size in sizes]
        parts = list(map(numbered, shapes))
        yield "Concat", parts, {"axis": axis}, {}, np.concatenate(parts, axis)
    x, column = numbered((3, 1, 7)), numbered((4, 1))
    yield "Tile", [x], {}, {"repeats": [2, 3, 2]}, np.tile(x, (2, 3, 2))
    yield "Expand", [x], {}, {"shape": [2, 3, 5, 7]}, np.broadcast_to(x, (2, 3, 5, 7))
    yield "Expand", [column], {}, {"shape": [4, 50]}, np.repeat(column, 50, 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_element_is_where_numpy_puts_it(dtype: Any) -> None:
    for op, arrays, attributes, constants, want in moves():
        got = run(op, [array.astype(dtype) for array in arrays], attributes, **constants)
        assert_array_equal(got, want.astype(dtype), f"{op} {attributes} {constants}")


@pytest.mark.parametrize("size", [0, 1, 2, 5, 6, 7])
def test_slices_with_steps(size: int) -> None:
    x = numbered((size, 3), np.int64)
    for step, start in itertools.product([1, 2, 3, 4], [0, 1]):
        if start <= size:
            got = run("Slice", [x], {}, starts=[start], ends=[FAR], axes=[0], steps=[step])
            assert_array_equal(got, x[start::step])
        got = run("Slice", [x], {}, starts=[-1], ends=[-FAR], axes=[0], steps=[-step])
        assert_array_equal(got, x[::-step])


def test_a_whole_axis_has_its_size_whatever_that_is() -> None:
    """Places of a window, of which a call may have none: their number is a quotient."""
    whole = {"first": np.array([0]), "last": np.array([FAR]), "axis": np.array([2])}
    nodes = (
        new_node("p = MaxPool x", kernel_shape=(3,), strides=(2,)),
        Node("Slice", ("p", *whole), ("a",)),
        new_node("n = Neg p"),
        Node("Slice", ("n", *whole), ("b",)),
        new_node("y = Add a b"),
    )
    graph = small(nodes, {"x": (1, 2, None)}, **whole)
    session = as_it_is(graph)
    for size in (3, 9, 10):
        y = session.run({"x": numbered((1, 2, size), np.float32)})["y"]
        assert_array_equal(y, np.zeros((1, 2, (size - 1) // 2)))
    (plan,) = session._plans.values()
    assert plan is not None and not plan.outside and not session._sized


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_elements_around_every_axis(mode: str) -> None:
    x = numbered((3, 4, 6), np.float32)
    for low, high in [((0, 0, 2), (0, 0, 3)), ((1, 2, 0), (2, 1, 0)), ((2, 2, 2), (2, 2, 2))]:
        got = run("Pad", [x], {"mode": mode}, pads=[*low, *high])
        assert_array_equal(got, np.pad(x, list(zip(low, high, strict=True)), mode))
    got = run("Pad", [x], {"mode": mode}, pads=[-1, 0, -2, 1, -2, 4])
    left = x[1:, :-2, 2:]
    want = np.pad(left, [(0, 1), (0, 0), (0, 4)], mode)
    assert_array_equal(got, want)
