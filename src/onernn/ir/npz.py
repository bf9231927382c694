"""Arrays of an ``.npz``: a size is believed only where the bytes for it are there."""

from __future__ import annotations

import math
from typing import Any
from zipfile import ZipFile, ZipInfo

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.budget import LOADING, Budget

_MOST_PACKED = 100
"""Bytes that a packed one may become, beyond what is always allowed; numbers give 1 to 20."""
_PIECE = 2**20


def most_unpacked(packed: int) -> int:
    """What so many packed bytes may become: of a member, and of a file, whose members overlap."""
    return LOADING + _MOST_PACKED * packed


def read_member(archive: ZipFile, member: ZipInfo, budget: Budget) -> Array:
    """The array of a member; nothing else of the file is read.

    Raises `BudgetError`, and `ValueError`, or what zipfile does, for what is none.
    """
    size, name = member.file_size, member.filename
    if size > most_unpacked(member.compress_size):
        raise ValueError(
            f"{name}: {member.compress_size:,} bytes would become {size:,}; store it uncompressed"
        )
    budget.take(size, name)
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        header: Any = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if header is None:
            raise ValueError(f"{name}: npy version {version}")
        shape, fortran, dtype = header(stream)
        if dtype.hasobject or not dtype.itemsize or min(shape, default=0) < 0:
            raise ValueError(f"{name}: an array of {dtype} {shape}")
        if math.prod(max(axis, 1) for axis in shape) * dtype.itemsize > max(size, LOADING):
            raise ValueError(f"{name}: an array of {dtype} {shape} in {size} bytes")
        flat = np.empty(math.prod(shape), dtype)
        left = flat.view(np.uint8).data
        while left:
            piece = stream.read(min(len(left), _PIECE))
            if not piece:
                raise ValueError(f"{name}: {len(left)} of {flat.nbytes} bytes are missing")
            left[: len(piece)] = piece
            left = left[len(piece) :]
    return flat.reshape(shape, order="F" if fortran else "C")
