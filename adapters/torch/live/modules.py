"""PyTorch's recurrent modules whose calls run on ours: the same class interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.compiler import is_compiling, is_exporting

from onernn.adapters.torch.live import training
from onernn.adapters.torch.live.autocast import autocast_dtype, types_of_results
from onernn.adapters.torch.live.batches import Batch, batch_of, is_plain
from onernn.adapters.torch.live.live_layer import LiveLayer
from onernn.adapters.torch.live.operator import forget_compiled, run_traced
from onernn.adapters.torch.live.parameters import spec_of
from onernn.adapters.torch.live.tracing import trace_through
from onernn.core.errors import OnernnError
from onernn.core.plugins import DISABLED, plugins_enabled

STACKS = (nn.RNN, nn.LSTM, nn.GRU)
CELLS = (nn.RNNCell, nn.LSTMCell, nn.GRUCell)

_CELL_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")

_CALLED = (
    *("forward", "__call__", "check_forward_args", "check_input", "check_hidden_size"),
    *("get_expected_hidden_size", "permute_hidden", "_update_flat_weights"),
)
"""Methods that are PyTorch's own in what becomes ours."""

_LIVE: WeakKeyDictionary[nn.Module, LiveLayer] = WeakKeyDictionary()


class _Left(Exception):
    """Why a call stays PyTorch's; made in a microsecond, since each such call makes one."""


def theirs(module: nn.Module) -> Any:
    """The class of a module, as it was before it became ours."""
    return getattr(type(module), "onernn_kind", type(module))


def is_ours(module: nn.Module) -> bool:
    return hasattr(type(module), "onernn_kind")


def is_recurrent(module: nn.Module) -> bool:
    return isinstance(module, STACKS + CELLS)


def obstacle(module: nn.Module) -> str:
    """Why a recurrent module stays PyTorch's, "" where it may become ours."""
    kind = theirs(module)
    own = next(one for one in STACKS + CELLS if issubclass(kind, one))
    for name in _CALLED:
        if getattr(kind, name, None) is not getattr(own, name, None) or name in vars(module):
            return f"{name} is not that of torch.nn.{own.__name__}"
    if not (module.input_size and module.hidden_size):
        return "nothing to compute: a size of 0"
    return ""


def live_of(module: nn.Module) -> LiveLayer:
    """What is packed of a module; copies of it pack their own."""
    found = _LIVE.get(module)
    if found is None:
        stack = isinstance(module, nn.RNNBase)
        names = module._flat_weights_names if stack else _CELL_NAMES[: 4 if module.bias else 2]
        found = LiveLayer(spec_of(module), tuple(names), type(module).onernn_dtype)
        _LIVE[module] = found
    return found


def why_theirs() -> str:
    """Why calls stay PyTorch's just now, "" where they need not."""
    if not plugins_enabled():
        return DISABLED
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a transform of torch.func is at work"
    if torch._C._len_torch_dispatch_stack():
        return "a mode of torch.utils._python_dispatch watches operators"
    if torch._C._get_tracing_state() is not None:
        return "torch.jit.trace records operators"
    if forward_ad._current_level >= 0:
        return "derivatives forward (torch.autograd.forward_ad)"
    if autocast_dtype() not in (None, torch.bfloat16):
        return f"autocast to {autocast_dtype()}"
    return ""


def _weights(module: Any) -> Sequence[torch.Tensor]:
    """The parameters as they are now, in the order of their names."""
    own = module._parameters
    if isinstance(module, nn.RNNBase):
        try:
            return [own[name] for name in module._flat_weights_names]
        except KeyError:  # made of others: weight_norm, parametrizations
            module._update_flat_weights()
            return module._flat_weights
    return [getattr(module, name) for name in _CELL_NAMES[: 4 if module.bias else 2]]


def _records(*tensors: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and any([each.requires_grad for each in tensors])


def _states(
    module: Any, batch: Batch, given: Any, widths: Sequence[int], casts: bool
) -> list[Any] | None:
    """The initial states as kernels read them, none where none are given; None: do not fit."""
    if given is None:
        return []
    states = list(given) if len(widths) > 1 and isinstance(given, tuple) else [given]
    if len(states) != len(widths):
        return None
    parts = module.num_layers * (2 if module.bidirectional else 1)
    for k, (state, width) in enumerate(zip(states, widths, strict=True)):
        expected = (parts, batch.sequences, width)
        if not is_plain(state):
            return None
        if casts:
            state = state.float()
        if state.dtype != batch.x.dtype:
            return None
        if batch.x.dim() == 2 and batch.layout == "tnc":
            state = state.unsqueeze(1)
        if state.shape != expected:
            return None
        if batch.order is not None:
            state = state.index_select(1, batch.order)
        states[k] = state.contiguous()
    return states


def _run_stack(module: Any, given: Any, hx: Any) -> Any:
    """What the module gives; None where PyTorch's own code has to tell. Raises
    `_Left` for what stays with it."""
    if reason := why_theirs():
        raise _Left(reason)
    batch = batch_of(given, module.batch_first)
    if batch is None or batch.x.shape[-1] != module.input_size or not batch.x.numel():
        return None
    casts, x_type = autocast_dtype() is not None, batch.x.dtype
    if casts:
        batch = batch._replace(x=batch.x.float())
    hidden = module.hidden_size
    widths = [module.proj_size or hidden, hidden][: 2 if module.mode == "LSTM" else 1]
    states = _states(module, batch, hx, widths, casts)
    if states is None:
        return None
    weights = _weights(module)
    if batch.x.dtype != weights[0].dtype:
        return None
    if batch.x.dtype != torch.float32:
        raise _Left(f"{batch.x.dtype}, in which PyTorch is faster")
    live = live_of(module)
    dtype = "bf16" if casts else live.dtype
    drawn = module.dropout if module.training and module.num_layers > 1 else 0.0
    if drawn or _records(batch.x, *states, *weights):
        if training.is_small(live.spec, batch):
            raise _Left("batches too small to train faster")
        y, ends = training.run_recorded(live, dtype, weights, batch, states, drawn)
    else:
        y, ends = live.run(dtype, weights, batch, states)
    if casts:
        given_types = tuple(
            each.dtype for each in (hx if isinstance(hx, tuple) else [hx]) if states
        )
        types = types_of_results(module, batch.layout == "packed", x_type, given_types)
        y, *ends = [each.to(to) for each, to in zip((y, *ends), types, strict=True)]
    if batch.layout == "tnc" and y.dim() == 2:
        ends = [end.squeeze(1) for end in ends]
    elif batch.order is not None:
        back = given.unsorted_indices
        ends = [end.index_select(1, back) for end in ends]
    return batch.whole(y), tuple(ends) if len(ends) > 1 else ends[0]


def _run_cell(module: Any, given: Any, hx: Any) -> Any:
    """The next state; as `_run_stack`."""
    if reason := why_theirs():
        raise _Left(reason)
    if autocast_dtype() is not None:
        raise _Left("a single step under autocast")
    if not is_plain(given) or given.dim() not in (1, 2) or not given.numel():
        return None
    if given.shape[-1] != module.input_size:
        return None
    rows = 1 if given.dim() == 1 else len(given)
    x = given.reshape(1, rows, -1)
    is_lstm = isinstance(module, nn.LSTMCell)
    states: list[Any] = []
    if hx is not None:
        if is_lstm and not (isinstance(hx, tuple) and len(hx) == 2):
            return None
        states = list(hx) if is_lstm else [hx]
        for k, state in enumerate(states):
            if not is_plain(state) or state.dtype != x.dtype:
                return None
            if state.shape != (*given.shape[:-1], module.hidden_size):
                return None
            states[k] = state.reshape(1, rows, -1).contiguous()
    weights = _weights(module)
    if x.dtype != weights[0].dtype:
        return None
    if x.dtype != torch.float32:
        raise _Left(f"{x.dtype}, in which PyTorch is faster")
    if _records(x, *states, *weights):
        raise _Left("a single step's gradients, which packing weights would slow down")
    batch = Batch(x.contiguous(), "tnc", 1, rows, None, None, lambda y: y)
    live = live_of(module)
    _, ends = live.run(live.dtype, weights, batch, states)
    shape = (*given.shape[:-1], module.hidden_size)
    ends = [end.view(shape) for end in ends]
    return tuple(ends) if is_lstm else ends[0]


@cache
def ours(kind: Any, dtype: str) -> type:
    """A class like ``kind`` whose calls run here."""
    run = _run_stack if issubclass(kind, STACKS) else _run_cell

    def forward(self: Any, input: Any, hx: Any = None) -> Any:
        if is_exporting():  # a file of PyTorch's operators loads everywhere
            return kind.forward(self, input, hx)
        if is_compiling():
            found = run_traced(self, input, hx) if run is _run_stack else None
            return kind.forward(self, input, hx) if found is None else found
        try:
            found = run(self, input, hx)
        except (_Left, OnernnError) as error:
            live_of(self).reasons[str(error)] = None
            found = None
        return kind.forward(self, input, hx) if found is None else found

    def train(self: Any, mode: bool = True) -> Any:
        forget(self)  # who trained may have written where no version tells
        return kind.train(self, mode)

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        return _restored, (kind, dtype), self.__getstate__()

    own = {
        "forward": forward,
        "train": train,
        "__reduce_ex__": __reduce_ex__,
        "__prepare_scriptable__": as_theirs,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "onernn_kind": kind,
        "onernn_dtype": dtype,
    }
    return type(kind.__name__, (kind,), own)


def _restored(kind: Any, dtype: str) -> Any:
    """What pickle and deepcopy fill."""
    made: Any = ours(kind, dtype)
    return made.__new__(made)


def as_theirs(module: Any) -> Any:
    """PyTorch's own module of the same parameters, which TorchScript compiles."""
    kind = theirs(module)
    made = kind.__new__(kind)
    made.__dict__.update(module.__dict__)
    return made


def forget(module: nn.Module) -> None:
    """The next call of the module packs its parameters anew, in compiled graphs, too."""
    forget_compiled(module._parameters.get("weight_ih_l0"))
    if (live := _LIVE.get(module)) is not None:
        live.forget()


def ours_in_place(module: nn.Module, dtype: str = "f32") -> bool:
    """Whether a recurrent module could become ours, and now is."""
    if not is_recurrent(module) or obstacle(module):
        return False
    if not is_ours(module):
        module.__class__ = ours(theirs(module), dtype)
    return True


def _is_traced(module: nn.Module) -> bool:
    """Whether calls of a module are ours in a graph that is compiled now."""
    return (
        not why_theirs()
        and autocast_dtype() is None
        and all(each.dtype == torch.float32 and each.is_cpu for each in module.parameters())
    )


@cache
def trace_through_ours(becomes_ours: Callable[[Any, Any], bool] = lambda *_: False) -> None:
    """torch.compile traces calls of modules that are ours, or become it as the function tells of a
    module and the backend."""
    trace_through(
        lambda module, backend: (
            (is_ours(module) or becomes_ours(module, backend)) and _is_traced(module)
        )
    )
