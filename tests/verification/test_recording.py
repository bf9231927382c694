"""Recordings: keys by name and position, LoD of any depth, wrong files."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onernn import ModelFormatError, Ragged
from onernn.ir.graph import Value
from onernn.verification.recording import read_arrays, read_inputs, read_outputs, write_outputs

WORDS = np.ones((3, 2), np.float32)
VALUES = (Value("x", "float32", (None, 2), 1), Value("a/b", "float32"))


def test_inputs_come_by_name_with_their_levels() -> None:
    arrays = {
        "in__x": WORDS,
        "lod__x": np.array([0, 1, 3]),
        "lod__x__0": np.array([0, 2]),
        "in__a/b": WORDS,
        "out__ignored": WORDS,
    }
    got = read_inputs(arrays, VALUES)
    assert isinstance(got["x"], Ragged) and got["x"].lod == [[0, 2], [0, 1, 3]]
    assert got["a/b"] is WORDS


def test_missing_and_unknown_inputs_are_listed_with_what_the_model_takes() -> None:
    with pytest.raises(ModelFormatError) as caught:
        read_inputs({"in__y": WORDS, "in__a/b": WORDS}, VALUES, "f.npz")
    for part in ("f.npz", "in__x is missing", "in__y is unknown", "x: float32(?, 2), LoD depth 1"):
        assert part in str(caught.value)


@pytest.mark.parametrize("in_file", [True, False])
def test_an_input_without_its_prefix_is_found_with_the_line_that_renames_it(
    in_file: bool, tmp_path: Path
) -> None:
    arrays, file = {"x": WORDS, "in__a/b": WORDS}, tmp_path / "f.npz"
    np.savez(file, **arrays)
    with pytest.raises(ModelFormatError) as caught:
        read_inputs(read_arrays(file) if in_file else arrays, VALUES, str(file) if in_file else "")
    line = "numpy.savez('inputs.npz', **{'in__x': ..., 'lod__x': ..., 'in__a/b': ...})"
    for part in ("in__x is missing", "found x without the prefix in__", line):
        assert part in str(caught.value)


def test_digits_are_a_position_unless_an_output_bears_that_name() -> None:
    outputs = [Value("first"), Value("0")]
    got = read_outputs({"out__0": WORDS, "out__first": WORDS + 1}, outputs)
    assert got["0"] is WORDS and got["first"][0, 0] == 2
    by_position = read_outputs(
        {"out__1": WORDS, "outlod__1": np.array([0, 3])}, [Value("a"), Value("b")]
    )
    assert by_position["b"].lod == [[0, 3]]


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"in__x": WORDS}, "expected recorded outputs"),
        ({"out__7": WORDS}, "out__7: expected an output of the model"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(arrays: dict, message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        read_outputs(arrays, [Value("a")])


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    outputs = {"a/b": Ragged(WORDS, [0, 0, 3], ([0, 2],)), "c": np.arange(4)}
    file = tmp_path / "out"
    write_outputs(file, outputs)
    got = read_outputs(read_arrays(file), [Value("a/b"), Value("c")])
    assert got["a/b"].lod == [[0, 2], [0, 0, 3]]
    np.testing.assert_array_equal(got["a/b"].data, WORDS)
    np.testing.assert_array_equal(got["c"], np.arange(4))


def _zip(member: bytes, how: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as archive:
        archive.writestr("in__x.npy", member)
    return out.getvalue()


def _npy(header: str) -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(64)


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


_INSIDE = 30 + len("in__x.npy")  # a member's numbers begin behind its head and name
_METHOD = 10  # of the central directory's entry: how the member is packed
_WHOLE = _zip(bytes(4096), zipfile.ZIP_DEFLATED)


def _saved(save: Any, *arguments: Any, **arrays: Any) -> bytes:
    out = io.BytesIO()
    save(out, *arguments, **arrays)
    return out.getvalue()


FILES = {
    "text": b"hello",
    "cut": _saved(np.savez, in__x=WORDS)[:-30],
    "objects": _saved(np.savez, in__x=np.array([{}], object)),
    "a single array": _saved(np.save, WORDS),
    "a member that is no array": _zip(b"no array"),
    "header": _zip(_npy("{'descr': '<f4', 'shape': (((")),  # TokenError
    "deflated": _flipped(_WHOLE, _INSIDE),  # zlib.error
    "lzma": _flipped(_zip(bytes(4096), zipfile.ZIP_LZMA), _INSIDE + 4),  # LZMAError
    "method": _flipped(_flipped(_WHOLE, 8), _WHOLE.index(b"PK\x01\x02") + _METHOD),
    "size": _zip(_npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**62}, 8)}}")),
}


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_told_whatever_raises_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"none\.npz"):
        read_arrays(tmp_path / "none.npz")
    file = tmp_path / "io.npz"
    file.write_bytes(FILES[name])
    with pytest.raises(ModelFormatError, match=r"io\.npz"):
        read_arrays(file)


@pytest.mark.parametrize("dtype", ["<U3", "M8[D]", "V8", "<c8"])
def test_what_are_no_numbers_is_refused(dtype: str) -> None:
    with pytest.raises(ModelFormatError, match="in__x: expected numbers, got"):
        read_inputs({"in__x": np.zeros(2, dtype)}, [Value("x")])
