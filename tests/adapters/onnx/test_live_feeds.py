"""Calls of an optimized session and of ONNX Runtime's own: same outputs, or the same errors."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from support.onnx_models import model

from onernn import LibraryError, UnsupportedError
from onernn.adapters.onnx import optimize

RNG = np.random.default_rng(3)
SHAPES = {
    "table": (20, 5),
    "W": (2, 16, 5),
    "Rt": (4, 16, 2),
    "h0": (2, 3, 4),
    "W1": (1, 9, 8),
    "R1": (1, 9, 3),
    "M": (3, 6),
}
CONSTANTS = {name: RNG.uniform(-0.4, 0.4, s).astype("f4") for name, s in SHAPES.items()}
CONSTANTS |= {"flat": np.array([0, 0, -1]), "n1": np.array([2, 7, 0], np.int32)}
OTHERS = {
    name: RNG.permutation(array.reshape(-1)).reshape(array.shape)
    for name, array in CONSTANTS.items()
} | {"flat": np.array([7, -1, 8])}
FEED = {"ids": RNG.integers(0, 20, (7, 3)), "n": np.array([7, 0, 3], np.int32)}


def tagger(free: Any = (), ir_version: int = 8) -> onnx.ModelProto:
    """Two layers, a weight that is turned, a view of constant sizes; ``free``: what may change."""
    node = helper.make_node
    nodes = [
        node("Gather", ["table", "ids"], ["words"]),
        node("Transpose", ["Rt"], ["R"], perm=[2, 1, 0]),
        node("LSTM", ["words", "W", "R", "", "n", "h0"], ["Y", "h"], hidden_size=4,
             direction="bidirectional", name="first"),
        node("Transpose", ["Y"], ["T"], perm=[0, 2, 1, 3]),
        node("Reshape", ["T", "flat"], ["X1"]),
        node("GRU", ["X1", "W1", "R1", "", "n1"], ["Y1"], hidden_size=3, name="second"),
        node("MatMul", ["Y1", "M"], ["scores"]),
    ]  # fmt: skip
    built = model(nodes, FEED, ["scores", "h", "M", "n"], constants=CONSTANTS)
    built.ir_version = ir_version
    built.graph.input.extend(
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(CONSTANTS[name].dtype), CONSTANTS[name].shape
        )
        for name in free
    )
    kinds = {"n": TensorProto.INT32}
    for each in built.graph.output:
        kind = kinds.get(each.name, TensorProto.FLOAT)
        each.CopyFrom(helper.make_tensor_value_info(each.name, kind, None))
    return built


def plain(proto: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(proto.SerializeToString(), options)


def assert_equal(got: list[Any], want: list[Any]) -> None:
    for mine, theirs in zip(got, want, strict=True):
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def sessions() -> tuple[Any, Any]:
    built = tagger(CONSTANTS)
    return optimize(built), plain(built)


@pytest.mark.parametrize("name", CONSTANTS)
def test_initializers_that_are_inputs_may_be_overridden(name: str, sessions: Any) -> None:
    ours, theirs = sessions
    assert len(ours.replaced) == 2
    usual, other = theirs.run(None, FEED), theirs.run(None, {**FEED, name: OTHERS[name]})
    changed = any(np.abs(a - b).max() > 1e-4 for a, b in zip(usual, other, strict=True))
    assert changed or name == "flat"  # another way to write the same shape
    for _ in range(2):  # what was overridden does not stay
        assert_equal(ours.run(None, {**FEED, name: OTHERS[name]}), other)
        assert_equal(ours.run(None, FEED), usual)


def test_several_are_overridden_at_once_and_may_change_in_place(sessions: Any) -> None:
    ours, theirs = sessions
    given = {**FEED, **{name: array.copy() for name, array in OTHERS.items()}}
    for _ in range(2):
        assert_equal(ours.run(None, given), theirs.run(None, given))
        given["W"] *= 0.5
    assert_equal(
        ours.run(["h"], {**given, "W": CONSTANTS["W"]}),
        theirs.run(["h"], {**given, "W": CONSTANTS["W"]}),
    )


def test_other_sizes_reach_the_layers() -> None:
    """The type of what a layer reads must not follow from sizes that may be overridden."""
    nodes = [
        helper.make_node("Reshape", ["x", "sizes"], ["X"]),
        helper.make_node("GRU", ["X", "W", "R"], ["y"], hidden_size=3),
    ]
    weights = {"W": CONSTANTS["W1"][:, :, :4].copy(), "R": CONSTANTS["R1"]}
    x, sizes = np.linspace(-1, 1, 24, dtype="f4"), np.array([2, 3, 4])
    built = model(nodes, {"x": x}, ["y"], constants={"sizes": sizes, **weights})
    built.graph.input.append(helper.make_tensor_value_info("sizes", TensorProto.INT64, [3]))
    built.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    ours, theirs = optimize(built), plain(built)
    assert ours.replaced
    for feed in ({"x": x}, {"x": x, "sizes": np.array([6, 1, 4])}):
        assert_equal(ours.run(None, feed), theirs.run(None, feed))


def test_inputs_and_what_may_be_overridden_are_described_as_onnx_runtime_does(
    sessions: Any,
) -> None:
    for what in ("get_inputs", "get_overridable_initializers"):
        mine, want = (
            [(each.name, each.shape, each.type) for each in getattr(session, what)()]
            for session in sessions
        )
        assert mine == want


CALLS: dict[str, tuple[Any, Any]] = {
    "all": (None, FEED),
    "none named": ([], FEED),
    "some": (("h", "h"), FEED),
    "lists": (None, {name: array.tolist() for name, array in FEED.items()}),
    "an OrtValue": (None, {**FEED, "n": onnxruntime.OrtValue.ortvalue_from_numpy(FEED["n"])}),
    "Fortran's order": (None, {name: np.asfortranarray(a) for name, a in FEED.items()}),
    "unknown output": (["scores", "other"], FEED),
    "no list of outputs": ("scores", FEED),
    "unknown input": (None, {**FEED, "other": FEED["n"]}),
    "inner value": (None, {**FEED, "words": np.zeros((7, 3, 5), "f4")}),
    "constant": (None, {**FEED, "W": OTHERS["W"]}),
    "missing": (None, {"ids": FEED["ids"]}),
    "missing and unknown": (["other"], {"ids": FEED["ids"], "other": FEED["n"]}),
    "nothing": (None, {}),
    "wider lengths": (None, {**FEED, "n": FEED["n"].astype(np.int64)}),
    "lengths that are floats": (None, {**FEED, "n": FEED["n"].astype("f4")}),
    "narrower ids": (None, {**FEED, "ids": FEED["ids"].astype(np.int32)}),
    "strings": (None, {**FEED, "n": np.array(["a", "b", "c"])}),
    "a wider override": (None, {**FEED, "M": OTHERS["M"].astype("f8")}),
    "an override of another shape": (None, {**FEED, "M": OTHERS["M"][:2]}),
    "an axis less": (None, {**FEED, "ids": FEED["ids"][0]}),
    "another batch": (None, {**FEED, "n": FEED["n"][:2]}),
    "no mapping": (None, [FEED["ids"], FEED["n"]]),
}


@pytest.mark.parametrize("call", CALLS)
def test_calls_give_the_outputs_or_the_errors_of_onnx_runtime(call: str) -> None:
    built = tagger(["M"])
    ours, theirs = optimize(built), plain(built)
    names, feed = CALLS[call]
    try:
        want = theirs.run(names, feed)
    except Exception as error:
        with pytest.raises(type(error), match=re.escape(str(error).splitlines()[0])):
            ours.run(names, feed)
    else:
        assert_equal(ours.run(names, feed), want)


def test_initializers_of_old_files_are_constants_though_they_are_inputs() -> None:
    built = tagger(CONSTANTS, ir_version=3)
    ours, theirs = optimize(built), plain(built)
    assert [v.name for v in ours.get_inputs()] == [v.name for v in theirs.get_inputs()]
    assert not ours.get_overridable_initializers() and not theirs.get_overridable_initializers()
    assert_equal(ours.run(None, FEED), theirs.run(None, FEED))
    for session in (ours, theirs):
        with pytest.raises(Exception, match="Invalid input name: ?M|M"):
            session.run(None, {**FEED, "M": OTHERS["M"]})


def test_the_options_of_a_run_reach_onnx_runtime() -> None:
    options = onnxruntime.RunOptions()
    options.terminate = True
    for session in (optimize(tagger()), plain(tagger())):
        with pytest.raises(Exception, match="terminate flag"):
            session.run(None, FEED, options)


@pytest.mark.parametrize(
    "options, told",
    [
        ({"dtype": "bananas"}, "dtype 'bananas'"),
        ({"backend": "bananas"}, "backend 'bananas': expected 'auto'"),
        ({"dtype": "bf16", "backend": "reference"}, "dtype 'bf16': the reference computes in f32"),
    ],
)
def test_an_unknown_dtype_or_backend_is_told_at_once(options: dict[str, str], told: str) -> None:
    empty = helper.make_model(helper.make_graph([], "g", [], []))
    for built in (tagger(), empty):
        with pytest.raises(UnsupportedError, match=told):
            optimize(built, **options)


def test_a_missing_library_is_an_error_and_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    from onernn.backend.onednn import backend

    def missing() -> None:
        raise LibraryError("no libdnnl")

    monkeypatch.setattr(backend, "load_library", missing)
    with pytest.raises(LibraryError, match="no libdnnl"):
        optimize(tagger(), backend="onednn")


def test_none_is_no_value() -> None:
    with pytest.raises(ValueError, match="input 'n' is None"):
        optimize(tagger()).run(None, {**FEED, "n": None})


def test_bytes_in_another_order_are_put_in_the_machines_own() -> None:
    given = {name: array.astype(array.dtype.newbyteorder(">")) for name, array in FEED.items()}
    assert_equal(optimize(tagger()).run(None, given), plain(tagger()).run(None, FEED))


def test_text_reaches_onnx_runtime() -> None:
    nodes = [helper.make_node("Identity", ["t"], ["u"])]
    built = model(nodes, {"t": np.array(["a"], object)}, ["u"])
    for o in built.graph.output:
        o.CopyFrom(helper.make_tensor_value_info("u", TensorProto.STRING, None))
    for given in (np.array(["q"], object), np.array(["q"]), ["q"]):
        assert optimize(built).run(None, {"t": given})[0].tolist() == ["q"]
