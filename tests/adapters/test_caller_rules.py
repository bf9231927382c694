"""Rules that a caller passes: what they compute in each framework's files, and what is refused."""

from __future__ import annotations

import io
import json
import re
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import typer
from numpy.testing import assert_allclose, assert_array_equal
from onnx import TensorProto, helper, numpy_helper
from support import command_line
from support.mxnet_files import node, save_model, symbol_text, var
from support.paddle_operators import op, program

import onernn
from onernn import Ragged, Replacing, Session, UnsupportedError
from onernn.adapters.paddle.lower import lower as lower_paddle
from onernn.adapters.paddle.lower import read_caller_rules as read_paddle
from onernn.adapters.paddle.read import Variable
from onernn.cli import app

DATA = Path(__file__).parents[1] / "data"
X = np.array([[-1.0, 0.5, 2.0, 3.0], [4.0, -5.0, 0.25, 0.0]], np.float32)


# ONNX: an operator of a domain of its own.


def save_onnx(
    folder: Path,
    kind: str = "Snake",
    domain: str = "audio",
    outputs: tuple[str, ...] = ("y",),
    dtype: int = TensorProto.FLOAT,
    **attributes: Any,
) -> Path:
    """Saves ``y = Snake(x, alpha)`` with alpha = (2, 2, 4, 4)."""
    alpha = numpy_helper.from_array(np.array([2, 2, 4, 4], np.float32), "alpha")
    made = helper.make_node(kind, ["x", "alpha"], list(outputs), "s", domain=domain, **attributes)
    graph = helper.make_graph(
        [made],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 4])],
        [helper.make_tensor_value_info(name, dtype, [None, 4]) for name in outputs],
        [alpha],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain or "audio", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets), folder / "m.onnx")
    return folder / "m.onnx"


def snake(x: Any, alpha: Any, *, scale: float = 1.0) -> Any:
    """Returns x + sin(alpha x)^2 / alpha, times the scale."""
    wave = (x * alpha).Sin()
    return (x + wave * wave / alpha) * scale


def snake_in_numpy(scale: float) -> np.ndarray:
    alpha = np.array([2, 2, 4, 4], np.float64)
    return scale * (X + np.sin(X * alpha) ** 2 / alpha)


def run(path: Path, rules: Mapping[str, Any]) -> np.ndarray:
    (result,) = Session(path, rules=rules, backend="reference").run({"x": X}).values()
    return np.asarray(result)


def refusal(path: Path, rules: Mapping[str, Any]) -> str:
    with pytest.raises(UnsupportedError) as raised:
        Session(path, rules=rules)
    return str(raised.value)


@pytest.mark.parametrize("name", ["Snake", "audio::Snake"])
def test_a_rule_gives_an_unknown_operator_a_meaning(name: str, tmp_path: Path) -> None:
    path = save_onnx(tmp_path, scale=0.5)
    assert "this operator is not known" in refusal(path, {})
    assert_allclose(run(path, {name: snake}), snake_in_numpy(0.5), rtol=1e-6, atol=1e-6)


def test_a_rule_of_another_domain_is_not_used(tmp_path: Path) -> None:
    assert "not known" in refusal(save_onnx(tmp_path), {"video::Snake": snake})


def test_values_take_part_in_pythons_arithmetic(tmp_path: Path) -> None:
    def rule(x: Any, alpha: Any) -> Any:
        ones = np.ones(4, np.float32)
        return (1 - x) ** 2 + ones * alpha - (2 / alpha - ones) + (-x + 3 * x)

    alpha = np.array([2, 2, 4, 4], np.float64)
    want = (1 - X) ** 2 + alpha - (2 / alpha - 1) + 2 * X
    assert_allclose(run(save_onnx(tmp_path), {"Snake": rule}), want, rtol=1e-6)


def test_the_more_precise_name_counts(tmp_path: Path) -> None:
    path = save_onnx(tmp_path)
    rules = {"Snake": lambda x, alpha: x - alpha, "audio::Snake": lambda x, alpha: x + alpha}
    assert_array_equal(run(path, rules), X + np.float32([2, 2, 4, 4]))


def test_rules_are_not_kept_from_one_load_to_the_next(tmp_path: Path) -> None:
    path = save_onnx(tmp_path)
    run(path, {"Snake": snake})
    assert "not known" in refusal(path, {})


def test_a_graph_that_is_read_already_takes_no_rules(tmp_path: Path) -> None:
    graph = onernn.load(save_onnx(tmp_path), rules={"Snake": snake})
    Session(graph)
    with pytest.raises(UnsupportedError, match="is read already"):
        Session(graph, rules={"Snake": snake})


WRONG: list[tuple[Any, str]] = [
    (lambda x, alpha, *, scale=1.0: 1 / 0, "ZeroDivisionError: division by zero"),
    (lambda x, alpha, *, scale=1.0: x.lower(), "AttributeError: lower"),
    (lambda x, alpha, *, scale=1.0: x.Softmaxx(), "did you mean 'Softmax'"),
    (lambda x, alpha, *, scale=1.0: x.Softmax(way=1), "unknown attribute way"),
    (lambda x, alpha, *, scale=1.0: (x, alpha), "returned 2 outputs, the operator has 1"),
    (lambda x, alpha, *, scale=1.0: {"Z": x}, r"outputs \['Z'\], expected some of 0"),
    (lambda x, alpha, *, scale=1.0: None, "returned None, expected a tensor"),
    (lambda x, alpha, *, scale=1.0: 3.0, r"returned 3\.0, expected a tensor"),
    (lambda x, alpha, *, scale=1.0: x.Add(1), r"Add of float32\(.*\), int64\(\).*x\.Add\(1\.0\)"),
    (lambda x, alpha, *, scale=1.0: x.Cast(to="int64"), "int64.*expected the declared float32"),
    (lambda x, alpha, *, scale=1.0: x.reshape(-1), "expected the declared float32"),
    (lambda x, *, scale=1.0: x, "not understood: input 1"),
    (lambda x, alpha: x, "not understood: attribute scale"),
    (lambda x, alpha, *, scael=1.0: x, "not understood: attribute scale"),
    (
        lambda x, alpha, *, scale=1.0, steps: x,
        "steps is missing; the operator has inputs 0, 1 and attributes scale",
    ),
    (lambda x, alpha, z, *, scale=1.0: x, "input z is missing; the operator has inputs 0, 1"),
    (lambda x, alpha, *, scale="wide": x, "attribute scale=0.5"),
]


@pytest.mark.parametrize("rule, reason", WRONG, ids=[reason[:30] for _, reason in WRONG])
def test_a_wrong_rule_is_refused_by_its_name_and_the_operators(
    rule: Any, reason: str, tmp_path: Path
) -> None:
    path = save_onnx(tmp_path, scale=0.5)
    place = rf"node 's' \(Snake\): rule 'Snake' \({__file__}:\d+\): "
    with pytest.raises(UnsupportedError, match=f"{place}.*{reason}"):
        Session(path, rules={"Snake": rule})


def test_the_line_that_raised_is_named(tmp_path: Path) -> None:
    def rule(x: Any, alpha: Any) -> Any:
        raise RuntimeError("no such luck")

    line = rule.__code__.co_firstlineno + 1
    assert f"{__file__}:{line}): RuntimeError: no such luck" in refusal(
        save_onnx(tmp_path), {"Snake": rule}
    )


def test_a_tensor_of_an_earlier_load_is_refused(tmp_path: Path) -> None:
    path, kept = save_onnx(tmp_path), list[Any]()

    def rule(x: Any, alpha: Any) -> Any:
        kept.append(x + alpha)
        return kept[0]

    run(path, {"Snake": rule})
    assert "expected a tensor computed from its inputs" in refusal(path, {"Snake": rule})


def test_several_outputs_are_a_tuple(tmp_path: Path) -> None:
    path = save_onnx(tmp_path, outputs=("y", "z"))
    session = Session(path, rules={"Snake": lambda x, alpha: (x, x + alpha)})
    result = session.run({"x": X})
    assert_array_equal(result["z"], X + np.float32([2, 2, 4, 4]))
    text = refusal(path, {"Snake": lambda x, alpha: x})
    assert "returned 1 outputs, the operator has 2" in text


@pytest.mark.parametrize(
    "rules, reason",
    [
        ([snake], "expected a dict of functions"),
        ({1: snake}, "expected a dict of functions"),
        ({"Snake": "snake"}, "rule 'Snake': expected a function"),
        ({"Snake": lambda x, /: x}, "rule 'Snake': parameter x: expected the name of an input"),
        (
            {"Snake": lambda x, **more: x},
            r"rule 'Snake': parameter \*\*more: expected the name of an input",
        ),
    ],
    ids=["a list", "a number as the name", "a text", "positional only", "all keywords"],
)
def test_what_cannot_be_a_rule_is_refused_by_load(rules: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        onernn.load(save_onnx(tmp_path), rules=rules)


def test_a_rule_takes_the_place_of_onernns_own_only_on_purpose(tmp_path: Path) -> None:
    path = save_onnx(tmp_path, "Mul", "")

    def rule(x: Any, alpha: Any) -> Any:
        return x - alpha

    text = refusal(path, {"Mul": rule})
    assert "rule 'Mul': onernn knows this operator" in text and "onernn.Replacing" in text
    for name in ("Mul", "ai.onnx::Mul"):
        want = X - np.float32([2, 2, 4, 4])
        assert_array_equal(run(path, {name: Replacing(rule)}), want)


def test_a_rule_holds_in_bodies_and_functions(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "audio" : 1, "mine" : 1]>
        g (float[N, 4] x, bool c) => (float[N, 4] y) {
            h = If (c) <
                then_branch = t () => (a) { a = audio.Twice (x) },
                else_branch = e () => (b) { b = Identity (x) }
            >
            y = mine.Again (h)
        }
        <domain: "mine", opset_import: ["" : 17, "audio" : 1]>
        Again (x) => (y) { y = audio.Twice (x) }
    """)
    onnx.save(proto, tmp_path / "m.onnx")
    session = Session(tmp_path / "m.onnx", rules={"Twice": lambda x: 2 * x})
    for condition, factor in ((True, 4), (False, 2)):
        result = session.run({"x": X, "c": np.array(condition)})
        assert_array_equal(result["y"], factor * X)


def test_a_function_of_the_file_gives_way_only_on_purpose(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
        g (float[N, 4] x) => (float[N, 4] y) { y = mine.Again (x) }
        <domain: "mine", opset_import: ["" : 17]> Again (x) => (y) { y = Abs (x) }
    """)
    onnx.save(proto, tmp_path / "m.onnx")
    assert "onernn knows" in refusal(tmp_path / "m.onnx", {"Again": lambda x: -x})
    result = run(tmp_path / "m.onnx", {"Again": Replacing(lambda x: -x)})
    assert_array_equal(result, -X)


# Keras: a class of a user's own.

Layer = tuple[str, dict[str, Any], list[tuple[str, int]]]


def save_keras(folder: Path, *layers: Layer, module: str = "mine", **weights: Any) -> Path:
    """Saves layers (class, options, what it reads), each called as its place: "0" is the input.

    ``weights``: arrays by their paths, "__" for "/".
    """
    h5py = pytest.importorskip("h5py")

    def tensor(name: str, at: int) -> dict[str, Any]:
        return {"class_name": "__keras_tensor__", "config": {"keras_history": [name, 0, at]}}

    first = {"batch_shape": [None, 3, 4], "dtype": "float32", "name": "0"}
    keras = {"module": "keras.layers", "registered_name": None}
    listed = [{**keras, "class_name": "InputLayer", "name": "0", "config": first}]
    listed[0]["inbound_nodes"] = []
    for number, (kind, options, reads) in enumerate(layers, 1):
        own = kind in ("Masking", "Add", "GlobalAveragePooling1D", "Softmax", "TimeDistributed")
        where = keras if own else {"module": module, "registered_name": f"mine>{kind}"}
        config = {"name": str(number), "trainable": True, "dtype": "float32", **options}
        call = {"args": [tensor(*each) for each in reads], "kwargs": {}}
        listed.append(
            {
                **where,
                "class_name": kind,
                "name": str(number),
                "config": config,
                "inbound_nodes": [call],
            }
        )
    ends = {"input_layers": [["0", 0, 0]], "output_layers": [[str(len(layers)), 0, 0]]}
    model = {
        **{"module": "keras", "class_name": "Functional", "registered_name": None},
        "config": {"name": "m", "layers": listed, **ends},
    }
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        for name, array in weights.items():
            file[name.replace("__", "/")] = array
    with zipfile.ZipFile(folder / "m.keras", "w") as archive:
        archive.writestr("metadata.json", json.dumps({"keras_version": "3.5.0"}))
        archive.writestr("config.json", json.dumps(model))
        archive.writestr("model.weights.h5", stream.getvalue())
    return folder / "m.keras"


STEPS = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
STEPS[0, 2] = 0


def run_keras(path: Path, rules: Mapping[str, Any]) -> np.ndarray:
    (result,) = Session(path, rules=rules, backend="reference").run({"0": STEPS}).values()
    return np.asarray(result)


def scale_shift(x: Any, *, shift: float = 0.0, op: Any) -> Any:
    (scale,) = op.weights("scale")
    return x * scale + shift


def test_a_layer_of_ones_own_has_options_and_weights(tmp_path: Path) -> None:
    scale = np.array([1, 2, 3, 4], np.float32)
    layer = ("ScaleShift", {"shift": 2.0}, [("0", 0)])
    path = save_keras(tmp_path, layer, layers__scale_shift__vars__0=scale)
    assert_array_equal(run_keras(path, {"ScaleShift": scale_shift}), STEPS * scale + 2)
    text = refusal(path, {"ScaleShift": lambda x, *, shift=0.0: x + shift})
    assert "rule 'ScaleShift'" in text and "expected only weights that the layer has" in text


@pytest.mark.parametrize(
    "rule", [lambda a, b: a - b, lambda *many: many[0] - many[1]], ids=["named", "listed"]
)
def test_the_tensors_of_a_call_are_parameters_in_order(rule: Any, tmp_path: Path) -> None:
    twice = ("Twice", {}, [("0", 0)])
    path = save_keras(tmp_path, twice, ("Minus", {}, [("0", 0), ("1", 0)]))
    rules = {"Twice": lambda x: 2.0 * x, "Minus": rule}
    assert_array_equal(run_keras(path, rules), -STEPS)
    assert "expected the tensors x, got 2" in refusal(path, {**rules, "Minus": lambda x: x})


def test_the_outputs_that_a_model_reads_must_be_returned(tmp_path: Path) -> None:
    path = save_keras(tmp_path, ("Two", {}, [("0", 0)]), ("Add", {}, [("1", 0), ("1", 1)]))
    for rule in (lambda x: [x, 2 * x], lambda x: (x, 2 * x)):
        assert_allclose(run_keras(path, {"Two": rule}), 3 * STEPS, rtol=1e-6)
    text = refusal(path, {"Two": lambda x: x})
    assert "rule 'Two'" in text and "returned 1 outputs, the model reads 2" in text


def test_under_a_mask_a_rule_says_what_becomes_of_it(tmp_path: Path) -> None:
    path = save_keras(
        tmp_path,
        ("Masking", {"mask_value": 0.0}, [("0", 0)]),
        ("Shift", {}, [("1", 0)]),
        ("GlobalAveragePooling1D", {"data_format": "channels_last", "keepdims": False}, [("2", 0)]),
    )
    assert "an input has a mask: return y.under(x.flags)" in refusal(
        path, {"Shift": lambda x: 1 + x}
    )
    assert "has a mask" in refusal(path, {"Shift": lambda x: (x + 1.5).cast("float64")})
    handed = run_keras(path, {"Shift": lambda x: (x + 1).under(x.flags)})
    mean = (STEPS[0, :2] + 1).mean(0)
    assert_allclose(handed[0], mean, rtol=1e-6, atol=1e-6)
    ended = run_keras(path, {"Shift": lambda x: (x + 1).under(None)})
    assert_allclose(ended[0], (STEPS[0] + 1).mean(0), rtol=1e-6, atol=1e-6)


def test_a_layer_of_ones_own_may_be_called_like_keras_own(tmp_path: Path) -> None:
    path = save_keras(tmp_path, ("Dense", {}, [("0", 0)]))
    assert "Dense of mine" in refusal(path, {})
    assert_array_equal(run_keras(path, {"Dense": lambda x: -x}), -STEPS)
    own = save_keras(tmp_path, ("Softmax", {"axis": -1}, [("0", 0)]))
    assert "onernn knows" in refusal(own, {"Softmax": lambda x, *, axis: x})
    replaced = run_keras(own, {"Softmax": Replacing(lambda x, *, axis: x * axis)})
    assert_array_equal(replaced, -STEPS)


def test_a_layer_of_ones_own_is_applied_to_each_step(tmp_path: Path) -> None:
    inner = {"module": "mine", "class_name": "ScaleShift", "registered_name": "mine>ScaleShift"}
    inner["config"] = {"name": "s", "trainable": True, "dtype": "float32", "shift": 2.0}
    scale = np.array([1, 2, 3, 4], np.float32)
    weights = {"layers__time_distributed__layer__vars__0": scale}
    path = save_keras(tmp_path, ("TimeDistributed", {"layer": inner}, [("0", 0)]), **weights)
    assert_array_equal(run_keras(path, {"ScaleShift": scale_shift}), STEPS * scale + 2)


def test_a_rule_stands_for_the_code_of_a_lambda_layer(tmp_path: Path) -> None:
    code = {"class_name": "__lambda__", "config": {"code": "4wEA", "defaults": None}}
    path = save_keras(tmp_path, ("Lambda", {"function": code, "arguments": {}}, [("0", 0)]))
    with zipfile.ZipFile(path) as read:
        assert b"__lambda__" in read.read("config.json")
    result = run_keras(path, {"Lambda": lambda x, *, arguments=None: -x})
    assert_array_equal(result, -STEPS)


# MXNet: an operator that a Python class registered.


def test_a_custom_operator_of_mxnet_is_called_as_its_class_is_registered(tmp_path: Path) -> None:
    nodes = [
        var("x", __shape__="(2, 4)"),
        node("y = Custom x", op_type="swish", beta="2.0"),
    ]
    path = save_model(tmp_path, symbol_text(*nodes), {})
    assert "not known" in refusal(path, {})

    def swish(data: Any, *, beta: float = 1.0) -> Any:
        return data * (beta * data).Sigmoid()

    want = X / (1 + np.exp(-2.0 * X.astype(np.float64)))
    assert_allclose(run(path, {"swish": swish}), want, rtol=1e-6)
    assert "not understood: attribute beta" in refusal(path, {"swish": lambda data: data})


def test_outputs_of_mxnets_operators_must_be_as_many_as_are_read(tmp_path: Path) -> None:
    nodes = [
        var("x", __shape__="(2, 4)"),
        node("two = Custom x", op_type="two"),
        node("y = elemwise_add two:0 two:1"),
    ]
    path = save_model(tmp_path, symbol_text(*nodes), {})
    assert_array_equal(run(path, {"two": lambda data: (data, data)}), 2 * X)
    assert "returned 1 outputs, the model reads 2" in refusal(path, {"two": lambda data: data})
    assert "rule 'two'" in refusal(path, {"two": lambda: 1})


# Paddle: operators by the names of their slots, in Paddle 3 by their place.


def run_paddle(rules: Mapping[str, Any], *operators: Any, **declared: Any) -> Any:
    graph = lower_paddle(program(*operators, **declared), read_paddle(rules))
    batch = Ragged(X, np.array([0, 1, 2]))
    (result,) = Session(graph, backend="reference").run({"x": batch}).values()
    return result


def test_an_operator_of_paddle_has_slots() -> None:
    leaky = op("custom_leaky X=x -> Out=y", slope=0.5)
    result = run_paddle({"custom_leaky": lambda X, *, slope=0.1: X.LeakyRelu(alpha=slope)}, leaky)
    assert_array_equal(result.data, np.where(X < 0, X / 2, X))
    assert result.offsets.tolist() == [0, 1, 2]  # it is still ragged
    with pytest.raises(UnsupportedError, match="rule 'custom_leaky'.*input Y is missing.* X "):
        run_paddle({"custom_leaky": lambda Y, *, slope=0.1: Y}, leaky)


def test_several_slots_are_returned_by_name() -> None:
    parts = op("parts X@VECTOR=x -> First=a Second=y")
    rules = {"parts": lambda X: {"First": X, "Second": -X}}
    assert_array_equal(run_paddle(rules, parts).data, -X)
    with pytest.raises(UnsupportedError, match=r"rule 'parts'.*\['Third'\].*First, Second"):
        run_paddle({"parts": lambda X: {"Third": X}}, parts)


def test_operators_of_paddle_3_have_their_inputs_in_order(tmp_path: Path) -> None:
    """The file has no names of slots for an operator that a user compiled."""
    folder = DATA / "paddle" / "pir_recurrent"
    whole = json.loads((folder / "model.json").read_text())
    operators = whole["program"]["regions"][0]["blocks"][0]["ops"]
    changed = [each for each in operators if each["#"] == "1.add"]
    for each in changed:
        each["#"] = "3.custom_plus"
    assert changed
    shutil.copytree(folder, tmp_path / "m")
    (tmp_path / "m" / "model.json").write_text(json.dumps(whole))
    recorded = np.load(folder / "io.npz")
    text = refusal(tmp_path / "m", {"custom_plus": lambda x: x})
    assert "rule 'custom_plus'" in text and "not understood: input operand 1" in text
    session = Session(tmp_path / "m", rules={"custom_plus": lambda x, y: x + y})
    feed = {value.name: recorded[f"in__{value.name}"] for value in session.inputs}
    for name, array in Session(folder).run(feed).items():
        assert_array_equal(session.run(feed)[name], array)


def test_a_result_of_another_dtype_than_paddles_is_refused() -> None:
    leaky = op("cut X=x -> Out=y")
    with pytest.raises(UnsupportedError, match="rule 'cut'.*int64.*expected the declared float32"):
        run_paddle({"cut": lambda X: X.Cast(to="int64")}, leaky)
    declared = Variable("y", 7, "int64", (None, 4), 0, False)
    result = run_paddle({"cut": lambda X: X.Cast(to="int64")}, leaky, y=declared)
    assert_array_equal(result.data, X.astype(np.int64))


# PyTorch: an operator that torch.library registered.


def save_torch(folder: Path, target: str, **attributes: Any) -> Path:
    """Saves the model ``rows`` whose softmax is an operator of another name."""
    path = DATA / "torch" / "rows" / "model.pt2"
    with zipfile.ZipFile(path) as read, zipfile.ZipFile(folder / "m.pt2", "w") as archive:
        for info in read.infolist():
            data = read.read(info)
            if info.filename.endswith("models/model.json"):
                whole = json.loads(data)
                for each in whole["graph_module"]["graph"]["nodes"]:
                    if each["target"] == "torch.ops.aten.softmax.int":
                        each["target"] = target
                        each["inputs"] = each["inputs"][:1] + [
                            {"name": name, "arg": value, "kind": 1}
                            for name, value in attributes.items()
                        ]
                data = json.dumps(whole).encode()
            archive.writestr(info.filename, data)
    return folder / "m.pt2"


@pytest.mark.parametrize("name", ["mine::sharpen", "mine.sharpen", "torch.ops.mine.sharpen"])
def test_an_operator_of_pytorch_has_the_names_of_its_schema(name: str, tmp_path: Path) -> None:
    path = save_torch(tmp_path, "torch.ops.mine.sharpen.default", by={"as_float": 1.0})
    assert "not known" in refusal(path, {})

    def sharpen(self: Any, *, by: float) -> Any:
        return self.Softmax(axis=-1)

    def with_default(self: Any, *, by: float = 2.0) -> Any:
        return (self * by).Softmax(axis=-1)

    assert "attribute by=1.0: expected an integer" in refusal(path, {name: sharpen})
    recorded = np.load(DATA / "torch" / "rows" / "io.npz")
    feed = {key[4:]: recorded[key] for key in recorded.files if key.startswith("in__")}
    result = Session(path, rules={name: with_default}).run(feed)
    want = Session(DATA / "torch" / "rows" / "model.pt2").run(feed)
    for key, array in want.items():
        assert_array_equal(result[key], array)


def test_a_result_of_another_type_than_pytorchs_is_refused(tmp_path: Path) -> None:
    path = save_torch(tmp_path, "torch.ops.mine.sharpen.default")
    text = refusal(path, {"mine::sharpen": lambda self: self.cast("float64")})
    assert "rule 'mine::sharpen'" in text and "expected float32" in text
    text = refusal(path, {"mine::sharpen": lambda self: self.reshape(-1)})
    assert "rule 'mine::sharpen'" in text and "expected the shape" in text


def test_a_number_that_may_be_a_size_fixes_it(tmp_path: Path) -> None:
    def last(self: Any, *, steps: int = 0) -> Any:
        return self * 1.0 if steps else self.Softmax(axis=-1)

    free = save_torch(tmp_path, "torch.ops.mine.last.default", steps={"as_int": 1000})
    assert onernn.load(free, rules={"mine::last": last}).inputs[0].shape == (None, None, 6)
    tied = save_torch(tmp_path, "torch.ops.mine.last.default", steps={"as_int": 7})
    model = onernn.load(tied, rules={"mine::last": last})
    assert 7 in (model.inputs[0].shape or ())


# On the command line.

FILE = """
def snake(x, alpha, *, scale=1.0):
    wave = (x * alpha).Sin()
    return (x + wave * wave / alpha) * scale


RULES = {"Snake": snake}
"""


def test_a_python_file_brings_rules_to_a_command(tmp_path: Path) -> None:
    path, rules, out = save_onnx(tmp_path, scale=0.5), tmp_path / "rules.py", tmp_path / "out.npz"
    rules.write_text(FILE)
    np.savez(tmp_path / "in.npz", in__x=X)
    given = ("run", path, "--input", tmp_path / "in.npz", "--output", out)
    assert "not known" in command_line.failed(command_line.onernn(*given))
    done = command_line.onernn(*given, "--rules", rules)
    assert done.returncode == 0, done
    assert_allclose(np.load(out)["out__y"], snake_in_numpy(0.5), rtol=1e-6, atol=1e-6)
    converted = tmp_path / "standard.onnx"
    done = command_line.onernn("convert", path, converted, "--rules", rules)
    assert done.returncode == 0, done
    assert_allclose(run(converted, {}), snake_in_numpy(0.5), rtol=1e-6, atol=1e-6)
    done = command_line.onernn("verify", path, "--against", path, "--rules", rules)
    assert done.returncode == 0, done


def test_every_command_that_loads_a_model_takes_rules() -> None:
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    taken = {name: [each.name for each in one.params] for name, one in commands.items()}
    loading = {name for name, names in taken.items() if {"model", "models"} & {*names}}
    assert loading >= {"run", "inspect", "verify", "convert", "emit", "audit", "join"}
    without = {name for name in loading if "rules" not in taken[name]}
    assert without == {"plug"}  # ONNX Runtime runs all but the layers


@pytest.mark.parametrize(
    "text, reason",
    [
        (None, "rules.py: no such file"),
        ("RULES = {", "rules.py: SyntaxError"),
        ("import sys; sys.exit(3)", "rules.py: SystemExit: 3"),
        ("1 / 0", "rules.py: ZeroDivisionError"),
        ("def snake(x, alpha): return x", "rules.py: expected a dict RULES"),
        ("RULES = [1]", "rules.py: expected a dict RULES"),
        ("RULES = {'Snake': 1}", "rule 'Snake': expected a function"),
        ("RULES = {'Snake': lambda x, alpha: 1 / 0}", r"rules.py:1\): ZeroDivisionError"),
    ],
)
def test_a_file_without_rules_is_refused_by_its_name(
    text: str | None, reason: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "rules.py").write_text(text)
    path, given = save_onnx(tmp_path), ("--rules", tmp_path / "rules.py")
    emitted = command_line.onernn("emit", path, "-o", tmp_path / "cpp", *given)
    assert re.search(reason, command_line.failed(emitted)), emitted
