"""Paddle's files byte after byte: protobuf's wire format, and its tensor stream."""

from __future__ import annotations

import struct


def varint(value: int) -> bytes:
    value &= 2**64 - 1  # negative ones are ten bytes
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(number: int, value: int | float | bytes) -> bytes:
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    return varint(number << 3) + varint(value)


def description(data_type: int, dims: tuple[int, ...]) -> bytes:
    return field(1, data_type) + b"".join(field(2, size) for size in dims)


def variable(name: bytes, kind: int, data_type: int = 5, dims: tuple[int, ...] = ()) -> bytes:
    tensor = field(3, field(1, description(data_type, dims))) if kind == 7 else b""
    return field(3, field(1, name) + field(2, field(1, kind) + tensor) + field(3, 1))


def block(*contents: bytes, index: int = 0) -> bytes:
    return field(1, field(1, index) + field(2, index - 1) + b"".join(contents))


def tensor(data_type: int, dims: tuple[int, ...], data: bytes, lod: bytes = bytes(8)) -> bytes:
    desc = description(data_type, dims)
    return bytes(4) + lod + bytes(4) + struct.pack("<i", len(desc)) + desc + data


def attribute(name: bytes, kind: int, *values: bytes) -> bytes:
    return field(4, field(1, name) + field(2, kind) + b"".join(values))
