"""Recurrent layers of PyTorch that onernn runs: batches, parameters, training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
import torch
from torch import _VF, Tensor, nn
from torch._C import (
    _dispatch_keys,
    _get_tracing_state,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
)
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from onernn.adapters.common import gain
from onernn.adapters.common.live import (
    LiveLayer,
    LiveOptions,
    Recorded,
    ViewedWeights,
    join_states,
)
from onernn.backend import Stack
from onernn.backend.compiled.library import load_kernels
from onernn.backend.onednn.precision import KERNELS_ONLY
from onernn.ir.arrays import Array, Int64, frozen
from onernn.ir.errors import LibraryError, UnsupportedError
from onernn.ir.ragged import Ragged, falls, offsets_of
from onernn.ir.records import dataclass
from onernn.ir.spec import Cell, RnnSpec
from onernn.ir.weights import PartViews
from onernn.reorders.layers import gate_layout, part_views
from onernn.reorders.lod import Packing
from onernn.reorders.torch import GATES

_log = logging.getLogger("onernn")

# Batches of PyTorch, which the kernels read without copies.


def _keys_of_new() -> int:
    return _dispatch_keys(torch.empty(0)).raw_repr()


with torch.inference_mode():
    _KEYS = [_keys_of_new()]
_KEYS.append(_keys_of_new())
"""The dispatch keys of plain tensors in CPU memory."""


def is_plain(tensor: Any) -> bool:
    """Returns whether onernn may read the tensor's memory.

    It must be a dense CPU tensor whose values no subclass, transform or lazy conjugation defines.
    """
    kind = type(tensor)
    return (kind is Tensor or kind is Parameter) and _dispatch_keys(tensor).raw_repr() in _KEYS


def count_weights(module: Any) -> int:
    """Returns how many weights a recurrent module with these options has."""
    each = 2 + 2 * bool(module.bias) + bool(module.proj_size)
    result: int = module.num_layers * (1 + bool(module.bidirectional)) * each
    return result


def follower() -> str:
    """Returns a description of an active tracer or transform, or "" if there is none.

    Such a tool must see each operator of PyTorch; a call of onernn would hide the operators.
    """
    if peek_interpreter_stack() is not None:
        return "a transform of torch.func is at work"
    if _len_torch_dispatch_stack():
        return "a mode of torch.utils._python_dispatch watches operators"
    if _len_torch_function_stack() and {*map(type, _get_current_function_mode_stack())} != {
        DeviceContext
    }:
        return "a mode of torch.overrides watches functions"
    if _get_tracing_state() is not None:
        return "torch.jit.trace records operators"
    if forward_ad._current_level >= 0:
        return "derivatives forward (torch.autograd.forward_ad)"
    return ""


class Left(Exception):
    """Raised for a call that onernn leaves to PyTorch; the text is the reason."""


class Batch(NamedTuple):
    """A batch in one of the layouts of `kernels.h`: "lod", "tnc" or "packed".

    ``begin``: the index of the first row of each sequence (lod) or time step (packed). ``order``
    and ``back`` are PackedSequence's sorted_indices, which permute the initial states, and
    unsorted_indices, which permute the final states. ``whole(y)`` returns y as the type of batch
    that the caller passed.
    """

    x: Tensor
    layout: str
    steps: int
    sequences: int
    begin: Int64 | None = None
    order: Tensor | None = None
    back: Tensor | None = None
    whole: Callable[[Tensor], Any] = lambda y: y

    def read(self, x: Array) -> Ragged | Array:
        """Returns an array that has the batch's layout as `Ragged` or dense (T, N, C), for
        `Stack.run`.
        """
        if self.layout == "lod":
            return Ragged(x, self.begin)  # type: ignore[arg-type]
        if self.layout == "packed":
            packing = self._packing()
            return Ragged.from_lengths(packing.unpack(x), packing.lengths)
        return x.reshape(self.steps, self.sequences, x.shape[-1])

    def write(self, y: Ragged | Array) -> Tensor:
        """Returns the result of `Stack.run` as a tensor in the batch's layout."""
        if isinstance(y, Ragged):
            y = self._packing().pack(y.data) if self.layout == "packed" else y.data
        y = np.ascontiguousarray(y)
        return torch.from_numpy(y.reshape(*self.x.shape[:-1], y.shape[-1]))

    def _packing(self) -> Packing:
        assert self.begin is not None
        sizes = np.diff(self.begin)
        lengths = np.searchsorted(-sizes, -np.arange(self.sequences), side="left")
        return Packing.of(offsets_of(lengths))


@lru_cache(maxsize=64)
def _begin(batch_sizes: bytes) -> Int64:
    """Returns the first row of each time step, and the number of rows; empty for invalid batch
    sizes.
    """
    sizes = np.frombuffer(batch_sizes, np.int64)
    begin = np.concatenate([[0], np.cumsum(sizes)])  # decreases if the sum overflows
    if not sizes.size or sizes[-1] < 1 or (sizes[1:] > sizes[:-1]).any() or falls(begin).size:
        return frozen(np.empty(0, np.int64))
    return frozen(begin)


class Arguments(NamedTuple):
    """The arguments of a call for the kernels: contiguous float32 CPU tensors in shapes of the
    layer.

    ``shapes``: the shapes of the final states. ``types``: the caller's dtypes of x and of the
    initial states.
    """

    batch: Batch
    states: list[Tensor]
    shapes: list[tuple[int, ...]]
    types: tuple[torch.dtype, ...]


def arguments_of(live: LiveModule, inputs: Any, hx: Any, batch_first: bool = False) -> Arguments:
    """Returns the arguments of a call, checked for the kernels.

    Raises `Left` for a call that onernn does not run: PyTorch runs it or raises its own error.
    """
    spec, x = live.spec, inputs
    if live.is_cell:
        batch = None
        if is_plain(x) and x.dim() in (1, 2):
            batch = Batch(x.contiguous(), "tnc", 1, len(x) if x.dim() == 2 else 1)
    else:
        batch = batch_of(inputs, batch_first)
    if batch is None:
        kind = inputs.data if isinstance(inputs, PackedSequence) else inputs
        got = type(kind).__name__
        raise Left(f"x: expected a batch of plain tensors on the CPU, got {got}")
    x, rows = batch.x, batch.sequences
    if x.shape[-1] != spec.input_size or not x.numel():
        expected = f"expected steps of width {spec.input_size}"
        raise Left(f"x: {expected}, got the shape {(*x.shape,)}")
    shapes = live.state_shapes(rows)
    if batch.layout == "tnc" and inputs.dim() == (1 if live.is_cell else 2):  # x has no batch axis
        shapes = [(*parts, width) for *parts, _, width in shapes]
    if hx is None:
        states = []
    else:
        states = list(hx) if len(shapes) > 1 and isinstance(hx, tuple) else [hx]
        if len(states) != len(shapes):
            raise Left(f"expected initial states of shapes {shapes}, got {len(states)}")
    types = [x.dtype]
    batch = batch._replace(x=_float32("x", x))
    for k, state in enumerate(states):
        if not is_plain(state) or (batch.order is not None and state.dim() != 3):
            kind = type(state).__name__
            raise Left(f"an initial state: expected a plain tensor on the CPU, got {kind}")
        if batch.order is not None:
            state = state.index_select(1, batch.order)
        if state.shape != shapes[k]:
            raise Left(f"expected an initial state of shape {shapes[k]}, got {(*state.shape,)}")
        types.append(state.dtype)
        states[k] = _float32("an initial state", state).contiguous()
    return Arguments(batch, states, shapes, tuple(types))


def _float32(name: str, tensor: Tensor) -> Tensor:
    """Returns the tensor as float32; under autocast, converts float16 and bfloat16.

    Raises `Left` for other dtypes.
    """
    if tensor.dtype is torch.float32:
        return tensor
    if tensor.dtype in (torch.bfloat16, torch.float16) and torch.is_autocast_enabled("cpu"):
        return tensor.float()
    raise Left(f"{name} is {tensor.dtype}, expected float32; PyTorch is as fast in other types")


def batch_of(inputs: Any, batch_first: bool) -> Batch | None:
    """Returns the batch of a module's call, or None if only PyTorch can read it."""
    if isinstance(inputs, PackedSequence):
        return _batch_of_packed(inputs)
    if isinstance(inputs, list):
        return _batch_of_list(inputs)
    if isinstance(inputs, Tensor) and inputs.is_nested:
        return _batch_of_nested(inputs)
    if not is_plain(inputs):
        return None
    if inputs.dim() == 2:
        return Batch(inputs.contiguous(), "tnc", len(inputs), 1)
    if inputs.dim() != 3:
        return None
    if batch_first:  # y is transposed in place, because PyTorch's y is not a view
        steps_first = inputs.transpose(0, 1).contiguous()
        steps, rows, _ = steps_first.shape
        return Batch(steps_first, "tnc", steps, rows, whole=lambda y: y.transpose_(0, 1))
    steps, rows, _ = inputs.shape
    return Batch(inputs.contiguous(), "tnc", steps, rows)


def _batch_of_packed(sequences: PackedSequence) -> Batch | None:
    x, sizes, order, back = sequences
    if not (is_plain(x) and x.dim() == 2 and is_plain(sizes) and sizes.dtype == torch.int64):
        return None
    if not all(each is None or is_plain(each) for each in (order, back)):
        return None
    begin = _begin(sizes.numpy().tobytes())
    if not begin.size or begin[-1] != len(x):
        return None
    return Batch(
        x.contiguous(),
        "packed",
        len(begin) - 1,
        int(begin[1]),
        begin,
        order,
        back,
        lambda y: PackedSequence(y, sizes, order, back),
    )


def _batch_of_list(sequences: list[Any]) -> Batch | None:
    """Returns the batch of a list of sequences (T_n, I), which PyTorch's own modules do not
    accept.
    """
    if not sequences or not all(is_plain(tensor) and tensor.dim() == 2 for tensor in sequences):
        return None
    if len({(tensor.shape[1], tensor.dtype) for tensor in sequences}) > 1:
        return None
    lengths = [len(tensor) for tensor in sequences]
    begin = frozen(np.concatenate([[0], np.cumsum(lengths)]))
    x = torch.cat(sequences)
    # Autograd forbids in-place changes of tensors that `split` returns.
    return Batch(
        x,
        "lod",
        0,
        len(sequences),
        begin,
        whole=lambda y: list(y.unsafe_split_with_sizes(lengths)),
    )


def _batch_of_nested(nested: Any) -> Batch | None:
    """Returns the batch of a jagged tensor (N, j, I), which PyTorch's own modules do not accept."""
    if nested.layout is not torch.jagged or nested.dim() != 3 or nested.lengths() is not None:
        return None
    x, offsets = nested.values(), nested.offsets()
    if nested._ragged_idx != 1 or not (is_plain(x) and is_plain(offsets)):
        return None
    begin = frozen(offsets.numpy().astype(np.int64))
    if begin[0] or begin[-1] != len(x) or falls(begin).size:
        return None
    whole = partial(torch.nested.nested_tensor_from_jagged, offsets=offsets)
    return Batch(x.contiguous(), "lod", 0, len(begin) - 1, begin, whole=whole)


def as_packed(
    x: Tensor, begin: Int64, states: Sequence[Tensor], run: Callable[..., Any]
) -> list[Tensor]:
    """Runs ragged sequences (W, I) by a function for packed sequences; returns y and the final
    states.

    ``run(x, batch_sizes, states)`` returns y and the final states. PyTorch cannot pack sequences
    without steps, so their initial states become their final states.
    """
    packing = Packing.of(begin)
    rows, words, order, unsort, sizes = (
        torch.tensor(array)
        for array in (
            packing.rows,
            packing.words,
            packing.order,
            packing.unsort,
            packing.batch_sizes,
        )
    )
    some, none = order[: sizes[0]], order[sizes[0] :]
    begins = [state.index_select(1, some) for state in states]
    y, *ends = run(x.index_select(0, rows), sizes, begins)
    ends = [
        torch.cat([end, state.index_select(1, none)], 1).index_select(1, unsort)
        for end, state in zip(ends, states, strict=True)
    ]
    return [y.index_select(0, words), *ends]


# The weights of a layer among a module's parameters.

CELLS = {
    "LSTM": Cell.LSTM,
    "GRU": Cell.LBR_GRU,
    "RNN_TANH": Cell.RNN_TANH,
    "RNN_RELU": Cell.RNN_RELU,
}


def spec_of(module: Any) -> RnnSpec:
    """Returns the spec of a recurrent module of torch.nn."""
    if not isinstance(module, nn.RNNBase):
        mode = "LSTM" if isinstance(module, nn.LSTMCell) else "GRU"
        if isinstance(module, nn.RNNCell):
            mode = f"RNN_{module.nonlinearity.upper()}"
        return RnnSpec(CELLS[mode], module.input_size, module.hidden_size)
    return RnnSpec(
        CELLS[module.mode],
        module.input_size,
        module.hidden_size,
        layers=module.num_layers,
        direction="bidirectional_concat" if module.bidirectional else "left2right",
        projection_size=module.proj_size or None,
    )


def views_of(spec: RnnSpec, parameters: Sequence[Array]) -> list[PartViews]:
    """Returns views of a module's parameters for each layer and direction. Raises `ShapeError`."""
    order = gate_layout(spec.cell, GATES[spec.cell]).permutation
    every = len(parameters) // (spec.layers * spec.directions)
    parts = []
    for first in range(0, len(parameters), every):
        ih, hh, *rest = parameters[first : first + every]
        biases, projection = (rest[:2], rest[2:]) if every >= 4 else ([], rest)
        parts.append(part_views(spec.cell, order, ih, hh, biases, *projection))
    return parts


def _new(shape: Sequence[int], _: object) -> Array:
    """Returns memory from PyTorch's allocator: transposed copies are a third faster than in
    NumPy's.
    """
    return torch.empty(shape).numpy()


# The packed parameters of a module, and its calls without gradients.

DTYPES = {
    None: "f32",
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    **dict(zip(KERNELS_ONLY, KERNELS_ONLY, strict=True)),
}
"""The dtype to which matrices are rounded, by the ``dtype`` argument of `optimize`."""


@dataclass(frozen=True, kw_only=True)
class Options(LiveOptions):
    """The options of a live layer; ``strict``: a layer that only the NumPy reference can run is an
    error.
    """

    strict = True


options_of = cache(Options)


class LiveModule:
    """The packed parameters of a module, and the reasons why PyTorch ran some of its calls."""

    def __init__(
        self,
        spec: RnnSpec,
        names: Sequence[str],
        dtype: str,
        *,
        is_cell: bool = False,
        frozen: bool = False,
    ) -> None:
        self.spec, self.dtype, self.names = spec, dtype, names
        self.is_cell, self.frozen = is_cell, frozen
        self.forget()
        self._channels = spec.output_size
        kind = "LSTM" if spec.cell is Cell.LSTM else "GRU" if spec.gates > 1 else "RNN"
        # PyTorch runs a padded LSTM as one oneDNN primitive, and all other layers step by step.
        by_steps = f"torch {'GRU' if kind == 'LSTM' else kind} trained"
        self.trained = by_steps if spec.projection_size else f"torch {kind} trained", by_steps
        """The keys of training in `gain`'s table: for padded and for packed batches."""
        self.predicted = f"torch {kind}"
        self.is_large = not (frozen or gain.is_faster(self.predicted, 1, 1, spec.hidden_size))
        """Whether PyTorch runs one step of one sequence faster than onernn; False if frozen."""
        self._like = [(parts, width) for parts, _, width in state_shapes(spec, 0)]
        self.reasons: dict[str, None] = {}
        self.module_options: list[Any] = []
        """The options of the module for which this object was made."""
        self.types: dict[Any, list[torch.dtype]] = {}
        """The results of `types_of_results`."""
        self.ran: str | Stack = ""
        """The stack of the last call, or the text for `explain`."""

    def state_shapes(self, sequences: int) -> list[tuple[int, ...]]:
        """Returns the shapes of the states of a batch."""
        if self.is_cell:
            return [(sequences, width) for _, width in self._like]
        return [(parts, sequences, width) for parts, width in self._like]

    def forget(self) -> None:
        """Makes the next call pack the parameters again."""
        self._layers: dict[Any, LiveLayer] = {}
        self._checked: Sequence[ref[Tensor]] = ()

    def part(self, k: int | None) -> RnnSpec:
        """Returns the spec of layer k, or of the whole stack if k is None."""
        spec = self.spec
        return spec if k is None else spec.one_layer(spec.reads(k), spec.direction)

    def layer(self, dtype: str, k: int | None = None) -> LiveLayer:
        """Returns the live layer of layer k, or of the whole stack if k is None, in this dtype."""
        key = dtype, k, torch.get_num_threads()
        if (layer := self._layers.get(key)) is None:
            own = self.part(k)
            weights = ViewedWeights(lambda arrays: (own, views_of(own, arrays)), _new)
            options = options_of(dtype=dtype, threads=key[-1], frozen=self.frozen)
            layer = self._layers.setdefault(key, LiveLayer(weights, options))
        return layer

    def explain(self) -> str:
        """Returns the kernel of the last call, or "" if there was none."""
        return self.ran if isinstance(self.ran, str) else self.ran.explain()

    def check(self, weights: Sequence[Tensor], k: int | None = None) -> None:
        """Raises `UnsupportedError` for parameters that onernn cannot read; ``k``: as in `part`."""
        for name, weight in zip(self.names[(k or 0) * len(weights) :], weights, strict=False):
            if not is_plain(weight):
                raise UnsupportedError(f"{name}: expected a plain tensor on the CPU")
            if weight.dtype != torch.float32:
                raise UnsupportedError(f"{name} is {weight.dtype}: expected float32")

    def _arrays(self, k: int | None, weights: Sequence[Tensor]) -> list[Array]:
        self.check(weights, k)  # module.double() changes the dtype of a parameter in place
        return arrays_of(weights)

    def run(
        self,
        dtype: str,
        weights: Sequence[Tensor],
        batch: Batch,
        states: Sequence[Tensor],
        shapes: Sequence[Sequence[int]],
        dropout: float = 0.0,
    ) -> tuple[Tensor, list[Tensor]]:
        """Runs the result of `arguments_of`, with dropout between layers; returns y and the final
        states.

        For a cell, y is the final h.
        """
        known = self._checked
        if not (known and all([old() is w for old, w in zip(known, weights, strict=True)])):
            self.check(weights)
            self._checked = [*map(ref, weights)]
        if not dropout:
            return self._run(None, dtype, weights, batch, states, shapes)
        shapes = [(self.spec.directions, *shape[1:]) for shape in shapes]

        def run(k: int, x: Tensor, begins: Any, own: Any) -> Any:
            y, ends = self._run(k, dtype, own, batch._replace(x=x), begins, shapes)
            return y, *ends

        return by_layers(self.spec.layers, dropout, batch.x, states, weights, run)

    def _run(
        self,
        k: int | None,
        dtype: str,
        weights: Sequence[Tensor],
        batch: Batch,
        states: Sequence[Tensor],
        shapes: Sequence[Sequence[int]],
    ) -> tuple[Tensor, list[Tensor]]:
        x, rows = batch.x, batch.sequences
        where: Any = None
        if not self.frozen:
            where = tuple([(w.data_ptr(), w.shape, w.stride(), w.dtype) for w in weights])
        self.ran = stack = self.layer(dtype, k).stack(where, partial(self._arrays, k, weights))
        if (kernel := stack.compiled) is None:
            words = batch.read(x.detach().numpy())
            y, *ends = _tensors(batch, *stack.run(words, _spread(self.part(k), states, rows)))
            return y, reshape_batch(ends, shapes)
        ends = [x.new_empty(shape) for shape in shapes]
        y = ends[0] if self.is_cell else x.new_empty((*x.shape[:-1], self._channels))
        kernel.run_at(
            kernel.layouts[batch.layout],
            (batch.steps, rows),
            kernel.at(0 if batch.begin is None else batch.begin.ctypes.data, "int64_t *"),
            kernel.at(x.data_ptr()),
            kernel.at(y.data_ptr()),
            [kernel.at(state.data_ptr()) for state in states],
            [kernel.at(end.data_ptr()) for end in ends],
        )
        return y, ends


def reshape_batch(states: Sequence[Tensor], shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Returns the states in these shapes.

    A state that already has its shape is not viewed, because autograd restricts changes of views.
    """
    return [
        state if state.shape == shape else state.view(shape)
        for state, shape in zip(states, shapes, strict=True)
    ]


def arrays_of(tensors: Sequence[Tensor]) -> list[Array]:
    """Returns arrays that share the memory of tensors."""
    return [tensor.detach().numpy() for tensor in tensors]


def state_shapes(spec: RnnSpec, sequences: Any) -> list[tuple[int, Any, int]]:
    """Returns PyTorch's shapes of the initial and final states."""
    widths = (spec.recurrent_size, spec.hidden_size)[: len(spec.cell.states)]
    return [(spec.layers * spec.directions, sequences, width) for width in widths]


def _spread(spec: RnnSpec, states: Sequence[Tensor], sequences: int) -> tuple[Array, ...] | None:
    shape = spec.layers, spec.directions, sequences, -1
    return tuple(state.detach().numpy().reshape(shape) for state in states) or None


def _tensors(batch: Batch, y: Ragged | Array, states: Sequence[Array]) -> list[Tensor]:
    return [batch.write(y), *(torch.from_numpy(join_states(state)) for state in states)]


# Calls that PyTorch's autograd records: onernn runs forward and backward.


def run_recorded(
    live: LiveModule,
    dtype: str,
    weights: Sequence[Tensor],
    batch: Batch,
    states: Sequence[Tensor],
    dropout: float,
) -> tuple[Tensor, list[Tensor]]:
    """Runs a module's call for autograd, with dropout between layers; returns y and the final
    states.

    Each call packs the parameters again. Raises `UnsupportedError`.
    """
    live.check(weights)

    def run(k: int, y: Any, begins: Any, layer_weights: Any) -> Any:
        part = k if dropout else None
        call = Call(live, part, batch._replace(x=y.detach()), len(states), dtype)
        return OnernnRecurrent.apply(call, y, *begins, *layer_weights)

    return by_layers(live.spec.layers, dropout, batch.x, states, weights, run)


def by_layers(
    layers: int,
    dropout: float,
    y: Any,
    states: Sequence[Any],
    weights: Sequence[Any],
    run: Callable[[int, Any, Any, Any], Any],
) -> tuple[Any, list[Any]]:
    """Runs a stack as a whole, or layer by layer with PyTorch's dropout; returns y and the final
    states.

    ``run(k, y, states, weights)`` runs layer k; without dropout, it runs the whole stack.
    """
    pieces, ends = layers if dropout else 1, []
    every = len(weights) // pieces
    for k in range(pieces):
        parts = [len(state) // pieces for state in states]
        begins = [s[k * n : (k + 1) * n] for s, n in zip(states, parts, strict=True)]
        y, *last = run(k, y, begins, weights[k * every : (k + 1) * every])
        ends.append(last)
        if k + 1 < pieces:
            y = torch.dropout(y, dropout, True)
    return y, [torch.cat(each) if dropout else each[0] for each in zip(*ends, strict=True)]


class Call:
    """A forward run of layer k, or of the whole stack if k is None, and its record for `backward`.

    ``states``: the number of initial states that the caller passed.
    """

    def __init__(
        self, live: LiveModule, k: int | None, batch: Batch, states: int, dtype: str
    ) -> None:
        self.spec, self._live, self._batch, self._states = live.part(k), live, batch, states
        self._dtype = choose_training_dtype(dtype)
        self._layer = live.layer(self._dtype, k)
        self._recorded: Recorded | None = None

    def forward(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Returns y and the final states, from x, the initial states and the parameters."""
        x, states, flat = self._split(tensors)
        words = self._batch.read(x.detach().numpy())
        begins = _spread(self.spec, states, self._batch.sequences)
        y, ends, recorded = self._layer.run_training(arrays_of(flat), words, begins)
        self._recorded, kernel = recorded, recorded.tape.kernel
        self._live.ran = f"{self.spec.cell.name} {self.spec.direction}, {self._dtype}, {kernel}"
        return _tensors(self._batch, y, ends)

    def backward(self, tensors: Sequence[Tensor], grads: Sequence[Tensor | None]) -> list[Tensor]:
        """Returns the gradients of ``tensors``, in their order."""
        if self._recorded is None:  # with retain_graph=True; a record serves one backward
            self.forward(tensors)
        recorded, self._recorded = self._recorded, None
        assert recorded is not None
        (x, _, flat), (dy, *dends) = self._split(tensors), grads
        heads = None if dy is None else self._batch.read(dy.numpy())
        ends = None
        if any(grad is not None for grad in dends):
            shapes = zip(dends, state_shapes(self.spec, self._batch.sequences), strict=True)
            whole = [x.new_zeros(like) if d is None else d for d, like in shapes]
            ends = _spread(self.spec, whole, self._batch.sequences)
        dx, dstates, dweights = self._layer.backward(recorded, heads, ends, arrays_of(flat))
        found = _tensors(self._batch, dx, dstates[: self._states])
        return [*found, *map(torch.from_numpy, dweights)]

    def _split(self, tensors: Sequence[Tensor]) -> tuple[Tensor, list[Any], list[Any]]:
        x, *others = tensors
        return x, others[: self._states], others[self._states :]

    def backward_by_torch(
        self,
        tensors: Sequence[Tensor],
        grads: Sequence[Tensor | None],
        needed: Sequence[bool],
    ) -> list[Tensor | None]:
        """Returns the gradients of the ``needed`` tensors; they can be differentiated again.

        PyTorch's own layer runs forward again, because its backward can be differentiated and
        batched.
        """
        is_recorded = torch.is_grad_enabled()
        with torch.enable_grad(), torch.autocast("cpu", enabled=False):
            # A parameter may be computed from x. With views, the gradient of x does not include the
            # gradient of the parameter.
            inputs = [tensor.view_as(tensor) for tensor in tensors]
            results = zip(self._by_torch(inputs), grads, strict=True)
            pairs = [(result, grad) for result, grad in results if grad is not None]
            wanted = [each for each, is_needed in zip(inputs, needed, strict=True) if is_needed]
            outputs, heads = zip(*pairs, strict=True)
            found = iter(
                torch.autograd.grad(
                    outputs, wanted, heads, create_graph=is_recorded, allow_unused=True
                )
            )
        return [next(found) if is_needed else None for is_needed in needed]

    def _by_torch(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        spec, batch, (x, states, flat) = self.spec, self._batch, self._split(tensors)
        mode = next(name for name, cell in CELLS.items() if cell is spec.cell)
        has_bias = len(flat) >= 4 * spec.layers * spec.directions
        options = flat, has_bias, spec.layers, 0.0, True, spec.directions > 1
        if not states:
            states = [x.new_zeros(shape) for shape in state_shapes(spec, batch.sequences)]

        def run(x: Tensor, sizes: Any, states: Sequence[Tensor]) -> Any:
            hx = states if len(states) > 1 else states[0]
            operator = getattr(_VF, mode.lower())
            if sizes is None:
                return operator(x, hx, *options, False)
            return operator(x, sizes, hx, *options)

        if batch.begin is not None and batch.layout == "lod":
            return as_packed(x, batch.begin, states, run)
        if batch.begin is not None:
            return run(x, torch.from_numpy(np.diff(batch.begin)), states)
        y, *ends = run(x.view(batch.steps, batch.sequences, -1), None, states)
        return [y.view(*x.shape[:-1], -1), *ends]


@cache
def choose_training_dtype(dtype: str) -> str:
    """Returns the dtype in which a layer of this dtype trains; logs a warning if the two differ."""
    why = "has no gradients" if dtype in KERNELS_ONLY else ""
    with suppress(LibraryError):
        if dtype == "bf16" and not load_kernels().multiplies_bf16:
            why = "is slower on this CPU"
    if why:
        _log.warning("layers of dtype %s train in f32: %s %s", dtype, dtype, why)
    return "f32" if why else dtype


class OnernnRecurrent(torch.autograd.Function):  # type: ignore[misc]
    """The function through which PyTorch's autograd calls onernn."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.call = call
        return tuple(call.forward(tensors))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        call, tensors, needed = ctx.call, ctx.saved_tensors, ctx.needs_input_grad[1:]
        if is_followed(grads):
            return None, *call.backward_by_torch(tensors, grads, needed)
        pairs = zip(call.backward(tensors, grads), needed, strict=True)
        return None, *[each if is_needed else None for each, is_needed in pairs]


def is_followed(grads: Sequence[Tensor | None]) -> bool:
    """Returns whether gradients are differentiated again (create_graph) or are not plain tensors
    (vmap).
    """
    return (
        torch.is_grad_enabled()
        or bool(follower())
        or not all(grad is None or is_plain(grad) for grad in grads)
    )
