"""What nets of Paddle's dynamic mode put around layers, in files of Paddle 2.6.2 and 3.3.1.

Recorded by tests/frameworks/record_paddle_dygraph.py.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.graphs import reference
from support.paddle_operators import op, program

from onernn import Graph, Session, ShapeError, UnsupportedError, load
from onernn.adapters.paddle.lower import lower
from onernn.adapters.paddle.read import Operator, Variable
from onernn.ir.arrays import Array
from onernn.verification.recording import read_arrays

DATA = Path(__file__).parents[2] / "data" / "paddle"
X = np.array([[0.5, -1, 2, 3], [-2, 4, 0.25, 1]], np.float32)
AT = Variable("at", 7, "int64", (None, 1), 0, False)


def graph(operator: Operator, lod: int = 0) -> Graph:
    words = Variable("x", 7, "float32", (None, 4), lod, False)
    declared = {"x": words, "at": AT, "y": Variable("y", 7, None, None, 0, False)}
    return lower(program(operator, feeds=tuple(operator.reads), **declared))


def ran(operator: Operator, **feed: Array) -> Array:
    (out,) = reference(graph(operator), {"x": X, **feed}).values()
    return np.asarray(out)


@pytest.mark.parametrize("form", [2, 3])
def test_a_sentence_gives_alone_what_it_gives_among_others(form: int) -> None:
    """The sizes of its reshapes are tensors, one for each axis."""
    folder = DATA / f"dygraph_listener_{form}"
    given = read_arrays(folder / "io.npz", ("in__",))
    x, lengths = given["in__x"], given["in__lengths"]
    session = Session(load(folder))
    all_, halves, *_ = session.run({"x": x, "lengths": lengths}).values()
    for row, length in enumerate(lengths.tolist()):
        feed = {"x": x[row : row + 1], "lengths": lengths[row : row + 1]}
        alone, half, *_ = session.run(feed).values()
        assert half == halves[row] == (length + 1) // 2
        np.testing.assert_allclose(alone[0], all_[row], atol=1e-6)


@pytest.mark.parametrize("shift", [-7, -1, 0, 2, 3, 8])
@pytest.mark.parametrize("axis", [0, 1, -2])
def test_a_roll_goes_round_axes_of_any_size(shift: int, axis: int) -> None:
    found = ran(op("roll X=x -> Out=y", shifts=(shift,), axis=(axis,)))
    np.testing.assert_array_equal(found, np.roll(X, shift, axis))


@pytest.mark.parametrize(
    "kind, at",
    [("index_select", [[-1]]), ("gather_nd", [[-1]]), ("index_sample", [[-1], [0]])],
)
def test_indices_below_zero_are_refused_where_paddle_2_refuses_them(
    kind: str, at: list[list[int]]
) -> None:
    operator, places = op(f"{kind} X=x Index=at -> Out=y"), np.array(at)
    ran(operator, at=np.abs(places))
    with pytest.raises(ShapeError, match="-1"):
        ran(operator, at=places)


@pytest.mark.parametrize("kind", ["log2", "mish", "argsort", "roll", "p_norm", "logsumexp"])
def test_a_lod_is_refused(kind: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{kind}.*expected no LoD"):
        Session(graph(op(f"{kind} X=x -> Out=y"), lod=1))


REFUSED = {
    "porder=3.0": op("p_norm X=x -> Out=y", porder=3.0),
    "threshold": op("mish X=x -> Out=y", threshold=5.0),
    "depth=0": op("one_hot_v2 X=x -> Out=y", depth=0),
    "keepdims=True": op("arg_min X=x -> Out=y", flatten=True, keepdims=True),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_computed_is_refused_by_name(reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        Session(graph(REFUSED[reason]))
