"""Rules for ONNX's operators: loops, recurrent layers and all others.

A rule turns one operator into onernn's canonical operators.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

import onernn.adapters.onnx.quantized  # noqa: F401  # its rules fill the table
from onernn.adapters.common.bodies import NEAREST, recurrent_stack
from onernn.adapters.common.lowering import PASS_RULE, Results, by_slot
from onernn.adapters.common.signatures import OneOf, refuse
from onernn.adapters.onnx.microsoft import CLIP_OF_ZERO, DOMAIN
from onernn.adapters.onnx.read import (
    BFLOAT16,
    BFLOAT16_NOTE,
    CLASH,
    Operator,
    Subgraph,
    Variable,
    clashes,
    dtype_of,
)
from onernn.adapters.onnx.table import NO_SEQUENCE, RULES, OnnxOperator, Rule, onnx
from onernn.ir.activations import DEFAULTS, complete
from onernn.ir.errors import ShapeError, UnsupportedError
from onernn.ir.graph import UNSUPPORTED, Graph
from onernn.ir.spec import Activation, Direction, RnnSpec
from onernn.ir.weights import RnnWeights
from onernn.ops import OPERATORS
from onernn.ops import Operator as CanonicalOperator
from onernn.reorders import onnx as layout

# Rules for If, Loop and Scan, whose bodies become graphs of canonical operators.

_FAR = 2**31 - 1
"""The end of a Slice that takes all remaining elements."""


@onnx("If")
def conditional(condition, *, op):
    branches = [op.subgraph(name) for name in ("then_branch", "else_branch")]
    if twice := clashes([branch.native for branch in branches]):
        refuse(f"its branches: {twice} are {CLASH}")
    bodies = [op.body_of(branch) for branch in branches]
    counts = [len(graph.outputs) for graph, _ in bodies]
    if any(count != len(op.outputs) for count in counts):
        refuse(f"its branches: expected {len(op.outputs)} outputs each, got {counts}")
    return op.builder.branches(condition.name, *bodies)


@onnx("Loop")
def loop(M=None, cond=None, *initial, op):
    """Lowers a Loop. If the loop carries a sequence that starts empty, and each iteration appends
    one tensor to it, these tensors become a scan output.
    """
    graph, appended = _without_sequences(op)
    slots = [at for at in range(len(initial)) if at not in appended]
    graph, unchanged = _read_unchanged_outside(op, graph, slots)
    slots = [at for at in slots if at not in unchanged]
    body, outer = op.body_of(graph)
    carried = [initial[at].name for at in slots]
    _check_body(body, outer, 2 + len(carried), 1 + len(carried))
    count = len(body.outputs) - 1
    bounds = [each.name if each else "" for each in (M, cond)]
    inputs, more = (*bounds, *carried, *outer), {"body": body, "carried": len(carried)}
    results = op.emit_many("Loop", count, *inputs, **more) if count else ()
    for at in appended:
        op.builder.stacked.add(op.result_name(at))
    # The body's outputs in order: carried values, collected values, values appended to sequences.
    collected = range(len(initial), len(initial) + count - len(slots) - len(appended))
    values = dict(zip([*slots, *collected, *appended], map(op.tensor, results), strict=True))
    values |= {at: initial[at] for at in unchanged}
    return {str(at): value for at, value in values.items()}


def _read_unchanged_outside(
    op: OnnxOperator, graph: Subgraph, slots: list[int]
) -> tuple[Subgraph, list[int]]:
    """Returns the body without the carried values that never change, and the slots of these values.

    The body reads these values from the outer graph instead. TensorFlow writes weights as such
    carried values, and rules need weights that are constants. ``slots``: the position, among the
    loop's carried values, of each value that the body carries.
    """
    fixed, identities = [], []
    for slot, inside, result in zip(slots, graph.inputs[2:], graph.outputs[1:], strict=False):
        name, outside = result.name, op.inputs[2 + slot][0]
        for _ in graph.makers:  # the bound ends the search in a cycle
            if name not in graph.makers or graph.makers[name].type != "Identity":
                break
            name = graph.makers[name].inputs[0]
        if name == inside.name and outside and outside not in graph.native.local:
            fixed.append(slot)
            identities.append(Operator(op.at.position, "", "Identity", (outside,), (name,), {}))
    body = _without(graph, {slots.index(slot) for slot in fixed})
    return replace(body, operators=(*identities, *graph.operators)), fixed


def _without(graph: Subgraph, carried: Collection[int]) -> Subgraph:
    inputs = tuple(v for at, v in enumerate(graph.inputs) if at - 2 not in carried)
    outputs = tuple(v for at, v in enumerate(graph.outputs) if at - 1 not in carried)
    return replace(graph, inputs=inputs, outputs=outputs)


def _without_sequences(op: OnnxOperator) -> tuple[Subgraph, list[int]]:
    """Returns the body, and the positions of the sequences to which it appends tensors. In the
    returned body, these tensors are outputs in place of the sequences.

    The sequences must start empty, and the body may only append to them.
    """
    graph = op.subgraph("body")
    inserts: dict[int, Operator] = {}
    for slot, (variable, result) in enumerate(
        zip(graph.inputs[2:], graph.outputs[1:], strict=False)
    ):
        insert, (name, *_) = graph.makers.get(result.name), op.inputs.get(2 + slot, ("",))
        is_empty = variable.refusal and op.scope.variable(name) in op.builder.empty
        users = [each for each in graph.operators if variable.name in each.inputs]
        if is_empty and insert and users == [insert] and insert.type == "SequenceInsert":
            if insert.inputs[:1] == (variable.name,) and len(insert.inputs) == 2:
                inserts[slot] = insert
    operators = tuple(each for each in graph.operators if each not in inserts.values())
    body = _without(graph, inserts)
    outputs = (*body.outputs, *(Variable(insert.inputs[1]) for insert in inserts.values()))
    return replace(body, operators=operators, outputs=outputs), [*inserts]


@onnx("SequenceEmpty")
def sequence_empty(*, op, dtype=1):
    """Marks the sequence as empty: a Loop may append to it, and any other operator that reads it is
    refused.
    """
    op.builder.empty.add(op.result_name(0))
    return op.emit(UNSUPPORTED, reason=NO_SEQUENCE)


@onnx("SplitToSequence")
def split_to_sequence(x, split=None, *, op, axis=0, keepdims=1):
    """Returns a tensor that represents the sequence; its first axis is the split axis.

    ONNX ignores keepdims if split is given. This rule does not, and neither does ONNX Runtime.
    """
    if split and (split.array.ndim or split.array != 1):
        refuse(f"input split={split.array.tolist()!s:.60}: expected 1, parts of one element")
    rank = x.type.rank
    if rank is None or not -rank <= axis < rank:
        refuse(f"attribute axis={axis}: expected an axis of x, got {x.type}")
    axis %= rank
    if axis:
        x = x.transpose(axis, *(k for k in range(rank) if k != axis))
    op.builder.stacked.add(op.result_name(0))
    return x.unsqueeze(axis + 1) if keepdims else x


@onnx("SequenceAt")
def sequence_at(sequence, position):
    return sequence.sequence.Gather(position, axis=0)


@onnx("SequenceLength")
def sequence_length(sequence):
    return sequence.sequence.sizes.Gather(0, axis=0)


@onnx("ConcatFromSequence")
def concat_from_sequence(sequence, *, axis=0, new_axis=0):
    """Joins the tensors of a sequence, along a new axis if new_axis is 1."""
    rank = sequence.sequence.type.rank
    if axis < 0:
        if rank is None:
            refuse(f"attribute axis={axis}: expected 0 or more if the sequence's rank is not known")
        axis += rank - (not new_axis)
    letters = "abcdefghijklmnop"[: axis + 1]
    equation = f"{letters}...->{letters[1:]}{letters[0]}..."
    moved = sequence.Einsum(equation=equation) if axis else sequence
    if new_axis:
        return moved
    sizes = sequence.Shape()
    shape = sizes.Slice([1], [1 + axis]).join([-1], sizes.Slice([2 + axis], [_FAR]))
    return moved.Reshape(shape)


@onnx("Scan")
def scan(
    *values,
    op,
    num_scan_inputs=0,
    scan_input_axes=(),
    scan_input_directions=(),
    scan_output_axes=(),
    scan_output_directions=(),
):
    if op.opset < 9:
        refuse(
            "Scan of opset 8 has a batch axis, which is not supported; convert the model to opset 9"
            " or newer with onnx.version_converter"
        )
    body, outer = op.body("body")
    states = len(values) - num_scan_inputs
    if num_scan_inputs < 1 or states < 0:
        refuse(f"attribute num_scan_inputs={num_scan_inputs}: expected 1 to {len(values)}")
    _check_body(body, outer, len(values), states)
    collected = len(body.outputs) - states
    return op.emit_many(
        "Scan",
        len(body.outputs),
        *(value.name for value in values),
        *outer,
        body=body,
        states=states,
        scanned=num_scan_inputs,
        input_axes=scan_input_axes or (0,) * num_scan_inputs,
        input_directions=scan_input_directions or (0,) * num_scan_inputs,
        output_axes=scan_output_axes or (0,) * collected,
        output_directions=scan_output_directions or (0,) * collected,
    )


def _check_body(body: Graph, outer: list[str], inputs: int, outputs: int) -> None:
    if len(body.inputs) != inputs + len(outer) or len(body.outputs) < outputs:
        refuse(
            f"its body: expected {inputs} inputs and at least {outputs} outputs, got"
            f" {len(body.inputs) - len(outer)} and {len(body.outputs)}"
        )


# Rules for RNN, GRU and LSTM.
#
# Formulas, defaults and layouts: ONNX operator specification. If implementations differ, the rules
# compute what ONNX Runtime computes: see design/0008.

_DIRECTIONS: dict[str, Direction] = {
    "forward": "left2right",
    "reverse": "right2left",
    "bidirectional": "bidirectional_concat",
}
_AXES = {"X": 3, "sequence_lens": 1, "initial_h": 3, "initial_c": 3}
_FLAG = OneOf(0, {0: False, 1: True})


@onnx("RNN")
def rnn(X, W, R, B=None, sequence_lens=None, initial_h=None, *, op):
    return _layer(op, ("tanh",), X, (W, R, B), sequence_lens, [initial_h])


@onnx("GRU")
def gru(X, W, R, B=None, sequence_lens=None, initial_h=None, *, op, linear_before_reset=_FLAG):
    functions = ("sigmoid", "tanh")
    more = {"linear_before_reset": linear_before_reset}
    return _layer(op, functions, X, (W, R, B), sequence_lens, [initial_h], **more)


@onnx("LSTM")
def lstm(
    X,
    W,
    R,
    B=None,
    sequence_lens=None,
    initial_h=None,
    initial_c=None,
    P=None,
    *,
    op,
    input_forget=_FLAG,
):
    functions, states = ("sigmoid", "tanh", "tanh"), [initial_h, initial_c]
    return _layer(op, functions, X, (W, R, B, P), sequence_lens, states, forgets=input_forget)


def _layer(op, default, x, parameters, lengths, initial, *, forgets=False, **more):
    direction = _DIRECTIONS[op.one_of("direction", "forward", _DIRECTIONS)]
    batch_major = bool(op.one_of("layout", 0, (0, 1)))
    clip = op.attribute("clip", None)
    if clip == 0:
        op.builder.notes[CLIP_OF_ZERO] = None
    arrays = {each.slot: each.array for each in parameters if each}
    kinds = {str(array.dtype) for array in arrays.values()}
    if len(kinds) != 1 or not kinds <= {"float16", "float32", "float64"}:
        refuse(f"W, R, B and P: expected floats of one type, got {sorted(kinds)}")
    half = kinds == {"float16"}
    for value in (x, lengths, *initial):
        if value and value.type.rank not in (None, _AXES[value.slot]):
            axes = f"expected {_AXES[value.slot]} axes, got {value.rank}"
            raise ShapeError(f"{value.slot} {value.name!r}: {axes}")
    functions = _activations(op, default, 2 if direction == "bidirectional_concat" else 1)

    def read(
        side: Direction, chosen: tuple[Activation, ...], d: slice
    ) -> tuple[RnnSpec, RnnWeights]:
        wide = {name: a[d].astype(np.float32) if half else a[d] for name, a in arrays.items()}
        plain = chosen[0].name if chosen[0].name in ("relu", "sigmoid") else "tanh"
        layer = layout.read(wide, direction=side, function=plain, activations=chosen, **more)
        spec, (weights,) = replace(layer.spec, gate_clip=clip or None), layer.weights
        units = op.attribute("hidden_size", spec.hidden_size)
        if units != spec.hidden_size or spec.gates != {1: 1, 2: 3, 3: 4}[len(default)]:
            raise ShapeError(
                f"W {wide['W'].shape}, R {wide['R'].shape}: expected shapes for hidden_size={units}"
            )
        if not forgets:
            return spec, weights
        if chosen[0].name == "sigmoid":  # f = 1 - i becomes a gate with its own weights
            return spec, layout.couple(weights)
        return replace(spec, input_forget=True), weights

    def widen(value):
        return value.cast("float32") if half else value

    def turn(state):
        """Returns a state with the axes N and D exchanged if ``batch_major``, else unchanged."""
        return state.transpose(1, 0, 2) if batch_major else state

    states = [state and turn(widen(state)) for state in initial]

    def stack(x, states, spec, weights, **precision):
        return recurrent_stack(x, states, spec, [weights], lengths, batch_major, **precision)

    if len(set(functions)) == 1:
        spec, weights = read(direction, functions[0], slice(None))
        precisions, name = op.builder.precisions, op.outputs.get(0, ("",))[0]
        source, precision = precisions.take(op.builder, name, x.name, spec, weights)
        x = widen(x.new(source))
        y, *ends = stack(x, states, spec, weights, precision=precision)
    else:  # an Rnn has one set of functions: make two nodes
        both: tuple[Direction, ...] = ("left2right", "right2left")
        x, sides = widen(x), []
        for d, (side, chosen) in enumerate(zip(both, functions, strict=True)):
            own = [state and state.Slice([d], [d + 1], [0]) for state in states]
            sides.append(stack(x, own, *read(side, chosen, slice(d, d + 1))))
        pairs = zip(zip(*sides, strict=True), (-1, 0, 0), strict=False)
        y, *ends = (first.Concat(other, axis=axis) for (first, other), axis in pairs)
    if lengths:  # an empty sequence has final states of zero
        some, zero = lengths.cast("bool").unsqueeze(1), x.new(op.ints(0)).CastLike(x)
        pairs = zip(ends, initial, strict=True)
        ends = [some.Where(end, zero) if state else end for end, state in pairs]
    if direction != "bidirectional_concat":
        y = y.unsqueeze(2 if batch_major else 1)
    else:  # (T, N, D*O) -> (T, D, N, O)
        y = y.reshape(0, 0, 2, arrays["R"].shape[-1])
        y = y if batch_major else y.transpose(0, 2, 1, 3)
    results = (y, *map(turn, ends))
    return tuple(value.cast("float16") for value in results) if half else results


def _activations(
    op: OnnxOperator, default: tuple[str, ...], directions: int
) -> list[tuple[Activation, ...]]:
    """Returns the activation functions of each direction.

    The numbers in activation_alpha and activation_beta go, in order, to the functions that take
    them.
    """
    names = [name.lower() for name in op.attribute("activations", default * directions)]
    count = len(default)
    if len(names) != count * directions:
        refuse(f"attribute activations: expected {count * directions} names, got {len(names)}")
    numbers = [list(op.attribute(f"activation_{k}", ())) for k in ("alpha", "beta")]
    result = []
    for name in names:
        takes = numbers[: len(DEFAULTS.get(name, ()))]
        result.append(complete(Activation(name, *(n.pop(0) if n else None for n in takes))))
    if any(numbers):
        refuse(
            "attributes activation_alpha and activation_beta: expected at most one value per"
            " activation that takes it"
        )
    return [tuple(result[at : at + count]) for at in range(0, len(result), count)]


# Rules for all other operators. A canonical operator equals the newest version of ONNX's operator.
#
# Source of the differences between opsets: ONNX's operator changelog.


def rule_for(domain: str, op_type: str) -> Rule | None:
    """Returns the rule of an operator, None if there is none."""
    record, own = OPERATORS.get(op_type), RULES.get(f"{domain} {op_type}".strip())
    plain = record is not None and record.since and record.domain == domain
    return own or (_plain if plain else None)


def refuse_unknown(domain: str) -> NoReturn:
    """Raises `UnsupportedError` for an operator without a rule."""
    if domain == f"{DOMAIN}.nchwc":
        refuse(
            "ONNX Runtime optimized it for one CPU; save the model with at most ORT_ENABLE_EXTENDED"
        )
    raise UnsupportedError(f"this operator is not known{PASS_RULE}")


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
"""The operators whose attributes became inputs, each with the opset of this change and these
attributes in the order of the inputs.
"""


def became_inputs(op_type: str) -> tuple[int, tuple[str, ...]]:
    """Returns the first opset in which former attributes of an operator are inputs, and their
    names; (0, ()) if there are none.
    """
    reduces = (18, ("axes",)) if op_type.startswith("Reduce") else (0, ())
    return _BECAME_INPUTS.get(op_type, reduces)


def _plain(op: OnnxOperator) -> Results:
    """Adds the canonical operator of the same type, for operators whose opsets differ only in
    attributes that became inputs.

    Attributes that the model does not set get the defaults of the canonical operator.
    """
    operator = OPERATORS[op.at.type]
    values = _values(op, operator)
    count = min(len(op.outputs), operator.outputs[1])
    return op.emit_many(op.at.type, count, *values, **op.attributes_of(operator))


def _values(op: OnnxOperator, operator: CanonicalOperator) -> list[str]:
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
    """Returns an attribute of older opsets as a constant input, "" if it is absent; min, max and
    value get the dtype of x.
    """
    result = op.attribute(name, None)
    if result is None and not OPERATORS[op.at.type].slot(at).optional:
        raise UnsupportedError(f"attribute {name} is missing")
    if result is not None and name in ("min", "max", "value"):
        wide = op.constant(np.asarray(result, np.float64), "number")
        return op.emit("CastLike", wide, x)
    return "" if result is None else op.ints(*np.atleast_1d(result))


@onnx("Sigmoid Tanh")
def squash(x, *, op):
    return getattr(x, op.at.type)()


@onnx("Identity")
def identity(x, *, op):
    """Keeps an Identity as a node, so that comparisons of models can name its output; in bodies it
    is left out.
    """
    return x if op.scope.body else x.Identity()


@RULES("Constant")
def _constant(op: OnnxOperator) -> Results:
    kinds = ("value", "value_float", "value_floats", "value_int", "value_ints")
    values = [(kind, op.attribute(kind, None)) for kind in kinds if kind in op.attributes]
    if len(values) != 1:
        refuse(f"attributes {[*op.attributes]}: expected one of {', '.join(kinds)}")
    ((kind, value),) = values
    dtype = None if kind == "value" else "float32" if "float" in kind else "int64"
    array = np.asarray(value, dtype)
    if array.dtype.kind not in "biuf":
        refuse(f"attribute {kind}: expected numbers, got {array.dtype}")
    return op.builder.constant(array, op.result_name(0))


@onnx("Range", stash_type=1)
def range_(start, limit, delta):
    """Computes a float16 Range in float32."""
    if start.dtype != np.float16:
        return start.Range(limit, delta)
    first, *others = (each.cast("float32") for each in (start, limit, delta))
    return first.Range(*others).cast("float16")


@onnx("CausalConvWithState")
def causal_convolution(x, w, bias=None, past=None, *, activation="none"):
    """Convolves each channel along time; before the first step there are the past steps, or zeros.
    Output 1 contains the last steps, which are the past steps of the next call.
    """
    channels, _, kernel = (*w.type.counts, None, None, None)[:3]
    name = activation.lower()
    if channels is None or kernel is None or name not in ("none", "silu", "swish"):
        refuse(
            f"attribute activation={name!r}, weights {w.type}: expected none, silu or swish, and"
            " known sizes"
        )
    joined = past.Concat(x, axis=2) if past else x.Pad([0, 0, kernel - 1, 0, 0, 0])
    y = joined.Conv(w, bias, group=channels)
    y = y if name == "none" else y * y.Sigmoid()
    return y, joined.Slice([1 - kernel or _FAR], [_FAR], [2])


_RANDOM = "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial Bernoulli"


@RULES(_RANDOM)
def _random(op: OnnxOperator) -> Results:
    """Raises `UnsupportedError`. The message contains a call of the package onnx that turns the
    model's random values into inputs.
    """
    advice, graph = "export the model in inference mode", op.builder.native
    if graph and not op.scope.prefix:
        kinds = _RANDOM.split()
        drawn = [each.outputs[0] for each in graph.operators if each.type in kinds]
        names = [[*(v.name for v in graph.inputs), *drawn], [v.name for v in graph.outputs]]
        call = f"onnx.utils.extract_model({op.builder.name!r}, 'fed.onnx', {names[0]}, {names[1]})"
        advice += f", or make them inputs and feed them: {call}"
    return refuse(f"its values are random, different in each run; {advice}")


@RULES("MaxPool")
def _max_pool(op: OnnxOperator) -> Results:
    """Pools 8-bit integers as float32, which is exact, because the kernels take only floats."""
    dtype = op.builder.type_of(op.value()).dtype
    if dtype not in ("uint8", "int8") or op.wants(1):
        return _plain(op)
    pooled = op.emit(
        "MaxPool",
        op.emit("Cast", op.value(), to="float32"),
        **op.attributes_of(OPERATORS["MaxPool"]),
    )
    zero = op.constant(np.zeros((), dtype))
    return op.emit("QuantizeLinear", pooled, op.constant(np.float32(1)), zero)


@onnx("Cast")
def cast(x, *, op, to=0):
    if to == BFLOAT16:
        op.builder.notes[BFLOAT16_NOTE] = None
    return x.Cast(to=dtype_of(to))


@onnx("Scatter")
def scatter(data, indices, updates, *, axis=0):
    """Adds a ScatterElements, the operator's name from opset 11 on."""
    return data.ScatterElements(indices, updates, axis=axis)


@RULES("Softmax LogSoftmax")
def _softmax(op: OnnxOperator) -> Results:
    if op.opset >= 13:
        return _plain(op)
    # Up to opset 12, the axis and all axes after it count as one axis.
    x = op.value()
    rows = op.emit(op.at.type, op.emit("Flatten", x, axis=op.attribute("axis", 1)), axis=-1)
    return op.emit("Reshape", rows, op.emit("Shape", x), allowzero=1)


@RULES("Slice")
def _slice(op: OnnxOperator) -> Results:
    """Leaves out the axes of which the Slice takes all elements; TensorFlow writes such axes."""
    x, *inputs = _values(op, OPERATORS["Slice"])
    arrays = [op.builder.constants.get(name) for name in inputs]
    if all(array is not None for array, name in zip(arrays, inputs, strict=True) if name):
        lists: list[Any] = [
            array if array is None else array.reshape(-1).tolist() for array in arrays
        ]
        starts, ends, axes, steps = (*lists, None, None)[:4]
        count = len(starts)
        rows = zip(starts, ends, axes or range(count), steps or [1] * count, strict=True)
        cuts = [row for row in rows if row[0] or row[1] < _FAR or row[3] != 1]
        if cuts and len(cuts) < count:
            inputs = [op.ints(*each) for each in zip(*cuts, strict=True)]
    return op.emit("Slice", x, *inputs)


@RULES("Expand Unsqueeze")
def _expand(op: OnnxOperator) -> Results:
    """Takes one size or axis without a list as a list, like ONNX Runtime."""
    x, sizes = _values(op, OPERATORS[op.at.type])
    if op.builder.type_of(sizes).rank == 0:
        sizes = op.emit("Reshape", sizes, [-1])
    return op.emit(op.at.type, x, sizes)


@RULES("Split")
def _split(op: OnnxOperator) -> Results:
    op.only(num_outputs=len(op.outputs))
    return _plain(op)


@onnx("Dropout")
def dropout(x, ratio=None, training_mode=None, *, op):
    op.ignore("ratio")  # in inference nothing is dropped
    if training_mode and training_mode.array.any():
        refuse("input training_mode=True: expected False; export the model in inference mode")
    if not op.wants(1):
        return x
    if op.opset < 12:
        refuse("output 1 is not defined before opset 12; export a newer opset")
    return x, x.Dropout(outputs=2)[1]


@RULES("LayerNormalization")
def _layer_normalization(op: OnnxOperator) -> Results:
    """Returns the statistics of float64 values as float32, which stash_type=1 means."""
    y, *statistics = by_slot(_plain(op)).values()
    if op.builder.type_of(op.value()).dtype == "float64":
        statistics = [op.emit("Cast", each, to="float32") for each in statistics]
    return (y, *statistics)


@RULES("GroupNormalization")
def _group_normalization(op: OnnxOperator) -> Results:
    if op.opset < 21:
        refuse("its scale and bias are per group before opset 21; export opset 21 or newer")
    return _plain(op)


@RULES("STFT")
def _stft(op: OnnxOperator) -> Results:
    """Adds the last axis to a real signal without this axis; ONNX Runtime allows such signals."""
    x, *others = _values(op, OPERATORS["STFT"])
    if op.builder.type_of(x).rank == 2:
        x = op.emit("Unsqueeze", x, [-1])
    return op.emit("STFT", x, *others, **op.attributes_of(OPERATORS["STFT"]))


@RULES("DFT")
def _dft(op: OnnxOperator) -> Results:
    if op.opset >= 20:
        return _plain(op)
    x, length, axis = op.value(), op.optional(1), [op.attribute("axis", 1)]
    return op.emit("DFT", x, length, axis, **op.attributes_of(OPERATORS["DFT"]))


@RULES("Resize Upsample")
def _resize(op: OnnxOperator) -> Results:
    """Passes constant scales as an attribute of onernn's Resize, so that types can be inferred."""
    record = OPERATORS["Resize"]
    if op.opset > 10:
        if op.at.type == "Upsample":
            raise UnsupportedError(f"opset {op.opset} has no Upsample: expected opset 9 or older")
        x, roi, scales, sizes = op.value(), *(op.optional(at) for at in (1, 2, 3))
        attributes = op.attributes_of(record)
    else:
        x, roi, sizes = op.value(), "", ""
        # An Upsample's scales are at least 1, so it equals a Resize with these attributes.
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
            raise UnsupportedError(
                f"scales {attributes.get('scales', 'of a run')}: expected 1 or more, or powers of"
                " two, because opset 10 does not define the nearest element for others; export"
                " opset 11 or newer"
            )
    return op.emit("Resize", x, roi, scales, sizes, **attributes)
