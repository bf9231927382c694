"""Products of bytes in plans: exact, whatever their zero points; and what is refused is told."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support.graphs import new_node, small

from onernn import Session, ShapeError
from onernn.ir.graph import Node


def session_of(node: Node, inputs: dict, constants: dict, backend: str = "kernels") -> Session:
    given = {name: (a.dtype.name, *a.shape) for name, a in inputs.items()}
    graph = small((node,), given, " ".join(node.outputs), **constants)
    return Session(graph, backend=backend, threads=1)


def extremes(rng: np.random.Generator, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    """Half of the numbers are the least and the largest."""
    info = np.iinfo(dtype)
    some = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    ends = rng.choice(np.array([info.min, info.max], dtype), shape)
    return np.where(rng.random(shape) < 0.5, some, ends)


BYTES = (np.uint8, np.int8)


@pytest.mark.parametrize("a_dtype, b_dtype", [*itertools.product(BYTES, BYTES)])
@pytest.mark.parametrize(
    "rows, inner, columns",
    [(1, 1, 1), (3, 7, 17), (9, 64, 64), (2, 4099, 33), (20, 130, 200)],
)
def test_products_of_bytes_are_exact(
    a_dtype: type, b_dtype: type, rows: int, inner: int, columns: int
) -> None:
    rng = np.random.default_rng(inner)
    for zeros in ("", "one", "each"):
        a, b = extremes(rng, a_dtype, (rows, inner)), extremes(rng, b_dtype, (inner, columns))
        names, constants, feed = ["a", "b"], {"b": b}, {"a": a}
        wide_a, wide_b = a.astype(np.int64), b.astype(np.int64)
        if zeros:
            feed["a_zero"] = extremes(rng, a_dtype, ())
            constants["b_zero"] = extremes(rng, b_dtype, (columns,) if zeros == "each" else ())
            names += ["a_zero", "b_zero"]
            wide_a, wide_b = wide_a - feed["a_zero"], wide_b - constants["b_zero"]
        session = session_of(Node("MatMulInteger", tuple(names), ("y",)), feed, constants)
        got = session.run(feed)["y"]
        assert "one call of the library" in session.explain() and got.dtype == np.int32
        np.testing.assert_array_equal(got, wide_a @ wide_b)


@pytest.mark.parametrize("backend", ["auto", "kernels", "onednn", "reference"])
@pytest.mark.parametrize("channels", [3, 300])  # sums that float32 holds, and larger ones
def test_convolutions_of_bytes_are_exact(channels: int, backend: str) -> None:
    """Also those that a library may be tempted to transform (Winograd), which would round."""
    rng = np.random.default_rng(0)
    x = rng.integers(250, 256, (2, channels, 19, 18), np.uint8)
    w = rng.integers(-128, -120, (4, channels, 3, 3), np.int8)
    node = new_node("y = ConvInteger x w zero", pads=(1, 1, 1, 1))
    feed = {"x": x, "zero": np.array(3, np.uint8)}
    got = session_of(node, feed, {"w": w}, backend).run(feed)["y"]
    wide = np.pad(x.astype(np.int64) - 3, ((0, 0), (0, 0), (1, 1), (1, 1)))
    seen = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (2, 3))
    want = np.einsum("ncrsij,kcij->nkrs", seen, w.astype(np.int64), optimize=True)
    assert np.abs(want).max() > (2**24 if channels == 300 else 2**15)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", BYTES)
def test_random_convolutions_of_bytes_give_what_the_walk_gives(dtype: type) -> None:
    rng = np.random.default_rng(2)

    def drawn(low: int, high: int, count: int) -> tuple[int, ...]:
        return tuple(map(int, rng.integers(low, high, count)))

    for _ in range(60):
        axes, groups = int(rng.integers(1, 3)), int(rng.choice([1, 1, 2, 3]))
        at = {"kernel_shape": drawn(1, 4, axes), "strides": drawn(1, 4, axes)}
        at |= {"dilations": drawn(1, 3, axes), "pads": drawn(0, 4, 2 * axes), "group": groups}
        channels, own = drawn(1, 40, 2)
        x = extremes(rng, dtype, (2, groups * channels, *drawn(7, 20, axes)))
        w = extremes(rng, rng.choice(BYTES), (groups * own, channels, *at["kernel_shape"]))
        feed, constants = {"x": x, "zero": extremes(rng, dtype, ())}, {"w": w}
        names = ("x", "w", "zero")
        if rng.integers(2):
            constants["w_zero"] = extremes(rng, w.dtype.type, ((), (len(w),))[rng.integers(2)])
            names = (*names, "w_zero")
        session = session_of(Node("ConvInteger", names, ("y",), at), feed, constants)
        got = session.run(feed)["y"]
        assert "one call of the library" in session.explain()
        np.testing.assert_array_equal(got, session._walk(feed, None)["y"])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 16, 37, 40])
def test_what_no_byte_stands_for_is_refused(bad: float, at: int) -> None:
    x = np.linspace(-1, 1, 41, dtype=np.float32)
    x[at] = bad
    session = session_of(new_node("q s z = DynamicQuantizeLinear x"), {"x": x}, {})
    with pytest.raises(ShapeError, match="NaN or infinity"):
        session.run({"x": x})
    scale = {"scale": np.array(0.1, np.float32)}
    session = session_of(new_node("q = QuantizeLinear x scale"), {"x": x}, scale)
    if np.isinf(bad):
        assert session.run({"x": x})["q"][at] == (255 if bad > 0 else 0)
    else:
        with pytest.raises(ShapeError, match="x: expected values without NaN"):
            session.run({"x": x})


@pytest.mark.parametrize("scale", [0, np.nan, np.inf])
def test_scales_that_are_none_are_refused(scale: float) -> None:
    feed = {"x": np.ones(5, np.float32), "scale": np.array(scale, np.float32)}
    with pytest.raises(ShapeError, match="scale"):
        session_of(new_node("q = QuantizeLinear x scale"), feed, {}).run(feed)
    feed["x"] = np.ones(5, np.uint8)
    with pytest.raises(ShapeError, match="scale"):
        session_of(new_node("y = DequantizeLinear x scale"), feed, {}).run(feed)


@pytest.mark.parametrize("index", [-5, 4, 2**40])
@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
def test_places_that_are_none_are_refused(op: str, index: int) -> None:
    feed = {"x": np.ones(4, np.float32), "at": np.array([0]), "new": np.zeros(1, np.float32)}
    feed["at"] = feed["at"].reshape(1, 1) if op == "ScatterND" else feed["at"]
    session = session_of(new_node(f"y = {op} x at new"), feed, {})
    assert session.run(feed)["y"].tolist() == [0, 1, 1, 1]
    with pytest.raises(ShapeError, match=f"index {index}: expected an index in"):
        session.run({**feed, "at": np.full_like(feed["at"], index)})
