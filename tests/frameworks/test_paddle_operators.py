"""Every operator of the table that has one running input, beside Paddle, on every kind of batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.frameworks.paddle_graphs import LODS, Batch, PaddleGraph, Variable, differences

from onernn import Ragged, Session, load
from onernn.ir.arrays import Array
from onernn.ir.ragged import data_of


def numbers(*shape: int) -> Array:
    return np.random.default_rng([7, *shape]).uniform(-2, 2, shape).astype(np.float32)


class Case(NamedTuple):
    """``build`` makes the output from the input x, (words, *sizes)."""

    name: str
    sizes: tuple[int, ...]
    build: Callable[[PaddleGraph, Variable], Variable]
    dtype: str = "float32"


def simple(operator: str, sizes: tuple[int, ...] = (4,), of: str = "float32", **attributes: Any):
    """An operator X -> Out; ``XShape`` and ``Mask`` are side outputs that Paddle insists on."""
    shaped = operator.endswith("2") or operator == "flatten_contiguous_range"
    side = {"dropout": ("Mask",)}.get(operator, ("XShape",) if shaped else ())
    gives = attributes.pop("gives", of)

    def build(graph: PaddleGraph, x: Variable) -> Variable:
        made = graph.op(operator, {"X": x}, ("Out", *side), gives=gives, **attributes)
        return made[0] if side else made

    shown = ",".join(f"{k}={v}" for k, v in attributes.items())
    return Case(f"{operator}({shown}){sizes}{of}", sizes, build, of)


def times(
    operator: str, sizes: tuple[int, ...], weight: tuple[int, ...], **attributes: Any
) -> Case:
    def build(graph: PaddleGraph, x: Variable) -> Variable:
        return graph.op(operator, {"X": x, "Y": graph.parameter(numbers(*weight))}, **attributes)

    shown = ",".join(f"{k}={v}" for k, v in attributes.items())
    return Case(f"{operator}({shown}){sizes}x{weight}", sizes, build)


def fc(sizes: tuple[int, ...], weight: tuple[int, int], bias: tuple[int, ...], **attributes: Any):
    def build(graph: PaddleGraph, x: Variable) -> Variable:
        inputs = {"Input": x, "W": graph.parameter(numbers(*weight))}
        if bias:
            inputs["Bias"] = graph.parameter(numbers(*bias))
        return graph.op("fc", inputs, **attributes)

    shown = ",".join(f"{k}={v}" for k, v in attributes.items())
    return Case(f"fc({shown}){sizes}x{weight}+{bias}", sizes, build)


def matmul_from_the_left(weight: tuple[int, ...], **attributes: Any) -> Case:
    def build(graph: PaddleGraph, x: Variable) -> Variable:
        left = graph.parameter(numbers(*weight))
        return graph.op("matmul_v2", {"X": left, "Y": x}, **attributes)

    return Case(f"matmul_v2({attributes}){weight}x(2,3)", (2, 3), build)


def embedding(operator: str, sizes: tuple[int, ...], padding: int, ids: str = "int64") -> Case:
    def build(graph: PaddleGraph, x: Variable) -> Variable:
        inputs = {"Ids": x, "W": graph.parameter(numbers(6, 3))}
        return graph.op(operator, inputs, padding_idx=padding)

    return Case(f"{operator}(padding_idx={padding}){sizes}{ids}", sizes, build, ids)


CASES = [
    times("mul", (4,), (4, 3), x_num_col_dims=1, y_num_col_dims=1),
    times("mul", (1,), (1, 1), x_num_col_dims=1, y_num_col_dims=1),
    times("mul", (4, 2), (8, 3), x_num_col_dims=1, y_num_col_dims=1),
    times("mul", (4, 2), (2, 3), x_num_col_dims=2, y_num_col_dims=1),
    times("mul", (4, 2, 3), (6, 3), x_num_col_dims=2, y_num_col_dims=1),
    times("mul", (6,), (2, 3, 4), x_num_col_dims=1, y_num_col_dims=2),
    times("mul", (2,), (2, 3, 4), x_num_col_dims=1, y_num_col_dims=1),
    times("mul", (4, 2), (2, 3, 5), x_num_col_dims=2, y_num_col_dims=1),
    times("matmul_v2", (4,), (4, 3)),
    times("matmul_v2", (4,), (3, 4), trans_y=True),
    times("matmul_v2", (4,), (4,), trans_y=True),
    times("matmul_v2", (2, 4), (4, 3)),
    times("matmul_v2", (4, 2), (4, 3), trans_x=True),
    times("matmul_v2", (4, 2), (3, 4), trans_x=True, trans_y=True),
    times("matmul_v2", (2, 4), (3, 1, 4, 2)),
    matmul_from_the_left((4, 2)),
    matmul_from_the_left((2, 4), trans_x=True),
    matmul_from_the_left((2,), trans_x=True),
    fc((4,), (4, 3), (3,), in_num_col_dims=1),
    fc((4,), (4, 3), (1, 3), in_num_col_dims=1, activation_type="relu"),
    fc((4,), (4, 3), (), in_num_col_dims=1),
    fc((1,), (1, 1), (1,), in_num_col_dims=1),
    fc((4, 2), (8, 3), (3,), in_num_col_dims=1),
    fc((4, 2), (2, 3), (3,), in_num_col_dims=2, activation_type="relu"),
    times("elementwise_add", (3,), (3,), axis=-1),
    times("elementwise_add", (3,), (3,), axis=1),
    times("elementwise_add", (3,), (1, 3), axis=-1),
    times("elementwise_add", (3,), (1, 3), axis=0),
    times("elementwise_add", (3,), (1,), axis=-1),
    times("elementwise_add", (3,), (), axis=-1),
    times("elementwise_add", (1,), (1,), axis=1),
    times("elementwise_add", (3, 2), (3,), axis=1),
    times("elementwise_add", (3, 2), (3, 1), axis=1),
    times("elementwise_add", (3, 2), (3, 2), axis=1),
    times("elementwise_add", (3, 2), (3, 2), axis=-1),
    times("elementwise_add", (3, 2), (2,), axis=2),
    times("elementwise_add", (1,), (1, 4), axis=-1),
    *(embedding("lookup_table", (1,), padding) for padding in (-1, 0, 3, 6)),
    *(embedding("lookup_table_v2", (), padding) for padding in (-1, 0, 3, 6)),
    embedding("lookup_table", (2, 1), 3),
    embedding("lookup_table_v2", (1,), 3),
    embedding("lookup_table_v2", (2,), -1, "int32"),
    *(simple("softmax", sizes, axis=axis) for sizes in ((4,), (3, 2)) for axis in (-1, 0, 1, -2)),
    simple("softmax", (1,), axis=-1),
    simple("scale", scale=2.5, bias=0.0),
    simple("scale", scale=2.5, bias=1.5, bias_after_scale=True),
    simple("scale", scale=2.5, bias=1.5, bias_after_scale=False),
    simple("scale", scale=1.0, bias=0.0),
    simple("scale", scale=0.0, bias=3.0),
    simple("scale", (2,), "int64", scale=-3.0, bias=7.0, bias_after_scale=True),
    simple("scale", (2,), "int64", scale=3.0, bias=7.0, bias_after_scale=False),
    simple("scale", (2,), "int32", scale=3.0, bias=7.0, bias_after_scale=False),
    simple("scale", (2,), "float64", scale=0.3, bias=0.1),
    *(simple(operator) for operator in ("relu", "tanh", "sigmoid")),
    *(simple(operator, (3, 2)) for operator in ("relu", "tanh", "sigmoid")),
    *(
        simple("dropout", dropout_prob=p, dropout_implementation=implementation, is_test=True)
        for implementation in ("downgrade_in_infer", "upscale_in_train")
        for p in (0.0, 0.3, 1.0)
    ),
    simple("arg_max", gives="int64", axis=-1),
    simple("arg_max", gives="int64", axis=0),
    simple("arg_max", gives="int64", axis=1, keepdims=True),
    simple("arg_max", gives="int64", axis=0, keepdims=True),
    simple("arg_max", gives="int32", axis=1, dtype=2),
    simple("arg_max", gives="int64", axis=1, dtype=3),
    simple("arg_max", gives="int64", axis=0, flatten=True),
    simple("arg_max", gives="int64", axis=0, flatten=True, keepdims=True),
    simple("arg_max", (3, 2), gives="int64", axis=1),
    simple("arg_max", (), gives="int64", axis=0),
    simple("arg_max", (3,), "int64", axis=1),
    simple("reshape2", (6,), shape=[-1, 6]),
    simple("reshape2", (6,), shape=[-1, 2, 3]),
    simple("reshape2", (6,), shape=[0, 2, -1]),
    simple("reshape2", (2, 3), shape=[0, 0, 3]),
    simple("reshape2", (2, 3), shape=[0, -1]),
    simple("reshape2", (2, 3), shape=[-1, 6]),
    simple("reshape2", (1,), shape=[-1]),
    simple("reshape2", (), shape=[-1, 1]),
    simple("transpose2", (3,), axis=[0, 1]),
    simple("transpose2", (3,), axis=[1, 0]),
    simple("transpose2", (3,), axis=[-1, 0]),
    simple("transpose2", (3, 2), axis=[0, 2, 1]),
    simple("transpose2", (3, 2), axis=[2, 0, 1]),
    simple("squeeze2", (1, 3), axes=[1]),
    simple("squeeze2", (3, 1), axes=[-1]),
    simple("squeeze2", (1, 1), axes=[1, 2]),
    simple("squeeze2", (3, 1), axes=[1, -1]),  # an axis of 3 stays as it is
    simple("squeeze2", (3,), axes=[1]),
    simple("squeeze2", (1,), axes=[1, -1]),
    simple("flatten_contiguous_range", (2, 3), start_axis=1, stop_axis=2),
    simple("flatten_contiguous_range", (2, 3), start_axis=-2, stop_axis=1),
    simple("unsqueeze2", (3,), axes=[1]),
    simple("unsqueeze2", (3,), axes=[-1]),
    simple("unsqueeze2", (3,), axes=[1, 2]),
    simple("unsqueeze2", (3,), axes=[2, 1]),  # one after the other
    simple("unsqueeze2", (3,), axes=[1, 1]),
]


def words(case: Case, layout: str, seed: int) -> Batch:
    rng, lod = np.random.default_rng(seed), LODS.get(layout)
    shape = (lod[-1][-1] if lod else 5, *case.sizes)
    if case.dtype.startswith("int"):
        data = rng.integers(0, 6, shape).astype(case.dtype)
    else:
        data = rng.uniform(-3, 3, shape).astype(case.dtype)
    return Ragged.from_lod(data, lod) if lod else data


@pytest.mark.parametrize("layout", ["dense", *LODS])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_operator_gives_what_paddle_gives(case: Case, layout: str, tmp_path: Path) -> None:
    graph, batches = PaddleGraph(), [words(case, layout, seed) for seed in (1, 2)]
    saved = graph.save(tmp_path, [case.build(graph, graph.feed_like("x", batches[0]))])
    session = Session(load(tmp_path), backend="reference")
    for batch in batches:
        found = differences(session.run({"x": batch}), saved.run({"x": batch}))
        assert not found, found


@pytest.mark.parametrize("layout", ["dense", *LODS])
@pytest.mark.parametrize("axis", [0, -3])
def test_a_new_first_axis_has_no_lod(axis: int, layout: str, tmp_path: Path) -> None:
    """Paddle keeps one for a batch of a single word, whose first size stays 1; other batches lose
    it. Ours does not hang on the number of words (design/0025)."""
    case = simple("unsqueeze2", (3,), axes=[axis])
    graph, batch = PaddleGraph(), words(case, layout, 1)
    saved = graph.save(tmp_path, [case.build(graph, graph.feed_like("x", batch))])
    got = Session(load(tmp_path), backend="reference").run({"x": batch})
    (theirs,) = saved.run({"x": batch})
    assert isinstance(theirs, Ragged) == (layout == "one-word")
    assert not differences(got, [data_of(theirs)])


def test_weights_made_of_parameters_alone_are_weights(tmp_path: Path) -> None:
    graph, x = PaddleGraph(), Ragged.from_lod(np.arange(5)[:, None], LODS["ragged"])
    table, weight = graph.parameter(numbers(6, 9)), graph.parameter(numbers(3, 9))
    embedded = graph.op(
        "lookup_table",
        {"Ids": graph.feed_like("x", x), "W": graph.op("scale", {"X": table}, scale=2.0)},
        padding_idx=1,
    )
    *_, hidden = graph.op(
        "gru",
        {"Input": embedded, "Weight": graph.op("scale", {"X": weight}, scale=0.1)},
        ("BatchGate", "BatchResetHiddenPrev", "BatchHidden", "Hidden"),
    )
    saved = graph.save(tmp_path, [embedded, hidden])
    got = Session(load(tmp_path), backend="reference").run({"x": x})
    assert not differences(got, saved.run({"x": x}))


def test_ties_go_to_the_first(tmp_path: Path) -> None:
    graph = PaddleGraph()
    x = np.float32([[1, 1, 0], [0, 1, 1], [2, 0, 2], [0, 0, 0]])
    made = graph.op("arg_max", {"X": graph.feed_like("x", x)}, gives="int64", axis=1)
    saved = graph.save(tmp_path, [made])
    got = Session(load(tmp_path), backend="reference").run({"x": x})
    assert not differences(got, saved.run({"x": x}))


def test_inputs_and_outputs_keep_the_order_and_names_of_feed_and_fetch(tmp_path: Path) -> None:
    graph = PaddleGraph()
    b, a = graph.feed("b", [-1, 2], lod_level=1), graph.feed("a", [-1, 2])
    sum_ = graph.op("elementwise_add", {"X": a, "Y": b}, axis=-1)
    saved = graph.save(tmp_path, [sum_, b, graph.op("tanh", {"X": a}), b])
    model = load(tmp_path)
    assert [(value.name, value.lod_depth) for value in model.inputs] == [("b", 1), ("a", 0)]
    feeds = {"a": numbers(3, 2), "b": Ragged(numbers(3, 2), [0, 2, 3])}
    assert [value.name for value in model.outputs] == [v.name for v in saved.fetches]
    assert not differences(Session(model, backend="reference").run(feeds), saved.run(feeds))


def test_differences_tell_each_kind_of_disagreement() -> None:
    data = np.float32([[1, 2], [3, 4]])
    ragged = Ragged(data, [0, 1, 2])

    def told(ours: Batch, theirs: Batch) -> str:
        (line,) = differences({"y": ours}, [theirs])
        return line

    assert differences({"y": ragged, "z": data + 1e-6}, [ragged, data]) == []
    assert "0.001 apart" in told(data + 1e-3, data)
    assert "LoD" in told(ragged, data)
    assert "LoD is missing" in told(data, ragged)
    assert "LoD differs" in told(ragged, Ragged(data, [0, 2, 2]))
    assert "LoD differs" in told(ragged, Ragged(data, [0, 1, 2], ([0, 2],)))
    assert "dtype float64" in told(data.astype(np.float64), data)
    assert "shape" in told(data[:, :1], data)
    with pytest.raises(ValueError):
        differences({"y": data}, [data, data])
