"""Files of arrays without a model: read by name, their recurrent layers by their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support.command_line import failed, onernn

from onernn import ModelFormatError, ShapeError, UnsupportedError, load, read_weights
from onernn.adapters.stacks import read_stacks
from onernn.ir.spec import Cell
from onernn.reorders import keras, torch

RNG = np.random.default_rng(2)
KERAS = {"kernel": (3, 12), "recurrent_kernel": (4, 12), "bias": (2, 12)}
TORCH = {"weight_ih_l0": (16, 3), "weight_hh_l0": (16, 4), "bias_ih_l0": 16, "bias_hh_l0": 16}


def made(shapes: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: RNG.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def h5(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return path


@pytest.mark.parametrize("names", ["gru/gru/{}:0", "a/b/gru_cell/{}:0", "layers/gru/cell/vars/{}"])
def test_an_h5_of_weights_gives_arrays_and_layers(names: str, tmp_path: Path) -> None:
    layer, numbered = made(KERAS), names.endswith("vars/{}")
    stems = range(len(layer)) if numbered else layer
    arrays = {names.format(k): array for k, array in zip(stems, layer.values(), strict=True)}
    arrays |= {"dense/dense/kernel:0": RNG.normal(size=(4, 2)), "dense/dense/bias:0": np.ones(2)}
    file = h5(tmp_path / "model.weights.h5", arrays)
    got = read_weights(file)
    assert got.keys() == arrays.keys()
    for name, array in arrays.items():
        assert_array_equal(got[name], array, strict=True)
    ((group, stack),) = read_stacks(file).items()
    assert group == names.partition("/{}")[0].removesuffix("/cell/vars")
    assert stack.spec.cell is Cell.LBR_GRU
    again = keras.FRAMEWORK.write(stack)
    for name in ("kernel", "recurrent_kernel"):
        assert_array_equal(again[name], layer[name])
    sums = (each.sum(0)[:8] for each in (again["bias"], layer["bias"]))  # the candidate's are apart
    assert_allclose(*sums, rtol=0, atol=1e-6)
    with pytest.raises(ModelFormatError, match="onernn.read_weights returns the arrays"):
        load(file)


@pytest.mark.parametrize("kind", ["lstm", "gru", "simple_rnn"])
@pytest.mark.parametrize("version", [b"2.1.4", b"2.2.4-tf", b"2.3.0", b"2.15.0", None])
def test_gates_of_weights_are_the_default_of_the_keras_that_wrote_them(
    kind: str, version: bytes | None, tmp_path: Path
) -> None:
    wide = {"lstm": 16, "gru": 12, "simple_rnn": 4}[kind]
    shapes = {"kernel": (3, wide), "recurrent_kernel": (4, wide), "bias": (2, 12)}
    shapes |= {} if kind == "gru" else {"bias": (wide,)}
    file = h5(tmp_path / "w.h5", {f"{kind}_1/{name}:0": a for name, a in made(shapes).items()})
    with h5py.File(file, "a") as opened:
        opened.attrs.update({} if version is None else {"keras_version": version})
    old = kind != "simple_rnn" and version in (b"2.1.4", b"2.2.4-tf")
    ((_, stack),) = read_stacks(file).items()
    assert ("hardsigmoid" in str(stack.spec.activations)) == old
    if not old:
        with pytest.raises(UnsupportedError, match="recurrent_activation='sigmoid'"):
            read_stacks(file, recurrent_activation="sigmoid")
        return
    words = ["weights", str(file), "--to", "torch", "--output", str(tmp_path / "o.npz")]
    refused = failed(onernn(*words))
    assert "hard_sigmoid" in refused and "--recurrent-activation sigmoid" in refused
    assert not (tmp_path / "o.npz").exists()
    assert onernn(*words, "--recurrent-activation", "sigmoid").returncode == 0
    ((_, usual),) = read_stacks(file, recurrent_activation="sigmoid").items()
    with np.load(tmp_path / "o.npz") as written:
        for name, array in torch.FRAMEWORK.write(usual).items():
            assert_array_equal(written[name], array)


def test_an_npz_gives_arrays_and_pytorchs_layers(tmp_path: Path) -> None:
    layer = made(TORCH)
    np.savez(tmp_path / "w.npz", other=np.arange(3), **{f"rnn.{n}": a for n, a in layer.items()})
    got = read_weights(tmp_path / "w.npz")
    assert got.keys() == {"other", *(f"rnn.{name}" for name in layer)}
    ((module, stack),) = read_stacks(tmp_path / "w.npz").items()
    assert module == "rnn" and stack.spec.cell is Cell.LSTM
    for name, array in torch.FRAMEWORK.write(stack).items():
        if "weight" in name:
            assert_array_equal(array, layer[name])
    with pytest.raises(UnsupportedError, match="arrays, no model; onernn.read_weights"):
        load(tmp_path / "w.npz")


def test_a_file_without_layers_says_which_names_it_wants(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", kernel=np.zeros((3, 4), np.float32))
    with pytest.raises(UnsupportedError, match="expected names as PyTorch's, .* or as Keras's"):
        read_stacks(tmp_path / "w.npz")


def test_arrays_that_do_not_fit_name_their_group(tmp_path: Path) -> None:
    layer = made({**KERAS, "bias": (2, 11)})
    file = h5(tmp_path / "w.h5", {f"gru/{name}": array for name, array in layer.items()})
    with pytest.raises(ShapeError, match=r"gru: bias: expected \(2, 12\)"):
        read_stacks(file)


def test_models_and_files_that_hold_none_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file.attrs["model_config"] = "{}"
    (tmp_path / "m.onnx").touch()
    for name in ("m.h5", "m.onnx"):
        with pytest.raises(UnsupportedError, match=name):
            read_weights(tmp_path / name)
    (tmp_path / "none.npz").write_bytes(b"PK\x03\x04")
    np.savez(tmp_path / "objects.npz", a=np.array([{}], object))
    for name in ("none.npz", "objects.npz", "missing.npz", "missing.h5", "missing.pt", "missing"):
        with pytest.raises(ModelFormatError, match=name):
            read_weights(tmp_path / name)
