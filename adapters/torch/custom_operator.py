"""Recurrent layers as operators of torch.library, which torch.compile can trace.

Eager calls do not use these operators, because an operator takes 14 us per call, 42 us with
gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.utils.rnn import PackedSequence
from torch.utils.weak import WeakIdKeyDictionary

from onernn.adapters.common.plugins import still_enabled
from onernn.adapters.torch.live_layer import (
    CELLS,
    Arguments,
    Call,
    Left,
    LiveModule,
    arguments_of,
    by_layers,
    count_weights,
    is_plain,
    state_shapes,
)
from onernn.ir.spec import RnnSpec

_LIVE: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""The live layers in compiled graphs, by the parameter `_FIRST`, which modules may share."""
_FIRST = "weight_ih_l0"


class _Token(np.ndarray[Any, Any]):
    """An array with the record of a forward run; a compiled graph keeps the array for backward."""

    call: Call


_TOKENS: WeakValueDictionary[int, _Token] = WeakValueDictionary()


def forget_compiled(module: nn.Module) -> None:
    """Makes compiled graphs pack the module's parameters again."""
    if (weight := module._parameters.get(_FIRST)) is not None:
        _LIVE.pop(weight, None)


def ran_compiled(module: nn.Module) -> str:
    """Returns the kernel that a compiled graph last ran for the module, or "" if it ran none."""
    weight = module._parameters.get(_FIRST)
    lives = _LIVE.get(weight, {}) if weight is not None else {}
    return next((ran for live in lives.values() if (ran := live.explain())), "")


@cache
def _spec(layer: str, inputs: int, rows: int, width: int) -> RnnSpec:
    """Returns the spec that the text ``layer`` describes; `run_traced` makes this text."""
    mode, layers, parts, _, *more = layer.split()
    return RnnSpec(
        CELLS[mode],
        inputs,
        rows // len(CELLS[mode].gates),
        layers=int(layers),
        direction="bidirectional_concat" if parts != layers else "left2right",
        projection_size=width if "projected" in more else None,
    )


def _spec_of(layer: str, x: Tensor, weights: Sequence[Tensor]) -> RnnSpec:
    return _spec(layer, int(x.shape[-1]), *map(int, weights[1].shape))


def _live(layer: str, x: Tensor, weights: Sequence[Tensor]) -> LiveModule:
    spec, dtype, frozen = _spec_of(layer, x, weights), layer.split()[3], "frozen" in layer.split()
    lives = _LIVE.setdefault(weights[0], {})
    key = spec, dtype, *[id(weight) for weight in weights if frozen]
    if (live := lives.get(key)) is None:
        names = [f"weight {k}" for k in range(len(weights))]
        lives[key] = live = LiveModule(spec, names, dtype, frozen=frozen)
    return live


def _check(
    x: Any, sizes: Any, states: Any, weights: Sequence[Tensor], layer: str
) -> tuple[LiveModule, Arguments]:
    live = _live(layer, x, weights)
    hx = states[0] if len(states) == 1 else tuple(states) or None
    try:
        return live, arguments_of(live, x if sizes is None else PackedSequence(x, sizes), hx)
    except Left as error:
        raise RuntimeError(f"onernn::recurrent: {error}") from None


def _results(x: Any, sizes: Any, states: Any, weights: Any, layer: str) -> list[Tensor]:
    """Returns empty tensors with the shapes of y, h and c; (0,) for c if the cell has no c."""
    spec = _spec_of(layer, x, weights)
    sequences = x.shape[1] if sizes is None else states[0].shape[1]
    shapes = [(*x.shape[:-1], spec.output_size), *state_shapes(spec, sequences), (0,)][:3]
    return [x.new_empty(shape) for shape in shapes]


@torch.library.custom_op("onernn::recurrent", mutates_args=())  # type: ignore[untyped-decorator]
def recurrent(
    x: Tensor,
    batch_sizes: Tensor | None,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    layer: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns y, h_n and c_n of a stack without gradients; time comes first in x and y."""
    live, (batch, begins, shapes, _) = _check(x, batch_sizes, states, weights, layer)
    y, ends = live.run(live.dtype, weights, batch, begins, shapes)
    return (y, *ends) if len(ends) > 1 else (y, *ends, x.new_empty(0))


@recurrent.register_fake
def _(*arguments):  # type: ignore[no-untyped-def]
    return tuple(_results(*arguments))


@torch.library.custom_op("onernn::recurrent_recorded", mutates_args=())  # type: ignore[untyped-decorator]
def recurrent_recorded(
    x: Tensor,
    batch_sizes: Tensor | None,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    layer: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns y, h_n, c_n, and a token for `recurrent_backward`."""
    call, tensors = _call(x, batch_sizes, states, weights, layer)
    y, *ends = call.forward(tensors)
    token = np.zeros(1, np.int64).view(_Token)
    token.call = call
    held = torch.from_numpy(token)
    _TOKENS[held.data_ptr()] = token
    return y, ends[0], ends[1] if len(ends) > 1 else x.new_empty(0), held


def _call(
    x: Any, batch_sizes: Any, states: Any, weights: Sequence[Tensor], layer: str
) -> tuple[Call, list[Tensor]]:
    live, (batch, begins, *_) = _check(x, batch_sizes, states, weights, layer)
    live.check(weights)
    call = Call(live, None, batch, len(begins), live.dtype)
    return call, [batch.x, *begins, *weights]


@recurrent_recorded.register_fake
def _(x, *others):  # type: ignore[no-untyped-def]
    return (*_results(x, *others), x.new_empty(1, dtype=torch.int64))


@torch.library.custom_op("onernn::recurrent_backward", mutates_args=())  # type: ignore[untyped-decorator]
def recurrent_backward(
    token: Tensor,
    grads: Sequence[Tensor],
    x: Tensor,
    batch_sizes: Tensor | None,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    layer: str,
) -> list[Tensor]:
    """Returns the gradients of x, the states and the weights.

    If the token's record no longer exists, runs forward again first.
    """
    call, tensors = _call(x, batch_sizes, states, weights, layer)
    kept = _TOKENS.get(token.data_ptr())
    return (call if kept is None else kept.call).backward(tensors, grads)


@recurrent_backward.register_fake
def _(token, grads, x, batch_sizes, states, weights, layer):  # type: ignore[no-untyped-def]
    return [each.new_empty(each.shape) for each in (x, *states, *weights)]


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, sizes, states, weights, ctx.layer = inputs
    ctx.states, ctx.sizes = len(states), sizes
    ctx.save_for_backward(output[3], x, *states, *weights)


def _backward(ctx: Any, dy: Any, dh: Any, dc: Any, _: Any) -> Any:
    token, x, *others = ctx.saved_tensors
    states, weights = others[: ctx.states], others[ctx.states :]
    grads = [dy, dh, dc] if ctx.layer.startswith("LSTM") else [dy, dh]
    # onernn cannot compute gradients that are differentiated again, batched (vmap), or in forward
    # mode; PyTorch's operators can. `is_plain` is also false for a tracer's tensors, but their
    # class is not Tensor.
    is_batched = any([type(grad) is Tensor and not is_plain(grad) for grad in grads])
    if torch.is_grad_enabled() or is_batched or forward_ad._current_level >= 0:
        call, tensors = _call(x, ctx.sizes, states, weights, ctx.layer)
        needed = [each.requires_grad for each in tensors]
        dx, *dothers = call.backward_by_torch(tensors, grads, needed)
    else:
        dx, *dothers = torch.ops.onernn.recurrent_backward(
            token, grads, x, ctx.sizes, states, weights, ctx.layer
        )
    return dx, None, dothers[: ctx.states], dothers[ctx.states :], None


recurrent_recorded.register_autograd(_backward, setup_context=_keep)


class Tracing:
    """The state of the graph that torch.compile traces at present."""

    is_whole = False
    """Whether the graph must not break (fullgraph=True)."""


def _is_whole() -> bool:
    return Tracing.is_whole


# Has the effect of torch.compiler.assume_constant_result, whose import takes seconds: the tracer
# calls the function and uses its result as a constant.
_is_whole._dynamo_marked_constant = True  # type: ignore[attr-defined]


def may_trace(module: Any) -> bool:
    """Returns whether a compiled graph may contain a module's calls; `run_traced` then checks the
    arguments.

    torch.compile traces again if a value that this function reads changes. A compiled graph cannot
    be differentiated twice, so calls with gradients run outside of the graph, unless it must not
    break.
    """
    if not still_enabled() or forward_ad._current_level >= 0 or torch.is_autocast_enabled("cpu"):
        return False
    if _is_whole() or not torch.is_grad_enabled():
        return True
    return not any([each.requires_grad for each in module.parameters()])


def _is_float32(tensor: Any) -> bool:
    kind = type(tensor)
    is_strided = kind in (Tensor, nn.Parameter) and tensor.layout == torch.strided
    return is_strided and tensor.device.type == "cpu" and tensor.dtype == torch.float32


def run_traced(module: Any, input: Any, hx: Any) -> Any:
    """Traces a call as operators and returns its result.

    Returns None if only PyTorch or an eager call can run it.
    """
    sizes: Any = None
    order = back = None
    x, is_packed = input, isinstance(input, PackedSequence)
    if is_packed:
        x, sizes, order, back = input
    if not (may_trace(module) and _is_float32(x)):
        return None
    single = x.dim() == 2 and not is_packed
    if not (single or x.dim() == (2 if is_packed else 3)) or x.shape[-1] != module.input_size:
        return None
    weights = [getattr(module, name, None) for name in module._flat_weights_names]
    flat = module._flat_weights
    if not len(weights) == len(flat) == count_weights(module):
        return None
    # A program may write to the list of weights.
    if not all([a is b for a, b in zip(weights, flat, strict=True)]):
        return None
    lstm = module.mode == "LSTM"
    states = [] if hx is None else list(hx) if lstm and type(hx) is tuple else [hx]
    if not (x.numel() and all([_is_float32(each) for each in (*weights, *states)])):
        return None
    batch_first = module.batch_first and not single and not is_packed
    D = 2 if module.bidirectional else 1
    widths = [module.proj_size or module.hidden_size, module.hidden_size][: 1 + lstm]
    if single:
        rows = []
    elif is_packed:
        rows = [int(sizes[0]) if order is None else order.shape[0]]
    else:
        rows = [x.shape[0 if batch_first else 1]]
    shapes = [(D * module.num_layers, *rows, width) for width in widths]
    if states and [tuple(state.shape) for state in states] != shapes:
        return None
    if is_packed and not states:  # the operator needs states for the number of sequences
        states = [x.new_zeros(shape) for shape in shapes]
    elif order is not None:
        states = [state.index_select(1, order) for state in states]
    if single:
        x, states = x.unsqueeze(1), [state.unsqueeze(1) for state in states]
    drawn = module.dropout if module.training and module.num_layers > 1 else 0.0
    records = torch.is_grad_enabled() and any(
        [each.requires_grad for each in (x, *states, *weights)]
    )
    if (records or is_packed) and not _is_whole():  # batch sizes of later calls may differ
        return None
    layers = 1 if drawn else module.num_layers
    layer = f"{module.mode} {layers} {D * layers} {module.onernn_options}"
    layer += " projected" * bool(module.proj_size) + " frozen" * module.onernn_frozen
    operators = torch.ops.onernn
    x = x.transpose(0, 1) if batch_first else x
    if not (drawn or records):
        y, *ends = operators.recurrent(x, sizes, states, weights, layer)
        ends = ends[: 1 + lstm]
    else:

        def run(_: int, y: Any, begins: Any, own: Any) -> Any:
            return operators.recurrent_recorded(y, sizes, begins, own, layer)[: 2 + lstm]

        y, ends = by_layers(module.num_layers, drawn, x, states, weights, run)
    y = y.transpose(0, 1) if batch_first else y
    if single:
        y, ends = y.squeeze(1), [end.squeeze(1) for end in ends]
    if back is not None:
        ends = [end.index_select(1, back) for end in ends]
    out = PackedSequence(y, sizes, order, back) if is_packed else y
    return out, tuple(ends) if lstm else ends[0]
