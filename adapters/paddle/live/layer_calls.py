"""Calls of a recurrent layer of paddle.nn that ours runs: live, traced, trained by autograd."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from onernn.adapters.paddle.live.custom_operators import (
    NAME,
    arguments,
    missing_operators,
    register_operators,
)
from onernn.adapters.paddle.live.execution import Arguments, LayerKind, LiveLayer, Options, Recorded
from onernn.adapters.paddle.live.pir_programs import append_operator, is_pir
from onernn.adapters.paddle.live.tensors import view_eager
from onernn.adapters.requirements import require
from onernn.core.arrays import Array
from onernn.core.errors import LibraryError, ShapeError, UnsupportedError
from onernn.core.plugins import plugins_enabled

_log = logging.getLogger("onernn")

_IS_TEST = 6
"""Among what `arguments` gives."""

_LIVE: WeakKeyDictionary[Any, tuple[LiveLayer, set[str]]] = WeakKeyDictionary()
"""What is packed of each layer, and why it stayed with Paddle; copies of a layer pack their own."""


class Described(NamedTuple):
    """What a layer is at a call. ``is_drawn``: by dropout; ``must``: Paddle itself would crash."""

    kind: LayerKind
    time_major: bool
    training: bool
    is_drawn: bool
    weights: Sequence[Any]
    must: bool = False


def forget(layer: Any) -> None:
    """Nothing is kept of the layer."""
    _LIVE.pop(layer, None)


def run_layer(
    layer: Any, is_: Described, inputs: Any, states: Sequence[Any], lengths: Any, chosen: Options
) -> tuple[Any, tuple[Any, ...]] | None:
    """The outputs and the final states; None where it stays with Paddle, whose reason is logged."""
    paddle = require("paddle", "paddle")
    if not plugins_enabled() and not is_.must:
        return None
    live, told = _LIVE.get(layer) or (None, set())
    if live is None or live.kind != is_.kind:
        live = LiveLayer(is_.kind, chosen)
        _LIVE[layer] = live, told
    in_program = not paddle.in_dynamic_mode()
    try:
        if is_.is_drawn:
            raise UnsupportedError("dropout between its layers is drawn in training")
        if in_program:
            found = _traced(is_, inputs, states, lengths, chosen)
            _log.info(
                "%s: operator %s in the program that is made; what is saved of it loads where"
                " onernn.adapters.paddle.register_operators() was called before",
                layer.full_name(),
                NAME,
            )
            return found
        tensors = (inputs, *states, *is_.weights)
        with paddle.profiler.RecordEvent(NAME):
            if (given := _operator(is_, tensors, chosen)) is not None:
                return _by_operator(is_, tensors, lengths, given)
            out, *after = _called(live, tensors, len(states), lengths, is_.time_major)
            return out, tuple(after)
    except (UnsupportedError, LibraryError) as error:
        if not in_program and (is_.must or isinstance(error, LibraryError)):
            raise
        reason = error.refusal.reason if isinstance(error, UnsupportedError) else str(error)
        if reason not in told:
            told.add(reason)
            _log.warning("%s: stays with Paddle: %s", layer.full_name(), reason)
        return None


def _traced(
    is_: Described, inputs: Any, states: Sequence[Any], lengths: Any, chosen: Options
) -> tuple[Any, tuple[Any, ...]]:
    """The layer in a program that is being made: our operator, in those of PIR."""
    paddle = require("paddle", "paddle")
    if not is_pir(inputs):
        raise UnsupportedError("programs of Paddle 2's format hold Paddle's operators")
    read = [inputs, *states, *is_.weights]
    for each in read:
        if each.dtype != paddle.float32:
            raise UnsupportedError(f"{each.name}: {each.dtype}, ours reads {paddle.float32}")
    sizes = is_.kind.mode, is_.kind.layers, is_.kind.directions == 2, is_.kind.hidden_size
    test = not is_.training
    given = arguments(sizes, time_major=is_.time_major, is_test=test, chosen=chosen)
    register_operators()
    return append_operator(read, lengths, given)


def _operator(is_: Described, tensors: Sequence[Any], chosen: Options) -> tuple[Any, ...] | None:
    """The attributes of the compiled operator; None where it cannot compute this call."""
    paddle = require("paddle", "paddle")
    if 0 in tensors[0].shape or any(each.dtype != paddle.float32 for each in tensors):
        return None
    if missing_operators():
        return None
    records = paddle.is_grad_enabled() and not all(each.stop_gradient for each in tensors)
    sizes = is_.kind.mode, is_.kind.layers, is_.kind.directions == 2, is_.kind.hidden_size
    try:
        return arguments(sizes, time_major=is_.time_major, is_test=not records, chosen=chosen)
    except UnsupportedError:
        return None


def _by_operator(
    is_: Described, tensors: Sequence[Any], lengths: Any, given: tuple[Any, ...]
) -> tuple[Any, tuple[Any, ...]]:
    """The call, whose gradients Paddle knows from the operator.

    Raises `ShapeError`; what the operator itself says reads like a failure of Paddle.
    """
    kind, shape = is_.kind, tensors[0].shape
    if len(shape) != 3:
        raise ShapeError(f"inputs: expected 3 axes, got {tuple(shape)}")
    T, N = shape[:2] if is_.time_major else shape[1::-1]
    if shape[2] != kind.input_size:
        raise ShapeError(f"x: expected (T, N, {kind.input_size}), got {(T, N, shape[2])}")
    rows = [kind.layers * kind.directions, N, kind.hidden_size]
    for state in tensors[1 : -len(is_.weights)]:
        if state.shape != rows:
            raise ShapeError(f"initial_states: expected {tuple(rows)}, got {tuple(state.shape)}")
    if lengths is not None:
        told = view_eager(lengths, "sequence_length")
        if told.shape != (N,) or told.dtype.kind != "i":
            raise ShapeError(f"lengths: expected {N} integers, got {told.dtype} {told.shape}")
        for n, length in enumerate(told.tolist()):
            if not 0 <= length <= T:
                raise ShapeError(f"lengths: sequence {n} has {length} of {T} steps")
    out, states = append_operator(tensors, lengths, given)
    if given[_IS_TEST]:
        for each in (out, *states):
            each.stop_gradient = True
    return out, states


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
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
        output.register_hook(untraced(once.check))
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
        @untraced
        def backward(ctx: Any, *incoming: Any) -> Any:
            if paddle.is_grad_enabled():
                raise UnsupportedError("no gradients of gradients (create_graph=True)")
            with paddle.profiler.RecordEvent(f"{NAME}_grad"):
                grads = ctx.once.backward(incoming)
            return tuple(None if grad is None else paddle.to_tensor(grad) for grad in grads)

    return Function
