"""Infers the types and sizes of a graph's values, and the calls that run each node, before a
run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from onernn.engine.flattening import Flat, flatten, refusing, smaller, widen
from onernn.engine.found_sizes import add_found_sizes
from onernn.engine.joining import join, view
from onernn.engine.kernels import KERNELS
from onernn.engine.operators import rule_of, write_node
from onernn.engine.operators.sequences import batch_of
from onernn.engine.program import Program, UnknownError, identifier
from onernn.fuse_passes.bodies import bodies
from onernn.ir.arrays import Array
from onernn.ir.budget import LOADING, budget_of_run
from onernn.ir.errors import MISFITS, OnernnError, Refusal, ShapeError, UnsupportedError
from onernn.ir.graph import Context, Graph, Node, Sizes, Value, input_types
from onernn.ir.records import NOTHING
from onernn.ir.types import Size, as_tuple, counts_of
from onernn.ops import OPERATORS

_MOST_PASSES = 300_000
"""Limit for the number of nodes that are inferred again because of new sizes; inference of some
30,000 nodes takes a second.
"""
_TRIED, _MOST_TRIED = (16, 7, 1), 8
"""The values that `find_sufficient` tries for open sizes, and the maximum number of open sizes for
which it tries: each trial infers the model once more.
"""
_MOST_TURNS = 10_000
"""Limit for the operators that loops over constants may run while types are inferred."""


def infer(
    program: Program, static: Mapping[str, int] | None = None, *, named: bool = True
) -> list[Refusal]:
    """Infers the type of every value and the steps of every node, with names for open sizes.

    ``named``: names the sizes of the first recurrent layer T and N (W and N if its input is
    ragged), for human readers. ``static``: sizes that are fixed. A fixed T sets only the sizes of
    memory: calls that run a single step have T=1. Returns the reasons why nodes have no steps.
    Raises `ShapeError` if ``static`` names a size that the model does not have.
    """
    program.static = dict(static or {})
    _open(program, named)
    name_inputs(program)
    mentioned = {name for size in program.sizes.bound.values() for name in size.names}
    refusals = _settle(program)
    while refusals and add_found_sizes(program):
        refusals = _settle(program)
    if named and not refusals:
        _name_sizes(program)
        refusals = _settle(program) if program.grew else refusals
    names = sizes_of(program)
    unknown = set(program.static) - {*names, *mentioned}
    if unknown and not refusals:
        said = f"one of {', '.join(names)}" if names else "which has none"
        which = ", ".join(sorted(unknown))
        raise ShapeError(f"--static {which}: expected an open size of the model, {said}")
    for name, number in program.static.items():
        if name != "T":
            program.bind(name, Size.of(number))
    refusals = _settle(program) if program.grew else refusals
    join(program)
    view(program)
    return refusals


def _open(program: Program, named: bool) -> None:
    """Moves the graphs inside of nodes into the outer graph, if all their sizes are known.

    Python may run the remaining graphs, except with ``named``, because generated code has no
    Python.
    """
    if any(map(bodies, program.graph.nodes)):  # runs graphs whose inputs are constants
        known = Program(program.graph)
        _fold(known)
        program.graph = known.graph
    whole = program.graph
    flat: Flat | None = flatten(whole)
    while flat is not None:
        program.graph, result = widen(flat.graph), flat
        flat = _smaller(program, whole, flat, named) if flat.marks or flat.left else None
    program.left, program.refused, program.sources = result.left, result.refused, result.sources


def _smaller(program: Program, whole: Graph, flat: Flat, named: bool) -> Flat | None:
    """Returns the graph without the first branch or loop that cannot be encoded; None if there is
    none. It cannot be encoded if a node in it has no steps, or if it fixes open sizes of inputs.
    """
    tried = Program(program.graph, static=program.static)
    name_inputs(tried)
    reasons = {each.where: each.reason for each in _settle(tried)}
    written = {name for each in tried.codes for name in each.node.outputs}
    for node in tried.graph.nodes:
        for name in filter(None, node.outputs):
            runs = node.outputs[0] in flat.left and not named and _is_typed(tried, name)
            if name not in written and not tried.is_known(name) and not runs:
                reason = reasons.get(node.label, "what it reads is not known")
                if result := smaller(whole, flat, name, reason):
                    return result
    said = _count_decided(tried)
    for part in dict.fromkeys(parts[-1] for parts in flat.parts.values() if parts and said):
        less = refusing(whole, flat, part, "it runs only for some sizes of inputs")
        tried = Program(widen(less.graph), static=program.static)
        name_inputs(tried)
        _settle(tried)
        if _count_decided(tried) < said:
            return less
    return None


def _is_typed(program: Program, name: str) -> bool:
    try:
        return bool(program.dtype(name)) and program.shape(name) is not None
    except (UnknownError, UnsupportedError):
        return False


def _count_decided(program: Program) -> int:
    sizes = [size for value in program.graph.inputs for size in value.type.shape or () if size]
    left = [size for size in sizes if size.number is None]
    return len(left) - len({name for size in left for name in program.size(size).names})


def name_inputs(program: Program) -> None:
    """Adds names for the sizes of inputs that declare none."""
    for value in program.graph.inputs:
        ident, result = program.ident(value.name), value.type
        for index, (size, declared) in enumerate(
            zip(result.shape or (), value.shape or (), strict=True)
        ):
            if index in value.named and size and size.name in program.sizes.bound:
                continue  # an earlier input has a size of this name
            name = f"{ident}_{index}" if declared is None else declared
            program.rename(size, name)
            program.given_sizes.add(f"{name}")
        for level, size in enumerate(reversed(counts_of(result)), 1):
            program.rename(size, f"{ident}_sentences" + f"_{level}" * (level > 1))


def sizes_of(program: Program) -> list[str]:
    """Returns the names of the sizes that are open, T and N first."""
    result: dict[str, None] = {}
    for value in program.graph.inputs:
        try:
            dims = program.dims(value.name)
        except UnknownError:
            why = lacking(value) or "its shape is known only during a run"
            raise UnsupportedError(f"input {value.name!r}: {why}") from None
        for size in dims:
            result |= dict.fromkeys(sorted(size.names))
    return sorted(result, key=lambda name: ("TWN".find(name) % 4, name))


def find_sufficient(
    names: Sequence[str], works: Callable[[Mapping[str, int]], bool]
) -> dict[str, str]:
    """Returns a minimal set of open sizes for which ``works`` is true once they are fixed.

    Each size has the text for its value: ``?`` for any value, or the only value that works. Returns
    {} if no values suffice. ``works(numbers)``: whether it suffices to fix these sizes.
    """
    if not 0 < len(names) <= _MOST_TRIED:
        return {}
    numbers = [number for number in _TRIED if works(dict.fromkeys(names, number))]
    chosen = [*names] if numbers else []
    for name in reversed(names):
        less = [each for each in chosen if each != name]
        if all(works(dict.fromkeys(less, number)) for number in numbers):
            chosen = less
    return dict.fromkeys(chosen, "?" if len(numbers) > 1 else f"{[*numbers, 0][0]}")


def advice(options: str) -> Refusal:
    """Returns a refusal that tells the user which command-line options suffice."""
    what = "numbers for ?" if "?" in options else "these sizes"
    return Refusal(f"{what} suffice: pass {options}", "sizes")


def lacking(value: Value) -> str:
    """Returns what a model does not declare about an input, and the option that declares it; "" if
    nothing is missing. For an unknown shape the option is an example.
    """
    lacks = " and ".join(name for name in ("dtype", "shape") if getattr(value, name) is None)
    result = f"the model does not declare its {lacks}: pass {write_option(value)}"
    if value.shape is None:
        result += ", for example"
        dtype = value.dtype or "int64"
        if not dtype.startswith("float"):
            lengths = Value(value.name, dtype, (None,))
            result += f", or {write_option(lengths, {0: 'N'})} for lengths"
    return result if lacks else ""


def write_option(value: Value, fixed: Mapping[int, str] = NOTHING) -> str:
    """Returns an input in the form of the option ``--input``, with names for open sizes.

    ``fixed``: by axis, the text that replaces a name.
    """
    is_float = (value.dtype or "float32").startswith("float")
    shape = (("T", "N") + (128,) * is_float) if value.shape is None else value.shape
    sizes = ", ".join(
        fixed.get(axis) or (identifier(f"{value.name}_{axis}") if size is None else str(size))
        for axis, size in enumerate(shape)
    )
    return f"--input '{value.name}={value.dtype or 'float32'}({sizes})'"


def _settle(program: Program) -> list[Refusal]:
    budget = _MOST_PASSES
    while True:
        program.grew = False
        refusals = write(program)
        budget -= len(program.graph.nodes)
        if program.grew and budget < 0:
            raise UnsupportedError("too many sizes are open: fix some with --static or --input")
        if program.grew:
            continue
        lacking = program.static.keys() - program.sizes.bound.keys() if refusals else ()
        if not lacking:
            return refusals
        for name in lacking:  # fixed sizes may remove the refusals
            program.bind(name, Size.of(program.static[name]))


def write(program: Program) -> list[Refusal]:
    """Infers the types of all values and the steps of all nodes; returns the reasons why nodes have
    no steps.
    """
    _fold(program)
    graph, refusals = program.graph, list[Refusal]()
    program.codes, program.lods, program.inner = [], {}, {}
    program.memory, program.held, program.undetermined, program.reasons = {}, set(), set(), {}
    for value in graph.inputs:
        result = program.types[value.name]
        if result.lod and result.shape and result.shape[0]:
            program.add_levels(value.name, (*counts_of(result), result.shape[0]))
    for node in graph.nodes:
        if program.has_no_step(node):
            continue
        reasons = list[Refusal]()
        try:
            program.codes.append(write_node(program, node, rule_of(node.op)))
        except UnknownError:
            program.undetermined.add(node)
            reasons = _unknown(program, node)
        except (OnernnError, *MISFITS) as error:
            if isinstance(error, OnernnError) or _is_declared(program, node):
                reasons = [Refusal(_reason(program, node, error), node.label)]
        if reasons:
            program.reasons[node] = reasons[0].reason
        refusals += reasons
    return refusals


def _is_declared(program: Program, node: Node) -> bool:
    """Returns whether the dtypes and ranks of all inputs are known. If not, another refusal
    explains why.
    """
    types = [program.types[name] for name in node.inputs if name]
    return all(each.dtype is not None and each.shape is not None for each in types)


def _reason(program: Program, node: Node, error: Exception) -> str:
    if isinstance(error, OnernnError):
        return str(error).removeprefix(f"{node.label}: ")
    types = ", ".join(f"{name!r} of {program.types[name]}" for name in node.inputs if name)
    return f"its inputs do not fit the operator, got {types}"


def _unknown(program: Program, node: Node) -> list[Refusal]:
    types = input_types(program.types, node)
    if not _is_declared(program, node):
        return []
    try:
        for name in filter(None, node.inputs):
            program.shape(name)
        ragged = any([program.levels(name) for name in node.inputs if name])
    except UnknownError:
        return []
    result = program.types[next(filter(None, node.outputs))]
    reason = "the shape of its result is known only during a run: fix the sizes"
    if result.shape and result.dtype is None:
        reason = f"inputs: expected one dtype, got {[each.dtype for each in types if each]}"
    elif ragged and result.lod is None:
        reason = "axis 0 would mix the steps of ragged sequences: expected a different axis"
    try:
        OPERATORS[node.op].type(Context(node, Sizes()), *types)
    except (OnernnError, *MISFITS) as error:
        return [Refusal(_reason(program, node, error), node.label)]
    return [Refusal(reason, node.label)]


def _fold(program: Program) -> None:
    """Infers types; values that depend only on constants and known sizes become constants."""
    while True:
        graph, known = program.graph, len(program.sizes.bound)
        inputs = {value.name: program.sizes.settle(value.type) for value in graph.inputs}
        program.types = graph.infer_types(inputs, program.sizes.bound)
        for name, given in inputs.items():  # values that became constants during type inference
            for size, result in zip(
                given.shape or (), program.types[name].shape or (), strict=True
            ):
                if size is not None and result is not None:
                    program.same(size, result, name)
        computed: dict[str, Array] = {}
        # A run has a budget of memory. This budget is for the values that are computed before a
        # run.
        own = sum(array.nbytes for array in graph.constants.values())
        with budget_of_run(LOADING + 16 * own, _MOST_TURNS):
            for node in graph.nodes:
                computed |= _compute(program, node, computed)
        if not computed and len(program.sizes.bound) == known:
            return
        nodes = tuple(n for n in graph.nodes if computed.keys().isdisjoint(filter(None, n.outputs)))
        program.graph = replace(graph, nodes=nodes, constants={**graph.constants, **computed})


def _compute(program: Program, node: Node, made: Mapping[str, Array]) -> dict[str, Array]:
    types = {name: program.types[name] for name in node.outputs if name}
    if all(result.numbers is not None for result in types.values()):
        return {name: np.asarray(t.numbers).astype(t.dtype) for name, t in types.items()}
    constants = program.graph.constants
    arrays = [made.get(name, constants.get(name)) if name else None for name in node.inputs]
    known = all(array is not None for name, array in zip(node.inputs, arrays, strict=True) if name)
    if not known or node.op not in KERNELS or node.op == "Rnn":
        return {}
    try:
        result = KERNELS[node.op](node, *arrays)
    except (OnernnError, *MISFITS) as error:
        raise UnsupportedError(f"{node.label}: {_reason(program, node, error)}") from error
    return {n: np.asarray(a) for n, a in zip(node.outputs, as_tuple(result), strict=False) if n}


def _name_sizes(program: Program) -> None:
    """Replaces names of sizes that are derived from the inputs' names by T, N and W."""
    for each in program.codes:
        if each.node.op == "Rnn":
            words, time, count, _ = batch_of(program, each.node.inputs[0])
            pairs = [("W", words), ("N", count)] if time is None else [("T", time), ("N", count)]
            for name, size in pairs:
                size = program.size(size)
                taken = name in program.sizes.bound or name in sizes_of(program)
                if size.name and size.name not in program.inner and not taken:
                    program.bind(size.name, Size.of(name))
