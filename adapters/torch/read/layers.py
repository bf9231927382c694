"""The recurrent layers among the tensors of a file, told by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from onernn.adapters.torch.read.saved import read_arrays
from onernn.core.arrays import Array
from onernn.core.errors import OnernnError, UnsupportedError
from onernn.reorders import torch
from onernn.reorders.layers import PivotLayer

_NAME = re.compile(r"(?:(.*)\.)?((?:weight|bias)_(?:ih|hh|hr)(?:_l\d+(?:_reverse)?)?)")


def read_layers(path: str | Path) -> dict[str, PivotLayer]:
    """The stacks of a file of weights by the names of their modules, "encoder.lstm"; "" is the
    file's own. A plain RNN counts as one with tanh: weights do not tell.

    Raises what `read_arrays` does, `UnsupportedError` where the file has no such layer, and
    `ShapeError` naming a module whose arrays do not fit.
    """
    layers = layers_among(read_arrays(path))
    if not layers:
        raise UnsupportedError(
            f"{path}: no recurrent layer: expected names as PyTorch's, weight_ih_l0, weight_hh_l0"
        )
    return layers


def layers_among(arrays: Mapping[str, Array]) -> dict[str, PivotLayer]:
    modules: dict[str, dict[str, Array]] = {}
    for name, array in arrays.items():
        if found := _NAME.fullmatch(name):
            wide = array.astype(np.float32) if array.dtype == np.float16 else array
            modules.setdefault(found[1] or "", {})[found[2]] = wide
    layers = {}
    for module, named in modules.items():
        try:
            layers[module] = torch.read(named)
        except OnernnError as error:
            error.args = (f"{module or 'the file'}: {error}", *error.args[1:])
            raise
    return layers
