"""The graph under construction, and which sizes of an export are free.

torch.export writes the sizes of its example where it was not told that they are open, and it
cannot leave the time of a recurrent layer open at all: it unrolls the layer to see. aten.lstm
itself holds no size, so a size that nobody wrote into an operator is free. A number that may have
come from a size, x.shape[1] or a half of it, ties the size to what it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from onernn.adapters.folding import FoldingBudget
from onernn.adapters.lowering import GraphBuilder
from onernn.adapters.torch.read.exported import Meta
from onernn.core.sizes import Factor, Size

WEIGHTS = "weights"
"""Why a size is tied that has weights of its own: nobody would expect another one."""
_PRIMES = (100_003, 100_019, 100_043, 100_049, 100_057, 100_069, 100_103, 100_109)


class TorchBuilder(GraphBuilder):
    """``metas`` tells of variables. ``free``: sizes of inputs that the program writes as numbers,
    by our names; ``tied`` collects why some of them may not be anything else. ``literal``:
    constants whose shape the program writes as numbers, and these: an initial state of zeros ties
    nothing, as it may be left out. ``computed``: the numbers in what Python computed of open sizes,
    by variable. ``axes``: where a run finds a size.
    """

    def __init__(self, name: str, budget: FoldingBudget, metas: Mapping[str, Meta]) -> None:
        super().__init__(name, budget)
        self.metas = metas
        self.free: dict[str, int] = {}
        self.tied: dict[str, str] = {}
        self.hints: dict[str, int] = {}
        self.literal: dict[str, Sequence[float]] = {}
        self.computed: dict[str, Sequence[int]] = {}
        self.axes: dict[Factor, tuple[str, int]] = {}

    def tie(self, sizes: Iterable[str], why: str) -> None:
        for size in sizes:
            if size in self.free:
                self.tied.setdefault(size, why)

    def tie_numbers(self, numbers: Iterable[float], why: str) -> None:
        """Ties what numbers in arithmetic, or counts, may have been computed from."""
        for number in numbers:
            self.tie([name for name, size in self.free.items() if _came_of(number, size)], why)
            if number != round(number, 4) and not self._came_of_weights(number):
                self.tie(self.free, why)  # 1.4142, or 0.0714: nobody can tell of what

    def _came_of_weights(self, number: float) -> bool:
        """Whether it scales by the width of something: 1 / sqrt(64)."""
        widths = {size for array in self.constants.values() for size in array.shape}
        return any(_came_of(number, width) for width in widths)

    def remember_axes(self, variable: str, shape: Sequence[Size | None]) -> None:
        """Notes whose axes tell the sizes that others are products of."""
        for axis, size in enumerate(shape):
            if size is not None and len(size.terms) == 1 and size.terms[0][1] == 1:
                factors = size.terms[0][0]
                if len(factors) == 1:
                    self.axes.setdefault(factors[0], (variable, axis))

    def is_zeros(self, value: str) -> bool:
        """Whether it is zeros, of a shape that the program or a run tells."""
        if value in self.constants:
            return value in self.literal and not self.constants[value].any()
        made = next((node for node in self.nodes if value in node.outputs), None)
        return made is not None and made.op == "ConstantOfShape" and not made.at.value.any()

    def exported(self, size: Size | None) -> int | None:
        """What a size was in the program; None where that is open."""
        return None if size is None else size.put(self.free).number

    def standing_for(self, size: Size | None) -> int | None:
        """A number in the place of a size: what it was, a prime for each that was open."""
        if size is None:
            return None
        for name in sorted(size.names - self.free.keys()):
            self.hints.setdefault(name, _PRIMES[len(self.hints) % len(_PRIMES)])
        return size.put({**self.hints, **self.free}).number

    def free_in(self, value: str, axis: int) -> frozenset[str]:
        """The free sizes that the size of an axis is made of."""
        shape = self.type_of(value).shape
        size = None if shape is None else shape[axis]
        return frozenset() if size is None else size.names & self.free.keys()


def _came_of(number: float, size: int) -> bool:
    """Whether a number may have been computed from a size."""
    whole = [size, size - 1, size + 1, 2 * size, size**2]
    if not math.isfinite(number) or float(number).is_integer():
        return abs(number) in whole and (number != 0 or size == 0)
    made = [float(each) for each in whole if each > 0]
    made += [math.sqrt(each) for each in made] + [math.log(each) for each in made]
    made += [1 / each for each in made if each]
    return any(math.isclose(abs(number), each, rel_tol=1e-6) for each in made)
