"""What a model's configuration says: its layers, and the calls that connect them.

The forms of Keras 2 and 3 become one. Documentation: the functions get_config and from_config of
keras.Model, keras.Sequential and of each layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from onernn.adapters.keras.read.weights import Weights
from onernn.core.errors import ModelFormatError, OnernnError, UnsupportedError
from onernn.core.records import dataclass

MODELS = ("Functional", "Model", "Sequential")
_OWN = ("keras", "tf_keras")
"""Where Keras's own classes are; the layers that users registered are elsewhere."""
_MISFITS = (LookupError, TypeError, ValueError, AttributeError)


class Ref(NamedTuple):
    """A tensor: the result number ``at`` of the call number ``call`` of a layer."""

    layer: str
    call: int
    at: int


class Call(NamedTuple):
    """The arguments of one call; tensors are `Ref`s, others as JSON has them."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer, or a model that is used like one; ``module``: where its class is, "" if untold."""

    kind: str
    module: str
    name: str
    config: Mapping[str, Any]
    weights: Weights | None
    calls: tuple[Call, ...] = ()
    position: int = 0

    @property
    def is_operation(self) -> bool:
        """Whether it is a function of ``keras.ops``, which Keras 3 lists among layers.

        An ``.h5`` file does not tell where a class is; only layers are trainable, or of a dtype.
        """
        if self.module:
            return ".ops." in f".{self.module}."
        return self.kind not in (*MODELS, "InputLayer") and not {"trainable", "dtype"} & {
            *self.config
        }

    @property
    def foreign(self) -> bool:
        """Whether somebody else's class is meant."""
        return bool(self.module) and self.module.partition(".")[0] not in _OWN


@dataclass(frozen=True, eq=False)
class Network:
    """Layers by name, and the tensors that go in and come out."""

    name: str
    layers: Mapping[str, Layer]
    inputs: tuple[Ref, ...]
    outputs: tuple[Ref, ...]


def outermost(config: Any, weights: Weights, major: int, file: Path) -> Network:
    """The model of a file. Raises `ModelFormatError` naming the file, `UnsupportedError`."""
    try:
        return network(inner_layer(config, weights), major)
    except OnernnError as error:
        raise type(error)(f"{file}: {error}") from error
    except _MISFITS as error:
        raise ModelFormatError(f"not a model's configuration: {error!r:.200}", file) from error


def inner_layer(config: Any, weights: Weights | None, calls: Any = (), position: int = 0) -> Layer:
    """A layer from how it is written down."""
    inside = config["config"]
    kind = config["class_name"]
    if isinstance(inside, list):  # a Sequential of Keras before 2.2.3
        inside = {"name": "sequential", "layers": inside}
    name = config.get("name") or inside.get("name") or kind.lower()
    registered, module = config.get("registered_name"), config.get("module")
    if not (isinstance(kind, str) and isinstance(name, str) and isinstance(inside, dict)):
        raise ModelFormatError(f"layer {name!r:.100}: expected class_name, name and config")
    if "module" in config and module is None:  # a class that only its user has
        module = str(registered)
    return Layer(kind, str(module or ""), name, inside, weights, tuple(calls), position)


def network(model: Layer, major: int) -> Network:
    """The network of a model, by its Keras. Raises `UnsupportedError` for classes of users."""
    if model.kind not in MODELS or model.foreign:
        raise UnsupportedError(
            f"{model.name}: a class of its own, {model.kind}, whose code is not in the file: build"
            " it of layers, keras.Model(inputs, outputs), and save that"
        )
    try:
        listed = model.config["layers"]
        if model.kind == "Sequential":
            return _chain(model, listed)
        return _functional(model, listed, major)
    except OnernnError:
        raise
    except _MISFITS as error:
        raise ModelFormatError(
            f"{model.name}: not a model's configuration: {error!r:.200}"
        ) from error


def _layers(model: Layer, listed: Any, calls: list[tuple[Call, ...]]) -> dict[str, Layer]:
    bare = [inner_layer(each, None) for each in listed]
    named = [(each.kind, each.name) for each in bare if not each.is_operation]
    if len({each.name for each in bare}) != len(bare):
        raise ModelFormatError(f"{model.name}: a layer's name stands there twice")
    held = iter(model.weights.layers(named) if model.weights else [None] * len(named))
    return {
        each.name: inner_layer(config, None if each.is_operation else next(held), told, at)
        for at, (each, config, told) in enumerate(zip(bare, listed, calls, strict=True))
    }


def _chain(model: Layer, listed: Any) -> Network:
    """A Sequential: each layer takes what the one before gives."""
    first = inner_layer(listed[0], None)
    if first.kind != "InputLayer":
        shape = first.config.get("batch_input_shape") or first.config.get("batch_shape")
        shape = shape or model.config.get("build_input_shape")
        begin: Any = {"class_name": "InputLayer", "config": {"name": f"{first.name}_input"}}
        begin["config"]["batch_shape"] = shape
        integers = first.kind == "Embedding"
        begin["config"]["dtype"] = "int32" if integers else first.config.get("dtype", "float32")
        held = _layers(model, listed, [()] * len(listed))
        source = inner_layer(begin, None)
        layers = [source, *held.values()]
    else:
        layers = [*_layers(model, listed, [()] * len(listed)).values()]
    chained = {layers[0].name: layers[0]}
    for at, layer in enumerate(layers[1:], 1):
        call = Call((Ref(layers[at - 1].name, 0, 0),), {})
        chained[layer.name] = Layer(
            layer.kind, layer.module, layer.name, layer.config, layer.weights, (call,), at
        )
    ends = (Ref(layers[0].name, 0, 0),), (Ref(layers[-1].name, 0, 0),)
    return Network(model.name, chained, *ends)


def _functional(model: Layer, listed: Any, major: int) -> Network:
    calls = [
        (*_made_with(each, major), *map(_call, each.get("inbound_nodes", ()))) for each in listed
    ]
    layers = _layers(model, listed, calls)
    ends = (tuple(_refs(model.config[key])) for key in ("input_layers", "output_layers"))
    return Network(model.name, layers, *ends)


def _made_with(told: Any, major: int) -> tuple[Call, ...]:
    """The call with which a model inside was made counts, and is not written down."""
    kind = told["class_name"]
    counts = kind in ("Functional", "Model")
    if kind == "Sequential" and major < 3:
        layers = told["config"]["layers"]
        counts = not layers or layers[0]["class_name"] == "InputLayer"
    return (Call((), {}),) if counts else ()


def _refs(told: Any) -> list[Ref]:
    """The tensors in a structure, those of a dictionary by its sorted keys, as Keras does."""
    if (ref := _ref(told)) is not None:
        return [ref]
    if isinstance(told, dict):
        told = [told[key] for key in sorted(told)]
    if not isinstance(told, list):
        raise ValueError(f"expected tensors, got {told!r:.100}")
    return [ref for each in told for ref in _refs(each)]


def _ref(told: Any) -> Ref | None:
    if isinstance(told, dict) and told.get("class_name") == "__keras_tensor__":
        told = told["config"]["keras_history"]
    if isinstance(told, list) and len(told) in (3, 4) and isinstance(told[0], str):
        name, call, index = told[:3]
        if type(call) is int and type(index) is int and min(call, index) >= 0:
            return Ref(name, call, index)
    return None


def _call(told: Any) -> Call:
    if isinstance(told, dict):  # Keras 3
        return Call(tuple(map(_argument, told["args"])), _arguments(told["kwargs"]))
    if (one := _ref(told)) is not None:  # a single tensor without the list around
        told = [told] if len(told) == 4 else [[*one, {}]]
    tensors, kwargs = list[Any](), dict[str, Any]()
    for each in told:
        ref = _ref(each)
        tensors.append(each if ref is None else ref)  # a constant is the layer's business
        kwargs |= each[3] if ref is not None and len(each) == 4 else {}
    return Call((tensors if len(tensors) > 1 else tensors[0],), _arguments(kwargs))


def _arguments(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _argument(value) for name, value in kwargs.items()}


def _argument(told: Any) -> Any:
    """An argument in which tensors are `Ref`s."""
    if (ref := _ref(told)) is not None:
        return ref
    if isinstance(told, list):
        return [_argument(each) for each in told]
    if isinstance(told, dict) and "class_name" not in told:
        return _arguments(told)
    return told
