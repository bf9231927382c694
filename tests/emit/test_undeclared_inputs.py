"""What a file leaves open of its inputs is asked for by name, and in words about the model."""

from __future__ import annotations

import re

import pytest
from support.operator_cases import cases, model

from onernn import Graph, UnsupportedError
from onernn.engine.emit.pipeline import infer_shapes
from onernn.engine.program import Program
from onernn.ir.graph import Node, Value

OF_PYTHON = re.compile(
    r"zip\(|index out of range|unpack|NoneType|operand|argument|object|no attribute"
)


def alone(graph: Graph, node: Node, leaves_open: str) -> Graph:
    """A graph of this node only, whose inputs are declared but for their dtypes, shapes or both."""
    inputs = []
    for name in dict.fromkeys(filter(None, node.inputs)):
        if name not in graph.constants:
            found = graph.types[name]
            dtype = None if "dtype" in leaves_open else found.dtype
            shape = None if "shape" in leaves_open else (None,) * len(found.shape or ())
            inputs.append(Value(name, dtype, shape, found.depth))
    constants = {name: graph.constants[name] for name in node.inputs if name in graph.constants}
    outputs = tuple(Value(name) for name in node.outputs if name)
    return Graph("open", tuple(inputs), outputs, (node,), constants)


@pytest.mark.parametrize("leaves_open", ["dtype", "shape", "dtype and shape"])
def test_every_operator_asks_for_the_types_of_its_inputs(leaves_open: str) -> None:
    graph, seen = model(*cases()), 0
    for node in graph.nodes:
        one = alone(graph, node, leaves_open)
        if not one.inputs:
            continue
        with pytest.raises(UnsupportedError) as caught:
            infer_shapes(Program(one))
        told = {each.where: each.reason for each in caught.value.refusals}
        for value in one.inputs:
            wanted = rf"the model does not declare its {leaves_open}: pass --input '{value.name}="
            assert re.match(wanted, told.pop(value.name)), node
        assert not OF_PYTHON.search(" ".join(told.values())), (node, told)
        seen += 1
    assert seen > 200


def test_inputs_of_other_ranks_than_an_operator_takes_are_shown() -> None:
    """NumPy's and Python's words for it say nothing of the model."""
    graph, refused = model(*cases()), 0
    for node in graph.nodes:
        one = alone(graph, node, "")
        wide = tuple(Value(v.name, v.dtype, (None,) * 9, v.lod_depth) for v in one.inputs)
        try:
            infer_shapes(Program(Graph("wide", wide, one.outputs, one.nodes, one.constants)))
        except UnsupportedError as error:
            told = " ".join(each.reason for each in error.refusals)
            assert not OF_PYTHON.search(told), (node, told)
            refused += "its inputs do not fit the operator, got '" in told
    assert refused > 20
