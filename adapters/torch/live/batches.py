"""A batch as PyTorch has it, and where the kernels find it: nothing is copied."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

from onernn.core.arrays import Int64, frozen


def _keys_of_new() -> int:
    return torch._C._dispatch_keys(torch.empty(0)).raw_repr()


with torch.inference_mode():
    _KEYS = [_keys_of_new()]
_KEYS.append(_keys_of_new())
"""Dispatch keys of tensors that are numbers in this CPU's memory and nothing else."""


def is_plain(tensor: Any) -> bool:
    """Whether it is a tensor of the CPU without anything that watches, wraps or turns it."""
    return isinstance(tensor, torch.Tensor) and (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and torch._C._dispatch_keys(tensor).raw_repr() in _KEYS
    )


class Batch(NamedTuple):
    """Words, and where they stand: layout "lod", "tnc", "ntc" or "packed", as of `onernn.h`.

    ``begin``: of lod and packed. ``order``: the caller's sequences as they are packed, None where
    they are in order. ``whole(y)`` gives what the caller gets, from words like x.
    """

    x: torch.Tensor
    layout: str
    steps: int
    sequences: int
    begin: Int64 | None
    order: torch.Tensor | None
    whole: Callable[[torch.Tensor], Any]


@lru_cache(maxsize=64)
def _begin(batch_sizes: bytes) -> Int64:
    """Where each step begins, and the end; empty where no packed sequence has such steps."""
    sizes = np.frombuffer(batch_sizes, np.int64)
    if not sizes.size or sizes[-1] < 1 or (np.diff(sizes) > 0).any():
        return frozen(np.empty(0, np.int64))
    return frozen(np.concatenate([[0], np.cumsum(sizes)]))


def batch_of(given: Any, batch_first: bool) -> Batch | None:
    """How the kernels read what a module is called with; None where only PyTorch might."""
    if isinstance(given, PackedSequence):
        return _packed(given)
    if isinstance(given, list):
        return _listed(given)
    if isinstance(given, torch.Tensor) and given.is_nested:
        return _jagged(given)
    if not is_plain(given):
        return None
    if given.dim() == 2:
        return Batch(given.contiguous(), "tnc", len(given), 1, None, None, lambda y: y)
    if given.dim() != 3:
        return None
    if not batch_first:
        T, N, _ = given.shape
        return Batch(given.contiguous(), "tnc", T, N, None, None, lambda y: y)
    N, T, _ = given.shape
    return Batch(given.contiguous(), "ntc", T, N, None, None, lambda y: y)


def _packed(given: PackedSequence) -> Batch | None:
    x, sizes, order, back = given
    if not (is_plain(x) and x.dim() == 2 and is_plain(sizes) and sizes.dtype == torch.int64):
        return None
    begin = _begin(sizes.numpy().tobytes())
    if not begin.size or begin[-1] != len(x):
        return None
    return Batch(
        x.contiguous(),
        "packed",
        len(begin) - 1,
        int(begin[1]),
        begin,
        order,
        lambda y: PackedSequence(y, sizes, order, back),
    )


def _listed(given: list[Any]) -> Batch | None:
    """Sequences (T_n, I), which PyTorch's own modules do not take."""
    if not given or not all(is_plain(each) and each.dim() == 2 for each in given):
        return None
    if len({(each.shape[1], each.dtype) for each in given}) > 1:
        return None
    lengths = [len(each) for each in given]
    begin = frozen(np.concatenate([[0], np.cumsum(lengths)]))
    return Batch(
        torch.cat(given), "lod", 0, len(given), begin, None, lambda y: list(y.split(lengths))
    )


def _jagged(given: Any) -> Batch | None:
    """A nested tensor (N, j, I) of one sequence behind the other; PyTorch's modules take none."""
    if given.layout is not torch.jagged or given.dim() != 3 or given.lengths() is not None:
        return None
    x, offsets = given.values(), given.offsets()
    if given._ragged_idx != 1 or not (is_plain(x) and is_plain(offsets)):
        return None
    begin = frozen(offsets.numpy().astype(np.int64))
    if begin[0] or begin[-1] != len(x) or (np.diff(begin) < 0).any():
        return None
    return Batch(
        x.contiguous(),
        "lod",
        0,
        len(begin) - 1,
        begin,
        None,
        lambda y: torch.nested.nested_tensor_from_jagged(y, offsets),
    )
