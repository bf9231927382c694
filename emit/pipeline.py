"""From a graph to C++: parse, infer, initialize; `generating` is the last step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from onernn.backend.compiled.packing import STORED
from onernn.core.arrays import Array
from onernn.core.budget import LOADING, budget_of_run
from onernn.core.errors import OnernnError, Refusal, ShapeError, UnsupportedError
from onernn.core.graph import Graph, Node, Value
from onernn.core.guard import MISFITS
from onernn.core.inference import Context, Sizes
from onernn.core.sizes import Size
from onernn.core.types import Type, sequences_of
from onernn.emit.naming import identifier
from onernn.emit.operators import rule_of, written
from onernn.emit.operators.recurrent import batch_of
from onernn.emit.program import CTYPES, Program, Sentences, UnknownError
from onernn.emit.rendering import words
from onernn.emit.storing import Store
from onernn.emit.streaming import why_no_step
from onernn.fuse_passes import PASSES, fuse
from onernn.operators import OPERATORS
from onernn.runtime.kernels import KERNELS

_MOST_PASSES = 300_000
"""Operators that are written again because of new sizes; a second takes some 30,000."""
_MOST_TURNS = 10_000
"""Operators that loops over constants may run each time."""


def parse(model: Graph, declared: Mapping[str, Value] | None = None) -> Program:
    """The fused model as a program. ``declared`` says what it leaves open of its inputs."""
    graph = fuse(model, PASSES).model
    unknown = set(declared or ()) - {value.name for value in graph.inputs}
    if unknown:
        names = [value.name for value in graph.inputs]
        raise ShapeError(f"--input {sorted(unknown)}: the model takes {names}")
    inputs = tuple((declared or {}).get(value.name, value) for value in graph.inputs)
    return Program(replace(graph, inputs=inputs))


def _refusal(graph: Graph, refusals: list[Refusal]) -> UnsupportedError:
    return UnsupportedError(f"{graph.name}: no C++ is generated:", refusals)


def _refused(value: Value) -> Iterator[str]:
    """Why C++ does not take an input."""
    if value.dtype is None or value.shape is None:
        hint = f"--input '{value.name}=float32(T, N, 128)'"
        yield f"its type and shape are not told: say {hint}, for instance, or --data io.npz"
    elif value.dtype not in CTYPES:
        yield f"of {value.dtype}"
    elif value.lod_depth > 1:
        yield f"{value.lod_depth} LoD levels"
    elif bad := [s for s in value.shape if isinstance(s, str) and not is_size_name(s)]:
        yield f"sizes {bad}: names that C++ or its header uses; say T, N, or longer ones"


def is_size_name(name: str) -> bool:
    """Whether a size may be called so: it becomes a variable beside those of the templates."""
    beside = name in words() or name.endswith(("_at", "_in", "_out"))
    return name in ("T", "N", "W") or (identifier(name) == name and not beside)


def infer(program: Program, static: Mapping[str, int] | None = None) -> None:
    """The type of every value, and what every node becomes, in names where a size is left open.

    T and N are what the first recurrent layer says (W and N, where its input is ragged). Sizes of
    ``static`` are fixed: all but T at once, T in the memory only, so that a step still has T=1.
    Raises `UnsupportedError` that names the nodes, `ShapeError` for a size that the model does
    not have.
    """
    graph, program.static = program.graph, dict(static or {})
    every = {*graph.constants, *(name for node in graph.nodes for name in node.outputs)}
    every |= {value.name for value in graph.inputs}
    refusals = [Refusal("a name with a NUL", repr(name)) for name in every if "\0" in name]
    refusals += [Refusal(why, value.name) for value in graph.inputs for why in _refused(value)]
    for value in program.graph.inputs:
        ident, found = program.ident(value.name), value.type
        for at, (size, told) in enumerate(zip(found.shape or (), value.shape or (), strict=True)):
            program.rename(size, f"{ident}_{at}" if told is None else told)
        program.rename(sequences_of(found), f"{ident}_sentences")
    if refusals:
        raise _refusal(graph, [*refusals, *_pass(program)])
    mentioned = {name for size in program.bindings.values() for name in size.names}
    _settle(program)
    _name(program)
    if program.grew:
        _settle(program)
    names = sizes_of(program)
    unknown = set(program.static) - {*names, *mentioned}
    if unknown:
        said = ", ".join(names) or "no size is open"
        raise ShapeError(f"--static {', '.join(sorted(unknown))}: the model has {said}")
    for name, number in program.static.items():
        if name != "T":
            program.bind(name, Size.of(number))
    if program.grew:
        _settle(program)


def sizes_of(program: Program) -> list[str]:
    """The names of the sizes that are open, T and N first."""
    found: dict[str, None] = {}
    for value in program.graph.inputs:
        lod = program.sentences(value.name)
        for size in (*program.shape(value.name), *((program.size(lod.count),) if lod else ())):
            found |= dict.fromkeys(sorted(size.names))
    return sorted(found, key=lambda name: ("TWN".find(name) % 4, name))


def _settle(program: Program) -> None:
    """Again, until sizes say nothing new of each other."""
    budget = _MOST_PASSES
    while True:
        program.grew = False
        refusals = _pass(program)
        budget -= len(program.graph.nodes)
        if program.grew and budget < 0:
            raise UnsupportedError("too many sizes are open: say --static")
        if program.grew:
            continue
        lacking = program.static.keys() - program.bindings.keys() if refusals else ()
        if not lacking:
            break
        for name in lacking:  # the number may be what was lacking
            program.bind(name, Size.of(program.static[name]))
    if refusals:
        raise _refusal(program.graph, refusals)


def _pass(program: Program) -> list[Refusal]:
    """Types of all values, and code of all nodes; the reasons why some have none."""
    _fold(program)
    graph, refusals = program.graph, []
    program.codes, program.lods, program.inner = [], {}, {}
    program.memory, program.held = {}, set()
    for value in graph.inputs:
        found = program.types[value.name]
        if (count := sequences_of(found)) and found.shape and found.shape[0]:
            lod = Sentences(value.name, program.size(count), program.size(found.shape[0]))
            program.lods[(found.lod or ("",))[0]] = lod
    for node in graph.nodes:
        if all(program.is_known(name) for name in node.outputs if name):
            continue
        try:
            program.codes.append(written(program, node, rule_of(node.op)))
        except UnknownError:
            refusals += _unknown(program, node)
        except (UnsupportedError, ShapeError, *MISFITS) as error:
            reason = str(error).removeprefix(f"{node.label}: ")
            refusals.append(Refusal(reason, node.label))
    return refusals


def _unknown(program: Program, node: Node) -> list[Refusal]:
    """Why a node's result is not known, nothing where that follows from another's."""
    given = [program.types[name] if name else None for name in node.inputs]
    try:
        names = [n for name in node.inputs if name for s in program.shape(name) for n in s.names]
        ragged = any([program.sentences(name) for name in node.inputs if name])
    except UnknownError:
        return []
    made = program.types[next(filter(None, node.outputs))]
    reason = "the shape of its result is told by a call only"
    if made.shape and made.dtype is None:
        reason = f"inputs of several types {[each.dtype for each in given if each]}"
    elif ragged and made.lod is None:
        reason = "axis 0 would mix the words of a LoD"
    try:
        OPERATORS[node.op].type(Context(node, Sizes()), *given)
    except (OnernnError, *MISFITS) as error:
        reason = str(error)
    hint = f"; --static {min(names)}=... may tell it" if names else ""
    return [Refusal(reason + hint, node.label)]


def _fold(program: Program) -> None:
    """Infers types; what depends on constants and known sizes only becomes a constant."""
    while True:
        graph, known = program.graph, len(program.bindings)
        inputs = {value.name: _put(program, value.type) for value in graph.inputs}
        program.types = graph.typed(inputs)
        for name, given in inputs.items():  # what turned out to be one while types were inferred
            for size, found in zip(given.shape or (), program.types[name].shape or (), strict=True):
                if size is not None and found is not None:
                    program.same(size, found, name)
        made: dict[str, Array] = {}
        # Nothing is run, whose budget would count what values take that are known now.
        own = sum(array.nbytes for array in graph.constants.values())
        with budget_of_run(LOADING + 16 * own, _MOST_TURNS):
            for node in graph.nodes:
                made |= _computed(program, node, made)
        if not made and len(program.bindings) == known:
            return
        nodes = tuple(n for n in graph.nodes if made.keys().isdisjoint(filter(None, n.outputs)))
        program.graph = replace(graph, nodes=nodes, constants={**graph.constants, **made})


def _put(program: Program, found: Type) -> Type:
    shape = tuple(size and program.size(size) for size in found.shape or ())
    return replace(found, shape=shape)


def _computed(program: Program, node: Node, made: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs that are known now; ``made``: what is, of the nodes before."""
    types = {name: program.types[name] for name in node.outputs if name}
    if all(found.numbers is not None for found in types.values()):
        return {name: np.asarray(t.numbers).astype(t.dtype) for name, t in types.items()}
    constants = program.graph.constants
    given = [made.get(name, constants.get(name)) if name else None for name in node.inputs]
    known = all(array is not None for name, array in zip(node.inputs, given, strict=True) if name)
    if not known or node.op not in KERNELS or node.op == "Rnn":
        return {}
    try:
        found = KERNELS[node.op](node, *given)
    except (OnernnError, *MISFITS) as error:
        raise UnsupportedError(f"{node.label}: {error}") from error
    found = found if isinstance(found, tuple) else (found,)
    return {n: np.asarray(a) for n, a in zip(node.outputs, found, strict=False) if n}


def _name(program: Program) -> None:
    """T, N and W in the place of names made of the inputs'."""
    for each in program.codes:
        if each.node.op == "Rnn":
            words, time, count, _ = batch_of(program, each.node.inputs[0])
            pairs = [("W", words), ("N", count)] if time is None else [("T", time), ("N", count)]
            for name, size in pairs:
                size = program.size(size)
                if size.name and size.name not in program.inner and name not in sizes_of(program):
                    program.bind(size.name, Size.of(name))


def initialize(program: Program, weights: str = "f32") -> Store:
    """The weights file, constants packed as the kernels read them.

    ``weights``: f32, f16 or bf16, how matrices are stored. Raises `UnsupportedError` for weights
    that do not fit, or are no numbers.
    """
    if weights not in STORED:
        raise UnsupportedError(f"--weights {weights}: expected one of {', '.join(STORED)}")
    store = Store(STORED[weights])
    program.no_step = why_no_step(program)
    if program.no_step:
        program.memory = {k: v for k, v in program.memory.items() if k not in program.held}
    for each in program.codes:
        try:
            for pack in each.packs:
                pack(store)
        except OnernnError as error:
            raise UnsupportedError(f"{each.node.label}: {error}") from error
    return store
