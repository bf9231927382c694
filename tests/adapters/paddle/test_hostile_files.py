"""Edited recordings: whatever a file holds, reading gives a program or an error that says where."""

from __future__ import annotations

import os
import shutil
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.paddle_bytes import block, tensor, variable, varint

from onernn import ModelFormatError, UnsupportedError
from onernn.adapters.paddle.read import Program, read_program

DATA = Path(__file__).resolve().parents[2] / "data" / "paddle" / "bigru_concat"
MODEL = (DATA / "model.pdmodel").read_bytes()
PARAMS = (DATA / "model.pdiparams").read_bytes()

# Where the eight tensors start: 20 bytes and a description of 4 or 6, then numbers.
STARTS = (0, 408, 9650, 10058, 19300, 19710, 32024, 32434)
HEADERS = [start + i for start in STARTS for i in range(26)]
MIB = 2**20
HUGE = struct.pack("<Q", 2**60)
MINUS = varint(-1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recording, to be overwritten by each test."""
    read_program(DATA)  # imports protobuf: not to be counted as this file's memory
    return Path(shutil.copytree(DATA, tmp_path_factory.mktemp("hostile") / "model"))


def attempt(folder: Path, model: bytes = MODEL, params: bytes = PARAMS) -> Program | Exception:
    """What reading gives, within 4 MiB of memory for these files of 50 kB."""
    (folder / "model.pdmodel").write_bytes(model)
    (folder / "model.pdiparams").write_bytes(params)
    tracemalloc.start()
    try:
        outcome: Program | Exception = read_program(folder)
    except (ModelFormatError, UnsupportedError) as error:
        assert str(folder) in str(error)
        outcome = error
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * MIB
    return outcome


def refused(folder: Path, params: bytes, reason: str = "") -> ModelFormatError:
    """The error of a file of parameters that cannot be right."""
    outcome = attempt(folder, params=params)
    assert isinstance(outcome, ModelFormatError) and reason in str(outcome), outcome
    assert outcome.file == str(folder / "model.pdiparams")
    assert outcome.offset is not None and 0 <= outcome.offset <= len(params), outcome
    return outcome


def test_the_bounds_hold_for_the_unharmed_recording_and_can_fail(
    folder: Path, tmp_path: Path
) -> None:
    assert isinstance(attempt(folder), Program)
    with pytest.raises(AssertionError):
        attempt(tmp_path, block(variable(b"w", 7)), tensor(5, (2**21,), bytes(8 * MIB)))


def test_parameters_cut_at_any_byte_are_refused_with_the_offset(folder: Path) -> None:
    cuts = {*range(0, len(PARAMS), 997), *range(30), *HEADERS, len(PARAMS) - 1}
    for cut in sorted(cuts):
        offset = refused(folder, PARAMS[:cut], "are left").offset
        assert offset is not None and offset <= cut


def test_a_program_cut_at_any_byte_is_refused_or_a_shorter_program(folder: Path) -> None:
    # The block fills the first 3456 bytes; versions follow, which a program can do without.
    for cut in range(0, len(MODEL), 19):
        outcome = attempt(folder, model=MODEL[:cut])
        assert isinstance(outcome, ModelFormatError) or cut >= 3456, cut


def test_trailing_bytes_are_refused_where_they_start(folder: Path) -> None:
    assert refused(folder, PARAMS + b"\0", "got 1 bytes").offset == 44748


@pytest.mark.parametrize(
    "at, patch, reason, offset",
    [
        (0, b"\1", "expected tensor version 0, got 1", 0),
        (4, HUGE, f"LoD levels, got {2**60}", 4),
        (4, struct.pack("<QQ", 1, 2**60), f"expected {2**60} bytes more", 20),
        (4, struct.pack("<QQ", 1, 12), "LoD level 0: expected a multiple of 8 bytes, got 12", 12),
        (4, struct.pack("<QQ", 2, 2**64 - 8), "bytes more", 20),
        (12, b"\0\0\0\1", "expected tensor version 0, got 16777216", 12),
        (16, struct.pack("<i", -1), "a description of 1 to 4096 bytes, got -1", 16),
        (16, struct.pack("<i", 2**31 - 1), "bytes, got 2147483647", 16),
        (16, struct.pack("<i", 0), "bytes, got 0", 16),
        (16, struct.pack("<i", 3), "not a Paddle TensorDesc", 20),
        (16, struct.pack("<i", 2), "96 elements, got ()", 16),
        (20, b"\x08\x07", "24], got 7", 20),
        (20, b"\x08\x63", "24], got 99", 20),
        (20, b"\x10", "data_type is missing", 20),
        (20, b"\xff\xff\xff\xff", "not a Paddle TensorDesc", 20),
        (23, b"\x5f", "96 elements, got (95,)", 16),
        (20, b"\x08\x06", "tensor version 0", 792),  # float64: the next header is read as numbers
    ],
)
def test_a_patched_field_is_refused_where_it_stands(
    folder: Path, at: int, patch: bytes, reason: str, offset: int
) -> None:
    assert refused(folder, PARAMS[:at] + patch + PARAMS[at + len(patch) :], reason).offset == offset


@pytest.mark.parametrize(
    "dims, reason",
    [
        (b"\x10" + MINUS, "impossible shape (-1,)"),
        (b"\x10" + MINUS + b"\x10" + MINUS, "impossible shape (-1, -1)"),
        (b"\x10\x80\x80\x80\x80\x80\x80\x80\x80\x40" * 2, "impossible shape"),  # 2^62 * 2^62
        (b"\x10\x00" + b"\x10\x80\x80\x80\x80\x80\x80\x80\x80\x40", "impossible shape"),
        (b"\x10\x01" * 10, "impossible shape"),
        (b"\x12\x0a" + b"\x01" * 10, "impossible shape"),  # packed, as protobuf may write it
        (b"\x10\x80\x80\x80\x80\x80\x80\x40", "elements, got"),  # 2^48
        (b"\x10\x01" * 2000, "impossible shape"),
        (b"\x10\x01" * 3000, "bytes, got 6002"),
    ],
    ids=["negative", "product", "overflow", "zero", "axes", "packed", "count", "long", "longest"],
)
def test_impossible_sizes_are_refused_before_anything_is_allocated(
    folder: Path, dims: bytes, reason: str
) -> None:
    desc = b"\x08\x05" + dims
    refused(folder, bytes(16) + struct.pack("<i", len(desc)) + desc + PARAMS[24:], reason)


@pytest.mark.parametrize("declared", [(-1,), ()], ids=["dynamic", "none"])
def test_sizes_beyond_the_file_are_refused_where_the_program_does_not_tell(
    tmp_path: Path, declared: tuple[int, ...]
) -> None:
    model = block(variable(b"w", 7, dims=declared))
    whole = attempt(tmp_path, model, tensor(5, (6,), bytes(24)))
    assert isinstance(whole, Program) and whole.parameters["w"].shape == (6,)
    for size in (7, 2**40):
        outcome = attempt(tmp_path, model, tensor(5, (size,), bytes(24)))
        assert isinstance(outcome, ModelFormatError)
        assert outcome.offset == len(tensor(5, (size,), b""))
        assert f"expected {4 * size} bytes" in str(outcome)


def test_large_files_of_nothing_are_refused_at_once(folder: Path) -> None:
    with open(folder / "model.pdiparams", "wb") as file:
        file.write(struct.pack("<IQ", 0, 2**60))
        file.truncate(2**40)  # no bytes on the disk
    tracemalloc.start()
    with pytest.raises(ModelFormatError, match="LoD levels"):
        read_program(folder)
    assert tracemalloc.get_traced_memory()[1] < MIB
    tracemalloc.stop()


def test_a_snapshot_of_links_into_a_hubs_store_is_read(tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshots" / "1f2e"
    snapshot.mkdir(parents=True)
    (tmp_path / "blobs").mkdir()
    for blob, name, content in (("a", "model.pdmodel", MODEL), ("b", "model.pdiparams", PARAMS)):
        (tmp_path / "blobs" / blob).write_bytes(content)
        (snapshot / name).symlink_to(f"../../blobs/{blob}")
    assert sorted(read_program(snapshot).variables) == sorted(read_program(DATA).variables)
    (snapshot / "model.pdiparams").unlink()
    (tmp_path / "b").write_bytes(PARAMS)
    (snapshot / "model.pdiparams").symlink_to("../../b")
    with pytest.raises(
        ModelFormatError, match="the parameters: expected a file in the model's folder"
    ):
        read_program(snapshot)


@pytest.mark.parametrize("name", [b"../../etc", b"/etc/host", b"a/../../x", b".././././"])
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path: Path, name: bytes) -> None:
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    (tmp_path / "etc").write_bytes(PARAMS[:408])  # would fit
    (inside / "__model__").write_bytes(MODEL.replace(b"bi.fc_f.b", name))
    for params in (None, inside):
        with pytest.raises(ModelFormatError, match="file in the model's folder") as error:
            read_program(inside, params)
        assert error.value.file == str(inside / "__model__")


@pytest.mark.parametrize(
    "name, reason",
    [(b"bi.fc_f\0b", "file in the model's folder"), (b".////////", "has no file in the folder")],
    ids=["nul", "folder"],
)
def test_names_that_are_no_file_are_refused(tmp_path: Path, name: bytes, reason: str) -> None:
    (tmp_path / "__model__").write_bytes(MODEL.replace(b"bi.fc_f.b", name))
    with pytest.raises(ModelFormatError, match=reason):
        read_program(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for paths in ([tmp_path / "pipe"], [DATA, tmp_path / "pipe"]):
        with pytest.raises(ModelFormatError) as error:
            read_program(*paths)
        assert error.value.file == str(tmp_path / "pipe")


def flipped(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    out = np.frombuffer(data, np.uint8).copy()
    for at, value in changes:
        out[at] = value
    return out.tobytes()


def bytes_at(places: st.SearchStrategy[int]) -> st.SearchStrategy[list[tuple[int, int]]]:
    return st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=4)


@given(bytes_at(st.sampled_from(HEADERS)))
def test_any_bytes_in_the_headers_give_a_program_or_an_error(
    folder: Path, changes: list[tuple[int, int]]
) -> None:
    attempt(folder, params=flipped(PARAMS, changes))
