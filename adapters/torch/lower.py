"""An exported program as a graph of canonical operators."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from onernn.adapters.common.lowering import (
    FoldingBudget,
    LoweringStep,
    Output,
    Results,
    lower_steps,
)
from onernn.adapters.torch import rules, shaping
from onernn.adapters.torch.read import Input, Node, Open, Program, Ref, read_program
from onernn.adapters.torch.table import RULES, VIEWS, WEIGHTS, TorchBuilder, TorchOperator
from onernn.ir.errors import ModelFormatError, UnsupportedError
from onernn.ir.graph import Graph, NativeOp, Value

__all__ = ["load_torch", "lower", "rules", "shaping"]
"""With the modules whose rules fill the table."""

_ATEN = "torch.ops.aten."
_FEW = 64
"""Numbers of a tensor in the code that may each be a size."""
_PASSES = 5
"""How often a program is lowered with fewer free sizes before all of them are tied."""


def load_torch(path: str | Path, *, fixed: bool = False) -> Graph:
    """Returns the graph of an exported program; operators that cannot be lowered are in it, with
    the reason. A size that the program writes as a number is free where no operator holds it, but
    where it is to stay ``fixed``, as PyTorch has it.

    Raises what `read_program` does.
    """
    return lower(read_program(path), fixed=fixed)


def lower(program: Program, *, fixed: bool = False) -> Graph:
    """Returns the graph of a program; see `load_torch`."""
    _check_mutations(program)
    tied: dict[str, str] = {}
    if fixed:
        sizes = (
            f"{n}.{axis}" for n, meta in program.metas.items() for axis in range(len(meta.sizes))
        )
        tied = dict.fromkeys(sizes, WEIGHTS)
    for left in reversed(range(_PASSES)):
        builder, outputs = _lower(program, tied)
        if not builder.tied:
            break
        why = next(iter(builder.tied.values()))
        tied |= builder.tied if left > 1 else dict.fromkeys(builder.free, why)
    for size, why in tied.items():
        if why == WEIGHTS:
            continue
        name, _, axis = size.rpartition(".")
        kept = next(value.shape for value in builder.inputs if value.name == name)
        number = (kept or ())[int(axis)]
        builder.notes[f"{name}: axis {axis} is {number} and nothing else: {why}"] = None
    return builder.graph(outputs)


def _lower(program: Program, tied: Mapping[str, str]) -> tuple[TorchBuilder, list[Value]]:
    """Returns the graph under construction, with sizes tied that are known to be, and its
    outputs.
    """
    arrays = program.arrays
    builder = TorchBuilder(str(program.file), FoldingBudget(arrays.values()), program.metas)
    for given in program.inputs:
        _enter(builder, program, given, tied)
    steps = [_step(builder, node, at) for at, node in enumerate(program.nodes)]
    kept = [each.name for each in program.outputs if isinstance(each, Ref | Open)]
    lower_steps(builder, steps, kept)
    outputs = [_output(builder, program, at) for at in range(len(program.outputs))]
    return builder, [each for each in outputs if each is not None]


def _enter(builder: TorchBuilder, program: Program, entry: Input, tied: Mapping[str, str]) -> None:
    """An input of the graph: a tensor of the file, the user's, or a number that was fixed."""
    if entry.target is not None:
        array = program.arrays.get(entry.target)
        if array is None:
            raise ModelFormatError(f"{entry.target!r} is not in the file", program.file)
        meta = program.metas.get(entry.name)
        if meta is None or meta.sizes != array.shape:
            raise ModelFormatError(
                f"{entry.target!r}: {array.shape} is not its shape", program.file
            )
        held = builder.constant(array, entry.target)
        builder.give(entry.name, held)
        if entry.lifted:  # its shape and its numbers may be sizes
            numbers = array.reshape(-1).tolist() if array.size <= _FEW else []
            builder.literal[held] = [*(size for size in array.shape if size > 1), *numbers]
        return
    if isinstance(entry.value, Open):
        builder.input(Value(entry.name, "int64", ()))
        return
    if not isinstance(entry.value, Ref):
        if entry.value is not None:
            builder.notes["a number among the inputs is as it was exported"] = None
        return
    meta = program.metas.get(entry.name)
    if meta is None or meta.dtype not in _COMPUTED:
        dtype = "no known type" if meta is None else meta.dtype
        raise UnsupportedError(f"{program.file}: input {entry.name!r}: {dtype} is not supported")
    shape, ranges = list[int | None](), dict[int, tuple[int, float]]()
    for axis, size in enumerate(meta.sizes):
        name = f"{entry.name}.{axis}"
        fixed = isinstance(size, int) and name in tied
        if isinstance(size, int) and not fixed:
            builder.free[name] = size
        shape.append(size if isinstance(size, int) and fixed else None)
        least, most = program.ranges.get(_symbol(size), (0, None))
        if (least or 0) > 2 or most is not None:  # PyTorch takes less than 2 for another program
            ranges[axis] = least or 0, math.inf if most is None else most
            bounds = f"{entry.name}: axis {axis} is {ranges[axis][0]} to {ranges[axis][1]}"
            builder.notes[
                f"{bounds}: it was exported for these, and a written file does not check it"
            ] = None
    value = Value(entry.name, meta.dtype, tuple(shape), ranges=ranges)
    builder.input(value)
    builder.remember_axes(entry.name, value.type.shape or ())


def _symbol(size: int | str) -> str:
    """Returns the name that an open size is, "" where it is a number, or computed from others."""
    match = re.fullmatch(r"(?:Symbol\('(\w+)'.*\)|(\w+))", f"{size}")
    return (match[1] or match[2]) if match else ""


_COMPUTED = frozenset("bool uint8 int8 int16 int32 int64 float16 float32 float64".split())


def _step(builder: TorchBuilder, node: Node, at: int) -> LoweringStep:
    name = node.target.removeprefix(_ATEN).removesuffix(".default")
    value = next(filter(None, node.outputs), "")
    origin = NativeOp(at, name, value=value)

    def lower() -> Results:
        plain = re.sub(r"(?<=[a-z0-9])_(?=\.|$)", "", name)
        result = RULES.get(name) or RULES.get(plain)
        if result is None:
            raise UnsupportedError("this operator is not known")
        results = TorchOperator(builder, node, origin).lowered(result)
        _check(builder, node, results)
        return results

    reads = tuple(each.name for each in _read(node))
    outputs = [Output(str(at), each) for at, each in enumerate(node.outputs) if each]
    return LoweringStep(origin, reads, lower, lambda _: outputs)


def _read(node: Node) -> list[Ref | Open]:
    """Returns the values of the graph among a node's arguments, one or in lists."""
    values = node.inputs.values()
    flat = [each for value in values for each in (value if isinstance(value, list) else [value])]
    return [each for each in flat if isinstance(each, Ref | Open)]


def _check(builder: TorchBuilder, node: Node, results: Results) -> None:
    """Checks that dtypes and shapes are those that the program states, at its own sizes."""
    values = (results,) if isinstance(results, str) else tuple(results)
    for name, value in zip(node.outputs, values, strict=False):
        meta = builder.metas.get(name)
        if meta is None or not value:
            continue
        known = builder.type_of(value)
        builder.remember_axes(name, known.shape or ())
        if known.dtype is not None and known.dtype != meta.dtype:
            raise UnsupportedError(f"it would give {known.dtype}, PyTorch gives {meta.dtype}")
        if known.shape is None:
            continue
        was = [builder.exported(size) for size in known.shape]
        if len(was) != len(meta.sizes) or any(
            isinstance(size, int) and mine not in (None, size)
            for mine, size in zip(was, meta.sizes, strict=True)
        ):
            raise UnsupportedError(f"it would give {known}, PyTorch gives {meta.sizes}")


def _check_mutations(program: Program) -> None:
    """Raises `UnsupportedError` where a tensor is changed in its place that others may read."""
    producers = {name: node for node in program.nodes for name in node.outputs}
    reads = Counter(each.name for node in program.nodes for each in _read(node))
    reads.update(each.name for each in program.outputs if isinstance(each, Ref))
    for node in program.nodes:
        name = node.target.removeprefix(_ATEN).removesuffix(".default")
        if name in RULES or not re.search(r"[a-z0-9]_(\.|$)|\bout$", name):
            continue
        changed = next(iter(node.inputs.values()), None)
        source = producers.get(changed.name) if isinstance(changed, Ref) else None
        kind = source.target.removeprefix(_ATEN).removesuffix(".default") if source else ""
        fresh = kind in RULES and kind not in VIEWS
        if source is None or not fresh or any(reads[each] > 1 for each in source.outputs):
            called = next(filter(None, node.outputs), "")
            raise UnsupportedError(
                f"{program.file}: {called!r} ({name}) changes a tensor in its place that others may"
                " read; save exported.run_decompositions({}), which has none of these"
            )


def _output(builder: TorchBuilder, program: Program, at: int) -> Value | None:
    output = program.outputs[at]
    if output is None:
        return None
    if not isinstance(output, Ref | Open):
        if not isinstance(output, bool | int | float):
            raise UnsupportedError(f"{program.file}: output {at} is no tensor")
        builder.notes[f"output {at} is {output}, as it was exported"] = None
        return Value(builder.constant(np.asarray(output), f"output_{at}"))
    value = builder.value(output.name)
    names = [each.name for each in program.outputs[:at] if isinstance(each, Ref | Open)]
    taken = value in [builder.value(name) for name in names]
    if value in builder.constants or taken or any(value == each.name for each in builder.inputs):
        value = builder.copied(value, f"output_{at}")
    return builder.output(value)
