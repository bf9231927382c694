"""The form in which rules read a call of a Keras layer, the table of rules, and the loop over a
model's calls.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.common.caller_rules import CallerRule, find_caller
from onernn.adapters.common.files import pairs
from onernn.adapters.common.lowering import (
    PASS_RULE,
    FoldingBudget,
    GraphBuilder,
    LoweringStep,
    NativeOperator,
    Output,
    Results,
    Rules,
    UnknownTypeError,
    lower_steps,
)
from onernn.adapters.common.signatures import Signature, Tensor, refuse
from onernn.adapters.keras.read import (
    MODELS,
    Call,
    Layer,
    Model,
    Network,
    Ref,
    Weights,
    has_unsorted_keys,
    inner_layer,
    network,
)
from onernn.ir.arrays import Array
from onernn.ir.errors import ModelFormatError, UnsupportedError
from onernn.ir.graph import NativeOp, Value

INERT = frozenset(
    """name trainable dtype seed dropout recurrent_dropout rate noise_shape stddev momentum
    unit_forget_bias implementation use_cudnn input_length input_dim autocast batch_input_shape
    batch_shape input_shape activity_regularizer synchronized fused l1 l2""".split()
)
"""Options that do not change results, because they affect only training, or how the same results
are computed.
"""
_CODE = "function function_type module output_shape output_shape_type output_shape_module".split()
"""Options of a Lambda layer that hold its code; a caller's rule replaces the code."""
_ENDINGS = ("_initializer", "_regularizer", "_constraint")


FIX_SIZE = "; build the model with a fixed size, such as keras.Input((10, 8))"
"""The advice at the end of messages about an unknown size."""


class Held(NamedTuple):
    """A value and the mask of its steps (N, T), "" without a mask.

    ``words``: a ragged batch of the unmasked steps, "" if the previous layer made none. ``behind``:
    the variable that cannot be computed and on which the value depends, "" if there is none.
    """

    value: str
    mask: str = ""
    words: str = ""
    behind: str = ""


class KerasTensor(Tensor):
    """A tensor in a rule for a Keras layer, with its mask; see `Held`.

    ``settled``: whether the tensor has a mask, or a rule has set or dropped its mask.
    """

    def __init__(self, op: Any, name: str, mask: str = "", words: str = "") -> None:
        super().__init__(op, name)
        self.mask, self.words, self.settled = mask, words, bool(mask)

    @classmethod
    def of(cls, op: Any, slot: str) -> list[Any]:
        """Returns the tensors of a layer's call: one tensor, or all for the slot "tensors"."""
        result = op.tensors
        if slot != "tensors" and len(result) != 1:
            refuse(f"expected to be called with one tensor, got {len(result)}")
        return result

    @property
    def flags(self) -> KerasTensor | None:
        """The mask, or None."""
        return self.new(self.mask) if self.mask else None

    @property
    def step_flags(self) -> KerasTensor | None:
        """Returns the mask (N, T), or None. Raises `UnsupportedError` for any further axis."""
        flags = self.flags
        if flags and flags.rank != 2:
            refuse(f"its input has a mask of {flags.rank} axes: expected (N, T)")
        return flags

    @property
    def floats(self) -> KerasTensor:
        """The value, cast to the layer's float type unless it is a float already."""
        return self if self.dtype.kind == "f" else self.cast(self.op.compute)

    @property
    def checked_floats(self) -> KerasTensor:
        """The value. Raises `UnsupportedError` for integers, if Keras returns integers for them."""
        return (
            self
            if self.dtype.kind == "f"
            else refuse(f"expected floats, got {self.dtype}; cast them first")
        )

    @property
    def held(self) -> Held:
        return Held(self.name, self.mask, self.words)

    def under(self, mask: Tensor | None, words: str = "") -> KerasTensor:
        """Returns the value with this mask; None means that the value then has no mask."""
        result = KerasTensor(self.op, self.name, mask.name if mask else "", words)
        result.settled = True
        return result

    def cast(self, dtype: Any) -> Any:
        result = super().cast(dtype)
        return result if result is self else KerasTensor(self.op, result.name, self.mask)


class KerasLayer(NativeOperator):
    """A call of a Keras layer as a rule reads it, and the graph into which it is lowered.

    ``reader``: the reader of the layer's weights. ``compute``: the dtype in which the layer
    computes. ``version``: (major, minor) of the Keras that wrote the file. ``masked_by_call``:
    whether the call itself names a mask. ``path``: the names of the ``depth`` models that contain
    the layer, then the layer's name. ``wraps``: whether a different layer, not `read`, checks that
    all weights were used. ``masked``: whether an input has a mask. ``count``: the number of outputs
    that the model reads.
    """

    def __init__(
        self,
        lowering: Lowering,
        layer: Layer,
        reader: Weights | None,
        arguments: Sequence[Any] = (),
        options: Mapping[str, Any] | None = None,
        path: str = "",
        depth: int = 0,
        count: int = 1,
    ) -> None:
        config = {k: v for k, v in layer.config.items() if v is not None}
        options = {k: v for k, v in (options or {}).items() if v is not None}
        if options.pop("training", False):
            refuse("called with training=True: expected False; build the model without it")
        mask = options.pop("mask", None)
        named = {f"{name}=": value for name, value in options.items()}
        inert = INERT | {name for name in config if name.endswith(_ENDINGS)}
        at = NativeOp(layer.position, layer.kind, path or layer.name)
        outputs = {str(k): () for k in range(count)}
        super().__init__(lowering.builder, at, {}, outputs, {**config, **named}, inert, layer.name)
        self.lowering, self.layer, self.config = lowering, layer, layer.config
        self.version, self.major = lowering.version, lowering.version[0]
        self.masked_by_call, self.options = bool(mask), options
        self.path, self.depth, self.wraps, self.masked = path, depth, False, False
        self._variables: list[tuple[Array, str]] = []
        self._reader, self.arguments = reader, list(arguments)
        # The dtype option of a function is the dtype of its result.
        plain = layer.is_operation or layer.function
        self.compute = _compute_dtype(None if plain else layer.config.get("dtype"))
        if mask:
            self.arguments[0] = self._under(self.arguments[0], mask)

    # The arguments of the call.

    @cached_property
    def tensors(self) -> list[KerasTensor]:
        """The tensors of the first argument if that is a list, else all arguments."""
        arguments = self.arguments
        if len(arguments) == 1 and isinstance(arguments[0], list):
            arguments = arguments[0]
        return self.bind(arguments)

    def bind(self, arguments: Sequence[Any]) -> list[KerasTensor]:
        """Returns tensors; floats are cast to the type that the layer computes in."""
        if not all(isinstance(each, Held) for each in arguments):
            refuse("expected to be called with tensors, or with one list of tensors")
        tensors = [KerasTensor(self, *each[:3]) for each in arguments]
        self.masked = self.masked or any(each.mask for each in tensors)
        floats = [str(each.type.dtype).startswith("float") for each in tensors]
        return [x.cast(self.compute) if f else x for x, f in zip(tensors, floats, strict=True)]

    def _under(self, result: Any, mask: Any) -> Any:
        if isinstance(result, list):
            masks = mask if isinstance(mask, list) else [mask]
            both = zip_longest(result, masks)
            return [self._under(*pair) if pair[1] else pair[0] for pair in both]
        if not isinstance(result, Held) or not isinstance(mask, Held):
            refuse("argument mask: expected a tensor for each tensor")
        flags = KerasTensor(self, mask.value).cast(bool).name
        return result._replace(mask=flags, words=result.words if flags == result.mask else "")

    def option(self, name: str) -> Any:
        """Returns an argument of the call, None if it is absent."""
        return self.attribute(f"{name}=", None)

    # The layer's options and weights.

    def number(self, name: str, default: float) -> float:
        """Returns a number, which Keras 3 may write as an array of one element."""
        result = self.attribute(name, None)
        if isinstance(result, dict) and isinstance(result.get("config"), dict):
            result = result["config"].get("value")
        if result is None:
            return default
        if not isinstance(result, int | float):
            raise UnsupportedError(f"attribute {name}={result!r:.100}: expected a number")
        return float(result)

    def keyword(self, name: str, default: Any) -> Any:
        if isinstance(default, float):
            return self.number(name, default)
        return self.attribute(name, default)

    def inner(self, config: Mapping[str, Any], *path: str) -> KerasLayer:
        """Returns an inner layer with its weights. It has no call of its own."""
        layer = inner_layer(config, None, position=self.layer.position)
        reader = self._reader
        for name in path:
            reader = reader and reader.inside(name)
        made = KerasLayer(self.lowering, layer, reader)
        made.wraps = True
        return made

    def weights(self, *names: str, inside: str = "") -> list[Array]:
        """Returns the layer's own variables, or its cell's variables, in the type that it computes
        in.
        """
        if self._reader is None:
            raise UnsupportedError("its weights are not in the file; build the model, then save it")
        result = (self._reader.inside(inside) if inside else self._reader).take(names)
        for name, array in zip(names, result, strict=True):
            if array.dtype.name not in ("float32", "float64"):
                raise UnsupportedError(f"{name}: expected float32 or float64, got {array.dtype}")
        arrays = [array.astype(self.compute, copy=False) for array in result]
        self._variables += zip(arrays, names, strict=True)
        return arrays

    def constant(self, array: Any, label: str = "constant") -> str:
        """Returns a constant value. A constant from a variable of the layer gets the variable's
        name.
        """
        label = next(
            (name for each, name in self._variables if np.may_share_memory(each, array)), label
        )
        return super().constant(array, label)

    def read(self, rule: Signature | CallerRule) -> Any:
        """Returns the results of a rule. Raises `UnsupportedError` for options that the rule did
        not read.
        """
        result = self.run_rule(lambda op: rule.call(op)[1])
        if self._reader is not None and not self.wraps:
            self._reader.finish()
        return result

    def miscounted(self, count: int) -> str:
        read = len(self.outputs)
        return "" if count >= read else f"the model reads {read}"

    def read_callers(self, rule: CallerRule) -> list[KerasTensor]:
        """Returns the results of a caller's rule.

        Raises the same errors as `read`. Also raises `UnsupportedError` if an input has a mask and
        the rule does not set the mask of an output, because the file does not state whether the
        class passes masks on.
        """
        if self.layer.kind == "Lambda":
            self.ignore(*_CODE)
        with rule.naming():
            result = self.read(rule)
            tensors = [*result] if isinstance(result, tuple) else [result]
            if self.masked and not all(each is None or each.settled for each in tensors):
                refuse(
                    "an input has a mask: return y.under(x.flags) to pass it on, or y.under(None)"
                    " to drop it"
                )
        return tensors


class Stated(NamedTuple):
    """An option in which None has its own meaning, different from an absent option."""

    default: Any

    def read(self, op: KerasLayer, name: str) -> Any:
        op.ignore(name)
        return op.config.get(name, self.default)


def _compute_dtype(policy: Any) -> str:
    """Returns the dtype in which a layer with this dtype or dtype policy computes. Raises
    `UnsupportedError` for dtypes other than floats.
    """
    name = policy
    if isinstance(policy, dict) and isinstance(policy.get("config"), dict):
        name = policy["config"].get("name")
    if name is None:
        return "float32"
    if name not in ("float32", "float64"):
        expected = "expected float32 or float64; build the model with the dtype policy float32"
        raise UnsupportedError(f"dtype {name!r:.100}: {expected}")
    return str(name)


class Function(Signature):
    """A rule whose parameters come from a function's call and from its configuration.

    Arguments are tensors, numbers, lists and slices from the file. ``names``: the rule's parameters
    by their names in the file.
    """

    def __init__(self, rule: Callable[..., Any], names: Mapping[str, str] | None = None) -> None:
        super().__init__(rule, {}, KerasTensor)
        self.names = names or {}

    def call(self, op: Any) -> tuple[list[Any], Any]:
        """Returns the arguments and the results of the rule. Raises `UnsupportedError` for an
        unknown argument.
        """
        op.ignore(*op.attributes)
        config = {} if op.layer.function else op.config
        named = {self.names.get(name, name): each for name, each in op.options.items()} | config
        known = {each.name for each in self.parameters}  # their values may be None
        named = {
            name: _value(op, each)
            for name, each in named.items()
            if name != "name" and (each is not None or name in known)
        }
        arguments = [_value(op, each) for each in op.arguments]
        if any(each.name == "op" for each in self.parameters):
            named["op"] = op
        try:
            bound = inspect.signature(self.rule).bind(*arguments, **named)
        except TypeError as error:
            refuse(f"not understood: {error}")
        return arguments, self.rule(*bound.args, **bound.kwargs)


def _value(op: KerasLayer, argument: Any) -> Any:
    """Returns an argument of a function; constant tensors become constants of the graph."""
    match argument:
        case Held():
            return KerasTensor(op, *argument[:3])
        case list():
            return [_value(op, each) for each in argument]
        case slice():
            return slice(*(_value(op, getattr(argument, name)) for name in _BOUNDS))
        case {"class_name": "__tensor__" | "__numpy__", "config": {"value": value, "dtype": dtype}}:
            if dtype not in _DTYPES:
                refuse(f"constant: expected one of {', '.join(_DTYPES)}, got {dtype!r:.100}")
            return KerasTensor(op, op.constant(np.asarray(value, dtype)))
    return argument


_BOUNDS = ("start", "stop", "step")


class KerasSignature(Signature):
    """The signature of a caller's rule, whose positional parameters are the tensors of a call in
    order.
    """

    def bind(self, op: Any) -> tuple[list[Any], dict[str, Any]]:
        count, most = len(op.tensors), len(self.slots)
        if count > most and not self.rest:
            refuse(f"expected the tensors {', '.join(self.slots) or 'none'}, got {count}")
        return super().bind(op)

    def _values(self, op: Any, slot: str) -> list[Any]:
        at = (*self.slots, self.rest).index(slot)
        tensors: list[Any] = op.tensors[at:]
        return tensors if slot == self.rest else tensors[:1]


RULES = Rules[Signature]()
"""Rules by the name of the class."""
function = OPERATIONS = Rules[Signature](Function)
"""Rules of functions of ``keras.ops``, which Keras 3 lists among layers, by the name of the class;
see `Function`.
"""
tensorflow = TENSORFLOW = Rules[Signature](Function)
"""Rules of functions that Keras 2 lists as layers of their own class, by TensorFlow's names; see
`Function`.
"""
PASSING: set[str] = set()
"""Layers that pass on the mask of their first input; other layers drop it."""


def keras(kinds: str, *, masks: bool = False, **only: Any) -> Any:
    """Returns a decorator that adds a rule for layers; its keywords are keys of a layer's
    configuration, see `Signature`.

    ``masks``: whether the layer passes on the mask of its input.
    """
    PASSING.update(kinds.split() if masks else ())
    return RULES(kinds, lambda rule: Signature(rule, only, KerasTensor))


def functions(table: str) -> Any:
    """Returns a decorator that adds a family of functions of ``keras.ops`` from a text of
    "class=kind" pairs. The rule's first parameter is the kind.
    """

    def enter(rule: Callable[..., Any]) -> Callable[..., Any]:
        for name, kind in pairs(table).items():
            OPERATIONS(name)(partial(rule, kind))
        return rule

    return enter


def same_in_tensorflow(table: str) -> None:
    """Adds rules of ``keras.ops`` for TensorFlow's functions, from lines "names: kind x=y ...".

    ``x=y``: TensorFlow's x is the parameter y of the rule.
    """
    for line in table.strip().splitlines():
        names, _, kind_and_renames = line.partition(":")
        kind, *renames = kind_and_renames.split()
        make = partial(Function, names=pairs(" ".join(renames)))
        TENSORFLOW(names, make)(OPERATIONS[kind].rule)


_DEEPEST = 32  # levels of models inside models
_MOST_CALLS = 10**5
_DTYPES = "bool uint8 int8 int16 int32 int64 float32 float64".split()


class Lowering:
    """The lowering of a model's calls, including the calls of inner models.

    ``states``: the variables of stateful layers' states after the last call, by name. ``stateful``:
    the configurations of the stateful layers that were called, by their ids. ``tables``: the counts
    of unmasked steps by mask, see `layers.Masked`. ``_behind``: for each variable that cannot be
    computed, the cause: itself, or the variable on which it depends.
    """

    def __init__(self, model: Model) -> None:
        self.file, self.version, self.backend = model.file, model.version, model.backend
        self.builder = GraphBuilder(str(model.file), FoldingBudget())
        self.states: dict[str, str] = {}
        self.tables: dict[str, Any] = {}
        self.stateful: dict[int, Any] = {}
        self._tensors: dict[str, Held] = {}
        self._behind: dict[str, str] = {}
        self._given: set[str] = set()  # values that are outputs
        self._calls = 0

    def input(self, layer: Layer) -> Held:
        """Adds an input of the whole model and returns it."""
        config = layer.config
        shape: Any = config.get("batch_shape") or config.get("batch_input_shape")
        name, dtype = self.builder.fresh(layer.name), config.get("dtype") or "float32"
        if isinstance(dtype, dict):
            dtype = dtype["config"]["name"]
        sizes = isinstance(shape, list) and all(
            size is None or type(size) is int and size > 0 for size in shape
        )
        if dtype in _DTYPES and sizes and not (config.get("sparse") or config.get("ragged")):
            self.builder.input(Value(name, dtype, tuple(shape)))
        else:
            self.builder.refuse(name, f"input {dtype} {shape}: expected dense, of bool or numbers")
            self._behind[f"{layer.name}/0/0"] = f"{layer.name}/0/0"
            name = self.builder.value(name)
        return Held(name)

    def state(self, name: str, shape: tuple[int | None, ...], dtype: str) -> str:
        """Returns the state of a stateful layer: an input of the graph, or the state that the last
        call left.
        """
        if name not in self.states:
            self.builder.input(Value(name, dtype, shape))
            self.states[name] = name
        return self.builder.value(self.states[name])

    def call_stateful(self, layer: Layer) -> None:
        """Records the call of a stateful layer. Refuses a second call, also in a second call of the
        model that contains the layer, because the order of the calls decides the results.
        """
        if id(layer.config) in self.stateful:
            refuse("stateful, and called twice: expected one call, a file does not state the order")
        self.stateful[id(layer.config)] = layer.config

    def keep(self, name: str, value: str) -> None:
        """Records a copy of a state after a call; the copy has its own name."""
        self.states[name] = self.builder.copy(value, f"{name}/next")

    def output(self, value: str, name: str) -> Value:
        """Returns an output of the graph. The value is copied if it has a different name, or is
        already an output or an input.
        """
        builder = self.builder
        taken = value in self._given or any(each.name == value for each in builder.inputs)
        if value != name or taken:
            value = builder.copy(value, builder.fresh(name))
        self._given.add(value)
        return builder.output(value)

    def run(self, net: Network, tensors: Sequence[Held], prefix: str, depth: int) -> list[Held]:
        """Returns the outputs of a network for these inputs. The names of its values begin with
        ``prefix``.
        """
        if depth > _DEEPEST:
            raise UnsupportedError(f"expected at most {_DEEPEST} models inside each other")
        for ref, tensor in zip(net.inputs, tensors, strict=True):
            variable = f"{prefix}{ref.layer}/0/0"
            self.builder.give(variable, tensor.value)
            self._tensors[variable] = tensor
            if tensor.behind:
                self._behind[variable] = tensor.behind
        calls = [*_in_order(net, str(self.file))]
        wanted = defaultdict[tuple[str, int], set[int]](set)
        for ref in chain(net.outputs, *(_refs(layer.calls[at]) for layer, at in calls)):
            wanted[ref.layer, ref.call].add(ref.at)
        steps = [
            self._step(layer, at, prefix, sorted(wanted[layer.name, at]), depth)
            for layer, at in calls
        ]
        kept = [f"{prefix}{r.layer}/{r.call}/{r.at}" for r in net.outputs]
        lower_steps(self.builder, steps, kept)
        return [self._tensor(ref, prefix) for ref in net.outputs]

    def _step(
        self, layer: Layer, at: int, prefix: str, indices: Sequence[int], depth: int
    ) -> LoweringStep:
        call = layer.calls[at]
        own = f"{prefix}{layer.name}/{at}/"
        reads = tuple(f"{prefix}{r.layer}/{r.call}/{r.at}" for r in _refs(call))

        def lower() -> Results:
            arguments = [self._bind(each, prefix) for each in call.args]
            options = {name: self._bind(each, prefix) for name, each in call.kwargs.items()}
            behind = next((self._behind[name] for name in reads if name in self._behind), "")
            count, path = max(indices, default=0) + 1, f"{prefix}{layer.name}"
            try:
                results = self.apply(layer, arguments, options, path, at, depth, count)
            except UnknownTypeError:
                if not behind:
                    raise
                # The type is unknown because of an earlier layer, which is reported already.
                self._behind |= {f"{own}{k}": behind for k in indices}
                return {str(k): self.builder.value(behind) for k in indices}
            self._tensors |= {f"{own}{k}": each for k, each in enumerate(results)}
            for k, each in enumerate(results):
                if behind or each.behind:
                    self._behind[f"{own}{k}"] = each.behind or behind
            return tuple(each.value for each in results)

        def outputs(count: int) -> Iterator[Output]:
            for k in indices:
                if k >= count:
                    self._behind.setdefault(f"{own}{k}", f"{own}{k}")
                yield Output(str(k), f"{own}{k}", prefix + name_of_result(Ref(layer.name, at, k)))

        return LoweringStep(
            NativeOp(layer.position, layer.kind, f"{prefix}{layer.name}"), reads, lower, outputs
        )

    def _tensor(self, ref: Ref, prefix: str) -> Held:
        variable = f"{prefix}{ref.layer}/{ref.call}/{ref.at}"
        known = self._tensors.get(variable, Held(""))
        value = self.builder.value(variable)
        return known._replace(value=value, behind=self._behind.get(variable, ""))

    def _declare(self, ref: Ref, prefix: str) -> None:
        """Declares the type of a value that cannot be computed.

        The type is from the file, so that the layers after an unknown layer can be lowered. If the
        file does not state the shape, the shape stays unknown.
        """
        variable = f"{prefix}{ref.layer}/{ref.call}/{ref.at}"
        value = self.builder.value(variable)
        refused = self._behind.get(variable) == variable
        if refused and self.builder.type_of(value).dtype is None:
            dtype = ref.dtype if ref.dtype in _DTYPES else "float32"
            self.builder.declare(value, Value(value, dtype, ref.shape).type)

    def _bind(self, argument: Any, prefix: str) -> Any:
        if isinstance(argument, Ref):
            self._declare(argument, prefix)
            return self._tensor(argument, prefix)
        if isinstance(argument, slice):
            return slice(*(self._bind(getattr(argument, name), prefix) for name in _BOUNDS))
        if isinstance(argument, list):
            return [self._bind(each, prefix) for each in argument]
        if isinstance(argument, dict):
            return {name: self._bind(each, prefix) for name, each in argument.items()}
        return argument

    def apply(
        self,
        layer: Layer,
        arguments: Sequence[Any],
        options: Mapping[str, Any],
        path: str,
        at: int,
        depth: int,
        count: int = 1,
    ) -> list[Held]:
        """Returns the results of a layer for its arguments; the model reads ``count`` results.

        Raises `UnsupportedError` if the layer cannot be lowered.
        """
        self._calls += 1
        if self._calls > _MOST_CALLS:
            raise UnsupportedError(f"expected at most {_MOST_CALLS} calls of layers, got more")
        rule = (OPERATIONS if layer.is_operation else RULES).get(layer.kind)
        is_known = not layer.foreign and (rule is not None or layer.kind in MODELS)
        callers = find_caller(self.builder.rules, [layer.kind], is_known)
        if layer.kind in MODELS and not layer.foreign and callers is None:
            return self._model(
                layer, arguments, options, f"{path}/" if not at else f"{path}#{at}/", depth
            )
        reader = layer.weights.reader() if layer.weights else None
        op = KerasLayer(self, layer, reader, arguments, options, path, depth, count)
        if callers:
            return [each.held if each else Held("") for each in op.read_callers(callers)]
        rule = TENSORFLOW.get(layer.function) if layer.function else rule
        if layer.foreign or rule is None:
            raise UnsupportedError(_unknown(layer))
        result = op.read(rule)
        if isinstance(result, list):
            return [each.held for each in result]
        if layer.kind in PASSING and not layer.is_operation:
            first = op.tensors[0]
            result = first if result.name == first.name else result.under(first.flags)
        return [result.held]

    def _model(
        self,
        layer: Layer,
        arguments: Sequence[Any],
        options: Mapping[str, Any],
        prefix: str,
        depth: int,
    ) -> list[Held]:
        net = network(layer, self.version[0])
        unsorted = self.version[0] > 2 and has_unsorted_keys(layer.config.get("output_layers"))
        if unsorted and self.backend in ("", "torch"):
            refuse(
                "its outputs are dictionaries inside dictionaries: expected sorted keys, because"
                " Keras's PyTorch backend orders other keys differently, and the file may be from"
                " that backend; sort the keys of the inner dictionaries"
            )
        keys = [ref.layer for ref in net.inputs]
        if isinstance(named := layer.config.get("input_layers"), dict):
            keys = sorted(named)  # as Keras sorts a dictionary's tensors
        masks = options.get("mask") or dict.fromkeys(keys)
        both = (*arguments, masks)
        if len(both) == 2 and all(isinstance(a, dict) and {*a} == {*keys} for a in both):
            arguments = [[arguments[0][key] for key in keys]]
            options = {**options, "mask": [masks[key] for key in keys]}
        op = KerasLayer(self, layer, None, arguments, options)
        tensors = op.tensors
        if len(tensors) != len(net.inputs):
            raise UnsupportedError(f"expected {len(net.inputs)} tensors, got {len(tensors)}")
        if unread := sorted(k for k, v in options.items() if k not in ("mask", "training") and v):
            raise UnsupportedError(f"argument {', '.join(unread)}: expected tensors only")
        inner = [net.layers[ref.layer].config for ref in net.inputs]
        held = [_to_input(x, each).held for x, each in zip(tensors, inner, strict=True)]
        return self.run(net, held, prefix, depth + 1)


def _to_input(x: KerasTensor, config: Mapping[str, Any]) -> Any:
    """Returns a tensor in the dtype of an inner model's input. Like Keras, adds or removes a last
    axis of size 1.
    """
    sizes: Any = config.get("batch_shape") or config.get("batch_input_shape")
    known = isinstance(sizes, list) and x.type.rank is not None
    apart = len(sizes) - x.rank if known else 0
    if apart and x.mask:
        refuse(f"called with a mask and {x.rank} axes: expected {len(sizes)}")
    if apart == 1 and sizes[-1] == 1:
        x = x.unsqueeze(-1)
    elif apart == -1 and x.shape[-1] == 1:
        x = x.squeeze(-1)
    elif apart:
        refuse(f"called with {x.rank} axes: expected {len(sizes)}")
    return x.cast(config["dtype"]) if config.get("dtype") else x


def name_of_result(ref: Ref) -> str:
    """Returns the name of a result: the name of its layer, with numbers from the second call or
    result on.
    """
    return ref.layer + (f"#{ref.call}" if ref.call else "") + (f"/{ref.at}" if ref.at else "")


def _unknown(layer: Layer) -> str:
    if layer.function:
        return f"function tf.{layer.function}: not known{PASS_RULE}"
    if layer.kind in ("Lambda", "TensorFlowOpLayer"):
        return f"{layer.kind}: code in a file is never run{PASS_RULE}"
    if layer.foreign:
        kind = f"{layer.kind} of {layer.module}"
        return f"{kind}: a user's class, whose code is not in the file{PASS_RULE}"
    kind = "function keras.ops" if layer.is_operation else "layer"
    return f"{kind} {layer.kind}: not known{PASS_RULE}"


def _refs(call: Call) -> list[Ref]:
    result, waiting = list[Ref](), [*call.args, *call.kwargs.values()]
    for each in waiting:  # the loop appends to this list
        if isinstance(each, Ref):
            result.append(each)
        elif isinstance(each, list):
            waiting += each
        elif isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, slice):
            waiting += [each.start, each.stop, each.step]
    return result


def _in_order(net: Network, file: str) -> Iterator[tuple[Layer, int]]:
    """Yields the calls that the outputs need, each one after the calls that it reads."""
    inputs = {(ref.layer, ref.call) for ref in net.inputs}
    done, open_ = set(inputs), set[tuple[str, int]]()
    waiting = [(ref.layer, ref.call) for ref in reversed(net.outputs)]
    while waiting:
        key = waiting[-1]
        if key in done:
            waiting.pop()
            continue
        layer = net.layers.get(key[0])
        if layer is None or not 0 <= key[1] < len(layer.calls):
            raise ModelFormatError(
                f"{net.name}: expected call {key[1]} of layer {key[0]!r}, it is missing", file
            )
        before = [(r.layer, r.call) for r in _refs(layer.calls[key[1]])]
        if missing := [each for each in before if each not in done]:
            if key in open_:
                reason = f"layer {key[0]!r} depends on its own output"
                raise ModelFormatError(f"{net.name}: {reason}", file)
            open_.add(key)
            waiting += reversed(missing)
            continue
        done.add(key)
        waiting.pop()
        yield layer, key[1]
