"""The rules of If, Loop and Scan: their graphs are lowered, and run by kernels of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onernn.adapters.lowering import Results
from onernn.adapters.onnx.lower.operator import OnnxOperator
from onernn.adapters.onnx.read import Operator, Subgraph, Variable
from onernn.core.errors import UnsupportedError
from onernn.core.graph import UNSUPPORTED, Graph

_FAR = 2**31 - 1
"""Where a Slice ends that goes to the end."""


def conditional(op: OnnxOperator) -> Results:
    (then, of_then), (other, of_other) = op.body("then_branch"), op.body("else_branch")
    if len(then.outputs) != len(op.outputs) or len(other.outputs) != len(op.outputs):
        raise UnsupportedError(f"its branches do not give {len(op.outputs)} outputs")
    return op.emit_many(
        "If",
        len(op.outputs),
        op.value(0),
        *of_then,
        *of_other,
        then_branch=then,
        else_branch=other,
        then_taken=len(of_then),
    )


def loop(op: OnnxOperator) -> Results:
    """A sequence that starts empty, and to which every turn appends, is what is collected."""
    graph, appended = _without_sequences(op)
    slots = [at for at in range(len(op.inputs) - 2) if at not in appended]
    graph, unchanged = _unchanged_from_outside(op, graph, slots)
    slots = [at for at in slots if at not in unchanged]
    body, taken = op.body_of(graph)
    carried = [op.value(2 + at) for at in slots]
    _check(body, taken, 2 + len(carried), 1 + len(carried))
    inputs = (op.optional(0), op.optional(1), *carried, *taken)
    count = len(body.outputs) - 1
    results = op.emit_many("Loop", count, *inputs, body=body, carried=len(carried))
    for at in appended:
        op.variable(str(2 + at))
        op.builder.stacked.add(op.made(at))
    # The body's outputs: what is carried, what is collected, what was appended to sequences.
    collected = len(op.inputs) - 2
    places = [*slots, *range(collected, collected + count - len(slots) - len(appended)), *appended]
    values = dict(zip(places, results, strict=True))
    values |= {at: op.value(2 + at) for at in unchanged}
    return {str(at): value for at, value in values.items()}


def _unchanged_from_outside(
    op: OnnxOperator, graph: Subgraph, slots: list[int]
) -> tuple[Subgraph, list[int]]:
    """The body with what every turn hands on unchanged taken from outside, and which these are.

    TensorFlow carries weights so: they have to be constants before the body's operators are read.
    ``slots``: for each value that the body carries, which of the loop's it is.
    """
    makers = {name: each for each in graph.operators for name in each.outputs}
    own = {v.name for v in graph.inputs} | {*graph.constants, *graph.unread, *makers}
    fixed, names = [], []
    for slot, inside, result in zip(slots, graph.inputs[2:], graph.outputs[1:], strict=False):
        name, outside = result.name, op.inputs[str(2 + slot)][0]
        for _ in makers:  # a file may hold cycles
            if name not in makers or makers[name].type != "Identity":
                break
            name = makers[name].inputs[0]
        if name == inside.name and outside and outside not in own:
            fixed.append(slot)
            names.append(Operator(op.at.position, "", "Identity", (outside,), (name,), {}))
    gone = {slots.index(slot) for slot in fixed}
    return replace(
        graph,
        operators=(*names, *graph.operators),
        inputs=tuple(v for at, v in enumerate(graph.inputs) if at - 2 not in gone),
        outputs=tuple(v for at, v in enumerate(graph.outputs) if at - 1 not in gone),
    ), fixed


def _without_sequences(op: OnnxOperator) -> tuple[Subgraph, list[int]]:
    """The body with what it appends to empty sequences among its results, and which these are."""
    graph: Subgraph = op.subgraph("body")
    inserts = {o.outputs[0]: o for o in graph.operators if o.type == "SequenceInsert"}
    appended = []
    for slot, variable in enumerate(graph.inputs[2:]):
        name = op.inputs.get(str(2 + slot), ("",))[0]
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
    gone = {graph.outputs[1 + slot].name for slot in appended}
    results = [Variable(inserts[graph.outputs[1 + slot].name].inputs[1]) for slot in appended]
    kept = [v for at, v in enumerate(graph.outputs) if at - 1 not in appended]
    return replace(
        graph,
        operators=tuple(o for o in graph.operators if not gone.intersection(o.outputs)),
        inputs=tuple(v for at, v in enumerate(graph.inputs) if at - 2 not in appended),
        outputs=(*kept, *results),
    ), appended


def sequence_empty(op: OnnxOperator) -> Results:
    """Understood as what a loop begins to append to; whoever else reads it is refused."""
    op.attribute("dtype", 1)
    op.builder.empty.add(op.made(0))
    return op.emit(UNSUPPORTED, reason="a sequence that no loop fills is not supported")


def split_to_sequence(op: OnnxOperator) -> Results:
    """Element after element of an axis, which becomes the first one of a tensor.

    keepdims counts beside a split of one number, too: so does ONNX Runtime.
    """
    x, axis, split = op.value(), op.attribute("axis", 0), op.constant(1, "input split")
    if split is not None and (split.ndim or split != 1):
        raise UnsupportedError("input split: only parts of one element")
    rank = op.builder.type_of(x).rank
    if rank is None or not -rank <= axis < rank:
        raise UnsupportedError(f"attribute axis={axis} of a value whose axes nobody tells")
    axis %= rank
    if axis:
        x = op.emit("Transpose", x, perm=(axis, *(k for k in range(rank) if k != axis)))
    if op.attribute("keepdims", 1):
        x = op.emit("Unsqueeze", x, op.ints(axis + 1))
    op.builder.stacked.add(op.made(0))
    return x


def sequence_at(op: OnnxOperator) -> Results:
    return op.emit("Gather", _sequence(op), op.value(1), axis=0)


def sequence_length(op: OnnxOperator) -> Results:
    shape = op.emit("Shape", _sequence(op))
    return op.emit("Gather", shape, op.builder.constant(np.array(0), "SequenceLength/axis"), axis=0)


def _sequence(op: OnnxOperator) -> str:
    """The tensor that stands for a sequence, its elements behind one another."""
    value = op.value()
    if op.scope.variable(op.variable("0")) not in op.builder.stacked:
        raise UnsupportedError("a sequence that no loop fills is not supported")
    return value


def concat_from_sequence(op: OnnxOperator) -> Results:
    """What a loop appended, put together along a new axis or one that it has."""
    value, axis = _sequence(op), op.attribute("axis", 0)
    rank = op.builder.type_of(value).rank
    if axis < 0 and rank is None:
        raise UnsupportedError(f"attribute axis={axis} of a sequence whose axes nobody tells")
    if op.attribute("new_axis", 0):
        return _at_axis(op, value, axis if axis >= 0 else axis + (rank or 0))
    axis = axis if axis >= 0 else axis + (rank or 1) - 1
    sizes = op.emit("Shape", value)
    front = op.emit("Slice", sizes, op.ints(1), op.ints(1 + axis))
    back = op.emit("Slice", sizes, op.ints(2 + axis), op.ints(_FAR))
    shape = op.emit("Concat", front, op.ints(-1), back, axis=0)
    return op.emit("Reshape", _at_axis(op, value, axis), shape)


def _at_axis(op: OnnxOperator, value: str, axis: int) -> str:
    """With the first axis as another one."""
    letters = "abcdefghijklmnop"[: axis + 1]
    equation = f"{letters}...->{letters[1:]}{letters[0]}..."
    return op.emit("Einsum", value, equation=equation) if axis else value


def scan(op: OnnxOperator) -> Results:
    if op.opset < 9:
        raise UnsupportedError("Scan of opset 8, which has a batch axis, is not supported")
    body, taken = op.body("body")
    values = [op.value(at) for at in range(len(op.inputs))]
    scanned = op.attribute("num_scan_inputs", 0)
    states = len(values) - scanned
    if scanned < 1 or states < 0:
        raise UnsupportedError(f"attribute num_scan_inputs={scanned} of {len(values)} inputs")
    _check(body, taken, len(values), states)
    collected = len(body.outputs) - states
    return op.emit_many(
        "Scan",
        len(body.outputs),
        *values,
        *taken,
        body=body,
        states=states,
        scanned=scanned,
        input_axes=op.attribute("scan_input_axes", (0,) * scanned),
        input_directions=op.attribute("scan_input_directions", (0,) * scanned),
        output_axes=op.attribute("scan_output_axes", (0,) * collected),
        output_directions=op.attribute("scan_output_directions", (0,) * collected),
    )


def _check(body: Graph, taken: list[str], inputs: int, outputs: int) -> None:
    if len(body.inputs) != inputs + len(taken) or len(body.outputs) < outputs:
        raise UnsupportedError(
            f"its body has {len(body.inputs) - len(taken)} inputs and {len(body.outputs)} outputs"
        )
