"""From a graph to C++: parse, infer types, infer shapes, initialize, generate."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np

from onernn.core.arrays import Array
from onernn.core.budget import LOADING, Budget, budget_of_run
from onernn.core.errors import OnernnError, Refusal, ShapeError, UnsupportedError
from onernn.core.graph import UNSUPPORTED, Graph, Node, Value
from onernn.core.guard import MISFITS
from onernn.core.sizes import Size, shape_of, volume
from onernn.emit.naming import identifier
from onernn.emit.operators import OPERATORS, Operator
from onernn.emit.operators.recurrent import Recurrent
from onernn.emit.program import CTYPES, NewBinding, Program, Sentences
from onernn.emit.rendering import words
from onernn.emit.storing import STORED, Store
from onernn.emit.streaming import is_known, why_no_step
from onernn.fuse_passes import PASSES, fuse
from onernn.runtime.kernels import KERNELS

_OF_SIZES = frozenset(
    "Gather Concat Unsqueeze Squeeze Slice Reshape Identity Cast Add Sub Mul Flatten Expand".split()
)
"""What is done to shapes before they are used: computed now, with sizes in the place of numbers."""


_MOST_PASSES = 100_000
"""Operators that inference goes through again because of new sizes; a second takes some 30,000."""
_MOST_TURNS = 10_000
"""Operators that loops over constants may run each time."""


def parse(model: Graph, declared: Mapping[str, Value] | None = None) -> Program:
    """The fused model's operators, each with what generates it.

    ``declared`` says what the model leaves open of its inputs. Raises `UnsupportedError` that
    names every node that C++ cannot be generated for.
    """
    graph = fuse(model, PASSES).model
    unknown = set(declared or ()) - {value.name for value in graph.inputs}
    if unknown:
        names = [value.name for value in graph.inputs]
        raise ShapeError(f"--input {sorted(unknown)}: the model takes {names}")
    graph = replace(
        graph, inputs=tuple((declared or {}).get(value.name, value) for value in graph.inputs)
    )
    program = Program(graph)
    every = {*graph.constants, *(name for node in graph.nodes for name in node.outputs)}
    refusals = [
        Refusal("a name with a NUL", repr(name))
        for name in every.union(value.name for value in graph.inputs)
        if "\0" in name
    ]
    for value in graph.inputs:
        if value.dtype is None or value.shape is None:
            hint = f"--input '{value.name}=float32(T, N, 128)'"
            refusals.append(
                Refusal(
                    f"its type and shape are not told: say {hint}, for instance, or --data io.npz",
                    value.name,
                )
            )
        elif value.dtype not in CTYPES:
            refusals.append(Refusal(f"of {value.dtype}", f"input {value.name!r}"))
        elif value.lod_depth > 1:
            refusals.append(Refusal(f"{value.lod_depth} LoD levels", f"input {value.name!r}"))
        elif bad := [s for s in value.shape if isinstance(s, str) and not is_size_name(s)]:
            refusals.append(
                Refusal(
                    f"sizes {bad}: names that C++ or its header uses; say T, N, or longer ones",
                    f"input {value.name!r}",
                )
            )
    known = set(graph.constants)
    for node in graph.nodes:
        folded = node.op in KERNELS and node.op != "Rnn" and known.issuperset(_given(node))
        if folded:
            known.update(node.outputs)
        elif node.op in OPERATORS:
            unread = sorted(set(node.attributes) - set(OPERATORS[node.op].attributes))
            if unread:
                refusals.append(
                    Refusal(f"not understood: attribute {', '.join(unread)}", node.label)
                )
            try:
                program.operators.append(OPERATORS[node.op](node))
            except OnernnError as error:
                refusals.append(Refusal(str(error), node.label))
            continue
        else:
            reason = node.attributes.get("reason", "") if node.op == UNSUPPORTED else ""
            refusals.append(Refusal(reason or f"operator {node.op} is not generated", node.label))
        program.operators.append(Operator(node))
    _raise(graph, refusals)
    return program


def _raise(graph: Graph, refusals: list[Refusal]) -> None:
    if refusals:
        raise UnsupportedError(f"{graph.name}: no C++ is generated:", refusals)


def is_size_name(name: str) -> bool:
    """Whether a size may be called so: it becomes a variable beside those of the templates."""
    beside = name in words() or name.endswith(("_at", "_in", "_out"))
    return name in ("T", "N", "W") or (identifier(name) == name and not beside)


def _given(node: Node) -> list[str]:
    return [name for name in node.inputs if name]


def _computing(program: Program) -> AbstractContextManager[Budget]:
    """What values known now may take together: there is no run whose budget counts them."""
    own = sum(array.nbytes for array in program.graph.constants.values())
    return budget_of_run(LOADING + 16 * own, _MOST_TURNS)


def _computed(program: Program, node: Node) -> bool:
    """Puts the outputs among what is known, where everything that is read is."""
    if node.op not in KERNELS or node.op == "Rnn":
        return False
    if not all(name in program.known for name in _given(node)):
        return False
    values = [program.known[name] if name else None for name in node.inputs]
    sized = any(map(_is_sized, values))
    shaped = node.op in ("Expand", "Reshape", "Slice") and any(map(_is_sized, values[1:]))
    if sized and (shaped or node.op not in _OF_SIZES):
        return False
    if sized and node.op == "Cast":
        made: Any = values[0] if "int" in node.attributes["to"] else None
        if made is None:
            return False
    else:
        try:
            made = KERNELS[node.op](node, *values)
        except (OnernnError, *MISFITS) as error:
            raise UnsupportedError(f"{node.label}: {error}") from error
    made = made if isinstance(made, tuple) else (made,)
    for name, array in zip(node.outputs, made, strict=False):
        program.known[name] = _settled(np.asarray(array))
    return True


def _is_sized(array: Array | None) -> bool:
    return array is not None and array.dtype == object


def _settled(array: Array) -> Array:
    """Integers again, where no size has a name left."""
    if array.dtype != object:
        return array
    numbers = [Size.of(one).number for one in array.reshape(-1)]
    if None in numbers:
        return array
    return np.array(numbers, np.int64).reshape(array.shape)


def infer_types(program: Program) -> None:
    """The dtype of every value. Raises `UnsupportedError` that names the node."""
    graph = program.graph
    program.known = dict(graph.constants)
    program.dtypes = {name: array.dtype.name for name, array in graph.constants.items()}
    program.dtypes |= {value.name: str(value.dtype) for value in graph.inputs}
    with _computing(program):
        for each in program.operators:
            _infer_type(program, each)


def _infer_type(program: Program, each: Operator) -> None:
    if _computed(program, each.node):
        outputs = filter(None, each.node.outputs)
        found = {name: program.known[name].dtype.name for name in outputs}
    else:
        types = _named(each, "types", program)
        found = dict(zip(each.node.outputs, types, strict=True))
    for name, dtype in found.items():
        if dtype not in CTYPES and name not in program.known:
            raise UnsupportedError(f"{each.node.label}: {name!r} is of {dtype}")
    program.dtypes |= found


def _named(each: Operator, step: str, program: Program) -> Any:
    """An operator's step; its errors name the node."""
    try:
        return getattr(each, step)(program)
    except (UnsupportedError, ShapeError) as error:
        reason = str(error).removeprefix(f"{each.node.label}: ")
        told = f"{program.graph.name}: no C++ is generated:"
        raise UnsupportedError(told, (Refusal(reason, each.node.label),)) from error
    except MISFITS as error:
        raise UnsupportedError(f"{each.node.label}: {error}") from error


def infer_shapes(program: Program, static: Mapping[str, int] | None = None) -> None:
    """The shape of every value, in names where the model leaves a size open.

    T and N are what the first recurrent layer says (W and N, where its input is ragged). Sizes of
    ``static`` are fixed: all but T at once, T in the memory only, so that a step still has T=1.
    Raises `ShapeError` for a size that the model does not have.
    """
    program.static = dict(static or {})
    _settle(program)
    _name(program)
    _settle(program)
    names = sizes_of(program)
    unknown = set(program.static) - {*names, *program.bindings}
    if unknown:
        said = ", ".join(names) or "no size is open"
        raise ShapeError(f"--static {', '.join(sorted(unknown))}: the model has {said}")
    for name, number in program.static.items():
        if name != "T":
            program.bind(name, Size.of(number))
    _settle(program)


def sizes_of(program: Program) -> list[str]:
    """The names of the sizes that are open, T and N first."""
    found: dict[str, None] = {}
    for value in program.graph.inputs:
        lod = program.lods.get(value.name)
        sizes = (*program.shape(value.name), *((program.size(lod.count),) if lod else ()))
        for size in sizes:
            found |= dict.fromkeys(sorted(size.names))
    return sorted(found, key=lambda name: ("TWN".find(name) % 4, name))


def _settle(program: Program) -> None:
    """Again, until sizes say nothing new of each other."""
    while True:
        try:
            return _pass(program)
        except NewBinding:
            if len(program.bindings) * len(program.operators) > _MOST_PASSES:
                raise UnsupportedError("too many sizes are open: say --static") from None
        except UnsupportedError:
            lacking = program.static.keys() - program.bindings.keys()
            if not lacking:
                raise
            for name in lacking:  # the number may be what was lacking
                program.bind(name, Size.of(program.static[name]))


def _pass(program: Program) -> None:
    graph = program.graph
    program.known = dict(graph.constants)
    program.shapes = {name: shape_of(array.shape) for name, array in program.known.items()}
    program.lods, program.inner = {}, {}
    for value in graph.inputs:
        ident = program.ident(value.name)
        sizes = [f"{ident}_{at}" if s is None else s for at, s in enumerate(value.shape or ())]
        program.shapes[value.name] = shape_of(sizes)
        if value.lod_depth:
            count, words = Size.of(f"{ident}_sentences"), program.shapes[value.name][0]
            program.lods[value.name] = Sentences(value.name, count, words)
    with _computing(program):
        for each in program.operators:
            _infer_shape(program, each)


def _infer_shape(program: Program, each: Operator) -> None:
    node = each.node
    if _computed(program, node):
        pass
    elif node.op in ("Shape", "Size"):
        _named(each, "shapes", program)
        shape = program.shape(node.inputs[0])
        if node.op == "Shape":
            shape = shape[node.attributes.get("start", 0) : node.attributes.get("end")]
        made: Array = np.empty(len(shape) if node.op == "Shape" else (), object)
        made[...] = shape if node.op == "Shape" else volume(shape)
        program.known[node.outputs[0]] = _settled(made)
    else:
        shapes = _named(each, "shapes", program)
        program.shapes |= dict(zip(node.outputs, shapes, strict=True))
    for name in filter(None, node.outputs):
        if name in program.known:
            program.shapes[name] = shape_of(program.known[name].shape)


def _name(program: Program) -> None:
    """T, N and W in the place of names made of the inputs'."""
    for each in program.operators:
        if not isinstance(each, Recurrent):
            continue
        x = each.node.inputs[0]
        lod, shape = program.lods.get(x), program.shape(x)
        pairs = [("W", lod.words), ("N", program.size(lod.count))] if lod else []
        pairs = pairs or [("T", shape[0]), ("N", shape[1])]
        for name, size in pairs:
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
    for each in program.operators:
        if not is_known(program, each):
            try:
                each.initialize(program, store)
            except OnernnError as error:
                raise UnsupportedError(f"{each.node.label}: {error}") from error
    return store
