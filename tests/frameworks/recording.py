"""What programs that record models of Paddle have in common; it imports no Paddle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from onernn.adapters.paddle import messages

Models = dict[str, Callable[[], Any]]


def registry() -> tuple[Models, Callable[[Callable[[], Any]], Any]]:
    """Models by name, and the decorator that puts a function among them."""
    models: Models = {}
    return models, lambda make: models.setdefault(make.__name__, make)


def strip_call_stacks(file: Path) -> None:
    """They are most of the file, and paths of the machine that built the operators."""
    program = messages.parse("ProgramDesc", file.read_bytes(), file)
    for block in program.blocks:
        for op in block.ops:
            kept = [each for each in op.attrs if each.name != "op_callstack"]
            del op.attrs[:]
            op.attrs.extend(kept)
    file.write_bytes(program.SerializeToString(deterministic=True))
