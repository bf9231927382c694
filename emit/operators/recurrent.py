"""Rnn: stacks and directions become runs of one cell's code, each with numbers of its own."""

from __future__ import annotations

from typing import Any

from onernn.core.errors import UnsupportedError
from onernn.core.graph import Node
from onernn.core.sizes import Shape, Size
from onernn.core.spec import RnnSpec
from onernn.core.weights import RnnWeights, layers_of
from onernn.emit.cells import CellCode
from onernn.emit.operators.registry import Code, Operator, operator
from onernn.emit.program import CTYPES, Program, kept
from onernn.emit.storing import Store


@operator("Rnn")
class Recurrent(Operator):
    attributes = ("spec", "weights")

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.spec: RnnSpec = node.attributes["spec"]
        self.layers: tuple[RnnWeights, ...] = layers_of(self.spec, node.attributes["weights"])
        self.runs: list[dict[str, Any]] = []

    def _batch(self, program: Program) -> tuple[Size, Size | None, Size]:
        """(words, time or None where ragged, sentences) of the input."""
        name = self.node.inputs[0]
        lod = program.lods.get(name)
        shape = program.shape(name)
        if len(shape) != (2 if lod else 3):
            raise UnsupportedError(f"of {len(shape)} axes{' under a LoD' * bool(lod)}")
        if lod:
            return lod.words, None, program.size(lod.count)
        return shape[0] * shape[1], shape[0], shape[1]

    def types(self, program: Program) -> tuple[str, ...]:
        dtype = self.layers[0].iter.dtype.name
        for name in filter(None, self.node.inputs):
            if program.dtypes[name] != dtype:
                raise UnsupportedError(
                    f"weights of {dtype}, but {name!r} of {program.dtypes[name]}"
                )
        return (dtype,) * len(self.node.outputs)

    def shapes(self, program: Program) -> tuple[Shape, ...]:
        node, spec = self.node, self.spec
        _, time, count = self._batch(program)
        shape = program.shape(node.inputs[0])
        program.same(shape[-1], Size.of(spec.input_size), node.label)
        stack = (Size.of(spec.layers), Size.of(spec.directions))
        widths = {"h": spec.recurrent_size, "c": spec.hidden_size}
        for at, state in enumerate(spec.cell.states, 1):
            if name := node.input(at):
                expected = (*stack, count, Size.of(widths[state]))
                given = program.shape(name)
                if len(given) != len(expected):
                    raise UnsupportedError(f"state {name!r} of {len(given)} axes, not ldnc")
                for size, other in zip(given, expected, strict=True):
                    program.same(size, other, f"{node.label}, state {name!r}")
        lod = program.lods.get(node.inputs[0])
        if lod:
            program.lods[node.outputs[0]] = lod
        if node.input(3):
            if program.lods.get(node.input(3), lod) != lod:
                raise UnsupportedError("attention under other offsets than its input")
            pairs = zip(program.shape(node.input(3)), (*shape[:-1], Size.of(1)), strict=True)
            for size, other in pairs:
                program.same(size, other, f"{node.label}, attention")
        if len(node.outputs) > 3 and node.outputs[3]:
            raise UnsupportedError("the cell state of every word as an output")
        y = (*shape[:-1], Size.of(spec.output_size))
        states = [(*stack, count, Size.of(widths[state])) for state in spec.cell.states]
        return (y, *states)[: len(node.outputs)]

    def initialize(self, program: Program, store: Store) -> None:
        spec, y = self.spec, self.node.outputs[0]
        words, _, _ = self._batch(program)
        dtype = self.layers[0].iter.dtype.name
        real = CTYPES[dtype]
        stored = real if dtype == "float64" else store.stored
        joined = spec.stacking == "framework"
        self._hold(program)
        for layer, weights in enumerate(self.layers):
            last = layer == spec.layers - 1
            for d in range(spec.directions):
                one = weights.part(0, d)
                inputs = spec.input_size if one.layer is None else one.layer.shape[2]
                code = CellCode.of(spec, inputs, one.layer is not None, real, stored)
                concat = spec.direction == "bidirectional_concat" and (last or joined)
                added = spec.direction == "bidirectional_sum" and d == 1 and (last or joined)
                width = spec.recurrent_size * (2 if concat else 1)
                # Directions that are not joined after each layer have inner layers of their own.
                side = "" if joined else f"_{d}"
                out = y if last else kept(y, f"layer{layer}{side}")
                if not last:
                    program.dtypes[out] = dtype
                    program.shapes[out] = (words, Size.of(width))
                title = f"layer {layer + 1} of {spec.layers}" if spec.layers > 1 else ""
                if spec.directions > 1:
                    title += ", " * bool(title) + ("right to left" if d else "left to right")
                self.runs.append(
                    {
                        "title": title,
                        "cell": code,
                        "fields": [
                            (store.add(array, narrow=narrow), stored if narrow else real)
                            for array, narrow in code.part(one).values()
                        ],
                        "x": self.node.inputs[0]
                        if not layer
                        else kept(y, f"layer{layer - 1}{side}"),
                        "y": out,
                        "width": width,
                        "offset": d * spec.recurrent_size if concat else 0,
                        "backwards": d == 1 or spec.direction == "right2left",
                        "added": added,
                        "at": layer * spec.directions + d,
                    }
                )

    def _hold(self, program: Program) -> None:
        """Memory of the states between two steps, and of final ones that the graph does not name."""
        spec, y = self.spec, self.node.outputs[0]
        if program.no_step:
            return
        _, _, count = self._batch(program)
        for state, width in (("h", spec.recurrent_size), ("c", spec.hidden_size)):
            if state in spec.cell.states:
                for name in (kept(y, f"held_{state}"), self._final(state)):
                    stack = (Size.of(spec.layers), Size.of(spec.directions))
                    program.shapes[name] = (*stack, count, Size.of(width))
                    program.dtypes[name] = program.dtypes[y]

    def _final(self, state: str) -> str:
        at = 1 + "hc".index(state)
        named = self.node.outputs[at] if at < len(self.node.outputs) else ""
        return named or kept(self.node.outputs[0], f"final_{state}")

    def reads(self, program: Program) -> tuple[str, ...]:
        return tuple(name for name in self.node.inputs if name)

    def code(self, program: Program) -> list[Code]:
        node, spec = self.node, self.spec
        words, time, count = self._batch(program)
        sides = {"h": spec.recurrent_size, "c": spec.hidden_size}
        states = [
            {
                "name": state,
                "given": node.input(at),
                "final": self._final(state),
                "held": kept(node.outputs[0], f"held_{state}"),
                "width": width,
            }
            for at, (state, width) in enumerate(sides.items(), 1)
            if state in spec.cell.states
        ]
        batch = {"time": time, "count": count, "lod": program.lods.get(node.inputs[0])}
        return [
            Code(
                "rnn",
                {
                    "runs": self.runs,
                    "batch": batch,
                    "states": states,
                    "attention": node.input(3),
                    "count": count,
                    "parts": spec.layers * spec.directions,
                    "real": CTYPES[program.dtypes[node.inputs[0]]],
                },
            )
        ]

    def mixes(self, program: Program) -> list[Size]:
        """Left to right a sentence may come word by word: the states are held."""
        _, time, _ = self._batch(program)
        if time is None:
            return []
        return [] if self.spec.direction == "left2right" else [time]
