"""Shows a model before and after fusion, and its kernels, as text and as an HTML page with
graphs.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape as escaped
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from onernn.adapters.registry import pass_name
from onernn.engine.session import Explained, Session, find_unsupported
from onernn.fuse_passes import FuseResult, fuse, passes_for
from onernn.ir.errors import LibraryError, Refusal, printable
from onernn.ir.files import replacing
from onernn.ir.graph import UNSUPPORTED, Graph, Node, Value, native_types
from onernn.ir.records import NOTHING, dataclass
from onernn.ir.types import Counts, Type

_WIDE, _HIGH, _ACROSS, _DOWN = 168, 50, 20, 30
_BESIDE = 36
"""Margin at both sides of a picture, for labels that are wider than their box."""
_MOST = 120
"""Maximum number of nodes in a picture. If a graph has more, the picture shows the nodes around the
first recurrent node.
"""
COLOURS = ("#cfe3f7", "#fbe3c0", "#d5efd3", "#e6d9f2", "#f7d7e6", "#d3eeee")

_GREY, _RED = "#64748b", "#b91c1c"
_TEXT, _SMALL_TEXT = "#0f172a", "#475569"
_PAPER, _PLAIN = "#ffffff", "#f8fafc"
_FILLS = {"Rnn": "#e2e8f0", UNSUPPORTED: "#fee2e2"}
DARK = dict(
    zip(
        (*COLOURS, *_FILLS.values(), _PAPER, _PLAIN, _GREY, _RED, _TEXT, _SMALL_TEXT),
        (
            *("#1f4a75", "#6b4a12", "#1f5a2c", "#533a74", "#74304f", "#17565a"),
            *("#3b4756", "#6d2020", "#12161c", "#1c222b", "#94a3b8", "#f87171"),
            *("#f1f5f9", "#cbd5e1"),
        ),
        strict=True,
    )
)
"""The dark theme's colour for each colour of a picture."""


class _Box(NamedTuple):
    key: str
    lines: tuple[str, ...]
    inputs: tuple[str, ...]  # keys of the boxes that this box reads
    fill: str
    oval: bool
    title: str
    below: str = ""
    mark: str = ""


def escape(text: str) -> str:
    """Returns a text escaped for an SVG, without characters that XML forbids or that reverse the
    writing direction.
    """
    return escaped(printable(text, "\n"))


def picture(
    graph: Graph,
    label: str,
    *,
    fused: Mapping[str, str],
    marks: Mapping[str, str] = NOTHING,
    notes: Mapping[str, Sequence[str]] = NOTHING,
    most: int = _MOST,
) -> str:
    """Returns an SVG of the graph from top to bottom: operators are boxes, inputs and outputs are
    ovals.

    ``fused``: colours of nodes. ``marks``: labels of nodes with a red border. ``notes``: lines
    about nodes. The keys of all three are names of nodes' outputs. A label is above the box, the
    first note is below it; hovering over a box shows all notes. The picture omits constants, and
    has at most ``most`` nodes.
    """
    boxes = _boxes(graph, fused, marks, notes, most)
    ranks = _ranks(boxes)
    rows = _order_rows(boxes, ranks)
    widest = max(map(len, rows), default=1)
    margin = _BESIDE if any(box.below or box.mark for box in boxes) else 0
    width = widest * (_WIDE + _ACROSS) + _ACROSS + 2 * margin
    height = len(rows) * (_HIGH + _DOWN) + _DOWN
    places = {}
    for depth, row in enumerate(rows):
        left = (width - len(row) * (_WIDE + _ACROSS) + _ACROSS) / 2
        for place, box in enumerate(row):
            places[box.key] = (left + place * (_WIDE + _ACROSS), _DOWN + depth * (_HIGH + _DOWN))
    lines = [
        f'<svg class="graph" xmlns="http://www.w3.org/2000/svg" role="img"'
        f' aria-label="{escape(label)}" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}">'
    ]
    for box in boxes:
        lines += [_edge(places[key], places[box.key]) for key in box.inputs if key in places]
    lines += [_draw(box, *places[box.key]) for box in boxes]
    return "\n".join([*lines, "</svg>"])


def colour_fused_values(before: Graph, after: Graph) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the colours of nodes before and after fusion; a fused node has the same colour as the
    nodes that it replaces.
    """
    kept, left = (set(map(id, graph.nodes)) for graph in (before, after))
    old: dict[str, str] = {}
    new: dict[str, str] = {}
    for node in after.nodes:
        if id(node) in kept or node.op != "Rnn":
            continue
        colour = COLOURS[len(new) % len(COLOURS)]
        new[node.outputs[0]] = colour
        for each in before.nodes:
            gone = id(each) not in left
            if gone and each.origin and set(each.origin) <= set(node.origin):
                old.setdefault(each.outputs[0], colour)
    return old, new


def _boxes(
    graph: Graph,
    fused: Mapping[str, str],
    marks: Mapping[str, str],
    notes: Mapping[str, Sequence[str]],
    most: int,
) -> list[_Box]:
    nodes = list(graph.nodes)
    if len(nodes) > most:
        first = next((k for k, n in enumerate(nodes) if n.op == "Rnn"), 0)
        start = max(0, min(first - most // 3, len(nodes) - most))
        nodes = nodes[start : start + most]
    makers = {value.name: f"in:{value.name}" for value in graph.inputs}
    for k, node in enumerate(nodes):
        makers.update((name, f"n{k}") for name in node.outputs if name)
    read = {name for node in nodes for name in node.inputs} | {v.name for v in graph.outputs}
    boxes = [
        _oval(makers[v.name], v, _shape(v.shape), below="".join(notes.get(v.name, ())[:1]))
        for v in graph.inputs
        if v.name in read
    ]
    for k, node in enumerate(nodes):
        inputs = tuple(dict.fromkeys(makers[name] for name in node.inputs if name in makers))
        fill = fused.get(node.outputs[0], _FILLS.get(node.op, _PLAIN))
        mark = next((marks[name] for name in node.outputs if name in marks), "")
        more = notes.get(node.outputs[0], ())
        title = "\n".join((_title(node), *more))
        below = "".join(more[:1])
        boxes.append(_Box(f"n{k}", _label(node), inputs, fill, False, title, below, mark))
    return boxes + [
        _oval(f"out:{value.name}", value, inputs=(makers[value.name],))
        for value in graph.outputs
        if value.name in makers
    ]


def _oval(
    key: str, value: Value, shape: str = "", inputs: tuple[str, ...] = (), below: str = ""
) -> _Box:
    return _Box(key, _cut(value.name, shape), inputs, _PAPER, True, str(value), below)


def _shape(shape: Counts | None) -> str:
    return "" if shape is None else f"({', '.join('?' if s is None else str(s) for s in shape)})"


def _label(node: Node) -> tuple[str, ...]:
    spec = node.attributes.get("spec")
    if spec is None:
        native = native_types(node.origin)
        return _cut(node.op, native if native.lower() != node.op.lower() else "")
    way = spec.direction.replace("bidirectional_", "both, ").replace("left2right", "forward")
    layers = f", {spec.layers} layers" if spec.layers > 1 else ""
    return _cut(
        f"Rnn: {spec.cell.name}{layers}",
        f"{way.replace('right2left', 'backward')}, {spec.input_size} → {spec.hidden_size}",
    )


def _title(node: Node) -> str:
    lines = [f"{node.op} makes {', '.join(filter(None, node.outputs))}"]
    if node.origin:
        lines.append(f"from {node.native}")
    if reason := node.attributes.get("reason"):
        lines.append(str(reason))
    return "\n".join(lines)


def _cut(*lines: str) -> tuple[str, ...]:
    return tuple(line if len(line) <= 24 else f"{line[:11]}…{line[-12:]}" for line in lines if line)


def _ranks(boxes: list[_Box]) -> dict[str, int]:
    """Returns the row of each box: below the boxes of its inputs, and as near as possible to the
    boxes that read it.
    """
    ranks: dict[str, int] = {}
    readers: dict[str, list[str]] = {}
    for box in boxes:  # a box comes after the boxes that it reads
        ranks[box.key] = 1 + max((ranks[key] for key in box.inputs if key in ranks), default=-1)
        for key in box.inputs:
            readers.setdefault(key, []).append(box.key)
    for box in reversed(boxes):
        if box.key in readers:
            ranks[box.key] = min(ranks[key] for key in readers[box.key]) - 1
    return ranks


def _order_rows(boxes: list[_Box], ranks: Mapping[str, int]) -> list[list[_Box]]:
    """Returns the boxes of each row, sorted by the mean position of the boxes that each reads."""
    rows: list[list[_Box]] = [[] for _ in range(max(ranks.values(), default=0) + 1)]
    for box in boxes:
        rows[ranks[box.key]].append(box)
    place: dict[str, float] = {}
    for row in rows:

        def middle(box: _Box) -> float:
            known = [place[key] for key in box.inputs if key in place]
            return sum(known) / len(known) if known else 0.0

        row.sort(key=middle)
        for k, box in enumerate(row):
            place[box.key] = k - len(row) / 2
    return [row for row in rows if row]


def _edge(start: tuple[float, float], end: tuple[float, float]) -> str:
    x, y, u, v = start[0] + _WIDE / 2, start[1] + _HIGH, end[0] + _WIDE / 2, end[1]
    bend = _DOWN / 2 + (v - y) / 8
    return (
        f'<path d="M{x:g} {y:g} C{x:g} {y + bend:g} {u:g} {v - bend:g} {u:g} {v:g}"'
        f' fill="none" stroke="{_GREY}" stroke-width="1.2"/>'
    )


def _draw(box: _Box, x: float, y: float) -> str:
    round_ = _HIGH / 2 if box.oval else 6
    border, thick = (_RED, 3) if box.mark else (_GREY, 1)
    middle = y + _HIGH / 2 + 4 - 8 * (len(box.lines) - 1)
    texts = "".join(
        f'<text x="{x + _WIDE / 2:g}" y="{middle + 16 * k:g}" text-anchor="middle"'
        f' font-size="{12 if k == 0 else 10.5}" fill="{_SMALL_TEXT if k else _TEXT}">'
        f"{escape(line)}</text>"
        for k, line in enumerate(box.lines)
    )
    # A text in this style stays readable if a line crosses it.
    halo = f'stroke="{_PAPER}" stroke-width="3" paint-order="stroke"'
    if box.below:
        (below,) = _cut(box.below)
        texts += (
            f'<text x="{x + _WIDE / 2 + 6:g}" y="{y + _HIGH + 12:g}" font-size="9.5"'
            f' fill="{_SMALL_TEXT}" {halo}>{escape(below)}</text>'
        )
    if box.mark:
        texts += (
            f'<text x="{x + _WIDE / 2 + 8:g}" y="{y - 5:g}" font-size="11" font-weight="bold"'
            f' fill="{_RED}" {halo}>{escape(box.mark)}</text>'
        )
    return (
        f'<g><title>{escape(box.title)}</title><rect x="{x:g}" y="{y:g}" width="{_WIDE}"'
        f' height="{_HIGH}" rx="{round_:g}" fill="{box.fill}" stroke="{border}"'
        f' stroke-width="{thick}"/>{texts}</g>'
    )


# --- pages


def fill_page(name: str, content: Mapping[str, Any]) -> str:
    """Returns a template filled with ``content``; all texts except SVGs marked as safe are
    escaped.
    """
    import jinja2  # takes 20 ms, and few commands need it

    templates = resources.files("onernn.verification").joinpath("templates")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda each: templates.joinpath(each).read_text("utf-8")),
        autoescape=True,
        finalize=_make_printable,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "digest": _digest}
    environment.globals |= {"dark": DARK, "fused": COLOURS[0]}
    return environment.get_template(name).render(**content)


def write_text(page: str, path: str | Path) -> None:
    """Writes a page to a file; after an error, an older file remains."""
    with replacing(path) as stream:
        stream.write(page.encode())


def _make_printable(value: Any) -> Any:
    """Returns a text without control characters; an SVG is returned unchanged."""
    return printable(value, "\n") if type(value) is str else value


def number(value: float) -> str:
    """Returns a number with three digits; "–" for NaN."""
    return "–" if value != value else "0" if value == 0 else f"{value:.3g}"


def _digest(script: str) -> str:
    """Returns a script's hash, by which the page's Content-Security-Policy allows it."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


# --- a model before and after fusion, and its kernels: `onernn inspect` and its page


@dataclass(frozen=True)
class Inspection:
    """A model, its fused graph, the nodes that cannot run, and the kernels of its layers.

    ``kernels`` is empty if the library is missing or an operator cannot run. ``missing``: why the
    kernels are unknown, or "". ``interpreted``, ``slower_kernels``: see `Session`.
    """

    model: Graph
    result: FuseResult
    unsupported: tuple[Refusal, ...]
    kernels: tuple[Explained, ...]
    missing: str = ""
    interpreted: str = ""
    slower_kernels: str = ""

    @property
    def operators(self) -> dict[str, tuple[int, int]]:
        """The numbers of nodes before and after fusion, by operator."""
        before, after = (Counter(n.op for n in g.nodes) for g in (self.model, self.result.model))
        return {op: (before[op], after[op]) for op in sorted(before | after)}

    @property
    def kernel_lines(self) -> list[str]:
        """A line for the kernel of each layer, and lines that say why kernels are slow or
        unknown.
        """
        unknown = self.missing and f"unknown: {self.missing}"
        return [*map(str, self.kernels), *filter(None, (self.slower_kernels, unknown))]

    @property
    def fused(self) -> list[dict[str, str]]:
        """Each applied fusion pass: its name, the layer, the operators that it fused, and the
        framework's name for the pass.
        """
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
        """Returns the keys that ``--json`` has in addition to the keys of all commands."""
        return {
            "model": self.model.name,
            "interface": {
                kind: [{key: getattr(value, key) for key in _DECLARED} for value in values]
                for kind, values in (("inputs", self.model.inputs), ("outputs", self.model.outputs))
            },
            "operators": self.operators,
            "fused": self.fused,
            "refusals": self.result.refusals,
            "unsupported": self.unsupported,
            "kernels": self.kernels,
            "kernels_unknown": self.missing or None,
            "kernels_slower": self.slower_kernels or None,
            "interpreted": self.interpreted or None,
            "notes": self.model.notes,
        }


def inspect_model(
    model: Graph, *, dtype: str = "f32", threads: int | None = None, backend: str = "auto"
) -> Inspection:
    """Fuses a model, prepares it as `Session` does, and runs nothing.

    Raises `UnsupportedError` for an unknown ``dtype`` or ``backend``.
    """
    result = fuse(model, passes_for(dtype))
    refusals = find_unsupported(result.model)
    if refusals:
        return Inspection(model, result, refusals, ())
    try:
        session = Session(model, dtype=dtype, threads=threads, backend=backend)
    except LibraryError as error:
        return Inspection(model, result, (), (), str(error))
    return Inspection(
        model,
        result,
        (),
        session.explained,
        interpreted=session.interpreted,
        slower_kernels=session.slower_kernels,
    )


_DECLARED = ("name", "dtype", "shape", "lod_depth")


# --- an HTML page of a model's graph before and after fusion


_MOST_ON_PAGE = 4000
"""Maximum number of nodes in a picture on a page: browsers can zoom pictures of this size."""
NOT_FUSED = "not fused"
"""The label of a box whose operators were not fused."""


def write_graph_page(inspection: Inspection, path: str | Path) -> None:
    """Writes the page of both graphs. Raises `OSError` if it cannot write; then an older page
    remains.
    """
    write_text(render_graph_page(inspection), path)


def render_graph_page(inspection: Inspection) -> str:
    """Returns the page of both graphs as HTML.

    The page loads no other file, and its Content-Security-Policy allows only its own script, by the
    script's hash.
    """
    refusals = inspection.result.refusals
    before, after = inspection.model, inspection.result.model
    kernels = {each.node: f"runs on {each}" for each in inspection.kernels}
    old, new = colour_fused_values(before, after)
    fused = {*old, *new}
    notes = {
        "before": _notes(before, refusals, {}, fused),
        "after": _notes(after, refusals, kernels, fused),
    }
    marks = {each.where: NOT_FUSED for each in refusals if each.where not in fused}
    drawn = pictures(inspection, marks, notes, most=_MOST_ON_PAGE)
    content = {"inspection": inspection, "most": _MOST_ON_PAGE, "row": _HIGH + _DOWN, **drawn}
    return fill_page("graph.html.jinja", content)


def pictures(
    inspection: Inspection,
    marks: Mapping[str, str],
    notes: Mapping[str, Mapping[str, Sequence[str]]] = NOTHING,
    most: int = _MOST,
) -> dict[str, Any]:
    """Returns a template's content for both graphs: pictures, lists of nodes, whether nodes were
    fused, and labels.
    """
    graphs = {"before": inspection.model, "after": inspection.result.model}
    fused = dict(zip(graphs, colour_fused_values(*graphs.values()), strict=True))
    return {
        "pictures": {
            key: picture(
                graph,
                f"The graph {key} fusion",
                fused=fused[key],
                marks=marks,
                notes=notes.get(key, {}),
                most=most,
            )
            for key, graph in graphs.items()
        },
        "nodes": {key: [_title(node) for node in graph.nodes] for key, graph in graphs.items()},
        "coloured": bool(fused["after"]),
        "marks": sorted(set(marks.values())),
    }


def _notes(
    graph: Graph,
    refusals: Iterable[Refusal],
    kernels: Mapping[str, str],
    fused: Collection[str],
) -> dict[str, list[str]]:
    """Returns lines about each node by its first output: types, kernels, and reasons against
    fusion.
    """
    types = graph.types
    notes = {value.name: [_short(types[value.name])] for value in graph.inputs}
    reasons: dict[str, list[str]] = {}
    for each in refusals:
        further = f"{NOT_FUSED} further" if each.where in fused else NOT_FUSED
        reasons.setdefault(each.where, []).append(f"{further}: {each.reason}")
    for node in graph.nodes:
        typed = [name for name in node.outputs if name in types]
        lines = [_short(types[typed[0]])] if typed else [""]
        lines += [f"{name}: {types[name]}" for name in typed]
        lines += [kernels[node.label]] if node.label in kernels else []
        lines += [reason for name in node.outputs for reason in reasons.get(name, ())]
        notes[node.outputs[0]] = lines
    return notes


def _short(type: Type) -> str:
    """Returns a type in a short form; W is the number of steps of a ragged value."""
    sizes = [str(size or "?") for size in type.shape or ()]
    sizes[:1] = ["W"] if type.ragged and sizes else sizes[:1]
    shape = "(...)" if type.shape is None else f"({', '.join(sizes)})"
    return f"{type.dtype or 'any'} {shape}" + (" ragged" if type.ragged else "")
