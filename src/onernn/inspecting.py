"""The command that shows what a model is, and what becomes of it."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated

import typer

from onernn.adapters.loading import load, plugin_for
from onernn.fuse_passes import passes_for
from onernn.options import Backend, Dtype, Json, Model, Params, Semantics, Threads
from onernn.showing import section, show_inspection, show_json, stdout
from onernn.verification.drawing import draw_passes
from onernn.verification.inspecting import inspect_model
from onernn.verification.reporting.graph_page import write_graph_page


def inspect_command(
    model: Model,
    html: Annotated[
        Path | None, typer.Option(help="A page to write: the graph before and after, to zoom.")
    ] = None,
    open_page: Annotated[
        bool, typer.Option("--open", help="Open this page, or a passing one, in the browser.")
    ] = False,
    dot: Annotated[
        Path | None, typer.Option(help="A folder for the graph after each pass: DOT, SVG.")
    ] = None,
    json: Json = False,
    dtype: Dtype = "f32",
    threads: Threads = None,
    backend: Backend = "auto",
    params: Params = None,
    semantics: Semantics = "documented",
) -> None:
    """Shows MODEL's operators before and after fusion, what fused, what did not and why."""
    graph = load(model, params, semantics)
    found = inspect_model(graph, dtype=dtype, threads=threads, backend=backend)
    if open_page and html is None:
        html = Path(mkdtemp(prefix="onernn-")) / "graph.html"
    drawn = [] if dot is None else draw_passes(graph, passes_for(dtype), dot)
    if html is not None:
        write_graph_page(found, html)
        drawn.append(html)
    if json:
        show_json("pass", **found.as_json(), drawn=list(map(str, drawn)))
    else:
        show_inspection(stdout(), found, plugin_for(graph) if found.unsupported else "")
        section(stdout(), "drawn", map(str, drawn))
    if open_page and html is not None:
        webbrowser.open(html.resolve().as_uri())
