"""Known faults of exported programs: what torch.export could not leave open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from onernn.adapters.common.fault import FaultyModel, FrameworkFault, keep_unchanged
from onernn.adapters.torch.lower import lower
from onernn.adapters.torch.read import Program, read_program

PATHS = {"pytorch": "what torch.export.load gives, which checks its inputs' sizes"}


def find_faults(path: str | Path) -> FaultyModel[Program]:
    """Returns the program in a file with its faults."""
    program = read_program(path)
    faults = tuple(_fixed_times(program))
    return FaultyModel("PyTorch's exported programs", program, lower, PATHS, faults)


def _fixed_times(program: Program) -> Iterator[FrameworkFault[Program]]:
    """torch.export unrolls a recurrent layer to see its time, and refuses to leave that open:
    "You marked T as dynamic but your code specialized it to be a constant".
    """
    graph = lower(program)
    free = {node.origin: node for node in graph.nodes if node.op == "Rnn"}
    fixed = lower(program, fixed=True)
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
        text += (
            "it runs at any number here" if open_here else "so does it here: " + _why(graph.notes)
        )
        at = node.origin[0]
        value = node.inputs[0]
        yield FrameworkFault("fixed_time", text, keep_unchanged, "refuses", ("pytorch",), at, value)


def _why(notes: tuple[str, ...]) -> str:
    """Returns what the reader says of sizes that something else holds, too."""
    return "; ".join(note for note in notes if "nothing else" in note)
