"""Into the plug-in and out again: strides, pickles, quantized copies, and `restore`."""

from __future__ import annotations

import copy
import itertools
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.frameworks.torch_modules import (
    INPUT,
    STACKS,
    UNITS,
    assert_same,
    make_batch,
    make_pair,
    tensors,
)
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import onernn
from onernn.adapters.torch import explain, optimize, restore

OPENS = """
import sys, torch
from torch import nn
for weights_only in (False, True):
    with torch.serialization.safe_globals([nn.Sequential, nn.LSTM, nn.GRUCell, nn.ReLU, set]):
        model = torch.load(sys.argv[1], weights_only=weights_only)
    assert type(model[0]) is nn.LSTM and type(model[1]) is nn.GRUCell
    torch.save(model[0](torch.ones(5, 3, 4)), sys.argv[2])
assert "onernn" not in sys.modules
"""


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(5)


@pytest.mark.parametrize("kind, more", STACKS)
def test_results_have_the_strides_of_pytorchs(kind: Any, more: dict[str, Any]) -> None:
    for layers, batch_first, bidirectional in itertools.product((1, 2), *[(False, True)] * 2):
        theirs = kind(
            INPUT, UNITS, layers, batch_first=batch_first, bidirectional=bidirectional, **more
        )
        ours = optimize(theirs.eval())
        x = make_batch()
        for given, grad in itertools.product((x, x.transpose(0, 1), x[:, :1], x[0]), (False, True)):
            with torch.set_grad_enabled(grad):
                pairs = zip(tensors(ours(given)), tensors(theirs(given)), strict=True)
                assert all(own.stride() == other.stride() for own, other in pairs)
    with torch.no_grad():
        ours(x)[0].transpose(0, 1).view(-1, UNITS)


def test_a_saved_module_opens_without_onernn(tmp_path: Path) -> None:
    model = optimize(nn.Sequential(nn.LSTM(4, 6), nn.GRUCell(6, 6), nn.ReLU()))
    torch.save(model, tmp_path / "m.pt")
    files = [str(tmp_path / name) for name in ("m.pt", "y.pt")]
    subprocess.run([sys.executable, "-c", OPENS, *files], check=True)
    with torch.no_grad():
        assert_same(torch.load(files[1]), model[0](torch.ones(5, 3, 4)))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_module_is_pytorchs(protocol: int) -> None:
    ours = optimize(nn.LSTM(4, 6))
    back = pickle.loads(pickle.dumps(ours, protocol))
    assert type(back) is nn.LSTM
    assert back.state_dict().keys() == ours.state_dict().keys()


def test_quantize_dynamic_finds_the_layers() -> None:
    model = nn.Sequential(nn.LSTM(4, 6), nn.ReLU())
    quantized = [
        torch.ao.quantization.quantize_dynamic(each, {nn.LSTM}) for each in (model, optimize(model))
    ]
    assert type(quantized[0][0]) is type(quantized[1][0]) is not nn.LSTM
    x = torch.randn(5, 3, 4)
    assert torch.equal(quantized[0][0](x)[0], quantized[1][0](x)[0])


def test_parametrized_modules_and_their_copies_stay_ours() -> None:
    ours, x = optimize(nn.LSTM(4, 6)), torch.randn(5, 3, 4)
    parametrizations.weight_norm(ours, "weight_hh_l0")
    with torch.no_grad():
        ours.parametrizations.weight_hh_l0.original0.mul_(2)  # the norm
        expected = ours(x)[0]
        copied = copy.deepcopy(ours)
        assert torch.equal(copied(x)[0], expected)
        assert "onernn: LSTM" in explain(copied)
        parametrize.remove_parametrizations(ours, "weight_hh_l0")
        assert ours.__class__ is nn.LSTM
        assert_same(ours(x)[0], expected)
        assert "onernn: LSTM" in explain(ours)
        assert_same(restore(ours)(x)[0], expected)


def test_arguments_of_the_intel_extension_are_taken(caplog: pytest.LogCaptureFixture) -> None:
    model, x = nn.Sequential(nn.LSTM(4, 6)).eval(), torch.randn(5, 3, 4)
    named = {"level": "O1", "graph_mode": False}
    for _ in range(2):
        ours = optimize(model, dtype=torch.float32, inplace=False, sample_input=x, **named)
    assert "not called" not in explain(ours)
    changes_nothing = [text for text in caplog.messages if "changes nothing" in text]
    assert [text.split()[0] for text in changes_nothing] == [*named]
    with pytest.raises(TypeError, match="levle"):
        optimize(model, levle="O1")


@pytest.mark.parametrize("inputs", [[], [torch.ones(1, 2, 4)]], ids=["script", "trace"])
def test_what_torchscript_has_compiled_is_said_to_stay(
    inputs: list[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compiled = torch.jit.trace if inputs else torch.jit.script
    model = compiled(nn.Sequential(nn.Linear(4, 4), nn.LSTM(4, 6)), *inputs)
    assert "TorchScript" in explain(optimize(model))
    (warning,) = caplog.messages
    assert warning.startswith("stays with PyTorch: 1: TorchScript")
    frozen = optimize(torch.jit.freeze(model.eval()))  # operators are left of its layers
    assert explain(frozen).startswith("aten::lstm: stays with PyTorch: TorchScript")
    x, file = torch.ones(1, 2, 4), str(tmp_path / "m.onnx")
    torch.onnx.export(frozen, (x,), file, dynamo=False, input_names=["x"])
    y, *_ = onernn.Session(file).run({"x": x.numpy()}).values()
    assert_same(torch.from_numpy(y), frozen(x)[0])


def test_what_torch_ao_quantized_and_torch_export_made_is_said_to_stay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    quantization, x = torch.ao.quantization, torch.ones(5, 3, 4)
    model = nn.ModuleDict({"stack": nn.LSTM(4, 6), "cell": nn.GRUCell(4, 6)}).eval()
    dynamic = quantization.quantize_dynamic(model, {nn.LSTM, nn.GRUCell})
    static = nn.Sequential(nn.LSTM(4, 6)).eval()
    static.qconfig = quantization.get_default_qconfig("fbgemm")  # type: ignore[assignment]
    observed = quantization.prepare(static)
    observed(x)
    for quantized, names in (
        (dynamic, ["stack", "cell"]),
        (observed, ["0"]),
        (quantization.convert(observed), ["0"]),
    ):
        lines = explain(optimize(quantized)).splitlines()
        assert [line.partition(":")[0] for line in lines] == names
        assert all("dtype='int8-dynamic'" in line for line in lines)
        assert "torch.ao quantizes it" in caplog.messages.pop()
    program = torch.export.export(static, (x,))
    for made in (program.module(), torch.export.unflatten(program)):
        assert "aten::lstm: stays with PyTorch: torch.export" in explain(
            optimize(made, inplace=True)
        )
    with pytest.raises(onernn.UnsupportedError, match="torch.export"):
        optimize(program)


def test_a_weight_that_is_missing_or_of_another_shape_is_left_to_pytorch() -> None:
    x = make_batch()
    theirs, ours = make_pair(nn.LSTM)
    with torch.no_grad():
        for each in (theirs, ours):
            del each.weight_hh_l0
        assert_same(ours(x)[0], theirs(x)[0])  # by the weight that PyTorch still holds
        for each in (theirs, ours):
            each.weight_hh_l0 = nn.Parameter(torch.ones(4 * UNITS + 1, UNITS))
        assert_same(ours(x)[0], theirs(x)[0])
    assert "deleted" in explain(ours) and "expected 24 rows" in explain(ours)


def test_what_stays_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    class Own(nn.GRU):
        def forward(self, input: Any, hx: Any = None) -> Any:
            return super().forward(input, hx)

    model = optimize(nn.ModuleList([Own(4, 6), Own(4, 6), nn.GRU(4, 6)]))
    reason = "forward: expected torch.nn.GRU.forward, got a different function"
    assert caplog.messages == [f"stays with PyTorch: 0 and 1 more: {reason}"]
    assert type(model[0]) is Own
    *left, replaced = explain(model).splitlines()
    assert left == [f"{at}: stays with PyTorch: {reason}" for at in (0, 1)]
    assert replaced.startswith("2: onernn: ")
    with torch.no_grad():
        for _ in range(2):
            model[2].double()(torch.ones(5, 3, 4).double())
    assert len(caplog.messages) == 2 and "float64" in caplog.messages[1]
    optimize(nn.Linear(2, 2))
    assert "no recurrent modules" in caplog.messages[2]


def test_a_profile_shows_calls_by_name() -> None:
    ours, x = optimize(nn.LSTM(64, 128)), torch.randn(40, 16, 64)
    with torch.profiler.profile() as seen:
        with torch.no_grad():
            ours(x)
        y, _ = nn.LSTM.forward(ours, x)
    names = {each.key: each.count for each in seen.key_averages()}
    assert names["onernn::LSTM"] == 1
