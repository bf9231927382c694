"""Sums of projections: what is read as one, and that reading ends."""

from __future__ import annotations

import numpy as np
import pytest
from support.arrays import uniform
from support.graphs import new_node, small_graph

from onernn import Graph, fuse
from onernn.fuse_passes.affine import affine
from onernn.ir.graph import Node

CONSTANTS = {"W": uniform(3, 6), "b": uniform(6), "row": uniform(1, 6), "cube": uniform(1, 1, 6)}
CONSTANTS["V"] = np.eye(6, dtype=np.float32)


def graph(*nodes: Node, rank: int = 2) -> Graph:
    return small_graph(nodes, nodes[-1].outputs[0], CONSTANTS, x=(None,) * (rank - 1) + (3,))


@pytest.mark.parametrize("bias", ["b", "row"])
def test_a_product_and_its_bias_are_a_sum(bias: str) -> None:
    found = affine(graph(new_node("p = MatMul x W"), new_node(f"y = Add {bias} p")), "y")
    assert found is not None and list(found.terms) == ["x"] and len(found.biases) == 1


def test_a_bias_that_adds_an_axis_makes_no_matrix() -> None:
    """Axis 1 of (1, N, 6) is the batch: its pieces are no gates."""
    nodes = [new_node("p = MatMul x W"), new_node("y = Add p cube")]
    assert affine(graph(*nodes), "y") is None
    nodes += [new_node("t = Tanh y"), new_node("z = MatMul t V")]
    assert affine(graph(*nodes), "z") is None


def test_a_product_of_more_axes_is_no_sum() -> None:
    assert affine(graph(new_node("y = MatMul x W"), rank=3), "y") is None


def test_sums_of_sums_are_read_once() -> None:
    """Each value is the sum of the one before it with itself: 2**60 ways lead to the first."""
    nodes = [new_node("v0 = Gemm x W")]
    nodes += [new_node(f"v{k + 1} = Add v{k} v{k}") for k in range(60)]
    whole = graph(*nodes, new_node("y = Tanh v60"))
    assert affine(whole, "v60") is None and fuse(whole).model.nodes == whole.nodes
