"""Recurrent cells written out in canonical operators, one step after the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from onernn import Graph
from onernn.ir.graph import NativeOp, Node, Value

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
            bound = 1 / np.sqrt(shape[-1])
            self.constant(self.rng.uniform(-bound, bound, shape).astype(np.float32), name)
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

    def fc(self, x: str, name: str, rows: int, columns: int) -> str:
        weight = self.weight(f"{name}_w", rows, columns)
        return self.emit("Gemm", x, weight, self.weight(f"{name}_b", rows), transB=1)

    def stacked(self, steps: list[str], axis: int = 1) -> str:
        at = self.ints(axis)
        rows = [self.emit("Unsqueeze", step, at) for step in steps]
        return self.emit("Concat", *rows, axis=axis)

    def graph(self, *outputs: str) -> Graph:
        state = (None, HIDDEN)
        inputs = (
            Value("x", "float32", (None, self.steps, INPUT)),
            Value("h0", "float32", state),
            Value("c0", "float32", state),
        )
        values = tuple(map(Value, outputs))
        return Graph("unrolled", inputs, values, tuple(self.nodes), self.constants).pruned()

    # The cells, each as a framework writes it.

    def rnn(self, x: str, h: str, name: str = "rnn", act: str = "Tanh") -> str:
        columns = self.columns(name)
        return self.emit(
            act,
            self.emit(
                "Add",
                self.fc(x, f"{name}_x", HIDDEN, columns),
                self.fc(h, f"{name}_h", HIDDEN, HIDDEN),
            ),
        )

    def columns(self, name: str) -> int:
        return HIDDEN if name.startswith("upper") else INPUT

    def lstm(
        self, x: str, h: str, c: str, name: str = "lstm", order: str = "ifgo"
    ) -> tuple[str, str]:
        """Gates in one projection, in any order."""
        rows = 4 * HIDDEN
        gates = self.emit(
            "Add",
            self.fc(x, f"{name}_x", rows, self.columns(name)),
            self.fc(h, f"{name}_h", rows, HIDDEN),
        )
        cut = dict(zip(order, self.emit("Split", gates, outputs=4, axis=1), strict=True))
        act = {gate: self.emit("Tanh" if gate == "g" else "Sigmoid", cut[gate]) for gate in "oifg"}
        kept = self.emit("Mul", act["f"], c)
        new = self.emit("Add", kept, self.emit("Mul", act["i"], act["g"]))
        return self.emit("Mul", act["o"], self.emit("Tanh", new)), new

    def apart(self, x: str, h: str, name: str, gate: str) -> str:
        """A projection of its own for each gate, and the bias added behind."""
        of_x = self.fc(x, f"{name}_{gate}_x", HIDDEN, self.columns(name))
        weight = self.weight(f"{name}_{gate}_u", HIDDEN, HIDDEN)
        summed = self.emit("Add", self.emit("Gemm", h, weight), of_x)
        return self.emit("Add", self.weight(f"{name}_{gate}_extra", HIDDEN), summed)

    def lstm_apart(self, x: str, h: str, c: str, name: str = "lstm") -> tuple[str, str]:
        i, f, o = (self.emit("Sigmoid", self.apart(x, h, name, gate)) for gate in "ifo")
        g = self.emit("Tanh", self.apart(x, h, name, "g"))
        new = self.emit("Add", self.emit("Mul", g, i), self.emit("Mul", c, f))
        return self.emit("Mul", self.emit("Tanh", new), o), new

    def gru(
        self, x: str, h: str, name: str = "gru", turned: bool = False, ones: bool = False
    ) -> str:
        """Reset behind the projection, as in PyTorch; ``turned``: z lets the new state in."""
        rows = 3 * HIDDEN
        of_x = self.emit(
            "Split", self.fc(x, f"{name}_x", rows, self.columns(name)), outputs=3, axis=1
        )
        of_h = self.emit("Split", self.fc(h, f"{name}_h", rows, HIDDEN), outputs=3, axis=1)
        r, z = (self.emit("Sigmoid", self.emit("Add", of_x[k], of_h[k])) for k in range(2))
        n = self.emit("Tanh", self.emit("Add", of_x[2], self.emit("Mul", r, of_h[2])))
        return self._updated(z, n, h, turned, ones)

    def gru_before(self, x: str, h: str, name: str = "gru") -> str:
        """Reset in front of the projection, as the original paper and ONNX."""
        r, z = (self.emit("Sigmoid", self.apart(x, h, name, gate)) for gate in "rz")
        n = self.emit("Tanh", self.apart(x, self.emit("Mul", r, h), name, "n"))
        return self._updated(z, n, h, False, False)

    def _updated(self, z: str, n: str, h: str, turned: bool, ones: bool) -> str:
        one = self.one
        if ones:
            filled = np.ones(1, np.float32)
            one = self.emit("ConstantOfShape", self.emit("Shape", z), value=filled)
        rest = self.emit("Sub", one, z)
        new, old = (z, rest) if turned else (rest, z)
        return self.emit("Add", self.emit("Mul", new, n), self.emit("Mul", old, h))
