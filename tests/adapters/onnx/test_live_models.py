"""Models whose recurrent nodes ours runs inside ONNX Runtime, against ONNX Runtime alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from support.checking import assert_close
from support.machine import SATURATES
from support.onnx_models import assert_equal, live, parsed, quiet, session_of, small
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
    return parsed(
        """(int64[time, batch] ids, int32[batch] n) => (scores, tags, h2) {
        words = Gather (table, ids)
        [first] Y0, h0 = LSTM <hidden_size = 4, direction = "bidirectional"> (words, W0, R0, , n)
        T0 = Transpose <perm = [0, 2, 1, 3]> (Y0)
        X1 = Reshape (T0, flat)
        [second] Y1 = GRU <hidden_size = 3> (X1, W1, R1, , n)
        [beside] Y2, h2 = GRU <hidden_size = 3, direction = "reverse"> (words, W2, R2, , n)
        S = Add (Y1, Y2)
        S3 = Squeeze (S, one)
        scores = MatMul (S3, M)
        tags = ArgMax <axis = 2, keepdims = 0> (scores)
        }""",
        CONSTANTS,
    )


def feed(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 8, 5).astype(np.int32)
    return {"ids": rng.integers(0, 20, (max(1, lengths.max()), 5)), "n": lengths}


def test_a_model_with_our_layers_gives_what_onnx_runtime_gives() -> None:
    model = tagger()
    before, session = model.SerializeToString(), live(model, *map(feed, range(8)))
    assert model.SerializeToString() == before
    want = session_of(tagger()).run(["h2", "tags"], feed())
    assert_equal(session.run(["h2", "tags"], feed()), want)
    assert [line.split(":")[0] for line in session.replaced] == [
        "node 'first' (LSTM)",
        "node 'second' (GRU)",
        "node 'beside' (GRU)",
    ]
    assert not session.refusals and session.explain().splitlines() == list(session.replaced)


@pytest.mark.parametrize("form", ["path", "text", "weights beside it", "bytes", "proto"])
def test_a_model_comes_as_a_path_as_bytes_or_as_a_proto(form: str, tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    onnx.save(tagger(), file, save_as_external_data=form == "weights beside it", size_threshold=0)
    forms = {"text": str(file), "bytes": tagger().SerializeToString(), "proto": tagger()}
    session = optimize(forms.get(form, file))
    assert len(session.replaced) == 3
    assert_equal(session.run(None, feed()), session_of(tagger()).run(None, feed()))


def test_what_ours_cannot_run_stays_in_onnx_runtime_with_the_reason() -> None:
    model = tagger()
    model.graph.node[5].input[1] = "W2x"  # a weight that is computed
    model.graph.node.insert(5, helper.make_node("Hardmax", ["W2"], ["W2x"]))
    session = live(model, feed())
    (refusal,) = session.refusals
    assert "beside" in refusal.where and "computed at run time" in refusal.reason
    assert "ONNX Runtime" in session.explain() and len(session.replaced) == 2


FORK = """(float[4, 2, 5] words, bool c) => (chosen) {
    x = Neg (words)
    chosen = If (c) <
        then_branch = one () => (b) {
            %s
            b = Neg (g)
        },
        else_branch = two () => (b) {
            %s
            b = Abs (g)
        }>
    }"""
INSIDE = "[%s] g = GRU <hidden_size = 3> (x, W2, R2)"


@pytest.mark.parametrize("inside", [True, False], ids=["layers in branches", "a layer before"])
def test_branches_hold_layers_and_see_what_comes_from_ours(inside: bool) -> None:
    if inside:
        text = FORK % (INSIDE % "left", INSIDE % "right")
    else:
        text = (FORK % ("", "")).replace("x = Neg (words)", "x = Neg (words)\n" + INSIDE % "before")
    words = uniform(4, 2, 5)
    given = ({"words": words, "c": np.array(c)} for c in (True, False))
    session = live(parsed(text, small(CONSTANTS, "W2", "R2")), *given)
    assert len(session.replaced) == 1 + inside and not session.refusals


def test_random_nodes_are_right_or_left_to_onnx_runtime() -> None:
    """Those that ONNX Runtime does not run at all, too: layout=1, float64."""
    ran = 0
    for seed in range(120):
        case = random_case(seed)
        try:
            session = optimize(case.model(), session_options=quiet())
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
    session = optimize(parsed("(float[3] x) => (float[3] y) { y = Relu (x) }"))
    assert isinstance(session, onnxruntime.InferenceSession)
    assert session.run(None, {"x": np.array([-1, 0, 2], np.float32)})[0].tolist() == [0, 0, 2]
    assert session.explain() == "no recurrent nodes"


def test_without_onnx_the_command_that_installs_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'onernn\[onnx\]'"):
        optimize(b"")


def test_recurrent_nodes_inside_loops_are_replaced() -> None:
    """A Loop whose turns feed a layer's final state to its next one; W is made in the body."""
    text = """(float[?, 2, 5] x, float[1, 2, 3] h0, int64 turns) => (last, all) {
        last, all = Loop (turns, , h0) <body = turn (int64 i, bool going, float[] h)
            => (bool goes_on, float[] h_next, float[] seen) {
            W = Transpose <perm = [2, 1, 0]> (Wt)
            [turn] , h_next = GRU <hidden_size = 3> (x, W, R2, , , h)
            goes_on = Identity (going)
            seen = Identity (h_next)
        }>
        }"""
    turned = {"Wt": np.ascontiguousarray(CONSTANTS["W2"].transpose(2, 1, 0))}
    model = parsed(text, small(CONSTANTS, "R2") | turned)
    given = {"x": uniform(4, 2, 5), "h0": uniform(1, 2, 3), "turns": np.array(5)}
    assert len(live(model, given).replaced) == 1


def test_a_layer_inside_a_function_is_onnx_runtimes() -> None:
    node = helper.make_node("GRU", ["x", "W", "R"], ["y"], hidden_size=3)
    opsets = [helper.make_opsetid("", 17), own := helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "Own", ["x", "W", "R"], ["y"], [node], opsets[:1])
    text = "(float[4, 2, 5] x) => (y) { y = own.Own (x, W2, R2) }"
    model = parsed(text, small(CONSTANTS, "W2", "R2"), opsets=[own], functions=[function])
    session = live(model, {"x": uniform(4, 2, 5)})
    (refusal,) = session.refusals
    assert refusal.reason.startswith("it is in a function of the model; inline functions")


def test_values_of_float16_are_computed_in_float32_and_rounded_once() -> None:
    half = {n: CONSTANTS[f"{n}0"].astype(np.float16) for n in "WR"}
    text = """(float16[4, 2, 5] x) => (y, h) {
        y, h = LSTM <hidden_size = 4, direction = "bidirectional"> (x, W, R)
        }"""
    session, x = optimize(parsed(text, half)), uniform(4, 2, 5).astype(np.float16)
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
    session, want = optimize(tagger(), dtype=dtype), session_of(tagger()).run(["h2"], feed())[0]
    assert all(f", {dtype}, " in line for line in session.replaced)
    (got,) = session.run(["h2"], feed())
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance)
    assert np.abs(got - want).max() > 0


@pytest.mark.parametrize("dtype", ["u8", "int8-weights"])
@pytest.mark.parametrize("name", ["words", "h0"])
def test_bytes_refuse_infinity_and_not_that_behind_the_sentences(name: str, dtype: str) -> None:
    text = """(float[4, 2, 5] words, int32[2] n, float[1, 2, 3] h0) => (y) {
        y = GRU <hidden_size = 3> (words, W2, R2, , n, h0)
        }"""
    session = optimize(parsed(text, small(CONSTANTS, "W2", "R2")), dtype=dtype)
    given = {"words": uniform(4, 2, 5), "n": np.array([4, 2], np.int32), "h0": uniform(1, 2, 3)}
    given["words"][3, 1] = np.inf  # behind the second sentence
    assert np.isfinite(session.run(None, given)[0]).all()
    given[name][0, 0, 0] = np.inf
    with pytest.raises(Exception, match=rf"(X|initial_h): {dtype} "):
        session.run(None, given)


@pytest.mark.parametrize("mode", ["ORT_SEQUENTIAL", "ORT_PARALLEL"])
def test_any_pools_of_onnx_runtime_give_the_same_bits(mode: str) -> None:
    """For such a batch a layer asks for six threads more; 0 threads are ONNX Runtime's choice."""
    constants = {f"W{k}": uniform(2, 256, 16) for k in (0, 1)}
    constants |= {f"R{k}": uniform(2, 256, 64) / 4 for k in (0, 1)}
    layers = [
        f'y{k} = LSTM <hidden_size = 64, direction = "bidirectional"> (x, W{k}, R{k}, , n)'
        for k in (0, 1)
    ]
    model = parsed(
        f"(float[?, ?, 16] x, int32[?] n) => (y0, y1) {{ {' '.join(layers)} }}", constants
    )
    lengths = np.array([40, 3, 9, 40], np.int32)
    given = {"x": uniform(40, 4, 16), "n": lengths}
    theirs = session_of(model).run(None, given)
    expected = optimize(model, session_options=quiet()).run(None, given)
    for mine, one in zip(expected, theirs, strict=True):
        assert_close(mine, one)
    for intra, inter in ((0, 0), (2, 1), (3, 2), (4, 3), (8, 2), (16, 4), (1, 4)):
        options = quiet(
            intra_op_num_threads=intra,
            inter_op_num_threads=inter,
            execution_mode=getattr(onnxruntime.ExecutionMode, mode),
        )
        session = optimize(model, session_options=options)
        assert len(session.replaced) == 2
        for _ in range(3):
            for mine, one in zip(session.run(None, given), expected, strict=True):
                np.testing.assert_array_equal(mine, one)


NUMBER = "<value = float[1] {{{}}}>"
STATES = {
    "ConstantOfShape": f"wide = ConstantOfShape {NUMBER} (shape)",
    "Expand": f"one = Constant {NUMBER} () wide = Expand (one, shape)",
    "a float": "one = Constant <value_float: float = {}> () wide = Expand (one, shape)",
}


def exported(value: float, form: str) -> onnx.ModelProto:
    """An initial state of one number in a size that is computed, as PyTorch exports it."""
    state = STATES[form].format(value)
    text = f"""(float[?, ?, 5] x) => (y) {{
        sizes = Shape (x)
        count = Gather (sizes, one)
        shape = Concat <axis = 0> (one, count, three)
        {state.replace("one", "filling")}
        h = Identity (wide)
        y = GRU <hidden_size = 3> (x, W2, R2, , , h)
        }}"""
    return parsed(text, small(CONSTANTS, "W2", "R2", "one") | {"three": np.array([3])})


@pytest.mark.parametrize("form", STATES)
@pytest.mark.parametrize("value", [0.0, 0.5])
def test_states_that_are_zeros_are_not_made(value: float, form: str) -> None:
    model = exported(value, form)
    feeds = ({"x": uniform(4, count, 5)} for count in (1, 3))
    session = live(model, *feeds)
    kinds = [node.op_type for node in onnx.load_from_string(session._model_bytes).graph.node]
    left_out = value == 0 and form != "a float"
    assert (kinds == ["Layer"]) == left_out and "Layer" in kinds
    assert len(model.graph.node) > 5  # what was given stays as it was


@pytest.mark.parametrize("state, weights", [("h", "W2"), ("zeros", "w")], ids=["weights", "state"])
def test_an_input_of_a_body_hides_an_outer_constant_of_its_name(state: str, weights: str) -> None:
    model = parsed(
        f"""(float[4, 5, 2, 5] xs, float[4, 1, 9, 5] ws, float[1, 2, 3] first) => (last, all) {{
        zeros = Expand (zero, shape)
        last, all = Scan <num_scan_inputs = 2, body = step (
            float[1, 2, 3] {state}, float[5, 2, 5] x, float[1, 9, 5] {weights}
        ) => (float[1, 2, 3] after, float[5, 1, 2, 3] y) {{
            y, after = GRU <hidden_size = 3> (x, W2, R2, , , {state})
        }}> (first, xs, ws)
        }}""",
        small(CONSTANTS, "W2", "R2") | {"zero": np.float32([0]), "shape": np.array([1, 2, 3])},
    )
    live(model, {"xs": uniform(4, 5, 2, 5), "ws": uniform(4, 1, 9, 5), "first": uniform(1, 2, 3)})


def test_exported_models_give_the_recorded_outputs() -> None:
    """Of PyTorch and TensorFlow, as these computed them; most have their layers as nodes."""
    replacements = {}
    for file in sorted((Path(__file__).parents[2] / "data" / "onnx").glob("*/model.onnx")):
        if SATURATES and file.parent.name.startswith("onnxruntime_quantized"):
            continue  # ONNX Runtime's own products differ from the recorded ones here
        session = optimize(file, session_options=quiet())
        replacements[file.parent.name] = len(session.replaced)
        assert not session.refusals
        with np.load(file.with_name("io.npz")) as recorded:
            feed = {value.name: recorded[f"in__{value.name}"] for value in session.get_inputs()}
            wanted = [recorded[name] for name in recorded if name.startswith("out__")]
            for got, want in zip(session.run(None, feed), wanted, strict=True):
                assert_close(got, want, rtol=2e-5, atol=2e-5)
    assert sum(map(bool, replacements.values())) >= 8, replacements
