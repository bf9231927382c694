"""Damaged files: bytes, JSON trees, protobuf fields and zip members changed at random.

A mutation takes ``(rng, data, other)``, where ``other`` is another file of the same kind, and
gives new data; one that does not apply gives the data as they are.
"""

from __future__ import annotations

import copy
import io
import json
import random
import struct
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

from onernn.adapters.common.files import _varint

Mutation = Callable[[random.Random, bytes, bytes], bytes]
Field = tuple[int, int, Any]  # number, wire type; an int, bytes, or the fields of a message

NUMBERS = [0, 1, -1, 2, 3, 5, 7, 8, 16, 31, 64, 127, 255, 4096, 10**5, 2**31 - 1, 2**31, 2**32 - 1]
NUMBERS += [10**9, 2**40, 2**53, 2**63 - 1, -(2**63), -2, -(2**31)]
TEXTS = ["", "0", "-1", "None", "True", "()", "(0,)", "(-1, 2)", "[1", "1e999", "nan", "x" * 300]
TEXTS += ["(" * 300, "9" * 5000, "'", "\0", "\n", "é", "../../etc/passwd", "{}", "tanh", "lstm"]
TEXTS += [
    "(1, 2, 3)",
    "2.5",
    "float16",
    "int8",
    "null",
    "relu",
    "\x1b[31m",
    "[/x]",
    "1,2",
    "(None,)",
]


def of_bytes(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """One to eight bits, numbers, pieces changed; a file cut, or joined with another."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at = rng.randrange(len(out) + 1)
        length = min(rng.choice((1, 1, 2, 4, 8, 16, 64, 256)), len(out) - at)
        match rng.randrange(9):
            case 0 | 1 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 2 if at < len(out):
                out[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 3:
                del out[at : at + length]
            case 4:
                out[at:at] = out[at : at + length] * rng.choice((1, 1, 3))
            case 5:
                packed = struct.pack("<q", rng.choice(NUMBERS))[: rng.choice((1, 2, 4, 8))]
                out[at : at + len(packed)] = packed
            case 6:
                start = rng.randrange(len(other) + 1)
                out[at : at + length] = other[start : start + length]
            case 7 if rng.random() < 0.3:
                del out[at:]
            case 8 if rng.random() < 0.1:
                out = out[:at] + other[rng.randrange(len(other) + 1) :]
    return bytes(out)


def of_json(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Values of a JSON tree exchanged, moved, doubled, left out."""
    try:
        tree, donor = json.loads(data), json.loads(other)
    except ValueError:
        return data
    for _ in range(rng.choice((1, 1, 2, 4))):
        places = _places(tree)
        if not places:
            break
        inside, key = rng.choice(places)
        others = _places(donor if rng.random() < 0.3 else tree)
        if rng.random() < 0.7:  # another name, type, list, in the place of this one
            others = [(a, k) for a, k in others if k == key or type(a[k]) is type(inside[key])]
        match rng.randrange(8):
            case 0:
                inside[key] = rng.choice(NUMBERS)
            case 1:
                inside[key] = rng.choice(TEXTS)
            case 2:
                inside[key] = rng.choice((None, True, 1.5, 1e308, [], {}, [[]], [None], {"": 0}))
            case 3:
                del inside[key]
            case 4 if others:
                there, name = rng.choice(others)
                inside[key] = copy.deepcopy(there[name])
            case 5 if isinstance(inside, list):
                inside.insert(key, copy.deepcopy(inside[key]))
            case 6 if isinstance(inside[key], str):
                inside[key] = _text(rng, inside[key])
            case 7 if isinstance(inside[key], int):
                inside[key] += rng.choice((1, -1))
    return json.dumps(tree, indent=rng.choice((None, 2))).encode()


def _places(tree: Any) -> list[tuple[Any, Any]]:
    found, waiting = [], [tree]
    while waiting:
        at = waiting.pop()
        if isinstance(at, dict | list):
            keys = list(at) if isinstance(at, dict) else range(len(at))
            found += [(at, key) for key in keys]
            waiting += [at[key] for key in keys]
    return found


def _text(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    piece = rng.choice(("", "(", ",", "-", "0", "9" * 20, ".", " ", "[", rng.choice(TEXTS)))
    return text[:at] + piece + text[at + rng.randrange(2) :]


def of_protobuf(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Fields of any depth changed, moved, doubled, left out; lengths around them stay right."""
    tree = parse_fields(data)
    donor = parse_fields(other) or []
    if not tree:
        return data
    for _ in range(rng.choice((1, 1, 2, 4))):
        lists = _messages(tree)
        fields = rng.choice(lists)
        if not fields:
            continue
        at = rng.randrange(len(fields))
        number, kind, value = fields[at]
        match rng.randrange(8):
            case 0:
                del fields[at]
            case 1:
                fields.insert(rng.randrange(len(fields) + 1), copy.deepcopy(fields[at]))
            case 2:
                fields[at] = (rng.choice((number + 1, number - 1 or 1, 1, 20)), kind, value)
            case 3:  # another name, type, number, in the place of this one
                whole = _messages(donor if donor and rng.random() < 0.3 else tree)
                like = [f for inside in whole for f in inside if f[:2] == (number, kind)]
                if like:
                    fields[at] = copy.deepcopy(rng.choice(like))
            case 4 if rng.random() < 0.5:
                source = rng.choice(lists)
                if source:
                    fields[at] = (number, *copy.deepcopy(rng.choice(source))[1:])
            case 4:
                rng.shuffle(fields)
            case _ if kind == 0:
                chosen = rng.choice((rng.choice(NUMBERS), value + 1, value - 1))
                fields[at] = (number, kind, chosen % 2**64)
            case _ if kind == 2 and isinstance(value, bytes):
                words = [word.encode() for word in TEXTS]
                fields[at] = (number, kind, rng.choice((of_bytes(rng, value, other), *words[:8])))
            case _ if kind in (1, 5):
                packed = struct.pack("<q", rng.choice(NUMBERS))
                fields[at] = (number, kind, packed[: len(value)])
    return _serialized(tree)


def _messages(fields: list[Field]) -> list[list[Field]]:
    found, waiting = [], [fields]
    while waiting:
        at = waiting.pop()
        found.append(at)
        waiting += [value for _, kind, value in at if isinstance(value, list)]
    return found


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at


def parse_fields(data: bytes, depth: int = 0) -> list[Field] | None:
    """The fields of what may be a protobuf, those inside them too; None where it is none."""
    fields: list[Field] = []
    at = 0
    try:
        while at < len(data):
            tag, at = _read_varint(data, at)
            number, kind = tag >> 3, tag & 7
            value: Any
            if not number or kind not in (0, 1, 2, 5):
                return None
            if kind == 0:
                value, at = _read_varint(data, at)
            else:
                size, at = _read_varint(data, at) if kind == 2 else (8 if kind == 1 else 4, at)
                value, at = data[at : at + size], at + size
                if at > len(data):
                    return None
            if kind == 2 and 1 < len(value) < 10**6 and depth < 12 and not value.isalnum():
                value = parse_fields(value, depth + 1) or value
            fields.append((number, kind, value))
    except IndexError:
        return None
    return fields


def _serialized(fields: list[Field]) -> bytes:
    out = b""
    for number, kind, value in fields:
        inside = _serialized(value) if isinstance(value, list) else value
        head = _varint(max(number, 1) << 3 | kind)
        head += _varint(value if kind == 0 else len(inside)) if kind in (0, 2) else b""
        out += head + (b"" if kind == 0 else inside)
    return out


def of_zip(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Members of an npz damaged under right checksums, renamed, doubled, left out, mixed."""
    try:
        members = _members(data)
        donor = _members(other)
    except Exception:  # damaged already
        return data
    for _ in range(rng.choice((1, 1, 2, 3))):
        if not members:
            break
        at = rng.randrange(len(members))
        name, inside = members[at]
        match rng.randrange(7):
            case 0:
                members[at] = (name, of_bytes(rng, inside, data))
            case 1 | 2:
                members[at] = (name, _header_changed(rng, inside))
            case 3:
                members[at] = (rng.choice((_text(rng, name), rng.choice(members)[0])), inside)
            case 4:
                del members[at]
            case 5:
                members.insert(at, (name, rng.choice(donor)[1] if donor else inside))
            case 6:
                members[at] = (name, rng.choice(members)[1])
    how = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
    whole = _archive(members, how)
    return of_bytes(rng, whole, other) if rng.random() < 0.3 else whole


def of_archive(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """A member of PyTorch's or Keras's archive damaged, by what it is, under a right checksum."""
    try:
        members = _members(data)
    except Exception:  # damaged already
        return data
    if not members:
        return data
    told = [at for at, (name, _) in enumerate(members) if name.endswith((".json", ".pkl"))]
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.choice(told) if told and rng.random() < 0.8 else rng.randrange(len(members))
        name, inside = members[at]
        change = of_json if name.endswith(".json") else of_bytes
        members[at] = (name, change(rng, inside, inside))
        if rng.random() < 0.05:
            members.insert(at, rng.choice(members))
    return _archive(members)


def _archive(members: list[tuple[str, bytes]], how: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", how) as archive:
        warnings.simplefilter("ignore")  # a name that stands there twice
        for name, inside in members:
            archive.writestr(name, inside)
    return out.getvalue()


def _members(data: bytes) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


def _header_changed(rng: random.Random, member: bytes) -> bytes:
    """The dictionary in front of an .npy's numbers with another dtype, order or shape."""
    end = member.find(b"\n")
    if not member.startswith(b"\x93NUMPY") or end < 0:
        return member
    header = member[10:end].decode("latin1")
    dtypes = "<f4 >f4 <f8 <i8 |O |V8 <U3 |S0 <M8[D] <c8 |b1 <f2 ?".split()
    changed = rng.choice(
        (
            header.replace("<f4", rng.choice(dtypes)).replace("<i8", rng.choice(dtypes)),
            header.replace("False", rng.choice(("True", "None", "0"))),
            header.replace("(", rng.choice(("(0, ", "(1, ", "(-1, ", "(4000000000, ", "(((", "("))),
            header.replace(",)", rng.choice((",", ", 2)", f", {2**62})", ")"))),
            _text(rng, header),
        )
    )
    text = changed.strip().encode("latin1", "replace") + b"\n"
    return member[:8] + struct.pack("<H", len(text) % 2**16) + text + member[end + 1 :]
