"""Values that stand inside of others hold what copies would hold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.arrays import uniform
from support.graphs import new_node, small
from support.planning import agrees, as_it_is, planned
from support.random_graphs import GRAPHS

from onernn import Graph, Session
from onernn.engine.program import Nest
from onernn.ir.graph import Node, Value

pytestmark = pytest.mark.usefixtures("built")
COLUMNS = 6


def moving_graph(seed: int) -> Graph:
    """Operators that mostly move rows of x (T, COLUMNS), T open; plans have no code for some."""
    rng = np.random.default_rng(seed)
    constants: dict[str, np.ndarray] = {"eye": np.eye(COLUMNS, dtype=np.float32)}
    nodes: list[Node] = []
    values = ["x"]
    names: Iterator[str] = (f"v{at}" for at in range(10**6))

    def emit(op: str, *inputs: str, outputs: int = 1, **attributes: object) -> list[str]:
        made = tuple(next(names) for _ in range(outputs))
        nodes.append(Node(op, inputs, made, attributes))
        return list(made)

    def constant(*numbers: int) -> str:
        name = next(names)
        constants[name] = np.array(numbers)
        return name

    def some() -> str:
        return values[-1 - min(int(rng.exponential(2)), len(values) - 1)]

    kinds = ["halves", "lead", "join", "shape", "turn", "apply", "python"]
    for _ in range(int(rng.integers(3, 14))):
        x, kind = some(), kinds[rng.integers(len(kinds))]
        if kind == "halves":  # T rows twice, the rows of both in one, and apart again
            (both,) = emit("Concat", x, some(), axis=0)
            (three,) = emit("Reshape", both, constant(2, -1, COLUMNS))
            parts = emit("Split", three, constant(1, 1), outputs=2, axis=0)
            values += [emit("Squeeze", part, constant(0))[0] for part in parts]
        elif kind == "lead":
            (three,) = emit("Unsqueeze", x, constant(0))
            (turned,) = emit("Transpose", three, perm=[1, 0, 2])
            values += emit("Squeeze", turned, constant(1))
        elif kind == "join":
            parts = [x, some(), some()][: rng.integers(1, 4)]
            (joined,) = emit(
                "Concat", *(emit("Unsqueeze", p, constant(0))[0] for p in parts), axis=0
            )
            at = int(rng.integers(len(parts)))
            cut = constant(at), constant(at + 1), constant(0)
            values += emit("Squeeze", *emit("Slice", joined, *cut), constant(0))
            values += emit("ReduceMax", joined, constant(0), keepdims=0)
        elif kind == "shape":
            (flat,) = emit("Reshape", x, constant(-1))
            values += emit("Reshape", flat, constant(-1, COLUMNS))
        elif kind == "turn":
            (turned,) = emit("Transpose", x, perm=[1, 0])
            (first, second) = emit("Split", turned, constant(2, 4), outputs=2, axis=0)
            (back,) = emit("Concat", second, first, axis=0)
            values += emit("Transpose", back, perm=[1, 0])
        elif kind == "apply":
            values += emit(["Neg", "Abs", "Tanh"][rng.integers(3)], x)
        else:
            # One has no rule; the other one has more operands than a loop of the library.
            einsum = emit("Einsum", x, "eye", equation="ij,jk")
            values += [*einsum, *emit("Mean", *[x] * 26)]
    outputs = list(dict.fromkeys(v for v in (values[-1], some(), some()) if v != "x"))
    given = Value("x", "float32", (None, COLUMNS))
    return Graph(f"moves{seed}", (given,), tuple(map(Value, outputs)), tuple(nodes), constants)


def test_random_moves_give_what_the_walk_gives() -> None:
    outside = viewed = 0
    for seed in range(GRAPHS):
        graph = moving_graph(seed)
        session = as_it_is(graph)
        for T in (3, 1, 0, 17):
            feed = {"x": uniform(T, COLUMNS, seed=T)}
            before, plan = feed["x"].copy(), session._plan(feed)
            want, got = session._walk(feed, None), session.run(feed)
            for name, array in want.items():
                np.testing.assert_allclose(got[name], array, rtol=1e-5, err_msg=f"{seed} {T}")
                assert plan is None or not np.may_share_memory(got[name], feed["x"])
            assert np.array_equal(feed["x"], before)
        if plan is not None:
            outside += len(plan.outside)
            viewed += sum(bool(start.terms) for _, start in plan.encoded.program.views.values())
    assert outside > GRAPHS / 4 and viewed > GRAPHS


def copies(nodes: tuple[Node, ...], outputs: tuple[str, ...]) -> int:
    """How many copies a plan of x (T, 6) makes; it is right."""
    constants = {"two": [2, 4], "first": [0], "second": [1]}
    session = as_it_is(small(nodes, {"x": (None, 6)}, " ".join(outputs), **constants))
    agrees(session, {"x": uniform(6, 6)}, rtol=0)
    plan = planned(session)
    assert not plan.outside
    steps = [step for each in plan.encoded.program.codes for step in each.codes]
    return sum(isinstance(step, Nest) and step.expression == ("same", 0) for step in steps)


def test_parts_of_the_first_axis_are_not_copied() -> None:
    split = new_node("a b = Split t two", axis=0)
    square = new_node("t = Transpose x", perm=[1, 0])
    ends = new_node("y = Neg a"), new_node("z = Abs b")
    assert copies((square, split, *ends), ("y", "z")) == 1  # the transpose
    assert copies((square, split, *ends), ("y", "z", "b")) == 2  # callers get their own


def test_what_is_joined_is_written_in_place() -> None:
    made = new_node("a = CumSum x first"), new_node("b = CumSum x second")
    both = new_node("y = Concat a b", axis=0)
    assert copies((*made, both), ("y",)) == 0
    assert copies((*made, both), ("y", "a")) == 1
    twice = new_node("y = Concat a b a", axis=0)
    assert copies((*made, twice), ("y",)) == 1
    beside = new_node("y = Concat a b", axis=1)
    assert copies((*made, beside), ("y",)) == 2
    again = new_node("z = Concat b a", axis=0)
    assert copies((*made, both, again), ("y", "z")) == 2


@pytest.mark.parametrize("backend", ["kernels", "reference"])
def test_outputs_share_no_memory_with_inputs_constants_or_each_other(backend: str) -> None:
    nodes = (Node("Identity", ("x",), ("y",)), Node("Reshape", ("y", "flat"), ("z",)))
    graph = small(nodes, {"x": (None, 6)}, "y z x flat", flat=[-1])
    x = uniform(3, 6)
    fed, session = x.copy(), Session(graph, backend=backend)
    for _ in range(2):
        got = session.run({"x": fed})
        for name, want in {"y": x, "z": x.ravel(), "x": x, "flat": [-1]}.items():
            np.testing.assert_array_equal(got[name], want)
            got[name][...] = 7  # changes neither the input nor later results
