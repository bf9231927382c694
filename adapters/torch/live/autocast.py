"""Under torch.autocast: which types PyTorch's own modules give, which ours give, too."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence


def autocast_dtype() -> torch.dtype | None:
    """What autocast computes in on the CPU, None where it is off."""
    if not torch.is_autocast_enabled("cpu"):
        return None
    return torch.get_autocast_dtype("cpu")


def types_of_results(
    module: Any, packed: bool, x: torch.dtype, states: tuple[torch.dtype, ...]
) -> list[torch.dtype]:
    """Of y and of the final states, as PyTorch's autocast gives them for such arguments."""
    kind = getattr(torch.nn, module.mode.partition("_")[0])
    named = {"num_layers": module.num_layers, "bidirectional": module.bidirectional}
    projects = {"proj_size": 1} if module.proj_size else {}
    low = torch.get_autocast_dtype("cpu")
    return _tried(kind, packed, x, states, low, tuple({**named, **projects}.items()))


@cache
def _tried(
    kind: Any, packed: bool, x: torch.dtype, states: Any, low: torch.dtype, named: Any
) -> list[torch.dtype]:
    """By trying: the rules differ by kernel, and are written down nowhere."""
    with torch.random.fork_rng([]), torch.no_grad(), torch.autocast("cpu", dtype=low):
        module = kind(2, 2, **dict(named))
        given: Any = torch.zeros(1, 1, 2, dtype=x)
        if packed:
            given = PackedSequence(given[0], torch.ones(1, dtype=torch.int64))
        parts = module.num_layers * (1 + module.bidirectional)
        widths = (module.proj_size or 2, 2)
        hx: Any = [
            torch.zeros(parts, 1, width, dtype=dtype)
            for dtype, width in zip(states, widths, strict=False)
        ]
        hx = None if not hx else tuple(hx) if kind is torch.nn.LSTM else hx[0]
        y, last = module(given, hx)
        ends = last if isinstance(last, tuple) else (last,)
        return [(y.data if packed else y).dtype, *[end.dtype for end in ends]]
