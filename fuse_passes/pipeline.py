"""Applies the passes in their one, explicit order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from onernn.core.errors import Refusal
from onernn.core.graph import Graph, NativeOp, Node
from onernn.fuse_passes.bidirectional import PairDirections
from onernn.fuse_passes.linear_rnn import FuseLinearRnn
from onernn.fuse_passes.sequence_views import DropSequenceViews


class Pass(Protocol):
    """``match`` decides and explains, ``rewrite`` only builds."""

    name: str

    def match(self, graph: Graph, node: Node) -> Any | Refusal | None:
        """What to rewrite at this node, why not, or None where it is not this pass's business."""

    def rewrite(self, graph: Graph, match: Any) -> Graph:
        """A new graph; the old one and its constants stay as they are."""


# Views first: they hide projections from the rnn behind them. Pairs last: both halves fused alike.
PASSES: tuple[Pass, ...] = (DropSequenceViews(), FuseLinearRnn(), PairDirections())


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


def fuse(model: Graph, passes: tuple[Pass, ...] = PASSES) -> FuseResult:
    """Runs each pass until it finds nothing more; running it again changes nothing."""
    applied: list[Applied] = []
    refusals: list[Refusal] = []
    for current in passes:
        model, fired, refused = _exhaust(model, current)
        applied += fired
        refusals += refused
    return FuseResult(model, tuple(applied), tuple(refusals))


def _exhaust(model: Graph, current: Pass) -> tuple[Graph, list[Applied], list[Refusal]]:
    applied: list[Applied] = []
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
