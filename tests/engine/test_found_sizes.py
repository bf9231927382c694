"""Integers that a run computes become sizes of a plan, and no operator runs in Python for them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from support.graphs import new_node, new_nodes, small, small_graph
from support.planning import agrees, as_it_is, planned
from support.recordings import loaded

import onernn
from onernn import Graph, Ragged, Session, ShapeError, Value
from onernn.showing import show_inspection
from onernn.verification.inspecting import inspect_model

pytestmark = pytest.mark.usefixtures("built")

MASKED = [
    *("keras/small", "keras/cells", "keras/masked_steps", "keras/text_classifier"),
    *("keras/old_frozen", "keras/old_text_classifier", "onnx/keras3_masking"),
    *("onnx/keras3_masked_stack", "onnx/keras3_masked_gru_both", "onnx/keras_masked"),
]
"""Recorded models of Keras whose layers skip steps that a mask hides."""


@pytest.mark.parametrize("name", MASKED)
def test_no_step_of_a_converted_model_with_a_mask_is_interpreted(name: str, tmp_path: Path) -> None:
    written = tmp_path / "model.onnx"
    onernn.convert(loaded(name), written)
    session = Session(str(written), backend="kernels")
    with np.load(Path(__file__).parents[1] / "data" / name / "io.npz") as recorded:
        feed = {each.name: recorded[f"in__{each.name}"] for each in session.inputs}
        got = session.run(feed)
        wanted = [recorded[key] for key in recorded if key.startswith("out__")]
        for value, want in zip(got.values(), wanted, strict=True):
            np.testing.assert_allclose(value, want, rtol=1e-5, atol=2e-6)
    plans = [plan for plan in (*session._plans.values(), *session._sized.values()) if plan]
    assert plans and not [plan for plan in plans if plan.outside]
    assert "in Python" not in session.explain()


LONGEST = """
longest = ReduceMax lengths keepdims=1
time = Cast longest to='int64'
"""
"""The steps of the longest sequence of ``lengths``, which are below those of x."""
USES: dict[str, tuple[str, str]] = {
    "Range": ("one = Squeeze time zero\ny = Range start one step", "y"),
    "Slice": ("y = Slice x zero time axis", "y"),
    "Slice from it": ("y = Slice x time far axis", "y"),
    "Expand": ("shape = Concat two time axis=0\ny = Expand row shape", "y"),
    "Tile": ("times = Concat two time axis=0\ny = Tile row times", "y"),
    "ConstantOfShape": ("y = ConstantOfShape time", "y"),
    "Pad": ("pads = Concat zero time zero zero axis=0\ny = Pad row pads", "y"),
    "Reshape": (
        "cut = Slice x zero time axis\nz = Transpose cut perm=(1,0,2)\ntail = Shape z start=1\n"
        "rest = ReduceProd tail keepdims=1\nflat = Concat time rest axis=0\ny = Reshape z flat",
        "y",
    ),
    "OneHot": ("one = Squeeze time zero\ny = OneHot lengths one values", "y"),
    "in values": ("more = Add longest lengths\ncut = Slice x zero time axis", "more cut"),
    "written twice": (
        "again = ReduceMax lengths keepdims=1\nwide = Cast again to='int64'\n"
        "a = Slice x zero time axis\nb = Slice x zero wide axis\ny = Add a b",
        "y",
    ),
}


def using(name: str, dtype: str) -> Graph:
    text, outputs = USES[name]
    constants: dict[str, Any] = {
        **{"zero": [0], "axis": [1], "two": [2], "far": [2**31]},
        **{"start": np.int64(0), "step": np.int64(1), "row": np.ones((1, 1), np.float32)},
        "values": np.array([0, 1], np.float32),
    }
    nodes = new_nodes(LONGEST + text)
    read = {name for node in nodes for name in node.inputs}
    inputs = {"x": (None, None, 3), "lengths": (dtype, None)}
    return small(nodes, inputs, outputs, **{k: v for k, v in constants.items() if k in read})


def batch(dtype: str, time: int, *lengths: int) -> dict[str, Any]:
    rng = np.random.default_rng(time)
    x = rng.normal(size=(len(lengths), time, 3)).astype(np.float32)
    return {"x": x, "lengths": np.array(lengths, dtype)}


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("name", USES)
def test_operators_take_sizes_that_a_run_computes(name: str, dtype: str) -> None:
    session = as_it_is(using(name, dtype))
    feeds = [batch(dtype, 5, 2, 4), batch(dtype, 1, 1), batch(dtype, 1, 0, 0)]
    feeds += [batch(dtype, 300, 300, 7, 0), batch(dtype, 5, 5, 5)]
    agrees(session, *feeds, rtol=0)
    assert not planned(session).outside


@pytest.mark.parametrize("lengths", [(9, 2), (-3, -1)])
def test_integers_beyond_what_a_plan_has_memory_for_run_in_python(lengths: Any) -> None:
    for name in ("Slice", "Range", "in values"):
        agrees(as_it_is(using(name, "int64")), batch("int64", 4, *lengths), rtol=0)


def test_lengths_that_a_mask_counts_never_exceed_its_steps() -> None:
    nodes = new_nodes("""
        inside = Greater x low
        ones = Cast inside to='int32'
        lengths = ReduceSum ones axis keepdims=0
        longest = ReduceMax lengths keepdims=1
        time = Cast longest to='int64'
        y = Slice x zero time axis
    """)
    constants = {"low": np.float32(0), "axis": [1], "zero": [0]}
    session = as_it_is(small(nodes, {"x": (None, None)}, **constants))
    rng = np.random.default_rng(1)
    shapes = ((3, 7), (1, 1), (4, 0), (2, 200))
    agrees(session, *({"x": rng.normal(size=s).astype("f4")} for s in shapes), rtol=0)
    plan = planned(session)
    assert not plan.outside
    (most,) = plan.encoded.program.inner.values()
    assert str(most) == "x_1"


def test_inferring_ends_if_a_size_turns_out_to_be_one_after_an_integer_was_read() -> None:
    nodes = new_nodes("""
        lengths = SequenceLengths x
        padded = Reshape w shape
        y = SequenceUnpad padded lengths
        last = SequencePool x kind='last'
        both = Concat last h axis=1
    """)
    inputs = {"x": [None, 2], "h": (None, 2), "w": (None,), "shape": ("int64", 3)}
    feed: dict[str, Any] = {"x": Ragged.from_lengths(np.ones((3, 2), np.float32), [3])}
    feed |= {"h": np.ones((1, 2), np.float32), "w": np.arange(6, dtype=np.float32)}
    agrees(as_it_is(small(nodes, inputs, "both y")), {**feed, "shape": np.array([1, 3, 2])}, rtol=0)


PADDED = {
    "SequencePad": new_node("y = SequencePad words"),
    "SequencePad time first": new_node("y = SequencePad words", time_major=1),
    "SequenceFill": new_node("y = SequenceFill words low"),
}


@pytest.mark.parametrize("name", PADDED)
def test_sequences_that_a_run_makes_are_padded_to_the_longest(name: str) -> None:
    nodes = [new_node("words = SequenceConcat x x"), PADDED[name]]
    constants = {"low": np.float32(-2)} if name == "SequenceFill" else {}
    session = as_it_is(small(nodes, {"x": [None, 2]}, **constants))
    rng = np.random.default_rng(0)
    for lengths in ([3, 0, 5], [1], [200, 1]):
        words = rng.normal(size=(sum(lengths), 2)).astype(np.float32)
        agrees(session, {"x": Ragged.from_lengths(words, lengths)}, rtol=0)
    assert not planned(session).outside


@pytest.mark.parametrize("name", PADDED)
def test_sequences_of_an_outer_level_are_padded_to_their_own_longest(name: str) -> None:
    """Not to the longest sequence of steps, which a call passes for an input."""
    nodes = [new_node("words = SequencePool x", kind="last"), PADDED[name]]
    constants = {"low": np.float32(-2)} if name == "SequenceFill" else {}
    x = Value("x", "float32", (None, 2), lod_depth=2)
    session = as_it_is(small_graph(nodes, "y", constants, x=x))
    rng = np.random.default_rng(0)
    for lod in ([[0, 1, 1], [0, 5]], [[0, 3, 4], [0, 0, 1, 9, 11]]):
        words = rng.normal(size=(lod[-1][-1], 2)).astype(np.float32)
        agrees(session, {"x": Ragged.from_lod(words, lod)}, rtol=0)
    assert not planned(session).outside


@pytest.mark.parametrize("op", ["Div", "Mod"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_are_divided_by_integers_that_a_run_computes(op: str, dtype: str) -> None:
    inputs = {"a": (dtype, None), "b": (dtype, None)}
    session = as_it_is(small([new_node(f"y = {op} a b")], inputs))
    rng = np.random.default_rng(0)
    for count in (0, 1, 100):
        a = rng.integers(-50, 50, count).astype(dtype)
        b = (rng.integers(1, 9, count) * rng.choice([1, -2], count)).astype(dtype)
        agrees(session, {"a": a, "b": b}, rtol=0)
    lowest = np.array([np.iinfo(dtype).min + 1], dtype)
    agrees(session, {"a": lowest, "b": np.array([-1], dtype)}, rtol=0)
    assert not planned(session).outside
    with pytest.raises(ShapeError):
        session.run({"a": lowest, "b": np.zeros(1, dtype)})


def sampling() -> Graph:
    nodes = new_nodes("""
        a = Sample seed low high distribution='uniform' shape=(2,)
        b = Sample seed low high distribution='uniform' shape=(2,)
        y = Neg x
    """)
    return small(nodes, {"x": (1,), "low": (1,), "high": (1,)}, "a b y", seed=np.int64(3))


def test_explain_names_what_python_runs_with_its_number_and_the_reason() -> None:
    session = as_it_is(sampling())
    one = np.ones(1, np.float32)
    session.run({"x": one, "low": one, "high": 2 * one})
    (line,) = [each for each in session.explain().splitlines() if each.startswith("graph: ")]
    operators = line.partition("in Python: ")[2]
    assert operators.startswith("Sample 2 times (") and "Neg" not in operators
    assert "Sample" in operators.partition("(")[2]
    assert session.interpreted == operators


def test_inspect_names_what_python_runs_and_is_silent_if_nothing_does() -> None:
    graph = sampling()
    inspection = inspect_model(graph, backend="kernels")
    assert inspection.as_json()["interpreted"].startswith("Sample 2 times (")
    without = small([new_node("y = Neg x")], {"x": (None, 3)})
    assert inspect_model(without, backend="kernels").as_json()["interpreted"] is None
    for each, shown in ((inspection, True), (inspect_model(without, backend="kernels"), False)):
        text = io.StringIO()
        show_inspection(Console(file=text, width=200), each, "")
        assert ("in Python" in text.getvalue()) == shown
