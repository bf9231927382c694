"""The dense operators around recurrent layers, beside Paddle, on every kind of batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.frameworks.paddle_graphs import LODS, Batch, PaddleGraph, Variable, check

from onernn import Ragged, Session, UnsupportedError, load
from onernn.ir.arrays import Array


def numbers(*shape: int) -> Array:
    return np.random.default_rng([7, *shape]).uniform(-2, 2, shape).astype(np.float32)


class Case(NamedTuple):
    """``build`` makes the outputs from the input x, (words, *sizes)."""

    name: str
    sizes: tuple[int, ...]
    build: Callable[[PaddleGraph, Variable], Any]
    dtype: str = "float32"
    positive: bool = False


def one(
    operator: str,
    sizes: tuple[int, ...] = (4,),
    of: str = "float32",
    *,
    slots: tuple[str, str] = ("X", "Out"),
    gives: str = "",
    positive: bool = False,
    **attributes: Any,
) -> Case:
    """An operator with one input and one output that is asked for."""
    side = {"layer_norm": ("Mean", "Variance")}.get(operator, ())

    def build(graph: PaddleGraph, x: Variable) -> Any:
        given, wanted = slots
        outputs = (wanted, *side)
        made = graph.op(operator, {given: x}, outputs, gives=gives or of, **attributes)
        return [made[0]] if side else [made]

    shown = ",".join(f"{k}={v}" for k, v in attributes.items())
    return Case(f"{operator}({shown}){sizes}{of}", sizes, build, of, positive)


def two(
    operator: str, sizes: tuple[int, ...], other: tuple[int, ...], dtype: str = "float32", **kw: Any
) -> Case:
    """An operator over x and a parameter."""
    gives, attributes = kw.pop("gives", dtype), kw
    y = numbers(*other) if dtype == "float32" else np.arange(1, 1 + np.prod(other)).reshape(other)

    def build(graph: PaddleGraph, x: Variable) -> Any:
        given = graph.parameter(np.abs(y).astype(dtype))
        return [graph.op(operator, {"X": x, "Y": given}, gives=gives, **attributes)]

    positive = operator == "elementwise_pow"
    return Case(f"{operator}({attributes}){sizes}+{other}{dtype}", sizes, build, dtype, positive)


def layer_norm(sizes: tuple[int, ...], axis: int, *, scale: bool, bias: bool) -> Case:
    def build(graph: PaddleGraph, x: Variable) -> Any:
        width = int(np.prod(sizes[axis - 1 :]))
        inputs = {"X": x}
        inputs |= {"Scale": graph.parameter(numbers(width))} if scale else {}
        inputs |= {"Bias": graph.parameter(numbers(width) + 1)} if bias else {}
        outputs = ("Y", "Mean", "Variance")
        return graph.op("layer_norm", inputs, outputs, begin_norm_axis=axis, epsilon=1e-3)[:1]

    return Case(f"layer_norm{sizes}from{axis}scale={scale},bias={bias}", sizes, build)


def batch_norm(sizes: tuple[int, ...], layout: str = "NCHW", **attributes: Any) -> Case:
    def build(graph: PaddleGraph, x: Variable) -> Any:
        columns = sizes[0] if layout == "NCHW" else sizes[-1]
        inputs = {"X": x, "Variance": graph.parameter(np.abs(numbers(columns)))}
        inputs |= {s: graph.parameter(numbers(columns) + k) for k, s in enumerate(BATCH_NORM)}
        into = {f"{slot}Out": inputs[slot] for slot in ("Mean", "Variance")}
        outputs = ("Y", "SavedMean", "SavedVariance")
        return graph.op("batch_norm", inputs, outputs, into=into, data_layout=layout, **attributes)[
            :1
        ]

    return Case(f"batch_norm{sizes}{layout}{attributes}", sizes, build)


BATCH_NORM = ("Scale", "Bias", "Mean")


def split(sizes: tuple[int, ...], count: int, **attributes: Any) -> Case:
    def build(graph: PaddleGraph, x: Variable) -> Any:
        return graph.op("split", {"X": x}, ("Out",), counts={"Out": count}, **attributes)

    return Case(f"split({attributes}){sizes}", sizes, build)


def several(operator: str, sizes: tuple[int, ...], out: str = "Out", **attributes: Any) -> Case:
    """An operator over x, its tanh and its sigmoid."""

    def build(graph: PaddleGraph, x: Variable) -> Any:
        parts = [x, *(graph.op(name, {"X": x}) for name in ("tanh", "sigmoid"))]
        return [graph.op(operator, {"X": parts}, (out,), **attributes)]

    return Case(f"{operator}({attributes}){sizes}x3", sizes, build)


def top_k(
    operator: str, sizes: tuple[int, ...], *, tensor: bool = False, **attributes: Any
) -> Case:
    def build(graph: PaddleGraph, x: Variable) -> Any:
        inputs = {"X": x}
        inputs |= {"K": graph.parameter(np.array([2], np.int32))} if tensor else {}
        gives = {"Out": "float32", "Indices": "int64"}
        return graph.op(operator, inputs, ("Out", "Indices"), gives=gives, **attributes)

    return Case(f"{operator}({attributes}){sizes}{tensor}", sizes, build)


def sliced(sizes: tuple[int, ...], axes: list[int], starts: list[int], ends: list[int], **kw: Any):
    case = one(
        "slice", sizes, slots=("Input", "Out"), axes=axes, starts=starts, ends=ends,
        infer_flags=[1] * len(axes), **kw,
    )  # fmt: skip
    return case


def filled_from_shape() -> Case:
    """What paddle.nn.GRU saves for its initial state."""

    def build(graph: PaddleGraph, x: Variable) -> Any:
        whole = graph.op("shape", {"Input": x}, gives="int32")
        rows = graph.op(
            "slice", {"Input": whole}, gives="int32", axes=[0], starts=[0], ends=[1],
            infer_flags=[1], decrease_axis=[0],
        )  # fmt: skip
        number = [
            graph.op("fill_constant", {}, gives="int32", shape=[], dtype=2, value=float(v),
                     str_value=str(v), force_cpu=True)
            for v in (2, 3)
        ]  # fmt: skip
        inputs = {"ShapeTensorList": [number[0], rows, number[1]]}
        return [
            graph.op("fill_constant", inputs, shape=[2, -1, 3], dtype=5, value=0.5, str_value="0.5")
        ]

    return Case("fill_constant from a shape", (4,), build)


def filled(**attributes: Any) -> Case:
    def build(graph: PaddleGraph, x: Variable) -> Any:
        gives = {5: "float32", 3: "int64", 2: "int32", 0: "bool"}[attributes["dtype"]]
        return [
            graph.op("fill_constant", {}, gives=gives, **attributes),
            graph.op("tanh", {"X": x}),
        ]

    return Case(f"fill_constant({attributes})", (4,), build)


REDUCE = ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod")
COMPARE = ("equal", "less_than", "less_equal", "greater_than", "greater_equal")
LIKE = {"dtype": 5, "value": 0.25, "str_value": "0.25"}
CASES = [
    *(one(name) for name in ("exp", "abs", "floor", "ceil", "sin", "cos", "softsign", "square")),
    *(one(name, positive=True) for name in ("log", "sqrt", "rsqrt", "reciprocal")),
    *(one(name) for name in ("assign", "sign", "silu", "softplus", "relu6", "elu", "hard_sigmoid")),
    *(one(name) for name in ("erf", "celu", "selu", "hard_swish", "thresholded_relu")),
    one("isnan_v2", gives="bool"),
    one("celu", alpha=0.3),
    one("selu", scale=0.7, alpha=1.2),
    one("thresholded_relu", threshold=0.3),
    one("leaky_relu"),
    one("leaky_relu", alpha=0.3),
    one("elu", alpha=0.4),
    one("hard_sigmoid", slope=0.3, offset=0.4),
    one("swish", beta=1.0),
    one("gelu", approximate=False),
    one("gelu", approximate=True),
    one("clip", min=-0.5, max=1.5),
    one("log_softmax", axis=0),
    one("log_softmax", axis=-1),
    one("log_softmax", (3, 2), axis=1),
    *(
        two(f"elementwise_{name}", sizes, other, axis=axis)
        for name in ("sub", "mul", "div", "max", "min", "pow")
        for sizes, other, axis in (((3,), (3,), -1), ((3, 2), (3,), 1), ((3,), (1,), -1))
    ),
    *(two(f"elementwise_{name}", (3,), (3,), "int64") for name in ("sub", "mul", "div", "max")),
    *(two(name, (3,), (3,), "int64", gives="bool", axis=-1) for name in COMPARE),
    *(one("cast", (3,), of, gives=to, in_dtype=number[of], out_dtype=number[to])
      for number in [{"float32": 5, "int32": 2, "int64": 3, "bool": 0, "float64": 6}]
      for of, to in (("float32", "int64"), ("int64", "float32"), ("float32", "bool"),
                     ("int32", "int64"), ("float32", "float64"))),
    one("shape", slots=("Input", "Out"), gives="int32"),
    one("shape", (3, 2), slots=("Input", "Out"), gives="int32"),
    filled(shape=[2, 3], dtype=5, value=1.5, str_value="1.5"),
    filled(shape=[2, 3], dtype=5, value=1.5),
    filled(shape=[], dtype=3, value=7.0, str_value="9007199254740993"),
    filled(shape=[1], dtype=0, value=1.0),
    filled(shape=[300, 300], dtype=2, value=3.0),
    filled_from_shape(),
    *(one("fill_constant_batch_size_like", slots=("Input", "Out"), shape=[-1, 3], **LIKE)
      for _ in [0]),
    one("fill_constant_batch_size_like", slots=("Input", "Out"), shape=[2, -1, 3],
        output_dim_idx=1, **LIKE),
    one("fill_constant_batch_size_like", (3, 2), slots=("Input", "Out"), shape=[2, -1],
        input_dim_idx=1, output_dim_idx=1, **LIKE),
    sliced((4,), [1], [1], [3]),
    sliced((4,), [1], [-2], [100]),
    sliced((4,), [1], [1], [2], decrease_axis=[1]),
    sliced((4,), [1], [-1], [4], decrease_axis=[1]),
    sliced((4, 3), [1, 2], [1, 0], [3, 2]),
    sliced((4, 3), [2], [0], [1], decrease_axis=[2]),
    sliced((4,), [0], [0], [1]),
    sliced((4,), [0], [0], [1], decrease_axis=[0]),
    sliced((4,), [0, 1], [0, 1], [1, 2], decrease_axis=[0, 1]),
    *(several("stack", (3,), "Y", axis=axis) for axis in (1, 2, -1)),
    several("sum", (3,)),
    split((4,), 2, num=2, axis=1),
    split((4,), 3, sections=[1, 2, 1], axis=1),
    split((4,), 2, sections=[3, -1], axis=1),
    split((4, 6), 3, num=3, axis=2),
    *(one(name, (3, 2), dim=dim, keep_dim=keep)
      for name in REDUCE for dim in ([0], [1], [-1], [1, 2]) for keep in (False, True)),
    *(one(name, (3,), reduce_all=True, dim=[0]) for name in REDUCE),
    *(one(name, (3,), reduce_all=True, dim=[0], keep_dim=True) for name in REDUCE),
    *(one(name, (3,), of, dim=[1]) for name in REDUCE[:4] for of in ("int32", "int64")
      if name != "reduce_mean"),
    one("reduce_prod", (3,), "int32", dim=[1]),
    *(one(name, (3,), "bool", dim=[1]) for name in ("reduce_any", "reduce_all")),
    one("logical_not", (3,), "bool"),
    *(two(name, (3,), (3,), "bool") for name in ("logical_and", "logical_or", "logical_xor")),
    one("reduce_max", (3,), "int64", dim=[1]),
    one("mean", (3,)),
    top_k("top_k", (4,), k=2),
    top_k("top_k", (4,), tensor=True),
    top_k("top_k_v2", (4,), k=3),
    top_k("top_k_v2", (4, 3), k=2, axis=1),
    top_k("top_k_v2", (4,), k=2, axis=1, largest=False),
    *(layer_norm((4,), 1, scale=scale, bias=bias)
      for scale in (False, True) for bias in (False, True)),
    layer_norm((3, 4), 1, scale=True, bias=True),
    layer_norm((3, 4), 2, scale=True, bias=True),
    batch_norm((4,), is_test=True),
    batch_norm((4,), is_test=True, epsilon=1e-3),
    batch_norm((4,), use_global_stats=True),
    batch_norm((4,), "NHWC", is_test=True),
    batch_norm((3, 4, 2), is_test=True),
]  # fmt: skip


def words(case: Case, layout: str, seed: int) -> Batch:
    rng, lod = np.random.default_rng(seed), LODS.get(layout)
    shape = (lod[-1][-1] if lod else 5, *case.sizes)
    if case.dtype == "bool":
        data = rng.random(shape) < 0.5
    elif case.dtype.startswith("int"):
        data = rng.integers(-6, 6, shape).astype(case.dtype)
    else:
        data = rng.uniform(-3, 3, shape).astype(case.dtype)
    data = np.abs(data) + np.float32(0.1) if case.positive else data
    return Ragged.from_lod(data, lod) if lod else data


# With these Paddle keeps a LoD that does not fit the rows any more.
DENSE = [
    several("stack", (3,), "Y", axis=0),
    top_k("top_k_v2", (4,), k=1, axis=0),
]


@pytest.mark.parametrize("case", DENSE, ids=lambda case: case.name)
def test_an_operator_over_the_rows_gives_what_paddle_gives(case: Case, tmp_path: Path) -> None:
    test_an_operator_gives_what_paddle_gives(case, "dense", tmp_path)


@pytest.mark.parametrize("layout", ["dense", *LODS])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_operator_gives_what_paddle_gives(case: Case, layout: str, tmp_path: Path) -> None:
    graph, batches = PaddleGraph(), [words(case, layout, seed) for seed in (1, 2)]
    made = case.build(graph, graph.feed_like("x", batches[0]))
    saved = graph.save(tmp_path, list(made))
    check(saved, [{"x": batch} for batch in batches], "reference")


REFUSED = {
    "axis=-1: Paddle 2.6.2 cuts the memory elsewhere": split((4,), 2, num=2, axis=-1),
    "data_layout='NHWC' of 3 axes": batch_norm((3, 4), "NHWC", is_test=True),
    "below 20 the function jumps": one("softplus", threshold=2.0),
    "attribute beta=2.0: only 1.0": one("swish", beta=2.0),
    "float16 numbers": one("cast", gives="float16", in_dtype=5, out_dtype=4),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_exact_is_refused(reason: str, tmp_path: Path) -> None:
    graph, case = PaddleGraph(), REFUSED[reason]
    graph.save(tmp_path, list(case.build(graph, graph.feed_like("x", words(case, "dense", 1)))))
    with pytest.raises(UnsupportedError, match=reason.replace("(", r"\(")):
        Session(load(tmp_path), backend="reference")
