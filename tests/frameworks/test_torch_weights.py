"""Weights that the command writes for PyTorch, taken by its modules; and those that it saves."""

from __future__ import annotations

import re
import shlex
import warnings
from collections import OrderedDict
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
    "dtype",
    ["float32", "float64", "float16", "bfloat16", "int64", "int32", "uint16", "uint8", "bool"],
)
def test_tensors_of_every_dtype_and_layout_come_back(
    dtype: str, zipped: bool, tmp_path: Path
) -> None:
    whole = torch.arange(24).to(getattr(torch, dtype)).reshape(4, 6)
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


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "old"])
def test_lazy_conjugates_and_signs_are_computed(zipped: bool, tmp_path: Path) -> None:
    values = torch.randn(2, 3, dtype=torch.complex64)
    for at, lazy in enumerate([values.conj(), values.conj().imag, values.conj()[0, 1].imag]):
        torch.save({"x": lazy}, tmp_path / f"{at}", _use_new_zipfile_serialization=zipped)
        found = read_arrays(tmp_path / f"{at}")["x"]
        np.testing.assert_array_equal(found, lazy.resolve_conj().resolve_neg().numpy(), strict=True)


def test_scripted_modules_keep_names_that_begin_with_an_underscore(tmp_path: Path) -> None:
    module = nn.Sequential(OrderedDict(_gru=nn.GRU(3, 2, 2))).eval()
    module.register_buffer("_scale", torch.randn(2, 3).to(torch.complex64).conj())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(module)
        scripted.save(str(tmp_path / "scripted.pt"))
        torch.jit.freeze(scripted).save(str(tmp_path / "frozen.pt"))
    found, wanted = read_arrays(tmp_path / "scripted.pt"), module.state_dict()
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        np.testing.assert_array_equal(found[name], tensor.resolve_conj().numpy(), strict=True)
    with pytest.raises(
        onernn.UnsupportedError, match=r"no names: save .* before torch\.jit\.freeze"
    ):
        read_arrays(tmp_path / "frozen.pt")


def test_checkpoints_with_optimizers_and_settings_are_read(tmp_path: Path) -> None:
    module = nn.Sequential(nn.GRU(3, 2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.Adam(module.parameters())
    module[0](torch.ones(3, 1, 3))[0].sum().backward()
    optimizer.step()
    steps = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])
    others = {"best": np.float64(0.5), 1: b"x", (2, "a"): b"", 3: bytearray(b"y"), 4: 1j}
    others |= {"optimizer": optimizer.state_dict(), "steps": steps.state_dict(), "epoch": 1}
    for protocol in (2, 4):
        whole = {"model": module.state_dict(), **others}
        torch.save(whole, tmp_path / "checkpoint.pt", pickle_protocol=protocol)
        assert read_arrays(tmp_path / "checkpoint.pt").keys() == module.state_dict().keys()
    torch.save({"model": {"width": 2}, "weights": module.state_dict()}, tmp_path / "checkpoint.pt")
    wanted = {f"weights.{name}" for name in module.state_dict()}
    assert read_arrays(tmp_path / "checkpoint.pt").keys() == wanted


def test_tensors_of_a_container_that_occurs_twice_have_both_names(tmp_path: Path) -> None:
    state: dict[str, Any] = {"x": torch.ones(2), "inner": {"y": torch.zeros(3)}}
    state["inner"]["self"] = state
    torch.save({"best": state, "last": state, "inner": state["inner"]}, tmp_path / "m.pt")
    names = ("best.x", "best.inner.y", "last.x", "last.inner.y", "inner.y")
    assert [*read_arrays(tmp_path / "m.pt")] == [*names]
    many: Any = torch.ones(2)
    for _ in range(99):
        many = {"x" * 10**4: many, "y": many}
    torch.save(many, tmp_path / "m.pt")
    with pytest.raises(onernn.OnernnError):
        read_arrays(tmp_path / "m.pt")


@pytest.mark.parametrize(
    "tensor",
    [torch.eye(2).to_sparse(), torch.ones(2).to(torch.float8_e4m3fn)],
    ids=["sparse", "float8"],
)
def test_the_advice_for_a_tensor_that_is_not_read_works(tensor: Any, tmp_path: Path) -> None:
    torch.save({"x": tensor}, tmp_path / "m.pt")
    with pytest.raises(onernn.UnsupportedError, match="save a plain one in its place") as told:
        read_arrays(tmp_path / "m.pt")
    calls = re.findall(r"tensor\.(?:detach\(\)\.)?\w+\(\)", str(told.value))
    torch.save({"x": eval(calls["float8" in str(tensor.dtype)])}, tmp_path / "m.pt")
    plain = tensor.to_dense() if tensor.is_sparse else tensor.float()
    np.testing.assert_array_equal(read_arrays(tmp_path / "m.pt")["x"], plain.numpy())


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
