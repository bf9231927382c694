"""Inputs that are made for two models fit both; where none do, the message says what to type."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support import onnx_models, planted
from support.command_line import failed
from support.command_line import onernn as onernn_
from support.html_pages import Page
from support.onnx_models import parsed
from support.planted import compared, model, named, read, reordered, swapped

import onernn
from onernn import Graph
from onernn.ir.errors import UnsupportedError
from onernn.verification.input_generation import make_inputs
from onernn.verification.references import Against
from onernn.verification.verifying import verify

FIXED: dict[str, dict[str, list[int]]] = {
    "T": {"X": [6, 0, 4]},
    "N": {"X": [0, 3, 4], "lens": [3], "h0": [1, 3, 4]},
    "T and N": {"X": [9, 2, 4], "lens": [2], "h0": [1, 2, 4]},
}
"""Sizes that an exporter wrote down; 0 is open."""


def _sized(data: bytes, sizes: dict[str, list[int]], names: dict[str, str] | None = None) -> bytes:
    """The file with these sizes of its inputs, and with other names of them."""
    made = onnx.load_from_string(data)
    for value in made.graph.input:
        for at, size in enumerate(sizes.get(value.name, [])):
            if size:
                value.type.tensor_type.shape.dim[at].dim_value = size
    for old, new in (names or {}).items():
        for value in made.graph.input:
            value.name = new if value.name == old else value.name
        for node in made.graph.node:
            node.input[:] = [new if name == old else name for name in node.input]
    return made.SerializeToString()


@pytest.mark.parametrize("swap", [False, True], ids=["model", "reference"])
@pytest.mark.parametrize("fixed", FIXED)
def test_a_size_that_one_file_fixes_holds_for_the_other(fixed: str, swap: bool) -> None:
    sound, wrong = swapped()
    one, other = (
        (_sized(sound, FIXED[fixed]), wrong) if swap else (sound, _sized(wrong, FIXED[fixed]))
    )
    report = compared(other, one)
    assert named(report) == [("gates_swapped", "proved")]
    for value in (*read(one).inputs, *read(other).inputs):
        got = np.shape(report.evidence.inputs[value.name])
        assert all(a in (None, b) for a, b in zip(value.shape or (), got, strict=True)), value


def test_inputs_of_other_names_are_united_in_order() -> None:
    sound, wrong = swapped()
    names = {"X": "words", "lens": "sizes", "h0": "begin"}
    report = compared(wrong, _sized(sound, FIXED["T and N"], names))
    assert report.cause.id == "gates_swapped"


def test_sizes_that_contradict_each_other_are_told_with_what_to_type() -> None:
    sound, wrong = swapped()
    files = read(_sized(sound, {"X": [5, 0, 4]})), read(_sized(wrong, {"X": [7, 0, 4]}))
    files = replace(files[0], name="five"), files[1]
    with pytest.raises(UnsupportedError) as caught:
        verify(files[1], against=Against(files[0]))
    line = "pass --data inputs.npz, made by numpy.savez('inputs.npz', **{'in__X': ..., 'in__lens'"
    assert line in str(caught.value)
    assert "planted.onnx refuses them, it may be another model: input X" in str(caught.value)


GRU = f"Y = GRU <hidden_size = {planted.HIDDEN}> (X, W, R, B, lens)"
SOUND = """(float[N, S] input, float[2, N, 4] state, int64 sr) => (output, stateN) {
    row = Unsqueeze (input, one)
    fast = Equal (sr, rate)
    words = If (fast) <
        then_branch = a () => (float[1, N, 4] aout) {
            ac = Conv <strides = [128]> (row, ak)
            am = ReduceMean <axes = [2], keepdims = 0> (ac)
            aout = Unsqueeze (am, zero)
        },
        else_branch = b () => (float[1, N, 4] bout) {
            bc = Conv <strides = [64]> (row, bk)
            bm = ReduceMean <axes = [2], keepdims = 0> (bc)
            bout = Unsqueeze (bm, zero)
        }
    >
    h, c = Split <axis = 0> (state, half)
    y, hn, cn = LSTM <hidden_size = 4> (words, W, R, B, , h, c)
    stateN = Concat <axis = 0> (hn, cn)
    output = Sigmoid (hn)
}"""
"""As models of speech are: samples, a state, a rate that a branch asks; one step of an LSTM.

The window of each branch's convolution is longer than any usual T.
"""


def normal(
    rng: np.random.Generator, deviation: float, shapes: dict[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    return {k: rng.normal(0, deviation, shape).astype(np.float32) for k, shape in shapes.items()}


def _sound_model(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    shapes = {"ak": (4, 1, 128), "bk": (4, 1, 64), "W": (1, 16, 4), "R": (1, 16, 4), "B": (1, 32)}
    constants = normal(rng, 0.3, shapes)
    whole = {"rate": 16000, "half": [1, 1], "zero": [0], "one": [1]}
    constants |= {name: np.array(value) for name, value in whole.items()}
    onnx.save(parsed(SOUND, constants, opset=13), folder / "speech.onnx")
    return folder / "speech.onnx"


def test_samples_of_sound_and_their_rate_are_made(tmp_path: Path) -> None:
    file = _sound_model(tmp_path)
    made = make_inputs(onernn.load(file))
    assert made["sr"] == 16000 and np.shape(made["input"])[1] >= 128
    assert np.shape(made["state"])[1] == np.shape(made["input"])[0] > 1
    done = onernn_("verify", file, "--against", f"onnxruntime:{file}")
    assert done.returncode == 0 and "'sr' is 16000" in done.stdout, done.stdout


def test_repair_takes_data_where_no_inputs_can_be_made(tmp_path: Path) -> None:
    """A length that no attempt has: 316 numbers."""
    arrays = planted.weights("GRU")
    text = f"(float[S] flat) => (Y) {{ X = Reshape (flat, shape) {GRU.replace(', lens', '')} }}"
    for name, each in (("right", arrays), ("wrong", reordered(arrays, (1, 0, 2)))):
        constants = {**each, "shape": np.array([79, 1, 4])}
        onnx.save(parsed(text, constants), tmp_path / f"{name}.onnx")
    right, wrong, fixed = (tmp_path / f"{k}.onnx" for k in ("right", "wrong", "fixed"))
    command = ["repair", wrong, "--against", right, "-o", fixed]
    assert "--data inputs.npz" in failed(onernn_(*command))
    rng = np.random.default_rng(1)
    given = rng.uniform(-1, 1, 79 * 4).astype(np.float32)
    np.savez(tmp_path / "inputs.npz", in__flat=given)
    done = onernn_(*command, "--data", tmp_path / "inputs.npz")
    assert done.returncode == 0 and fixed.is_file(), done.stdout


# --- the steps that recurrent layers make on these inputs


WIDTH = 8
POOLS = {
    "mean": "y = ReduceMean <axes = [0], keepdims = 0> (h)",
    "last": "y = Gather <axis = 0> (h, last)",
}


def _over(front: str, pool: str = "mean", recurrent: float = 1.0, **more: np.ndarray) -> Graph:
    """``front`` makes t (T, N, 6) of x; an LSTM reads it, and one vector of a sequence is left."""
    rng = np.random.default_rng(1)
    shapes = {"W": (1, 4 * WIDTH, 6), "R": (1, 4 * WIDTH, WIDTH), "B": (1, 8 * WIDTH)}
    arrays = normal(rng, 0.4, shapes)
    arrays["R"] *= np.float32(recurrent)
    constants = {**arrays, **more, "one": np.array([1]), "last": np.array(-1)}
    body = f"""{front}
        Y = LSTM <hidden_size = {WIDTH}> (t, W, R, B)
        h = Squeeze (Y, one)
        {POOLS[pool]}"""
    text = f"(float[N, S] x) => (float[N, {WIDTH}] y) {{ {body} }}"
    return onnx_models.read(parsed(text, constants, opset=14))


def _strided(*windows: tuple[int, int], **fault: Any) -> Graph:
    """Convolutions over samples, each of a kernel and a stride."""
    rng = np.random.default_rng(2)
    front, x, kernels = "c0 = Unsqueeze (x, one)", "c0", {}
    for index, (kernel, stride) in enumerate(windows):
        shape = (6, 1 if index == 0 else 6, kernel)
        kernels[f"k{index}"] = rng.normal(0, 1 / np.sqrt(kernel), shape).astype(np.float32)
        front += f"\nc{index + 1} = Conv <strides = [{stride}]> ({x}, k{index})"
        x = f"c{index + 1}"
    return _over(f"{front}\nt = Transpose <perm = [2, 0, 1]> ({x})", **fault, **kernels)


NO_MEMORY: list[dict[str, Any]] = [{"recurrent": 0.0}, {"pool": "last"}]
"""Models that are right for one step: without recurrence, and with the last step as the mean."""


@pytest.mark.parametrize("windows", [[(3, 2)], [(400, 160)], [(512, 256), (4, 4), (4, 3)]])
@pytest.mark.parametrize("fault", NO_MEMORY, ids=["no recurrence", "last for mean"])
def test_every_layer_makes_eight_steps_whatever_comes_before_it(
    windows: list[tuple[int, int]], fault: dict[str, Any]
) -> None:
    report = verify(_strided(*windows, **fault), against=Against(_strided(*windows)))
    (steps,) = report.steps
    assert not report.matches and steps.count >= 8
    assert steps.most is None and "LSTM" in steps.layer


def test_layers_of_which_loops_and_branches_hold_one_make_eight_steps() -> None:
    rng = np.random.default_rng(0)
    constants = normal(rng, 0.4, {"W": (1, 9, 4), "R": (1, 9, 3)}) | {"eight": np.array(8000)}
    text = """(float[T, N, 4] X, int64 rate) => (y, z) {
        on = Equal (rate, eight)
        xt = Transpose <perm = [1, 2, 0]> (X)
        p = MaxPool <kernel_shape = [3], strides = [3]> (xt)
        q = Transpose <perm = [2, 0, 1]> (p)
        y = If (on) <
            then_branch = a () => (float[P, 1, N, 3] ya) { ya = GRU <hidden_size = 3> (q, W, R) },
            else_branch = b () => (float[P, 1, N, 3] yb) {
                yn = GRU <hidden_size = 3> (q, W, R)
                yb = Neg (yn)
            }
        >
        start = ReduceMean <axes = [0], keepdims = 0> (q)
        s, z = Scan <num_scan_inputs = 1, body = c (float[N, 4] si, float[N, 4] e)
            => (float[N, 4] so, float[N, 4] eo) {
                sum = Add (si, e)
                wide = Relu (sum)
                so = Sin (wide)
                eo = Identity (so)
            }> (start, q)
    }"""
    graph = onnx_models.read(parsed(text, constants, opset=14))
    report = verify(graph, against=Against(graph))
    ran = {each.count for each in report.steps if each.count is not None}
    assert report.passed and ran and min(ran) >= 8, report.steps
    skipped = [each for each in report.steps if each.count is None]
    assert len(skipped) == 1 and "was not taken" in str(skipped[0])


def test_one_step_of_a_layer_that_could_make_more_does_not_pass(tmp_path: Path) -> None:
    """A recording of one step: right, and no proof that the model is."""
    rng = np.random.default_rng(0)
    arrays = planted.weights("GRU")
    right = model("GRU", arrays, lengths=False)
    forgetful = model("GRU", planted.changed(arrays, R=0 * arrays["R"]), lengths=False)
    for steps in (1, 2):
        given = {
            "X": rng.normal(0, 1, (steps, 2, 4)).astype(np.float32),
            "lens": np.array([1, 1], np.int32),
            "h0": np.zeros((1, 2, 4), np.float32),
        }
        recorded = planted.recording(right, given)
        assert verify(read(right), recorded).passed is (steps == 2)
        assert not verify(read(forgetful), recorded).passed
    given = {**given, "X": given["X"][:1]}
    np.savez(tmp_path / "one.npz", **planted.recording(right, given))
    (tmp_path / "right.onnx").write_bytes(right)
    page = tmp_path / "page.html"
    command = ("verify", tmp_path / "right.onnx", "--data", tmp_path / "one.npz")
    done = onernn_(*command, "--report", page)
    assert done.returncode == 1 and "too few steps" in done.stdout and "1 step" in done.stdout
    assert "too few steps" in Page(page.read_text()).words
    done = onernn_(*command, "--json")
    said = json.loads(done.stdout)
    assert done.returncode == 1 and said["status"] == "fail" and said["outputs"][0]["pass"]
    (steps,) = said["details"]["steps"]
    assert steps["count"] == 1 and steps["most"] is None and steps["unseen"]


def test_a_layer_whose_shape_allows_one_step_passes_and_the_report_says_so() -> None:
    """One frame and a state, as streams have it: compared from states that are not zero."""
    arrays = planted.weights("LSTM")
    one = _sized(model("LSTM", arrays, lengths=False), {"X": [1, 0, 4]})
    still = model("LSTM", planted.changed(arrays, R=0 * arrays["R"]), lengths=False)
    report = compared(one, one)
    (steps,) = report.steps
    assert report.passed and (steps.count, steps.most) == (1, 1)
    assert "shape" in str(steps)
    assert not compared(still, one).passed


@pytest.mark.parametrize("lengths", [False, True])
def test_short_batches_and_unequal_lengths_are_compared(lengths: bool) -> None:
    """Right for sequences of more than four steps only."""
    arrays = {**planted.weights("GRU"), "four": np.array([[[4.0]]], np.float32)}
    layer = GRU if lengths else GRU.replace(", lens", "")
    broken, right = (
        onnx_models.read(
            parsed(f"(float[T, N, 4] X, int32[N] lens) => (out) {{ {layer} {last} }}", arrays)
        )
        for last in (
            """shape = Shape (X) first = Constant <value_ints = [0]> () t = Gather (shape, first)
            f = Cast <to = 1> (t) long = Less (four, f) factor = Cast <to = 1> (long)
            out = Mul (Y, factor)""",
            "out = Identity (Y)",
        )
    )
    report = verify(broken, against=Against(right))
    assert not report.matches and any("short batch" in note for note in report.notes)
    agreed = verify(right, against=Against(right))
    assert agreed.passed and any("a short batch matches" in note for note in agreed.notes)
    for seen in (make_inputs(right), make_inputs(right, short=True)):
        ends = seen["lens"]
        assert len(set(np.asarray(ends).tolist())) > 1


def test_images_grow_along_the_axis_that_a_file_leaves_open() -> None:
    """A line of text of fixed height, and one of fixed width."""
    rng = np.random.default_rng(0)
    constants = normal(rng, 0.4, {"k": (2, 1, 4, 4), "W": (1, 12, 2), "R": (1, 12, 4)})
    for axis, size in ((2, "[N, 1, 16, S]"), (3, "[N, 1, S, 16]")):
        text = f"""(float{size} image) => (y) {{
            c = Conv <strides = [4, 4]> (image, k)
            m = ReduceMean <axes = [{axis}], keepdims = 0> (c)
            t = Transpose <perm = [2, 0, 1]> (m)
            y = GRU <hidden_size = 4> (t, W, R)
        }}"""
        graph = onnx_models.read(parsed(text, constants, opset=14))
        report = verify(graph, against=Against(graph))
        (steps,) = report.steps
        assert report.passed and steps.count >= 8, steps


@pytest.mark.parametrize("shape", [f"{2**62}, 3", f"N, {2**62}", f"{2**40}, {2**40}"])
def test_inputs_of_sizes_beyond_memory_are_refused_before_they_are_made(
    shape: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(parsed(f"(float[{shape}] x) => (y) {{ y = Relu (x) }}").SerializeToString())
    with pytest.raises(UnsupportedError, match="generated for x: .* at most .* bytes"):
        make_inputs(onernn.load(path))


def test_sizes_of_one_name_are_made_equal() -> None:
    graph = onnx_models.read(
        parsed(
            """(float[S, N] a, float[B, S, 4] b, float[B, S] c) => (y) {
                d = ReduceSum <keepdims = 0> (b, two) e = Add (d, c) y = Gemm (e, a)
            }""",
            {"two": np.array([2])},
        )
    )
    shapes = {name: np.shape(value) for name, value in make_inputs(graph).items()}
    assert shapes["a"][0] == shapes["b"][1] == shapes["c"][1] and shapes["b"][0] == shapes["c"][0]
