"""What no C++ is generated for, and why."""

from __future__ import annotations

from typing import NoReturn

from onernn.core.graph import UNSUPPORTED
from onernn.engine.operators.operator_code import OperatorCode, rule


@rule("If", "Loop", "Scan")
def body(op: OperatorCode) -> NoReturn:
    op.refuse("runs graphs of its own: only loops that passes make a recurrent layer are generated")


@rule(UNSUPPORTED)
def unsupported(op: OperatorCode) -> NoReturn:
    op.refuse(op.node.attributes.get("reason", "it is not understood"))


def unknown(op: OperatorCode) -> NoReturn:
    op.refuse(f"operator {op.node.op} is not generated")
