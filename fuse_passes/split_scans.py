"""Splits a scan over several cells into a layer of the first cell and a scan over the others.

Exporters write stacked cells as such a scan: in each step, the second cell reads the first cell's
new state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from onernn.fuse_passes.bodies import declare_sizes, source_of
from onernn.fuse_passes.masked_scans import find_chosen, find_mask, fuse_masked_scans
from onernn.fuse_passes.rewriting import fresh, rewrite
from onernn.fuse_passes.scanned_cells import fuse_scanned_cells
from onernn.ir.graph import Graph, Node, Value

_States = frozenset[int]


@rewrite("split_scans", "Scan")
def split_scan(graph: Graph, node: Node) -> Graph | None:
    """Turns ``Scan(h0, g0, x; h = cell(x, h), g = cell(h, g))`` into a layer and a Scan over g.

    The layer outputs h of all steps, which the second scan reads.
    """
    if not graph.is_dense(*node.inputs):
        return None
    ways = {*node.attributes["input_directions"], *node.attributes["output_directions"]}
    if len(ways) > 1:
        return None
    body, count = declare_sizes(graph, node, "body"), node.attributes["states"]
    seen = _states_behind(body, count)
    ends = [seen[value.name] for value in body.outputs]
    first = min((_closure(ends, k) for k in range(count)), key=len, default=_States())
    if not first or len(first) == count:
        return None
    own = [k for k in range(len(ends)) if ends[k] <= first and (k in first or k >= count)]
    rest = [k for k in range(len(ends)) if k not in own]
    mask = find_mask(node, body)
    flags = "" if mask is None else body.inputs[count + mask].name
    chosen = [find_chosen(body, value.name, flags) if flags else None for value in body.outputs]
    if any(seen[each[1]] & first for k in rest if (each := chosen[k])):
        return None  # the other cells read the first cell's value in a masked step
    made = {source_of(body, body.outputs[k].name) for k in own}
    made |= {each[0] for k in own if (each := chosen[k])} | {body.inputs[k].name for k in first}
    made = {name for name in made if seen[name] and seen[name] <= first}
    read = _read(body, [body.outputs[k].name for k in rest], made)

    nodes, constants = list(body.nodes), dict(body.constants)
    collected: dict[str, Value] = {}
    for name in read:
        value = Value(fresh(body, f"{name}/collected"), body.types[name].dtype)
        if flags:  # the rest of the scan does not read values of masked steps, so they become 0
            column = flags
            if body.types[flags].rank == 1:
                column, axis = (fresh(body, f"{name}/{end}") for end in ("mask", "axis"))
                constants[axis] = np.array([1])
                nodes.append(Node("Unsqueeze", (flags, axis), (column,)))
            zero = fresh(body, f"{name}/zero")
            constants[zero] = np.zeros((), value.dtype or "float32")
            nodes.append(Node("Where", (column, name, zero), (value.name,)))
        else:
            nodes.append(Node("Identity", (name,), (value.name,)))
        collected[fresh(graph, f"{node.outputs[own[-1]]}/{name}")] = value
    wider = replace(body, nodes=tuple(nodes), constants=constants)
    one = _part(node, wider, sorted(first), own, collected, {})
    steps = dict(zip(read, collected, strict=True))
    two = _part(node, body, [k for k in range(count) if k not in first], rest, {}, steps)
    new = graph.splice((node,), (one, two))
    for fuse in (fuse_scanned_cells, fuse_masked_scans):
        if isinstance(result := fuse(new, one), Graph):
            return result
    return None


def _states_behind(body: Graph, count: int) -> dict[str, _States]:
    """Returns, for each value of a body, the states on which it depends."""
    seen = dict.fromkeys((*body.constants, *(v.name for v in body.inputs)), _States())
    seen |= {value.name: frozenset((k,)) for k, value in enumerate(body.inputs[:count])}
    for node in body.nodes:
        behind = _States().union(*(seen[name] for name in node.inputs if name))
        seen |= dict.fromkeys(filter(None, node.outputs), behind)
    return seen


def _closure(ends: list[_States], state: int) -> _States:
    """Returns the states on which a state depends after any number of steps."""
    result = _States((state,))
    while (more := result.union(*(ends[k] for k in result))) != result:
        result = more
    return result


def _read(body: Graph, names: list[str], made: set[str]) -> list[str]:
    """Returns the first cell's values that the computation of ``names`` reads. ``made``: all values
    of the first cell.
    """
    waiting = list(dict.fromkeys(names))
    for name in waiting:  # the loop appends to this list
        node = None if name in made else body.producer(name)
        inputs = dict.fromkeys(node.inputs if node else ())
        waiting += [each for each in inputs if each and each not in waiting]
    return [name for name in waiting if name in made]


def _part(
    node: Node,
    body: Graph,
    states: list[int],
    outputs: list[int],
    collected: Mapping[str, Value],
    steps: Mapping[str, str],
) -> Node:
    """Returns a scan that computes only the states and outputs of the scan ``node`` that have these
    indices.

    ``collected``: values of the body that the new scan also outputs, by their names outside.
    ``steps``: names of values outside of the body, by the values of the body that they replace.
    """
    count, old = node.attributes["states"], node.attributes
    names = {name: fresh(body, f"{name}/step") for name in steps}
    elements = tuple(
        Value(to, known.dtype, (None, *known.counts[1:]) if known.counts else None)
        for to, known in ((to, body.types[name]) for name, to in names.items())
    )
    ends = (*(body.outputs[k] for k in outputs), *collected.values())
    inner = replace(
        body,
        inputs=(*body.inputs, *elements),
        nodes=tuple(
            replace(each, inputs=tuple(names.get(name, name) for name in each.inputs))
            for each in body.nodes
        ),
        outputs=tuple(replace(each, name=names.get(each.name, each.name)) for each in ends),
    ).prune()
    end = count + old["scanned"]
    scanned = [k for k in range(count, end) if inner.is_read(body.inputs[k].name)]
    taken = [k for k in range(end, len(body.inputs)) if inner.is_read(body.inputs[k].name)]
    own, declared = [*states, *scanned], old["body"].inputs
    inputs = (*(declared[k] for k in own), *elements, *(declared[k] for k in taken))
    given = (*(node.inputs[k] for k in own), *steps.values(), *(node.inputs[k] for k in taken))
    way, reads = max(old["input_directions"]), len(scanned) + len(steps)
    axes = [old["output_axes"][k - count] for k in outputs if k >= count] + [0] * len(collected)
    attributes = {
        "body": replace(inner, inputs=inputs),
        "states": len(states),
        "scanned": reads,
        "input_axes": (*(old["input_axes"][k - count] for k in scanned), *[0] * len(steps)),
        "input_directions": (way,) * reads,
        "output_axes": tuple(axes),
        "output_directions": (way,) * len(axes),
    }
    return Node(
        "Scan", given, (*(node.outputs[k] for k in outputs), *collected), attributes, node.origin
    )
