"""One recurrent layer from any framework's layout to any other's."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from onernn.adapters.stacks import stacks_of
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import Graph, Node, names_recurrence
from onernn.ir.rnn import Recurrent
from onernn.ir.spec import RnnSpec
from onernn.reorders.layers import PivotLayer
from onernn.reorders.layouts import framework

T = TypeVar("T")


def convert_weights(
    layer: Any, to: str, *, source: str | None = None, **options: Any
) -> dict[str, Array]:
    """A layer's arrays by the names of another framework, exact wherever that can say them.

    ``layer``: a `PivotLayer`; (spec, weights); an "Rnn" node of a graph; a graph with one stack of
    layers; a torch.nn.RNN, LSTM, GRU or cell of these, or a module with one; a built keras
    SimpleRNN, LSTM, GRU, RNN of their cells or Bidirectional, or a model of Keras with one such
    layer or, a Sequential, one stack of them; a subclass of these; or arrays, parameters or tensors
    by name, as a dict or as ``named_parameters()`` gives them, whose layout ``source`` names, for
    tensors of PyTorch "torch" by default. Halves (bfloat16, float16) come out as float32, exactly.
    ``to`` and ``source``: a name of `reorders.layouts.FRAMEWORKS`. ``options`` go to the reader of
    ``source``, see `read_layer`.

    Raises `UnsupportedError` naming what the target cannot say, `ShapeError` naming an array.
    """
    return framework(to).write(read_layer(layer, source, **options))


def read_layer(layer: Any, source: str | None = None, **options: Any) -> PivotLayer:
    """The layer in the pivot; ``options`` are those of the ``read`` of its layout's module."""
    if isinstance(layer, Mapping | Iterator):
        return _from_arrays(dict(layer), source, options)
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
        stacks = stacks_of(layer)
        if stacks.omitted:
            raise UnsupportedError(
                f"{layer.name}: give one of its Rnn nodes: besides {', '.join(map(repr, stacks))}"
                " it has recurrent layers that cannot be read:",
                stacks.omitted,
            )
        return _only(stacks, f"{layer.name}: give one of its Rnn nodes, or onernn weights --node")
    homes = {_home(kind) for kind in type(layer).__mro__}
    if homes & _KERAS_HOMES:  # before PyTorch, whose modules Keras's layers are on that backend
        return _from_keras(layer)
    if "torch" in homes:
        return _from_torch(layer)
    raise UnsupportedError(f"expected a recurrent layer, got {type(layer).__qualname__}")


def _only(layers: Mapping[str, T], where: str) -> T:
    if len(layers) != 1:
        names = ", ".join(map(repr, layers)) or "none"
        raise UnsupportedError(f"expected one recurrent layer, got {names}; {where}")
    return next(iter(layers.values()))


def _home(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _kind(layer: Any, homes: Collection[str], names: Collection[str]) -> str:
    """Which of these classes of a framework an object is of, or a user's subclass; "" if none.

    A subclass of the framework's own, as Keras's ConvRNN of RNN, is another layer.
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
    arrays = {name: _array(each) for name, each in arrays.items()}
    if source == "torch":  # of a module around the layer: "encoder.lstm.weight_hh_l0"
        places = (name.rpartition(".") for name in arrays)
        modules = {module: "" for module, _, name in places if name.startswith("weight_hh")}
        if any(modules):
            _only(modules, "give the parameters of one module")
            (module,) = modules
            mark = f"{module}."
            arrays = {k.removeprefix(mark): a for k, a in arrays.items() if k.startswith(mark)}
    return framework(source).read(arrays, **options)


def _array(value: Any) -> Array:
    """A tensor, variable or array in NumPy; halves are widened, which is exact."""
    if hasattr(value, "detach"):  # a tensor of PyTorch: NumPy has no bfloat16
        value = value.detach().cpu()
        value = (value.float() if value.element_size() == 2 else value).numpy()
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.name in ("bfloat16", "float16") else array


_TORCH = ("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell")


def _from_torch(layer: Any) -> PivotLayer:
    kind = _kind(layer, ("torch",), _TORCH)
    if not kind:
        modules = layer.named_modules() if hasattr(layer, "named_modules") else ()
        inner = {
            name: each
            for name, each in modules
            if _kind(each, ("torch",), _TORCH)
            or getattr(each, "original_name", "") in _TORCH  # of a scripted module
            or any(own.startswith("weight_hh") for own in getattr(each, "_parameters", ()))
        }
        if "" in inner:  # it looks like a layer, and is none of PyTorch's
            inner = {}
        problem = f"expected one of torch.nn's {', '.join(_TORCH)}, or a module with one of them"
        return _from_torch(_only(inner, f"{type(layer).__qualname__}: {problem}"))
    state = {name: _array(value) for name, value in layer.state_dict().items()}
    plain = kind.startswith("RNN")
    return framework("torch").read(state, **({"nonlinearity": layer.nonlinearity} if plain else {}))


_KERAS_HOMES = {"keras", "tf_keras", "tensorflow"}
_KERAS = ("SimpleRNN", "LSTM", "GRU", "RNN", "Bidirectional")
_RESTING = ("Dropout", "SpatialDropout1D", "GaussianDropout", "GaussianNoise", "InputLayer")
"""Layers that do nothing at inference: those around them are one stack."""


def _from_keras(layer: Any) -> PivotLayer:
    kind = _keras_kind(layer)
    if kind == "Bidirectional":
        return _keras_directions(layer)
    if not kind:
        return _keras_stack(layer)
    if layer.go_backwards:
        raise UnsupportedError("go_backwards gives its steps in the order it went")
    cells = layer.cell.cells if hasattr(layer.cell, "cells") else [layer.cell]
    read = framework("keras").read
    return _as_one(layer.name, [read(_keras_arrays(c), **_keras_options(c)) for c in cells])


def _keras_kind(layer: Any) -> str:
    return _kind(layer, _KERAS_HOMES, _KERAS)


def _keras_directions(layer: Any) -> PivotLayer:
    if layer.merge_mode not in ("concat", "sum"):
        raise UnsupportedError(f"Bidirectional: merge_mode={layer.merge_mode!r}")
    arrays: dict[str, Array] = {}
    options = []
    for side, one in (("forward", layer.forward_layer), ("backward", layer.backward_layer)):
        if hasattr(one.cell, "cells"):
            raise UnsupportedError(f"{layer.name}: Bidirectional of several cells")
        arrays |= {f"{side}/{name}": value for name, value in _keras_arrays(one.cell).items()}
        options.append(_keras_options(one.cell))
    if options[0] != options[1]:
        raise UnsupportedError(f"{layer.name}: its directions compute different cells")
    return framework("keras").read(arrays, merge=f"bidirectional_{layer.merge_mode}", **options[0])


def _keras_stack(model: Any) -> PivotLayer:
    """The recurrent layers of a Sequential, where they are one stack; the only one of a model."""
    listed = list(getattr(model, "layers", ()))
    result = [at for at, each in enumerate(listed) if _keras_kind(each)]
    label = f"{getattr(model, 'name', model)} ({type(model).__name__})"
    inside = [each for each in _keras_recurrent(model) if not any(each is e for e in listed)]
    if not result and len(inside) == 1 and _keras_kind(inside[0]):
        return _from_keras(inside[0])
    others = [each for each in listed if _names_recurrence(each) and not _keras_kind(each)]
    if not result and not inside:
        known = ", ".join(_KERAS)
        raise UnsupportedError(f"{label}: expected one of {known}, or a model with such layers")
    if inside or others:
        names = ", ".join(
            repr(each.name) for each in (*(listed[at] for at in result), *inside, *others)
        )
        raise UnsupportedError(
            f"{label}: expected one stack of layers, got {names}; give one layer"
        )
    inner = listed[result[0] : result[-1] + 1]
    others = [each for each in inner if not _kind(each, _KERAS_HOMES, (*_KERAS, *_RESTING))]
    if len(result) > 1 and (others or not _kind(model, _KERAS_HOMES, ("Sequential",))):
        names = ", ".join(repr(listed[at].name) for at in result)
        raise UnsupportedError(
            f"{label}: layers {names} are no stack; give one, model.get_layer(name)"
        )
    return _as_one(label, [_from_keras(listed[at]) for at in result])


def _keras_recurrent(layer: Any) -> Iterator[Any]:
    """The recurrent layers inside a layer; what these hold are their own cells."""
    for each in layer._flatten_layers(include_self=False, recursive=False):
        if _names_recurrence(each):
            yield each
        else:
            yield from _keras_recurrent(each)


def _names_recurrence(layer: Any) -> bool:
    return any(names_recurrence(kind.__name__) for kind in type(layer).__mro__)


def _as_one(name: str, stacks: list[PivotLayer]) -> PivotLayer:
    """Stacks behind one another as one. Raises `UnsupportedError` where their layers differ."""
    layers = [
        (replace(spec, layers=1, input_size=spec.reads(k)), each)
        for spec, weights in stacks
        for k, each in enumerate(weights)
    ]
    first = layers[0][0]
    whole = replace(first, layers=len(layers))
    for k, (spec, _) in enumerate(layers):
        want = replace(first, input_size=whole.reads(k))
        if spec != want:
            raise UnsupportedError(
                f"{name}: layer {k} is no part of one stack: expected {_described(want)},"
                f" got {_described(spec)}"
            )
    return PivotLayer.of(whole, [weights for _, weights in layers])


def _described(spec: RnnSpec) -> str:
    return f"{spec.cell.name} {spec.input_size}->{spec.hidden_size} {spec.direction}"


def _keras_arrays(cell: Any) -> dict[str, Array]:
    arrays = [_array(array) for array in cell.get_weights()]
    names = ("kernel", "recurrent_kernel", "bias")
    if not arrays:
        raise UnsupportedError(f"{cell.name}: it has no weights yet; call it, or build it")
    if len(arrays) > len(names):
        raise UnsupportedError(
            f"{cell.name}: expected {', '.join(names)}, got {len(arrays)} arrays"
        )
    return dict(zip(names, arrays, strict=False))


def _keras_options(cell: Any) -> dict[str, Any]:
    kind = _kind(cell, _KERAS_HOMES, ("SimpleRNNCell", "LSTMCell", "GRUCell"))
    # A subclass with its own call may compute more than its weights show.
    if not kind or type(cell).call.__module__.partition(".")[0] not in _KERAS_HOMES:
        raise UnsupportedError(f"{cell.name}: expected a cell of Keras, got {type(cell).__name__}")
    kind = kind.removesuffix("Cell")
    function = getattr(cell.activation, "__name__", "")
    if kind == "SimpleRNN":
        return {"function": function}
    gate = getattr(cell.recurrent_activation, "__name__", "")
    if (gate, function) != ("sigmoid", "tanh"):
        raise UnsupportedError(f"Keras {kind} with {gate} and {function}")
    return {"reset_after": bool(cell.reset_after)} if kind == "GRU" else {}
