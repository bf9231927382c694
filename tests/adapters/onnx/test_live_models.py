"""Models whose recurrent nodes ours runs inside ONNX Runtime, against ONNX Runtime alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.checking import assert_close
from support.onnx_rnn import FUNCTIONS, Case, functions_of, random_case, run_oracle

from onernn import MissingDependencyError
from onernn.adapters.onnx import optimize

pytestmark = pytest.mark.usefixtures("built")

RNG = np.random.default_rng(0)


def uniform(*shape: int) -> np.ndarray:
    return RNG.uniform(-0.4, 0.4, shape).astype(np.float32)


CONSTANTS = {
    "table": uniform(20, 5),
    "W0": uniform(2, 16, 5),
    "R0": uniform(2, 16, 4),
    "W1": uniform(1, 9, 8),
    "R1": uniform(1, 9, 3),
    "W2": uniform(1, 9, 5),
    "R2": uniform(1, 9, 3),
    "flat": np.array([0, 0, -1]),
    "M": uniform(3, 6),
    "one": np.array([1]),
}


def tagger() -> onnx.ModelProto:
    """Two branches that join behind their recurrent layers, one of them two layers deep."""
    node = helper.make_node
    nodes = [
        node("Gather", ["table", "ids"], ["words"]),
        node("LSTM", ["words", "W0", "R0", "", "n"], ["Y0", "h0"], hidden_size=4,
             direction="bidirectional", name="first"),
        node("Transpose", ["Y0"], ["T0"], perm=[0, 2, 1, 3]),
        node("Reshape", ["T0", "flat"], ["X1"]),
        node("GRU", ["X1", "W1", "R1", "", "n"], ["Y1"], hidden_size=3, name="second"),
        node("GRU", ["words", "W2", "R2", "", "n"], ["Y2", "h2"], hidden_size=3, name="beside",
             direction="reverse"),
        node("Add", ["Y1", "Y2"], ["S"]),
        node("Squeeze", ["S", "one"], ["S3"]),
        node("MatMul", ["S3", "M"], ["scores"]),
        node("ArgMax", ["scores"], ["tags"], axis=2, keepdims=0),
    ]  # fmt: skip
    inputs = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["time", "batch"]),
        helper.make_tensor_value_info("n", TensorProto.INT32, ["batch"]),
    ]
    kinds = {"scores": TensorProto.FLOAT, "tags": TensorProto.INT64, "h2": TensorProto.FLOAT}
    outputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()]
    constants = [numpy_helper.from_array(a, n) for n, a in CONSTANTS.items()]
    graph = helper.make_graph(nodes, "tagger", inputs, outputs, constants)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def feed(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 8, 5).astype(np.int32)
    return {"ids": rng.integers(0, 20, (max(1, lengths.max()), 5)), "n": lengths}


def quiet() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return options


def plain(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model.SerializeToString(), quiet())


def replaced(model: Any, **options: Any) -> Any:
    """Every node that our kernels run is theirs."""
    return optimize(model, backend="kernels", **options)


def assert_equal(got: list[Any], want: list[Any]) -> None:
    for mine, theirs in zip(got, want, strict=True):
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
        largest = np.abs(theirs).max(initial=0)
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6 + 1e-5 * largest)


def test_a_model_with_our_layers_gives_what_onnx_runtime_gives() -> None:
    session, theirs = replaced(tagger()), plain(tagger())
    for seed in range(8):
        assert_equal(session.run(None, feed(seed)), theirs.run(None, feed(seed)))
    assert_equal(session.run(["h2", "tags"], feed()), theirs.run(["h2", "tags"], feed()))
    assert [line.split(":")[0] for line in session.replaced] == [
        "node 'first' (LSTM)",
        "node 'second' (GRU)",
        "node 'beside' (GRU)",
    ]
    assert not session.refusals and session.explain().splitlines() == list(session.replaced)


def test_the_session_is_onnx_runtimes_own_and_what_it_was_given_stays_as_it_was() -> None:
    model = tagger()
    before, session = model.SerializeToString(), replaced(model)
    assert isinstance(session, onnxruntime.InferenceSession)
    assert model.SerializeToString() == before
    for mine, want in zip(session.get_inputs(), plain(model).get_inputs(), strict=True):
        assert (mine.name, mine.shape, mine.type) == (want.name, want.shape, want.type)


@pytest.mark.parametrize("form", ["path", "text", "weights beside it", "bytes", "proto"])
def test_a_model_comes_as_a_path_as_bytes_or_as_a_proto(form: str, tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    onnx.save(tagger(), file, save_as_external_data=form == "weights beside it", size_threshold=0)
    forms = {"text": str(file), "bytes": tagger().SerializeToString(), "proto": tagger()}
    session = replaced(forms.get(form, file))
    assert len(session.replaced) == 3
    assert_equal(session.run(None, feed()), plain(tagger()).run(None, feed()))


def test_threads_share_a_session() -> None:
    session, theirs = replaced(tagger(), threads=1), plain(tagger())
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda seed: session.run(None, feed(seed)), range(16)))
    for seed, got in enumerate(results):
        assert_equal(got, theirs.run(None, feed(seed)))


def test_what_ours_cannot_run_stays_in_onnx_runtime_with_the_reason() -> None:
    model = tagger()
    model.graph.node[5].input[1] = "W2x"  # a weight that is computed
    model.graph.node.insert(5, helper.make_node("Hardmax", ["W2"], ["W2x"]))
    session = replaced(model)
    (refusal,) = session.refusals
    assert "beside" in refusal.where and "computed at run time" in refusal.reason
    assert "ONNX Runtime" in session.explain() and len(session.replaced) == 2
    assert_equal(session.run(None, feed()), plain(model).run(None, feed()))


def test_weights_that_nodes_make_of_constants_come_along() -> None:
    model = tagger()
    model.graph.node[5].input[1] = "W2x"
    model.graph.node.insert(5, helper.make_node("Transpose", ["W2t"], ["W2x"], perm=[2, 1, 0]))
    turned = np.ascontiguousarray(CONSTANTS["W2"].transpose(2, 1, 0))
    model.graph.initializer.append(numpy_helper.from_array(turned, "W2t"))
    session = replaced(model)
    assert not session.refusals
    assert_equal(session.run(None, feed()), plain(tagger()).run(None, feed()))


def test_bodies_see_what_comes_from_ours() -> None:
    model = tagger()
    branches = [
        helper.make_graph(
            [helper.make_node(op, ["scores"], ["b"])],
            op,
            [],
            [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)],
        )
        for op in ("Neg", "Abs")
    ]
    fork = helper.make_node(
        "If", ["c"], ["chosen"], then_branch=branches[0], else_branch=branches[1]
    )
    model.graph.node.append(fork)
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    model.graph.output.append(helper.make_tensor_value_info("chosen", TensorProto.FLOAT, None))
    for c in (True, False):
        given = {**feed(), "c": np.array(c)}
        assert_equal(replaced(model).run(None, given), plain(model).run(None, given))


def test_random_nodes_are_right_or_left_to_onnx_runtime() -> None:
    """Those that ONNX Runtime does not run at all, too: layout=1, float64."""
    ran = 0
    for seed in range(120):
        case = random_case(seed)
        try:
            session = replaced(case.model(), session_options=quiet())
        except Exception as error:
            assert "onernn" not in str(error)  # left to ONNX Runtime, which refuses it
            assert not optimizable(case)
            continue
        assert bool(session.replaced) == optimizable(case), session.explain()
        if not session.replaced:
            continue
        want = run_oracle(case)
        for name, got in zip(case.outputs, session.run(None, case.feed()), strict=True):
            assert got.dtype == case.arrays["X"].dtype
            rtol = 1e-12 if got.dtype == np.float64 else 1e-5
            assert_close(got, want[name], rtol, rtol / 10)
        ran += 1
    assert ran > 60


def optimizable(case: Any) -> bool:
    """Both directions have the same functions, and clip=0 has no one meaning."""
    count = len(FUNCTIONS[case.op])
    functions = [str(f.pyfunc.__defaults__) for f in functions_of(case)]
    return functions[:count] == functions[-count:] and case.attributes.get("clip") != 0


def test_a_model_without_recurrent_nodes_is_onnx_runtimes_alone() -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    kinds = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in ("x", "y")]
    graph = helper.make_graph([node], "g", kinds[:1], kinds[1:])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    session = optimize(model)
    assert isinstance(session, onnxruntime.InferenceSession)
    assert session.run(None, {"x": np.array([-1, 0, 2], np.float32)})[0].tolist() == [0, 0, 2]
    assert session.explain() == "no recurrent nodes"


def test_without_onnx_the_command_that_installs_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'onernn\[onnx\]'"):
        optimize(b"")


def test_what_stands_behind_the_sentences_is_not_read() -> None:
    case = random_case(0)
    while "sequence_lens" not in case.arrays or case.batch_major or not optimizable(case):
        case = random_case(int(RNG.integers(1000)))
    lengths, x = case.arrays["sequence_lens"], case.arrays["X"].copy()
    for n, length in enumerate(lengths):
        x[length:, n] = np.nan
    want = run_oracle(case)
    got = replaced(case.model()).run(None, {**case.feed(), "X": x})
    for name, array in zip(case.outputs, got, strict=True):
        assert_close(array, want[name])


def branch(op: str, name: str) -> onnx.GraphProto:
    """A body with a layer of its own, whose weights are constants of the graph around it."""
    nodes = [
        helper.make_node("GRU", ["words", "W2", "R2"], ["g"], name=name, hidden_size=3),
        helper.make_node(op, ["g"], ["b"]),
    ]
    value = helper.make_tensor_value_info("b", TensorProto.FLOAT, None)
    return helper.make_graph(nodes, name, [], [value])


def test_recurrent_nodes_inside_branches_are_replaced() -> None:
    model = tagger()
    fork = helper.make_node(
        "If", ["c"], ["chosen"], then_branch=branch("Neg", "one"), else_branch=branch("Abs", "two")
    )
    model.graph.node.append(fork)
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    model.graph.output.append(helper.make_tensor_value_info("chosen", TensorProto.FLOAT, None))
    session, theirs = replaced(model), plain(model)
    assert len(session.replaced) == 5 and not session.refusals
    for c in (True, False):
        given = {**feed(), "c": np.array(c)}
        assert_equal(session.run(None, given), theirs.run(None, given))


def test_recurrent_nodes_inside_loops_are_replaced() -> None:
    """A Loop whose turns feed a layer's final state to its next one; W is made in the body."""
    turn = [
        helper.make_node("Transpose", ["Wt"], ["W"], perm=[2, 1, 0]),
        helper.make_node("GRU", ["x", "W", "R2", "", "", "h"], ["", "h_next"], name="turn",
                         hidden_size=3),
        helper.make_node("Identity", ["going"], ["goes_on"]),
        helper.make_node("Identity", ["h_next"], ["seen"]),
    ]  # fmt: skip
    floats, truth = TensorProto.FLOAT, TensorProto.BOOL
    body = helper.make_graph(
        turn,
        "turn",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", truth, []),
            helper.make_tensor_value_info("h", floats, None),
        ],
        [
            helper.make_tensor_value_info("goes_on", truth, []),
            helper.make_tensor_value_info("h_next", floats, None),
            helper.make_tensor_value_info("seen", floats, None),
        ],
        [numpy_helper.from_array(np.ascontiguousarray(CONSTANTS["W2"].transpose(2, 1, 0)), "Wt")],
    )
    nodes = [helper.make_node("Loop", ["turns", "", "h0"], ["last", "all"], body=body)]
    inputs = [
        helper.make_tensor_value_info("x", floats, [None, 2, 5]),
        helper.make_tensor_value_info("h0", floats, [1, 2, 3]),
        helper.make_tensor_value_info("turns", TensorProto.INT64, []),
    ]
    outputs = [helper.make_tensor_value_info(name, floats, None) for name in ("last", "all")]
    constants = [numpy_helper.from_array(CONSTANTS["R2"], "R2")]
    graph = helper.make_graph(nodes, "looped", inputs, outputs, constants)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    session = replaced(model)
    assert len(session.replaced) == 1
    given = {"x": uniform(4, 2, 5), "h0": uniform(1, 2, 3), "turns": np.array(5)}
    assert_equal(session.run(None, given), plain(model).run(None, given))


def test_a_layer_inside_a_function_is_onnx_runtimes() -> None:
    node = helper.make_node("GRU", ["x", "W", "R"], ["y"], hidden_size=3)
    version = [helper.make_opsetid("", 17)]
    function = helper.make_function("own", "Own", ["x", "W", "R"], ["y"], [node], version)
    kinds = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 2, 5])]
    kinds.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    constants = [numpy_helper.from_array(CONSTANTS[f"{n}2"], n) for n in "WR"]
    call = helper.make_node("Own", ["x", "W", "R"], ["y"], domain="own")
    graph = helper.make_graph([call], "g", kinds[:1], kinds[1:], constants)
    opsets = [*version, helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, ir_version=8, opset_imports=opsets, functions=[function])
    session, given = replaced(model), {"x": uniform(4, 2, 5)}
    assert [each.reason for each in session.refusals] == ["it stands in a function"]
    assert_equal(session.run(None, given), plain(model).run(None, given))


def test_values_of_float16_are_computed_in_float32_and_rounded_once() -> None:
    half = {n: CONSTANTS[f"{n}0"].astype(np.float16) for n in "WR"}
    node = helper.make_node(
        "LSTM", ["x", "W", "R"], ["y", "h"], hidden_size=4, direction="bidirectional"
    )
    kinds = [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [4, 2, 5])]
    kinds += [helper.make_tensor_value_info(n, TensorProto.FLOAT16, None) for n in ("y", "h")]
    constants = [numpy_helper.from_array(array, name) for name, array in half.items()]
    graph = helper.make_graph([node], "g", kinds[:1], kinds[1:], constants)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    session, x = replaced(model), uniform(4, 2, 5).astype(np.float16)
    assert session.replaced
    wide = Case("LSTM", {"direction": "bidirectional"}, {"X": x, **half}, ["Y", "Y_h"], hidden=4)
    want = run_oracle(wide)
    for name, got in zip(("Y", "Y_h"), session.run(None, {"x": x}), strict=True):
        assert got.dtype == np.float16
        assert_close(got, want[name], 2**-11, 2**-11)  # half of a unit in the last place


@pytest.mark.parametrize(
    "dtype, tolerance",
    [("bf16", 2e-2), ("f16", 4e-3), ("u8", 2e-2), ("int8-dynamic", 2e-2), ("int8-weights", 1.4e-2)],
)
def test_narrow_types_are_as_near_as_they_promise(dtype: str, tolerance: float) -> None:
    session, want = replaced(tagger(), dtype=dtype), plain(tagger()).run(["h2"], feed())[0]
    assert all(f", {dtype}, " in line for line in session.replaced)
    (got,) = session.run(["h2"], feed())
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance)
    assert np.abs(got - want).max() > 0


@pytest.mark.parametrize("dtype", ["u8", "int8-weights"])
@pytest.mark.parametrize("name", ["words", "h0"])
def test_bytes_refuse_infinity_and_not_that_behind_the_sentences(name: str, dtype: str) -> None:
    node = helper.make_node("GRU", ["words", "W2", "R2", "", "n", "h0"], ["y"], hidden_size=3)
    kinds = [
        helper.make_tensor_value_info("words", TensorProto.FLOAT, [4, 2, 5]),
        helper.make_tensor_value_info("n", TensorProto.INT32, [2]),
        helper.make_tensor_value_info("h0", TensorProto.FLOAT, [1, 2, 3]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    constants = [numpy_helper.from_array(CONSTANTS[n], n) for n in ("W2", "R2")]
    graph = helper.make_graph([node], "g", kinds[:3], kinds[3:], constants)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    session = replaced(model, dtype=dtype)
    given = {"words": uniform(4, 2, 5), "n": np.array([4, 2], np.int32), "h0": uniform(1, 2, 3)}
    given["words"][3, 1] = np.inf  # behind the second sentence
    assert np.isfinite(session.run(None, given)[0]).all()
    given[name][0, 0, 0] = np.inf
    with pytest.raises(Exception, match=rf"(X|initial_h): {dtype} holds finite numbers, got"):
        session.run(None, given)
