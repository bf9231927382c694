"""The rules of ONNX's operators: loops, recurrent layers, and the table."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from onernn.adapters.common.bodies import NEAREST, recurrent_stack
from onernn.adapters.common.lowering import Results, Rules
from onernn.adapters.onnx import microsoft
from onernn.adapters.onnx.read import BFLOAT16, Operator, Subgraph, Variable, dtype_of
from onernn.adapters.onnx.table import OnnxOperator
from onernn.ir.activations import DEFAULTS, completed
from onernn.ir.arrays import Array
from onernn.ir.errors import ShapeError, UnsupportedError
from onernn.ir.graph import UNSUPPORTED, Graph
from onernn.ir.spec import Activation, Cell, Direction, RnnSpec
from onernn.ir.weights import RnnWeights
from onernn.ops import OPERATORS
from onernn.ops import Operator as CanonicalOperator
from onernn.reorders import onnx

# The rules of If, Loop and Scan: their graphs are lowered, and run by kernels of their own.

_FAR = 2**31 - 1
"""The end of a Slice that takes all the rest."""


def conditional(op: OnnxOperator) -> Results:
    bodies = op.body("then_branch"), op.body("else_branch")
    if any(len(graph.outputs) != len(op.outputs) for graph, _ in bodies):
        raise UnsupportedError(f"its branches do not give {len(op.outputs)} outputs")
    return op.builder.branches(op.value(0), *bodies)


def loop(op: OnnxOperator) -> Results:
    """A sequence that starts empty, and to which every iteration appends, is a scan output."""
    graph, appended = _without_sequences(op)
    slots = [at for at in range(len(op.inputs) - 2) if at not in appended]
    graph, unchanged = _unchanged_from_outside(op, graph, slots)
    slots = [at for at in slots if at not in unchanged]
    body, outer = op.body_of(graph)
    carried = [op.value(2 + at) for at in slots]
    _check_body(body, outer, 2 + len(carried), 1 + len(carried))
    inputs = (op.optional(0), op.optional(1), *carried, *outer)
    count = len(body.outputs) - 1
    results = op.emit_many("Loop", count, *inputs, body=body, carried=len(carried))
    for at in appended:
        op.variable(2 + at)
        op.builder.stacked.add(op.result_name(at))
    # The body's outputs: what is carried, what is collected, what was appended to sequences.
    collected = len(op.inputs) - 2
    places = [*slots, *range(collected, collected + count - len(slots) - len(appended)), *appended]
    values = dict(zip(places, results, strict=True))
    values |= {at: op.value(2 + at) for at in unchanged}
    return {str(at): value for at, value in values.items()}


def _unchanged_from_outside(
    op: OnnxOperator, graph: Subgraph, slots: list[int]
) -> tuple[Subgraph, list[int]]:
    """The body that reads from outside what no iteration changes, and the slots of these values.

    TensorFlow carries weights so: they have to be constants before the body's operators are read.
    ``slots``: the loop's slot of each value that the body carries.
    """
    makers = {name: each for each in graph.operators for name in each.outputs}
    own = {v.name for v in graph.inputs} | {*graph.constants, *graph.unread, *makers}
    fixed, identities = [], []
    for slot, inside, result in zip(slots, graph.inputs[2:], graph.outputs[1:], strict=False):
        name, outside = result.name, op.inputs[2 + slot][0]
        for _ in makers:  # a file may hold cycles
            if name not in makers or makers[name].type != "Identity":
                break
            name = makers[name].inputs[0]
        if name == inside.name and outside and outside not in own:
            fixed.append(slot)
            identities.append(Operator(op.at.position, "", "Identity", (outside,), (name,), {}))
    body = _without(graph, {slots.index(slot) for slot in fixed})
    return replace(body, operators=(*identities, *graph.operators)), fixed


def _without(graph: Subgraph, carried: Collection[int]) -> Subgraph:
    """The body of a loop without these of the values that it carries."""
    inputs = tuple(v for at, v in enumerate(graph.inputs) if at - 2 not in carried)
    outputs = tuple(v for at, v in enumerate(graph.outputs) if at - 1 not in carried)
    return replace(graph, inputs=inputs, outputs=outputs)


def _without_sequences(op: OnnxOperator) -> tuple[Subgraph, list[int]]:
    """The body whose results include what it appends to empty sequences, and their slots."""
    graph: Subgraph = op.subgraph("body")
    inserts = {o.outputs[0]: o for o in graph.operators if o.type == "SequenceInsert"}
    appended = []
    for slot, variable in enumerate(graph.inputs[2:]):
        name = op.inputs.get(2 + slot, ("",))[0]
        begin = op.scope.variable(name)
        if not variable.refusal or begin not in op.builder.empty or 1 + slot >= len(graph.outputs):
            continue
        insert = inserts.get(graph.outputs[1 + slot].name)
        users = [o for o in graph.operators if variable.name in o.inputs]
        if (
            insert
            and users == [insert]
            and insert.inputs[0] == variable.name
            and len(insert.inputs) == 2
        ):
            appended.append(slot)
    sequences = {graph.outputs[1 + slot].name for slot in appended}
    results = [Variable(inserts[graph.outputs[1 + slot].name].inputs[1]) for slot in appended]
    operators = tuple(o for o in graph.operators if not sequences.intersection(o.outputs))
    body = _without(graph, appended)
    return replace(body, operators=operators, outputs=(*body.outputs, *results)), appended


def sequence_empty(op: OnnxOperator) -> Results:
    """A loop may append to it; any other reader is refused."""
    op.attribute("dtype", 1)
    op.builder.empty.add(op.result_name(0))
    return op.emit(UNSUPPORTED, reason="a sequence that no loop fills is not supported")


def split_to_sequence(op: OnnxOperator) -> Results:
    """A tensor whose first axis is the split one stands for the sequence.

    keepdims counts beside a split of one number, too: so does ONNX Runtime.
    """
    x, axis, split = op.value(), op.attribute("axis", 0), op.optional_array(1, "input split")
    if split is not None and (split.ndim or split != 1):
        raise UnsupportedError("input split: only parts of one element")
    rank = op.builder.type_of(x).rank
    if rank is None or not -rank <= axis < rank:
        raise UnsupportedError(f"attribute axis={axis} of a value of unknown rank")
    axis %= rank
    if axis:
        x = op.transposed(x, axis, *(k for k in range(rank) if k != axis))
    if op.attribute("keepdims", 1):
        x = op.unsqueezed(x, axis + 1)
    op.builder.stacked.add(op.result_name(0))
    return x


def sequence_at(op: OnnxOperator) -> Results:
    return op.emit("Gather", _sequence(op), op.value(1), axis=0)


def sequence_length(op: OnnxOperator) -> Results:
    shape = op.emit("Shape", _sequence(op))
    return op.emit("Gather", shape, 0, axis=0)


def _sequence(op: OnnxOperator) -> str:
    """The tensor that stands for a sequence, its elements along the first axis."""
    value = op.value()
    if op.scope.variable(op.variable(0)) not in op.builder.stacked:
        raise UnsupportedError("a sequence that no loop fills is not supported")
    return value


def concat_from_sequence(op: OnnxOperator) -> Results:
    """Joins what a loop appended along a new axis or one that it has."""
    value, axis = _sequence(op), op.attribute("axis", 0)
    rank = op.builder.type_of(value).rank
    if axis < 0 and rank is None:
        raise UnsupportedError(f"attribute axis={axis} of a sequence of unknown rank")
    if op.attribute("new_axis", 0):
        return _at_axis(op, value, axis if axis >= 0 else axis + (rank or 0))
    axis = axis if axis >= 0 else axis + (rank or 1) - 1
    sizes = op.emit("Shape", value)
    front = op.emit("Slice", sizes, [1], [1 + axis])
    back = op.emit("Slice", sizes, [2 + axis], [_FAR])
    shape = op.joined(front, [-1], back)
    return op.emit("Reshape", _at_axis(op, value, axis), shape)


def _at_axis(op: OnnxOperator, value: str, axis: int) -> str:
    """Moves the first axis to this place."""
    letters = "abcdefghijklmnop"[: axis + 1]
    equation = f"{letters}...->{letters[1:]}{letters[0]}..."
    return op.emit("Einsum", value, equation=equation) if axis else value


def scan(op: OnnxOperator) -> Results:
    if op.opset < 9:
        raise UnsupportedError("Scan of opset 8, which has a batch axis, is not supported")
    body, outer = op.body("body")
    values = [op.value(at) for at in range(len(op.inputs))]
    scanned = op.attribute("num_scan_inputs", 0)
    states = len(values) - scanned
    if scanned < 1 or states < 0:
        raise UnsupportedError(f"attribute num_scan_inputs={scanned} of {len(values)} inputs")
    _check_body(body, outer, len(values), states)
    collected = len(body.outputs) - states
    return op.emit_many(
        "Scan",
        len(body.outputs),
        *values,
        *outer,
        body=body,
        states=states,
        scanned=scanned,
        input_axes=op.attribute("scan_input_axes", (0,) * scanned),
        input_directions=op.attribute("scan_input_directions", (0,) * scanned),
        output_axes=op.attribute("scan_output_axes", (0,) * collected),
        output_directions=op.attribute("scan_output_directions", (0,) * collected),
    )


def _check_body(body: Graph, outer: list[str], inputs: int, outputs: int) -> None:
    if len(body.inputs) != inputs + len(outer) or len(body.outputs) < outputs:
        raise UnsupportedError(
            f"its body has {len(body.inputs) - len(outer)} inputs and {len(body.outputs)} outputs"
        )


# The rules of RNN, GRU and LSTM.
#
# Formulas, defaults and layouts: ONNX operator specification. Where implementations differ these
# are ONNX Runtime's meanings: see design/0008.

_DIRECTIONS: dict[str, Direction] = {
    "forward": "left2right",
    "reverse": "right2left",
    "bidirectional": "bidirectional_concat",
}
_AXES = {0: ("X", 3), 4: ("sequence_lens", 1), 5: ("initial_h", 3), 6: ("initial_c", 3)}
_PLAIN_RNN = {"tanh": Cell.RNN_TANH, "relu": Cell.RNN_RELU, "sigmoid": Cell.RNN_SIGMOID}


def rnn(op: OnnxOperator) -> Results:
    return _lower(op, ("tanh",), lambda names: _PLAIN_RNN.get(names[0].name, Cell.RNN_TANH))


def gru(op: OnnxOperator) -> Results:
    cell = (Cell.GRU, Cell.LBR_GRU)[op.one_of("linear_before_reset", 0, (0, 1))]
    return _lower(op, ("sigmoid", "tanh"), lambda _: cell)


def lstm(op: OnnxOperator) -> Results:
    return _lower(op, ("sigmoid", "tanh", "tanh"), lambda _: Cell.LSTM)


class _Arrays(NamedTuple):
    """The parameters in ONNX's own layout."""

    w: Array
    r: Array
    b: Array | None
    p: Array | None

    def of_direction(self, d: int) -> _Arrays:
        return _Arrays(*(None if a is None else a[d : d + 1] for a in self))  # type: ignore[arg-type]


def _lower(
    op: OnnxOperator,
    default: tuple[str, ...],
    cell_of: Callable[[tuple[Activation, ...]], Cell],
) -> Results:
    direction = _DIRECTIONS[op.one_of("direction", "forward", _DIRECTIONS)]
    batch_major = bool(op.one_of("layout", 0, (0, 1)))
    is_lstm = op.at.type == "LSTM"
    forgets = is_lstm and bool(op.one_of("input_forget", 0, (0, 1)))
    arrays, half = _arrays(op, 2 if direction == "bidirectional_concat" else 1, is_lstm)
    functions = _activations(op, default, len(arrays.w))
    cell = cell_of(functions[0])
    _, rows, width = arrays.w.shape
    spec = RnnSpec(
        cell,
        width,
        rows // len(cell.gates),
        direction=direction,
        activations=functions[0],
        gate_clip=_clip(op),
        peephole=arrays.p is not None,
        input_forget=forgets,
    )
    _check(op, arrays, spec)

    def wide(value: str) -> str:
        return op.cast(value, "float32") if half else value

    def turned(state: str) -> str:
        """(D, N, O) from (N, D, O) where batch_major, and back."""
        return op.transposed(state, 1, 0, 2) if batch_major else state

    x, lengths, initial = op.value(0), op.optional(4), [op.optional(5)]
    initial += [op.optional(6)] if is_lstm else []
    states = [state and turned(wide(state)) for state in initial]
    stack = partial(recurrent_stack, op, lengths=lengths, batch_major=batch_major)
    if len(set(functions)) == 1:
        spec, weights = _folded(spec, arrays)
        precisions, name = op.builder.precisions, op.outputs.get(0, ("",))[0]
        x, precision = precisions.take(op.builder, name, x, spec, weights)
        x = wide(x)
        y, *ends = stack(x, states, spec, [weights], precision=precision)
    else:  # our nodes have the same functions in both directions
        both: tuple[Direction, ...] = ("left2right", "right2left")
        x, sides = wide(x), []
        for d, (side, chosen) in enumerate(zip(both, functions, strict=True)):
            side_spec = replace(spec, cell=cell_of(chosen), direction=side, activations=chosen)
            side_states = [state and op.sliced(state, [d], [d + 1], [0]) for state in states]
            side_spec, weights = _folded(side_spec, arrays.of_direction(d))
            sides.append(stack(x, side_states, side_spec, [weights]))
        y, *ends = (
            op.emit("Concat", *pair, axis=axis)
            for pair, axis in zip(zip(*sides, strict=True), (-1, 0, 0), strict=False)
        )
    if lengths:  # a sentence of length zero ends with zeros, whatever its state was
        some = op.unsqueezed(op.cast(lengths, "bool"), 1)
        zero = op.emit("CastLike", [0], x)
        ends = [
            op.emit("Where", some, end, zero) if state else end
            for end, state in zip(ends, initial, strict=True)
        ]
    if spec.directions == 1:
        y = op.unsqueezed(y, 2 if batch_major else 1)
    else:  # (T, N, D*O) -> (T, D, N, O)
        y = op.reshaped(y, 0, 0, spec.directions, -1)
        y = y if batch_major else op.transposed(y, 0, 2, 1, 3)
    results = (y, *map(turned, ends))
    return tuple(op.cast(value, "float16") for value in results) if half else results


def _clip(op: OnnxOperator) -> float | None:
    clip = op.attribute("clip", None)
    if clip == 0:
        op.builder.notes["clip=0 means no clipping, as it did to those who wrote it"] = None
        return None
    return clip


def _arrays(op: OnnxOperator, directions: int, is_lstm: bool) -> tuple[_Arrays, bool]:
    """The constant parameters, and whether they are halves, which are widened."""
    named = {name: op.optional_array(at, name) for at, name in ((1, "W"), (2, "R"), (3, "B"))}
    named["P"] = op.optional_array(7, "P") if is_lstm else None
    dtypes = {str(a.dtype) for a in named.values() if a is not None}
    if len(dtypes) != 1 or not dtypes <= {"float16", "float32", "float64"}:
        raise UnsupportedError(f"W, R, B and P: expected floats of one type, got {sorted(dtypes)}")
    half = dtypes == {"float16"}
    wide = {
        name: a.astype(np.float32) if half and a is not None else a for name, a in named.items()
    }
    w, r = wide["W"], wide["R"]
    if w is None or r is None:
        raise UnsupportedError("inputs W and R are required")
    if w.ndim != 3 or r.ndim != 3 or len(w) != directions:
        raise ShapeError(f"W and R: expected ({directions}, G*O, I or O), got {w.shape}, {r.shape}")
    return _Arrays(w, r, wide["B"], wide["P"]), half


def _check(op: OnnxOperator, arrays: _Arrays, spec: RnnSpec) -> None:
    d, units, rows = spec.directions, spec.hidden_size, spec.gates * spec.hidden_size
    if op.attribute("hidden_size", units) != units:
        raise ShapeError(f"hidden_size={op.attribute('hidden_size', 0)}: W {arrays.w.shape}")
    expected = {"w": (d, rows, spec.input_size), "r": (d, rows, units), "b": (d, 2 * rows)}
    expected["p"] = (d, 3 * units)
    for name, array in arrays._asdict().items():
        if array is not None and array.shape != expected[name]:
            raise ShapeError(f"{name.upper()}: expected {expected[name]}, got {array.shape}")
    for index, (name, axes) in _AXES.items():
        value = op.optional(index)
        shape = op.builder.type_of(value).shape if value else None
        if shape is not None and len(shape) != axes:
            raise ShapeError(f"{name} {value!r}: expected {axes} axes, got {len(shape)}")


def _activations(
    op: OnnxOperator, default: tuple[str, ...], directions: int
) -> list[tuple[Activation, ...]]:
    """For each direction; alpha and beta go, in order, to those functions that have them."""
    names = [name.lower() for name in op.attribute("activations", default * directions)]
    count = len(default)
    if len(names) != count * directions:
        raise UnsupportedError(
            f"attribute activations: expected {count * directions} names, got {len(names)}"
        )
    numbers = [list(op.attribute(f"activation_{k}", ())) for k in ("alpha", "beta")]
    result = []
    for name in names:
        takes = len(DEFAULTS.get(name, ()))
        chosen = Activation(name, *(n.pop(0) if n else None for n in numbers[:takes]))
        result.append(completed(chosen))
    if any(numbers):
        raise UnsupportedError("attributes activation_alpha and activation_beta: too many numbers")
    return [tuple(result[at : at + count]) for at in range(0, len(result), count)]


def _folded(spec: RnnSpec, arrays: _Arrays) -> tuple[RnnSpec, RnnWeights]:
    """The pivot's form. Under a sigmoid f = 1 - i is a gate of its own."""
    weights = onnx.weights(*arrays, spec.cell)
    if spec.input_forget and spec.functions[0].name == "sigmoid":
        spec, weights = replace(spec, input_forget=False), onnx.coupled(weights)
    weights.check(spec)
    return spec, weights


# The table: ONNX's operators -> canonical ones, which are ONNX's newest.
#
# What differs between opsets: ONNX's operator changelog.

Rule = Callable[[OnnxOperator], Results]
rule = RULES = Rules[Rule](
    {
        "RNN": rnn,
        "GRU": gru,
        "LSTM": lstm,
        "If": conditional,
        "Loop": loop,
        "Scan": scan,
        "SequenceEmpty": sequence_empty,
        "SplitToSequence": split_to_sequence,
        "SequenceAt": sequence_at,
        "SequenceLength": sequence_length,
        "ConcatFromSequence": concat_from_sequence,
    }
)


def rule_for(domain: str, op_type: str) -> Rule:
    """The rule of an operator. Raises `UnsupportedError` where there is none."""
    if domain == f"{microsoft.DOMAIN}.nchwc":
        raise UnsupportedError(
            "ONNX Runtime wrote it for one CPU's layout; save the model at ORT_ENABLE_EXTENDED"
        )
    record, own = OPERATORS.get(op_type), microsoft.RULES if domain == microsoft.DOMAIN else RULES
    plain = record is not None and record.since and record.domain == domain
    if domain not in ("", microsoft.DOMAIN) or not (op_type in own or plain):
        raise UnsupportedError("this operator is not known")
    return own.get(op_type, _plain)


_BECAME_INPUTS = {
    "Slice": (10, ("starts", "ends", "axes")),
    "TopK": (10, ("k",)),
    "Clip": (11, ("min", "max")),
    "Pad": (11, ("pads", "value")),
    "Split": (13, ("split",)),
    "Squeeze": (13, ("axes",)),
    "Unsqueeze": (13, ("axes",)),
    "ReduceSum": (13, ("axes",)),
}
"""Attributes that are inputs from an opset on, in the order of the inputs."""


def became_inputs(op_type: str) -> tuple[int, tuple[str, ...]]:
    """The first opset in which attributes are inputs, and which; (0, ()) for most operators."""
    reduces = (18, ("axes",)) if op_type.startswith("Reduce") else (0, ())
    return _BECAME_INPUTS.get(op_type, reduces)


def _plain(op: OnnxOperator) -> Results:
    """An operator that means the same in every opset, but for attributes that became inputs.

    Attributes travel along where they are given; the operator's record knows the defaults.
    """
    operator = OPERATORS[op.at.type]
    values = _values(op, operator)
    count = min(len(op.outputs), operator.outputs[1])
    return op.emit_many(op.at.type, count, *values, **op.given(operator))


def _values(op: OnnxOperator, operator: CanonicalOperator) -> list[str]:
    """The inputs, with constants for attributes of older opsets."""
    since, names = became_inputs(op.at.type)
    if op.opset < since:
        x = op.value()
        return [x, *(_constant_input(op, name, at, x) for at, name in enumerate(names, 1))]
    most = len(op.inputs) if operator.most is None else operator.most
    slots = map(operator.slot, range(max(operator.least, min(most, len(op.inputs)))))
    return [
        op.optional(at) if slot.optional or slot.variadic else op.value(at)
        for at, slot in enumerate(slots)
    ]


def _constant_input(op: OnnxOperator, name: str, at: int, x: str) -> str:
    """An input that older opsets have as an attribute; numbers get the dtype of x."""
    result = op.attribute(name, None)
    if result is None and not OPERATORS[op.at.type].slot(at).optional:
        raise UnsupportedError(f"attribute {name} is missing")
    if result is not None and name in ("min", "max", "value"):
        wide = op.constant(np.asarray(result, np.float64), "number")
        return op.emit("CastLike", wide, x)
    return "" if result is None else op.ints(*np.atleast_1d(result))


@rule("Sigmoid Tanh")
def _squashed(op: OnnxOperator) -> Results:
    return op.function(op.at.type, op.value())


@rule("Identity")
def _identity(op: OnnxOperator) -> Results:
    """A node outside of bodies, so that comparisons of models can name it."""
    return op.value() if op.scope.body else op.emit("Identity", op.value())


@rule("Constant")
def _constant(op: OnnxOperator) -> Results:
    numbers = {"value_float": "float32", "value_floats": "float32"}
    numbers |= {"value_int": "int64", "value_ints": "int64"}
    values = [(k, op.attribute(k, None)) for k in ("value", *numbers) if k in op.attributes]
    if len(values) != 1:
        raise UnsupportedError("expected one attribute of numbers")
    ((kind, value),) = values
    array = np.asarray(value, numbers.get(kind))
    if array.dtype.kind not in "biuf":
        raise UnsupportedError(f"attribute {kind}: expected numbers, got {array.dtype}")
    return op.builder.constant(array, op.scope.variable(op.outputs[0][0]))


@rule("Range")
def _range(op: OnnxOperator) -> Results:
    """Halves are counted in float32."""
    op.only(stash_type=1)
    inputs = [op.value(index) for index in range(3)]
    if op.dtype_of(inputs[0]) != "float16":
        return op.emit("Range", *inputs)
    return op.cast(op.emit("Range", *(op.cast(each, "float32") for each in inputs)), "float16")


@rule("CausalConvWithState")
def _causal_convolution(op: OnnxOperator) -> Results:
    """Convolves each channel, preceded by past steps or zeros; the last steps are the next past."""
    x, w, past = op.value(0), op.value(1), op.optional(3)
    channels, _, kernel = (*op.builder.type_of(w).counts, None, None, None)[:3]
    name = op.attribute("activation", "none").lower()
    if channels is None or kernel is None or name not in ("none", "silu", "swish"):
        raise UnsupportedError(f"activation={name!r}, weights {op.builder.type_of(w)}")
    before = [0, 0, kernel - 1, 0, 0, 0]
    joined = op.emit("Concat", past, x, axis=2) if past else op.emit("Pad", x, before)
    y = op.emit("Conv", joined, w, op.optional(2), group=channels)
    y = y if name == "none" else op.emit("Mul", y, op.function("Sigmoid", y))
    start = 1 - kernel or _FAR
    return {"0": y, "1": op.emit("Slice", joined, [start], [_FAR], [2])}


@rule("Cast")
def _cast(op: OnnxOperator) -> Results:
    number = op.attribute("to", 0)
    if number == BFLOAT16:
        op.builder.notes["bfloat16 values are float32 ones, rounded where the model casts"] = None
    return op.emit("Cast", op.value(), to=dtype_of(number))


@rule("Scatter")
def _scatter(op: OnnxOperator) -> Results:
    """What opset 11 calls ScatterElements."""
    values = [op.value(at) for at in range(3)]
    return op.emit("ScatterElements", *values, axis=op.attribute("axis", 0))


@rule("Softmax LogSoftmax")
def _softmax(op: OnnxOperator) -> Results:
    if op.opset >= 13:
        return _plain(op)
    # Up to opset 12, the axis and all behind it count as one.
    x = op.value()
    rows = op.emit(op.at.type, op.emit("Flatten", x, axis=op.attribute("axis", 1)), axis=-1)
    return op.emit("Reshape", rows, op.emit("Shape", x), allowzero=1)


@rule("Slice")
def _slice(op: OnnxOperator) -> Results:
    x, *places = _values(op, OPERATORS["Slice"])
    return op.emit("Slice", x, *_cutting(op, *places))


def _cutting(
    op: OnnxOperator, starts: str, ends: str, axes: str = "", steps: str = ""
) -> list[str]:
    """Where a Slice cuts, without the axes of which it takes all: TensorFlow writes them."""
    arrays = [op.builder.constants.get(name) for name in (starts, ends, axes, steps)]
    inputs = [starts, ends, axes, *([steps] if steps else [])]
    if any(a is None for a, name in zip(arrays, (starts, ends, axes, steps), strict=True) if name):
        return inputs
    first, last, along, by = (None if a is None else a.reshape(-1).tolist() for a in arrays)
    count = len(first or ())
    rows = list(zip(first or (), last or (), along or range(count), by or [1] * count, strict=True))
    cuts = [row for row in rows if not (row[0] == 0 and row[1] >= _FAR and row[3] == 1)]
    if not cuts or len(cuts) == count:
        return inputs
    return [op.ints(*each) for each in zip(*cuts, strict=True)]


@rule("QuantizeLinear")
def _quantize(op: OnnxOperator) -> Results:
    """The dtype of the result is the zero point's, or output_dtype where there is none."""
    number = op.attribute("output_dtype", 0)
    if not number or op.optional(2):
        return _plain(op)
    scale = op.value(1)
    shape = op.builder.type_of(scale).counts
    if None in shape:
        raise UnsupportedError("attribute output_dtype with a scale of unknown shape")
    zero = op.constant(np.zeros(shape, dtype_of(number)), "zero")
    axis = op.attribute("axis", 1)
    op.only(block_size=0, precision=0)
    return op.emit("QuantizeLinear", op.value(), scale, zero, axis=axis)


@rule("DequantizeLinear")
def _dequantize(op: OnnxOperator) -> Results:
    """In the dtype of its scale."""
    op.only(output_dtype=0)
    return _plain(op)


@rule("Split")
def _split(op: OnnxOperator) -> Results:
    op.only(num_outputs=len(op.outputs))
    return _plain(op)


@rule("Dropout")
def _dropout(op: OnnxOperator) -> Results:
    op.attribute("ratio", 0.5)  # in inference nothing is dropped
    op.optional(1)
    training = op.optional_array(2, "input training_mode")
    if training is not None and training.any():
        raise UnsupportedError("input training_mode is true: only inference is run")
    if not op.wants(1):
        return op.value()
    if op.opset < 12:
        raise UnsupportedError("output 1: before opset 12 it was not said what it is")
    return op.value(), op.emit_many("Dropout", 2, op.value())[1]


@rule("GroupNormalization")
def _group_normalization(op: OnnxOperator) -> Results:
    if op.opset < 21:
        raise UnsupportedError("before opset 21 its scale and bias are those of groups")
    return _plain(op)


@rule("STFT")
def _stft(op: OnnxOperator) -> Results:
    """ONNX Runtime takes a real signal without its last axis, too."""
    x, *others = _values(op, OPERATORS["STFT"])
    if op.builder.type_of(x).rank == 2:
        x = op.emit("Unsqueeze", x, op.ints(-1))
    return op.emit("STFT", x, *others, **op.given(OPERATORS["STFT"]))


@rule("DFT")
def _dft(op: OnnxOperator) -> Results:
    """The axis is an attribute before opset 20."""
    if op.opset >= 20:
        return _plain(op)
    x, length, axis = op.value(), op.optional(1), [op.attribute("axis", 1)]
    return op.emit("DFT", x, length, axis, **op.given(OPERATORS["DFT"]))


@rule("Resize Upsample")
def _resize(op: OnnxOperator) -> Results:
    """Constant scales become an attribute of our own: types follow from it."""
    record = OPERATORS["Resize"]
    if op.opset > 10:
        if op.at.type == "Upsample":
            raise UnsupportedError("Upsample is of opsets up to 9")
        x, roi, scales, sizes = op.value(), *(op.optional(at) for at in (1, 2, 3))
        attributes = op.given(record)
    else:
        x, roi, sizes = op.value(), "", ""
        # The scales of an Upsample are at least 1.
        attributes = {**NEAREST, "mode": op.attribute("mode", "nearest")}
        factors = op.attribute("scales", None) if op.opset < 9 else None
        scales = op.value(1) if factors is None else op.constant(np.float32(factors), "scales")
    array = op.builder.constants.get(scales)
    if array is not None:
        scales = ""
        if array.size:
            attributes["scales"] = tuple(array.reshape(-1).tolist())
    if op.opset == 10 and attributes["mode"] == "nearest":
        factors = attributes.get("scales", (0,))
        if not all(scale >= 1 or math.frexp(scale)[0] == 0.5 for scale in factors):
            raise UnsupportedError("before opset 11 the nearest element is not defined")
    return op.emit("Resize", x, roi, scales, sizes, **attributes)
