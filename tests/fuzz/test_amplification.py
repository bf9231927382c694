"""Small files that would become large in memory keep the promise of SECURITY.md, or are refused.

A few of each kind in every run, under a tenth of the promise; `make fuzz` searches on.
"""

from __future__ import annotations

import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz import amplification as a
from onernn.ir import budget

MB = a.MB
LOADING = 20 * MB
"""Bytes that a load may take here, so that files a tenth as large show a fault."""


def pickle(operations: bytes, count: int = 3 * MB) -> a.Files:
    program = b"\x80\x02]q\x00(" + operations * (count // len(operations)) + b"e."
    return {"m.pt": a._stored({"m/data.pkl": program})}


def text(letters: bytes) -> bytes:
    return b"X" + struct.pack("<I", len(letters)) + letters


def symbol(value: str) -> a.Files:
    node = '{"op":"null","name":"a","inputs":[]}'
    return {"m-symbol.json": f'{{"x":{value},"nodes":[{node}],"heads":[[0,0,0]]}}'.encode()}


def npz(content: bytes, kind: int = zipfile.ZIP_DEFLATED) -> a.Files:
    return {"io.npz": a._stored({"in__x.npy": content}, kind)}


def onnx(graph: bytes) -> a.Files:
    return {"m.onnx": a._HEAD + a._field(7, graph)}


def numbers(dtype: int, field: int, count: int) -> a.Files:
    tensor = (
        a._field(1, count) + a._field(2, dtype) + a._field(8, b"c") + a._field(field, bytes(count))
    )
    return onnx(a._field(5, tensor) + a._field(12, a._field(1, b"c")))


def members(name: str, inside: dict[str, bytes], count: int) -> a.Files:
    return {name: a._directory(inside, count, "")}


def shared_floats(count: int) -> a.Files:
    """A .safetensors in which so many tensors have the same bytes."""
    size = 20_000
    entry = f'{{"dtype":"BF16","shape":[{size // 2}],"data_offsets":[0,{size}]}}'
    entries = ",".join(f'"{at}":{entry}' for at in range(count)).encode()
    header = b"{" + entries + b"}"
    return {"m.safetensors": struct.pack("<Q", len(header)) + header + bytes(size)}


def one_of(grammar: a.Grammar, seed: int, size: int) -> Callable[[], a.Files]:
    return lambda: grammar(random.Random(seed), size)


NAMED: dict[str, Callable[[], a.Files]] = {
    "pickle of None": lambda: pickle(b"N"),
    "pickle of marks": lambda: pickle(b"("),
    "pickle of memos": lambda: pickle(b"N\x94"),
    "pickle of floats": lambda: pickle(b"G" + bytes(8)),
    "pickle of texts": lambda: pickle(text(b"abc")),
    "pickle of sets": lambda: pickle(b"\x8f"),
    "pickle of a wide text": lambda: pickle(text(b"a" * 6 * MB + "😀".encode()), 1),
    "JSON with a wide character": lambda: symbol(f'"😀{"a" * 8 * MB}"'),
    "JSON with a wide escape": lambda: symbol(f'"\\ud83d\\ude00{"a" * 6 * MB}"'),
    "JSON of lists": lambda: symbol("[" + "[]," * MB + "0]"),
    "JSON of outputs": lambda: {
        "m-symbol.json": b'{"nodes":[{"op":"null","name":"a","inputs":[]}],"heads":['
        + b"[0,0,0]," * 30_000
        + b"[0,0,0]]}"
    },
    "npy header": lambda: npz(b"\x93NUMPY\x02\0" + struct.pack("<I", 40 * MB) + b" " * 40 * MB),
    "npy of zeros": lambda: npz(a._npy((10 * MB,), 10 * MB)),
    "npy under lzma": lambda: npz(a._npy((10 * MB,), 10 * MB), zipfile.ZIP_LZMA),
    "npz of 100,000 members": lambda: members("io.npz", {"in__x.npy": a._npy((1,), 1)}, 100_000),
    "pt of 100,000 members": lambda: members("m.pt", {"m/data.pkl": b"\x80\x02}."}, 100_000),
    "int8 in int32_data": lambda: numbers(3, 5, 4 * MB),
    "int64 of a byte": lambda: numbers(7, 7, 2 * MB),
    "ONNX's empty nodes": lambda: onnx(a._field(1, b"") * 600_000),
    "ONNX's empty tensors": lambda: onnx(a._field(5, b"") * 600_000),
    "ONNX's empty inputs": lambda: onnx(a._field(11, b"") * 35_000),
    "ONNX's operators": one_of(a.onnx_nodes, 1, MB),
    "Paddle's empty operators": lambda: {"m.pdmodel": a._field(1, a._field(4, b"") * 600_000)},
    "a text for PIR's operators": one_of(a.pir, 3584962651, 4_666_335),
    "bfloat16 of the same bytes": lambda: shared_floats(2_000),
    "MXNet's sparse array": one_of(a.mxnet_params, 9, 4 * MB),
}
HDF5 = {"a chunk": 0, "numbers never written": 1, "packed zeros": 2}


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    a.warm()


def measured(files: a.Files, folder: Path) -> a.Used:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return a.measured(folder / next(iter(files)), sum(map(len, files.values())), LOADING)


@pytest.mark.parametrize("name", NAMED)
def test_small_files_that_would_become_large_keep_the_promise(name: str, tmp_path: Path) -> None:
    used = measured(NAMED[name](), tmp_path)
    assert used.kept, used


@pytest.mark.parametrize("kind", HDF5)
def test_hdf5_that_would_become_large_keeps_the_promise(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    content = a._hdf5(random.Random(1), 10_000, HDF5[kind])
    assert len(content) < MB
    used = measured({"m.h5": content}, tmp_path)
    assert used.kept and used.error, used


@pytest.mark.long
@pytest.mark.parametrize("grammar", a.GRAMMARS, ids=lambda each: each.__name__)
def test_files_of_each_grammar_keep_the_promise(grammar: a.Grammar, tmp_path: Path) -> None:
    for seed in range(5):
        used = a.attempt(grammar, seed, MB, tmp_path, LOADING)
        assert used.kept, (seed, used)


def test_a_reader_that_asks_for_nothing_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget.Budget, "take", lambda self, size, what="": None)
    assert not measured(NAMED["pickle of floats"](), tmp_path).kept
