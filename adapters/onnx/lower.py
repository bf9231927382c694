"""An ONNX model as a graph of canonical operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from onernn.adapters.common.lowering import (
    FoldingBudget,
    LoweringStep,
    Output,
    Results,
    lower_steps,
)
from onernn.adapters.common.native import NativeGraph
from onernn.adapters.onnx.microsoft import MEANINGS
from onernn.adapters.onnx.read import Model, Operator, Reference, Subgraph, Variable, read_model
from onernn.adapters.onnx.rules import rule_for
from onernn.adapters.onnx.table import OnnxBuilder, OnnxOperator, Scope, StoredPrecisions
from onernn.ir.arrays import Array
from onernn.ir.errors import ModelFormatError, UnsupportedError
from onernn.ir.graph import Graph, NativeOp, Value

_MOST_CALLS = 10**4  # of functions; each of ten may call ten others
_DEEPEST = 32  # calls inside calls


def load_onnx(path: str | Path, semantics: str = "documented") -> Graph:
    """Returns the graph of a saved model, with refused operators and their reasons.

    If the meanings differ for this model, the logger "onernn" says so, as the graph's notes do.
    Raises `ModelFormatError` for a file that is not a model, `UnsupportedError` for a version of
    the format that is not read.
    """
    graph = lower(read_model(path), semantics=semantics)
    for text in MEANINGS.values():
        if text in graph.notes:
            import logging  # slow, and rarely needed

            logging.getLogger("onernn").warning("%s: %s", path, text)
    return graph


def lower(
    model: Model,
    bound: Mapping[str, Array] = MappingProxyType({}),
    semantics: str = "documented",
) -> Graph:
    """Returns the graph of a model. ``bound``: inputs that are constants from now on.

    Raises `ModelFormatError` if the model contradicts itself.
    """
    lowering = _Lowering(model)
    given = (*model.graph.constants.values(), *bound.values())
    precisions = StoredPrecisions.of(model)
    builder = OnnxBuilder(str(model.file), FoldingBudget(given), precisions)
    builder.semantics = semantics
    scope = Scope(builder, model.opset)
    for name, array in bound.items():
        builder.constant(array, name)
    for variable in model.graph.inputs:
        if variable.refusal:
            builder.refuse(variable.name, variable.refusal)
        elif variable.name not in bound:
            builder.input(_value(builder, variable))
    lowering.run(scope, model.graph)
    outputs = [_output(builder, variable) for variable in model.graph.outputs]
    builder.notes |= dict.fromkeys(precisions.notes())
    return builder.graph([_complete(builder, output) for output in outputs])


def _value(builder: OnnxBuilder, variable: Variable) -> Value:
    dtype = variable.dtype
    if dtype == "bfloat16":  # NumPy has none
        builder.notes["bfloat16 values are float32 ones, rounded where the model casts"] = None
        dtype = "float32"
    return Value(variable.name, dtype, variable.shape)


def _output(builder: OnnxBuilder, variable: Variable) -> Value:
    value = builder.value(variable.name)
    if variable.refusal:
        name = builder.fresh(f"{variable.name}/output")
        builder.refuse(name, variable.refusal)
        return Value(builder.value(name))
    if value in builder.constants and value != variable.name:
        builder.constant(builder.constants[value], variable.name)
    elif value != variable.name:  # what an input or another output is called, too
        builder.give(variable.name, builder.emit("Identity", (value,)))
    return _value(builder, variable)


def _complete(builder: OnnxBuilder, output: Value) -> Value:
    """Returns an output, with the known dtype and shape if the model declares none."""
    if output.dtype is not None and output.shape is not None:
        return output
    known = builder.output(output.name)
    shape = known.shape if output.shape is None else output.shape
    return replace(output, dtype=output.dtype or known.dtype, shape=shape)


class _Lowering:
    """Goes through a model's operators, including those of its functions and bodies."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._calls = 0

    def run(self, scope: Scope, graph: Subgraph) -> None:
        """Lowers a graph's constants and operators."""
        for name, array in graph.constants.items():
            scope.builder.constant(array, name)
        for name, reason in graph.unread.items():
            scope.builder.refuse(name, reason)
        made = Counter(name for op in graph.operators for name in op.outputs if name)
        if twice := [name for name, times in made.items() if times > 1]:
            raise ModelFormatError(f"value {twice[0]!r} is made twice", self.model.file)
        steps = [self._step(scope, op, op.native) for op in graph.operators]
        lower_steps(scope.builder, steps, [variable.name for variable in graph.outputs])

    def _step(self, scope: Scope, op: Operator, origin: NativeOp) -> LoweringStep:
        outputs = [
            Output(str(at), scope.variable(name)) for at, name in enumerate(op.outputs) if name
        ]

        def lower() -> Results:
            attributes = {k: _resolve(v, scope.arguments) for k, v in op.attributes.items()}
            present = {k: v for k, v in attributes.items() if v is not None}
            if (op.domain, op.type) in self.model.functions:
                return self._call(scope, op, origin, present)
            rule = rule_for(op.domain, op.type)
            return OnnxOperator(scope, op, present, self._body).lowered(rule)

        (reads,) = NativeGraph([op.node]).reads
        names = tuple(map(scope.variable, sorted(reads)))
        return LoweringStep(origin, names, lower, lambda _: outputs)

    def _call(
        self, scope: Scope, op: Operator, origin: NativeOp, arguments: Mapping[str, Any]
    ) -> Results:
        """Lowers what a function's operators compute in the place of a call."""
        function, self._calls = self.model.functions[op.domain, op.type], self._calls + 1
        if scope.depth >= _DEEPEST or self._calls > _MOST_CALLS:
            raise UnsupportedError("functions call functions, too deep or too often")
        if len(op.inputs) > len(function.inputs) or len(op.outputs) > len(function.outputs):
            raise UnsupportedError("the call has more inputs or outputs than the function")
        if unknown := sorted(set(arguments) - set(function.attributes)):
            raise UnsupportedError(f"not understood: attributes {unknown}")
        names = dict.fromkeys(function.inputs, "")
        formal = (*function.inputs[: len(op.inputs)], *function.outputs[: len(op.outputs)])
        for name, actual in zip(formal, (*op.inputs, *op.outputs), strict=True):
            if actual or name in function.inputs:
                names[name] = actual and scope.variable(actual)
        known, prefix = {**function.attributes, **arguments}, f"{op.type}#{self._calls}/"
        inner = Scope(scope.builder, function.opset, known, names, prefix, scope.depth + 1)
        steps = [self._step(inner, each, origin) for each in function.operators]
        lower_steps(scope.builder, steps, filter(None, names.values()))
        made = map(inner.variable, function.outputs[: len(op.outputs)])
        return tuple(map(scope.builder.value, made))

    def _body(self, graph: Subgraph, op: OnnxOperator) -> tuple[Graph, list[str]]:
        """Returns the graph inside an operator, and the outer values that it takes."""
        outer, around = op.scope, op.builder
        builder = OnnxBuilder(f"body of {op.at.type}", around.budget, around.precisions)
        builder.semantics, builder.notes = around.semantics, around.notes
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


def _resolve(value: Any, arguments: Mapping[str, Any]) -> Any:
    """Returns an attribute's value, inside a function that of the call, None without one."""
    return arguments.get(value.name) if isinstance(value, Reference) else value
