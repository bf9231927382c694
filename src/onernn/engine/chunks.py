"""A model of sequences becomes one of chunks: its states are inputs and outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from onernn.engine.session import Session
from onernn.fuse_passes import fuse
from onernn.fuse_passes.bodies import bodies, every_node
from onernn.fuse_passes.over_time import check_states
from onernn.fuse_passes.rewriting import Tape, fresh
from onernn.ir.arrays import Array
from onernn.ir.errors import OnernnError, Refusal, UnsupportedError
from onernn.ir.graph import Graph, Node, Value
from onernn.ir.operator import OPERATORS
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.records import dataclass
from onernn.ir.rnn import Recurrent
from onernn.ir.types import Size, Type

Types = Mapping[str, Type]
_FAR = 2**31 - 1  # a slice up to here has no end
_LONG = 2**13
"""Added to each open size, so that inference knows how many elements a slice leaves."""


def counting(graph: Graph, time: str) -> Iterator[tuple[Node, str]]:
    """Yields the nodes that compute with the number of steps, whose name is ``time``, and why.

    Sums and products that describe a shape are allowed: chunks of several sizes check these.
    """
    counts = set[str]()
    for node in graph.nodes:
        read = [index for index, name in enumerate(node.inputs) if name in counts]
        values = [graph.types[name].value for name in node.outputs if name]
        if node.op in ("Shape", "Size") or read:
            known = all(value is not None for value in values)
            if known and any(
                _plain(size, time) is None for value in values for size in _all(value)
            ):
                yield node, "it divides the number of steps"
            elif known:
                if any(_plain(size, time) for value in values for size in _all(value)):
                    counts.update(filter(None, node.outputs))
            elif node.op in ("Shape", "Size") or not all(
                _describes_shape(node, index) for index in read
            ):
                yield node, "it computes with the number of steps"
        within = [each for body in bodies(node).values() for each in every_node(body)]
        if any(each.op in ("Shape", "Size") or each.op == "Slice" for each in within):
            if any(goes_along(graph.types, name, time) for name in node.inputs if name):
                yield node, "what is inside may compute with the number of steps"
        if _meet(graph.types, node, time):
            yield node, "it needs other steps than those so far: it may count them"


def _describes_shape(node: Node, index: int) -> bool:
    """Returns whether an input only says how large a result is, or which part of another."""
    operator = OPERATORS.get(node.op)
    if operator is None or operator.most is None:
        return False
    return node.op == "ConstantOfShape" or (index > 0 and operator.kind in ("view", "moves"))


def _meet(types: Types, node: Node, time: str) -> bool:
    """Returns whether steps meet in a node otherwise than in a window."""
    operator = OPERATORS.get(node.op)
    if operator is None or operator.kind != "mixes" or operator.paths is None or operator.reach:
        return False
    given = [types[name] if name else None for name in node.inputs]
    paths = operator.paths(node.attrs, *given) or ()
    pairs = zip(paths, given, strict=False)
    return any(path and path[axis] is None for path, x in pairs if x for axis in _along(x, time))


def _all(value: Size | tuple[Size, ...] | None) -> tuple[Size, ...]:
    return (value,) if isinstance(value, Size) else value or ()


def _plain(size: Size, time: str) -> bool | None:
    """Returns whether the number of steps is in it; None where it is in a quotient."""
    if any(time in each.whole.names for each in size.quotients):
        return None
    return time in size.names


def goes_along(types: Types, name: str, time: str) -> bool:
    """Returns whether a value has the steps on an axis."""
    return any(size and time in size.names for size in types[name].shape or ())


def far_steps(types: Types, node: Node, time: str) -> str:
    """Returns why a slice counts steps; "" where it takes all, or all but the first or the last
    one.
    """
    starts, ends, axes = (types[name].value if name else None for name in (*node.inputs, "")[1:4])
    shape = types[node.inputs[0]].shape or ()
    bounds = list(zip(_all(starts), _all(ends), strict=False))
    along = [size.number for size in _all(axes)] if axes is not None else [*range(len(bounds))]
    for axis, pair in zip(along, bounds, strict=False):
        size = shape[axis] if axis is not None and axis < len(shape) else None
        if size is None or time not in size.names:
            continue
        if any(each.number is not None and 1 < abs(each.number) < _FAR for each in pair):
            return f"it takes steps [{pair[0]}:{pair[1]}]"
    return ""


_CUTS = (0, 1, 4, 6, 11)  # behind the first chunk: of 1, 3, 2 and 5 steps
_OPEN = 2  # for the proof: every other size that is not declared
_CLOSE = 1e-5, 1e-6  # of f32: relative to the largest number, and absolute


@dataclass(frozen=True, eq=False)
class Stateful:
    """A model that goes on where the call before ended, as `Streams` and chunked files run it.

    ``states``: the output that is the next state, by the input that takes it. ``first``: what an
    input takes before the first call, zeros by default. ``growing``: states whose sizes
    may change from call to call.

    Of models of sequences, as `exposed` gives them: ``time``, the axis along which each other input
    is cut into chunks, and along which each output is put together. ``delay``: how many steps each
    output lags behind the input; as many at the end never come. ``least``: the fewest steps of the
    first chunk.
    """

    graph: Graph
    states: Mapping[str, str]
    first: Mapping[str, Array]
    growing: frozenset[str] = frozenset()
    time: Mapping[str, int] = field(default_factory=dict)
    delay: Mapping[str, int] = field(default_factory=dict)
    least: int = 1

    @classmethod
    def named(cls, graph: Graph, states: Mapping[str, str]) -> Stateful:
        """Returns the model of one frame, with the states that a caller names.

        Raises `UnsupportedError` for a name that is no input or output.
        """
        check_states(graph, states)
        shapes = {value.name: value.shape or () for value in graph.inputs}
        open_sizes = {name: sum(size is None for size in shapes[name]) for name in states}
        return cls(graph, states, {}, frozenset(n for n, count in open_sizes.items() if count > 1))

    def initial(self, name: str) -> Array:
        """Returns a state before the first call, zeros by default; open sizes are 1."""
        if name in self.first:
            return self.first[name]
        value = next(value for value in self.graph.inputs if value.name == name)
        if value.shape is None or value.lod_depth:
            raise UnsupportedError(
                f"state {value}: its shape is not known; say --input, or give it with first="
            )
        sizes = [size if isinstance(size, int) else 1 for size in value.shape]
        return np.zeros(sizes, value.dtype or "float32")

    @property
    def notes(self) -> list[str]:
        """Notes for callers of the chunks."""
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


def prove(graph: Graph, model: Stateful) -> Stateful:
    """Returns the model with the delay of each output. Raises where chunks and the whole input
    differ.
    """
    rng = np.random.default_rng(0)
    cuts = [0, *(model.least + cut for cut in _CUTS)]
    feed = {
        value.name: _random(value, model.time.get(value.name), cuts[-1], rng)
        for value in graph.inputs
    }
    whole: dict[str, Any] = {}
    parts: dict[str, list[Any]] = {}
    try:
        opened = replace(graph, inputs=tuple(map(_open, graph.inputs)))
        whole |= Session(opened, passes=()).run(feed, _noting(whole))
        session, state = Session(model.graph, passes=()), _wide(graph, model, feed)
        for begin, end in pairwise(cuts):
            chunk = {
                name: x.take(range(begin, end), model.time[name]) if name in model.time else x
                for name, x in feed.items()
            }
            values: dict[str, Any] = {}
            outputs = session.run({**chunk, **state}, _noting(values))
            values |= outputs
            state = {name: data_of(outputs[after]) for name, after in model.states.items()}
            for name, value in values.items():
                parts.setdefault(name, []).append(value)
    except OnernnError as error:
        raise refuse(graph, f"its chunks do not run: {error}", "model") from error
    delay = dict[str, int]()
    for value in graph.outputs:
        why, delay[value.name] = _departs(whole[value.name], parts[value.name])
        if why:
            result = (node for node in graph.nodes if _first_apart(node, whole, parts))
            first = next(result, graph.producer(value.name))
            where = first.label if first else value.name
            raise refuse(graph, f"it needs other steps than those so far: {why}", where)
    return replace(model, delay=delay)


def _first_apart(node: Node, whole: Mapping[str, Any], parts: Mapping[str, list[Any]]) -> bool:
    """Returns whether a node's first result has steps, and differs in chunks."""
    name = node.outputs[0]
    if name not in whole or name not in parts or node.op == "Shape":
        return False
    sizes = [part.shape for part in parts[name]]
    return len(set(sizes)) > 1 and bool(_departs(whole[name], parts[name])[0])


def _noting(values: dict[str, Any]) -> Any:
    def observe(node: Node, outputs: tuple[Any, ...], _: float) -> None:
        values.update(zip(node.outputs, outputs, strict=False))

    return observe


def _random(value: Value, axis: int | None, steps: int, rng: np.random.Generator) -> Array:
    if value.shape is None or value.dtype is None:
        raise UnsupportedError(f"input {value}: its type and shape are not known")
    sizes = [size if isinstance(size, int) else _OPEN for size in value.shape]
    if axis is not None:
        sizes[axis] = steps
    if np.dtype(value.dtype).kind == "f":
        return rng.uniform(-1, 1, sizes).astype(value.dtype)
    return rng.integers(0, 2, sizes).astype(value.dtype)


def _wide(graph: Graph, model: Stateful, feed: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the first states, repeated for all sequences of the proof."""
    sizes = {value.name: value.shape for value in model.graph.inputs}
    return {
        name: np.repeat(first, _OPEN, axis) if axis is not None else first
        for name, first in model.first.items()
        for axis in [_batch(sizes[name], first)]
    }


def _batch(shape: tuple[int | None, ...] | None, first: Array) -> int | None:
    """Returns the axis of an open batch, where the first state has size 1."""
    result = [
        index for index, size in enumerate(shape or ()) if size is None and first.shape[index] == 1
    ]
    return result[0] if result else None


def _departs(whole: Any, parts: list[Any]) -> tuple[str, int]:
    """Returns how a value in chunks differs from the whole, "" where it does not; and how late it
    is.
    """
    if isinstance(whole, Ragged):
        return "ragged values", 0
    axes = [index for index, size in enumerate(whole.shape) if size != parts[0].shape[index]]
    if any(part.ndim != whole.ndim for part in parts) or len(axes) > 1:
        return "other axes", 0
    joined = np.concatenate(parts, axes[0]) if axes else parts[-1]
    late = whole.shape[axes[0]] - joined.shape[axes[0]] if axes else 0
    if late < 0:
        return "more steps than there are", 0
    expected = whole.take(range(joined.shape[axes[0]]), axes[0]) if axes else whole
    if joined.dtype.kind != "f":
        return ("" if np.array_equal(joined, expected) else "other numbers"), late
    apart = np.abs(joined.astype(float) - expected).max(initial=0)
    bound = _CLOSE[1] + _CLOSE[0] * np.abs(expected).max(initial=0)
    return ("" if apart <= bound else f"{apart:.3g} apart"), late


# A model of sequences becomes one of chunks: its states are inputs and outputs.


def expose(model: Graph) -> Stateful:
    """Returns the model of any number of steps at a time, which goes on where the chunk before
    ended.

    Layers get their states as inputs and outputs. A window along time gets the last steps of its
    input as a state; what it looks ahead becomes a delay, and values that meet others which are
    later wait for them in a delay line. Inputs whose steps meet have one number of steps. The first
    state is for a batch of as many sequences as the model declares, 1 where that is open.

    The model runs on chunks of 1, 3, 2 and 5 steps, and has to give what all steps at once give.
    Raises `UnsupportedError` naming the first operator that does not.
    """
    graph = _pads_folded(_with_one_time(fuse(model).model))
    types = _long(graph)
    time = _time(graph, types)
    maker = _Maker(graph, types=types, time=time)
    for node in graph.nodes:
        maker.add(node)
    for node, why in counting(graph, time):
        raise maker.refused(node, why)
    if not maker.states:
        raise refuse(graph, "its states are inputs already, or it has none", "model")
    chunk_graph = replace(
        graph,
        inputs=(*map(_open, graph.inputs), *(Value(n, a.dtype.name, s) for n, a, s in maker.first)),
        outputs=(*map(_open, graph.outputs), *(Value(n) for n in maker.states.values())),
        nodes=tuple(maker.nodes),
        constants={**graph.constants, **maker.constants},
    ).pruned()
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
    return prove(graph, Stateful(chunk_graph, maker.states, first, growing, axes, {}, least))


def _open(value: Value) -> Value:
    """Returns the value with open sizes in the place of named ones."""
    shape = value.shape and tuple(s if isinstance(s, int) else None for s in value.shape)
    return replace(value, shape=shape)


def _long(graph: Graph) -> Types:
    """Returns the types of values where all open sizes are large."""
    inputs = dict[str, Type]()
    for value in graph.inputs:
        sizes = value.type.shape
        shape = sizes and tuple(
            size + _LONG if size is not None and size.number is None else size for size in sizes
        )
        inputs[value.name] = replace(value.type, shape=shape)
    return graph.typed(inputs)


def _time(graph: Graph, types: Types) -> str:
    """Returns the name of the number of steps, which the first layer and an input have on an
    axis.
    """
    for node in graph.nodes:
        if node.op != "Rnn":
            continue
        result = types[node.inputs[0]]
        if result.lod != ():
            raise refuse(graph, "its sequences are ragged, or may be", node.label)
        if result.shape and result.shape[0] is not None and result.shape[0].names:
            (name, *others) = sorted(result.shape[0].names)
            if others:
                continue
            if not any(_along(value.type, name) for value in graph.inputs):
                names = {
                    o for n in graph.nodes for o in n.outputs if o and goes_along(types, o, name)
                }
                maker = next(n for n in graph.nodes if not names.isdisjoint(n.outputs))
                raise refuse(graph, "it makes steps that are no input's", maker.label)
            return name
    raise refuse(graph, "no layer goes along an open number of steps", "model")


def _along(value: Type, time: str) -> list[int]:
    return [index for index, size in enumerate(value.shape or ()) if size and time in size.names]


def _with_one_time(graph: Graph) -> Graph:
    """Returns the graph whose inputs share the name of a size where their steps meet."""
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
    """Pairs of names of sizes that have to be equal for a node."""
    operator, shapes = OPERATORS.get(node.op), [types[n].shape for n in node.inputs if n]
    known = [shape for shape in shapes if shape is not None]
    if node.op == "Reshape" and known:
        result = types[node.outputs[0]].shape or ()
        names = [{n for size in each if size for n in size.names} for each in (known[0], result)]
        if all(len(each) == 1 for each in names) and names[0] != names[1]:
            yield names[0] | names[1]
    elif node.op == "Concat" and len({len(shape) for shape in known}) == 1:
        for index, sizes in enumerate(zip(*known, strict=True)):
            if index != node.attrs.axis % len(known[0]):
                yield from _pairs(sizes)
    elif operator is not None and operator.kind == "elementwise":
        for depth in range(1, 1 + max(map(len, known), default=0)):
            yield from _pairs(tuple(shape[-depth] for shape in known if len(shape) >= depth))


def _pairs(sizes: Sequence[Size | None]) -> Iterator[set[str]]:
    """Pairs of names, where sizes differ in nothing but these."""
    rests = {n: size - n for size in sizes if size is not None for n in size.names}
    for name, other in pairwise(sorted(rests)):
        if rests[name] == rests[other] and rests[name].number is not None:
            yield {name, other}


def _pads_folded(graph: Graph) -> Graph:
    """Moves a Pad of zeros that only a convolution reads into the convolution's pads."""
    for node in graph.nodes:
        pad = graph.producer(node.inputs[0], "Pad") if node.op == "Conv" else None
        if pad is None or not graph.used_only_by(pad.outputs[0], node) or pad.input(3):
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


_MOST = 4096  # steps that a model may look ahead


@dataclass
class _Maker(Tape):
    """``first``: name, first array and declared shape of each state. ``stems``: how many states are
    named by each stem. ``late``: by value, how many steps fewer there are of it than of the inputs
    so far; below 0 where padding stands in front. ``waiting``: the delayed values, by value and
    number of steps.
    """

    types: Types = field(default_factory=dict)
    time: str = ""
    states: dict[str, str] = field(default_factory=dict)
    stems: Counter[str] = field(default_factory=Counter)
    first: list[tuple[str, Array, tuple[int | None, ...]]] = field(default_factory=list)
    late: dict[str, int] = field(default_factory=dict)
    waiting: dict[tuple[str, int], str] = field(default_factory=dict)

    def add(self, node: Node) -> None:
        timed = [name for name in node.inputs if name and goes_along(self.types, name, self.time)]
        late = max((self.late.get(name, 0) for name in timed), default=0)
        waiting = {n: late - self.late.get(n, 0) for n in timed if late > self.late.get(n, 0)}
        node = node.renamed({x: self._delay(node, x, by) for x, by in waiting.items()})
        self.late |= {n: late for n in node.outputs if n and goes_along(self.types, n, self.time)}
        if not self._with_states(node):
            self.nodes.append(node)
        if any(self.late.get(name, 0) > _MOST for name in node.outputs):
            raise self.refused(node, f"it looks more than {_MOST} steps ahead")

    def _delay(self, node: Node, x: str, by: int) -> str:
        """Returns the value, delayed by ``by`` steps."""
        if (x, by) not in self.waiting:
            axes = _along(self.types[x], self.time)
            if len(axes) != 1:
                raise self.refused(node, f"{x!r} has to wait, and has steps on several axes")
            joined = self._behind(node, x, axes[0], 0, by)
            self.waiting[x, by] = self._cut(joined, 0, -by, axes[0])
        return self.waiting[x, by]

    def _cut(self, x: str, start: int, end: int, axis: int) -> str:
        return self.emit("Slice", (x, *(self.constant([k]) for k in (start, end, axis))))

    def _with_states(self, node: Node) -> bool:
        """Adds the node with states, if it holds any."""
        if node.op == "Rnn":
            return self._layer(node)
        return self._reshape(node) if node.op == "Reshape" else self._window(node)

    def refused(self, node: Node, why: str) -> UnsupportedError:
        return refuse(self.graph, why, node.label)

    def state(self, stem: str, first: Array, shape: tuple[int | None, ...]) -> tuple[str, str]:
        """Returns a new input and output."""
        before = fresh(self.graph, f"{stem}{self.stems[stem]}")
        self.stems[stem] += 1
        after = fresh(self.graph, f"{before}N")
        self.states[before] = after
        self.first.append((before, first, shape))
        return before, after

    def _layer(self, node: Node) -> bool:
        rnn = Recurrent.of(node)
        result = self.types[rnn.x]
        if 0 not in _along(result, self.time):
            return False
        if rnn.spec.direction != "left2right":
            raise self.refused(node, "it reads from the last step to the first")
        shape = result.shape or ()
        if shape[1] is None or self.time in shape[1].names:
            raise self.refused(node, "its batch is not known, or depends on the steps")
        batch, dtype = shape[1].number, result.dtype or "float32"
        widths = (rnn.spec.recurrent_size, rnn.spec.hidden_size)
        before, after, copies = [], [], []
        for index, (name, width) in enumerate(zip(rnn.states, widths, strict=False)):
            sizes = (rnn.spec.layers, 1, batch or 1, width)
            if self._is_input(name):
                before.append(name)
                after.append(rnn.finals[index])
                continue
            if name and not self._is_zero(name):
                raise self.refused(node, f"its initial state {name!r} is computed")
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
        """Returns whether an initial state is a moved input, which the caller hands on already."""
        while (maker := self.graph.producer(name)) is not None and _moves(maker):
            name = maker.inputs[0]
        return any(value.name == name for value in self.graph.inputs)

    def _is_zero(self, name: str) -> bool:
        """Returns whether a value is zero, whatever its size."""
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
            elif _moves(maker):
                waiting.append(maker.inputs[0])
            else:
                return False
        return True

    def _window(self, node: Node) -> bool:
        """Adds an operator that sees a window of steps: over the last steps and the new ones."""
        operator, axes, out = OPERATORS[node.op], self._axes(node), node.outputs[0]
        if operator.reach is None or operator.paths is None or len(axes) != 1:
            return self._far(node)
        given = [self.types[name] if name else None for name in node.inputs]
        (axis,), paths = axes, operator.paths(node.attrs, *given)
        if paths is None or paths[0][axis] is not None:
            return paths is None and self._far(node)
        window = operator.reach(node.attrs, axis, *given)
        if node.op == "Pad" and window is None:
            raise self.refused(node, "it pads time by something else than zeros")
        if window is None or (window.stride == 1 and self._more(out, axis) is None):
            return self._far(node)
        if window.stride != 1 or window.same:
            raise self.refused(node, "it strides along time, or pads by itself")
        steps, zeros = window.extent - 1, max(window.before, 0)
        if zeros > steps > 0:
            raise self.refused(node, "it pads more steps than it looks back")
        if max(zeros, window.after) > 0 and not self._pads_zeros(node):
            raise self.refused(node, "it pads time by something else than zeros")
        cut, x = max(-window.before, 0), node.inputs[0]
        if steps or zeros or cut:
            x = self._behind(node, x, axis, zeros, steps + cut)
            self.late[out] += steps + cut - zeros
        x = self._cut(x, cut, 2**62, axis) if cut else x
        self.stem = out
        self._end(node, self._elsewhere(node, x, axis), axis)
        return True

    def _pads_zeros(self, node: Node) -> bool:
        """Returns whether what is around the axes of a value is zero; pools leave it out."""
        value = node.input(2) if node.op == "Pad" else ""
        return "ceil_mode" not in vars(node.attrs) and (not value or self._is_zero(value))

    def _elsewhere(self, node: Node, x: str, axis: int) -> str:
        """Adds what a node does along other axes than that of the steps."""
        if "kernel_shape" in vars(node.attrs):
            pads = node.attrs.pads or ()
            elsewhere = (size * (k % (len(pads) // 2) != axis - 2) for k, size in enumerate(pads))
            attributes = {**node.attributes, "pads": tuple(elsewhere) or None}
            return self.emit(node.op, (x, *node.inputs[1:]), **attributes)
        vectors = [k for k in ((1,) if node.op == "Pad" else (1, 2, 4)) if node.input(k)]
        numbers = [self.types[node.input(k)].numbers for k in vectors]
        known = [each for each in numbers if each is not None]
        if len(known) < len(numbers):
            raise self.refused(node, "its sizes along other axes are not known")
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
        return self.emit(node.op, (x, *names[1:]), **node.attributes)

    def _axes(self, node: Node) -> list[int]:
        """Returns the axes of a node's output that have the steps."""
        return _along(self.types[node.outputs[0]], self.time)

    def _reshape(self, node: Node) -> bool:
        """Reshapes to sizes of which one is the number of steps: -1, whatever counted it."""
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
        """Returns the value, behind the last ``steps`` steps of the chunks before; at first, behind
        zeros.

        ``like``: a value of the graph that has its other sizes, x by default.
        """
        result = self.types[like or x]
        if result.shape is None or result.dtype is None:
            raise self.refused(node, f"the sizes of {x!r} are not known")
        sizes = [1 if count is None else count for count in result.counts]
        sizes[axis] = zeros
        shape = [count for count in result.counts]
        shape[axis] = zeros if zeros == steps else None
        before, after = self.state("steps", np.zeros(sizes, result.dtype), tuple(shape))
        self.stem = x
        joined = self.emit("Concat", (before, x), axis=axis)
        ends = (self.constant([end]) for end in (-steps or 2**62, 2**62, axis))
        self.nodes.append(Node("Slice", (joined, *ends), (after,)))
        return joined

    def _far(self, node: Node) -> bool:
        if node.op == "Slice" and (why := far_steps(self.types, node, self.time)):
            raise self.refused(node, why)
        return False

    def _more(self, name: str, axis: int) -> int | None:
        """Returns how many steps more than the inputs a value has in all; None if that varies."""
        size = (self.types[name].shape or ())[axis]
        return None if size is None else (size - self.time - _LONG).number

    def _end(self, node: Node, x: str, axis: int) -> None:
        """Adds x as the node's value, delayed by as many steps as the node cuts at the end."""
        out = node.outputs[0]
        wait = -(self._more(out, axis) or 0) - self.late[out]
        if wait > 0:
            x = self._cut(self._behind(node, x, axis, 0, wait, like=out), 0, -wait, axis)
            self.late[out] += wait
        self.nodes.append(Node("Identity", (x,), (out,), {}, node.origin))


def _moves(node: Node) -> bool:
    """Returns whether a node gives elements of its first input, and nothing else."""
    operator = OPERATORS.get(node.op)
    if operator is None or node.op == "Pad" or operator.most is None:
        return False
    return operator.kind in ("view", "moves")
