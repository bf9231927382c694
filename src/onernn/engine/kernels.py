"""Runs nodes in Python: a kernel is a function of a node and its inputs, None for an absent one.

Kernels return the output value, or a tuple of outputs; values are arrays or `Ragged`. Most
operators have a function that computes them. This file has the kernels that need a session: the
kernels of prepared layers, and of graphs inside of nodes. The last inputs of a node with a graph
are the outer values that the graph reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from math import prod
from typing import Any

import numpy as np

from onernn.backend import Stack
from onernn.fuse_passes.bodies import bodies
from onernn.ir.arrays import Array
from onernn.ir.budget import Recurrence, bytes_of, running, setting
from onernn.ir.errors import ShapeError
from onernn.ir.graph import Context, Graph, Node, Sizes
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.records import cached_property, dataclass
from onernn.ir.rnn import Recurrent
from onernn.ir.types import as_tuple, type_of
from onernn.ir.weights import RnnWeights
from onernn.ops import OPERATORS, quantized
from onernn.ops.control import Turns
from onernn.ops.growth import no_new_bytes, product_of_sizes, product_with_numbers, results


@dataclass(frozen=True, eq=False)
class PreparedNode:
    """A recurrent node and the layer that runs it.

    ``cells_from``: the weights that determine the cell state of every step; None if no node reads
    it.
    """

    node: Node
    layer: Stack
    cells_from: RnnWeights | None

    @property
    def cells_by(self) -> str:
        """The kernel that computes the cell state of every step, "" if the layer's own kernel
        does.
        """
        numpy = self.cells_from and self.layer.compiled is None
        return "the cell of every word on NumPy" if numpy else ""

    @cached_property
    def recurrence(self) -> Recurrence:
        """The sizes from which the cost of the layer's steps follows."""
        spec, layers = self.layer.spec, Recurrent.of(self.node).layers
        work = sum(array.size for weights in layers for array in weights.arrays.values())
        return Recurrence(spec.layers * spec.directions, work)

    def run(self, x: Any, h: Any = None, c: Any = None, attention: Any = None) -> tuple[Any, ...]:
        """Returns (y, final states...), then the cell state of every step if a node reads it.

        Raises `BudgetError` if the steps would take longer than the run may take.
        """
        if isinstance(x, Ragged):
            steps, rows = int(np.diff(x.offsets).max(initial=0)), len(x.data)
        else:
            steps, rows = prod(x.shape[:1]), prod(x.shape[:2])
        running().turn(self.recurrence.cost(steps, rows))
        states = (h, c)[: len(self.layer.spec.cell.states)]
        state: Any = states if any(each is not None for each in states) else None
        y, final = self.layer.run(x, state, attention)
        if self.cells_from is None:
            return (y, *final)
        from onernn.backend.reference import cell_sequence

        return (y, *final, cell_sequence(self.layer.spec, self.cells_from, x, state))


_PREPARED: ContextVar[Mapping[Node, PreparedNode]] = ContextVar("prepared nodes of the session")


def prepare(nodes: Mapping[Node, PreparedNode]) -> AbstractContextManager[object]:
    """Sets the recurrent nodes that may run inside the block, including nodes of loops and
    branches.
    """
    return setting(_PREPARED, nodes)


def recurrence_of(
    graph: Graph, node: Node, layers: Mapping[Node, PreparedNode]
) -> Recurrence | None:
    """Returns the sizes from which the cost of a recurrent layer follows; None for other nodes, and
    if they are not known before a run.
    """
    if node in layers:
        return layers[node].recurrence
    if node.op == "DynamicQuantizeLSTM":
        w, r = (graph.constants.get(name) for name in node.inputs[1:3])
        return None if w is None or r is None else quantized.recurrence(w, r)
    return None


def share_of(graph: Graph, layers: Mapping[Node, PreparedNode]) -> int:
    """Returns the maximum cost of one input row, summed over all recurrent layers. Layers of graphs
    inside of nodes count as well.
    """
    recurrences = (recurrence_of(graph, node, layers) for node in graph.nodes)
    inner = (body for node in graph.nodes for body in bodies(node).values())
    return sum(each.share for each in recurrences if each) + sum(share_of(b, layers) for b in inner)


def run_prepared(node: Node, *values: Any) -> tuple[Any, ...]:
    """Runs a recurrent node on the layer that the session has for it."""
    result = _PREPARED.get({}).get(node)
    if result is None:
        raise ShapeError("a recurrent layer needs a Session that runs it")
    return result.run(*values)


Kernel = Callable[..., Any]

_OBJECT = 128
"""Bytes of an array object in addition to its elements."""


def run_body(body: Graph, arguments: Sequence[Any]) -> list[Any]:
    """Runs a graph and returns its outputs.

    Of the values that the graph computes, only the outputs remain counted in the run's budget.
    """
    budget = running()
    budget.turn(1 + len(body.nodes))
    before = budget.used
    values = dict(body.constants)
    values.update(zip((value.name for value in body.inputs), arguments, strict=True))
    for node in body.nodes:
        out = KERNELS[node.op](node, *(values[name] if name else None for name in node.inputs))
        values.update(zip(node.outputs, as_tuple(out), strict=False))
    outputs = [_alone(values[output.name]) for output in body.outputs]
    budget.used = before + _footprint(outputs)
    return outputs


def _alone(value: Any) -> Any:
    """Returns the value, or a copy if it is a view of a small part of an array: the view would keep
    the whole array alive.
    """
    base = getattr(value, "base", None)
    base_size = getattr(base, "nbytes", 0)
    return value.copy() if base_size and base_size > 2 * value.nbytes else value


def _footprint(values: Iterable[Any]) -> int:
    """Returns the bytes of values, including the bytes of Python's objects: a loop may gather a
    million scalars.
    """
    return sum(data_of(value).nbytes + _OBJECT for value in values)


def _truth(value: Any) -> bool:
    return bool(np.asarray(value).reshape(()))


def _if(node: Node, condition: Array, *values: Any) -> tuple[Any, ...]:
    count = node.attributes["then_taken"]
    if _truth(condition):
        return tuple(run_body(node.attributes["then_branch"], values[:count]))
    return tuple(run_body(node.attributes["else_branch"], values[count:]))


def _turns(node: Node, *values: Any) -> tuple[Any, ...]:
    """Runs a Loop or a Scan: see `onernn.ops.control.Turns`.

    The body takes (iteration and condition of a Loop, state..., one element..., captured...) and
    returns (the condition of a Loop, state..., gathered values...).
    """
    turns = Turns.of(node.attrs)
    front, begin, scanned, captured = turns.parts(values)
    state, collected = [*begin], [list[Array]() for _ in turns.output_axes]
    rows = zip(scanned, turns.input_axes, turns.input_directions, strict=True)
    sources = [np.moveaxis(x, axis, 0)[:: -1 if back else 1] for x, axis, back in rows]
    lengths = {len(source) for source in sources}
    if len(lengths) > 1:
        raise ShapeError(f"scanned inputs: expected equal lengths, got {sorted(lengths)}")
    most, condition = front or (None, None)
    last = min(lengths, default=math.inf if most is None else int(most.reshape(())))
    going, budget = condition is None or _truth(condition), running()
    before, gathered, turn = budget.used, 0, 0
    while going and turn < last:
        own = (np.array(turn, np.int64), np.array(going))[: turns.front]
        elements = [source[turn] for source in sources]
        results = run_body(turns.body, (*own, *state, *elements, *captured))
        if turns.skip:
            going = _truth(results.pop(0))
        state = results[: turns.states]
        for part, result in zip(collected, results[turns.states :], strict=True):
            part.append(result)
        gathered += _footprint(results[turns.states :])
        budget.used = before + gathered + _footprint(state)
        turn += 1
    budget.ask(gathered)
    ways = zip(collected, turns.output_axes, turns.output_directions, strict=True)
    stacked = [np.stack(part[::-1] if back else part, axis) for part, axis, back in ways if part]
    stacked = stacked if turn else _nothing(node, turns, *values)
    budget.used = before
    return (*state, *stacked)


def _nothing(node: Node, turns: Turns, *values: Any) -> list[Array]:
    inputs = [None if value is None else type_of(value) for value in values]
    types = OPERATORS[node.op].type(Context(node, Sizes()), *inputs)[turns.states :]
    outputs = turns.body.outputs[turns.skip + turns.states :]
    out = []
    for value, inferred, axis in zip(outputs, types, turns.output_axes, strict=True):
        sizes = list(inferred.counts)
        if not sizes and value.shape is not None:
            sizes = [*value.shape, 0]
            sizes.insert(axis % len(sizes), sizes.pop())
        if sizes:
            sizes[axis] = 0
        dtype = inferred.dtype or value.dtype
        if dtype is None or not sizes or None in sizes:
            raise ShapeError(f"a loop runs no iteration: expected a known shape of {value}")
        out.append(np.zeros([size or 0 for size in sizes], dtype))
    return out


_ALWAYS_COUNTED = 2**16
"""Results of up to this many bytes count in full, even if they are views: a check for views would
take longer.
"""


def _account(name: str, run: Kernel) -> Kernel:
    """Returns a kernel that checks the run's budget before it runs, and then counts its results."""
    growth = OPERATORS[name].growth or results
    by_product, by_numbers = OPERATORS[name].growth is None, OPERATORS[name].growth is results
    may_share = by_product or growth is no_new_bytes

    def account(node: Node, *values: Any) -> Any:
        budget = running()
        if budget.limit:
            budget.limit.check()
        product = 0
        if by_product:
            product = product_of_sizes(values)
        elif by_numbers:
            product = product_with_numbers(values)
        # skipped if the product shows that memory suffices: the exact bound takes some microseconds
        if not 0 < product < budget.most - budget.used:
            budget.ask(growth(node, *values))
        result = run(node, *values)
        for value in result if type(result) is tuple else (result,):
            array = value.data if type(value) is Ragged else value
            size = getattr(array, "nbytes", 1)  # results may be Python objects
            if not (may_share and size > _ALWAYS_COUNTED and _is_view(array, values)):
                budget.used += size or bytes_of(array)
        if budget.used > budget.most:
            budget.ask(0)
        return result

    return account


def _is_view(array: Array, values: Iterable[Any]) -> bool:
    return any(np.may_share_memory(array, data_of(v)) for v in values if v is not None)


def make_own(value: Any, others: Iterable[Any]) -> Any:
    """Returns the value; copies it if it is read-only, or shares memory with one of the others."""
    array = data_of(value)
    if array.flags.writeable and not _is_view(array, others):
        return value
    running().ask(array.nbytes)
    return value.with_data(array.copy()) if isinstance(value, Ragged) else array.copy()


_RUN: dict[str, Kernel] = {
    **{name: operator.run for name, operator in OPERATORS.items() if operator.compute},
    "If": _if,
    "Loop": _turns,
    "Rnn": run_prepared,
    "Scan": _turns,
}
KERNELS: dict[str, Kernel] = {name: _account(name, run) for name, run in _RUN.items()}
