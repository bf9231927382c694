"""Public names of the version before work, and warn with the new name."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from support.graphs import new_node
from support.layers import random_weights
from support.onnx_written import graph_over

import onernn
from onernn import Cell, RnnSpec, RnnWeights
from onernn.ir.graph import Value
from onernn.verification.suite import Shape, sample_case

X = Value("x", "float32", (None, 3))
NODE = new_node("y = Relu x")
GRAPH = graph_over(X, NODE)
(WEIGHTS,) = random_weights(RnnSpec(Cell.GRU, 3, 4), 0)
CASE = sample_case("GRU", "left2right", Shape(3, 4, 1, (2, 1)))
ARRAY = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    "of, old, new, arguments",
    [
        (NODE, "renamed", "rename", [{"x": "z"}]),
        (GRAPH, "typed", "infer_types", [{"x": X.type}]),
        (GRAPH, "pruned", "prune", []),
        (GRAPH, "used_only_by", "is_used_only_by", ["x", NODE]),
        (Value("x"), "declared", "declare", [ARRAY]),
        (Value("x"), "opened", "complete", [ARRAY]),
        (RnnWeights, "joined", "join", [[WEIGHTS, WEIGHTS], 0]),
        (WEIGHTS, "mapped", "map", [np.negative]),
        (CASE, "padded", "pad", []),
        (CASE, "negated", "negate", []),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_an_old_name_is_the_new_method_and_warns(
    of: Any, old: str, new: str, arguments: Any
) -> None:
    owner = (of if isinstance(of, type) else type(of)).__name__
    with pytest.warns(DeprecationWarning, match=rf"{owner}\.{old} is {owner}\.{new} ") as seen:
        method = getattr(of, old)
    assert [each.filename for each in seen] == [__file__]
    assert method == getattr(of, new)
    method(*arguments)


def test_onernn_shared_is_share_and_warns() -> None:
    with pytest.warns(DeprecationWarning, match=re.escape("onernn.shared is onernn.share ")):
        assert onernn.shared is onernn.share
