"""A call of a Keras layer as the rules read it, their table, and the loop over a model's calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.common.lowering import (
    FoldingBudget,
    GraphBuilder,
    LoweringStep,
    NativeOperator,
    Output,
    Results,
    Rules,
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
"""Options without effect on what is run: training's, and how the same numbers are computed."""
_ENDINGS = ("_initializer", "_regularizer", "_constraint")


class Held(NamedTuple):
    """A value and the mask of its steps (N, T), which may be "". ``words``: the unmasked steps as
    sequences, if the layer before made them."""

    value: str
    mask: str = ""
    words: str = ""


class KerasTensor(Tensor):
    """A value as Keras's rules compute with it, under a mask; see `Held`."""

    def __init__(self, op: Any, name: str, mask: str = "", words: str = "") -> None:
        super().__init__(op, name)
        self.mask, self.words = mask, words

    @classmethod
    def of(cls, op: Any, slot: str) -> list[Any]:
        """Returns what a layer is called with: one tensor, or all in a slot "tensors"."""
        result = op.tensors
        if slot != "tensors" and len(result) != 1:
            refuse(f"expected to be called with one tensor, got {len(result)}")
        return result

    @property
    def flags(self) -> KerasTensor | None:
        """The mask, or None."""
        return self.new(self.mask) if self.mask else None

    @property
    def floats(self) -> KerasTensor:
        """The value, in the layer's float type if it is integers."""
        return self if self.dtype.kind == "f" else self.cast(self.op.compute)

    def under(self, mask: Tensor | None, words: str = "") -> KerasTensor:
        """Returns the value under a mask."""
        return KerasTensor(self.op, self.name, mask.name if mask else "", words)

    def cast(self, dtype: Any) -> Any:
        result = super().cast(dtype)
        return result if result is self else result.under(self.flags)


class KerasLayer(NativeOperator):
    """A layer with the graph it is lowered into.

    ``reader`` gives its weights. ``compute``: the dtype it computes in. ``version``: (major, minor)
    of the Keras that wrote the file. ``masked_by_call``: whether the call itself names a mask.
    ``path``: its name with those of the models around it, ``depth`` of these. ``wraps``: another
    layer checks that all its weights are taken.
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
    ) -> None:
        config = {k: v for k, v in layer.config.items() if v is not None}
        options = {k: v for k, v in (options or {}).items() if v is not None}
        if options.pop("training", False):
            refuse("called with training=True: only inference is run")
        mask = options.pop("mask", None)
        named = {f"{name}=": value for name, value in options.items()}
        inert = INERT | {name for name in config if name.endswith(_ENDINGS)}
        at = NativeOp(layer.position, layer.kind, path or layer.name)
        super().__init__(lowering.builder, at, {}, {}, {**config, **named}, inert, layer.name)
        self.lowering, self.layer, self.config = lowering, layer, layer.config
        self.version, self.major = lowering.version, lowering.version[0]
        self.masked_by_call = bool(mask)
        self.path, self.depth, self.wraps = path, depth, False
        self._variables: list[tuple[Array, str]] = []
        self._reader, self.arguments = reader, list(arguments)
        # A function's dtype is that of its result.
        self.compute = _compute_dtype(None if layer.is_operation else layer.config.get("dtype"))
        if mask:
            self.arguments[0] = self._under(self.arguments[0], mask)

    # What it is called with.

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
            refuse("called with constants, or with tensors in an unknown structure")
        tensors = [KerasTensor(self, *each) for each in arguments]
        floats = [str(each.type.dtype).startswith("float") for each in tensors]
        return [x.cast(self.compute) if f else x for x, f in zip(tensors, floats, strict=True)]

    def _under(self, result: Any, mask: Any) -> Any:
        """Tensors under the masks that the call names."""
        if isinstance(result, list):
            masks = mask if isinstance(mask, list) else [mask]
            pairs = zip_longest(result, masks)
            return [self._under(*pair) if pair[1] else pair[0] for pair in pairs]
        if not isinstance(result, Held) or not isinstance(mask, Held):
            refuse("argument mask: expected a tensor for each tensor")
        flags = self.cast(mask.value, bool)
        return result._replace(mask=flags, words=result.words if flags == result.mask else "")

    def option(self, name: str) -> Any:
        """Returns an argument of the call, None where it is absent."""
        return self.attribute(f"{name}=", None)

    # What it is.

    def number(self, name: str, default: float) -> float:
        """Returns a number; Keras 3 may write an array of one."""
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
        """Returns a layer that this one holds, with its weights; it is not called by itself."""
        layer = inner_layer(config, None, position=self.layer.position)
        reader = self._reader
        for name in path:
            reader = reader and reader.inside(name)
        made = KerasLayer(self.lowering, layer, reader)
        made.wraps = True
        return made

    def weights(self, *names: str, inside: str = "") -> list[Array]:
        """Returns the layer's own variables, or those of its cell, in the type that it computes
        in.
        """
        if self._reader is None:
            raise UnsupportedError("its weights are not in the file")
        result = (self._reader.inside(inside) if inside else self._reader).take(names)
        for name, array in zip(names, result, strict=True):
            if array.dtype.name not in ("float32", "float64"):
                raise UnsupportedError(f"{name}: {array.dtype} numbers, not float32 or float64")
        arrays = [array.astype(self.compute, copy=False) for array in result]
        self._variables += zip(arrays, names, strict=True)
        return arrays

    def constant(self, array: Any, label: str = "constant") -> str:
        """Returns a constant value; one of the layer's variables has the variable's name."""
        label = next(
            (name for each, name in self._variables if np.may_share_memory(each, array)), label
        )
        return super().constant(array, label)

    def read(self, rule: Signature) -> Any:
        """Returns what a rule returns; raises `UnsupportedError` for what it did not read."""
        result = self.lowered(lambda op: rule.call(op)[1])
        if self._reader is not None and not self.wraps:
            self._reader.finish()
        return result


class Stated(NamedTuple):
    """An option in which None has a meaning of its own, and is not the same as an absent one."""

    default: Any

    def read(self, op: KerasLayer, name: str) -> Any:
        op.ignore(name)
        return op.config.get(name, self.default)


def _compute_dtype(policy: Any) -> str:
    """Returns what a dtype or a policy computes in. Raises `UnsupportedError` for all but
    floats.
    """
    name = policy
    if isinstance(policy, dict) and isinstance(policy.get("config"), dict):
        name = policy["config"].get("name")
    if name is None:
        return "float32"
    if name not in ("float32", "float64"):
        raise UnsupportedError(f"dtype {name!r:.100}: only float32 and float64 are computed in")
    return str(name)


RULES = Rules[Signature]()
"""By the name of the class."""
OPERATIONS = Rules[Signature]()
"""By the name of the class, of functions that Keras 3 lists among layers."""
PASSING: set[str] = set()
"""Those that hand on the mask of their first input; the others end it."""


def keras(kinds: str, *, masks: bool = False, **only: Any) -> Any:
    """Enters a rule whose keywords are the keys of a layer's configuration; see `Signature`.

    ``masks``: the layer hands on the mask of its input.
    """

    def enter(rule: Callable[..., Any]) -> Callable[..., Any]:
        PASSING.update(kinds.split() if masks else ())
        RULES(kinds)(Signature(rule, only, KerasTensor))
        return rule

    return enter


def operation(kinds: str) -> Any:
    """Enters a rule of functions of ``keras.ops``; see `keras`."""

    def enter(rule: Callable[..., Any]) -> Callable[..., Any]:
        OPERATIONS(kinds)(Signature(rule, {}, KerasTensor))
        return rule

    return enter


_DEEPEST = 32  # models inside models
_MOST_CALLS = 10**5
_DTYPES = "bool uint8 int8 int16 int32 int64 float32 float64".split()


class Lowering:
    """Goes through a model's calls, and those of the models in it.

    ``states``: the variables of stateful layers' states, by name, as the last call left them.
    ``tables``: see `steps.Masked`.
    """

    def __init__(self, model: Model) -> None:
        self.file, self.version = model.file, model.version
        self.builder = GraphBuilder(str(model.file), FoldingBudget())
        self.states: dict[str, str] = {}
        self.tables: dict[str, Any] = {}
        self._tensors: dict[str, Held] = {}
        self._refused: set[str] = set()
        self._given: set[str] = set()  # values that are outputs
        self._calls = 0

    def input(self, layer: Layer) -> Held:
        """Returns an input of the whole model."""
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
            self.builder.refuse(name, f"an input of {dtype} {shape}: dense numbers are taken")
            self._refused.add(f"{layer.name}/0/0")
            name = self.builder.value(name)
        return Held(name)

    def state(self, name: str, shape: tuple[int | None, ...], dtype: str) -> str:
        """Returns the state of a stateful layer: an input, until a call leaves another one."""
        if name not in self.states:
            self.builder.input(Value(name, dtype, shape))
            self.states[name] = name
        return self.builder.value(self.states[name])

    def keep(self, name: str, value: str) -> None:
        """The state behind a call, under a name of its own."""
        self.states[name] = self.builder.copied(value, f"{name}/next")

    def output(self, value: str, name: str) -> Value:
        """Returns an output of the graph under a name of its own."""
        builder = self.builder
        taken = value in self._given or any(each.name == value for each in builder.inputs)
        if value != name or taken:
            value = builder.copied(value, builder.fresh(name))
        self._given.add(value)
        return builder.output(value)

    def run(self, net: Network, tensors: Sequence[Held], prefix: str, depth: int) -> list[Held]:
        """Returns what a network makes of these inputs; ``prefix`` begins the names of its
        values.
        """
        if depth > _DEEPEST:
            raise UnsupportedError("models inside models, too deep")
        for ref, tensor in zip(net.inputs, tensors, strict=True):
            variable = f"{prefix}{ref.layer}/0/0"
            self.builder.give(variable, tensor.value)
            self._tensors[variable] = tensor
        wanted = [*net.outputs]
        calls = [*_in_order(net, str(self.file))]
        for layer, at in calls:
            wanted += _refs(layer.calls[at])
        steps = [self._step(layer, at, prefix, wanted, depth) for layer, at in calls]
        kept = [f"{prefix}{r.layer}/{r.call}/{r.at}" for r in net.outputs]
        lower_steps(self.builder, steps, kept)
        if prefix and (gone := self._refused.intersection(kept)):
            raise UnsupportedError(f"what its layer {min(gone)!r} gives is not computed")
        return [self._tensor(ref, prefix) for ref in net.outputs]

    def _step(
        self, layer: Layer, at: int, prefix: str, wanted: Sequence[Ref], depth: int
    ) -> LoweringStep:
        call = layer.calls[at]
        own = f"{prefix}{layer.name}/{at}/"
        indices = sorted({r.at for r in wanted if (r.layer, r.call) == (layer.name, at)})

        def lower() -> Results:
            arguments = [self._bound(each, prefix) for each in call.args]
            options = {name: self._bound(each, prefix) for name, each in call.kwargs.items()}
            results = self.apply(layer, arguments, options, f"{prefix}{layer.name}", at, depth)
            self._tensors |= {f"{own}{k}": each for k, each in enumerate(results)}
            return tuple(each.value for each in results)

        def outputs(count: int) -> Iterator[Output]:
            for k in indices:
                if k >= count:
                    self._refused.add(f"{own}{k}")
                yield Output(str(k), f"{own}{k}", prefix + name_of_result(Ref(layer.name, at, k)))

        reads = tuple(f"{prefix}{r.layer}/{r.call}/{r.at}" for r in _refs(call))
        return LoweringStep(
            NativeOp(layer.position, layer.kind, f"{prefix}{layer.name}"), reads, lower, outputs
        )

    def _tensor(self, ref: Ref, prefix: str) -> Held:
        variable = f"{prefix}{ref.layer}/{ref.call}/{ref.at}"
        known = self._tensors.get(variable, Held(""))
        return known._replace(value=self.builder.value(variable))

    def _bound(self, argument: Any, prefix: str) -> Any:
        """Returns an argument with tensors in the place of `Ref`s."""
        if isinstance(argument, Ref):
            if f"{prefix}{argument.layer}/{argument.call}/{argument.at}" in self._refused:
                raise UnsupportedError(f"what layer {argument.layer!r} gives is not computed")
            return self._tensor(argument, prefix)
        if isinstance(argument, list):
            return [self._bound(each, prefix) for each in argument]
        if isinstance(argument, dict):
            return {name: self._bound(each, prefix) for name, each in argument.items()}
        return argument

    def apply(
        self,
        layer: Layer,
        arguments: Sequence[Any],
        options: Mapping[str, Any],
        path: str,
        at: int,
        depth: int,
    ) -> list[Held]:
        """Returns what a layer makes of its arguments. Raises `UnsupportedError`."""
        self._calls += 1
        if self._calls > _MOST_CALLS:
            raise UnsupportedError("models call models too often")
        if layer.kind in MODELS and not layer.foreign:
            return self._model(
                layer, arguments, options, f"{path}/" if not at else f"{path}#{at}/", depth
            )
        reader = layer.weights.reader() if layer.weights else None
        op = KerasLayer(self, layer, reader, arguments, options, path, depth)
        function = (OPERATIONS if layer.is_operation else RULES).get(layer.kind)
        if layer.foreign or function is None:
            raise UnsupportedError(_unknown(layer))
        result = op.read(function)
        if isinstance(result, list):
            return [Held(each.name, each.mask, each.words) for each in result]
        if layer.kind in PASSING and not layer.is_operation:
            first = op.tensors[0]
            result = first if result.name == first.name else result.under(first.flags)
        return [Held(result.name, result.mask, result.words)]

    def _model(
        self,
        layer: Layer,
        arguments: Sequence[Any],
        options: Mapping[str, Any],
        prefix: str,
        depth: int,
    ) -> list[Held]:
        op = KerasLayer(self, layer, None, arguments, options)
        net = network(layer, self.version[0])
        tensors = op.tensors
        if len(tensors) != len(net.inputs):
            raise UnsupportedError(f"expected {len(net.inputs)} tensors, got {len(tensors)}")
        if unread := sorted(k for k, v in options.items() if k not in ("mask", "training") and v):
            raise UnsupportedError(f"a model called with {', '.join(unread)}")
        inner = [net.layers[ref.layer].config.get("dtype") for ref in net.inputs]
        cast = [x.cast(to) if to else x for x, to in zip(tensors, inner, strict=True)]
        held = [Held(each.name, each.mask, each.words) for each in cast]
        return self.run(net, held, prefix, depth + 1)


def name_of_result(ref: Ref) -> str:
    """Returns what a result is called: as its layer, from the second call and result on with
    numbers.
    """
    return ref.layer + (f"#{ref.call}" if ref.call else "") + (f"/{ref.at}" if ref.at else "")


def _unknown(layer: Layer) -> str:
    if layer.kind in ("Lambda", "TFOpLambda", "SlicingOpLambda", "TensorFlowOpLayer"):
        return f"{layer.kind}: code in a file is never run; use a layer that says the same"
    if layer.foreign:
        return f"{layer.kind} of {layer.module}: a class of its own; its code is not in the file"
    kind = "function keras.ops" if layer.is_operation else "layer"
    return f"{kind} {layer.kind}: not known"


def _refs(call: Call) -> list[Ref]:
    """Returns the tensors that a call reads."""
    result, waiting = list[Ref](), [*call.args, *call.kwargs.values()]
    while waiting:
        each = waiting.pop(0)
        if isinstance(each, Ref):
            result.append(each)
        elif isinstance(each, list):
            waiting += each
        elif isinstance(each, dict):
            waiting += each.values()
    return result


def _in_order(net: Network, file: str) -> Iterator[tuple[Layer, int]]:
    """Yields the calls that the outputs need, each behind those that it reads."""
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
                f"{net.name}: call {key[1]} of layer {key[0]!r} is not there", file
            )
        before = [(r.layer, r.call) for r in _refs(layer.calls[key[1]])]
        if missing := [each for each in before if each not in done]:
            if key in open_:
                raise ModelFormatError(f"{net.name}: layer {key[0]!r} waits for itself", file)
            open_.add(key)
            waiting += reversed(missing)
            continue
        done.add(key)
        waiting.pop()
        yield layer, key[1]
