"""The rules of If, Loop and Scan: their graphs are lowered, and run by kernels of their own."""

from __future__ import annotations

from dataclasses import replace

from onernn.adapters.onnx.loops import emit_layer, emit_scan, layer_of_steps, scan_of_loop, sized
from onernn.adapters.onnx.native import OnnxOperator
from onernn.adapters.onnx.read import Subgraph, Variable
from onernn.core.errors import UnsupportedError
from onernn.core.graph import UNSUPPORTED, Graph
from onernn.runtime.kernels import KERNELS


def conditional(op: OnnxOperator) -> None:
    (then, of_then), (other, of_other) = op.body("then_branch"), op.body("else_branch")
    if len(then.outputs) != len(op.outputs) or len(other.outputs) != len(op.outputs):
        raise UnsupportedError(f"its branches do not give {len(op.outputs)} outputs")
    for branch in (then, other):
        _check_runs(branch)
    results = op.emit_many(
        "If",
        len(op.outputs),
        op.value(0),
        *of_then,
        *of_other,
        then_branch=then,
        else_branch=other,
        then_taken=len(of_then),
    )
    _give(op, results)


def loop(op: OnnxOperator) -> None:
    """A loop that goes through a sequence becomes a layer or a scan; others stay loops.

    A sequence that starts empty, and to which every turn appends, is what is collected.
    """
    graph, appended = _without_sequences(op)
    body, taken = op.body_of(graph)
    places = [at for at in range(2, len(op.inputs)) if at - 2 not in appended]
    carried = [op.value(at) for at in places]
    _check(body, taken, 2 + len(carried), 1 + len(carried))
    steps = scan_of_loop(op, body, carried, taken)
    layer = layer_of_steps(steps) if steps else None
    if steps and layer:
        results = emit_layer(op, steps, layer)
    elif steps and _runs(steps.body):
        results = emit_scan(op, steps)
    else:
        _check_runs(body)
        count = len(body.outputs) - 1
        inputs = (op.optional(0), op.optional(1), *carried, *taken)
        results = list(op.emit_many("Loop", count, *inputs, body=body, carried=len(carried)))
    states, collected = results[: len(carried)], results[len(carried) :]
    sequences = collected[len(collected) - len(appended) :]
    for at, value in zip(places, states, strict=True):
        op.give(at - 2, value)
    for slot, value in zip(appended, sequences, strict=True):
        op.variable(str(2 + slot))
        op.builder.stacked.add(op.made(slot))
        op.give(slot, value)
    first = len(op.inputs) - 2
    for at, value in enumerate(collected[: len(collected) - len(appended)], first):
        op.give(at, value)


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


def sequence_empty(op: OnnxOperator) -> None:
    """Understood as what a loop begins to append to; whoever else reads it is refused."""
    op.attribute("dtype", 1)
    op.builder.empty.add(op.made(0))
    op.give(0, op.emit(UNSUPPORTED, reason="a sequence that no loop fills is not supported"))


def concat_from_sequence(op: OnnxOperator) -> None:
    """What a loop appended, put together along a new axis."""
    value, axis = op.value(), op.attribute("axis", 0)
    if op.scope.variable(op.variable("0")) not in op.builder.stacked:
        raise UnsupportedError("a sequence that no loop fills is not supported")
    if not op.attribute("new_axis", 0) or axis not in (0, 1):
        raise UnsupportedError("only a new first or second axis")
    op.give(0, op.emit("Einsum", value, equation="ab...->ba...") if axis else value)


def scan(op: OnnxOperator) -> None:
    if op.opset < 9:
        raise UnsupportedError("Scan of opset 8, which has a batch axis, is not supported")
    body, taken = op.body("body")
    values = [op.value(at) for at in range(len(op.inputs))]
    scanned = op.attribute("num_scan_inputs", 0)
    states = len(values) - scanned
    if scanned < 1 or states < 0:
        raise UnsupportedError(f"attribute num_scan_inputs={scanned} of {len(values)} inputs")
    _check(body, taken, len(values), states)
    _check_runs(body)
    axes = op.attribute("scan_input_axes", (0,) * scanned)
    if not any(axes):
        body = sized(op, body, values, states)
    collected = len(body.outputs) - states
    results = op.emit_many(
        "Scan",
        len(body.outputs),
        *values,
        *taken,
        body=body,
        states=states,
        scanned=scanned,
        input_axes=axes,
        input_directions=op.attribute("scan_input_directions", (0,) * scanned),
        output_axes=op.attribute("scan_output_axes", (0,) * collected),
        output_directions=op.attribute("scan_output_directions", (0,) * collected),
    )
    _give(op, results)


def _runs(body: Graph) -> bool:
    return all(node.op in KERNELS for node in body.nodes)


def _check_runs(body: Graph) -> None:
    for node in body.nodes:
        if node.op not in KERNELS:
            raise UnsupportedError(f"its body: {node.label}: {node.op} is not run inside a body")


def _check(body: Graph, taken: list[str], inputs: int, outputs: int) -> None:
    if len(body.inputs) != inputs + len(taken) or len(body.outputs) < outputs:
        raise UnsupportedError(
            f"its body has {len(body.inputs) - len(taken)} inputs and {len(body.outputs)} outputs"
        )


def _give(op: OnnxOperator, results: tuple[str, ...]) -> None:
    for at, value in enumerate(results):
        op.give(at, value)
