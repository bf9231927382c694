"""The Keras adapter: it reads models in ``.keras`` and ``.h5`` files, or in ``.json`` with weights
in ``.h5``.

Files of Keras 1 to 3 are read without a framework.
"""

from __future__ import annotations

from pathlib import Path

from onernn.adapters.common.adapter import Adapter, Runtime, StrPath, defer

_WEIGHTS = (".h5", ".hdf5")
_SUFFIXES = (".keras", *_WEIGHTS)


_START = 2**16


def _reads(path: StrPath) -> bool:
    """Returns whether the file contains a Keras model. ``.json`` files of other frameworks have no
    "class_name".
    """
    suffix = Path(path).suffix.lower()
    if suffix != ".json" or not Path(path).is_file():
        return suffix in _SUFFIXES
    with open(path, "rb") as stream:
        start = stream.read(_START)
    return b'"class_name"' in start and b'"config"' in start


ADAPTER = Adapter(
    name="Keras",
    files="a .keras or .h5, or a .json with weights in .h5",
    reads=_reads,
    load=defer("keras.lower.load_keras"),
    weights=dict.fromkeys(_WEIGHTS, defer("keras.read.read_weights")),
    layers_among=defer("keras.read.layers_among"),
    runtime=Runtime(
        name="keras",
        packages=("keras", "tf_keras"),
        extra="keras-live",
        run=defer("keras.run_model.run_model"),
    ),
)
