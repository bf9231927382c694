"""Layers and stacks on oneDNN: packed once, then run direction by direction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np

from onernn.backend.checks import Layout, State, checked_input, explained, laid_out
from onernn.backend.gradients import Gradients, Tape
from onernn.backend.making import MAKING
from onernn.backend.onednn.families import Family, U8Options, new_family
from onernn.backend.onednn.library import Library, load_library
from onernn.backend.onednn.memory import ROOMS, Room, borrowed
from onernn.backend.onednn.numbers import LARGEST, PRECISIONS, magnitude, narrowed, stored, widened
from onernn.backend.onednn.pool import run_all
from onernn.backend.onednn.steps import FixedBatches
from onernn.backend.onednn.training import onednn_training
from onernn.backend.reference import ReferenceLayer
from onernn.backend.schedule import LARGE, Share, shares
from onernn.backend.training import Once
from onernn.core.arrays import Array
from onernn.core.errors import Refusal, UnsupportedError
from onernn.core.ragged import Packing, Ragged, data_of
from onernn.core.spec import Cell, Direction, RnnSpec
from onernn.core.weights import RnnWeights, Weights, layers_of


def refusal(library: Library, spec: RnnSpec, weights: tuple[RnnWeights, ...], dtype: str) -> str:
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
        if not library.sums_u8_exactly:
            return (
                f"u8 needs AVX-512 VNNI, this is {library.effective_isa}: without it sums of two"
                " products saturate at 16 bits"
            )
    return ""


class OneDnnBackend:
    """Prepares layers on libdnnl, which is loaded with the first backend."""

    def __init__(self, threads: int | None = None, cache_capacity: int | None = None) -> None:
        self.library = load_library()
        if cache_capacity:
            self.library = replace(self.library, cache_capacity=cache_capacity)
        self.threads = threads or self.library.max_threads or 1

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
        why = refusal(self.library, spec, layers, dtype)
        try:
            if not why:
                return OneDnnLayer(self.library, spec, layers, dtype, self.threads, options, strict)
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
        strict: bool = False,
    ) -> None:
        self.spec, self.dtype = spec, dtype
        self._library, self._layers, self._options = library, tuple(layers), options
        self._training = Once(
            partial(onednn_training, library, spec, self._layers, dtype, threads, strict)
        )
        # Directions meet only at the end of a layer, shares of a batch only at the very end: a
        # thread each beats OpenMP's barriers in every step (design/0013).
        self._together = spec.directions if threads >= spec.directions else 1
        # Not where products are shorter than the calls around them, which need the interpreter.
        short = dtype == "u8" and spec.cell is Cell.LBR_GRU and spec.hidden_size < LARGE
        self._sharing = 1 if spec.directions > 1 or short else threads
        # Inside a kernel, OpenMP pays where each core can keep its part of large weights.
        large = spec.hidden_size >= LARGE
        self._threads = threads // self._together if large else 1
        self._stacks: dict[int, list[list[Family]]] = {}
        stack = self._stack(self._threads)
        self._loses_nan = any(family.loses_nan for row in stack for family in row)
        self._fixed = None if spec.directions > 1 or self._loses_nan else FixedBatches(library)
        kernels = dict.fromkeys(family.kernel for row in stack for family in row)
        self.kernel = f"oneDNN {library.version} {', '.join(kernels)}"

    def _stack(self, threads: int) -> list[list[Family]]:
        """Families for each layer and direction: kernels are made for a number of threads."""
        if threads not in self._stacks:
            with MAKING, self._library.threads(threads):
                if threads not in self._stacks:
                    self._stacks[threads] = self._new_stack()
        return self._stacks[threads]

    def _new_stack(self) -> list[list[Family]]:
        spec, width = self.spec, self.spec.input_size
        both: tuple[Direction, ...] = ("left2right", "right2left")
        directions = both if spec.directions == 2 else (spec.direction,)
        stack: list[list[Family]] = []
        for weights in self._layers:
            row = [
                new_family(
                    self._library,
                    spec.one_layer(width, side),
                    weights.part(0, d),
                    self.dtype,
                    self._options,
                )
                for d, side in enumerate(directions)
            ]
            stack.append(row)
            framework = spec.stacking == "framework"
            width = spec.output_size if framework else spec.recurrent_size
        return stack

    def run(
        self,
        x: Ragged | Array,
        state: State | None = None,
        attention: Ragged | Array | None = None,
        layout: Layout = "tnc",
    ) -> tuple[Ragged | Array, State]:
        """See `PreparedLayer.run`."""
        if isinstance(x, Ragged) and len(x) == 1 and attention is None:
            if x.data.shape[1:] == (self.spec.input_size,):
                dense, state = self.run(x.data[:, None], state)  # nothing to sort or to gather
                return x.with_data(data_of(dense)[:, 0]), state
        if self._fixed and attention is None and layout == "tnc":
            with self._library.threads(self._threads):
                done = self._fixed.run(x, state)
            if done is not None:
                return done
        given, float32 = (x, state, attention, layout), np.dtype(np.float32)
        x, initial, attention = checked_input(self.spec, x, state, attention, float32, layout)
        words = data_of(x)
        if self._loses_nan and any(
            not magnitude(a) < LARGEST[self.dtype] for a in (words, *initial)
        ):
            return ReferenceLayer(self.spec, self._layers).run(*given)
        flat = np.ascontiguousarray(words).reshape(-1, words.shape[-1])
        scale = None if attention is None else data_of(attention).reshape(-1, 1)
        jobs = shares(x, self._sharing)
        final = tuple(s.copy() for s in initial)
        threads = 1 if len(jobs) > 1 else self._threads
        stack = self._stack(threads)
        whole, ragged = len(jobs) == 1, isinstance(x, Ragged)
        out = np.empty((0 if whole else len(flat), self.spec.output_size), np.float32)

        def run_job(job: Share) -> Array:
            begin = [np.ascontiguousarray(s[:, :, job.sentences]) for s in initial]
            share = None if scale is None else scale[job.rows]
            with self._library.threads(threads), borrowed(ROOMS, Room) as room:
                # Put in order while they are narrow, numbers are fewer bytes.
                read = stack[0][0].taken(flat) if whole else flat
                if not isinstance(job.rows, slice):
                    read = room.taken("words", read, job.rows)
                y, kind, ends = self._run_stack(
                    stack, read, job.packing, begin, share, room, keeps=whole and not ragged
                )
                y = job.packing.unpack(y) if whole and ragged else y
                y = widened(self._library, y, kind)
                if not whole:
                    out[job.rows] = y
            for state, end in zip(final, ends, strict=True):
                state[:, :, job.sentences] = end
            return y

        if whole:
            out = run_job(jobs[0])
        else:
            run_all([partial(run_job, job) for job in jobs])
        if self._fixed and whole and not ragged and scale is None:
            self._fixed.expect(words.shape, stack, jobs[0].packing)
        y = out.reshape(*words.shape[:-1], self.spec.output_size)
        if isinstance(x, Ragged):
            return x.with_data(y), final
        return np.ascontiguousarray(laid_out(y, layout)), final

    def explain(self) -> str:
        """See `PreparedLayer.explain`."""
        dense = "read in place" if self.dtype == "f32" else f"converted to {self.dtype}"
        reads = (
            f"contiguous float32 (T, N, I) is {dense}; ntc, strided and padded views, float64 and"
            " shares of a batch are copied first, as are small batches of a shape that came before;"
            " ragged batches are gathered"
        )
        return explained(self.spec, self.dtype, self.kernel, self.why, reads)

    def _run_stack(
        self,
        stack: list[list[Family]],
        words: Array,
        packing: Packing,
        initial: list[Array],
        attention: Array | None,
        room: Room,
        *,
        keeps: bool,
    ) -> tuple[Array, str, list[Array]]:
        """(y, its data type, final states), for float32; rows and states in packed order.

        y stands in the room, or in an array of its own, which the caller ``keeps``.
        """
        final = [s.copy() for s in initial]
        if attention is not None:
            attention = narrowed(self._library, attention, PRECISIONS[self.dtype].data)
        sides = [words] * self.spec.directions
        for layer, row in enumerate(stack):
            last, kind = row is stack[-1], row[0].precision.out
            shape, dtype = (len(words), self.spec.recurrent_size * len(row)), stored(kind)
            if last and keeps:
                out = np.empty(shape, dtype)
            else:  # in turn with what the layer reads
                out = room.array(f"layer {layer % 2}", shape, dtype)
            self._run_layer(layer, row, sides, out, packing, initial, final, attention)
            sides = self._handed_on(out, kind, last=last)
        y = sides[0]
        return y, "f32" if y.dtype == np.float32 else kind, final

    def _run_layer(
        self,
        layer: int,
        row: list[Family],
        sides: list[Array],
        out: Array,
        packing: Packing,
        initial: list[Array],
        final: list[Array],
        attention: Array | None,
    ) -> None:
        """Both directions of a layer, side by side, into ``out`` (W, D*O)."""
        width = self.spec.recurrent_size

        def run_direction(d: int) -> None:
            y = out[:, d * width : (d + 1) * width]
            begin = [s[layer, d] for s in initial]
            ends = row[d].run(sides[d], y, packing, begin, attention)
            for state, end in zip(final, ends, strict=True):
                state[layer, d, : len(end)] = end  # the others keep their initial state

        def run_apart(d: int) -> None:
            with self._library.threads(self._threads):
                run_direction(d)

        if self._together > 1:
            run_all([partial(run_apart, d) for d in range(len(row))])
        else:
            for d in range(len(row)):
                run_direction(d)

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

    def run_training(
        self,
        x: Ragged | Array,
        state: State | None = None,
        attention: Ragged | Array | None = None,
    ) -> tuple[Ragged | Array, State, Tape]:
        """See `PreparedLayer.run_training`."""
        return self._training().run(x, state, attention)

    def backward(
        self, tape: Tape, dy: Ragged | Array | None, dstate: State | None = None
    ) -> Gradients:
        """See `PreparedLayer.backward`."""
        return self._training().backward(tape, dy, dstate)

    def cache_info(self) -> dict[str, int]:
        """Primitives found and made so far, over all layers and directions."""
        stacks = list(self._stacks.values())
        counts = [family.cache_info() for stack in stacks for row in stack for family in row]
        hits, misses = np.sum(counts, axis=0)
        fixed = self._fixed.hits() if self._fixed else 0
        return {"hits": int(hits) + fixed, "misses": int(misses)}
