"""A recurrent layer of PyTorch that onernn runs: its batch, its parameters, its training."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
import torch
from torch import _VF, Tensor
from torch._C import _dispatch_keys, _get_tracing_state, _len_torch_dispatch_stack
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.nn.utils.rnn import PackedSequence

from onernn.adapters.common.live import Repacked, joined_states, kernels_in_place
from onernn.backend import Backend, Stack, Tape, open_backend
from onernn.backend.compiled.backend import KernelsBackend
from onernn.backend.compiled.library import load_kernels
from onernn.backend.onednn.precision import KERNELS_ONLY
from onernn.ir.arrays import Array, Int64, frozen, sealed
from onernn.ir.errors import LibraryError, UnsupportedError
from onernn.ir.ragged import Ragged, falls, offsets_of
from onernn.ir.spec import Cell, RnnSpec
from onernn.ir.weights import PartViews, RnnWeights
from onernn.reorders.layers import gate_layout, part_views
from onernn.reorders.lod import Packing
from onernn.reorders.torch import GATES

_log = logging.getLogger("onernn")

# How the kernels read a batch of PyTorch in place: nothing is copied.


def _keys_of_new() -> int:
    return _dispatch_keys(torch.empty(0)).raw_repr()


with torch.inference_mode():
    _KEYS = [_keys_of_new()]
_KEYS.append(_keys_of_new())
"""Dispatch keys of plain tensors in this CPU's memory."""


def is_plain(tensor: Any) -> bool:
    """Whether it is a CPU tensor that nothing watches, wraps or lazily changes."""
    kind = type(tensor)
    return (kind is Tensor or kind is Parameter) and _dispatch_keys(tensor).raw_repr() in _KEYS


def follower() -> str:
    """What has to see each operator of a call, which onernn would hide from it; "" if nothing."""
    if peek_interpreter_stack() is not None:
        return "a transform of torch.func is at work"
    if _len_torch_dispatch_stack():
        return "a mode of torch.utils._python_dispatch watches operators"
    if _get_tracing_state() is not None:
        return "torch.jit.trace records operators"
    if forward_ad._current_level >= 0:
        return "derivatives forward (torch.autograd.forward_ad)"
    return ""


class Left(Exception):
    """Why PyTorch runs or refuses a call. Each such call makes one, in a microsecond."""


class Batch(NamedTuple):
    """The words of a batch in a layout of `kernels.h`: "lod", "tnc" or "packed".

    ``begin``: where sequences (lod) or steps (packed) begin. ``order``, ``back``: the permutations
    of the initial and of the final states of packed sequences, None for none. ``whole(y)``: words
    like x in the caller's type.
    """

    x: torch.Tensor
    layout: str
    steps: int
    sequences: int
    begin: Int64 | None = None
    order: torch.Tensor | None = None
    back: torch.Tensor | None = None
    whole: Callable[[torch.Tensor], Any] = lambda y: y

    def read(self, x: Array) -> Ragged | Array:
        """Words like those of the batch, as the array level reads them."""
        if self.layout == "lod":
            return Ragged(x, self.begin)  # type: ignore[arg-type]
        if self.layout == "packed":
            packing = self._packing()
            return Ragged.from_lengths(packing.unpack(x), packing.lengths)
        return x.reshape(self.steps, self.sequences, x.shape[-1])

    def write(self, y: Ragged | Array) -> torch.Tensor:
        """The inverse of `read`."""
        if isinstance(y, Ragged):
            y = self._packing().pack(y.data) if self.layout == "packed" else y.data
        y = np.ascontiguousarray(y)
        return torch.from_numpy(y.reshape(*self.x.shape[:-1], y.shape[-1]))

    def _packing(self) -> Packing:
        """The positions of the words of packed sequences."""
        assert self.begin is not None
        sizes = np.diff(self.begin)
        lengths = np.searchsorted(-sizes, -np.arange(self.sequences), side="left")
        return Packing.of(offsets_of(lengths))


@lru_cache(maxsize=64)
def _begin(batch_sizes: bytes) -> Int64:
    """The first word of each step, then the end; empty for invalid batch sizes."""
    sizes = np.frombuffer(batch_sizes, np.int64)
    begin = np.concatenate([[0], np.cumsum(sizes)])  # falls if the sum wraps around
    if not sizes.size or sizes[-1] < 1 or (sizes[1:] > sizes[:-1]).any() or falls(begin).size:
        return frozen(np.empty(0, np.int64))
    return frozen(begin)


class Arguments(NamedTuple):
    """A call as kernels read it: plain contiguous float32 of the CPU whose shapes fit the layer.

    ``shapes``: of the final states. ``types``: of x and the initial states as the caller has them.
    """

    batch: Batch
    states: list[torch.Tensor]
    shapes: list[tuple[int, ...]]
    types: tuple[torch.dtype, ...]


def arguments_of(live: LiveLayer, inputs: Any, hx: Any, batch_first: bool = False) -> Arguments:
    """Checks the arguments of a module: each call that reaches the kernels has passed through here.

    Raises `Left` for all others: PyTorch's own code runs them, or raises its own error.
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
        raise Left(f"x is not a batch of plain tensors of the CPU, but {type(kind).__name__}")
    x, rows = batch.x, batch.sequences
    if x.shape[-1] != spec.input_size or not x.numel():
        raise Left(f"x of shape {(*x.shape,)} has no step, or another width")
    shapes = live.state_shapes(rows)
    if batch.layout == "tnc" and inputs.dim() == (1 if live.is_cell else 2):  # no axis of sequences
        shapes = [(*parts, width) for *parts, _, width in shapes]
    if hx is None:
        states = []
    else:
        states = list(hx) if len(shapes) > 1 and isinstance(hx, tuple) else [hx]
        if len(states) != len(shapes):
            raise Left(f"expected initial states of shapes {shapes}")
    types = [x.dtype]
    batch = batch._replace(x=_float32("x", x))
    for k, state in enumerate(states):
        if not is_plain(state) or (batch.order is not None and state.dim() != 3):
            kind = type(state).__name__
            raise Left(f"an initial state is not a plain tensor of the CPU, but {kind}")
        if batch.order is not None:
            state = state.index_select(1, batch.order)
        if state.shape != shapes[k]:
            raise Left(f"expected an initial state of shape {shapes[k]}, got {(*state.shape,)}")
        types.append(state.dtype)
        states[k] = _float32("an initial state", state).contiguous()
    return Arguments(batch, states, shapes, tuple(types))


def _float32(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as float32, which it is, or which autocast computes in place of its halves."""
    if tensor.dtype is torch.float32:
        return tensor
    if tensor.dtype in (torch.bfloat16, torch.float16) and torch.is_autocast_enabled("cpu"):
        return tensor.float()
    raise Left(f"{name} is {tensor.dtype}, which is not faster here")


def batch_of(inputs: Any, batch_first: bool) -> Batch | None:
    """The batch that a module is called with; None if only PyTorch might read it."""
    if isinstance(inputs, PackedSequence):
        return _packed_batch(inputs)
    if isinstance(inputs, list):
        return _list_batch(inputs)
    if isinstance(inputs, torch.Tensor) and inputs.is_nested:
        return _nested_batch(inputs)
    if not is_plain(inputs):
        return None
    if inputs.dim() == 2:
        return Batch(inputs.contiguous(), "tnc", len(inputs), 1)
    if inputs.dim() != 3:
        return None
    if batch_first:  # y is transposed in place, as PyTorch does: it is not a view
        steps_first = inputs.transpose(0, 1).contiguous()
        steps, rows, _ = steps_first.shape
        return Batch(steps_first, "tnc", steps, rows, whole=lambda y: y.transpose_(0, 1))
    steps, rows, _ = inputs.shape
    return Batch(inputs.contiguous(), "tnc", steps, rows)


def _packed_batch(sequences: PackedSequence) -> Batch | None:
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


def _list_batch(sequences: list[Any]) -> Batch | None:
    """A list of sequences (T_n, I), which PyTorch's own modules refuse."""
    if not sequences or not all(is_plain(tensor) and tensor.dim() == 2 for tensor in sequences):
        return None
    if len({(tensor.shape[1], tensor.dtype) for tensor in sequences}) > 1:
        return None
    lengths = [len(tensor) for tensor in sequences]
    begin = frozen(np.concatenate([[0], np.cumsum(lengths)]))
    x = torch.cat(sequences)
    # Autograd forbids in-place writes to the parts that `split` returns.
    return Batch(
        x,
        "lod",
        0,
        len(sequences),
        begin,
        whole=lambda y: list(y.unsafe_split_with_sizes(lengths)),
    )


def _nested_batch(nested: Any) -> Batch | None:
    """A jagged nested tensor (N, j, I), which PyTorch's own modules refuse."""
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
    x: torch.Tensor, begin: Int64, states: Sequence[torch.Tensor], run: Callable[..., Any]
) -> list[torch.Tensor]:
    """y and the final states of sequences (W, I) by what runs packed sequences.

    ``run(x, batch_sizes, states)`` returns y and the final states. PyTorch packs no sequences
    without steps: these keep their initial states.
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


# Converts a module's parameters to weights of a layer, and gradients back. PyTorch copies them: its
# transposed copies take a sixth of NumPy's time.

CELLS = {
    "LSTM": Cell.LSTM,
    "GRU": Cell.LBR_GRU,
    "RNN_TANH": Cell.RNN_TANH,
    "RNN_RELU": Cell.RNN_RELU,
}


def spec_of(module: Any) -> RnnSpec:
    """The spec of a recurrent module of torch.nn."""
    if not isinstance(module, torch.nn.RNNBase):
        mode = "LSTM" if isinstance(module, torch.nn.LSTMCell) else "GRU"
        if isinstance(module, torch.nn.RNNCell):
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


def weights_of(spec: RnnSpec, parameters: Sequence[torch.Tensor]) -> list[RnnWeights]:
    """Copies flat weights in PyTorch's order into the layers' weights.

    Raises `UnsupportedError` for a weight of another shape, behind which PyTorch reads on.
    """
    order = gate_layout(spec.cell, GATES[spec.cell]).permutation
    D, units, width = spec.directions, spec.hidden_size, spec.recurrent_size
    every = len(parameters) // (spec.layers * D)
    has_bias, new = every >= 4, parameters[0].new_empty
    layers, G = [], len(order)
    for k in range(spec.layers):
        layer = new((1, D, spec.reads(k), G, units))
        recurrent = new((1, D, width, G, units))
        bias = new((1, D, spec.cell.bias_rows, units)) if has_bias else None
        projection = new((1, D, units, width)) if spec.projection_size else None
        for d in range(D):
            first = (k * D + d) * every
            ih, hh, *rest = own = parameters[first : first + every]
            shapes: list[tuple[int, ...]] = [(G * units, spec.reads(k)), (G * units, width)]
            shapes += [(G * units,)] * (2 * has_bias)
            if projection is not None:
                shapes.append((width, units))
            for shape, weight in zip(shapes, own, strict=True):
                if weight.shape != shape:
                    raise UnsupportedError(f"expected a weight {shape}, got {(*weight.shape,)}")
            for g, place in enumerate(order):
                rows = slice(place * units, (place + 1) * units)
                layer[0, d, :, g] = ih[rows].t()
                recurrent[0, d, :, g] = hh[rows].t()
                if bias is not None:
                    apart = spec.cell.linear_before_reset and g == 2
                    bias[0, d, g] = rest[0][rows] if apart else rest[0][rows] + rest[1][rows]
                    if apart:
                        bias[0, d, 3] = rest[1][rows]
            if projection is not None:
                projection[0, d] = rest[-1].t()
        arrays = (layer, recurrent, bias, None, projection)
        layers.append(RnnWeights(*(None if a is None else sealed(a.numpy()) for a in arrays)))  # type: ignore[arg-type]
    return layers


def views_of(spec: RnnSpec, parameters: Sequence[Array]) -> list[PartViews]:
    """Flat weights in PyTorch's order, see `weights_of`, without a copy."""
    order = gate_layout(spec.cell, GATES[spec.cell]).permutation
    every = len(parameters) // (spec.layers * spec.directions)
    parts = []
    for first in range(0, len(parameters), every):
        ih, hh, *rest = parameters[first : first + every]
        biases, projection = (rest[:2], rest[2:]) if every >= 4 else ([], rest)
        parts.append(part_views(spec.cell, order, ih, hh, biases, *projection))
    return parts


def gradients_back(spec: RnnSpec, layers: Sequence[RnnWeights], every: int) -> list[torch.Tensor]:
    """Gradients of the flat weights, in PyTorch's order, from those of the layers' weights."""
    order = gate_layout(spec.cell, GATES[spec.cell]).permutation
    flat: list[torch.Tensor] = []
    for weights in layers:
        arrays = {name: _tensor(array) for name, array in weights.arrays.items()}
        for d in range(spec.directions):
            for name in ("layer", "iter"):
                flat.append(_rows(arrays[name][0, d].permute(1, 2, 0), order))
            if every >= 4:
                bias = arrays["bias"][0, d]
                of_x = _rows(bias[: len(order)], order)
                # Both biases have the gradient of their sum.
                of_h = _rows(bias[[0, 1, 3]], order) if len(bias) > len(order) else of_x.clone()
                flat += [of_x, of_h]
            if spec.projection_size is not None:
                flat.append(_contiguous(arrays["projection"][0, d].t()))
    return flat


def _tensor(array: Any) -> torch.Tensor:
    array.flags.writeable = True  # no one else holds it
    return torch.from_numpy(array)


def _rows(gates: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """(G, O, ...) in oneDNN's order -> (G*O, ...) in PyTorch's."""
    if list(order) == sorted(order):
        return _contiguous(gates).view(-1, *gates.shape[2:])
    out = gates.new_empty(gates.shape)
    for g, place in enumerate(order):
        out[place] = gates[g]
    return out.view(-1, *gates.shape[2:])


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


# The packed parameters of a module, and calls without gradients.

DTYPES = {
    None: "f32",
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    **dict(zip(KERNELS_ONLY, KERNELS_ONLY, strict=True)),
}
"""The type that matrices are rounded to, by the ``dtype`` of `optimize`."""


_process = os.getpid()


def _in_child() -> None:
    global _process
    _process = os.getpid()


os.register_at_fork(after_in_child=_in_child)


class LiveLayer:
    """A module's packed parameters, and the reasons why calls stayed with PyTorch."""

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
        # PyTorch runs a padded LSTM as one call of oneDNN, others step by step.
        by_steps = f"torch {'GRU' if kind == 'LSTM' else kind} trained"
        self.trained = by_steps if spec.projection_size else f"torch {kind} trained", by_steps
        """The keys of `gain` for training with padded and with packed batches."""
        self._like = [(parts, width) for parts, _, width in state_shapes(spec, 0)]
        self.reasons: dict[str, None] = {}
        self.ran = ""
        """The kernel of the last call, for `explain`."""

    def state_shapes(self, sequences: int) -> list[tuple[int, ...]]:
        """The shapes of the states of a batch."""
        if self.is_cell:
            return [(sequences, width) for _, width in self._like]
        return [(parts, sequences, width) for parts, width in self._like]

    def forget(self) -> None:
        """Makes the next call pack anew."""
        self._in_place: dict[str, tuple[Any, Sequence[ref[torch.Tensor]], Stack]] = {}
        self._compared = Repacked(self._new_stack)
        self._kept: dict[tuple[str, int, int], Stack] = {}

    def _stack(self, dtype: str, weights: Sequence[torch.Tensor]) -> Stack:
        """The stack of the parameters. Raises `UnsupportedError`.

        Its runs read them in place. Where they cannot, it is packed, and each call compares all
        parameters with a copy. Frozen ones are packed once.
        """
        setting = torch.get_num_threads(), _process  # oneDNN's threads do not live on in a fork
        if self.frozen:
            if (dtype, *setting) not in self._kept:
                self.check(weights)
                arrays = [weight.detach().numpy() for weight in weights]
                self._kept[dtype, *setting] = self._new_stack((dtype, *setting), arrays)
                self.ran = self._kept[dtype, *setting].explain()
            return self._kept[dtype, *setting]
        where = setting, [(w.data_ptr(), w.shape, w.stride(), w.dtype) for w in weights]
        nothing: Any = None, (), None
        place, known, stack = self._in_place.get(dtype, nothing)
        if place == where and all([old() is w for old, w in zip(known, weights, strict=True)]):
            return stack
        self.check(weights)
        arrays = [weight.detach().numpy() for weight in weights]
        if (kernels := kernels_in_place("auto", dtype, setting[0])) is not None:
            like = stack if place is not None and place[0] == setting else None
            with suppress(UnsupportedError):  # a bias with gaps
                stack = kernels.live_stack(self.spec, views_of(self.spec, arrays), dtype, like)
                self._in_place[dtype] = where, [*map(ref, weights)], stack
                if like is None:
                    self.ran = stack.explain()
                return stack
        stack = self._compared((dtype, *setting), arrays)
        self.ran = stack.explain()
        return stack

    def _new_stack(self, key: tuple[str, int, int], weights: Sequence[Array]) -> Stack:
        dtype, threads, _ = key
        layers = weights_of(self.spec, [*map(torch.from_numpy, map(np.array, weights))])
        return engine(dtype, threads).prepare(self.spec, layers, dtype=dtype, strict=True)

    def check(self, weights: Sequence[torch.Tensor]) -> None:
        """Raises `UnsupportedError` for parameters that cannot be read."""
        for name, weight in zip(self.names, weights, strict=True):
            if not is_plain(weight):
                raise UnsupportedError(f"{name} is not a plain tensor of the CPU")
            if weight.dtype != torch.float32:
                raise UnsupportedError(f"{name} is {weight.dtype}: only float32 is faster here")

    def run(
        self,
        dtype: str,
        weights: Sequence[torch.Tensor],
        batch: Batch,
        states: Sequence[torch.Tensor],
        shapes: Sequence[Sequence[int]],
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """y and the final states, for what `arguments_of` returned. A cell's y is its final h."""
        x, rows = batch.x, batch.sequences
        stack = self._stack(dtype, weights)
        spec, kernel = self.spec, stack.compiled
        if kernel is None:
            words = batch.read(x.detach().numpy())
            y, *ends = _tensors(batch, *stack.run(words, _spread(spec, states, rows)))
            return y, shaped(ends, shapes)
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


def shaped(states: Sequence[torch.Tensor], shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """The states in these shapes. None is a view without need: autograd restricts writes to it."""
    return [
        state if state.shape == shape else state.view(shape)
        for state, shape in zip(states, shapes, strict=True)
    ]


@cache
def engine(dtype: str, threads: int) -> Backend:
    """The kernels, which read PyTorch's memory in place, or another backend without them."""
    if dtype == "f32":
        with suppress(LibraryError):
            return open_backend("kernels", threads=threads)
    return open_backend("auto", threads=threads)


def state_shapes(spec: RnnSpec, sequences: Any) -> list[tuple[int, Any, int]]:
    """The shapes of the final states in PyTorch."""
    widths = (spec.recurrent_size, spec.hidden_size)[: len(spec.cell.states)]
    return [(spec.layers * spec.directions, sequences, width) for width in widths]


def _spread(
    spec: RnnSpec, states: Sequence[torch.Tensor], sequences: int
) -> tuple[Array, ...] | None:
    """The states as arrays (L, D, N, O); None if there are none."""
    shape = spec.layers, spec.directions, sequences, -1
    return tuple(state.detach().numpy().reshape(shape) for state in states) or None


def _tensors(batch: Batch, y: Ragged | Array, states: Sequence[Array]) -> list[torch.Tensor]:
    return [batch.write(y), *(torch.from_numpy(joined_states(state)) for state in states)]


# Calls that PyTorch's autograd records: onernn runs forward and backward.


def run_recorded(
    live: LiveLayer,
    dtype: str,
    weights: Sequence[torch.Tensor],
    batch: Batch,
    states: Sequence[torch.Tensor],
    dropout: float,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """`LiveLayer.run` for autograd, with dropout between layers. Raises `UnsupportedError`.

    It packs the parameters anew.
    """
    live.check(weights)
    spec = live.spec

    def run(k: int, y: Any, begins: Any, layer_weights: Any) -> Any:
        layer_spec = spec.one_layer(spec.reads(k), spec.direction) if dropout else spec
        call = Call(live, layer_spec, batch._replace(x=y.detach()), len(states), dtype)
        return OnernnRecurrent.apply(call, y, *begins, *layer_weights)

    return by_layers(spec.layers, dropout, batch.x, states, weights, run)


def by_layers(
    layers: int,
    dropout: float,
    y: Any,
    states: Sequence[Any],
    weights: Sequence[Any],
    run: Callable[[int, Any, Any, Any], Any],
) -> tuple[Any, list[Any]]:
    """y and the final states of a stack, run whole, or layer by layer with dropout.

    Dropout is PyTorch's own. ``run(k, y, states, weights)`` runs layer k, or the whole stack.
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
    """A forward run, and the record for its backward run.

    ``states``: the number of initial states that the caller passed.
    """

    def __init__(
        self, live: LiveLayer, spec: RnnSpec, batch: Batch, states: int, dtype: str
    ) -> None:
        self.spec, self._live, self._batch, self._states = spec, live, batch, states
        self._dtype = trained_in(dtype)
        self._tape: Tape | None = None

    def forward(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """y and the final states, from x, the initial states and the parameters."""
        x, states, flat = self._split([tensor.detach() for tensor in tensors])
        spec, dtype = self.spec, self._dtype
        self._stack = _training_stack(spec, weights_of(spec, flat), dtype)
        self._live.ran = f"{spec.cell.name} {spec.direction}, {dtype}, {self._stack.trainer().name}"
        words = self._batch.read(x.numpy())
        begins = _spread(spec, states, self._batch.sequences)
        y, ends, self._tape = self._stack.run_training(words, begins)
        return _tensors(self._batch, y, ends)

    def backward(
        self, tensors: Sequence[torch.Tensor], grads: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor]:
        """Gradients of ``tensors``, in their order."""
        if self._tape is None:  # a second time (retain_graph=True): tapes serve one run
            self.forward(tensors)
        tape, self._tape = self._tape, None
        assert tape is not None
        dy, *dends = grads
        heads = None if dy is None else self._batch.read(dy.numpy())
        ends = None
        if any(grad is not None for grad in dends):
            shapes = zip(dends, state_shapes(self.spec, self._batch.sequences), strict=True)
            whole = [tensors[0].new_zeros(like) if d is None else d for d, like in shapes]
            ends = _spread(self.spec, whole, self._batch.sequences)
        result = self._stack.backward(tape, heads, ends)
        dx, *begins = _tensors(self._batch, result.x, result.state[: self._states])
        every = len(self._split(tensors)[2]) // (self.spec.layers * self.spec.directions)
        return [dx, *begins, *gradients_back(self.spec, result.layers, every)]

    def _split(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[Any], list[Any]]:
        """x, the initial states, and the parameters."""
        x, *others = tensors
        return x, others[: self._states], others[self._states :]

    def backward_by_torch(
        self,
        tensors: Sequence[torch.Tensor],
        grads: Sequence[torch.Tensor | None],
        needed: Sequence[bool],
    ) -> list[torch.Tensor | None]:
        """The gradients of the ``needed`` tensors, by operators that can be differentiated again.

        PyTorch's own layer runs anew: its backward is differentiable, also in batches.
        """
        is_recorded = torch.is_grad_enabled()
        with torch.enable_grad(), torch.autocast("cpu", enabled=False):
            # Views: a parameter may depend on x, which is not this layer's derivative.
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

    def _by_torch(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """`forward` by PyTorch's own operators."""
        spec, batch, (x, states, flat) = self.spec, self._batch, self._split(tensors)
        mode = next(name for name, cell in CELLS.items() if cell is spec.cell)
        has_bias = len(flat) >= 4 * spec.layers * spec.directions
        options = flat, has_bias, spec.layers, 0.0, True, spec.directions > 1
        if not states:
            states = [x.new_zeros(shape) for shape in state_shapes(spec, batch.sequences)]

        def run(x: torch.Tensor, sizes: Any, states: Sequence[torch.Tensor]) -> Any:
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
def trained_in(dtype: str) -> str:
    """The dtype in which a layer of this dtype trains; the first change is logged."""
    why = "has no gradients" if dtype in KERNELS_ONLY else ""
    with suppress(LibraryError):
        if dtype == "bf16" and not load_kernels().isa.endswith("bf16"):
            why = "is slower on this CPU"
    if why:
        _log.warning("layers of dtype %s train in f32: %s %s", dtype, dtype, why)
    return "f32" if why else dtype


def _training_stack(spec: RnnSpec, layers: Sequence[RnnWeights], dtype: str) -> Stack:
    """A stack that only trains: kernels pack nothing for other runs."""
    backend = engine(dtype, torch.get_num_threads())
    if not isinstance(backend, KernelsBackend):
        return backend.prepare(spec, layers, dtype=dtype, strict=True)
    return backend.training_stack(spec, layers, dtype)


class OnernnRecurrent(torch.autograd.Function):  # type: ignore[misc]
    """How PyTorch's autograd calls onernn."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.call = call
        return tuple(call.forward(tensors))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        call, tensors, needed = ctx.call, ctx.saved_tensors, ctx.needs_input_grad[1:]
        if is_followed(grads):
            return None, *call.backward_by_torch(tensors, grads, needed)
        pairs = zip(call.backward(tensors, grads), needed, strict=True)
        return None, *[each if is_needed else None for each, is_needed in pairs]


def is_followed(grads: Sequence[torch.Tensor | None]) -> bool:
    """Whether gradients are differentiated again (create_graph), or are no plain tensors (vmap)."""
    return (
        torch.is_grad_enabled()
        or bool(follower())
        or not all(grad is None or is_plain(grad) for grad in grads)
    )
