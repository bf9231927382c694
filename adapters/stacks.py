"""Finds the stacks of recurrent layers in a file, so that their weights can be converted. In a
stack, each layer reads the output of the layer before it; the file may reverse or mask steps
between them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from onernn.adapters.common.adapter import StrPath
from onernn.adapters.common.files import reading
from onernn.adapters.loading import arrays_in, load
from onernn.adapters.registry import ADAPTERS
from onernn.fuse_passes import fuse
from onernn.fuse_passes.bodies import bodies, every_node
from onernn.ir.errors import Refusal, ShapeError, UnsupportedError, did_you_mean
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
"""The suffix of new names: for a layer's output of all steps if the file has no name for it, and
for a value that joins the outputs of several layers.
"""

Way = tuple[str, bool]
"""The name of a value, and whether its steps are in reversed order."""


def join_layers(model: Graph) -> Graph:
    """Returns the model in which each layer reads the layer before it directly, without views,
    masks and reversed steps between them.

    A mask removes steps before each layer and restores them after it. A backward layer may be
    written as a forward layer over reversed steps. Neither changes the weights, so the layers form
    one stack. A value that joins the outputs of several layers becomes an output; the nodes that
    read it read a new input of the graph instead.
    """
    result = _Ways(model)
    nodes, sizes = list[Node](), list[Value]()
    for node in model.nodes:
        (name, *_) = node.outputs
        if node.op == "Rnn":
            nodes += result.layer(node)
            continue
        result.follow(node)
        ways = result.of(name) if node.op == "Concat" else ()
        if len(ways) > 1 and all(each in result.turned and not turned for each, turned in ways):
            result.names[name], made = result.join(ways, name)
            nodes += made
        elif node.op == "Shape":  # a size becomes an input, and connects no layers
            sizes.append(Value(name))
        else:
            nodes.append(node)
    ends = tuple(map(Value, dict.fromkeys(result.names.values())))
    whole = _replace_nodes(model, nodes, [*map(Value, result.names), *sizes], ends)
    read = {end for name, end in result.names.items() if whole.users(name) or model.is_output(name)}
    inner = {end.name for end in ends if whole.users(end.name)} - read  # only layers read these
    left = tuple(value for value in whole.outputs if value.name not in inner)
    return replace(whole, outputs=left).prune()


def _replace_nodes(
    model: Graph, nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value]
) -> Graph:
    """Returns the model with new nodes and outputs, and with added inputs. An output that becomes
    an input is no longer an output.
    """
    inputs = (*model.inputs, *inputs)
    gone = {value.name for value in inputs}
    outputs = (*(value for value in model.outputs if value.name not in gone), *outputs)
    return replace(model, inputs=inputs, outputs=outputs, nodes=tuple(nodes)).prune()


class _Ways:
    """The sources of each value. If nodes only moved elements of layers' outputs to make a value,
    these outputs are its sources.

    ``turned``: for each layer's y, whether its steps are reversed. ``names``: the new value for
    each value of the file that joins several layers.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.turned: dict[str, bool] = {}
        self.names: dict[str, str] = {}
        self._joined: dict[tuple[str, ...], str] = {}
        self._known: dict[str, tuple[Way, ...]] = {}

    def join(self, ways: tuple[Way, ...], name: str) -> tuple[str, list[Node]]:
        names = tuple(each for each, _ in ways)
        if names in self._joined:
            return self._joined[names], []
        made = self._joined[names] = f"{name}{JOINED}"
        return made, [Node("Concat", names, (made,), {"axis": -1})]

    def layer(self, node: Node) -> list[Node]:
        """Returns the layer's node, which reads the source of its old input. If there are several
        sources, a new node joins them.
        """
        rnn = Recurrent.of(node)
        ways = self.of(rnn.x)
        orders = {turned for _, turned in ways}
        layers = all(name in self.turned for name, _ in ways)
        several = len(ways) > 1 and not layers
        backward = True in orders
        if len(orders) > 1 or several or rnn.spec.directions == 2 and backward:
            self.turned[rnn.y] = False
            return [node]
        self.turned[rnn.y] = backward
        x, made = (ways[0][0], list[Node]()) if len(ways) == 1 else self.join(ways, rnn.x)
        spec = rnn.spec
        if backward:
            forward = spec.direction == "right2left"
            spec = replace(spec, direction="left2right" if forward else "right2left")
        return [*made, replace(rnn, spec=spec, x=x).node()]

    def of(self, name: str) -> tuple[Way, ...]:
        """Returns the sources of a value in order; the value itself if an operator computes it."""
        return self._known.get(name, ((name, self.turned.get(name, False)),))

    def follow(self, node: Node) -> None:
        known = OPERATORS.get(node.op)
        if node.op in ("Concat", "Where"):
            sources = node.inputs[node.op == "Where" :]
        else:
            sources = node.inputs[: known is not None and known.keeps]
        for name in filter(None, node.outputs if sources else ()):
            if ways := self._move(name, node, sources):
                self._known[name] = ways

    def _move(self, name: str, node: Node, sources: Sequence[str]) -> tuple[Way, ...]:
        """Returns the sources of a node's output, () if the node computes new elements."""
        every = [*map(self.of, sources)]
        layers = [ways for ways in every if all(each in self.turned for each, _ in ways)]
        if node.op == "Concat" and self._is_last(node, node.attrs.axis):
            return tuple(way for ways in every for way in ways)
        if len(sources) > 1:  # a layer's steps, and values for masked steps
            return layers[0] if len(layers) == 1 else ()
        if node.op == "Gather":  # with one index per step, it restores masked steps
            joined = self.graph.producer(sources[0], "Concat")
            return every[0] if layers and joined is not None else ()
        if node.op == "Transpose":
            perm = node.attrs.perm
            return every[0] if perm and perm[-1] == len(perm) - 1 else ()
        if node.op == "Slice":
            steps = self.graph.constants.get(node.input(4))
            if steps is None or not np.array_equal(steps.reshape(-1), [-1]):
                return ()
        if node.op in ("Slice", "ReverseSequence"):
            return tuple((each, not turned) for each, turned in every[0])
        if OPERATORS[node.op].kind not in ("view", "sequences") and node.op != "Compress":
            return ()
        widths = [self.graph.types[each].counts[-1:] for each in (name, node.inputs[0])]
        return () if all(widths) and widths[0] != widths[1] else every[0]

    def _is_last(self, node: Node, axis: int) -> bool:
        rank = self.graph.types[node.outputs[0]].rank
        return axis == -1 or rank is not None and axis == rank - 1


# The recurrent layers of a file as whole stacks, whose weights are converted.


class Stacks(dict[str, PivotLayer]):
    """The stacks of recurrent layers by name.

    ``omitted``: the recurrent layers of the file that are in no stack. ``advice``: a text for
    messages about gate functions that a layout cannot express.
    """

    omitted: tuple[Refusal, ...] = ()
    advice = ""


def read_stacks(
    path: StrPath,
    params: StrPath | None = None,
    semantics: str = "documented",
    node: str | None = None,
    recurrent_activation: str | None = None,
    rules: Mapping[str, Any] | None = None,
) -> Stacks:
    """Returns the stacks in a file. In a file of weights, each stack has the name of its module;
    for a model see `stacks_of`.

    ``node``: return only the stack of this name. ``recurrent_activation``: "sigmoid" states the
    function of the gates for a file of weights that Keras before 2.3 wrote; the default of that
    version was hard_sigmoid. Raises the errors that `load` raises, `UnsupportedError` if the file
    has no stack, and `ShapeError` if the arrays of its only stack do not fit.
    """
    arrays = arrays_in(path)
    if arrays is None:
        if recurrent_activation:
            raise UnsupportedError(
                f"{path}: the model names its functions; recurrent_activation is for"
                " weights without a model"
            )
        return stacks_of(load(path, params, semantics, rules=rules), node)
    with reading(path):
        found = dict(itertools.chain(*(each.layers_among(arrays).items() for each in ADAPTERS)))
    if not found:
        raise UnsupportedError(
            f"{path}: no recurrent layer is known by its names: expected names as PyTorch's,"
            " weight_ih_l0, weight_hh_l0, or as Keras's, kernel, recurrent_kernel;"
            " onernn.convert_weights takes arrays of other layouts by name"
        )
    if node is not None:
        found = {node: found[node]} if node in found else _refuse(path, node, found)
    layers, omitted = Stacks(), list[Refusal]()
    for name, read in found.items():
        try:
            with reading(path):
                layers[name] = read()
        except (ShapeError, UnsupportedError) as error:
            if len(found) == 1:
                where = f"{path}: {name}" if name else path
                error.args = (f"{where}: {error}", *error.args[1:])
                raise
            omitted.append(Refusal(str(error), f"layer {name!r}"))
    if not layers:
        raise UnsupportedError(f"{path}: none of its recurrent layers can be read:", omitted)
    layers.omitted = tuple(omitted)
    assumed = {name for name, each in layers.items() if each.spec.activations}
    if recurrent_activation == "sigmoid" and assumed:
        for name in assumed:
            usual = replace(layers[name].spec, activations=None)
            layers[name] = PivotLayer.of(usual, layers[name].weights)
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
    """Returns a model's stacks of recurrent layers by the values that they compute. If the file
    does not contain these values, the keys are the file's names of the layers. Weights that several
    layers share are returned once.

    ``node``: return only the stack that computes this value or has this name. Raises
    `UnsupportedError` if there is none.
    """
    fused = fuse(join_layers(without_states(fuse(model).model))).model
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
        # If one layer of the file becomes several stacks, their names get numbers.
        numbers = (f"{key}#{at}" if at > 1 else key for at in itertools.count(1))
        name = next(each for each in numbers if each not in result)
        result[name], called[name] = stack, [rnn.y, *native]
    if node is not None and result:
        names = [node] if node in result else [name for name in result if node in called[name]]
        chosen = Stacks((name, result[name]) for name in names)
        return chosen or _refuse(model.name, node, result)
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
    """Yields a refusal for each recurrent layer and each loop over cells that fusion did not turn
    into a layer.
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
    """Returns the file's operators of recurrent types that are not in ``known``, each with its node
    in the graph.

    If a loop or branch became a layer, the operators inside it count as known.
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


def _refuse(path: StrPath, node: str, layers: Iterable[str]) -> NoReturn:
    listed = ", ".join(map(repr, layers)) + did_you_mean(node, layers)
    raise UnsupportedError(f"{path}: no such recurrent layer: {node!r}; there are: {listed}")


def _same(one: PivotLayer, other: PivotLayer) -> bool:
    arrays, others = ([weights.arrays for weights in each.weights] for each in (one, other))
    return one.spec == other.spec and all(
        a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
        for a, b in zip(arrays, others, strict=False)
    )


def without_states(model: Graph) -> Graph:
    """Returns the model in which no layer starts from a given state or passes its state on.

    Consecutive layers then form one stack, whatever the model does with their states, because
    weights do not depend on states. A node that reads a final state reads an input of the graph
    instead.
    """
    nodes, inputs, tops = list[Node](), list[Value](), list[Value]()
    for node in model.nodes:
        if node.op == "Rnn":
            rnn = Recurrent.of(node)
            inputs += [Value(name) for name in node.outputs[1:] if model.is_read(name)]
            y = rnn.y or f"{node.outputs[1]}{JOINED}"
            alone = Recurrent(rnn.spec, rnn.weights, rnn.x, y, attention=rnn.attention)
            node = replace(alone, origin=node.origin).node()
            tops += [] if model.is_read(rnn.y) else [Value(y)]
        nodes.append(node)
    return _replace_nodes(model, nodes, inputs, tops)
