"""The layers and batches on which kernels, adapters and backends are examined.

One table of cells for `onernn doctor` and for both conformance kits: small, reproducible, and
contractive, so that rounding does not grow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, get_args

import numpy as np

from onernn.backend import Stack, State
from onernn.ir.arrays import Array
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.records import dataclass
from onernn.ir.spec import Cell, Direction, RnnSpec
from onernn.ir.weights import RnnWeights

KINDS: dict[str, tuple[Cell, tuple[str, ...]]] = {
    "RNN tanh": (Cell.RNN_TANH, ()),
    "RNN relu": (Cell.RNN_RELU, ()),
    "RNN sigmoid": (Cell.RNN_SIGMOID, ()),
    "LSTM": (Cell.LSTM, ()),
    "LSTM peephole": (Cell.LSTM, ("peephole",)),
    "LSTM projection": (Cell.LSTM, ("projection",)),
    "LSTM peephole projection": (Cell.LSTM, ("peephole", "projection")),
    "GRU": (Cell.GRU, ()),
    "LBR GRU": (Cell.LBR_GRU, ()),
    "AUGRU": (Cell.AUGRU, ()),
    "LBR AUGRU": (Cell.LBR_AUGRU, ()),
}
"""The cells by name; an LSTM with and without its extras counts as several."""
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)

Outputs = dict[str, Array]


class Shape(NamedTuple):
    """Of a layer, and of a batch: dense where all sentences are equally long.

    ``projection_size``: of cells that have one; None: half of the hidden size.
    """

    input_size: int
    hidden_size: int
    layers: int
    lengths: tuple[int, ...]
    projection_size: int | None = None


# Kernels cut a batch in pieces by its size: its steps have 33 sentences, 17 twice, 16, 3 and 1.
# A projection that is wider than all gates together (they fill 32 numbers) is read another way.
ODD = Shape(7, 5, 1, (5, 0, *[4] * 7, *[1] * 16, 7, 3, *[4] * 6, 5), projection_size=33)
EVEN = Shape(16, 32, 2, (3,) * 16)
LARGE = Shape(32, 512, 1, (5, 3, 3, 1))  # large weights may run another way


class SampleLayer(NamedTuple):
    """A layer and what it is given, all in [-1, 1]."""

    spec: RnnSpec
    weights: list[RnnWeights]
    x: Ragged | Array
    state: State
    attention: Ragged | Array | None

    def outputs(self, layer: Stack) -> Outputs:
        """What a run gives, by name."""
        y, final = layer.run(self.x, self.state, self.attention)
        return {"y": data_of(y), **_numbered("state", final)}

    def gradients(self, layer: Stack) -> tuple[Outputs, str, str]:
        """What a run and its backward give, by name; the kernel and why none faster."""
        y, final, tape = layer.run_training(self.x, self.state, self.attention)
        rng = np.random.default_rng(2)
        dy = _uniform(rng, data_of(y).shape)
        grads = layer.backward(
            tape,
            y.with_data(dy) if isinstance(y, Ragged) else dy,
            tuple(_uniform(rng, s.shape) for s in final),
        )
        out = {"y": data_of(y), **_numbered("state", final), **_numbered("dstate", grads.state)}
        out["dx"] = data_of(grads.x)
        if grads.attention is not None:
            out["dattention"] = data_of(grads.attention)
        for k, weights in enumerate(grads.layers):
            out |= {f"d{name}{k}": array for name, array in weights.arrays.items()}
        return out, tape.kernel, tape.why


def _numbered(name: str, arrays: State | list[Array]) -> Outputs:
    return {f"{name}{k}": array for k, array in enumerate(arrays)}


def _uniform(rng: np.random.Generator, shape: tuple[int, ...], bound: float = 1.0) -> Array:
    return rng.uniform(-bound, bound, shape).astype(np.float32)


def sample_layer(
    cell: str, direction: Direction, shape: Shape, *, training: bool = False
) -> SampleLayer:
    """The layer of a cell by its name in `KINDS`; the same at every call."""
    kind, extras = KINDS[cell]
    units = shape.hidden_size
    spec = RnnSpec(
        kind,
        shape.input_size,
        units,
        layers=shape.layers,
        direction=direction,
        peephole="peephole" in extras,
        projection_size=(shape.projection_size or units // 2) if "projection" in extras else None,
    )
    rng = np.random.default_rng(0)
    # The derivative of relu jumps at 0, and a rounding error would choose its side: where
    # gradients are compared every unit is clearly on or clearly off.
    decided = training and kind is Cell.RNN_RELU
    bound = (0.25 if decided else 1.0) / math.sqrt(max(units, spec.recurrent_size))

    def uniform(*sizes: int) -> Array:
        return _uniform(rng, (1, spec.directions, *sizes), bound)

    weights, width = [], shape.input_size
    for _ in range(shape.layers):
        layer = uniform(width, spec.gates, units)
        iteration = uniform(spec.recurrent_size, spec.gates, units)
        bias = uniform(kind.bias_rows, units)
        if decided:
            bias += np.where(np.arange(units) % 2, 2, -2).astype(np.float32)
        peephole = uniform(3, units) if spec.peephole else None
        projection = uniform(units, spec.recurrent_size) if spec.projection_size else None
        weights.append(RnnWeights(layer, iteration, bias, peephole, projection))
        width = spec.output_size

    lengths = shape.lengths
    stack = (spec.layers, spec.directions, len(lengths))
    widths = {"h": spec.recurrent_size, "c": units}
    state = tuple(_uniform(rng, (*stack, widths[s])) for s in kind.states)
    attention = None
    if kind.has_attention:
        attention = _batch(np.abs(_uniform(rng, (sum(lengths), 1))), lengths)
    return SampleLayer(
        spec,
        weights,
        _batch(_uniform(rng, (sum(lengths), shape.input_size)), lengths),
        state,
        attention,
    )


def _batch(words: Array, lengths: tuple[int, ...]) -> Ragged | Array:
    if len(set(lengths)) == 1:
        return words.reshape(lengths[0], len(lengths), -1)
    return Ragged.from_lengths(words, lengths)


# --- of the conformance kits

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
