"""What callers may give an optimized session, and what it is made with."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from support.onnx_models import (
    assert_equal,
    info,
    live,
    parameters,
    parsed,
    quiet,
    read,
    session_of,
)

from onernn import LibraryError, Session, UnsupportedError
from onernn.adapters.onnx import optimize, plugin

pytestmark = pytest.mark.usefixtures("built")

RNG = np.random.default_rng(3)
SHAPES = {
    "table": (20, 5),
    "W": (2, 16, 5),
    "Rt": (4, 16, 2),
    "h0": (2, 3, 4),
    "W1": (1, 9, 8),
    "R1": (1, 9, 3),
    "M": (3, 6),
}
CONSTANTS = {name: RNG.uniform(-0.4, 0.4, s).astype("f4") for name, s in SHAPES.items()}
CONSTANTS |= {"flat": np.array([0, 0, -1]), "n1": np.array([2, 7, 0], np.int32)}
OTHERS = {
    name: RNG.permutation(array.reshape(-1)).reshape(array.shape)
    for name, array in CONSTANTS.items()
} | {"flat": np.array([7, -1, 8])}
FEED = {"ids": RNG.integers(0, 20, (7, 3)), "n": np.array([7, 0, 3], np.int32)}


def tagger(free: Any = (), ir_version: int = 8) -> onnx.ModelProto:
    """Two layers, a weight that is turned, a view of constant sizes; ``free``: what may change."""
    built = parsed(
        """(int64[7, 3] ids, int32[3] n) => (scores, h, float[] M, int32[3] n) {
        words = Gather (table, ids)
        R = Transpose <perm = [2, 1, 0]> (Rt)
        [first] Y, h = LSTM <hidden_size = 4, direction = "bidirectional">
            (words, W, R, , n, h0)
        T = Transpose <perm = [0, 2, 1, 3]> (Y)
        X1 = Reshape (T, flat)
        [second] Y1 = GRU <hidden_size = 3> (X1, W1, R1, , n1)
        scores = MatMul (Y1, M)
        }""",
        CONSTANTS,
    )
    built.ir_version = ir_version
    built.graph.input.extend(info(name, CONSTANTS[name]) for name in free)
    return built


PARAMETERS = ("W", "Rt", "W1", "R1")
OTHER = [name for name in CONSTANTS if name not in PARAMETERS]


@pytest.fixture(scope="module", params=[(*CONSTANTS,), OTHER], ids=["all", "all but parameters"])
def sessions(request: Any, built: Any) -> tuple[Any, Any]:
    """Two sessions of a model, of whose initializers callers may change these."""
    made = tagger(request.param)
    ours = optimize(made)
    assert len(ours.replaced) == (2 if request.param == OTHER else 0)
    for refusal in ours.refusals:
        assert "is also an input" in refusal.reason
    return ours, session_of(made)


def test_initializers_that_are_inputs_may_be_overridden(sessions: Any) -> None:
    ours, theirs = sessions
    names = [each.name for each in theirs.get_overridable_initializers()]
    assert len(names) >= len(OTHER)
    for name in names:
        usual, other = theirs.run(None, FEED), theirs.run(None, {**FEED, name: OTHERS[name]})
        changed = any(np.abs(a - b).max() > 1e-4 for a, b in zip(usual, other, strict=True))
        assert changed or name == "flat"  # another way to write the same shape
        for _ in range(2):  # what was overridden does not stay
            assert_equal(ours.run(None, {**FEED, name: OTHERS[name]}), other)
            assert_equal(ours.run(None, FEED), usual)


def test_other_sizes_reach_the_layers() -> None:
    """The type of what a layer reads must not follow from sizes that may be overridden."""
    weights = {"W": CONSTANTS["W1"][:, :, :4].copy(), "R": CONSTANTS["R1"]}
    x, sizes = np.linspace(-1, 1, 24, dtype="f4"), np.array([2, 3, 4])
    built = parsed(
        """(float[24] x, int64[3] sizes) => (y) {
        X = Reshape (x, sizes)
        y = GRU <hidden_size = 3> (X, W, R)
        }""",
        {"sizes": sizes, **weights},
    )
    assert live(built, {"x": x}, {"x": x, "sizes": np.array([6, 1, 4])}).replaced


CALLS: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "no step": ({"ids": FEED["ids"][:0], "n": np.zeros(3, np.int32)}, ""),
    "another batch": (
        {"n": FEED["n"][:2]},
        r"sequence_lens: expected shape \(3\), got \(2\)",
    ),
    "too long": ({"n": FEED["n"] + 1}, "sequence_lens: expected 0 to 7, got 8"),
    "less than none": ({"n": FEED["n"] - 1}, "sequence_lens: expected 0 to 7, got -1"),
    "another state": (
        {"h0": CONSTANTS["h0"][:, :2]},
        r"initial_h: expected shape \(2, 3, 4\), got \(2, 2, 4\)",
    ),
    "other channels": (
        {"table": CONSTANTS["table"][:, :4]},
        r"X: expected shape \(7, 3, 5\), got \(7, 3, 4\)",
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_calls_that_do_not_fit_are_refused_with_the_node_and_the_reason(call: str) -> None:
    other, told = CALLS[call]
    feed = {**FEED, "table": CONSTANTS["table"], "h0": CONSTANTS["h0"], **other}
    if not told:
        assert live(loose(), feed).replaced
        return
    for session, reason in ((optimize(loose()), told), (session_of(loose()), "")):
        with pytest.raises(Exception, match=f"(?s)Name:'first'.*{reason}"):
            session.run(None, feed)


def bare(kind: str, directions: int, layout: int, given: set[str]) -> onnx.ModelProto:
    """A layer from 3 channels to 4 units of which the sizes of a batch are not known."""
    count = 2 + (kind == "LSTM")
    kinds = {"n": "int32[N] n", "h": "float[?, ?, ?] h", "c": "float[?, ?, ?] c"}
    inputs = ", ".join(["float[?, ?, ?] x", *(kinds[k] for k in kinds if k in given)])
    read = ", ".join(["x, W, R, B", *(k if k in given else "" for k in [*kinds][:count])])
    made = ", ".join(["Y", "Y_h", "Y_c"][:count])
    told = f'hidden_size = 4, direction = "{"bidirectional" if directions == 2 else "forward"}"'
    told += ", layout = 1" if layout else ""
    return parsed(
        f"({inputs}) => ({made}) {{ {made} = {kind} <{told}> ({read}) }}",
        parameters(kind, 3, 4, directions=directions),
    )


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_no_steps_and_no_sequences_give_what_the_recurrence_defines(
    kind: str, directions: int, layout: int
) -> None:
    """Where no step is made the states stay; ONNX Runtime ends the process, or gives zeros.

    With lengths a sequence without steps ends in zeros, as ONNX Runtime defines it.
    """
    states = ["h", "c"] if kind == "LSTM" else ["h"]
    for given in (set(), {"n"}, {*states}, {"n", *states}):
        proto = bare(kind, directions, layout, given)
        session = optimize(proto)
        assert session.replaced
        alone = [Session(read(proto), backend=name) for name in ("kernels", "reference")]
        for time, batch in ((0, 2), (0, 1), (3, 0), (0, 0)):
            turned = slice(None, None, -1 if layout else 1)
            feed = {"x": np.ones((*(time, batch)[turned], 3), "f4")}
            shape = (*(directions, batch)[turned], 4)
            before = {k: RNG.uniform(-1, 1, shape).astype("f4") for k in states if k in given}
            if "n" in given:
                feed["n"] = np.full(batch, time, "i4")
            feed |= before
            wide = (batch, time, directions, 4) if layout else (time, directions, batch, 4)
            for y, *ends in (session.run(None, feed), *(each.run(feed).values() for each in alone)):
                assert y.shape == wide
                for name, end in zip(states, ends, strict=True):
                    kept = before.get(name, np.zeros(shape, "f4"))
                    want = np.zeros(shape, "f4") if "n" in given else kept
                    np.testing.assert_array_equal(end, want)


def loose() -> onnx.ModelProto:
    """The first layer, of inputs without sizes."""
    return parsed(
        """(float[?, ?] table, int64[?, ?] ids, int32[?] n, float[?, ?, ?] h0) => (Y, h) {
        words = Gather (table, ids)
        [first] Y, h = LSTM <hidden_size = 4, direction = "bidirectional">
            (words, W, R, , n, h0)
        }""",
        {"W": CONSTANTS["W"], "R": np.ascontiguousarray(CONSTANTS["Rt"].transpose(2, 1, 0))},
    )


def test_initializers_of_old_files_are_constants_though_they_are_inputs() -> None:
    built = tagger(CONSTANTS, ir_version=3)
    ours, theirs = live(built, FEED), session_of(built)
    assert len(ours.replaced) == 2
    assert [v.name for v in ours.get_inputs()] == [v.name for v in theirs.get_inputs()]
    assert not ours.get_overridable_initializers() and not theirs.get_overridable_initializers()
    for session in (ours, theirs):
        with pytest.raises(Exception, match="Invalid input name: ?M|M"):
            session.run(None, {**FEED, "M": OTHERS["M"]})


@pytest.mark.parametrize(
    "options, told",
    [
        ({"dtype": "bananas"}, "dtype 'bananas'"),
        ({"backend": "bananas"}, "backend 'bananas': expected 'auto' or 'kernels'"),
        ({"backend": "onednn"}, "backend 'onednn': expected 'auto' or 'kernels'"),
    ],
)
def test_an_unknown_dtype_or_backend_is_told_at_once(options: dict[str, str], told: str) -> None:
    empty = helper.make_model(helper.make_graph([], "g", [], []))
    for built in (tagger(), empty):
        with pytest.raises(UnsupportedError, match=told):
            optimize(built, **options)


def test_missing_kernels_are_an_error_and_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise LibraryError("no kernels")

    monkeypatch.setattr(plugin, "load_kernels", missing)
    with pytest.raises(LibraryError, match="no kernels"):
        optimize(tagger())


def test_both_sides_run_on_as_many_threads() -> None:
    options = quiet(intra_op_num_threads=1)
    assert optimize(tagger(), session_options=options, threads=1)
    with pytest.raises(UnsupportedError, match="threads=2: expected session_options"):
        optimize(tagger(), session_options=options, threads=2)
    with pytest.raises(ValueError, match="threads: expected at least 1, got 0"):
        optimize(tagger(), threads=0)
    session = live(tagger(), FEED, threads=2)
    assert session.get_session_options().intra_op_num_threads == 2
