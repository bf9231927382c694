"""From symbols to canonical operators: two meanings, what is inferred, what is refused and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support.arrays import uniform
from support.graphs import reference
from support.mxnet_files import node, reasons, save_model, symbol, symbol_text, var

from onernn import Session, UnsupportedError, load
from onernn.adapters.common.lowering import swap_equation
from onernn.adapters.mxnet.lower import lower
from onernn.adapters.mxnet.read import Declared, match, parse_symbol
from onernn.adapters.mxnet.table import RULES, find_rule
from onernn.ir.errors import ModelFormatError, ShapeError
from onernn.ir.graph import UNSUPPORTED
from onernn.reorders import mxnet


@pytest.mark.parametrize("semantics", ["documented", "mxnet-cpu"])
def test_load_says_once_and_in_words_where_the_two_meanings_differ(
    semantics: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"mode": "gru", "state_size": "2", "num_layers": "1", "use_sequence_length": "True"}
    nodes = [var("x"), var("w"), var("h"), var("n")]
    nodes.append(node("one = RNN x w h n", **options, p="0.5"))
    nodes.append(("RNN", "two", options, ["one", "w", "h", "n"]))
    flat = np.zeros(mxnet.Stack("gru", 2, 1, 1).elements(2), np.float32)
    file = save_model(tmp_path, symbol_text(*nodes), {"arg:w": flat})
    graph = load(file, semantics=semantics)
    (said,) = caplog.messages
    assert said.startswith(f"{file}: one (RNN), two (RNN): sequence lengths")
    assert said.removeprefix(f"{file}: ") in graph.notes and len(graph.notes) == 2
    caplog.clear()
    nodes[3:] = [node("one = RNN x w h", **{**options, "use_sequence_length": "False"})]
    load(save_model(tmp_path, symbol_text(*nodes), {"arg:w": flat}), semantics=semantics)
    assert not caplog.messages


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("op", ["SoftmaxOutput", "SoftmaxActivation"])
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 3, 2, 2)])
def test_a_softmax_over_several_axes_has_two_meanings(
    op: str, shape: tuple[int, ...], known: bool
) -> None:
    """Documented: over all behind the batch; MXNet's CPU (recorded, too): at times the last."""
    x = uniform(*shape, bound=2)
    reshape = node("r = Reshape x", shape=str(shape))
    nodes = [var("x"), reshape, node(f"s = {op} r")] if known else [var("x"), node(f"s = {op} x")]
    flat = softmax(x.reshape(len(x), -1).astype(np.float64)).reshape(shape)
    takes_last = op == "SoftmaxActivation" or len(shape) == 4
    for semantics, want in (
        ("documented", flat),
        ("mxnet-cpu", softmax(x) if takes_last else flat),
    ):
        graph = lower(symbol(*nodes), {}, semantics)
        (got,) = reference(graph, {"x": x}).values()
        assert_allclose(got, want, rtol=1e-6)
        noted = takes_last and len(shape) > 2 if known else op == "SoftmaxActivation"
        assert bool(graph.notes) == noted


def refused(*nodes: Any, params: dict[str, np.ndarray] | None = None, **attrs: Any) -> str:
    """Why a session will not run it."""
    graph = lower(symbol(*nodes, **attrs), params or {})
    with pytest.raises(UnsupportedError) as caught:
        Session(graph, backend="reference")
    return str(caught.value)


X, W = var("x"), var("w")
WEIGHT = {"w": np.ones((3, 4), np.float32)}
REFUSED = {
    "node 'n' (NoSuchOp): this operator is not known": [node("n = NoSuchOp x")],
    "not understood: attribute strange": [node("n = relu x", strange="1")],
    "expected at most the inputs data, got 2": [node("n = relu x w")],
    "input weight is missing": [node("n = FullyConnected x", num_hidden="3")],
    "input weight: expected (5, I), got (3, 4)": [
        node("n = FullyConnected x w", num_hidden="5", no_bias="True")
    ],
    "attribute num_hidden: expected an integer, got 'many'": [
        node("n = FullyConnected x w", num_hidden="many", no_bias="1")
    ],
    "attribute act_type='gelu': expected one of": [node("n = Activation x", act_type="gelu")],
    "attribute mode='always': expected 'training'": [node("n = Dropout x", mode="always")],
    "attribute dtype=bfloat16: expected one of bool,": [node("n = Cast x", dtype="bfloat16")],
    "parameters 'x' is computed at run time": [
        node("n = RNN x x x", mode="gru", state_size="2", num_layers="1")
    ],
    "dot: expected a known number of axes of 'x'; declare the shapes of x": [node("n = dot x x")],
    "'n' (Reshape): MXNet infers a size from other inputs": [
        node("z = _zeros", shape="(0, 4)"),
        node("n = Reshape z", shape="(-1, 2)"),
    ],
    "'z' (_zeros): MXNet infers a size from other inputs": [node("z = _zeros", shape="(0, 4)")],
    "'n' (SliceChannel): MXNet infers a size from other inputs": [
        node("z = _zeros", shape="(0, 4)"),
        node("n = SliceChannel z", num_outputs="2", axis="0"),
    ],
    "attribute shape=(100000, 100000): expected sizes, and at most 67,108,864": [
        node("n = _zeros", shape="(100000, 100000)")
    ],
    "attribute layout='NHWC': expected one of None, NCW, NCHW, NCDHW": [
        node("n = Convolution x w", kernel="(3, 3)", num_filter="3", layout="NHWC")
    ],
    "input weight: expected 3 on axis 0 and the kernel (2,) from axis 2 on, got (3, 4)": [
        node("n = Convolution x w", kernel="(2,)", num_filter="3", no_bias="1")
    ],
    "attribute layout='NHWC': expected one of": [
        node("n = Pooling x", global_pool="True", layout="NHWC")
    ],
    "attribute mode='any': expected 'clip', 'wrap' or 'raise'": [node("n = take w x", mode="any")],
    "input length is missing": [node("n = softmax w", use_length="True")],
    "attribute scalar=0.5: expected 0 or 1": [
        node("b = Cast x", dtype="bool"),
        node("n = _npi_greater_scalar b", scalar="0.5", is_int="False"),
    ],
    "attribute repeats=0: expected 1 or more": [node("n = repeat x", repeats="0", axis="0")],
    "attribute kernel=(): expected one to three sizes": [node("n = Pooling x")],
    "attribute stride=(2,): expected 2 values": [
        node("n = Pooling x", kernel="(2, 2)", stride="(2,)")
    ],
    "attribute pool_type='sum': expected one of max, avg": [
        node("n = Pooling x", kernel="(2,)", pool_type="sum")
    ],
    "attribute pool_type='lp'": [node("n = Pooling x", kernel="(2,)", pool_type="lp", p_value="2")],
    "attribute pooling_convention='same': expected 'valid' or 'full'": [
        node("n = Pooling x", kernel="(2,)", pooling_convention="same")
    ],
    "attribute num_group=0: expected 1 or more": [
        node("n = Deconvolution x w", kernel="(2,)", num_filter="3", num_group="0")
    ],
    "attribute scale=0: expected 1 or more": [node("n = UpSampling x", scale="0")],
    "attributes sample_type='bilinear', multi_input_mode='concat'": [
        node("n = UpSampling x", scale="2", sample_type="bilinear")
    ],
    "attributes mode='symmetric'": [node("n = Pad x", mode="symmetric", pad_width="(0, 0)")],
    "expected windows of at least stride": [
        node("n = Pooling x", kernel="(2,)", stride="(2,)", pad="(1,)", pooling_convention="full")
    ],
    "expected 2 subgraphs, got 0": [
        node("n = _while_loop x", max_iterations="1", num_out_data="1")
    ],
    "expected 3 subgraphs, got 0": [node("n = _cond x", num_outputs="1")],
    "expected 1 subgraphs, got 0": [node("n = _foreach x")],
}
"""Nodes behind x and w."""


def looping(**attributes: str) -> Any:
    """s + 1 while s < 3, of at most five turns; every turn gives s * 2."""
    state = {"op": "null", "name": "s", "inputs": []}

    def body(*parts: tuple[str, str]) -> dict[str, Any]:
        """Operators on s and a number."""
        nodes = [
            {"op": op, "name": op, "attrs": {"scalar": scalar}, "inputs": [[0, 0, 0]]}
            for op, scalar in parts
        ]
        return {"nodes": [state, *nodes], "heads": [[1 + k, 0, 0] for k in range(len(nodes))]}

    told = {"max_iterations": "5", "num_out_data": "1", "num_outputs": "2", "func_var_locs": "[0]"}
    told |= {"cond_input_locs": "[0]", "func_input_locs": "[0]", **attributes}
    graph = json.loads(symbol_text(X, ("_while_loop", "n", told, ["x"])))
    parts = ("_mul_scalar", "2"), ("_plus_scalar", "1")
    graph["nodes"][1]["subgraphs"] = [body(("_lesser_scalar", "3")), body(*parts)]
    graph["heads"].append([1, 1, 0])
    return lower(parse_symbol(json.dumps(graph)), {})


@pytest.mark.parametrize("first", [0, 2, 7])
def test_a_loop_ends_by_its_condition_and_what_it_gave_is_filled_with_zeros(first: int) -> None:
    graph = looping()
    rows, state = reference(graph, {"x": np.float32([first])}).values()
    steps = list(range(first, 3))
    assert_array_equal(rows[:, 0], [2 * s for s in steps] + [0] * (5 - len(steps)))
    assert_array_equal(state, [max(first, 3)])
    assert any("rows after a loop's last iteration are zeros" in note for note in graph.notes)


def test_a_loop_ends_behind_its_last_turn() -> None:
    rows, state = reference(looping(max_iterations="2"), {"x": np.float32([-9])}).values()
    assert rows.tolist() == [[-18], [-16]] and state.tolist() == [-7]


@pytest.mark.parametrize(
    "attributes, reason",
    [
        ({"func_var_locs": "[1]"}, "func_var_locs=(1,): expected different indices below 1"),
        ({"func_var_locs": "[0, 0]"}, "func_var_locs=(0, 0)"),
        ({"cond_input_locs": "[3]"}, "cond_input_locs=(3,): expected an index below 1"),
        ({"func_input_locs": "[]"}, "func_input_locs=(): expected an index below 1"),
        ({"num_out_data": "2"}, "num_out_data=2: expected 2 outputs"),
        ({"num_out_data": "-1"}, "num_out_data=-1: expected 2 outputs"),
        ({"max_iterations": "-1"}, "attribute max_iterations=-1"),
        ({"max_iterations": "many"}, "attribute max_iterations: expected an integer"),
    ],
)
def test_a_loop_that_contradicts_itself_is_refused(attributes: Any, reason: str) -> None:
    assert reason in reasons(looping(**attributes))


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_run_exactly_is_refused_with_the_reason(reason: str) -> None:
    assert reason in refused(X, W, *REFUSED[reason], params=WEIGHT)


def test_a_scalar_that_the_dtype_cannot_hold_is_refused() -> None:
    x = var("x", __dtype__="4")
    assert "number 0.5: expected one that int32 can hold" in refused(
        x, node("n = _plus_scalar x", scalar="0.5")
    )
    mixed = [var("a", __dtype__="1"), var("b"), node("n = elemwise_add a b")]
    assert "got float32 and float64; cast one" in refused(*mixed)


def test_an_output_of_a_number_that_no_operator_has_is_refused_before_a_list_is_made() -> None:
    nodes = [X, node("a = relu x"), node("b = relu a:1000")]
    assert "output 1000 is not computed" in refused(*nodes)
    nodes[-1] = node(f"b = relu a:{10**12}")
    assert "1,000,000,000,001 outputs" in refused(*nodes)


def test_every_refusal_is_told_at_once_and_values_behind_it_have_none_of_their_own() -> None:
    nodes = [X, node("a = Strange x"), node("b = relu a"), node("c = Odd b")]
    heads = [[2, 0, 0], [3, 0, 0]]
    graph = lower(symbol(*nodes, heads=heads), {})
    assert [value.name for value in graph.outputs] == ["b_output", "c_output"]
    assert [node.op for node in graph.nodes] == [UNSUPPORTED, "Relu", UNSUPPORTED]
    message = refused(*nodes, heads=heads)
    assert "node 'a' (Strange)" in message and "node 'c' (Odd)" in message
    assert "'b_output'" not in message


def test_attributes_for_training_and_of_users_are_no_obstacle() -> None:
    attributes = {"__lr_mult__": "1", "weight_wd_mult": "2", "ctx_group": "a", "__note__": "x"}
    graph = lower(symbol(X, ("relu", "n", attributes, ["x"])), {})
    assert reasons(graph) == ""


def test_what_leads_to_a_label_alone_is_no_input_either() -> None:
    """As the nets of Module's users had it; a label that is an input, too, stays one."""
    nodes = [X, var("label"), node("r = Reshape label", shape="-1")]
    nodes.append(node("s = SoftmaxOutput x r"))
    graph = lower(symbol(*nodes), {})
    assert [value.name for value in graph.inputs] == ["x"]
    assert graph.notes == ("label is a label for training, not an input",)
    nodes.append(node("n = broadcast_add s r"))
    assert [value.name for value in lower(symbol(*nodes), {}).inputs] == ["x", "label"]


def test_inputs_know_what_the_operators_behind_them_tell() -> None:
    swapped = lower(
        symbol(
            X, var("p"), node("t = SwapAxis x", dim1="0", dim2="1"),
            node("z = _zeros", shape="(1, 0, 2)"),
            node("n = RNN t p z", mode="rnn_tanh", state_size="2", num_layers="1"),
        ),
        {"p": np.zeros(2 * (3 + 2 + 2), np.float32)},
    )  # fmt: skip
    assert swapped.inputs[0].shape == (None, None, None)
    assert [node.op for node in swapped.nodes] == ["Transpose", "Rnn"]


def test_an_operator_may_lack_a_rank_that_a_later_one_tells() -> None:
    graph = lower(
        symbol(
            X, var("w"), node("d = dot x w"),
            node("z = _zeros", shape="(2, 4)"), node("n = elemwise_add x z"),
            heads=[[2, 0, 0], [4, 0, 0]],
        ),
        {"w": np.ones((4, 3), np.float32)},
    )  # fmt: skip
    assert reasons(graph) == "" and graph.inputs[0].shape == (None, None)
    product, _ = reference(graph, {"x": np.ones((2, 4), "f4")}).values()
    assert product.tolist() == [[4, 4, 4]] * 2


def test_indices_may_come_in_any_dtype() -> None:
    nodes = [X, W, node("e = Embedding x w", input_dim="3", output_dim="4")]
    graph = lower(symbol(*nodes), {"w": np.arange(12, dtype=np.float32).reshape(3, 4)})
    assert graph.inputs[0].dtype is None
    for dtype in (np.int32, np.int64, np.float32, np.uint8):
        (out,) = reference(graph, {"x": np.array([2, 0], dtype)}).values()
        assert out[:, 0].tolist() == [8, 0]


@pytest.mark.parametrize("index", [-1, 3])
def test_an_index_out_of_range_stops_a_run_in_mode_raise(index: int) -> None:
    graph = lower(symbol(X, W, node("t = take w x", mode="raise")), WEIGHT)
    with pytest.raises(ShapeError, match=rf"index {index}: expected an index in \[0, 3\)"):
        reference(graph, {"x": np.array([index])})


@pytest.mark.parametrize("narrow", ["False", "True"])
@pytest.mark.parametrize("second", ["float16", "float32"])
def test_amp_multicast_gives_floats_one_dtype(narrow: str, second: str) -> None:
    """MXNet 1.9.1 on CPU cannot run it on float16."""
    nodes = [X, node("a = Cast x", dtype="float16"), node("b = Cast x", dtype=second)]
    nodes.append(node("m = amp_multicast a b", num_outputs="2", cast_narrow=narrow))
    graph = lower(symbol(*nodes, heads=[[3, 0, 0], [3, 1, 0]]), {})
    x = np.array([1 / 3, 2], np.float32)
    half, other = reference(graph, {"x": x}).values()
    dtype = np.float16 if second == "float16" or narrow == "True" else np.float32
    assert half.dtype == other.dtype == dtype
    assert_array_equal(half, x.astype(np.float16))
    assert_array_equal(other, x.astype(dtype))


def test_two_nodes_of_one_name_and_an_output_twice_keep_apart() -> None:
    nodes = [X, node("n = relu x"), node("n = tanh x")]
    graph = lower(symbol(*nodes, heads=[[2, 0, 0], [1, 0, 0], [2, 0, 0], [0, 0, 0]]), {})
    given = np.array([-1.0, 1.0], np.float32)
    outs = list(reference(graph, {"x": given}).values())
    wanted = [np.tanh(given), np.maximum(given, 0), np.tanh(given), given]
    assert_allclose(outs, wanted, rtol=1e-6)


def test_zeros_of_inferred_size_stand_beside_any_batch() -> None:
    nodes = [
        X, W, node("z = _zeros", shape="(0, 4)"),
        node("f = FullyConnected z w", num_hidden="3", no_bias="True"),
        node("g = FullyConnected x w", num_hidden="3", no_bias="True"),
        node("n = elemwise_add f g"),
    ]  # fmt: skip
    for batch in (1, 5):
        x = np.ones((batch, 4), np.float32)
        (out,) = reference(lower(symbol(*nodes), WEIGHT), {"x": x}).values()
        assert out.tolist() == [[4, 4, 4]] * batch


def test_a_convolution_of_zeros_of_inferred_size_is_its_bias_in_any_batch() -> None:
    conv = {"kernel": "(3,)", "pad": "(1,)", "num_filter": "2"}
    nodes = [
        var("x", shape="(0, 1, 3)"), var("w"), var("b"), node("z = _zeros", shape="(0, 1, 3)"),
        node("f = Convolution z w b", **conv), node("g = Convolution x w b", **conv),
        node("n = elemwise_add f g"),
    ]  # fmt: skip
    weights = {"w": np.ones((2, 1, 3), np.float32), "b": np.array([1, 10], np.float32)}
    graph = lower(symbol(*nodes), weights)
    for batch in (1, 5):
        (out,) = reference(graph, {"x": np.ones((batch, 1, 3), np.float32)}).values()
        assert out.tolist() == [[[4, 5, 4], [22, 23, 22]]] * batch


ZEROS = {
    "Concat x z": {"dim": "1"},
    "reshape_like z x": {},
    "SwapAxis z": {"dim1": "0", "dim2": "1"},
    "broadcast_add z z": {},
    "_copy z": {},
}
"""Operators that need the size of zeros, or are outputs."""


@pytest.mark.parametrize("size", ["0", "-1"])
@pytest.mark.parametrize("reader", ZEROS)
def test_zeros_take_their_size_from_what_they_are_added_to(reader: str, size: str) -> None:
    """Also if that comes later in the file; it may hang on other zeros, of which the size comes
    first.
    """
    nodes = [
        X,
        node("z = _zeros", shape=f"({size}, 4)"), node(f"n = {reader}", **ZEROS[reader]),
        node("q = _zeros", shape=f"({size}, 4)"), X, node("p = elemwise_add q x"),
        node("m = elemwise_add z p"), node("r = Reshape q", shape="(-1, 4)"),
    ]  # fmt: skip
    names = [name for _, name, *_ in nodes]
    heads = [[names.index(name), 0, 0] for name in "nmr"]
    graph = lower(symbol(*nodes, heads=heads), {})
    for batch in (1, 3):
        x = uniform(batch, 4)
        zeros = np.zeros_like(x)
        whole = {"Concat x z": np.hstack([x, zeros]), "SwapAxis z": zeros.T}
        outs = list(reference(graph, {"x": x}).values())
        for out, wanted in zip(outs, [whole.get(reader, zeros), x, zeros], strict=True):
            assert_array_equal(out, wanted)


def test_zeros_take_no_size_from_what_is_computed_from_them() -> None:
    """MXNet would find one: the reshape keeps the first size."""
    nodes = [
        node("z = _zeros", shape="(0, 4)"), X, node("r = Reshape z", shape="(0, 4)"),
        node("s = elemwise_add z r"), node("n = elemwise_add s x"),
    ]  # fmt: skip
    graph = lower(symbol(*nodes), {})
    assert reasons(graph).startswith("MXNet infers a size from other inputs")


def test_a_mask_over_a_state_of_inferred_size_is_computed_at_once() -> None:
    """As VariationalDropoutCell has it: Dropout(ones_like(state)) * state."""
    nodes = [
        X, node("z = _zeros", shape="(0, 4)"), node("o = ones_like z"),
        node("d = Dropout o"), node("m = elemwise_mul d z"),
        node("n = elemwise_add x m"),
    ]  # fmt: skip
    graph = lower(symbol(*nodes), {})
    assert [node.op for node in graph.nodes] == ["Add"]
    (out,) = reference(graph, {"x": np.ones((3, 4), np.float32)}).values()
    assert out.tolist() == [[1] * 4] * 3


@pytest.mark.parametrize(
    "axes, equation",
    [((0, 1), "ab...->ba..."), ((2, 0), "abc...->cba..."), ((-1, -2), "...ab->...ba"),
     ((0, -1), "a...b->b...a"), ((1, 1), "ab...->ab...")],
)  # fmt: skip
def test_axes_are_exchanged_without_knowing_the_rank(axes: tuple[int, int], equation: str) -> None:
    assert swap_equation(*axes) == equation
    x = np.arange(24).reshape(2, 3, 4)
    assert_array_equal(np.einsum(equation, x), x.swapaxes(*axes))


def declared(**shapes: Any) -> list[Declared]:
    return [Declared(name, shape) for name, shape in shapes.items()]


def arrays_of(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Arrays of their number among them."""
    return {name: np.full(shape, k, np.float32) for k, (name, shape) in enumerate(shapes.items())}


def matched(
    variables: list[Declared], arrays: dict[str, np.ndarray]
) -> tuple[dict[str, float], tuple[str, ...]]:
    """The first element of each variable's array, and the notes."""
    found = match(variables, arrays, Path("f"))
    return {name: float(array.flat[0]) for name, array in found.arrays.items()}, found.notes


def test_keys_of_export_and_of_nd_save_are_names() -> None:
    saved = arrays_of(**{"arg:w": (2,), "aux:m": (2,), "b": (1,)})
    assert matched(declared(w=None, m=None, b=None, x=None), saved) == (
        {"w": 0, "m": 1, "b": 2},
        (),
    )


def test_gates_of_legacy_checkpoints_are_joined_in_their_order() -> None:
    saved = arrays_of(**dict.fromkeys((f"c_i2h_{gate}_weight" for gate in "oifc"), (1, 2)))
    found = match(declared(c_i2h_weight=None), saved, Path("f")).arrays["c_i2h_weight"]
    assert found[:, 0].tolist() == [1, 2, 3, 0]  # i, f, c, o
    del saved["c_i2h_c_weight"]
    assert matched(declared(c_i2h_weight=None), saved) == ({}, ())


TIED = arrays_of(**{"e.weight": (4, 3), "o.bias": (4,)})
TIED["o.weight"] = TIED["e.weight"].copy()
GLUON: dict[str, tuple[dict[str, Any], dict[str, np.ndarray], dict[str, float], str]] = {
    "by shapes": (
        {"n_dense0_weight": (3, None), "n_dense0_bias": (3,)}
        | {"n_dense1_weight": (5, None), "n_dense1_bias": (5,), "data": None},
        arrays_of(**{"b.weight": (5, 3), "b.bias": (5,), "a.weight": (3, 4), "a.bias": (3,)}),
        {"n_dense1_weight": 0, "n_dense1_bias": 1, "n_dense0_weight": 2, "n_dense0_bias": 3},
        "",
    ),
    "alike, in order": (
        {"enc_dense0_weight": (3, 3), "dec_dense0_weight": (3, 3)},
        arrays_of(**{"enc.weight": (3, 3), "dec.weight": (3, 3)}),
        {"enc_dense0_weight": 0, "dec_dense0_weight": 1},
        "enc",
    ),
    # Tied weights: the file has them under both blocks, the symbol under the first.
    "tied": (
        {"lm_embedding0_weight": (4, 3), "lm_dense0_bias": (4,)},
        TIED,
        {"lm_embedding0_weight": 0, "lm_dense0_bias": 1},
        "",
    ),
    # gluon's Dense(params=embedding.params): the symbol has both under the embedding.
    "tied, of one block": (
        {"lm_embedding0_weight": (4, 3), "lm_embedding0_bias": (4,)},
        TIED,
        {"lm_embedding0_weight": 0, "lm_embedding0_bias": 1},
        "",
    ),
}
"""Variables, a file of gluon, the array of each variable, and the block that a note names."""


@pytest.mark.parametrize("name", GLUON)
def test_parameters_of_gluon_blocks_are_found(name: str) -> None:
    variables, saved, right, noted = GLUON[name]
    found, notes = matched(declared(**variables), saved)
    assert found == right and len(notes) == bool(noted)
    assert not noted or f"parameters of {noted}: " in notes[0]


TURNED = {"dense1_weight": (3, 3), "dense0_weight": (3, 3)}


@pytest.mark.parametrize(
    "variables, saved, named",
    [
        ({}, arrays_of(**{"arg:w": (2,), "aux:w": (2,)}), "'w'"),
        ({"w": (2, None)}, arrays_of(w=(3, 4)), r"'w': expected \(2, None\), .* got \(3, 4\)"),
        (GLUON["tied"][0], TIED | {"o.weight": TIED["e.weight"] + 1}, "'o'"),
        # They run in another order than they were made.
        (TURNED, arrays_of(**{"a.weight": (3, 3), "b.weight": (3, 3)}), "'a'.* dense1_, dense0_"),
        (TURNED, arrays_of(**{"a.weight": (9, 9)}), r"'a': weight \(9, 9\)"),
    ],
)
def test_parameters_that_are_not_clearly_a_variables_are_refused(
    variables: Any, saved: dict[str, np.ndarray], named: str
) -> None:
    with pytest.raises(ModelFormatError, match=named):
        match(declared(**variables), saved, Path("f"))


def test_a_value_in_float16_is_rounded_by_casts_and_comes_out_as_float16() -> None:
    """Between them it is computed in float32; a cast to float32 ends that."""
    nodes = [
        X, node("h = Cast x", dtype="float16"), node("t = negative h"),
        node("w = Cast t", dtype="float32"), node("a = argmax t", axis="1"),
    ]  # fmt: skip
    graph = lower(symbol(*nodes, heads=[[k, 0, 0] for k in (1, 2, 3, 4)]), {})
    x = uniform(3, 4, bound=100)
    half = x.astype(np.float16)
    outs = list(reference(graph, {"x": x}).values())
    wanted = [half, -half, -half.astype(np.float32), np.argmin(half, 1).astype(np.float16)]
    for out, each in zip(outs, wanted, strict=True):
        assert out.dtype == each.dtype
        assert_array_equal(out, each)
    assert len(graph.notes) == 1 and "float16" in graph.notes[0]


def test_an_input_that_is_declared_as_float16_is_one() -> None:
    given = ("null", "x", {"__dtype__": "2"}, [])
    graph = lower(symbol(given, node("n = square x")), {})
    assert graph.inputs[0].dtype == "float16"
    (out,) = reference(graph, {"x": np.float16([[0.1, 3]])}).values()
    assert_array_equal(out, np.float16([[0.1, 3]]) ** 2)


def test_float16_parameters_are_widened_and_that_is_noted(tmp_path: Path) -> None:
    half = np.array([[0.1, 0.2, 0.3, 0.4]] * 3, np.float16)
    dense = node("n = FullyConnected x w", num_hidden="3", no_bias="True")
    graph = load(save_model(tmp_path, symbol_text(X, W, dense), {"arg:w": half}))
    assert graph.notes == ("float16 parameters are computed in float32",)
    (out,) = reference(graph, {"x": np.ones((1, 4), np.float32)}).values()
    assert out.dtype == np.float32
    assert_allclose(out[0, 0], half[0].astype(np.float64).sum(), rtol=1e-6)


@pytest.mark.parametrize(
    "other, name",
    [("_sparse_LogisticRegressionOutput", "LogisticRegressionOutput"), ("_sparse_sum", "sum"),
     ("_RMinusScalar", "_rminus_scalar"), ("_Maximum", "_maximum"), ("crop", "slice")],
)  # fmt: skip
def test_another_name_of_an_operator_has_the_same_rule(other: str, name: str) -> None:
    assert find_rule(other) is find_rule(name) is RULES[name]
