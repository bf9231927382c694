"""An ONNX model as a graph of canonical operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from onernn.adapters.folding import Room
from onernn.adapters.onnx.native import OnnxBuilder, OnnxOperator, Scope
from onernn.adapters.onnx.ops import RULES
from onernn.adapters.onnx.read import Model, Operator, Reference, Subgraph, Variable, read_model
from onernn.core.arrays import Array
from onernn.core.errors import ModelFormatError, OnernnError, UnsupportedError
from onernn.core.graph import UNSUPPORTED, Graph, NativeOp, Value

_MOST_CALLS = 10**4  # of functions; each of ten may call ten others
_DEEPEST = 32  # calls inside calls


def load_onnx(path: str | Path) -> Graph:
    """The graph of a saved model; operators that cannot be lowered are in it, with the reason.

    Raises `ModelFormatError` for a file that is no model, `UnsupportedError` for a version of the
    format that is not read.
    """
    return lower(read_model(path))


def lower(model: Model, bound: Mapping[str, Array] = MappingProxyType({})) -> Graph:
    """The graph of a model. ``bound``: inputs that are constants from now on.

    Raises `ModelFormatError` where the model contradicts itself.
    """
    lowering = _Lowering(model)
    given = (*model.graph.constants.values(), *bound.values())
    builder = OnnxBuilder(str(model.file), Room(given))
    scope = Scope(builder, None, "", model.graph.declared)
    for name, array in bound.items():
        builder.constant(array, name)
    for variable in model.graph.inputs:
        if variable.refusal:
            builder.refuse(variable.name, variable.refusal)
        elif variable.name not in bound:
            builder.input(_value(builder, variable))
            builder.types[variable.name] = variable
    lowering.run(scope, model.graph, {}, model.opset)
    return builder.graph([_output(builder, variable) for variable in model.graph.outputs])


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
    inferred = builder.types.get(value, Variable(value))
    if value in builder.constants and value != variable.name:
        builder.constant(builder.constants[value], variable.name)
    elif value != variable.name:  # what an input or another output is called, too
        builder.give(variable.name, builder.emit("Identity", (value,)))
    dtype = variable.dtype or inferred.dtype
    shape = variable.shape if variable.shape is not None else inferred.shape
    return _value(builder, Variable(variable.name, dtype, shape))


class _Lowering:
    """Goes through a model's operators, those of its functions and bodies, too."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._calls = 0

    def run(self, scope: Scope, graph: Subgraph, arguments: Mapping[str, Any], opset: int) -> None:
        """Lowers a graph's constants and operators; ``arguments`` are those of the call around."""
        for name, array in graph.constants.items():
            scope.builder.constant(array, name)
        for name, reason in graph.unread.items():
            scope.builder.refuse(name, reason)
        made: set[str] = set()
        left = Counter(name for op in graph.operators for name in _reads(op))
        left.update(variable.name for variable in graph.outputs)
        for op in graph.operators:
            scope.builder.origin = (NativeOp(op.position, op.type),)
            for name in filter(None, op.outputs):
                if name in made:
                    raise ModelFormatError(f"value {name!r} is made twice", self.model.file)
                made.add(name)
            self._operator(scope, op, arguments, opset, 0)
            for name in _reads(op):
                left[name] -= 1
                if not left[name]:
                    scope.builder.forget(scope.variable(name))

    def _operator(
        self, scope: Scope, op: Operator, arguments: Mapping[str, Any], opset: int, depth: int
    ) -> None:
        given: Mapping[str, str] = {}
        try:
            attributes = {k: _resolved(v, arguments) for k, v in op.attributes.items()}
            present = {k: v for k, v in attributes.items() if v is not None}
            if (op.domain, op.type) in self.model.functions:
                return self._call(scope, op, present, depth + 1)
            if op.domain or op.type not in RULES:
                raise UnsupportedError("this operator is not known")
            view = OnnxOperator(
                scope, op, present, opset, partial(self._body, arguments=arguments, opset=opset)
            )
            RULES[op.type](view)
            view.check_read()
            given, reason = view.given, "this output is not computed"
        except OnernnError as error:
            reason = str(error)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # Attributes or inputs of no known form.
            reason = f"malformed: {type(error).__name__} {error}"
        for name in filter(None, op.outputs):
            variable = scope.variable(name)
            if name not in given:
                reads = [scope.builder.value(scope.variable(each)) for each in op.inputs if each]
                scope.builder.refuse(variable, f"output {name}: {reason}", reads)
            else:
                scope.builder.give(variable, given[name])
                if name in view.inferred:
                    value = scope.builder.value(variable)
                    scope.builder.types[value] = view.inferred[name]

    def _call(self, scope: Scope, op: Operator, arguments: Mapping[str, Any], depth: int) -> None:
        """Lowers what a function's operators compute in the place of a call."""
        function, self._calls = self.model.functions[op.domain, op.type], self._calls + 1
        if depth > _DEEPEST or self._calls > _MOST_CALLS:
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
        inner = Scope(scope.builder, names, f"{op.type}#{self._calls}/", {})
        for each in function.operators:
            self._operator(inner, each, {**function.attributes, **arguments}, function.opset, depth)

    def _body(
        self, graph: Subgraph, op: OnnxOperator, arguments: Mapping[str, Any], opset: int
    ) -> tuple[Graph, list[str]]:
        """The graph inside an operator, and the values of outside that it takes."""
        outer, builder = op.scope, OnnxBuilder(f"body of {op.at.type}", op.builder.room)
        scope = Scope(builder, None, "", graph.declared)
        taken: list[str] = []
        for variable in graph.inputs:
            if variable.refusal:
                raise UnsupportedError(f"its body: {variable.name}: {variable.refusal}")
            builder.input(_value(builder, variable))
            builder.types[variable.name] = variable
        for name in sorted(_free_names(graph)):
            value = outer.builder.value(outer.variable(name))
            if value in outer.builder.constants:
                builder.constant(outer.builder.constants[value], name)
            else:
                builder.types[name] = Variable(name, shape=op.shape_of(value))
                builder.input(_value(builder, builder.types[name]))
                taken.append(value)
        self.run(scope, graph, arguments, opset)
        body = builder.graph([_output(builder, variable) for variable in graph.outputs])
        for node in body.nodes:
            if node.op == UNSUPPORTED:
                raise UnsupportedError(f"its body: {node.label}: {node.attributes['reason']}")
        return body, taken


def _resolved(value: Any, arguments: Mapping[str, Any]) -> Any:
    """An attribute's value, inside a function that of the call; None where there is none."""
    return arguments.get(value.name) if isinstance(value, Reference) else value


def _free_names(graph: Subgraph) -> set[str]:
    """What a graph takes from outside."""
    own = {*(v.name for v in graph.inputs), *graph.constants, *graph.unread}
    used = {v.name for v in graph.outputs}
    for op in graph.operators:
        own.update(op.outputs)
        used |= _reads(op)
    return used - own - {""}


def _reads(op: Operator) -> set[str]:
    """What an operator takes, its bodies too."""
    bodies = (value for value in op.attributes.values() if isinstance(value, Subgraph))
    return set(op.inputs).union(*map(_free_names, bodies)) - {""}
