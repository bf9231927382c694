"""The layers and batches of the conformance kit: by name, reproducible, the same for everybody."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from onernn.backend import State
from onernn.core.arrays import Array
from onernn.core.ragged import Ragged
from onernn.core.records import dataclass
from onernn.core.spec import Direction, RnnSpec
from onernn.core.weights import RnnWeights
from onernn.verification.sample_layers import DIRECTIONS, KINDS, Shape, sample_layer

# Bounds that float32 holds exactly: what an adapter reads equals them.
_CLIPS: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm_cell_clip": ("LSTM", {"cell_clip": (-0.25, 0.3125)}),
    "lstm_gate_clip": ("LSTM", {"gate_clip": 0.375}),
    "gru_gate_clip": ("GRU", {"gate_clip": 0.375}),
    "lbr_gru_gate_clip": ("LBR GRU", {"gate_clip": 0.375}),
}
_KINDS = {kind.lower().replace(" ", "_"): (kind, dict[str, Any]()) for kind in KINDS} | _CLIPS
CELLS = tuple(_KINDS)
"""rnn_tanh, rnn_relu, rnn_sigmoid, lstm (also with _peephole, _projection, _peephole_projection,
_cell_clip, _gate_clip), gru, lbr_gru (also with _gate_clip), augru, lbr_augru."""
LENGTHS: dict[str, tuple[int, ...]] = {
    "ragged": (4, 0, 1, 7, 4),
    "filled": (4, 1, 7, 4),
    "equal": (5, 5, 5),
    "long": (33, 2),
    "word": (1,),
}
"""Words of each sentence; all but the first kind have no sentence of length zero."""
_OTHER_LENGTHS = {"ragged": (2, 5, 0), "filled": (2, 5), "equal": (3, 3)}
SIZES = {"odd": (7, 5), "same": (5, 5), "small": (1, 2), "wide": (16, 34)}
"""(I, O) of the first layer."""
STATES = ("given", "zeros")
LAYERS = (1, 2)
DTYPES = {"f32": np.float32, "f64": np.float64}


@dataclass(frozen=True, eq=False)
class Case:
    """One recurrent layer, or stack, and one batch for it.

    ``weights``: one-layer weights in oneDNN's layouts, contractive. ``state``: (h,) or (h, c), each
    (L, D, N, O) in the order of the sentences, or None for zeros. ``attention``: of AUGRU cells.
    Arrays are float32, or float64 where ``dtype`` is "f64"; all numbers lie in [-1, 1].
    """

    name: str
    cell: str
    spec: RnnSpec
    weights: tuple[RnnWeights, ...]
    x: Ragged
    state: State | None
    attention: Ragged | None
    dtype: str

    @property
    def lengths(self) -> Array:
        """Words of each sentence, (N,)."""
        return self.x.lengths

    def padded(self, *, time_major: bool = False) -> Array:
        """The words as (N, T, I), or (T, N, I); zeros behind the sentences."""
        return self.x.to_padded(time_major=time_major)

    def cut(self, padded: Any, *, time_major: bool = False) -> list[Array]:
        """The sentences (T_n, O) of a padded output: what stands behind them is dropped."""
        rows = np.swapaxes(padded, 0, 1) if time_major else np.asarray(padded)
        return [row[:length] for row, length in zip(rows, self.lengths, strict=True)]

    @cached_property
    def random(self) -> np.random.Generator:
        """For an adapter that makes numbers of its own; starts anew for every case."""
        return np.random.default_rng(1)

    def contractive(self, *shape: int) -> Array:
        """Numbers for weights: within 1 / sqrt(hidden_size), so that rounding does not grow."""
        bound = 1 / np.sqrt(self.spec.hidden_size)
        return self.random.uniform(-bound, bound, shape).astype(DTYPES[self.dtype])

    def negated(self) -> Case:
        """A batch of the same shapes with other words and states."""
        state = None if self.state is None else tuple(-part for part in self.state)
        return replace(self, x=self.x.with_data(-self.x.data), state=state)


class Combination(NamedTuple):
    """A case by its place on each axis."""

    cell: str
    direction: Direction
    layers: int
    lengths: str
    state: str
    dtype: str
    size: str

    @property
    def name(self) -> str:
        """What tests, messages and files of known failures call it."""
        layers = f"{self.layers}layer" + "s" * (self.layers > 1)
        parts = (self.cell, self.direction, layers, self.lengths, self.state, self.dtype, self.size)
        return "-".join(parts)

    def case(self, lengths: tuple[int, ...] | None = None, *, empty: bool = True) -> Case:
        """The same numbers at every call; ``lengths``: another batch for the same layer.

        ``empty``: with the sentences of length zero, if there are any.
        """
        kind, clips = _KINDS[self.cell]
        counts = LENGTHS[self.lengths] if lengths is None else lengths
        counts = tuple(count for count in counts if count or empty)
        made = sample_layer(kind, self.direction, Shape(*SIZES[self.size], self.layers, counts))
        dtype = DTYPES[self.dtype]
        attention = None if made.attention is None else _ragged(made.attention, counts, dtype)
        state = tuple(part.astype(dtype) for part in made.state)
        return Case(
            self.name,
            self.cell,
            replace(made.spec, **clips),
            tuple(each.mapped(lambda array: array.astype(dtype)) for each in made.weights),
            _ragged(made.x, counts, dtype),
            state if self.state == "given" else None,
            attention,
            self.dtype,
        )

    def other_batches(self, *, empty: bool = True) -> Iterator[Case]:
        """For the same layer: other numbers in the same shapes, then other sentences."""
        yield self.case(empty=empty).negated()
        if self.lengths in _OTHER_LENGTHS:
            yield self.case(_OTHER_LENGTHS[self.lengths], empty=empty)


def combinations(
    cells: Sequence[str],
    directions: Sequence[Direction],
    layers: Sequence[int],
    lengths: Sequence[str],
    states: Sequence[str],
    dtypes: Sequence[str],
    sizes: Sequence[str],
) -> list[Combination]:
    """Each cell in each direction: every number of layers, then one axis at a time.

    The first of each axis stands wherever another one is varied. Raises `ValueError` naming an
    axis with nothing, or something unknown, on it.
    """
    for axis, chosen, known in (
        ("cells", cells, CELLS),
        ("directions", directions, DIRECTIONS),
        ("layers", layers, range(1, 100)),
        ("lengths", lengths, LENGTHS),
        ("states", states, STATES),
        ("dtypes", dtypes, DTYPES),
        ("sizes", sizes, SIZES),
    ):
        if wrong := [one for one in chosen if one not in known] or not chosen:
            listed = "numbers from 1 on" if axis == "layers" else ", ".join(map(str, known))
            raise ValueError(
                f"{axis}: expected some of {listed}; got {wrong if chosen else 'none'}"
            )
    found: dict[Combination, None] = {}
    for cell in cells:
        for way in directions:
            main = Combination(cell, way, layers[0], lengths[0], states[0], dtypes[0], sizes[0])
            found |= dict.fromkeys(main._replace(layers=each) for each in layers)
            found |= dict.fromkeys(main._replace(lengths=each) for each in lengths)
            found |= dict.fromkeys(main._replace(state=each) for each in states)
            found |= dict.fromkeys(main._replace(dtype=each) for each in dtypes)
            found |= dict.fromkeys(main._replace(size=each) for each in sizes)
    return list(found)


def _ragged(batch: Ragged | Array, lengths: tuple[int, ...], dtype: Any) -> Ragged:
    if not isinstance(batch, Ragged):
        batch = Ragged.from_padded(batch, lengths, time_major=True)
    return batch.with_data(batch.data.astype(dtype))
