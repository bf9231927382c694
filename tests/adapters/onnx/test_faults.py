"""Each known fault of an ONNX file is found, and is not in the healthy file beside it."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from support.arrays import uniform
from support.onnx_models import parsed

from onernn import audit
from onernn.adapters.onnx import faults
from onernn.ir.arrays import Array

I, O, N = 3, 4, 1  # noqa: E741


def numbers(*shape: int, name: str) -> Array:
    return uniform(*shape, seed=len(name))


def recurrent(
    cell: str,
    *,
    T: int | None = 5,
    begin: str = "",
    end: bool = False,
    producer: tuple[str, str] = ("", ""),
    **attributes: Any,
) -> onnx.ModelProto:
    """``begin``: no initial states, "zeros", "numbers" or "input"; ``end``: final ones come out."""
    gates, states = {"LSTM": (4, "hc"), "GRU": (3, "h")}[cell]
    held = {"W": numbers(1, gates * O, I, name="W"), "R": numbers(1, gates * O, O, name="R")}
    inputs, ends = [f"float[{T or '?'}, {N}, {I}] x"], [f"last_{each}" for each in states]
    if begin == "input":
        inputs += [f"float[1, {N}, {O}] {each}" for each in states]
    elif begin:
        held |= {s: numbers(1, N, O, name=s) * (begin == "numbers") for s in states}
    told = ", ".join(f"{k} = {v}" for k, v in {"hidden_size": O, **attributes}.items())
    read = ", ".join(["x, W, R", *(["", "", *states] if begin else [])])
    made, outputs = ", ".join(["y", *ends]), ", ".join(["y", *(ends if end else [])])
    text = f"({', '.join(inputs)}) => ({outputs}) {{ {made} = {cell} <{told}> ({read}) }}"
    return parsed(text, held, producer_name=producer[0], producer_version=producer[1])


@pytest.fixture
def audited(tmp_path: Path) -> Callable[..., Any]:
    count = itertools.count()

    def run(made: onnx.ModelProto, data: Any = None) -> Any:
        file = tmp_path / f"{next(count)}.onnx"
        onnx.save(made, file)
        return audit(file, data)

    return run


def names(report: Any) -> list[str]:
    assert bool(report) == (not report.findings)
    return [each.fault for each in report.findings]


TORCH = "pytorch", "2.10.0"


@pytest.mark.parametrize(
    "producer, reset_behind, expected",
    [
        (TORCH, 0, ["reset_before_product"]),
        (TORCH, None, ["reset_before_product"]),
        (TORCH, 1, []),
        (("tf2onnx", "1.17.0"), 0, []),  # Keras has both
    ],
)
def test_a_gru_of_pytorch_that_resets_before_its_product(
    audited: Any, producer: tuple[str, str], reset_behind: int | None, expected: list[str]
) -> None:
    more = {} if reset_behind is None else {"linear_before_reset": reset_behind}
    report = audited(recurrent("GRU", producer=producer, **more))
    assert names(report) == expected
    if expected:
        assert "pytorch 2.10.0" in report.findings[0].text


def test_how_far_such_a_gru_is_off_is_what_onnxruntime_gives(audited: Any) -> None:
    runtime = pytest.importorskip("onnxruntime")
    x = uniform(5, N, I, seed=7)
    made: list[Array] = []
    for reset_behind in (0, 1):
        wrong = recurrent("GRU", producer=TORCH, linear_before_reset=reset_behind)
        made.append(runtime.InferenceSession(wrong.SerializeToString()).run(["y"], {"x": x})[0])
    (finding,) = audited(
        recurrent("GRU", producer=TORCH, linear_before_reset=0), {"in__x": x}
    ).findings
    assert finding.max_abs == pytest.approx(np.abs(made[0] - made[1]).max(), abs=1e-5)
    assert finding.max_abs > 1e-2


def test_an_lstm_whose_projection_was_cut(audited: Any) -> None:
    """As torch.onnx writes proj_size=2 of 4 units: hidden_size=2, and the weights cut to that."""
    for units, expected in ((4, ["projection_cut"]), (2, [])):
        shapes = {"W": (1, 8, I), "R": (1, 8, 2), "h": (1, N, 2), "c": (1, N, units)}
        held = {name: numbers(*shape, name=name) for name, shape in shapes.items()}
        node = "y = LSTM <hidden_size = 2> (x, W, R, , , h, c)"
        report = audited(parsed(f"(float[5, {N}, {I}] x) => (y) {{ {node} }}", held))
        assert names(report) == expected
        assert all(each.effect == "refuses" for each in report.findings)


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_layers_of_one_step_that_forget_it(audited: Any, cell: str) -> None:
    more = {"linear_before_reset": 1} if cell == "GRU" else {}
    for begin in ("", "zeros"):
        assert names(audited(recurrent(cell, T=1, begin=begin, **more))) == ["states_forgotten"]
    for healthy in (
        {"T": 5},  # a clip
        {"T": None},
        {"T": 1, "begin": "input", "end": True},
        {"T": 1, "begin": "numbers"},
        {"T": 1, "end": True},
    ):
        assert names(audited(recurrent(cell, **{**more, **healthy}))) == []


def test_an_lstm_that_is_quantized_with_its_batch(audited: Any) -> None:
    held = {"s": np.full((1, 4 * O), 0.01, np.float32), "z": np.zeros((1, 4 * O), np.int8)}
    held |= {name: np.ones((1, rows, 4 * O), np.int8) for name, rows in (("W", I), ("R", O))}
    node = f"com.microsoft.DynamicQuantizeLSTM <hidden_size = {O}> (x, W, R, , , , , , s, z, s, z)"
    text = f"(float[5, {N}, {I}] x) => (y) {{ y = {node} }}"
    made = parsed(text, held, opsets=[helper.make_opsetid("com.microsoft", 1)])
    assert names(audited(made)) == ["batch_changes_steps"]


def test_a_file_that_is_known_by_its_hash(
    audited: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The known ones cannot be in here; another file takes their place, and one byte differs."""
    content = recurrent("LSTM").SerializeToString()
    listed = {(len(content), hashlib.sha256(content).hexdigest()): "what is wrong"}
    monkeypatch.setattr(faults, "_FILES", listed)
    file = tmp_path / "file.onnx"
    file.write_bytes(content)
    report = audit(file)
    assert names(report) == ["other_weights"] and report.findings[0].text == "what is wrong"
    at = content.index(numbers(1, 4 * O, I, name="W").tobytes())
    file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    assert names(audit(file)) == []


@pytest.mark.parametrize(("begin", "free"), [("zeros", True), ("zeros", False), ("input", True)])
def test_a_state_that_was_made_for_one_batch(audited: Any, begin: str, free: bool) -> None:
    """As torch.onnx writes h0 = torch.zeros(1, 1, O) beside an input of any batch."""
    made = recurrent("LSTM", begin=begin, producer=TORCH)
    if free:
        made.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", 1, ["T", "N", I]))
    report = audited(made)
    wrong = free and begin == "zeros"
    assert names(report) == (["states_of_one_batch"] if wrong else [])
    assert not wrong or f"runs with {N} and no other" in report.findings[0].text


HELD = {
    "W": (1, 4 * O, I),
    "R": (1, 4 * O, O),
    "WW": (2, 4 * O, I),
    "RR": (2, 4 * O, O),
    "h": (1, 2, O),
    "c": (1, 2, O),
}
WHOLE = {"lengths": np.array([5, 3], np.int32), "halves": np.array([1, 1])}


def names_of(audited: Any, text: str) -> list[str]:
    """The faults of a model in ONNX's words, with the arrays of HELD and WHOLE that it names."""
    held = {name: numbers(*shape, name=name) for name, shape in HELD.items()} | WHOLE
    made = parsed(text, held)
    read = {name for node in made.graph.node for name in node.input}
    kept = [each for each in made.graph.initializer if each.name in read]
    del made.graph.initializer[:]
    made.graph.initializer.extend(kept)
    return names(audited(made))


LENGTHS = {
    "y = {} (x, {w}, {r}, , lens)": [],
    "narrow = Cast <to = 6> (lens) y = {} (x, {w}, {r}, , narrow)": [],
    "y = {} (x, {w}, {r})": ["lengths_unread"],
    "y = {} (x, {w}, {r}) z = Cast <to = 1> (lens)": ["lengths_unread"],
}


@pytest.mark.parametrize("body", LENGTHS)
@pytest.mark.parametrize("way", ["forward", "bidirectional"])
def test_declared_lengths_that_no_recurrent_operator_reads(
    audited: Any, body: str, way: str
) -> None:
    layer = f'LSTM <hidden_size = {O}, direction = "{way}">'
    w, r = ("W", "R") if way == "forward" else ("WW", "RR")
    dtype = "int64" if "Cast <to = 6>" in body else "int32"
    inputs = f"float[T, B, {I}] x, {dtype}[B] lens"
    text = f"({inputs}) => (y) {{ {body.format(layer, w=w, r=r)} }}"
    last_step_only = way == "forward" and "z = " in body  # such as the choice of the last step
    assert names_of(audited, text) == ([] if last_step_only else LENGTHS[body])


@pytest.mark.parametrize(
    "inputs, expected",
    [
        ("x, W, R, , lengths", ["lengths_of_one_batch"]),
        ("x, W, R, , , h, c", ["states_of_one_batch"]),
        ("x, W, R, , , begin, c", ["states_of_one_batch"]),
        ("x, W, R, , lens, h, c", ["states_of_one_batch"]),
        ("x, W, R, , lens, begin, begin", []),
    ],
)
def test_constants_of_one_batch_beside_an_input_of_any(
    audited: Any, inputs: str, expected: list[str]
) -> None:
    """The same constants in a file of two sequences are right."""
    for batch, found in (("B", expected), ("2", [])):
        sizes = f"float[{5 if batch == '2' else 'T'}, {batch}, {I}] x, float[1, {batch}, {O}] begin"
        given = f"{sizes}, int32[{batch}] lens" if "lens," in inputs else sizes
        text = f"({given}) => (y) {{ y = LSTM <hidden_size = {O}> ({inputs}) }}"
        assert names_of(audited, text) == found


@pytest.mark.parametrize("layout", [0, 1])
def test_batch_major_layouts_that_onnxruntime_refuses(audited: Any, layout: int) -> None:
    node = f"y = LSTM <hidden_size = {O}, layout = {layout}> (x, W, R)"
    text = f"(float[5, 2, {I}] x) => (y) {{ {node} }}"
    assert names_of(audited, text) == ["layout_refused"] * layout


STATES = {
    "hn = Identity (begin)": ["state_returned"],
    "hn = Identity (last)": [],
    "flat = Transpose <perm = [1, 0, 2]> (begin) hn = Identity (flat)": ["state_returned"],
    "twice = Add (begin, begin) hn = Identity (twice)": [],
}


@pytest.mark.parametrize("body", STATES)
def test_a_state_output_that_is_its_input(audited: Any, body: str) -> None:
    inputs = f"float[T, B, {I}] x, float[1, B, {O}] begin"
    layer = f"y, last, cell = LSTM <hidden_size = {O}> (x, W, R, , , begin, begin)"
    assert names_of(audited, f"({inputs}) => (y, hn) {{ {layer} {body} }}") == STATES[body]


def test_a_packed_state_that_is_split_and_joined_again_unchanged(audited: Any) -> None:
    """As models of speech have it: one state (2, N, O) of h and c."""
    inputs = f"float[T, B, {I}] x, float[2, B, {O}] state"
    layer = f"y, hn, cn = LSTM <hidden_size = {O}> (x, W, R, , , h, c)"
    split = "h, c = Split <axis = 0> (state, halves)"
    for joined, expected in (("hn, cn", []), ("h, c", ["state_returned"])):
        last = f"new = Concat <axis = 0> ({joined})"
        text = f"({inputs}) => (y, new) {{ {split} {layer} {last} }}"
        held = {name: HELD[name] for name in ("W", "R")}
        arrays = {name: numbers(*shape, name=name) for name, shape in held.items()}
        made = parsed(text, {**arrays, "halves": WHOLE["halves"]})
        assert names(audited(made)) == expected
