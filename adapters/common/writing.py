"""Prepares graphs for writing to a framework's file, for which the types of all values must be
known.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

from onernn.engine.session import find_unsupported
from onernn.ir.arrays import Array
from onernn.ir.errors import OnernnError, Refusal, UnsupportedError, printable
from onernn.ir.feeds import check_feed
from onernn.ir.graph import Graph, Node, Value
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.types import Type

_RANKS = range(1, 5)  # the ranks that are tried for an input without a declared rank
_MOST = 4**4  # the number of combinations of ranks for four such inputs


Progress = Callable[[str, int, int], None]
"""A function called with the stage, the number of items done, and the total number of items."""


class Rule:
    """A function that writes a kind of node; its signature names the inputs and attributes.

    Positional parameters are the node's inputs, None for absent inputs. Keywords are the node's
    attributes, and ``w`` is the writer.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        parameters = signature(function).parameters.values()
        self.function = function
        self.keywords = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]

    def __call__(self, w: Any) -> Any:
        """Returns the function's result for the node ``w.node`` with the values ``w.inputs``."""
        attributes = {
            name: w if name == "w" else getattr(w.node.attrs, name, None) for name in self.keywords
        }
        return self.function(*w.inputs, **attributes)


def write_nodes(
    graph: Graph,
    write: Callable[[Node], None],
    stand_in: Callable[[str], None],
    progress: Progress | None,
) -> None:
    """Writes all nodes in order. Raises `UnsupportedError` that names each node that cannot be
    written, with the reason.

    ``stand_in(name)`` assigns a new name to an output of a refused node, so that the nodes that
    read it are also tried. Nodes with values of unknown types are not tried.
    """
    refusals = [*find_unsupported(graph)]
    lost = {name for node in _unknown(graph) * bool(refusals) for name in node.outputs}
    for at, node in enumerate(graph.nodes):
        if progress is not None:
            progress("writing", at, len(graph.nodes))
        outputs = [*filter(None, node.outputs)]
        if not lost.isdisjoint((*node.inputs, *outputs)):
            lost.update(outputs)
            continue
        try:
            write(node)
        except UnsupportedError as error:
            refusals.append(Refusal(str(error), node.label))
            for name in outputs:
                stand_in(name)
    if refusals:
        raise UnsupportedError(f"{graph.name} cannot be written:", refusals)


def declare(graph: Graph, inputs: Mapping[str, Any] | None = None) -> Graph:
    """Returns the graph with the dtype and rank of each input, from which every value's type
    follows.

    An undeclared dtype or rank is taken from ``inputs``, a batch. Without a batch the dtype is
    float32, and the rank is the only one for which all types can be inferred. If several ranks fit,
    this function chooses the ranks with which the model merges the fewest axes: for example (N, T,
    A*B), and not (N, T, A, B) if the model would then merge A and B. Raises `UnsupportedError` if
    no ranks fit, if several fit equally well, or for unknown operators if an input may have several
    ranks.
    """
    feed = {} if inputs is None else check_feed(graph.inputs, inputs)
    choices = [_choices(value, feed.get(value.name)) for value in graph.inputs]
    if refusals := find_unsupported(graph):
        if math.prod(map(len, choices)) == 1:  # `write_nodes` lists all refused nodes
            return replace(graph, inputs=tuple(value for (value,) in choices))
        raise UnsupportedError(f"{graph.name} cannot be written:", refusals)
    if math.prod(map(len, choices)) > _MOST:
        raise _refuse_untyped("too many inputs lack a declared rank", graph)
    graphs = [replace(graph, inputs=chosen) for chosen in itertools.product(*choices)]
    fitting = [each for each in graphs if not _unknown(each)]
    if not fitting:
        best = min(graphs, key=lambda each: len(_unknown(each)))
        (node, *_) = _unknown(best)
        given = ", ".join(str(best.types[name]) for name in node.inputs if name)
        result = f"the type of the result of {node.label} for {given}"
        raise _refuse_untyped(f"{result} is not known before a run", graph)
    merged = [_count_merged(each) for each in fitting]
    if merged.count(min(merged)) > 1:
        raise _refuse_untyped("several ranks of the inputs fit", graph)
    return fitting[merged.index(min(merged))]


def _refuse_untyped(reason: str, graph: Graph) -> UnsupportedError:
    names = ", ".join(printable(value.name) for value in graph.inputs if value.shape is None)
    hint = f"; pass inputs or a recording, which have the ranks of {names}" if names else ""
    return UnsupportedError(f"types of values: {reason}{hint}")


def _unknown(graph: Graph) -> list[Node]:

    def is_known(name: str) -> bool:
        result = graph.types[name]
        return None not in (result.dtype, result.shape, result.lod)

    return [
        node for node in graph.nodes if not all(is_known(name) for name in node.outputs if name)
    ]


def _choices(value: Value, given: Ragged | Array | None) -> list[Value]:
    dtype = "float32" if given is None else data_of(given).dtype.name
    whole = replace(value, dtype=value.dtype or dtype)
    if value.shape is not None:
        return [whole]
    ranks = _RANKS if given is None else [data_of(given).ndim]
    return [replace(whole, shape=(None,) * rank) for rank in ranks]


def _count_merged(graph: Graph) -> int:
    """Returns the number of axes whose size is a product of sizes."""
    sizes = {size for known in graph.types.values() for size in known.shape or () if size}
    return sum(any(len(names) > 1 for names, _ in size.terms) for size in sizes)


# The check of a written model: the model is read again, and its types are inferred again.


def check_again(read: Callable[[], Graph], path: Path, outputs: Sequence[Type]) -> None:
    """Raises `UnsupportedError`, which says that ``path`` is not written, if the file would be
    wrong.

    The outputs of the graph that ``read`` returns must have these types, in order; ragged outputs
    may be padded.
    """
    try:
        graph = read()
        result = {value.name: graph.types[value.name] for value in graph.outputs}
        wrong = [str(refusal) for refusal in find_unsupported(graph)] or [
            f"{name!r}: expected {want}, got {given}"
            for (name, given), want in zip(result.items(), outputs, strict=False)
            if not _fits(given, want)
        ]
        if len(result) != len(outputs):
            wrong.append(f"expected {len(outputs)} outputs, got {len(result)}")
    except OnernnError as error:
        wrong = [str(error)]
    if wrong:
        raise UnsupportedError(
            f"{path} is not written, it would be wrong, please report it: {'; '.join(wrong)}"
        )


def _fits(result: Type, want: Type) -> bool:
    padded = want.depth > result.depth == 0  # the file has (N, T, ...) in place of (W, ...)
    sizes, wanted = result.counts[2 * padded :], want.counts[padded:]
    if result.dtype != want.dtype or not padded and result.depth != want.depth:
        return False
    return result.shape is None or (
        len(sizes) == len(wanted)
        and all(None in pair or pair[0] == pair[1] for pair in zip(sizes, wanted, strict=True))
    )
