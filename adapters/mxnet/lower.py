"""An MXNet symbol as a graph of canonical operators."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from onernn.adapters.common.lowering import FoldingBudget, GraphBuilder
from onernn.adapters.mxnet import attributes as parse
from onernn.adapters.mxnet import control, layers, rules
from onernn.adapters.mxnet.attributes import Shape, input_shapes, stack_of
from onernn.adapters.mxnet.read import (
    VARIABLE,
    Declared,
    Entry,
    Files,
    Matched,
    Symbol,
    SymbolNode,
    find,
    match,
    read_params,
    read_symbol,
)
from onernn.adapters.mxnet.table import (
    Context,
    find_rule,
    known_name,
    lower_nodes,
    needed,
    slots_of_node,
    variable_of,
)
from onernn.ir.arrays import Array
from onernn.ir.errors import ModelFormatError, ShapeError, UnsupportedError, printable
from onernn.ir.graph import Graph, Value
from onernn.reorders import mxnet

__all__ = ["control", "layers", "load_mxnet", "lower", "read_model", "rules", "traced"]
"""With the modules whose rules fill the table."""

PARAMETERS = frozenset("weight bias gamma beta moving_mean moving_var parameters".split())
"""Input slots in which a variable without numbers is a parameter that is missing."""

INDICES = frozenset("sequence_length indices index".split())
"""Input slots that take numbers of any kind, and cut them to integers."""

_log = logging.getLogger("onernn")

KEEPS_RANK = frozenset("SwapAxis Dropout _copy BlockGrad transpose".split())
"""Operators behind which an input of an RNN has as many axes as before."""


def load_mxnet(
    path: str | Path, params: str | Path | None = None, semantics: str = "documented"
) -> Graph:
    """The graph of a saved symbol; operators that cannot be lowered are in it, with the reason.

    Where the two meanings differ for this model the logger "onernn" says so, as the graph's notes
    do. Raises `ModelFormatError` for files that are no model, or that do not belong together.
    """
    files, symbol, result = read_model(path, params)
    graph, differing = _graph(symbol, result.arrays, semantics, str(files.symbol), result.notes)
    for text in differing:
        _log.warning("%s: %s", files.symbol, printable(text))
    return graph


def read_model(path: str | Path, params: str | Path | None = None) -> tuple[Files, Symbol, Matched]:
    """A saved symbol, and its parameters by name; see `load_mxnet`."""
    files = find(path, params)
    symbol = read_symbol(files.symbol)
    arrays = read_params(files.params) if files.params else {}
    matched = match(list(_variables(symbol)), arrays, files.params or files.symbol)
    missing = [
        n for n, slots in _uses(symbol).items() if slots & PARAMETERS and n not in matched.arrays
    ]
    if missing:
        where = "no .params file stands beside it; give one as params"
        if files.params:
            where = f"{files.params} has {', '.join(sorted(arrays)[:20]) or 'none'}"
        raise ModelFormatError(
            f"parameters without numbers: {', '.join(missing)}; {where}", files.symbol
        )
    return files, symbol, matched


def lower(
    symbol: Symbol,
    arrays: Mapping[str, Array],
    semantics: str = "documented",
    name: str = "symbol",
) -> Graph:
    """The graph of a symbol and its parameters by name; the other variables are its inputs."""
    return _graph(symbol, arrays, semantics, name, ())[0]


def _graph(
    symbol: Symbol,
    arrays: Mapping[str, Array],
    semantics: str,
    name: str,
    notes: Iterable[str],
) -> tuple[Graph, list[str]]:
    """The graph, and where the two meanings differ for it, in words."""
    context, heads = _lowered(symbol, arrays, semantics, name)
    builder = context.builder
    builder.notes = dict.fromkeys([*notes, *context.labelled(context.notes)])
    graph = builder.graph([Value(head, builder.type_of(head).dtype) for head in heads])
    return graph, context.labelled(text for text in context.notes if text in context.differing)


def traced(symbol: Symbol, arrays: Mapping[str, Array]) -> tuple[Graph, dict[Entry, str]]:
    """The graph, and the value in it that each output of the symbol's nodes is.

    Outputs of several nodes are one value where operators do nothing in inference.
    """
    context, heads = _lowered(symbol, arrays, "documented", "symbol")
    entries = {Entry(*entry[:2]) for node in symbol.nodes for entry in node.inputs}
    entries |= {Entry(*head[:2]) for head in symbol.heads}
    values = {entry: context.builder.value(variable_of(*entry[:2])) for entry in sorted(entries)}
    return context.builder.graph([Value(head) for head in heads]), values


def _lowered(
    symbol: Symbol,
    arrays: Mapping[str, Array],
    semantics: str,
    name: str,
    ranked: Mapping[str, Shape] | None = None,
) -> tuple[Context, list[str]]:
    """The graph under construction, and the values of the heads.

    ``ranked``: shapes of inputs, as operators wanted them when it was lowered before.
    """
    shapes = _shapes(symbol, arrays) | dict(ranked or {})
    builder = GraphBuilder(name, FoldingBudget(arrays.values()))
    context = Context(builder, semantics, symbol)
    for key, array in arrays.items():
        if array.dtype == np.float16:
            context.notes["float16 parameters are computed in float32"] = []
            array = array.astype(np.float32)
        builder.constant(array, key)
    known = set(arrays)
    uses, used = _uses(symbol), needed(symbol)
    for at, node in enumerate(symbol.nodes):
        if node.op != VARIABLE or node.name in known:
            continue
        if at not in used:
            context.notes[f"{node.name} is a label for training: it is no input here"] = []
            continue
        shape = _declared_shape(symbol, node) or shapes.get(node.name)
        dtype = _input_dtype(node, uses.get(node.name, set()), arrays)
        builder.input(Value(node.name, dtype, shape))
        known.add(node.name)
    heads = lower_nodes(context)
    if context.unranked and ranked is None:  # a later operator may have given what was lacked
        again = {each.name: each.shape for each in builder.inputs if each.shape}
        return _lowered(symbol, arrays, semantics, name, again)
    return context, heads


def _variables(symbol: Symbol) -> Iterator[Declared]:
    """Those of the symbol, and the auxiliary states that old files leave out."""
    fused = {node.inputs[1].node: node for node in symbol.nodes if _is_rnn(node)}
    for at, node in enumerate(symbol.nodes):
        if node.op == VARIABLE:
            yield Declared(node.name, _declared_shape(symbol, node), _stack(fused.get(at)))
        elif (rule := find_rule(node.op)) and symbol.version < 900:
            for slot in rule.slots[len(node.inputs) :]:
                if slot in PARAMETERS:
                    yield Declared(f"{node.name}_{slot}")


def _is_rnn(node: SymbolNode) -> bool:
    return known_name(node.op) == "RNN" and len(node.inputs) > 2


def _stack(node: SymbolNode | None) -> mxnet.Stack | None:
    try:
        return None if node is None else stack_of(node.attributes)
    except UnsupportedError:
        return None  # the rule will say why


def _declared_shape(symbol: Symbol, node: SymbolNode) -> Shape | None:
    text = node.attributes.get("__shape__")
    try:
        return None if text is None else parse.declared_shape(text, np_shape=symbol.np_shape)
    except UnsupportedError as error:
        raise ModelFormatError(f"variable {node.name!r}: __shape__: {error}") from error


def _uses(symbol: Symbol) -> dict[str, set[str]]:
    """The input slots that each variable goes into, "" where the operator is not known."""
    uses: dict[str, set[str]] = {}
    for node in symbol.nodes:
        for entry, slot in zip(node.inputs, slots_of_node(node), strict=True):
            read = symbol.nodes[entry.node]
            if read.op == VARIABLE:
                any_numbers = slot == "data" and known_name(node.op) in ("Embedding", "Cast")
                uses.setdefault(read.name, set()).add("indices" if any_numbers else slot)
    for head in symbol.heads:
        if symbol.nodes[head.node].op == VARIABLE:
            uses.setdefault(symbol.nodes[head.node].name, set()).add("")
    return uses


def _input_dtype(node: SymbolNode, slots: set[str], arrays: Mapping[str, Array]) -> str | None:
    """As declared; any for indices; else that of the parameters, or MXNet's default."""
    if "__dtype__" in node.attributes:
        declared = parse.declared_dtype(node.attributes["__dtype__"])
        if declared is not None:
            return declared
    if slots and slots <= INDICES:
        return None
    floats = {array.dtype for array in arrays.values() if array.dtype.kind == "f"}
    return "float64" if floats == {np.dtype(np.float64)} else "float32"


def _shapes(symbol: Symbol, arrays: Mapping[str, Array]) -> dict[str, Shape]:
    """What RNN operators say of the inputs in front of them."""
    shapes: dict[str, Shape] = {}
    for node in filter(_is_rnn, symbol.nodes):
        stack = _stack(node)
        flat = arrays.get(symbol.nodes[node.inputs[1].node].name)
        if stack is None:
            continue
        known = input_shapes(stack, None, None, _width(stack, flat)).values()
        for entry, shape in zip(node.inputs, known, strict=False):
            _propose(symbol, entry, shape, shapes)
    return shapes


def _width(stack: mxnet.Stack, flat: Array | None) -> int | None:
    try:
        return None if flat is None else stack.input_size(flat.size)
    except ShapeError:
        return None  # the rule will say why


def _propose(symbol: Symbol, entry: Entry, shape: Shape, shapes: dict[str, Shape]) -> None:
    """Gives a shape to the variable behind operators that keep the number of axes."""
    node = symbol.nodes[entry.node]
    while known_name(node.op) in KEEPS_RANK and node.inputs:
        if known_name(node.op) != "Dropout":
            shape = (None,) * len(shape)
        node = symbol.nodes[node.inputs[0].node]
    if node.op == VARIABLE:
        shapes.setdefault(node.name, shape)
