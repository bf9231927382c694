"""Small files that could become large in memory, and how much memory loading them takes.

A grammar for each format repeats and nests small pieces: python -m fuzz.amplification --seconds 60.
What takes more than the promise of SECURITY.md goes to out/fuzz.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import re
import resource
import struct
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fuzz import mutations, targets
from onernn import OnernnError, load, read_weights
from onernn.adapters.common.files import _field, _varint
from onernn.adapters.onnx.read import SCHEMA as ONNX
from onernn.adapters.paddle.messages import SCHEMA as PADDLE
from onernn.adapters.stacks import read_stacks
from onernn.ir import budget
from onernn.verification.recording import read_arrays

MB = 10**6
Files = dict[str, bytes]
"""The files of a model by their names; the first is the one to load."""
Grammar = Callable[[random.Random, int], Files]
"""Makes files of about so many bytes."""


class Used(NamedTuple):
    """``peak``: bytes that a load took beyond those of an empty one; ``error``: how it ended."""

    peak: int
    promised: int
    error: str

    @property
    def kept(self) -> bool:
        """Whether the load kept the promise, and ended with a result or an error of onernn."""
        return self.peak <= self.promised and not self.error.startswith("foreign")


# Protobuf: fields of random messages.


def _messages(schema: str) -> dict[str, list[tuple[int, str]]]:
    return {
        name: [(int(number), kind) for kind, number in re.findall(r"(\w+) \w+ = (\d+)", body)]
        for name, body in re.findall(r"(\w+):([^:]+)(?:\n|$)", schema)
    }


def _message(rng: random.Random, messages: Mapping[str, Any], name: str, depth: int) -> bytes:
    """A small message: a few random fields, those inside of it among them."""
    fields = [rng.choice(messages[name]) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    return b"".join(_any_field(rng, messages, *each, depth) for each in fields)


def _any_field(
    rng: random.Random, messages: Mapping[str, Any], number: int, kind: str, depth: int
) -> bytes:
    if kind in messages:
        return _field(number, _message(rng, messages, kind, depth - 1) if depth else b"")
    if kind in ("string", "bytes"):
        return _field(number, rng.choice((b"", b"a", b"abc", "é".encode(), "😀".encode())))
    if rng.random() < 0.5:
        return _field(number, bytes(rng.choice((1, 8))))  # packed
    if kind in ("float", "double"):
        wire, size = (5, 4) if kind == "float" else (1, 8)
        return _varint(number << 3 | wire) + bytes(size)
    return _field(number, rng.choice((0, 1, 5, 7)))


def _repeated(rng: random.Random, messages: Mapping[str, Any], name: str, size: int) -> bytes:
    """One field of a message many times, or one of a message inside."""
    number, kind = rng.choice(messages[name])
    if kind in messages and rng.random() < 0.6:
        inner = _repeated(rng, messages, kind, size)
        return _message(rng, messages, kind, 1) + _field(number, inner)
    piece = _any_field(rng, messages, number, kind, 2)
    if kind in ("int32", "int64", "uint64", "bytes") and rng.random() < 0.3:
        return _field(number, bytes([rng.choice((0, 1, 127))]) * size)
    return piece * (size // len(piece))


_HEAD = _field(1, 8) + _field(8, _field(2, 17))


def onnx(rng: random.Random, size: int) -> Files:
    messages = _messages(ONNX)
    if rng.random() < 0.2:
        return {"m.onnx": _HEAD + _repeated(rng, messages, "ModelProto", size)}
    return {"m.onnx": _HEAD + _field(7, _repeated(rng, messages, "GraphProto", size))}


def onnx_nodes(rng: random.Random, size: int) -> Files:
    """Operators that are right, one after the other: what is made of them takes memory, too."""
    op = rng.choice((b"Relu", b"Identity", b"Shape", b"Transpose", b"Nonsense"))
    count = size // 30
    chained = rng.random() < 0.7
    nodes = b"".join(
        _field(1, _field(1, b"x%d" % (at * chained)) + _field(2, b"x%d" % (at + 1)) + _field(4, op))
        for at in range(count)
    )
    x = _field(11, _field(1, b"x0") + _field(2, _field(1, _field(1, 1))))
    y = _field(12, _field(1, b"x%d" % count))
    outputs = b"".join(_field(12, _field(1, b"x%d" % at)) for at in range(1, count + 1))
    return {"m.onnx": _HEAD + _field(7, nodes + x + (y if rng.random() < 0.5 else outputs))}


def onnx_constants(rng: random.Random, size: int) -> Files:
    """Numbers in each field that may hold them, and operators that copy them."""
    dtype, at = rng.choice(((3, 5), (2, 5), (9, 5), (10, 5), (16, 5), (7, 7), (13, 11), (3, 9)))
    tensor = _field(1, size) + _field(2, dtype) + _field(8, b"c") + _field(at, bytes(size))
    nodes = b""
    for number in range(rng.choice((0, 1, 20))):
        to = _field(5, _field(1, b"to") + _field(3, 11) + _field(20, 2))
        node = _field(1, b"c") + _field(2, b"y%d" % number)
        nodes += _field(1, node + rng.choice((_field(4, b"Cast") + to, _field(4, b"Neg"))))
    output = _field(12, _field(1, b"y0" if nodes else b"c"))
    return {"m.onnx": _HEAD + _field(7, nodes + _field(5, tensor) + output)}


def paddle(rng: random.Random, size: int) -> Files:
    block = _field(1, 0) + _field(2, 0) + _repeated(rng, _messages(PADDLE), "BlockDesc", size)
    if rng.random() < 0.2:
        block = _repeated(rng, _messages(PADDLE), "ProgramDesc", size)
        return {"m.pdmodel": block, "m.pdiparams": b""}
    return {"m.pdmodel": _field(1, block), "m.pdiparams": b""}


def paddle_params(rng: random.Random, size: int) -> Files:
    """Parameters of one number each, or one with levels of offsets that nobody reads."""
    kind = _field(1, 7) + _field(3, _field(1, _field(1, 21) + _field(2, 1)))
    many = rng.random() < 0.5
    count = size // 60 if many else 1
    variables = b"".join(
        _field(3, _field(1, b"p%06d" % at) + _field(2, kind) + _field(3, 1)) for at in range(count)
    )
    tensor = struct.pack("<I", 0) + _field(1, 21) + _field(2, 1)
    description = _field(1, 21) + _field(2, 1)
    levels = b"" if many else struct.pack("<Q", size // 8 * 8) + bytes(size // 8 * 8)
    tensor = struct.pack("<IQ", 0, not many) + levels
    tensor += struct.pack("<Ii", 0, len(description)) + description + b"\1"
    program = _field(1, _field(1, 0) + _field(2, 0) + variables)
    return {"m.pdmodel": program, "m.pdiparams": tensor * count}


def chains(rng: random.Random, size: int) -> Files:
    """Thousands of operators or layers of other formats that are right."""
    f = _field
    match rng.randrange(3):
        case 0:
            at = range(size // 57)
            kind = f(1, 7) + f(3, f(1, f(1, 5) + f(2, 1)))
            variables = [f(3, f(1, b"x%d" % k) + f(2, kind)) for k in (*at, len(at))]
            reads = [f(1, f(1, b"X") + f(2, b"x%d" % k)) for k in at]
            slots = [reads[k] + f(2, f(1, b"Out") + f(2, b"x%d" % (k + 1))) for k in at]
            operators = [f(4, each + f(3, b"relu")) for each in slots]
            block = f(1, 0) + f(2, 0) + b"".join(variables + operators)
            return {"m.pdmodel": f(1, block), "m.pdiparams": b""}
        case 1:
            node = '{"op":"%s","name":"n%d","inputs":%s}'
            nodes = [node % ("relu", k + 1, [[k, 0, 0]]) for k in range(size // 50)]
            text = ",".join([node % ("null", 0, []), *nodes])
            heads = f'"heads":[[{len(nodes)},0,0]]'
            return {"m-symbol.json": f'{{"nodes":[{text}],{heads}}}'.encode()}
        case _:
            layer = '{"class_name":"%s","config":{"name":"n%d"%s}}'
            layers = [layer % ("ReLU", k + 1, "") for k in range(size // 50)]
            layers = [layer % ("InputLayer", 0, ',"batch_shape":[null,1]'), *layers]
            config = f'{{"layers":[{",".join(layers)}]}}'
            inside = {
                "metadata.json": b'{"keras_version":"3.0"}',
                "config.json": f'{{"class_name":"Sequential","config":{config}}}'.encode(),
                "model.weights.h5": _hdf5(rng, 1000, 3),
            }
            return {"m.keras": _stored(inside)}


# JSON: pieces of text at random places of what each format expects.

_PIECES = (
    "[],",
    "{},",
    '"ab",',
    "1.5,",
    "1234567,",
    '{"a":1},',
    '"é",',
    '"\\u1234",',
    "[[]],",
    "0,",
)


def _text(rng: random.Random, size: int) -> str:
    """A list, an object or a text of so many bytes; one character may make all of it wide."""
    piece, wide = rng.choice(_PIECES), rng.choice(("", "", "ÿ", "词", "😀", "\\ud83d\\ude00"))
    match rng.randrange(5):
        case 0:
            return f'["{wide}",{piece * (size // len(piece))}0]'
        case 1:
            return f'"{wide}{"a" * size}"'
        case 2:
            deep = min(size // 2, 900)
            inner = piece * (size // len(piece))
            return "[" * deep + f'"{wide}",{inner}0' + "]" * deep
        case 3:
            items = ",".join(f'"{at:x}":{piece[:-1]}' for at in range(size // (len(piece) + 8)))
            return f'{{"{wide}":0,{items}}}' if items else "{}"
        case _:
            lines = "\\n" * (size // 2)
            return f'"{wide}{lines}"'


def mxnet(rng: random.Random, size: int) -> Files:
    text, place = _text(rng, size), rng.randrange(5)
    node = '{"op":"null","name":"a%d","inputs":[]},'
    nodes = "".join(node % at for at in range(size // 40 if place == 1 else 1))[:-1]
    heads = "[0,0,0]," * (size // 8) if place == 2 else "[0,0,0],"
    more = [f'"attrs":{{"a":{text}}},', "", "", f'"x":{text},', f'"node_row_ptr":{text},'][place]
    return {"m-symbol.json": f'{{{more}"nodes":[{nodes}],"heads":[{heads[:-1]}]}}'.encode()}


def mxnet_params(rng: random.Random, size: int) -> Files:
    """Small arrays, or a sparse one, whose places are read as integers of 64 bits."""
    array = rng.choice(
        (
            struct.pack("<IiiIIi", 0xF993FACA, 0, 0, 1, 0, 5) + b"\1",
            struct.pack("<Iii", 0xF993FACA, 0, -1),
            struct.pack("<I", 0),
            struct.pack("<IIIIi", 1, 1, 1, 0, 5) + b"\1",
        )
    )
    count = size // (len(array) + 16)
    keys = b"".join(struct.pack("<Q8s", 8, b"%08d" % at) for at in range(count))
    if rng.random() < 0.3:
        n = size // 2
        array = struct.pack("<IiiqiqqIIi", 0xF993FAC9, 2, 1, n, 2, 1, 1, 1, 0, 3)
        array += struct.pack("<iiqiiq", 6, 1, 2, 3, 1, n) + bytes(n)
        array += struct.pack("<qq", 0, n) + bytes(n)
        count, keys = 1, struct.pack("<Q1s", 1, b"a")
    content = struct.pack("<QQQ", 0x112, 0, count) + array * count
    symbol = '{"nodes":[{"op":"null","name":"a","inputs":[]}],"heads":[[0,0,0]]}'
    params = content + struct.pack("<Q", count) + keys
    return {"m-symbol.json": symbol.encode(), "m-0000.params": params}


def pir(rng: random.Random, size: int) -> Files:
    text = _text(rng, size)
    program = f'{{"regions":[{{"blocks":[{{"ops":{text}}}]}}]}}'
    if rng.random() < 0.5:
        kind = '{"#":"0.t_dtensor","D":[{"#":"0.t_f32"},[1],"NCHW",[],0]}'
        op = f'{{"#":"1.relu","I":[{{"%":1}}],"O":[{{"%":%d,"TT":{kind}}}],"A":[]}},'
        ops = "".join(op.replace("%d", str(at)) for at in range(2, 2 + size // len(op)))
        program = f'{{"regions":[{{"blocks":[{{"ops":[{ops[:-1]}]}}]}}]}}'
        text = "0"
    base = f'{{"magic":"pir","version":1,"x":{text if rng.random() < 0.5 else 0}}}'
    return {"m.json": f'{{"base_code":{base},"program":{program}}}'.encode(), "m.pdiparams": b""}


def safetensors(rng: random.Random, size: int) -> Files:
    """Headers, and tensors that share their bytes."""
    entry = '"%s%d":{"dtype":"%s","shape":[%d],"data_offsets":[0,%d]}'
    kind, width = rng.choice((("U8", 1), ("BF16", 2), ("F32", 4)))
    shared = rng.choice((0, 4, 20_000))
    count = min(size // 70, 10**5)
    named = rng.choice(("", "词", "a" * 30))
    entries = [entry % (named, at, kind, shared // width, shared) for at in range(count)]
    header = f"{{{','.join(entries)}}}" if rng.random() < 0.5 else _text(rng, size)
    packed = header.encode()
    return {"m.safetensors": struct.pack("<Q", len(packed)) + packed + bytes(shared)}


# Pickles: opcodes of PyTorch's files, right ones and such that nobody writes.

_OPCODES = (
    *(b"N", b"(", b"]", b"}", b")", b"\x88", b"K\x01", b"J\x01\x02\x03\x04", b"\x85", b"]\x94"),
    *(b"G" + bytes(8), b"X\x03\0\0\0abc", b"\x8c\x02ab", b"\x94", b"]a", b"(t", b"q\x01"),
    *(b"X\x04\0\0\0" + "😀".encode(), b"h\x00", b"\x8f", b"(\x90", b"N0", b"cbuiltins\nset\n"),
)


def pickles(rng: random.Random, size: int) -> Files:
    start = b"\x80\x02]q\x00" + rng.choice((b"", b"(", b"}", b"\x8f("))
    piece = b"".join(rng.choice(_OPCODES) for _ in range(rng.choice((1, 1, 2, 3))))
    if rng.random() < 0.2:
        letters = rng.choice((b"a", "词".encode())) * (size // 3)
        piece = b"X" + struct.pack("<I", len(letters) + 4) + letters + "😀".encode()
    program = start + piece * (size // len(piece)) + rng.choice((b"e.", b"u.", b"t.", b"."))
    if rng.random() < 0.2:
        old = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
        return {"m.pt": old + b"\x80\x02M\xe9\x03.\x80\x02}." + program}
    return {"m.pt": _stored({"m/data.pkl": program})}


# Archives.


def _stored(members: Mapping[str, bytes], kind: int = zipfile.ZIP_STORED) -> bytes:
    return mutations._archive([*members.items()], kind)


_ENTRY = struct.Struct("<IHHHHHHIIIHHHHHII")
"""An entry of an archive's directory, before its name."""


def _directory(members: Mapping[str, bytes], names: int, long: str) -> bytes:
    """An archive with so many more members, all of which share the bytes of one."""
    local, central = bytearray(), bytearray()

    def add_entry(name: bytes, content: bytes, at: int) -> tuple[int, ...]:
        nonlocal central
        sizes = (zlib.crc32(content), len(content), len(content), len(name), 0)
        central += _ENTRY.pack(0x02014B50, 20, 20, 0x800, 0, 0, 0, *sizes, 0, 0, 0, 0, at) + name
        return sizes

    for name, content in members.items():
        sizes = add_entry(name.encode(), content, len(local))
        local += struct.pack("<IHHHHHIIIHH", 0x04034B50, 20, 0x800, 0, 0, 0, *sizes) + name.encode()
        local += content
    for at in range(names):
        add_entry(f"{long}{at:x}".encode(), b"", 0)
    total, at = len(members) + names, len(local)
    end = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, total, total, len(central), at)
    end += struct.pack("<IIQI", 0x07064B50, 0, at + len(central), 1)
    end += struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 65535, 65535, 2**32 - 1, 2**32 - 1, 0)
    return bytes(local + central + end)


def members(rng: random.Random, size: int) -> Files:
    """Archives of thousands of members, of each kind that is read."""
    long = rng.choice(("", "a" * 100, "词"))
    name, inside = rng.choice(
        (
            ("io.npz", {"in__x.npy": _npy((1,), 1)}),
            ("m.pt", {"m/data.pkl": b"\x80\x02}."}),
            ("m.pt2", {"m/serialized_exported_program.json": b"{}"}),
            ("m.keras", {"metadata.json": b'{"keras_version":"3.0"}', "config.json": b"{}"}),
        )
    )
    return {name: _directory(inside, size // (52 + len(long.encode())), long)}


def _npy(shape: tuple[int, ...], count: int, descr: Any = "<f4") -> bytes:
    out = io.BytesIO()
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, header)
    return out.getvalue() + bytes(4 * count)


def npz(rng: random.Random, size: int) -> Files:
    """Headers and numbers that were packed well, by each method."""
    content = rng.choice(
        (
            b"\x93NUMPY\x02\0" + struct.pack("<I", 60 * size) + b" " * (60 * size),
            b"\x93NUMPY\x01\0" + struct.pack("<H", 65535) + b" " * 65535,
            _npy((15 * size,), 15 * size),
            _npy((2**20, 2**30), 1),
            _npy((0, 2**60), 1),
            _npy((1,), 1),
        )
    )
    kind = rng.choice((*[zipfile.ZIP_DEFLATED] * 2, zipfile.ZIP_STORED, zipfile.ZIP_LZMA))
    count = 1 if len(content) > 10_000 else min(size // (len(content) + 120), 5_000)
    return {"io.npz": _stored({f"in__{at}.npy": content for at in range(count)}, kind)}


def keras(rng: random.Random, size: int) -> Files:
    """Configurations, packed or not."""
    config = f'{{"class_name":"Functional","config":{{"layers":{_text(rng, size)}}}}}'
    inside = {
        "metadata.json": b'{"keras_version":"3.0"}',
        "config.json": config.encode(),
        "model.weights.h5": _hdf5(rng, min(size, 50_000)),
    }
    return {"m.keras": _stored(inside, rng.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED)))}


def hdf5(rng: random.Random, size: int) -> Files:
    return {"m.h5": _hdf5(rng, size)}


def _hdf5(rng: random.Random, size: int, kind: int | None = None) -> bytes:
    import h5py

    out = io.BytesIO()
    with h5py.File(out, "w") as root:
        match rng.randrange(6) if kind is None else kind:
            case 0:  # a chunk that is larger than its array
                packed: Any = {"chunks": (4 * 10**8,), "maxshape": (None,), "compression": "gzip"}
                root.create_dataset("w", (2,), "<f4", **packed)
                root["w"].id.write_direct_chunk((0,), zlib.compress(bytes(10**6)))
            case 1:  # numbers that were never written
                root.create_dataset("w", (10**9,), "<f4", chunks=(10**6,))
            case 2:  # packed zeros
                root.create_dataset("w", data=np.zeros(50 * size, "u1"), compression="gzip")
            case 3:
                for at in range(min(size // 300, 2000)):
                    root.create_group(f"g{at}")
            case 4:
                root.attrs["model_config"] = rng.choice((f"😀{'a' * 60_000}", _text(rng, 50_000)))
                root.attrs["keras_version"] = "2.4"
            case _:
                root.attrs.create("layer_names", ["😀"] * 3_000)
                root.create_dataset("w", data=np.zeros(size // 4, "<f4"))
    return out.getvalue()


GRAMMARS: tuple[Grammar, ...] = (
    *(onnx, onnx_nodes, onnx_constants, paddle, paddle_params, pir, mxnet, mxnet_params, chains),
    *(safetensors, pickles, members, npz, keras, hdf5),
)


# Measuring: a process of its own for each load, forked from one that has loaded before.


def warm() -> None:
    """Imports what loading imports late; a later load then takes no memory for that."""
    for kind in targets.KINDS:
        seed = targets.seeds(kind)[0]
        if kind == "npz":
            read_arrays(seed)
        elif targets.weights(seed):
            read_stacks(seed)
        else:
            load(seed.parent if seed.suffix in (".pdmodel", ".pdiparams", ".params") else seed)


def measured(path: Path, size: int, loading: int = budget.LOADING) -> Used:
    """What loading takes in a new process; ``loading``: bytes that are always allowed."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        _child(path, write, loading)
    os.close(write)
    with open(read, "rb") as stream:
        answer = stream.read()
    _, status = os.waitpid(child, 0)
    promised = 2 * size + loading + _UNCOUNTED
    if status or not answer:
        return Used(0, promised, f"foreign: it died, status {status}")
    peak, error = json.loads(answer)
    return Used(peak, promised, error)


def _child(path: Path, write: int, loading: int) -> None:
    """The process: loads, tells the most memory that it took, and ends."""
    budget.LOADING = loading
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + 4 * 10**9
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + 60
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    os.environ.pop("ONERNN_RAISE", None)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = _status("VmRSS")
    error = ""
    try:
        if path.suffix == ".npz":
            read_arrays(path)
        elif path.suffix in (".pt", ".safetensors"):
            read_weights(path)
        else:
            load(path)
    except OnernnError as refused:
        error = f"{type(refused).__name__}: {refused}"[:300]
    except BaseException as raised:
        error = f"foreign: {type(raised).__name__}: {raised}"[:300]
    peak = _status("VmHWM") - before
    inner = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss - before - _HDF5
    os.write(write, json.dumps([max(peak, inner), error]).encode())
    os._exit(0)


_UNCOUNTED = 8 * MB
"""What no reader counts; 20 MB are promised for it."""
_HDF5 = 60 * MB
"""What the process that reads HDF5 takes for its libraries."""


def _status(field: str) -> int:
    text = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"{field}:\s+(\d+)", text)[1])  # type: ignore[index]


def attempt(grammar: Grammar, seed: int, size: int, folder: Path, loading: int) -> Used:
    """Writes the files of a grammar, and measures loading them."""
    files = grammar(random.Random(seed), size)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    used = measured(folder / next(iter(files)), sum(map(len, files.values())), loading)
    for name in files:
        (folder / name).unlink()
    return used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="0: another one each time")
    parser.add_argument("--most", type=int, default=8 * MB, help="bytes of the largest file")
    parser.add_argument("--only", default="", help="one grammar")
    parser.add_argument("--go-on", action="store_true", help="do not stop at what is found")
    options = parser.parse_args()
    warm()
    rng = random.Random(options.seed or time.time_ns())
    until, tried, found, folder = time.time() + options.seconds, 0, 0, Path(tempfile.mkdtemp())
    chosen = [each for each in GRAMMARS if options.only in ("", each.__name__)]
    while time.time() < until:
        grammar = chosen[tried % len(chosen)]
        seed, size = rng.getrandbits(32), int(10 ** rng.uniform(4, np.log10(options.most)))
        used, tried = attempt(grammar, seed, size, folder, 20 * MB), tried + 1
        if used.kept:
            continue
        found += 1
        text = f"{grammar.__name__} --seed {seed} --size {size}: {used}"
        out = Path("out/fuzz") / f"amplification-{grammar.__name__}-{seed}-{size}"
        out.mkdir(parents=True, exist_ok=True)
        for name, content in grammar(random.Random(seed), size).items():
            (out / name).write_bytes(content)
        print(f"FOUND {out}: {text}", flush=True)
        if not options.go_on:
            sys.exit(1)
    print(f"amplification: {tried} files, {found} took more than they may")
    sys.exit(found > 0)


if __name__ == "__main__":
    main()
