"""Layers and stacks on oneDNN: packed once, then run direction by direction."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from onernn.backend.checks import State, checked_input
from onernn.backend.onednn.families import Family, U8Options, new_family
from onernn.backend.onednn.library import Library, load_library
from onernn.backend.onednn.numbers import PRECISIONS, narrowed, stored, widened
from onernn.backend.reference import ReferenceLayer
from onernn.core.arrays import Array
from onernn.core.errors import Refusal, UnsupportedError
from onernn.core.ragged import Packing, Ragged, data_of
from onernn.core.spec import Cell, Direction, RnnSpec
from onernn.core.weights import RnnWeights, Weights, layers_of


def refusal(spec: RnnSpec, weights: tuple[RnnWeights, ...], dtype: str) -> str:
    """Why oneDNN cannot run this, "" where it can."""
    if spec.activations is not None:
        named = ", ".join(map(str, spec.activations))
        usual = ", ".join(map(str, spec.cell.activations))
        return f"oneDNN's {spec.cell.name} has {usual}, not {named}"
    if spec.update == "replace":
        return "oneDNN's GRU keeps with its update gate, this one replaces"
    if spec.gate_clip is not None or spec.cell_clip is not None:
        return "oneDNN does not clip"
    if spec.input_forget:
        return "oneDNN's LSTM has a forget gate of its own"
    if weights[0].iter.dtype != np.float32:
        return f"oneDNN does not compute in {weights[0].iter.dtype}"
    if dtype == "u8":
        if spec.cell not in (Cell.LSTM, Cell.GRU, Cell.LBR_GRU) or spec.peephole:
            return f"oneDNN has no u8 {spec.cell.name}{' with peephole' * spec.peephole}"
        if weights[0].layer is None and spec.cell is not Cell.LBR_GRU:
            return "an input that is projected already does not fit into u8"
    return ""


class OneDnnBackend:
    """Prepares layers on libdnnl, which is loaded with the first backend."""

    def __init__(self, threads: int | None = None) -> None:
        self.library = load_library()
        self.threads = self.library.max_threads if threads is None else threads

    def prepare(
        self,
        spec: RnnSpec,
        weights: Weights,
        *,
        dtype: str = "f32",
        strict: bool = False,
        data_scale: float | None = None,
        data_shift: float = 128.0,
        per_channel: bool = True,
    ) -> OneDnnLayer | ReferenceLayer:
        """See `Backend.prepare`. u8 only: ``data_scale`` and ``data_shift``, see `U8Options`;
        ``per_channel`` False gives the weights one scale in all."""
        if dtype not in PRECISIONS:
            raise UnsupportedError(f"dtype {dtype!r}: expected one of {', '.join(PRECISIONS)}")
        layers = layers_of(spec, weights)
        options = U8Options(data_scale, data_shift, per_channel) if dtype == "u8" else None
        why = refusal(spec, layers, dtype)
        try:
            if not why:
                return OneDnnLayer(self.library, spec, layers, dtype, self.threads, options)
        except UnsupportedError as error:
            why = str(error)
        if strict:
            raise UnsupportedError(
                f"{why}; drop strict=True to run it on the reference", (Refusal(why),)
            )
        precise = "f64" if layers[0].iter.dtype == np.float64 else "f32"
        return ReferenceLayer(spec, layers, precise, why)


class OneDnnLayer:
    """A layer or stack; every layer and direction is a primitive of its own.

    Ragged batches run in the sorted packed layout from the first layer to the last, without
    padding (design/0004). Safe to share between threads.
    """

    why = ""

    def __init__(
        self,
        library: Library,
        spec: RnnSpec,
        layers: Iterable[RnnWeights],
        dtype: str,
        threads: int,
        options: U8Options | None = None,
    ) -> None:
        self.spec, self.dtype = spec, dtype
        self._library, self._threads = library, threads
        self._precision = PRECISIONS[dtype]
        both: tuple[Direction, ...] = ("left2right", "right2left")
        directions = both if spec.directions == 2 else (spec.direction,)
        width = spec.input_size
        self._stack: list[list[Family]] = []
        with library.threads(threads):
            for weights in layers:
                row = [
                    new_family(
                        library, spec.one_layer(width, side), weights.part(0, d), dtype, options
                    )
                    for d, side in enumerate(directions)
                ]
                self._stack.append(row)
                framework = spec.stacking == "framework"
                width = spec.output_size if framework else spec.recurrent_size
        kernels = dict.fromkeys(family.kernel for row in self._stack for family in row)
        self.kernel = f"oneDNN {library.version} {', '.join(kernels)}"

    def run(
        self,
        x: Ragged | Array,
        state: State | None = None,
        attention: Ragged | Array | None = None,
    ) -> tuple[Ragged | Array, State]:
        """See `PreparedLayer.run`."""
        x, initial, attention = checked_input(self.spec, x, state, attention, np.dtype(np.float32))
        scale = None if attention is None else data_of(attention)
        if isinstance(x, Ragged):
            packing = x.packing
            scale = None if scale is None else packing.pack(scale)
            sorted_states = [s[:, :, packing.order] for s in initial]
            packed, final = self._run_stack(packing.pack(x.data), packing, sorted_states, scale)
            back = tuple(s[:, :, packing.unsort] for s in final)
            return x.with_data(packing.unpack(packed)), back
        t, n, channels = x.shape
        words = np.ascontiguousarray(x).reshape(t * n, channels)
        scale = None if scale is None else np.ascontiguousarray(scale).reshape(t * n, 1)
        out, final = self._run_stack(words, Packing.rectangle(t, n), list(initial), scale)
        return out.reshape(t, n, out.shape[-1]), tuple(final)

    def _run_stack(
        self, words: Array, packing: Packing, initial: list[Array], attention: Array | None
    ) -> tuple[Array, list[Array]]:
        """float32 in and out, rows and states in packed order."""
        final = [np.array(s, order="C") for s in initial]
        library = self._library
        with library.threads(self._threads):
            if attention is not None:
                attention = narrowed(library, attention, PRECISIONS[self.dtype].data)
            sides = [words] * self.spec.directions
            for layer, row in enumerate(self._stack):
                out = self._run_layer(layer, row, sides, packing, initial, final, attention)
                sides = self._handed_on(out, row[0].precision.out, last=row is self._stack[-1])
            kind = row[0].precision.out if sides[0].dtype != np.float32 else "f32"
            return widened(library, sides[0], kind), final

    def _run_layer(
        self,
        layer: int,
        row: list[Family],
        sides: list[Array],
        packing: Packing,
        initial: list[Array],
        final: list[Array],
        attention: Array | None,
    ) -> Array:
        """Both directions of a layer, side by side: (W, D*O)."""
        width = self.spec.recurrent_size
        out = np.empty((len(sides[0]), width * len(row)), stored(row[0].precision.out))
        for d, family in enumerate(row):
            y = out[:, d * width : (d + 1) * width]
            begin = [s[layer, d] for s in initial]
            ends = family.run(sides[d], y, packing, begin, attention)
            for state, end in zip(final, ends, strict=True):
                state[layer, d, : len(end)] = end  # the others keep their initial state
        return out

    def _handed_on(self, out: Array, dtype: str, last: bool) -> list[Array]:
        """What each direction of the next layer reads, or the caller gets."""
        width, count = self.spec.recurrent_size, self.spec.directions
        if self.spec.stacking == "onednn" and not last:
            return [np.ascontiguousarray(out[:, d * width : (d + 1) * width]) for d in range(count)]
        if self.spec.direction == "bidirectional_sum":
            wide = widened(self._library, out, dtype)
            wide = wide[:, :width] + wide[:, width:]
            # The sum of two u8 states does not fit into u8.
            out = wide if dtype == "u8" else narrowed(self._library, wide, dtype)
        return [out] * count

    def cache_info(self) -> dict[str, int]:
        """Primitives found and made so far, over all layers and directions."""
        counts = [family.cache_info() for row in self._stack for family in row]
        hits, misses = np.sum(counts, axis=0)
        return {"hits": int(hits), "misses": int(misses)}
