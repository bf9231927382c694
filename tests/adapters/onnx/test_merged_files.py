"""What onnx.compose merges is read as its parts are."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import compose
from support.onnx_models import check, info, model, read

from onernn import ModelFormatError

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (3, 2, 4)).astype(np.float32)
Y = RNG.uniform(-1, 1, (3, 1, 2, 5)).astype(np.float32)


def parts() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """An LSTM, and a dense layer behind it."""
    weights = {
        "w": RNG.uniform(-1, 1, (1, 20, 4)).astype(np.float32),
        "r": RNG.uniform(-1, 1, (1, 20, 5)).astype(np.float32),
    }
    lstm = model("y = LSTM <hidden_size = 5> (x, w, r)", {"x": X}, ["y"], constants=weights)
    lstm.graph.output[0].CopyFrom(info("y", Y))
    kernel = {"k": RNG.uniform(-1, 1, (5, 3)).astype(np.float32)}
    dense = model("b = MatMul (a, k)", {"a": Y}, ["b"], 17, kernel)
    dense.graph.output[0].CopyFrom(info("b", Y[..., :3]))
    return lstm, dense


def test_a_merged_model_computes_what_onnx_runtime_does() -> None:
    merged = compose.merge_models(*parts(), io_map=[("y", "a")])
    assert [each.version for each in merged.opset_import] == [17, 17]
    check(merged, {"x": X})


def test_parts_of_several_opsets_are_refused_by_their_numbers() -> None:
    """onnx.compose itself refuses them; other tools only put them side by side."""
    merged = compose.merge_models(*parts(), io_map=[("y", "a")])
    merged.opset_import[1].version = 13
    with pytest.raises(ModelFormatError, match="opsets 13 and 17 of ONNX's own operators"):
        read(merged)
