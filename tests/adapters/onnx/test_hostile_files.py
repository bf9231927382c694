"""Truncated, flipped and made-up ONNX files: a model or an error, no crash and no full memory."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from support.onnx_models import model, parsed, read
from support.onnx_rnn import random_case

from onernn import ModelFormatError, Session, UnsupportedError, load
from onernn.adapters.onnx.lower import lower
from onernn.adapters.onnx.read import MESSAGES, parse_model

CASE = random_case(3)
MODEL = CASE.model().SerializeToString()
FILE = Path("model.onnx")


def identity(tensor: onnx.TensorProto) -> onnx.ModelProto:
    made = model("y = Identity (c)", {}, ["y"])
    made.graph.initializer.append(tensor)
    return made


def external(location: str, **more: str) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name="c", data_type=TensorProto.FLOAT, dims=[4], data_location=1)
    for key, text in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=text)
    return tensor


@pytest.mark.parametrize(
    "data, reason",
    [
        (b"", "the file is empty"),
        (b"not a protobuf at all", "not an ONNX ModelProto"),
        (MODEL[:-7], "not an ONNX ModelProto"),
        (
            MESSAGES.message("ModelProto")(ir_version=8).SerializeToString(),
            "expected a graph and an opset",
        ),
        (MODEL.replace(b"Y_h", b"Y_\xff"), "expected UTF-8"),
    ],
)
def test_what_is_no_model_is_told(data: bytes, reason: str) -> None:
    with pytest.raises(ModelFormatError, match=reason):
        parse_model(data, FILE)


def test_other_versions_and_two_opsets_of_one_domain_are_refused() -> None:
    """Tools that merge models only put them side by side."""
    for field, versions in (("ir_version", (0, 2, 15, 2**60)), ("version", (1, 6, 29, 99))):
        for version in versions:
            model = onnx.load_from_string(MODEL)
            place = model if field == "ir_version" else model.opset_import[0]
            setattr(place, field, version)
            with pytest.raises(UnsupportedError, match=f"{version}: expected (3 to 14|7 to 28);"):
                parse_model(model.SerializeToString(), FILE)
    model = onnx.load_from_string(MODEL)
    again = model.opset_import.add(domain="ai.onnx", version=model.opset_import[0].version)
    parse_model(model.SerializeToString(), FILE)
    again.version = 9
    with pytest.raises(ModelFormatError, match=r"opsets 9 and \d+ of ONNX's own operators"):
        parse_model(model.SerializeToString(), FILE)


@pytest.mark.parametrize(
    "dims, raw",
    [((4,), 15), ((4,), 17), ((3,), 16), ((2**40,), 16), ((-1, -4), 16), ((0, 2**62), 0)]
    + [((2**31, 2**31, 2**31), 16), ((1,) * 40 + (4,), 16)],
)
def test_tensors_whose_data_do_not_fill_their_shape_are_refused(dims: tuple, raw: int) -> None:
    tensor = onnx.TensorProto(
        name="c", data_type=TensorProto.FLOAT, dims=dims, raw_data=b"\0" * raw
    )
    wide = onnx.TensorProto(name="c", data_type=TensorProto.UINT8, dims=[2], int32_data=[1, 256])
    for each in (tensor, wide):
        with pytest.raises(ModelFormatError, match="initializer 'c'"):
            attempt_strictly(identity(each))


def attempt_strictly(model: onnx.ModelProto) -> None:
    Session(lower(parse_model(model.SerializeToString(), FILE)))


def floats(kind: int, dims: list[int], wire: bytes) -> bytes:
    """A model whose constant has these fields for numbers, as the bytes of a file."""
    empty = onnx.TensorProto(name="c", data_type=kind, dims=dims)
    out = identity(empty)
    del out.graph.initializer[:]
    graph = out.graph.SerializeToString() + _field(5, empty.SerializeToString() + wire)
    out.ClearField("graph")
    return out.SerializeToString() + _field(7, graph)


def _field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(data)) + data


def varint(number: int) -> bytes:
    low, high = number % 128, number // 128
    return bytes([low | 128]) + varint(high) if high else bytes([low])


@pytest.mark.parametrize("kind, number, code", [(1, 4, "<f"), (11, 10, "<d")])
@pytest.mark.parametrize("form", ["packed", "in pieces", "one by one"])
def test_floats_are_read_in_every_form_that_protobuf_allows(
    kind: int, number: int, code: str, form: str
) -> None:
    numbers = [0.0, -1.5, 3.25, 1e30, float("inf"), 2.0**-140]
    raw = [struct.pack(code, each) for each in numbers]
    wire = {
        "packed": _field(number, b"".join(raw)),
        "in pieces": _field(number, b"".join(raw[:4])) + _field(number, b"".join(raw[4:])),
        "one by one": b"".join(bytes([number << 3 | (5 if kind == 1 else 1)]) + r for r in raw),
    }[form]
    model = floats(kind, [2, 3], wire)
    (theirs,) = onnx.load_from_string(model).graph.initializer  # protobuf's own reading
    ours = parse_model(model, FILE).graph.constants["c"]
    assert ours.dtype == np.dtype(code)
    np.testing.assert_array_equal(ours, numpy_helper.to_array(theirs))
    np.testing.assert_array_equal(ours.ravel(), np.array(numbers, code))


@pytest.mark.parametrize(
    "wire, reason",
    [
        (_field(4, b"\0" * 8) + b"\x25" + b"\0" * 4, "all packed or all unpacked, got both"),
        (_field(4, b"\0" * 11), "expected data for"),
        (_field(4, b"\0" * 16), "expected data for"),
        (b"\x25\0\0\0\0" * 4, "expected data for"),
        (_field(10, b"\0" * 24), "expected data for"),
        (b"", "expected data for"),
    ],
)
def test_floats_that_are_too_few_too_many_or_in_two_forms_are_refused(
    wire: bytes, reason: str
) -> None:
    with pytest.raises(ModelFormatError, match=reason):
        parse_model(floats(1, [3], wire), FILE)


@pytest.mark.parametrize(
    "kind, name",
    [
        (TensorProto.STRING, "string"),
        (TensorProto.INT4, "int4"),
        (TensorProto.COMPLEX64, "complex64"),
        (TensorProto.FLOAT8E4M3FN, "float8e4m3fn"),
        (77, "type 77"),
    ],
)
def test_tensors_of_types_that_are_not_read_are_refused_where_they_are_used(kind, name) -> None:
    tensor = onnx.TensorProto(name="c", data_type=kind, dims=[1])
    with pytest.raises(UnsupportedError, match=name):
        attempt_strictly(identity(tensor))


@pytest.mark.parametrize("kind", ["seq", "optional"])
def test_inputs_that_are_no_tensors_are_refused(kind: str) -> None:
    with pytest.raises(UnsupportedError, match=f"type {kind}.* is not supported"):
        attempt_strictly(parsed(f"({kind}(float[1]) x) => (y) {{ y = Identity (x) }}"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "model"
    inside.mkdir()
    numbers = np.arange(8, dtype=np.float32)
    (inside / "weights.bin").write_bytes(numbers.tobytes())
    (tmp_path / "outside.bin").write_bytes(numbers.tobytes())
    return inside


def loaded(folder: Path, tensor: onnx.TensorProto) -> np.ndarray:
    (folder / "m.onnx").write_bytes(identity(tensor).SerializeToString())
    (value,) = Session(load(folder / "m.onnx")).run({}).values()
    return value


@pytest.mark.parametrize("more, first", [({}, 0), ({"offset": "16"}, 4), ({"length": "16"}, 0)])
def test_data_beside_the_model_are_read(folder: Path, more: dict, first: int) -> None:
    got = loaded(folder, external("weights.bin", **more))
    assert got.tolist() == [first, first + 1, first + 2, first + 3]


def test_data_behind_links_into_the_store_of_the_model_are_read(folder: Path) -> None:
    got = loaded(folder, external("weights.bin"))
    view = folder.parent / "view"
    view.mkdir()
    for name in ("m.onnx", "weights.bin"):
        (view / name).symlink_to(folder / name)
    (value,) = Session(load(view / "m.onnx")).run({}).values()
    assert value.tolist() == got.tolist()
    (view / "weights.bin").unlink()
    (view / "weights.bin").symlink_to(folder.parent / "outside.bin")
    with pytest.raises(ModelFormatError, match=r"view/m\.onnx: initializer 'c': .* model's folder"):
        load(view / "m.onnx")


PLACES = [
    *(
        (location, {}, "model's folder|no such")
        for location in ("../outside.bin", "/etc/passwd", "a\0b")
    ),
    *(
        (location, {}, "model's folder|no such")
        for location in ("sub/../../outside.bin", "", "link.bin")
    ),
    *((location, {}, location) for location in ("pipe", "nothing.bin")),
    (".", {}, "folder"),
    ("weights.bin", {"offset": "20"}, "expected 16 bytes"),
    *(("weights.bin", {"offset": text}, "offset and length") for text in ("-4", "1e1", "9" * 30)),
    ("weights.bin", {"length": "12"}, "expected 16 bytes, got a declared length of 12"),
]


@pytest.mark.parametrize("location, more, reason", PLACES)
def test_places_that_cannot_be_are_refused(
    folder: Path, location: str, more: dict[str, str], reason: str
) -> None:
    os.mkfifo(folder / "pipe")
    os.symlink(folder.parent / "outside.bin", folder / "link.bin")
    with pytest.raises(ModelFormatError, match=reason):
        loaded(folder, external(location, **more))
    with pytest.raises(ModelFormatError, match="no such file"):
        load(folder / "absent.onnx")


def test_a_region_may_be_shared_but_regions_may_not_overlap(folder: Path) -> None:
    def sums(*places: str) -> onnx.ModelProto:
        names = [f"c{k}" for k in range(len(places))]
        made = model(f"y = Sum ({', '.join(names)})", {}, ["y"])
        for name, place in zip(names, places, strict=True):
            made.graph.initializer.append(external("weights.bin", offset=place))
            made.graph.initializer[-1].name = name
        return made

    (folder / "m.onnx").write_bytes(sums("0", "0", "0", "16").SerializeToString())
    assert Session(load(folder / "m.onnx")).run({})["y"].tolist() == [4, 8, 12, 16]
    (folder / "m.onnx").write_bytes(sums("0", "8", "16").SerializeToString())
    with pytest.raises(ModelFormatError, match="overlaps"):
        load(folder / "m.onnx")


def test_constants_are_not_folded_beyond_what_the_file_accounts_for() -> None:
    """Each Concat doubles: thirty of them would make a gigabyte of four bytes."""
    nodes = " ".join(f"c{k + 1} = Concat <axis = 0> (c{k}, c{k})" for k in range(40))
    lowered = read(model(nodes, {}, ["c40"], constants={"c0": np.ones(4, np.float32)}))
    assert sum(array.size for array in lowered.constants.values()) < 2**22
    assert len(lowered.nodes) > 10


def test_bodies_inside_bodies_without_an_end_are_refused() -> None:
    graph = b""
    for _ in range(200):  # GraphProto.node.attribute.g
        attribute = _field(1, b"body") + _field(6, graph)
        graph = _field(1, _field(4, b"If") + _field(5, attribute))
    data = b"\x08\x08" + _field(7, graph) + b"\x42\x02\x10\x11"
    with pytest.raises(ModelFormatError):
        parse_model(data, FILE)
