"""Inputs that are made for two models fit both; where none do, the message says what to type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import planted
from support.command_line import failed
from support.command_line import onernn as onernn_
from support.onnx_models import parsed
from support.planted import model, read, reordered

import onernn
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


def _pair() -> tuple[bytes, bytes]:
    arrays = planted.weights("GRU")
    return model("GRU", arrays), model("GRU", reordered(arrays, (1, 0, 2)))


@pytest.mark.parametrize("swap", [False, True], ids=["model", "reference"])
@pytest.mark.parametrize("fixed", FIXED)
def test_a_size_that_one_file_fixes_holds_for_the_other(fixed: str, swap: bool) -> None:
    sound, wrong = _pair()
    one, other = (
        (_sized(sound, FIXED[fixed]), wrong) if swap else (sound, _sized(wrong, FIXED[fixed]))
    )
    report = verify(read(other), against=Against(read(one)))
    assert [(each.id, each.evidence) for each in report.causes] == [("gates_swapped", "proved")]
    assert report.evidence is not None
    for value in (*read(one).inputs, *read(other).inputs):
        got = np.shape(report.evidence.inputs[value.name])
        assert all(a in (None, b) for a, b in zip(value.shape or (), got, strict=True)), value


def test_inputs_of_other_names_are_united_in_order() -> None:
    sound, wrong = _pair()
    names = {"X": "words", "lens": "sizes", "h0": "begin"}
    report = verify(read(wrong), against=Against(read(_sized(sound, FIXED["T and N"], names))))
    assert report.cause is not None and report.cause.id == "gates_swapped"


def test_sizes_that_contradict_each_other_are_told_with_what_to_type() -> None:
    sound, wrong = _pair()
    files = read(_sized(sound, {"X": [5, 0, 4]})), read(_sized(wrong, {"X": [7, 0, 4]}))
    with pytest.raises(UnsupportedError, match=r"expected|got") as caught:
        verify(files[1], against=Against(files[0]))
    line = "give --data inputs.npz, made by numpy.savez('inputs.npz', **{'in__X': ..., 'in__lens'"
    assert line in str(caught.value)


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


def _sound_model(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    shapes = {"ak": (4, 1, 128), "bk": (4, 1, 64), "W": (1, 16, 4), "R": (1, 16, 4), "B": (1, 32)}
    constants = {k: rng.normal(0, 0.3, shape).astype(np.float32) for k, shape in shapes.items()}
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
    for name, each in (("right", arrays), ("wrong", reordered(arrays, (1, 0, 2)))):
        made = onnx.load_from_string(model("GRU", each, lengths=False, states=False))
        graph = made.graph
        del graph.input[:]
        flat = helper.make_tensor_value_info("flat", TensorProto.FLOAT, [None])
        graph.input.append(flat)
        shape = numpy_helper.from_array(np.array([79, 1, 4]), "shape")
        graph.initializer.append(shape)
        graph.node.insert(0, helper.make_node("Reshape", ["flat", "shape"], ["X"]))
        onnx.save(made, tmp_path / f"{name}.onnx")
    right, wrong, fixed = (tmp_path / f"{k}.onnx" for k in ("right", "wrong", "fixed"))
    command = ["repair", wrong, "--against", right, "-o", fixed]
    assert "--data inputs.npz" in failed(onernn_(*command))
    rng = np.random.default_rng(1)
    given = rng.uniform(-1, 1, 79 * 4).astype(np.float32)
    np.savez(tmp_path / "inputs.npz", in__flat=given)
    done = onernn_(*command, "--data", tmp_path / "inputs.npz")
    assert done.returncode == 0 and fixed.is_file(), done.stdout


@pytest.mark.parametrize("shape", [f"{2**62}, 3", f"N, {2**62}", f"{2**40}, {2**40}"])
def test_inputs_of_sizes_beyond_memory_are_refused_before_they_are_made(
    shape: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(parsed(f"(float[{shape}] x) => (y) {{ y = Relu (x) }}").SerializeToString())
    with pytest.raises(UnsupportedError, match="no inputs could be made for x: .* bytes; at most"):
        make_inputs(onernn.load(path))
