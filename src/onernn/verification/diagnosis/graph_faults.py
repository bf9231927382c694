"""Known faults around recurrent layers and of other operators, as changes of a graph."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations, permutations
from typing import Any

import numpy as np

from onernn.adapters.common.fault import Fault
from onernn.fuse_passes.views import is_view
from onernn.ir.activations import NAMES
from onernn.ir.arrays import Array, Int64
from onernn.ir.graph import Graph, Node
from onernn.ir.ragged import Batch, Ragged, data_of
from onernn.ir.records import cached_property, dataclass
from onernn.ir.rnn import Recurrent
from onernn.ir.spec import Cell, Direction
from onernn.verification.diagnosis.cause import in_order
from onernn.verification.diagnosis.faults import LayerFault
from onernn.verification.tracing import (
    Trial,
    Values,
    completed,
    recurrent_layers,
    with_nodes,
)

Layers = Mapping[str, Recurrent]
"""Recurrent layers of one layer and direction by their y."""


@dataclass(frozen=True, eq=False)
class Site:
    """The place of a fault: a trial's graph, or one derived from it, and some of its layers."""

    trial: Trial
    graph: Graph
    group: tuple[str, ...]

    @cached_property
    def layers(self) -> Layers:
        """The recurrent layers of the group."""
        return recurrent_layers(self.graph, self.group)

    @cached_property
    def values(self) -> Values:
        """The values of the run, and of nodes that another fault put into the graph."""
        return completed(self.graph, self.trial.values)

    def input(self, layer: Recurrent) -> Any:
        """The input of a layer, None if it is not known."""
        return self.values.get(layer.x)

    def nodes(
        self, new: Mapping[str, list[Node]], constants: Mapping[str, Array] | None = None
    ) -> Graph | None:
        """The graph with other nodes in the place of some; None for none."""
        return with_nodes(self.graph, new, constants) if new else None

    def changed(self, change: Callable[[Recurrent], Recurrent | None]) -> Graph | None:
        """The graph with each layer of the group changed for which ``change`` gives one."""
        new = ((name, change(rnn)) for name, rnn in self.layers.items())
        return self.nodes({name: [rnn.node()] for name, rnn in new if rnn is not None})


GraphFault = Fault[Site]
"""``apply`` gives the graph that has it."""


def in_cells(fault: LayerFault, cell: Cell) -> GraphFault:
    """The fault in each layer of a group that has this cell."""

    def changed(rnn: Recurrent) -> Recurrent | None:
        layer = fault.apply((rnn.spec, rnn.layers[0])) if rnn.spec.cell is cell else None
        return layer and replace(rnn, spec=layer[0], weights=layer[1])

    return Fault(fault.id, fault.text, lambda site: site.changed(changed))


def in_graph(fault: Fault[Graph]) -> GraphFault:
    """The fault, wherever the layers of a site are."""
    return Fault(fault.id, fault.text, lambda site: fault.apply(site.graph))


def graph_faults(site: Site) -> Iterator[GraphFault]:
    """The faults around the layers of a site, also those that are made in several ways."""
    yield from _dropped_states()
    yield from _returned_states(site)
    yield from _given_states(site)
    yield from _exchanged(site)
    yield from _directions()
    text = "the backward direction begins at the end of the padding, not of each sentence"
    for zeros in (True, False):
        yield Fault("reverse_padded", text, partial(_reversed_padded, zeros=zeros))
    yield from _masks(site)


# --- states


def _returned_states(site: Site) -> Iterator[GraphFault]:
    """Final states as the outputs that hand back an input."""
    inputs = {value.name for value in site.graph.inputs}
    outputs = [value.name for value in site.graph.outputs]
    same = [name for name in outputs if _source(site.graph, name) in inputs]
    kinds = [("hidden", 0)]
    if site.layers and all(rnn.spec.cell is Cell.LSTM for rnn in site.layers.values()):
        kinds.append(("cell", 1))
    for count in range(len(kinds), 0, -1):  # both first
        for chosen in permutations(same, count):
            for states in combinations(kinds, count):
                pairs = list(zip(chosen, states, strict=True))
                said = " and ".join(f"{kind} state as {name!r}" for name, (kind, _) in pairs)
                places = {name: index for name, (_, index) in pairs}
                yield Fault(
                    "state_returned",
                    f"it returns the final {said}",
                    partial(_returning, places=places),
                )


def _returning(site: Site, places: Mapping[str, int]) -> Graph | None:
    """The graph with final states of all layers as outputs: of the kind h (0) or c (1)."""
    new: dict[str, list[Node]] = {}
    finals = {y: list(rnn.finals) for y, rnn in site.layers.items()}
    after: list[Node] = []
    constants: dict[str, Array] = {}
    for output, index in places.items():
        names = []
        for y, ends in finals.items():
            ends[index] = ends[index] or f"{y}.final{index}"
            names.append(ends[index])
        rnn = next(iter(site.layers.values()))
        width = (rnn.spec.recurrent_size, rnn.spec.hidden_size)[index]
        shape = data_of(site.values[output]).shape
        if shape[-1:] != (width,) or len(shape) not in (2, 3, 4):
            return None
        joined, sizes = f"{output}.joined", f"{output}.sizes"
        constants[sizes] = np.array([*shape[:-2], -1, width][-len(shape) :])
        after += [
            Node("Concat", tuple(names), (joined,), {"axis": 0}),
            Node("Reshape", (joined, sizes), (output,)),
        ]
    for y, rnn in site.layers.items():
        new[y] = [rnn.with_states(rnn.states, tuple(finals[y])).node()]
    kept = [each for each in site.graph.nodes if places.keys().isdisjoint(each.outputs)]
    nodes = [*(part for node in kept for part in new.get(node.outputs[0], [node])), *after]
    return in_order(site.graph, nodes, site.graph.inputs, {**site.graph.constants, **constants})


def _dropped_states() -> Iterator[GraphFault]:
    for absent, what in (({"h": "", "c": ""}, ""), ({"h": ""}, "hidden "), ({"c": ""}, "cell ")):

        def apply(site: Site, absent: dict[str, Any] = absent) -> Graph | None:
            held = [rnn for rnn in site.layers.values() if any(getattr(rnn, k) for k in absent)]
            both = any(rnn.h and rnn.c for rnn in site.layers.values())
            if len(absent) == 2 and not both and any(rnn.c for rnn in held):
                return None
            return site.nodes({rnn.y: [replace(rnn, **absent).node()] for rnn in held})

        yield Fault("h0_dropped", f"the initial {what}state is dropped", apply)


def _given_states(site: Site) -> Iterator[GraphFault]:
    """Inputs as the initial states of layers that lack them; first those that no node reads."""
    bare = _bare(site)
    if not bare:
        return
    fed = {name for node in site.graph.nodes for name in node.inputs}
    arrays = {
        k: data_of(site.trial.all_inputs[k])
        for k in sorted(site.trial.all_inputs, key=lambda name: name in fed)
    }
    states = [k for k, a in arrays.items() if a.dtype.kind == "f" and a.ndim in (2, 3, 4)]
    only_cell = any(rnn.h for rnn in bare)
    cells = all(rnn.spec.cell is Cell.LSTM for rnn in bare)
    ends = ["", *_lengths(site.trial.all_inputs)]  # ONNX: empty sentences end in zeros
    for h in [""] if only_cell else states:
        for c in ("", *(name for name in states if name != h)) if cells else ("",):
            if names := tuple(filter(None, (h, c))):
                kind, said = "cell " if only_cell else "", " and ".join(map(repr, names))
                text = f"the input {said} is taken as the initial {kind}state"
                for each in ends:
                    begun = partial(_begun, names=names, only_cell=only_cell, lengths=each)
                    yield Fault("h0_dropped", text, begun)


def _bare(site: Site) -> list[Recurrent]:
    return [rnn for rnn in site.layers.values() if not all(rnn.states)]


def _begun(site: Site, names: tuple[str, ...], only_cell: bool, lengths: str) -> Graph | None:
    """Layers that begin with these inputs: (L*D, N, O) of all layers, or of these only.

    ``lengths``: of sentences; those of length zero begin with zeros.
    """
    bare, places = _bare(site), {name: index for index, name in enumerate(site.trial.parts)}
    words = _lengths(site.trial.all_inputs)[lengths] > 0 if lengths else None
    constants: dict[str, Array] = {}
    new: dict[str, list[Node]] = {}
    for index, rnn in enumerate(bare):
        x = site.input(rnn)
        sentences = len(x) if isinstance(x, Ragged) else x.shape[1]
        widths = (rnn.spec.recurrent_size, rnn.spec.hidden_size)[only_cell:]
        begin = dict[str, Array]()
        for name, width in zip(names, widths, strict=False):
            state = data_of(site.trial.all_inputs[name])
            every = len(state.reshape(-1, *state.shape[-2:])) == len(places)
            place, count = (places[rnn.y], len(places)) if every else (index, len(bare))
            if (rows := _rows(state, place, count, (sentences, width))) is None:
                return None
            if words is not None:
                if len(words) != sentences:
                    return None
                rows = rows * words[:, None]
            begin[f"{rnn.y}.given.{name}"] = rows
        constants |= begin
        states = (*rnn.states[:only_cell], *begin)
        new[rnn.y] = [rnn.with_states(states, rnn.finals).node()]
    return site.nodes(new, constants)


def _rows(state: Array, index: int, layers: int, shape: tuple[int, int]) -> Array | None:
    """(1, 1, N, O) of one layer in a state (L*D, N, O), (L, D, N, O) or (N, O), if it fits."""
    rows = state.reshape(-1, *state.shape[-2:])
    if rows.shape[1:] != shape or len(rows) not in (1, layers):
        return None
    return rows[index % len(rows)][None, None].astype(np.float32)


# --- layers in each other's place


def _exchanged(site: Site) -> Iterator[GraphFault]:
    def states_swapped(site: Site) -> Graph | None:
        return site.changed(
            lambda rnn: (
                replace(rnn, h=rnn.c, c=rnn.h)
                if rnn.h and rnn.c and not rnn.spec.projection_size
                else None
            )
        )

    text = "the initial hidden and the initial cell state are exchanged"
    yield Fault("states_exchanged", text, states_swapped)
    ways = ("forward", "backward")
    sides = [[n for n, part in site.trial.parts.items() if part.direction == way] for way in ways]
    depth = max(map(len, sides))
    if len(site.group) < len(site.trial.parts) or depth < 2:
        return
    orders = [("in the reverse order", [{k: len(s) - 1 - k for k in range(len(s))} for s in sides])]
    for a, b in combinations(range(depth), 2) if depth > 2 else ():
        pair = {a: b, b: a}
        orders.append(
            (f"exchanged, {a + 1} with {b + 1}", [pair if len(s) > b else {} for s in sides])
        )
    for how, order in orders:
        pairs = ((side, each.items()) for side, each in zip(sides, order, strict=True))
        turned = {side[k]: side[o] for side, each in pairs for k, o in each if k != o}
        text = f"the initial states of the layers are {how}"
        yield Fault("states_exchanged", text, partial(_states_of_others, turned=turned))
        text = f"the weights of the layers are {how}"
        yield Fault("layers_exchanged", text, partial(_weights_of_others, turned=turned))


def _states_of_others(site: Site, turned: Mapping[str, str]) -> Graph | None:
    layers = {name: site.layers[name] for name in (*turned, *turned.values())}
    pairs = [(layers[name], layers[other]) for name, other in turned.items()]
    if any(len(one.states) != len(two.states) for one, two in pairs):
        return None
    new = {one.y: replace(one, h=two.h, c=two.c).node() for one, two in pairs}
    nodes = [new.get(node.outputs[0], node) for node in site.graph.nodes]
    # Raises where a decoder's states are made of its encoder's.
    return in_order(site.graph, nodes, site.graph.inputs, site.graph.constants)


def _weights_of_others(site: Site, turned: Mapping[str, str]) -> Graph | None:
    pairs = [(site.layers[name], site.layers[other]) for name, other in turned.items()]
    if any(replace(one.spec, direction=two.spec.direction) != two.spec for one, two in pairs):
        return None
    return site.nodes({one.y: [replace(one, weights=two.weights).node()] for one, two in pairs})


def _directions() -> Iterator[GraphFault]:
    turned: dict[str, Direction] = {"left2right": "right2left", "right2left": "left2right"}

    def other_way(site: Site) -> Graph | None:
        return site.changed(
            lambda rnn: replace(rnn, spec=replace(rnn.spec, direction=turned[rnn.spec.direction]))
        )

    yield Fault("direction_swapped", "it runs the other way", other_way)
    yield DIRECTIONS_EXCHANGED
    text = "the outputs of the backward direction stay in reverse order"
    yield Fault("direction_swapped", text, _outputs_reversed)
    for states in (False, True):
        also = " and final states" if states else ""
        text = f"the outputs{also} of the forward and the backward direction change places"
        yield Fault("direction_swapped", text, partial(_outputs_swapped, states=states))


def _ways(site: Site) -> list[tuple[str, str]]:
    """The forward and the backward direction of each layer that has both."""
    pairs = [(f, f.removesuffix("forward") + "backward") for f in site.layers if ".forward" in f]
    return [(f, b) for f, b in pairs if b in site.layers]


def _weights_of_other_ways(site: Site) -> Graph | None:
    pairs = _ways(site)
    return _weights_of_others(site, dict([*pairs, *((b, f) for f, b in pairs)]))


DIRECTIONS_EXCHANGED = Fault(
    "direction_swapped",
    "the weights of the forward and the backward direction are exchanged",
    _weights_of_other_ways,
)


def _outputs_reversed(site: Site) -> Graph | None:
    """As of two layers, one of which reads the steps in reverse order and is not turned back."""
    new, constants = dict[str, list[Node]](), dict[str, Array]()
    for name, rnn in site.layers.items():
        if rnn.spec.direction != "right2left":
            continue
        turned = f"{name}.turned"
        turn = Node("SequenceReverse", (turned,), (name,))
        if not isinstance(site.input(rnn), Ragged):
            slots = {"starts": -1, "ends": -(2**62), "axes": 0, "steps": -1}
            constants |= {f"{turned}.{slot}": np.array([value]) for slot, value in slots.items()}
            turn = Node("Slice", (turned, *(f"{turned}.{slot}" for slot in slots)), (name,))
        new[name] = [replace(rnn, y=turned).node(), turn]
    return site.nodes(new, constants)


def _outputs_swapped(site: Site, states: bool) -> Graph | None:
    pairs, new = _ways(site), dict[str, list[Node]]()
    for node in site.graph.nodes:
        names = node.inputs
        if node.op != "Concat" or len(names) != 2:
            continue
        if names in pairs or (states and _states_of(names, pairs)):
            new[node.outputs[0]] = [replace(node, inputs=names[::-1])]
    return site.nodes(new)


def _states_of(names: tuple[str, ...], pairs: list[tuple[str, str]]) -> bool:
    return tuple(name.rpartition(".")[0] for name in names) in pairs


# --- where sentences end


def _reversed_padded(site: Site, zeros: bool) -> Graph | None:
    """Backward layers over sentences, as if they began at the end of the padding.

    ``zeros``: zeros stand there, not what the batch has there.
    """
    constants: dict[str, Array] = {}
    new: dict[str, list[Node]] = {}
    for name, rnn in site.layers.items():
        x = site.input(rnn)
        if rnn.spec.direction != "right2left" or not isinstance(x, Ragged) or rnn.attention:
            continue
        source = site.graph.producer(rnn.x)
        padded, before = f"{name}.padded", list[Node]()
        if zeros:
            longest = int(x.lengths.max(initial=0))
            like = f"{name}.like"
            constants[like] = np.zeros((_padded_time(site, source, longest), len(x), 1))
            before = [Node("SequencePad", (rnn.x, like), (padded,), {"time_major": 1})]
        elif source is None or source.op != "SequenceUnpad":
            continue
        elif source.attributes.get("time_major"):
            padded = source.inputs[0]
        else:
            before = [Node("Transpose", source.inputs[:1], (padded,), {"perm": (1, 0, 2)})]
        lengths, dense, words = f"{name}.lengths", f"{name}.dense", f"{name}.words"
        constants[lengths] = x.lengths
        new[name] = [
            *before,
            replace(rnn, x=padded, y=dense).node(),
            Node("SequenceUnpad", (dense, lengths), (words,), {"time_major": 1}),
            Node("SequenceLike", (words, rnn.x), (name,)),
        ]
    return site.nodes(new, constants)


def _padded_time(site: Site, source: Node | None, longest: int) -> int:
    """T of the padded batch that sentences come from; the longest sentence if there is none."""
    if source is None or source.op != "SequenceUnpad":
        return longest
    shape = data_of(site.values[source.inputs[0]]).shape
    return int(shape[0 if source.attributes.get("time_major") else 1])


def _masks(site: Site) -> Iterator[GraphFault]:
    yield Fault("mask_ignored", "the sentences' lengths are ignored", _unmasked)
    for name, (says, _) in _ends(site).items():
        for only_backward, id, text in (
            (False, "mask_ignored", "the sentences end where"),
            (True, "reverse_padded", "the backward direction begins where"),
        ):
            for zeros in (False, True):  # ONNX: empty sentences end in zeros
                apply = partial(_masked, name=name, zeros=zeros, only_backward=only_backward)
                yield Fault(id, f"{text} {name!r} {says}", apply)


def _unmasked(site: Site) -> Graph | None:
    whole: dict[str, Array] = {}
    for node in site.graph.nodes:
        if node.op == "SequenceUnpad" and _reaches(site.graph, node, site.layers):
            shape = data_of(site.values[node.inputs[0]]).shape
            t, n = shape[:2] if node.attributes.get("time_major") else shape[1::-1]
            whole[node.inputs[1]] = np.full(n, t, np.int64)
    for name, value in list(whole.items()):  # what else is made of them, too
        source = _source(site.graph, name)
        if source != name and data_of(site.values[source]).size == value.size:
            whole[source] = value.astype(data_of(site.values[source]).dtype)
    return with_values(site.graph, whole) if whole else None


def _source(graph: Graph, name: str) -> str:
    """The value that this one holds in another dtype, shape or order."""
    while (node := graph.producer(name)) and (node.op == "Cast" or is_view(node.op)):
        name = node.inputs[0]
    return name


def with_values(graph: Graph, values: Mapping[str, Array]) -> Graph:
    """The graph with these constants in place of the values of these names."""
    new = {}
    for node in graph.nodes:
        if any(name in values for name in node.inputs):
            inputs = tuple(f"{name}.given" if name in values else name for name in node.inputs)
            new[node.outputs[0]] = [replace(node, inputs=inputs)]
    return with_nodes(graph, new, {f"{name}.given": array for name, array in values.items()})


def _masked(site: Site, name: str, zeros: bool, only_backward: bool) -> Graph | None:
    """Dense layers run over sentences of the lengths in an input; None if these do not fit.

    ``zeros``: sentences of length zero end in zeros, not in their initial state.
    """
    _, lengths = _ends(site).get(name, ("", None))
    if lengths is None or lengths.min(initial=0) < 0:
        return None
    words = (lengths > 0).astype(np.float32)[:, None]
    constants: dict[str, Array] = {"lengths.given": lengths, "words.given": words}
    dense = {
        y: rnn
        for y, rnn in site.layers.items()
        if isinstance(site.input(rnn), np.ndarray) and not rnn.attention
    }
    backward = {y: rnn for y, rnn in dense.items() if rnn.spec.direction == "right2left"}
    if not only_backward and len(backward) == len(dense):
        every = recurrent_layers(site.graph).values()
        if any(isinstance(site.input(rnn), Ragged) for rnn in every):
            return None  # forward layers have their lengths: only the padding is wrong
    new: dict[str, list[Node]] = {}
    for y, rnn in (backward if only_backward else dense).items():
        x = site.input(rnn)
        if x.ndim != 3 or x.shape[1] != len(lengths) or lengths.max(initial=0) > x.shape[0]:
            continue
        ragged, output, major = f"{y}.ragged", f"{y}.y", {"time_major": 1}
        whole = tuple(f"{end}.whole" if zeros and end else end for end in rnn.finals)
        new[y] = [
            Node("SequenceUnpad", (rnn.x, "lengths.given"), (ragged,), major),
            replace(rnn, x=ragged, y=output).with_states(rnn.states, whole).node(),
            Node("SequencePad", (output, rnn.x), (y,), major),
        ]
        if zeros:
            pairs = zip(whole, rnn.finals, strict=True)
            new[y] += [Node("Mul", (w, "words.given"), (end,)) for w, end in pairs if end]
    return site.nodes(new, constants)


def _ends(site: Site) -> dict[str, tuple[str, Int64]]:
    """Ends of dense sequences, by the name of a value: lengths, given or computed, and words
    that are 0 behind them, which may have been masked.
    """
    dense = (x for x in map(site.input, site.layers.values()) if isinstance(x, np.ndarray))
    batches = {x.shape[1] for x in dense if x.ndim == 3}
    inputs = site.trial.all_inputs
    ends = {name: ("says", lengths) for name, lengths in _lengths(inputs).items()}
    for name, value in site.values.items():
        if name in ends or not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
            continue
        if value.ndim == 1 and len(value) in batches:
            ends[name] = "says", value.astype(np.int64)
        elif value.ndim == 2 and len(value) in batches and name in inputs:
            words = np.logical_or.accumulate(value[:, ::-1] != 0, axis=1)
            ends[name] = "is 0", words.sum(axis=1)
    return ends


def _lengths(all_inputs: Mapping[str, Batch]) -> dict[str, Int64]:
    """Inputs that may be sentence lengths: those of ragged inputs, and whole numbers (N,)."""
    lengths: dict[str, Int64] = {}
    for name, value in all_inputs.items():
        array = value.lengths if isinstance(value, Ragged) else np.asarray(value)
        if array.ndim == 1 and array.size and array.dtype.kind in "iuf":
            whole = array.astype(np.int64)
            if (whole == array).all() and whole.min() >= 0:
                lengths[name] = whole
    return lengths


def _reaches(graph: Graph, node: Node, names: Container[str]) -> bool:
    """Whether a value goes into one of these nodes, through any others."""
    reached = set(node.outputs)
    for each in graph.nodes:
        if not reached.isdisjoint(each.inputs):
            if each.outputs[0] in names:
                return True
            reached.update(filter(None, each.outputs))
    return False


# --- other operators


_FUNCTIONS = tuple(NAMES[name] for name in ("relu", "tanh", "sigmoid"))
_EPSILONS = (1e-3, 1e-5, 1e-6, 1e-12)
"""Keras; PyTorch and ONNX; Paddle 1 and Keras 3; BERT."""
_NORMALIZED = {"Softmax": "LogSoftmax", "LogSoftmax": "Softmax"}


def operator_faults(graph: Graph) -> Iterator[tuple[str, Fault[Graph]]]:
    """The label of an operator, and a fault of it: a function left out, added or taken for
    another, an epsilon, a square weight transposed.
    """
    for node in graph.nodes:
        for fault in _of_operator(graph, node):
            yield node.label, fault
    for op in _FUNCTIONS:  # as in each step of an unrolled cell
        count = sum(node.op == op for node in graph.nodes)
        for other in _FUNCTIONS if count > 1 else ():
            if other != op:
                apply = partial(_everywhere, op=op, other=other)
                yield f"all {count} places", Fault("operator_changed", f"{op} is {other}", apply)


def _everywhere(graph: Graph, op: str, other: str) -> Graph:
    nodes = (replace(node, op=other) if node.op == op else node for node in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


def _in_place(
    id: str, text: str, *new: Node, constants: Mapping[str, Array] | None = None
) -> Fault[Graph]:
    """Nodes in the place of the one that makes the last one's output."""

    def apply(graph: Graph) -> Graph | None:
        known = graph.producer(name) is not None
        return with_nodes(graph, {name: new}, constants) if known else None

    name = new[-1].outputs[0]
    return Fault(id, text, apply)


def _of_operator(graph: Graph, node: Node) -> Iterator[Fault[Graph]]:
    (name, *_), before = node.outputs, f"{node.outputs[0]}.before"
    if node.op in _FUNCTIONS:
        without = Node("Identity", node.inputs, node.outputs, origin=node.origin)
        yield _in_place("operator_added", f"{node.op} is left out", without)
        for other in _FUNCTIONS:
            if other != node.op:
                turned = Node(other, node.inputs, node.outputs, origin=node.origin)
                yield _in_place("operator_changed", f"{node.op} is {other}", turned)
    elif _sums(graph, node):
        first = replace(node, outputs=(before,))
        for other in _FUNCTIONS:
            new = (first, Node(other, (before,), (name,)))
            yield _in_place("operator_missing", f"{other} follows", *new)
    if node.op in _NORMALIZED:
        other = _NORMALIZED[node.op]
        yield _in_place("operator_changed", f"{node.op} is {other}", replace(node, op=other))
    for epsilon in _EPSILONS if hasattr(node.attrs, "epsilon") else ():
        if not np.isclose(epsilon, node.attrs.epsilon, rtol=1e-3):
            norm = replace(node, attributes={**node.attributes, "epsilon": epsilon})
            yield _in_place("attribute_changed", f"epsilon is {epsilon:g}", norm)
    for slot, weight in enumerate(node.inputs):
        array = graph.constants.get(weight)
        if node.op in ("MatMul", "Gemm") and array is not None and array.ndim == 2:
            rows, columns = array.shape
            if rows == columns > 1:
                inputs = (*node.inputs[:slot], f"{name}.turned", *node.inputs[slot + 1 :])
                text = f"the weight {weight!r} is transposed"
                turned = replace(node, inputs=inputs)
                across = np.ascontiguousarray(array.T)
                yield _in_place(
                    "weight_transposed", text, turned, constants={f"{name}.turned": across}
                )


def _sums(graph: Graph, node: Node) -> bool:
    """Whether it adds, or has weights, as products and norms do: a function may follow it."""
    if len(node.outputs) > 1:
        return False
    weights = [graph.constants[each] for each in node.inputs if each in graph.constants]
    weighted = any(each.dtype.kind == "f" and each.ndim > 0 for each in weights)
    return node.op == "Add" or (weighted and node.op not in ("Gather", "Rnn"))
