"""What Paddle runs and we do not, or not for every batch: refused by the name of the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.frameworks.paddle_graphs import Batch, PaddleGraph, Variable

from onernn import Ragged, Session, ShapeError, UnsupportedError, load
from onernn.ir.arrays import Array

LOD = [[0, 2, 2, 5]]


def numbers(*shape: int) -> Array:
    return np.random.default_rng([3, *shape]).uniform(-2, 2, shape).astype(np.float32)


def ragged(*sizes: int) -> Ragged:
    return Ragged.from_lod(numbers(5, *sizes), LOD)


def tensor(*values: int) -> Array:
    return np.array(values, np.int32)


Build = Callable[[PaddleGraph, Variable], Variable]

REFUSED: dict[str, tuple[Batch, Build, str]] = {
    "concat AxisTensor": (
        ragged(3),
        lambda g, x: g.op("concat", {"X": [x, x], "AxisTensor": g.parameter(tensor(1))}, axis=0),
        "not understood: input AxisTensor",
    ),
    "reshape2 Shape": (
        ragged(4),
        lambda g, x: g.op(
            "reshape2", {"X": x, "Shape": g.parameter(tensor(-1, 2, 2))}, ("Out", "XShape")
        )[0],
        "input Shape: a LoD under a shape that is computed",
    ),
    "reshape2 ShapeTensor": (
        ragged(4),
        lambda g, x: g.op(
            "reshape2",
            {"X": x, "ShapeTensor": [g.parameter(tensor(-1)), g.parameter(tensor(4))]},
            ("Out", "XShape"),
        )[0],
        "input Shape: a LoD under a shape that is computed",
    ),
    "unsqueeze2 AxesTensor": (
        ragged(4),
        lambda g, x: g.op(
            "unsqueeze2", {"X": x, "AxesTensor": g.parameter(tensor(1))}, ("Out", "XShape")
        )[0],
        "not understood: input AxesTensor",
    ),
    "scale ScaleTensor": (
        ragged(4),
        lambda g, x: g.op("scale", {"X": x, "ScaleTensor": g.parameter(numbers(1))}),
        "not understood: input ScaleTensor",
    ),
    "scale of integers by a fraction": (
        np.arange(5),
        lambda g, x: g.op("scale", {"X": x}, gives="int64", scale=2.5),
        r"the number 2\.5 for int64 values",
    ),
    "fc padding_weights": (
        ragged(4),
        lambda g, x: g.op(
            "fc",
            {"Input": x, "W": g.parameter(numbers(8, 7)), "Bias": g.parameter(numbers(3))},
            in_num_col_dims=1,
            padding_weights=True,
        ),
        "attribute padding_weights=True",
    ),
    "lookup_table padding outside": (
        np.arange(4)[:, None],
        lambda g, x: g.op(
            "lookup_table", {"Ids": x, "W": g.parameter(numbers(6, 3))}, padding_idx=9
        ),
        "attribute padding_idx=9: the table has 6 rows",
    ),
    "lookup_table_v2 padding of a running table": (
        np.arange(4),
        lambda g, x: g.op(
            "lookup_table_v2",
            {"Ids": x, "W": g.op("gather", {"X": g.parameter(numbers(6, 3)), "Index": x})},
            padding_idx=1,
        ),
        "W 'gather_.*' is computed at run time",
    ),
    "lod_reset append": (
        ragged(4),
        lambda g, x: g.op("lod_reset", {"X": x}, target_lod=[0, 1, 2, 5], append=True),
        "attribute append=True",
    ),
    "reshape2 of words": (
        ragged(6),
        lambda g, x: g.op("reshape2", {"X": x}, ("Out", "XShape"), shape=[-1, 3])[0],
        r"attribute shape=\(-1, 3\) splits or joins the words",
    ),
    "squeeze2 of words": (
        ragged(1),
        lambda g, x: g.op("squeeze2", {"X": x}, ("Out", "XShape"), axes=[0])[0],
        r"attribute axes=\(0,\): the words",
    ),
    "squeeze2 of whatever is 1": (
        numbers(1, 1, 3),
        lambda g, x: g.op("squeeze2", {"X": x}, ("Out", "XShape"), axes=[])[0],
        r"attribute axes=\(\): which axes go",
    ),
    "concat of words with LoD and without": (
        ragged(3),
        lambda g, x: g.op(
            "concat", {"X": [x, g.op("transpose2", {"X": x}, ("Out", "XShape"), axis=[0, 1])[0]]}
        ),
        r"attribute axis=0: inputs X have \[0, 1\] LoD levels",
    ),
    "elementwise_add of a longer Y": (
        Ragged.from_lod(numbers(5), LOD),
        lambda g, x: g.op("elementwise_add", {"X": x, "Y": g.parameter(numbers(5, 5))}, axis=-1),
        "input Y has 2 axes, more than the ragged X with 1",
    ),
    "crf_decoding Length": (
        numbers(2, 4, 3),
        lambda g, x: g.op(
            "crf_decoding",
            {
                "Emission": x,
                "Transition": g.parameter(numbers(5, 3)),
                "Length": g.parameter(np.array([4, 2])),
            },
            ("ViterbiPath",),
            gives="int64",
        ),
        "input Length: padded emissions",
    ),
    "gru of float64": (
        Ragged.from_lod(numbers(5, 9).astype(np.float64), LOD),
        lambda g, x: g.op(
            "gru",
            {"Input": x, "Weight": g.parameter(numbers(3, 9).astype(np.float64))},
            ("BatchGate", "BatchResetHiddenPrev", "BatchHidden", "Hidden"),
            gives="float64",
        )[-1],
        "weights are float64",
    ),
    "gru with a running weight": (
        ragged(9),
        lambda g, x: g.op(
            "gru",
            {"Input": x, "Weight": g.op("matmul_v2", {"X": g.parameter(numbers(3, 5)), "Y": x})},
            ("BatchGate", "BatchResetHiddenPrev", "BatchHidden", "Hidden"),
        )[-1],
        "Weight 'matmul_v2_.*' is computed at run time",
    ),
    "unknown operator": (
        ragged(4),
        lambda g, x: g.op("digamma", {"X": x}),
        "this operator is not known",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_exact_is_refused_by_name(name: str, tmp_path: Path) -> None:
    x, build, reason = REFUSED[name]
    graph = PaddleGraph()
    saved = graph.save(tmp_path, [build(graph, graph.feed_like("x", x))])
    saved.execute({"x": x})  # Paddle does run it
    model = load(tmp_path)
    with pytest.raises(UnsupportedError, match=reason) as refused:
        Session(model, backend="reference")
    assert len(refused.value.refusals) == 1


SHAPES: dict[str, tuple[Batch, Build, str]] = {
    "an index that the table has not": (
        np.array([0, 6]),
        lambda g, x: g.op(
            "lookup_table_v2", {"Ids": x, "W": g.parameter(numbers(6, 3))}, padding_idx=-1
        ),
        r"index 6 is outside \[0, 6\)",
    ),
    "a LoD that does not fit its rows": (
        Ragged.from_lod(numbers(1, 3), [[0, 1]]),
        lambda g, x: g.op("elementwise_add", {"X": x, "Y": g.parameter(numbers(4, 3))}),
        r"gives \(4, 3\) under offsets of 1 steps",
    ),
    "target_lod of another batch": (
        numbers(5, 3),
        lambda g, x: g.op("lod_reset", {"X": x}, target_lod=[0, 2, 4]),
        "ends at 4, but there are 5 steps",
    ),
    "words that are no multiple": (
        ragged(2, 3),
        lambda g, x: g.op("reshape2", {"X": x}, ("Out", "XShape"), shape=[1, -1, 6])[0],
        r"gives \(1, 5, 6\) under offsets of 5 steps",
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_batches_that_do_not_fit_are_refused_when_they_come(name: str, tmp_path: Path) -> None:
    x, build, reason = SHAPES[name]
    graph = PaddleGraph()
    graph.save(tmp_path, [build(graph, graph.feed_like("x", x))])
    session = Session(load(tmp_path), backend="reference")
    with pytest.raises(ShapeError, match=reason):
        session.run({"x": x})
