"""Which layers inside ONNX Runtime are replaced, and what goes with them."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from onernn.adapters.onnx import optimize

pytestmark = pytest.mark.usefixtures("built")
GATES = {"GRU": 3, "LSTM": 4}


def layer(
    op: str, sizes: tuple[int | None, ...], lengths: bool = False, dtype: str = "f4", **more: int
) -> onnx.ModelProto:
    """A layer over (T, N, 5) of these sizes."""
    shapes = {"W": (1, 3 * GATES[op], 5), "R": (1, 3 * GATES[op], 3)}
    node = helper.make_node(
        op, ["x", "W", "R", *(["", "n"] if lengths else [])], ["y"], hidden_size=3, **more
    )
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = [helper.make_tensor_value_info("x", kind, [*sizes, 5])]
    if lengths:
        inputs.append(helper.make_tensor_value_info("n", TensorProto.INT32, [sizes[1]]))
    constants = [numpy_helper.from_array(np.zeros(s, dtype), n) for n, s in shapes.items()]
    outputs = [helper.make_tensor_value_info("y", kind, None)]
    graph = helper.make_graph([node], "g", inputs, outputs, constants)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("threads", [None, 1, 2, 3, 16])
@pytest.mark.parametrize("sizes", [(1, 1), (7, None), (None, None)])
def test_every_layer_is_replaced_on_any_number_of_threads(
    sizes: tuple[int | None, ...], threads: int | None
) -> None:
    for model in (layer("GRU", sizes), layer("LSTM", sizes)):
        session = optimize(model, threads=threads)
        assert len(session.replaced) == 1 and not session.refusals


def exported(value: float, expanded: bool) -> onnx.ModelProto:
    """An initial state of one number in a size that is computed, as PyTorch exports it."""
    model = layer("GRU", (None, None))
    of_one = numpy_helper.from_array(np.array([value], "f4"))
    ints = {"at": [1], "first": [1], "last": [3]}
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "at"], ["count"]),
        helper.make_node("Concat", ["first", "count", "last"], ["shape"], axis=0),
        helper.make_node("Constant", [], ["one"], value=of_one)
        if expanded
        else helper.make_node("ConstantOfShape", ["shape"], ["wide"], value=of_one),
        *([helper.make_node("Expand", ["one", "shape"], ["wide"])] if expanded else []),
        helper.make_node("Identity", ["wide"], ["h"]),
        *model.graph.node,
    ]
    nodes[-1].input.extend(["", "", "h"])
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(
        numpy_helper.from_array(np.array(a), name) for name, a in ints.items()
    )
    for each in model.graph.initializer[:2]:
        shape = tuple(each.dims)
        made = np.random.default_rng(0).uniform(-0.5, 0.5, shape).astype("f4")
        each.CopyFrom(numpy_helper.from_array(made, each.name))
    return model


@pytest.mark.parametrize("expanded", [False, True], ids=["ConstantOfShape", "Expand"])
@pytest.mark.parametrize("value", [0.0, 0.5])
def test_states_that_are_zeros_are_not_made(value: float, expanded: bool) -> None:
    model = exported(value, expanded)
    session = optimize(model, backend="kernels")
    kinds = [node.op_type for node in onnx.load_from_string(session._model_bytes).graph.node]
    assert (kinds == ["Layer"]) == (value == 0) and "Layer" in kinds
    assert len(model.graph.node) > 5  # what was given stays as it was
    theirs = onnxruntime.InferenceSession(model.SerializeToString())
    for count in (1, 3):
        x = np.random.default_rng(1).uniform(-1, 1, (4, count, 5)).astype("f4")
        (got,), (want,) = session.run(None, {"x": x}), theirs.run(None, {"x": x})
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)
        assert np.abs(want).max() > 0.05
