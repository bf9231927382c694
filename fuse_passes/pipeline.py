"""Applies the passes in their one, explicit order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from onernn.core.errors import Refusal
from onernn.core.graph import Graph, NativeOp, Node, graph_of
from onernn.core.guard import guarded
from onernn.fuse_passes.bidirectional import PairDirections
from onernn.fuse_passes.bodies import bodies, sized
from onernn.fuse_passes.common_values import ShareValues
from onernn.fuse_passes.embedding_rnn import FuseEmbeddingRnn
from onernn.fuse_passes.identities import DropIdentities
from onernn.fuse_passes.linear_input import FuseLinearInput
from onernn.fuse_passes.linear_rnn import FuseLinearRnn
from onernn.fuse_passes.moved_views import MoveViews
from onernn.fuse_passes.restacked_steps import RestackSteps
from onernn.fuse_passes.rnn_views import DropRnnViews
from onernn.fuse_passes.scanned_cells import FuseScannedCells
from onernn.fuse_passes.scanned_loops import ScanLoops
from onernn.fuse_passes.sequence_views import DropSequenceViews
from onernn.fuse_passes.stack_layers import StackLayers
from onernn.fuse_passes.taken_branches import TakeBranches
from onernn.fuse_passes.unrolled_cells import FuseUnrolledCells


class Pass(Protocol):
    """``match`` decides and explains, ``rewrite`` only builds."""

    name: str

    def match(self, graph: Graph, node: Node) -> Any | Refusal | None:
        """What to rewrite at this node, why not, or None where it is not this pass's business."""

    def rewrite(self, graph: Graph, match: Any) -> Graph:
        """A new graph; the old one and its constants stay as they are."""


# Identities first, they hide everything. Then loops become scans, and cells: the others see one rnn then. Views before what
# they hide. Pairs when both halves are fused alike, stacks when the layers are pairs.
PASSES: tuple[Pass, ...] = (
    DropIdentities(),
    TakeBranches(),
    ScanLoops(),
    FuseUnrolledCells(),
    FuseScannedCells(),
    RestackSteps(),
    ShareValues(),
    MoveViews(),
    DropRnnViews(),
    DropSequenceViews(),
    FuseLinearRnn(),
    PairDirections(),
    StackLayers(),
)


def passes_for(dtype: str) -> tuple[Pass, ...]:
    """What a session runs: also what only serves running, where it costs no accuracy.

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
    around = _fused_around(graph_of(model), passes)
    within = _fused_within(around.model, passes)
    refusals = (*around.refusals, *within.refusals)
    if not within.applied:
        return FuseResult(around.model, around.applied, refusals)
    again = fuse(within.model, passes)
    applied = (*around.applied, *within.applied, *again.applied)
    return FuseResult(again.model, applied, again.refusals if again.applied else refusals)


def _fused_around(model: Graph, passes: tuple[Pass, ...]) -> FuseResult:
    """The graph itself: one pass may leave something to those before it."""
    applied: list[Applied] = []
    while True:
        fired: list[Applied] = []
        refusals: list[Refusal] = []
        for current in passes:
            model, firings, refused = _exhaust(model, current)
            fired += firings
            refusals += refused
        applied += fired
        if not fired:
            return FuseResult(model, tuple(applied), tuple(refusals))


def _fused_within(model: Graph, passes: tuple[Pass, ...]) -> FuseResult:
    """The graphs of its loops and branches."""
    nodes: list[Node] = []
    applied: list[Applied] = []
    refusals: list[Refusal] = []
    for node in model.nodes:
        within = bodies(node)
        for name, body in within.items():
            inner = _fused_body(model, node, name, passes)
            within[name] = replace(inner.model, inputs=body.inputs)
            applied += inner.applied
            refusals += inner.refusals
        nodes.append(replace(node, attributes={**node.attributes, **within}) if within else node)
    return FuseResult(replace(model, nodes=tuple(nodes)), tuple(applied), tuple(refusals))


def _fused_body(graph: Graph, node: Node, name: str, passes: tuple[Pass, ...]) -> FuseResult:
    """A graph of a loop or branch, fused; its inputs have the sizes that are told outside."""
    body: Graph = node.attributes[name]
    if not (graph.is_dense(*node.inputs) and body.is_dense(*(v.name for v in body.outputs))):
        return FuseResult(body, (), (Refusal(f"its {name} may see ragged values", node.label),))
    return fuse(sized(graph, node, name), passes)


def _exhaust(model: Graph, current: Pass) -> tuple[Graph, list[Applied], list[Refusal]]:
    applied: list[Applied] = []
    with guarded(lambda: f"{model.name}: pass {current.name}, {node.label}"):
        while True:
            refusals = []
            for node in model.nodes:
                match = current.match(model, node)
                if isinstance(match, Refusal):
                    refusals.append(Refusal(f"{current.name}: {match.reason}", match.where))
                elif match is not None:
                    model = current.rewrite(model, match)
                    made = model.producer(node.outputs[0])
                    applied.append(
                        Applied(current.name, node.outputs[0], made.origin if made else node.origin)
                    )
                    break
            else:
                return model, applied, refusals
