"""Graphs as pictures: DOT text, and SVG where Graphviz is installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from onernn.core.errors import printable
from onernn.core.files import replacing
from onernn.core.graph import UNSUPPORTED, Graph, Node
from onernn.fuse_passes import Pass, fuse

_SECONDS = 60
"""What a layout may take; large graphs keep their DOT text only."""


def to_dot(graph: Graph) -> str:
    """The graph in Graphviz's language: nodes are boxes, inputs and outputs ovals.

    Constants are left out, a box tells how many feed it.
    """
    inside = "\n".join(f"  {line}" for line in _lines(graph))
    name = _quoted(printable(graph.name))
    return f"digraph {name} {{\n  rankdir=LR; node [shape=box];\n{inside}\n}}\n"


def draw_passes(model: Graph, passes: tuple[Pass, ...], folder: Path) -> list[Path]:
    """Writes the graph as it is read, then after each pass that changed it.

    Files ``00_read.dot``, ``01_<pass>.dot``, ...; numbers are places in the order of passes. An
    ``.svg`` stands beside each where ``dot`` is installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = [_write(model, folder / "00_read.dot")]
    for place, each in enumerate(passes, 1):
        result = fuse(model, (each,))
        model = result.model
        if result.applied:
            written.append(_write(model, folder / f"{place:02}_{each.name}.dot"))
    return written


def _write(graph: Graph, file: Path) -> Path:
    text, picture = to_dot(graph).encode(), file.with_suffix(".svg")
    with replacing(file) as stream:
        stream.write(text)
    if shutil.which("dot"):
        try:
            drawn = subprocess.run(
                ["dot", "-Tsvg"], input=text, check=True, capture_output=True, timeout=_SECONDS
            )
        except (subprocess.SubprocessError, OSError):
            picture.unlink(missing_ok=True)  # an older graph's
        else:
            with replacing(picture) as stream:
                stream.write(drawn.stdout)
    return file


def _lines(graph: Graph) -> Iterator[str]:
    sources = {value.name: f"in{k}" for k, value in enumerate(graph.inputs)}
    for value in graph.inputs:
        yield f"{sources[value.name]} [shape=oval, label={_quoted(printable(value))}];"
    for k, node in enumerate(graph.nodes):
        colour = ", style=filled, fillcolor=" + _COLOURS[node.op] if node.op in _COLOURS else ""
        yield f"n{k} [label={_quoted(_label(graph, node))}{colour}];"
        sources |= {name: f"n{k}" for name in node.outputs if name}
        for name in dict.fromkeys(node.inputs):
            if name in sources:
                yield f"{sources[name]} -> n{k} [label={_quoted(printable(name))}];"
    for k, value in enumerate(graph.outputs):
        yield f"out{k} [shape=oval, label={_quoted(printable(value))}];"
        if value.name in sources:
            yield f"{sources[value.name]} -> out{k};"


_COLOURS = {"Rnn": "lightblue", UNSUPPORTED: "lightpink"}


def _label(graph: Graph, node: Node) -> str:
    lines = [node.op]
    if spec := node.attributes.get("spec"):
        size = f"{spec.input_size} -> {spec.hidden_size}"
        lines.append(f"{spec.cell.name} {spec.direction}, {size}, layers {spec.layers}")
    if reason := node.attributes.get("reason"):
        lines.append(str(reason))
    constants = sum(name in graph.constants for name in node.inputs)
    if constants:
        lines.append(f"{constants} constant{'s' * (constants > 1)}")
    if node.origin:
        lines.append(node.native)
    return "\n".join(lines)


def _quoted(text: str) -> str:
    # Graphviz reads backslashes, quotes, and HTML's entities. What is not printable would steer a
    # viewer.
    escaped = printable(text, "\n").replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;")
    escaped = escaped.replace("\n", "\\n")
    return f'"{escaped}"'
