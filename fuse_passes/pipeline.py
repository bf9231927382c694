"""Applies the passes in a fixed order."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from onernn.fuse_passes.bodies import bodies, declare_sizes
from onernn.fuse_passes.conv_scale import fuse_conv_scale
from onernn.fuse_passes.joined_layers import pair_directions, stack_layers
from onernn.fuse_passes.projections import fuse_embedding_rnn, fuse_linear_input, fuse_linear_rnn
from onernn.fuse_passes.rewriting import Pass, rewrite
from onernn.fuse_passes.simplifications import (
    drop_identities,
    share_values,
    take_branches,
    take_constants,
    take_known_numbers,
)
from onernn.fuse_passes.stacked_steps import ask_inputs, restack_steps
from onernn.fuse_passes.unrolled_cells import fuse_unrolled_cells
from onernn.fuse_passes.views import (
    drop_rnn_views,
    drop_sequence_views,
    drop_zero_states,
    move_collected_axes,
    move_views,
)
from onernn.ir.budget import spend, working
from onernn.ir.errors import Refusal, guard
from onernn.ir.graph import Graph, NativeOp, Node, graph_of
from onernn.ir.records import dataclass


def _imported(name: str, op: str, function: str) -> Pass:
    """Returns a pass whose module is imported when a graph has a node of the operator ``op``."""

    def run(graph: Graph, node: Node) -> Any:
        return getattr(import_module(f"onernn.fuse_passes.{name}"), function)(graph, node)

    run.__qualname__ = function  # pickle finds the function by this name
    return rewrite(name, op)(run)


# Passes for loops, which few models have.
scan_loops = _imported("scanned_loops", "Loop", "scan_loops")
count_outside = _imported("counted_scans", "Scan", "count_outside")
fuse_scanned_cells = _imported("scanned_cells", "Scan", "fuse_scanned_cells")
fuse_masked_scans = _imported("masked_scans", "Scan", "fuse_masked_scans")
split_scan = _imported("split_scans", "Scan", "split_scan")

# Identities are dropped first, because they hide patterns. Then loops become scans, and cells
# become layers, which the other passes read. Views move before the passes whose patterns they hide.
# Directions are paired when both are layers of the same form. Layers are stacked after that.
PASSES: tuple[Pass, ...] = (
    drop_identities,
    take_branches,
    take_constants,
    take_known_numbers,
    scan_loops,
    count_outside,
    move_collected_axes,
    fuse_unrolled_cells,
    fuse_scanned_cells,
    fuse_masked_scans,
    split_scan,
    ask_inputs,
    restack_steps,
    fuse_conv_scale,
    share_values,
    move_views,
    drop_rnn_views,
    drop_sequence_views,
    fuse_linear_rnn,
    pair_directions,
    stack_layers,
)


def passes_for(dtype: str) -> tuple[Pass, ...]:
    """Returns the passes that a session applies; some of them only make runs faster.

    Only f32 gets `fuse_linear_input` and `fuse_embedding_rnn`, which multiply input weights in
    advance. A different dtype would round the product, and a u8 layer must keep its input and its
    input weights.
    """
    rounded = (fuse_linear_input, fuse_embedding_rnn) if dtype == "f32" else ()
    return (*PASSES, drop_zero_states, *rounded)


@dataclass(frozen=True)
class Applied:
    """One application of a pass: the value that the pass made and the native operators that it
    replaced.
    """

    name: str
    where: str
    origin: tuple[NativeOp, ...]


@dataclass(frozen=True, eq=False)
class FuseResult:
    """The fused model, the applied passes in order, and the reasons why other passes did not apply.

    `fuse` returns it, with an example.
    """

    model: Graph
    applied: tuple[Applied, ...]
    refusals: tuple[Refusal, ...]


def fuse(model: Graph | str | Path, passes: tuple[Pass, ...] = PASSES) -> FuseResult:
    """Runs the passes in turn until none of them changes the graph.

    ``model``: the result of `onernn.load`, or a path. The bodies of loops and branches are fused
    after the graph that contains them. A second call of `fuse` changes nothing. Raises the errors
    of `onernn.load` for a path.

    >>> x, y, z = onernn.Value("x", "float32", (None, 2)), onernn.Value("y"), onernn.Value("z")
    >>> nodes = (onernn.Node("Identity", ("x",), ("y",)), onernn.Node("Relu", ("y",), ("z",)))
    >>> result = onernn.fuse(onernn.Graph("relu", (x,), (z,), nodes, {}))
    >>> [each.name for each in result.applied], len(result.model.nodes)
    (['identities'], 1)
    """
    with working():
        return _fuse(graph_of(model), passes)


def _fuse(graph: Graph, passes: tuple[Pass, ...]) -> FuseResult:
    applied: list[Applied] = []
    done: dict[Pass, tuple[Graph, list[Refusal]]] = {}
    while True:
        begin = graph
        for current in passes:
            if current not in done or done[current][0] is not graph:
                graph, fired, refused = _exhaust(graph, current)
                done[current] = graph, refused
                applied += fired
        if graph is not begin:
            continue  # passes earlier in the order may apply now
        graph, fired, within = _fuse_bodies(graph, passes)
        applied += fired
        if graph is begin:
            refusals = [refusal for current in passes for refusal in done[current][1]]
            return FuseResult(graph, tuple(applied), (*refusals, *within))


def _fuse_bodies(
    graph: Graph, passes: tuple[Pass, ...]
) -> tuple[Graph, list[Applied], list[Refusal]]:
    """Returns the graph with fused bodies of loops and branches; the same object if nothing
    changed.
    """
    applied: list[Applied] = []
    refusals: list[Refusal] = []
    nodes = []
    for node in graph.nodes:
        for name, body in bodies(node).items():
            if not (
                graph.is_dense(*node.inputs) and body.is_dense(*(v.name for v in body.outputs))
            ):
                refusals.append(Refusal(f"its {name} may read ragged values", node.label))
                continue
            inner = _fuse(declare_sizes(graph, node, name), passes)
            applied += inner.applied
            refusals += inner.refusals
            if inner.applied:
                fused = replace(inner.model, inputs=body.inputs)
                node = replace(node, attributes={**node.attributes, name: fused})
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes)) if applied else graph, applied, refusals


def _exhaust(model: Graph, current: Pass) -> tuple[Graph, list[Applied], list[Refusal]]:
    """Returns the graph after a pass has made all its changes; the same object if there were
    none.
    """
    applied: list[Applied] = []
    starts = getattr(current, "ops", frozenset[str]())  # a caller's pass may lack this attribute
    if starts and starts.isdisjoint(model.ops):
        return model, applied, []
    with guard(lambda: f"{model.name}: pass {current.name}, {node.label}"):
        while True:
            begin, refusals = model, list[Refusal]()
            spend(len(begin.nodes))
            for node in begin.nodes:
                if starts and node.op not in starts:
                    continue
                if model is not begin and not model.has(node):
                    continue  # replaced: the next round visits the new nodes
                result = current(model, node)
                if isinstance(result, Refusal):
                    refusals.append(Refusal(f"{current.name}: {result.reason}", result.where))
                elif result is not None:
                    model, where = result, node.outputs[0]
                    maker = model.producer(where) or node
                    applied.append(Applied(current.name, where, maker.origin))
            if model is begin:
                return model, applied, refusals
