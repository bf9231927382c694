"""A model's digest: the same for the same graph and weights, wherever its files lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from onernn.core.graph import Graph


def digest(model: Graph) -> str:
    """SHA-256 of all that decides what the model computes."""
    found = sha256()
    for part in (model.inputs, model.outputs, model.nodes, dict(model.constants)):
        _add(part, found.update)
    return found.hexdigest()


def _add(value: Any, update: Any) -> None:
    """Each value with its type and length in front, so that no two run into each other."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.ascontiguousarray(value)
        update(f"{array.dtype.str}{array.shape}".encode())
        update(array.tobytes() if array.dtype.hasobject else array.reshape(-1).view(np.uint8))
        return
    if isinstance(value, Mapping):
        value = {str(key): each for key, each in sorted(value.items(), key=lambda i: str(i[0]))}
        parts: list[Any] = [part for item in value.items() for part in item]
    elif is_dataclass(value):
        parts = [getattr(value, field.name) for field in fields(value) if field.name != "origin"]
    elif isinstance(value, list | tuple):
        parts = list(value)
    elif isinstance(value, set | frozenset):
        parts = sorted(value, key=str)
    else:
        update(f"{type(value).__name__} {value!r};".encode(errors="surrogatepass"))
        return
    update(f"{type(value).__name__} {len(parts)}:".encode())
    for part in parts:
        _add(part, update)
