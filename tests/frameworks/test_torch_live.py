"""Modules of torch.nn that became ours beside the same modules of PyTorch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.frameworks.torch_modules import INPUT, UNITS, assert_same, make_batch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from onernn import UnsupportedError
from onernn.adapters.torch import explain, optimize
from onernn.adapters.torch.live_layer import batch_of


@pytest.fixture(autouse=True)
def seeded() -> Any:
    torch.manual_seed(5)
    with torch.no_grad():
        yield


def runs_here(module: nn.Module) -> bool:
    told = explain(module)
    return "onernn: " in told and "PyTorch" not in told


def test_the_class_stays_and_copies_run_here_too() -> None:
    theirs = nn.Sequential(nn.LSTM(INPUT, UNITS, 2, dropout=0.5))
    ours = optimize(theirs.eval())
    assert type(theirs[0]) is nn.LSTM
    assert repr(ours) == repr(theirs)
    x = make_batch()
    for each in (ours, copy.deepcopy(ours), copy.copy(ours)):
        assert isinstance(each[0], nn.LSTM)
        assert list(each.state_dict()) == list(theirs.state_dict())
        each[0].flatten_parameters()
        assert_same(each(x), theirs(x))
        assert runs_here(each)
    assert optimize(theirs, inplace=True) is theirs
    assert_same(theirs(x), ours(x))


def test_hooks_are_called() -> None:
    ours, seen = optimize(nn.LSTM(INPUT, UNITS)), []
    ours.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape))
    ours.register_forward_hook(lambda _, __, out: (out[0] * 0, out[1]))
    y, _ = ours(make_batch())
    assert seen == [(5, 3, INPUT)] and not y.any()


def test_a_subclass_that_overrides_nothing_that_runs_is_replaced() -> None:
    class Named(nn.GRU):
        pass

    ours = optimize(Named(INPUT, UNITS))
    assert isinstance(ours, Named) and "onernn: " in explain(ours)
    assert explain(optimize(nn.Linear(2, 3))) == "no recurrent modules"
    with pytest.raises(UnsupportedError, match=r"torch\.int8"):
        optimize(ours, torch.int8)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_what_is_not_a_number_stays_one(kind: Any) -> None:
    theirs, x = kind(INPUT, UNITS), make_batch()
    x[2, 1, 0], x[3, 2, 1] = float("nan"), float("inf")
    ours = optimize(theirs)
    assert_same(ours(x)[0], theirs(x)[0])
    theirs.weight_hh_l0[0, 0] = ours.weight_hh_l0[0, 0] = float("nan")
    assert_same(ours(x)[0], theirs(x)[0])


def test_pytorchs_number_of_threads_may_change_and_leaves_the_bits() -> None:
    before = torch.get_num_threads()
    theirs = nn.LSTM(INPUT, 300, 2, bidirectional=True)
    ours, packed = optimize(theirs), pack_sequence([torch.randn(t, INPUT) for t in (7, 5, 2)])
    results = []
    try:
        for threads in (1, 2, 3, 8, 16, 1):
            torch.set_num_threads(threads)
            results.append(ours(packed))
            assert_same(results[-1], theirs(packed))
            assert runs_here(ours), explain(ours)
    finally:
        torch.set_num_threads(before)
    for y, (h, c) in results[1:]:
        assert torch.equal(y.data, results[0][0].data)
        assert torch.equal(h, results[0][1][0]) and torch.equal(c, results[0][1][1])


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
@pytest.mark.parametrize("inputs, units", [(INPUT, 0), (0, UNITS)])
def test_cells_of_nothing_stay_pytorchs(kind: Any, inputs: int, units: int) -> None:
    theirs = kind(inputs, units)
    ours = optimize(theirs)
    with torch.enable_grad():
        assert_same(ours(torch.ones(3, inputs)), theirs(torch.ones(3, inputs)))
    assert "hidden_size: expected 1 or more" in explain(ours)


@pytest.mark.parametrize("sizes", [[2**62] * 4, [-(2**63), 2**63 - 1, 1]])
def test_batch_sizes_that_wrap_around_are_left_to_pytorch(sizes: list[int]) -> None:
    """Their sum is 0 in 64 bits, the number of rows."""
    assert batch_of(PackedSequence(torch.zeros(0, INPUT), torch.tensor(sizes)), False) is None


@pytest.mark.parametrize("words, frozen", [(1, False), (7, False), (8, False), (1, True)])
def test_few_words_of_a_large_gru_stay_with_pytorch_unless_frozen(words: int, frozen: bool) -> None:
    stock = nn.GRU(3, 1024).eval()
    ours = optimize(copy.deepcopy(stock), frozen=frozen)
    x = torch.randn(words, 1, 3)
    with torch.no_grad():
        torch.testing.assert_close(ours(x)[0], stock(x)[0], rtol=1e-5, atol=1e-6)
    assert ("frozen" in explain(ours)) == (words < 8 and not frozen)
