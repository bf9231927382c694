"""Puts our operators into a live symbol: one for each RNN operator, and one for each region."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from onernn.adapters.mxnet.live.custom import (
    CELLS,
    OPERATOR,
    custom_attributes,
    live_mxnet,
    original_attributes,
    register,
    view,
)
from onernn.adapters.mxnet.live.execution import LINEAR, LiveRnn, Options
from onernn.adapters.mxnet.live.gain import Slower, slower_cells, slower_operator
from onernn.adapters.mxnet.live.regions import Region, Shapes, find_regions
from onernn.adapters.mxnet.lower.rules import known_name
from onernn.adapters.mxnet.read import Entry, parse_symbol
from onernn.adapters.mxnet.read import attributes as parse
from onernn.core.errors import Refusal, UnsupportedError
from onernn.core.spec import Cell

RNN = ("RNN", "_npx_rnn")
_log = logging.getLogger("onernn")


class Explained(NamedTuple):
    """What of a symbol runs here, by the names of its nodes, and what does not, and why."""

    replaced: tuple[str, ...]
    refusals: tuple[Refusal, ...]


def explain(symbol: Any, **options: Any) -> Explained:
    """What `optimize` has replaced in an MXNet symbol, and which layers stay MXNet's.

    ``options``: those of `optimize`.
    """
    graph, chosen = json.loads(symbol.tojson()), Options(**options)
    ours = [node for node in graph["nodes"] if _operator(node) in (OPERATOR, CELLS)]
    replaced = tuple(original_attributes(node["attrs"])[1] for node in ours)
    return Explained(replaced, tuple(_layers(symbol, graph, {}, chosen).refusals))


def reasons(refusals: Iterable[Refusal]) -> str:
    """Refusals in words, each reason once."""
    where: dict[str, list[str]] = {}
    for each in refusals:
        where.setdefault(each.reason, []).append(each.where)
    return "".join(
        f"; {places[0]}{f' and {len(places) - 1} more' if places[1:] else ''}: {reason}"
        for reason, places in where.items()
    )


def optimized_symbol(symbol: Any, params: Mapping[str, Any], options: Options) -> Any:
    """The symbol with our operators; itself where there is nothing to replace.

    ``params``: arrays by name. Raises `UnsupportedError`, with its name, for an RNN operator that
    cannot run.
    """
    mx = live_mxnet()
    register()
    graph = json.loads(symbol.tojson())
    layers = _layers(symbol, graph, params, options)
    sizes = _variables(symbol, params)
    found = [_replace_rnn(graph, node, params, options, sizes) for node in layers.operators]
    cutter = _Cutter(graph, options)
    for region in layers.regions:
        cutter.cut(region)
        found.append(region.name)
    if left := reasons(layers.refusals):
        _log.info("left to MXNet%s", left)
    if not found:
        return symbol
    _log.info("replaced in MXNet's symbol: %s", ", ".join(found))
    graph.pop("node_row_ptr", None)  # a Custom operator shows all of its outputs
    made = mx.sym.load_json(json.dumps(graph))
    return made.as_np_ndarray() if isinstance(symbol, mx.sym.np._Symbol) else made


def _operator(node: Mapping[str, Any]) -> str:
    """The op_type of a Custom operator; else ""."""
    return str(node.get("attrs", {}).get("op_type", ""))


class _Layers(NamedTuple):
    """The recurrent layers of a symbol: nodes and regions that become ours, and what does not."""

    operators: list[Any]
    regions: list[Region]
    refusals: list[Refusal]


def _layers(symbol: Any, graph: Any, params: Mapping[str, Any], options: Options) -> _Layers:
    found, variables = _Layers([], [], []), _variables(symbol, params)
    for node in graph["nodes"]:
        operator, attributes = _operator(node), node.get("attrs", {})
        if node["op"] not in RNN and operator not in (OPERATOR, CELLS):
            continue
        if node["op"] in RNN:
            live = checked(node["name"], attributes, options)
            folds = _linear(graph, node, live, variables) is not None
            data = _data_of(symbol, node, params)
            if why := slower_operator(options, live, *data, folds=folds):
                found.refusals.append(Slower(why, node["name"]))
                continue
        found.operators.append(node)
    for region in find_regions(parse_symbol(json.dumps(graph)), variables):
        if isinstance(region, Refusal):
            found.refusals.append(region)
            continue
        cell, steps = Cell(region.formula.cell), len(region.h)
        why = slower_cells(options, cell, region.formula.hidden, steps)
        if why and region.loop is None:  # a loop of MXNet's costs more a step
            found.refusals.append(Slower(why, region.name))
        else:
            found.regions.append(region)
    return found


def _replace_rnn(
    graph: Any, node: Any, params: Mapping[str, Any], options: Options, sizes: Shapes
) -> str:
    """Makes an RNN operator ours, or gives one that is ours already these options; its name."""
    operator = _operator(node)
    _, _, attributes = original_attributes(node.get("attrs", {}))
    if operator != CELLS:
        live = checked(node["name"], attributes, options)
        slots = [slot for slot in live.arguments if slot != "seed"]
        del node["inputs"][len(slots) :]
        if node["op"] in RNN and (linear := _linear(graph, node, live, sizes)):
            given = linear["attrs"]
            node["inputs"][0] = linear["inputs"][0]
            node["inputs"] += linear["inputs"][1:]
            for name in ("num_hidden", "no_bias"):
                attributes[f"{LINEAR}{name}"] = given.get(name, "False")
            live = checked(node["name"], attributes, options)
        if live.dropout:
            node["inputs"].append([len(graph["nodes"]), 0, 0])
            drawn = {"low": "0", "high": "1", "shape": "(2,)"}
            name = f"{node['name']}_seed"
            graph["nodes"].append(
                {"op": "_random_uniform", "name": name, "attrs": drawn, "inputs": []}
            )
        vector = params.get(graph["nodes"][node["inputs"][1][0]]["name"])
        if vector is not None and not live.linear:
            live.layer(view(vector, "parameters"))  # says now what the first run would say
    node["op"] = "Custom"
    node["attrs"] = custom_attributes(attributes, node["name"], options, operator or OPERATOR)
    return str(node["name"])


def _linear(graph: Any, node: Any, live: LiveRnn, sizes: Shapes) -> Any:
    """The FullyConnected in front of an RNN operator that becomes part of it; None if none does.

    One product takes the place of two where it costs less, as in files.
    """
    nodes, (at, *_) = graph["nodes"], node["inputs"][0]
    found = nodes[at]
    readers = [read for each in nodes for read in each["inputs"] if read[0] == at]
    given = found.get("attrs", {})
    if known_name(found["op"]) != "FullyConnected" or len(readers) > 1:
        return None
    if any(head[0] == at for head in graph["heads"]) or parse.flag(given.get("flatten", "True")):
        return None
    weight = sizes.get(nodes[found["inputs"][1][0]]["name"], ())
    if len(weight) != 2 or min(weight) < 1:
        return None
    outer, inner = weight
    columns = live.stack.directions * live.stack.gates * live.stack.hidden
    return found if inner * columns < inner * outer + outer * columns else None


def checked(name: str, attributes: Mapping[str, Any], options: Options) -> LiveRnn:
    """Raises `UnsupportedError`, with the layer's name, for attributes that cannot run."""
    try:
        return LiveRnn({key: str(value) for key, value in attributes.items()}, options)
    except UnsupportedError as error:
        raise UnsupportedError(f"{name} (RNN): {error}") from None


def _variables(symbol: Any, params: Mapping[str, Any]) -> Shapes:
    """What is known of the shapes of the symbol's variables."""
    given = {name: tuple(params[name].shape) for name in symbol.list_inputs() if name in params}
    found = _inferred(symbol.infer_shape_partial, given)
    return {**dict(zip(symbol.list_arguments(), found[0] or (), strict=False)), **given}


def _data_of(symbol: Any, node: Any, params: Mapping[str, Any]) -> tuple[Any, Any]:
    """The shape and the type of what an RNN operator reads, as far as they are known."""
    rnn = symbol.get_internals()[f"{node['name']}_output"]
    x = rnn.get_children()[0]
    given = {name: params[name] for name in x.list_inputs() if name in params}
    _, shape, _ = _inferred(x.infer_shape_partial, {k: tuple(a.shape) for k, a in given.items()})
    _, dtype, _ = _inferred(x.infer_type_partial, {k: a.dtype for k, a in given.items()})
    return (shape or [None])[0], (dtype or [None])[0]


def _inferred(infer: Any, given: Mapping[str, Any]) -> Any:
    """Of arguments, outputs and auxiliary states; None where MXNet finds a contradiction."""
    try:
        return infer(**given)
    except live_mxnet().MXNetError:  # it will say so again when it is bound
        return None, None, None


class _Cutter:
    """Puts operators in the place of regions, one after the other, into a symbol as JSON.

    What was there stays, without readers: MXNet drops it. Entries of regions are those of the
    symbol as it was; ``_now`` tells what is read instead.
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
        attributes = {"formula": formula.text}
        made = self._add(
            "Custom",
            name,
            reads,
            **custom_attributes(attributes, region.name, self._options, CELLS),
        )
        instead = {region.h[-1]: made._replace(output=1)}
        if region.c:
            instead[region.c] = made._replace(output=2)
        if region.loop is not None:
            instead |= dict.fromkeys(region.h[:-1], made)
        else:
            instead |= {entry: made for entry, on in merges.items() if on == axis}
            self._steps(region, formula.backwards, axis, made, instead)
        self._redirect(instead)

    def _resolved(self, entry: Entry) -> Entry:
        return self._now.get(entry, entry)

    def _add(self, op: str, name: str, reads: list[Entry], **attributes: Any) -> Entry:
        attrs = {key: str(value) for key, value in attributes.items()}
        inputs = [list(entry) for entry in reads]
        self._nodes.append({"op": op, "name": name, "attrs": attrs, "inputs": inputs})
        return Entry(len(self._nodes) - 1)

    def _joined(self, region: Region) -> tuple[Entry, Any]:
        """The input of all steps, and the formula with the axis of time, and the direction."""
        pieces = [self._resolved(entry) for entry in region.x]
        count, formula = len(pieces), region.formula
        node = self._nodes[pieces[0].node]
        if known_name(node["op"]) == "SliceChannel" and len({e.node for e in pieces}) == 1:
            given = node["attrs"]
            axis = parse.integer(given.get("axis", "1"))
            places = [entry.output for entry in pieces]
            whole = parse.integer(given["num_outputs"]) == count and axis in (0, 1)
            if whole and parse.flag(given.get("squeeze_axis", "False")):
                for backwards in (False, True):
                    if places == list(range(count))[:: -1 if backwards else 1]:
                        x = Entry(*node["inputs"][0])
                        return x, replace(formula, x_axis=axis, backwards=backwards)
        x = self._add("stack", f"{region.name}_input", pieces, axis=0, num_args=count)
        return x, formula

    def _merges(self, region: Region, backwards: bool) -> dict[Entry, int]:
        """What puts the states of all steps together, and the axis that becomes the time."""
        found = {}
        wanted = [list(entry[:2]) for entry in region.h[:: -1 if backwards else 1]]
        for at, node in enumerate(self._nodes):
            kind, inputs = known_name(node["op"]), [each[:2] for each in node["inputs"]]
            given = node.get("attrs", {})
            if kind == "Concat":  # of steps with a new axis each
                before = [self._nodes[each[0]] for each in inputs]
                axis = given.get("dim", "1")
                alike = {(each["op"], each.get("attrs", {}).get("axis")) for each in before}
                if alike != {("expand_dims", axis)}:
                    continue
                inputs = [each["inputs"][0][:2] for each in before]
            elif kind == "stack":
                axis = given.get("axis", "0")
            else:
                continue
            if inputs == wanted and axis in ("0", "1"):
                found[Entry(at)] = int(axis)
        return found

    def _steps(
        self,
        region: Region,
        backwards: bool,
        axis: int,
        made: Entry,
        instead: dict[Entry, Entry],
    ) -> None:
        """The new state of each step but the last, for those that read it alone."""
        count = len(region.h)
        cut = self._add(
            "SliceChannel",
            f"{region.name}_steps",
            [made],
            num_outputs=count,
            axis=axis,
            squeeze_axis=True,
        )
        for step, entry in enumerate(region.h):
            place = count - 1 - step if backwards else step
            instead.setdefault(entry, cut._replace(output=place))

    def _redirect(self, instead: dict[Entry, Entry]) -> None:
        """Lets everybody read other entries; outputs of the symbol keep their names."""
        self._now |= instead
        for node in self._nodes:
            node["inputs"] = [list(instead.get(Entry(*e[:2]), e)) for e in node["inputs"]]
        for head in self._graph["heads"]:
            entry = Entry(*head[:2])
            if entry in instead:
                name = self._nodes[entry.node]["name"]
                head[:] = self._add("_copy", name, [instead[entry]])
