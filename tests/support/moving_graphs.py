"""Random graphs of operators that mostly move rows: cut, joined, turned, and of other shapes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onernn import Graph
from onernn.ir.graph import Node, Value

COLUMNS = 6


def moving_graph(seed: int, *, python: bool = True) -> Graph:
    """Of x (T, COLUMNS), T open; ``python``: plans have no code for some of its nodes."""
    rng = np.random.default_rng(seed)
    constants: dict[str, np.ndarray] = {"eye": np.eye(COLUMNS, dtype=np.float32)}
    nodes: list[Node] = []
    values = ["x"]
    names: Iterator[str] = (f"v{at}" for at in range(10**6))

    def emit(op: str, *inputs: str, outputs: int = 1, **attributes: object) -> list[str]:
        made = tuple(next(names) for _ in range(outputs))
        nodes.append(Node(op, inputs, made, attributes))
        return list(made)

    def constant(*numbers: int) -> str:
        name = next(names)
        constants[name] = np.array(numbers)
        return name

    def some() -> str:
        return values[-1 - min(int(rng.exponential(2)), len(values) - 1)]

    kinds = ["halves", "lead", "join", "shape", "turn", "apply", *(["python"] if python else [])]
    for _ in range(int(rng.integers(3, 14))):
        x, kind = some(), kinds[rng.integers(len(kinds))]
        if kind == "halves":  # T rows twice, the rows of both in one, and apart again
            (both,) = emit("Concat", x, some(), axis=0)
            (three,) = emit("Reshape", both, constant(2, -1, COLUMNS))
            parts = emit("Split", three, constant(1, 1), outputs=2, axis=0)
            values += [emit("Squeeze", part, constant(0))[0] for part in parts]
        elif kind == "lead":
            (three,) = emit("Unsqueeze", x, constant(0))
            (turned,) = emit("Transpose", three, perm=[1, 0, 2])
            values += emit("Squeeze", turned, constant(1))
        elif kind == "join":
            parts = [x, some(), some()][: rng.integers(1, 4)]
            (joined,) = emit(
                "Concat", *(emit("Unsqueeze", p, constant(0))[0] for p in parts), axis=0
            )
            at = int(rng.integers(len(parts)))
            cut = constant(at), constant(at + 1), constant(0)
            values += emit("Squeeze", *emit("Slice", joined, *cut), constant(0))
            values += emit("ReduceMax", joined, constant(0), keepdims=0)
        elif kind == "shape":
            (flat,) = emit("Reshape", x, constant(-1))
            values += emit("Reshape", flat, constant(-1, COLUMNS))
        elif kind == "turn":
            (turned,) = emit("Transpose", x, perm=[1, 0])
            (first, second) = emit("Split", turned, constant(2, 4), outputs=2, axis=0)
            (back,) = emit("Concat", second, first, axis=0)
            values += emit("Transpose", back, perm=[1, 0])
        elif kind == "apply":
            values += emit(["Neg", "Abs", "Tanh"][rng.integers(3)], x)
        else:
            # One has no rule; the other one has more operands than a loop of the library.
            einsum = emit("Einsum", x, "eye", equation="ij,jk")
            values += [*einsum, *emit("Mean", *[x] * 26)]
    outputs = list(dict.fromkeys(v for v in (values[-1], some(), some()) if v != "x"))
    given = Value("x", "float32", (None, COLUMNS))
    return Graph(f"moves{seed}", (given,), tuple(map(Value, outputs)), tuple(nodes), constants)
