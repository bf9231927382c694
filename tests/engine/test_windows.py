"""Convolutions and pools of plans give what NumPy's formulas give, for odd windows and sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support.graphs import new_node, small
from support.planning import as_it_is

from onernn import Session, ShapeError
from onernn.engine.plan import Plan
from onernn.ir.graph import Node

pytestmark = pytest.mark.usefixtures("built")

Feed = Mapping[str, np.ndarray]


def both(
    op: str, feed: Feed, at: dict[str, Any], constants: Feed, *, open_sizes: bool
) -> tuple[Plan | None, Any, Any]:
    """The plan that runs one operator, what it gives, and what the walk gives."""
    inputs = {name: (array.dtype.name, *array.shape) for name, array in feed.items()}
    if open_sizes:
        dtype, _, channels, *sizes = inputs["x"]
        inputs["x"] = (dtype, None, channels, *[None] * len(sizes))
    given = tuple(name for name in ("x", "w", "b") if name in {*feed, *constants})
    session = as_it_is(small((Node(op, given, ("y",), at),), inputs, **constants))
    want = session._walk(feed, None)["y"]
    return session._plan(feed), session.run(feed)["y"], want


def close(got: Any, want: Any) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype
    assert_allclose(got, want, rtol=1e-4, atol=1e-4 if want.dtype == "float32" else 1e-9)


def windows(rng: np.random.Generator, axes: int, pooled: bool) -> dict[str, Any]:
    def drawn(low: int, high: int, count: int = axes) -> tuple[int, ...]:
        return tuple(map(int, rng.integers(low, high, count)))

    at: dict[str, Any] = {"kernel_shape": drawn(1, 5), "strides": drawn(1, 4)}
    at["dilations"] = drawn(1, 3)
    kind = rng.integers(4)
    if kind == 0:
        at["auto_pad"] = str(rng.choice(["VALID", "SAME_UPPER", "SAME_LOWER"]))
    elif kind > 1:
        most = min(at["kernel_shape"]) if pooled else 6  # pools see at least one element
        at["pads"] = drawn(0, most, 2 * axes)
    return at


@pytest.mark.parametrize("op", ["Conv", "MaxPool", "AveragePool"])
@pytest.mark.parametrize("open_sizes", [True, False], ids=["open", "known"])
def test_random_windows(op: str, open_sizes: bool) -> None:
    rng, planned, refused = np.random.default_rng(len(op) + open_sizes), 0, 0
    for _ in range(150):
        axes, dtype = int(rng.integers(1, 3)), str(rng.choice(["float32", "float64"]))
        at, groups = windows(rng, axes, op != "Conv"), int(rng.choice([1, 1, 2, 3]))
        taken, made = (int(rng.choice([1, 2, 5])) * groups for _ in range(2))
        size = tuple(map(int, rng.integers(1, 24, axes)))
        x = rng.standard_normal((int(rng.integers(0, 4)), taken, *size)).astype(dtype)
        feed, constants = {"x": x}, {}
        if op == "Conv":
            at["group"] = groups
            shape = (made, taken // groups, *at["kernel_shape"])
            w = rng.standard_normal(shape).astype(dtype)
            (feed if rng.random() < 0.3 else constants)["w"] = w
            if rng.random() < 0.5:
                constants["b"] = rng.standard_normal(made).astype(dtype)
        elif rng.random() < 0.4 and at.get("auto_pad") != "VALID":
            at["ceil_mode"] = 1
        if op == "AveragePool":
            at["count_include_pad"] = int(rng.integers(2))
        try:
            plan, got, want = both(op, feed, at, constants, open_sizes=open_sizes)
        except ShapeError as error:  # a window that does not fit in
            assert "window" in str(error)
            refused += 1
            continue
        close(got, want)
        planned += plan is not None and not plan.outside
    assert planned > 80 and refused > 2, (planned, refused)


def test_a_window_larger_than_its_axis_is_refused_by_the_walk_for_that_size_alone() -> None:
    w = np.ones((2, 3, 4), np.float32)
    node = new_node("y = Conv x w", strides=(2,))
    session = Session(small((node,), {"x": (None, 3, None)}, w=w), backend="kernels")
    for size in (9, 3, 4, 1, 5):
        feed = {"x": np.ones((1, 3, size), np.float32)}
        if size < 4:
            with pytest.raises(ShapeError, match="window"):
                session.run(feed)
        else:
            assert_array_equal(session.run(feed)["y"], np.full((1, 2, size // 2 - 1), 12))


@pytest.mark.parametrize("places", [1, 4, 8, 9, 70, 200])
@pytest.mark.parametrize("channels", [20, 24, 200])  # 60 products a sum, 72, 600
def test_an_image_has_the_same_bits_alone_and_among_others(places: int, channels: int) -> None:
    rng = np.random.default_rng(places)
    x = rng.standard_normal((7, channels, places)).astype(np.float32)
    constants = {"w": rng.standard_normal((40, channels, 3)).astype(np.float32)}
    at = {"pads": (1, 1)}
    _, together, _ = both("Conv", {"x": x}, at, constants, open_sizes=True)
    for n in range(len(x)):
        _, alone, _ = both("Conv", {"x": x[n : n + 1]}, at, constants, open_sizes=True)
        assert_array_equal(together[n : n + 1], alone)


@pytest.mark.parametrize("places", [3, 12, 300])
@pytest.mark.parametrize("channels", [3, 40])
@pytest.mark.parametrize("size", [None, 300], ids=["open", "known"])
def test_a_relu_is_part_of_its_convolution(places: int, channels: int, size: int | None) -> None:
    rng = np.random.default_rng(places)
    x = rng.standard_normal((2, 30, size or places)).astype(np.float32)
    x[0, 1, 1], x[1, 2, 2] = np.nan, -np.inf
    w = rng.standard_normal((channels, 30, 3)).astype(np.float32)
    conv = new_node("y = Conv x w", pads=(1, 1))
    alone, both_nodes = (
        as_it_is(small(nodes, {"x": (None, 30, size)}, w=w))
        for nodes in (
            (conv,),
            (Node("Conv", conv.inputs, ("c",), conv.attributes), new_node("y = Relu c")),
        )
    )
    want = np.maximum(alone.run({"x": x})["y"], 0)
    assert np.isnan(want).any() and (want == 0).any()
    assert_array_equal(both_nodes.run({"x": x})["y"], want)
    plans = [session._plan({"x": x}) for session in (alone, both_nodes)]
    assert len(plans[0].encoded.steps) == len(plans[1].encoded.steps)


def test_numbers_that_are_read_elsewhere_stay_as_they_were_before_a_relu() -> None:
    w = -np.ones((4, 3, 1), np.float32)
    nodes = (new_node("c = Conv x w"), new_node("r = Relu c"), new_node("y = Sub r c"))
    x = np.ones((1, 3, 20), np.float32)
    got = as_it_is(small(nodes, {"x": (1, 3, 20)}, w=w)).run({"x": x})["y"]
    assert_array_equal(got, np.full((1, 4, 20), 3))
