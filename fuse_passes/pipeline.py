"""Applies the passes in their one, explicit order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from onernn.fuse_passes.bodies import bodies, sized
from onernn.fuse_passes.conv_scale import FuseConvScale
from onernn.fuse_passes.joined_layers import PairDirections, StackLayers
from onernn.fuse_passes.masked_scans import FuseMaskedScans
from onernn.fuse_passes.projections import FuseEmbeddingRnn, FuseLinearInput, FuseLinearRnn
from onernn.fuse_passes.scanned_cells import FuseScannedCells
from onernn.fuse_passes.scanned_loops import ScanLoops
from onernn.fuse_passes.simplifications import (
    DropIdentities,
    ShareValues,
    TakeBranches,
    TakeConstants,
    TakeKnownNumbers,
)
from onernn.fuse_passes.stacked_steps import AskInputs, RestackSteps
from onernn.fuse_passes.unrolled_cells import FuseUnrolledCells
from onernn.fuse_passes.views import DropRnnViews, DropSequenceViews, MoveCollectedAxes, MoveViews
from onernn.ir.budget import spend, working
from onernn.ir.errors import Refusal, guarded
from onernn.ir.graph import Graph, NativeOp, Node, graph_of
from onernn.ir.records import dataclass


class Pass(Protocol):
    """``match`` decides and explains, ``rewrite`` only builds."""

    name: str

    def match(self, graph: Graph, node: Node) -> Any | Refusal | None:
        """A match to rewrite at this node, a reason against it, or None for other nodes."""

    def rewrite(self, graph: Graph, match: Any) -> Graph:
        """A new graph; the old one and its constants stay as they are."""


# Identities first, they hide everything. Then loops become scans, and cells layers: the others see
# one rnn then. Views before what they hide. Pairs when both halves are fused alike, stacks when the
# layers are pairs.
PASSES: tuple[Pass, ...] = (
    DropIdentities(),
    TakeBranches(),
    TakeConstants(),
    TakeKnownNumbers(),
    ScanLoops(),
    MoveCollectedAxes(),
    FuseUnrolledCells(),
    FuseScannedCells(),
    FuseMaskedScans(),
    AskInputs(),
    RestackSteps(),
    FuseConvScale(),
    ShareValues(),
    MoveViews(),
    DropRnnViews(),
    DropSequenceViews(),
    FuseLinearRnn(),
    PairDirections(),
    StackLayers(),
)


def passes_for(dtype: str) -> tuple[Pass, ...]:
    """The passes of a session: also those that only serve running, where they cost no accuracy.

    A projected table would be narrowed, u8 has no layer without input weights, and wants its
    input where a projection has put it.
    """
    return (*PASSES, FuseLinearInput(), FuseEmbeddingRnn()) if dtype == "f32" else PASSES


@dataclass(frozen=True)
class Applied:
    """One firing of a pass: the value it made, and the native operators that went into it."""

    name: str
    where: str
    origin: tuple[NativeOp, ...]


@dataclass(frozen=True, eq=False)
class FuseResult:
    """The fused model, what fired in order, and why the rest did not."""

    model: Graph
    applied: tuple[Applied, ...]
    refusals: tuple[Refusal, ...]


def fuse(model: Graph | str | Path, passes: tuple[Pass, ...] = PASSES) -> FuseResult:
    """Runs the passes in turn until none of them finds anything: running it again changes nothing.

    ``model``: as `onernn.load` gives it, or its path. The graphs of loops and branches are fused
    behind those around them.
    """
    with working():
        return _fused(graph_of(model), passes)


def _fused(graph: Graph, passes: tuple[Pass, ...]) -> FuseResult:
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
            continue  # a pass may leave something to those before it
        graph, fired, within = _fused_bodies(graph, passes)
        applied += fired
        if graph is begin:
            refusals = [refusal for current in passes for refusal in done[current][1]]
            return FuseResult(graph, tuple(applied), (*refusals, *within))


def _fused_bodies(
    graph: Graph, passes: tuple[Pass, ...]
) -> tuple[Graph, list[Applied], list[Refusal]]:
    """The graph with those of its loops and branches fused: itself where nothing changes."""
    applied: list[Applied] = []
    refusals: list[Refusal] = []
    nodes = []
    for node in graph.nodes:
        for name, body in bodies(node).items():
            if not (
                graph.is_dense(*node.inputs) and body.is_dense(*(v.name for v in body.outputs))
            ):
                refusals.append(Refusal(f"its {name} may see ragged values", node.label))
                continue
            inner = _fused(sized(graph, node, name), passes)
            applied += inner.applied
            refusals += inner.refusals
            if inner.applied:
                fused = replace(inner.model, inputs=body.inputs)
                node = replace(node, attributes={**node.attributes, name: fused})
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes)) if applied else graph, applied, refusals


def _exhaust(model: Graph, current: Pass) -> tuple[Graph, list[Applied], list[Refusal]]:
    """The graph in which a pass finds nothing more: itself where it found nothing."""
    applied: list[Applied] = []
    with guarded(lambda: f"{model.name}: pass {current.name}, {node.label}"):
        while True:
            begin, refusals = model, list[Refusal]()
            spend(len(begin.nodes))
            for node in begin.nodes:
                if model is not begin and not model.has(node):
                    continue  # what it became has its turn in the next round
                match = current.match(model, node)
                if isinstance(match, Refusal):
                    refusals.append(Refusal(f"{current.name}: {match.reason}", match.where))
                elif match is not None:
                    model = current.rewrite(model, match)
                    result = model.producer(node.outputs[0])
                    applied.append(
                        Applied(
                            current.name, node.outputs[0], result.origin if result else node.origin
                        )
                    )
            if model is begin:
                return model, applied, refusals
