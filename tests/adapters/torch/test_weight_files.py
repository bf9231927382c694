"""Weights in PyTorch's files: what is read, and that nothing of a pickle is run."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import struct
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onernn import (
    ModelFormatError,
    OnernnError,
    ShapeError,
    UnsupportedError,
    load,
    read_weights,
)
from onernn.adapters.stacks import read_stacks
from onernn.adapters.torch.weight_files import read_arrays, unpickle
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


NAMES = ["pytorch_model.bin", "model.pth.tar", "best.model", "weights", "state.onnx", "a.pt2"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("content", FILES)
def test_weights_are_known_by_their_content_under_any_name(
    content: str, name: str, tmp_path: Path, arrays: dict[str, Any]
) -> None:
    file = Path(shutil.copy(WEIGHTS / content, tmp_path / name))
    assert read_weights(file).keys() == arrays.keys()
    assert read_stacks(file).keys() == {"encoder", "decoder.gru"}
    with pytest.raises(
        UnsupportedError, match=rf"{name}: .*onernn\.read_weights returns the arrays"
    ):
        load(file)


@pytest.mark.parametrize("name", ["model.bin", "model.pt", "model"])
def test_a_program_is_known_by_its_content_under_any_name(name: str, tmp_path: Path) -> None:
    file = Path(shutil.copy(WEIGHTS.parent / "rows" / "model.pt2", tmp_path / name))
    assert [value.name for value in load(file).inputs] == ["x"]
    with pytest.raises(UnsupportedError, match=rf"{name}: no file of weights alone"):
        read_weights(file)


def test_a_torchscript_archive_says_how_it_becomes_onnx(tmp_path: Path) -> None:
    file = Path(shutil.copy(WEIGHTS / "traced.pt", tmp_path / "it's traced.model"))
    with pytest.raises(
        UnsupportedError, match=r"TorchScript.*torch\.onnx\.export\(torch\.jit\.load"
    ):
        load(file)


def write_safetensors(file: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes float32 arrays as huggingface/safetensors describes its format."""
    header, body = {}, b""
    for name, array in arrays.items():
        places = [len(body), len(body) + array.nbytes]
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": places}
        body += array.tobytes()
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + body)


@pytest.mark.parametrize("entries", ["a0", "a4", "a0 b0", "a0 a4"])  # a4: the bytes from 4 to 8
def test_bytes_of_a_safetensors_that_are_not_in_exactly_one_tensor_are_an_error(
    entries: str, tmp_path: Path
) -> None:
    texts = [
        f'"{name}":{{"dtype":"F32","shape":[1],"data_offsets":[{at},{int(at) + 4}]}}'
        for name, at in entries.split()
    ]
    text = "{{{}}}".format(",".join(texts)).encode()
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    with pytest.raises(ModelFormatError, match="expected each byte of the elements in exactly one"):
        read_weights(tmp_path / "m.safetensors")


PARTS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


@pytest.fixture
def index(tmp_path: Path, arrays: dict[str, Any]) -> Path:
    """The index of a state whose tensors are in two files in turn."""
    places = {name: PARTS[at % 2] for at, name in enumerate(arrays)}
    for part in PARTS:
        held = {name: array for name, array in arrays.items() if places[name] == part}
        write_safetensors(tmp_path / part, held)
    file = tmp_path / "model.safetensors.index.json"
    file.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    return file


def test_an_index_gives_the_tensors_of_its_files(index: Path, arrays: dict[str, Any]) -> None:
    found = read_weights(index)
    assert [*found] == [*arrays]
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array, strict=True)
    assert read_stacks(index).keys() == {"encoder", "decoder.gru"}
    with pytest.raises(UnsupportedError, match="onernn.read_weights returns the arrays"):
        load(index)


@pytest.mark.parametrize(
    "places, error",
    [
        ({"x": "../state.safetensors"}, r"in the model's folder, got '\.\./state.safetensors'"),
        ({"x": "model.safetensors.index.json"}, "expected an archive"),
        ({"x": "missing.safetensors"}, r"missing\.safetensors.*no such file"),
        ({"x": PARTS[0]}, f"'.*': '{PARTS[0]}' has it, expected only|'x': '{PARTS[0]}' lacks it"),
        ({"x": 3}, "weight_map: expected the name of a file"),
        ([], "weight_map: expected an object"),
    ],
)
def test_an_index_that_does_not_fit_its_files_is_told(places: Any, error: str, index: Path) -> None:
    index.write_text(json.dumps({"weight_map": places}))
    with pytest.raises(ModelFormatError, match=error):
        read_weights(index)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04",
        b"\x80\x02\x8a\x0a",
        b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.",
        b'{"weight_map"',
        b'"weight_map"',
        b'{"weight_map": {"a": "b"}}' + b"[" * 10**5,
        b"\xff" * 8 + b"{",
        b"\x02" + b"\x00" * 7 + b"{}",
        b"\x02" + b"\x00" * 7 + b"{[",
    ],
    ids=range(10),
)
@pytest.mark.parametrize("name", ["model", "model.bin", "model.pt", "model.pt2"])
def test_a_file_that_only_begins_like_weights_is_an_error_of_ours(
    content: bytes, name: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(OnernnError, match=name) as told:
        load(tmp_path / name)
    try:
        assert read_weights(tmp_path / name) == {}  # a .safetensors of no tensor
    except OnernnError as error:
        assert name in str(error)
        assert "weights, not a model" not in str(told.value) or b"{" in content  # JSON is not read


class Module:
    """A pickle of it names this class, as one of torch.save(module) names the module's."""


@pytest.mark.parametrize(
    "value, advice",
    [
        (Module(), r"weights_only=False\)\.state_dict\(\), 'state\.pt'\)"),
        ({"state_dict": {}, "args": Module()}, r"weights_only=False\)\['state_dict'\]"),
    ],
    ids=["whole", "inside"],
)
@pytest.mark.parametrize("suffix", [".pt", ".bin", ""])
def test_every_reader_explains_a_pickled_object_in_the_same_words(
    value: Any, advice: str, suffix: str, tmp_path: Path
) -> None:
    file = write_archive(tmp_path, pickle.dumps(value, 2)).rename(tmp_path / f"m{suffix}")
    words = set()
    for read in (read_weights, load, read_stacks):
        with pytest.raises(
            UnsupportedError, match=rf"\.Module, which is not run.*{advice}"
        ) as told:
            read(file)
        words.add(str(told.value))
    assert len(words) == 1


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


def write_archive(folder: Path, data: bytes) -> Path:
    """A file that holds a pickle."""
    with zipfile.ZipFile(folder / "m.pt", "w") as archive:
        archive.writestr("m/data.pkl", data)
    return folder / "m.pt"


class Calls:
    """A pickle of it calls os.system."""

    def __reduce__(self) -> Any:
        import os

        return os.system, ("false",)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_a_pickle_that_calls_anything_is_refused_by_its_name(protocol: int, tmp_path: Path) -> None:
    file = write_archive(tmp_path, pickle.dumps({"weight_ih_l0": Calls()}, protocol))
    with pytest.raises(UnsupportedError, match=r"(posix|nt)\.system"):
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
    assert read_arrays(write_archive(tmp_path, shared(200))) == {}


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
    with pytest.raises(
        ModelFormatError, match=r"encoder\.weight_ih_l0: expected 48 elements, got 188 bytes"
    ):
        read_arrays(file)


def test_numbers_of_another_byte_order_are_refused(tmp_path: Path) -> None:
    file = rewritten(tmp_path / "m.pt", "byteorder", lambda _: b"big")
    with pytest.raises(UnsupportedError, match=str(file)):
        read_arrays(file)


def test_a_file_without_recurrent_layers_tells_which_names_it_wants(tmp_path: Path) -> None:
    file = write_archive(tmp_path, pickle.dumps({}, 2))
    with pytest.raises(UnsupportedError, match=str(file)):
        read_stacks(file)


@pytest.mark.parametrize(
    "name, shape, named",
    [
        ("decoder.gru.bias_hh_l0", 3, r"decoder\.gru: .*bias"),
        ("encoder.weight_ih_l0_reverse", (16, 2), r"encoder: weights layer: .* got \(.*\) and \("),
    ],
)
def test_arrays_that_do_not_fit_each_other_name_their_module(
    name: str, shape: Any, named: str, arrays: dict[str, Any], tmp_path: Path
) -> None:
    file, (wrong, right) = tmp_path / "m.npz", ("encoder", "decoder.gru")
    if name.startswith(right):
        wrong, right = right, wrong
    np.savez(file, **{**arrays, name: np.zeros(shape, np.float32)})
    found = read_stacks(file)
    assert found.keys() == {right}
    assert re.search(named.partition(": ")[2], str(*found.omitted)) and wrong in str(*found.omitted)
    assert not read_stacks(file, node=right).omitted
    with pytest.raises(ShapeError, match=named):
        read_stacks(file, node=wrong)


PLAIN = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


@pytest.mark.parametrize(
    "names, named",
    [
        ((*PLAIN, "layernorm_i.weight"), "layernorm_i.weight"),
        ((*PLAIN, "weight_ci"), "weight_ci"),
        (
            ("weight_ih_l0_g", "weight_ih_l0_v", "weight_hh_l0_g", "weight_hh_l0_v"),
            "weight_hh_l0_g",
        ),
        (("weight_ih_l0", "weight_hh_l0_orig", "weight_hh_l0_mask"), "weight_hh_l0_mask"),
        (("weight_ih_l0", "parametrizations.weight_hh_l0.original0"), "original0"),
        (("weight_hh_l0_raw", *(f"module.{name}" for name in PLAIN)), "weight_hh_l0_raw"),
    ],
)
@pytest.mark.parametrize(
    "module, others",
    [("decoder-x", 2), ("decoder.gru2", 2), ("decoder", 1), ("decoder.gru.inner", 1)],
)
def test_a_layer_with_other_parameters_than_pytorchs_is_refused_by_their_names(
    names: Sequence[str],
    named: str,
    module: str,
    others: int,
    arrays: dict[str, Any],
    tmp_path: Path,
) -> None:
    more = {f"{module}.{name}": np.ones((6, 2), np.float32) for name in names}
    np.savez(tmp_path / "m.npz", **arrays, **more)
    found = read_stacks(tmp_path / "m.npz")
    assert [*found] == ["encoder", "decoder.gru"][:others]
    assert named in str(*found.omitted)
