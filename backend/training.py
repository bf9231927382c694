"""Training of a stack: forward with a tape, and backward, out of its layers' and directions'."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from functools import partial
from typing import Any, Protocol

import numpy as np

from onernn.backend.checks import State, checked_input, checked_state
from onernn.backend.gradients import Gradients, Tape, TapeError, checked_gradient
from onernn.backend.making import MAKING
from onernn.backend.schedule import Share, shares
from onernn.core.arrays import Array
from onernn.core.ragged import Packing, Ragged, data_of
from onernn.core.spec import RnnSpec
from onernn.core.weights import RnnWeights


class TrainingDirection(Protocol):
    """One layer in one direction: sorted packed words (W, C), states (N, O) in the same order."""

    def forward(
        self, words: Array, packing: Packing, begin: Sequence[Array], attention: Array | None
    ) -> tuple[Array, Sequence[Array], Any]:
        """(y, final states, what `backward` needs). Nobody writes into ``words`` or y later."""

    def backward(
        self,
        kept: Any,
        packing: Packing,
        dy: Array,
        dend: Sequence[Array],
        into: Mapping[str, Array],
    ) -> tuple[Array, Sequence[Array], Array | None]:
        """Gradients (dx, dbegin, dattention); those of the weights are added to ``into``.

        ``into``: by the names of `RnnWeights`, (I, G, O) and so on, without the axes L and D.
        """


class Schedule:
    """How parts run that do not depend on each other: one by one, in this thread."""

    shares = 1
    """Into how many parts a batch of one direction is dealt out."""

    def whole(self) -> AbstractContextManager[None]:
        """The context of a run."""
        return nullcontext()

    def run_all(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        """The result of each task."""
        return [task() for task in tasks]


class StackTraining:
    """Forward and backward of a layer or stack in ``dtype``; may be shared between threads."""

    def __init__(
        self,
        spec: RnnSpec,
        layers: Sequence[RnnWeights],
        directions: Sequence[Sequence[TrainingDirection]],
        dtype: np.dtype[Any],
        kernel: str,
        why: str,
        schedule: Schedule,
    ) -> None:
        self._spec, self._layers, self._directions = spec, layers, directions
        self._dtype, self._kernel, self._why, self._schedule = dtype, kernel, why, schedule

    def run(
        self, x: Ragged | Array, state: State | None, attention: Ragged | Array | None
    ) -> tuple[Ragged | Array, State, Tape]:
        """See `PreparedLayer.run_training`."""
        x, initial, attention = checked_input(self._spec, x, state, attention, self._dtype)
        words, scale = _flat(x), None if attention is None else _flat(attention)
        y = np.empty((len(words), self._spec.output_size), self._dtype)
        final = tuple(np.empty_like(s) for s in initial)

        def run_share(share: Share) -> Any:
            begin = [s[:, :, share.sentences] for s in initial]
            a = None if scale is None else _copied(scale, share.rows)
            own = _copied(words, share.rows)
            y[share.rows], ends, kept = self._forward(own, share.packing, begin, a)
            _put(final, np.s_[:, :, share.sentences], ends)
            return kept

        with self._schedule.whole():
            dealt = shares(x, self._schedule.shares)
            kept = self._schedule.run_all([partial(run_share, share) for share in dealt])
        frame = _like(x, words[:, :0].copy())
        return _like(frame, y), final, Tape(self, self._kernel, self._why, frame, kept)

    def backward(self, tape: Tape, dy: Ragged | Array | None, dstate: State | None) -> Gradients:
        """See `PreparedLayer.backward`."""
        if not isinstance(tape, Tape):
            raise TapeError(f"tape: expected what run_training gave, got {type(tape).__name__}")
        tape.check_maker(self)
        frame, spec = tape.frame, self._spec
        given = checked_gradient(dy, frame, spec.output_size, self._dtype)
        sentences = len(frame) if isinstance(frame, Ragged) else frame.shape[1]
        dend = checked_state(spec, dstate, sentences, self._dtype, "dstate")
        kept = tape.take()
        dx = np.empty((len(given), spec.input_size), self._dtype)
        dscale = np.empty((len(given), 1), self._dtype)
        dbegin = tuple(np.empty_like(s) for s in dend)

        def run_share(share: Share, needed: Any) -> list[dict[str, Array]]:
            ends = [s[:, :, share.sentences] for s in dend]
            weights = [_zeros_like(w, self._dtype) for w in self._layers]
            dx[share.rows], begins, da = self._backward(
                needed, _copied(given, share.rows), share.packing, ends, weights
            )
            _put(dbegin, np.s_[:, :, share.sentences], begins)
            if da is not None:
                dscale[share.rows] = da
            return weights

        with self._schedule.whole():
            pairs = zip(shares(frame, self._schedule.shares), kept, strict=True)
            first, *others = self._schedule.run_all([partial(run_share, *pair) for pair in pairs])
        for weights in others:
            for total, more in zip(first, weights, strict=True):
                for name, array in total.items():
                    array += more[name]
        return Gradients(
            _like(frame, dx),
            dbegin,
            tuple(map(_as_weights, first)),
            _like(frame, dscale) if spec.cell.has_attention else None,
        )

    def _forward(
        self, words: Array, packing: Packing, begin: list[Array], attention: Array | None
    ) -> tuple[Array, list[Array], list[list[Any]]]:
        """(y, final states, what each direction of each layer keeps), packed and sorted."""
        final, kept = [np.empty_like(s) for s in begin], []
        sides = [words] * self._spec.directions
        for layer, row in enumerate(self._directions):
            outs = self._schedule.run_all(
                [
                    partial(one.forward, sides[d], packing, _of(begin, layer, d), attention)
                    for d, one in enumerate(row)
                ]
            )
            for d, (_, ends, _) in enumerate(outs):
                _put(final, (layer, d), ends)
            kept.append([needed for *_, needed in outs])
            ys = [y for y, *_ in outs]
            sides = ys if self._apart(layer + 1) else [self._joined(ys)] * len(row)
        return sides[0], final, kept

    def _backward(
        self,
        kept: list[list[Any]],
        dy: Array,
        packing: Packing,
        dend: list[Array],
        weights: list[dict[str, Array]],
    ) -> tuple[Array, list[Array], Array | None]:
        """(dx, dbegin, dattention), packed and sorted; ``weights`` gets those of the weights."""
        dbegin, dscale = [np.empty_like(s) for s in dend], None
        dsides = self._split(dy)
        for layer, row in reversed(list(enumerate(self._directions))):
            into = [{name: a[0, d] for name, a in weights[layer].items()} for d in range(len(row))]
            outs = self._schedule.run_all(
                [
                    partial(
                        one.backward,
                        kept[layer][d],
                        packing,
                        dsides[d],
                        _of(dend, layer, d),
                        into[d],
                    )
                    for d, one in enumerate(row)
                ]
            )
            for d, (_, begins, da) in enumerate(outs):
                _put(dbegin, (layer, d), begins)
                if da is not None:
                    dscale = da if dscale is None else dscale + da
            dsides = [dx for dx, *_ in outs]
            if not self._apart(layer):
                dx = sum(dsides[1:], start=dsides[0])
                dsides = self._split(dx) if layer else [dx]
        return dsides[0], dbegin, dscale

    def _apart(self, layer: int) -> bool:
        """Whether each direction of a layer reads only its own below."""
        return self._spec.stacking == "onednn" and 0 < layer < self._spec.layers

    def _joined(self, sides: list[Array]) -> Array:
        if self._spec.direction == "bidirectional_sum":
            return sides[0] + sides[1]
        return sides[0] if len(sides) == 1 else np.concatenate(sides, axis=1)

    def _split(self, dy: Array) -> list[Array]:
        """The gradient of what each direction put out, from that of `_joined`."""
        if self._spec.direction == "bidirectional_sum":
            return [dy, dy]
        return [np.ascontiguousarray(a) for a in np.split(dy, self._spec.directions, axis=1)]


class Once:
    """Training that is made at its first use, and only once: many layers never train."""

    def __init__(self, make: Callable[[], StackTraining]) -> None:
        self._make = make
        self._made: StackTraining | None = None

    def __call__(self) -> StackTraining:
        with MAKING:
            self._made = self._made or self._make()
            return self._made


def _flat(x: Ragged | Array) -> Array:
    """The words (W, C) of a batch; those of a dense one (T, N, C) are packed already."""
    data = data_of(x)
    return data if data.ndim == 2 else data.reshape(data.shape[0] * data.shape[1], data.shape[2])


def _copied(words: Array, rows: Array | slice) -> Array:
    """A row-major copy: tapes do not follow what the caller does to x."""
    return (
        np.array(words[rows], order="C")
        if isinstance(rows, slice)
        else np.take(words, rows, axis=0)
    )


def _like(frame: Ragged | Array, words: Array) -> Ragged | Array:
    """Words (W, C) as a batch like ``frame``."""
    if isinstance(frame, Ragged):
        return frame.with_data(words)
    return words.reshape(*frame.shape[:-1], words.shape[-1])


def _of(states: Sequence[Array], layer: int, direction: int) -> list[Array]:
    return [s[layer, direction] for s in states]


def _put(states: Sequence[Array], place: Any, values: Sequence[Array]) -> None:
    for state, value in zip(states, values, strict=True):
        state[place] = value


def _zeros_like(weights: RnnWeights, dtype: np.dtype[Any]) -> dict[str, Array]:
    arrays = {field.name: getattr(weights, field.name) for field in fields(weights)}
    return {name: np.zeros(a.shape, dtype) for name, a in arrays.items() if a is not None}


def _as_weights(arrays: dict[str, Array]) -> RnnWeights:
    for array in arrays.values():
        array.flags.writeable = False  # then it need not be copied
    return RnnWeights(arrays.pop("layer", None), **arrays)
