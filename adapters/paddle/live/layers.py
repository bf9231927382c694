"""Layers of paddle.nn whose kernel is ours: in place, alive, trained by Paddle's autograd."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from onernn.adapters.paddle.live.custom_operators import arguments, register_operators
from onernn.adapters.paddle.live.execution import Arguments, LayerKind, LiveLayer, Options, Recorded
from onernn.adapters.paddle.live.pir_programs import append_operator, is_pir
from onernn.adapters.paddle.live.tensors import view_eager
from onernn.adapters.requirements import require
from onernn.core.arrays import Array
from onernn.core.errors import Refusal, ShapeError, UnsupportedError
from onernn.core.plugins import plugins_enabled

_log = logging.getLogger("onernn")
_DROPOUT = "dropout between its layers is drawn in training"


def optimized_layer(target: Any, chosen: Options) -> Any:
    """The layer, with all recurrent ones in it ours; see `plugin.optimize`."""
    base = _base()
    found = [each for each in target.sublayers(include_self=True) if isinstance(each, base)]
    reasons = {id(each): _obstacle(each) for each in found}
    if not any(not reason for reason in reasons.values()):
        raise UnsupportedError(
            f"{type(target).__name__} holds no SimpleRNN, LSTM or GRU that can be replaced",
            [Refusal(reasons[id(each)], each.full_name()) for each in found],
        )
    for each in found:
        if reasons[id(each)]:
            _log.warning("%s: stays with Paddle: %s", each.full_name(), reasons[id(each)])
        else:
            each.__class__ = _ours(_theirs(type(each)), chosen)
            _LIVE.pop(each, None)
    return target


def _base() -> Any:
    return require("paddle.nn.layer.rnn", "paddle").RNNBase


def _obstacle(layer: Any) -> str:
    """Why a layer cannot be ours, "" where it can."""
    if getattr(layer, "proj_size", 0):
        return "a projection (proj_size), which Paddle composes of small operators"
    if not layer.could_use_cudnn:
        return "Paddle composes it of small operators"
    return ""


def _weights(layer: Any) -> list[Any]:
    """Its WeightList. Where a bias is left out, Paddle's is too short, which crashes its kernel."""
    if not _is_short(layer):
        return list(layer._all_weights)
    cells = [each.cell for each in layer]  # with two directions Paddle does not even make one
    matrices = [matrix for cell in cells for matrix in (cell.weight_ih, cell.weight_hh)]
    return [*matrices, *(bias for cell in cells for bias in (cell.bias_ih, cell.bias_hh))]


def _is_short(layer: Any) -> bool:
    return len(layer._all_weights) < 4 * layer.num_layers * layer.num_directions


def _theirs(kind: type) -> type:
    """The class that a layer had before it became ours."""
    return kind.__mro__[1] if "onernn_options" in vars(kind) else kind


_LIVE: WeakKeyDictionary[Any, tuple[LiveLayer, set[str]]] = WeakKeyDictionary()
"""What is packed of each layer, and why it stayed with Paddle; copies of a layer pack their own."""


@cache
def _ours(kind: Any, chosen: Options) -> type:
    """A recurrent layer whose kernel is ours; parameters, arguments and results stay."""

    def kernel(self: Any, inputs: Any, initial_states: Any, sequence_length: Any) -> Any:
        """In the place of the call of Paddle's operator ``rnn``."""
        paddle = require("paddle", "paddle")
        theirs = partial(kind._cudnn_impl, self, inputs, initial_states, sequence_length)
        if not plugins_enabled() and not _is_short(self):
            return theirs()
        if not paddle.in_dynamic_mode():
            try:
                return _traced(self, inputs, initial_states, sequence_length, chosen)
            except UnsupportedError as error:
                _log.warning("%s: stays with Paddle: %s", self.full_name(), error.refusal.reason)
                return theirs()
        sizes = (self.mode, self.input_size, self.hidden_size, self.num_layers, self.num_directions)
        live, told = _LIVE.get(self) or (None, set())
        if live is None or live.kind != sizes:
            live = LiveLayer(LayerKind(*sizes), chosen)
            _LIVE[self] = live, told
        try:
            if self.training and self.dropout and self.num_layers > 1:
                raise UnsupportedError(_DROPOUT)
            tensors = (inputs, *initial_states, *_weights(self))
            outputs = _called(live, tensors, len(initial_states), sequence_length, self.time_major)
        except UnsupportedError as error:
            if _is_short(self):
                raise  # Paddle would crash
            reason = error.refusal.reason
            if reason not in told:
                told.add(reason)
                _log.warning("%s: stays with Paddle: %s", self.full_name(), reason)
            return theirs()
        out, *states = outputs
        return out, tuple(states) if len(states) > 1 else states[0]

    own = {"_cudnn_impl": _untraced(kernel), "onernn_options": chosen}
    return type(kind.__name__, (kind,), own)


def _traced(layer: Any, inputs: Any, states: Sequence[Any], lengths: Any, chosen: Options) -> Any:
    """The layer in a program that is being made: our operator, in those of PIR."""
    paddle = require("paddle", "paddle")
    if not is_pir(inputs):
        raise UnsupportedError("programs of Paddle 2's format hold Paddle's operators")
    if layer.training and layer.dropout and layer.num_layers > 1:
        raise UnsupportedError(_DROPOUT)
    read = [inputs, *states, *_weights(layer)]
    for each in read:
        if each.dtype != paddle.float32:
            raise UnsupportedError(f"{each.name}: {each.dtype}, ours reads {paddle.float32}")
    sizes = layer.mode, layer.num_layers, layer.num_directions == 2, layer.hidden_size
    test = not layer.training
    given = arguments(sizes, time_major=layer.time_major, is_test=test, chosen=chosen)
    register_operators()
    out, after, _ = append_operator(read, lengths, given)
    return out, after if len(after) > 1 else after[0]


def _untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function for callers whose bytecode `paddle.jit.to_static` may be tracing: it runs as is.

    Otherwise Paddle would trace NumPy and ctypes, too, and fail. Its graphs end before the call and
    begin anew behind it.
    """
    paddle, tracer = require("paddle", "paddle"), require("paddle.jit.sot.psdb", "paddle")

    def call(*arguments: Any) -> Any:
        tracer.fallback()  # known to the tracer by name; for everybody else it does nothing
        callback = paddle.base.core.set_eval_frame(None)
        try:
            return function(*arguments)
        finally:
            paddle.base.core.set_eval_frame(callback)

    return call


def _called(
    live: LiveLayer, tensors: Sequence[Any], states: int, lengths: Any, time_major: bool
) -> Sequence[Any]:
    """The layer's outputs, as Paddle's tensors that know their gradients."""
    paddle = require("paddle", "paddle")
    for each in tensors:
        if each.dtype not in (paddle.float32, paddle.float64) or each.dtype != tensors[-1].dtype:
            raise UnsupportedError(f"{each.name}: {each.dtype}, weights are {tensors[-1].dtype}")
    arrays = [view_eager(each, each.name) for each in tensors]
    given = Arguments(
        arrays[0],
        tuple(arrays[1 : 1 + states]),
        arrays[1 + states :],
        None if lengths is None else view_eager(lengths, "sequence_length"),
        time_major,
    )
    if arrays[0].ndim != 3:
        raise ShapeError(f"inputs: expected 3 axes, got {arrays[0].shape}")
    if not paddle.is_grad_enabled() or all(each.stop_gradient for each in tensors):
        return [paddle.to_tensor(each) for each in live.run(given)]
    results, recorded = live.run_training(given)
    needed = [not each.stop_gradient for each in tensors]
    once = _Once(live, results, recorded, given, needed)
    outputs: Sequence[Any] = _function().apply(once, *tensors)
    for output in outputs:
        output.register_hook(_untraced(once.check))
    return outputs


class _Once:
    """A call that may go backward, once: over a node that ran, Paddle's PyLayer crashes."""

    def __init__(
        self,
        live: LiveLayer,
        results: Sequence[Array],
        recorded: Recorded,
        given: Arguments,
        needed: Sequence[bool],
    ) -> None:
        self.results, self._live, self._needed = results, live, needed
        self._recorded: Recorded | None = recorded
        # Tapes do not follow what is done to x, lengths neither.
        lengths = None if given.lengths is None else given.lengths.copy()
        self._axes = Arguments(results[0], tuple(results[1:]), (), lengths, given.time_major)

    def check(self, _: Any) -> None:
        """Raises where it went backward already; Paddle calls this before it does so."""
        if self._recorded is None:
            raise UnsupportedError(
                "no gradients a second time (retain_graph=True): onernn's layers go backward once"
            )

    def backward(self, incoming: Sequence[Any]) -> list[Array | None]:
        """Gradients of all tensors that went in, None where nobody needs them."""
        self.check(None)
        recorded, self._recorded = self._recorded, None
        dy, *dstates = [
            np.zeros_like(result) if each is None else view_eager(each, "output gradient")
            for each, result in zip(incoming, self.results, strict=True)
        ]
        outputs = self._axes._replace(x=dy, states=tuple(dstates))
        assert recorded is not None  # checked
        dx, dbegin, dweights = self._live.backward(recorded, outputs)
        found = zip((dx, *dbegin, *dweights), self._needed, strict=True)
        return [grad if needed else None for grad, needed in found]


@cache
def _function() -> Any:
    """How Paddle's autograd calls our backward."""
    paddle = require("paddle", "paddle")

    class Function(paddle.autograd.PyLayer):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, once: _Once, *_: Any) -> Any:
            ctx.set_materialize_grads(False)  # Paddle 2.6.2 crashes over those that it makes
            ctx.once = once
            return tuple(paddle.to_tensor(result) for result in once.results)

        @staticmethod
        @_untraced
        def backward(ctx: Any, *incoming: Any) -> Any:
            if paddle.is_grad_enabled():
                raise UnsupportedError("no gradients of gradients (create_graph=True)")
            grads = ctx.once.backward(incoming)
            return tuple(None if grad is None else paddle.to_tensor(grad) for grad in grads)

    return Function
