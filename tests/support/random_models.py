"""Random graphs as a whole: steps cut apart and put together, cells written out, bodies, feeds."""

from __future__ import annotations

from typing import Any

import numpy as np

from onernn import Graph, OnernnError, Session
from onernn.ir.graph import Value
from support.cells import HIDDEN, Unrolled
from support.random_graphs import (
    BINARY,
    SIZES,
    UNARY,
    Discard,
    Trial,
    random_sizes,
)
from support.random_layers import Layers


class Written(Unrolled):
    """The cells of `Unrolled` inside a graph that grows, over inputs of any width."""

    def __init__(self, builder: Models, width: int) -> None:
        self.builder, self.width, self.named = builder, width, dict[str, str]()
        self.emit = builder.emit  # type: ignore[method-assign]

    def weight(self, name: str, *shape: int) -> str:
        if name not in self.named:
            made = self.builder.numbers(*shape, scale=1 / np.sqrt(shape[-1]))
            self.named[name] = self.builder.constant(made)
        return self.named[name]

    def columns(self, name: str) -> int:
        return self.width

    @property
    def one(self) -> str:  # type: ignore[override]
        return self.builder.constant(np.float32(1))

    def step(self, kind: str, x: str, states: list[str], turned: bool) -> list[str]:
        if kind == "rnn":
            return [self.rnn(x, *states, act="Relu" if turned else "Tanh")]
        if kind == "gru":
            return [self.gru(x, *states, turned=turned, ones=turned)]
        if kind == "gru_before":
            return [self.gru_before(x, *states)]
        return list((self.lstm_apart if turned else self.lstm)(x, *states))


CELLS = ["rnn", "gru", "gru_before", "lstm", "lstm"]


class Models(Layers):
    """Adds what needs steps or bodies."""

    def cut(self, x: str, axis: int) -> list[str]:
        shape = self.array(x).shape
        count = shape[axis] if -len(shape) <= axis < len(shape) else 0
        if not count:
            raise Discard
        parts = self.emit("Split", x, outputs=count, axis=axis)
        parts = parts if isinstance(parts, tuple) else (parts,)
        return [self.emit("Squeeze", part, self.ints(axis)) for part in parts]

    def together(self, steps: list[str]) -> str:
        if self.chance(0.2):
            steps = steps[::-1]
        elif self.chance(0.1):
            steps = [self.pick(steps) for _ in steps]
        rank = self.array(steps[0]).ndim + 1
        axis = int(self.rng.integers(-rank, rank))
        rows = [self.emit("Unsqueeze", step, self.ints(axis)) for step in steps]
        return self.emit("Concat", *rows, axis=axis if self.chance(0.95) else 0)

    def steps(self) -> str:
        """A value cut into steps, each handled alike, perhaps with those of another one."""
        x = self.any()
        rank = self.array(x).ndim
        steps = self.cut(x, int(self.rng.integers(-rank, rank)))
        if len(steps) > 5:
            raise Discard
        for _ in range(int(self.rng.integers(4))):
            kind = self.pick("unary other vector rows number join flatten reverse".split())
            shape = self.array(steps[0]).shape
            if kind == "other":
                found = [n for n in self.values() if len(steps) in self.array(n).shape]
                y = self.pick(found or [x])
                others = self.cut(y, self.array(y).shape.index(len(steps)) if found else 0)
                if self.chance(0.2):
                    others = others[::-1]
                op = self.pick(BINARY)
                steps = [self.emit(op, *pair) for pair in zip(steps, others, strict=False)]
            elif kind == "join":
                axis = self.pick([-1, -1, 0, 1])
                part = self.pick([steps, steps[::-1], [self.constant(self.numbers(*shape))] * 9])
                pairs = zip(steps, part, strict=False)
                steps = [self.emit("Concat", *pair, axis=axis) for pair in pairs]
            elif kind in ("vector", "rows", "number"):
                drop = int(self.rng.integers(len(shape) + 1)) if kind == "rows" else -1
                sizes = shape[drop:] if kind != "number" else ()
                other, op = self.constant(self.numbers(*sizes)), self.pick(BINARY)
                steps = [self.emit(op, step, other) for step in steps]
            elif kind == "reverse":
                steps = steps[::-1]
            elif kind == "flatten":
                steps = [self.emit("Flatten", step, axis=1) for step in steps]
            else:
                op = self.pick(UNARY)
                steps = [self.emit(op, step) for step in steps]
        return self.together(steps) if self.chance(0.9) else steps[0]

    def begin(self, kind: str, batch: int) -> list[str]:
        """Initial states (N, HIDDEN): zeros, numbers, one row for all, inputs."""
        names = []
        for _ in range(2 if kind == "lstm" else 1):
            rows = self.pick([batch, batch, batch, 1])
            how = self.pick(["zeros", "numbers", "input", "value"])
            fitting = [n for n in self.values(2) if self.array(n).shape == (rows, HIDDEN)]
            if how == "value" and fitting and rows == batch > 1:
                names.append(self.pick(fitting))
            elif how == "input" and not self.depth:
                axis = "N" if rows == batch == self.sizes.batch and self.chance(0.7) else rows
                names.append(self.dense_input(axis, HIDDEN))
            else:
                numbers = self.numbers(rows, HIDDEN)
                names.append(self.constant(numbers * (how != "zeros")))
        return names

    def unrolled(self) -> str:
        """A cell written out for each step; its outputs together, or the last one."""
        x = self.any(3) if self.chance(0.8) else self.any()
        axis = int(self.rng.integers(self.array(x).ndim)) if self.chance(0.3) else self.pick([0, 1])
        xs = self.cut(x, axis)
        if len(xs) > 4 or self.array(xs[0]).ndim != 2:
            raise Discard
        if self.chance(0.3):
            xs = xs[::-1]
        kind, turned = self.pick(CELLS), self.chance(0.3)
        cell = Written(self, self.array(xs[0]).shape[1])
        states = self.begin(kind, len(self.array(xs[0])))
        outputs = []
        for step in xs:
            states = cell.step(kind, step, states, turned)
            outputs.append(states[0])
        if self.chance(0.2):
            other = self.pick(self.nodes[-6:]).outputs[0]  # a gate that somebody else reads
            self.emit("Neg", other)
        return self.together(outputs) if self.chance(0.7) else self.pick(states)

    def body(self, taken: list[str], own: dict[str, Any]) -> Models:
        """A graph to be filled, over values of its own and values of outside."""
        inner = Models(self.rng, self.depth + 1)
        inner.sizes, inner.layers = self.sizes, self.layers
        for name, value in [*own.items(), *((f"in_{n}", self.known[n]) for n in taken)]:
            inner.known[name] = value
            ragged = hasattr(value, "lod")
            array = value.data if ragged else np.asarray(value)
            told = self.pick([None, (None,) * array.ndim])
            depth = len(value.lod) if ragged else 0
            inner.inputs.append(Value(name, str(array.dtype), told, depth))
        return inner

    def taken(self) -> list[str]:
        found = self.values()
        if not found:
            raise Discard
        return list(dict.fromkeys(self.pick(found) for _ in range(self.pick([1, 1, 2]))))

    def condition(self) -> str:
        """One that is constant, that follows from sizes, that is given, or that numbers tell."""
        how = self.pick(["constant", "sizes", "given", "numbers", "numbers"])
        if how == "given" and not self.depth:
            made: str = self.input(lambda _, rng: np.array(rng.random() < 0.5), ())
        elif how == "sizes":
            count, op = self.emit("Size", self.any()), self.pick(["Equal", "Less", "Greater"])
            made = self.emit(op, count, self.constant(np.array(self.pick([0, 6, 12]))))
        elif how == "constant":
            made = self.constant(np.array(self.chance(0.5)))
        else:
            largest = self.emit("ReduceMax", self.any(ragged=False), keepdims=0)
            made = self.emit("Less", largest, self.constant(self.numbers()))
        return self.emit("Not", made) if self.chance(0.5) else made

    def branches(self) -> str:
        taken = [*self.taken(), self.constant(self.numbers())][: self.pick([2, 3])]
        names, graphs = [], []
        for _ in range(2):
            inner = self.body(taken, {})
            inner.grow(self.pick([1, 2]))
            last = [n for n in inner.values() if n in inner.made()] or inner.values()
            names.append(last[-1])
            graphs.append(inner)
        condition = self.condition()
        bodies = [g.graph([name]) for g, name in zip(graphs, names, strict=True)]
        attributes = {"then_branch": bodies[0], "else_branch": bodies[1], "then_taken": len(taken)}
        return self.emit("If", condition, *taken, *taken, **attributes)

    def loop(self) -> str:
        carried, taken = self.any(), self.taken()
        own = {"turn": np.array(0), "going": np.array(True), "c": self.known[carried]}
        inner = self.body(taken, own)
        with inner.attempt():
            inner.emit(self.pick(BINARY), "c", self.pick(inner.values()))
        inner.grow(1)
        shape = inner.array("c").shape
        after = [n for n in inner.values() if inner.array(n).shape == shape]
        after = [n for n in after if inner.is_ragged(n) == inner.is_ragged("c")]
        collected = [n for n in inner.values() if not inner.is_ragged(n)]
        names = ["going", after[-1], *([collected[-1]] if collected else [])]
        names = list(dict.fromkeys(names))
        turns = self.constant(np.array(self.pick([1, 2, 3])))
        attributes = {"body": inner.graph(names), "carried": 1}
        made = self.emit("Loop", turns, "", carried, *taken, outputs=len(names) - 1, **attributes)
        return made[-1] if isinstance(made, tuple) else made

    def scan(self) -> str:
        """A cell, or anything, over the elements of a value."""
        x = self.any(3) if self.chance(0.7) else self.any()
        back = int(self.chance(0.3))
        axis = self.pick([0, 0, 0, 1])
        if self.array(x).ndim <= axis or not self.array(x).shape[axis]:
            raise Discard
        element = np.moveaxis(self.array(x), axis, 0)[0]
        kind = self.pick(CELLS)
        states = self.begin(kind, len(element) if element.ndim else 1)
        own: dict[str, Any] = {f"s{at}": self.known[name] for at, name in enumerate(states)}
        goes = [x]
        if axis == 0 and element.ndim == 2 and not self.is_ragged(x) and self.chance(0.6):
            means = self.emit("ReduceMean", x, self.ints(2))
            goes.insert(0, self.emit("Greater", means, self.constant(np.float32(0))))
        masked = {"m": self.array(goes[0])[0]} if len(goes) > 1 else {}
        inner = self.body([], {**own, **masked, "e": element})
        if self.chance(0.75):
            e = inner.emit("Flatten", "e", axis=1) if self.chance(0.3) else "e"
            if inner.array(e).ndim != 2:
                raise Discard
            cell = Written(inner, inner.array(e).shape[1])
            after = cell.step(kind, e, list(own), self.chance(0.3))
        else:
            inner.grow(2)
            after = list(own)
        if masked:  # where the mask is false states stay
            after = [inner.emit("Where", "m", *pair) for pair in zip(after, own, strict=True)]
        results = [after[0] if self.chance(0.7) else self.pick(inner.values())]
        if self.chance(0.2):
            results = [inner.emit("Unsqueeze", results[0], inner.ints(self.pick([0, 1])))]
        outputs = [inner.emit("Identity", name) for name in (*after, *results)]
        attributes = {
            "body": inner.graph(outputs),
            "states": len(states),
            "scanned": len(goes),
            "input_axes": (axis,) * len(goes),
            "input_directions": (back,) * len(goes),
            "output_axes": (self.pick([0, 0, 0, 1]),),
            "output_directions": (back if self.chance(0.8) else 1 - back,),
        }
        made = self.emit("Scan", *states, *goes, outputs=len(outputs), **attributes)
        return self.pick(made)

    def counted(self) -> str:
        """A cell in a loop that reads step t of a value in turn t; there may be fewer turns."""
        x = self.any(3)
        turns = self.emit("Squeeze", self.emit("Shape", x, start=0, end=1), self.ints(0))
        if self.chance(0.2):
            turns = self.constant(np.array(max(len(self.array(x)) - 1, 1)))
        kind = self.pick(CELLS)
        states = self.begin(kind, self.array(x).shape[1])
        named: dict[str, Any] = {f"s{at}": self.known[name] for at, name in enumerate(states)}
        inner = self.body([x], {"turn": np.array(0), "going": np.array(True), **named})
        e = inner.emit("Gather", f"in_{x}", "turn", axis=int(self.chance(0.1)))
        if len(inner.array(e)) != self.array(x).shape[1]:
            raise Discard  # one row would broadcast: not told apart from a batch
        after = Written(inner, inner.array(e).shape[1]).step(kind, e, list(named), False)
        outputs = [inner.emit("Identity", name) for name in (*after, after[0])]
        body = inner.graph(["going", *outputs])
        attributes = {"body": body, "carried": len(states)}
        made = self.emit("Loop", turns, "", *states, x, outputs=len(outputs), **attributes)
        return self.pick(made)

    def convolved(self) -> None:
        """A convolution along the last axis, scaled and shifted."""
        x = self.any()
        if self.array(x).ndim == 2:
            x = self.emit("Unsqueeze", x, self.ints(1))
        if self.array(x).ndim != 3:
            raise Discard
        channels = self.pick(SIZES)
        weight = self.constant(self.numbers(channels, self.array(x).shape[1], 1))
        bias = [self.constant(self.numbers(channels))] if self.chance(0.5) else []
        made = self.emit("Conv", x, weight, *bias, pads=self.pick([(0, 0), (1, 0)]))
        for op in [self.pick(["BatchNormalization", "Mul", "Add"]) for _ in range(2)]:
            if self.chance(0.2):
                self.emit("Neg", made)
            if op == "BatchNormalization":
                rows = [self.numbers(channels) for _ in range(3)]
                rows.append(np.abs(self.numbers(channels)) + np.float32(0.5))
                made = self.emit(op, made, *map(self.constant, rows))
            else:
                sizes = self.pick([(), (channels, 1), (1, channels, 1), (1,)])
                made = self.emit(op, made, self.constant(self.numbers(*sizes)))

    def made(self) -> set[str]:
        return {name for node in self.nodes for name in node.outputs if name}

    def grow(self, motifs: int) -> None:
        """That many motifs more, as far as they run."""
        menu = [self.recurrent] * 3 + [self.stack] * 2 + [self.directions] * 4 + [self.framed]
        menu += [self.projected] * 4 + [self.viewed] * 4 + [self.binary] * 2 + [self.joined] * 2
        menu += [self.words] * (8 if any(map(self.is_ragged, self.known)) else 2)
        menu += [self.shaped, self.again, self.steps, self.steps, self.unrolled]
        if not self.depth:
            menu += [self.unrolled, self.steps, self.embedded] + [self.scan] * 3
            menu += [self.pick([self.loop, self.counted])]
        if self.depth < 2:
            menu += [self.branches]
        for _ in range(motifs):
            with self.attempt():
                self.pick(menu)()

    def graph(self, outputs: list[str]) -> Graph:
        values = tuple(map(Value, outputs))
        known = {value.name for value in self.inputs}
        constants = {k: v for k, v in self.constants.items() if k not in known}
        return Graph("random", tuple(self.inputs), values, tuple(self.nodes), constants).prune()


def random_trial(seed: int) -> Trial:
    """A graph that runs unfused, and one to three feeds for which it does."""
    rng = np.random.default_rng(seed)
    while True:
        builder = Models(rng)
        kind = builder.pick(["dense", "dense", "ragged", "ragged", "both"])
        if kind != "ragged":
            builder.dense_input("T", "N", builder.pick(SIZES))
        if kind != "dense":
            builder.ragged_input(builder.pick(SIZES), levels=builder.pick([1, 1, 1, 2]))
        if builder.chance(0.2):
            builder.dense_input("N", builder.pick(SIZES))
        builder.grow(int(rng.integers(2, 7)))
        if seed % 6 == 0:
            with builder.attempt():
                builder.convolved()
        made = list(builder.made())
        if not made:
            continue
        made.sort(key=list(builder.known).index)
        ends = {made[-1]} | {n for n in made if builder.chance(0.08)}
        used = {name for node in builder.nodes for name in node.inputs}
        ends |= {n for n in made if n not in used and builder.chance(0.6)}
        graph = builder.graph([name for name in made if name in ends])
        feeds = []
        # Later batches are of two and more: numbers of the first batch's size broadcast to one.
        for sizes in (builder.sizes, *(random_sizes(rng, lowest=2) for _ in range(2))):
            feed = {name: make(sizes, rng) for name, make in builder.makers.items()}
            try:
                Session(graph, backend="reference", passes=()).run(feed)
            except OnernnError:
                continue
            feeds.append(feed)
        if feeds:
            return Trial(graph, tuple(feeds))
