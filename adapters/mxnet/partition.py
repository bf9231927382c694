"""Puts onernn's operators into a live symbol: for each RNN operator, and for cells written out."""

from __future__ import annotations

import json
import logging
import re
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
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
    loaded,
    original_attributes,
    register,
    slower_cells,
    slower_operator,
    view,
)
from onernn.adapters.mxnet.live_layer import LINEAR, Formula, LiveRnn, Options, checked
from onernn.adapters.mxnet.originals import ORIGINAL, original
from onernn.adapters.mxnet.read import VARIABLE, Entry, parse_symbol
from onernn.ir.errors import Refusal
from onernn.ir.spec import Cell

if TYPE_CHECKING:
    from onernn.adapters.mxnet.regions import Region, Shapes

_log = logging.getLogger("onernn")
_WARNED: deque[tuple[str, str]] = deque(maxlen=256)
"""What warnings said last: each bucket's symbol says the same again."""


Cells = Mapping[str, Collection[str]]
"""The names of gluon's cells, and of their weights; its layers, which have none of their own."""


def explain(symbol: Any, cells: Cells = MappingProxyType({}), **options: Any) -> Explained:
    """What `optimize` has replaced in an MXNet symbol, and which layers stay MXNet's.

    ``cells``: those that it was traced of. ``options``: those of `optimize`.
    """
    layers = _layers(symbol, {}, Options(**options), cells)
    nodes = [node for node in layers.graph["nodes"] if _operator(node) in (OPERATOR, CELLS)]
    replaced = tuple(original_attributes(node["attrs"])[1] for node in nodes)
    return Explained(replaced, tuple(layers.refusals))


def optimized_symbol(
    symbol: Any,
    params: Mapping[str, Any],
    options: Options,
    cells: Cells = MappingProxyType({}),
    *,
    predicts: bool = False,
) -> Any:
    """The symbol with onernn's operators; itself if there is nothing to replace.

    ``params``: arrays by name. ``cells``: those that it was traced of. ``predicts``: it is never
    trained. Raises `UnsupportedError`, with its name, for an RNN operator that cannot run.
    """
    register()
    if predicts:
        symbol = _predicting(symbol)
    layers = _layers(symbol, params, options, cells)
    graph, sizes = layers.graph, layers.sizes
    result = [_replace_rnn(graph, node, params, options, sizes) for node in layers.operators]
    cutter = _Cutter(graph, options)
    for region in layers.regions:
        cutter.cut(region)
        result.append(region.name)
    # A bucket has another count of steps, and other names of operators.
    said = {(each.where, re.sub(r"^\d+|'.*?'", "", each.reason)): each for each in layers.refusals}
    new = [key for key in said if key not in _WARNED]
    _WARNED.extend(new)
    warn_of_left(HOST, map(said.__getitem__, new))
    if not result:
        return symbol
    _log.info("replaced in MXNet's symbol: %s", ", ".join(result))
    graph.pop("node_row_ptr", None)  # a Custom operator shows all of its outputs
    return loaded(graph, symbol)


def _predicting(symbol: Any) -> Any:
    """The symbol without what does nothing in prediction: Dropout, and masks that it makes of ones.

    These are zoneout, which chooses among a new and an old state, and dropout that is the same in
    all steps, which scales a state.
    """
    graph, instead = json.loads(symbol.tojson()), dict[tuple[int, int], Any]()
    nodes = graph["nodes"]

    def read(entry: Any) -> Any:
        return instead.get((entry[0], entry[1]), entry)

    for at, node in enumerate(nodes):
        reads = node["inputs"] = [*map(read, node["inputs"])]
        ones = [nodes[entry[0]]["op"] == "ones_like" for entry in reads]
        always = node.get("attrs", {}).get("mode") == "always"
        if node["op"] == "BlockGrad" or node["op"] == "Dropout" and not always:
            instead[at, 0] = reads[0]
        elif node["op"] == "where" and ones[0]:
            instead[at, 0] = reads[1]
        elif node["op"] == "elemwise_mul" and any(ones):
            instead[at, 0] = reads[ones.index(True) - 1]
    graph["heads"] = [*map(read, graph["heads"])]
    return loaded(graph, symbol) if instead else symbol


def _operator(node: Mapping[str, Any]) -> str:
    """The op_type of a Custom operator; else ""."""
    return str(node.get("attrs", {}).get("op_type", ""))


class _Layers(NamedTuple):
    """The recurrent layers of a symbol: nodes and regions to replace, and what stays.

    ``graph``: the symbol in JSON. ``sizes``: of its variables.
    """

    graph: Any
    sizes: Shapes
    operators: list[Any]
    regions: list[Region]
    refusals: list[Refusal]


def _layers(symbol: Any, params: Mapping[str, Any], options: Options, cells: Cells) -> _Layers:
    text, sizes = symbol.tojson(), _variables(symbol, params)
    graph = json.loads(text)
    nodes, result = graph["nodes"], _Layers(graph, sizes, [], [], [])
    for node in nodes:
        operator, attributes = _operator(node), node.get("attrs", {})
        if node["op"] not in RNN and operator not in (OPERATOR, CELLS):
            continue
        if node["op"] in RNN:
            live = checked(node["name"], attributes, options)
            folds = _linear(graph, node, live, sizes) is not None
            data = _data_of(symbol, graph, node, params)
            if why := slower_operator(options, live, *data, folds=folds):
                if (
                    node["name"].rpartition("_rnn")[0] not in cells
                ):  # gluon's layers warn themselves
                    result.refusals.append(Slower(why, node["name"]))
                continue
        result.operators.append(node)
    operators = {node["op"] for node in nodes}
    if "_foreach" in operators or "FullyConnected" in operators and operators & parse.GATES:
        regions = _regions(text, tuple(sizes.items()))
    else:
        regions = ()
    for region in regions:
        if isinstance(region, Refusal):
            result.refusals.append(region)
            continue
        cell, steps = Cell(region.formula.cell), len(region.h)
        why = slower_cells(options, cell, region.formula.hidden, steps)
        if why and region.loop is None:  # MXNet's loop costs more a step
            result.refusals.append(Slower(why, region.cell))
        elif name := _late_variable(nodes, region):
            why = f"only some of its steps read {name!r}: the order of arguments would change"
            result.refusals.append(Refusal(why, region.cell))
        else:
            result.regions.append(region)
    loops = [node for node in nodes if node["op"] == "_foreach"]
    read = {nodes[at]["name"] for node in (*result.operators, *loops) for at, *_ in node["inputs"]}
    read |= {nodes[entry.node]["name"] for region in result.regions for entry in region.weights}
    names = {refusal.where for refusal in result.refusals}
    for name, weights in cells.items():
        if weights and read.isdisjoint(weights) and parse.cell_of(weights) not in names:
            result.refusals.append(Refusal(UNFOUND, name))
    return result


@lru_cache(maxsize=32)
def _regions(text: str, sizes: tuple[tuple[str, Any], ...]) -> tuple[Region | Refusal, ...]:
    """`find_regions`, which takes long to import; modules make a bucket's symbol several times."""
    from onernn.adapters.mxnet.regions import find_regions

    return tuple(find_regions(parse_symbol(text), dict(sizes)))


def _replace_rnn(
    graph: Any, node: Any, params: Mapping[str, Any], options: Options, sizes: Shapes
) -> str:
    """Replaces an RNN operator, or the options of a replaced one; returns its name."""
    operator = _operator(node)
    _, _, attributes = original_attributes(node.get("attrs", {}))
    region_text = node.get("attrs", {}).get(ORIGINAL, "")
    if operator != CELLS:
        live = checked(node["name"], attributes, options)
        del node["inputs"][len(live.arguments) :]
        at, before = graph["nodes"].index(node), {**node, "inputs": [*node["inputs"]]}
        if node["op"] in RNN and (linear := _linear(graph, node, live, sizes)):
            linear_attributes = linear["attrs"]
            node["inputs"][0] = linear["inputs"][0]
            node["inputs"] += linear["inputs"][1:]
            for name in ("num_hidden", "no_bias"):
                attributes[f"{LINEAR}{name}"] = linear_attributes.get(name, "False")
            live = checked(node["name"], attributes, options)
            came = [entry[0] for entry in node["inputs"]]
            node["inputs"], attributes[INPUTS] = _in_order(came, node["inputs"], live.arguments)
        if not operator:
            heads = [Entry(at, k) for k in range(len(live.outputs))]
            nodes = [*graph["nodes"][:at], before]
            region_text = original(nodes, heads, _as_inputs(node["inputs"]))
        vector = params.get(graph["nodes"][node["inputs"][1][0]]["name"])
        if vector is not None and not live.linear:
            live.prepare(
                {"parameters": view(vector, "parameters")}
            )  # raises now, not at the first run
    node["op"] = "Custom"
    node["attrs"] = custom_attributes(attributes, node["name"], options, operator or OPERATOR)
    node["attrs"][ORIGINAL] = region_text
    return str(node["name"])


def _as_inputs(reads: Iterable[Sequence[int]]) -> dict[Entry, list[int]]:
    """The inputs of onernn's operator, as `original` names them."""
    return {Entry(*read[:2]): [-1 - k, 0, 0] for k, read in enumerate(reads)}


def _late_variable(nodes: Sequence[Any], region: Region) -> str:
    """A variable that inputs of later steps read, but not that of the first step."""
    waiting, seen = [entry.node for entry in region.x], set[int]()
    first = min(waiting)
    while waiting:
        at = waiting.pop()
        if at <= first or at in seen:
            continue
        seen.add(at)
        if nodes[at]["op"] == VARIABLE:
            return str(nodes[at]["name"])
        waiting += [entry[0] for entry in nodes[at]["inputs"]]
    return ""


def _in_order(
    came: Sequence[int], reads: Sequence[Any], names: Sequence[str]
) -> tuple[list[Any], str]:
    """An operator's inputs in the order of the nodes ``came``, and the names for `INPUTS`.

    MXNet lists arguments as a walk from the outputs meets them, which is the order of the nodes in
    JSON. Modules and their buckets keep the state of an optimizer by the position of its argument.
    """
    order = sorted(range(len(came)), key=came.__getitem__)
    return [reads[at] for at in order], " ".join(names[at] for at in order)


def _linear(graph: Any, node: Any, live: LiveRnn, sizes: Shapes) -> Any:
    """The FullyConnected in front of an RNN operator that becomes part of it; None if none does.

    One product takes the place of two where it costs less, as in files.
    """
    nodes, (at, *_) = graph["nodes"], node["inputs"][0]
    result = nodes[at]
    readers = [read for reader in nodes for read in reader["inputs"] if read[0] == at]
    attrs = result.get("attrs", {})
    if result["op"] != "FullyConnected" or len(readers) > 1:
        return None
    if any(head[0] == at for head in graph["heads"]) or parse.flag(attrs.get("flatten", "True")):
        return None
    weight = sizes.get(nodes[result["inputs"][1][0]]["name"], ())
    if len(weight) != 2 or min(weight) < 1:
        return None
    outer, inner = weight
    columns = live.stack.directions * live.stack.gates * live.stack.hidden
    return result if inner * columns < inner * outer + outer * columns else None


def _variables(symbol: Any, params: Mapping[str, Any]) -> Shapes:
    """The known shapes of the symbol's variables."""
    shapes = {name: tuple(params[name].shape) for name in symbol.list_inputs() if name in params}
    result = _inferred(symbol.infer_shape_partial, shapes)
    return {**dict(zip(symbol.list_arguments(), result[0] or (), strict=False)), **shapes}


def _data_of(symbol: Any, graph: Any, node: Any, params: Mapping[str, Any]) -> tuple[Any, Any]:
    """The shape and the type of an RNN operator's data, None where unknown.

    Names do not tell nodes apart: a layer that is called twice gives both of its operators one.
    """
    x = loaded({**graph, "heads": [node["inputs"][0]]}, symbol)
    arrays = {name: params[name] for name in x.list_inputs() if name in params}
    _, shape, _ = _inferred(x.infer_shape_partial, {k: tuple(a.shape) for k, a in arrays.items()})
    _, dtype, _ = _inferred(x.infer_type_partial, {k: a.dtype for k, a in arrays.items()})
    return (shape or [None])[0], (dtype or [None])[0]


def _inferred(infer: Any, arguments: Mapping[str, Any]) -> Any:
    """Infers arguments, outputs and auxiliary states; None where MXNet finds a contradiction."""
    try:
        return infer(**arguments)
    except live_mxnet().MXNetError:  # it will say so again when it is bound
        return None, None, None


class _Cutter:
    """Puts operators in the place of regions, one after the other, into a symbol as JSON.

    The old nodes stay without readers: MXNet drops them. Entries of regions are those of the
    original symbol; ``_now`` maps them to their replacements.
    """

    def __init__(self, graph: Any, options: Options) -> None:
        self._graph, self._nodes, self._options = graph, graph["nodes"], options
        self._now: dict[Entry, Entry] = {}

    def cut(self, region: Region) -> None:
        formula = region.formula
        if region.loop is None:
            x, formula = self._joined(region)
            merges = self._merges(region, formula.backwards)
            axis = next(iter(merges.values()), formula.x_axis)
            formula = replace(formula, y_axis=axis)
        else:
            x = self._resolved(region.x[0])
        name = f"{region.name}_onernn"
        reads = [x, *region.weights, *map(self._resolved, region.states)]
        came = [min(region.x).node, *(e.node for e in (*region.weights, *region.states))]
        reads, inputs = _in_order(came, reads, formula.arguments)
        attributes = {"formula": formula.text, INPUTS: inputs}
        whole = next(iter(merges), None) if region.loop is None else region.h[0]
        attrs = custom_attributes(attributes, region.name, self._options, CELLS)
        attrs[ORIGINAL] = self._original(region, formula, whole, x, reads)
        operator = self._add(_node("Custom", name, reads, **attrs))
        instead = {region.h[-1]: operator._replace(output=1)}
        if region.c:
            instead[region.c] = operator._replace(output=2)
        if region.loop is not None:
            instead |= dict.fromkeys(region.h[:-1], operator)
        else:
            instead |= {entry: operator for entry, on in merges.items() if on == axis}
            self._steps(region, formula.backwards, axis, operator, instead)
        self._redirect(instead)

    def _original(
        self, region: Region, formula: Formula, whole: Entry | None, x: Entry, reads: Sequence[Any]
    ) -> str:
        """The region as it is. ``whole``: the states of all steps together, ``x`` the inputs."""
        nodes, leaves = [*self._nodes], _as_inputs(reads)
        if nodes[x.node]["name"] == f"{region.name}_input":  # of single steps: cut apart again
            pieces = {self._resolved(e): [len(nodes), k, 0] for k, e in enumerate(region.x)}
            nodes = [
                {**node, "inputs": [pieces.get(Entry(*e[:2]), e) for e in node["inputs"]]}
                for node in nodes
            ]
            nodes.append(_cut(f"{region.name}_inputs", x, len(region.x), axis=0))
        steps = [] if region.loop is not None else region.h[:: -1 if formula.backwards else 1]
        if whole is None:
            whole = Entry(len(nodes))
            nodes.append(_stack(f"{region.name}_outputs", steps, axis=formula.y_axis))
        heads = [whole, region.h[-1], *filter(None, [region.c])]
        return original(nodes, heads, leaves, steps)

    def _resolved(self, entry: Entry) -> Entry:
        return self._now.get(entry, entry)

    def _add(self, node: Any) -> Entry:
        self._nodes.append(node)
        return Entry(len(self._nodes) - 1)

    def _joined(self, region: Region) -> tuple[Entry, Any]:
        """The input of all steps, and the formula with the axis of time, and the direction."""
        pieces = [self._resolved(entry) for entry in region.x]
        count, formula = len(pieces), region.formula
        node = self._nodes[pieces[0].node]
        if node["op"] == "SliceChannel" and len({e.node for e in pieces}) == 1:
            attributes = node["attrs"]
            axis = parse.integer(attributes.get("axis", "1"))
            places = [entry.output for entry in pieces]
            whole = parse.integer(attributes["num_outputs"]) == count and axis in (0, 1)
            if whole and parse.flag(attributes.get("squeeze_axis", "False")):
                for backwards in (False, True):
                    if places == list(range(count))[:: -1 if backwards else 1]:
                        x = Entry(*node["inputs"][0])
                        return x, replace(formula, x_axis=axis, backwards=backwards)
        return self._add(_stack(f"{region.name}_input", pieces, axis=0)), formula

    def _merges(self, region: Region, backwards: bool) -> dict[Entry, int]:
        """The operators that join the states of all steps, and their axis of time."""
        result = {}
        states = [list(entry[:2]) for entry in region.h[:: -1 if backwards else 1]]
        for at, node in enumerate(self._nodes):
            kind, inputs = node["op"], [read[:2] for read in node["inputs"]]
            attributes = node.get("attrs", {})
            if kind == "Concat":  # of steps with a new axis each
                before = [self._nodes[read[0]] for read in inputs]
                axis = attributes.get("dim", "1")
                alike = {(each["op"], each.get("attrs", {}).get("axis")) for each in before}
                if alike != {("expand_dims", axis)}:
                    continue
                inputs = [each["inputs"][0][:2] for each in before]
            elif kind == "stack":
                axis = attributes.get("axis", "0")
            else:
                continue
            if inputs == states and axis in ("0", "1"):
                result[Entry(at)] = int(axis)
        return result

    def _steps(
        self,
        region: Region,
        backwards: bool,
        axis: int,
        operator: Entry,
        instead: dict[Entry, Entry],
    ) -> None:
        """Adds the new state of each step but the last, for readers of a single step."""
        count = len(region.h)
        cut = self._add(_cut(f"{region.name}_steps", operator, count, axis=axis))
        for step, entry in enumerate(region.h):
            place = count - 1 - step if backwards else step
            instead.setdefault(entry, cut._replace(output=place))

    def _redirect(self, instead: dict[Entry, Entry]) -> None:
        """Makes readers read other entries; outputs of the symbol keep their names."""
        self._now |= instead
        for node in self._nodes:
            node["inputs"] = [list(instead.get(Entry(*e[:2]), e)) for e in node["inputs"]]
        for head in self._graph["heads"]:
            entry = Entry(*head[:2])
            if entry in instead:
                name = self._nodes[entry.node]["name"]
                head[:] = self._add(_node("_copy", name, [instead[entry]]))


def _node(op: str, name: str, reads: Iterable[Entry], **attributes: Any) -> dict[str, Any]:
    attrs = {key: str(value) for key, value in attributes.items()}
    return {"op": op, "name": name, "attrs": attrs, "inputs": [*map(list, reads)]}


def _stack(name: str, steps: Sequence[Entry], axis: int) -> dict[str, Any]:
    return _node("stack", name, steps, axis=axis, num_args=len(steps))


def _cut(name: str, whole: Entry, steps: int, axis: int) -> dict[str, Any]:
    """The inverse of `_stack`."""
    return _node("SliceChannel", name, [whole], num_outputs=steps, axis=axis, squeeze_axis=True)
