"""ONNX operators that run graphs of their own; a session runs them.

Attribute ``body`` is a `Graph`; the last inputs are the values of outside that it takes, behind
its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from onernn.core.inference import Context
from onernn.core.node import Node
from onernn.core.operator import REQUIRED, define
from onernn.core.sizes import Size
from onernn.core.types import UNKNOWN, Type, dense
from onernn.operators import growth

_TURNS = 4  # rounds in which the types of carried values settle; then they are unknown


def _outputs(body: Any, given: list[Type]) -> list[Type]:
    """The types of a body's outputs; sizes and offsets made inside have no name outside."""
    inputs = {value.name: each for value, each in zip(body.inputs, given, strict=True)}
    found = body.typed(inputs)
    names = frozenset(name for each in given for name in _names(each))
    return [_outside(found[value.name], names) for value in body.outputs]


def _names(found: Type) -> set[str]:
    sizes = [size for size in found.shape or () if size is not None]
    value = (found.value,) if isinstance(found.value, Size) else found.value or ()
    return {name for size in (*sizes, *value) for name in size.names} | set(found.lod or ())


def _outside(found: Type, names: frozenset[str]) -> Type:
    shape = found.shape and tuple(s if s and s.names <= names else None for s in found.shape)
    known = found.lod is not None and names.issuperset(found.lod)
    return Type(found.dtype, shape, found.lod if known else None)


def _joined(a: Type, b: Type) -> Type:
    """What holds of both."""
    shape = None
    if a.shape is not None and b.shape is not None and len(a.shape) == len(b.shape):
        shape = tuple(x if x == y else None for x, y in zip(a.shape, b.shape, strict=True))
    return Type(a.dtype if a.dtype == b.dtype else None, shape, a.lod if a.lod == b.lod else None)


def _branches(context: Context, condition: Type, *taken: Type) -> tuple[Type, ...]:
    at, count = context.at, context.at.then_taken
    then = _outputs(at.then_branch, list(taken[:count]))
    other = _outputs(at.else_branch, list(taken[count:]))
    return tuple(map(_joined, then, other))


define(
    "If",
    kind="control",
    inputs="condition taken*",
    attributes={"then_branch": REQUIRED, "else_branch": REQUIRED, "then_taken": REQUIRED},
    outputs=2**16,
    type=_branches,
    compute=None,
    growth=growth.no_new_bytes,
)


def _settled(body: Any, front: list[Type], states: list[Type], rest: list[Type], skip: int) -> Any:
    """The types of the body's inputs in any turn, and of its outputs behind the states."""
    states = [replace(each, value=None) for each in states]
    for _ in range(_TURNS):
        made = _outputs(body, [*front, *states, *rest])
        joined = list(map(_joined, states, made[skip:]))
        if joined == states:
            return [*front, *states, *rest], made[skip + len(states) :]
        states = joined
    unknown = [UNKNOWN] * len(states)
    return [*front, *unknown, *rest], [UNKNOWN] * (len(made) - skip - len(states))


def _stacked(element: Type, axis: int, count: Size | None) -> Type:
    if element.shape is None or element.lod != ():
        return Type(element.dtype)
    at = axis if axis >= 0 else axis + len(element.shape) + 1
    return Type(element.dtype, (*element.shape[:at], count, *element.shape[at:]), ())


def _turns(at: Any, values: Sequence[Type]) -> Any:
    """As `_settled`, of a Loop."""
    front = [dense("int64", ()), dense("bool", ())]
    return _settled(at.body, front, [*values[: at.carried]], [*values[at.carried :]], 1)


def _loop(context: Context, most: Type | None, going: Type | None, *values: Type) -> Any:
    inside, made = _turns(context.at, values)
    turns = context.fresh("turns")
    return (*inside[2 : 2 + context.at.carried], *(_stacked(each, 0, turns) for each in made))


define(
    "Loop",
    kind="control",
    inputs="most? going? values*",
    attributes={"body": REQUIRED, "carried": REQUIRED},
    outputs=2**16,
    type=_loop,
    compute=None,
    growth=growth.no_new_bytes,
)


def _steps(at: Any, values: Sequence[Type]) -> Any:
    """As `_settled`, of a Scan."""
    end = at.states + at.scanned
    scanned = zip(values[at.states : end], at.input_axes, strict=True)
    elements = [_element(each, axis) for each, axis in scanned]
    return _settled(at.body, [], [*values[: at.states]], [*elements, *values[end:]], 0)


def _element(given: Type, axis: int) -> Type:
    if not given.shape:
        return Type(given.dtype, None, given.lod)
    place = axis % len(given.shape)
    return Type(given.dtype, (*given.shape[:place], *given.shape[place + 1 :]), given.lod)


def _scan(context: Context, *values: Type) -> Any:
    at = context.at
    scanned = zip(values[at.states : at.states + at.scanned], at.input_axes, strict=True)
    turns = context.same(*(v.shape[axis] for v, axis in scanned if v.shape))
    inside, made = _steps(at, values)
    stacked = (_stacked(each, axis, turns) for each, axis in zip(made, at.output_axes, strict=True))
    return (*inside[: at.states], *stacked)


define(
    "Scan",
    kind="control",
    inputs="first rest*",
    attributes=dict.fromkeys(
        "body states scanned input_axes input_directions output_axes output_directions".split(),
        REQUIRED,
    ),
    outputs=2**16,
    type=_scan,
    compute=None,
    growth=growth.no_new_bytes,
)


def types_inside(node: Node, name: str, given: Sequence[Type | None]) -> list[Type]:
    """The types of a body's inputs, in any turn, where the node's inputs are of those ``given``."""
    if node.op == "If":
        first = 1 + (node.at.then_taken if name == "else_branch" else 0)
        return [each or UNKNOWN for each in given[first:]][: len(node.at.__dict__[name].inputs)]
    values = [each or UNKNOWN for each in given[2 if node.op == "Loop" else 0 :]]
    return (_turns if node.op == "Loop" else _steps)(node.at, values)[0]
