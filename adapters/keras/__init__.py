"""Keras: models in ``.keras`` and ``.h5`` files, of Keras 2 and 3; no framework is needed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from onernn.adapters.common.adapter import Adapter, Runtime, StrPath
from onernn.ir.errors import UnsupportedError

if TYPE_CHECKING:
    from onernn.ir.graph import Graph
    from onernn.ir.ragged import Batch

_SUFFIXES = (".keras", ".h5", ".hdf5")


def _reads(path: StrPath) -> bool:
    return Path(path).suffix.lower() in _SUFFIXES


def _load(path: StrPath, params: StrPath | None, _: str) -> Graph:
    from onernn.adapters.keras.lower import load_keras

    if params is not None:
        raise UnsupportedError("params: the weights of a Keras model are in its file")
    return load_keras(path)


def _run(path: str, params: str, feed: Mapping[str, Batch]) -> list[Batch]:
    from onernn.adapters.keras.run_model import run_model

    return run_model(path, params, feed)


ADAPTER = Adapter(
    name="Keras",
    files="a .keras or .h5",
    reads=_reads,
    load=_load,
    runtime=Runtime(name="keras", packages=("keras", "tf_keras"), extra="keras-live", run=_run),
)
