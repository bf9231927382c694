"""Identities go; what may do something stays, with a reason."""

from __future__ import annotations

import numpy as np
import pytest
from support.fusing import fuse_and_check
from support.graphs import MATMUL, constants, graph, new_node, projected_gru

from onernn.ir.graph import NativeOp, Node

SCALE = Node("Identity", ("x",), ("x2",), {}, (NativeOp(3, "scale"),))


def behind(*inputs: str, outputs: tuple[str, ...] = ("d",)) -> list[Node]:
    """A projected gru over a dropout of x."""
    return [
        Node("Dropout", ("x", *inputs), outputs),
        new_node("xw = MatMul d w"),
        *projected_gru("y", "xw"),
    ]


def test_what_hides_a_projection_goes_and_the_projection_is_folded() -> None:
    nodes = [
        SCALE,
        new_node("xw = MatMul x2 w"),
        new_node("xw2 = Identity xw"),
        *projected_gru("y", "xw2"),
    ]
    result = fuse_and_check(graph(nodes, ["y"], **constants()))
    assert [a.name for a in result.applied] == ["identities", "identities", "linear_rnn"]
    assert result.applied[0].origin == SCALE.origin
    assert [node.inputs[0] for node in result.model.nodes] == ["x"]


def test_an_identity_that_names_an_output_stays() -> None:
    nodes = [MATMUL, *projected_gru("y", "xw"), new_node("z = Identity y")]
    result = fuse_and_check(graph(nodes, ["z"], **constants()))
    assert [a.name for a in result.applied] == ["linear_rnn"]
    assert [node.op for node in result.model.nodes] == ["Rnn", "Identity"]


@pytest.mark.parametrize("inputs", [(), ("ratio",), ("ratio", "no")])
def test_a_dropout_in_inference_is_one(inputs: tuple[str, ...]) -> None:
    more = {"ratio": np.array(0.5, np.float32), "no": np.array(False)}
    result = fuse_and_check(graph(behind(*inputs), ["y"], **constants(), **more))
    assert [a.name for a in result.applied] == ["identities", "linear_rnn"]


def test_a_dropout_whose_mask_is_used_stays() -> None:
    nodes = behind(outputs=("d", "mask"))
    result = fuse_and_check(graph(nodes, ["y", "mask"], **constants()))
    assert [r.reason for r in result.refusals] == ["identities: the mask 'mask' is used"]


@pytest.mark.parametrize("known", [True, False], ids=["true", "computed"])
def test_a_dropout_in_training_stays(known: bool) -> None:
    nodes = behind("ratio", "yes")
    arrays = {**constants(), "ratio": np.array(0.5, np.float32), "yes": np.array(True)}
    if not known:
        nodes.insert(0, new_node("yes = Not no"))
        arrays = {**arrays, "no": np.array(False)}
        del arrays["yes"]
    from onernn import fuse

    model = graph(nodes, ["y"], **arrays)
    result = fuse(model)
    assert [r.reason for r in result.refusals] == [
        "identities: it may drop something: training_mode"
    ]
    assert fuse(result.model).applied == ()
