"""A recurrent step as products whose post-ops are the gates.

Each gate is one kernel: product, bias, the input's share, activation, and the products with other
gates, all before the result leaves the registers. Equations: RNN developer guide of oneDNN, with
the update gate turned (z = 1-u, by a sign in its weights), so that h' = (o - h) z + h is a chain.
"""

from __future__ import annotations

from typing import NamedTuple

from onernn.backend.onednn.matmul import PostOp
from onernn.ir.spec import Cell


class Stage(NamedTuple):
    """``out = chain(source @ U[gate])``, or tanh(source) without a gate; buffers by name."""

    out: str
    source: str
    gate: int | None
    chain: tuple[PostOp, ...]
    bias: bool = False  # the row u' of LBR cells, inside r * (...)


def _add(operand: str) -> PostOp:
    return PostOp("add", operand)


def _mul(operand: str) -> PostOp:
    return PostOp("mul", operand)


_LOGISTIC, _TANH = PostOp("logistic"), PostOp("tanh")
_MIX = (PostOp("sub", "h"), _mul("z"), _add("h"))
_TO_U8 = PostOp("linear", "", 127.0, 128.0)


def program(cell: Cell, dtype: str) -> tuple[Stage, ...]:
    """The stages of one step, () where a cell has none."""
    update = Stage("z", "h", 0, (_add("g0"), _LOGISTIC))
    to_state = (_TO_U8,) if dtype == "u8" else ()
    if cell is Cell.LBR_GRU:
        return (
            update,
            Stage("r", "h", 1, (_add("g1"), _LOGISTIC)),
            Stage("h_next", "h", 2, (_mul("r"), _add("g2"), _TANH, *to_state, *_MIX), bias=True),
        )
    if cell is Cell.GRU and dtype != "u8":
        return (
            update,
            Stage("rh", "h", 1, (_add("g1"), _LOGISTIC, _mul("h"))),
            Stage("h_next", "rh", 2, (_add("g2"), _TANH, *_MIX)),
        )
    if cell is Cell.LSTM and dtype != "u8":
        return (
            Stage("i", "h", 0, (_add("g0"), _LOGISTIC)),
            Stage("fc", "h", 1, (_add("g1"), _LOGISTIC, _mul("c"))),
            Stage("c", "h", 2, (_add("g2"), _TANH, _mul("i"), _add("fc"))),
            Stage("tanh_c", "c", None, ()),
            Stage("h_next", "h", 3, (_add("g3"), _LOGISTIC, _mul("tanh_c"))),
        )
    return ()
