"""Turns an MXNet symbol into a graph of onernn's canonical operators."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from onernn.adapters.common.caller_rules import CallerRule, read_callers
from onernn.adapters.common.lowering import FoldingBudget, GraphBuilder
from onernn.adapters.common.signatures import Signature
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
    MxnetTensor,
    Place,
    find_needed,
    find_rule,
    find_sizes,
    lower_nodes,
    resolve_name,
    slots_of_node,
)
from onernn.ir.arrays import Array
from onernn.ir.errors import ModelFormatError, ShapeError, UnsupportedError, printable
from onernn.ir.graph import Graph, Value
from onernn.reorders import mxnet

__all__ = ["control", "layers", "load_mxnet", "lower", "read_model", "rules", "trace"]
"""The public API, and the modules that add their rules to the table when they are imported."""

PARAMETERS = frozenset("weight bias gamma beta moving_mean moving_var parameters".split())
"""Names of operator inputs that are parameters. A variable without an array at such an input is a
missing parameter.
"""

INDICES = frozenset("sequence_length indices index".split())
"""Inputs of operators that accept numbers of any dtype, and truncate them to integers."""

_log = logging.getLogger("onernn")

KEEPS_RANK = frozenset("SwapAxis Dropout _copy BlockGrad transpose".split())
"""Operators whose output has as many axes as their input."""


read_caller_rules = partial(read_callers, signature=Signature, tensor=MxnetTensor)
"""Returns the caller's own rules for operators, in the form that `lower` takes."""


def load_mxnet(
    path: str | Path,
    params: str | Path | None = None,
    semantics: str = "documented",
    *,
    rules: Mapping[str, Any] | None = None,
) -> Graph:
    """Returns the graph of a saved symbol.

    An operator that onernn cannot run becomes a node that contains the reason. If MXNet computes an
    operator of this model differently from its documentation, the logger "onernn" and the graph's
    notes say so. Raises `ModelFormatError` for files that are not a model, or that do not belong
    together.
    """
    files, symbol, result = read_model(path, params)
    callers = read_caller_rules(rules)
    context, heads = _lower(symbol, result.arrays, semantics, str(files.symbol), callers)
    for text in context.label(text for text in context.notes if text in context.differing):
        _log.warning("%s: %s", files.symbol, printable(text))
    return _finish(context, heads, result.notes)


def read_model(path: str | Path, params: str | Path | None = None) -> tuple[Files, Symbol, Matched]:
    """Returns the files of a model, its symbol, and its parameters by name; see `load_mxnet`."""
    files = find(path, params)
    symbol = read_symbol(files.symbol)
    arrays = read_params(files.params) if files.params else {}
    matched = match([*_variables(symbol)], arrays, files.params or files.symbol)
    missing = [
        n for n, slots in _uses(symbol).items() if slots & PARAMETERS and n not in matched.arrays
    ]
    if missing:
        where = "there is no .params file next to it, pass one as params"
        if files.params:
            where = f"{files.params} has {', '.join(sorted(arrays)[:20]) or 'none'}"
        raise ModelFormatError(
            f"parameters without values: {', '.join(missing)}; {where}", files.symbol
        )
    return files, symbol, matched


def lower(
    symbol: Symbol,
    arrays: Mapping[str, Array],
    semantics: str = "documented",
    name: str = "symbol",
    callers: Mapping[str, CallerRule] = MappingProxyType({}),
) -> Graph:
    """Returns the graph of a symbol. Variables that are not in ``arrays`` are its inputs."""
    return _finish(*_lower(symbol, arrays, semantics, name, callers))


def _finish(context: Context, heads: Sequence[str], notes: Iterable[str] = ()) -> Graph:
    builder = context.builder
    builder.notes = dict.fromkeys([*notes, *context.label(context.notes)])
    return builder.graph([Value(head, builder.type_of(head).dtype) for head in heads])


def trace(symbol: Symbol, arrays: Mapping[str, Array]) -> tuple[Graph, dict[Entry, str]]:
    """Returns the graph of a symbol, and the graph's value for each output of the symbol's nodes.

    Outputs of several nodes share one value if the operators between these nodes do nothing in
    inference.
    """
    context, heads = _lower(symbol, arrays, "documented", "symbol")
    entries = {entry for node in symbol.nodes for entry in node.inputs} | {*symbol.heads}
    pairs = sorted({Entry(*entry[:2]) for entry in entries})
    values = {entry: context.builder.value(entry.name) for entry in pairs}
    return context.builder.graph([*map(Value, heads)]), values


def _lower(
    symbol: Symbol,
    arrays: Mapping[str, Array],
    semantics: str,
    name: str,
    callers: Mapping[str, CallerRule] = MappingProxyType({}),
    ranked: Mapping[str, Shape] | None = None,
    sized: Mapping[Place, Place] | None = None,
) -> tuple[Context, list[str]]:
    """Returns the graph under construction, and the names of its outputs.

    ``ranked``: shapes of inputs that an earlier lowering of the symbol found. ``sized``: for each
    axis of zeros whose size MXNet infers, the axis of another variable with this size.
    """
    shapes = _shapes(symbol, arrays) | dict(ranked or {})
    builder = GraphBuilder(name, FoldingBudget(arrays.values()))
    builder.rules = callers
    context = Context(builder, semantics, symbol, sized=sized or {})
    for key, array in arrays.items():
        if array.dtype == np.float16:
            context.notes["float16 parameters are computed in float32"] = []
            array = array.astype(np.float32)
        builder.constant(array, key)
    known = set(arrays)
    uses, used = _uses(symbol), find_needed(symbol)
    for at, node in enumerate(symbol.nodes):
        if node.op != VARIABLE or node.name in known:
            continue
        if at not in used:
            context.notes[f"{node.name} is a label for training, not an input"] = []
            continue
        shape = _find_shape(symbol, node) or shapes.get(node.name)
        dtype = _input_dtype(node, uses.get(node.name, set()), arrays)
        builder.input(Value(node.name, dtype, shape))
        known.add(node.name)
    heads = lower_nodes(context)
    if context.unranked and ranked is None:  # a later operator may have found a missing rank
        again = {each.name: each.shape for each in builder.inputs if each.shape}
        return _lower(symbol, arrays, semantics, name, callers, again, sized)
    if sizes := find_sizes(context):  # sizes that MXNet infers for zeros
        return _lower(symbol, arrays, semantics, name, callers, ranked, {**context.sized, **sizes})
    return context, heads


def _variables(symbol: Symbol) -> Iterator[Declared]:
    """Yields the variables, and the auxiliary states that old files leave out."""
    fused: dict[int, mxnet.Stack] = {}
    for node in filter(_is_rnn, symbol.nodes):
        with suppress(UnsupportedError):  # the operator's rule raises it
            fused[node.inputs[1].node] = stack_of(node.attributes)
    for at, node in enumerate(symbol.nodes):
        if node.op == VARIABLE:
            yield Declared(node.name, _find_shape(symbol, node), fused.get(at))
        elif (rule := find_rule(node.op)) and symbol.is_old:
            for slot in rule.lower.slots[len(node.inputs) :]:
                if slot in PARAMETERS:
                    yield Declared(f"{node.name}_{slot}")


def _is_rnn(node: SymbolNode) -> bool:
    return resolve_name(node.op) == "RNN" and len(node.inputs) > 2


def _find_shape(symbol: Symbol, node: SymbolNode) -> Shape | None:
    text = node.attributes.get("__shape__")
    try:
        return None if text is None else parse.read_shape(text, np_shape=symbol.np_shape)
    except UnsupportedError as error:
        raise ModelFormatError(f"variable {node.name!r}: __shape__: {error}") from error


def _uses(symbol: Symbol) -> dict[str, set[str]]:
    """Returns the names of the operator inputs that read each variable, "" if the operator is not
    known.
    """
    uses = defaultdict[str, set[str]](set)
    pairs = [(head, "") for head in symbol.heads]
    for node in symbol.nodes:
        any_numbers = resolve_name(node.op) in ("Embedding", "Cast")
        for entry, slot in zip(node.inputs, slots_of_node(node), strict=True):
            pairs.append((entry, "indices" if any_numbers and slot == "data" else slot))
    for entry, slot in pairs:
        if symbol.nodes[entry.node].op == VARIABLE:
            uses[symbol.nodes[entry.node].name].add(slot)
    return uses


def _input_dtype(node: SymbolNode, slots: set[str], arrays: Mapping[str, Array]) -> str | None:
    """Returns a variable's declared dtype; without one, None for indices, else the parameters'
    dtype.
    """
    declared = parse.read_dtype(node.attributes.get("__dtype__", "-1"))
    if declared is not None or slots and slots <= INDICES:
        return declared
    floats = {array.dtype for array in arrays.values() if array.dtype.kind == "f"}
    return "float64" if floats == {np.dtype(np.float64)} else "float32"


def _shapes(symbol: Symbol, arrays: Mapping[str, Array]) -> dict[str, Shape]:
    """Returns the shapes of variables that RNN operators read, possibly through operators that keep
    the rank.
    """
    shapes: dict[str, Shape] = {}
    for rnn in filter(_is_rnn, symbol.nodes):
        known: Collection[Shape] = ()
        with suppress(UnsupportedError, ShapeError):  # the operator's rule raises it
            stack, flat = (
                stack_of(rnn.attributes),
                arrays.get(symbol.nodes[rnn.inputs[1].node].name),
            )
            width = None if flat is None else stack.input_size(flat.size)
            known = input_shapes(stack, None, None, width).values()
        for entry, shape in zip(rnn.inputs, known, strict=False):
            node = symbol.nodes[entry.node]
            while resolve_name(node.op) in KEEPS_RANK and node.inputs:
                if resolve_name(node.op) != "Dropout":
                    shape = (None,) * len(shape)
                node = symbol.nodes[node.inputs[0].node]
            if node.op == VARIABLE:
                shapes.setdefault(node.name, shape)
    return shapes
