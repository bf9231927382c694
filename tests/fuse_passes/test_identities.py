"""Identities go; what may do something stays, with a reason."""

from __future__ import annotations

import pickle
from importlib import import_module

import numpy as np
import pytest
from support.fusing import fired, fuse_and_check, fused_once, reasons
from support.graphs import MATMUL, constants, graph, new_node, projected_gru

from onernn.fuse_passes import PASSES, fuse, pipeline
from onernn.fuse_passes.rewriting import rewrite
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
    assert fired(result) == ["identities", "identities", "linear_rnn"]
    assert result.applied[0].origin == SCALE.origin
    assert [node.inputs[0] for node in result.model.nodes] == ["x"]


def test_an_identity_that_names_an_output_stays() -> None:
    nodes = [MATMUL, *projected_gru("y", "xw"), new_node("z = Identity y")]
    result = fuse_and_check(graph(nodes, ["z"], **constants()))
    assert fired(result) == ["linear_rnn"]
    assert [node.op for node in result.model.nodes] == ["Rnn", "Identity"]


@pytest.mark.parametrize("inputs", [(), ("ratio",), ("ratio", "no")])
def test_a_dropout_in_inference_is_one(inputs: tuple[str, ...]) -> None:
    more = {"ratio": np.array(0.5, np.float32), "no": np.array(False)}
    result = fuse_and_check(graph(behind(*inputs), ["y"], **constants(), **more))
    assert fired(result) == ["identities", "linear_rnn"]


def test_a_dropout_whose_mask_is_used_stays() -> None:
    nodes = behind(outputs=("d", "mask"))
    result = fuse_and_check(graph(nodes, ["y", "mask"], **constants()))
    assert reasons(result) == ["identities: the mask 'mask' is used"]


@pytest.mark.parametrize("known", [True, False], ids=["true", "computed"])
def test_a_dropout_in_training_stays(known: bool) -> None:
    nodes = behind("ratio", "yes")
    arrays = {**constants(), "ratio": np.array(0.5, np.float32), "yes": np.array(True)}
    if not known:
        nodes.insert(0, new_node("yes = Not no"))
        arrays["no"] = ~arrays.pop("yes")
    result = fused_once(graph(nodes, ["y"], **arrays))
    assert reasons(result) == ["identities: it may drop values: training_mode"]


@pytest.mark.parametrize("ops", [("MatMul",), ("MatMul", "Identity"), ()])
def test_a_pass_sees_the_nodes_of_its_operators_and_no_others(ops: tuple[str, ...]) -> None:
    seen: list[Node] = []
    see = rewrite("see", *ops)(lambda _, node: seen.append(node))
    built = graph(
        [MATMUL, *projected_gru("y", "xw"), new_node("z = Identity y")], ["z"], **constants()
    )
    fuse(built, (see,))
    assert seen == [node for node in built.nodes if not ops or node.op in ops]
    assert all(see(built, node) is None for node in built.nodes)
    assert seen[len(seen) // 2 :] == seen[: len(seen) // 2]


def test_a_pass_that_is_imported_later_is_that_of_its_module() -> None:
    imported = [each for each in PASSES if each.__module__ == pipeline.__name__]
    assert len(imported) == 5
    for each in imported:
        own = getattr(import_module(f"onernn.fuse_passes.{each.name}"), each.__qualname__)
        assert (each.name, each.ops) == (own.name, own.ops)
        assert pickle.loads(pickle.dumps(each)) is each
