"""Turns a loop into a scan if each iteration t reads step t of a value, and there is one iteration
per step.

PyTorch and TensorFlow export loops over time in this form. TensorFlow's loops have their own
counter, and run while it is less than the number of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain

from onernn.fuse_passes.bodies import inside
from onernn.fuse_passes.rewriting import Tape, fresh, rewrite
from onernn.fuse_passes.views import is_view
from onernn.ir.graph import Graph, Node, Value
from onernn.ir.types import Size, Type
from onernn.ops.control import scan_attributes

_TURN = Size.of("this turn")
# The number of iterations that exporters write for loops without a limit.
_ENDLESS = 2**31 - 1
WIDE = ("int32", "int64", "float32", "float64")
"""The dtypes to which integers may be cast. float32 has 24 bits, enough for TensorFlow's step
counts.
"""


@rewrite("scanned_loops", "Loop")
def scan_loops(graph: Graph, node: Node) -> Graph | str | None:
    """Turns ``Loop(body: x[t], ...)`` with one iteration t for each step of x into ``Scan(x)``."""
    if not graph.is_dense(*node.inputs):
        return None
    loop = _Loop(graph, node)
    ends = zip(node.outputs[loop.count :], loop.body.outputs[1 + loop.count :], strict=True)
    read = {name: value for name, value in ends if graph.is_read(name)}
    counted: set[str] = set()  # counters that the body reads; these stay states
    while True:
        names = [value.name for value in loop.body.inputs[2 : 2 + loop.count]]
        dropped = {index for index in loop.counters if names[index] not in counted}
        states = [index for index in range(loop.count) if index not in dropped]
        kept = (*(loop.body.outputs[1 + index] for index in states), *read.values())
        body = replace(loop.body, outputs=kept).prune()
        reads = [each for each in body.nodes if loop.reads(each)]
        sources = list(dict.fromkeys(each.inputs[0] for each in reads))
        scanned = [loop.taken[name] for name in sources]
        whole = next((name for name in scanned if loop.goes_through(name)), None)
        if whole is None:
            return "it does not run one iteration per step of a value"
        steps = {name: fresh(body, f"{name}/step") for name in sources}
        elements = [Value(steps[name], graph.types[loop.taken[name]].dtype) for name in sources]
        step = {id(r): Node("Identity", (steps[r.inputs[0]],), r.outputs) for r in reads}
        nodes = tuple(step.get(id(each), each) for each in body.nodes)
        body = replace(body, inputs=(*body.inputs, *elements), nodes=nodes).bypass(step.values())
        used = {name for each in body.nodes for name in each.inputs} | {v.name for v in kept}
        if not (more := (used & loop.numbers) - counted):
            break
        if not more <= {*names}:
            return "a step reads the number of its iteration"
        counted |= more
    rest = [value for value in body.inputs if value.name in used and value.name in loop.taken]
    carried = [body.inputs[2 + index] for index in states]
    body = replace(body, inputs=(*carried, *elements, *rest))
    to = Tape(graph, f"{next(filter(None, node.outputs))}/turns", node.origin)
    turns, first = to.emit("Shape", whole, start=0, end=1), to.constant([0])
    length = graph.types[whole].shape[:1]  # type: ignore[index]
    # A scanned value may have more steps than the loop has iterations.
    for place, name in enumerate(scanned):
        if (graph.types[name].shape or ())[:1] != length:
            scanned[place] = to.emit("Slice", name, first, turns, first)
    others = (loop.taken[value.name] for value in rest)
    inputs = (*(node.inputs[2 + index] for index in states), *scanned, *others)
    outputs = (*(node.outputs[at] for at in states), *read)
    attributes = scan_attributes(body, len(states), len(scanned))
    to.nodes.append(Node("Scan", inputs, outputs, attributes, node.origin))
    number = to.emit("Squeeze", turns, first)
    for at, name in enumerate(node.outputs[: loop.count]):
        if name and at not in states:  # a counter of the iterations
            begin = node.inputs[2 + at]  # its shape is () or (1,)
            to.emit("CastLike", turns if graph.types[begin].rank else number, begin, output=name)
    return to.splice(node)


class _Loop:
    """The integers of a loop that are known before a run.

    ``taken``: the names of values of the outer graph that the body reads, by their names in the
    body. ``counters``: the indices of carried values that equal t in iteration t. ``numbers``: the
    names of t, of the condition and of the counters in the body.
    """

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph, self.node, self.body = graph, node, node.attributes["body"]
        self.count = node.attributes["carried"]
        self._names = [value.name for value in self.body.inputs]
        self._given = inside(graph, node, "body")
        self._given[0] = replace(self._given[0], value=_TURN)
        behind = 2 + self.count
        self.taken = dict(zip(self._names[behind:], node.inputs[behind:], strict=True))
        begin = map(self._outside, node.inputs[2:behind])
        counters = {index for index, first in enumerate(begin) if first == Size.of(0)}
        self.types = self._infer_types(counters)
        while lost := {index for index in counters if not self._counts(index)}:
            counters -= lost
            self.types = self._infer_types(counters)
        self.counters = counters
        self.numbers = {*self._names[:2], *(self._names[2 + index] for index in counters)}

    def _infer_types(self, counters: set[int]) -> Mapping[str, Type]:
        """Returns the types in the body if the carried values ``counters`` equal t in iteration
        t.
        """
        given = list(self._given)
        for at in counters:
            given[2 + at] = replace(given[2 + at], value=_TURN)
        return self.body.infer_types(dict(zip(self._names, given, strict=True)))

    def _counts(self, index: int) -> bool:
        result = self.types[self.body.outputs[1 + index].name]
        return result.dtype in WIDE[:2] and result.value == _TURN + 1

    def reads(self, node: Node) -> bool:
        """Returns whether a node reads step t of a value in iteration t."""
        if node.op != "Gather" or node.attrs.axis or node.inputs[0] not in self.taken:
            return False
        return self.types[node.inputs[1]].value == _TURN

    def goes_through(self, source: str) -> bool:
        """Returns whether the loop has one iteration for each step of a value, for any number of
        steps.
        """
        length = next(iter(self.graph.types[source].shape or ()), None)
        if length is None:
            return False
        begin, again = self.node.inputs[1], self.body.outputs[0].name
        # The number of iterations that each condition allows. ``begin`` is tested before the first
        # iteration, ``again`` after each iteration t.
        before = _limits(self.graph, begin, self._outside)
        after = _limits(self.body, again, self._inside, self._names[1])
        most = self._most()
        if before is None or after is None or most is None:
            return False
        after = [limit + _TURN + 1 for limit in after]
        more = [[(limit - length).number for limit in each] for each in (most, before, after)]
        if any(each is None or each < 0 for each in chain(*more)):
            return False
        return 0 in more[0] or 0 in more[1] and 0 in more[2]

    def _most(self) -> list[Size] | None:
        """Returns a list with the maximum number of iterations. The list is empty if the loop has
        no limit; None is returned if the limit is not known.
        """
        name = self.node.inputs[0]
        result = self._outside(name) if name else Size.of(_ENDLESS)
        if result is None:
            return None
        return [] if (result.number or 0) >= _ENDLESS else [result]

    def _outside(self, name: str) -> Size | None:
        return _number(self.graph, self.graph.types, name)

    def _inside(self, name: str) -> Size | None:
        return _number(self.body, self.types, name) or (
            self._outside(self.taken[name]) if name in self.taken else None
        )


def _number(graph: Graph, types: Mapping[str, Type], name: str) -> Size | None:
    """Returns an integer scalar if it is known before a run, also if it was cast to a float."""
    while node := graph.producer(name, "Cast", "Identity"):
        if node.op == "Cast" and node.attrs.to not in WIDE:
            return None
        name = node.inputs[0]
    number = graph.number(name)
    if isinstance(number, float):
        return Size.of(number) if number % 1 == 0 else None
    value = types[name].value
    if isinstance(value, tuple):
        return value[0] if len(value) == 1 else None
    return value


def _limits(
    graph: Graph, name: str, number: Callable[[str], Size | None], granted: str = ""
) -> list[Size] | None:
    """Returns sizes that are all greater than 0 exactly if a condition is true; None if not known.

    ``granted``: the name of a condition that is known to be true.
    """
    waiting, seen, result = [name], {"", granted}, list[Size]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        node, array = graph.producer(name), graph.constants.get(name)
        if array is not None and array.dtype == bool and array.all():
            continue
        if node is None:
            return None
        if node.op == "And":
            waiting += node.inputs
            continue
        if node.op == "Cast" or is_view(node.op):
            waiting.append(node.inputs[0])
            continue
        compared = node.op.removesuffix("OrEqual")
        if compared not in ("Less", "Greater"):
            return None
        low, high = map(number, node.inputs[:: 1 if compared == "Less" else -1])
        if low is None or high is None:
            return None
        result.append(high - low + int(compared != node.op))
    return result
