"""MXNet's files of arrays, written here byte by byte from their documented layout."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from support.mxnet_files import CODES, CPU, V1, V2, V3, dense, kind, listed, shape

from onernn import BudgetError, ModelFormatError
from onernn.adapters.mxnet.read import read_params

MATRIX = np.arange(6, dtype=np.float32).reshape(2, 3)
DENSE = dense(MATRIX)


FORMS = {
    "V1": V1 + shape(2, 3) + CPU + kind(0) + MATRIX.tobytes(),
    "V2": DENSE,
    "V3": V3 + DENSE[4:],
    "without magic": struct.pack("<III", 2, 2, 3) + CPU + kind(0) + MATRIX.tobytes(),
}


def read(data: bytes, folder: Path) -> dict[str, np.ndarray]:
    (folder / "x.params").write_bytes(data)
    return read_params(folder / "x.params")


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_an_array_is_read(form: str, tmp_path: Path) -> None:
    found = read(listed(FORMS[form], keys=("arg:w",)), tmp_path)
    assert list(found) == ["arg:w"] and found["arg:w"].dtype == np.float32
    assert_array_equal(found["arg:w"], MATRIX)
    assert not found["arg:w"].flags.writeable


@pytest.mark.parametrize("code", CODES)
def test_every_dtype_is_read(code: int, tmp_path: Path) -> None:
    array = np.array([[1, 0, 3]]).astype(CODES[code])
    head = V2 + kind(0) + shape(1, 3) + CPU + kind(code)
    (found,) = read(listed(head + array.tobytes()), tmp_path).values()
    assert found.dtype == array.dtype
    assert_array_equal(found, array)


def test_bfloat16_becomes_float32_of_the_same_value(tmp_path: Path) -> None:
    bits = np.array([0x3F80, 0xC040, 0x7F80], "<u2")  # 1, -3 and infinity
    data = V2 + kind(0) + shape(3) + CPU + kind(12) + bits.tobytes()
    (found,) = read(listed(data), tmp_path).values()
    assert found.dtype == np.float32 and found.tolist() == [1.0, -3.0, np.inf]


def sparse(storage: int, stored: bytes, *auxiliaries: np.ndarray, data: np.ndarray) -> bytes:
    kinds = b"".join(kind(6) + shape(*a.shape) for a in auxiliaries)
    head = V2 + kind(storage) + stored + shape(4, 2) + CPU + kind(0)
    return head + kinds + data.tobytes() + b"".join(a.tobytes() for a in auxiliaries)


@pytest.mark.parametrize("stored", [2, 0])  # 0: MXNet saved before the numbers were there
def test_row_sparse_arrays_become_dense(stored: int, tmp_path: Path) -> None:
    rows = np.array([[1, 2], [3, 4]], np.float32)
    data = sparse(1, shape(stored, 2), np.array([1, 3]), data=rows)
    (found,) = read(listed(data), tmp_path).values()
    assert found.tolist() == [[0, 0], [1, 2], [0, 0], [3, 4]]


def test_csr_arrays_become_dense(tmp_path: Path) -> None:
    numbers = np.array([5, 6, 7], np.float32)
    data = sparse(2, shape(3), np.array([0, 1, 1, 3, 3]), np.array([1, 0, 1]), data=numbers)
    (found,) = read(listed(data), tmp_path).values()
    assert found.tolist() == [[0, 5], [0, 0], [6, 7], [0, 0]]


def test_an_array_that_is_none_is_left_out_and_a_scalar_is_not(tmp_path: Path) -> None:
    none = V2 + kind(0) + shape()
    scalar = V3 + kind(0) + shape() + CPU + kind(0) + struct.pack("<f", 2.5)
    found = read(listed(none, scalar, DENSE, keys=("none", "scalar", "w")), tmp_path)
    assert list(found) == ["scalar", "w"] and found["scalar"] == np.float32(2.5)


def test_an_npz_of_mxnet_2_is_read(tmp_path: Path) -> None:
    bits = np.array([(0x3F80,), (0xC040,)], [("bfloat16", "<u2")])
    with (tmp_path / "x.params").open("wb") as stream:
        np.savez(stream, w=MATRIX, f=np.asfortranarray(MATRIX), b=bits)
    found = read_params(tmp_path / "x.params")
    assert_array_equal(found["w"], MATRIX)
    assert_array_equal(found["f"], MATRIX)
    assert found["b"].tolist() == [1.0, -3.0]


def test_a_compressed_or_sparse_npz_is_refused(tmp_path: Path) -> None:
    for save, name in ((np.savez_compressed, "w"), (np.savez, "w/data")):
        save(tmp_path / "x.npz", **{name: MATRIX})
        with pytest.raises(ModelFormatError, match=rf"x\.npz: {name}\.npy"):
            read_params(tmp_path / "x.npz")


WRONG = {
    "expected the magic number 0x112, got 0x5": struct.pack("<Q", 5) + bytes(16),
    "array 0: expected a magic number or at most 32 axes, got 0x21": listed(kind(33)),
    "array 0: expected a storage type of 0 to 2, got 7": listed(V2 + kind(7)),
    "array 0: expected a data type of 0 to 12, got 13": listed(DENSE[:28] + CPU + kind(13)),
    "array 0: expected at most 32 axes, got 99": listed(V2 + kind(0) + kind(99)),
    "array 0: impossible shape (-1, 3)": listed(V2 + kind(0) + shape(-1, 3)),
    "array 0: impossible shape (0, 1099511627776, 1099511627776)": listed(
        V2 + kind(0) + shape(0, 2**40, 2**40)
    ),
    "expected 4398046511104 bytes more": listed(V2 + kind(0) + shape(2**40) + CPU + kind(0)),
    "expected 1 keys, one per array, got 2": listed(DENSE, keys=("a", "b")),
    "a key appears twice": listed(DENSE, DENSE, keys=("a", "a")),
    "key 0: expected at most 4096 bytes, got 5000": listed(DENSE, keys=("a" * 5000,)),
    "after the last key, got 1 bytes": listed(DENSE) + b"x",
}


@pytest.mark.parametrize("reason", WRONG)
def test_a_hostile_file_is_refused_with_the_reason_and_the_place(
    reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFormatError) as caught:
        read(WRONG[reason], tmp_path)
    assert reason in str(caught.value) and "x.params" in str(caught.value)
    assert caught.value.offset is not None


def test_sparse_parts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    rows = np.ones((1, 2), np.float32)
    files = [sparse(1, shape(1, 2), np.array([at]), data=rows) for at in (4, -1)]
    files.append(sparse(2, shape(1), np.array([0, 2, 2, 2, 2]), np.array([0]), data=rows[0, :1]))
    for data in files:
        with pytest.raises(ModelFormatError, match="array 0: its sparse parts"):
            read(listed(data), tmp_path)
    head = V2 + kind(1) + shape(0, 1) + shape(2**30, 1) + CPU + kind(0)
    with pytest.raises(BudgetError, match=r"array 0, a dense \(1073741824, 1\)"):
        read(listed(head + kind(6) + shape(0)), tmp_path)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    rows = np.ones((1, 2), np.float32)
    whole = listed(
        *FORMS.values(),
        sparse(1, shape(1, 2), np.array([1]), data=rows),
        keys=tuple("abcde"),
    )
    assert len(read(whole, tmp_path)) == 5
    for end in range(len(whole)):
        with pytest.raises(ModelFormatError):
            read(whole[:end], tmp_path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="nothing.params: no such file"):
        read_params(tmp_path / "nothing.params")
