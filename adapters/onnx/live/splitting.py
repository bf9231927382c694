"""A ModelProto cut at its recurrent nodes into models of ONNX Runtime's and ours."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from onernn.adapters.folding import FOLDED
from onernn.adapters.onnx.messages import reads
from onernn.adapters.repacking import Repacked
from onernn.adapters.requirements import require
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.fuse_passes.views import is_view
from onernn.runtime.session import Session

RECURRENT = ("RNN", "GRU", "LSTM")


@dataclass(frozen=True)
class Step:
    """A part of the model: what runs it, and the values it takes and gives.

    ``overridable``: its initializers in whose place a caller may give other values; ``rebound``
    makes the session of ours that runs with these, by their names.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ours: Session | None
    theirs: Any
    overridable: tuple[str, ...] = ()
    rebound: Repacked[tuple[str, ...], Session] | None = None


def is_recurrent(node: Any) -> bool:
    return node.op_type in RECURRENT and node.domain in ("", "ai.onnx")


def named(node: Any) -> str:
    """What messages call a node."""
    return f"node {node.name or next(filter(None, node.output))!r} ({node.op_type})"


def recurrent_inside(node: Any) -> Iterator[tuple[Any, Any]]:
    """The recurrent nodes in the bodies of a node, each behind the node that it is the body of."""
    for body in (each.g for each in node.attribute if each.HasField("g")):
        for inner in body.node:
            if is_recurrent(inner):
                yield node, inner
            yield from recurrent_inside(inner)


class Split:
    """A typed model, and the parts of it as models of their own.

    Views behind a recurrent node go with it: they may undo each other, and what ONNX Runtime
    takes over has no strange order of axes then, so that nothing is copied.
    """

    def __init__(self, onnx: Any, model: Any, session_options: Any) -> None:
        self._onnx, self._model, self._options = onnx, model, session_options
        graph = model.graph
        self._nodes: Sequence[Any] = graph.node
        self._results = {value.name for value in graph.output}
        self._constants = {each.name: each for each in graph.initializer}
        self.overridable = overridable(model)
        self._types = {v.name: v for v in (*graph.value_info, *graph.input, *graph.output)}

    @cached_property
    def _fixed(self) -> set[str]:
        made = {name for n in self._nodes if n.op_type == "Constant" for name in n.output}
        return made | set(self._constants)

    def _group(self, at: int) -> list[int]:
        """The places of a recurrent node and of the views behind it."""
        group, made = [at], set(self._nodes[at].output) - {""}
        for place in range(at + 1, len(self._nodes)):
            node = self._nodes[place]
            if is_view(node.op_type) and node.domain in ("", "ai.onnx") and node.input[0] in made:
                if self._fixed.issuperset(filter(None, node.input[1:])):
                    group.append(place)
                    made.update(node.output)
        return group

    def alone(self, at: int, bound: Collection[str] = ()) -> Any:
        """A model of one recurrent node and the views behind it.

        Weights that other nodes make out of constants come along, but for those ``bound``.
        """
        group = self._group(at)
        nodes = [self._nodes[place] for place in group]
        first = nodes[0]
        wanted = {name for name in (*first.input[1:4], *first.input[7:8]) if name}
        wanted.update(name for node in nodes[1:] for name in node.input[1:])
        made: set[str] = set()
        before: list[Any] = []
        for each in reversed(self._nodes):
            if wanted & set(each.output) and each.op_type in {*FOLDED, "Constant"}:
                before.insert(0, each)
                made.update(each.output)
                wanted.update(each.input)
        given = dict.fromkeys(name for node in nodes for name in node.output if name)
        taken = dict.fromkeys(name for each in (*before, *nodes) for name in each.input if name)
        inputs = [n for n in taken if n not in made and n not in given and n not in self._constants]
        outside = (node for place, node in enumerate(self._nodes) if place not in group)
        seen = {name for node in outside for name in reads(node)} | self._results
        outputs = [name for name in given if name in seen] or [*given]
        return self._part([*before, *nodes], inputs, outputs, bound)

    def _part(
        self,
        nodes: Sequence[Any],
        inputs: Sequence[str],
        outputs: Sequence[str],
        bound: Collection[str] = (),
    ) -> Any:
        helper = self._onnx.helper
        used = {name for node in nodes for name in reads(node)} | set(outputs)
        kept = [a for name, a in self._constants.items() if name in used and name not in bound]
        inputs = [*inputs, *(each.name for each in kept if each.name in self.overridable)]
        graph = helper.make_graph(
            nodes,
            "part",
            [self._typed(name) for name in inputs],
            [
                self._types.get(name) or helper.make_empty_tensor_value_info(name)
                for name in outputs
            ],
            kept,
        )
        return helper.make_model(
            graph,
            opset_imports=self._model.opset_import,
            ir_version=self._model.ir_version,
            functions=self._model.functions,
        )

    def _typed(self, name: str) -> Any:
        found = self._types.get(name)
        if found is None or not found.type.tensor_type.elem_type:
            raise UnsupportedError(
                f"the type of {name!r} cannot be inferred, the model is not split"
            )
        return found

    def steps(
        self,
        ours: Mapping[int, Session],
        make: Callable[[int, tuple[str, ...], Sequence[Array]], Session],
    ) -> list[Step]:
        """The parts in the order in which they run: levels, each ours behind theirs.

        ``ours``: what runs the recurrent node at a place; ``make`` makes it anew with other values
        bound to names.
        """
        heads = {place: at for at in ours for place in self._group(at)}
        level: dict[str, int] = {}
        levels: list[int] = []
        for place, node in enumerate(self._nodes):
            head = heads.get(place, place)
            here = max((level.get(name, 0) for name in reads(node)), default=0)
            levels.append(here if head == place else levels[head])
            level.update(dict.fromkeys(node.output, levels[-1] + (place in heads)))
        steps = []
        for here in range(max(levels, default=0) + 1):
            there = [n for k, n in enumerate(self._nodes) if levels[k] == here and k not in heads]
            later = {
                name
                for place, node in enumerate(self._nodes)
                if levels[place] > here or place in heads
                for name in reads(node)
            }
            if step := self._theirs(there, later | self._results):
                steps.append(step)
            for at in (at for at in ours if levels[at] == here):
                whole = ours[at].graph
                takes, gives = (tuple(v.name for v in s) for s in (whole.inputs, whole.outputs))
                own = (
                    {value.name for value in self.alone(at).graph.input} if self.overridable else ()
                )
                free = tuple(name for name in self.overridable if name in own)
                again = Repacked(partial(make, at)) if free else None
                steps.append(Step(takes, gives, ours[at], None, free, again))
        return steps

    def _theirs(self, nodes: Sequence[Any], wanted: set[str]) -> Step | None:
        """What ONNX Runtime runs; None where nobody wants anything of it."""
        made = dict.fromkeys(name for node in nodes for name in node.output if name)
        outputs = tuple(name for name in made if name in wanted)
        if not outputs:
            return None
        taken = dict.fromkeys(name for node in nodes for name in reads(node))
        inputs = tuple(n for n in taken if n not in made and n not in self._constants)
        runtime = require("onnxruntime", "onnx")
        session = runtime.InferenceSession(
            self._part(nodes, inputs, outputs).SerializeToString(),
            self._options or runtime.SessionOptions(),
            providers=["CPUExecutionProvider"],
        )
        free = tuple(name for name in self.overridable if name in taken)
        return Step(inputs, outputs, None, session, free)


def overridable(model: Any) -> dict[str, Any]:
    """The inputs that have an initializer, as the model declares them: callers may give others.

    Before version 4 of the format all initializers were inputs, and constants nevertheless.
    """
    names = {each.name for each in model.graph.initializer} if model.ir_version >= 4 else ()
    return {value.name: value for value in model.graph.input if value.name in names}
