"""Finds the adapter for a file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from onernn.adapters.mxnet.lower import load_mxnet
from onernn.adapters.mxnet.read import is_symbol
from onernn.adapters.onnx.lower import load_onnx
from onernn.adapters.paddle.lower import load_paddle
from onernn.adapters.unread_files import refuse_unread
from onernn.core.budget import budget_of_load
from onernn.core.errors import BudgetError, ModelFormatError, UnsupportedError
from onernn.core.graph import Graph
from onernn.core.guard import guarded

Semantics = Literal["documented", "mxnet-cpu"]


def load(
    path: str | Path, params: str | Path | None = None, semantics: Semantics = "documented"
) -> Graph:
    """The model in a file or folder, lowered to canonical operators; nothing is run.

    ``path``: a Paddle folder, ``.pdmodel`` or ``__model__``; an MXNet ``-symbol.json``, its folder
    or the prefix of its name; an ``.onnx`` file. ``params``: the parameters' file or folder, where
    it is not beside the model under its usual name. ``semantics`` chooses between what an operator
    documents and what its framework computed, where these differ.

    Raises `ModelFormatError` for a file that is no model, `UnsupportedError` for a kind that is
    not read, telling what to do. An operator nobody knows raises only when the model is to be run.
    """
    if semantics not in get_args(Semantics):
        raise ValueError(f"semantics: expected one of {get_args(Semantics)}, got {semantics!r}")
    try:
        with guarded(lambda: path), budget_of_load():
            return _load(path, params, semantics)
    except BudgetError as error:
        raise BudgetError(f"{path}: {error}") from error
    except OSError as error:
        raise ModelFormatError(f"cannot be read: {error.strerror or error}", path) from error


def _load(path: str | Path, params: str | Path | None, semantics: str) -> Graph:
    refuse_unread(path)
    if is_symbol(path):
        return load_mxnet(path, params, semantics)
    if str(path).endswith(".onnx"):
        if params is not None:
            raise UnsupportedError("params: the parameters of an ONNX model are named in the model")
        return load_onnx(path)
    return load_paddle(path, params)
