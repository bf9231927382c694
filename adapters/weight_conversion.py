"""One recurrent layer from any framework's layout to any other's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Node
from onernn.core.rnn import Recurrent
from onernn.core.spec import RnnSpec
from onernn.reorders.layers import PivotLayer
from onernn.reorders.layouts import framework


def convert_weights(
    layer: Any, to: str, *, source: str | None = None, **options: Any
) -> dict[str, Array]:
    """A layer's arrays by the names of another framework, exact wherever that can say them.

    ``layer``: a `PivotLayer`; (spec, weights); an "Rnn" node of a graph; a torch.nn.RNN, LSTM, GRU
    or cell of these; a built keras SimpleRNN, LSTM, GRU, RNN of their cells or Bidirectional, or a
    model of Keras with one such layer or, a Sequential, one stack of them; or arrays by name, whose
    layout ``source`` names. ``to`` and ``source``: a name of `reorders.layouts.FRAMEWORKS`.
    ``options`` go to the reader of ``source``, see `read_layer`.

    Raises `UnsupportedError` naming what the target cannot say, `ShapeError` naming an array.
    """
    return framework(to).write(read_layer(layer, source, **options))


def read_layer(layer: Any, source: str | None = None, **options: Any) -> PivotLayer:
    """The layer in the pivot; ``options`` are those of the ``read`` of its layout's module."""
    if isinstance(layer, Mapping):
        if source is None:
            raise UnsupportedError("arrays by name: their layout is missing, give source=")
        return framework(source).read(layer, **options)
    if source is not None or options:
        raise UnsupportedError(f"source and options belong to arrays by name, not to {type(layer)}")
    if isinstance(layer, PivotLayer):
        return layer
    if isinstance(layer, tuple) and len(layer) == 2:
        return PivotLayer.of(*layer)
    if isinstance(layer, Node) and layer.op == "Rnn":
        rnn = Recurrent.of(layer)
        return PivotLayer.of(rnn.spec, rnn.weights)
    home = type(layer).__module__.partition(".")[0]
    if home == "torch":
        return _from_torch(layer)
    if home in ("keras", "tf_keras", "tensorflow"):
        return _from_keras(layer)
    raise UnsupportedError(f"expected a recurrent layer, got {type(layer).__qualname__}")


def _from_torch(layer: Any) -> PivotLayer:
    known = ("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell")
    if type(layer).__name__ not in known:
        raise UnsupportedError(f"expected one of torch.nn's {', '.join(known)}, got {layer}")
    state = {name: value.detach().cpu().numpy() for name, value in layer.state_dict().items()}
    plain = type(layer).__name__.startswith("RNN")
    return framework("torch").read(state, **({"nonlinearity": layer.nonlinearity} if plain else {}))


_KERAS = ("SimpleRNN", "LSTM", "GRU", "RNN", "Bidirectional")
_RESTING = ("Dropout", "SpatialDropout1D", "GaussianDropout", "GaussianNoise", "InputLayer")
"""Layers that do nothing at inference: those around them are one stack."""


def _from_keras(layer: Any) -> PivotLayer:
    kind = type(layer).__name__
    if kind == "Bidirectional":
        return _keras_directions(layer)
    if kind not in _KERAS:
        return _keras_stack(layer)
    if layer.go_backwards:
        raise UnsupportedError("go_backwards gives its steps in the order it went")
    cells = layer.cell.cells if hasattr(layer.cell, "cells") else [layer.cell]
    return _as_one(layer.name, [_keras_cell(cell) for cell in cells])


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
    found = [at for at, each in enumerate(listed) if type(each).__name__ in _KERAS]
    told = f"{getattr(model, 'name', model)} ({type(model).__name__})"
    if not found:
        known = ", ".join(_KERAS)
        raise UnsupportedError(f"{told}: expected one of {known}, or a model with such layers")
    inner = listed[found[0] : found[-1] + 1]
    others = [e.name for e in inner if type(e).__name__ not in (*_KERAS, *_RESTING)]
    if len(found) > 1 and (others or type(model).__name__ != "Sequential"):
        names = ", ".join(repr(listed[at].name) for at in found)
        raise UnsupportedError(
            f"{told}: layers {names} are no stack; give one, model.get_layer(name)"
        )
    return _as_one(told, [_from_keras(listed[at]) for at in found])


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
                f"{name}: layer {k} is no part of one stack: expected {_told(want)},"
                f" got {_told(spec)}"
            )
    return PivotLayer.of(whole, [weights for _, weights in layers])


def _told(spec: RnnSpec) -> str:
    return f"{spec.cell.name} {spec.input_size}->{spec.hidden_size} {spec.direction}"


def _keras_cell(cell: Any) -> PivotLayer:
    return framework("keras").read(_keras_arrays(cell), **_keras_options(cell))


def _keras_arrays(cell: Any) -> dict[str, Array]:
    arrays = [np.asarray(array) for array in cell.get_weights()]
    if not arrays:
        raise UnsupportedError(f"{cell.name}: it has no weights yet; call it, or build it")
    return dict(zip(("kernel", "recurrent_kernel", "bias"), arrays, strict=False))


def _keras_options(cell: Any) -> dict[str, Any]:
    kind = type(cell).__name__.removesuffix("Cell")
    if kind not in ("SimpleRNN", "LSTM", "GRU"):
        raise UnsupportedError(f"{cell.name}: expected a cell of Keras, got {type(cell).__name__}")
    function = getattr(cell.activation, "__name__", "")
    if kind == "SimpleRNN":
        return {"function": function}
    gate = getattr(cell.recurrent_activation, "__name__", "")
    if (gate, function) != ("sigmoid", "tanh"):
        raise UnsupportedError(f"Keras {kind} with {gate} and {function}")
    return {"reset_after": bool(cell.reset_after)} if kind == "GRU" else {}
