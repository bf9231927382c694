"""Gradients and training of modules of torch.nn that became ours."""

from __future__ import annotations

import copy
import itertools
import os
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tests.frameworks.torch_modules import (
    INPUT,
    STACKS,
    UNITS,
    assert_close,
    assert_same,
    gradients,
    make_batch,
    make_pair,
    make_sequences,
    one_thread,
    small_batches_run_here,
    states,
    tensors,
)
from torch import nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from onernn.adapters.torch import explain, optimize

__all__ = ["one_thread", "small_batches_run_here"]  # fixtures
pytestmark = pytest.mark.usefixtures("one_thread", "small_batches_run_here")


@pytest.mark.parametrize("layers, bidirectional", [(1, False), (2, True)])
@pytest.mark.parametrize("kind, more", STACKS)
def test_results_are_pytorchs_and_gradients_those_of_float64(
    kind: Any, more: dict[str, Any], layers: int, bidirectional: bool
) -> None:
    for batch_first, bias in itertools.product((False, True), repeat=2):
        named = {"bidirectional": bidirectional, "batch_first": batch_first, "bias": bias}
        theirs, ours = make_pair(kind, layers, **named, **more)
        exact = copy.deepcopy(theirs).double()
        x = make_batch()
        sequences = make_sequences()
        for given, batch in (
            (x, (5 if batch_first else 3,)),
            (x.transpose(0, 1), (3 if batch_first else 5,)),
            (x[:, 0], ()),
            (pack_sequence(sequences, enforce_sorted=False), (3,)),
        ):
            for arguments in ((given,), (given, states(theirs, *batch))):
                with torch.no_grad():
                    assert_same(ours(*arguments), theirs(*arguments))
                wanted = gradients(exact, *arguments)
                assert_close(gradients(ours, *arguments, backwards=2), wanted)
        assert "PyTorch" not in explain(ours)


def test_small_batches_with_gradients_stay_and_the_reason_names_no_grad(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    ours = optimize(nn.LSTM(INPUT, UNITS))
    ours(make_batch())[0].sum().backward()
    cell = optimize(nn.GRUCell(INPUT, UNITS)).eval()
    cell(torch.randn(3, INPUT))
    for module in (ours, cell):
        (line,) = explain(module).splitlines()
        assert "stays with PyTorch: gradients are on" in line and "torch.no_grad()" in line
    ours([torch.randn(5, INPUT)])[0][0].sum().backward()  # which PyTorch does not take


def test_dropout_is_drawn_as_pytorch_draws_it() -> None:
    theirs, ours = make_pair(nn.GRU, 3, dropout=0.4, batch_first=True)
    x, h = torch.randn(3, 5, INPUT), torch.randn(3, 3, UNITS)
    assert_close(gradients(ours, x, h), gradients(theirs, x, h))
    assert "PyTorch" not in explain(ours)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind, more", STACKS)
def test_dropout_without_gradients_is_drawn_as_pytorch_draws_it(
    kind: Any, more: dict[str, Any], bidirectional: bool, frozen: bool
) -> None:
    theirs = kind(INPUT, UNITS, 3, dropout=0.4, bidirectional=bidirectional, **more)
    ours, x = optimize(theirs, frozen=frozen), make_batch()
    packed = pack_sequence(make_sequences(), enforce_sorted=False)
    with torch.no_grad():
        for given, batch in ((x, (3,)), (x[:, 0], ()), (packed, (3,))):
            for arguments in ((given,), (given, states(theirs, *batch))):
                found = []
                for module in (ours, theirs):
                    torch.manual_seed(1)
                    found.append(module(*arguments))
                assert_same(*found)
    assert "PyTorch" not in explain(ours)


@pytest.mark.parametrize("inplace", [False, True])
def test_an_optimizer_trains_what_it_is_given_back_with(inplace: bool) -> None:
    theirs = nn.GRU(INPUT, UNITS)
    given = torch.optim.Adam(theirs.parameters())
    theirs(make_batch())[0].sum().backward()
    given.step()  # it has states
    ours, steps = optimize(theirs, inplace=inplace, optimizer=given)
    assert (steps is given) is inplace and len(steps.state) == 4
    before = ours.weight_hh_l0.clone()
    ours(make_batch())[0].sum().backward()
    steps.step()
    assert not torch.equal(before, ours.weight_hh_l0)
    assert torch.equal(ours.weight_hh_l0, theirs.weight_hh_l0) is inplace


def test_frozen_parameters_and_inputs_get_no_gradients() -> None:
    theirs = nn.LSTM(INPUT, UNITS)
    theirs.weight_hh_l0.requires_grad_(False)
    ours, x = optimize(theirs), make_batch()
    assert_close(gradients(ours, x), gradients(theirs, x))
    ours(x)[0].sum().backward()
    assert ours.weight_hh_l0.grad is None and ours.weight_ih_l0.grad is not None
    frozen, given = ours.requires_grad_(False), x.clone().requires_grad_()
    assert not frozen(x)[0].requires_grad
    frozen(given)[0].sum().backward()
    assert given.grad is not None


def test_states_are_carried_on_and_calls_share_one_backward() -> None:
    theirs = nn.GRU(INPUT, UNITS, 2)
    x = torch.randn(3, 5, 3, INPUT)
    for carry in (lambda h: h, lambda h: h.detach()):
        found = []
        for module in (theirs, optimize(theirs)):
            module.zero_grad()
            h, total = None, 0.0
            for part in x:
                y, h = module(part, h)
                total, h = total + (y * y).sum(), carry(h)
            total.backward()
            found.append([each.grad for each in module.parameters()])
        assert_close(found[1], found[0])


def test_backward_a_second_time_without_its_graph_raises_what_pytorch_raises() -> None:
    y = optimize(nn.GRU(INPUT, UNITS))(make_batch())[0].sum()
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_transforms_of_torch_func_are_pytorchs() -> None:
    theirs, ours = make_pair(nn.RNN)
    x = torch.randn(2, 5, 3, INPUT)
    parameters = dict(ours.named_parameters())

    def loss(parameters: Any, x: Any) -> Any:
        return torch.func.functional_call(ours, parameters, (x,))[0].sum()

    grads = torch.func.grad(loss)(parameters, x[0])
    theirs(x[0])[0].sum().backward()
    torch.testing.assert_close(grads["weight_hh_l0"], theirs.weight_hh_l0.grad)
    assert "torch.func" in explain(ours)
    other = {name: each.detach() * 0 for name, each in parameters.items()}
    assert not torch.func.functional_call(ours, other, (x[0],))[0].any()


def test_weight_norm_trains() -> None:
    theirs, ours = nn.LSTM(INPUT, UNITS), nn.LSTM(INPUT, UNITS)
    ours.load_state_dict(theirs.state_dict())
    for each in (theirs, ours):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            nn.utils.weight_norm(each, "weight_hh_l0")
    optimize(ours, inplace=True)
    x = make_batch()
    assert_close(gradients(ours, x), gradients(theirs, x))


def test_threads_train_side_by_side() -> None:
    ours = optimize(nn.LSTM(INPUT, UNITS, 2))
    x = torch.randn(8, 5, 3, INPUT)

    def train(part: torch.Tensor) -> list[torch.Tensor]:
        loss = ours(part)[0].square().sum()
        return list(torch.autograd.grad(loss, list(ours.parameters())))

    alone = [train(part) for part in x]
    with ThreadPoolExecutor(4) as pool:
        for found, wanted in zip(pool.map(train, x), alone, strict=True):
            assert all(map(torch.equal, found, wanted))


def test_a_fork_after_use_goes_on() -> None:
    torch.set_num_threads(2)  # a second thread does not live on in the child
    ours, x = optimize(nn.LSTM(INPUT, UNITS, 2)), make_batch()
    with torch.no_grad():
        before = ours(x)[0]
    child = os.fork()
    if not child:
        with torch.no_grad():
            same = torch.equal(ours(x)[0], before)
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_training_in_bfloat16_comes_near_or_is_in_float32() -> None:
    """Where the CPU has no products of bfloat16, rounding would cost time for nothing."""
    theirs = nn.GRU(INPUT, UNITS)
    ours, x = optimize(theirs, torch.bfloat16), make_batch()
    mine, wanted = gradients(ours, x), gradients(theirs, x)
    assert_close(mine, wanted, 2**-5)
    is_exact = all(
        torch.allclose(*pair, rtol=1e-5, atol=1e-6) for pair in zip(mine, wanted, strict=True)
    )
    ran = explain(ours)
    assert is_exact == (", f32, " in ran) != (", bf16, " in ran)
    assert not re.search(r"\bref\b", ran)


@pytest.mark.parametrize("dtype", ["int8-dynamic", "int8-weights"])
def test_products_in_bytes_come_near_and_train_in_float32(dtype: str) -> None:
    theirs, x = nn.GRU(INPUT, UNITS), make_batch()
    ours = optimize(theirs, dtype)
    with torch.no_grad():
        gap = (ours(x)[0] - theirs(x)[0]).abs().max()
    assert 1e-5 < gap < 2e-2
    assert f", {dtype}, kernels" in explain(ours)
    assert_close(gradients(ours, x), gradients(theirs, x))
    assert ", f32, kernels" in explain(ours)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_lists_and_nested_tensors_are_what_packed_sequences_are(kind: Any) -> None:
    theirs, ours = make_pair(kind, 2, bidirectional=True)
    sequences = make_sequences()
    packed = pack_sequence(sequences, enforce_sorted=False)
    nested = torch.nested.nested_tensor(sequences, layout=torch.jagged, requires_grad=True)
    for record in (False, True):
        with torch.set_grad_enabled(record):
            y, last = theirs(packed)
            for given in (sequences, nested):
                mine, final = ours(given)
                assert type(mine) is type(given)
                assert_close(
                    list(mine if given is sequences else mine.unbind()), unpack_sequence(y)
                )
                assert_close(final, last)
    data = packed.data.clone().requires_grad_()
    theirs(packed._replace(data=data))[0].data.square().sum().backward()
    ours(nested)[0].values().square().sum().backward()
    wanted = unpack_sequence(packed._replace(data=data.grad))
    assert_close(list(nested.grad.unbind()), wanted)
    assert_close(*[[each.grad for each in m.parameters()] for m in (ours, theirs)])
    assert "PyTorch" not in explain(ours)


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind, more", STACKS)
def test_autocast_gives_the_types_of_pytorch(
    kind: Any, more: dict[str, Any], given: torch.dtype
) -> None:
    theirs, ours = make_pair(kind, 2, batch_first=True, **more)
    x = torch.randn(3, 5, INPUT).to(given)
    for arguments in ((x,), (pack_sequence(list(x)),), (x, states(theirs, 3))):
        found = []
        for module in (theirs, ours):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                try:
                    results = list(tensors(module(*arguments)))
                except RuntimeError as error:
                    found.append(str(error))
                    continue
            loss = sum(each.float().square().sum() for each in results)
            found.append([*results, *torch.autograd.grad(loss, list(module.parameters()))])
        if isinstance(found[0], str):
            assert found[0] == found[1]
            continue
        assert [each.dtype for each in found[1]] == [each.dtype for each in found[0]]
        if "nonlinearity" not in more:  # bfloat16 moves words across relu's edge
            assert_close(found[1], found[0], 2**-4)
