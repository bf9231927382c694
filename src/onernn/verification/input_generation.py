"""Generates inputs for a model without a recording; the inputs reveal known faults.

The inputs have sequences of length 0, of length 1 and longer ones, in no order. Padding is not
zero, initial states are not zero, and some values saturate gates. Every recurrent layer makes
several steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from time import process_time

import numpy as np

from onernn.engine.session import find_unsupported
from onernn.fuse_passes import fuse
from onernn.ir.arrays import Array
from onernn.ir.budget import time_limit
from onernn.ir.errors import BudgetError, OnernnError, UnsupportedError
from onernn.ir.graph import Graph, Node, Value
from onernn.ir.ragged import Batch, Ragged, data_of, offsets_of
from onernn.ir.records import NOTHING, dataclass
from onernn.ir.rnn import Recurrent
from onernn.ops import OPERATORS
from onernn.verification.comparing import Batches, feed_for, pair_inputs
from onernn.verification.recording import savez_call
from onernn.verification.tracing import StepCounter, fast_backend

TIME, BATCH = 14, 5
_LOUD = 6.0
_LONGEST = 65
"""All lengths below this one are tried: an unrolled layer has a fixed length, which its file may
not declare.
"""
_LENGTHS = (TIME, 1, 256, *range(2, _LONGEST), 128, *(2**k for k in range(9, 17)))
"""Numbers of steps to try, in this order: a usual number, 1, 256 (speech models may read as many
samples in a step), then all others.
"""
_STEPS = 8
"""The minimum number of steps that each recurrent layer should make."""
_SHORT, _FEW = 2, 3
"""The number of steps that layers should make on a short batch, and its number of sequences."""
_ATTEMPTS = 1024
_SECONDS, _PATIENCE, _BYTES = 5, 1.5, 10**9
"""Limits: CPU seconds for all attempts, CPU seconds after the first attempt that runs, and bytes of
all values in one attempt.
"""
_Plan = tuple[int | str, ...]


@dataclass(frozen=True)
class _Role:
    """How a model uses an input.

    ``kind``: "words" (steps of sequences), "ids" (integers below ``bound``), "choice" (an integer
    that is compared with ``bound``), "lengths", "state", "attention", "images", "divisor" or
    "other". ``shape``: the sizes that a layer fixes; the other sizes are the letters T and N.
    """

    kind: str
    shape: tuple[int | str, ...] | None = None
    bound: int = 0


def make_inputs(
    model: Graph,
    *others: Graph,
    empty: bool = True,
    short: bool = False,
    seed: int = 0,
    known: Batches = NOTHING,
) -> dict[str, Batch]:
    """Returns inputs by name for a model and ``others``, which take the same inputs by their own
    names.

    Each recurrent layer makes `_STEPS` steps or more if possible. ``empty``: include a sequence of
    length zero if the models take one. ``short``: return fewer and shorter sequences instead.
    ``known``: inputs whose shapes the result must not have. A size or dtype that one model declares
    holds for all models. If one model takes integers where another takes floats, the input is
    integers. Other sizes follow from the graph, or from attempts. If no inputs fit, raises
    `UnsupportedError` with the first model that refused an attempt and its reason. Raises
    `BudgetError` after the time limit.
    """
    graphs = [model, *others]
    twins = [pair_inputs(model.inputs, each.inputs) for each in graphs]
    inputs = unite_inputs(model.inputs, *(each.inputs for each in others))
    sessions = [
        StepCounter(each, backend=fast_backend(), max_bytes=_BYTES)
        for each in graphs
        if each is model or not find_unsupported(each)
    ]
    fused = [fuse(each).model for each in graphs]
    roles = {value.name: _find_role(fused, twins, value) for value in inputs}
    wanted = _SHORT if short else _STEPS
    error = ""
    best: tuple[float, dict[str, Batch]] | None = None
    until = process_time() + _SECONDS
    same = repr({name: np.shape(data_of(value)) for name, value in known.items()})
    tried = set[str]()
    has_lengths = any(v.lod_depth or roles[v.name].kind == "lengths" for v in inputs)

    def attempt(sizes: dict[str, tuple[int, ...]], lengths: Array) -> float:
        """Returns the fewest steps of any layer on inputs of these sizes; -1 if they do not fit."""
        nonlocal best, error, until
        key = repr((sizes, lengths if has_lengths else ()))
        if key in tried or repr(sizes) == same:
            return -1
        tried.add(key)
        size = 8 * max(len(lengths), *map(math.prod, sizes.values()))  # drawn in float64
        if size > _BYTES:
            error = error or f": expected an input of at most {_BYTES:,} bytes, got {size:,}"
            return -1
        rng = np.random.default_rng(seed)
        feed = {
            value.name: _batch(value, roles[value.name], sizes[value.name], lengths, rng)
            for value in inputs
        }
        seen = math.inf
        try:
            for session in sessions:
                seen = min(seen, _steps_of(session, feed, inputs))
        except OnernnError as failed:
            who = f": {session.graph.name} refuses them, it may be another model" if others else ""
            error = error or f"{who}: {failed}"
            if isinstance(failed, BudgetError):
                until = 0
            return -1
        until = until if best else min(until, process_time() + _PATIENCE)
        if best is None or seen > best[0]:
            best = seen, feed
        return seen

    usual = (sorted(_LENGTHS), _FEW) if short else (_LENGTHS, BATCH)
    guesses = _shapes(inputs, roles, _read_padded_sizes(inputs, twins), *usual)
    for shapes, usual_time, batch in itertools.islice(guesses, _ATTEMPTS):
        for with_empty in (True, False) if empty else (False,):
            if best and best[0] >= wanted:
                break
            time, before, seen = usual_time, -2.0, -1.0
            while before < seen < wanted and process_time() <= until:
                before, seen = seen, attempt(shapes(time), _lengths(time, batch, with_empty))
                time *= 2  # a layer may make more steps if sequences are longer
        if process_time() > until or (best and best[0] >= wanted):
            break
    if best is not None:
        return best[1]
    if (limit := time_limit()) is not None:
        limit.check()
    raise UnsupportedError(
        f"{model.name}: no inputs could be generated for {'; '.join(map(str, inputs))}{error}; pass"
        f" --data inputs.npz, made by {savez_call(inputs)}"
    )


def unite_inputs(inputs: Sequence[Value], *others: Sequence[Value]) -> tuple[Value, ...]:
    """Returns a model's inputs, with sizes and dtypes that only other models declare for them."""
    twins = [pair_inputs(inputs, each) for each in others]
    return tuple(_unite(value, [pairs.get(value.name) for pairs in twins]) for value in inputs)


def _steps_of(session: StepCounter, feed: Batches, inputs: tuple[Value, ...]) -> float:
    """Runs a model, and returns the fewest steps of any layer whose number of steps is not
    fixed.
    """
    session.run(feed_for(session.graph.inputs, feed, session.graph.name)[0])
    steps = session.steps(unite_inputs(session.graph.inputs, inputs))
    return min((s.count for s in steps if s.count is not None and s.most is None), default=math.inf)


def _unite(value: Value, twins: list[Value | None]) -> Value:
    for twin in filter(None, twins):
        shape = value.shape
        if value.lod_depth == twin.lod_depth and twin.shape is not None:
            if shape is None:
                shape = twin.shape
            elif len(shape) == len(twin.shape):
                pairs = zip(shape, twin.shape, strict=True)
                shape = tuple(b if a is None else a for a, b in pairs)
        dtypes = [dtype for dtype in (value.dtype, twin.dtype) if dtype]
        whole = [dtype for dtype in dtypes if np.dtype(dtype).kind in "iu"]
        value = replace(value, shape=shape, dtype=next(iter([*whole, *dtypes]), None))
    return value


def _read_padded_sizes(inputs: tuple[Value, ...], twins: list[dict[str, Value]]) -> dict[str, int]:
    """Returns N and T of a ragged input, if another model takes it padded to fixed sizes."""
    result: dict[str, int] = {}
    for value, pairs in itertools.product(inputs, twins):
        twin = pairs.get(value.name)
        if value.lod_depth and twin is not None and not twin.lod_depth:
            sizes = zip("NT", twin.shape or (), strict=False)
            result |= {letter: size for letter, size in sizes if size is not None}
    return result


def _find_role(graphs: list[Graph], twins: list[dict[str, Value]], value: Value) -> _Role:
    """Returns the role of an input in the first operator that computes with it."""
    known = zip(graphs, twins, strict=True)
    roles = (
        _role_in(graph, pairs[value.name].name) for graph, pairs in known if value.name in pairs
    )
    result = next(filter(None, roles), None)
    if result is None and value.dtype in ("int32", "int64") and len(value.shape or ()) == 1:
        return _Role("lengths", ("N",))  # the model makes a mask of lengths
    return result or _Role("other")


def _role_in(graph: Graph, value: str) -> _Role | None:
    names = [value]
    for name in names:  # the loop appends to this list
        for node in graph.users(name):
            if (role := _role_at(graph, node, name)) is not None:
                return role
            if _keeps_role(node, name):
                names += [out for out in node.outputs if out and out not in names]
    return None


def _keeps_role(node: Node, name: str) -> bool:
    """Returns whether an operator only moves or selects elements of this input, without a join with
    further inputs.
    """
    operator = OPERATORS.get(node.op)
    if node.op == "Einsum":  # passes move an axis by an Einsum
        return True
    if operator is None or not operator.keeps:  # None for an unsupported operator
        return False
    if operator.most is None:  # Max keeps the role, Concat does not
        return operator.kind == "elementwise"
    return name == node.inputs[0]


def _role_at(graph: Graph, node: Node, name: str) -> _Role | None:
    slot = node.inputs.index(name)
    first, second = (graph.constants.get(each) for each in (*node.inputs, "")[:2])
    if node.op == "Rnn":
        rnn = Recurrent.of(node)
        spec = rnn.spec
        if name == rnn.x:
            return _Role("words", ("T", "N", spec.input_size))
        if name == rnn.attention:
            return _Role("attention", ("T", "N", 1))
        width = spec.hidden_size if name == rnn.c else spec.recurrent_size
        return _Role("state", (spec.layers * spec.directions, "N", width))
    if node.op == "Conv" and slot == 0 and second is not None:
        channels = second.shape[1] * node.attrs.group
        return _Role("images", ("N", channels, *["T"] * (second.ndim - 2)))
    if node.op == "Equal" and (sizes := graph.types[name].shape) is not None:
        other = first if slot else second
        single = all(size is not None and size.number == 1 for size in sizes)
        if single and other is not None and other.size == 1 and other.dtype.kind in "iu":
            return _Role("choice", (), int(other.item()))  # such as the sample rate
    if node.op in ("Div", "Mod") and slot == 1:
        return _Role("divisor")
    if node.op == "SequenceUnpad" and slot == 1:
        return _Role("lengths", ("N",))
    if node.op == "Gather" and slot == 1 and first is not None:
        return _Role("ids", ("T", "N"), first.shape[node.attrs.axis])
    if node.op in ("MatMul", "Gemm") and slot == 0 and second is not None and second.ndim == 2:
        width = second.shape[-1 if node.attributes.get("transB") else 0]
        return _Role("words", ("T", "N", width))
    return None


def _shapes(
    inputs: tuple[Value, ...],
    roles: dict[str, _Role],
    padded: dict[str, int],
    lengths: Sequence[int],
    usual_batch: int,
) -> Iterator[tuple[Callable[[int], dict[str, tuple[int, ...]]], int, int]]:
    """Yields guesses at the shapes of all inputs, likely guesses first. A guess is a function that
    returns the shapes for a T, the first T to try, and N.
    """
    for usual, order in itertools.product(lengths, (("T", "N"), ("N", "T"))):
        known = dict(padded)  # T and N, if an input declares them
        plans = [_plans(value, roles[value.name], order, known) for value in inputs]
        batch = known.get("N", usual_batch)
        for chosen in itertools.product(*plans):
            letters = {"H": usual, "N": batch, "W": 0}
            yield partial(_in_numbers, inputs, chosen, letters), known.get("T") or usual, batch


def _in_numbers(
    inputs: tuple[Value, ...], plans: tuple[_Plan, ...], letters: dict[str, int], time: int
) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of all inputs, with a number for each letter.

    Axes for which a model declares the same name get the same size.
    """
    sizes = {**letters, "T": time}
    named, result = dict[str, int](), dict[str, tuple[int, ...]]()
    for value, plan in zip(inputs, plans, strict=True):
        shape = [sizes[size] if isinstance(size, str) else size for size in plan]
        for axis, name in value.named.items():
            shape[axis] = named.setdefault(name, shape[axis])
        result[value.name] = tuple(shape)
    return result


def _plans(value: Value, role: _Role, order: tuple[str, str], known: dict[str, int]) -> list[_Plan]:
    """Returns the possible shapes of an input in letters and numbers. Adds T and N to ``known`` if
    the input declares them.

    One axis of an image is its time T, most often the last axis; the other axes are H.
    """
    guess = role.shape
    if value.lod_depth:
        sizes = value.shape[1:] if value.shape else (guess or ())[2:]
        return [("W", *(size if isinstance(size, int) else 1 for size in sizes))]
    if guess is not None and "T" in guess and role.kind != "images":
        guess = (*order, *guess[2:])
    if value.shape is None:
        if guess is None:
            return [("N",), order, (*order, 1)]
        return [guess, guess[1:]] if role.kind == "state" else _of_images(guess)
    if role.kind == "state" and guess and len(value.shape) == 2:
        guess = guess[1:]
    if guess is None or len(guess) != len(value.shape):
        guess = ("N", *["T"] * len(value.shape))[: len(value.shape)]
    fixed = tuple(g if s is None else s for g, s in zip(guess, value.shape, strict=True))
    if role.kind in ("other", "divisor"):  # tries N and T as each unknown size
        places = [("N", "T") if isinstance(size, str) else (size,) for size in fixed]
        return list(itertools.product(*places))
    for letter, size in zip(guess, value.shape, strict=True):
        if isinstance(letter, str) and size is not None and (letter == "N" or "T" not in fixed):
            known.setdefault(letter, size)
    return _of_images(fixed)


def _of_images(plan: _Plan) -> list[_Plan]:
    times = [axis for axis, size in enumerate(plan) if size == "T"]
    return [
        tuple("H" if axis in times and axis != time else size for axis, size in enumerate(plan))
        for time in times[::-1]
    ] or [plan]


def _lengths(time: int, batch: int, empty: bool) -> Array:
    """Returns unsorted lengths: half of ``time``, 0 or 1, all of it, 1, nearly all, and so on."""
    short = 0 if empty else 1
    most, half = max(1, time - 2), (time + 1) // 2
    pattern = {1: [most], 2: [most, short]}.get(batch, [half, short, time, 1, most])
    return np.array(list(itertools.islice(itertools.cycle(pattern), batch)), np.int64)


def _batch(
    value: Value, role: _Role, shape: tuple[int, ...], lengths: Array, rng: np.random.Generator
) -> Batch:
    sizes = (int(lengths.sum()), *shape[1:]) if value.lod_depth else shape
    words = _numbers(value, role, sizes, lengths, rng)
    if not value.lod_depth:
        return words
    outer: list[Array] = []
    below = len(lengths)
    for _ in range(value.lod_depth - 1):
        outer.insert(0, np.array([0, min(2, below), below], np.int64))
        below = 2
    return Ragged(words, offsets_of(lengths), tuple(outer))


def _numbers(
    value: Value, role: _Role, shape: tuple[int, ...], lengths: Array, rng: np.random.Generator
) -> Array:
    dtype = np.dtype(value.dtype or ("int64" if role.kind in ("ids", "lengths") else "float32"))
    if role.kind == "lengths" and shape == lengths.shape:
        return lengths.astype(dtype)
    if role.kind == "ids":
        return rng.integers(0, max(1, role.bound), shape).astype(dtype)
    if role.kind == "choice":
        return np.full(shape, role.bound, dtype)
    if dtype.kind in "iub":
        return rng.integers(*((1, 3) if role.kind == "divisor" else (0, 2)), shape).astype(dtype)
    numbers = rng.uniform(0 if role.kind == "attention" else -1, 1, shape)
    if role.kind in ("words", "other", "divisor") and len(shape) > 1:
        loud = rng.random(shape[:-1]) < 0.25
        numbers = np.where(loud[..., None], _LOUD * numbers, numbers)
    return numbers.astype(dtype)
