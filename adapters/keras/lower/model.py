"""A Keras model as a graph of canonical operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from onernn.adapters.folding import FoldingBudget
from onernn.adapters.keras.lower import (  # noqa: F401  their rules
    convolution,
    elementwise,
    joining,
    normalization,
    recurrent,
    shaping,
)
from onernn.adapters.keras.lower.layer import PASSING, RULES, KerasLayer, Tensor
from onernn.adapters.keras.lower.operations import OPERATIONS
from onernn.adapters.keras.read import Call, Layer, Model, Network, Ref, network, read_model
from onernn.adapters.keras.read.configuration import MODELS
from onernn.adapters.lowering import GraphBuilder, LoweringStep, Output, Results, lower_steps
from onernn.core.errors import ModelFormatError, UnsupportedError
from onernn.core.graph import Graph, NativeOp, Value

_DEEPEST = 32  # models inside models
_MOST_CALLS = 10**5
_DTYPES = "bool uint8 int8 int16 int32 int64 float32 float64".split()


def load_keras(path: str | Path) -> Graph:
    """The graph of a saved model; layers that cannot be lowered are in it, with the reason.

    Raises `ModelFormatError` for a file that is no model.
    """
    return lower(read_model(path))


def lower(model: Model) -> Graph:
    """The graph of a model. Raises `ModelFormatError` where the model contradicts itself."""
    lowering = Lowering(model)
    builder, net = lowering.builder, model.network
    given = [lowering.input(net.layers[ref.layer]) for ref in net.inputs]
    made = lowering.run(net, given, "", 0)
    names = map(_name, net.outputs)
    outputs = [lowering.output(each.value, name) for each, name in zip(made, names, strict=True)]
    for name, variable in lowering.states.items():
        outputs.append(lowering.output(builder.value(variable), f"{name}/next"))
    return builder.graph(outputs)


class Lowering:
    """Goes through a model's calls, and those of the models in it.

    ``states``: the variables of stateful layers' states, by name, as the last call left them.
    ``tables``: see `steps.Masked`.
    """

    def __init__(self, model: Model) -> None:
        self.file, self.major = model.file, model.major
        self.builder = GraphBuilder(str(model.file), FoldingBudget())
        self.states: dict[str, str] = {}
        self.tables: dict[str, Any] = {}
        self._tensors: dict[str, Tensor] = {}
        self._refused: set[str] = set()
        self._given: set[str] = set()  # values that are outputs
        self._calls = 0

    def input(self, layer: Layer) -> Tensor:
        """An input of the whole model."""
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
        return Tensor(name)

    def state(self, name: str, shape: tuple[int | None, ...], dtype: str) -> str:
        """The state of a stateful layer: an input, until a call leaves another one."""
        if name not in self.states:
            self.builder.input(Value(name, dtype, shape))
            self.states[name] = name
        return self.builder.value(self.states[name])

    def keep(self, name: str, value: str) -> None:
        """The state behind a call, under a name of its own."""
        self.states[name] = f"{name}/next"
        self.builder.give(f"{name}/next", self.builder.emit("Identity", (value,)))

    def output(self, value: str, name: str) -> Value:
        """An output of the graph under a name of its own."""
        builder = self.builder
        known = builder.type_of(value)
        taken = value in self._given or any(each.name == value for each in builder.inputs)
        if value != name or taken:
            chosen = builder.fresh(name)
            builder.give(f"output {chosen}", builder.emit("Identity", (value,)), chosen)
            value = builder.value(f"output {chosen}")
        self._given.add(value)
        return Value(value, known.dtype, None if known.shape is None else tuple(known.counts))

    def run(self, net: Network, given: Sequence[Tensor], prefix: str, depth: int) -> list[Tensor]:
        """What a network makes of these inputs; ``prefix`` begins the names of its values."""
        if depth > _DEEPEST:
            raise UnsupportedError("models inside models, too deep")
        for ref, tensor in zip(net.inputs, given, strict=True):
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

        def lowered() -> Results:
            arguments = [self._bound(each, prefix) for each in call.args]
            options = {name: self._bound(each, prefix) for name, each in call.kwargs.items()}
            made = self.apply(layer, arguments, options, f"{prefix}{layer.name}", at, depth)
            self._tensors |= {f"{own}{k}": each for k, each in enumerate(made)}
            return tuple(each.value for each in made)

        def outputs(count: int) -> Iterator[Output]:
            for k in indices:
                if k >= count:
                    self._refused.add(f"{own}{k}")
                yield Output(str(k), f"{own}{k}", prefix + _name(Ref(layer.name, at, k)))

        reads = tuple(f"{prefix}{r.layer}/{r.call}/{r.at}" for r in _refs(call))
        return LoweringStep(
            NativeOp(layer.position, layer.kind, f"{prefix}{layer.name}"), reads, lowered, outputs
        )

    def _tensor(self, ref: Ref, prefix: str) -> Tensor:
        variable = f"{prefix}{ref.layer}/{ref.call}/{ref.at}"
        known = self._tensors.get(variable, Tensor(""))
        return known._replace(value=self.builder.value(variable))

    def _bound(self, argument: Any, prefix: str) -> Any:
        """An argument with tensors in the place of `Ref`s."""
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
    ) -> list[Tensor]:
        """What a layer makes of its arguments. Raises `UnsupportedError`."""
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
        made = op.read(function)
        if isinstance(made, str):
            first = op.tensors[0]
            passes = layer.kind in PASSING and not layer.is_operation
            made = first if made == first.value else Tensor(made, first.mask)
            made = made if passes or made is first else Tensor(made.value)
        return [made] if isinstance(made, Tensor) else list(made)

    def _model(
        self,
        layer: Layer,
        arguments: Sequence[Any],
        options: Mapping[str, Any],
        prefix: str,
        depth: int,
    ) -> list[Tensor]:
        op = KerasLayer(self, layer, None, arguments, options)
        net = network(layer, self.major)
        given = op.tensors
        if len(given) != len(net.inputs):
            raise UnsupportedError(f"expected {len(net.inputs)} tensors, got {len(given)}")
        if unread := sorted(k for k, v in options.items() if k not in ("mask", "training") and v):
            raise UnsupportedError(f"a model called with {', '.join(unread)}")
        cast = zip(net.inputs, given, strict=True)
        given = [op.cast_to(each, net.layers[ref.layer].config.get("dtype")) for ref, each in cast]
        return self.run(net, given, prefix, depth + 1)


def _name(ref: Ref) -> str:
    """What a result is called: as its layer, from the second call and result on with numbers."""
    return ref.layer + (f"#{ref.call}" if ref.call else "") + (f"/{ref.at}" if ref.at else "")


def _unknown(layer: Layer) -> str:
    if layer.kind in ("Lambda", "TFOpLambda", "SlicingOpLambda", "TensorFlowOpLayer"):
        return f"{layer.kind}: code in a file is never run; use a layer that says the same"
    if layer.foreign:
        return f"{layer.kind} of {layer.module}: a class of its own; its code is not in the file"
    kind = "function keras.ops" if layer.is_operation else "layer"
    return f"{kind} {layer.kind}: not known"


def _refs(call: Call) -> list[Ref]:
    """The tensors that a call reads."""
    found, waiting = list[Ref](), [*call.args, *call.kwargs.values()]
    while waiting:
        each = waiting.pop(0)
        if isinstance(each, Ref):
            found.append(each)
        elif isinstance(each, list):
            waiting += each
        elif isinstance(each, dict):
            waiting += each.values()
    return found


def _in_order(net: Network, file: str) -> Iterator[tuple[Layer, int]]:
    """The calls that the outputs need, each behind those that it reads."""
    given = {(ref.layer, ref.call) for ref in net.inputs}
    done, open_ = set(given), set[tuple[str, int]]()
    waiting = [(ref.layer, ref.call) for ref in reversed(net.outputs)]
    while waiting:
        key = waiting[-1]
        if key in done:
            waiting.pop()
            continue
        layer = net.layers.get(key[0])
        if layer is None or key[1] >= len(layer.calls):
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
