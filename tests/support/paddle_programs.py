"""Serialized programs of Paddle, made by hand, and an executor of them that goes op by op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onernn import Session
from onernn.adapters.paddle import messages
from onernn.adapters.paddle.partition import LivePart, ReplaceablePart
from onernn.adapters.paddle.read import Operator, parse_program
from onernn.ir.arrays import Array
from onernn.ir.ragged import Batch, depth_of

_KINDS = {bool: (6, "b"), int: (0, "i"), float: (1, "f"), str: (2, "s")}


def serialized(
    operators: Sequence[Operator],
    parameters: Mapping[str, Array],
    *,
    ragged: Sequence[str] = ("x",),
    persistable: Sequence[str] = (),
    inner: Sequence[Operator] = (),
) -> bytes:
    """A program; all variables but the parameters are float32 (?, ?), ragged ones with one level.

    ``inner``: operators of a second block. An attribute ``sub_block`` is a block.
    """
    desc = messages.message("ProgramDesc")()
    desc.version.version = 2006002
    for idx, ops in enumerate((operators, inner) if inner else (operators,)):
        block = desc.blocks.add(idx=idx, parent_idx=idx - 1)
        for each in ops:
            _add(block, each)
    names = (name for each in (*operators, *inner) for name in (*each.reads, *each.writes))
    for name in sorted({*names}):
        array = parameters.get(name)
        variable = desc.blocks[0].vars.add(name=name)
        variable.persistable = array is not None or name in persistable
        variable.type.type = messages.LOD_TENSOR
        tensor = variable.type.lod_tensor
        tensor.lod_level = int(name in ragged)
        tensor.tensor.data_type = 5
        tensor.tensor.dims.extend((-1, -1) if array is None else array.shape)
    return bytes(desc.SerializeToString())


def _add(block: Any, each: Operator) -> None:
    made = block.ops.add(type=each.type)
    for slots, found in ((made.inputs, each.inputs), (made.outputs, each.outputs)):
        for slot, names in found.items():
            slots.add(parameter=slot, arguments=names)
    for name, value in each.attributes.items():
        kind, field = (8, "block_idx") if name == "sub_block" else _KINDS[type(value)]
        setattr(made.attrs.add(name=name, type=kind), field, value)


def types(program: bytes) -> list[str]:
    """The operators of the main block, but for feeds and fetches."""
    found = [each.type for each in messages.parse("ProgramDesc", program, Path()).blocks[0].ops]
    return [each for each in found if each not in ("feed", "fetch")]


def variables(program: bytes) -> set[str]:
    return {each.name for each in messages.parse("ProgramDesc", program, Path()).blocks[0].vars}


def execute(
    program: bytes,
    parameters: Mapping[str, Array],
    feeds: Mapping[str, Batch],
    callables: Mapping[int, LivePart],
) -> list[Batch]:
    """What a program fetches: a py_func calls a part, each other operator runs on its own."""
    whole = parse_program(program, Path("program"), lambda _: {})
    values: dict[str, Batch] = {**parameters, **feeds}
    fetched: dict[int, Batch] = {}
    for at, each in enumerate(whole.operators):
        reads = each.reads
        if each.type == "fetch":
            fetched[each.attributes.get("col", 0)] = values[reads[0]]
        elif each.type == "py_func":
            ours = callables[each.attributes["forward_callable_id"]]
            count = len(ours.part.data)
            given = [values[name] for name in reads]
            outputs = ours.run(given[:count], [np.asarray(array) for array in given[count:]])
            values |= zip(each.outputs["Out"], outputs, strict=True)
        elif each.type != "feed":
            later = {name for other in whole.operators[at + 1 :] for name in other.reads}
            data = [name for name in dict.fromkeys(reads) if name not in parameters]
            made = [name for name in each.writes if name in later]
            part = ReplaceablePart((each,), (), tuple(data), (), tuple(made), (), whole)
            depths = [depth_of(values[name]) for name in data]
            graph = part.graph(depths, {n: parameters[n] for n in reads if n in parameters})
            session = Session(graph, backend="reference", passes=())
            found = session.run({name: values[name] for name in data})
            outputs = [found[value.name] for value in graph.outputs]
            values |= zip(made, outputs, strict=True)
    return [fetched[column] for column in sorted(fetched)]
