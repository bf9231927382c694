"""What is not exact is refused by name; files that are none, or reach for others, are told."""

from __future__ import annotations

import copy
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onernn
from onernn import ModelFormatError, UnsupportedError

h5py = pytest.importorskip("h5py")
MODEL = Path(__file__).parents[2] / "data" / "keras" / "text_classifier" / "model.keras"
BOTH, DENSE = 2, 5
"""Where the layers stand in its list."""


def changed(folder: Path, change: Callable[[list[Any]], None], **members: bytes) -> Path:
    """The model with another list of layers, and other members by the start of their names."""
    file = folder / "changed.keras"
    with zipfile.ZipFile(MODEL) as old, zipfile.ZipFile(file, "w") as new:
        for name in old.namelist():
            data = members.get(name.partition(".")[0], old.read(name))
            if name == "config.json" and "config" not in members:
                config = json.loads(data)
                change(config["config"]["layers"])
                data = json.dumps(config).encode()
            new.writestr(name, data)
    return file


def _set(at: int, **values: Any) -> Callable[[list[Any]], None]:
    return lambda layers: layers[at]["config"].update(values)


def _class(at: int, name: str, module: str | None = "keras.layers") -> Callable[[list[Any]], None]:
    return lambda layers: layers[at].update(class_name=name, module=module, registered_name=name)


def _inner(**values: Any) -> Callable[[list[Any]], None]:
    def change(layers: list[Any]) -> None:
        for side in ("layer", "backward_layer"):
            layers[BOTH]["config"][side]["config"].update(values)

    return change


POLICY = {"class_name": "DTypePolicy", "config": {"name": "mixed_bfloat16"}}
QUANTIZED = {"class_name": "QuantizedDTypePolicy", "config": {"name": "int8_from_float32"}}
CUSTOM = {"class_name": "function", "config": "mine", "module": "builtins", "registered_name": "m"}


@pytest.mark.parametrize(
    "change, reason",
    [
        (_class(DENSE, "Lambda"), "Lambda"),
        (_class(DENSE, "ConvLSTM1D"), "layer ConvLSTM1D"),
        (_class(DENSE, "MultiHeadAttention"), "layer MultiHeadAttention"),
        (_class(DENSE, "Dense", "my.module"), "Dense of my.module"),
        (_class(DENSE, "mine>Dense", None), "mine>Dense"),
        (_set(DENSE, dtype=POLICY), "dtype 'mixed_bfloat16'"),
        (_set(DENSE, dtype=QUANTIZED), "dtype 'int8_from_float32'"),
        (_set(DENSE, dtype="float16"), "dtype 'float16'"),
        (_set(DENSE, quantization_config={"a": 1}), "attribute quantization_config"),
        (_set(DENSE, lora_rank=2), "attribute lora_rank"),
        (_set(DENSE, activation="mine"), "activation 'mine': not known"),
        (_set(DENSE, activation=CUSTOM), "activation 'mine': .*a user's function"),
        (_set(DENSE, units=3), r"kernel: expected \(I, 3\), got"),
        (_set(DENSE, use_bias=False), "weights .*vars/1"),
        (_set(BOTH, merge_mode="max"), "merge_mode='max'"),
        (_inner(activation="selu"), "LSTM with selu"),
        (_inner(new_option=3), "attribute new_option"),
        (_inner(units=4), "units=4"),
        (_inner(unroll=True), "unroll=True with zeros"),
        (_set(1, name="none"), None),
    ],
)
def test_what_is_not_exact_is_refused_by_name(
    change: Callable[[list[Any]], None], reason: str | None, tmp_path: Path
) -> None:
    graph = onernn.load(changed(tmp_path, change))
    if reason is None:
        assert onernn.Session(graph)
        return
    with pytest.raises(UnsupportedError, match=reason):
        onernn.Session(graph)


def test_a_layer_of_which_weights_are_missing_is_refused(tmp_path: Path) -> None:
    def double(layers: list[Any]) -> None:
        layers.append(copy.deepcopy(layers[DENSE]))
        layers[-1]["config"]["name"] = "other"

    with pytest.raises(UnsupportedError, match="'layers/dense_1/vars/0'"):
        onernn.Session(onernn.load(changed(tmp_path, double)))


@pytest.mark.parametrize(
    "members, reason",
    [
        ({"model": b"no"}, "not an HDF5 file"),
        ({"model": b"\x89HDF\r\n\x1a\n" + bytes(90)}, "not a readable HDF5 file"),
        ({"config": b"{"}, "not a Keras model"),
        ({"config": b"[" * 10**5}, "not a Keras model"),
        (
            {"config": b'{"class_name": "Sequential", "config": {}}'},
            "not a valid model configuration",
        ),
        ({"config": b'{"class_name": "Mine", "config": {}}'}, "Mine is a user's class"),
        ({"config": b"[]"}, "not a valid model configuration"),
        ({"metadata": b'{"keras_version": "4.0"}'}, "written by Keras 4.0"),
    ],
)
def test_a_file_that_is_no_model_is_told(
    members: dict[str, bytes], reason: str, tmp_path: Path
) -> None:
    file = changed(tmp_path, lambda _: None, **members)
    with pytest.raises(onernn.OnernnError, match=reason) as raised:
        onernn.load(file)
    assert str(file) in str(raised.value)


@pytest.mark.parametrize(
    "inputs, reason",
    [
        ([], "layer 'a' depends on its own output"),
        (["b", 0, 0], "m: expected the input layer 'b', got a"),
    ],
)
def test_a_graph_that_contradicts_itself_is_told(
    inputs: list[Any], reason: str, tmp_path: Path
) -> None:
    tensor = {"class_name": "__keras_tensor__", "config": {"keras_history": ["a", 0, 0]}}
    layer = {
        "class_name": "Dropout",
        "module": "keras.layers",
        "config": {"name": "a", "rate": 0.1},
        "name": "a",
        "inbound_nodes": [{"args": [tensor], "kwargs": {}}],
    }
    config = {"layers": [layer], "input_layers": inputs, "output_layers": ["a", 0, 0]}
    whole = {"class_name": "Functional", "module": "keras", "config": {"name": "m", **config}}
    file = changed(tmp_path, lambda _: None, config=json.dumps(whole).encode())
    with pytest.raises(ModelFormatError, match=reason):
        onernn.load(file)


def test_weights_alone_are_no_model(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "m.weights.h5", "w") as file:
        file["layers/dense/vars/0"] = np.zeros(3)
    with pytest.raises(ModelFormatError, match="m.weights.h5"):
        onernn.load(tmp_path / "m.weights.h5")


@pytest.mark.parametrize("kind", ["external", "link", "virtual", "huge"])
def test_weights_never_come_from_other_files(kind: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(64))
    held = io.BytesIO()
    with h5py.File(held, "w") as file:
        match kind:
            case "external":
                file.create_dataset("a", (4,), "f4", external=[(str(secret), 0, 16)])
            case "link":
                file["a"] = h5py.ExternalLink(str(secret), "/")
            case "virtual":
                layout = h5py.VirtualLayout((4,), "f4")
                layout[:] = h5py.VirtualSource(str(secret), "a", (4,))
                file.create_virtual_dataset("a", layout)
            case "huge":
                file.create_dataset("a", (2**40,), "f4", chunks=(1024,))
    path = changed(tmp_path, lambda _: None, model=held.getvalue())
    with pytest.raises(onernn.OnernnError, match=r"\ba(:| would)"):
        onernn.load(path)
