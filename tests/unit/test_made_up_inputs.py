"""Types shown by runs on made-up inputs: bounded work, however many sizes a model leaves open."""

from __future__ import annotations

import time
from functools import reduce

import numpy as np
import pytest

from onernn import Graph, UnsupportedError
from onernn.adapters import types
from onernn.adapters.types import Type, fitting_inputs, types_of
from onernn.core.graph import Node, Value


def _sum(inputs: list[Value], constants: dict[str, np.ndarray]) -> Graph:
    """The sum of all inputs and constants."""
    nodes: list[Node] = []

    def added(a: str, b: str) -> str:
        nodes.append(Node("Add", (a, b), (f"sum{len(nodes)}",)))
        return nodes[-1].outputs[0]

    out = reduce(added, [*(v.name for v in inputs), *constants])
    return Graph("sum", tuple(inputs), (Value(out),), tuple(nodes), constants)


def _within(seconds: float, graph: Graph) -> dict[str, Type]:
    started = time.monotonic()
    try:
        return types_of(graph, fitting_inputs(graph))
    finally:
        assert time.monotonic() - started < seconds


def test_many_open_sizes_are_tried_one_input_at_a_time() -> None:
    inputs = [Value(f"x{n}", "float32", (None, None)) for n in range(20)]
    found = _within(10, _sum(inputs, {"c": np.zeros((1, 2), np.float32)}))
    assert found["sum0"] == Type("float32", 2)


def test_sizes_that_never_fit_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(types, "_SECONDS", 0.2)
    inputs = [Value(f"x{n}") for n in range(12)]
    wide = {f"c{n}": np.zeros((n, n), np.float32) for n in range(3, 60)}
    with pytest.raises(UnsupportedError, match="give a recording"):
        _within(10, _sum(inputs, wide))


@pytest.mark.parametrize("size", [2**32 - 1, 2**62])
def test_no_input_of_a_size_that_fills_the_memory_is_made(size: int) -> None:
    with pytest.raises(UnsupportedError, match="too large to be made up; give a recording"):
        _within(10, _sum([Value("x", "float32", (size, None))], {"c": np.ones(2, np.float32)}))
