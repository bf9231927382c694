"""Converts files of Keras 1 to the form of Keras 2: the options of layers, and the names of
weights.

Sources: keras/legacy/interfaces.py and preprocess_weights_for_loading of Keras 2, which reads the
files of Keras 1 in this way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from onernn.adapters.common.files import pairs
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError

_MERGES = pairs("concat=Concatenate sum=Add mul=Multiply ave=Average max=Maximum")
_ALL = pairs("bias=use_bias border_mode=padding")
_CELL = pairs("output_dim=units inner_activation=recurrent_activation")
_RENAMED = {
    "Dense": pairs("output_dim=units"),
    "TimeDistributedDense": pairs("output_dim=units"),
    "SimpleRNN": _CELL,
    "LSTM": _CELL,
    "GRU": _CELL,
    "MaxPooling1D": pairs("pool_length=pool_size stride=strides"),
    "AveragePooling1D": pairs("pool_length=pool_size stride=strides"),
    "UpSampling1D": pairs("length=size"),
}
_OF_TRAINING = frozenset(
    """init inner_init forget_bias_init W_regularizer U_regularizer b_regularizer gamma_regularizer
    beta_regularizer W_constraint U_constraint b_constraint dropout_W dropout_U consume_less p sigma
    weights""".split()
)
_ORDERINGS = pairs("tf=channels_last th=channels_first")


def upgrade(config: Any) -> Any:
    """Returns the configuration of a model or layer, and of the layers inside it, in the form of
    Keras 2.
    """
    if isinstance(config, list):
        return [upgrade(each) for each in config]
    if not isinstance(config, dict):
        return config
    kind, inside = config.get("class_name"), config.get("config")
    if not isinstance(kind, str) or not isinstance(inside, dict | list):
        return {name: upgrade(each) for name, each in config.items()}
    if isinstance(inside, list):  # a Sequential
        return {**config, "config": upgrade(inside)}
    named = {**_ALL, **_RENAMED.get(kind, {})}
    options: dict[str, Any] = {
        named.get(name, str(name)): upgrade(each)
        for name, each in inside.items()
        if name not in _OF_TRAINING
    }
    if "dim_ordering" in options:
        ordering = options.pop("dim_ordering")
        options["data_format"] = _ORDERINGS.get(ordering, ordering)
    if "input_dtype" in options:  # the layer does not compute in an integer type
        dtype = options.pop("input_dtype")
        if kind == "InputLayer" or str(dtype).startswith("float"):
            options["dtype"] = dtype
    return {**config, **_layer(kind, options)}


def _layer(kind: str, options: dict[str, Any]) -> dict[str, Any]:
    """Returns Keras 2's class and configuration of a layer whose options already have Keras 2's
    names.
    """
    if kind == "Merge":
        mode = options.pop("mode", None)
        if mode not in _MERGES or options.pop("mode_type", "raw") != "raw":
            return {
                "class_name": f"Merge of {mode!r:.50}",
                "config": {"trainable": True, **options},
            }
        own = {"name": options.get("name"), "trainable": True}
        axis = {"axis": options.get("concat_axis", -1)} if mode == "concat" else {}
        return {"class_name": _MERGES[mode], "config": {**own, **axis}}
    if kind == "TimeDistributedDense":
        dense = {"class_name": "Dense", "config": options}
        own = {
            name: each for name, each in options.items() if name in ("name", "batch_input_shape")
        }
        return {"class_name": "TimeDistributed", "config": {**own, "layer": dense}}
    if kind == "BatchNormalization" and options.pop("mode", 0) != 0:
        kind = "BatchNormalization of a mode other than 0"
    if kind in ("Convolution1D", "AtrousConvolution1D", "Convolution2D"):
        # Theano reverses kernels before it applies them, and a file of Keras 1 does not state its
        # backend.
        kind = f"{kind} of Keras 1 (its backend decides what it computes: save it with Keras 2)"
    return {"class_name": kind, "config": options}


# Weights: "lstm_1_W_i" and eleven others become lstm_1/kernel, recurrent_kernel and bias.

_NAME = re.compile(r"(.+)_(W|U|b|gamma|beta|running_mean|running_std|alphas)(?:_([a-z]))?(?::0)?")
_NEW = pairs(
    """
    W=kernel U=recurrent_kernel b=bias gamma=gamma beta=beta running_mean=moving_mean
    running_std=moving_variance alphas=alpha
    """
)


def kinds_of(config: Any) -> Iterator[tuple[str, str]]:
    """Yields the name and the class of each layer of a configuration."""
    if isinstance(config, dict):
        inside = config.get("config")
        if isinstance(inside, dict | list) and isinstance(config.get("class_name"), str):
            named = inside if isinstance(inside, dict) else {}
            yield str(config.get("name") or named.get("name")), config["class_name"]
        config = [*config.values()]
    if isinstance(config, list):
        for each in config:
            yield from kinds_of(each)


def upgrade_weights(
    entries: Sequence[tuple[str, Array]], kinds: Mapping[str, str]
) -> list[tuple[str, Array]]:
    """Returns the weights of a layer with Keras 2's names; the weights of all gates are joined.

    ``kinds``: the classes of the model's layers by their names. Raises `UnsupportedError` that
    names a weight of an unknown form.
    """
    layers: dict[str, dict[str, dict[str, Array]]] = {}
    for path, array in entries:
        match = _NAME.fullmatch(path.rpartition("/")[2])
        if match is None:
            raise UnsupportedError(f"weight {path!r}: expected a name like lstm_1_W_i, of Keras 1")
        layers.setdefault(match[1], {}).setdefault(match[2], {})[match[3] or ""] = array
    result = []
    for layer, arrays in layers.items():
        names = _NEW | {"W": "embeddings"} if kinds.get(layer) == "Embedding" else _NEW
        result += [
            (f"{layer}/{names[name]}", _join(layer, gates)) for name, gates in arrays.items()
        ]
    return result


def _join(layer: str, gates: Mapping[str, Array]) -> Array:
    if [*gates] == [""]:
        return gates[""]
    order = next((each for each in ("ifco", "zrh") if {*each} == {*gates}), None)
    if order is None:
        expected = "expected weights of the gates i, f, c, o or z, r, h"
        raise UnsupportedError(f"{layer}: {expected}, got {', '.join(gates)}")
    return np.concatenate([gates[gate] for gate in order], axis=-1)
