"""Weights in PyTorch's files: what is read, and that nothing of a pickle is run."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onernn import ModelFormatError, OnernnError, ShapeError, UnsupportedError
from onernn.adapters.stacks import read_stacks
from onernn.adapters.torch.weight_files import layers_among, read_arrays, unpickle
from onernn.ir.spec import Cell
from onernn.reorders import torch

WEIGHTS = Path(__file__).parents[2] / "data" / "torch" / "weights"
FILES = ["state.pt", "checkpoint.ckpt", "old.pth", "traced.pt", "state.safetensors"]


@pytest.fixture
def arrays() -> dict[str, np.ndarray[Any, Any]]:
    return dict(np.load(WEIGHTS / "arrays.npz"))


@pytest.mark.parametrize("name", FILES)
def test_every_form_of_a_state_gives_its_arrays(name: str, arrays: dict[str, Any]) -> None:
    found = read_arrays(WEIGHTS / name)
    assert found.keys() == arrays.keys()
    for key, array in arrays.items():
        np.testing.assert_array_equal(found[key], array, strict=True)


@pytest.mark.parametrize("name", FILES)
def test_names_tell_the_stack(name: str, arrays: dict[str, Any]) -> None:
    layers = read_stacks(WEIGHTS / name)
    assert layers.keys() == {"encoder", "decoder.gru"}
    spec = layers["encoder"].spec
    assert (spec.cell, spec.layers, spec.directions) == (Cell.LSTM, 2, 2)
    assert (spec.input_size, spec.hidden_size, spec.projection_size) == (3, 4, 2)
    assert layers["decoder.gru"].spec.cell is Cell.LBR_GRU
    for module, layer in layers.items():
        wanted = {k: v for k, v in arrays.items() if k.startswith(module)}
        found = {f"{module}.{k}": v for k, v in torch.FRAMEWORK.write(layer).items()}
        assert found.keys() == wanted.keys()
        for key in wanted:
            if "weight" in key:
                np.testing.assert_array_equal(found[key], wanted[key])


class Calls:
    """A pickle of it calls os.system."""

    def __reduce__(self) -> Any:
        import os

        return os.system, ("false",)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_a_pickle_that_calls_anything_is_refused_by_its_name(protocol: int, tmp_path: Path) -> None:
    data = pickle.dumps({"weight_ih_l0": Calls()}, protocol)
    file = tmp_path / "m.pt"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("m/data.pkl", data)
    with pytest.raises(UnsupportedError, match=r"(posix|nt)\.system, which is not run here"):
        read_arrays(file)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_containers_come_back_as_they_were(protocol: int) -> None:
    value = {"a": [1, -2, 2.5, "x", None, True], "b": {"c": (1, 2, 3, 4)}, "d": 2**40, 7: "e"}
    assert unpickle(pickle.dumps(value, protocol), "m", "it").value == value


def test_a_name_of_torch_that_is_no_tensor_is_refused() -> None:
    data = b"\x80\x02ctorch._utils\n_rebuild_sparse_tensor\n."
    with pytest.raises(UnsupportedError, match=r"torch\._utils\._rebuild_sparse_tensor"):
        unpickle(data, "m", "it")


def shared(depth: int) -> bytes:
    """A list of two that are one list of two, and so on: 2**depth leaves in a few bytes."""
    inner = b"".join(b"q%c0h%ch%c\x86" % (at, at, at) for at in range(depth))
    return b"\x80\x02K\x01" + inner + b"."


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02]q\x00" + b"(" * 10 + b"e" * 10 + b".",
        b"\x80\x02" + b"(" * 10**5 + b".",
        b"\x80\x02)" + b"\x85" * 10**5 + b"q\x00}h\x00K\x01s.",  # a key that is nested
        b"\x80\x02r\xff\xff\xff\x7f.",
        b"\x80\x02X\xff\xff\xff\x7fa.",
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(K\x01K\x02K\x03K\x04tR.",
        b"\x80\x02ctorch.device\n\n.",
        b"\x80\x02h\x07.",
        b"",
    ],
    ids=range(9),
)
def test_a_hostile_pickle_is_an_error_of_ours(data: bytes) -> None:
    with pytest.raises(OnernnError):
        unpickle(data, "m", "it")


def test_a_value_that_holds_itself_many_times_is_read_in_no_time(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
        archive.writestr("m/data.pkl", shared(200))
    assert read_arrays(tmp_path / "m.pt") == {}


def rewritten(file: Path, member: str, change: Callable[[bytes], bytes]) -> Path:
    """state.pt with one member changed, or new."""
    with zipfile.ZipFile(WEIGHTS / "state.pt") as read, zipfile.ZipFile(file, "w") as archive:
        members = {name: read.read(name) for name in read.namelist()}
        root = next(iter(members)).split("/")[0]
        name = f"{root}/{member}"
        for each, data in {**members, name: change(members.get(name, b""))}.items():
            archive.writestr(each, data)
    return file


def test_a_tensor_beyond_its_storage_is_told(tmp_path: Path) -> None:
    file = rewritten(tmp_path / "m.pt", "data/1", lambda data: data[:-4])
    with pytest.raises(ModelFormatError, match=r"encoder\.weight_ih_l0: 48 numbers in 188 bytes"):
        read_arrays(file)


def test_numbers_of_another_byte_order_are_refused(tmp_path: Path) -> None:
    file = rewritten(tmp_path / "m.pt", "byteorder", lambda _: b"big")
    with pytest.raises(UnsupportedError, match="its numbers are big-endian"):
        read_arrays(file)


def test_a_file_without_recurrent_layers_tells_which_names_it_wants(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
        archive.writestr("m/data.pkl", pickle.dumps({}, 2))
    with pytest.raises(UnsupportedError, match="expected names as PyTorch's"):
        read_stacks(tmp_path / "m.pt")


def test_biases_that_do_not_fit_each_other_name_their_module(arrays: dict[str, Any]) -> None:
    arrays["decoder.gru.bias_hh_l0"] = np.zeros(3, np.float32)
    with pytest.raises(ShapeError, match=r"decoder\.gru: .*bias"):
        layers_among(arrays)


def test_directions_that_do_not_fit_each_other_name_their_module(arrays: dict[str, Any]) -> None:
    arrays["encoder.weight_ih_l0_reverse"] = arrays["encoder.weight_ih_l0_reverse"][:, :2]
    with pytest.raises(ShapeError, match=r"encoder: weights layer: \(.*\) and \("):
        layers_among(arrays)
