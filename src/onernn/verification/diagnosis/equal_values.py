"""Values that no matched operators make, and that are the same numbers in both models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from onernn.ir.errors import OnernnError
from onernn.ir.graph import Graph, Node, Value
from onernn.ir.ragged import Ragged, data_of
from onernn.ops import OPERATORS
from onernn.verification.tracing import Values, depth_of, trace

_APART = 1e-5
"""Of the largest number: what the order of sums makes of values that are the same."""


def equal_values(
    pairs: Mapping[str, str], graph: Graph, other: Graph, theirs: Values
) -> dict[str, str]:
    """The pairs of values, and what is computed otherwise but comes to the same.

    Exporters write one function in several ways. What the model makes of values that have a pair
    is computed of the reference's, so that faults before it do not matter. ``theirs``: the values
    of the reference's run.
    """
    taken = set(pairs.values())
    recomputed = _recomputed(pairs, graph, theirs)
    forms = {_form(value) for value in recomputed.values()}
    there: dict[Any, list[str]] = {}
    for name in (name for node in other.nodes for name in node.outputs if name in theirs):
        if (form := _form(theirs[name])) in forms and _tells(theirs[name]):
            there.setdefault(form, []).append(name)
    found: dict[str, str] = {}
    for name, value in recomputed.items():
        same = [each for each in there.get(_form(value), []) if _close(value, theirs[each])]
        free = [each for each in same if each not in taken]
        maker = graph.producer(name)
        if not free and maker is not None and moves(maker.op):  # one state may be cut out twice
            free = same
        if free:
            found[name] = free[0]
            taken.add(free[0])
    return {**pairs, **found}


def moves(op: str) -> bool:
    """Whether an operator only cuts numbers out, or moves them."""
    known = OPERATORS.get(op)
    return known is not None and known.kind in ("view", "moves")


def _recomputed(pairs: Mapping[str, str], graph: Graph, theirs: Values) -> dict[str, Any]:
    """The model's values without a counterpart, of the reference's values before them."""
    known = {mine: theirs[their] for mine, their in pairs.items() if their in theirs}
    made: dict[str, Any] = {}
    for node in graph.nodes:
        there = all(name in known or name in graph.constants for name in filter(None, node.inputs))
        if there and not known.keys() >= set(filter(None, node.outputs)):
            results = _run(graph, node, known)
            made |= {name: v for name, v in results.items() if name not in known and _tells(v)}
            known = {**results, **known}
    return made


def _run(graph: Graph, node: Node, known: Values) -> dict[str, Any]:
    """What one node makes; nothing where it cannot run on such values."""
    feed = {name: known[name] for name in node.inputs if name in known}
    inputs = tuple(Value(name, lod_depth=depth_of(value)) for name, value in feed.items())
    outputs = tuple(Value(name) for name in node.outputs if name)
    part = replace(graph, inputs=inputs, outputs=outputs, nodes=(node,)).pruned()
    try:
        with np.errstate(all="ignore"):
            values = trace(part, feed)
    except OnernnError:
        return {}
    return {value.name: values[value.name] for value in outputs}


def _tells(value: Any) -> bool:
    """Whether two values of the same numbers are the same value: not counts, zeros, or masks."""
    array = data_of(value) if isinstance(value, Ragged | np.ndarray) else None
    return array is not None and array.dtype.kind == "f" and len(np.unique(array)) > 2


def _form(value: Any) -> Any:
    lod = tuple(value.lod) if isinstance(value, Ragged) else ()
    return data_of(value).shape, str(data_of(value).dtype), repr(lod)


def _close(one: Any, two: Any) -> bool:
    one, two = data_of(one), data_of(two)
    largest = np.abs(two).max(initial=0)
    return bool(np.allclose(one, two, rtol=0, atol=_APART * largest, equal_nan=True))
