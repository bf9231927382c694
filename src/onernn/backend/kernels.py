"""What a backend implements: a kernel for one layer in one direction, or for a whole stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from onernn.backend.run_arguments import State
from onernn.ir.arrays import Array
from onernn.ir.ragged import Ragged
from onernn.reorders.lod import Packing


class PackedBatch(NamedTuple):
    """What a kernel runs: words sorted and packed (`Packing`), states in the order of sentences."""

    words: Array
    """(W, I), as `DirectionKernel.converted` gives them, or as the layer below wrote them."""
    y: Array
    """(W, O), to be filled; rows of any stride."""
    packing: Packing
    begin: Sequence[Array]
    """The initial states (N, O)."""
    attention: Array | None = None
    """(W, 1) for AUGRU cells."""


class PackedGradient(NamedTuple):
    """What a kernel runs backward: a batch's tape, and gradients by what it gave."""

    kept: Any
    packing: Packing
    dy: Array
    dend: Sequence[Array]
    weights: Mapping[str, Array]
    """Those by the weights are added to these: by the names of `RnnWeights`, without L and D."""


class DirectionKernel:
    """One layer in one direction, ready for any batch; shared between threads.

    A backend overrides `run`, and what differs for its numbers.
    """

    name: str
    """What runs, for `Stack.kernel`."""
    dtype: np.dtype[Any]
    """Of what `run` writes."""
    exact_below: float | None = None
    """Numbers that are not below it, NaN among them, come out wrong; None: all are right."""

    def run(self, batch: PackedBatch) -> tuple[Sequence[Array], Any]:
        """The final states, of at least the sentences that have words; and what `backward` reads.

        None where the kernel does not train. One that does may keep words and y: nobody writes
        into these later.
        """
        raise NotImplementedError

    def backward(self, batch: PackedGradient) -> tuple[Array, Sequence[Array], Array | None]:
        """Gradients (dx, dbegin, dattention)."""
        raise NotImplementedError

    def converted(self, words: Array) -> Array:
        """Words as `run` reads them, in any order: converted while they are few bytes."""
        return words

    def widened(self, y: Array) -> Array:
        """What `run` wrote, or a sum of that, in the numbers of the caller."""
        return y

    def cache_info(self) -> tuple[int, int]:
        """Primitives found, and made."""
        return 0, 0


class StackKernel(Protocol):
    """All layers and directions of a stack, for arguments that are checked."""

    def takes(self, x: Ragged | Array, initial: State) -> bool:
        """Whether these numbers come out right."""

    def run_again(self, x: Any, state: Any) -> tuple[Array, State] | None:
        """The result for a dense batch that needs no more checks; None: it has to be checked."""

    def run(
        self, x: Ragged | Array, initial: State, attention: Ragged | Array | None
    ) -> tuple[Array, State]:
        """(y (W, D*O) or (T, N, D*O), final states) for ragged or dense (T, N, I) x, like x."""

    def cache_info(self) -> dict[str, int]:
        """Primitives found and made so far."""
