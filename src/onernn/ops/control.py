"""Operators that only a session runs: recurrent layers, and ONNX's control flow.

Loop, Scan and If have attributes that are a `Graph`, the body. The inputs of a body are the inputs
that ONNX defines for it, followed by the outer values that it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from onernn.ir.arrays import Array
from onernn.ir.errors import ShapeError
from onernn.ir.graph import Context, Graph, Node
from onernn.ir.operator import op
from onernn.ir.ragged import Ragged
from onernn.ir.records import NamedTuple
from onernn.ir.rnn import Recurrent
from onernn.ir.spec import RnnSpec
from onernn.ir.types import UNKNOWN, Size, Type, dense, sequences_of
from onernn.ir.weights import OWN, RnnWeights
from onernn.ops import row_rules
from onernn.ops.growth import elements, no_new_bytes

# after inferring the body this many times, state types that still change become unknown
_ROUNDS = 4


def _outputs(body: Any, types: list[Type]) -> list[Type]:
    """Returns the types of a body's outputs. Sizes and offsets that do not follow from the inputs
    become unknown.
    """
    inputs = {value.name: each for value, each in zip(body.inputs, types, strict=True)}
    result = body.infer_types(inputs)
    names = frozenset(name for each in types for name in _names(each))
    return [_outside(result[value.name], names) for value in body.outputs]


def _names(x: Type) -> set[str]:
    sizes = [size for size in x.shape or () if size is not None]
    value = (x.value,) if isinstance(x.value, Size) else x.value or ()
    return {name for size in (*sizes, *value) for name in size.names} | set(x.lod or ())


def _outside(x: Type, names: frozenset[str]) -> Type:
    shape = x.shape and tuple(s if s and s.names <= names else None for s in x.shape)
    is_known = x.lod is not None and names.issuperset(x.lod)
    return Type(x.dtype, shape, x.lod if is_known else None)


def join_types(a: Type, b: Type) -> Type:
    """Returns the type of a value whose type is one of two: a dtype or size that differs becomes
    unknown.
    """
    shape = None
    if a.shape is not None and b.shape is not None and len(a.shape) == len(b.shape):
        shape = tuple(x if x == y else None for x, y in zip(a.shape, b.shape, strict=True))
    return Type(a.dtype if a.dtype == b.dtype else None, shape, a.lod if a.lod == b.lod else None)


def _branches(context: Context, condition: Type, *values: Type) -> tuple[Type, ...]:
    attrs, count = context.attrs, context.attrs.then_taken
    then = _outputs(attrs.then_branch, list(values[:count]))
    other = _outputs(attrs.else_branch, list(values[count:]))
    return tuple(map(join_types, then, other))


@op(
    "If",
    kind="control",
    outputs=2**16,
    type=_branches,
    growth=no_new_bytes,
    rows=row_rules.branches,
)
def if_(
    condition: Array, *taken: Any, then_branch: Graph, else_branch: Graph, then_taken: int
) -> None:
    """Runs one of two graphs. The first ``then_taken`` values are the inputs of ``then_branch``,
    the rest are the inputs of ``else_branch``.
    """


# A plan is a flat list of operators. The operators below mark where branches and loops begin and
# end in this list (see `onernn.engine.flattening`). The first output of Then and Else is the
# condition. A branch that cannot run ends the call; then ``refused`` says why.


def _of_any_value(types: Sequence[Type]) -> tuple[Type, ...]:
    """Returns the types without their field ``value``, because elements may differ between branches
    or iterations.
    """
    return tuple(replace(each, value=None) for each in types)


def _mark(_: Context, condition: Type, *values: Type) -> tuple[Type, ...]:
    return (Type("bool", condition.shape, ()), *_of_any_value(values))


def _end_if(context: Context, condition: Type, *values: Type) -> tuple[Type, ...]:
    values = _of_any_value(values)
    if context.attrs.gives != "both":
        return values
    count = len(values) // 2
    return tuple(
        _name(context, index, join_types(*pair))
        for index, pair in enumerate(zip(values[:count], values[count:], strict=True))
    )


def _name(context: Context, index: int, x: Type) -> Type:
    if x.shape is None:
        return x
    sizes = (
        context.fresh(f"size{index}_{axis}") if size is None else size
        for axis, size in enumerate(x.shape)
    )
    return replace(x, shape=tuple(sizes))


_MARK: dict[str, Any] = {"kind": "control", "outputs": 2**16, "since": 0}


@op("Then", type=_mark, **_MARK)
def then(condition: Array, *, refused: str = "") -> None:
    """Begins the first branch of an If."""


@op("Else", type=_mark, **_MARK)
def else_(condition: Array, *given: Any, refused: str = "") -> None:
    """Ends the first branch of an If, and begins the second branch."""


@op("EndIf", type=_end_if, **_MARK)
def end_if(condition: Array, *given: Any, gives: str = "both") -> None:
    """Ends the second branch of an If."""


def _repeat(context: Context, most: Type | None, going: Type | None, *values: Type) -> Any:
    states = _of_any_value(values[: context.attrs.states])
    return (Type("int64", (), (), context.fresh("turn")), Type("bool", (), ()), *states)


def _again(context: Context, turn: Type, going: Type, more: Type | None, *values: Type) -> Any:
    attrs, count = context.attrs, context.attrs.states
    gathered = values[2 * count : 2 * count + len(attrs.axes)]
    turns = (
        context.fresh("turns") if attrs.along is None else (values[-1].shape or [None])[attrs.along]
    )
    stacked = (_stack(each, axis, turns) for each, axis in zip(gathered, attrs.axes, strict=True))
    return (*_of_any_value(values[:count]), *stacked)


@op("Repeat", type=_repeat, **_MARK)
def repeat(
    most: Array | None,
    going: Array | None,
    *given: Any,
    states: int,
    scanned: tuple[int, ...] = (),
) -> None:
    """Begins an iteration of a loop. ``scanned``: for each input after the states, the axis that
    the loop iterates over.
    """


@op("Element", type=lambda context, x, _: _element(x, context.attrs.axis), **_MARK)
def element(x: Any, turn: Array, *, axis: int = 0, backwards: int = 0) -> None:
    """Returns the slice of x at index ``turn`` of an axis; counts from the end if ``backwards`` is
    set.
    """


def _found_size(context: Context, x: Type) -> Type:
    if x.value is not None or x.counts not in ((), (1,)) or x.shape is None:
        return x
    size = context.fresh("number")
    return replace(x, lod=(), value=(size,) if x.shape else size)


@op("FoundSize", type=_found_size, **_MARK)
def found_size(x: Array) -> None:
    """Returns x, an integer that only a run knows. The result is a size of the plan, whose name
    shapes contain.
    """


@op("Again", type=_again, **_MARK)
def again(
    turn: Array,
    going: Array,
    more: Array | None,
    *given: Any,
    states: int,
    axes: tuple[int, ...] = (),
    backwards: tuple[int, ...] = (),
    along: int | None = None,
    operators: int = 1,
) -> None:
    """Ends an iteration of a loop; ``more``: whether a further iteration follows. ``operators``:
    the number of operators per iteration.

    ``given``: the states of this iteration, the states of the next one, the gathered values, and
    the scanned values.
    """


def _settle(body: Any, front: list[Type], states: list[Type], rest: list[Type], skip: int) -> Any:
    states = [*_of_any_value(states)]
    for _ in range(_ROUNDS):
        result = _outputs(body, [*front, *states, *rest])
        joined = list(map(join_types, states, result[skip:]))
        if joined == states:
            return [*front, *states, *rest], result[skip + len(states) :]
        states = joined
    unknown = [UNKNOWN] * len(states)
    return [*front, *unknown, *rest], [UNKNOWN] * (len(result) - skip - len(states))


def _stack(element: Type, axis: int, count: Size | None) -> Type:
    if element.shape is None or element.lod != ():
        return Type(element.dtype)
    at = axis if axis >= 0 else axis + len(element.shape) + 1
    return Type(element.dtype, (*element.shape[:at], count, *element.shape[at:]), ())


class Turns(NamedTuple):
    """A Loop or a Scan: a graph that runs repeatedly.

    ``front``: the number of inputs before the states: 2 (limit and condition) or 0. ``states``: the
    number of values that each iteration passes to the next one. The other fields are the axes and
    directions (1: backwards) of the scanned inputs and of the gathered outputs.
    """

    body: Graph
    front: int
    states: int
    input_axes: tuple[int, ...]
    input_directions: tuple[int, ...]
    output_axes: tuple[int, ...]
    output_directions: tuple[int, ...]

    @classmethod
    def of(cls, attrs: Any) -> Turns:
        """Returns the record of a Loop or Scan with these attributes."""
        if "carried" not in vars(attrs):
            axes, outputs = attrs.input_axes, attrs.output_axes
            directions = attrs.input_directions, attrs.output_directions
            return cls(attrs.body, 0, attrs.states, axes, directions[0], outputs, directions[1])
        rest = (0,) * (len(attrs.body.outputs) - 1 - attrs.carried)
        return cls(attrs.body, 2, attrs.carried, (), (), rest, rest)

    @property
    def skip(self) -> int:
        """The number of the body's outputs before the states: 1, the condition, for a Loop;
        otherwise 0.
        """
        return min(self.front, 1)

    def parts(self, values: Sequence[Any]) -> tuple[Sequence[Any], ...]:
        """Returns a node's inputs in four groups: limit and condition (if any), initial states,
        scanned values, outer values.
        """
        begin = self.front + self.states
        end = begin + len(self.input_axes)
        return values[: self.front], values[self.front : begin], values[begin:end], values[end:]


def _inside(turns: Turns, values: Sequence[Type]) -> Any:
    front, states, scanned, rest = turns.parts(values)
    elements = [_element(each, axis) for each, axis in zip(scanned, turns.input_axes, strict=True)]
    own = [dense("int64", ()), dense("bool", ())][: len(front)]
    return _settle(turns.body, own, [*states], [*elements, *rest], turns.skip)


def _turns_type(context: Context, *values: Type) -> Any:
    turns = Turns.of(context.attrs)
    scanned = zip(turns.parts(values)[2], turns.input_axes, strict=True)
    sizes = [each.shape[axis] for each, axis in scanned if each.shape]
    count = context.same(*sizes) if turns.input_axes else context.fresh("turns")
    inside, result = _inside(turns, values)
    gathered = zip(result, turns.output_axes, strict=True)
    states = inside[turns.front : turns.front + turns.states]
    return (*states, *(_stack(each, axis, count) for each, axis in gathered))


def _element(x: Type, axis: int) -> Type:
    if not x.shape:
        return Type(x.dtype, None, x.lod)
    place = axis % len(x.shape)
    return Type(x.dtype, (*x.shape[:place], *x.shape[place + 1 :]), x.lod)


_TURNS: dict[str, Any] = {"kind": "control", "outputs": 2**16, "type": _turns_type}
_TURNS |= {"growth": no_new_bytes, "rows": row_rules.turns}


@op("Loop", **_TURNS)
def loop(most: Array | None, going: Array | None, *values: Any, body: Graph, carried: int) -> None:
    """Runs a graph repeatedly; every iteration passes the values of ``carried`` states to the next
    iteration.
    """


@op("Scan", **_TURNS)
def scan(
    first: Any,
    *rest: Any,
    body: Graph,
    states: int,
    scanned: int,
    input_axes: tuple[int, ...],
    input_directions: tuple[int, ...],
    output_axes: tuple[int, ...],
    output_directions: tuple[int, ...],
) -> None:
    """Runs a graph for each element of the scanned inputs."""


def scan_attributes(
    body: Graph, states: int, scanned: int = 1, *, backwards: int = 0
) -> dict[str, Any]:
    """Returns the attributes of a Scan that scans and collects along axis 0."""
    collected = len(body.outputs) - states
    return {
        "body": body,
        "states": states,
        "scanned": scanned,
        "input_axes": (0,) * scanned,
        "input_directions": (backwards,) * scanned,
        "output_axes": (0,) * collected,
        "output_directions": (backwards,) * collected,
    }


def types_inside(node: Node, name: str, types: Sequence[Type | None]) -> list[Type]:
    """Returns the types of a body's inputs in every iteration if the node's inputs have
    ``types``.
    """
    if node.op == "If":
        first = 1 + (node.attrs.then_taken if name == "else_branch" else 0)
        return [each or UNKNOWN for each in types[first:]][: len(node.attrs.__dict__[name].inputs)]
    inside: list[Type] = _inside(Turns.of(node.attrs), [each or UNKNOWN for each in types])[0]
    return inside


def _layer_types(context: Context, x: Type, *states: Type | None) -> tuple[Type, ...]:
    spec = context.attrs.spec
    weights = context.attrs.weights
    first = weights if isinstance(weights, RnnWeights) else weights[0]
    dtype = first.iter.dtype.name
    if x.lod is None:
        return (Type(dtype),) * context.attrs.outputs
    axes = 2 if x.lod else 3
    *front, width = (None,) * axes if x.shape is None else x.shape
    if len(front) != axes - 1:
        raise ShapeError(f"x: expected {axes} axes, got {x}")
    context.same(width, Size.of(spec.input_size))
    batch = sequences_of(x) if x.lod else front[1]
    finals = {"h": spec.recurrent_size, "c": spec.hidden_size}

    def each_word(width: int) -> Type:
        return Type(dtype, (*front, Size.of(width)), x.lod)

    def final(width: int) -> Type:
        sizes = (spec.layers, spec.directions, batch, width)
        return Type(dtype, tuple(None if s is None else Size.of(s) for s in sizes), ())

    return (
        each_word(spec.output_size),
        *(final(finals[name]) for name in spec.cell.states),
        each_word(spec.hidden_size * (spec.output_size // spec.recurrent_size)),
    )


def _batch_layer(m: Any, node: Node) -> None:
    """Adds one recurrent layer for all rows: its batch contains the sequences of every row."""
    rnn = Recurrent.of(node)
    lod = m.graph.types[rnn.x].lod
    if lod is None or (lod and rnn.x not in m.mapped):
        raise m.make_error(
            node, "expected the sequences of all rows, got sequences that may belong to one row"
        )

    def within(name: str, axis: int) -> str:
        return m.merge_batch(node, name, axis) if name else ""

    states = [within(name, 2) for name in (rnn.h, rnn.c)]
    steps = [rnn.x, rnn.attention] if lod else [within(rnn.x, 1), within(rnn.attention, 1)]
    inputs = [steps[0], *states, steps[1]]
    while not inputs[-1]:
        inputs.pop()
    is_apart = [bool(name) and not (lod and name not in rnn.finals) for name in node.outputs]
    pairs = zip(node.outputs, is_apart, strict=True)
    outputs = tuple(m.name(name) if apart else name for name, apart in pairs)
    m.nodes.append(Node("Rnn", tuple(inputs), outputs, node.attributes, node.origin))
    m.mapped.update(filter(None, node.outputs))
    batch = -1 if lod else m.sizes(m.rows(node, rnn.x), 2, 3)
    for output, name, apart in zip(outputs, node.outputs, is_apart, strict=True):
        if not apart:
            continue
        axes = 2 if name in rnn.finals else 1
        parts = [m.sizes(output, 0, axes), m.count, batch, m.sizes(output, axes + 1, None)]
        rows = m.reshape(output, parts)
        perm = (axes, *range(axes), *range(1 + axes, 3 + axes))
        m.nodes.append(Node("Transpose", (rows,), (name,), {"perm": perm}))


def _layer_bytes(node: Node, x: Any, *_: Any) -> int:
    spec = node.attrs.spec
    words, sentences = (
        (len(x.data), len(x))
        if isinstance(x, Ragged)
        else (elements(x.shape[:2]), x.shape[1] if x.ndim > 1 else 1)
    )
    width = spec.directions * max(spec.hidden_size, spec.recurrent_size)
    words *= 2 if node.attrs.outputs > 3 else 1
    return 4 * width * (words + 2 * spec.layers * sentences)


@op(
    "Rnn",
    kind="layer",
    outputs=4,
    type=_layer_types,
    growth=_layer_bytes,
    batched=_batch_layer,
    rows=row_rules.layer,
)
def rnn(
    x: Any,
    h: Array | None = None,
    c: Array | None = None,
    attention: Any | None = None,
    *,
    spec: RnnSpec,
    weights: Any,
    precision: Any = OWN,
) -> None:
    """Runs one or more recurrent layers; ``weights``: one `RnnWeights` for all layers, or one per
    layer.
    """
