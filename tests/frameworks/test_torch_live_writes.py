"""Writes to parameters that PyTorch does not count are followed by modules that run here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.frameworks.torch_modules import INPUT, UNITS, tensors
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from onernn.adapters.common.live import Watched
from onernn.adapters.torch import explain, optimize, refresh
from onernn.ir.errors import LibraryError

KINDS: list[Any] = [nn.GRU, nn.LSTM, nn.LSTMCell]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(5)


def pytorchs(module: Any, *given: Any) -> Any:
    """What PyTorch's own module of the same kind gives with these parameters."""
    kind = next(one for one in KINDS if isinstance(module, one))
    plain: Any = kind(module.input_size, module.hidden_size)
    plain.load_state_dict(module.state_dict())
    assert type(plain) is kind
    with torch.no_grad():
        return plain(*given)


def follows(module: Any, *given: Any) -> bool:
    """Whether it gives what PyTorch gives, up to the order of sums."""
    with torch.no_grad():
        mine = module(*given)
    assert "onernn: " in explain(module)
    pairs = zip(*map(tensors, (mine, pytorchs(module, *given))), strict=True)
    return all(torch.allclose(one, other, rtol=2e-5, atol=2e-6) for one, other in pairs)


FUSED = [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("optimizer", FUSED, ids=lambda kind: kind.__name__)
def test_a_policy_that_learns_by_fused_steps_is_followed(optimizer: Any, kind: Any) -> None:
    policy, x = optimize(kind(INPUT, UNITS)), torch.randn(3, INPUT)
    fused = optimizer(policy.parameters(), lr=0.1, fused=True)
    first = next(policy.parameters())
    counted = first._version
    for _ in range(3):
        before = policy(x)[0].detach()
        assert follows(policy, x)
        policy(x)[0].square().sum().backward()  # a small batch, which stays with PyTorch
        fused.step()
        fused.zero_grad()
        assert follows(policy, x)
        with torch.no_grad():
            assert not torch.allclose(policy(x)[0], before, atol=1e-3)
    assert first._version == counted


def test_averaged_weights_copied_through_data_are_followed() -> None:
    student, average = nn.GRU(INPUT, UNITS), optimize(nn.GRU(INPUT, UNITS))
    packed = pack_sequence([torch.randn(t, INPUT) for t in (7, 5, 2)])
    for _ in range(3):
        assert follows(average, packed)
        for mine, other in zip(average.parameters(), student.parameters(), strict=True):
            mine.data.copy_(0.9 * mine.data + 0.1 * other.data)
    assert follows(average, packed)


@pytest.mark.parametrize("name", ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"])
def test_writes_through_arrays_of_one_parameter_are_followed(name: str) -> None:
    module, x = optimize(nn.LSTM(40, 50)), torch.randn(5, 3, 40)
    array = getattr(module, name).detach().numpy()
    for _ in range(3):
        assert follows(module, x)
        array *= 0.7
    assert follows(module, x)


def halved(module: nn.GRU) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(0.5)


def test_shared_weights_that_another_process_trains_are_followed() -> None:
    module, x = optimize(nn.GRU(INPUT, UNITS)).share_memory(), torch.randn(5, 3, INPUT)
    assert follows(module, x)
    before = module.weight_hh_l0.clone()
    child = torch.multiprocessing.get_context("fork").Process(target=halved, args=(module,))
    child.start()
    child.join()
    assert torch.equal(module.weight_hh_l0, before / 2)
    assert follows(module, x)


def test_loaded_and_assigned_parameters_are_followed() -> None:
    module, x = optimize(nn.GRU(INPUT, UNITS)), torch.randn(5, 3, INPUT)
    for assign in (False, True):
        assert follows(module, x)
        module.load_state_dict(nn.GRU(INPUT, UNITS).state_dict(), assign=assign)
    assert follows(module, x)
    nn.utils.vector_to_parameters(torch.randn(300), module.parameters())
    assert follows(module, x)


def test_parameters_with_gaps_between_their_numbers_are_followed() -> None:
    module, x = optimize(nn.GRU(INPUT, UNITS)), torch.randn(5, 3, INPUT)
    wide = torch.randn(2 * UNITS, 6 * UNITS)
    module.weight_hh_l0 = nn.Parameter(wide[::2, ::2].t())
    assert follows(module, x)
    wide.mul_(0.5)
    assert follows(module, x)


def one_number(module: nn.GRU, seed: int) -> None:
    """Writes one number where no version counts it."""
    flat = module.weight_ih_l0.detach().numpy().reshape(-1)
    flat[torch.randint(len(flat), (1,), generator=torch.Generator().manual_seed(seed))] += 1


@pytest.mark.parametrize("steps", [1, 7, 100])
def test_a_write_to_one_number_is_found_within_1024_steps(steps: int) -> None:
    module, x = optimize(nn.GRU(128, 32)), torch.randn(steps, 1, 128)
    for seed in range(5):
        assert follows(module, x)
        one_number(module, seed)
        with torch.no_grad():
            for _ in range(-(-Watched.ALL // steps) - 1):
                module(x)
        assert follows(module, x)


@pytest.mark.parametrize("by", ["step", "training", "eval", "refresh"])
def test_a_write_to_one_number_is_found_at_once_behind_what_may_write(by: str) -> None:
    module, x = optimize(nn.GRU(128, 32)), torch.randn(1, 1, 128)
    other = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    for seed in range(5):
        assert follows(module, x)
        if by == "step":
            one_number(module, seed)
            optimizer.step()
        elif by == "training":
            module(x)
            one_number(module, seed)
        else:
            one_number(module, seed)
            module.eval() if by == "eval" else refresh(module)
        assert follows(module, x)


def test_without_kernels_all_numbers_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise LibraryError("this installation has no kernels")

    monkeypatch.setattr("onernn.adapters.common.live.load_kernels", missing)
    module, x = optimize(nn.GRU(128, 32)), torch.randn(1, 1, 128)
    for seed in range(5):
        assert follows(module, x)
        one_number(module, seed)
        assert follows(module, x)


def test_what_stays_the_same_is_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x, made = optimize(nn.GRU(128, 32)), torch.randn(2, 1, 128), []

    class Counted(Watched):
        def __init__(self, memory: Any) -> None:
            made.append(len(memory))
            super().__init__(memory)

    monkeypatch.setattr("onernn.adapters.torch.live_layer.Watched", Counted)
    with torch.no_grad():
        for _ in range(600):
            module(x)
        module.eval()
        module(x)
    assert made == [4]
