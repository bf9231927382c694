"""Recordings of Paddle 2.6.2, read: expected numbers are slices of raw bytes at known offsets."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.paddle_bytes import attribute, block, field, tensor, variable

from onernn import ModelFormatError, UnsupportedError
from onernn.adapters.paddle.read import Operator, Variable, find, read_program

DATA = Path(__file__).resolve().parents[2] / "data" / "paddle"

# bigru_concat/model.pdiparams: where each tensor starts, where its numbers start, its shape.
# A header takes 4 + 8 + 4 + 4 bytes and a description of 4 (one axis) or 6 (two axes).
LAYOUT = {
    "bi.fc_f.b": (0, 24, (96,)),
    "bi.fc_f.w": (408, 434, (24, 96)),
    "bi.fc_r.b": (9650, 9674, (96,)),
    "bi.fc_r.w": (10058, 10084, (24, 96)),
    "bi.gru_f.b": (19300, 19326, (1, 96)),
    "bi.gru_f.w": (19710, 19736, (32, 96)),
    "bi.gru_r.b": (32024, 32050, (1, 96)),
    "bi.gru_r.w": (32434, 32460, (32, 96)),
}
ENDS = [*(start for start, _, _ in LAYOUT.values()), 44748][1:]
COMBINED = (DATA / "bigru_concat" / "model.pdiparams").read_bytes()


def files_of_each(folder: Path, old: str = "", new: str = "") -> None:
    for (name, (start, _, _)), end in zip(LAYOUT.items(), ENDS, strict=True):
        target = folder / name.replace(old, new, 1)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(COMBINED[start:end])


def check_parameters(parameters: Any) -> None:
    assert list(parameters) == list(LAYOUT)
    for (name, (_, data, shape)), end in zip(LAYOUT.items(), ENDS, strict=True):
        got = parameters[name]
        assert (got.shape, got.dtype) == (shape, np.float32), name
        assert got.tobytes() == COMBINED[data:end], name
        assert got.flags.aligned and got.flags.c_contiguous and not got.flags.writeable


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with model.pdmodel alone."""
    shutil.copy(DATA / "bigru_concat" / "model.pdmodel", tmp_path)
    return tmp_path


def test_parameters_are_the_bytes_of_the_combined_file_in_the_order_of_names() -> None:
    program = read_program(DATA / "bigru_concat")
    check_parameters(program.parameters)
    first = [0.02232632227241993, 0.22921502590179443, -0.3299888074398041]
    assert program.parameters["bi.fc_f.b"][:3].tolist() == first


@pytest.mark.parametrize("given", ["", "model.pdmodel", "model"], ids=["folder", "file", "prefix"])
def test_a_model_is_found_by_folder_file_or_prefix(given: str) -> None:
    folder = DATA / "bigru_concat"
    files = find(str(folder / given))
    assert files == (folder / "model.pdmodel", folder / "model.pdiparams")


def test_a_prefix_may_hold_dots(model: Path) -> None:
    (model / "model.pdmodel").rename(model / "net.v1.pdmodel")
    (model / "net.v1.pdiparams").write_bytes(COMBINED)
    check_parameters(read_program(model / "net.v1").parameters)


@pytest.mark.parametrize("combined", ["__params__", "params"])
def test_old_names_of_the_combined_file_are_found(model: Path, combined: str) -> None:
    (model / "model.pdmodel").rename(model / "__model__")
    (model / combined).write_bytes(COMBINED)
    for path in (model, model / "__model__"):
        assert find(path) == (model / "__model__", model / combined)
        check_parameters(read_program(path).parameters)


@pytest.mark.parametrize("name", ["__model__", "model.pdmodel", "any.name"])
def test_one_file_a_parameter_gives_the_same_arrays(model: Path, name: str) -> None:
    (model / "model.pdmodel").rename(model / name)
    files_of_each(model)
    assert find(model / name) == (model / name, model)
    check_parameters(read_program(model / name).parameters)


def test_names_with_slashes_are_nested_files(model: Path) -> None:
    desc = (model / "model.pdmodel").read_bytes()
    (model / "__model__").write_bytes(desc.replace(b"bi.", b"a/b"))
    (model / "model.pdmodel").unlink()
    files_of_each(model, "bi.", "a/b")
    got = read_program(model).parameters
    check_parameters({name.replace("a/b", "bi."): array for name, array in got.items()})


def test_params_names_a_combined_file_or_a_folder(model: Path, tmp_path: Path) -> None:
    weights = tmp_path / "elsewhere" / "weights.bin"
    files_of_each(weights.parent)
    check_parameters(read_program(model, params=weights.parent).parameters)
    weights.write_bytes(COMBINED)
    check_parameters(read_program(model, params=str(weights)).parameters)


def test_operators_keep_slots_attributes_and_positions() -> None:
    program = read_program(DATA / "bigru_concat")
    assert [op.type for op in program.operators] == (
        "feed mul elementwise_add gru mul elementwise_add gru concat scale fetch".split()
    )
    assert [op.position for op in program.operators] == list(range(10))
    assert (program.version, len(program.inner)) == (2006002, 0)
    assert program.file == DATA / "bigru_concat" / "model.pdmodel"
    gru = program.operators[6]
    assert gru.inputs == {
        "Bias": ("bi.gru_r.b",),
        "H0": (),
        "Input": ("tmp_8",),
        "Weight": ("bi.gru_r.w",),
    }
    assert gru.outputs == {
        "BatchGate": ("tmp_10",),
        "BatchHidden": ("tmp_12",),
        "BatchResetHiddenPrev": ("tmp_11",),
        "Hidden": ("tmp_9",),
    }
    assert gru.attributes == {
        "is_test": True,
        "activation": "tanh",
        "gate_activation": "sigmoid",
        "is_reverse": True,
        "op_device": "",
        "op_namescope": "/",
        "op_role": 0,
        "op_role_var": (),
        "origin_mode": False,
        "with_quant_attr": False,
    }
    assert program.operators[7].inputs["X"] == ("tmp_3", "tmp_9")
    assert program.operators[4].attributes["scale_y"] == (1.0,)


def test_variables_tell_kind_dtype_shape_and_depth() -> None:
    variables = read_program(DATA / "fc_gru_h0_rev0").variables
    assert variables["x"] == Variable("x", 7, "float32", (None, 24), 1, False)
    assert variables["h0"] == Variable("h0", 7, "float32", (None, 32), 0, False)
    assert variables["gru.w_0"] == Variable("gru.w_0", 7, "float32", (32, 96), 0, True)
    assert variables["feed"] == Variable("feed", 9, None, None, 0, True)
    assert variables["fetch"] == Variable("fetch", 10, None, None, 0, True)


def written(folder: Path, program: bytes, parameters: bytes = b"") -> Path:
    (folder / "m.pdmodel").write_bytes(program)
    if parameters:
        (folder / "m.pdiparams").write_bytes(parameters)
    return folder / "m"


def test_every_type_of_attribute_is_read_and_the_callstack_is_dropped(tmp_path: Path) -> None:
    op = b"".join(
        [
            field(3, b"everything"),
            attribute(b"INT", 0, field(3, -2)),
            attribute(b"FLOAT", 1, b"\x25" + struct.pack("<f", 0.5)),
            attribute(b"STRING", 2, field(5, "π".encode())),
            attribute(b"INTS", 3, field(6, 1), field(6, -1)),
            attribute(b"FLOATS", 4, b"\x3d" + struct.pack("<f", 1.5)),
            attribute(b"STRINGS", 5, field(8, b"a"), field(8, b"")),
            attribute(b"BOOLEAN", 6, field(10, 1)),
            attribute(b"BOOLEANS", 7, field(11, 1), field(11, 0)),
            attribute(b"BLOCK", 8, field(12, 1)),
            attribute(b"LONG", 9, field(13, -(2**40))),
            attribute(b"BLOCKS", 10, field(14, 1), field(14, 2)),
            attribute(b"LONGS", 11, field(15, 2**40)),
            attribute(b"FLOAT64S", 12, field(16, 0.1)),
            attribute(b"VAR", 13, field(17, b"x")),
            attribute(b"VARS", 14, field(18, b"x"), field(18, b"y")),
            attribute(b"FLOAT64", 15, field(19, 0.1)),
            attribute(b"SCALAR", 16, field(20, field(1, 2) + field(3, 7))),
            attribute(
                b"SCALARS",
                17,
                field(21, field(1, 1) + field(2, 1)),
                field(21, field(1, 3) + field(4, 0.1)),
                field(21, field(1, 4) + field(5, field(1, 1.0) + field(2, -2.0))),
            ),
            attribute(b"op_callstack", 5, field(8, b'File "/home/somebody/train.py"')),
        ]
    )
    path = written(tmp_path, block(field(4, op)) + block(index=1) + block(index=2))
    program = read_program(path)
    expected = {
        "INT": -2,
        "FLOAT": 0.5,
        "STRING": "π",
        "INTS": (1, -1),
        "FLOATS": (1.5,),
        "STRINGS": ("a", ""),
        "BOOLEAN": True,
        "BOOLEANS": (True, False),
        "BLOCK": 1,
        "LONG": -(2**40),
        "BLOCKS": (1, 2),
        "LONGS": (2**40,),
        "FLOAT64S": (0.1,),
        "VAR": "x",
        "VARS": ("x", "y"),
        "FLOAT64": 0.1,
        "SCALAR": 7,
        "SCALARS": (True, 0.1, 1 - 2j),
    }
    (operator,) = program.operators
    assert isinstance(operator, Operator) and operator.attributes == expected
    kinds = {name: type(value) for name, value in operator.attributes.items()}
    assert kinds == {name: type(value) for name, value in expected.items()}
    assert len(program.inner) == 2 and program.version == 0 and program.parameters == {}


@pytest.mark.parametrize(
    "code, dtype",
    [(0, "bool"), (1, "<i2"), (2, "<i4"), (3, "<i8"), (4, "<f2"), (5, "<f4"), (6, "<f8")]
    + [(20, "u1"), (21, "i1")],
)
@pytest.mark.parametrize("dims", [(2, 3), (6,), (), (0, 4)], ids=str)
def test_each_dtype_and_rank_keeps_its_bytes(
    tmp_path: Path, code: int, dtype: str, dims: tuple[int, ...]
) -> None:
    values = np.random.default_rng(code).integers(0, 2, dims).astype(dtype)
    program = block(variable(b"w", 7, code, dims))
    path = written(tmp_path, program, tensor(code, dims, values.tobytes()))
    got = read_program(path).parameters["w"]
    assert (got.shape, got.dtype, got.tobytes()) == (dims, values.dtype, values.tobytes())
    assert not got.flags.writeable


@pytest.mark.parametrize("dims", [(5,), ()], ids=["vector", "scalar"])
def test_bfloat16_becomes_the_float32_of_the_same_value(
    tmp_path: Path, dims: tuple[int, ...]
) -> None:
    halves = np.array([0x3FC0, 0xBF80, 0x7F80, 0x0001, 0x8000][: int(np.prod(dims))], "<u2")
    values = [1.5, -1.0, np.inf, 2.0**-133, -0.0][: len(halves)]
    program = block(variable(b"w", 7, 22, dims))
    result = read_program(written(tmp_path, program, tensor(22, dims, halves.tobytes())))
    assert result.variables["w"].dtype == "bfloat16"
    got = result.parameters["w"]
    assert got.dtype == np.float32 and got.shape == dims
    assert got.tobytes() == np.array(values, np.float32).tobytes()


def test_bools_are_normal_whatever_their_bytes(tmp_path: Path) -> None:
    path = written(tmp_path, block(variable(b"w", 7, 0, (3,))), tensor(0, (3,), b"\x00\x02\xff"))
    got = read_program(path).parameters["w"]
    assert got.view(np.uint8).tolist() == [0, 1, 1]


def test_lod_of_a_parameter_is_stepped_over(tmp_path: Path) -> None:
    lod = struct.pack("<QQ2QQ3Q", 2, 16, 0, 2, 24, 0, 1, 2)
    path = written(tmp_path, block(variable(b"w", 7, 20, (2,))), tensor(20, (2,), b"\x05\x06", lod))
    assert read_program(path).parameters["w"].tolist() == [5, 6]


def test_parameters_of_all_blocks_are_sorted_by_bytes_and_saved_once(tmp_path: Path) -> None:
    names = ["B", "a", "é", "中", "𝄞"]  # as UTF-8 bytes in this order
    inner = block(*(variable(name.encode(), 7, 20, (1,)) for name in reversed(names)), index=1)
    outer = block(variable(b"a", 7, 20, (1,)), variable(b"feed", 9), variable(b"raw", 17))
    stream = b"".join(tensor(20, (1,), bytes([i])) for i in range(5))
    program = read_program(written(tmp_path, outer + inner, stream))
    assert {name: int(array[0]) for name, array in program.parameters.items()} == {
        name: i for i, name in enumerate(names)
    }
    assert list(program.variables) == ["a", "feed", "raw"]


@pytest.mark.parametrize(
    "declared, accepted",
    [((2, 3), True), ((3, 2), True), ((6,), True), ((-1, 7), True), ((), True), ((7,), False)],
    ids=str,
)
def test_only_another_number_of_elements_than_declared_is_refused(
    tmp_path: Path, declared: tuple[int, ...], accepted: bool
) -> None:
    path = written(tmp_path, block(variable(b"w", 7, 20, declared)), tensor(20, (2, 3), bytes(6)))
    if accepted:
        assert read_program(path).parameters["w"].shape == (2, 3)
    else:
        with pytest.raises(ModelFormatError, match=r"'w': .* 7 elements, got \(2, 3\)"):
            read_program(path)


def test_a_saved_variable_that_is_no_tensor_is_unsupported_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="'vocabulary' of kind 27"):
        read_program(written(tmp_path, block(variable(b"vocabulary", 27))))


# What is not there, or not what it claims to be.


def test_several_models_in_a_folder_are_listed(model: Path) -> None:
    shutil.copy(model / "model.pdmodel", model / "other.pdmodel")
    with pytest.raises(ModelFormatError, match=r"one file, got .*model\.pdmodel, .*other\.pdmodel"):
        find(model)


def test_a_prefix_that_is_a_folder_with_a_model_is_ambiguous(model: Path) -> None:
    shutil.copytree(DATA / "bigru_concat", model / "model")
    with pytest.raises(ModelFormatError, match="expected one file"):
        find(model / "model")


def test_two_combined_files_are_listed(model: Path) -> None:
    (model / "model.pdmodel").rename(model / "__model__")
    for name in ("__params__", "params"):
        (model / name).write_bytes(COMBINED)
    with pytest.raises(ModelFormatError, match="__params__, .*params"):
        find(model)
    check_parameters(read_program(model, model / "params").parameters)


@pytest.mark.parametrize("name", ["nowhere", "nul\0byte", "x" * 5000], ids=["", "nul", "long"])
def test_a_missing_path_tells_what_was_looked_for(tmp_path: Path, name: str) -> None:
    for given in ([tmp_path / name], [DATA / "bigru_concat", tmp_path / name]):
        with pytest.raises(ModelFormatError) as error:
            read_program(*given)
        assert error.value.file == str(tmp_path / name)


def test_a_folder_without_a_model_tells_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelFormatError, match=r"looked for \*\.pdmodel, __model__"):
        read_program(tmp_path)


def test_missing_parameters_are_named_with_what_to_do(model: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"'bi\.fc_f\.b' has no file .* as params"):
        read_program(model)


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"", "the file is empty"),
        (b"ustar\0 something else", "not a Paddle ProgramDesc"),
        (COMBINED, "not a Paddle ProgramDesc"),
        (field(9, b"another protobuf"), "it has no block"),
        (field(1, field(1, 0)), r"blocks\[0\].parent_idx is missing"),
        (block(field(4, field(3, b"\xff"))), "not UTF-8|not a Paddle ProgramDesc"),
        (block(field(4, field(3, b"op") + attribute(b"a", 99))), "'a': .* of 0 to 17, got 99"),
        (block(field(4, field(3, b"op") + attribute(b"a", -1))), "'a': .* of 0 to 17, got -1"),
    ],
    ids=["empty", "text", "parameters", "protobuf", "incomplete", "utf8", "type", "negative"],
)
def test_what_is_not_a_program_is_refused_with_its_file(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    (tmp_path / "m.pdmodel").write_bytes(content)
    with pytest.raises(ModelFormatError, match=reason) as caught:
        read_program(tmp_path)
    assert caught.value.file == str(tmp_path / "m.pdmodel")


def test_every_shared_recording_reads_whole(shared_models: Path) -> None:
    folders = sorted(path.parent for path in shared_models.glob("paddle/*/model.pdmodel"))
    assert len(folders) >= 25
    for folder in folders:
        program = read_program(folder)
        assert program.operators and program.version == 2006002, folder.name
        stored = sum(array.nbytes for array in program.parameters.values())
        headers = 20 * len(program.parameters)
        descriptions = sum(
            2 + sum(2 if size < 128 else 3 for size in array.shape)
            for array in program.parameters.values()
        )
        size = (folder / "model.pdiparams").stat().st_size
        assert stored + headers + descriptions == size, folder.name
        for name, array in program.parameters.items():
            assert program.variables[name].shape == array.shape, (folder.name, name)
