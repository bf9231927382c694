"""Joins models that read each other's outputs into one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

from onernn.ir.arrays import Array
from onernn.ir.errors import Refusal, ShapeError, UnsupportedError
from onernn.ir.graph import Graph, Node, Value


def join(*models: Graph) -> Graph:
    """Joins models: an output feeds the input of the same name in another model.

    Inputs of the same name become one input. Outputs that no other model reads stay outputs, in the
    order of the models. Raises `UnsupportedError` if two outputs have the same name, or if models
    feed each other in a cycle. Raises `ShapeError` if an output does not fit the input that it
    feeds.

    >>> x, y, z = (onernn.Value(name, "float32", (None, 2)) for name in "xyz")
    >>> first = onernn.Graph("first", (x,), (y,), (onernn.Node("Relu", ("x",), ("y",)),), {})
    >>> second = onernn.Graph("second", (y,), (z,), (onernn.Node("Tanh", ("y",), ("z",)),), {})
    >>> [node.op for node in onernn.join(first, second).nodes]
    ['Relu', 'Tanh']
    """
    if len(models) < 2:
        raise UnsupportedError(f"join: expected two models or more, got {len(models)}")
    makers = dict[str, Graph]()
    for model in models:
        for value in model.outputs:
            if value.name in makers:
                both = f"{makers[value.name].name} and {model.name}"
                raise _refuse(f"expected it from one model, got it from {both}", value.name)
            makers[value.name] = model
    taken = {value.name for model in models for value in model.inputs}
    face, used = taken | makers.keys(), set[str]()
    nodes, constants, inputs = list[Node](), dict[str, Array](), dict[str, Value]()
    for model in _in_order(models, makers):
        own = {each.name for each in (*model.inputs, *model.outputs)}
        names = dict[str, str]()
        inner = (name for node in model.nodes for name in (*node.inputs, *node.outputs) if name)
        for name in dict.fromkeys((*inner, *model.constants)):
            if name not in own and (name in used or name in face):
                at = 0
                while (free := f"{PurePath(model.name).stem}/{name}{at or ''}") in used | face:
                    at += 1
                names[name] = free
        moved = [node.rename(names) for node in model.nodes]
        numbers = {names.get(name, name): array for name, array in model.constants.items()}
        used.update(numbers, *(filter(None, node.outputs) for node in moved))
        nodes, constants = nodes + moved, constants | numbers
        for value in model.inputs:
            stem = PurePath(model.name).stem
            value = replace(value, names=tuple(n and f"{stem}/{n}" for n in value.names))
            maker = makers.get(value.name)
            given = inputs.get(value.name) if maker is None else _output(maker, value.name)
            taken_as = value if given is None else _fitting(given, value, model)
            if maker is None:
                inputs[value.name] = taken_as
    outputs = tuple(v for model in models for v in model.outputs if v.name not in taken)
    if not outputs:
        raise _refuse("expected an output that no other model reads", models[-1].name)
    whole = "+".join(PurePath(model.name).stem for model in models)
    notes = dict.fromkeys(note for model in models for note in model.notes)
    return Graph(whole, tuple(inputs.values()), outputs, tuple(nodes), constants, tuple(notes))


def _refuse(why: str, where: str) -> UnsupportedError:
    return UnsupportedError("join:", (Refusal(why, where),))


def _in_order(models: Sequence[Graph], makers: dict[str, Graph]) -> list[Graph]:
    waiting, done = [*models], list[Graph]()
    while waiting:
        ready = [m for m in waiting if not any(makers.get(v.name) in waiting for v in m.inputs)]
        if not ready:
            names = ", ".join(model.name for model in waiting)
            why = f"expected models in an order, but {names} feed each other"
            raise _refuse(why, waiting[0].inputs[0].name)
        done.append(ready[0])
        waiting.remove(ready[0])
    return done


def _output(model: Graph, name: str) -> Value:
    known = model.types[name]
    shape = None if known.shape is None else known.counts
    return Value(name, known.dtype, shape, len(known.lod or ()))


def _fitting(given: Value, taken: Value, model: Graph) -> Value:
    """Merges the declarations of an output and of the input that it feeds. Raises `ShapeError` if
    they differ.
    """
    dtypes = {each.dtype for each in (given, taken)} - {None}
    shapes = [each.shape for each in (given, taken) if each.shape is not None]
    fits = len(dtypes) < 2 and given.lod_depth == taken.lod_depth
    fits = fits and len({len(shape) for shape in shapes}) < 2
    sizes = [{*pair} - {None} for pair in zip(*shapes, strict=False)]
    if not fits or any(len(each) > 1 for each in sizes):
        raise ShapeError(f"join: {model.name}: expected {taken}, got {given}")
    shape = tuple(next(iter(each), None) for each in sizes) if shapes else None
    return Value(taken.name, next(iter(dtypes), None), shape, taken.lod_depth)
