"""The command that shows what a model is, and what becomes of it."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated

import typer

from onernn.adapters.loading import load, plugin_for
from onernn.options import Backend, Dtype, Json, Model, Params, Semantics, Threads
from onernn.showing import section, show_inspection, show_json, stdout
from onernn.verification.inspecting import inspect_model, write_graph_page


def inspect_command(
    model: Model,
    html: Annotated[
        Path | None, typer.Option(help="The page to write: the graph before and after fusion.")
    ] = None,
    open_page: Annotated[
        bool, typer.Option("--open", help="Open this page, or a temporary one, in the browser.")
    ] = False,
    json: Json = False,
    dtype: Dtype = "f32",
    threads: Threads = None,
    backend: Backend = "auto",
    params: Params = None,
    semantics: Semantics = "documented",
) -> None:
    """Shows MODEL before and after fusion, and why layers did not fuse."""
    graph = load(model, params, semantics)
    found = inspect_model(graph, dtype=dtype, threads=threads, backend=backend)
    if open_page and html is None:
        html = Path(mkdtemp(prefix="onernn-")) / "graph.html"
    drawn = [] if html is None else [str(html)]
    if html is not None:
        write_graph_page(found, html)
    if json:
        show_json("pass", **found.as_json(), drawn=drawn)
    else:
        show_inspection(stdout(), found, plugin_for(graph) if found.unsupported else "")
        section(stdout(), "drawn", drawn)
    if open_page and html is not None:
        webbrowser.open(html.resolve().as_uri())
