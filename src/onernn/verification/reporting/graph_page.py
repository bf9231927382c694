"""A model's graph before and after fusion as one HTML file, which a browser can zoom."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from onernn.adapters.common.adapter import require
from onernn.ir.errors import Refusal, printable
from onernn.ir.files import replacing
from onernn.ir.graph import Graph
from onernn.ir.types import Type
from onernn.verification.inspecting import Inspection
from onernn.verification.reporting.picture import fused_values, picture

_MOST = 4000
"""Nodes of a picture: browsers move so many at once."""


def write_graph_page(found: Inspection, path: str | Path) -> None:
    """Writes the page. Raises `OSError` where it cannot write; an old page stays until then."""
    page = render_graph_page(found)
    with replacing(path) as stream:
        stream.write(page.encode())


def render_graph_page(found: Inspection) -> str:
    """The page as text. It loads nothing, and runs no script but its own, which a hash names."""
    jinja2 = require("jinja2", "report")
    folder = resources.files("onernn.verification.reporting") / "templates"
    environment = jinja2.Environment(
        autoescape=True,
        finalize=lambda value: printable(value, "\n") if type(value) is str else value,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["digest"] = _digest
    template = environment.from_string((folder / "graph.html.jinja").read_text("utf-8"))
    return template.render(**_content(found))


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _content(found: Inspection) -> dict[str, Any]:
    before, after = found.model, found.result.model
    old, new = fused_values(before, after)
    kernels = {each.node: f"runs on {each}" for each in found.kernels}
    pictures = {}
    for key, graph, colours in (("before", before, old), ("after", after, new)):
        told = _told(graph, found.result.refusals, kernels if graph is after else {})
        refused = {each.where for each in found.result.refusals}
        pictures[key] = picture(
            graph, f"The graph {key} fusion", fused=colours, apart=refused, told=told, most=_MOST
        )
    return {
        "found": found,
        "pictures": pictures,
        "nodes": {"before": len(before.nodes), "after": len(after.nodes)},
        "most": _MOST,
        "coloured": bool(new),
    }


def _told(
    graph: Graph, refusals: Iterable[Refusal], kernels: Mapping[str, str]
) -> dict[str, list[str]]:
    """Lines about the makers of values: types first, then kernels and refusals."""
    types = graph.types
    told = {value.name: [_short(types[value.name])] for value in graph.inputs}
    reasons: dict[str, list[str]] = {}
    for each in refusals:
        reasons.setdefault(each.where, []).append(f"not fused: {each.reason}")
    for node in graph.nodes:
        made = [name for name in node.outputs if name in types]
        lines = [_short(types[made[0]])] if made else [""]
        lines += [f"{name}: {types[name]}" for name in made]
        lines += [kernels[node.label]] if node.label in kernels else []
        lines += [reason for name in node.outputs for reason in reasons.get(name, ())]
        told[node.outputs[0]] = lines
    return told


def _short(type: Type) -> str:
    """A type below a box: W stands for the words of a ragged value."""
    sizes = [str(size or "?") for size in type.shape or ()]
    sizes[:1] = ["W"] if type.ragged and sizes else sizes[:1]
    shape = "(...)" if type.shape is None else f"({', '.join(sizes)})"
    return f"{type.dtype or 'any'} {shape}" + (" ragged" if type.ragged else "")
