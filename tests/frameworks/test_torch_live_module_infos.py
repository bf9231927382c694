"""PyTorch's own samples of its recurrent modules (ModuleInfo), on optimized modules."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.frameworks.torch_modules import one_thread, small_batches_run_here, tensors
from torch import nn

from onernn.adapters.torch import explain, optimize

__all__ = ["one_thread", "small_batches_run_here"]  # fixtures
pytestmark = pytest.mark.usefixtures("one_thread", "small_batches_run_here")
infos = pytest.importorskip("torch.testing._internal.common_modules", reason="needs expecttest")

RECURRENT = (nn.RNN, nn.LSTM, nn.GRU, nn.RNNCell, nn.LSTMCell, nn.GRUCell)
FOUND = [info for info in infos.module_db if info.module_cls in RECURRENT]


def outcome(module: nn.Module, arguments: Any, named: Any) -> list[torch.Tensor]:
    """Results, and the gradients of all that went in."""
    given, more = copy.deepcopy((arguments, named))
    torch.manual_seed(4)
    found = list(tensors(module(*given, **more)))
    leaves = [each for each in tensors([given, list(more.values())]) if each.requires_grad]
    leaves += module.parameters()
    weighed = sum((each * torch.arange(each.numel()).reshape(each.shape)).sum() for each in found)
    grads = torch.autograd.grad(weighed, leaves, allow_unused=True)
    return [*found, *(each for each in grads if each is not None)]


def test_all_recurrent_modules_have_samples() -> None:
    assert {info.module_cls for info in FOUND} == set(RECURRENT)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("info", FOUND, ids=lambda info: info.name)
def test_samples_of_pytorch(info: Any, dtype: torch.dtype, training: bool) -> None:
    samples = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=True, training=training
    )
    for sample in samples:
        made = sample.constructor_input
        theirs = info.module_cls(*made.args, **made.kwargs).to(dtype).train(training)
        ours = optimize(theirs)
        given = sample.forward_input.args, sample.forward_input.kwargs
        tolerance = 2e-5 if dtype == torch.float32 else 1e-13
        results = [outcome(module, *given) for module in (ours, theirs)]
        torch.testing.assert_close(*results, rtol=tolerance, atol=100 * tolerance)
        with torch.no_grad():
            results = []
            for module in (ours, theirs):
                torch.manual_seed(4)
                results.append([*tensors(module(*given[0], **given[1]))])
        torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)
        assert ("onernn: " in explain(ours)) == (dtype == torch.float32)
