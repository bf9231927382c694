"""What goes wrong around recurrent layers, as changes of a graph: states, masks, directions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from onernn.core.arrays import Array, Int64
from onernn.core.graph import Graph, Node
from onernn.core.ragged import Batch, Ragged, data_of
from onernn.verification.diagnosis.gate_faults import Change
from onernn.verification.layerwise import Traced


class Hypothesis(NamedTuple):
    """A cause, what to say of it after "matches when", and the graph in which it is so.

    ``whole``: a model before fusion, not the traced graph with some nodes changed.
    """

    cause: str
    text: str
    graph: Graph
    whole: bool = False


def with_change(
    traced: Traced, group: Iterable[str], change: Change, other: Mapping[str, Any]
) -> Graph | None:
    """The graph with the layers of a group changed; None where the change is about none of them.

    ``other``: by a layer's name, its counterpart's weights in the other model.
    """
    new: dict[str, Node] = {}
    for node in traced.graph.nodes:
        if node.op == "Rnn" and node.outputs[0] in group:
            spec, weights = node.attributes["spec"], node.attributes["weights"]
            changed = change(spec, weights, other.get(node.outputs[0]))
            if changed is not None:
                attributes = dict(zip(("spec", "weights"), changed, strict=True))
                new[node.outputs[0]] = replace(node, attributes=attributes)
    return _with_nodes(traced.graph, {name: [node] for name, node in new.items()}) if new else None


def _with_nodes(
    graph: Graph, new: Mapping[str, list[Node]], constants: Mapping[str, Array] | None = None
) -> Graph:
    """The graph with others in the place of the nodes that make these values."""
    nodes = [each for node in graph.nodes for each in new.get(node.outputs[0], [node])]
    return replace(graph, nodes=tuple(nodes), constants={**graph.constants, **(constants or {})})


def graph_faults(
    traced: Traced, group: tuple[str, ...], given: Mapping[str, Batch]
) -> Iterator[Hypothesis]:
    """The faults around these layers. ``given``: all inputs there are, also those nobody takes."""
    nodes = {n.outputs[0]: n for n in traced.graph.nodes if n.op == "Rnn" and n.outputs[0] in group}
    yield from _states(traced, nodes, given)
    yield from _directions(traced, nodes)
    yield from _reversed_padded(traced, nodes)
    yield from _masks(traced, nodes, given)


def _states(
    traced: Traced, nodes: Mapping[str, Node], given: Mapping[str, Batch]
) -> Iterator[Hypothesis]:
    for slots, what in (((1, 2), "state is"), ((1,), "hidden state is"), ((2,), "cell state is")):
        held = {k: n for k, n in nodes.items() if any(n.input(slot) for slot in slots)}
        if held and (
            len(slots) == 1
            or any(n.input(1) and n.input(2) for n in held.values())
            or not any(n.input(2) for n in held.values())
        ):
            new = {
                name: [
                    replace(
                        n, inputs=tuple("" if s in slots else i for s, i in enumerate(n.inputs))
                    )
                ]
                for name, n in held.items()
            }
            yield Hypothesis(
                "h0_dropped", f"the initial {what} dropped", _with_nodes(traced.graph, new)
            )
    bare = {name: n for name, n in nodes.items() if not n.input(1)}
    if not bare:
        return
    fed = _inputs_read(traced.graph)
    unread = {name: data_of(value) for name, value in given.items() if name not in fed}
    states = {k: a for k, a in unread.items() if a.dtype.kind == "f" and a.ndim in (2, 3, 4)}
    for h in states:
        for c in (None, *(name for name in states if name != h)):
            constants: dict[str, Array] = {}
            new = {}
            for at, (name, node) in enumerate(bare.items()):
                begin = [_part(states[h], traced, node, at, len(bare), 1)]
                if c is not None:
                    begin.append(_part(states[c], traced, node, at, len(bare), 2))
                if any(b is None for b in begin) or (
                    c and node.attributes["spec"].cell.name != "LSTM"
                ):
                    break
                names = [f"{name}.given{k}" for k in range(len(begin))]
                constants |= {k: b for k, b in zip(names, begin, strict=True) if b is not None}
                inputs = (node.inputs[0], *names, *[""] * (2 - len(names)), node.input(3))
                while not inputs[-1]:
                    inputs = inputs[:-1]
                new[name] = [replace(node, inputs=inputs)]
            if len(new) == len(bare):
                names_told = repr(h) if c is None else f"{h!r} and {c!r}"
                text = f"the input {names_told} is taken as the initial state"
                yield Hypothesis("h0_dropped", text, _with_nodes(traced.graph, new, constants))
                for _, lengths in _lengths(given):  # ONNX: empty sentences end in zeros
                    kept = {
                        k: a * (lengths > 0)[:, None] if a.shape[2] == len(lengths) else a
                        for k, a in constants.items()
                    }
                    yield Hypothesis("h0_dropped", text, _with_nodes(traced.graph, new, kept))


def _inputs_read(graph: Graph) -> set[str]:
    read = {name for node in graph.nodes for name in node.inputs}
    return {value.name for value in graph.inputs if value.name in read}


def _part(state: Array, traced: Traced, node: Node, at: int, parts: int, slot: int) -> Array | None:
    """(1, 1, N, O) of a state (L*D, N, O), (L, D, N, O) or (N, O) that nobody reads, if it fits."""
    spec, made = node.attributes["spec"], traced.values[node.outputs[1]]
    shape = (made.shape[2], spec.hidden_size if slot == 2 else spec.recurrent_size)
    rows = state.reshape(-1, *state.shape[-2:])
    if rows.shape[1:] != shape or len(rows) not in (1, parts):
        return None
    return rows[at % len(rows)][None, None].astype(np.float32)


def _directions(traced: Traced, nodes: Mapping[str, Node]) -> Iterator[Hypothesis]:
    turned = {"left2right": "right2left", "right2left": "left2right"}
    new = {}
    for name, node in nodes.items():
        spec = node.attributes["spec"]
        flipped = replace(spec, direction=turned[spec.direction])
        new[name] = [replace(node, attributes={**node.attributes, "spec": flipped})]
    way = "each direction runs the other way" if len(nodes) > 1 else "it runs the other way"
    yield Hypothesis("direction_swapped", way, _with_nodes(traced.graph, new))
    pairs = [(f, f[: -len("forward")] + "backward") for f in nodes if f.endswith(".forward")]
    pairs = [(f, b) for f, b in pairs if b in nodes]
    if not pairs:
        return
    swapped: dict[str, list[Node]] = {}
    for forward, backward in pairs:
        one, other = (nodes[name].attributes["weights"] for name in (forward, backward))
        for name, weights in ((forward, other), (backward, one)):
            attributes = {**nodes[name].attributes, "weights": weights}
            swapped[name] = [replace(nodes[name], attributes=attributes)]
    exchanged = _with_nodes(traced.graph, swapped)
    text = "the weights of the forward and the backward direction are exchanged"
    yield Hypothesis("direction_swapped", text, exchanged)
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
            yield Hypothesis("direction_swapped", text, _with_nodes(traced.graph, sides))


def _states_of(names: tuple[str, ...], pairs: list[tuple[str, str]]) -> bool:
    return tuple(name.rpartition(".")[0] for name in names) in pairs


def _reversed_padded(traced: Traced, nodes: Mapping[str, Node]) -> Iterator[Hypothesis]:
    """Backward layers over sentences, as if they began at the end of the padding."""
    backward = {
        name: node
        for name, node in nodes.items()
        if node.attributes["spec"].direction == "right2left"
        and isinstance(traced.values.get(node.inputs[0]), Ragged)
        and not node.input(3)
    }
    if not backward:
        return
    text = "the backward direction begins at the end of the padding, not of each sentence"
    for behind in ("zeros", "what stands there"):
        constants: dict[str, Array] = {}
        new: dict[str, list[Node]] = {}
        for name, node in backward.items():
            x: Ragged = traced.values[node.inputs[0]]
            source = traced.graph.producer(node.inputs[0])
            unpads = source is not None and source.op == "SequenceUnpad"
            nodes_before: list[Node] = []
            if behind == "zeros":
                longest = int(x.lengths.max(initial=0))
                like = f"{name}.like"
                constants[like] = np.zeros((_padded_time(traced, source, longest), len(x), 1))
                padded = f"{name}.padded"
                attributes = {"time_major": 1}
                nodes_before = [Node("SequencePad", (node.inputs[0], like), (padded,), attributes)]
            elif unpads and source is not None:
                padded = source.inputs[0]
                if not source.attributes.get("time_major"):
                    padded = f"{name}.padded"
                    nodes_before = [
                        Node("Transpose", source.inputs[:1], (padded,), {"perm": (1, 0, 2)})
                    ]
            else:
                continue
            lengths, dense, words = f"{name}.lengths", f"{name}.dense", f"{name}.words"
            constants[lengths] = x.lengths
            new[name] = [
                *nodes_before,
                replace(
                    node, inputs=(padded, *node.inputs[1:]), outputs=(dense, *node.outputs[1:])
                ),
                Node("SequenceUnpad", (dense, lengths), (words,), {"time_major": 1}),
                Node("SequenceLike", (words, node.inputs[0]), (name,)),
            ]
        if new:
            yield Hypothesis("reverse_padded", text, _with_nodes(traced.graph, new, constants))


def _padded_time(traced: Traced, source: Node | None, longest: int) -> int:
    """T of the padded batch that sentences come from; the longest sentence where there is none."""
    if source is None or source.op != "SequenceUnpad":
        return longest
    shape = data_of(traced.values[source.inputs[0]]).shape
    return int(shape[0 if source.attributes.get("time_major") else 1])


def _masks(
    traced: Traced, nodes: Mapping[str, Node], given: Mapping[str, Batch]
) -> Iterator[Hypothesis]:
    unpads = [
        node
        for node in traced.graph.nodes
        if node.op == "SequenceUnpad" and _reaches(traced.graph, node, set(nodes))
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
        name: node
        for name, node in nodes.items()
        if isinstance(traced.values.get(node.inputs[0]), np.ndarray) and not node.input(3)
    }
    backward = {k: n for k, n in dense.items() if n.attributes["spec"].direction == "right2left"}
    forward_masked = any(
        isinstance(traced.values.get(node.inputs[0]), Ragged)
        for node in traced.graph.nodes
        if node.op == "Rnn"
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
    """The value that this one holds in another dtype or shape."""
    while (node := graph.producer(name)) and node.op in ("Cast", "Identity", "Reshape"):
        name = node.inputs[0]
    return name


def _with_values(graph: Graph, values: Mapping[str, Array]) -> Graph:
    """The graph whose nodes read these constants in the place of the values of these names."""
    new = {}
    for node in graph.nodes:
        if any(name in values for name in node.inputs):
            inputs = tuple(f"{name}.given" if name in values else name for name in node.inputs)
            new[node.outputs[0]] = [replace(node, inputs=inputs)]
    return _with_nodes(graph, new, {f"{name}.given": array for name, array in values.items()})


def _masked(traced: Traced, dense: Mapping[str, Node], lengths: Int64, zeros: bool) -> Graph | None:
    """Dense layers run over sentences of these lengths; None where these do not fit.

    ``zeros``: sentences of length zero end in zeros, not in their initial state.
    """
    new: dict[str, list[Node]] = {}
    words = (lengths > 0).astype(np.float32)[:, None]
    constants: dict[str, Array] = {"lengths.given": lengths, "words.given": words}
    for name, node in dense.items():
        x = traced.values[node.inputs[0]]
        if x.ndim != 3 or x.shape[1] != len(lengths) or lengths.max(initial=0) > x.shape[0]:
            continue
        ragged, y, major = f"{name}.ragged", f"{name}.y", {"time_major": 1}
        ends = [f"{end}.whole" if zeros and end else end for end in node.outputs[1:]]
        new[name] = [
            Node("SequenceUnpad", (node.inputs[0], "lengths.given"), (ragged,), major),
            replace(node, inputs=(ragged, *node.inputs[1:]), outputs=(y, *ends)),
            Node("SequencePad", (y, node.inputs[0]), (name,), major),
        ]
        new[name] += [
            Node("Mul", (whole, "words.given"), (end,))
            for whole, end in zip(ends, node.outputs[1:], strict=True)
            if zeros and end
        ]
    return _with_nodes(traced.graph, new, constants) if new else None


def _lengths(given: Mapping[str, Batch]) -> Iterator[tuple[str, Int64]]:
    """What among the inputs may be sentence lengths: those of ragged ones, and whole numbers (N,)."""
    seen: set[bytes] = set()
    for name, value in given.items():
        found = value.lengths if isinstance(value, Ragged) else np.asarray(value)
        if found.ndim != 1 or found.size == 0 or found.dtype.kind not in "iuf":
            continue
        whole = found.astype(np.int64)
        if (whole == found).all() and whole.min() >= 0 and whole.tobytes() not in seen:
            seen.add(whole.tobytes())
            yield name, whole


def _reaches(graph: Graph, node: Node, names: set[str]) -> bool:
    """Whether a value goes into one of these nodes, through any others."""
    reached = set(node.outputs)
    for each in graph.nodes:
        if not reached.isdisjoint(each.inputs):
            if each.outputs[0] in names:
                return True
            reached.update(filter(None, each.outputs))
    return False
