"""A graph of canonical operators as a Paddle program: Paddle's own operators only.

A ragged value is a tensor with a LoD, as Paddle has it: see design/0014.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from onernn.adapters.common.writing import Progress, check_again, declare, write_nodes
from onernn.adapters.paddle import write_layers, write_rules
from onernn.adapters.paddle.lower import load_paddle
from onernn.adapters.paddle.writer import RULES, ProgramWriter, VariableNames, Writing, save
from onernn.ir.errors import Refusal
from onernn.ir.files import staging
from onernn.ir.graph import Graph

__all__ = ["RULES", "Place", "save", "to_paddle", "write_layers", "write_paddle", "write_rules"]
"""With the modules whose rules fill the table."""

Place = Literal["cpu", "onednn"]


def write_paddle(
    graph: Graph,
    path: str | Path,
    *,
    place: Place = "cpu",
    fused: bool | None = None,
    inputs: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> None:
    """Writes ``NAME.pdmodel`` and ``NAME.pdiparams``, which Paddle 2.6 and 3.x load.

    ``fused``: recurrent layers as fusion_gru and fusion_lstm rather than mul and gru or lstm;
    by default, where ``place`` is "onednn". That sets use_mkldnn on fused recurrent operators and
    on no others; ``note`` is told where it was not set, and why. ``inputs``: a batch that the
    graph runs on, where made-up ones do not fit. Give a graph that is fused already.

    What is written is read again before it gets its name. Raises `UnsupportedError` naming
    an operator that Paddle cannot say.
    """
    path, graph = Path(path), declare(graph, inputs)
    program, unplaced = to_paddle(graph, place=place, fused=fused, progress=progress)
    with staging(path) as (trial, keep):
        save(program, trial)
        outputs = [graph.types[name] for name in dict.fromkeys(v.name for v in graph.outputs)]
        check_again(lambda: load_paddle(trial), path, outputs)
        keep()
    for refusal in unplaced:
        note(f"not placed on oneDNN: {refusal}")


def to_paddle(
    graph: Graph,
    *,
    place: Place = "cpu",
    fused: bool | None = None,
    progress: Progress | None = None,
) -> tuple[ProgramWriter, tuple[Refusal, ...]]:
    """Returns the program of a graph that is `declared`; see `write_paddle`."""
    if place not in get_args(Place):
        raise ValueError(f"place: expected one of {get_args(Place)}, got {place!r}")
    fused = place == "onednn" if fused is None else fused
    if place == "onednn" and not fused:
        raise ValueError("place='onednn' belongs to fused operators, got fused=False")
    names = {value.name for value in graph.inputs} | {"feed", "fetch"}
    names.update(*(node.outputs for node in graph.nodes))
    w = Writing(graph, ProgramWriter(VariableNames(dict.fromkeys(names, 0))), fused, place)
    for value in graph.inputs:
        w.feed(value)
    write_nodes(graph, w.write, progress)
    for value in graph.outputs:
        w.fetch(value.name)
    return w.program, tuple(w.unplaced)
