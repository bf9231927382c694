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
    is_plain,
    state_shapes,
)
from onernn.ir.spec import RnnSpec

_LIVE: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""What is packed, by the first parameter of a layer."""
_FIRST = "weight_ih_l0"


class _Token(np.ndarray[Any, Any]):
    """A number whose memory a compiled graph keeps from the run forward to that backward."""

    call: Call


_TOKENS: WeakValueDictionary[int, _Token] = WeakValueDictionary()


def forget_compiled(module: torch.nn.Module) -> None:
    """Compiled graphs pack the module's parameters anew."""
    if (weight := module._parameters.get(_FIRST)) is not None:
        _LIVE.pop(weight, None)


def ran_compiled(module: torch.nn.Module) -> str:
    """Returns the kernel that a compiled graph last ran for the module, "" where none did."""
    weight = module._parameters.get(_FIRST)
    return "" if weight is None or weight not in _LIVE else _LIVE[weight].explain()


@cache
def _spec(layer: str, inputs: int, rows: int, width: int) -> RnnSpec:
    """Of the text of `run_traced`, for so many input channels and a recurrent matrix."""
    mode, layers, parts, _, *more = layer.split()
    return RnnSpec(
        CELLS[mode],
        inputs,
        rows // len(CELLS[mode].gates),
        layers=int(layers),
        direction="bidirectional_concat" if parts != layers else "left2right",
        projection_size=width if "projected" in more else None,
    )


def _spec_of(layer: str, x: torch.Tensor, weights: Sequence[torch.Tensor]) -> RnnSpec:
    return _spec(layer, int(x.shape[-1]), *map(int, weights[1].shape))


def _live(layer: str, x: torch.Tensor, weights: Sequence[torch.Tensor]) -> LiveModule:
    live, spec, dtype = _LIVE.get(weights[0]), _spec_of(layer, x, weights), layer.split()[3]
    frozen = "frozen" in layer.split()
    if live is None or (live.spec, live.dtype, live.frozen) != (spec, dtype, frozen):
        names = [f"weight {k}" for k in range(len(weights))]
        _LIVE[weights[0]] = live = LiveModule(spec, names, dtype, frozen=frozen)
    return live


def _arguments(
    live: LiveModule, x: torch.Tensor, sizes: torch.Tensor | None, states: Sequence[torch.Tensor]
) -> Arguments:
    """Returns an operator's arguments, checked: a graph may run it with others than were traced."""
    hx = states[0] if len(states) == 1 else tuple(states) or None
    try:
        return arguments_of(live, x if sizes is None else PackedSequence(x, sizes), hx)
    except Left as error:
        raise RuntimeError(f"onernn::recurrent: {error}") from None


def _shapes(x: torch.Tensor, sizes: torch.Tensor | None, states: Any, spec: RnnSpec) -> list[Any]:
    """Of y and of the final states, h first; (0,) for c where there is none."""
    sequences = x.shape[1] if sizes is None else states[0].shape[1]
    return [(*x.shape[:-1], spec.output_size), *state_shapes(spec, sequences), (0,)][:3]


@torch.library.custom_op("onernn::recurrent", mutates_args=())  # type: ignore[untyped-decorator]
def recurrent(
    x: torch.Tensor,
    batch_sizes: torch.Tensor | None,
    states: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    layer: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """y, h_n and c_n of a stack without gradients; time comes first."""
    live = _live(layer, x, weights)
    batch, begins, shapes, _ = _arguments(live, x, batch_sizes, states)
    y, ends = live.run(live.dtype, weights, batch, begins, shapes)
    return (y, *ends) if len(ends) > 1 else (y, *ends, x.new_empty(0))


@recurrent.register_fake
def _(x, batch_sizes, states, weights, layer):  # type: ignore[no-untyped-def]
    spec = _spec_of(layer, x, weights)
    return tuple(map(x.new_empty, _shapes(x, batch_sizes, states, spec)))


@torch.library.custom_op("onernn::recurrent_recorded", mutates_args=())  # type: ignore[untyped-decorator]
def recurrent_recorded(
    x: torch.Tensor,
    batch_sizes: torch.Tensor | None,
    states: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    layer: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """y, h_n, c_n, and a token for `recurrent_backward`."""
    call, tensors = _call(x, batch_sizes, states, weights, layer)
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
    layer: str,
) -> tuple[Call, list[torch.Tensor]]:
    live = _live(layer, x, weights)
    live.check(weights)
    batch, begins, *_ = _arguments(live, x, batch_sizes, states)
    call = Call(live, live.spec, batch, len(begins), live.dtype)
    return call, [batch.x, *begins, *weights]


@recurrent_recorded.register_fake
def _(x, batch_sizes, states, weights, layer):  # type: ignore[no-untyped-def]
    spec = _spec_of(layer, x, weights)
    result = map(x.new_empty, _shapes(x, batch_sizes, states, spec))
    return (*result, x.new_empty(1, dtype=torch.int64))


@torch.library.custom_op("onernn::recurrent_backward", mutates_args=())  # type: ignore[untyped-decorator]
def recurrent_backward(
    token: torch.Tensor,
    grads: Sequence[torch.Tensor],
    x: torch.Tensor,
    batch_sizes: torch.Tensor | None,
    states: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    layer: str,
) -> list[torch.Tensor]:
    """Gradients by x, the states and the weights. Without its token the run forward is repeated."""
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
    # Differentiated again, in batches or forward. A tracer's tensors are of classes of its own.
    is_batched = any([type(grad) is torch.Tensor and not is_plain(grad) for grad in grads])
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
    """The graph that torch.compile traces now."""

    is_whole = False
    """Whether it may not break (fullgraph=True)."""


def _is_whole() -> bool:
    return Tracing.is_whole


# torch.compiler.assume_constant_result, which takes seconds to import: the tracer calls it.
_is_whole._dynamo_marked_constant = True  # type: ignore[attr-defined]


def may_trace(module: Any) -> bool:
    """Returns whether a graph may hold a module's calls, as far as all of them are alike.

    The graph asks again if what it has read here changes. No compiled graph can be differentiated
    twice. Outside of it calls do what they do without torch.compile; a graph that must be whole has
    no place for them.
    """
    if not still_enabled() or forward_ad._current_level >= 0 or torch.is_autocast_enabled("cpu"):
        return False
    if _is_whole() or not torch.is_grad_enabled():
        return True
    return not any([each.requires_grad for each in module.parameters()])


def _is_float32(tensor: Any) -> bool:
    """Returns whether it is a tensor that kernels read, as far as a tracer knows."""
    kind = type(tensor)
    is_strided = (kind is torch.Tensor or kind is torch.nn.Parameter) and (
        tensor.layout == torch.strided
    )
    return is_strided and tensor.device.type == "cpu" and tensor.dtype == torch.float32


def run_traced(module: Any, input: Any, hx: Any) -> Any:
    """Returns a call that is traced, as operators; None if only PyTorch, or an eager call, may run
    it.
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
    if is_packed and not states:  # they have the number of sequences
        states = [x.new_zeros(shape) for shape in shapes]
    elif order is not None:
        states = [state.index_select(1, order) for state in states]
    if single:
        x, states = x.unsqueeze(1), [state.unsqueeze(1) for state in states]
    drawn = module.dropout if module.training and module.num_layers > 1 else 0.0
    records = torch.is_grad_enabled() and any(
        [each.requires_grad for each in (x, *states, *weights)]
    )
    if (records or is_packed) and not _is_whole():  # none knows the batch sizes that will come
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
