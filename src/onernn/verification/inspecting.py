"""A model before and after fusion, and what runs it: `onernn inspect` and its page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from onernn.adapters.registry import pass_name
from onernn.engine.session import Explained, Session, unsupported
from onernn.fuse_passes import FuseResult, fuse, passes_for
from onernn.ir.errors import LibraryError, Refusal
from onernn.ir.files import replacing
from onernn.ir.graph import Graph, Value, native_types
from onernn.ir.records import dataclass
from onernn.ir.types import Type
from onernn.verification.drawing import filled, fused_values, picture


@dataclass(frozen=True)
class Inspection:
    """A model, what fusion makes of it, which nodes cannot run, and what runs the layers.

    ``missing``: why the kernels are not known, "" otherwise. Without a library, or with operators
    that cannot run, there are none.
    """

    model: Graph
    result: FuseResult
    unsupported: tuple[Refusal, ...]
    kernels: tuple[Explained, ...]
    missing: str = ""

    @property
    def operators(self) -> dict[str, tuple[int, int]]:
        """How many nodes of each kind there are before and after fusion."""
        before, after = (Counter(n.op for n in g.nodes) for g in (self.model, self.result.model))
        return {op: (before[op], after[op]) for op in sorted(before | after)}

    @property
    def fused(self) -> list[dict[str, str]]:
        """Which pass fired where, on what, and what its framework calls it."""
        return [
            {
                "pass": each.name,
                "where": each.where,
                "from": native_types(each.origin),
                "called": pass_name(each),
            }
            for each in self.result.applied
        ]

    def as_json(self) -> dict[str, Any]:
        """What ``--json`` prints beside the keys of all commands."""
        return {
            "model": self.model.name,
            "interface": {
                "inputs": list(map(_described, self.model.inputs)),
                "outputs": list(map(_described, self.model.outputs)),
            },
            "operators": {op: list(counts) for op, counts in self.operators.items()},
            "fused": self.fused,
            "refusals": [vars(each) for each in self.result.refusals],
            "unsupported": [vars(each) for each in self.unsupported],
            "kernels": [vars(each) for each in self.kernels],
            "kernels_unknown": self.missing or None,
            "notes": list(self.model.notes),
        }


def inspect_model(
    model: Graph, *, dtype: str = "f32", threads: int | None = None, backend: str = "auto"
) -> Inspection:
    """Fuses a model and prepares it as `Session` does; nothing is run.

    Raises `UnsupportedError` for a ``dtype`` or ``backend`` that is none.
    """
    result = fuse(model, passes_for(dtype))
    refusals = unsupported(result.model)
    if refusals:
        return Inspection(model, result, refusals, ())
    try:
        session = Session(model, dtype=dtype, threads=threads, backend=backend)
    except LibraryError as error:
        return Inspection(model, result, (), (), str(error))
    return Inspection(model, result, (), session.explained)


def _described(value: Value) -> dict[str, Any]:
    shape = None if value.shape is None else list(value.shape)
    return {"name": value.name, "dtype": value.dtype, "shape": shape, "lod_depth": value.lod_depth}


# --- a model's graph before and after fusion as one HTML file, which a browser can zoom


_MOST = 4000
"""Nodes of a picture: browsers move so many at once."""


def write_graph_page(found: Inspection, path: str | Path) -> None:
    """Writes the page. Raises `OSError` where it cannot write; an old page stays until then."""
    page = render_graph_page(found)
    with replacing(path) as stream:
        stream.write(page.encode())


def render_graph_page(found: Inspection) -> str:
    """The page as text. It loads nothing, and runs no script but its own, which a hash names."""
    return filled("graph.html.jinja", _content(found))


def _content(found: Inspection) -> dict[str, Any]:
    before, after = found.model, found.result.model
    old, new = fused_values(before, after)
    kernels = {each.node: f"runs on {each}" for each in found.kernels}
    pictures = {}
    for key, graph, colours in (("before", before, old), ("after", after, new)):
        notes = _notes(graph, found.result.refusals, kernels if graph is after else {})
        refused = {each.where for each in found.result.refusals}
        pictures[key] = picture(
            graph,
            f"The graph {key} fusion",
            fused=colours,
            apart=refused,
            notes=notes,
            most=_MOST,
        )
    return {
        "found": found,
        "pictures": pictures,
        "nodes": {"before": len(before.nodes), "after": len(after.nodes)},
        "most": _MOST,
        "coloured": bool(new),
    }


def _notes(
    graph: Graph, refusals: Iterable[Refusal], kernels: Mapping[str, str]
) -> dict[str, list[str]]:
    """Lines about the makers of values: types first, then kernels and refusals."""
    types = graph.types
    notes = {value.name: [_short(types[value.name])] for value in graph.inputs}
    reasons: dict[str, list[str]] = {}
    for each in refusals:
        reasons.setdefault(each.where, []).append(f"not fused: {each.reason}")
    for node in graph.nodes:
        made = [name for name in node.outputs if name in types]
        lines = [_short(types[made[0]])] if made else [""]
        lines += [f"{name}: {types[name]}" for name in made]
        lines += [kernels[node.label]] if node.label in kernels else []
        lines += [reason for name in node.outputs for reason in reasons.get(name, ())]
        notes[node.outputs[0]] = lines
    return notes


def _short(type: Type) -> str:
    """A type below a box: W stands for the words of a ragged value."""
    sizes = [str(size or "?") for size in type.shape or ()]
    sizes[:1] = ["W"] if type.ragged and sizes else sizes[:1]
    shape = "(...)" if type.shape is None else f"({', '.join(sizes)})"
    return f"{type.dtype or 'any'} {shape}" + (" ragged" if type.ragged else "")
