"""Operators that work element by element; their formulas stand in `onernn.engine.formulas`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from onernn.core.sizes import Shape, volume
from onernn.engine.formulas import OF_KIND, WHOLE, again, put
from onernn.engine.operators.nests import each_element, stretched, whole
from onernn.engine.operators.operator_code import OperatorCode, rule
from onernn.engine.steps import Access, Call, Nest
from onernn.operators import OPERATORS
from onernn.operators.rules import ONE


def broadcast(op: OperatorCode, shapes: Sequence[Shape]) -> None:
    """Says that sizes stretch as NumPy's: what is not 1 is the same."""
    for sizes in zip_longest(*(shape[::-1] for shape in shapes), fillvalue=ONE):
        first, *others = [size for size in sizes if size.number != 1] or [ONE]
        for other in others:
            first = op.same(first, other)


def stretched_input(op: OperatorCode, at: int) -> Access:
    """An input as its elements stand to those of the output."""
    return stretched(op.read(at), op.shape(at), op.out()[1])


def elementwise(op: OperatorCode) -> Nest:
    """What `onernn.engine.formulas` says of an operator."""
    node, record = op.node, OPERATORS[op.node.op]
    there = [at for at, name in enumerate(node.inputs) if name]
    dtypes = [op.dtype(at) for at in there if record.slot(at).name != "condition"]
    if record.slots[0].name == "condition":
        op.of("bool")
    if len(set(dtypes)) > 1:
        op.refuse(f"inputs of several types {dtypes}")
    if dtypes[0].startswith("int") and node.op in WHOLE:
        divisor = op.program.graph.constants.get(node.inputs[1])
        if divisor is None or bool(((divisor == 0) | (divisor == -1)).any()):
            op.refuse(f"of {dtypes[0]}, by what may be 0 or -1")
    broadcast(op, [op.shape(at) for at in there])
    numbers = {
        key: float(getattr(op.at, key))
        for key, default in record.attributes.items()
        if isinstance(default, float)
    }
    reads = [stretched_input(op, at) for at in there]
    formula = _formula(op, dtypes[0])
    if record.slots[-1].variadic:
        formula = again(formula, len(reads))
    if node.op == "Mean":
        formula = ("divided", formula, float(len(reads)))
    return each_element(op, reads, put(formula, {**dict(enumerate(range(len(reads)))), **numbers}))


def _formula(op: OperatorCode, dtype: str) -> Any:
    """The row for the optional inputs that are given, for an attribute, or for the operator."""
    node, record = op.node, OPERATORS[op.node.op]
    inputs = zip(record.slots, node.inputs, strict=False)
    said = [slot.name for slot, name in inputs if slot.optional and name]
    for key, default in record.attributes.items():
        value = getattr(op.at, key)
        if not isinstance(default, float) and value != default:
            said.append(f"{key}={int(value) if isinstance(default, int) else value}")
    row = " ".join([node.op, *said])
    found = OF_KIND.get(dtype.rstrip("0123456789"), {}).get(row)
    return found or op.refuse(f"{row.removeprefix(node.op)} of {dtype}".strip())


@rule("Cast", "CastLike")
def cast(op: OperatorCode) -> Nest | None:
    given, to = op.dtype(), op.program.dtype(op.node.outputs[0])
    if op.node.op == "Cast" and op.at.to == "bfloat16":
        op.refuse("to bfloat16")
    source = op.read(0)
    if given == to:
        op.source = source
        return None
    between = {("float16", "float32"): "widened", ("float32", "float16"): "halved"}
    function = between.get((given, to), "truth" if to == "bool" else "cast")
    return each_element(op, [whole(source, op.shape())], (function, 0))


@rule("Dropout")
def dropout(op: OperatorCode) -> list[Call | Nest]:
    """In inference nothing is dropped, and the mask is of ones."""
    if any(op.integers(2, "training_mode") or ()):
        op.refuse("training_mode is true: only inference is generated")
    source = op.read(0)
    copy = each_element(op, [whole(source, op.shape())], ("same", 0))
    mask = op.node.outputs[1] if len(op.node.outputs) > 1 else ""
    return [copy, filled(op, 1, 1)] if mask else [copy]


def filled(op: OperatorCode, at: int, value: float) -> Call:
    """An output of one number."""
    out, shape = op.out(at)
    dtype = op.program.dtype(out)
    number = float(value) if dtype.startswith("float") else int(value)
    types = [dtype, "float64" if dtype.startswith("float") else "int64"]
    return Call("fill", out, volume(shape), number, types=types)
