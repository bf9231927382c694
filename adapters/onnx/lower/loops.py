"""Loops through a sequence, step by step, as scans; those over one step of a layer as the layer.

PyTorch exports a scripted loop over an LSTMCell as a Loop over an LSTM of one step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from onernn.adapters.onnx.lower.operator import OnnxOperator
from onernn.adapters.onnx.lower.turns import Steps, sized
from onernn.core.arrays import Array
from onernn.core.errors import OnernnError
from onernn.core.graph import Graph, Node, Value
from onernn.core.guard import MISFITS
from onernn.core.spec import RnnSpec
from onernn.runtime.kernels import run_body

VIEWS = frozenset("Flatten Identity Reshape Squeeze Transpose Unsqueeze".split())


def _source(graph: Graph, name: str) -> str:
    while (node := graph.producer(name)) is not None and node.op in VIEWS:
        name = node.inputs[0]
    return name


@dataclass(frozen=True, eq=False)
class LayerSteps:
    """Steps that are one layer's: its node, and which output of it each result of a step is.

    ``states``: which carried value each state of the layer is. ``results``: 0 for y, 1 for h, ....
    """

    rnn: Node
    states: tuple[int, ...]
    results: tuple[int, ...]


def layer_of_steps(steps: Steps) -> LayerSteps | None:
    """The layer of which a body runs one step at a time; None where it is none.

    That a chain of views only adds axes of size one is tried out on numbers.
    """
    body, count = steps.body, len(steps.carried)
    rnns = [node for node in body.nodes if node.op == "Rnn"]
    if len(rnns) != 1:
        return None
    (rnn,) = rnns
    spec: RnnSpec = rnn.attributes["spec"]
    if spec.layers * spec.directions > 1 or spec.cell.has_attention or len(rnn.outputs) > 3:
        return None
    names = [value.name for value in body.inputs]
    sources = [_source(body, name) for name in rnn.inputs[:3] if name]
    if len(sources) != 1 + len(spec.cell.states) or sources[0] != names[count]:
        return None
    widths = (spec.input_size, spec.recurrent_size, spec.hidden_size)
    for at, source in enumerate(sources):
        axes = (1,) if at == 0 else (1, 1)
        if not _leads(body, source, rnn.inputs[at], widths[at], axes):
            return None
    if any(name not in names[:count] for name in sources[1:]):
        return None
    order = tuple(names.index(name) for name in sources[1:])
    results = []
    for value in body.outputs:
        source = _source(body, value.name)
        if source not in rnn.outputs:
            return None
        at = rnn.outputs.index(source)
        width = spec.hidden_size if at == 2 else spec.recurrent_size
        if not _leads(body, source, value.name, width, (), (1,) * (1 if at == 0 else 2)):
            return None
        results.append(at)
    # What comes out of a step as a state must be the layer's new state of the same kind.
    fresh = {carried: at for at, carried in enumerate(order, 1)}
    same = {0: 1}  # y of one step is h
    if any(same.get(results[k], results[k]) != fresh.get(k) for k in range(count)):
        return None
    if any(same.get(at, at) == 2 for at in results[count:]):  # c of every step
        return None
    return LayerSteps(rnn, order, tuple(results))


def _leads(
    body: Graph,
    source: str,
    target: str,
    width: int,
    added: tuple[int, ...],
    dropped: tuple[int, ...] = (),
) -> bool:
    """Whether views lead from (dropped..., N, width) to (added..., N, width), in order."""
    chain: list[Node] = []
    name = target
    while name != source:
        node = body.producer(name)
        if node is None or any(each not in body.constants for each in node.inputs[1:] if each):
            return False
        chain.insert(0, node)
        name = node.inputs[0]
    given, wanted = Value(source), Value(target)
    part = Graph("views", (given,), (wanted,), tuple(chain), body.constants).pruned()
    return all(_moves(part, n, width, added, dropped) for n in (2, 3))


def _moves(
    part: Graph, n: int, width: int, added: tuple[int, ...], dropped: tuple[int, ...]
) -> bool:
    numbers: Array = np.arange(n * width, dtype=np.float32)
    try:
        (out,) = run_body(part, [numbers.reshape(*dropped, n, width)])
    except (OnernnError, *MISFITS):
        return False
    return bool(np.array_equal(out, numbers.reshape(*added, n, width)))


def emit_layer(op: OnnxOperator, steps: Steps, found: LayerSteps) -> list[str]:
    """The layer over all steps; the final states, then what was collected (T, N, O)."""
    spec, weights = (found.rnn.attributes[key] for key in ("spec", "weights"))
    axes = op.ints(0, 1)
    states = [op.emit("Unsqueeze", steps.carried[at], axes) for at in found.states]
    count = len(spec.cell.states)
    y, *final = op.emit_many("Rnn", 1 + count, steps.scanned, *states, spec=spec, weights=weights)
    ends = {
        at: op.emit("Squeeze", state, axes) for at, state in zip(found.states, final, strict=True)
    }
    collected = len(found.results) - len(steps.carried)
    return [*(ends[at] for at in range(len(steps.carried))), *[y] * collected]


def sized_scan(op: OnnxOperator, body: Graph, values: list[str], states: int) -> Graph:
    """The body of a scan along first axes with the shapes that are known of its inputs."""
    known = [
        sized(op, inside, outside, step=at >= states)
        for at, (inside, outside) in enumerate(zip(body.inputs, values, strict=False))
    ]
    return replace(body, inputs=(*known, *body.inputs[len(known) :]))


def emit_scan(op: OnnxOperator, steps: Steps) -> list[str]:
    """A Scan of the steps, all of them forwards along the first axis."""
    collected = len(steps.body.outputs) - len(steps.carried)
    return list(
        op.emit_many(
            "Scan",
            len(steps.body.outputs),
            *(*steps.carried, steps.scanned, *steps.taken),
            body=steps.body,
            states=len(steps.carried),
            scanned=1,
            input_axes=(0,),
            input_directions=(0,),
            output_axes=(0,) * collected,
            output_directions=(0,) * collected,
        )
    )
