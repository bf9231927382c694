"""Converts an exported program to a graph of canonical operators."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from onernn.adapters.common.caller_rules import CallerRule, find_caller, read_callers
from onernn.adapters.common.lowering import (
    PASS_RULE,
    FoldingBudget,
    LoweringStep,
    Output,
    Results,
    lower_steps,
)
from onernn.adapters.common.signatures import Signature
from onernn.adapters.torch import reductions, rules, shaping, spectra
from onernn.adapters.torch.read import (
    Input,
    Node,
    Open,
    Program,
    Ref,
    read_program,
    refuse_change,
)
from onernn.adapters.torch.table import (
    COMPLEX,
    LAST,
    RULES,
    WEIGHTS,
    TorchBuilder,
    TorchOperator,
    TorchTensor,
    is_view,
    resolve,
)
from onernn.ir.budget import loading
from onernn.ir.errors import ModelFormatError, UnsupportedError
from onernn.ir.graph import Graph, NativeOp, Value

__all__ = ["load_torch", "lower", "reductions", "rules", "shaping", "spectra"]
"""Includes the modules with rules, because their import fills the table `RULES`."""

_FEW = 64
"""The maximum number of elements of a tensor in the model's code whose elements may be sizes."""
_CHANGES = re.compile(r"[a-z0-9]_(\.|$)|\bout$")
"""Matches the names of operators that change a tensor in place."""
_PASSES = 5
"""The maximum number of conversions of a program. Each conversion keeps the exported numbers of
more sizes, the last conversion of all sizes.
"""


read_caller_rules = partial(read_callers, signature=Signature, tensor=TorchTensor)
"""Returns a caller's rules, with the schemas of PyTorch's operators as signatures."""


def load_torch(
    path: str | Path, *, fixed: bool = False, rules: Mapping[str, Any] | None = None
) -> Graph:
    """Returns the graph of an exported program.

    An operator that onernn does not support becomes a node with the reason. A size that the program
    has as a number becomes dynamic if no operator depends on its value; ``fixed`` keeps all sizes
    as in PyTorch. Raises the errors of `read_program`.
    """
    return lower(read_program(path), fixed=fixed, rules=read_caller_rules(rules))


def lower(
    program: Program,
    *,
    fixed: bool = False,
    rules: Mapping[str, CallerRule] = MappingProxyType({}),
) -> Graph:
    """Returns the graph of a program; see `load_torch`."""
    changed = _find_changed(program)
    tied: dict[str, str] = {}
    if fixed:
        sizes = (
            f"{n}.{axis}" for n, meta in program.metas.items() for axis in range(len(meta.sizes))
        )
        tied = dict.fromkeys(sizes, WEIGHTS)
    for left in reversed(range(_PASSES)):
        builder, outputs = _lower(program, tied, changed, rules)
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
        builder.notes[f"{name}: axis {axis} must be {number}: {why}"] = None
    return builder.graph(outputs)


def _lower(
    program: Program,
    tied: Mapping[str, str],
    changed: Mapping[int, list[str]],
    rules: Mapping[str, CallerRule],
) -> tuple[TorchBuilder, list[Value]]:
    """Returns the builder of the graph, with the ``tied`` sizes fixed, and the outputs."""
    arrays = program.arrays
    builder = TorchBuilder(str(program.file), FoldingBudget(arrays.values()), program.metas)
    builder.rules = rules
    for given in program.inputs:
        _enter(builder, program, given, tied)
    steps = [_step(builder, node, at, changed.get(at, [])) for at, node in enumerate(program.nodes)]
    kept = [each.name for each in program.outputs if isinstance(each, Ref | Open)]
    lower_steps(builder, steps, kept)
    outputs = [_output(builder, program, at) for at in range(len(program.outputs))]
    return builder, [each for each in outputs if each is not None]


def _enter(builder: TorchBuilder, program: Program, entry: Input, tied: Mapping[str, str]) -> None:
    if entry.target is not None:
        array = program.arrays.get(entry.target)
        if array is None:
            reason = f"{entry.target!r}: expected its array in the file, it is missing"
            raise ModelFormatError(reason, program.file)
        meta = program.metas.get(entry.name)
        if meta is None or meta.sizes != array.shape:
            expected = "a declared shape" if meta is None else meta.sizes
            reason = f"{entry.target!r}: expected {expected}, got {array.shape}"
            raise ModelFormatError(reason, program.file)
        if meta.is_complex:
            loading().take(array.nbytes, entry.target)
            array = np.stack([array.real, array.imag], -1)
        held = builder.constant(array, entry.target)
        builder.give(entry.name, held)
        if entry.lifted:  # its shape and its elements may be sizes
            numbers = list[float]()
            if array.size <= _FEW:  # float32's 0.3 is read as 0.3, not as 0.30000001
                texts = map(str, array.reshape(-1)) if array.dtype.kind == "f" else array.flat
                numbers = [*map(float, texts)]
            builder.literal[held] = [*(size for size in array.shape if size > 1), *numbers]
        return
    if isinstance(entry.value, Open):
        builder.input(Value(entry.name, "int64", ()))
        return
    if not isinstance(entry.value, Ref):
        if entry.value is not None:
            builder.notes["a number among the inputs has its value in the export"] = None
        return
    meta = program.metas.get(entry.name)
    if meta is None or meta.dtype not in _COMPUTED:
        dtype = "no known type" if meta is None else meta.dtype
        expected = f"expected one of {', '.join(sorted(_COMPUTED))}"
        raise UnsupportedError(f"{program.file}: input {entry.name!r}: {expected}, got {dtype}")
    shape, ranges = list[int | None](), dict[int, tuple[int, float]]()
    for axis, size in enumerate(meta.sizes):
        name = f"{entry.name}.{axis}"
        fixed = isinstance(size, int) and name in tied
        if isinstance(size, int) and not fixed:
            builder.free[name] = size
        shape.append(size if isinstance(size, int) and fixed else None)
        least, most = program.ranges.get(_symbol(size), (0, None))
        if (least or 0) > 2 or most is not None:  # PyTorch specializes sizes 0 and 1
            ranges[axis] = least or 0, math.inf if most is None else most
            bounds = f"{entry.name}: axis {axis} must be {ranges[axis][0]} to {ranges[axis][1]}"
            builder.notes[
                f"{bounds}, the range in the export; a written file does not check it"
            ] = None
    value = Value(entry.name, meta.dtype, tuple(shape), ranges=ranges)
    builder.input(value)
    builder.remember_axes(entry.name, value.type.shape or ())


def _symbol(size: int | str) -> str:
    """Returns the name of a dynamic size, or "" for a number and for a formula of sizes."""
    match = re.fullmatch(r"(?:Symbol\('(\w+)'.*\)|(\w+))", f"{size}")
    return (match[1] or match[2]) if match else ""


_COMPUTED = frozenset("bool uint8 int8 int16 int32 int64 float16 float32 float64".split())


def _step(builder: TorchBuilder, node: Node, at: int, changed: list[str]) -> LoweringStep:
    """Returns the step that converts a node.

    ``changed``: other names of the tensor that the node changes in place.
    """
    origin = NativeOp(at, node.name, value=node.result)

    def lower() -> Results:
        own = RULES.get(resolve(node.name))
        whole = node.target.removeprefix("torch.ops.").removesuffix(".default")
        names = (whole.replace(".", "::", 1), whole, node.name)
        callers = find_caller(builder.rules, names, own is not None)
        rule = callers or own
        if rule is None:
            raise UnsupportedError(f"this operator is not known{PASS_RULE}")
        real = () if rule in COMPLEX else (*(each.name for each in _read(node)), *node.outputs)
        for name in real:
            meta = builder.metas.get(name)
            if meta is not None and meta.is_complex:
                raise UnsupportedError(f"{name!r} is {meta.dtype}: expected real numbers")
        op = TorchOperator(builder, node, origin)
        with callers.naming() if callers else nullcontext():
            if callers:
                op.tie_all()
            results = op.run_rule(rule)
            _check(builder, node, results)
        return results

    reads = tuple(each.name for each in _read(node))
    outputs = [Output(str(at), each) for at, each in enumerate(node.outputs) if each]
    outputs += [Output("0", each) for each in changed]
    return LoweringStep(origin, reads, lower, lambda _: outputs)


def _read(node: Node) -> list[Ref | Open]:
    values = node.inputs.values()
    flat = [each for value in values for each in (value if isinstance(value, list) else [value])]
    return [each for each in flat if isinstance(each, Ref | Open)]


def _check(builder: TorchBuilder, node: Node, results: Results) -> None:
    """Raises `UnsupportedError` if a result's dtype, or its shape at the exported sizes, differs
    from the declared one.
    """
    values = (results,) if isinstance(results, str) else tuple(results)
    for name, value in zip(node.outputs, values, strict=False):
        meta = builder.metas.get(name)
        if meta is None or not value:
            continue
        known = builder.type_of(value)
        if meta.is_complex:
            meta = meta.parts
        builder.remember_axes(name, known.shape or ())
        if known.dtype != meta.dtype:
            raise UnsupportedError(
                f"result: expected {meta.dtype}, got {known.dtype or 'no dtype'}"
            )
        if known.shape is None:
            continue
        was = [builder.find_exported_size(size) for size in known.shape]
        if len(was) != len(meta.sizes) or any(
            isinstance(size, int) and mine not in (None, size)
            for mine, size in zip(was, meta.sizes, strict=True)
        ):
            raise UnsupportedError(f"result: expected the shape {meta.sizes}, got {known}")


def _find_changed(program: Program) -> dict[int, list[str]]:
    """Returns, for the position of each node that changes a tensor in place, all names of this
    tensor.

    Raises `UnsupportedError` if the tensor is an input, or if other nodes may read its memory
    through a view.
    """
    producers = {name: node for node in program.nodes for name in node.outputs}
    entries = {entry.name: entry for entry in program.inputs}
    same: dict[str, list[str]] = {}
    viewed: set[str] = set()
    result: dict[int, list[str]] = {}
    for at, node in enumerate(program.nodes):
        first = next(iter(node.inputs.values()), None)
        if isinstance(first, Ref) and _is_whole(node):
            names = same.setdefault(first.name, [first.name])
            names.append(node.result)
            same[node.result] = names
            continue
        if node.name in RULES or not _CHANGES.search(node.name):
            viewed.update(each.name for each in _read(node) if _may_alias(node))
            continue
        changed = first.name if isinstance(first, Ref) and node.name[-3:] != "out" else ""
        names = same.setdefault(changed, [changed])
        source, entry = producers.get(names[0]), entries.get(names[0])
        if entry is not None:
            kept = entry.target or entry.name
            refuse_change(program.file, kept, node.name, is_input=entry.target is None)
        if source is None or _may_alias(source) or viewed.intersection(names):
            raise UnsupportedError(
                f"{program.file}: {node.result!r} ({node.name}) changes a tensor in place that"
                " others may read; save exported.run_decompositions({}), which changes none"
            )
        result[at] = [*names]
        names += filter(None, node.outputs)
        same.update(dict.fromkeys(node.outputs, names))
    return result


def _is_whole(node: Node) -> bool:
    """Returns whether a node returns its whole input tensor, such as ``y[:]``."""
    bounds = [node.inputs.get(name) in (None, default) for name, default in _WHOLE.items()]
    return node.name in ("alias", "detach") or node.name == "slice.Tensor" and all(bounds)


_WHOLE = {"start": 0, "end": LAST, "step": 1}


def _may_alias(node: Node) -> bool:
    """Returns whether a node's result may share memory with other tensors."""
    return resolve(node.name) not in RULES or is_view(node.name)


def _output(builder: TorchBuilder, program: Program, at: int) -> Value | None:
    output = program.outputs[at]
    if output is None:
        return None
    if not isinstance(output, Ref | Open):
        if not isinstance(output, bool | int | float):
            got = f"got {type(output).__name__}"
            raise UnsupportedError(
                f"{program.file}: output {at}: expected a tensor or a number, {got}"
            )
        builder.notes[f"output {at} is always {output}, its value in the export"] = None
        return Value(builder.constant(np.asarray(output), f"output_{at}"))
    meta = program.metas.get(output.name)
    if meta is not None and meta.is_complex:
        raise UnsupportedError(
            f"{program.file}: output {at} is {meta.dtype}: expected real numbers; return"
            " torch.view_as_real(...) of it"
        )
    value = builder.value(output.name)
    names = [each.name for each in program.outputs[:at] if isinstance(each, Ref | Open)]
    taken = value in [builder.value(name) for name in names]
    if value in builder.constants or taken or any(value == each.name for each in builder.inputs):
        value = builder.copy(value, f"output_{at}")
    return builder.output(value)
