"""A Keras model from its file: ``.keras``, a zip archive, or ``.h5``."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

from onernn.adapters.keras.read import hdf5
from onernn.adapters.keras.read.configuration import Network, outermost
from onernn.adapters.keras.read.weights import Flat, Lists, Tree, Weights
from onernn.core.arrays import Array
from onernn.core.budget import loading
from onernn.core.errors import ModelFormatError
from onernn.core.npz import most_unpacked
from onernn.core.records import dataclass


@dataclass(frozen=True, eq=False)
class Model:
    """A saved model; ``major``: of the Keras that wrote it, 2 or 3."""

    file: Path
    network: Network
    major: int


def read_model(path: str | Path) -> Model:
    """The model in a file. Raises `ModelFormatError` for what is none."""
    file = Path(path)
    if not os.path.isfile(file):
        raise ModelFormatError("no such file", file)
    loading().reads(os.stat(file))
    with open(file, "rb") as stream:
        magic = stream.read(4)
    if magic[:2] == b"PK":
        return _archive(file)
    return _legacy(file)


def _archive(file: Path) -> Model:
    try:
        with zipfile.ZipFile(file) as archive:
            said = _json(_member(archive, "metadata.json"), file)
            config = _json(_member(archive, "config.json"), file)
            weights = _member(archive, "model.weights.h5")
    except (zipfile.BadZipFile, KeyError, ValueError, NotImplementedError, RuntimeError) as error:
        raise ModelFormatError(f"not a Keras model: {str(error)[:200]}", file) from error
    except (EOFError, zlib.error) as error:
        raise ModelFormatError("not a Keras model: the archive is damaged", file) from error
    with tempfile.NamedTemporaryFile(suffix=".h5") as stream:
        stream.write(weights)
        stream.flush()
        held = hdf5.read(stream.name, file)
    version = said.get("keras_version") if isinstance(said, dict) else None
    return _model(file, config, version, Tree(held.arrays))


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    member = archive.getinfo(name)
    if member.file_size > most_unpacked(member.compress_size):
        raise ValueError(
            f"{name}: {member.compress_size:,} bytes would become {member.file_size:,}"
        )
    loading().take(member.file_size, name)
    with archive.open(member) as stream:
        return stream.read(member.file_size)


def _json(data: bytes | str, file: Path) -> Any:
    data = data.encode() if isinstance(data, str) else data
    loading().parses_json(data)
    try:
        whole = json.loads(data)
        json.dumps(whole, ensure_ascii=False).encode()  # "\\ud800" is JSON, but no text
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"not a Keras model: {str(error)[:200]}", file) from error
    return whole


def _legacy(file: Path) -> Model:
    held = hdf5.read(file, file)
    told = held.texts.get("@model_config")
    if not told:
        raise ModelFormatError(
            "weights without a model: give the file that model.save() wrote, not"
            " model.save_weights()",
            file,
        )
    lists = {}
    for name in held.listed("model_weights", "layer_names"):
        root = f"model_weights/{name}"
        paths = held.listed(root, "weight_names")
        lists[name] = Flat([(path, _named(held, f"{root}/{path}", file)) for path in paths])
    version = "".join(held.texts.get("@keras_version", ()))
    return _model(file, _json(told[0], file), version, Lists(lists))


def _named(held: hdf5.Held, path: str, file: Path) -> Array:
    if path not in held.arrays:
        raise ModelFormatError(f"no weight {path!r}", file)
    return held.arrays[path]


def _model(file: Path, config: Any, version: Any, weights: Weights) -> Model:
    major = str(version).partition(".")[0]
    if major not in ("2", "3"):
        raise ModelFormatError(f"written by Keras {version}; Keras 2 and 3 are read", file)
    return Model(file, outermost(config, weights, int(major), file), int(major))
