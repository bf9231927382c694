"""Canonical operators that a row of the table says in Paddle."""

from __future__ import annotations

from functools import partial

from onernn.adapters.paddle.operators import ROWS, Row
from onernn.adapters.paddle.write.emitting import RULES, Writing, only, ragged
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Node
from onernn.core.operator import OPERATORS


def _unary(row: Row, w: Writing, node: Node, inputs: list[str]) -> str:
    only(node, *row.attributes)
    if OPERATORS[node.op].slots[0].ragged:
        ragged(w, inputs[0])
    attributes = {
        named.name: named.theirs(getattr(node.at, name)) for name, named in row.attributes.items()
    }
    return w.emit(row.type, {"X": inputs[0]}, out=row.output, **attributes, **row.written)


def _binary(row: Row, w: Writing, node: Node, inputs: list[str]) -> str:
    """Of any number of values, one after the other."""
    only(node)
    out, *others = inputs
    for other in others:
        if node.op in ("Div", "Pow") and w.dtype(out) != w.dtype(other):
            raise UnsupportedError("numbers of two types")
        out = w.binary(row.type, out, other)
    return out if others else w.copy(out)


for _row in ROWS:
    RULES.setdefault(_row.op, partial(_unary if len(_row.inputs) == 1 else _binary, _row))
RULES["Sum"] = RULES["Add"]
