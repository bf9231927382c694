"""Recurrent modules of torch.nn, calls of them, and comparisons of what they give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from onernn.adapters.common import gain
from onernn.adapters.torch import optimize

STACKS: list[tuple[Any, dict[str, Any]]] = [
    (nn.LSTM, {}),
    (nn.LSTM, {"proj_size": 3}),
    (nn.GRU, {}),
    (nn.RNN, {}),
    (nn.RNN, {"nonlinearity": "relu"}),
]
CELLS: list[tuple[Any, dict[str, Any]]] = [
    (nn.LSTMCell, {}),
    (nn.GRUCell, {}),
    (nn.RNNCell, {}),
    (nn.RNNCell, {"nonlinearity": "relu"}),
]
INPUT, UNITS = 4, 6
T, N = 5, 3


@pytest.fixture
def one_thread() -> Iterator[None]:
    """PyTorch's threads wait for each other where others run, too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(5)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def small_batches_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gain, "is_faster", lambda *_: True)


def make_pair(kind: Any, *more: Any, **named: Any) -> tuple[Any, Any]:
    """A module of PyTorch, and its optimized copy."""
    theirs = kind(INPUT, UNITS, *more, **named)
    return theirs, optimize(theirs)


def make_batch() -> Tensor:
    return torch.randn(T, N, INPUT)


def make_sequences() -> list[Tensor]:
    return [torch.randn(steps, INPUT) for steps in (2, 5, 1)]


def states(module: Any, *batch: int) -> Any:
    """Initial states as the module takes them."""
    if isinstance(module, nn.RNNCellBase):
        parts, widths = batch, [UNITS] * 2
    else:
        parts = (module.num_layers * (1 + module.bidirectional), *batch)
        widths = [module.proj_size or UNITS, UNITS]
    h, c = (torch.randn(*parts, width) for width in widths)
    return (h, c) if isinstance(module, nn.LSTM | nn.LSTMCell) else h


def tensors(found: Any) -> Iterator[Tensor]:
    """All tensors of numbers in a result, in order."""
    if isinstance(found, Tensor):
        if found.is_floating_point():
            yield found
    elif found is not None:
        for each in found:
            yield from tensors(each)


def mapped(given: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(given, Tensor):
        return function(given)
    if isinstance(given, PackedSequence):
        return given._replace(data=function(given.data))
    return None if given is None else tuple(mapped(each, function) for each in given)


def gradients(module: Any, *arguments: Any, backwards: int = 1) -> list[Tensor]:
    """Results, and gradients of the arguments and parameters, of a loss that weighs all results."""
    parameters = [each for each in module.parameters() if each.requires_grad]
    dtype = next(module.parameters()).dtype
    given = mapped(arguments, lambda each: each.detach().to(dtype).requires_grad_())
    generator = torch.Generator().manual_seed(3)
    torch.manual_seed(8)  # of dropout
    found = list(tensors(module(*given)))
    weights = [torch.randn(each.shape, generator=generator).to(dtype) for each in found]
    loss = sum((each * weight).sum() for each, weight in zip(found, weights, strict=True))
    keep = backwards > 1
    for _ in range(backwards):
        grads = torch.autograd.grad(loss, [*tensors(given), *parameters], retain_graph=keep)
    return [*found, *grads]


def assert_same(ours: Any, theirs: Any) -> None:
    """Equal structure, types and shapes; numbers up to the order of sums of a dozen terms."""
    assert type(ours) is type(theirs)
    if isinstance(theirs, Tensor):
        torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=2e-6, equal_nan=True)
    elif theirs is not None:
        for mine, other in zip(ours, theirs, strict=True):
            assert_same(mine, other)


def assert_close(ours: Any, exact: Any, tolerance: float = 2e-5) -> None:
    """Of the largest number of each tensor."""
    for mine, wanted in zip(tensors(ours), tensors(exact), strict=True):
        assert mine.shape == wanted.shape
        atol = tolerance * wanted.abs().max().item()
        torch.testing.assert_close(mine.to(wanted.dtype), wanted, rtol=tolerance, atol=atol)
