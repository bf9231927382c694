"""Layers of paddle.nn whose kernel is ours: in place, alive, trained by Paddle's autograd."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any
from weakref import WeakSet

from onernn.adapters.paddle.live.cells import cells_obstacle, ours_of_cells
from onernn.adapters.paddle.live.custom_operators import (
    FEW,
    is_faster_in_paddle,
    missing_operators,
)
from onernn.adapters.paddle.live.execution import LayerKind, Options
from onernn.adapters.paddle.live.layer_calls import Described, forget, run_layer, untraced
from onernn.adapters.requirements import require
from onernn.core.errors import Refusal, UnsupportedError

_log = logging.getLogger("onernn")

_LEFT: WeakSet[Any] = WeakSet()
"""Layers of which was told that Paddle runs small batches."""


def optimized_layer(target: Any, chosen: Options) -> Any:
    """The layer, with all recurrent ones in it ours; see `plugin.optimize`."""
    rnn = require("paddle.nn.layer.rnn", "paddle")
    all_layers = target.sublayers(include_self=True)
    bases = [each for each in all_layers if isinstance(each, rnn.RNNBase)]
    inside = {id(part) for each in bases for part in each.sublayers()}
    wrappers = [each for each in all_layers if isinstance(each, rnn.RNN | rnn.BiRNN)]
    found = [*bases, *(each for each in wrappers if id(each) not in inside)]
    reasons = {id(each): _obstacle(each) for each in found}
    if not any(not reason for reason in reasons.values()):
        raise UnsupportedError(
            f"{type(target).__name__} holds no SimpleRNN, LSTM, GRU, RNN or BiRNN that can be"
            " replaced",
            [Refusal(reasons[id(each)], each.full_name()) for each in found],
        )
    if missing := missing_operators():
        _log.info("layers run in Python, 0.1 ms a call: %s", missing)
    for each in found:
        if reasons[id(each)]:
            _log.warning("%s: stays with Paddle: %s", each.full_name(), reasons[id(each)])
        else:
            make = _ours if isinstance(each, rnn.RNNBase) else ours_of_cells
            each.__class__ = make(_theirs(type(each)), chosen)
            forget(each)
    return target


def _obstacle(layer: Any) -> str:
    """Why a layer cannot be ours, "" where it can."""
    if not hasattr(layer, "could_use_cudnn"):
        return cells_obstacle(layer, _theirs(type(layer)))
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


def _is_left(paddle: Any, layer: Any, inputs: Any) -> bool:
    """Whether Paddle is faster for this call, and right: it crashes over what this excludes."""
    shape = inputs.shape
    if len(shape) != 3:
        return False
    records = paddle.is_grad_enabled() if paddle.in_dynamic_mode() else layer.training
    if records:
        frozen = {each.stop_gradient for each in layer._all_weights}
        records = False in frozen or not inputs.stop_gradient
        if records and (True in frozen or not layer.training):
            return False
    return not _is_short(layer) and is_faster_in_paddle(shape, layer.hidden_size, not records)


def _theirs(kind: type) -> type:
    """The class that a layer had before it became ours."""
    return kind.__mro__[1] if "onernn_options" in vars(kind) else kind


@cache
def _ours(kind: Any, chosen: Options) -> type:
    """A recurrent layer whose kernel is ours; parameters, arguments and results stay."""

    paddle = require("paddle", "paddle")

    def kernel(self: Any, inputs: Any, initial_states: Any, sequence_length: Any) -> Any:
        """In the place of the call of Paddle's operator ``rnn``."""
        if chosen.may_leave and sequence_length is None and _is_left(paddle, self, inputs):
            if self not in _LEFT:
                _LEFT.add(self)
                _log.info("%s: stays with Paddle: %s", self.full_name(), FEW)
            return kind._cudnn_impl(self, inputs, initial_states, sequence_length)
        sizes = (self.mode, self.input_size, self.hidden_size, self.num_layers, self.num_directions)
        described = Described(
            LayerKind(*sizes),
            self.time_major,
            self.training,
            bool(self.training and self.dropout and self.num_layers > 1),
            _weights(self),
            _is_short(self),
        )
        found = run_layer(self, described, inputs, initial_states, sequence_length, chosen)
        if found is None:
            return kind._cudnn_impl(self, inputs, initial_states, sequence_length)
        out, states = found
        return out, states if len(states) > 1 else states[0]

    own = {"_cudnn_impl": untraced(kernel), "onernn_options": chosen}
    return type(kind.__name__, (kind,), own)
