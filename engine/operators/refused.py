"""What no C++ is generated for, and why."""

from __future__ import annotations

from typing import NoReturn

from onernn.core.graph import UNSUPPORTED
from onernn.engine.operators.operator_code import OperatorCode, rule


@rule("If", "Loop", "Scan")
def body(op: OperatorCode) -> NoReturn:
    reason = op.program.left.get(op.node.outputs[0], "what its graphs make is not known")
    already = "runs graphs of its own: "  # said by one inside
    hint = "" if "--" in reason else "; sizes that --static or --input tell may decide it"
    op.refuse(already + reason.removeprefix(already) + hint)


@rule(UNSUPPORTED)
def unsupported(op: OperatorCode) -> NoReturn:
    op.refuse(op.node.attributes.get("reason", "it is not understood"))


def unknown(op: OperatorCode) -> NoReturn:
    op.refuse(f"operator {op.node.op} is not generated")
