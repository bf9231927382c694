"""Known faults of the constants of a model as it was read.

Fusing adds the projections before a layer to its weights and biases. A fault in one of these
constants is found only if the constant is changed before the model is fused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from onernn.adapters.common.fault import Fault
from onernn.fuse_passes import fuse
from onernn.fuse_passes.views import is_view
from onernn.ir.arrays import Array, digest
from onernn.ir.graph import Graph, Node
from onernn.ir.rnn import Recurrent
from onernn.ir.spec import RnnSpec
from onernn.verification.diagnosis.faults import PartFault, permutations, signs
from onernn.verification.diagnosis.graph_faults import GraphFault, Site, with_values
from onernn.verification.diagnosis.matching import weights_in
from onernn.verification.tracing import expanded, recurrent_layers, with_nodes


def constant_faults(model: Graph) -> Iterator[tuple[str, GraphFault]]:
    """The label of an operator, and a fault of its weight or bias: gates of a projection that are
    swapped or have another sign, or all of it negated.
    """
    seen = set[tuple[str, str]]()
    for rnn in (Recurrent.of(node) for node in model.nodes if node.op == "Rnn"):
        spec = rnn.spec
        for node, name, layout in _projecting(model, rnn.x) if rnn.layers[0].layer is None else ():
            array = model.constants[name]
            if array.shape[-1:] != (spec.gates * spec.hidden_size,) or ("gates", name) in seen:
                continue
            seen.add(("gates", name))
            for fault in chain(signs(spec), permutations(spec, most=2)):
                if (new := _with_fault(array, fault, spec, layout)) is not None:
                    text = f"{fault.text} in {name!r}"
                    yield node.label, Fault(fault.id, text, partial(_changed, model, name, new))
    for node in model.nodes:
        for name in node.inputs if _reads_a_constant(node) else ():
            array = model.constants.get(name, np.zeros(0))
            if array.size > 1 and array.dtype.kind == "f" and ("sign", name) not in seen:
                seen.add(("sign", name))
                apply = partial(_changed, model, name, -array)
                yield node.label, Fault("constant_changed", f"{name!r} is negated", apply)


def _reads_a_constant(node: Node) -> bool:
    """Returns whether a node is a product, a sum or a table, one operand of which may be fixed."""
    return node.op in ("Gemm", "MatMul") or node.op in ("Add", "Gather")


def _projecting(graph: Graph, name: str) -> Iterator[tuple[Node, str, Any]]:
    """The products, sums and tables that make a value: each with its constant, and the layout of
    gates that follows.
    """
    layout: Any = None
    while node := graph.producer(name):
        fixed = [each for each in node.inputs if each in graph.constants]
        if node.op == "GateLayout":
            layout = node.attrs.layout
        elif _reads_a_constant(node) and len(fixed) == 1:
            yield node, fixed[0], layout
            if node.op != "Add":
                return
        elif node.op not in ("Identity", "SequenceLike") and not is_view(node.op):
            return
        name = next(each for each in node.inputs if each not in graph.constants)


def _with_fault(array: Array, fault: PartFault, spec: RnnSpec, layout: Any) -> Array | None:
    """A constant with a fault in its gates, which have the order and the signs of its file."""
    places = np.arange(1, array.shape[-1] + 1, dtype=array.dtype)
    order = places if layout is None else layout(places)
    at, sign = np.abs(order).astype(np.int64) - 1, np.sign(order)
    gates = (array[..., at] * sign).reshape(*array.shape[:-1], spec.gates, spec.hidden_size)
    changed = fault.apply((spec, "layer", gates))
    if changed is None:
        return None
    out = np.empty_like(array)
    out[..., at] = changed.reshape(array.shape) * sign
    return out


def _changed(model: Graph, name: str, array: Array, site: Site) -> Graph | None:
    """The site's graph as it is when the model has another constant."""
    changed = replace(model, constants={**model.constants, name: array})
    graph, _ = expanded(fuse(changed).model)
    layers, own = recurrent_layers(graph), recurrent_layers(site.graph)
    if layers.keys() != own.keys():
        return None
    new = {
        y: [replace(rnn, weights=layers[y].weights).node()]
        for y, rnn in own.items()
        if digest(weights_in(rnn.weights)) != digest(weights_in(layers[y].weights))
    }
    moved = {
        key: graph.constants[key]
        for key, kept in site.graph.constants.items()
        if key in graph.constants and not np.array_equal(kept, graph.constants[key])
    }
    result = with_nodes(site.graph, new)
    return with_values(result, moved) if new or moved else None
