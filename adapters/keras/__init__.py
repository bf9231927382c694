"""Keras: models in ``.keras`` and ``.h5`` files, of Keras 2 and 3; no framework is needed."""

from __future__ import annotations

from pathlib import Path

from onernn.adapters.common.adapter import Adapter, Runtime, StrPath, defer

_WEIGHTS = (".h5", ".hdf5")
_SUFFIXES = (".keras", *_WEIGHTS)


def _reads(path: StrPath) -> bool:
    return Path(path).suffix.lower() in _SUFFIXES


ADAPTER = Adapter(
    name="Keras",
    files="a .keras or .h5",
    reads=_reads,
    load=defer("keras.lower.load_keras"),
    no_params="the weights of a Keras model are in its file",
    weights=dict.fromkeys(_WEIGHTS, defer("keras.read.read_weights")),
    layers_among=defer("keras.read.layers_among"),
    runtime=Runtime(
        name="keras",
        packages=("keras", "tf_keras"),
        extra="keras-live",
        run=defer("keras.run_model.run_model"),
    ),
)
