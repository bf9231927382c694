"""Models that onernn runs as one plan in place of ONNX Runtime, and the rule that chooses them."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from onernn.adapters.common.files import open_budgeted, read_all
from onernn.adapters.common.lowering import Names
from onernn.adapters.onnx.lower import lower
from onernn.adapters.onnx.read import MESSAGES, graphs, model_of, names_in
from onernn.engine.session import Session, plan_ahead, run_at_once
from onernn.fuse_passes import fuse, passes_for
from onernn.fuse_passes.bodies import bodies
from onernn.ir.budget import loading
from onernn.ir.errors import ModelFormatError, UnsupportedError
from onernn.ir.graph import Graph, Node
from onernn.ir.rnn import Recurrent
from onernn.ir.types import Size, Type

_OPEN = 64
"""The value that is assumed for a size that the model does not declare."""
_CONVOLUTIONS = ("Conv", "ConvTranspose")
_LOOPS = ("Loop", "Scan")
_ROUNDING = ("QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeLSTM")


class Choice(NamedTuple):
    """The decision whether onernn runs a whole model, and the reason."""

    is_whole: bool
    why: str


def choose(graph: Graph) -> Choice:
    """Returns whether onernn should run a fused graph as one plan.

    It should if the plan is about as fast and exact as ONNX Runtime with onernn's layers. ONNX
    Runtime is at least as fast in convolutions over images, and in loops that are not recurrent
    layers. Models that round to 8 bits or to float16 also stay in ONNX Runtime, because rounding
    can turn errors of float32 into differences that are larger than `verify` allows.
    """
    work, nodes = Counter[str](), 0
    for node, types in _typed(graph):
        nodes += 1
        dtypes = {types[name].dtype for name in node.outputs if name in types}
        if node.op in _LOOPS:
            return Choice(False, f"{node.label}: a loop that is not a recurrent layer")
        if node.op in _ROUNDING:
            return Choice(
                False,
                f"{node.label}: it rounds to 8 bits, which makes small differences of sums large",
            )
        if "float16" in dtypes:
            return Choice(False, f"{node.label}: its values are float16")
        work.update(_multiplications(node, types))
    if not work["layers"]:
        return Choice(False, "no recurrent layer")
    share = work["images"] / work["layers"]
    images = f"convolutions over images multiply {share:.2g} times as often as recurrent layers"
    if share > 1:
        return Choice(False, images)
    return Choice(True, f"{nodes} operators in one call" + (f"; {images}" if share else ""))


def _typed(graph: Graph) -> Iterator[tuple[Node, dict[str, Type]]]:
    for node in graph.nodes:
        yield node, graph.types
        for body in bodies(node).values():
            yield from _typed(body)


def _multiplications(node: Node, types: dict[str, Type]) -> dict[str, int]:
    if node.op == "Rnn":
        weights = sum(a.size for each in Recurrent.of(node).layers for a in each.arrays.values())
        return {"layers": prod(_sizes(types, node.inputs[0], 3)[:-1]) * weights}
    if node.op not in _CONVOLUTIONS:
        return {}
    at = node.inputs[0] if node.op == "ConvTranspose" else node.outputs[0]
    window = _sizes(types, node.inputs[1], 3)
    if sum(size > 1 for size in window[2:]) < 2:
        return {}
    return {"images": prod(_sizes(types, at, len(window))) * prod(window[1:])}


def _sizes(types: dict[str, Type], name: str, rank: int) -> list[int]:
    shape = types[name].shape if name in types else None
    numbers = defaultdict[str, int](lambda: _OPEN)
    sizes: tuple[Size | None, ...] = (None,) * rank if shape is None else shape
    return [_OPEN if size is None else max(size.at(numbers), 1) for size in sizes]


class Source(NamedTuple):
    """A model that was read.

    ``content``: the bytes of its file. ``names``: the names of its initializers. ``files``: the
    files with its external initializers. ``stub``: the model without its operators. ``shapes``: the
    shapes of its inputs, in ONNX Runtime's form. ``check``: a function that raises
    `ModelFormatError` if the file has changed.
    """

    content: bytes
    graph: Graph
    names: list[str]
    files: list[str]
    stub: bytes
    shapes: list[list[Any]]
    check: Callable[[], None]


def read_source(source: str | bytes | os.PathLike[str]) -> Source:
    """Returns the model in a file or in the bytes of a file.

    Raises an `OnernnError` if onernn cannot read it.
    """
    if isinstance(source, bytes):
        file, check = Path("model").absolute(), lambda: None
        data, budget = source, loading(2 * len(source))
    else:
        file = Path(source).absolute()
        check = _watch(file)
        with open_budgeted(file) as (raw, budget):
            data = read_all(raw, budget)
    proto = MESSAGES.parse("ModelProto", data, file, budget=budget)
    model = model_of(proto, file, budget)
    tensors = [each for part in graphs(proto.graph) for each in part.initializer]
    entries = (entry for each in tensors for entry in each.external_data)
    files = dict.fromkeys(entry.value for entry in entries if entry.key == "location")
    names = dict.fromkeys(each.name for each in tensors)
    _strip(proto)
    shapes = [
        [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in shape.dim]
        for shape in (each.type.tensor_type.shape for each in proto.graph.input)
    ]
    stub = proto.SerializeToString()
    del proto, tensors  # the graph has its own arrays
    graph = lower(model, semantics="onnxruntime")
    return Source(data, graph, list(names), list(files), stub, shapes, check)


def _watch(file: Path) -> Callable[[], None]:
    """Returns a function that raises `ModelFormatError` if the file has changed since this call."""

    def stamp() -> tuple[int, int] | None:
        try:
            status = file.stat()
        except OSError:
            return None
        return status.st_size, status.st_mtime_ns

    def check() -> None:
        if stamp() != before:
            changed = "it changed since the session was made, and ONNX Runtime has to load it now"
            raise ModelFormatError(f"{changed}: make the session again", file)

    before = stamp()
    return check


def _strip(proto: Any) -> None:
    """Removes all operators and constants from a ModelProto; a new constant becomes its only
    output.
    """
    graph, fresh = proto.graph, Names(dict.fromkeys(names_in(proto), 0)).fresh
    constants = {each.name for each in graph.initializer}
    inputs = [each for each in graph.input if each.name not in constants]
    kept = [type(each).FromString(each.SerializeToString()) for each in inputs]
    for name in ("node", "input", "output", "initializer", "value_info", "sparse_initializer"):
        graph.ClearField(name)
    proto.ClearField("functions")
    graph.input.extend(kept)
    graph.initializer.add(name=fresh("none"), data_type=2, dims=[1], raw_data=b"\0")
    graph.output.add(name=graph.initializer[0].name)


class Whole:
    """A model that onernn runs as one plan.

    ``why``: the reason for the plan. ``options``: SessionOptions of ONNX Runtime. ``outputs``: the
    names of the outputs. ``lines``: a line of text for each recurrent layer. ``check``: see
    `Source`.
    """

    def __init__(self, source: Source, session: Session, options: Any, why: str) -> None:
        self.why, self.options, self.check = why, options, source.check
        self.outputs = [value.name for value in session.graph.outputs]
        self.lines = tuple(map(str, session.explained))
        self._session = session

    def run(self, names: Any, feed: Any) -> list[Any] | None:
        """Returns the outputs ``names``, or all outputs if ``names`` is empty.

        Returns None if ONNX Runtime must run the call, to raise its error or to accept inputs that
        the plan does not.
        """
        if not names:
            names = self.outputs
        elif not isinstance(names, list | tuple):
            return None
        elif any(name not in self.outputs or names.count(name) > 1 for name in names):
            return None
        outputs = run_at_once(self._session, feed)
        return None if outputs is None else [outputs[name] for name in names]


def open_whole(source: Source, copy_options: Callable[[], Any], dtype: str, *, rule: bool) -> Whole:
    """Returns a model as one plan, with the number of threads that the SessionOptions set.

    ``copy_options``: a function that returns the SessionOptions. ``rule``: whether `choose` may
    refuse the plan. Raises `UnsupportedError` if ONNX Runtime should run the model.
    """
    graph = fuse(source.graph, passes_for(dtype)).model
    choice = choose(graph) if rule else Choice(True, "whole=True")
    if not choice.is_whole:
        raise UnsupportedError(choice.why)
    options = copy_options()
    threads = options.intra_op_num_threads or None
    session = Session(graph, dtype, threads, "kernels")
    if obstacles := plan_ahead(session):
        raise UnsupportedError("expected a model that runs as one plan, obstacles are:", obstacles)
    return Whole(source, session, options, choice.why)
