"""What must hold for every pass: neutral, idempotent, and the old graph untouched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from onernn import FuseResult, Graph, OnernnError, Ragged, Session, fuse
from onernn.fuse_passes import PASSES, Pass
from onernn.ir.graph import Node
from support.arrays import uniform
from support.graphs import unfused
from support.layers import random_ragged, words


def fused_once(graph: Graph, passes: tuple[Pass, ...] = PASSES) -> FuseResult:
    """The result, after checking that a second fusion does nothing and the first edited nothing."""
    nodes, constants = graph.nodes, {name: a.copy() for name, a in graph.constants.items()}
    result = fuse(graph, passes)
    again = fuse(result.model, passes)
    assert again.applied == () and again.model.nodes == result.model.nodes
    assert again.refusals == result.refusals
    assert graph.nodes is nodes and set(graph.constants) == set(constants)
    for name, array in constants.items():
        np.testing.assert_array_equal(graph.constants[name], array)
    return result


def check_fused(
    graph: Graph,
    *feeds: Any,
    passes: tuple[Pass, ...] = PASSES,
    backends: tuple[Any, ...] = ("reference",),
    atol: float = 3e-6,
) -> FuseResult:
    """The result, after checking what every rewrite owes.

    ``atol``: folding only reorders sums of a dozen terms of size 1, over a few contractive steps.
    """
    result = fused_once(graph, passes)
    for feed in feeds:
        want = unfused(graph, feed)
        for backend in backends:
            got = Session(result.model, backend=backend, passes=()).run(feed)
            assert list(got) == list(want)
            for name, value in want.items():
                one, other = words(got[name]), words(value)
                assert (one.shape, one.dtype) == (other.shape, other.dtype)
                np.testing.assert_allclose(one, other, rtol=0, atol=atol, err_msg=name)
    return result


def fuse_and_check(graph: Graph) -> FuseResult:
    """The same, of a graph over ragged x and h0."""
    return check_fused(graph, {"x": random_ragged([3, 0, 5, 1], 4, 0), "h0": uniform(1, 1, 4, 3)})


def fired(result: FuseResult) -> list[str]:
    """The passes that acted, in order."""
    return [each.name for each in result.applied]


def reasons(result: FuseResult) -> list[str]:
    """Why the others did not."""
    return [each.reason for each in result.refusals]


def operators(result: FuseResult) -> list[str]:
    """The operators that are left, except identities, which only name outputs."""
    return [node.op for node in result.model.nodes if node.op != "Identity"]


def layer_nodes(result: FuseResult) -> list[Node]:
    """The recurrent layers that are left."""
    return [node for node in result.model.nodes if node.op == "Rnn"]


RTOL = {"f32": 1e-5, "bf16": 2e-2}


def departure(got: Any, want: Any, rtol: float, moved: Any = None) -> str:
    """How a value departs from another one beyond the tolerance; "" where it does not.

    ``moved``: the other one once more, of rounded inputs: four times what that changes is allowed.
    """
    if isinstance(got, Ragged) or isinstance(want, Ragged):
        lods = [each.lod if isinstance(each, Ragged) else "dense" for each in (got, want)]
        if lods[0] != lods[1]:
            return f"offsets {lods[0]}, unfused {lods[1]}"
        got, want = got.data, want.data
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        return f"{got.dtype} {got.shape}, unfused {want.dtype} {want.shape}"
    if want.dtype.kind != "f":
        return "" if np.array_equal(got, want) else "other integers"
    worst = np.abs(got.astype(np.float64) - want).max(initial=0)
    allowed = 1e-6 + rtol * np.abs(want).max(initial=0)
    if moved is not None:
        allowed += 4 * np.abs(words(moved) - want).max(initial=0)
    return "" if worst <= allowed else f"{worst} apart, {allowed} allowed"


def departures(graph: Graph, feeds: Any, backend: str, dtype: str) -> list[str]:
    """What departs when the graph is fused, by feed and output."""
    plain, fused = (
        Session(graph, backend=backend, dtype=dtype, passes=passes) for passes in ((), None)
    )
    found = []
    for feed in feeds:
        try:
            want = plain.run(feed)
        except OnernnError:  # this backend has no such layer
            continue
        got, rtol = fused.run(feed), RTOL[dtype]
        assert list(got) == list(want)
        apart = [name for name in want if departure(got[name], want[name], rtol)]
        moved: dict[str, Any] = {}
        if apart and dtype == "bf16":
            constants = {name: _rounded(array) for name, array in graph.constants.items()}
            nearby = Session(replace(graph, constants=constants), dtype, backend=backend, passes=())
            moved = nearby.run({name: _rounded(value) for name, value in feed.items()})
        reasons = {name: departure(got[name], want[name], rtol, moved.get(name)) for name in apart}
        found += [f"{name}: {why}" for name, why in reasons.items() if why]
    return found


def _rounded(value: Any) -> Any:
    """float32 to the precision of bfloat16."""
    if isinstance(value, Ragged):
        return value.with_data(_rounded(value.data))
    if value.dtype != np.float32:
        return value
    bits = np.array(value).view(np.uint32) + np.uint32(0x8000)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)
