"""ONNX models of every opset, with all that surrounds recurrent layers, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from onnx import TensorProto, helper, numpy_helper, parser
from support.onnx_models import check, model, ours, parameters, read, small, theirs

from onernn import ModelFormatError, Session, ShapeError, UnsupportedError, load
from onernn.adapters.onnx import backend

RNG = np.random.default_rng(5)
CUBE = RNG.uniform(-2, 2, (2, 3, 5)).astype(np.float32)
MATRIX = RNG.uniform(-2, 2, (4, 3)).astype(np.float32)


@pytest.mark.parametrize(
    "attributes",
    [
        {"value": numpy_helper.from_array(CUBE)},
        {"value_float": 0.1},
        {"value_floats": [0.1, 0.2, 0.3, 0.4, 0.5]},
        {"value_int": 3},
        {"value_ints": [1, 2, 3, 4, 5]},
    ],
)
def test_constants_of_every_form(attributes: dict) -> None:
    x = np.ones(5, np.int64 if "value_int" in " ".join(attributes) else np.float32)
    nodes = [
        helper.make_node("Constant", [], ["c"], **attributes),
        helper.make_node("Add", ["x", "c"], ["y"]),
    ]
    check(model(nodes, {"x": x}, ["y", "c"]), {"x": x})


def read_tensor(array: np.ndarray, number: int, raw: bool) -> np.ndarray:
    """What the model of a constant computes."""
    data = array.tobytes() if raw else array.reshape(-1)
    proto = model("y = Identity (c)", {}, ["y"])
    proto.graph.initializer.append(helper.make_tensor("c", number, array.shape, data, raw=raw))
    return ours(proto, {})[0]


@pytest.mark.parametrize(
    "dtype",
    ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "bool"]
    + ["uint8", "uint16", "uint32", "uint64"],
)
@pytest.mark.parametrize("raw", [True, False])
def test_tensors_of_every_dtype_are_read_in_both_forms(dtype: str, raw: bool) -> None:
    array = (np.arange(-3, 5).reshape(2, 4) * 1.5).astype(dtype)
    got = read_tensor(array, helper.np_dtype_to_tensor_dtype(array.dtype), raw)
    assert got.dtype == array.dtype
    assert_array_equal(got, array)


def test_bfloat16_comes_as_float32_of_the_same_values() -> None:
    exact = np.array([1.5, -2.0, 3.0e38], np.float32).view(np.uint32) & 0xFFFF0000
    bits = (exact >> 16).astype(np.uint16)
    got = read_tensor(bits, TensorProto.BFLOAT16, raw=True)
    assert_array_equal(got, exact.view(np.float32))


def test_a_cast_to_bfloat16_rounds_to_even_and_is_told() -> None:
    x = np.array([1.0, 1.00390625, 1.01171875, np.inf, np.nan, -3.1415927], np.float32)
    proto = model("b = Cast <to = 16> (x) y = Cast <to = 1> (b)", {"x": x}, ["y"])
    (want,) = theirs(proto, {"x": x})
    (got,) = ours(proto, {"x": x})
    assert_array_equal(got, want)
    graph = read(proto)
    assert "bfloat16" in " ".join(graph.notes)


def lstm() -> dict[str, np.ndarray]:
    return small(parameters("LSTM", 5, 3), "W", "R")


def test_halves_run_in_float32_and_come_out_as_halves() -> None:
    arrays = {k: v.astype(np.float16) for k, v in lstm().items()}
    x = CUBE.astype(np.float16)
    node = "y, h = LSTM <hidden_size = 3> (x, W, R)"
    proto = model(node, {"x": x}, ["y", "h"], constants=arrays)
    for mine, want in zip(ours(proto, {"x": x}), theirs(proto, {"x": x}), strict=True):
        assert mine.dtype == np.float16
        assert_array_equal(mine, want)  # one rounding, at the end


def test_weights_fed_at_run_time_are_refused_here_and_bound_by_the_backend() -> None:
    arrays = lstm()
    proto = model("y = LSTM <hidden_size = 3> (x, W, R)", {"x": CUBE, **arrays}, ["y"])
    with pytest.raises(UnsupportedError, match="W 'W'"):
        ours(proto, {"x": CUBE, **arrays})
    prepared = backend.prepare(proto)
    for scale in (1.0, 1.0, 0.5):  # the same weights again, then others
        feed = {"x": CUBE, "W": arrays["W"] * np.float32(scale), "R": arrays["R"]}
        (want,) = theirs(proto, feed)
        assert_allclose(prepared.run(feed)[0], want, rtol=1e-5, atol=1e-6)
        assert_allclose(prepared.run(list(feed.values()))[0], want, rtol=1e-5, atol=1e-6)


def test_the_backend_takes_no_more_and_no_fewer_inputs_than_the_model() -> None:
    prepared = backend.prepare(model("y = Relu (x)", {"x": CUBE}, ["y"]))
    assert_array_equal(prepared.run([CUBE])[0], np.maximum(CUBE, 0))
    with pytest.raises(ShapeError, match=r"expected 1, \['x'\], got 2"):
        prepared.run([CUBE, CUBE])
    with pytest.raises(ShapeError, match=r"\['x'\] are missing"):
        prepared.run([])


REFUSED = {
    "y = Det (x)": "this operator is not known",
    "y = com.microsoft.Attention (x)": "not known",
    "y = com.microsoft.nchwc.Conv (x, c)": "ORT_ENABLE_EXTENDED",
    "y = Relu <slope = 2.0> (x)": "not understood: attribute slope",
    "y = Relu (x, c)": "not understood: input 1",
    "y, z = Relu (x)": "output 1 is not computed",
    "y = Cast <to = 17> (x)": "float8e4m3fn",
    "y = Cast <to = 22> (x)": "dtype int4",
    'y = Constant <value_string = "a"> ()': "expected one of value, value_float",
    "y = BatchNormalization <training_mode = 1> (x, x, x, x, x)": "training_mode=1",
    "y = Dropout (x, , true)": "inference mode",
    'y = RNN <direction = "sideways"> (x, c, c)': "'sideways'",
    "y = RNN <layout = 2> (x, c, c)": "layout=2",
    "y = RNN (x, c)": "input R is missing",
    "y = RNN (x, x, c)": "W 'x' is computed at run time",
    'y = RNN <activations = ["Tanh", "Tanh"]> (x, c, c)': "expected 1 names",
    'y = RNN <activations = ["Sinh"]> (x, c, c)': "sinh",
    'y = RNN <activations = ["Affine"]> (x, c, c)': "no default",
    'y = RNN <activations = ["ThresholdedRelu"]> (x, c, c)': "expected alpha and beta",
    "y = RNN <activation_alpha = [1.0]> (x, c, c)": "at most one value per activation",
    "y = RNN <hidden_size = 7> (x, c, c)": "hidden_size=7",
    "y = RNN <clip = -1.0> (x, c, c)": "positive bound",
    "y = RNN (x, c, m)": r"R: .*\(4, 3\)",
    "y = RNN (x, c, i)": "floats of one type",
    "y = Softmax <axis: float = inf> (x)": "attribute axis=inf",
    'y = Softmax <axis = "1"> (x)': "attribute axis='1'",
    "y = Softmax <axis = [1]> (x)": "attribute axis=.*1",
    'y = Concat <axis = "1"> (x, x)': "attribute axis",
    "y = Transpose <perm = 0> (x)": "attribute perm",
    "y = Elu <alpha = [1.0]> (x)": "attribute alpha",
    "y = Elu <alpha: float = @slope> (x)": r"refer to \['slope'\]",
    'y = Constant <value: string = "text"> ()': "attribute value",
}


@pytest.mark.parametrize("node", REFUSED)
def test_what_is_not_run_exactly_is_refused_with_its_reason(node: str) -> None:
    constants = {"c": np.ones((1, 5, 5), np.float32), "m": MATRIX, "i": np.ones((1, 5, 5), int)}
    constants["true"] = np.array(True)
    outputs = node.partition(" =")[0].split(", ")
    graph = read(model(node, {"x": CUBE}, outputs, constants=constants))  # loading does not raise
    with pytest.raises(UnsupportedError, match=REFUSED[node]):
        Session(graph)


def test_no_clipping_is_what_clip_zero_means_and_is_told() -> None:
    arrays = lstm()
    made = [
        model(f"y = LSTM <hidden_size = 3{clip}> (x, W, R)", {"x": CUBE}, ["y"], constants=arrays)
        for clip in (", clip = 0.0", "")
    ]
    assert_array_equal(*(ours(proto, {"x": CUBE})[0] for proto in made))
    graph = read(made[0])
    assert any("clip=0" in note for note in graph.notes)


@pytest.mark.parametrize("lengths, reason", [([4, 1, 1], "expected 0 to 2"), ([1], "expected 3")])
def test_lengths_beyond_the_padding_are_refused(lengths: list[int], reason: str) -> None:
    node = "y = LSTM <hidden_size = 3> (x, W, R, , n)"
    given = {"x": CUBE, "n": np.array(lengths, np.int32)}
    proto = model(node, {"x": CUBE, "n": np.zeros(3, np.int32)}, ["y"], constants=lstm())
    proto.graph.input[1].type.tensor_type.shape.dim[0].Clear()
    with pytest.raises(Exception, match=reason):
        ours(proto, given)


def test_names_of_inputs_and_outputs_stay(tmp_path: Path) -> None:
    nodes = "same = Identity (x) r = Relu (same) twice = Identity (r)"
    proto = model(nodes, {"x": CUBE}, ["r", "twice", "same", "x"])
    onnx.save(proto, tmp_path / "m.onnx")
    graph = load(tmp_path / "m.onnx")
    got = Session(graph).run({"x": CUBE})
    assert list(got) == ["r", "twice", "same", "x"]
    assert_array_equal(got["twice"], np.maximum(CUBE, 0))
    assert_array_equal(got["same"], CUBE)


def test_params_have_no_place_beside_an_onnx_model(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="ONNX"):
        load(tmp_path / "m.onnx", params="x")


def with_functions(nodes: list | str, *functions: str) -> onnx.ModelProto:
    opset = helper.make_opsetid("local", 1)
    proto = model(nodes, {"x": CUBE}, ["y"], constants={"c": np.float32(2)}, opsets=[opset])
    for text in functions:
        head = '<domain: "local", opset_import: ["" : 17]>'
        proto.functions.append(parser.parse_function(f"{head} f (k) => (y) {{ {text} }}"))
    proto.ir_version = 10
    return proto


@pytest.mark.parametrize(
    ("twice", "nodes", "function"),
    [
        ("y", "y = Relu (x) y = Tanh (x)", "y = Neg (k)"),
        ("x", "y = Relu (x) x = Neg (y)", "y = Neg (k)"),
        ("c", "y = Add (x, c) c = Neg (x)", "y = Neg (k)"),
        ("v", "y = local.f (x)", "v = Relu (k) v = Tanh (k) y = Neg (v)"),
        ("k", "y = local.f (x)", "k = Neg (k) y = Relu (k)"),
    ],
)
def test_a_value_made_twice_contradicts_itself(twice: str, nodes: str, function: str) -> None:
    """ONNX Runtime refuses each of these models."""
    expected = f"'{twice}': expected one input, initializer or operator that makes it, got 2"
    with pytest.raises(ModelFormatError, match=expected):
        ours(with_functions(nodes, function), {"x": CUBE})


def test_a_call_runs_the_function_of_its_overload() -> None:
    """Domain, name and overload together identify a function since version 10 of the format."""
    texts = "y = Relu (k)", "y = Add (k, k)", "y = Neg (k)"
    proto = with_functions("v = local.f (x) y = local.f (v)", *texts)
    for function, overload in zip(proto.functions, ("", "twice", "negative"), strict=True):
        function.overload = overload
    proto.graph.node[0].overload = "twice"
    (got,) = ours(proto, {"x": CUBE})
    assert_array_equal(got, np.maximum(CUBE + CUBE, 0))
    proto.functions[2].overload = "twice"
    expected = "function 'f' of domain 'local' with overload 'twice': expected one, got two"
    with pytest.raises(ModelFormatError, match=expected):
        ours(proto, {"x": CUBE})


@pytest.mark.parametrize("name", ["LSTM/ints", "LSTM/ints#2", "x/Rnn", "x/Rnn#1"])
def test_an_output_may_have_the_name_of_a_value_that_a_rule_adds(name: str) -> None:
    constants = {**parameters("LSTM", 5, 4), "axis": np.array([1])}
    nodes = [
        helper.make_node("LSTM", ["x", "W", "R", "B"], ["h", name], hidden_size=4),
        helper.make_node("Squeeze", ["h", "axis"], ["y"]),
    ]
    check(model(nodes, {"x": CUBE}, ["y", name], constants=constants), {"x": CUBE})


def test_a_call_changes_no_value_of_its_caller() -> None:
    nodes = [
        helper.make_node("Add", ["x", "c"], ["f#1/v"]),  # the name of v in the first call of f
        helper.make_node("f", ["x"], ["z"], domain="local"),
        helper.make_node("Mul", ["f#1/v", "z"], ["y"]),
    ]
    (got,) = ours(with_functions(nodes, "v = Neg (k) y = Abs (v)"), {"x": CUBE})
    assert_array_equal(got, (CUBE + np.float32(2)) * np.abs(CUBE))
