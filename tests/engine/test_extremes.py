"""Plans and the walk agree at the ends of types, axes and sizes, and where types do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support.branching import branch, chosen
from support.graphs import new_node, small
from support.planning import agrees as same
from support.planning import as_it_is, check_shared
from support.random_models import random_trial

from onernn import OnernnError, Ragged, Session, ShapeError
from onernn.ir.graph import Node
from onernn.ir.ragged import data_of

pytestmark = pytest.mark.usefixtures("built")
F32 = np.float32


def sessions(op: str, feed: dict[str, Any], at: dict[str, Any], **constants: Any) -> Session:
    """A session of one operator, of inputs with open sizes, then constants."""
    node = Node(op, (*feed, *constants), ("y",), at)
    return Session(small((node,), feed, **constants), backend="kernels")


def agrees(op: str, feeds: Any, at: Any = None, rtol: float = 0, **constants: Any) -> None:
    """One session gives for all feeds what the walk gives, errors among it."""
    feeds = feeds if isinstance(feeds, list) else [feeds]
    session = sessions(op, feeds[0], at or {}, **constants)
    for feed in feeds:
        try:
            want = session._walk(feed, None)["y"]
        except OnernnError as error:
            with pytest.raises(type(error)):
                session.run(feed)
            continue
        got = session.run(feed)["y"]
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert_allclose(got, want, rtol=rtol, atol=0)


@pytest.mark.parametrize("source", [np.float32, np.float64])
@pytest.mark.parametrize("to", ["int32", "int64", "bool"])
def test_casts_at_the_ends_of_integers(source: Any, to: str) -> None:
    ends = [2.0**31, -(2.0**31), 2.0**31 - 1, 2.0**31 - 0.5, -(2.0**31) - 0.5, 2.0**63, -(2.0**63)]
    x = np.array([*ends, 0, -0.0, 1e-45, np.inf, -np.inf, np.nan, 1.9, -1.9], source)
    with np.errstate(invalid="ignore"):
        agrees("Cast", {"x": x}, {"to": to})


HALVES = np.arange(2**16, dtype=np.uint16).view(np.float16)


@pytest.mark.parametrize("source", [np.float32, np.float64])
def test_numbers_become_the_nearest_half(source: Any) -> None:
    """All halves, what lies in the middle of two, and what lies beside that."""
    with np.errstate(all="ignore"):
        wide = np.sort(HALVES[np.isfinite(HALVES)].astype(source))
        middle = np.append(
            (wide[1:] + wide[:-1]) / 2, [65520, -65520, 1e30, -1e30, np.inf, -np.inf]
        )
        beside = [np.nextafter(middle, source(way)) for way in (np.inf, -np.inf)]
        x = np.concatenate([wide, middle, *beside, [0, -0.0, np.nan, 1e-30, -1e-40]]).astype(source)
        agrees("Cast", {"x": x}, {"to": "float16"})


@pytest.mark.parametrize("to", ["float32", "float64", "int64", "bool"])
def test_every_half_as_another_type(to: str) -> None:
    with np.errstate(all="ignore"):
        agrees("Cast", {"x": HALVES}, {"to": to})


def test_halves_in_a_row_of_operators_are_rounded_behind_each() -> None:
    nodes = [new_node("v0 = Mul x x"), new_node("v1 = Sub v0 x")]
    nodes += [new_node("v2 = Mul v1 three"), new_node("y = Add v2 v0")]
    feed = {"x": HALVES}
    session = Session(small(nodes, feed, three=np.float16(3.1)[None]), backend="kernels")
    with np.errstate(all="ignore"):
        want = session._walk(feed, None)["y"]
    assert_array_equal(session.run(feed)["y"], want)
    assert len(session._plan(feed).encoded.steps) < 4  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_modulo_by_divisors_at_the_ends_of_integers(dtype: Any) -> None:
    info = np.iinfo(dtype)
    half = info.max // 2
    ends = [0, 1, -1, 7, -7, half, half + 1, half + 2, -half - 3, info.max, info.min]
    for divisor in (*ends[3:], 2):
        agrees("Mod", {"x": np.array(ends, dtype)}, d=np.array(divisor, dtype))


EXTREMES = np.array(
    [0, -0.0, 1, -1, 1e-45, -1e-45, 1e-38, 86, 87, 88.7, 89, 103.9, 104, 1e10, np.inf, np.nan], F32
)


@pytest.mark.parametrize(
    "op", "Exp Tanh Sigmoid Softplus Log Sqrt Relu Elu Selu Celu Gelu HardSigmoid Sign".split()
)
def test_functions_of_extremes(op: str) -> None:
    # Both sides round an exponential; that of 89, which a sigmoid of -89 takes, is infinite.
    x = np.concatenate([EXTREMES, -EXTREMES])
    session = sessions(op, {"x": x}, {})
    with np.errstate(all="ignore"):
        want = session._walk({"x": x}, None)["y"]
    assert_allclose(session.run({"x": x})["y"], want, rtol=2e-6, atol=np.finfo(np.float32).tiny)


@pytest.mark.parametrize("op", "Softmax LogSoftmax ReduceLogSumExp".split())
def test_softmax_of_extremes(op: str) -> None:
    """What is masked gets exactly nothing, what is no number or infinite spoils its own line."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(9, 4, 67)).astype(F32)
    x[0, :, 1:] = -1e9
    x[1, :, ::2] = -np.inf
    x[2] = -np.inf
    x[3, 0, 66] = np.inf
    x[4, 1, 0] = np.nan
    x[5] = np.arange(67) - 120  # down to subnormal shares
    x[6] *= 1e30
    with np.errstate(all="ignore"):
        for axis in range(3):
            if op == "ReduceLogSumExp":
                agrees(op, {"x": x}, rtol=2e-6, axes=[axis])
            else:
                agrees(op, {"x": x}, {"axis": axis}, rtol=2e-6)


@pytest.mark.parametrize("op", "Sum Mean Prod Max Min L1 L2 SumSquare LogSum".split())
def test_reductions_of_extremes(op: str) -> None:
    rng = np.random.default_rng(0)
    x = np.abs(rng.normal(size=(5, 3, 131))).astype(F32) + F32(0.5)
    x[0, 0, 130], x[0, 1, 7], x[1, 0, :] = np.nan, np.inf, -np.inf
    x[2] = 0
    with np.errstate(all="ignore"):
        for axis in range(3):
            agrees(f"Reduce{op}", {"x": x}, rtol=3e-6 if op == "Prod" else 1e-6, axes=[axis])


def test_an_exclusive_sum_before_what_is_infinite() -> None:
    x = {"x": np.array([1, 1e30, np.inf, 2], F32)}
    for reverse, want in ((0, [0, 1, 1e30, np.inf]), (1, [np.inf, np.inf, 2, 0])):
        at = {"exclusive": 1, "reverse": reverse}
        agrees("CumSum", x, at, axis=0)
        got = sessions("CumSum", x, at, axis=0).run(x)["y"]
        assert_array_equal(got, np.array(want, F32))


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceL1", "ReduceSumSquare"])
def test_long_axes_lose_nothing(op: str) -> None:
    x = np.ones((1, 2**24 + 2**20), F32)
    agrees(op, {"x": x}, rtol=1e-6, axes=[1])


def test_axes_without_elements() -> None:
    feeds = [{"x": np.ones(shape, F32)} for shape in [(3, 4), (0, 4), (3, 0), (0, 0), (2, 1)]]
    for op in ("ArgMax", "ArgMin", "Softmax"):
        for axis in (0, 1):
            agrees(op, feeds, {"axis": axis}, rtol=1e-6)
    for op in ("ReduceSum", "ReduceProd", "ReduceMax", "ReduceLogSumExp"):
        with np.errstate(all="ignore"):
            agrees(op, feeds, rtol=1e-6, axes=[1])


def test_sizes_that_would_be_negative() -> None:
    feeds = [{"x": np.ones(shape, F32)} for shape in [(9, 9), (1, 9), (1, 1), (0, 0), (3, 5)]]
    agrees("Pad", feeds, p=[-3, -3, 0, 0])
    agrees("Slice", feeds, starts=[2], ends=[2**62], axes=[0])
    agrees("Tile", feeds, repeats=[-1, 2])


def test_offsets_that_are_none_are_told_as_the_walk_tells_it() -> None:
    """Not even the first offset is there: what stands in memory beside them is not read."""
    feeds = [
        {"x": np.ones((rows, 2), F32), "o": np.array(offsets, np.int64)}
        for rows, offsets in [(0, []), (5, [0, 2, 4]), (5, [1, 5]), (5, [0, 3, 2, 5]), (5, [0, -1])]
    ]
    session = sessions("SequenceReset", feeds[0], {})
    for feed in feeds:
        with pytest.raises(ShapeError):
            session._walk(feed, None)
        with pytest.raises(ShapeError):
            session.run(feed)


def test_types_that_do_not_fit_are_not_misread() -> None:
    x = np.arange(-6, 6, dtype=F32).reshape(3, 4)
    for condition in (np.int64, np.float32):
        agrees("Where", {"c": (x > 0).astype(condition), "x": x, "z": -x})
    for value in (np.float64(2), np.int64(3)):
        agrees("Pad", {"x": x}, p=[1, 1, 0, 0], value=value)
    agrees("Compress", {"x": x}, {"axis": 0}, condition=[1, 0, 1])
    agrees("LayerNormalization", {"x": x}, rtol=1e-5, scale=np.arange(4.0))
    agrees("Gemm", {"x": x}, rtol=1e-6, w=np.ones((4, 5), F32), c=np.arange(5.0))
    agrees("Concat", {"x": x, "z": x.astype(np.float64)}, {"axis": 0})
    agrees("OneHot", {"x": np.array([1, 2])}, depth=3, values=np.array([1.5], F32))


def test_what_python_gives_back_is_no_memory_of_the_run() -> None:
    """A branch that gives what it was given: the result stays when other runs follow."""
    inner = branch(takes="t", gives="t")
    nodes = (new_node("n = Neg x"), chosen("going", inner, inner, "n|n", "y"))
    graph = small(nodes, {"x": (None,), "going": ("bool",)})
    session = as_it_is(graph)
    x = np.arange(5, dtype=F32)
    for going in (True, False):
        first = session.run({"x": x, "going": np.array(going)})["y"]
        session.run({"x": x + 7, "going": np.array(going)})
        assert_array_equal(first, -x)


def test_tags_of_scores_that_are_no_numbers() -> None:
    rng = np.random.default_rng(1)
    node = new_node("y = CrfDecode x t")
    graph = small((node,), {"x": [None, 5]}, t=rng.normal(size=(7, 5)).astype(F32))
    session = Session(graph, backend="kernels")
    for strange in (np.nan, np.inf, -np.inf):
        x = rng.normal(size=(40, 5)).astype(F32)
        x[rng.random(x.shape) < 0.1] = strange
        feed = {"x": Ragged(x, [0, 3, 3, 20, 21, 40])}
        with np.errstate(invalid="ignore"):
            want = session._walk(feed, None)["y"]
        assert_array_equal(session.run(feed)["y"].data, want.data)


def test_a_number_that_a_run_tells_is_not_what_others_expect() -> None:
    """As many as are not zero, times a matrix of 27 rows: only 27 of them fit."""
    nodes = (
        new_node("n = NonZero x"),
        new_node("f = Cast n", to="float32"),
        new_node("y = MatMul f w"),
    )
    graph = small(nodes, {"x": (None, None)}, w=np.ones((27, 3), F32))
    session = Session(graph, backend="kernels")
    x = {"x": np.ones((9, 3), F32)}
    assert_allclose(session.run(x)["y"], session._walk(x, None)["y"])
    for shape in ((9, 4), (1, 1), (0, 3)):
        with pytest.raises(ShapeError, match="MatMul"):
            session.run({"x": np.ones(shape, F32)})


def test_numbers_that_a_run_tells_bound_each_other() -> None:
    nodes = [new_node("n0 = NonZero x")]
    nodes += [new_node(f"n{at + 1} = NonZero n{at}") for at in range(4)]
    session = Session(small(nodes, {"x": (None, None)}, "n2 n4"), backend="kernels")
    shapes = ((4, 5), (30, 20), (1, 1), (0, 3), (7, 3))
    same(session, *({"x": np.ones(shape, F32)} for shape in shapes), rtol=0)


def test_one_session_takes_arrays_of_all_kinds() -> None:
    session = Session(
        small(
            (new_node("s = Add x z"), new_node("y = Tanh s")),
            {"x": (None, None), "z": (None, None)},
        ),
        backend="kernels",
    )
    x = np.linspace(-1, 1, 24, dtype=F32).reshape(4, 6)
    frozen = x.copy()
    frozen.flags.writeable = False
    odd = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(F32).reshape(4, 6)
    kinds = [x, frozen, odd, x[::-1], x[:, ::2], np.asfortranarray(x), x.astype(">f4")]
    kinds += [x[:1], x[:, :1], x[:0], x.astype(np.float64), x.astype(np.float16), x.astype(int)]
    for each in kinds:
        for other in (each, x[:1, :1]):
            want = np.tanh(each.astype(F32) + other.astype(F32))
            got = session.run({"x": each, "z": other})["y"]
            assert_allclose(got, want, rtol=1e-5, atol=1e-7)
    for wrong in (x.astype(complex), x[0], np.array([["a"]]), Ragged(x, [0, 4])):
        with pytest.raises(ShapeError):
            session.run({"x": wrong, "z": x})


def test_no_bound_of_memory_is_too_large() -> None:
    graph = small((new_node("y = Neg x"),), {"x": (None,)})
    session = Session(graph, backend="kernels", max_bytes=10**30)
    assert_array_equal(session.run({"x": np.ones(3, F32)})["y"], -np.ones(3, F32))


def test_threads_share_sessions_of_random_graphs() -> None:
    for seed in range(12):
        trial = random_trial(seed)
        check_shared(Session(trial.graph, backend="kernels"), trial.feeds, 60)


def test_a_graph_whose_inputs_have_no_sizes_is_walked() -> None:
    trial = random_trial(1842)
    session = Session(trial.graph, backend="kernels")
    for feed in trial.feeds:
        want = session._walk(feed, None)
        got = session.run(feed)
        assert all(np.array_equal(data_of(got[n]), data_of(want[n])) for n in want)
