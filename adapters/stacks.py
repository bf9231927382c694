"""Layers that read each other where a file only moves words between them: for their weights."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NoReturn

import numpy as np

from onernn.adapters.common.adapter import StrPath
from onernn.adapters.common.files import reading
from onernn.adapters.loading import arrays_in, load
from onernn.adapters.registry import ADAPTERS
from onernn.fuse_passes import fuse
from onernn.fuse_passes.bodies import bodies, every_node
from onernn.ir.errors import Refusal, UnsupportedError, did_you_mean
from onernn.ir.graph import (
    UNSUPPORTED,
    Graph,
    NativeOp,
    Node,
    Value,
    is_named_here,
    layer_operators,
    names_recurrence,
)
from onernn.ir.operator import OPERATORS
from onernn.ir.rnn import Recurrent
from onernn.reorders.layers import PivotLayer

JOINED = "/y"
"""Behind the name of a value of the file: what layers make of all words, one or side by side."""

Way = tuple[str, bool]
"""A layer's y, or another value, and whether its steps come in the opposite order."""


def joined_layers(model: Graph) -> Graph:
    """Returns the model in which a layer reads what it reads without views, masks and reversed
    steps.

    A mask takes words out in front of each layer and puts them back behind it, and a backward layer
    may be a forward one over reversed steps. To weights that means nothing, so the layers are one
    stack. Who reads outputs of several layers side by side reads an input of the graph.
    """
    result = _Ways(model)
    nodes, sizes = list[Node](), list[Value]()
    for node in model.nodes:
        ways = result.of(node.outputs[0]) if node.op == "Concat" else ()
        if node.op == "Rnn":
            nodes += result.layer(node)
        elif len(ways) > 1 and all(name in result.turned and not turned for name, turned in ways):
            end, made = result.beside(ways, node.outputs[0])
            result.names[node.outputs[0]] = end
            nodes += made
        elif node.op == "Shape":  # who asks how many sentences there are reads no layer
            sizes.append(Value(node.outputs[0]))
        else:
            nodes.append(node)
    inputs = (*model.inputs, *map(Value, result.names), *sizes)
    gone = {value.name for value in inputs}
    outputs = [value for value in model.outputs if value.name not in gone]
    ends = tuple(map(Value, dict.fromkeys(result.names.values())))
    whole = replace(model, inputs=inputs, outputs=(*outputs, *ends), nodes=tuple(nodes)).pruned()
    read = {end for name, end in result.names.items() if whole.users(name) or model.is_output(name)}
    inner = {end.name for end in ends if whole.users(end.name)} - read  # only layers read these
    left = tuple(value for value in whole.outputs if value.name not in inner)
    return replace(whole, outputs=left).pruned()


class _Ways:
    """What values are moved from. ``turned``: by a layer's y whether its steps are reversed."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.turned: dict[str, bool] = {}
        self.names: dict[str, str] = {}  # what stands for the file's values of several layers
        self._beside: dict[tuple[str, ...], str] = {}
        self._known: dict[str, tuple[Way, ...]] = {}

    def beside(self, ways: tuple[Way, ...], name: str) -> tuple[str, list[Node]]:
        """Returns the one value of layers side by side, and what makes it where nothing did so
        far.
        """
        names = tuple(each for each, _ in ways)
        if names in self._beside:
            return self._beside[names], []
        made = self._beside[names] = f"{name}{JOINED}"
        return made, [Node("Concat", names, (made,), {"axis": -1})]

    def layer(self, node: Node) -> list[Node]:
        """Returns the node over what its input is moved from; with what puts several side by
        side.
        """
        rnn = Recurrent.of(node)
        ways = self.of(rnn.x)
        orders = {turned for _, turned in ways}
        layers = all(name in self.turned for name, _ in ways)
        several = len(ways) > 1 and not layers
        if len(orders) > 1 or several or rnn.spec.directions == 2 and True in orders:
            self.turned[rnn.y] = False
            return [node]
        self.turned[rnn.y] = True in orders
        x, made = (ways[0][0], list[Node]()) if len(ways) == 1 else self.beside(ways, rnn.x)
        spec = rnn.spec
        if self.turned[rnn.y]:
            backward = spec.direction == "right2left"
            spec = replace(spec, direction="left2right" if backward else "right2left")
        return [*made, replace(replace(rnn, spec=spec, x=x).node(), origin=node.origin)]

    def of(self, name: str) -> tuple[Way, ...]:
        """Returns what a value is moved from, side by side; itself where it is computed."""
        waiting = [name]
        while waiting:
            top = waiting[-1]
            node = self.graph.producer(top)
            needed = [] if node is None or top in self.turned else self._sources(node)
            missing = [each for each in needed if each not in self._known]
            if missing:
                waiting += missing
                continue
            self._known[top] = self._move(top, node, needed)
            waiting.pop()
        return self._known[name]

    def _sources(self, node: Node) -> list[str]:
        """Returns the inputs whose words a node may move; none where it computes."""
        if node.op in ("Concat", "Where"):
            return [*node.inputs[node.op == "Where" :]]
        known = OPERATORS.get(node.op)
        return [node.inputs[0]] if known is not None and known.keeps else []

    def _move(self, name: str, node: Node | None, sources: list[str]) -> tuple[Way, ...]:
        alone = ((name, self.turned.get(name, False)),)
        if node is None or not sources:
            return alone
        every = [self._known[each] for each in sources]
        layers = [ways for ways in every if all(each in self.turned for each, _ in ways)]
        if node.op == "Concat" and self._is_last(node, node.attrs.axis):
            return tuple(way for ways in every for way in ways)
        if len(sources) > 1:  # words, and what stands where there is none
            return layers[0] if len(layers) == 1 else alone
        if node.op == "Gather":  # puts words back, one of these for each step
            maker = self.graph.producer(sources[0])
            return every[0] if layers and maker is not None and maker.op == "Concat" else alone
        if node.op == "Transpose":
            return (
                every[0]
                if node.attrs.perm and node.attrs.perm[-1] == len(node.attrs.perm) - 1
                else alone
            )
        if node.op == "Slice":
            steps = self.graph.constants.get(node.input(4))
            if steps is None or not np.array_equal(steps.reshape(-1), [-1]):
                return alone
        if node.op in ("Slice", "ReverseSequence"):
            return tuple((each, not turned) for each, turned in every[0])
        if OPERATORS[node.op].kind not in ("view", "sequences") and node.op != "Compress":
            return alone
        widths = [self.graph.types[each].counts[-1:] for each in (name, node.inputs[0])]
        return alone if all(widths) and widths[0] != widths[1] else every[0]

    def _is_last(self, node: Node, axis: int) -> bool:
        rank = self.graph.types[node.outputs[0]].rank
        return axis == -1 or rank is not None and axis == rank - 1


# The recurrent layers of a file, as whole stacks: what weights are converted from.


class Stacks(dict[str, PivotLayer]):
    """Stacks of recurrent layers by name.

    ``omitted``: the other recurrent layers of the file. ``advice``: what to do if a layout cannot
    express the functions of the gates.
    """

    omitted: tuple[Refusal, ...] = ()
    advice = ""


def read_stacks(
    path: StrPath,
    params: StrPath | None = None,
    semantics: str = "documented",
    node: str | None = None,
    recurrent_activation: str | None = None,
) -> Stacks:
    """Returns the stacks of a file of weights by the names of their modules, or `stacks_of` a
    model.

    ``node``: only that one. ``recurrent_activation``: "sigmoid" confirms the gates of a file of
    weights that Keras before 2.3 wrote, whose default is hard_sigmoid. Raises what `load` does, and
    `UnsupportedError` where there is none.
    """
    arrays = arrays_in(path)
    if arrays is None and recurrent_activation:
        raise UnsupportedError(
            f"{path}: the model names its functions; recurrent_activation is for"
            " weights without a model"
        )
    if arrays is None:
        return stacks_of(load(path, params, semantics), node)
    with reading(path):
        layers = Stacks(itertools.chain(*(each.layers_among(arrays).items() for each in ADAPTERS)))
    if not layers:
        raise UnsupportedError(
            f"{path}: no recurrent layer is known by its names: expected names as PyTorch's,"
            " weight_ih_l0, weight_hh_l0, or as Keras's, kernel, recurrent_kernel;"
            " onernn.convert_weights takes arrays of other layouts by name"
        )
    if node is not None and node not in layers:
        _refuse(path, node, layers)
    if node is not None:
        layers = Stacks({node: layers[node]})
    assumed = {name for name, each in layers.items() if each.spec.activations}
    if recurrent_activation == "sigmoid" and assumed:
        usual = {name: replace(layers[name].spec, activations=None) for name in assumed}
        layers |= {name: PivotLayer.of(spec, layers[name].weights) for name, spec in usual.items()}
    elif recurrent_activation not in (None, "hard_sigmoid") or recurrent_activation and not assumed:
        raise UnsupportedError(
            f"{path}: recurrent_activation={recurrent_activation!r}: expected 'sigmoid' or"
            " 'hard_sigmoid', and weights that Keras before 2.3 wrote"
        )
    elif assumed:
        layers.advice = (
            "; before 2.3, Keras used hard_sigmoid unless the model named another function: if the"
            " model used sigmoid, give --recurrent-activation sigmoid"
        )
    return layers


def stacks_of(model: Graph, node: str | None = None) -> Stacks:
    """Returns a model's stacks of recurrent layers, by the values that they make, or where these
    are not in the file by its names of the layers. Weights that several places share come once.

    ``node``: the one that makes this value, or bears this name. Raises `UnsupportedError` where
    there is none.
    """
    fused = fuse(joined_layers(without_states(fuse(model).model))).model
    result = Stacks()
    called: dict[str, list[str]] = {}
    for each in filter(lambda each: each.op == "Rnn", every_node(fused)):
        rnn = Recurrent.of(each)
        layers = layer_operators(each.origin)
        native = [name for op in layers for name in (op.name, op.value) if name]
        stack = PivotLayer.of(rnn.spec, rnn.weights)
        if same := [name for name, other in result.items() if _same(stack, other)]:
            called[same[0]] += [rnn.y, *native]
            continue
        key = native[0] if native and (is_named_here(rnn.y) or rnn.y.endswith(JOINED)) else rnn.y
        # Several cells in one layer of the file have numbers.
        numbers = (f"{key}#{at}" if at > 1 else key for at in itertools.count(1))
        name = next(each for each in numbers if each not in result)
        result[name], called[name] = stack, [rnn.y, *native]
    if node is not None and node not in result and result:
        chosen = Stacks((name, each) for name, each in result.items() if node in called[name])
        return chosen or _refuse(model.name, node, result)
    if result and node is not None:
        return Stacks({node: result[node]})
    result.omitted = tuple(_list_omitted(model, fused))
    if result:
        return result
    if result.omitted:
        message = f"{model.name}: none of its recurrent layers can be read:"
        raise UnsupportedError(message, result.omitted)
    raise UnsupportedError(
        f"{model.name}: no recurrent layer was found. {len([*every_node(model)])} operators were"
        " searched, including those inside loops and branches: for layers, for loops over one"
        " cell, and for cells unrolled over all steps of a sequence. Cells that stay unrolled are"
        " not found: onernn inspect shows what they are"
    )


def _list_omitted(model: Graph, fused: Graph) -> Iterator[Refusal]:
    """Yields the recurrent layers and loops over cells of a model that are no layers after
    fusion.
    """
    result = {op for node in every_node(fused) if node.op == "Rnn" for op in node.origin}
    missing = _recurrent_operators(model.nodes, result)
    for op, node in missing.items():
        reason = f"it computes {node.op}, which has no weights in the form of a recurrent layer"
        if node.op == UNSUPPORTED:
            reason = node.attributes["reason"]
        elif node.op == "Rnn":
            reason = "its result is not used, or its weights are computed at run time"
        yield Refusal(reason, " ".join(filter(None, (op.type, repr(op.name or op.value)))))
    for node in fused.nodes:
        inner = [each.op for body in bodies(node).values() for each in every_node(body)]
        multiplies = "Einsum" in inner or not {"MatMul", "Gemm"}.isdisjoint(inner)
        if node.op in ("Loop", "Scan") and multiplies and "Rnn" not in inner:
            if missing.keys().isdisjoint(node.origin):
                yield Refusal("a loop with products in it, which is not one cell", node.label)


def _recurrent_operators(nodes: Iterable[Node], known: set[NativeOp]) -> dict[NativeOp, Node]:
    """Returns the native operators of recurrent types that are not known, each with a node of its
    own.

    A loop or branch that became a layer stands for the operators inside it.
    """
    result: dict[NativeOp, Node] = {}
    for node in nodes:
        if not known.isdisjoint(node.origin):
            continue
        refused = node.attributes.get("reason", "") if node.op == UNSUPPORTED else ""
        for op in node.origin:
            if names_recurrence(op.type) or names_recurrence(refused):
                result.setdefault(op, node)
        for body in bodies(node).values():
            result |= _recurrent_operators(body.nodes, known)
    return result


def _refuse(path: StrPath, node: str, layers: Stacks) -> NoReturn:
    listed = ", ".join(map(repr, layers)) + did_you_mean(node, layers)
    raise UnsupportedError(f"{path}: no such recurrent layer: {node!r}; there are: {listed}")


def _same(one: PivotLayer, other: PivotLayer) -> bool:
    pairs = zip(one.weights, other.weights, strict=False)
    return one.spec == other.spec and all(
        a.arrays.keys() == b.arrays.keys()
        and all(np.array_equal(array, b.arrays[name]) for name, array in a.arrays.items())
        for a, b in pairs
    )


def without_states(model: Graph) -> Graph:
    """Returns the model in which no layer begins with a given state, nor hands one on.

    So do layers that stand on each other become one stack, whose states a model may take apart:
    to their weights states mean nothing. Who reads a last state reads an input of the graph.
    """
    layers = {id(node): Recurrent.of(node) for node in model.nodes if node.op == "Rnn"}
    nodes, inputs, tops = list[Node](), list[Value](), list[Value]()
    for node in model.nodes:
        if rnn := layers.get(id(node)):
            inputs += [Value(name) for name in node.outputs[1:] if model.is_read(name)]
            y = rnn.y or f"{node.outputs[1]}{JOINED}"
            alone = Recurrent(rnn.spec, rnn.weights, rnn.x, y, attention=rnn.attention)
            node = replace(alone, origin=node.origin).node()
            tops += [] if model.is_read(rnn.y) else [Value(y)]
        nodes.append(node)
    gone = {value.name for value in inputs}
    outputs = (*(value for value in model.outputs if value.name not in gone), *tops)
    return replace(model, inputs=(*model.inputs, *inputs), outputs=outputs, nodes=tuple(nodes))
