"""Finds known faults of exported programs: sizes that torch.export could not leave dynamic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from onernn.adapters.common.fault import FaultyModel, FrameworkFault, keep_unchanged
from onernn.adapters.torch.lower import lower, read_caller_rules
from onernn.adapters.torch.read import Program, read_program
from onernn.ir.graph import Graph

PATHS = {"pytorch": "the module of torch.export.load, which checks the sizes of its inputs"}


def find_faults(
    path: str | Path, *, rules: Mapping[str, Any] | None = None
) -> FaultyModel[Program]:
    """Returns the program in a file, with the known faults that it has."""
    program, read = read_program(path), partial(lower, rules=read_caller_rules(rules))
    faults = tuple(_find_fixed_times(program, read))
    return FaultyModel("PyTorch's exported programs", program, read, PATHS, faults)


def _find_fixed_times(
    program: Program, read: Callable[..., Graph]
) -> Iterator[FrameworkFault[Program]]:
    """Yields a fault for each layer whose number of steps the export fixed.

    torch.export unrolls a recurrent layer to find its number of steps, so this number cannot be
    dynamic: "You marked T as dynamic but your code specialized it to be a constant".
    """
    graph = read(program)
    free = {node.origin: node for node in graph.nodes if node.op == "Rnn"}
    fixed = read(program, fixed=True)
    for node in fixed.nodes:
        if node.op != "Rnn" or (time := (fixed.types[node.inputs[0]].counts or (1,))[0]) in (
            None,
            1,
        ):
            continue
        ours = free.get(node.origin)
        open_here = ours is not None and graph.types[ours.inputs[0]].counts[:1] == (None,)
        text = (
            f"PyTorch runs it for {time} steps and no other number: torch.export cannot leave the"
            " time of a recurrent layer open; "
        )
        why = "; ".join(note for note in graph.notes if " must be " in note)
        if open_here:
            text += "it runs at any number here"
        else:
            text += f"so does it here: {why}" if why else "so does it here"
        at = node.origin[0]
        value = node.inputs[0]
        yield FrameworkFault("fixed_time", text, keep_unchanged, "refuses", ("pytorch",), at, value)
