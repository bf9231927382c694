"""Writes a graph of canonical operators as a program that has only Paddle's own operators.

A ragged value becomes a tensor with a LoD; see design/0014.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from onernn.adapters.common.writing import Progress, check_again, declare, write_nodes
from onernn.adapters.paddle import write_control, write_images, write_layers, write_rules
from onernn.adapters.paddle.lower import load_paddle
from onernn.adapters.paddle.writer import RULES, ProgramWriter, VariableNames, Writing, save
from onernn.ir.files import staging
from onernn.ir.graph import Graph

__all__ = [
    "RULES",
    "Place",
    "save",
    "write_control",
    "write_images",
    "write_layers",
    "write_paddle",
    "write_rules",
]
"""The public API, and the modules that add their rules to ``RULES`` when they are imported."""

write_rules.enter_rows()

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

    ``place``: "onednn" sets use_mkldnn on fused recurrent operators. ``fused``: whether a recurrent
    layer becomes fusion_gru or fusion_lstm, instead of mul followed by gru or lstm. The default is
    true for "onednn" only. ``note``: a function that is called for each operator on which
    use_mkldnn cannot be set, with the reason. ``inputs``: a batch that supplies dtypes and ranks
    that the graph does not declare. The fuse passes must have run on ``graph`` already.

    The written files are checked by reading them before they get their final names. Raises
    `UnsupportedError`, which names each operator that Paddle cannot express.
    """
    if place not in get_args(Place):
        raise ValueError(f"place: expected one of {get_args(Place)}, got {place!r}")
    fused = place == "onednn" if fused is None else fused
    if place == "onednn" and not fused:
        raise ValueError("fused=False: expected True for place='onednn'")
    path, graph = Path(path), declare(graph, inputs)
    names = {value.name for value in graph.inputs} | {"feed", "fetch"}
    names.update(*(node.outputs for node in graph.nodes))
    w = Writing(graph, ProgramWriter(VariableNames(dict.fromkeys(names, 0))), fused, place)
    for value in graph.inputs:
        w.feed(value)
    write_nodes(graph, w.write, w.stand_in, progress)
    for value in graph.outputs:
        w.fetch(value.name)
    with staging(path) as (trial, keep):
        save(w.program, trial)
        outputs = [graph.types[name] for name in dict.fromkeys(v.name for v in graph.outputs)]
        check_again(lambda: load_paddle(trial), path, outputs)
        keep()
    for refusal in w.unplaced:
        note(f"not placed on oneDNN: {refusal}")
