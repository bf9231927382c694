"""One recurrent layer from any framework's layout to any other's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Node
from onernn.core.rnn import Recurrent
from onernn.reorders.layers import PivotLayer
from onernn.reorders.layouts import framework


def convert_weights(
    layer: Any, to: str, *, source: str | None = None, **options: Any
) -> dict[str, Array]:
    """A layer's arrays by the names of another framework, exact wherever that can say them.

    ``layer``: a `PivotLayer`; (spec, weights); an "Rnn" node of a graph; a torch.nn.RNN, LSTM, GRU
    or cell of these; a built keras SimpleRNN, LSTM, GRU or Bidirectional; or arrays by name, whose
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


def _from_keras(layer: Any) -> PivotLayer:
    kind = type(layer).__name__
    if kind == "Bidirectional":
        if layer.merge_mode not in ("concat", "sum"):
            raise UnsupportedError(f"Bidirectional: merge_mode={layer.merge_mode!r}")
        arrays: dict[str, Array] = {}
        for side, one in (("forward", layer.forward_layer), ("backward", layer.backward_layer)):
            arrays |= {f"{side}/{name}": value for name, value in _keras_arrays(one).items()}
        return framework("keras").read(
            arrays, merge=f"bidirectional_{layer.merge_mode}", **_keras_options(layer.forward_layer)
        )
    if layer.go_backwards:
        raise UnsupportedError("go_backwards gives its steps in the order it went")
    return framework("keras").read(_keras_arrays(layer), **_keras_options(layer))


def _keras_arrays(layer: Any) -> dict[str, Array]:
    names = ("kernel", "recurrent_kernel", "bias")
    return dict(zip(names, map(np.asarray, layer.get_weights()), strict=False))


def _keras_options(layer: Any) -> dict[str, Any]:
    kind, function = type(layer).__name__, getattr(layer.activation, "__name__", "")
    if kind == "SimpleRNN":
        return {"function": function}
    gate = getattr(layer.recurrent_activation, "__name__", "")
    if kind not in ("GRU", "LSTM") or (gate, function) != ("sigmoid", "tanh"):
        raise UnsupportedError(f"Keras {kind} with {gate} and {function}")
    return {"reset_after": bool(layer.reset_after)} if kind == "GRU" else {}
