"""Replaces RNN operators of a live symbol, and cells that it builds from simple operators, by
onernn's operators.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Collection, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from onernn.adapters.common.live import Explained, Slower, warn_of_left
from onernn.adapters.mxnet import attributes as parse
from onernn.adapters.mxnet.custom_operator import (
    CELLS,
    HOST,
    INPUTS,
    OPERATOR,
    RNN,
    UNFOUND,
    custom_attributes,
    live_mxnet,
    load_symbol,
    original_attributes,
    register,
    restore_symbol,
    slower_cells,
    slower_operator,
    view,
)
from onernn.adapters.mxnet.live_layer import LINEAR, LiveRnn, Options, check_rnn
from onernn.adapters.mxnet.originals import ORIGINAL, Rewriting, keep, name_inputs
from onernn.adapters.mxnet.read import VARIABLE, Entry, Symbol, SymbolNode, parse_symbol
from onernn.ir.errors import Refusal
from onernn.ir.spec import Cell

if TYPE_CHECKING:
    from onernn.adapters.mxnet.regions import Region, Shapes

_log = logging.getLogger("onernn")
_WARNED: deque[tuple[str, str]] = deque(maxlen=256)
"""The last warnings, so that symbols for batches of a different length (buckets) do not repeat
them.
"""


_RECURRENT = "_h2h_weight"

Cells = Mapping[str, Collection[str]]
"""The weights of gluon's cells by the names of the cells. Layers of gluon have an entry without
weights.
"""


def explain(symbol: Any, cells: Cells = MappingProxyType({}), **options: Any) -> Explained:
    """Returns what `optimize` has replaced in an MXNet symbol, and which layers stay in MXNet.

    ``cells``: the cells that the symbol was traced from. ``options``: the same as for `optimize`.
    """
    plan = _plan(symbol, {}, Options(**options), cells)
    nodes = filter(_is_replaced, plan.symbol.nodes)
    replaced = tuple(original_attributes(node.attributes)[1] for node in nodes)
    return Explained(replaced, tuple(plan.refusals))


def optimize_symbol(
    symbol: Any,
    params: Mapping[str, Any],
    options: Options,
    cells: Cells = MappingProxyType({}),
    *,
    predicts: bool = False,
) -> Any:
    """Returns the symbol with onernn's operators, or the symbol itself if there is nothing to
    replace.

    ``params``: arrays by name. ``cells``: the cells that the symbol was traced from. ``predicts``:
    whether the symbol is never trained. Raises `UnsupportedError` that names an RNN operator if
    onernn cannot run it.
    """
    register()
    symbol = restore_symbol(symbol)
    if predicts:
        symbol = _drop_training(symbol)
    plan = _plan(symbol, params, options, cells)
    for at, linear in plan.operators.items():
        _replace_rnn(plan.rewriting, at, linear, params, options)
    for region in plan.regions:
        _replace_region(plan.rewriting, plan.symbol, region, options)
    # Compare reasons without the number of steps and the names of operators, which differ between
    # buckets.
    reasons = {(each.where, re.sub(r"^\d+|'.*?'", "", each.reason)): each for each in plan.refusals}
    new = [key for key in reasons if key not in _WARNED]
    _WARNED.extend(new)
    warn_of_left(HOST, map(reasons.__getitem__, new))
    names = [plan.symbol.nodes[at].name for at in plan.operators]
    names += [region.name for region in plan.regions]
    if not names:
        return symbol
    _log.info("replaced in MXNet's symbol: %s", ", ".join(names))
    return load_symbol(plan.rewriting.finish(), symbol)


def _drop_training(symbol: Any) -> Any:
    """Returns the symbol without the operators that do nothing in prediction.

    Dropout is removed. In prediction its mask consists of ones. So a zoneout, which chooses between
    the new and the old state by such a mask, becomes the new state. A product with such a mask
    becomes its other factor.
    """
    rewriting = Rewriting(symbol.tojson())
    nodes, instead = rewriting.nodes, rewriting.instead
    for at, node in enumerate(nodes):
        reads = [*map(rewriting.resolve, node["inputs"])]
        ones = [nodes[read[0]]["op"] == "ones_like" for read in reads]
        always = node.get("attrs", {}).get("mode") == "always"
        if node["op"] == "BlockGrad" or node["op"] == "Dropout" and not always:
            instead[Entry(at)] = reads[0]
        elif node["op"] == "where" and ones[0]:
            instead[Entry(at)] = reads[1]
        elif node["op"] == "elemwise_mul" and any(ones):
            instead[Entry(at)] = reads[ones.index(True) - 1]
    return load_symbol(rewriting.finish(), symbol) if instead else symbol


def _is_replaced(node: SymbolNode) -> bool:
    return node.attributes.get("op_type") in (OPERATOR, CELLS)


class _Plan(NamedTuple):
    """The recurrent layers that onernn replaces in a symbol, and the layers that stay in MXNet.

    ``operators``: maps the position of each replaced RNN operator to the position of the projection
    that becomes part of it, or to None. ``regions``: the replaced cells.
    """

    symbol: Symbol
    rewriting: Rewriting
    operators: dict[int, int | None]
    regions: list[Region]
    refusals: list[Refusal]


def _plan(live: Any, params: Mapping[str, Any], options: Options, cells: Cells) -> _Plan:
    text, sizes = live.tojson(), _infer_variables(live, params)
    symbol, rewriting = parse_symbol(text), Rewriting(text)
    nodes, plan = symbol.nodes, _Plan(symbol, rewriting, {}, [], [])
    readers = [node for node in nodes if node.op == "_foreach" or _is_replaced(node)]
    for at, node in enumerate(nodes):
        if node.op not in RNN:
            continue
        layer = check_rnn(node.name, node.attributes, options)
        linear = _find_linear(symbol, node, layer, sizes)
        data = _infer_data(live, rewriting.graph, node, params)
        if why := slower_operator(options, layer, *data, folds=linear is not None):
            if node.name.rpartition("_rnn")[0] not in cells:  # gluon's layers log their own warning
                plan.refusals.append(Slower(why, node.name))
        else:
            plan.operators[at] = linear
            readers.append(node)
    kinds = {node.op for node in nodes}
    if "_foreach" in kinds or "FullyConnected" in kinds and kinds & parse.GATES:
        for region in _find_regions(text, tuple(sizes.items())):
            refusal = region if isinstance(region, Refusal) else _refuse(symbol, region, options)
            if refusal:
                plan.refusals.append(refusal)
            else:
                plan.regions.append(region)
    entries = [entry for node in readers for entry in node.inputs]
    entries += [entry for region in plan.regions for entry in region.weights]
    read = {nodes[entry.node].name for entry in entries}
    names = {refusal.where for refusal in plan.refusals}
    if not cells:  # without gluon, the names of weights identify the cells
        products = [node for node in nodes if node.op == "FullyConnected"]
        matrices = [nodes[node.inputs[1].node].name for node in products]
        cells = {
            name.removesuffix(_RECURRENT): [name] for name in matrices if name.endswith(_RECURRENT)
        }
    for name, weights in cells.items():
        if (
            weights
            and read.isdisjoint(weights)
            and names.isdisjoint([name, parse.cell_of(weights)])
        ):
            plan.refusals.append(Refusal(UNFOUND, name))
    return plan


@lru_cache(maxsize=32)
def _find_regions(text: str, sizes: tuple[tuple[str, Any], ...]) -> tuple[Any, ...]:
    """Caches `find_regions`, because MXNet's modules make the same symbol several times."""
    from onernn.adapters.mxnet.regions import find_regions

    return tuple(find_regions(parse_symbol(text), dict(sizes)))


def _refuse(symbol: Symbol, region: Region, options: Options) -> Refusal | None:
    why = slower_cells(options, Cell(region.formula.cell), region.formula.hidden, len(region.h))
    if why and not region.is_loop:  # onernn is faster than MXNet's loops
        return Slower(why, region.cell)
    # Refuses a cell if the input of a later step depends on a variable that comes after the input
    # of the first step.
    made = {entry.node for entry in region.x}
    for at in reversed(range(min(made) + 1, max(made) + 1)):
        if at in made:
            made |= symbol.native.parents[at]
            if symbol.nodes[at].op == VARIABLE:
                name = symbol.nodes[at].name
                why = f"only some of its steps read {name!r}: the order of arguments would change"
                return Refusal(why, region.cell)
    return None


def _replace_rnn(
    rewriting: Rewriting, at: int, linear: int | None, params: Mapping[str, Any], options: Options
) -> None:
    nodes, node = rewriting.nodes, rewriting.nodes[at]
    name, attributes, reads = node["name"], original_attributes(node["attrs"])[2], node["inputs"]
    vector = params.get(nodes[reads[1][0]]["name"])
    if linear is not None:
        projection = nodes[linear]
        for key in ("num_hidden", "no_bias"):
            attributes[f"{LINEAR}{key}"] = projection["attrs"].get(key, "False")
        reads = [*projection["inputs"], *reads[1:]]
    live = check_rnn(name, attributes, options)
    data, *names = live.arguments
    names = [data, *live.linear, *names[: len(names) - len(live.linear)]]
    if vector is not None and not live.linear:
        live.prepare({"parameters": view(vector, "parameters")})  # raises now, not at the first run
    attributes[INPUTS] = " ".join(names)
    heads = [Entry(at, k) for k in range(len(live.outputs))]
    attrs = custom_attributes(attributes, name, options)
    attrs[ORIGINAL] = keep(nodes, heads, name_inputs(reads))
    node |= {"op": "Custom", "inputs": reads, "attrs": attrs}


def _find_reads(symbol: Symbol, region: Region) -> list[int]:
    """Returns when MXNet reaches the input, the weights and the states of a region's first step.

    MXNet lists arguments in the order in which it reaches variables. Modules and their buckets
    store an optimizer's state by the position of an argument, so the order must not change.
    """
    reads = region.x[0], *region.weights, *region.states
    reached, waiting = dict[Entry, int](), [region.h[0]]
    while waiting:
        entry = Entry(*waiting.pop()[:2])
        if entry not in reached:
            reached[entry] = len(reached)
            waiting += () if entry in reads else symbol.nodes[entry.node].inputs[::-1]
    return [reached.get(entry, 0) for entry in reads]


def _replace_region(rewriting: Rewriting, symbol: Symbol, region: Region, options: Options) -> None:
    """Adds an operator, and redirects readers of the region's results to it."""
    formula, name, count = region.formula, region.name, len(region.h)
    steps = () if region.is_loop else region.h[:: -1 if formula.backwards else 1]
    data = region.whole
    data = data or rewriting.add("stack", f"{name}_input", region.x, axis=0, num_args=count)
    places = _find_reads(symbol, region)
    rows = zip(places, formula.arguments, (data, *region.weights, *region.states), strict=True)
    _, inputs, reads = zip(*sorted(rows), strict=True)
    leaves = name_inputs(reads)
    if not region.whole:
        leaves |= {entry: [leaves[data][0], t, 1] for t, entry in enumerate(region.x)}
    axis = formula.y_axis
    merged, *_ = *region.merged, *steps
    if not region.merged:
        merged = rewriting.add("stack", f"{name}_outputs", steps, axis=axis, num_args=count)
    ends = [region.h[-1], *filter(None, [region.c])]
    attributes = {"formula": formula.text, INPUTS: " ".join(inputs)}
    attrs = custom_attributes(attributes, name, options, CELLS)
    attrs[ORIGINAL] = keep(rewriting.nodes, [merged, *ends, *steps], leaves)
    operator = rewriting.add("Custom", f"{name}_onernn", reads, **attrs)
    if steps:
        cut = {"num_outputs": count, "axis": axis, "squeeze_axis": True}
        whole = rewriting.add("SliceChannel", f"{name}_steps", [operator], **cut)
        rewriting.instead |= {entry: (whole.node, t) for t, entry in enumerate(steps)}
    rewriting.instead |= dict.fromkeys(region.merged, operator)
    rewriting.instead |= {entry: (operator.node, 1 + k) for k, entry in enumerate(ends)}


def _find_linear(symbol: Symbol, node: SymbolNode, live: LiveRnn, sizes: Shapes) -> int | None:
    """Returns the position of the FullyConnected that becomes part of an RNN operator, None without
    one.

    It becomes a part if one product with the merged weights costs less than the two products with
    the separate weights.
    """
    at = node.inputs[0].node
    linear = symbol.nodes[at]
    entries = [*symbol.heads, *(entry for each in symbol.nodes for entry in each.inputs)]
    if linear.op != "FullyConnected" or [entry.node for entry in entries].count(at) > 1:
        return None
    weight = sizes.get(symbol.nodes[linear.inputs[1].node].name, ())
    if parse.flag(linear.attributes.get("flatten", "True")) or len(weight) != 2 or min(weight) < 1:
        return None
    outer, inner = weight
    columns = live.stack.directions * live.stack.gates * live.stack.hidden
    return at if inner * columns < inner * outer + outer * columns else None


def _infer_variables(symbol: Any, params: Mapping[str, Any]) -> Shapes:
    shapes = {name: tuple(params[name].shape) for name in symbol.list_inputs() if name in params}
    result = _infer(symbol.infer_shape_partial, shapes)
    return {**dict(zip(symbol.list_arguments(), result[0] or (), strict=False)), **shapes}


def _infer_data(
    symbol: Any, graph: Any, node: SymbolNode, params: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Returns the shape and the type of an RNN operator's data, None if unknown.

    Identifies the operator by its input, because a layer that is called twice has two operators of
    the same name.
    """
    x = load_symbol({**graph, "heads": [node.inputs[0]]}, symbol)
    arrays = {name: params[name] for name in x.list_inputs() if name in params}
    _, shape, _ = _infer(x.infer_shape_partial, {k: tuple(a.shape) for k, a in arrays.items()})
    _, dtype, _ = _infer(x.infer_type_partial, {k: a.dtype for k, a in arrays.items()})
    return (shape or [None])[0], (dtype or [None])[0]


def _infer(infer: Any, arguments: Mapping[str, Any]) -> Any:
    """Returns what MXNet infers for arguments, outputs and auxiliary states; None if it finds a
    contradiction.
    """
    try:
        return infer(**arguments)
    except live_mxnet().MXNetError:  # bind will raise it again
        return None, None, None
