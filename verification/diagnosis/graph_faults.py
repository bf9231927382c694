"""What goes wrong around recurrent layers, as changes of a graph: states, masks, directions."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from onernn.core.arrays import Array, Int64
from onernn.core.graph import Graph, Node
from onernn.core.ragged import Batch, Ragged, data_of
from onernn.core.rnn import Recurrent
from onernn.core.spec import Cell, Direction
from onernn.core.weights import RnnWeights
from onernn.fuse_passes.views import is_view
from onernn.verification.diagnosis.cause import in_order
from onernn.verification.diagnosis.gate_faults import Change
from onernn.verification.graph_changes import recurrent_layers, with_layers, with_nodes
from onernn.verification.layerwise import Traced

Layers = Mapping[str, Recurrent]
"""By their y, each of one layer and direction."""


class Hypothesis(NamedTuple):
    """A cause, what to say of it after "matches when", and the graph in which it is so.

    ``whole``: a model before fusion, not the traced graph with some nodes changed. ``stated``: the
    text says what the model has, not when it matches. ``place``: the operator that it is about,
    where that is no recurrent layer.
    """

    cause: str
    text: str
    graph: Graph
    whole: bool = False
    stated: bool = False
    place: str = ""


def with_change(
    graph: Graph, group: Iterable[str], change: Change, other: Mapping[str, RnnWeights]
) -> Graph | None:
    """The graph with the layers of a group changed; None where the change is about none of them.

    ``other``: by a layer's name, its counterpart's weights in the other model.
    """
    chosen = set(group)

    def changed(rnn: Recurrent) -> Recurrent | None:
        if rnn.y not in chosen:
            return None
        made = change(rnn.spec, rnn.layers[0], other.get(rnn.y))
        return made and replace(rnn, spec=made[0], weights=made[1])

    return with_layers(graph, changed)


def graph_faults(
    traced: Traced, group: tuple[str, ...], given: Mapping[str, Batch]
) -> Iterator[Hypothesis]:
    """The faults around these layers. ``given``: all inputs there are, also those nobody takes."""
    layers = recurrent_layers(traced.graph, group)
    yield from _dropped_states(traced, layers)
    yield from _given_states(traced, layers, given)
    yield from _exchanged(traced, layers)
    yield from _directions(traced, layers)
    yield from _reversed_padded(traced, layers)
    yield from _masks(traced, layers, given)


def _dropped_states(traced: Traced, layers: Layers) -> Iterator[Hypothesis]:
    both = any(rnn.h and rnn.c for rnn in layers.values())
    ways: list[tuple[dict[str, Any], str]] = [
        ({"h": "", "c": ""}, ""),
        ({"h": ""}, "hidden "),
        ({"c": ""}, "cell "),
    ]
    for absent, what in ways:
        held = [rnn for rnn in layers.values() if any(getattr(rnn, name) for name in absent)]
        if held and (len(absent) == 1 or both or not any(rnn.c for rnn in held)):
            new = {rnn.y: [replace(rnn, **absent).node()] for rnn in held}
            text = f"the initial {what}state is dropped"
            yield Hypothesis("h0_dropped", text, with_nodes(traced.graph, new))


def _given_states(
    traced: Traced, layers: Layers, given: Mapping[str, Batch]
) -> Iterator[Hypothesis]:
    """Inputs as the initial states of layers that lack them; first those that nobody reads."""
    bare = [rnn for rnn in layers.values() if not all(rnn.states)]
    if not bare:
        return
    fed = _inputs_read(traced.graph)
    arrays = {name: data_of(given[name]) for name in sorted(given, key=lambda name: name in fed)}
    states = {k: a for k, a in arrays.items() if a.dtype.kind == "f" and a.ndim in (2, 3, 4)}
    both = [rnn.spec.cell is Cell.LSTM for rnn in bare]
    kept = {rnn.h for rnn in bare if rnn.h}
    firsts = [""] if kept else list(states)
    for h in firsts:
        for c in ("", *(name for name in states if name != h)) if all(both) else ("",):
            if names := tuple(filter(None, (h, c))):
                yield from _begun(traced, bare, {n: states[n] for n in names}, bool(kept), given)


def _begun(
    traced: Traced,
    bare: list[Recurrent],
    states: Mapping[str, Array],
    only_cell: bool,
    given: Mapping[str, Batch],
) -> Iterator[Hypothesis]:
    """Layers that begin with these inputs: (L*D, N, O) of all layers, or of these alone."""
    places = {name: at for at, name in enumerate(traced.parts)}
    constants: dict[str, Array] = {}
    new: dict[str, list[Node]] = {}
    for at, rnn in enumerate(bare):
        x = traced.values[rnn.x]
        sentences = len(x) if isinstance(x, Ragged) else x.shape[1]
        widths = (rnn.spec.recurrent_size, rnn.spec.hidden_size)[only_cell:]
        begin = dict[str, Array]()
        for (name, state), width in zip(states.items(), widths, strict=False):
            every = len(state.reshape(-1, *state.shape[-2:])) == len(places)
            place, count = (places[rnn.y], len(places)) if every else (at, len(bare))
            if (rows := _rows(state, place, count, (sentences, width))) is None:
                return
            begin[f"{rnn.y}.given.{name}"] = rows
        constants |= begin
        names = (*rnn.states[:only_cell], *begin)
        new[rnn.y] = [rnn.with_states(names, rnn.finals).node()]
    kind = "cell " if only_cell else ""
    told = " and ".join(map(repr, states))
    text = f"the input {told} is taken as the initial {kind}state"
    yield Hypothesis("h0_dropped", text, with_nodes(traced.graph, new, constants))
    for _, lengths in _lengths(given):  # ONNX: empty sentences end in zeros
        words = (lengths > 0)[:, None]
        kept = {k: a * words if a.shape[2] == len(lengths) else a for k, a in constants.items()}
        yield Hypothesis("h0_dropped", text, with_nodes(traced.graph, new, kept))


def _exchanged(traced: Traced, layers: Layers) -> Iterator[Hypothesis]:
    """Initial states, or whole layers, in each other's place."""
    held = [rnn for rnn in layers.values() if rnn.h and rnn.c and not rnn.spec.projection_size]
    if held:
        text = "the initial hidden and the initial cell state are exchanged"
        turned = {rnn.y: [replace(rnn, h=rnn.c, c=rnn.h).node()] for rnn in held}
        yield Hypothesis("states_exchanged", text, with_nodes(traced.graph, turned))
    names = [name for name in traced.parts if name in layers]
    if len(names) < len(traced.parts) or len(names) < 2:
        return
    sides = [[n for n in names if traced.parts[n].direction == d] for d in ("forward", "backward")]
    twins = {a: layers[b] for side in sides for a, b in zip(side, side[::-1], strict=True)}
    pairs = [(rnn, twins[name]) for name, rnn in layers.items() if twins[name] is not rnn]
    if not pairs:
        return
    if all(len(one.states) == len(two.states) for one, two in pairs):
        text = "the initial states of the layers are in the reverse order"
        new = {one.y: replace(one, h=two.h, c=two.c).node() for one, two in pairs}
        nodes = [new.get(node.outputs[0], node) for node in traced.graph.nodes]
        ordered = in_order(traced.graph, nodes, traced.graph.inputs, traced.graph.constants)
        yield Hypothesis("states_exchanged", text, ordered)
    if all(one.spec == two.spec for one, two in pairs):
        text = "the weights of the layers are in the reverse order"
        moved = {one.y: [replace(one, weights=two.weights).node()] for one, two in pairs}
        yield Hypothesis("layers_exchanged", text, with_nodes(traced.graph, moved))


def _inputs_read(graph: Graph) -> set[str]:
    read = {name for node in graph.nodes for name in node.inputs}
    return {value.name for value in graph.inputs if value.name in read}


def _rows(state: Array, at: int, layers: int, shape: tuple[int, int]) -> Array | None:
    """(1, 1, N, O) of layer ``at`` in a state (L*D, N, O), (L, D, N, O) or (N, O), if it fits."""
    rows = state.reshape(-1, *state.shape[-2:])
    if rows.shape[1:] != shape or len(rows) not in (1, layers):
        return None
    return rows[at % len(rows)][None, None].astype(np.float32)


def _directions(traced: Traced, layers: Layers) -> Iterator[Hypothesis]:
    turned: dict[str, Direction] = {"left2right": "right2left", "right2left": "left2right"}
    new = {
        name: [replace(rnn, spec=replace(rnn.spec, direction=turned[rnn.spec.direction])).node()]
        for name, rnn in layers.items()
    }
    way = "each direction runs the other way" if len(layers) > 1 else "it runs the other way"
    yield Hypothesis("direction_swapped", way, with_nodes(traced.graph, new))
    pairs = [(f, f[: -len("forward")] + "backward") for f in layers if f.endswith(".forward")]
    pairs = [(f, b) for f, b in pairs if b in layers]
    if not pairs:
        return
    swapped: dict[str, list[Node]] = {}
    for forward, backward in pairs:
        for one, other in ((forward, backward), (backward, forward)):
            swapped[one] = [replace(layers[one], weights=layers[other].weights).node()]
    text = "the weights of the forward and the backward direction are exchanged"
    yield Hypothesis("direction_swapped", text, with_nodes(traced.graph, swapped))
    for states in (False, True):
        sides: dict[str, list[Node]] = {}
        for node in traced.graph.nodes:
            names = node.inputs
            if node.op != "Concat" or len(names) != 2:
                continue
            if names in pairs or (states and _states_of(names, pairs)):
                sides[node.outputs[0]] = [replace(node, inputs=names[::-1])]
        if sides:
            also = " and final states" if states else ""
            text = f"the outputs{also} of the forward and the backward direction change places"
            yield Hypothesis("direction_swapped", text, with_nodes(traced.graph, sides))


def _states_of(names: tuple[str, ...], pairs: list[tuple[str, str]]) -> bool:
    return tuple(name.rpartition(".")[0] for name in names) in pairs


def _reversed_padded(traced: Traced, layers: Layers) -> Iterator[Hypothesis]:
    """Backward layers over sentences, as if they began at the end of the padding."""
    backward = {
        name: rnn
        for name, rnn in layers.items()
        if rnn.spec.direction == "right2left"
        and isinstance(traced.values.get(rnn.x), Ragged)
        and not rnn.attention
    }
    text = "the backward direction begins at the end of the padding, not of each sentence"
    for behind in ("zeros", "what stands there"):
        constants: dict[str, Array] = {}
        new: dict[str, list[Node]] = {}
        for name, rnn in backward.items():
            x: Ragged = traced.values[rnn.x]
            source = traced.graph.producer(rnn.x)
            padded, before = f"{name}.padded", list[Node]()
            if behind == "zeros":
                longest = int(x.lengths.max(initial=0))
                like = f"{name}.like"
                constants[like] = np.zeros((_padded_time(traced, source, longest), len(x), 1))
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
        if new:
            yield Hypothesis("reverse_padded", text, with_nodes(traced.graph, new, constants))


def _padded_time(traced: Traced, source: Node | None, longest: int) -> int:
    """T of the padded batch that sentences come from; the longest sentence where there is none."""
    if source is None or source.op != "SequenceUnpad":
        return longest
    shape = data_of(traced.values[source.inputs[0]]).shape
    return int(shape[0 if source.attributes.get("time_major") else 1])


def _masks(traced: Traced, layers: Layers, given: Mapping[str, Batch]) -> Iterator[Hypothesis]:
    unpads = [
        node
        for node in traced.graph.nodes
        if node.op == "SequenceUnpad" and _reaches(traced.graph, node, layers)
    ]
    if unpads:
        whole: dict[str, Array] = {}
        for node in unpads:
            shape = data_of(traced.values[node.inputs[0]]).shape
            t, n = shape[:2] if node.attributes.get("time_major") else shape[1::-1]
            whole[node.inputs[1]] = np.full(n, t, np.int64)
        for name, value in list(whole.items()):  # what else is made of them, too
            source = _source(traced.graph, name)
            if source != name and data_of(traced.values[source]).size == value.size:
                whole[source] = value.astype(data_of(traced.values[source]).dtype)
        text = "the sentences' lengths are ignored"
        yield Hypothesis("mask_ignored", text, _with_values(traced.graph, whole))
    dense = {
        name: rnn
        for name, rnn in layers.items()
        if isinstance(traced.values.get(rnn.x), np.ndarray) and not rnn.attention
    }
    backward = {k: rnn for k, rnn in dense.items() if rnn.spec.direction == "right2left"}
    forward_masked = any(
        isinstance(traced.values.get(rnn.x), Ragged)
        for rnn in recurrent_layers(traced.graph).values()
    )
    every = (dense, "mask_ignored", "the sentences end where")
    begin = (backward, "reverse_padded", "the backward direction begins where")
    for name, lengths in _lengths(given):
        groups = [begin] if len(backward) == len(dense) and forward_masked else [every, begin]
        for chosen, cause, what in groups:
            for zeros in (False, True):  # ONNX: empty sentences end in zeros
                graph = _masked(traced, chosen, lengths, zeros)
                if graph is not None:
                    yield Hypothesis(cause, f"{what} {name!r} says", graph)


def _source(graph: Graph, name: str) -> str:
    """The value that this one holds in another dtype, shape or order."""
    while (node := graph.producer(name)) and (node.op == "Cast" or is_view(node.op)):
        name = node.inputs[0]
    return name


def _with_values(graph: Graph, values: Mapping[str, Array]) -> Graph:
    """The graph whose nodes read these constants in the place of the values of these names."""
    new = {}
    for node in graph.nodes:
        if any(name in values for name in node.inputs):
            inputs = tuple(f"{name}.given" if name in values else name for name in node.inputs)
            new[node.outputs[0]] = [replace(node, inputs=inputs)]
    return with_nodes(graph, new, {f"{name}.given": array for name, array in values.items()})


def _masked(traced: Traced, dense: Layers, lengths: Int64, zeros: bool) -> Graph | None:
    """Dense layers run over sentences of these lengths; None where these do not fit.

    ``zeros``: sentences of length zero end in zeros, not in their initial state.
    """
    new: dict[str, list[Node]] = {}
    words = (lengths > 0).astype(np.float32)[:, None]
    constants: dict[str, Array] = {"lengths.given": lengths, "words.given": words}
    for name, rnn in dense.items():
        x = traced.values[rnn.x]
        if x.ndim != 3 or x.shape[1] != len(lengths) or lengths.max(initial=0) > x.shape[0]:
            continue
        ragged, y, major = f"{name}.ragged", f"{name}.y", {"time_major": 1}
        whole = tuple(f"{end}.whole" if zeros and end else end for end in rnn.finals)
        new[name] = [
            Node("SequenceUnpad", (rnn.x, "lengths.given"), (ragged,), major),
            replace(rnn, x=ragged, y=y).with_states(rnn.states, whole).node(),
            Node("SequencePad", (y, rnn.x), (name,), major),
        ]
        if zeros:
            pairs = zip(whole, rnn.finals, strict=True)
            new[name] += [Node("Mul", (w, "words.given"), (end,)) for w, end in pairs if end]
    return with_nodes(traced.graph, new, constants) if new else None


def _lengths(given: Mapping[str, Batch]) -> Iterator[tuple[str, Int64]]:
    """Inputs that may be sentence lengths: those of ragged inputs, and whole numbers (N,)."""
    seen: set[bytes] = set()
    for name, value in given.items():
        found = value.lengths if isinstance(value, Ragged) else np.asarray(value)
        if found.ndim != 1 or found.size == 0 or found.dtype.kind not in "iuf":
            continue
        whole = found.astype(np.int64)
        if (whole == found).all() and whole.min() >= 0 and whole.tobytes() not in seen:
            seen.add(whole.tobytes())
            yield name, whole


def _reaches(graph: Graph, node: Node, names: Container[str]) -> bool:
    """Whether a value goes into one of these nodes, through any others."""
    reached = set(node.outputs)
    for each in graph.nodes:
        if not reached.isdisjoint(each.inputs):
            if each.outputs[0] in names:
                return True
            reached.update(filter(None, each.outputs))
    return False
