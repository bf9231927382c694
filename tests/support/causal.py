"""Convolutions along time: values of steps become rows, and are steps again afterwards."""

from __future__ import annotations

from typing import Any

from onernn.ir.graph import Node
from support.graphs import new_node

TO_ROWS = new_node("rows = Transpose x", perm=(1, 2, 0))
"""(T, N, C) -> (N, C, T)"""


def from_rows(name: str, out: str = "p") -> Node:
    return new_node(f"{out} = Transpose {name}", perm=(2, 0, 1))


def conv(x: str, y: str, pads: tuple[int, ...] = (0, 0), kernel: str = "k", **more: Any) -> Node:
    return new_node(f"{y} = Conv {x} {kernel}", pads=pads, **more)
