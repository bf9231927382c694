"""Turns an ONNX model into a graph of onernn's canonical operators."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from onernn.adapters.common.caller_rules import (
    CallerRule,
    check_declared,
    find_caller,
    read_callers,
)
from onernn.adapters.common.lowering import (
    FoldingBudget,
    LoweringStep,
    Output,
    Results,
    by_slot,
    lower_steps,
)
from onernn.adapters.onnx.microsoft import MEANINGS
from onernn.adapters.onnx.read import (
    BFLOAT16_NOTE,
    Model,
    Operator,
    Reference,
    Subgraph,
    Variable,
    read_model,
)
from onernn.adapters.onnx.rules import refuse_unknown, rule_for
from onernn.adapters.onnx.table import (
    OnnxBuilder,
    OnnxOperator,
    OnnxSignature,
    OnnxTensor,
    Scope,
    StoredPrecisions,
)
from onernn.ir.arrays import Array
from onernn.ir.errors import ModelFormatError, UnsupportedError
from onernn.ir.graph import (
    Defaults,
    Graph,
    NativeOp,
    Value,
    declare_defaults,
    declare_inputs,
    with_open_names,
)

_MOST_CALLS = 10**4  # calls of functions in a model; nested functions may multiply the calls
_DEEPEST = 32  # levels of nested calls


read_caller_rules = partial(read_callers, signature=OnnxSignature, tensor=OnnxTensor)
"""Returns the caller's own rules for operators, in the form that `lower` takes."""


def load_onnx(
    path: str | Path,
    semantics: str = "documented",
    *,
    inputs: Mapping[str, Any] = MappingProxyType({}),
    rules: Mapping[str, Any] | None = None,
) -> Graph:
    """Returns the graph of a saved model.

    An operator that onernn cannot run becomes a node that contains the reason. ``inputs``: the
    dtypes, shapes or arrays of inputs, if the model does not declare them. If ONNX Runtime computes
    an operator of this model differently from its documentation, the logger "onernn" and the
    graph's notes say so. Raises `ModelFormatError` for a file that is not a model, and
    `UnsupportedError` for a version of the format that onernn does not read.
    """
    model = read_model(path)
    callers = read_caller_rules(rules)
    graph = lower(model, semantics=semantics, known=inputs, rules=callers)
    if model.overridable:
        declare_defaults(graph, _defaults(path, model, semantics, inputs, callers))
    for text in MEANINGS.values():
        if text in graph.notes:
            import logging  # slow, and rarely needed

            logging.getLogger("onernn").warning("%s: %s", path, text)
    return graph


def _defaults(
    path: str | Path,
    model: Model,
    semantics: str,
    known: Mapping[str, Any],
    rules: Mapping[str, CallerRule],
) -> Defaults:
    """Returns the constants of a file that callers may override.

    Overriding reads the file again, and raises an error if the file has changed.
    """

    def stamp() -> tuple[int, int]:
        status = os.stat(path)
        return status.st_size, status.st_mtime_ns

    def open_(names: Collection[str], bound: Mapping[str, Array]) -> Graph:
        fed = {*names, *bound}
        if stamp() != before:
            changed = f"it changed since it was loaded; load it again to feed {sorted(fed)}"
            raise ModelFormatError(changed, Path(path))
        return lower(read_model(path).fed(fed), bound, semantics, known, rules)

    before = stamp()
    return Defaults(tuple(map(_declared, model.overridable)), open_)


def lower(
    model: Model,
    bound: Mapping[str, Array] = MappingProxyType({}),
    semantics: str = "documented",
    known: Mapping[str, Any] = MappingProxyType({}),
    rules: Mapping[str, CallerRule] = MappingProxyType({}),
) -> Graph:
    """Returns the graph of a model.

    ``bound``: the arrays of inputs that become constants. ``known``: the dtypes, shapes or arrays
    of other inputs, see `declare_inputs`.

    Raises `ModelFormatError` if the model contradicts itself, `ShapeError` if ``known`` contradicts
    the model.
    """
    lowering = _Lowering(model)
    given = (*model.graph.constants.values(), *bound.values())
    precisions = StoredPrecisions(model)
    builder = OnnxBuilder(str(model.file), FoldingBudget(given), precisions, semantics)
    builder.native = model.graph
    builder.rules = rules
    scope = Scope(builder, model.opset)
    for name, array in bound.items():
        builder.constant(array, name)
    values = list[Value]()
    for variable in model.graph.inputs:
        if variable.refusal:
            builder.refuse(variable.name, variable.refusal)
        else:
            values.append(replace(_value(builder, variable), names=variable.names))
    for value in declare_inputs(values, known, bound):
        builder.input(with_open_names(value))
    lowering.run(scope, model.graph)
    outputs = [_output(builder, variable) for variable in model.graph.outputs]
    builder.notes |= dict.fromkeys(precisions.notes())
    found = [builder.output(output.name) for output in outputs]
    _name_sizes(builder, (*model.graph.outputs, *model.graph.inner))
    return builder.graph(
        [
            replace(
                declared,
                dtype=declared.dtype or value.dtype,
                shape=value.shape if declared.shape is None else declared.shape,
            )
            for declared, value in zip(outputs, found, strict=True)
        ]
    )


def _name_sizes(builder: OnnxBuilder, variables: Iterable[Variable]) -> None:
    """Names each unnamed size of an input with the name that the model uses for this size in a
    different value.

    An input size that already has a name keeps it. The names of output sizes are less reliable,
    because exporters copy them from the user.
    """
    names = [[*(value.names or ("",) * len(value.shape or ()))] for value in builder.inputs]
    places = {
        size.name: (at, axis)
        for at, value in enumerate(builder.inputs)
        for axis, size in enumerate(value.type.shape or ())
        if size is not None and not names[at][axis]
    }
    for variable in variables:
        if not (places and variable.names):
            continue
        shape = builder.type_of(builder.value(variable.name)).shape or ()
        for name, size in zip(variable.names, shape, strict=False):
            if name and size and size.name in places and len(shape) == len(variable.names):
                at, axis = places.pop(size.name)
                names[at][axis] = name
    builder.inputs = [
        replace(value, names=tuple(own) if any(own) else ())
        for value, own in zip(builder.inputs, names, strict=True)
    ]


def _value(builder: OnnxBuilder, variable: Variable) -> Value:
    if variable.dtype == "bfloat16":
        builder.notes[BFLOAT16_NOTE] = None
    return _declared(variable)


def _declared(variable: Variable) -> Value:
    dtype = "float32" if variable.dtype == "bfloat16" else variable.dtype  # NumPy has no bfloat16
    return Value(variable.name, dtype, variable.shape)


def _output(builder: OnnxBuilder, variable: Variable) -> Value:
    value = builder.value(variable.name)
    if variable.refusal:
        name = builder.fresh(f"{variable.name}/output")
        builder.refuse(name, variable.refusal)
        return Value(builder.value(name))
    if value != variable.name:  # a rule's constant may have the name; an input keeps its own name
        if value in builder.constants:
            value = builder.constant(builder.constants[value], variable.name)
        else:
            builder.give(variable.name, builder.emit("Identity", (value,)))
            value = builder.value(variable.name)
        if value != variable.name:
            builder.swap(value, variable.name)
    return _value(builder, variable)


class _Lowering:
    """The lowering of a model's operators, including operators in functions and bodies."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._calls = 0

    def run(self, scope: Scope, graph: Subgraph) -> None:
        for name, array in graph.constants.items():
            scope.builder.constant(array, name)
        for name, reason in graph.unread.items():
            scope.builder.refuse(name, reason)
        declared = {variable.name: variable for variable in graph.outputs}
        steps = [self._step(scope, op, op.native, declared) for op in graph.operators]
        lower_steps(scope.builder, steps, declared)

    def _step(
        self,
        scope: Scope,
        op: Operator,
        origin: NativeOp,
        declared: Mapping[str, Variable] = MappingProxyType({}),
    ) -> LoweringStep:
        reads = tuple(map(scope.variable, sorted(op.node.all_reads)))
        lower = partial(self._lower, scope, op, origin, declared)

        def outputs(_: int) -> list[Output]:
            made = enumerate(op.outputs)
            return [Output(str(at), scope.variable(name)) for at, name in made if name]

        return LoweringStep(origin, reads, lower, outputs)

    def _lower(
        self, scope: Scope, op: Operator, origin: NativeOp, declared: Mapping[str, Variable]
    ) -> Results:
        references = {v.name for v in op.attributes.values() if isinstance(v, Reference)}
        if unknown := sorted(references - set(scope.arguments)):
            raise UnsupportedError(
                f"its attributes refer to {unknown}: expected attributes of the function around it,"
                f" which has {sorted(scope.arguments)}"
            )
        attributes = {
            k: scope.arguments[v.name] if isinstance(v, Reference) else v
            for k, v in op.attributes.items()
        }
        present = {k: v for k, v in attributes.items() if v is not None}
        own = rule_for(op.domain, op.type)
        # ONNX Runtime uses its own operator if a function of the model has the same name.
        is_function = (op.domain, op.type, op.overload) in self.model.functions
        is_function &= own is None or bool(op.overload)
        names = (f"{op.domain or 'ai.onnx'}::{op.type}", op.type)
        callers = find_caller(scope.builder.rules, names, is_function or own is not None)
        if is_function and callers is None:
            return self._call(scope, op, origin, present)
        rule = callers or own or refuse_unknown(op.domain)
        results = OnnxOperator(scope, op, present, self._body).run_rule(rule)
        if callers:
            values = by_slot(results)
            with callers.naming():
                for at, name in enumerate(op.outputs):
                    check_declared(scope.builder, values.get(str(at), ""), declared.get(name))
        return results

    def _call(
        self, scope: Scope, op: Operator, origin: NativeOp, arguments: Mapping[str, Any]
    ) -> Results:
        function = self.model.functions[op.domain, op.type, op.overload]
        self._calls += 1
        if scope.depth >= _DEEPEST or self._calls > _MOST_CALLS:
            raise UnsupportedError(
                "functions call functions too deep or too often: expected at most"
                f" {_DEEPEST} nested calls, and {_MOST_CALLS} in all"
            )
        if len(op.inputs) > len(function.inputs) or len(op.outputs) > len(function.outputs):
            raise UnsupportedError(
                f"the call has {len(op.inputs)} inputs and {len(op.outputs)} outputs: expected at"
                f" most {len(function.inputs)} and {len(function.outputs)}, like its function"
            )
        if unknown := sorted(set(arguments) - set(function.attributes)):
            raise UnsupportedError(
                f"not understood: attributes {unknown}, the function has"
                f" {sorted(function.attributes)}"
            )
        names = dict.fromkeys(function.inputs, "")
        formal = (*function.inputs[: len(op.inputs)], *function.outputs[: len(op.outputs)])
        for name, actual in zip(formal, (*op.inputs, *op.outputs), strict=True):
            if actual or name in function.inputs:
                names[name] = actual and scope.variable(actual)
        known, prefix = {**function.attributes, **arguments}, f"{op.type}#{self._calls}/"
        while any(
            scope.builder.has(prefix + v) for each in function.operators for v in each.outputs
        ):
            prefix = f"#{prefix}"  # the model uses the name of one of the function's values
        inner = Scope(scope.builder, function.opset, known, names, prefix, scope.depth + 1)
        steps = [self._step(inner, each, origin) for each in function.operators]
        lower_steps(scope.builder, steps, filter(None, names.values()))
        made = map(inner.variable, function.outputs[: len(op.outputs)])
        return tuple(map(scope.builder.value, made))

    def _body(self, graph: Subgraph, op: OnnxOperator) -> tuple[Graph, list[str]]:
        """Returns the lowered body of an operator, and the names of the outer values that the body
        reads.
        """
        outer, around = op.scope, op.builder
        budget, precisions = around.budget, around.precisions
        builder = OnnxBuilder(f"body of {op.at.type}", budget, precisions, around.semantics)
        builder.notes, builder.rules = around.notes, around.rules
        scope = Scope(builder, outer.opset, outer.arguments, body=True)
        free = sorted(graph.native.outer_reads)
        builder.stacked |= {name for name in free if outer.variable(name) in around.stacked}
        for variable in graph.inputs:
            if variable.refusal:
                raise UnsupportedError(f"its body: {variable.name}: {variable.refusal}")
            builder.input(_value(builder, variable))
        for name in free:
            builder.take(around, around.value(outer.variable(name)), name)
        self.run(scope, graph)
        outputs = [_output(builder, variable) for variable in graph.outputs]
        return builder.body(outputs, "its body:"), [*builder.taken.values()]
