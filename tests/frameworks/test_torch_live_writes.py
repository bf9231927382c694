"""Every call reads the parameters as they are, whatever wrote to them and by whatever way."""

from __future__ import annotations

import copy
import operator
import re
from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
import torch
from tests.frameworks.live_properties import *  # noqa: F403
from tests.frameworks.torch_modules import INPUT, UNITS, make_batch, tensors
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from onernn.adapters.torch import explain, optimize, refresh, restore

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


def halved(module: nn.GRU) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(0.5)


def test_shared_weights_that_another_process_trains_are_followed() -> None:
    module, x = optimize(nn.GRU(INPUT, UNITS)).share_memory(), make_batch()
    assert follows(module, x)
    before = module.weight_hh_l0.clone()
    child = torch.multiprocessing.get_context("fork").Process(target=halved, args=(module,))
    child.start()
    child.join()
    assert torch.equal(module.weight_hh_l0, before / 2)
    assert follows(module, x)


def test_loaded_and_assigned_parameters_are_followed() -> None:
    module, x = optimize(nn.GRU(INPUT, UNITS)), make_batch()
    for assign in (False, True):
        assert follows(module, x)
        module.load_state_dict(nn.GRU(INPUT, UNITS).state_dict(), assign=assign)
    assert follows(module, x)
    nn.utils.vector_to_parameters(torch.randn(300), module.parameters())
    assert follows(module, x)


def modules() -> dict[str, Callable[[], Any]]:
    return {
        "rnn": lambda: nn.RNN(9, 21),
        "gru": lambda: nn.GRU(9, 21, num_layers=2, bidirectional=True),
        "gru of 16": lambda: nn.GRU(16, 16, bias=False),
        "lstm": lambda: nn.LSTM(9, 21, bidirectional=True),
        "lstm projected": lambda: nn.LSTM(9, 21, num_layers=2, proj_size=5),
        "rnn cell": lambda: nn.RNNCell(9, 21),
        "gru cell": lambda: nn.GRUCell(9, 21),
        "lstm cell": lambda: nn.LSTMCell(9, 32),
    }


# Ways to write values to rows of a parameter, see `Host`.


def by_data(parameter, rows, values):
    parameter.data[rows] = torch.from_numpy(values)


def by_numpy(parameter, rows, values):
    parameter.detach().numpy()[rows] = values


def by_thread(parameter, rows, values):
    writer = Thread(target=by_numpy, args=(parameter, rows, values))
    writer.start()
    writer.join()


def by_new_memory(parameter, rows, values):
    whole = parameter.detach().clone()
    whole[rows] = torch.from_numpy(values)
    parameter.data = whole


def by_other_strides(parameter, rows, values):
    wide = torch.full((2 * len(parameter), *parameter.shape[1:]), torch.nan)
    wide[::2] = parameter.detach()
    wide[::2][rows] = torch.from_numpy(values)
    parameter.data = wide[::2]


def by_optimizer(parameter, rows, values):
    parameter.data = parameter.data.contiguous()  # fused steps write nothing to strided ones
    parameter.grad = torch.zeros_like(parameter)
    parameter.grad[rows] = parameter.detach()[rows] - torch.from_numpy(values)
    torch.optim.SGD([parameter], lr=1.0, fused=True).step()
    parameter.grad = None


NARROW = [torch.bfloat16, torch.float16, "int8-weights", "int8-dynamic"]
CASES = [(kind, None) for kind in modules()]
CASES += [(kind, dtype) for kind in ("gru of 16", "lstm projected") for dtype in NARROW]


class TorchHost:
    """See `Host`."""

    freezes = True
    ways = (by_data, by_numpy, by_thread, by_new_memory, by_other_strides, by_optimizer)
    restore = staticmethod(restore)

    def __init__(self, kind: str, dtype: Any) -> None:
        self.layer, self.dtype, self.is_rounded = modules()[kind], dtype, dtype is not None
        self.is_cell, module = kind.endswith("cell"), self.layer()
        self.units, self._width = module.hidden_size, module.input_size

    def copy(self, layer: Any) -> Any:
        result = self.layer()
        result.load_state_dict(layer.state_dict())
        return result

    def optimize(self, layer: Any, **options: Any) -> Any:
        return optimize(layer, self.dtype, inplace=True, **options)

    def run(self, layer: Any, steps: int) -> list[Any]:
        torch.manual_seed(steps)
        x = torch.randn(steps, 4, self._width)
        calls: list[Any] = [(x,), (pack_sequence([x[:, 0], x[:1, 1]]),)]
        if self.is_cell:
            h = torch.randn(4, self.units)
            calls = [(x[0], (h, h) if isinstance(layer, nn.LSTMCell) else h)]
        with torch.no_grad():
            return [each.numpy() for call in calls for each in tensors(layer(*call))]

    def parameters(self, layer: Any) -> Any:
        return dict(layer.named_parameters())


@pytest.fixture(params=CASES, ids=str)
def host(request: pytest.FixtureRequest) -> TorchHost:
    return TorchHost(*request.param)


def test_a_frozen_module_is_packed_anew_after_refresh() -> None:
    module, x = optimize(nn.GRU(20, 32), frozen=True), torch.randn(3, 2, 20)
    assert follows(module, x)
    module.weight_hh_l0.data[3] += 1
    assert not follows(module, x)
    refresh(module)
    assert follows(module, x)


def test_a_parameter_of_another_shape_is_never_read() -> None:
    module, x = optimize(nn.GRU(4, 6)), torch.randn(3, 2, 4)
    with torch.no_grad():
        module(x)
        for name, shape in (
            ("weight_ih_l0", (18, 3)),
            ("weight_hh_l0", (17, 6)),
            ("bias_hh_l0", (5,)),
        ):
            kept = getattr(module, name).data
            getattr(module, name).data = torch.zeros(shape)
            with pytest.raises(RuntimeError):
                module(x)
            getattr(module, name).data = kept
    assert follows(module, x)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_parameter_that_became_another_dtype_is_never_read(dtype: Any, kind: Any) -> None:
    module, x = optimize(kind(INPUT, UNITS)), torch.randn(3, INPUT)
    with torch.no_grad():
        module(x)
        parameters = list(module.parameters())
        module.to(dtype)
        assert all(map(operator.is_, parameters, module.parameters()))  # changed in place
        with pytest.raises((RuntimeError, ValueError)) as wanted:
            restore(copy.deepcopy(module))(x)
        with pytest.raises(type(wanted.value), match=re.escape(str(wanted.value))):
            module(x)
        module.float()
    assert follows(module, x)


@pytest.mark.parametrize("kind, name", [(nn.RNN, "mode"), (nn.RNNCell, "nonlinearity")])
def test_another_function_of_a_module_is_followed(kind: Any, name: str) -> None:
    module, x = optimize(kind(INPUT, UNITS)), torch.randn(3, INPUT)
    plain = kind(INPUT, UNITS, nonlinearity="relu")
    plain.load_state_dict(module.state_dict())
    with torch.no_grad():
        assert not torch.allclose(module(x)[0], plain(x)[0], atol=1e-3)
        setattr(module, name, getattr(plain, name))
        torch.testing.assert_close(module(x)[0], plain(x)[0], rtol=2e-5, atol=2e-6)
    assert "RELU" in explain(module)


def _write_flat(module: Any) -> None:
    module._flat_weights[1] = module.weight_hh_l0 * 2


def _replace_flat(module: Any) -> None:
    module._flat_weights = [weight * 2 for weight in module._flat_weights]


def _drop_a_layer(module: Any) -> None:
    module.num_layers, module._flat_weights = 1, module._flat_weights[:4]


def _drop_biases(module: Any) -> None:
    module.bias, module._flat_weights = False, module._flat_weights[:2]


@pytest.mark.parametrize(
    "change, layers",
    [(_write_flat, 1), (_replace_flat, 2), (_drop_a_layer, 2), (_drop_biases, 1)],
)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_written_weights_and_options_of_a_module_are_followed(
    kind: Any, change: Any, layers: int
) -> None:
    theirs, x = kind(INPUT, UNITS, layers), torch.randn(3, 2, INPUT)
    module = optimize(theirs)
    with torch.no_grad():
        before = module(x)[0]
        for each in (theirs, module):
            change(each)
        after, wanted = module(x)[0], theirs(x)[0]
    assert not torch.allclose(before, wanted, atol=1e-3)
    torch.testing.assert_close(after, wanted, rtol=2e-5, atol=2e-6)


def test_another_input_size_of_a_module_is_followed() -> None:
    module = optimize(nn.LSTM(INPUT, UNITS))
    with torch.no_grad():
        module(torch.randn(3, 2, INPUT))
        module.input_size = INPUT + 1
        with pytest.raises(RuntimeError, match=f"Expected {INPUT + 1}, got {INPUT}"):
            module(torch.randn(3, 2, INPUT))


def test_a_second_optimize_sets_the_dtype_anew() -> None:
    module, x = optimize(nn.GRU(20, 32), torch.bfloat16), torch.randn(3, 2, 20)
    assert not follows(module, x)
    assert follows(optimize(module, inplace=True), x)
    assert not follows(optimize(module, "int8-dynamic", inplace=True), x)
    assert follows(optimize(module, inplace=True, frozen=True), x)
    module.weight_hh_l0.data[3] += 1
    assert not follows(module, x)
    assert follows(optimize(module, inplace=True), x)
