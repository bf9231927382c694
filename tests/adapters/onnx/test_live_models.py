"""Models split between ONNX Runtime and ours against ONNX Runtime alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.onnx_rnn import random_case

from onernn import MissingDependencyError
from onernn.adapters.onnx import optimize
from onernn.adapters.onnx.live import plugin

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


def plain(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def assert_equal(got: list[Any], want: list[Any]) -> None:
    for mine, theirs in zip(got, want, strict=True):
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
        largest = np.abs(theirs).max(initial=0)
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6 + 1e-5 * largest)


def test_a_split_model_gives_what_onnx_runtime_gives() -> None:
    session, theirs = optimize(tagger()), plain(tagger())
    for seed in range(8):
        assert_equal(session.run(None, feed(seed)), theirs.run(None, feed(seed)))
    assert_equal(session.run(["h2", "tags"], feed()), theirs.run(["h2", "tags"], feed()))
    assert [line.split(":")[0] for line in session.replaced] == [
        "node 'first' (LSTM)",
        "node 'second' (GRU)",
        "node 'beside' (GRU)",
    ]
    assert "NumPy" not in session.explain() and not session.refusals


def test_its_inputs_and_outputs_are_described_as_onnx_runtime_does() -> None:
    session, theirs = optimize(tagger()), plain(tagger())
    for mine, want in zip(session.get_inputs(), theirs.get_inputs(), strict=True):
        assert (mine.name, mine.shape, mine.type) == (want.name, want.shape, want.type)
    got = [(each.name, each.type) for each in session.get_outputs()]
    assert got == [(each.name, each.type) for each in theirs.get_outputs()]


@pytest.mark.parametrize("form", ["path", "bytes", "proto"])
def test_a_model_comes_as_a_path_as_bytes_or_as_a_proto(form: str, tmp_path: Path) -> None:
    given: Any = {"path": tmp_path / "m.onnx", "proto": tagger()}.get(form)
    if form == "path":
        onnx.save(tagger(), given)
    given = tagger().SerializeToString() if form == "bytes" else given
    assert_equal(optimize(given).run(None, feed()), plain(tagger()).run(None, feed()))


def test_threads_share_a_session() -> None:
    session, theirs = optimize(tagger(), threads=1), plain(tagger())
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda seed: session.run(None, feed(seed)), range(16)))
    for seed, got in enumerate(results):
        assert_equal(got, theirs.run(None, feed(seed)))


def test_what_ours_cannot_run_stays_in_onnx_runtime_with_the_reason() -> None:
    model = tagger()
    model.graph.node[5].input[1] = "W2x"  # a weight that is computed
    model.graph.node.insert(5, helper.make_node("Hardmax", ["W2"], ["W2x"]))
    session = optimize(model)
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
    session = optimize(model)
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
        assert_equal(optimize(model).run(None, given), plain(model).run(None, given))


def test_a_model_of_recurrent_nodes_only_and_one_without_any() -> None:
    ran = 0
    for seed in range(40):
        case = random_case(seed)
        try:
            theirs = plain(case.model())
            want = theirs.run(None, case.feed())
        except Exception:  # layout=1, float64 and the like
            continue
        if case.attributes.get("clip") == 0:  # ONNX Runtime's RNN takes that at its word
            continue
        session = optimize(case.model())
        assert_equal(session.run(None, case.feed()), want)
        ran += 1
    assert ran > 10
    node = helper.make_node("Relu", ["x"], ["y"])
    kinds = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in ("x", "y")]
    graph = helper.make_graph([node], "g", kinds[:1], kinds[1:])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    session = optimize(model)
    assert session.run(None, {"x": np.array([-1, 0, 2], np.float32)})[0].tolist() == [0, 0, 2]
    assert session.explain() == "no recurrent nodes"


def test_without_onnx_the_command_that_installs_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'onernn\[onnx\]'"):
        optimize(b"")


def test_the_rest_of_the_model_is_one_sub_model_a_level() -> None:
    """words -> first, beside -> second -> scores: two parts of ONNX Runtime's."""
    session = optimize(tagger())
    assert sum(step.theirs is not None for step in session._steps) == 2
    assert sum(step.ours is not None for step in session._steps) == 3


def test_views_behind_a_layer_go_with_it_unless_they_are_computed() -> None:
    session = optimize(tagger())
    (first,) = (step for step in session._steps if "X1" in step.outputs)
    assert first.ours is not None and set(first.outputs) == {"X1"}  # what nobody reads is not made
    model = tagger()
    model.graph.node[3].input[1] = "sizes"  # a Reshape to a shape that is computed
    model.graph.node.insert(0, helper.make_node("Abs", ["flat_"], ["sizes"]))
    model.graph.initializer.append(numpy_helper.from_array(np.array([0, 0, 8]), "flat_"))
    session = optimize(model)
    (first,) = (step for step in session._steps if "T0" in step.outputs)
    assert first.ours is not None
    assert_equal(session.run(None, feed()), plain(model).run(None, feed()))


def test_arrays_go_from_one_side_to_the_other_without_a_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What either side reads lies where the other one wrote it."""
    session = optimize(tagger())
    made: dict[str, int] = {}  # the address of each value, by who made it
    read: dict[str, int] = {}  # and as ours reads it
    taken: set[int] = set()  # addresses that ONNX Runtime reads
    run, wrap = plugin._run, onnxruntime.OrtValue.ortvalue_from_numpy

    def wrapped(array: np.ndarray) -> Any:
        value = wrap(array)
        taken.add(value.data_ptr())
        return value

    def recorded(step: Any, values: dict[str, np.ndarray], *more: Any) -> dict[str, np.ndarray]:
        outputs = run(step, values, *more)
        kept.append((values, outputs))  # lest an address is given away twice
        made.update({name: array.ctypes.data for name, array in outputs.items()})
        if step.ours is not None:
            read.update({name: array.ctypes.data for name, array in values.items()})
        return outputs

    kept: list[Any] = []
    monkeypatch.setattr(plugin, "_run", recorded)
    monkeypatch.setattr(onnxruntime.OrtValue, "ortvalue_from_numpy", staticmethod(wrapped))
    session.run(None, feed())
    assert read["words"] == made["words"]  # from ONNX Runtime to ours
    assert read["X1"] == made["X1"]  # from ours to ours
    assert {made["Y1"], made["Y2"]} <= taken  # and back


def test_what_stands_behind_the_sentences_is_not_computed() -> None:
    """Half of the batch is padding: ours reads the words alone."""
    session = optimize(tagger())
    seen: list[Any] = []
    for step in session._steps:
        for prepared in step.ours._layers.values() if step.ours else ():
            layer = prepared.layer
            layer.run = lambda x, *more, rows=layer.run: seen.append(x) or rows(x, *more)
    lengths = np.array([8, 1, 0, 3, 4], np.int32)
    given = {"ids": RNG.integers(0, 20, (8, 5)), "n": lengths}
    assert_equal(session.run(None, given), plain(tagger()).run(None, given))
    assert [len(x.data) for x in seen] == [lengths.sum()] * 3


def test_recurrent_nodes_inside_branches_are_left_to_onnx_runtime_and_told() -> None:
    model = tagger()
    inner = helper.make_graph(
        [helper.make_node("GRU", ["words", "W2", "R2"], ["b"], name="inner", hidden_size=3)],
        "branch",
        [],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)],
    )
    fork = helper.make_node("If", ["c"], ["chosen"], then_branch=inner, else_branch=inner)
    model.graph.node.append(fork)
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    model.graph.output.append(helper.make_tensor_value_info("chosen", TensorProto.FLOAT, None))
    session = optimize(model)
    assert {(each.where, each.reason) for each in session.refusals} == {
        ("node 'inner' (GRU)", "it stands in the body of an If")
    }
    given = {**feed(), "c": np.array(True)}
    assert_equal(session.run(None, given), plain(model).run(None, given))
