"""Makes onernn run the recurrent layers in PyTorch's modules, by `optimize`."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, update_wrapper
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from operator import is_
from types import FunctionType
from typing import Any, TypedDict, Unpack
from weakref import finalize

import numpy as np
import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import profiler
from torch.compiler import is_compiling, is_exporting
from torch.nn.utils.rnn import PackedSequence

from onernn.adapters.common import gain
from onernn.adapters.common.live import (
    NOT_CALLED,
    NOT_SEEN,
    derive,
    original,
    stays,
    warn_of_left,
)
from onernn.adapters.common.plugins import DISABLED, plugins_enabled, still_enabled
from onernn.adapters.torch import live_layer
from onernn.adapters.torch.custom_operator import (
    Tracing,
    forget_compiled,
    may_trace,
    ran_compiled,
    run_traced,
)
from onernn.adapters.torch.live_layer import (
    DTYPES,
    Batch,
    Left,
    LiveModule,
    arguments_of,
    as_packed,
    count_weights,
    follower,
    reshape_batch,
    spec_of,
    state_shapes,
)
from onernn.ir.errors import OnernnError, Refusal, UnsupportedError
from onernn.ir.ragged import offsets_of

# Lets torch.compile trace through replaced modules.

_BUILDER = "torch._dynamo.variables.builder"


class _Awaited(MetaPathFinder):
    """An import hook that calls a function after a certain module is imported."""

    def __init__(self, name: str, then: Callable[[Any], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)  # asks the other import hooks
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def run(module: Any) -> None:
                execute(module)
                self._then(module)

            spec.loader.exec_module = run  # type: ignore[method-assign]
        return spec


def trace_through(may_trace: Callable[[Any, Any], bool]) -> None:
    """Makes torch.compile trace recurrent modules for which ``may_trace(module, tracer)`` is true.

    By default, torch.compile breaks graphs at nn.RNN, LSTM and GRU, because it would unroll their
    steps (torch._dynamo.config.allow_rnn). onernn's modules are one operator each. Importing the
    tracer takes seconds, so the patch is applied at the first torch.compile.
    """

    def patch(builder: Any) -> None:
        kind, config = builder.VariableBuilder, builder.config
        wrap = kind.wrap_module

        def wrap_module(self: Any, value: Any) -> Any:
            if not may_trace(value, self.tx):
                return wrap(self, value)
            with config.patch(allow_rnn=True):
                return wrap(self, value)

        kind.wrap_module = wrap_module

    if _BUILDER in sys.modules:
        patch(sys.modules[_BUILDER])
    else:
        sys.meta_path.insert(0, _Awaited(_BUILDER, patch))


# The dtypes of results under torch.autocast equal the dtypes of PyTorch's own modules.


def types_of_results(
    module: Any, live: LiveModule, batch: Batch, given: Sequence[torch.dtype], records: bool
) -> list[torch.dtype]:
    """Returns the dtypes of y and of the final states under autocast; [] if PyTorch raises an
    error.

    PyTorch's own module runs on zeros to find the dtypes, because they depend on the kernel and are
    not documented. ``given``: the dtypes of x and of the initial states.
    """
    sizes: tuple[int, ...] = (1,)
    if batch.begin is not None:
        counts = batch.begin[1:] - batch.begin[:-1]
        sizes = (2, 1) if (counts != counts[0]).any() else (1,)
    is_packed = batch.begin is not None
    key = is_packed, sizes, *given, torch.is_grad_enabled(), records
    if key not in live.types:
        x: Any = torch.zeros(sum(sizes), live.spec.input_size, dtype=given[0])
        x = PackedSequence(x, torch.tensor(sizes)) if is_packed else x[None]
        shapes = zip(live.state_shapes(sizes[0]), given[1:], strict=False)
        states = tuple([torch.zeros(shape, dtype=dtype) for shape, dtype in shapes])
        hx = states if len(states) > 1 else states[0] if states else None
        with torch.random.fork_rng([]):
            try:
                y, last = theirs(module).forward(module, x, hx)
                ends = last if isinstance(last, tuple) else (last,)
                live.types[key] = [each.dtype for each in (y.data, *ends)]
            except RuntimeError:
                live.types[key] = []
    return live.types[key]


# PyTorch's recurrent modules, whose calls onernn runs and whose class interface stays the same.

STACKS = (nn.RNN, nn.LSTM, nn.GRU)
CELLS = (nn.RNNCell, nn.LSTMCell, nn.GRUCell)
_NAMES = [kind.__name__ for kind in STACKS + CELLS]

_KINDS = ("rnn_tanh", "rnn_relu", "lstm", "gru")
_OPERATORS = [f"aten::{name}{end}" for name in _KINDS for end in ("", "_cell")]
_CELL_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
_OPTIONS = (
    *("mode", "nonlinearity", "input_size", "hidden_size"),
    *("num_layers", "bidirectional", "proj_size", "bias"),
)

_CALLED = (
    *("forward", "__call__", "check_forward_args", "check_input", "check_hidden_size"),
    *("get_expected_hidden_size", "permute_hidden", "_update_flat_weights"),
)
"""Methods that onernn replaces or relies on: a module that overrides one stays with PyTorch."""

_LIVE: dict[int, LiveModule] = {}
"""The live layers, by the ids of modules, as long as the modules exist."""


def theirs(module: nn.Module) -> Any:
    """Returns PyTorch's class of a module, also if onernn replaced the class."""
    return original(type(module))


def is_ours(module: nn.Module) -> bool:
    return theirs(module) is not type(module)


def is_recurrent(module: nn.Module) -> bool:
    return isinstance(module, STACKS + CELLS)


_QUANTIZED = "torch.ao quantizes it: optimize the float module with dtype='int8-dynamic'"
_EXPORTED = (
    "torch.export turned it into operators: optimize the module before the export, or run the file"
    " of torch.export.save in onernn.Session"
)


def _is_quantized(module: nn.Module) -> bool:
    return any(
        kind.__module__.startswith("torch.ao.nn.") and kind.__name__ in _NAMES
        for kind in type(module).__mro__
    )


def obstacle(module: nn.Module) -> str:
    """Returns why a recurrent module stays with PyTorch, or "" if onernn can replace its class."""
    if isinstance(module, torch.jit.ScriptModule):
        return (
            "TorchScript has compiled it: optimize the module before torch.jit, or run the file of"
            " torch.onnx.export(..., dynamo=False) in onernn.Session"
        )
    if not is_recurrent(module):
        return _QUANTIZED if _is_quantized(module) else _EXPORTED
    kind = theirs(module)
    own = next(base for base in STACKS + CELLS if issubclass(kind, base))
    for name in _CALLED:
        if getattr(kind, name, None) is not getattr(own, name, None) or name in vars(module):
            return f"{name}: expected torch.nn.{own.__name__}.{name}, got a different function"
    if not (module.input_size and module.hidden_size):
        return "input_size and hidden_size: expected 1 or more"
    return ""


def live_of(module: nn.Module) -> LiveModule:
    """Returns the live layer of a module; a copy of the module has its own live layer."""
    result = _LIVE.get(id(module))
    options = [*map(module.__dict__.get, _OPTIONS)]  # a program may change them
    if result is None or result.module_options != options:
        kind: Any = type(module)
        names = _CELL_NAMES[: 4 if module.bias else 2]
        if isinstance(module, nn.RNNBase):
            names = tuple(module._flat_weights_names)
            if len(names) != count_weights(module):
                names = ()  # of other options: `_weights` leaves the call to PyTorch
        is_cell, frozen = isinstance(module, CELLS), kind.onernn_frozen
        result = LiveModule(
            spec_of(module), names, kind.onernn_options, is_cell=is_cell, frozen=frozen
        )
        result.module_options = options
        _LIVE[id(module)] = result
        finalize(module, _LIVE.pop, id(module), None).atexit = False
    return result


def why_theirs() -> str:
    """Returns why PyTorch runs all calls at present, or "" if onernn may run them."""
    if not still_enabled():
        return DISABLED
    if reason := follower():
        return reason
    if torch.is_autocast_enabled("cpu"):
        if (low := torch.get_autocast_dtype("cpu")) is not torch.bfloat16:
            return f"autocast to {low}"
    return ""


def _weights(module: Any, names: Sequence[str]) -> Sequence[Tensor]:
    own = module._parameters
    if not names:
        raise Left("num_layers, bidirectional or bias changed: they do not fit the weights")
    try:
        weights = [own[name] for name in names]
        flat = getattr(module, "_flat_weights", weights)  # a program may write to this list
        if not all(map(is_, weights, flat)):
            module._update_flat_weights()
            weights = module._flat_weights
    except KeyError:  # weight_norm and parametrizations compute weights
        weights = [getattr(module, name, None) for name in names]
    for weight in weights:
        if weight is None:  # PyTorch still uses the deleted weight
            raise Left("a weight was deleted, expected all weights")
    return weights


_UNSEEN: AbstractContextManager[Any] = nullcontext()


def _run(module: Any, live: LiveModule, inputs: Any, hx: Any) -> Any:
    """Returns the module's result. Raises `Left` or `UnsupportedError` for calls that PyTorch must
    run.
    """
    first = getattr(module, "batch_first", False)
    batch, states, shapes, given = arguments_of(live, inputs, hx, first)
    weights, dtype, types = _weights(module, live.names), live.dtype, list[torch.dtype]()
    records, drawn = torch.is_grad_enabled(), 0.0
    records = records and any([each.requires_grad for each in (batch.x, *states, *weights)])
    if live.is_cell and records:
        raise Left(STEP)
    if low := torch.is_autocast_enabled("cpu"):
        if live.is_cell:
            raise Left("PyTorch runs single steps under autocast")
        dtype, types = "bf16", types_of_results(module, live, batch, given, records)
        if not types:
            raise Left("autocast refuses to mix the dtypes of x, states and weights")
    if not live.is_cell and module.training and module.num_layers > 1:
        drawn = module.dropout
    event = _UNSEEN
    if profiler._is_profiler_enabled:
        event = profiler.record_function(f"onernn::{theirs(module).__name__}")
    with event:
        if records:
            states = reshape_batch(states, live.state_shapes(batch.sequences)[: len(states)])
            y, ends = live_layer.run_recorded(live, dtype, weights, batch, states, drawn)
            ends = reshape_batch(ends, shapes)
        else:
            y, ends = live.run(dtype, weights, batch, states, shapes, drawn)
    if low:
        y, *ends = [tensor.to(to) for tensor, to in zip((y, *ends), types, strict=True)]
    if batch.back is not None:
        ends = [end.index_select(1, batch.back) for end in ends]
    last = tuple(ends) if len(ends) > 1 else ends[0]
    return last if live.is_cell else (batch.whole(y), last)


def _run_theirs(kind: Any, module: Any, input: Any, hx: Any) -> Any:
    """Returns the result of PyTorch's module, or raises its error.

    Packs lists of sequences and nested tensors, which PyTorch's modules do not accept.
    """
    is_nested = isinstance(input, Tensor) and input.layout is torch.jagged
    if isinstance(module, CELLS) or not (is_nested or isinstance(input, list)):
        return kind.forward(module, input, hx)
    sequences = list(input.unbind() if is_nested else input)
    x, lengths = torch.cat(sequences), [len(sequence) for sequence in sequences]
    module.check_input(x, lengths)  # PyTorch's packed LSTM does not check the width of x
    spec = live_of(module).spec
    shapes = state_shapes(spec, len(lengths))
    if hx is None:
        states = [x.new_zeros(shape) for shape in shapes]
    else:
        states = [hx] if len(shapes) == 1 else hx
    for state, shape in zip(states, shapes, strict=True):
        module.check_hidden_size(state, shape)

    def run(x: Tensor, sizes: Tensor, states: Any) -> Any:
        hx = tuple(states) if len(states) > 1 else states[0]
        y, last = kind.forward(module, PackedSequence(x, sizes), hx)
        return y.data, *(last if isinstance(last, tuple) else (last,))

    if len(x):
        y, *ends = as_packed(x, offsets_of(np.array(lengths, np.int64)), states, run)
    else:
        y, ends = x.new_empty(0, spec.output_size), [state.clone() for state in states]
    last = tuple(ends) if len(ends) > 1 else ends[0]
    if is_nested:
        return torch.nested.nested_tensor_from_jagged(y, input.offsets()), last
    return list(y.unsafe_split_with_sizes(lengths)), last


_OFF = "; for inference use torch.no_grad() or torch.inference_mode()"
STEP = f"gradients are on, and PyTorch is faster at the gradients of a single step{_OFF}"
FEW = f"gradients are on, and PyTorch trains batches of this size faster{_OFF}"
LARGE = "PyTorch is faster at so few steps of a layer this large, unless optimize(frozen=True)"


def _why_left(module: Any, live: LiveModule, input: Any, trains: bool) -> str:
    """Returns why a call is faster in PyTorch, or "" if onernn may run it.

    For a call that stays with PyTorch, this check is the only overhead: about a microsecond.
    """
    is_packed = type(input) is PackedSequence
    x = input.data if is_packed else input
    if type(x) is not Tensor:
        return ""
    if x.dtype is not torch.float32 and not torch.is_autocast_enabled("cpu"):
        return f"x is {x.dtype}, expected float32; PyTorch is as fast in other types"
    if trains and not x.requires_grad:
        trains = any([w is not None and w.requires_grad for w in module._parameters.values()])
    if not trains:
        words = x.numel() // live.spec.input_size if live.is_large else 1
        is_left = live.is_large and not gain.is_faster(
            live.predicted, 1, words, live.spec.hidden_size
        )
        return LARGE if is_left else ""
    if live.is_cell:
        return STEP
    shape = x.shape
    words = steps = shape[0]
    if is_packed:
        steps = len(input.batch_sizes)
    elif len(shape) == 3:
        words, steps = words * shape[1], shape[module.batch_first]
    sizes = steps, words // (steps or 1), live.spec.hidden_size
    return "" if gain.is_faster(live.trained[is_packed], *sizes) else FEW


def call(kind: Any, module: Any, input: Any, hx: Any) -> Any:
    """Runs a module's call outside of compiled graphs, in onernn or in PyTorch's class ``kind``."""
    live, trains = live_of(module), torch.is_grad_enabled()
    reason = _why_left(module, live, input, trains) or why_theirs()
    if not reason:
        try:
            return _run(module, live, input, hx)
        except (Left, OnernnError) as error:
            reason = str(error)
    result = _run_theirs(kind, module, input, hx)  # raises PyTorch's own errors
    if reason not in live.reasons:
        if not why_theirs():  # a temporary reason needs no warning
            warn_of_left(HOST, [Refusal(reason, type(module).__name__)])
        live.reasons[reason] = None
    return result


_outside = call
"""The function `call`. The first use of torch.compile replaces it by a wrapper that is not
traced.
"""


def call_any(kind: Any, module: Any, input: Any, hx: Any) -> Any:
    """Runs a module's call, also while torch.compile or torch.export traces it.

    If the traced graph cannot contain the call, the graph breaks, as at each call of PyTorch's own
    modules.
    """
    if not is_compiling():
        return _outside(kind, module, input, hx)
    if is_exporting() or isinstance(module, CELLS):  # exported files must load without onernn
        return kind.forward(module, input, hx)
    result = run_traced(module, input, hx)
    return _outside(kind, module, input, hx) if result is None else result


@cache
def ours(kind: Any, dtype: str, frozen: bool = False) -> type:
    """Returns a subclass of ``kind`` whose calls onernn runs."""
    run = call_any

    def forward(self: Any, input: Any, hx: Any = None) -> Any:
        return run(kind, self, input, hx)

    # torch.jit.script compiles kind.forward, which forward wraps, with the globals of kind.forward.
    forward = FunctionType(
        forward.__code__, kind.forward.__globals__, "forward", (None,), forward.__closure__
    )

    def __deepcopy__(self: Any, memo: dict[int, Any]) -> Any:
        if hasattr(kind, "__deepcopy__"):  # defined by a parametrization or a user's class
            module = kind.__deepcopy__(self, memo)
            _CLASS.__set__(module, own)
        else:
            module = memo[id(self)] = own.__new__(own)
            module.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return module

    def __copy__(self: Any) -> Any:
        module = copy.copy(as_theirs(self))
        _CLASS.__set__(module, own)
        return module

    def __reduce_ex__(self: Any, protocol: Any) -> Any:  # saved files must load without onernn
        return as_theirs(self).__reduce_ex__(protocol)

    def set_class(self: Any, new: type) -> None:  # parametrizations change the class
        _CLASS.__set__(self, ours(new, dtype, frozen) if original(new) is new else new)

    own: Any = derive(
        kind,
        dtype,
        _Alike if type(kind) is type and issubclass(kind, STACKS) else type,
        forward=update_wrapper(forward, kind.forward),
        onernn_frozen=frozen,
        __class__=property(lambda _: kind, set_class),
        __copy__=__copy__,
        __deepcopy__=__deepcopy__,
        __reduce_ex__=__reduce_ex__,
        __jit_unused_properties__=[*getattr(kind, "__jit_unused_properties__", ()), "__class__"],
        __module__=kind.__module__,
        __qualname__=kind.__qualname__,
        __doc__=kind.__doc__,
    )
    return own


_CLASS = vars(object)["__class__"]


class _Alike(type):
    """A metaclass that makes a class the same key of dicts and sets as its original.

    quantize_dynamic needs it.
    """

    def __eq__(cls, other: object) -> bool:
        return isinstance(other, type) and original(cls) is original(other)

    def __hash__(cls) -> int:
        return hash(original(cls))


def as_theirs(module: Any) -> Any:
    """Returns a module of PyTorch's own class that has the same parameters."""
    kind = theirs(module)
    result = kind.__new__(kind)
    result.__dict__.update(module.__dict__)
    return result


def forget(module: nn.Module) -> None:
    """Makes the module's next call pack its parameters again, also in compiled graphs."""
    forget_compiled(module)
    if (live := _LIVE.get(id(module))) is not None:
        live.forget()


# torch.compile(backend="onernn"): onernn runs the recurrent modules, and another backend runs all
# other operators.


def onernn(
    graph: Any, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Returns the function that runs a traced graph.

    ``options={"rest": "inductor"}`` names the torch.compile backend for all other operators; the
    default is "eager". The model's recurrent modules are replaced in place while it is traced.
    """
    from torch._dynamo.backends.registry import lookup_backend

    rest = dict(options or {})
    name = rest.pop("rest", "eager")
    if rest:
        raise UnsupportedError(f"options: expected 'rest' alone, got {', '.join(sorted(rest))}")
    return lookup_backend(name)(graph, inputs)


def _may_trace(module: Any, tracer: Any) -> bool:
    """Returns whether torch.compile may trace the module's calls.

    For the onernn backend, first replaces the module's class.
    """
    global _outside
    compiler = tracer.output.compiler_fn
    while compiler is not None and compiler is not onernn:
        compiler = getattr(compiler, "compiler_fn", None)
    if not is_ours(module):
        if compiler is not onernn or not is_recurrent(module) or obstacle(module):
            return False
        _CLASS.__set__(module, ours(theirs(module), "f32"))
    if _outside is call:
        _outside = torch.compiler.disable(call)
    Tracing.is_whole = tracer.one_graph or getattr(tracer, "error_on_graph_break", False)
    return peek_interpreter_stack() is None and may_trace(module)


trace_through(_may_trace)


# `optimize`, `restore`, `explain` and `refresh`: replace the recurrent modules in a module tree.

HOST = "PyTorch"
_log = logging.getLogger("onernn")


class IpexOptions(TypedDict, total=False):
    """The arguments of intel_extension_for_pytorch.optimize that have no effect in onernn."""

    level: Any
    conv_bn_folding: Any
    linear_bn_folding: Any
    weights_prepack: Any
    replace_dropout_with_identity: Any
    optimize_lstm: Any
    split_master_weight_for_bf16: Any
    fuse_update_step: Any
    auto_kernel_selection: Any
    graph_mode: Any
    concat_linear: Any


def optimize(
    module: nn.Module,
    dtype: Any = None,
    *,
    inplace: bool = False,
    frozen: bool = False,
    example_inputs: Any = None,
    sample_input: Any = None,
    optimizer: Any = None,
    **without_effect: Unpack[IpexOptions],
) -> Any:
    """Returns the module, or a copy of it, in which onernn runs nn.RNN, LSTM, GRU and their Cells.

    The recurrent modules remain instances of the same classes, with the same parameters and hooks.
    Parameters may change at any time and in any way (fused optimizers, ``.data``, NumPy views,
    other processes), because each call reads them. If onernn would not return PyTorch's result for
    a call, PyTorch runs it; `explain` lists these calls.

    ``frozen``: whether calls without gradients reuse the packed copy of the parameters that the
    first call makes. Each call is then some microseconds faster, and the packed copy takes as much
    memory as the parameters. Later changes of parameters have an effect only after `refresh`.

    ``dtype``: the dtype to which matrices are rounded before they are multiplied: a dtype of
    PyTorch, "int8-dynamic" or "int8-weights"; None means no rounding. Parameters, inputs and
    results keep their dtypes. ``inplace``: changes the module itself instead of a copy; `restore`
    undoes it. ``example_inputs``: a tuple of arguments; the module is called with it once, so that
    later calls need no preparation. ``optimizer``: an optimizer of the module's parameters. The
    result is then a pair, the module and an optimizer of its parameters, as for
    intel_extension_for_pytorch.optimize. The other arguments of that function are accepted:
    ``sample_input``, a tensor or a tuple, has the effect of ``example_inputs``. All others have no
    effect, which is logged once.

    Raises `UnsupportedError` for a module or dtype that it does not support, and `TypeError` for an
    unknown argument.

    >>> import torch
    >>> from onernn.adapters.torch import optimize
    >>> model = optimize(torch.nn.GRU(2, 3))
    >>> with torch.no_grad():
    ...     y, state = model(torch.ones(4, 1, 2))
    >>> tuple(y.shape)
    (4, 1, 3)
    """
    if unknown := without_effect.keys() - IpexOptions.__annotations__.keys():
        raise TypeError(f"optimize() got an unexpected argument: {', '.join(sorted(unknown))}")
    for name in without_effect:
        _log_without_effect(name)
    if not plugins_enabled():
        _log.info("%s", DISABLED)  # every call checks it again
    if not isinstance(module, nn.Module):
        why = f": {_EXPORTED}" * isinstance(module, torch.export.ExportedProgram)
        raise UnsupportedError(f"expected a torch.nn.Module, got {type(module).__name__}{why}")
    if dtype not in DTYPES:
        dtypes = ", ".join(map(str, DTYPES))
        raise UnsupportedError(f"dtype {dtype}: expected one of {dtypes}")
    try:  # one deepcopy: the optimizer must refer to the copied parameters
        whole, trainer = (module, optimizer) if inplace else copy.deepcopy((module, optimizer))
    except RuntimeError as error:  # for example a pruned or exported module
        error.add_note("optimize(..., inplace=True) makes no copy")
        raise
    result, refusals = [*_recurrent(whole)], []
    for name, layer in result:
        if reason := obstacle(layer):
            refusals.append(Refusal(reason, name))
        else:
            forget(layer)
            _LIVE.pop(id(layer), None)  # it has the dtype of an earlier call of optimize
            _CLASS.__set__(layer, ours(theirs(layer), DTYPES[dtype], frozen))
    warn_of_left(HOST, refusals)
    if not result:
        _log.warning("%s holds no recurrent modules: nothing changes", type(module).__name__)
    inputs = sample_input if example_inputs is None else example_inputs
    if inputs is not None:
        with torch.no_grad():
            whole(*([inputs] if isinstance(inputs, Tensor) else inputs))
    return whole if optimizer is None else (whole, trainer)


@cache
def _log_without_effect(name: str) -> None:
    _log.warning("%s of intel_extension_for_pytorch.optimize changes nothing in onernn", name)


def restore(module: nn.Module) -> nn.Module:
    """Returns the module; from now on, PyTorch runs its recurrent modules again.

    >>> import torch
    >>> from onernn.adapters.torch import explain, optimize, restore
    >>> model = optimize(torch.nn.GRU(2, 3))
    >>> "PyTorch" in explain(restore(model))
    True
    """
    for child in module.modules():
        if is_ours(child):
            forget(child)
            _CLASS.__set__(child, theirs(child))
    return module


def explain(module: nn.Module) -> str:
    """Returns a line for each recurrent module: the kernel that runs it, or why it stays with
    PyTorch.

    >>> import torch
    >>> from onernn.adapters.torch import explain, optimize
    >>> model = optimize(torch.nn.GRU(2, 3))
    >>> "onernn" in explain(model)
    True
    """
    lines = list[str]()
    for name, layer in _recurrent(module):
        reasons = [obstacle(layer) or NOT_SEEN]
        if is_ours(layer):
            live, now = live_of(layer), why_theirs()
            reasons = [*live.reasons, *[now] * bool(now)]
            if (ran := live.explain() or ran_compiled(layer)) or not reasons:
                lines.append(f"{name}: onernn: {ran or f'{live.dtype}, {NOT_CALLED}'}")
        lines += [stays(HOST, Refusal(reason, name)) for reason in dict.fromkeys(reasons)]
    return "\n".join(lines) or "no recurrent modules"


def _recurrent(whole: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yields the recurrent modules of a tree and their names, including compiled and quantized
    ones.

    torch.jit.freeze and torch.export replace modules by operators; then the module that contains a
    recurrent operator is yielded.
    """
    parts = set[nn.Module]()
    for name, child in whole.named_modules():
        operators, is_compiled = list[str](), isinstance(child, torch.jit.ScriptModule)
        if is_recurrent(child) or is_compiled and child.original_name in _NAMES:
            yield name or type(child).__name__, child
        elif _is_quantized(child) and child not in parts:
            parts.update(child.modules())
            yield name or type(child).__name__, child
        elif is_compiled and hasattr(child, "forward"):
            nodes = [node for kind in _OPERATORS for node in child.graph.findAllNodes(kind)]
            operators = [node.kind() for node in nodes]
        elif isinstance(graph := getattr(child, "graph", None), torch.fx.Graph):
            schemas = [getattr(node.target, "_schema", None) for node in graph.nodes]
            operators = [each.name for each in schemas if each and each.name in _OPERATORS]
        for operator in operators:
            yield f"{name} {operator}".strip(), child


def refresh(module: nn.Module) -> None:
    """Makes frozen modules pack their parameters again at the next call; see `optimize`.

    Other modules do not need it, because each of their calls reads the parameters.

    >>> import torch
    >>> from onernn.adapters.torch import optimize, refresh
    >>> model = optimize(torch.nn.GRU(2, 3), frozen=True)
    >>> with torch.no_grad():
    ...     before = model(torch.ones(4, 1, 2))[0]
    ...     _ = model.weight_ih_l0.zero_()
    ...     refresh(model)
    ...     after = model(torch.ones(4, 1, 2))[0]
    >>> bool((before == after).all())
    False
    """
    for child in module.modules():
        if is_ours(child):
            forget(child)
