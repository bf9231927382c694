"""Turns a model of whole sequences into a model of chunks: states become inputs and outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from onernn.engine.session import Session
from onernn.fuse_passes import fuse
from onernn.fuse_passes.bodies import bodies
from onernn.fuse_passes.over_time import check_states, find_states, fuse_step
from onernn.fuse_passes.rewriting import Tape, fresh
from onernn.fuse_passes.row_independence import describe_rows
from onernn.ir.arrays import Array
from onernn.ir.errors import OnernnError, Refusal, UnsupportedError
from onernn.ir.graph import Graph, Node, Value, input_types
from onernn.ir.operator import OPERATORS, Path
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.records import dataclass
from onernn.ir.rnn import Recurrent
from onernn.ir.types import Counts, Size, Type

Types = Mapping[str, Type]
_FAR = 2**31 - 1  # a slice whose end is at least this number includes the last step
_LONG = 2**13
"""`_long` adds this number to each open size, so that slices end inside of the axis and their sizes
are known.
"""


def counting(graph: Graph, time: str) -> Iterator[tuple[Node, str]]:
    """Yields each node that depends on the total number of steps, which a chunk does not know, and
    the reason.

    ``time``: the name of the number of steps. Sums and products of the number of steps are allowed
    if only shapes depend on them: `prove` checks them with chunks of several sizes.
    """
    counts = set[str]()
    for node in graph.nodes:
        read = [index for index, name in enumerate(node.inputs) if name in counts]
        values = [graph.types[name].value for name in node.outputs if name]
        asks = node.op in ("Shape", "Size")
        if asks or read:
            uses = [_uses(size, time) for value in values for size in _all(value)]
            if None not in values:
                if None in uses:
                    yield node, "it divides the number of steps, which differs between chunks"
                elif any(uses):
                    counts.update(filter(None, node.outputs))
            elif asks or not (node.op == "ConstantOfShape" or (0 not in read and _moves(node))):
                yield node, "it computes with the number of steps, which differs between chunks"
        if bodies(node) and (why := _combines_inside(graph.types, node, time)):
            yield node, f"its graph may combine steps; with steps as rows, {why}"
        if _meet(graph.types, node, time):
            yield node, "it may count steps, or read later ones"


def _moves(node: Node) -> bool:
    operator = OPERATORS.get(node.op)
    return bool(operator and operator.most is not None and operator.kind in ("view", "moves"))


def _follow(types: Types, node: Node) -> list[tuple[Type, Path]]:
    operator, given = OPERATORS.get(node.op), input_types(types, node)
    if operator is None or operator.paths is None:
        return []
    paths = operator.paths(node.attrs, *given) or ()
    return [(x, path) for x, path in zip(given, paths, strict=False) if x]


def _meet(types: Types, node: Node, time: str) -> bool:
    operator = OPERATORS.get(node.op)
    if operator is None or operator.kind != "mixes" or operator.reach:
        return False
    pairs = _follow(types, node)
    return any(path and path[axis] is None for x, path in pairs for axis in _along(x, time))


def _combines_inside(types: Types, node: Node, time: str) -> str:
    """Returns why a graph inside of the node may combine steps; "" if it cannot."""
    axes = {name: _along(types[name], time) for name in node.inputs if name}
    if several := [name for name, along in axes.items() if len(along) > 1]:
        return f"{several[0]!r} has steps on more than one axis"
    inputs = tuple(
        Value(name, x.dtype, None if x.shape is None else x.counts, x.depth)
        for name in axes
        for x in [types[name]]
    )
    outputs = tuple(map(Value, filter(None, node.outputs)))
    alike = [name for name, along in axes.items() if not along]
    steps = {name: along[0] for name, along in axes.items() if along}
    rows = describe_rows(Graph("", inputs, outputs, (node,), {}), steps, alike)
    return next((why for why in rows.values() if isinstance(why, str)), "") if steps else ""


def _all(value: Size | tuple[Size, ...] | None) -> tuple[Size, ...]:
    return (value,) if isinstance(value, Size) else value or ()


def _uses(size: Size, time: str) -> bool | None:
    if any(time in each.whole.names for each in size.quotients):
        return None
    return time in size.names


def far_steps(types: Types, node: Node, time: str) -> str:
    """Returns why chunks cannot run a slice; "" if the slice takes all steps, or all except the
    first or the last one.
    """
    starts, ends, axes = (
        _all(x.value if x else None) for x in (*input_types(types, node), None)[1:4]
    )
    along = [size.number for size in axes] if node.input(3) else range(len(starts))
    timed = _along(types[node.inputs[0]], time)
    for axis, *pair in zip(along, starts, ends, strict=False):
        far = (each.number is not None and 1 < abs(each.number) < _FAR for each in pair)
        if axis in timed and any(far):
            expected = "expected all steps, or all except the first or the last"
            return f"it takes steps [{pair[0]}:{pair[1]}]: {expected}"
    return ""


_CUTS = (0, 1, 4, 6, 11)  # `prove`: after the first chunk come chunks of 1, 3, 2 and 5 steps
_OPEN = 2  # `prove`: the value of each undeclared size other than the number of steps
_CLOSE = 1e-5, 1e-6  # `prove`: tolerances, relative to the largest float and absolute


@dataclass(frozen=True, eq=False)
class Stateful:
    """A model with states: each call continues from the states after the previous call.

    ``states`` maps each input that takes a state to the output that is the next state. ``first``:
    the states before the first call, zeros by default. ``growing``: the states whose sizes may
    change from call to call.

    For models of sequences (see `expose`): ``time``: the axis of steps of each input and output.
    ``delay``: for each output, how many steps later than the input step its result comes. The
    results of the last ``delay`` steps of a sequence are never returned. ``least``: the minimum
    number of steps in the first chunk.
    """

    graph: Graph
    states: Mapping[str, str]
    first: Mapping[str, Array]
    growing: frozenset[str] = frozenset()
    time: Mapping[str, int] = field(default_factory=dict)
    delay: Mapping[str, int] = field(default_factory=dict)
    least: int = 1

    @classmethod
    def of_names(cls, graph: Graph, states: Mapping[str, str]) -> Stateful:
        """Returns a fused model that runs one frame per call, with the states that a caller names.

        Raises `UnsupportedError` if a name is not an input or output.
        """
        check_states(graph, states)
        shapes = {value.name: value.shape or () for value in graph.inputs}
        open_sizes = {name: sum(size is None for size in shapes[name]) for name in states}
        growing = frozenset(n for n, count in open_sizes.items() if count > 1)
        return cls(fuse_step(graph, states), states, {}, growing)

    def initial(self, name: str) -> Array:
        """Returns a state before the first call, by default zeros; each open size is then 1."""
        if name in self.first:
            return self.first[name]
        value = next(value for value in self.graph.inputs if value.name == name)
        if value.shape is None or value.lod_depth:
            raise UnsupportedError(f"state {value}: its shape is not known: pass inputs= or first=")
        sizes = [size if isinstance(size, int) else 1 for size in value.shape]
        return np.zeros(sizes, value.dtype or "float32")

    @property
    def notes(self) -> list[str]:
        """Notes for callers: which output each state comes from, which outputs are late."""
        handed = ", ".join(f"{after} into {name}" for name, after in self.states.items())
        notes = [f"zeros first, then each call hands on {handed}"]
        for name, late in self.delay.items():
            if late:
                notes.append(
                    f"{name} is {late} steps late; the first call takes {self.least} or more"
                )
        return notes


def refuse(graph: Graph, why: str, where: str) -> UnsupportedError:
    return UnsupportedError(f"{graph.name} in chunks:", (Refusal(why, where),))


def prove(
    graph: Graph, model: Stateful, types: Types, time: str, steps: Mapping[str, int]
) -> Stateful:
    """Returns the model with the delay of each output.

    ``types``, ``time``: the types of the graph's values, and the name of the number of steps.
    ``steps``: the axis of steps of each state that holds steps.
    Raises `UnsupportedError` if values of chunks differ from the values of one run over all steps.
    All values are compared, because a condition may hide a value now and select it in a later call.
    """
    rng = np.random.default_rng(0)
    cuts = [0, *(model.least + cut for cut in _CUTS)]
    lengths = _find_lengths(graph)
    feed = {
        value.name: _random(value, model.time.get(value.name), cuts[-1], rng)
        for value in graph.inputs
    }
    feed |= {name: np.full_like(feed[name], cuts[-1] - 1) for name in lengths}
    whole: dict[str, Any] = {}
    parts: dict[str, list[Any]] = {}
    try:
        opened = replace(graph, inputs=tuple(map(_open, graph.inputs)))
        whole |= Session(opened, passes=()).run(feed, _noting(whole))
        session, state = Session(model.graph, passes=()), _wide(model, steps)
        for begin, end in pairwise(cuts):
            chunk = {
                name: x.take(range(begin, end), model.time[name]) if name in model.time else x
                for name, x in feed.items()
            }
            valid = min(end, cuts[-1] - 1) - begin
            chunk |= {name: np.full_like(feed[name], valid) for name in lengths}
            values: dict[str, Any] = {}
            outputs = session.run({**chunk, **state}, _noting(values))
            values |= outputs
            state = {name: data_of(outputs[after]) for name, after in model.states.items()}
            for name, value in values.items():
                parts.setdefault(name, []).append(value)
    except OnernnError as error:
        raise refuse(graph, f"its chunks do not run: {error}", "model") from error
    delay = dict[str, int]()
    inner = [
        name for node in graph.nodes for name in node.outputs if _is_by_step(types, name, time)
    ]
    for name in (*inner, *(value.name for value in graph.outputs)):
        if name in whole and name in parts:
            why, delay[name] = _departs(whole[name], parts[name])
            if why:
                why = f"its results in chunks differ from those of the whole: {why}"
                maker = graph.producer(name)
                raise refuse(graph, why, maker.label if maker else name)
    delay = {value.name: delay[value.name] for value in graph.outputs}
    return replace(model, delay=delay)


def _is_by_step(types: Types, name: str, time: str) -> bool:
    """Returns whether a value's chunks can be joined: one axis has an entry per step."""
    along = _along(types[name], time) if name else []
    return len(along) == 1 and _more(types, name, along[0], time) is not None


def _more(types: Types, name: str, axis: int, time: str) -> int | None:
    size = (types[name].shape or ())[axis]
    return None if size is None else (size - time - _LONG).number


def _noting(values: dict[str, Any]) -> Any:
    def observe(node: Node, outputs: tuple[Any, ...], _: float) -> None:
        values.update(zip(node.outputs, outputs, strict=False))

    return observe


def _random(value: Value, axis: int | None, steps: int, rng: np.random.Generator) -> Array:
    if value.shape is None or value.dtype is None:
        why = "its type and shape are not known: declare them with inputs=, --input"
        raise UnsupportedError(f"input {value}: {why}")
    sizes = [size if isinstance(size, int) else _OPEN for size in value.shape]
    if axis is not None:
        sizes[axis] = steps
    if np.dtype(value.dtype).kind == "f":
        return rng.uniform(-1, 1, sizes).astype(value.dtype)
    return rng.integers(0, 2, sizes).astype(value.dtype)


def _wide(model: Stateful, steps: Mapping[str, int]) -> dict[str, Array]:
    shapes = {value.name: value.shape or () for value in model.graph.inputs}
    result = dict[str, Array]()
    for name, first in model.first.items():
        for axis, size in enumerate(shapes[name]):
            if size is None and first.shape[axis] == 1 and axis != steps.get(name):
                first = np.repeat(first, _OPEN, axis)
        result[name] = first
    return result


def _departs(whole: Any, parts: list[Any]) -> tuple[str, int]:
    if isinstance(whole, Ragged):
        return "ragged values", 0
    axes = [index for index, size in enumerate(whole.shape) if size != parts[0].shape[index]]
    if any(part.ndim != whole.ndim for part in parts) or len(axes) > 1:
        return "different axes", 0
    joined = np.concatenate(parts, axes[0]) if axes else parts[-1]
    late = whole.shape[axes[0]] - joined.shape[axes[0]] if axes else 0
    if late < 0:
        return "more steps than the input has", 0
    expected = whole.take(range(joined.shape[axes[0]]), axes[0]) if axes else whole
    if joined.dtype.kind != "f":
        return ("" if np.array_equal(joined, expected) else "different values"), late
    expected = expected.astype(float)
    same = (joined == expected) | (np.isnan(joined) & np.isnan(expected))
    apart = np.abs(joined - expected)[~same].max(initial=0)
    bound = _CLOSE[1] + _CLOSE[0] * np.abs(expected[np.isfinite(expected)]).max(initial=0)
    return ("" if apart <= bound else f"{apart:.3g} apart"), late


def expose(model: Graph) -> Stateful:
    """Returns a model that takes any number of steps per call and continues after the previous
    chunk.

    Layers get their states as inputs and outputs. An input with the lengths of padded sequences
    holds the number of valid steps in the chunk. An operator with a window along time gets the last
    steps of its input as a state. If the window includes later steps, the output is delayed. If an
    operator combines several values, they are delayed until all have the same delay. If an operator
    combines inputs step by step, they get the same number of steps. The first state has the batch
    size that the model declares, or 1 if the batch size is open.

    As a check, the model runs on chunks of `Stateful.least`, 1, 3, 2 and 5 steps; the outputs must
    equal the outputs of one run over all steps. Raises `UnsupportedError` that names the first
    operator whose output differs.
    """
    graph = _pads_folded(_with_one_time(fuse(model).model))
    types = _long(graph)
    time = _time(graph, types)
    maker = _Maker(graph, types=types, time=time)
    for node in graph.nodes:
        maker.add(node)
    for node, why in counting(graph, time):
        raise maker.refuse(node, why)
    if not maker.states:
        raise refuse(graph, "expected a state that is not an input yet, got none", "model")
    chunk_graph = replace(
        graph,
        inputs=(*map(_open, graph.inputs), *(Value(n, a.dtype.name, s) for n, a, s in maker.first)),
        outputs=(*map(_open, graph.outputs), *(Value(n) for n in maker.states.values())),
        nodes=tuple(maker.nodes),
        constants={**graph.constants, **maker.constants},
    ).prune()
    axes = {
        name: result[0]
        for name in (v.name for v in (*graph.inputs, *graph.outputs))
        if len(result := _along(types[name], time)) == 1
    }
    first = {name: array for name, array, _ in maker.first}
    growing = frozenset(name for name, _, shape in maker.first if shape.count(None) > 1)
    layers = {name for node in maker.nodes if node.op == "Rnn" for name in node.inputs}
    growing |= {name for name, _, shape in maker.first if name not in layers and None in shape}
    least = 1 + max([0, *maker.late.values()])
    chunked = Stateful(chunk_graph, maker.states, first, growing, axes, {}, least)
    return prove(graph, chunked, types, time, maker.steps)


def _open(value: Value) -> Value:
    shape = value.shape and tuple(s if isinstance(s, int) else None for s in value.shape)
    return replace(value, shape=shape)


def _long(graph: Graph) -> Types:
    inputs = dict[str, Type]()
    for value in graph.inputs:
        sizes = value.type.shape
        shape = sizes and tuple(
            size + _LONG if size is not None and size.number is None else size for size in sizes
        )
        inputs[value.name] = replace(value.type, shape=shape)
    return graph.infer_types(inputs)


def _time(graph: Graph, types: Types) -> str:
    """Returns the name of the number of steps: the size of the time axis of a recurrent layer and
    of an input's axis contains this name.
    """
    for node in graph.nodes:
        if node.op != "Rnn":
            continue
        steps, _ = _steps_and_batch(graph, types, node)
        if steps is not None and steps.names:
            (name, *others) = sorted(steps.names)
            if others:
                continue
            if not any(_along(value.type, name) for value in graph.inputs):
                made = ((n, o) for n in graph.nodes for o in n.outputs if o)
                maker = next(n for n, o in made if _along(types[o], name))
                raise refuse(graph, "expected the steps of an input, got other steps", maker.label)
            return name
    why = "expected a recurrent layer over an open number of steps"
    if states := find_states(graph):
        options = " ".join(f"--state {name}={after}" for name, after in states.items())
        why = f"it takes states as inputs: use streams(capacity, {states}), or compile {options}"
    raise refuse(graph, why, "model")


def _steps_and_batch(graph: Graph, types: Types, layer: Node) -> list[Size | None]:
    """Returns a layer's number of steps, padding included, and its batch size; None for a size that
    is not known.
    """
    x, is_swapped = layer.inputs[0], False
    if types[x].lod != ():
        maker = graph.producer(x)
        while maker and maker.op != "SequenceUnpad" and maker.inputs:
            maker = graph.producer(maker.inputs[0])
        if maker is None or maker.op != "SequenceUnpad":
            raise refuse(graph, "expected dense (T, N, I), got sequences of lengths", layer.label)
        x, is_swapped = maker.inputs[0], not maker.attrs.time_major
    sizes = [*(types[x].shape or ()), None, None][:2]
    return sizes[::-1] if is_swapped else sizes


def _find_lengths(graph: Graph) -> set[str]:
    needed = {node.inputs[1] for node in graph.nodes if node.op == "SequenceUnpad"}
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(filter(None, node.inputs))
    return {value.name for value in graph.inputs if value.name in needed}


def _along(value: Type, time: str) -> list[int]:
    return [index for index, size in enumerate(value.shape or ()) if size and time in size.names]


def _with_one_time(graph: Graph) -> Graph:
    """Returns the graph in which two sizes of inputs have one name if an operator requires that
    they are equal.
    """
    while True:
        types = _long(graph)
        own = {size.name for v in graph.inputs for size in v.type.shape or () if size is not None}
        pairs = (pair for node in graph.nodes for pair in _find_equal_sizes(types, node))
        pair = next((pair for pair in pairs if pair <= own), None)
        if pair is None:
            return graph
        keep, gone = sorted(pair)
        inputs = list[Value]()
        for value in graph.inputs:
            sizes = zip(value.type.shape or (), value.shape or (), strict=True)
            shape = [keep if size and size.name in pair else own for size, own in sizes]
            changes: Any = {"shape": tuple(shape)} if value.shape else {}
            inputs.append(replace(value, **changes))
        graph = replace(graph, inputs=tuple(inputs))


def _find_equal_sizes(types: Types, node: Node) -> Iterator[set[str]]:
    if node.op == "Reshape":
        before, after = (types[name].shape or () for name in (node.inputs[0], node.outputs[0]))
        names = [{n for size in each if size for n in size.names} for each in (before, after)]
        if all(len(each) == 1 for each in names) and names[0] != names[1]:
            yield names[0] | names[1]
    if any(x and x.shape is None for x in input_types(types, node)):
        return
    places: dict[int | None, list[Size | None]] = {}
    for x, path in _follow(types, node):
        for size, place in zip(x.shape or (), path, strict=False):
            places.setdefault(place, []).append(size)
    places.pop(None, None)
    for sizes in places.values():
        yield from _pairs(sizes)


def _pairs(sizes: Sequence[Size | None]) -> Iterator[set[str]]:
    rests = {n: size - n for size in sizes if size is not None for n in size.names}
    for name, other in pairwise(sorted(rests)):
        if rests[name] == rests[other] and rests[name].number is not None:
            yield {name, other}


def _pads_folded(graph: Graph) -> Graph:
    """Returns the graph in which a convolution's own pads replace a Pad of zeros before it."""
    for node in graph.nodes:
        pad = graph.producer(node.inputs[0], "Pad") if node.op == "Conv" else None
        if pad is None or not graph.is_used_only_by(pad.outputs[0], node) or pad.input(3):
            continue
        numbers = graph.types[pad.inputs[1]].numbers
        filled = graph.constants.get(pad.input(2), np.array(0 if not pad.input(2) else 1))
        rank = 0 if numbers is None else len(numbers) // 2
        if numbers is None or rank < 3 or np.any(filled) or pad.attrs.mode != "constant":
            continue
        before, after = ([*map(int, numbers[k * rank : (k + 1) * rank])] for k in range(2))
        if any((*before[:2], *after[:2])) or min(numbers) < 0:
            continue
        if node.attrs.auto_pad in ("NOTSET", "VALID"):
            own = node.attrs.pads or (0,) * 2 * (rank - 2)
            pads = tuple(map(sum, zip(own, (*before[2:], *after[2:]), strict=True)))
            attributes = {**node.attributes, "pads": pads, "auto_pad": "NOTSET"}
            origin = pad.origin + node.origin
            inputs = (pad.inputs[0], *node.inputs[1:])
            conv = Node("Conv", inputs, node.outputs, attributes, origin)
            graph = graph.splice((pad, node), (conv,))
    return graph


_MOST = 4096  # limit for the number of steps by which a value is late


@dataclass
class _Maker(Tape):
    """Builder of the graph that runs chunks, from the nodes of the model that runs all steps.

    ``first``: the name, the array before the first call and the declared shape of each state.
    ``stems``: how many states have each stem; states of the stem h are h0, h1 and so on. ``late``:
    for each value, how many steps later than the input step it comes; negative if the value begins
    with padding. ``waiting``: the name of each delayed value, by the original's name and the delay
    in steps. ``steps``: the axis of steps of each state that holds steps.
    """

    types: Types = field(default_factory=dict)
    time: str = ""
    states: dict[str, str] = field(default_factory=dict)
    stems: Counter[str] = field(default_factory=Counter)
    first: list[tuple[str, Array, Counts]] = field(default_factory=list)
    late: dict[str, int] = field(default_factory=dict)
    waiting: dict[tuple[str, int], str] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)

    def add(self, node: Node) -> None:
        timed = [name for name in node.inputs if name and self._axes(name)]
        late = max((self.late.get(name, 0) for name in timed), default=0)
        waiting = {n: late - self.late.get(n, 0) for n in timed if late > self.late.get(n, 0)}
        node = node.rename({x: self._delay(node, x, by) for x, by in waiting.items()})
        self.late |= {n: late for n in node.outputs if n and self._axes(n)}
        if node.op == "SequenceUnpad" and late:
            raise self.refuse(node, "its lengths do not include the steps that are delayed")
        if not self._with_states(node):
            self.nodes.append(node)
        if any(self.late.get(name, 0) > _MOST for name in node.outputs):
            raise self.refuse(node, f"it reads steps ahead: expected at most {_MOST}, got more")

    def _delay(self, node: Node, x: str, by: int) -> str:
        if (x, by) not in self.waiting:
            axes = self._axes(x)
            if len(axes) != 1:
                raise self.refuse(node, f"{x!r} is delayed: expected steps on one axis")
            joined = self._behind(node, x, axes[0], 0, by)
            self.waiting[x, by] = self._cut(joined, 0, -by, axes[0])
        return self.waiting[x, by]

    def _cut(self, x: str, start: int, end: int, axis: int) -> str:
        return self.emit("Slice", x, [start], [end], [axis])

    def _with_states(self, node: Node) -> bool:
        """Adds a node that reads or writes states in place of ``node``; returns False if ``node``
        can run on chunks unchanged.
        """
        if node.op == "Rnn":
            return self._layer(node)
        return self._reshape(node) if node.op == "Reshape" else self._window(node)

    def refuse(self, node: Node, why: str) -> UnsupportedError:
        return refuse(self.graph, why, node.label)

    def state(self, stem: str, first: Array, shape: Counts) -> tuple[str, str]:
        """Adds a state; returns the names of its input and output."""
        before = fresh(self.graph, f"{stem}{self.stems[stem]}")
        self.stems[stem] += 1
        after = fresh(self.graph, f"{before}N")
        self.states[before] = after
        self.first.append((before, first, shape))
        return before, after

    def _layer(self, node: Node) -> bool:
        rnn = Recurrent.of(node)
        steps, count = _steps_and_batch(self.graph, self.types, node)
        if steps is None or self.time not in steps.names:
            return False
        if rnn.spec.direction != "left2right":
            why = f"expected a layer that runs left2right, got {rnn.spec.direction}"
            raise self.refuse(node, why)
        if count is None or self.time in count.names:
            raise self.refuse(node, "expected a batch that does not depend on the steps")
        batch, dtype = count.number, self.types[rnn.x].dtype or "float32"
        widths = (rnn.spec.recurrent_size, rnn.spec.hidden_size)
        before, after, copies = [], [], []
        for index, (name, width) in enumerate(zip(rnn.states, widths, strict=False)):
            sizes = (rnn.spec.layers, 1, batch or 1, width)
            if self._is_input(name):
                before.append(name)
                after.append(rnn.finals[index])
                continue
            if name and not self._is_zero(name):
                why = f"its initial state {name!r} is computed: expected zeros or an input"
                raise self.refuse(node, why)
            initial, final = self.state(
                "hc"[index], np.zeros(sizes, dtype), (*sizes[:2], batch, width)
            )
            before.append(initial)
            after.append(rnn.finals[index] or final)
            if rnn.finals[index]:
                copies.append(Node("Identity", (rnn.finals[index],), (final,)))
        self.nodes += [rnn.with_states(tuple(before), tuple(after)).node(), *copies]
        return True

    def _is_input(self, name: str) -> bool:
        while (maker := self.graph.producer(name)) and maker.op != "Pad" and _moves(maker):
            name = maker.inputs[0]
        return any(value.name == name for value in self.graph.inputs)

    def _is_zero(self, name: str) -> bool:
        waiting, seen = [name], set[str]()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            maker = self.graph.producer(name)
            if maker is None:
                if name not in self.graph.constants or np.any(self.graph.constants[name]):
                    return False
            elif maker.op == "ConstantOfShape":
                if np.any(maker.attrs.value):
                    return False
            elif maker.op == "Concat":
                waiting += maker.inputs
            elif _moves(maker) and maker.op != "Pad":
                waiting.append(maker.inputs[0])
            else:
                return False
        return True

    def _window(self, node: Node) -> bool:
        """Adds an operator over a window of steps, with the last steps of the previous chunk before
        its input. Returns False if the node can run on chunks unchanged.
        """
        operator, out = OPERATORS[node.op], node.outputs[0]
        axes = self._axes(out)
        pairs = _follow(self.types, node) if operator.reach and len(axes) == 1 else []
        if operator.reach is None or not pairs:
            return self._far(node)
        (axis,), (_, path) = axes, pairs[0]
        if path[axis] is not None:
            return False
        window = operator.reach(node.attrs, axis, *input_types(self.types, node))
        if node.op == "Pad" and window is None:
            raise self.refuse(node, "it pads time: expected zeros as padding")
        if window is None or (
            window.stride == 1 and _more(self.types, out, axis, self.time) is None
        ):
            return self._far(node)
        if window.stride != 1 or window.same:
            raise self.refuse(node, "expected stride 1 along time, and pads as numbers")
        steps, zeros = window.extent - 1, max(window.before, 0)
        if zeros > steps > 0:
            raise self.refuse(node, f"it pads {zeros} steps: expected at most {steps}, its reach")
        if max(zeros, window.after) > 0 and not self._pads_zeros(node):
            raise self.refuse(node, "it pads time: expected zeros as padding")
        cut, x = max(-window.before, 0), node.inputs[0]
        if steps or zeros or cut:
            x = self._behind(node, x, axis, zeros, steps + cut)
            self.late[out] += steps + cut - zeros
        x = self._cut(x, cut, 2**62, axis) if cut else x
        self.stem = out
        self._end(node, self._elsewhere(node, x, axis), axis)
        return True

    def _pads_zeros(self, node: Node) -> bool:
        value = node.input(2) if node.op == "Pad" else ""
        return "ceil_mode" not in vars(node.attrs) and (not value or self._is_zero(value))

    def _elsewhere(self, node: Node, x: str, axis: int) -> str:
        """Adds the node, applied to ``x``, but without its padding and slicing along the axis of
        steps; returns the result's name.
        """
        if "kernel_shape" in vars(node.attrs):
            pads = node.attrs.pads or ()
            elsewhere = (size * (k % (len(pads) // 2) != axis - 2) for k, size in enumerate(pads))
            attributes = {**node.attributes, "pads": tuple(elsewhere) or None}
            return self.emit(node.op, x, *node.inputs[1:], **attributes)
        vectors = [k for k in ((1,) if node.op == "Pad" else (1, 2, 4)) if node.input(k)]
        numbers = [self.types[node.input(k)].numbers for k in vectors]
        known = [each for each in numbers if each is not None]
        if len(known) < len(numbers):
            raise self.refuse(node, "its sizes along other axes are not known: fix the sizes")
        count = len(known[0]) // (2 if node.op == "Pad" else 1)
        own = self.types[node.input(3)].numbers if node.input(3) else None
        axes = range(count) if own is None else own.tolist()
        rank = self.types[node.outputs[0]].rank or 1
        places = [k for k, each in enumerate(axes) if each % rank != axis]
        pairs = zip(vectors, known, strict=True)
        rest = {k: each.reshape(-1, count)[:, places] for k, each in pairs}
        if not places or (node.op == "Pad" and not rest[1].any()):
            return x
        rest[3] = np.array([axes[k] for k in places])
        inputs = (*node.inputs, "", "")[:5]
        names = [
            self.constant(rest[k].reshape(-1)) if k in rest else name
            for k, name in enumerate(inputs)
        ]
        while not names[-1]:
            names.pop()
        return self.emit(node.op, x, *names[1:], **node.attributes)

    def _axes(self, name: str) -> list[int]:
        return _along(self.types[name], self.time)

    def _reshape(self, node: Node) -> bool:
        """Adds a Reshape with -1 in place of the number of steps. Returns False if one more size is
        open, or if a size is 0.
        """
        out = node.outputs[0]
        sizes = self.types[out].shape or ()
        numbers = [size.number if size is not None else None for size in sizes]
        open_ = [size for size, number in zip(sizes, numbers, strict=True) if number is None]
        if open_ != [Size.of(self.time) + _LONG] or 0 in numbers:
            return False
        self.stem = out
        shape = self.constant([-1 if number is None else number for number in numbers])
        self.nodes.append(replace(node, inputs=(node.inputs[0], shape)))
        return True

    def _behind(self, node: Node, x: str, axis: int, zeros: int, steps: int, like: str = "") -> str:
        """Returns the last ``steps`` steps of the previous chunk, joined with ``x``; in the first
        chunk, ``zeros`` steps of zeros, joined with ``x``.

        ``like``: the value that determines the sizes along all axes except ``axis``, ``x`` by
        default.
        """
        result = self.types[like or x]
        if result.shape is None or result.dtype is None:
            raise self.refuse(node, f"the sizes of {x!r} are not known: declare them with --input")
        sizes = [1 if count is None else count for count in result.counts]
        sizes[axis] = zeros
        shape = [*result.counts]
        shape[axis] = zeros if zeros == steps else None
        before, after = self.state("steps", np.zeros(sizes, result.dtype), tuple(shape))
        self.steps[before] = axis
        self.stem = x
        joined = self.emit("Concat", before, x, axis=axis)
        ends = (self.constant([end]) for end in (-steps or 2**62, 2**62, axis))
        self.nodes.append(Node("Slice", (joined, *ends), (after,)))
        return joined

    def _far(self, node: Node) -> bool:
        if node.op == "Slice" and (why := far_steps(self.types, node, self.time)):
            raise self.refuse(node, why)
        return False

    def _end(self, node: Node, x: str, axis: int) -> None:
        out = node.outputs[0]
        wait = -(_more(self.types, out, axis, self.time) or 0) - self.late[out]
        if wait > 0:
            x = self._cut(self._behind(node, x, axis, 0, wait, like=out), 0, -wait, axis)
            self.late[out] += wait
        self.nodes.append(Node("Identity", (x,), (out,), {}, node.origin))
