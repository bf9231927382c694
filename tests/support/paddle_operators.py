"""Programs of Paddle as they are read, made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from onernn.adapters.paddle.read import Operator, Program, Variable
from onernn.ir.arrays import Array

Slots = Mapping[str, str | tuple[str, ...]]


def op(
    type: str,  # noqa: A002
    inputs: Slots | None = None,
    outputs: Slots | None = None,
    **attributes: Any,
) -> Operator:
    """An operator: ``mul X=x Y=w -> Out=y``, or with dictionaries; `program` gives its position.

    Several variables of a slot have commas between them; a slot without any is left out.
    """
    if inputs is None:
        type, *words = type.split()  # noqa: A001
        cut = words.index("->")
        told = (dict(word.split("=") for word in side) for side in (words[:cut], words[cut + 1 :]))
        inputs, outputs = ({k: tuple(v.split(",")) for k, v in side.items() if v} for side in told)

    def slots(given: Slots) -> dict[str, tuple[str, ...]]:
        return {slot: (v,) if isinstance(v, str) else v for slot, v in given.items()}

    return Operator(0, type, slots(inputs), slots(outputs or {}), attributes)


def program(
    *operators: Operator,
    feeds: tuple[str, ...] = ("x",),
    fetches: tuple[str, ...] = ("y",),
    parameters: Mapping[str, Array] | None = None,
    backwards: bool = False,
    **declared: Variable,
) -> Program:
    """Every variable is declared float32 (?, 4), inputs with one LoD level, unless given.

    ``backwards``: the columns of feeds and fetches count down.
    """
    sign = -1 if backwards else 1
    fed = [op(f"feed X=feed -> Out={name}", col=sign * k) for k, name in enumerate(feeds)]
    got = [op(f"fetch X={name} -> Out=f", col=sign * k) for k, name in enumerate(fetches)]
    placed = tuple(replace(each, position=k) for k, each in enumerate([*fed, *operators, *got]))
    names = {name for each in placed for name in (*each.reads, *each.writes)}
    variables = {n: Variable(n, 7, "float32", (None, 4), int(n in feeds), False) for n in names}
    return Program(
        Path("somewhere/model.pdmodel"),
        placed,
        {**variables, **declared},
        dict(parameters or {}),
        2006002,
    )
