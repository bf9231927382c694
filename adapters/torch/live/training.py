"""Calls whose gradients PyTorch's autograd wants, forward and backward on ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from onernn.adapters.torch.live.batches import Batch
from onernn.adapters.torch.live.live_layer import (
    LiveLayer,
    arrays_of,
    engine,
    laid_back,
)
from onernn.adapters.torch.live.parameters import gradients_back, weights_of
from onernn.backend import Backend
from onernn.backend.compiled.backend import KernelsBackend
from onernn.backend.stack import Trainer
from onernn.core.arrays import Array
from onernn.core.ragged import Ragged, data_of
from onernn.core.spec import Cell, RnnSpec
from onernn.core.weights import RnnWeights

TWICE = (
    "onernn: no gradients of gradients through recurrent modules; run the forward pass under"
    " onernn.plugins_disabled() for these"
)


def is_small(spec: RnnSpec, batch: Batch) -> bool:
    """Whether PyTorch trains on such a batch in less time.

    Ours packs weights and walks layers in Python, 0.3 ms a call. PyTorch takes its time for each
    step, but for a padded LSTM, which is one call of oneDNN there.
    """
    if batch.layout == "lod":
        return False  # only ours takes lists and nested tensors
    units = spec.hidden_size
    if spec.cell is Cell.LSTM and batch.layout != "packed" and not spec.projection_size:
        words = batch.steps * batch.sequences
        work = words * spec.gates * (spec.input_size + units) * units
        return words < 2000 or work < 200_000_000  # weights are turned and packed for few words
    return batch.steps * units < (1000 if spec.gates > 1 else 4000)


def run_recorded(
    live: LiveLayer,
    dtype: str,
    weights: Sequence[torch.Tensor],
    batch: Batch,
    states: Sequence[torch.Tensor],
    dropout: float,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """As `LiveLayer.run`, with dropout between the layers. Raises `UnsupportedError`.

    Parameters are packed anew: optimizers that write through ``.data`` are followed, too.
    """
    live.forget()
    live.check(weights)
    spec, is_batch_first = live.spec, batch.layout == "ntc"
    if is_batch_first:
        batch = batch._replace(x=batch.x.transpose(0, 1), layout="tnc")
    y, ends = batch.x, []
    # Dropout is PyTorch's own, drawn between calls of single layers.
    pieces = spec.layers if dropout else 1
    parts, every = spec.directions * spec.layers // pieces, len(weights) // pieces
    for k in range(pieces):
        one = spec.one_layer(spec.reads(k), spec.direction) if dropout else spec
        begins = [state[k * parts : (k + 1) * parts] for state in states]
        own = weights[k * every : (k + 1) * every]
        call = Call(live, one, batch._replace(x=y.detach()), len(states), dtype)
        y, *last = _Recorded.apply(call, y, *begins, *own)
        ends.append(last)
        if k + 1 < pieces:
            y = torch.dropout(y, dropout, True)
    whole = [torch.cat(each) if dropout else each[0] for each in zip(*ends, strict=True)]
    return (y.transpose(0, 1) if is_batch_first else y), whole


class Call:
    """A run forward, and what its run backward reads.

    ``batch`` is where words stand; ``states`` how many initial states are given.
    """

    def __init__(
        self, live: LiveLayer, spec: RnnSpec, batch: Batch, states: int, dtype: str
    ) -> None:
        self.spec, self._live, self._batch, self._states = spec, live, batch, states
        self._dtype = dtype
        self._frame = arrays_of(batch, batch.x.numpy()[..., :0])
        self._kept: Any = None
        self._walk: Any = None

    def forward(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """y and the final states, from x, the initial states and the parameters."""
        x, *others = [each.detach() for each in tensors]
        states, flat = others[: self._states], others[self._states :]
        dtype, threads = self._dtype, torch.get_num_threads()
        self._every = len(flat) // (self.spec.layers * self.spec.directions)
        layers = weights_of(self.spec, flat)
        trainer = _trainer(engine(dtype, threads), self.spec, layers, dtype)
        self._live.ran = f"{self.spec.cell.name} {self.spec.direction}, {dtype}, {trainer.name}"
        self._walk = trainer.walk
        y, final, self._kept = self._walk.run_training(
            arrays_of(self._batch, x.numpy()), self._initial(states, x), None
        )
        whole = self._like_x(y)
        return [whole, *[torch.from_numpy(_rows(end)) for end in final]]

    def backward(
        self, tensors: Sequence[torch.Tensor], grads: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor]:
        """Gradients of all that went in, in its order."""
        if self._kept is None:  # a second time (retain_graph=True): tapes serve one run
            self.forward(tensors)
        kept, self._kept = self._kept, None
        dy, *dends = grads
        channels, x = self.spec.output_size, tensors[0]
        if dy is None:
            words = x.new_zeros((self._words(), channels)).numpy()
        else:
            words = _flat(arrays_of(self._batch, dy.numpy()))
        given = [None if each is None else each.contiguous() for each in dends]
        if any(each is not None for each in given):
            given = [
                x.new_zeros(like) if each is None else each
                for each, like in zip(given, self._shapes(), strict=True)
            ]
        else:
            given = []
        dx, dbegin, layers, _ = self._walk.backward(
            kept, self._frame, words, self._initial(given, x)
        )
        begins = [torch.from_numpy(_rows(each)) for each in dbegin][: self._states]
        return [self._like_x(dx), *begins, *gradients_back(self.spec, layers, self._every)]

    def _words(self) -> int:
        return self._batch.x.numel() // self._batch.x.shape[-1]

    def _shapes(self) -> list[tuple[int, int, int]]:
        spec = self.spec
        widths = (spec.recurrent_size, spec.hidden_size)[: len(spec.cell.states)]
        return [(spec.layers * spec.directions, self._batch.sequences, width) for width in widths]

    def _initial(self, states: Sequence[torch.Tensor], x: torch.Tensor) -> tuple[Array, ...]:
        """States (L, D, N, O); zeros where there are none."""
        found = states or [x.new_zeros(shape) for shape in self._shapes()]
        L, D = self.spec.layers, self.spec.directions
        return tuple(each.numpy().reshape(L, D, *each.shape[1:]) for each in found)

    def _like_x(self, words: Array) -> torch.Tensor:
        """(W, C) as the array level has them, as words like x."""
        frame = self._frame
        batch = frame.with_data(words) if isinstance(frame, Ragged) else words
        laid = np.ascontiguousarray(laid_back(self._batch, batch))
        return torch.from_numpy(laid.reshape(*self._batch.x.shape[:-1], words.shape[-1]))


def _trainer(engine: Backend, spec: RnnSpec, layers: Sequence[RnnWeights], dtype: str) -> Trainer:
    if isinstance(engine, KernelsBackend):
        return engine.trainer(spec, layers, dtype)
    return engine.prepare(spec, layers, dtype=dtype, strict=True).trainer()


def _flat(batch: Ragged | Array) -> Array:
    words = np.ascontiguousarray(data_of(batch))
    return words.reshape(-1, words.shape[-1])


def _rows(state: Array) -> Array:
    return state.reshape(-1, *state.shape[2:])


class _Recorded(torch.autograd.Function):  # type: ignore[misc]
    """How PyTorch's autograd calls ours."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.call = call
        return tuple(call.forward(tensors))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        with torch.no_grad():
            found = ctx.call.backward(ctx.saved_tensors, grads)
        wanted = [
            each if needed else None
            for each, needed in zip(found, ctx.needs_input_grad[1:], strict=True)
        ]
        if torch.is_grad_enabled():  # create_graph=True
            wanted = _refusing(wanted)
        return None, *wanted


def _refusing(grads: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """The gradients, which raise an error where somebody asks for theirs."""
    refuse = torch._C._functions.DelayedError(TWICE, sum(each is not None for each in grads))
    there = iter(refuse(*[each.detach().requires_grad_() for each in grads if each is not None]))
    return [None if each is None else next(there) for each in grads]
