"""Loops, branches and arrays of tensors, in files that Paddle 2.6.2 and 3.3.1 saved and ran.

Recorded by tests/frameworks/record_paddle_loops.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from support.graphs import unfused
from support.paddle_operators import op, program

from onernn import ModelFormatError, Ragged, Session, UnsupportedError, load, verify
from onernn.adapters.paddle.lower import lower
from onernn.adapters.paddle.read import Block, Operator, Variable
from onernn.ir.arrays import Array
from onernn.ir.errors import BudgetError
from onernn.ir.graph import Graph
from onernn.verification.recording import read_arrays

DATA = Path(__file__).parents[2] / "data" / "paddle"
OLD = ("loop_dynamic_2", "loop_static_2")
"""With DynamicRNN and StaticRNN: see tests/frameworks/record_paddle_dynamic_rnn.py."""
RECORDED = sorted({folder.name for folder in DATA.glob("loop_*")} - {*OLD})


@pytest.mark.parametrize("steps, rows", [(1, 1), (7, 4)])
@pytest.mark.parametrize("name", RECORDED)
def test_layers_give_for_other_sizes_what_loops_give(name: str, steps: int, rows: int) -> None:
    model, rng, feeds = load(DATA / name), np.random.default_rng(0), {}
    for key, array in read_arrays(DATA / name / "io.npz", ("in__",)).items():
        sizes = (steps, rows) if "gru_backwards" in name else (rows, steps)
        shape = (*sizes[: array.ndim - 1], array.shape[-1])
        feeds[key.removeprefix("in__")] = rng.uniform(-1, 1, shape).astype(array.dtype)
    if "lengths" in feeds:
        feeds["lengths"] = np.array([steps, 0, 1, steps])[-rows:]
    turns = unfused(model, feeds)
    for out, got in Session(model).run(feeds).items():
        np.testing.assert_allclose(got, turns[out], atol=1e-6, rtol=1e-5)


INT, FLOATS = (
    Variable("", 7, "int64", (1,), 0, False),
    Variable("", 7, "float32", (None, 4), 0, False),
)
ARRAY = Variable("", 13, "float32", None, 0, False)
LESS = op("less_than X=i Y=n -> Out=going")
LOOP = op("while Condition=going X=i -> Out=i,going", sub_block=1)
STEP = op("increment X=i -> Out=i", step=1.0)
X = np.array([[-1, 0, 1, 2]], np.float32)


def number(name: str, value: int) -> Operator:
    return op(f"fill_constant -> Out={name}", dtype=3, shape=(1,), value=float(value))


def plus(source: str, out: str, bias: float = 1.0) -> Operator:
    return op(f"scale X={source} -> Out={out}", bias=bias)


def written(value: str, at: str = "i") -> Operator:
    return op(f"write_to_array X={value} I={at} -> Out=a")


def element(out: str, at: str = "i") -> Operator:
    return op(f"read_from_array X=a I={at} -> Out={out}")


ALL = op("tensor_array_to_tensor X=a -> Out=y", axis=0)


def built(*operators: Operator, **inner: Sequence[Operator]) -> Graph:
    """Block 0 of these operators behind i = 0, n = 3 and i < n; ``block_1`` is block 1."""
    before = (number("i", 0), number("n", 3), LESS)
    declared = {"i": INT, "n": INT, "a": ARRAY, "x": FLOATS}
    whole = program(*before, *operators, **declared)
    blocks = {
        int(name.removeprefix("block_")): Block(
            tuple(each),
            {"local": FLOATS} if any("local" in o.outputs.get("Out", ()) for o in each) else {},
        )
        for name, each in inner.items()
    }
    return lower(replace(whole, inner=blocks))


def given(model: Graph, x: Array = X) -> Array:
    (y,) = Session(model).run({"x": x}).values()
    return np.asarray(y)


def refusal(model: Graph) -> str:
    with pytest.raises(UnsupportedError) as error:
        Session(model)
    return str(error.value)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("name", OLD)
def test_programs_of_paddle_1_with_its_rnn_classes_give_what_was_recorded(
    name: str, backend: str
) -> None:
    assert verify(load(DATA / name), DATA / name / "io.npz", backend=backend).passed


def test_a_sequence_has_alone_what_a_dynamic_rnn_gives_it_among_others() -> None:
    """Also an empty one; Paddle sorts them and lets the short ones drop out."""
    arrays = read_arrays(DATA / "loop_dynamic_2" / "io.npz", ("in__", "lod__"))
    x, h, offsets = arrays["in__x"], arrays["in__h"], arrays["lod__x"]
    session = Session(load(DATA / "loop_dynamic_2"))
    (whole,) = session.run({"x": Ragged(x, offsets), "h": h}).values()
    for at, (first, end) in enumerate(pairwise(offsets.tolist())):
        rows = Ragged(x[first:end], [0, end - first])
        (alone,) = session.run({"x": rows, "h": h[at : at + 1]}).values()
        np.testing.assert_allclose(alone.data, whole.data[first:end], atol=1e-6)
    (none,) = session.run({"x": Ragged(x[:0], [0, 0]), "h": h[:1]}).values()
    assert none.data.shape == (0, 3)


def test_a_static_rnn_of_paddle_1_copies_its_memory() -> None:
    words = Variable("x", 7, "float32", (None, 4), 0, False)
    model = lower(program(op("rnn_memory_helper X=x -> Out=y"), x=words))
    assert [node.op for node in model.nodes] == ["Identity"]


def test_what_a_block_assigns_to_is_carried_and_its_own_variables_are_not() -> None:
    block = [plus("y", "local", 2.0), plus("local", "y"), STEP, LESS]
    assert np.array_equal(given(built(plus("x", "y"), LOOP, block_1=block)), X + 10)


def test_a_loop_may_run_no_turn() -> None:
    block = [plus("y", "y"), STEP, LESS]
    model = built(number("n", 0), LESS, plus("x", "y"), LOOP, block_1=block)
    assert np.array_equal(given(model), X + 1)


def test_variables_are_assigned_one_after_the_other() -> None:
    """b = y; y = y + 2 b: three times as much in each turn."""
    block = [op("assign X=y -> Out=local")]
    block += [op("sum X=y,local,local -> Out=y"), STEP, LESS]
    assert np.array_equal(given(built(plus("x", "y"), LOOP, block_1=block)), 27 * (X + 1))


def test_loops_inside_of_loops_multiply() -> None:
    inner = [number("j", 0), op("less_than X=j Y=n -> Out=more")]
    inner += [op("while Condition=more -> Out=y", sub_block=2), STEP, LESS]
    count = op("increment X=j -> Out=j", step=1.0)
    block = [plus("y", "y"), count, inner[1]]
    model = built(plus("x", "y"), LOOP, block_1=inner, block_2=block)
    assert np.array_equal(given(model), X + 10)


def test_arrays_are_read_where_they_were_written() -> None:
    model = built(plus("x", "b"), written("x"), STEP, written("b"), ALL)
    assert np.array_equal(given(model), np.concatenate([X, X + 1]))
    model = built(plus("x", "b"), written("x"), written("b"), element("y"))
    assert np.array_equal(given(model), X + 1)
    block = [element("b"), plus("b", "b"), STEP, written("b"), LESS]
    for end, expected in ((ALL, [X, X + 1, X + 2, X + 3]), (element("y"), [X + 3])):
        model = built(written("x"), LOOP, end, block_1=block)
        assert np.array_equal(given(model), np.concatenate(expected))


@pytest.mark.parametrize("condition", ["greater_than", "less_than"])
def test_a_block_that_does_not_run_changes_nothing(condition: str) -> None:
    total = op("reduce_sum X=x -> Out=total", reduce_all=True)
    zero = op("fill_constant -> Out=zero", dtype=5, shape=(1,), value=0.0)
    holds = op(f"{condition} X=total Y=zero -> Out=holds")
    branch = op("conditional_block Cond=holds -> Out=y", sub_block=1, is_scalar_condition=True)
    model = built(total, zero, holds, plus("x", "y"), branch, block_1=[plus("y", "y", 5.0)])
    assert np.array_equal(given(model), X + (6 if condition == "greater_than" else 1))


def test_a_loop_without_end_is_stopped() -> None:
    model = built(plus("x", "y"), LOOP, block_1=[plus("y", "y"), LESS])
    with pytest.raises(BudgetError, match="max_steps"):
        Session(model, max_steps=1000).run({"x": X})


@pytest.mark.parametrize("inner", [1, 7, -1, 2**31])
def test_blocks_that_run_themselves_or_do_not_exist_are_no_model(inner: int) -> None:
    circle = replace(LOOP, attributes={"sub_block": inner})
    with pytest.raises(ModelFormatError, match="no circle|a block of the program, got"):
        built(plus("x", "y"), LOOP, block_1=[circle, STEP, LESS])


REFUSED = {
    "no array": ((element("y"),), (), "an element that was written"),
    "behind its end": ((written("x"), element("y", "n")), (), "an element that was written"),
    "written behind its end": ((written("x", "n"), ALL), (), "append to it"),
    "an unknown place": (
        (op("cast X=x -> Out=b", out_dtype=3), written("x", "b"), ALL),
        (),
        "append to it",
    ),
    "no turn appends": ((LOOP, ALL), (written("x", "n"), STEP, LESS), "append to it"),
    "two elements a turn": (
        (LOOP, ALL),
        (written("x"), STEP, written("x"), LESS),
        "append",
    ),
    "all while filling": (
        (plus("x", "y"), written("x"), LOOP),
        (STEP, written("x"), ALL, LESS),
        "while a loop fills",
    ),
    "of no first turn": (
        (LOOP, ALL),
        (element("b"), written("b"), STEP, LESS),
        "an element that was written",
    ),
    "no value": ((LOOP,), (plus("x", "y"), STEP, LESS), "'y': expected a value before"),
    "no block": (
        (plus("x", "y"), replace(LOOP, attributes={}, outputs={"Out": ("y",)})),
        (),
        "attribute sub_block",
    ),
    "an unknown operator": (
        (plus("x", "y"), LOOP),
        (op("twist X=y -> Out=y"), STEP, LESS),
        "twist",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_nobody_can_follow_is_refused_with_the_reason(name: str) -> None:
    operators, block, reason = REFUSED[name]
    try:
        message = refusal(built(*operators, block_1=block))
    except ModelFormatError as error:
        message = str(error)
    assert reason in message
