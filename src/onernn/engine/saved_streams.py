"""Saves states of streams as bytes, for later or for another process.

The format begins with eight bytes that identify it, the digest of the model, and a checksum of the
rest. Little-endian integers of 64 bits follow: the number of streams, and their ids. Then come the
states in the order of the model. Each state has the rows of all streams. If the sizes of a state
change, the sizes come before the state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import sha256

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import ModelFormatError, ShapeError
from onernn.ir.types import Counts

_MAGIC = b"onernnS\1"
_HEAD = len(_MAGIC) + 2 * 32

States = Mapping[str, Sequence[Array]]
"""For each state by name, the arrays of some streams."""


def write_states(model: str, ids: Sequence[int], states: States, growing: frozenset[str]) -> bytes:
    """Returns streams as bytes. ``model``: the model's digest; ``growing``: see `Stateful`."""
    parts = [np.array([len(ids), *ids], "<i8").tobytes()]
    for name, arrays in states.items():
        for array in arrays:
            if name in growing:
                parts.append(np.array(array.shape, "<i8").tobytes())
            parts.append(array.tobytes())
    body = b"".join(parts)
    return b"".join([_MAGIC, bytes.fromhex(model), sha256(body).digest(), body])


def read_states(
    saved: bytes,
    model: str,
    first: Mapping[str, Array],
    growing: Mapping[str, Counts],
) -> tuple[list[int], dict[str, list[Array]]]:
    """Returns the ids of saved streams and their states.

    ``first``: arrays with the dtypes and shapes of the states. ``growing``: the declared shapes of
    the states whose open sizes change. Raises `ModelFormatError` if the bytes are something else,
    belong to a different model, or have changed, and `ShapeError` if ``saved`` is not a bytes
    object.
    """
    if not isinstance(saved, bytes | bytearray | memoryview):
        raise ShapeError(f"saved streams: expected bytes, got {type(saved).__name__}")
    content = bytes(saved)
    if len(content) < _HEAD or not content.startswith(_MAGIC):
        raise _wrong("expected bytes that Streams.save returned")
    of, checksum, body = content[8:40], content[40:72], content[72:]
    if of.hex() != model:
        raise _wrong(
            f"expected the model {model[:12]}, got {of.hex()[:12]}: a different model, or a version"
            " of onernn that fuses it in a different way"
        )
    if sha256(body).digest() != checksum:
        raise _wrong("damaged: the checksum does not match")
    reader = _Reader(body)
    (count,) = reader.integers(1)
    ids = reader.integers(count)
    if len(set(ids)) < count:
        raise _wrong("damaged: expected each stream once")
    states = {
        name: [reader.array(array, growing.get(name)) for _ in ids] for name, array in first.items()
    }
    reader.end()
    return ids, states


def _wrong(why: str) -> ModelFormatError:
    return ModelFormatError(f"saved streams: {why}")


class _Reader:
    """Reader of integers and arrays from bytes, which checks every count."""

    def __init__(self, body: bytes) -> None:
        self._body, self._at = body, 0

    def _take(self, count: int, dtype: np.dtype) -> Array:
        if not 0 <= count <= (len(self._body) - self._at) // max(dtype.itemsize, 1):
            raise _wrong(f"damaged: expected {count} values, got fewer")
        result = np.frombuffer(self._body, dtype, count, self._at)
        self._at += result.nbytes
        return result

    def integers(self, count: int) -> list[int]:
        result: list[int] = self._take(count, np.dtype("<i8")).tolist()
        return result

    def array(self, like: Array, declared: Counts | None) -> Array:
        """Returns the next array, in the dtype and shape of ``like``; ``declared``: the declared
        shape of a state whose open sizes change from call to call.
        """
        shape = like.shape
        if declared is not None:
            shape = tuple(self.integers(like.ndim))
            pairs = zip(declared, shape, strict=True)
            if min(shape, default=0) < 0 or any(a not in (None, b) for a, b in pairs):
                raise _wrong(f"damaged: expected a state of sizes {declared}, got {shape}")
        numbers = self._take(math.prod(shape), like.dtype)
        if like.dtype.kind == "b" and numbers.view("u1").max(initial=0) > 1:
            raise _wrong("damaged: expected 0 or 1 as a boolean")
        return numbers.reshape(shape)

    def end(self) -> None:
        if self._at < len(self._body):
            raise _wrong("damaged: expected no bytes after the streams")
