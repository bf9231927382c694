"""Runs recurrent layers of paddle.nn on onernn's kernels."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.common.adapter import require
from onernn.adapters.common.files import pairs
from onernn.adapters.common.live import (
    NOT_SEEN,
    Explained,
    array_at,
    derive,
    leave,
    left_of,
    original,
    warn_of_left,
)
from onernn.adapters.common.plugins import plugins_enabled
from onernn.adapters.paddle.custom_operators import (
    FEW,
    HOST,
    NAME,
    append_operator,
    arguments,
    import_paddle,
    is_faster_in_paddle,
    is_pir,
    missing_operators,
)
from onernn.adapters.paddle.partition import LayerKind, Options
from onernn.ir.arrays import Array
from onernn.ir.errors import LibraryError, Refusal, ShapeError, UnsupportedError
from onernn.ir.ragged import Ragged, data_of

# Arrays that share the memory of Paddle's tensors. Paddle's own conversion copies the memory.

_OLD_NAMES = pairs(
    """
    BOOL=bool UINT8=uint8 INT8=int8 INT16=int16 INT32=int32 INT64=int64 FP16=float16 FP32=float32
    FP64=float64 BF16=bfloat16 COMPLEX64=complex64 COMPLEX128=complex128
    """
)


def view(tensor: Any, name: str) -> Array:
    """Returns an array that shares the memory of a tensor in a scope. The array is valid only as
    long as the tensor keeps this memory. A bfloat16 tensor is copied to float32.

    Raises `UnsupportedError` if the tensor has no elements yet, is not on the CPU, or has an
    unsupported dtype.
    """
    if tensor is None:  # Paddle returns None for a variable without memory
        raise UnsupportedError(f"{name}: expected a tensor with values; load the parameters first")
    return _view(tensor, name, tensor._place(), tensor._dtype(), tensor.shape(), tensor._ptr)


def view_eager(tensor: Any, name: str) -> Array:
    """Returns the array of a dygraph tensor like `view`. Copies the tensor if it is not
    contiguous.
    """
    whole = tensor if tensor.is_contiguous() else tensor.contiguous()
    return _view(whole, name, whole.place, whole.dtype, whole.shape, whole.data_ptr)


def _view(
    owner: Any, name: str, place: Any, kind: Any, shape: Sequence[int], pointer: Callable[[], int]
) -> Array:
    if not place.is_cpu_place():
        raise UnsupportedError(f"{name}: expected CPU memory, got {place}; use .cpu()")
    named = str(kind).rpartition(".")[2]
    dtype = _OLD_NAMES.get(named, named)
    if dtype not in _OLD_NAMES.values():
        raise UnsupportedError(
            f"{name}: expected one of {', '.join(_OLD_NAMES.values())}, got {named}; cast it"
        )
    address = pointer() if math.prod(shape) else 0
    if dtype != "bfloat16":
        return array_at(address, shape, dtype, owner)
    # NumPy has no bfloat16. The bits of a bfloat16 are the upper half of a float32.
    return (array_at(address, shape, "uint16", owner).astype(np.uint32) << 16).view(np.float32)


def batch(tensor: Any, name: str) -> Ragged | Array:
    """Returns the array of a tensor like `view`, or a `Ragged` if the tensor has a LoD."""
    data = view(tensor, name)
    lod = tensor.lod()
    return Ragged.from_lod(data, lod) if lod else data


def tensor_of(value: Ragged | Array) -> Any:
    """Returns a Paddle tensor with a copy of the array, and its LoD."""
    paddle = import_paddle()
    core = paddle.base.core
    result = (getattr(core, "LoDTensor", None) or core.DenseTensor)()
    result.set(np.ascontiguousarray(data_of(value)), paddle.CPUPlace())
    if isinstance(value, Ragged):
        result.set_lod(value.lod)
    return result


# Runs calls of recurrent layers of paddle.nn: in dynamic mode, in traced programs and in training.

_log = logging.getLogger("onernn")

Results = tuple[Any, tuple[Any, ...]]
"""The output, and a tuple of the final states."""


class LayerCall(NamedTuple):
    """The arguments of a call of a layer. ``is_drawn``: whether dropout is active. ``must``:
    whether onernn must run the layer, because Paddle would crash.
    """

    kind: LayerKind
    time_major: bool
    training: bool
    inputs: Any
    states: Sequence[Any]
    weights: Sequence[Any]
    lengths: Any = None
    is_drawn: bool = False
    must: bool = False

    @property
    def tensors(self) -> list[Any]:
        return [self.inputs, *self.states, *self.weights]

    def records(self) -> bool:
        """Returns whether Paddle's autograd records this call for gradients."""
        paddle = import_paddle()
        return paddle.is_grad_enabled() and not all(each.stop_gradient for each in self.tensors)


def run_layer(layer: Any, call: LayerCall, chosen: Options) -> Results | None:
    """Returns the layer's results. Returns None, and logs the reason, if Paddle must run the layer.

    The compiled operator runs the layer, so that Paddle can compute gradients. Raises `ShapeError`
    for inputs of wrong shapes.
    """
    paddle = import_paddle()
    if not plugins_enabled() and not call.must:
        return None
    in_program = not paddle.in_dynamic_mode()
    try:
        return _run_operator(layer, call, chosen, in_program)
    except (UnsupportedError, LibraryError) as error:
        if not in_program and (call.must or isinstance(error, LibraryError)):
            raise
        reason = error.refusal.reason if isinstance(error, UnsupportedError) else str(error)
        leave(layer, HOST, reason, layer.full_name)
        return None


def _run_operator(layer: Any, call: LayerCall, chosen: Options, in_program: bool) -> Results:
    """Runs the compiled operator, or adds it to the program under construction."""
    paddle, kind = import_paddle(), call.kind
    if call.is_drawn:
        raise UnsupportedError(
            "training applies dropout between its layers; call eval() for inference"
        )
    if in_program and not is_pir(call.inputs):
        raise UnsupportedError(
            "a program of Paddle 2's format gets Paddle's operators; optimize the finished program"
        )
    for each in call.tensors:
        if each.dtype != paddle.float32:
            raise UnsupportedError(
                f"{each.name}: expected {paddle.float32}, got {each.dtype}; cast it"
            )
    records = call.training if in_program else call.records()
    attributes = arguments(kind, time_major=call.time_major, is_test=not records, chosen=chosen)
    if missing := missing_operators():
        raise UnsupportedError(missing)
    if in_program:
        _log.info("%s: operator %s in the program that is made", layer.full_name(), NAME)
        return append_operator(call.tensors, call.lengths, attributes)
    _check_shapes(call)
    if 0 in call.inputs.shape:  # Paddle divides by these sizes
        y = paddle.zeros([*call.inputs.shape[:2], kind.directions * kind.hidden_size])
        return y, tuple(state * 1 for state in call.states)
    with paddle.profiler.RecordEvent(NAME):
        out, states = append_operator(call.tensors, call.lengths, attributes)
    if not records:
        for each in (out, *states):
            each.stop_gradient = True
    return out, states


def _check_shapes(call: LayerCall) -> None:
    kind, shape = call.kind, call.inputs.shape
    if len(shape) != 3:
        raise ShapeError(f"inputs: expected 3 axes, got {tuple(shape)}")
    T, N = shape[:2] if call.time_major else shape[1::-1]
    if shape[2] != kind.input_size:
        raise ShapeError(f"x: expected (T, N, {kind.input_size}), got {(T, N, shape[2])}")
    rows = [kind.layers * kind.directions, N, kind.hidden_size]
    for state in call.states:
        if state.shape != rows:
            raise ShapeError(f"initial_states: expected {tuple(rows)}, got {tuple(state.shape)}")
    if call.lengths is not None:
        lengths = view_eager(call.lengths, "sequence_length")
        if lengths.shape != (N,) or lengths.dtype.kind != "i":
            raise ShapeError(f"lengths: expected {N} integers, got {lengths.dtype} {lengths.shape}")
        for n, length in enumerate(lengths.tolist()):
            if not 0 <= length <= T:
                raise ShapeError(f"lengths: expected 0 to {T}, got {length} for sequence {n}")


def hide_from_tracer(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls ``function`` without `paddle.jit.to_static` tracing it.

    Otherwise Paddle would also trace NumPy and ctypes, and fail. Paddle's graph ends before a call,
    and a new graph begins after it.
    """
    tracer = require("paddle.jit.sot.psdb", "paddle")
    evaluate_by = import_paddle().base.core.set_eval_frame

    def call(*arguments: Any) -> Any:
        tracer.fallback()  # ends the tracer's graph
        callback = evaluate_by(None)
        try:
            return function(*arguments)
        finally:
            if callback is not None:
                evaluate_by(callback)

    return call


# Runs ``paddle.nn.RNN`` and ``BiRNN`` of Paddle's own cells, which Paddle runs step by step.

_WEIGHTS = ("weight_ih", "weight_hh"), ("bias_ih", "bias_hh")
_MORE = (
    "sequence_length, behind which Paddle computes on, or other arguments; nn.GRU, nn.LSTM and"
    " nn.SimpleRNN take lengths"
)


def cells_obstacle(layer: Any, kind: Any) -> str:
    """Returns the reason why onernn cannot replace an RNN or BiRNN of this class, "" if it can."""
    nn = import_paddle().nn
    cells = _cells(layer)
    base = nn.BiRNN if len(cells) > 1 else nn.RNN
    if kind.forward is not base.forward:
        return "its class overrides forward()"
    for cell in cells:
        if type(cell) not in (nn.SimpleRNNCell, nn.LSTMCell, nn.GRUCell):
            return f"{type(cell).__name__} is not of paddle.nn; run its file in onernn.Session"
        if getattr(cell, "proj_size", 0):
            return "its cell has a projection (proj_size)"
        if cell._forward_pre_hooks or cell._forward_post_hooks:
            return "its cell has hooks, which are called in each step"
    if len({(_mode(cell), cell.input_size, cell.hidden_size) for cell in cells}) > 1:
        return "its cells are not alike"
    return ""


@cache
def cells_class(kind: Any, chosen: Options) -> type:
    """Returns a subclass of the layer's class that runs all steps in one call. Parameters,
    arguments and results are unchanged.
    """

    @hide_from_tracer
    def run(self: Any, inputs: Any, states: Any, lengths: Any, more: dict[str, Any]) -> Any:
        obstacle = cells_obstacle(self, kind)  # hooks may have been added
        if more or lengths is not None:
            obstacle = _MORE
        if obstacle:
            leave(self, HOST, obstacle, self.full_name)
        elif (result := _run(self, inputs, states, chosen)) is not None:
            return result
        return kind.forward(self, inputs, states, lengths, **more)

    def forward(
        self: Any,
        inputs: Any,
        initial_states: Any = None,
        sequence_length: Any = None,
        **kwargs: Any,
    ) -> Any:
        return run(self, inputs, initial_states, sequence_length, kwargs)

    whole = import_paddle().jit.not_to_static  # to_static of 2.6 would lose the closure
    return derive(kind, chosen, forward=whole(forward))


def _run(layer: Any, inputs: Any, initial: Any, chosen: Options) -> tuple[Any, Any] | None:
    """Returns the outputs and the final states like Paddle's layer, None if Paddle must run the
    layer.
    """
    paddle = import_paddle()
    cells, time_axis = _cells(layer), 0 if layer.time_major else 1
    first = cells[0]
    kind = LayerKind(_mode(first), first.input_size, first.hidden_size, 1, len(cells))
    if initial is None:
        begin = [
            cell.get_initial_states(batch_ref=inputs, batch_dim_idx=1 - time_axis) for cell in cells
        ]
    else:
        begin = [*initial] if len(cells) > 1 else [initial]
    by_cell = [each if isinstance(each, list | tuple) else [each] for each in begin]
    states = [paddle.stack(each, 0) for each in zip(*by_cell, strict=True)]
    weights = [getattr(cell, name) for names in _WEIGHTS for cell in cells for name in names]
    reverse = getattr(layer, "is_reverse", False)
    x = paddle.flip(inputs, time_axis) if reverse else inputs
    call = LayerCall(kind, layer.time_major, layer.training, x, states, weights)
    if (results := run_layer(layer, call, chosen)) is None:
        return None
    out, after = results
    ends = [tuple(state[k] for state in after) for k in range(len(cells))]
    final = [each if len(each) > 1 else each[0] for each in ends]
    if reverse:
        out = paddle.flip(out, time_axis)
    return out, tuple(final) if len(cells) > 1 else final[0]


def _cells(layer: Any) -> list[Any]:
    return [layer.cell] if hasattr(layer, "cell") else [layer.cell_fw, layer.cell_bw]


def _mode(cell: Any) -> str:
    """Returns the ``mode`` with which Paddle's operator ``rnn`` computes this cell."""
    name = type(cell).__name__.removesuffix("Cell")
    return f"RNN_{cell.activation.upper()}" if name == "SimpleRNN" else name


# Replaces layers of paddle.nn in place. Paddle's autograd can train the replaced layers.


def optimize_layer(target: Any, chosen: Options) -> Any:
    """Replaces the recurrent layers in a layer, and returns the layer; see `plugin.optimize`."""
    rnn, result = import_paddle().nn.layer.rnn, _recurrent(target)
    reasons = {id(each): _obstacle(each) for each in result}
    left = [Refusal(reasons[id(e)], e.full_name()) for e in result if reasons[id(e)]]
    if len(left) == len(result):
        raise UnsupportedError(
            f"{type(target).__name__} holds no SimpleRNN, LSTM, GRU, RNN or BiRNN that can be"
            " replaced",
            left,
        )
    warn_of_left(HOST, left)
    for each in result:
        if not reasons[id(each)]:
            kind = original(type(each))
            each.__class__ = (
                _layer_class(kind, chosen, _is_short(each))
                if isinstance(each, rnn.RNNBase)
                else cells_class(kind, chosen)
            )
    _forget_traces(target)
    return target


def _forget_traces(target: Any) -> None:
    """Removes the programs that `paddle.jit.to_static` has traced, so that it traces again."""
    for each in target.sublayers(include_self=True):
        if cache := getattr(each.forward, "_program_cache", None):
            cache.clear()


def _recurrent(target: Any) -> list[Any]:
    """Returns the recurrent layers in a layer, without the RNN layers of which they consist."""
    rnn = import_paddle().nn.layer.rnn
    all_layers = target.sublayers(include_self=True)
    bases = [each for each in all_layers if isinstance(each, rnn.RNNBase)]
    inside = {id(part) for each in bases for part in each.sublayers()}
    wrappers = [each for each in all_layers if isinstance(each, rnn.RNN | rnn.BiRNN)]
    return [*bases, *(each for each in wrappers if id(each) not in inside)]


def explain_layer(target: Any) -> Explained:
    """Returns the recurrent layers that onernn runs, and the reasons why Paddle runs others."""
    replaced, refusals = list[str](), list[Refusal]()
    for each in _recurrent(target):
        name, kind = each.full_name(), type(each)
        if original(kind) is kind:
            refusals.append(Refusal(_obstacle(each) or NOT_SEEN, name))
        else:
            replaced.append(f"{name}: onernn: {kind.__name__}, {kind.onernn_options.dtype}")
            refusals += left_of(each)
    return Explained(tuple(replaced), tuple(refusals))


def restore_layer(target: Any) -> Any:
    """Restores Paddle's recurrent layers in a layer, and returns the layer."""
    for each in target.sublayers(include_self=True):
        if (kind := original(type(each))) is not type(each):
            each.__class__ = kind
    _forget_traces(target)
    return target


def _obstacle(layer: Any) -> str:
    """Returns the reason why onernn cannot replace a layer, "" if it can."""
    if not hasattr(layer, "could_use_cudnn"):
        return cells_obstacle(layer, original(type(layer)))
    if getattr(layer, "proj_size", 0):
        return "Paddle computes a projection (proj_size) by small operators"
    if not layer.could_use_cudnn:
        return "Paddle computes it by small operators"
    return ""


def _weights(layer: Any, is_short: bool) -> list[Any]:
    """Returns the WeightList of a layer. For a layer without some bias, Paddle's own list is too
    short, which crashes Paddle's kernel.
    """
    if not is_short:
        return list(layer._all_weights)
    cells = [each.cell for each in layer]  # with two directions Paddle makes no list at all
    matrices = [matrix for cell in cells for matrix in (cell.weight_ih, cell.weight_hh)]
    return [*matrices, *(bias for cell in cells for bias in (cell.bias_ih, cell.bias_hh))]


def _is_short(layer: Any) -> bool:
    return len(layer._all_weights) < 4 * layer.num_layers * layer.num_directions


@cache
def _layer_class(kind: Any, chosen: Options, is_short: bool) -> type:
    """Returns a subclass of a recurrent layer's class that uses onernn's kernels. Parameters,
    arguments and results are unchanged.

    ``is_short``: whether the layer has fewer weights than Paddle's kernel reads.
    """
    paddle = import_paddle()
    live, full = paddle.Tensor, paddle._C_ops.full
    place = paddle.framework._current_expected_place
    is_recording = getattr(paddle.base.core, "_has_grad", paddle.is_grad_enabled)
    may_leave, native = chosen.may_leave and not is_short, kind._cudnn_impl

    def is_left(layer: Any, inputs: Any) -> bool:
        """Returns whether Paddle is faster for this call. Returns False if Paddle would crash.

        If Paddle runs the call, this check takes most of the time that onernn adds to it.
        """
        shape, trains = inputs.shape, layer.training
        if len(shape) != 3:
            return False
        if isinstance(inputs, live) and (trains := is_recording()):
            frozen = [each.stop_gradient for each in layer._all_weights]
            trains = False in frozen or not inputs.stop_gradient
            if trains and (True in frozen or not layer.training):
                return False
        rows, columns, _ = shape
        steps, sequences = (rows, columns) if layer.time_major else (columns, rows)
        return is_faster_in_paddle(layer.mode, steps, sequences, layer.hidden_size, not trains)

    def kernel(self: Any, inputs: Any, initial_states: Any, sequence_length: Any) -> Any:
        """Runs in place of Paddle's operator ``rnn``."""
        if may_leave and sequence_length is None and is_left(self, inputs):
            leave(self, HOST, FEW, self.full_name)
            return native(self, inputs, initial_states, sequence_length)
        sizes = (self.mode, self.input_size, self.hidden_size, self.num_layers, self.num_directions)
        call = LayerCall(
            LayerKind(*sizes),
            self.time_major,
            self.training,
            inputs,
            initial_states,
            _weights(self, is_short),
            sequence_length,
            bool(self.training and self.dropout and self.num_layers > 1),
            is_short,
        )
        results = run_layer(self, call, chosen)
        if results is None:
            return native(self, inputs, initial_states, sequence_length)
        out, states = results
        return out, states if len(states) > 1 else states[0]

    @hide_from_tracer
    def run(self: Any, inputs: Any, initial_states: Any, sequence_length: Any) -> Any:
        shape = inputs.shape if isinstance(inputs, live) and self.could_use_cudnn else ()
        if len(shape) != 3 or initial_states is not None or sequence_length is not None:
            return kind.forward(self, inputs, initial_states, sequence_length)
        # kind.forward calls paddle.full, which takes three times as long as _C_ops.full.
        sequences = shape[1 if self.time_major else 0]
        sizes = [self.num_layers * self.num_directions, sequences, self.hidden_size]
        zeros = sizes, 0.0, inputs.dtype, place()
        return kernel(self, inputs, [full(*zeros) for _ in range(self.state_components)], None)

    def forward(
        self: Any, inputs: Any, initial_states: Any = None, sequence_length: Any = None
    ) -> Any:
        return run(self, inputs, initial_states, sequence_length)

    members: dict[str, Any] = {"_cudnn_impl": hide_from_tracer(kernel)}
    if kind.forward is paddle.nn.layer.rnn.RNNBase.forward:
        members = {"_cudnn_impl": kernel, "forward": paddle.jit.not_to_static(forward)}
    return derive(kind, chosen, **members)
