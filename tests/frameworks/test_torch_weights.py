"""Weights that the command writes for PyTorch, taken by its modules; and those that it saves."""

from __future__ import annotations

import re
import shlex
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import onernn
from onernn.adapters.stacks import read_stacks
from onernn.adapters.torch.weight_files import read_arrays


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "old"])
@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool"]
)
def test_tensors_of_every_dtype_and_layout_come_back(
    dtype: str, zipped: bool, tmp_path: Path
) -> None:
    whole = (torch.arange(24) % 2).to(getattr(torch, dtype)).reshape(4, 6)
    state: dict[str, Any] = {
        "whole": whole,
        "turned": whole.t(),
        "part": whole[1:3, ::2],
        "scalar": whole[0, 1],
        "empty": whole[:0],
        "expanded": whole[:1].expand(5, 6),
        "parameter": nn.Parameter(whole.clone(), requires_grad=False),
        "inside": {"list": [whole[0], (whole[1], 3, "text")]},
    }
    torch.save(state, tmp_path / "m.pt", _use_new_zipfile_serialization=zipped)
    found = read_arrays(tmp_path / "m.pt")
    inside = state.pop("inside")["list"]
    state |= {"inside.list.0": inside[0], "inside.list.1.0": inside[1][0]}
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        wide = tensor.detach().float() if dtype == "bfloat16" else tensor.detach()
        np.testing.assert_array_equal(found[name], wide.numpy(), strict=True)


def test_scripted_modules_and_checkpoints_with_optimizers_are_read(tmp_path: Path) -> None:
    module = nn.Sequential(nn.GRU(3, 2, 2), nn.Linear(2, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(module[0]).save(str(tmp_path / "scripted.pt"))
    assert read_arrays(tmp_path / "scripted.pt").keys() == module[0].state_dict().keys()
    optimizer = torch.optim.Adam(module.parameters())
    module[0](torch.ones(3, 1, 3))[0].sum().backward()
    optimizer.step()
    whole = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 1}
    torch.save(whole, tmp_path / "checkpoint.pt")
    assert read_arrays(tmp_path / "checkpoint.pt").keys() == module.state_dict().keys()


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(3, 4, batch_first=True), nn.GRU(4, 4, 2, bidirectional=True)
        self.cell, self.out = nn.LSTMCell(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x)[0])


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "old"])
@pytest.mark.parametrize("read", [onernn.load, onernn.read_weights])
def test_what_the_refusal_of_a_pickled_module_says_works(
    read: Callable[[Path], object], zipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network()
    torch.save(network, tmp_path / "m", _use_new_zipfile_serialization=zipped)
    with pytest.raises(onernn.UnsupportedError, match=r"\.Network, which is not run") as told:
        read(tmp_path / "m")
    (command,) = re.findall(r"torch\.save\(.*?\), 'state\.pt'\)", str(told.value))
    monkeypatch.chdir(tmp_path)
    eval(command)  # what it says is what works
    assert onernn.read_weights("state.pt").keys() == network.state_dict().keys()


def test_what_the_refusal_of_a_torchscript_archive_says_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnx", reason="torch's exporter writes by onnx")
    network, x = Network().eval(), torch.randn(4, 7, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(network).save(str(tmp_path / "network.model"))
    with pytest.raises(onernn.UnsupportedError, match="TorchScript") as told:
        onernn.load(tmp_path / "network.model")
    (command,) = re.findall(r"python -c .*(?=, with your inputs)", str(told.value))
    program = shlex.split(command)[2].replace("torch.zeros(2, 5, 8)", "torch.zeros(2, 5, 3)")
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(program)
    (y,) = onernn.Session("model.onnx").run({"x": x.numpy()}).values()
    np.testing.assert_allclose(y, network(x).detach().numpy(), rtol=1e-5, atol=2e-6)


@pytest.mark.filterwarnings("ignore")
def test_a_state_of_quantized_layers_is_refused_and_their_weights_can_be_written(
    tmp_path: Path,
) -> None:
    """The manual's page has this function."""
    network = Network().eval()
    kinds = {nn.LSTM, nn.GRU, nn.LSTMCell, nn.Linear}
    quantized = torch.ao.quantization.quantize_dynamic(network, kinds)
    for kind, module in (("layers", quantized), ("linear", nn.Sequential(quantized.out))):
        torch.save(module.state_dict(), tmp_path / f"{kind}.pt")
        with pytest.raises(onernn.UnsupportedError, match="Weights of quantized layers"):
            onernn.read_weights(tmp_path / f"{kind}.pt")
    page = Path(__file__).parents[2] / "docs" / "moving" / "quantize_dynamic.md"
    (source,) = re.findall(r"def float_weights\(.*?(?=\n\n\n)", page.read_text(), re.DOTALL)
    names: dict[str, Any] = {"torch": torch}
    exec(source, names)
    torch.save(names["float_weights"](quantized), tmp_path / "state.pt")
    found = onernn.read_weights(tmp_path / "state.pt")
    for name, tensor in network.state_dict().items():  # 255 steps from -most to most
        step = tensor.abs().max().item() / 127.5
        np.testing.assert_allclose(found[name], tensor.numpy(), rtol=0, atol=step)
    assert read_stacks(tmp_path / "state.pt").keys() == {"lstm", "gru", "cell"}
