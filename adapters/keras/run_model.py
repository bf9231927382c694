"""Runs a model with Keras itself. Files of Keras 2 run with tf_keras if it is installed, else with
keras.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from onernn.adapters.common.adapter import require
from onernn.adapters.keras.lower import load_keras
from onernn.adapters.keras.read import read_model, weights_of
from onernn.ir.ragged import Batch, data_of

_BACKENDS = ("tensorflow", "jax", "torch")


def run_model(path: str, params: str, feed: Mapping[str, Batch]) -> list[Batch]:
    """Returns the outputs in order, followed by the states of stateful layers.

    ``params``: the weights of a ``.json``.

    Custom code in the file is not run. Raises Keras's errors.
    """
    old = read_model(path, params or None).version < (3, 0) and find_spec("tf_keras") is not None
    if not old and "KERAS_BACKEND" not in os.environ:
        there = [name for name in _BACKENDS if find_spec(name)]
        os.environ["KERAS_BACKEND"] = (there or ["numpy"])[0]
    keras = require("tf_keras" if old else "keras", "keras-live")
    if Path(path).suffix.lower() == ".json":
        model = keras.models.model_from_json(Path(path).read_text("utf-8"))
        model.load_weights(weights_of(Path(path), params))
    else:
        model = keras.models.load_model(path, compile=False, safe_mode=True)
    names = [value.name for value in load_keras(path, params or None).inputs]
    given = [np.asarray(data_of(feed[name])) for name in names]
    count = len(model.inputs)
    states = _states(model)
    for state, value in zip(states, given[count:], strict=True):
        state.assign(value)
    made = model(given[:count] if count > 1 else given[0], training=False)
    tensors = [*made] if isinstance(made, list | tuple) else [made]
    if isinstance(made, dict):
        tensors = [made[name] for name in sorted(made)]
    return [_array(each) for each in (*tensors, *states)]


def _array(tensor: Any) -> Any:
    tensor = tensor.detach().cpu() if hasattr(tensor, "detach") else tensor
    return np.asarray(tensor)


def _states(model: Any) -> list[Any]:
    result: list[Any] = []
    for layer in model.layers:
        for one in (getattr(layer, "forward_layer", layer), getattr(layer, "backward_layer", None)):
            if one is not None and getattr(one, "stateful", False):
                states = getattr(one, "states", None)
                result += [each for each in _flat(states) if hasattr(each, "assign")]
    return result


def _flat(nested: Any) -> list[Any]:
    if isinstance(nested, list | tuple):
        return [one for each in nested for one in _flat(each)]
    return [] if nested is None else [nested]
