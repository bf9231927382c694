"""The table of Paddle's operators with one running input, compared with Paddle on every batch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.graphs import reference
from tests.frameworks.paddle_graphs import (
    LODS,
    Batch,
    Build,
    Fixed,
    PaddleGraph,
    assert_same,
    check,
    differences,
    numbers,
    ragged,
    row,
    saved_graph,
)

from onernn import Ragged, Session, ShapeError, UnsupportedError, load
from onernn.adapters.paddle.lower import RULES
from onernn.adapters.paddle.read import read_program
from onernn.ir.ragged import data_of

Sizes = tuple[int, ...]


class Case(NamedTuple):
    """``build`` makes the outputs from the input x, (words, *sizes)."""

    name: str
    sizes: Sizes
    build: Build
    dtype: str
    positive: bool


def over(
    operator: str,
    sizes: Sizes = (4,),
    of: str = "float32",
    *,
    slot: str = "X",
    positive: bool = False,
    gives: str = "",
    **rest: Any,
) -> Case:
    """A row over x in one slot."""
    shown = ",".join(f"{key}={value}" for key, value in rest.items() if key[0].islower())
    build = row(operator, gives=gives or of, **({slot: "x"} | rest))
    return Case(f"{operator}{sizes}{of}({shown})", sizes, build, of, positive)


def mul(sizes: Sizes, weight: Sizes, of_x: int, of_y: int) -> Case:
    return over("mul", sizes, Y=weight, x_num_col_dims=of_x, y_num_col_dims=of_y)


def fc(sizes: Sizes, weight: Sizes, bias: Sizes, axes: int = 1, **attributes: Any) -> Case:
    slots = {"W": weight} | ({"Bias": bias} if bias else {})
    return over("fc", sizes, slot="Input", in_num_col_dims=axes, **slots, **attributes)


def embedding(operator: str, sizes: Sizes, padding: int, ids: str = "int64") -> Case:
    options = {"gives": "float32", "slot": "Ids", "positive": True}
    return over(operator, sizes, ids, W=(6, 3), padding_idx=padding, **options)


def layer_norm(sizes: Sizes, axis: int, *slots: str) -> Case:
    width = (int(np.prod(sizes[axis - 1 :])),)
    return over(
        "layer_norm", sizes, begin_norm_axis=axis, epsilon=1e-3, **dict.fromkeys(slots, width)
    )


def batch_norm(sizes: Sizes, layout: str = "NCHW", **attributes: Any) -> Case:
    width = sizes[0 if layout == "NCHW" else -1]
    slots: dict[str, Any] = dict.fromkeys(("Scale", "Bias", "Mean"), (width,))
    slots["Variance"] = Fixed(np.abs(numbers(width)))
    return over("batch_norm", sizes, data_layout=layout, **slots, **attributes)


def cut(sizes: Sizes, axes: list[int], starts: list[int], ends: list[int], **more: Any) -> Case:
    places = {"axes": axes, "starts": starts, "ends": ends, "infer_flags": [1] * len(axes)}
    return over("slice", sizes, slot="Input", **places, **more)


def set_slice(
    sizes: Sizes, axes: list[int], starts: list[int], ends: list[int], steps: list[int],
    *, of: str = "float32", value: Sizes = (), **more: Any,
) -> Case:  # fmt: skip
    slots = {"ValueTensor": value} if value else {}
    places = {"axes": axes, "starts": starts, "ends": ends, "steps": steps}
    return over("set_value", sizes, of, slot="Input", dtype=NUMBER[of], **places, **slots, **more)


def filled(gives: str = "float32", **attributes: Any) -> Case:
    constant = row("fill_constant", gives=gives, **attributes)

    def build(graph: PaddleGraph, inputs: Any) -> list[Any]:
        return [*constant(graph, inputs), *row("tanh", X="x")(graph, inputs)]

    return Case(f"fill_constant({attributes})", (4,), build, "float32", False)


def filled_from_shape() -> Case:
    """What paddle.nn.GRU saves for its initial state."""
    whole = row("shape", Input="x", gives="int32")
    rows = row("slice", Input=whole, gives="int32", axes=[0], starts=[0], ends=[1],
               infer_flags=[1], decrease_axis=[0])  # fmt: skip
    two, three = (
        row("fill_constant", gives="int32", shape=[], dtype=2, value=float(v), str_value=str(v),
            force_cpu=True)
        for v in (2, 3)
    )  # fmt: skip
    build = row("fill_constant", ShapeTensorList=[two, rows, three], shape=[2, -1, 3], **HALF)
    return Case("fill_constant from a shape", (4,), build, "float32", False)


REDUCE = ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod")
COMPARE = ("equal", "less_than", "less_equal", "greater_than", "greater_equal")
HALF = {"dtype": 5, "value": 0.5, "str_value": "0.5"}
WHOLE, TRUTHS = Fixed(np.array([1, 2, 3])), Fixed(np.array([True, False, True]))
NUMBER = {"float32": 5, "int32": 2, "int64": 3, "bool": 0, "float64": 6}
THREE = ["x", row("tanh", X="x"), row("sigmoid", X="x")]
CASES = [
    mul((4,), (4, 3), 1, 1),
    mul((1,), (1, 1), 1, 1),
    mul((4, 2), (8, 3), 1, 1),
    mul((4, 2), (2, 3), 2, 1),
    mul((4, 2, 3), (6, 3), 2, 1),
    mul((6,), (2, 3, 4), 1, 2),
    mul((2,), (2, 3, 4), 1, 1),
    mul((4, 2), (2, 3, 5), 2, 1),
    over("matmul_v2", (4,), Y=(4, 3)),
    over("matmul_v2", (4,), Y=(3, 4), trans_y=True),
    over("matmul_v2", (4,), Y=(4,), trans_y=True),
    over("matmul_v2", (2, 4), Y=(4, 3)),
    over("matmul_v2", (4, 2), Y=(4, 3), trans_x=True),
    over("matmul_v2", (4, 2), Y=(3, 4), trans_x=True, trans_y=True),
    over("matmul_v2", (2, 4), Y=(3, 1, 4, 2)),
    over("matmul_v2", (2, 3), slot="Y", X=(4, 2)),
    over("matmul_v2", (2, 3), slot="Y", X=(2, 4), trans_x=True),
    over("matmul_v2", (2, 3), slot="Y", X=(2,), trans_x=True),
    fc((4,), (4, 3), (3,)),
    fc((4,), (4, 3), (1, 3), activation_type="relu"),
    fc((4,), (4, 3), ()),
    fc((1,), (1, 1), (1,)),
    fc((4, 2), (8, 3), (3,)),
    fc((4, 2), (2, 3), (3,), 2, activation_type="relu"),
    *(
        over("elementwise_add", sizes, Y=other, axis=axis)
        for sizes, other, axis in (
            *(((3,), (3,), -1), ((3,), (3,), 1), ((3,), (1, 3), -1), ((3,), (1, 3), 0)),
            *(((3,), (1,), -1), ((3,), (), -1), ((1,), (1,), 1), ((3, 2), (3,), 1)),
            *(((3, 2), (3, 1), 1), ((3, 2), (3, 2), 1), ((3, 2), (3, 2), -1), ((3, 2), (2,), 2)),
            ((1,), (1, 4), -1),
        )
    ),
    *(embedding("lookup_table", (1,), padding) for padding in (-1, 0, 3, 6)),
    *(embedding("lookup_table_v2", (), padding) for padding in (-1, 0, 3, 6)),
    embedding("lookup_table", (2, 1), 3),
    embedding("lookup_table_v2", (1,), 3),
    embedding("lookup_table_v2", (2,), -1, "int32"),
    *(over("softmax", sizes, axis=axis) for sizes in ((4,), (3, 2)) for axis in (-1, 0, 1, -2)),
    over("softmax", (1,), axis=-1),
    over("scale", scale=2.5, bias=0.0),
    over("scale", scale=2.5, bias=1.5, bias_after_scale=True),
    over("scale", scale=2.5, bias=1.5, bias_after_scale=False),
    over("scale", scale=1.0, bias=0.0),
    over("scale", scale=0.0, bias=3.0),
    over("scale", (2,), "int64", scale=-3.0, bias=7.0, bias_after_scale=True),
    over("scale", (2,), "int64", scale=3.0, bias=7.0, bias_after_scale=False),
    over("scale", (2,), "int32", scale=3.0, bias=7.0, bias_after_scale=False),
    over("scale", (2,), "float64", scale=0.3, bias=0.1),
    *(over(name, sizes) for name in ("relu", "tanh", "sigmoid") for sizes in ((4,), (3, 2))),
    *(
        over("dropout", dropout_prob=p, dropout_implementation=implementation, is_test=True)
        for implementation in ("downgrade_in_infer", "upscale_in_train")
        for p in (0.0, 0.3, 1.0)
    ),
    over("arg_max", gives="int64", axis=-1),
    over("arg_max", gives="int64", axis=0),
    over("arg_max", gives="int64", axis=1, keepdims=True),
    over("arg_max", gives="int64", axis=0, keepdims=True),
    over("arg_max", gives="int32", axis=1, dtype=2),
    over("arg_max", gives="int64", axis=1, dtype=3),
    over("arg_max", gives="int64", axis=0, flatten=True),
    over("arg_max", gives="int64", axis=0, flatten=True, keepdims=True),
    over("arg_max", (3, 2), gives="int64", axis=1),
    over("arg_max", (), gives="int64", axis=0),
    over("arg_max", (3,), "int64", axis=1),
    *(
        over("reshape2", sizes, shape=shape)
        for sizes, shape in (
            *(((6,), [-1, 6]), ((6,), [-1, 2, 3]), ((6,), [0, 2, -1]), ((2, 3), [0, 0, 3])),
            *(((2, 3), [0, -1]), ((2, 3), [-1, 6]), ((1,), [-1]), ((), [-1, 1])),
        )
    ),
    *(over("transpose2", (3,), axis=axis) for axis in ([0, 1], [1, 0], [-1, 0])),
    *(over("transpose2", (3, 2), axis=axis) for axis in ([0, 2, 1], [2, 0, 1])),
    *(
        over("squeeze2", sizes, axes=axes)
        for sizes, axes in (
            *(((1, 3), [1]), ((3, 1), [-1]), ((1, 1), [1, 2]), ((3,), [1]), ((1,), [1, -1])),
            ((3, 1), [1, -1]),  # an axis of 3 stays as it is
        )
    ),
    over("flatten_contiguous_range", (2, 3), start_axis=1, stop_axis=2),
    over("flatten_contiguous_range", (2, 3), start_axis=-2, stop_axis=1),
    # Several axes: one after the other.
    *(over("unsqueeze2", (3,), axes=axes) for axes in ([1], [-1], [1, 2], [2, 1], [1, 1])),
    *(
        over(name)
        for name in ("exp", "abs", "floor", "ceil", "sin", "cos", "atan", "softsign", "square")
    ),
    *(over(name, positive=True) for name in ("log", "sqrt", "rsqrt", "reciprocal")),
    *(over(name) for name in ("assign", "sign", "silu", "softplus", "relu6", "elu", "erf")),
    *(over(name) for name in ("hard_sigmoid", "celu", "selu", "hard_swish", "thresholded_relu")),
    over("share_data"),
    over("isnan_v2", gives="bool"),
    over("celu", alpha=0.3),
    over("selu", scale=0.7, alpha=1.2),
    over("thresholded_relu", threshold=0.3),
    over("leaky_relu"),
    over("leaky_relu", alpha=0.3),
    over("elu", alpha=0.4),
    over("hard_sigmoid", slope=0.3, offset=0.4),
    over("swish", beta=1.0),
    over("gelu", approximate=False),
    over("gelu", approximate=True),
    over("clip", min=-0.5, max=1.5),
    over("log_softmax", axis=0),
    over("log_softmax", axis=-1),
    over("log_softmax", (3, 2), axis=1),
    *(
        over(f"elementwise_{name}", sizes, Y=other, axis=axis, positive=name == "pow")
        for name in ("sub", "mul", "div", "max", "min", "pow")
        for sizes, other, axis in (((3,), (3,), -1), ((3, 2), (3,), 1), ((3,), (1,), -1))
    ),
    *(over(f"elementwise_{name}", (3,), "int64", Y=WHOLE) for name in ("sub", "mul", "div", "max")),
    *(over(name, (3,), "int64", gives="bool", Y=WHOLE, axis=-1) for name in COMPARE),
    *(
        over("cast", (3,), of, gives=to, in_dtype=NUMBER[of], out_dtype=NUMBER[to])
        for of, to in (
            *(("float32", "int64"), ("int64", "float32"), ("float32", "bool")),
            *(("int32", "int64"), ("float32", "float64")),
        )
    ),
    over("shape", slot="Input", gives="int32"),
    over("shape", (3, 2), slot="Input", gives="int32"),
    filled(shape=[2, 3], dtype=5, value=1.5, str_value="1.5"),
    filled(shape=[2, 3], dtype=5, value=1.5),
    filled("int64", shape=[], dtype=3, value=7.0, str_value="9007199254740993"),
    filled("bool", shape=[1], dtype=0, value=1.0),
    filled("int32", shape=[300, 300], dtype=2, value=3.0),
    filled_from_shape(),
    *(
        over("fill_constant_batch_size_like", sizes, slot="Input", **HALF, **attributes)
        for sizes, attributes in (
            ((4,), {"shape": [-1, 3]}),
            ((4,), {"shape": [2, -1, 3], "output_dim_idx": 1}),
            ((3, 2), {"shape": [2, -1], "input_dim_idx": 1, "output_dim_idx": 1}),
        )
    ),
    cut((4,), [1], [1], [3]),
    cut((4,), [1], [-2], [100]),
    cut((4,), [1], [1], [2], decrease_axis=[1]),
    cut((4,), [1], [-1], [4], decrease_axis=[1]),
    cut((4, 3), [1, 2], [1, 0], [3, 2]),
    cut((4, 3), [2], [0], [1], decrease_axis=[2]),
    cut((4,), [0], [0], [1]),
    cut((4,), [0], [0], [1], decrease_axis=[0]),
    cut((4,), [0, 1], [0, 1], [1, 2], decrease_axis=[0, 1]),
    *(over("stack", (3,), X=THREE, axis=axis) for axis in (1, 2, -1)),
    over("sum", (3,), X=THREE),
    over("split", (4,), counts={"Out": 2}, num=2, axis=1),
    over("split", (4,), counts={"Out": 3}, sections=[1, 2, 1], axis=1),
    over("split", (4,), counts={"Out": 2}, sections=[3, -1], axis=1),
    over("split", (4, 6), counts={"Out": 3}, num=3, axis=2),
    *(
        over(name, (3, 2), dim=dim, keep_dim=keep)
        for name in REDUCE
        for dim in ([0], [1], [-1], [1, 2])
        for keep in (False, True)
    ),
    *(over(name, (3,), reduce_all=True, dim=[0]) for name in REDUCE),
    *(over(name, (3,), reduce_all=True, dim=[0], keep_dim=True) for name in REDUCE),
    *(
        over(name, (3,), of, dim=[1])
        for name in ("reduce_sum", "reduce_max", "reduce_min")
        for of in ("int32", "int64")
    ),
    over("reduce_prod", (3,), "int32", dim=[1]),
    *(over(name, (3,), "bool", dim=[1]) for name in ("reduce_any", "reduce_all")),
    over("logical_not", (3,), "bool"),
    *(over(f"logical_{name}", (3,), "bool", Y=TRUTHS) for name in ("and", "or", "xor")),
    over("mean", (3,)),
    over("top_k", k=2),
    over("top_k", K=Fixed(np.array([2], np.int32))),
    over("top_k_v2", k=3),
    over("top_k_v2", (4, 3), k=2, axis=1),
    over("top_k_v2", k=2, axis=1, largest=False),
    *(layer_norm((4,), 1, *slots) for slots in ((), ("Scale",), ("Bias",), ("Scale", "Bias"))),
    layer_norm((3, 4), 1, "Scale", "Bias"),
    layer_norm((3, 4), 2, "Scale", "Bias"),
    batch_norm((4,), is_test=True),
    batch_norm((4,), is_test=True, epsilon=1e-3),
    batch_norm((4,), use_global_stats=True),
    batch_norm((4,), "NHWC", is_test=True),
    batch_norm((3, 4, 2), is_test=True),
    batch_norm((3, 4), "NHWC", is_test=True),
    over("fill_any_like", dtype=-1, value=0.5),
    over("fill_any_like", gives="int64", dtype=3, value=7.0),
    over("not_equal", (3,), "int64", gives="bool", Y=WHOLE, axis=-1),
    over("pow", positive=True, factor=1.5),
    over("brelu", t_min=-0.5, t_max=1.0),
    over("matmul", Y=(4, 3), alpha=0.5),
    over("matmul", Y=(3, 4), transpose_Y=True),
    over("matmul", Y=(4,)),
    over("matmul", (2, 4), Y=(4, 3), alpha=2.0),
    over("matmul", (4, 2), Y=(4, 3), transpose_X=True),
    over("matmul", (2, 4), slot="Y", X=(3, 2), alpha=0.1),
    over("expand", expand_times=[1, 2]),
    over("expand", expand_times=[2, 1]),
    over("expand", ExpandTimes=Fixed(np.array([1, 3], np.int32))),
    *(over("flatten2", sizes, axis=axis) for sizes, axis in (((2, 3), 1), ((2, 3), 2),
                                                             ((2, 3), 3), ((1, 3), 2))),
    *(over("norm", (2, 3), axis=axis, epsilon=1e-3) for axis in (0, 1, -1)),
    set_slice((4, 3), [1], [1], [2], [1], value=(1, 3), decrease_axes=[1]),
    set_slice((4, 3), [1, 2], [3, 0], [0, 3], [-1, 2], value=(3, 2)),
    set_slice((4, 3), [1], [1], [3], [1], value=(1, 2, 3), none_axes=[1]),
    set_slice((4,), [1], [-3], [-1], [1], shape=[1], values=[2.5]),
    set_slice((4,), [0, 1], [0, 1], [1, 4], [1, 2], shape=[1, 2], values=[1.5, 2.5]),
    set_slice((4,), [1], [0], [4], [3], of="int64", shape=[2], values=[2, 3]),
    *(
        set_slice((4, 3), [1], [0], [0], [1], value=(3,), decrease_axes=[1],
                  StartsTensorList=[Fixed(np.array([at]))],
                  EndsTensorList=[Fixed(np.array([at + 1]))])
        for at in (2, -2)
    ),
]  # fmt: skip
PIXELS = {"strides": [2, 1, 1], "paddings": [0, 1, 0], "data_format": "NCDHW"}
# With these Paddle keeps a LoD that does not fit the rows any more, or they have no words.
DENSE = [
    over("stack", (3,), X=THREE, axis=0),
    over("top_k_v2", k=1, axis=0),
    over("tile", repeat_times=[2, 1, 3]),
    over("tril_triu", lower=True, diagonal=-1),
    over("tril_triu", lower=False, diagonal=1),
    over("unstack", counts={"Y": 4}, axis=1, num=4),
    over("matmul", (), Y=(5,)),
    over("flatten2", (2, 3), axis=0),
    *(
        over("im2sequence", sizes, kernels=kernels, strides=strides, paddings=paddings,
             out_stride=[1, 1])
        for sizes, kernels, strides, paddings in (
            ((2, 5, 6), [2, 3], [1, 1], [0, 0, 0, 0]),
            ((3, 5, 7), [2, 2], [2, 3], [1, 0, 2, 1]),
            ((2, 5, 6), [5, 1], [1, 1], [0, 0, 0, 0]),
            ((1, 6, 6), [3, 3], [2, 2], [0, 0, 0, 0]),
        )
    ),
    over("expand_as_v2", (1,), target_shape=[5, 3]),
    over("viterbi_decode", (4, 3), gives="int64", slot="Input", Transition=(3, 3),
         include_bos_eos_tag=True, Length=Fixed(np.array([4, 1, 2, 3, 4]))),
    over("group_norm", (4, 3), Scale=(4,), Bias=(4,), groups=2, epsilon=1e-3),
    over("conv3d", (2, 4, 3, 3), slot="Input", Filter=(4, 2, 2, 2, 1), dilations=[1, 1, 2],
         **PIXELS),
    over("depthwise_conv2d_transpose", (2, 3, 4), slot="Input", Filter=(2, 1, 2, 2), groups=2,
         strides=[2, 2], paddings=[0, 1], output_padding=[1, 0], dilations=[1, 1]),
    over("pool3d", (2, 4, 3, 3), ksize=[2, 3, 1], pooling_type="avg", exclusive=False, **PIXELS),
    over("nearest_interp", (2, 3, 4), out_h=6, out_w=2, align_corners=False, scale=0.0,
         interp_method="nearest"),
    over("bilinear_interp", (2, 3, 4), out_h=5, out_w=6, align_corners=True, scale=0.0,
         interp_method="bilinear"),
    over("linear_interp_v2", (2, 3), out_w=7, align_corners=False, align_mode=0,
         interp_method="linear", data_layout="NCHW"),
]  # fmt: skip


def words(case: Case, layout: str, seed: int) -> Batch:
    rng, lod = np.random.default_rng(seed), LODS.get(layout)
    shape = (lod[-1][-1] if lod else 5, *case.sizes)
    if case.dtype == "bool":
        data = rng.random(shape) < 0.5
    elif case.dtype.startswith("int"):
        data = rng.integers(0 if case.positive else -6, 6, shape).astype(case.dtype)
    else:
        data = rng.uniform(0.1 if case.positive else -3, 3, shape).astype(case.dtype)
    return Ragged.from_lod(data, lod) if lod else data


@pytest.mark.parametrize(
    "case, layout",
    [*((c, layout) for c in CASES for layout in ("dense", *LODS)), *((c, "dense") for c in DENSE)],
    ids=lambda each: each if isinstance(each, str) else each.name,
)
def test_an_operator_gives_what_paddle_gives(case: Case, layout: str, tmp_path: Path) -> None:
    batches = [{"x": words(case, layout, seed)} for seed in (1, 2)]
    check(saved_graph(tmp_path, batches[0], case.build), batches)


NOT_RUN = {"attention_lstm", "masked_fill", "pad2d", "rnn_memory_helper"}
"""Refused, new in Paddle 3, and not in 2.6.2: test_lower_layers.py and test_loops.py have these."""


def test_every_operator_with_a_rule_has_a_case(data: Path) -> None:
    """Here, in the files of layers and sequences, or in a recorded program."""
    here = NOT_RUN | {re.match(r"\w+", case.name)[0] for case in [*CASES, *DENSE]}  # type: ignore[index]
    for file in Path(__file__).parent.glob("*_paddle_*.py"):
        here |= {*re.findall(r'row\(\s*"(\w+)"', file.read_text())}
    for folder in [*(data / "paddle").iterdir(), *(data / "paddle_int8").iterdir()]:
        program = read_program(folder)
        for block in (program, *program.inner.values()):
            here |= {op.type for op in block.operators}
    assert not (missing := RULES.keys() - here), f"enter into CASES or DENSE: {sorted(missing)}"


@pytest.mark.parametrize("layout", ["dense", *LODS])
@pytest.mark.parametrize("axis", [0, -3])
def test_a_new_first_axis_has_no_lod(axis: int, layout: str, tmp_path: Path) -> None:
    """Paddle keeps one for a batch of a single word, whose first size stays 1; other batches lose
    it. Ours does not hang on the number of words (design/0025)."""
    case = over("unsqueeze2", (3,), axes=[axis])
    feeds = {"x": words(case, layout, 1)}
    saved = saved_graph(tmp_path, feeds, case.build)
    got = reference(load(tmp_path), feeds)
    (theirs,) = saved.run(feeds)
    assert isinstance(theirs, Ragged) == (layout == "one-word")
    assert not differences(got, [data_of(theirs)])


def test_weights_made_of_parameters_alone_are_weights(tmp_path: Path) -> None:
    table = row("scale", X=(6, 9), scale=2.0)
    embedded = row("lookup_table", Ids="x", W=table, padding_idx=1)
    weight = row("scale", X=(3, 9), scale=0.1)
    x = Ragged.from_lod(np.arange(5)[:, None], LODS["ragged"])
    assert_same(tmp_path, {"x": x}, row("gru", Input=embedded, Weight=weight))


def test_a_batch_norm_is_called_twice(tmp_path: Path) -> None:
    """DeepSpeech2 does; MeanOut and VarianceOut are the variables of the statistics."""

    def build(graph: PaddleGraph, inputs: Any) -> list[Any]:
        slots = {s: graph.parameter(np.abs(numbers(4, seed=k)))
                 for k, s in enumerate(("Scale", "Bias", "Mean", "Variance"))}  # fmt: skip
        once = graph.op("batch_norm", X=inputs["x"], **slots, is_test=True)
        return [graph.op("batch_norm", X=graph.op("relu", X=once), **slots, is_test=True)]

    assert_same(tmp_path, {"x": numbers(5, 4)}, build)


def test_ties_go_to_the_first(tmp_path: Path) -> None:
    x = np.float32([[1, 1, 0], [0, 1, 1], [2, 0, 2], [0, 0, 0]])
    assert_same(tmp_path, {"x": x}, row("arg_max", X="x", gives="int64", axis=1))


def test_differences_tell_dtypes_and_a_lod_that_only_one_has() -> None:
    data = np.float32([[1, 2], [3, 4]])
    words = Ragged(data, [0, 1, 2])
    assert differences({"y": words, "z": data + 1e-6}, [words, data]) == []
    for ours, theirs in ((words, data), (data, words), (data.astype(np.float64), data)):
        assert differences({"y": ours}, [theirs])


# What Paddle runs and we do not: the batch, the row, and the reason.
LOD = LODS["ragged"]
REFUSED: dict[str, tuple[Batch, Build]] = {
    "input Shape: expected a constant": (
        ragged(LOD, 4),
        row("reshape2", X="x", ShapeTensor=[Fixed(np.array([k], np.int32)) for k in (-1, 4)]),
    ),
    r"number 2\.5: expected one that int64 can hold": (
        np.arange(5),
        row("scale", X="x", gives="int64", scale=2.5),
    ),
    "attribute padding_weights=True": (
        ragged(LOD, 4),
        row("fc", Input="x", W=(8, 7), Bias=(3,), in_num_col_dims=1, padding_weights=True),
    ),
    "attribute padding_idx=9: expected -1 to 6": (
        np.arange(4)[:, None],
        row("lookup_table", Ids="x", W=(6, 3), padding_idx=9),
    ),
    "W 'gather_.*' is computed at run time": (
        np.arange(4),
        row("lookup_table_v2", Ids="x", W=row("gather", X=(6, 3), Index="x"), padding_idx=1),
    ),
    "attribute append=True": (
        ragged(LOD, 4),
        row("lod_reset", X="x", target_lod=[0, 1, 2, 5], append=True),
    ),
    r"attribute shape=\(-1, 3\): expected rows": (
        ragged(LOD, 6),
        row("reshape2", X="x", shape=[-1, 3]),
    ),
    r"attribute axes=\(0,\)": (ragged(LOD, 1), row("squeeze2", X="x", axes=[0])),
    r"attribute axes=\(\): expected axes": (numbers(1, 1, 3), row("squeeze2", X="x", axes=[])),
    r"inputs X: expected equally .* axis=0, got \[0, 1\]": (
        ragged(LOD, 3),
        row("concat", X=["x", row("transpose2", X="x", axis=[0, 1])]),
    ),
    "input Y: expected at most 1 axes, .* got 2": (
        ragged(LOD),
        row("elementwise_add", X="x", Y=(5, 5), axis=-1),
    ),
    "input Length": (
        numbers(2, 4, 3),
        row("crf_decoding", Emission="x", Transition=(5, 3), Length=Fixed(np.array([4, 2]))),
    ),
    "Weight 'matmul_v2_.*' is computed at run time": (
        ragged(LOD, 9),
        row("gru", Input="x", Weight=row("matmul_v2", X=(3, 5), Y="x")),
    ),
    "axis=-1: expected 0 or more": (
        numbers(5, 4),
        row("split", X="x", counts={"Out": 2}, num=2, axis=-1),
    ),
    "below 20 the function jumps": (numbers(5, 4), row("softplus", X="x", threshold=2.0)),
    "input X: expected a LoD": (numbers(4, 3), row("sequence_reverse", X="x")),
    "expected 1 LoD levels, got 2": (
        ragged(LODS["two-levels"], 2),
        row("sequence_expand_as", X=(3, 3), Y="x"),
    ),
    "input PaddingData": (
        ragged(LOD, 3),
        row("sequence_conv", X="x", Filter=(9, 2), PaddingData=(2, 3), contextLength=3,
            contextStart=-1, paddingTrainable=True),
    ),
}  # fmt: skip
REFUSED["end pads larger than start pads"] = (
    numbers(1, 2, 6, 7),
    row("pool2d", X="x", pooling_type="avg", ksize=[3, 2], paddings=[1, 0, 0, 1], exclusive=False),
)
FAIL = {
    "axis=-1: expected 0 or more",
    "input X: expected a LoD",
    "expected 1 LoD levels, got 2",
}
"""Paddle itself fails at these."""


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("pads", [[1, 0, 1, 0], [2, 1, 1, 1]], ids=str)
def test_a_mean_counts_pads_that_are_larger_at_the_start(
    pads: list[int], exclusive: bool, tmp_path: Path
) -> None:
    pool = row(
        "pool2d", X="x", pooling_type="avg", ksize=[3, 2], strides=[2, 1], paddings=pads,
        exclusive=exclusive,
    )  # fmt: skip
    assert_same(tmp_path, {"x": numbers(2, 2, 6, 7)}, pool)


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_exact_is_refused_by_name(reason: str, tmp_path: Path) -> None:
    x, build = REFUSED[reason]
    saved = saved_graph(tmp_path, {"x": x}, build)
    if reason not in FAIL:
        saved.execute({"x": x})
    with pytest.raises(UnsupportedError, match=reason):
        Session(load(tmp_path), backend="reference")


SHAPES: dict[str, tuple[Batch, Build]] = {
    r"index 6: expected an index in \[0, 6\)": (
        np.array([0, 6]),
        row("lookup_table_v2", Ids="x", W=(6, 3), padding_idx=-1),
    ),
    r"expected 1 steps on axis 0, got \(4, 3\)": (
        ragged([[0, 1]], 3),
        row("elementwise_add", X="x", Y=(4, 3)),
    ),
    "must end at 5, the number of steps, got 4": (
        numbers(5, 3),
        row("lod_reset", X="x", target_lod=[0, 2, 4]),
    ),
    r"expected 5 steps on axis 0, got \(1, 5, 6\)": (
        ragged(LOD, 2, 3),
        row("reshape2", X="x", shape=[1, -1, 6]),
    ),
}


@pytest.mark.parametrize("reason", SHAPES)
def test_batches_that_do_not_fit_are_refused_when_they_come(reason: str, tmp_path: Path) -> None:
    x, build = SHAPES[reason]
    saved_graph(tmp_path, {"x": x}, build)
    session = Session(load(tmp_path), backend="reference")
    with pytest.raises(ShapeError, match=reason):
        session.run({"x": x})
