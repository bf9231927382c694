"""The rules of If, Loop and Scan: their graphs are lowered, and run by kernels of their own."""

from __future__ import annotations

from onernn.adapters.onnx.native import OnnxOperator
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Graph


def conditional(op: OnnxOperator) -> None:
    (then, of_then), (other, of_other) = op.body("then_branch"), op.body("else_branch")
    if len(then.outputs) != len(op.outputs) or len(other.outputs) != len(op.outputs):
        raise UnsupportedError(f"its branches do not give {len(op.outputs)} outputs")
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
    body, taken = op.body("body")
    carried = [op.value(at) for at in range(2, len(op.inputs))]
    _check(body, taken, 2 + len(carried), 1 + len(carried))
    results = op.emit_many(
        "Loop",
        len(body.outputs) - 1,
        op.optional(0),
        op.optional(1),
        *carried,
        *taken,
        body=body,
        carried=len(carried),
    )
    _give(op, results)


def scan(op: OnnxOperator) -> None:
    if op.opset < 9:
        raise UnsupportedError("Scan of opset 8, which has a batch axis, is not supported")
    body, taken = op.body("body")
    values, scanned = (
        [op.value(at) for at in range(len(op.inputs))],
        op.attribute("num_scan_inputs", 0),
    )
    states = len(values) - scanned
    if scanned < 1 or states < 0:
        raise UnsupportedError(f"attribute num_scan_inputs={scanned} of {len(values)} inputs")
    _check(body, taken, len(values), states)
    collected = len(body.outputs) - states
    results = op.emit_many(
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
    _give(op, results)


def _check(body: Graph, taken: list[str], inputs: int, outputs: int) -> None:
    if len(body.inputs) != inputs + len(taken) or len(body.outputs) < outputs:
        raise UnsupportedError(
            f"its body has {len(body.inputs) - len(taken)} inputs and {len(body.outputs)} outputs"
        )


def _give(op: OnnxOperator, results: tuple[str, ...]) -> None:
    for at, value in enumerate(results):
        op.give(at, value)
