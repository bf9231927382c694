"""Recurrent layers as operators of torch.library, for what traces a model: torch.compile.

Eager calls do not come here: an operator costs 14 us a call, 42 us with gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils.weak import WeakIdKeyDictionary

from onernn.adapters.torch.live_layer import CELLS, Batch, Call, LiveLayer, batch_of
from onernn.ir.spec import RnnSpec

_LIVE: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""What is packed, by the first parameter of a layer."""


class _Token(np.ndarray[Any, Any]):
    """A number whose memory a compiled graph keeps from the run forward to that backward."""

    call: Call


_TOKENS: WeakValueDictionary[int, _Token] = WeakValueDictionary()


def forget_compiled(weight: torch.Tensor | None) -> None:
    """Compiled graphs pack the layer whose first parameter this is anew."""
    if weight is not None:
        _LIVE.pop(weight, None)


def spec_of_kind(kind: str, x: torch.Tensor, hh: torch.Tensor, layers: int, parts: int) -> RnnSpec:
    """The layer of a ``kind``: PyTorch's mode, and a colon where a projection follows."""
    return _spec(kind, int(x.shape[-1]), int(hh.shape[0]), int(hh.shape[1]), layers, parts)


@cache
def _spec(kind: str, inputs: int, rows: int, width: int, layers: int, parts: int) -> RnnSpec:
    mode, projected, _ = kind.partition(":")
    return RnnSpec(
        CELLS[mode],
        inputs,
        rows // len(CELLS[mode].gates),
        layers=layers,
        direction="bidirectional_concat" if parts == 2 * layers else "left2right",
        projection_size=width if projected else None,
    )


def _batch(x: torch.Tensor, sizes: torch.Tensor | None, batch_first: bool) -> Batch:
    found = batch_of(x if sizes is None else PackedSequence(x, sizes), batch_first)
    if found is None:
        raise RuntimeError(f"onernn::recurrent: batch sizes do not fit x of shape {list(x.shape)}")
    return found


def _shapes(
    x: torch.Tensor, sizes: torch.Tensor | None, states: Any, spec: RnnSpec, batch_first: bool
) -> list[Any]:
    """Of y and of the final states, h first; (0,) for c where there is none."""
    sequences = x.shape[0 if batch_first else 1] if sizes is None else states[0].shape[1]
    parts = spec.layers * spec.directions
    shapes = [(*x.shape[:-1], spec.output_size), (parts, sequences, spec.recurrent_size)]
    lstm = len(spec.cell.states) > 1
    return [*shapes, (parts, sequences, spec.hidden_size) if lstm else (0,)]


@torch.library.custom_op("onernn::recurrent", mutates_args=())  # type: ignore[untyped-decorator]
def recurrent(
    x: torch.Tensor,
    batch_sizes: torch.Tensor | None,
    states: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    kind: str,
    layers: int,
    parts: int,
    batch_first: bool,
    dtype: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """y, h_n and c_n of a stack without gradients."""
    live, spec = _LIVE.get(weights[0]), spec_of_kind(kind, x, weights[1], layers, parts)
    if live is None or (live.spec, live.dtype) != (spec, dtype):
        live = LiveLayer(spec, [f"weight {k}" for k in range(len(weights))], dtype)
        _LIVE[weights[0]] = live
    batch = _batch(x, batch_sizes, batch_first)
    y, ends = live.run(dtype, weights, batch, [state.contiguous() for state in states])
    return (y, *ends) if len(ends) > 1 else (y, *ends, x.new_empty(0))


@recurrent.register_fake
def _(x, batch_sizes, states, weights, kind, layers, parts, batch_first, dtype):  # type: ignore[no-untyped-def]
    spec = spec_of_kind(kind, x, weights[1], layers, parts)
    return tuple(map(x.new_empty, _shapes(x, batch_sizes, states, spec, batch_first)))


@torch.library.custom_op("onernn::recurrent_recorded", mutates_args=())  # type: ignore[untyped-decorator]
def recurrent_recorded(
    x: torch.Tensor,
    batch_sizes: torch.Tensor | None,
    states: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    kind: str,
    layers: int,
    parts: int,
    dtype: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """y, h_n, c_n, and a token for `recurrent_backward`; time comes first."""
    call, tensors = _call(x, batch_sizes, states, weights, kind, layers, parts, dtype)
    y, *ends = call.forward(tensors)
    token = np.zeros(1, np.int64).view(_Token)
    token.call = call
    held = torch.from_numpy(token)
    _TOKENS[held.data_ptr()] = token
    return y, ends[0], ends[1] if len(ends) > 1 else x.new_empty(0), held


def _call(
    x: torch.Tensor,
    batch_sizes: torch.Tensor | None,
    states: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    kind: str,
    layers: int,
    parts: int,
    dtype: str,
) -> tuple[Call, list[torch.Tensor]]:
    spec = spec_of_kind(kind, x, weights[1], layers, parts)
    live = LiveLayer(spec, [f"weight {k}" for k in range(len(weights))], dtype)
    live.check(weights)
    batch = _batch(x, batch_sizes, batch_first=False)
    return Call(live, spec, batch, len(states), dtype), [batch.x, *states, *weights]


@recurrent_recorded.register_fake
def _(x, batch_sizes, states, weights, kind, layers, parts, dtype):  # type: ignore[no-untyped-def]
    spec = spec_of_kind(kind, x, weights[1], layers, parts)
    found = map(x.new_empty, _shapes(x, batch_sizes, states, spec, False))
    return (*found, x.new_empty(1, dtype=torch.int64))


@torch.library.custom_op("onernn::recurrent_backward", mutates_args=())  # type: ignore[untyped-decorator]
def recurrent_backward(
    token: torch.Tensor,
    grads: Sequence[torch.Tensor],
    x: torch.Tensor,
    batch_sizes: torch.Tensor | None,
    states: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    kind: str,
    layers: int,
    parts: int,
    dtype: str,
) -> list[torch.Tensor]:
    """Gradients by x, the states and the weights. Without its token the run forward is repeated."""
    found = _TOKENS.get(token.data_ptr())
    if found is None:
        call, tensors = _call(x, batch_sizes, states, weights, kind, layers, parts, dtype)
        return call.backward(tensors, grads)
    batch = _batch(x, batch_sizes, batch_first=False)
    return found.call.backward([batch.x, *states, *weights], grads)


@recurrent_backward.register_fake
def _(token, grads, x, batch_sizes, states, weights, kind, layers, parts, dtype):  # type: ignore[no-untyped-def]
    return [each.new_empty(each.shape) for each in (x, *states, *weights)]


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, sizes, states, weights, *ctx.rest = inputs
    ctx.states, ctx.sizes = len(states), sizes
    ctx.save_for_backward(output[3], x, *states, *weights)


def _backward(ctx: Any, dy: Any, dh: Any, dc: Any, _: Any) -> Any:
    token, x, *others = ctx.saved_tensors
    states, weights = others[: ctx.states], others[ctx.states :]
    grads = [dy, dh, dc] if ctx.rest[0].startswith("LSTM") else [dy, dh]
    found = torch.ops.onernn.recurrent_backward(
        token, grads, x, ctx.sizes, states, weights, *ctx.rest
    )
    dx, dothers = found[0], found[1:]
    nothing = [None] * len(ctx.rest)
    return dx, None, dothers[: ctx.states], dothers[ctx.states :], *nothing


recurrent_recorded.register_autograd(_backward, setup_context=_keep)


def run_traced(module: Any, input: Any, hx: Any) -> Any:
    """A call that is traced, as operators; None where PyTorch's own are traced."""
    sizes = order = back = None
    x = input
    if isinstance(input, PackedSequence):
        x, sizes, order, back = input
    if x.dtype != torch.float32 or x.shape[-1] != module.input_size:
        return None
    single = x.dim() == 2 and sizes is None
    if x.dim() != (2 if sizes is not None or single else 3):
        return None
    weights = [getattr(module, name) for name in module._flat_weights_names]
    lstm = module.mode == "LSTM"
    states = [] if hx is None else list(hx) if lstm else [hx]
    if single:
        x, states = x.unsqueeze(1), [state.unsqueeze(1) for state in states]
    if order is not None:
        states = [state.index_select(1, order) for state in states]
    D = 2 if module.bidirectional else 1
    parts = D * module.num_layers
    batch_first = module.batch_first and not single and sizes is None
    widths = [module.proj_size or module.hidden_size, module.hidden_size]
    if sizes is not None:
        if not states:  # they tell how many sequences there are
            count = int(sizes[0]) if order is None else order.shape[0]
            states = [x.new_zeros(parts, count, width) for width in widths[: 1 + lstm]]
    kind = module.mode + (":" if module.proj_size else "")
    dtype = module.onernn_dtype
    drawn = module.dropout if module.training and module.num_layers > 1 else 0.0
    records = torch.is_grad_enabled() and any(
        [each.requires_grad for each in (x, *states, *weights)]
    )
    if not (drawn or records):
        y, h, c = torch.ops.onernn.recurrent(
            x, sizes, states, weights, kind, module.num_layers, parts, batch_first, dtype
        )
        ends = [h, c] if lstm else [h]
    else:
        y, kept = x.transpose(0, 1) if batch_first else x, []
        pieces = module.num_layers if drawn else 1
        each, every = parts // pieces, len(weights) // pieces
        for k in range(pieces):
            y, *last = torch.ops.onernn.recurrent_recorded(
                y,
                sizes,
                [state[k * each : (k + 1) * each] for state in states],
                weights[k * every : (k + 1) * every],
                kind,
                module.num_layers // pieces,
                each,
                dtype,
            )
            kept.append(last[: 2 if lstm else 1])
            if k + 1 < pieces:
                y = torch.dropout(y, drawn, True)
        ends = [torch.cat(of) if drawn else of[0] for of in zip(*kept, strict=True)]
        y = y.transpose(0, 1) if batch_first else y
    if single:
        y, ends = y.squeeze(1), [end.squeeze(1) for end in ends]
    if back is not None:
        ends = [end.index_select(1, back) for end in ends]
    out = y if sizes is None else PackedSequence(y, sizes, order, back)
    return out, tuple(ends) if lstm else ends[0]
