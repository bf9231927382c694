"""`optimize`, `explain` and `refresh`: a module tree whose recurrent modules run on ours."""

from __future__ import annotations

import copy
import logging
from typing import Any

import torch
from torch import nn

from onernn.adapters.torch.live.live_layer import DTYPES
from onernn.adapters.torch.live.modules import (
    forget,
    is_ours,
    is_recurrent,
    live_of,
    obstacle,
    ours,
    theirs,
    trace_through_ours,
    why_theirs,
)
from onernn.core.errors import UnsupportedError

_log = logging.getLogger("onernn")


def optimize(
    module: nn.Module,
    dtype: Any = None,
    *,
    inplace: bool = False,
    example_inputs: Any = None,
    optimizer: Any = None,
) -> Any:
    """The module, or a copy of it, whose nn.RNN, LSTM, GRU and their Cells run on ours.

    They stay what they are: instances of the same classes, with the same parameters and hooks.
    Later changes of parameters are followed; `refresh` tells of those through ``.data``, which
    PyTorch does not count. What ours does not compute exactly as PyTorch does stays PyTorch's, call
    by call; `explain` lists it.

    ``dtype``: what matrices are rounded to before they are multiplied; None: nothing.
    Parameters, inputs and results keep their types. ``inplace``: of the module itself, not of a
    copy. ``example_inputs``: a tuple that it is called with once, so that later calls find all
    prepared. ``optimizer``: of the module's parameters; then the result is a pair, the module and
    an optimizer of its parameters, as intel_extension_for_pytorch.optimize gave it.
    """
    if not isinstance(module, nn.Module):
        raise UnsupportedError(f"expected a torch.nn.Module, got {type(module).__name__}")
    if dtype not in DTYPES:
        known = ", ".join(map(str, DTYPES))
        raise UnsupportedError(f"dtype {dtype}: expected one of {known}")
    # Copied together, the optimizer's parameters are those of the copy.
    whole, trainer = (module, optimizer) if inplace else copy.deepcopy((module, optimizer))
    found = {name: each for name, each in whole.named_modules() if is_recurrent(each)}
    for name, each in found.items():
        if reason := obstacle(each):
            _log.warning("%s: stays with PyTorch: %s", name or type(each).__name__, reason)
        else:
            forget(each)
            each.__class__ = ours(theirs(each), DTYPES[dtype])
    trace_through_ours()
    if example_inputs is not None:
        with torch.no_grad():
            whole(*example_inputs)
    return whole if optimizer is None else (whole, trainer)


def explain(module: nn.Module) -> str:
    """A line for each recurrent module: what runs it, or why it stays PyTorch's."""
    lines = []
    for name, each in module.named_modules():
        if is_recurrent(each):
            told = f"{name or type(each).__name__}: {_told(each)}"
            lines.append(told)
    return "\n".join(lines) or "no recurrent modules"


def _told(module: Any) -> str:
    if not is_ours(module):
        return f"PyTorch: {obstacle(module) or 'optimize() has not seen it'}"
    live = live_of(module)
    ran = live.ran or f"{live.dtype}, not called yet but in compiled graphs"
    left = [f"; PyTorch ran calls: {reason}" for reason in live.reasons]
    return f"onernn: {ran}{''.join(left)}{'; now PyTorch: ' + why_theirs() if why_theirs() else ''}"


def refresh(module: nn.Module) -> None:
    """Packs the parameters anew at the next call: for who wrote them through ``.data``."""
    for each in module.modules():
        if is_ours(each):
            forget(each)
