"""Finds who knows the faults of the framework that saved a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onernn.adapters.fault import Suspect
from onernn.adapters.mxnet import faults as mxnet
from onernn.adapters.mxnet.read import is_symbol
from onernn.adapters.paddle import faults as paddle
from onernn.adapters.paddle.read import read_program
from onernn.adapters.unread_files import refuse_unread
from onernn.core.errors import UnsupportedError


def suspect(path: str | Path, params: str | Path | None = None) -> Suspect[Any]:
    """A saved model with the known faults of its framework; ``path`` and ``params`` as in `load`.

    Raises `ModelFormatError` for a file that is no model, `UnsupportedError` for a kind of which no
    faults are known.
    """
    refuse_unread(path)
    if is_symbol(path):
        return mxnet.suspect(path, params)
    if str(path).endswith(".onnx"):
        raise UnsupportedError(f"{path}: only Paddle's and MXNet's faults are known, not ONNX's")
    return paddle.suspect(read_program(path, params))
