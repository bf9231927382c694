"""Recurrent cells written out in canonical operators, one step after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from onernn import Graph
from onernn.ir.graph import NativeOp, Node
from support.arrays import uniform
from support.graphs import small_graph

BATCH, INPUT, HIDDEN = 3, 4, 2


class Unrolled:
    """A graph under construction over x (N, T, I) and h0, c0 (N, H); weights by name."""

    one = "one"

    def __init__(self, steps: int, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.steps, self.nodes = steps, list[Node]()
        self.constants: dict[str, np.ndarray] = {"one": np.array(1, np.float32)}
        self._count = 0
        self.axis = self.ints(1)
        self.x = self.cut("x", steps)

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def constant(self, array: np.ndarray, name: str = "") -> str:
        chosen = name or f"k{len(self.constants)}"
        self.constants[chosen] = array
        return chosen

    def weight(self, name: str, *shape: int) -> str:
        """Made once, by name."""
        if name not in self.constants:
            self.constant(uniform(*shape, seed=self.rng, bound=1 / np.sqrt(shape[-1])), name)
        return name

    def emit(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        self._count += 1
        names = tuple(f"v{self._count}" + (f".{k}" if outputs > 1 else "") for k in range(outputs))
        origin = (NativeOp(self._count, f"native_{op}"),)
        self.nodes.append(Node(op, inputs, names, attributes, origin))
        return names if outputs > 1 else names[0]

    def cut(self, value: str, steps: int, axis: int = 1) -> list[str]:
        parts = self.emit("Split", value, outputs=max(steps, 2) if steps > 1 else 1, axis=axis)
        parts = parts if isinstance(parts, tuple) else (parts,)
        return [self.emit("Squeeze", part, self.ints(axis)) for part in parts]

    def term(self, name: str) -> Term:
        return Term(self, name)

    def fc(self, x: str, name: str, rows: int, columns: int) -> Term:
        weight = self.weight(f"{name}_w", rows, columns)
        bias = self.weight(f"{name}_b", rows)
        return self.term(self.emit("Gemm", x, weight, bias, transB=1))

    def split(self, value: Term, count: int) -> list[Term]:
        return [self.term(part) for part in self.emit("Split", value.name, outputs=count, axis=1)]

    def stacked(self, steps: list[str], axis: int = 1) -> str:
        at = self.ints(axis)
        rows = [self.emit("Unsqueeze", step, at) for step in steps]
        return self.emit("Concat", *rows, axis=axis)

    def graph(self, *outputs: str) -> Graph:
        shapes = {"x": (None, self.steps, INPUT), "h0": (None, HIDDEN), "c0": (None, HIDDEN)}
        return small_graph(self.nodes, " ".join(outputs), self.constants, **shapes).prune()

    # The cells, each as a framework writes it.

    def rnn(self, x: str, h: str, name: str = "rnn", act: str = "Tanh") -> str:
        of_x = self.fc(x, f"{name}_x", HIDDEN, self.columns(name))
        return (of_x + self.fc(h, f"{name}_h", HIDDEN, HIDDEN)).emit(act).name

    def columns(self, name: str) -> int:
        return HIDDEN if name.startswith("upper") else INPUT

    def lstm(
        self, x: str, h: str, c: str, name: str = "lstm", order: str = "ifgo"
    ) -> tuple[str, str]:
        """Gates in one projection, in any order."""
        of_x = self.fc(x, f"{name}_x", 4 * HIDDEN, self.columns(name))
        gates = self.split(of_x + self.fc(h, f"{name}_h", 4 * HIDDEN, HIDDEN), 4)
        cut = dict(zip(order, gates, strict=True))
        o, i, f, g = (cut[gate].emit("Tanh" if gate == "g" else "Sigmoid") for gate in "oifg")
        new = f * self.term(c) + i * g
        return (o * new.emit("Tanh")).name, new.name

    def apart(self, x: str, h: str, name: str, gate: str) -> Term:
        """A projection of its own for each gate, and the bias added behind."""
        of_x = self.fc(x, f"{name}_{gate}_x", HIDDEN, self.columns(name))
        of_h = self.emit("Gemm", h, self.weight(f"{name}_{gate}_u", HIDDEN, HIDDEN))
        return self.term(self.weight(f"{name}_{gate}_extra", HIDDEN)) + (self.term(of_h) + of_x)

    def lstm_apart(self, x: str, h: str, c: str, name: str = "lstm") -> tuple[str, str]:
        i, f, o = (self.apart(x, h, name, gate).emit("Sigmoid") for gate in "ifo")
        new = self.apart(x, h, name, "g").emit("Tanh") * i + self.term(c) * f
        return (new.emit("Tanh") * o).name, new.name

    def gru(
        self, x: str, h: str, name: str = "gru", turned: bool = False, ones: bool = False
    ) -> str:
        """Reset behind the projection, as in PyTorch; ``turned``: z lets the new state in."""
        of_x = self.split(self.fc(x, f"{name}_x", 3 * HIDDEN, self.columns(name)), 3)
        of_h = self.split(self.fc(h, f"{name}_h", 3 * HIDDEN, HIDDEN), 3)
        r, z = ((of_x[k] + of_h[k]).emit("Sigmoid") for k in range(2))
        n = (of_x[2] + r * of_h[2]).emit("Tanh")
        return self._updated(z, n, self.term(h), turned, ones)

    def gru_before(self, x: str, h: str, name: str = "gru") -> str:
        """Reset in front of the projection, as the original paper and ONNX."""
        r, z = (self.apart(x, h, name, gate).emit("Sigmoid") for gate in "rz")
        n = self.apart(x, (r * self.term(h)).name, name, "n").emit("Tanh")
        return self._updated(z, n, self.term(h), False, False)

    def _updated(self, z: Term, n: Term, h: Term, turned: bool, ones: bool) -> str:
        if ones:
            filled = np.ones(1, np.float32)
            one = self.emit("ConstantOfShape", self.emit("Shape", z.name), value=filled)
        rest = self.term(one) - z if ones else 1 - z
        new, old = (z, rest) if turned else (rest, z)
        return (new * n + old * h).name


@dataclass(frozen=True)
class Term:
    """A value with Python's arithmetic, which emits operators; 1 is the only number."""

    cells: Unrolled
    name: str

    def emit(self, op: str, *others: Term) -> Term:
        names = (self.name, *(each.name for each in others))
        return Term(self.cells, self.cells.emit(op, *names))

    def __add__(self, other: Term) -> Term:
        return self.emit("Add", other)

    def __mul__(self, other: Term) -> Term:
        return self.emit("Mul", other)

    def __sub__(self, other: Term) -> Term:
        return self.emit("Sub", other)

    def __rsub__(self, number: int) -> Term:
        return Term(self.cells, self.cells.one) - self
