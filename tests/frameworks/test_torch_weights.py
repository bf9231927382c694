"""Weights that the command writes for PyTorch, taken by its modules; and those that it saves."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onernn.adapters.torch.weight_files import read_arrays

torch = pytest.importorskip("torch")


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
        "parameter": torch.nn.Parameter(whole.clone(), requires_grad=False),
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
    module = torch.nn.Sequential(torch.nn.GRU(3, 2, 2), torch.nn.Linear(2, 2))
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


def test_a_pickled_module_is_refused_with_what_to_save_instead(tmp_path: Path) -> None:
    torch.save(torch.nn.GRU(3, 2), tmp_path / "module.pt")
    with pytest.raises(Exception, match=r"torch\.nn\.modules\.rnn\.GRU.*state_dict\(\)"):
        read_arrays(tmp_path / "module.pt")
