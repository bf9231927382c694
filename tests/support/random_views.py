"""What stands between layers in random graphs: views, joins, shapes, element by element."""

from __future__ import annotations

import numpy as np

from support.random_graphs import BINARY, UNARY, Builder

END = -(2**62)


class Views(Builder):
    """Adds operators that move elements or work on each."""

    def swapped(self, x: str) -> str:
        rank = self.array(x).ndim
        if self.chance(0.5):
            return self.emit("Einsum", x, equation="ab...->ba...")
        return self.emit("Transpose", x, perm=(1, 0, *range(2, rank)))

    def reversed(self, x: str, axis: int) -> str:
        return self.emit("Slice", x, *(self.ints(each) for each in (-1, END, axis, -1)))

    def view(self, x: str) -> str:
        rank, shape = self.array(x).ndim, self.array(x).shape
        kind = self.pick(
            "swap swap perm reshape reshape squeeze unsqueeze flatten reverse slice gather".split()
            + "unary unary expand pair".split()
        )
        if kind == "swap":
            return self.swapped(x)
        if kind == "perm":
            return self.emit("Transpose", x, perm=tuple(map(int, self.rng.permutation(rank))))
        if kind == "reshape":
            shapes = [
                (0, 0, -1),
                (0, 0, 1, -1),
                (0, 0, 2, -1),
                (0, -1),
                (0, 0),
                (0, 0, 0),
                (-1, *shape[-1:]),
                shape,
                (0, 0, -1, 1),
                (*shape[:2], -1),
                (-1, *shape[1:]),
                (1, *shape),
                shape[::-1],
            ]
            return self.emit("Reshape", x, self.ints(*map(int, self.pick(shapes))))
        if kind in ("squeeze", "unsqueeze"):
            rank += kind == "unsqueeze"
            ones = [at for at, size in enumerate(shape) if size == 1]
            at = (
                self.pick(ones) if kind == "squeeze" and ones else int(self.rng.integers(rank or 1))
            )
            at -= rank if self.chance(0.3) else 0
            return self.emit(kind.capitalize(), x, self.ints(at))
        if kind == "flatten":
            return self.emit("Flatten", x, axis=int(self.rng.integers(rank + 1)))
        if kind == "reverse":
            return self.reversed(x, int(self.rng.integers(-rank, rank)))
        if kind == "slice":
            start, stop = self.pick([(0, 1), (0, 2), (1, 9), (-1, 9), (0, 9)])
            cuts = (start, stop, int(self.rng.integers(-rank, rank)))
            return self.emit("Slice", x, *(self.ints(cut) for cut in cuts))
        if kind == "gather":
            at = self.pick([(), (1,), (2,), (3, 2), (2, 2), (1, 3), (4,)])
            axis = int(self.rng.integers(-rank, rank))
            positions = self.rng.integers(0, max(shape[axis], 1), at)
            return self.emit("Gather", x, self.constant(positions), axis=axis)
        if kind == "expand":
            return self.emit("Expand", x, self.ints(*(1 for _ in shape)))
        if kind == "pair":  # two views that perhaps undo each other
            axis = int(self.rng.integers(rank))
            if self.chance(0.5):
                return self.swapped(self.swapped(x))
            other = axis - (rank if self.chance(0.3) else 0)
            return self.reversed(self.reversed(x, axis), other)
        return self.emit(self.pick(UNARY), x)

    def viewed(self) -> str:
        x = self.any()
        for _ in range(self.pick([1, 1, 2, 3])):
            x = self.view(x)
        return x

    def again(self) -> str:
        """The same view of the same value, made twice."""
        x, state = self.any(), self.rng.bit_generator.state
        first = self.view(x)
        self.rng.bit_generator.state = state
        return self.emit(self.pick(BINARY), first, self.view(x))

    def binary(self) -> str:
        x = self.any()
        shape = self.array(x).shape
        others = [n for n in self.values() if self.array(n).shape[-1:] in (shape[-1:], (1,))]
        kind = self.pick(["value", "value", "vector", "number", "rows"])
        if kind == "value" and others:
            other = self.pick(others)
        elif kind == "rows":
            other = self.constant(self.numbers(*shape[int(self.rng.integers(len(shape) + 1)) :]))
        else:
            other = self.constant(self.numbers(*(shape[-1:] if kind == "vector" else ())))
        return self.emit(self.pick(BINARY), *((x, other) if self.chance(0.7) else (other, x)))

    def joined(self) -> str:
        x = self.any()
        rank = self.array(x).ndim
        others = [n for n in self.values(rank) if self.is_ragged(n) == self.is_ragged(x)]
        parts = [x, *(self.pick(others) for _ in range(self.pick([1, 1, 2])))]
        kind = self.pick(["plain", "swap", "reverse"])
        if kind != "plain" and rank:
            at = int(self.rng.integers(-rank, rank))
            turn = self.swapped if kind == "swap" else lambda name: self.reversed(name, at)
            parts = [turn(part) for part in parts]
        return self.emit("Concat", *parts, axis=int(self.rng.integers(-rank, rank)))

    def shaped(self) -> str:
        """A shape that is computed, and a value made of it."""
        x = self.any()
        rank = self.array(x).ndim
        shape = self.emit("Shape", x)
        if self.chance(0.3):
            return self.emit("ConstantOfShape", shape, value=np.array([0.5], np.float32))
        at = [self.emit("Gather", shape, self.ints(axis), axis=0) for axis in range(rank)]
        keep = self.pick(range(rank + 1))
        target = self.emit("Concat", *at[:keep], self.ints(-1), axis=0)
        return self.emit("Reshape", x, target)
