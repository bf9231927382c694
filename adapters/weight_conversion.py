"""Converts one recurrent layer from any framework's layout to any other framework's layout."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

import numpy as np

from onernn.adapters.stacks import stacks_of
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import Graph, Node
from onernn.ir.rnn import Recurrent
from onernn.ir.spec import Activation, Cell, Direction
from onernn.reorders.layers import PivotLayer
from onernn.reorders.layouts import framework

T = TypeVar("T")


class LayoutOptions(TypedDict, total=False):
    """Facts about a layer that its arrays do not show in some layouts; see `read_layer`."""

    nonlinearity: str
    function: str
    activations: tuple[Activation, ...] | None
    linear_before_reset: bool
    direction: Direction | None
    reset_after: bool | None
    merge: Direction
    origin_mode: bool
    cell: Cell | str
    mode: str
    hidden: int
    layers: int
    directions: int
    projection: int | None


def convert_weights(
    layer: Any, to: str, *, source: str | None = None, **options: Unpack[LayoutOptions]
) -> dict[str, Array]:
    """Returns a layer's arrays under the names of a different framework; the conversion is exact.

    ``layer``: a `PivotLayer`; (spec, weights); an "Rnn" node of a graph; a graph with one stack of
    layers; a torch.nn.RNN, LSTM, GRU or one of their cells, or a module that contains one of these;
    a built keras SimpleRNN, LSTM, GRU, Bidirectional, or RNN of their cells; a Keras model with one
    such layer, or a Sequential with one stack of such layers; an instance of a subclass of these
    classes; or arrays, parameters or tensors by name, in a dict or from ``named_parameters()``.
    ``source`` names the layout of such arrays; for tensors of PyTorch the default is "torch".
    bfloat16 and float16 values are returned as float32, exactly. ``to`` and ``source``: a name of
    `reorders.layouts.FRAMEWORKS`. ``options`` describe the layout ``source``, see `read_layer`.

    Raises `UnsupportedError` that names a feature missing in the target layout, and `ShapeError`
    that names an array of a wrong shape.

    >>> layer, iter = np.ones((1, 1, 2, 3, 3), "f4"), np.ones((1, 1, 3, 3, 3), "f4")
    >>> spec, weights = onernn.RnnSpec(onernn.Cell.GRU, 2, 3), onernn.RnnWeights(layer, iter)
    >>> sorted(onernn.convert_weights((spec, weights), "onnx"))
    ['R', 'W']
    """
    return framework(to).write(read_layer(layer, source, **options))


def read_layer(
    layer: Any, source: str | None = None, **options: Unpack[LayoutOptions]
) -> PivotLayer:
    """Returns the layer in the pivot layout: its spec, and one-layer `RnnWeights` (1, D, ...).

    `convert_weights` describes ``layer`` and ``source``. The ``options`` of each layout: torch and
    paddle-rnn: nonlinearity. onnx: linear_before_reset, direction, function, activations. keras:
    reset_after, function, activations, merge. paddle-gru: origin_mode. mxnet: mode, hidden, layers,
    directions, projection. mxnet-gluon and mxnet-gates: function. onednn: cell, direction,
    activations.

    Raises `UnsupportedError` for an object or a layout that onernn does not read, and `ShapeError`
    that names an array of a wrong shape.

    >>> layer, iter = np.ones((1, 1, 2, 3, 3), "f4"), np.ones((1, 1, 3, 3, 3), "f4")
    >>> spec, weights = onernn.RnnSpec(onernn.Cell.GRU, 2, 3), onernn.RnnWeights(layer, iter)
    >>> arrays = onernn.convert_weights((spec, weights), "paddle-gru")
    >>> onernn.read_layer(arrays, "paddle-gru").spec == spec
    True
    """
    if isinstance(layer, Mapping | Iterator):
        try:
            arrays = dict(layer)
        except (TypeError, ValueError) as error:
            expected = "expected names with arrays, as named_parameters() returns"
            raise UnsupportedError(f"{type(layer).__name__}: {expected}: {error}") from error
        return _from_arrays(arrays, source, dict(options))
    if source is not None or options:
        raise UnsupportedError(f"source and options belong to arrays by name, not to {type(layer)}")
    if isinstance(layer, PivotLayer):
        return layer
    if isinstance(layer, tuple) and len(layer) == 2:
        return PivotLayer.of(*layer)
    if isinstance(layer, Node) and layer.op == "Rnn":
        rnn = Recurrent.of(layer)
        return PivotLayer.of(rnn.spec, rnn.weights)
    if isinstance(layer, Graph):
        return _from_graph(layer, "give one of its Rnn nodes, or onernn weights --node")
    homes = {_home(kind) for kind in type(layer).__mro__}
    if homes & _KERAS_HOMES:  # before PyTorch: on that backend Keras's layers are PyTorch modules
        return _from_keras(layer)
    if "torch" in homes:
        return _from_torch(layer)
    raise UnsupportedError(f"expected a recurrent layer, got {type(layer).__qualname__}")


def _from_graph(graph: Graph, advice: str) -> PivotLayer:
    stacks = stacks_of(graph)
    if stacks.omitted:
        raise UnsupportedError(
            f"{graph.name}: {advice}: besides {', '.join(map(repr, stacks))} it has recurrent"
            " layers that cannot be read:",
            stacks.omitted,
        )
    return _only(stacks, f"{graph.name}: {advice}")


def _only(layers: Mapping[str, T], where: str) -> T:
    if len(layers) != 1:
        names = ", ".join(map(repr, layers)) or "none"
        raise UnsupportedError(f"expected one recurrent layer, got {names}; {where}")
    return next(iter(layers.values()))


def _home(kind: Any) -> str:
    return kind.__module__.partition(".")[0]


def _kind(layer: Any, homes: Collection[str], names: Collection[str]) -> str:
    """Returns the framework class in ``names`` that an object is an instance of, "" if there is
    none.

    The object may be an instance of a user's subclass. The framework's own subclasses, such as
    Keras's ConvRNN of RNN, are different layers and do not count.
    """
    own = next((k.__name__ for k in type(layer).__mro__ if _home(k) in homes), "")
    return own if own in names else ""


def _from_arrays(
    arrays: dict[str, Any], source: str | None, options: Mapping[str, Any]
) -> PivotLayer:
    if source is None and any(_home(type(each)) == "torch" for each in arrays.values()):
        source = "torch"
    if source is None:
        raise UnsupportedError("arrays by name: their layout is missing, give source=")
    arrays = {str(name): _array(each) for name, each in arrays.items()}
    if source == "torch":  # names may have a prefix: "encoder.lstm.weight_hh_l0"
        from onernn.adapters.torch.weight_files import layers_among

        if layers := layers_among(arrays):
            return _only(layers, "give the parameters of one module")(**options)
    return framework(source).read(arrays, **options)


def _array(value: Any) -> Array:
    if hasattr(value, "detach"):  # a tensor of PyTorch: NumPy has no bfloat16
        try:
            value = value.detach().cpu().resolve_conj().resolve_neg()
            half = value.is_floating_point() and value.element_size() == 2
            value = (value.float() if half else value).numpy()
        except (NotImplementedError, RuntimeError, TypeError) as error:
            raise UnsupportedError(f"a tensor {value.dtype} {(*value.shape,)}: {error}") from error
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.name in ("bfloat16", "float16") else array


_TORCH = ("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell")


def _from_torch(layer: Any) -> PivotLayer:
    kind = _kind(layer, ("torch",), _TORCH)
    if not kind:
        modules = layer.named_modules() if hasattr(layer, "named_modules") else ()
        inner = {name: each for name, each in modules if _is_recurrent(each)}
        if "" in inner:  # it has PyTorch's names of weights, but a different class
            inner = {}
        problem = f"expected one of torch.nn's {', '.join(_TORCH)}, or a module with one of them"
        return _from_torch(_only(inner, f"{type(layer).__qualname__}: {problem}"))
    state = {name: _array(value) for name, value in layer.state_dict().items()}
    plain = {"nonlinearity": layer.nonlinearity} if kind.startswith("RNN") else {}
    return framework("torch").read(state, **plain)


def _is_recurrent(module: Any) -> bool:
    """Returns whether a module of PyTorch is a recurrent layer, scripted, parametrized, or has a
    weight of one.
    """
    names = {kind.__name__ for kind in type(module).__mro__ if _home(kind) == "torch"}
    names.add(getattr(module, "original_name", ""))  # of a scripted module
    own = (name for name, _ in module.named_parameters(recurse=False))
    return not names.isdisjoint(_TORCH) or any(name.startswith("weight_hh") for name in own)


_KERAS_HOMES = {"keras", "tf_keras", "tensorflow"}
_KERAS = ("SimpleRNN", "LSTM", "GRU", "RNN", "Bidirectional")
_MODELS = ("Sequential", "Functional")
_CELLS = ("SimpleRNNCell", "LSTMCell", "GRUCell")


def _from_keras(layer: Any) -> PivotLayer:
    """Returns the only stack of a layer or model, which is read in the same way as a saved
    model.
    """
    from onernn.adapters.keras.lower import lower
    from onernn.adapters.keras.read import Flat, Lists, Model, outermost

    label, kind = f"{layer.name} ({type(layer).__name__})", _kind(layer, _KERAS_HOMES, _KERAS)
    inner = [*layer._flatten_layers()]
    if not kind and not _kind(layer, _KERAS_HOMES, _MODELS):
        found = {each.name: each for each in inner if _kind(each, _KERAS_HOMES, _KERAS)}
        return _from_keras(_only(found, f"{label}: give one of {', '.join(_KERAS)}"))
    merges = [each.merge_mode for each in inner if hasattr(each, "merge_mode")]
    if merges not in ([], ["sum"]) and {*merges} != {"concat"}:
        raise UnsupportedError(f"{label}: merge_mode={merges}: expected concat, or one sum")
    held = [layer] if kind else layer.layers
    weights = {
        one.name: Flat([(getattr(w, "path", w.name), _array(w)) for w in one.weights])
        for one in held
    }
    config = json.loads(json.dumps(layer.get_config()))
    outer = "Sequential"
    if kind:
        if not weights[layer.name].entries:
            raise UnsupportedError(f"{layer.name}: it has no weights yet; call it, or build it")
        kernel = weights[layer.name].entries[0][1]
        shape = {"batch_shape": [None, None, len(kernel)], "dtype": kernel.dtype.name}
        first = {"class_name": "InputLayer", "config": {"name": "x", **shape}}
        config = {"layers": [first, {"class_name": kind, "config": config}]}
    else:
        outer = _kind(layer, _KERAS_HOMES, _MODELS)
    config = _as_keras_has_it({"class_name": outer, "config": config}, _own_kinds(inner))
    home = next(name for name in map(_home, type(layer).__mro__) if name in _KERAS_HOMES)
    keras = sys.modules["tf_keras" if home == "tensorflow" else home]
    major, minor, *_ = map(int, re.findall(r"\d+", keras.__version__))
    file = Path(label)
    network = outermost(config, Lists(weights), major, file)
    result = _from_graph(lower(Model(file, network, (major, minor))), "give one layer")
    if result.spec.direction == "right2left":
        raise UnsupportedError(f"{label}: go_backwards gives its steps in the order it went")
    if merges == ["sum"]:
        return PivotLayer.of(replace(result.spec, direction="bidirectional_sum"), result.weights)
    return result


def _own_kinds(layers: Iterable[Any]) -> dict[str, str]:
    """Returns the name of Keras's class for each layer, by the layer's name; the layer may be of a
    subclass.

    A cell of a subclass with its own ``call`` is left out, because it may compute more than its
    weights show.
    """
    kinds = {}
    for each in layers:
        own = _home(type(each).call) in _KERAS_HOMES
        if kind := _kind(each, _KERAS_HOMES, (*_KERAS, *_CELLS) if own else _KERAS):
            kinds[each.name] = kind
    return kinds


def _as_keras_has_it(config: Any, kinds: Mapping[str, str]) -> Any:
    """Returns a layer's configuration with Keras's classes in place of subclasses, and without
    float16.
    """
    if isinstance(config, list):
        return [_as_keras_has_it(each, kinds) for each in config]
    if not isinstance(config, dict):
        return config
    config = {key: _as_keras_has_it(each, kinds) for key, each in config.items()}
    if "float" in str(config.get("dtype")):
        config["dtype"] = "float64" if "float64" in str(config["dtype"]) else "float32"
    if config.get("merge_mode") == "sum":  # the weights are the same
        config["merge_mode"] = "concat"
    inside = config.get("config")
    name = inside.get("name") if isinstance(inside, dict) else None
    if isinstance(name, str) and name in kinds:
        config |= {"class_name": kinds[name], "module": "keras.layers", "registered_name": None}
    return config
