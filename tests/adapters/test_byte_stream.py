"""Binary files of arrays: numbers as their bytes say, and an error with the place for the rest."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from onernn import ModelFormatError
from onernn.adapters.common.files import ByteStream


def file_of(tmp_path: Path, data: bytes) -> Path:
    (tmp_path / "arrays").write_bytes(data)
    return tmp_path / "arrays"


@pytest.mark.parametrize(
    "dtype, data, numbers",
    [
        ("float32", struct.pack("<3f", 1.5, -2, 0.25), [1.5, -2, 0.25]),
        ("int64", struct.pack("<2q", -7, 2**40), [-7, 2**40]),
        ("bfloat16", b"\x80\x3f\x20\xc0", [1.0, -2.5]),  # the upper halves of 1.0 and -2.5
        ("bool", b"\x00\x01\x07", [False, True, True]),  # 7 is a truth value of NumPy's, but no 1
    ],
)
def test_numbers_are_those_of_the_bytes(
    dtype: str, data: bytes, numbers: list[float], tmp_path: Path
) -> None:
    with ByteStream.open(file_of(tmp_path, data)) as stream:
        found = stream.numbers((len(numbers),), dtype, "x")
        assert not stream.left
    assert found.tolist() == numbers
    assert found.dtype.name == {"bfloat16": "float32"}.get(dtype, dtype)


@pytest.mark.parametrize(
    "read, reason",
    [
        (lambda s: s.integer("<Q", "x"), "x: expected 8 bytes more, 4 are left"),
        (lambda s: s.numbers((2**40,), "float32", "x"), "expected 4398046511104 bytes more"),
        (lambda s: s.check_shape((2, -1), 9, "x", 0), r"impossible shape \(2, -1\)"),
        (lambda s: s.check_shape((0, 2**60), 9, "x", 0), "impossible shape"),
        (lambda s: s.check_shape((1,) * 10, 9, "x", 0), "impossible shape"),
    ],
)
def test_what_cannot_be_is_refused_before_it_costs_memory(
    read: Callable[[ByteStream], object], reason: str, tmp_path: Path
) -> None:
    with ByteStream.open(file_of(tmp_path, b"1234")) as stream:
        with pytest.raises(ModelFormatError, match=reason):
            read(stream)


def test_a_file_that_shrinks_while_it_is_read_is_told(tmp_path: Path) -> None:
    file = file_of(tmp_path, bytes(2**16))
    with ByteStream.open(file) as stream:
        file.write_bytes(b"")
        with pytest.raises(ModelFormatError, match="arrays.*x: "):
            stream.numbers((2**14,), "float32", "x")


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="no such file"):
        with ByteStream.open(tmp_path / "none"):
            pass
