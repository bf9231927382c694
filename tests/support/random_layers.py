"""Recurrent layers for random graphs, and what stands in front of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from onernn import Cell, Ragged, RnnSpec
from onernn.reorders.gates import GateLayout
from support.layers import random_weights
from support.random_graphs import CHANNELS, SIZES, Discard, Sizes
from support.random_views import Views

DIRECTIONS: list[Any] = "left2right right2left bidirectional_concat bidirectional_sum".split()


class Layers(Views):
    """Adds layers, alone, stacked, in pairs, behind projections and tables."""

    def spec(self, width: int, **given: Any) -> RnnSpec:
        if not width:
            raise Discard
        cell = given.pop("cell", None) or self.pick(list(Cell)[:6] * 3 + list(Cell)[6:])
        hidden = given.pop("hidden", None) or (width if self.chance(0.4) else self.pick(SIZES))
        more: dict[str, Any] = {"direction": self.pick(DIRECTIONS)}
        if self.chance(0.25):
            more["layers"] = 2
        if cell is Cell.LSTM:
            more["peephole"] = self.chance(0.2)
            more["projection_size"] = self.pick(SIZES) if self.chance(0.2) else None
            more["cell_clip"] = (-0.5, 0.4) if self.chance(0.1) else None
        if cell.is_gru and self.chance(0.1):
            more["update"] = "replace"
        if self.chance(0.2):
            more["stacking"] = "onednn"
        return RnnSpec(cell, width, hidden, **{**more, **given})

    def weights(self, spec: RnnSpec, projected: bool = False) -> Any:
        for other, weights in self.layers:
            if other == spec and self.chance(0.5):
                return weights
        made = random_weights(spec, int(self.rng.integers(1000)), projected=projected)
        if self.chance(0.25):
            made = [replace(each, bias=None) for each in made]
        whole: Any = made[0] if len(made) == 1 and self.chance(0.9) else made
        if not projected:
            self.layers.append((spec, whole))
        return whole

    def state(self, spec: RnnSpec, x: str) -> tuple[str, ...]:
        """Absent, constant, an input, or what another layer ended with."""
        axis, batch = self.sentences(x)
        widths = {"h": spec.recurrent_size, "c": spec.hidden_size}
        kind, names = self.pick(["none", "none", "none", "constant", "input", "other"]), []
        for part in spec.cell.states:
            shape = (spec.layers, spec.directions, batch, widths[part])
            fitting = [n for n in self.values(4, False) if self.array(n).shape == shape]
            if kind == "none" or (part == "c" and self.chance(0.2)):
                names.append("")
            elif kind == "other" and fitting:
                names.append(self.pick(fitting))
            elif kind == "input" and not self.depth:
                names.append(self.dense_input(*shape[:2], axis, shape[3]))
            else:
                names.append(self.constant(self.numbers(*shape)))
        return tuple(names) if any(names) or self.chance(0.5) else ()

    def layer(self, x: str, spec: RnnSpec, weights: Any, states: tuple[str, ...] = ()) -> str:
        names = [self.name("y")]
        parts = (*spec.cell.states, "cells") if self.wants_cells(spec) else spec.cell.states
        for part in parts[: int(self.rng.integers(5))]:
            names.append(f"{names[0]}_{part}" if part == "cells" or self.chance(0.6) else "")
        if spec.cell.has_attention:
            name = self.attention(x)
            states = (*states, "", "")[:2] + (name,)
        self.add("Rnn", (x, *states), tuple(names), {"spec": spec, "weights": weights})
        return names[0]

    def wants_cells(self, spec: RnnSpec) -> bool:
        """Whether the cell state of every word is asked for, where there is one."""
        return spec.cell is Cell.LSTM and spec.layers * spec.directions == 1 and self.chance(0.4)

    def attention(self, x: str) -> str:
        scale = self.emit("ReduceMean", x, self.ints(-1), keepdims=1)
        return self.emit("Sigmoid", scale)

    def recurrent(self) -> str:
        x = self.sequence()
        spec = self.spec(self.array(x).shape[-1])
        return self.layer(x, spec, self.weights(spec), self.state(spec, x))

    def stack(self) -> str:
        """Layers of one kind above one another, perhaps with something between."""
        x = self.sequence()
        given: dict[str, Any] = {"layers": 1, "cell": self.pick(list(Cell)[:6])}
        spec = self.spec(self.array(x).shape[-1], **given)
        states = self.chance(0.3)
        for _ in range(2):
            x = self.layer(x, spec, self.weights(spec), self.state(spec, x) if states else ())
            for _ in range(int(self.rng.integers(3))):
                x = self.view(x)
            spec = replace(spec, input_size=max(1, *self.array(x).shape[-1:], 0))
        return self.layer(x, spec, self.weights(spec))

    def framed(self) -> str:
        """A layer, its output as ONNX has it, and back."""
        x, swap = self.recurrent(), (0, 2, 1, 3)
        shape = (0, 0, self.pick([1, 2, 2, -1]), -1)
        views = [
            ("Reshape", shape),
            ("Transpose", swap),
            ("Transpose", swap),
            ("Reshape", (0, 0, -1)),
        ]
        if self.chance(0.2):
            del views[int(self.rng.integers(3))]
        for op, given in views:
            if op == "Reshape":
                x = self.emit(op, x, self.ints(*given))
            else:
                x = self.emit(op, x, perm=given)
        spec = self.spec(self.array(x).shape[-1])
        return self.layer(x, spec, self.weights(spec))

    def directions(self) -> str:
        """Two layers over one value, joined."""
        x = self.sequence()
        spec = self.spec(self.array(x).shape[-1], direction="left2right", layers=1)
        back = replace(spec, direction="right2left")
        pair = [self.layer(x, s, self.weights(s), self.state(spec, x)) for s in (spec, back)]
        if self.chance(0.1):
            pair.reverse()
        if self.chance(0.3):
            pair = [self.emit("Identity", each) for each in pair]
        if self.chance(0.3):
            pair = [self.swapped(each) for each in pair]
        return self.emit("Concat", *pair, axis=self.axis(pair[0]))

    def axis(self, x: str) -> int:
        rank = self.array(x).ndim
        return (
            int(self.rng.integers(-rank, rank)) if self.chance(0.5) else self.pick([-1, rank - 1])
        )

    def linear(self, x: str, columns: int) -> str:
        rows = self.array(x).shape[-1]
        if not rows:
            raise Discard
        bound, flipped = 1 / np.sqrt(rows), self.chance(0.3)
        kind = self.pick(["MatMul", "MatMul", "Gemm"]) if self.array(x).ndim == 2 else "MatMul"
        shape = (columns, rows) if kind == "Gemm" and flipped else (rows, columns)
        weight = self.constant(self.numbers(*shape, scale=bound))
        bias = self.pick([(columns,), (1, columns), (1, 1, columns), (), (1,), None, None])
        if kind == "Gemm":
            terms = (self.constant(self.numbers(columns)),) if bias else ()
            made = self.emit("Gemm", x, weight, *terms, **({"transB": 1} if flipped else {}))
            return made
        made = self.emit("MatMul", x, weight)
        if bias is None:
            return made
        terms = [made, self.constant(self.numbers(*bias))]
        return self.emit("Add", *(terms[::-1] if self.chance(0.3) else terms))

    def projected(self) -> str:
        """A layer behind a projection, which is its input weights or in front of them."""
        x = self.sequence()
        if self.chance(0.4):
            spec = self.spec(self.pick(CHANNELS))
            made = self.linear(x, spec.input_size)
            return self.layer(made, spec, self.weights(spec), self.state(spec, made))
        hidden, cell = self.pick(SIZES), self.pick(list(Cell)[:6])
        spec = self.spec(len(cell.gates) * hidden, cell=cell, hidden=hidden, layers=1)
        made = self.linear(x, spec.input_size)
        if self.chance(0.85):
            order = tuple(int(g) for g in self.rng.permutation(spec.gates))
            signs = tuple(int(s) for s in self.rng.choice([-1, 1, 1], spec.gates))
            made = self.emit("GateLayout", made, layout=GateLayout(order, signs))
        for _ in range(self.pick([1, 1, 2])):  # two layers may read one projection
            last = self.layer(made, spec, self.weights(spec, True), self.state(spec, made))
        return last

    def embedded(self) -> str:
        width = self.pick([2, 3, 512])
        table = self.constant(self.numbers(5, width))
        if self.chance(0.5):

            def words(sizes: Sizes, rng: np.random.Generator) -> Ragged:
                shape = sizes.of(("W",))
                return Ragged(rng.integers(0, 5, shape), np.cumsum([0, *sizes.lengths]))

            ids = self.input(words, ("W",))
        else:
            axes = ("T", "N")
            ids = self.input(lambda sizes, rng: rng.integers(0, 5, sizes.of(axes)), axes)
        x = self.emit("Gather", table, ids, **({"axis": 0} if self.chance(0.5) else {}))
        spec = self.spec(width)
        return self.layer(x, spec, self.weights(spec), self.state(spec, x))

    def words(self) -> str:
        """Into, out of and across offsets."""
        kind = self.pick(
            "data like pad unpad pool reverse expand context softmax crf fill views views".split()
        )
        if kind == "unpad":
            x, major = self.any(3, False), int(self.chance(0.5))
            time, batch = self.array(x).shape[:2][:: 1 if major else -1]
            lengths = self.constant(self.rng.integers(0, time + 1, batch))
            made = self.emit("SequenceUnpad", x, lengths, time_major=major)
            if self.chance(0.5):
                return made
            spec = self.spec(self.array(made).shape[-1])
            y = self.layer(made, spec, self.weights(spec))
            like = self.pick([x, x, ""])
            padded = self.emit("SequencePad", y, like, time_major=major)
            if self.chance(0.3):
                return padded
            return self.emit("SequenceUnpad", padded, lengths, time_major=major)
        x = self.any(None, True)
        if kind == "views":
            y = self.emit("SequenceData", x)
            for _ in range(int(self.rng.integers(3))):
                y = self.linear(y, self.pick(CHANNELS)) if self.chance(0.5) else self.view(y)
            return self.emit("SequenceLike", y, self.pick([x, x, self.any(None, True)]))
        if kind == "like":
            return self.emit("SequenceLike", self.any(), x)
        if kind == "pad":
            return self.emit("SequencePad", x, time_major=int(self.chance(0.5)))
        if kind == "pool":
            return self.emit("SequencePool", x, kind=self.pick(["sum", "max", "last"]), empty=0.0)
        if kind == "expand":
            return self.emit("SequenceExpand", self.any(), x, level=self.pick([0, 0, -1]))
        if kind == "context":
            return self.emit("SequenceContext", x, length=2, start=self.pick([-1, 0]))
        if kind == "fill":
            return self.emit("SequenceFill", x, self.constant(np.float32(0.5)))
        op = {"data": "Data", "reverse": "Reverse", "softmax": "Softmax", "crf": "Concat"}[kind]
        return self.emit(f"Sequence{op}", x)
