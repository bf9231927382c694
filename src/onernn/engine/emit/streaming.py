"""Decides whether a model can run step by step, and which steps each call must keep for later
calls.

A value may have more steps than a call takes: ``early`` steps before the call's first step, which a
Pad added, and ``late`` steps after its last step, which no output may contain. In a streaming call,
the last steps of the previous calls replace the padding. A convolution without padding outputs
fewer steps: it removes early steps. A slice removes late steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

import numpy as np

from onernn.engine.operators.operator_code import OperatorCode
from onernn.engine.program import DelayLine, Layer, Program, State, name_kept, sizes_in
from onernn.fuse_passes.rewriting import fresh
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import Graph, Node
from onernn.ir.records import dataclass
from onernn.ir.types import Size, dense, volume
from onernn.ops import OPERATORS
from onernn.ops.windows import windows_of

_Span = tuple[int, int]  # (early, late)


def pads_apart(graph: Graph) -> Graph:
    """Returns the graph in which each causal convolution along an open axis gets its padding from a
    separate Pad node.
    """
    nodes, constants = list[Node](), dict(graph.constants)
    for node in graph.nodes:
        pads = _looks_back(graph, node) if node.op == "Conv" else None
        if pads is not None:
            padded = fresh(graph, f"{node.outputs[0]}/padded")
            constants[pads_name := f"{padded}/pads"] = np.array([0, 0, *pads[0], 0, 0, *pads[1]])
            nodes.append(Node("Pad", (node.inputs[0], pads_name), (padded,), {}, node.origin))
            attributes = {**node.attributes, "pads": (0,) * 2 * len(pads[0])}
            node = replace(node, inputs=(padded, *node.inputs[1:]), attributes=attributes)
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _looks_back(graph: Graph, node: Node) -> tuple[list[int], list[int]] | None:
    x, kernel = graph.types[node.inputs[0]], graph.types[node.inputs[1]].counts[2:]
    sizes = [size for size in kernel if size is not None]
    if not sizes or len(sizes) != len(kernel) or x.rank != len(kernel) + 2:
        return None
    windows = windows_of(node.attrs, sizes)
    for window, size in zip(windows, x.counts[2:], strict=True):
        if size is None and window.before and window.before == window.extent - 1:
            return [each.before for each in windows], [each.after for each in windows]
    return None


def prepare_step(program: Program) -> str:
    """Returns why the model cannot run step by step; "" if it can. Adds memory for previous
    steps.
    """
    try:
        steps = _Steps(program)
        reason = steps.why_not()
    except UnsupportedError as error:
        return str(error)
    if not reason:
        for each in steps.delays:
            codes = next(c for c in program.codes if each.out in c.node.outputs)
            codes.codes.append(each)
            shape = (each.rows, each.width)
            program.memory[each.held] = dense(program.dtype(each.out), shape)
    return reason


@dataclass
class _Steps:
    program: Program
    spans: dict[str, _Span] = field(default_factory=dict)
    delays: list[DelayLine] = field(default_factory=list)

    def why_not(self) -> str:
        program = self.program
        if any(each.mark for each in program.codes):
            return "results depend on a condition, which may read all steps"
        shapes = [found.shape or () for found in program.types.values()]
        layers = any(each.node.op == "Rnn" for each in program.codes)
        if not any(_tells_words(program, size) for shape in shapes for size in shape if size):
            if not layers:
                return "the model has no recurrent layer, and no input has T steps"
            return "the number of steps is fixed, or sequences come with offsets"
        codes = {id(each.node): each for each in program.codes}
        read = {name for each in program.codes for name in each.reads}
        read |= {value.name for value in program.graph.outputs}
        ends = set[str]()  # values that are known only after the last step
        for node in program.graph.nodes:
            code = codes.get(id(node))
            layers_of = [each for each in (code.codes if code else ()) if isinstance(each, Layer)]
            going = [layer for layer in layers_of if goes_on(program, layer)]
            made = [name for name in node.outputs if name]
            if not ends.isdisjoint(node.inputs):
                sizes = [size for name in made for size in program.shape(name)]
                if going or any(_tells_words(program, each) for each in sizes):
                    return f"{node.label} reads a state after all steps"
                ends.update(made)
            ends |= {state.final for layer in going for state in layer.states}
            if code and (why := self._follow(OperatorCode(program, node), going)):
                return f"{node.label} {why}"
            known = () if code else read.intersection(made)
            sizes = [size for name in known for size in sizes_in(program, name)]
            if any(_tells_words(program, size) for size in sizes):
                return f"{node.label} computes with the number of steps"
        for value in program.graph.outputs:
            if self.spans.get(value.name):
                return f"{value.name!r} has more steps than the input"
        if not layers and not self.delays:
            return "the model has no recurrent layer, and reads no earlier step"
        return ""

    def _follow(self, op: OperatorCode, going: list[Layer]) -> str:
        node = op.node
        timed = [name for name in node.inputs if name and self._has_words(name)]
        spans = {self.spans.get(name, (0, 0)) for name in timed}
        span = min(spans, default=(0, 0))
        if len(spans) > 1 or (going and span != (0, 0)):
            return "reads steps that are not known at the same time"
        if self._meet(op):
            moved = self._find_moved(op, *span)
            if moved is None:
                return "reads all steps"
            span = moved
        if span != (0, 0):
            self.spans |= {name: span for name in node.outputs if name and self._has_words(name)}
        return ""

    def _has_words(self, name: str) -> bool:
        return any(_tells_words(self.program, size) for size in self.program.shape(name))

    def _axes(self, shape: Sequence[Size | None]) -> list[int]:
        sizes = enumerate(shape)
        return [axis for axis, size in sizes if size and _tells_words(self.program, size)]

    def _meet(self, op: OperatorCode) -> bool:
        record, shapes = OPERATORS[op.node.op], [(t and t.shape) or () for t in op.types]
        if record.kind == "layer":
            return op.attrs.spec.direction != "left2right" and bool(self._axes(op.shape()[:1]))
        if record.kind == "view":
            before_and_after = op.shape(), op.out()[1]
            parts = [volume(shape[:at]) for shape in before_and_after for at in self._axes(shape)]
            return len(parts) > 2 or len(set(parts)) > 1
        paths = record.paths and record.paths(op.attrs, *op.types)
        if paths is None:
            return any(map(self._axes, [*shapes, op.out()[1]]))
        places = {
            path[axis] if path else None
            for path, shape in zip(paths, shapes, strict=False)
            for axis in self._axes(shape)
        }
        return None in places or len(places) > 1

    def _find_moved(self, op: OperatorCode, early: int, late: int) -> _Span | None:
        """Returns the early and late steps of the output of an operator over a window of steps;
        None if the window contains later steps than the result's step, or is not known.
        """
        shape, reach = op.shape(), OPERATORS[op.node.op].reach
        axes = self._axes(shape)
        if reach is None or len(axes) != 1 or len(list(filter(None, op.node.outputs))) > 1:
            return None
        (axis,) = axes
        window = reach(op.attrs, axis, *op.types)
        if window is None or window.stride != 1 or window.same:
            return None
        if window.before > 0:
            if early or window.after < 0 or window.extent > 1:
                return None
            self._hold(op, axis, window.before, shape[axis] - late)
        early, late = early + window.before + 1 - window.extent, late + window.after
        if late < 0:  # more steps are removed than were late: this delays the result
            early, late = early + late, 0
        return (early, late) if early >= 0 else None

    def _hold(self, op: OperatorCode, axis: int, before: int, now: Size) -> None:
        """Records that the last steps of the previous calls replace the padding before the first
        step.
        """
        name, shape = op.out()
        inner = volume(shape[axis + 1 :])
        sizes = inner * shape[axis], inner * before, inner * now
        self.delays.append(DelayLine(name, name_kept(name, "held"), volume(shape[:axis]), *sizes))


def goes_on(program: Program, layer: Layer) -> bool:
    """Returns whether a layer continues from its state after the previous call. All other layers
    get all of their steps in each call.
    """
    return not program.no_step and layer.time is not None and _tells_words(program, layer.time)


def list_kept_states(program: Program) -> list[State]:
    """Returns the states that a call keeps for the next call."""
    layers = (step for step in program.steps if isinstance(step, Layer))
    return [state for layer in layers if goes_on(program, layer) for state in layer.states]


def _tells_words(program: Program, size: Size) -> bool:
    return "T" in program.size(size).names
