"""Known faults around recurrent layers, as changes of a graph: states, directions, lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np

from onernn.adapters.common.fault import Fault
from onernn.fuse_passes.rewriting import exchange
from onernn.fuse_passes.views import is_view
from onernn.ir.arrays import Array, Int64
from onernn.ir.graph import Graph, Node
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.records import cached_property, dataclass
from onernn.ir.rnn import Recurrent
from onernn.ir.spec import Cell, Direction
from onernn.verification.comparing import Batches
from onernn.verification.diagnosis.cause import GIVEN
from onernn.verification.diagnosis.faults import LayerFault
from onernn.verification.tracing import Trial, recurrent_layers, with_nodes


@dataclass(frozen=True, eq=False)
class Site:
    """The place of a fault: the graph of a trial, and a group of the graph's layers, named by their
    outputs y.
    """

    trial: Trial
    group: tuple[str, ...]

    @property
    def graph(self) -> Graph:
        return self.trial.graph

    @cached_property
    def layers(self) -> Mapping[str, Recurrent]:
        return recurrent_layers(self.graph, self.group)

    def has_lengths(self, name: str) -> bool:
        """Returns whether the graph has an integer value (N,) of this name, which new nodes can
        read as lengths.
        """
        values = self.trial.values
        value = values[name] if name in self.graph.types and name in values else None
        return isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu"

    def input(self, layer: Recurrent) -> Any:
        """Returns the value of a layer's input."""
        return self.trial.values[layer.x]

    def nodes(
        self, new: Mapping[str, list[Node]], constants: Mapping[str, Array] | None = None
    ) -> Graph | None:
        """Returns the graph with some nodes replaced, None if ``new`` is empty. ``new``: see
        `with_nodes`.
        """
        return with_nodes(self.graph, new, constants) if new else None

    def change_layers(self, change: Callable[[Recurrent], Recurrent | None]) -> Graph | None:
        """Returns the graph with changed layers; ``change`` returns None for a layer that stays the
        same.
        """
        new = ((name, change(rnn)) for name, rnn in self.layers.items())
        return self.nodes({name: [rnn.node()] for name, rnn in new if rnn is not None})


GraphFault = Fault[Site]
"""A fault whose ``apply`` returns a site's graph with the fault, or None if the site cannot have
it.
"""


def in_cells(fault: LayerFault, cell: Cell) -> GraphFault:
    """Returns a fault of a graph: the given fault in each layer of a site's group that has this
    cell.
    """

    def change(rnn: Recurrent) -> Recurrent | None:
        layer = fault.apply((rnn.spec, rnn.layers[0])) if rnn.spec.cell is cell else None
        return layer and replace(rnn, spec=layer[0], weights=layer[1])

    return Fault(fault.id, fault.text, lambda site: site.change_layers(change))


def graph_faults(site: Site) -> Iterator[GraphFault]:
    """Yields the faults around a site's layers; one fault may appear several times, with different
    changes.
    """
    yield from _drop_states()
    yield from _return_final_states(site)
    yield from _feed_states(site)
    yield Fault("direction_swapped", "it runs the other way", _turn_layers)
    yield DIRECTIONS_EXCHANGED
    yield from _masks(site)


# --- states


def _return_final_states(site: Site) -> Iterator[GraphFault]:
    """Yields faults that make outputs return final states of layers. In the site's graph, these
    outputs return inputs of the model unchanged.
    """
    inputs = {value.name for value in site.graph.inputs}
    outputs = [value.name for value in site.graph.outputs]
    same = [name for name in outputs if _source(site.graph, name) in inputs]
    kinds = ["hidden"]
    if site.layers and all(rnn.spec.cell is Cell.LSTM for rnn in site.layers.values()):
        kinds.append("cell")
    both = [tuple(zip(order, kinds, strict=False)) for order in permutations(same, len(kinds))]
    single = [((name, kind),) for name in same for kind in kinds if len(kinds) > 1]
    for pairs in (*both, *single):
        said = " and ".join(f"{kind} state as {name!r}" for name, kind in pairs)
        apply = partial(_return_states, places={name: kinds.index(kind) for name, kind in pairs})
        yield Fault("state_returned", f"it returns the final {said}", apply)


def _return_states(site: Site, places: Mapping[str, int]) -> Graph | None:
    """Returns the graph with final states of all layers as outputs. ``places``: 0 (h) or 1 (c), by
    the output's name.
    """
    finals = {y: list(rnn.finals) for y, rnn in site.layers.items()}
    spec = next(iter(site.layers.values())).spec
    after: list[Node] = []
    constants: dict[str, Array] = {}
    for output, index in places.items():
        for y, ends in finals.items():
            ends[index] = ends[index] or f"{y}.final{index}"
        width = (spec.recurrent_size, spec.hidden_size)[index]
        shape = data_of(site.trial.values[output]).shape
        if shape[-1:] != (width,) or len(shape) not in (2, 3, 4):
            return None
        joined, sizes = f"{output}.joined", f"{output}.sizes"
        constants[sizes] = np.array([*shape[:-2], -1, width][-len(shape) :])
        after += [
            Node("Concat", tuple(ends[index] for ends in finals.values()), (joined,), {"axis": 0}),
            Node("Reshape", (joined, sizes), (output,)),
        ]
    changed = places.keys() | finals
    old = [node for node in site.graph.nodes if not changed.isdisjoint(node.outputs)]
    for y, rnn in site.layers.items():
        after.append(rnn.with_states(rnn.states, tuple(finals[y])).node())
    return exchange(site.graph, old, after, constants)


def _drop_states() -> Iterator[GraphFault]:
    for absent, what in (({"h": "", "c": ""}, ""), ({"h": ""}, "hidden "), ({"c": ""}, "cell ")):

        def apply(site: Site, absent: dict[str, Any] = absent) -> Graph | None:
            held = [rnn for rnn in site.layers.values() if any(getattr(rnn, k) for k in absent)]
            return site.nodes({rnn.y: [replace(rnn, **absent).node()] for rnn in held})

        yield Fault("h0_dropped", f"the initial {what}state is dropped", apply)


def _feed_states(site: Site) -> Iterator[GraphFault]:
    """Yields faults that use inputs of a model as initial states of its layers, beginning with
    inputs that no node reads.
    """
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
    ends = ["", *_lengths(site.trial.all_inputs)]  # ONNX's final state of empty sequences is 0
    for h in [""] if only_cell else states:
        for c in ("", *(name for name in states if name != h)) if cells else ("",):
            if names := tuple(filter(None, (h, c))):
                kind, said = "cell " if only_cell else "", " and ".join(map(repr, names))
                text = f"the input {said} is taken as the initial {kind}state"
                for each in ends:
                    begin = partial(_begin, names=names, only_cell=only_cell, lengths=each)
                    yield Fault("h0_dropped", text, begin)


def _bare(site: Site) -> list[Recurrent]:
    return [rnn for rnn in site.layers.values() if not all(rnn.states)]


def _begin(site: Site, names: tuple[str, ...], only_cell: bool, lengths: str) -> Graph | None:
    """Uses inputs (L*D, N, O) as initial states of all layers, or of this group's layers.

    ``lengths``: the lengths of sequences; sequences of length zero then begin with zeros.
    """
    bare, places = _bare(site), {name: index for index, name in enumerate(site.trial.parts)}
    steps = _lengths(site.trial.all_inputs)[lengths] > 0 if lengths else None
    if steps is not None and len(steps) != data_of(site.trial.all_inputs[names[0]]).shape[-2]:
        return None
    read = {value.name for value in site.graph.inputs if value.dtype in ("float32", None)}
    read = read if not lengths or site.has_lengths(lengths) else set()
    constants: dict[str, Array] = {}
    new: dict[str, list[Node]] = {}
    for index, rnn in enumerate(bare):
        x = site.input(rnn)
        batch = len(x) if isinstance(x, Ragged) else x.shape[1]
        widths = (rnn.spec.recurrent_size, rnn.spec.hidden_size)[only_cell:]
        begin, before = list[str](), list[Node]()
        for name, width in zip(names, widths, strict=False):
            state = data_of(site.trial.all_inputs[name])
            rows = state.reshape(-1, *state.shape[-2:])
            every = len(rows) == len(places)
            if rows.shape[1:] != (batch, width) or len(rows) not in (1, len(places), len(bare)):
                return None
            place = (places[rnn.y] if every else index) % len(rows)
            begin.append(f"{rnn.y}{'' if name in read else GIVEN}.{name}")
            if name not in read:
                row = rows[place][None, None]
                row = row if steps is None else row * steps[:, None]
                constants[begin[-1]] = row.astype(np.float32)
                continue
            sizes, row, to, ends = (
                f"{begin[-1]}.{part}" for part in ("sizes", "row", "to", "rows")
            )
            constants |= {sizes: np.array([len(rows), -1, width]), to: np.array([place])}
            before.append(Node("Reshape", (name, sizes), (ends,)))
            before.append(Node("Gather", (ends, to), (row,), {"axis": 0}))
            before += _if_any(row, lengths, constants) if lengths else []
            row = f"{row}.some" if lengths else row
            constants[f"{row}.axes"] = np.array([0])
            before.append(Node("Unsqueeze", (row, f"{row}.axes"), (begin[-1],)))
        states = (*rnn.states[:only_cell], *begin)
        new[rnn.y] = [*before, rnn.with_states(states, rnn.finals).node()]
    return site.nodes(new, constants)


def _if_any(name: str, lengths: str, constants: dict[str, Array]) -> list[Node]:
    """Returns nodes that compute NAME.some: NAME (..., N, O) with zeros for sequences of length
    zero.

    Adds the constants of these nodes to ``constants``.
    """
    one, axes = f"{name}.one", f"{name}.last"
    constants |= {one: np.array(1, np.float32), axes: np.array([1])}
    is_some, column = f"{name}.kept", f"{name}.column"
    return [
        Node("Cast", (lengths,), (f"{name}.steps",), {"to": "float32"}),
        Node("Min", (f"{name}.steps", one), (is_some,)),
        Node("Unsqueeze", (is_some, axes), (column,)),
        Node("Mul", (name, column), (f"{name}.some",)),
    ]


# --- directions


def _turn_layers(site: Site) -> Graph | None:
    turned: dict[str, Direction] = {"left2right": "right2left", "right2left": "left2right"}
    return site.change_layers(
        lambda rnn: replace(rnn, spec=replace(rnn.spec, direction=turned[rnn.spec.direction]))
    )


def _exchange_directions(site: Site) -> Graph | None:
    pairs = [
        (site.layers[f], site.layers[b])
        for f in site.layers
        if (b := f.removesuffix("forward") + "backward") in site.layers and ".forward" in f
    ]
    both = [*pairs, *((two, one) for one, two in pairs)]
    return site.nodes({one.y: [replace(one, weights=two.weights).node()] for one, two in both})


DIRECTIONS_EXCHANGED = Fault(
    "direction_swapped",
    "the weights of the forward and the backward direction are exchanged",
    _exchange_directions,
)


# --- ends of sequences


def _masks(site: Site) -> Iterator[GraphFault]:
    yield Fault("mask_ignored", "the sequences' lengths are ignored", _unmask)
    for name, (says, lengths) in _ends(site).items():
        for only_backward, id, text in (
            (False, "mask_ignored", "the sequences end where"),
            (True, "reverse_padded", "the backward direction begins where"),
        ):
            for zeros in (False, True):  # ONNX's final state of empty sequences is 0
                at = name if says == "says" and site.has_lengths(name) else ""
                apply = partial(
                    _mask, lengths=lengths, name=at, zeros=zeros, only_backward=only_backward
                )
                yield Fault(id, f"{text} {name!r} {says}", apply)


def _unmask(site: Site) -> Graph | None:
    """Replaces all lengths of sequences by the padded size T, so that layers run over the
    padding.
    """
    whole: dict[str, Array] = {}
    for node in site.graph.nodes:
        if node.op == "SequenceUnpad":
            shape = data_of(site.trial.values[node.inputs[0]]).shape
            t, n = shape[:2] if node.attributes.get("time_major") else shape[1::-1]
            whole[node.inputs[1]] = np.full(n, t, np.int64)
    for name, value in list(whole.items()):
        source = _source(site.graph, name)
        given = data_of(site.trial.values[source])
        if source != name and given.size == value.size:
            whole[source] = value.astype(given.dtype)
    new = {}
    for node in site.graph.nodes:
        if not whole.keys().isdisjoint(node.inputs):
            inputs = tuple(f"{name}{GIVEN}" if name in whole else name for name in node.inputs)
            new[node.outputs[0]] = [replace(node, inputs=inputs)]
    return site.nodes(new, {f"{name}{GIVEN}": array for name, array in whole.items()})


def _source(graph: Graph, name: str) -> str:
    """Returns the name of the value from which Cast, Identity and views made this value."""
    while (node := graph.producer(name)) and (node.op in ("Cast", "Identity") or is_view(node.op)):
        name = node.inputs[0]
    return name


def _mask(site: Site, lengths: Int64, name: str, zeros: bool, only_backward: bool) -> Graph | None:
    """Makes layers with padded inputs stop at these lengths; returns None if the lengths do not
    fit.

    ``name``: the value of the graph with the lengths, or "". ``zeros``: a sequence of length zero
    ends with the state 0, not with its initial state.
    """
    constants: dict[str, Array] = {} if name else {f"lengths{GIVEN}": lengths}
    name = name or f"lengths{GIVEN}"
    dense = {
        y: rnn
        for y, rnn in site.layers.items()
        if isinstance(site.input(rnn), np.ndarray) and not rnn.attention
    }
    backward = {y: rnn for y, rnn in dense.items() if rnn.spec.direction == "right2left"}
    if not only_backward and len(backward) == len(dense):
        every = recurrent_layers(site.graph).values()
        if any(isinstance(site.input(rnn), Ragged) for rnn in every):
            return None  # forward layers already have lengths
    new: dict[str, list[Node]] = {}
    for y, rnn in (backward if only_backward else dense).items():
        x = site.input(rnn)
        if x.ndim != 3 or x.shape[1] != len(lengths) or lengths.max(initial=0) > x.shape[0]:
            continue
        ragged, output, major = f"{y}.ragged", f"{y}.y", {"time_major": 1}
        whole = tuple(f"{end}.whole" if zeros and end else end for end in rnn.finals)
        new[y] = [
            Node("SequenceUnpad", (rnn.x, name), (ragged,), major),
            replace(rnn, x=ragged, y=output).with_states(rnn.states, whole).node(),
            Node("SequencePad", (output, rnn.x), (y,), major),
        ]
        if zeros:
            for inside, end in zip(whole, rnn.finals, strict=True):
                if end:
                    *some, last = _if_any(inside, name, constants)
                    new[y] += [*some, replace(last, outputs=(end,))]
    return site.nodes(new, constants)


def _ends(site: Site) -> dict[str, tuple[str, Int64]]:
    """Returns possible lengths of padded sequences by the name of the value that holds them.

    The value holds the lengths themselves ("says"), or integers that are 0 after the end ("is 0").
    """
    dense = (x for x in map(site.input, site.layers.values()) if isinstance(x, np.ndarray))
    batches = {x.shape[1] for x in dense if x.ndim == 3}
    inputs = site.trial.all_inputs
    ends = {name: ("says", lengths) for name, lengths in _lengths(inputs).items()}
    for name, value in site.trial.values.items():
        if name in ends or not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
            continue
        if value.ndim == 1 and len(value) in batches and value.min(initial=0) >= 0:
            ends[name] = "says", value.astype(np.int64)
        elif value.ndim == 2 and len(value) in batches and name in inputs:
            kept = np.logical_or.accumulate(value[:, ::-1] != 0, axis=1)
            ends[name] = "is 0", kept.sum(axis=1)
    return ends


def _lengths(all_inputs: Batches) -> dict[str, Int64]:
    """Returns inputs that may be lengths: lengths of ragged inputs, and integers (N,) from 0 on."""
    lengths: dict[str, Int64] = {}
    for name, value in all_inputs.items():
        array = value.lengths if isinstance(value, Ragged) else np.asarray(value)
        if array.ndim == 1 and array.size and array.dtype.kind in "iuf":
            whole = array.astype(np.int64)
            if (whole == array).all() and whole.min() >= 0:
                lengths[name] = whole
    return lengths


# --- other operators


_EPSILONS = (1e-3, 1e-5, 1e-6, 1e-12)
"""The default epsilons, in this order: Keras; PyTorch and ONNX; Paddle 1 and Keras 3; BERT."""


def epsilon_faults(graph: Graph) -> Iterator[tuple[str, GraphFault]]:
    """Yields a normalization's name, and the fault that its epsilon is a different one."""
    for node in graph.nodes:
        for epsilon in _EPSILONS if hasattr(node.attrs, "epsilon") else ():
            if not np.isclose(epsilon, node.attrs.epsilon, rtol=1e-3):
                norm = replace(node, attributes={**node.attributes, "epsilon": epsilon})
                new = {node.outputs[0]: [norm]}
                apply = partial(Site.nodes, new=new)
                yield node.label, Fault("attribute_changed", f"epsilon is {epsilon:g}", apply)
