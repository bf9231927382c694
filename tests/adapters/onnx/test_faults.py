"""Each known fault of an ONNX file is found, and is not in the healthy file beside it."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from support.arrays import uniform
from support.onnx_models import parsed

from onernn import audit
from onernn.adapters.onnx import faults
from onernn.ir.arrays import Array

I, O = 3, 4  # noqa: E741
SHAPES = {
    "W": (1, 4 * O, I), "R": (1, 4 * O, O), "WW": (2, 4 * O, I), "RR": (2, 4 * O, O),
    "W3": (1, 3 * O, I), "R3": (1, 3 * O, O), "W2": (1, 8, I), "R2": (1, 8, 2),
    "h": (1, 1, O), "c": (1, 1, O), "h2": (1, 1, 2), "c2": (1, 1, 2),
}  # fmt: skip
ARRAYS: dict[str, Array] = {
    **{name: uniform(*shape, seed=len(name)) for name, shape in SHAPES.items()},
    "zeros": np.zeros((1, 1, O), np.float32),
    "one": np.array([4], np.int32),
    "halves": np.array([1, 1]),
    "s": np.full((1, 4 * O), 0.01, np.float32),
    "z": np.zeros((1, 4 * O), np.int8),
    "bytes_w": np.ones((1, I, 4 * O), np.int8),
    "bytes_r": np.ones((1, O, 4 * O), np.int8),
}
TORCH = {"producer_name": "pytorch", "producer_version": "2.10.0"}


def model(body: str, inputs: str = "float[5, 1, 3] x", outputs: str = "y", **more: Any) -> Any:
    """A model in ONNX's words, with those of ARRAYS that it reads."""
    own = [helper.make_opsetid("com.microsoft", 1)]
    made = parsed(f"({inputs}) => ({outputs}) {{ {body} }}", ARRAYS, opsets=own, **more)
    read = {name for node in made.graph.node for name in node.input}
    kept = [each for each in made.graph.initializer if each.name in read]
    del made.graph.initializer[:]
    made.graph.initializer.extend(kept)
    return made


@pytest.fixture
def audited(tmp_path: Path) -> Callable[..., Any]:
    count = itertools.count()

    def run(made: onnx.ModelProto, data: Any = None) -> Any:
        file = tmp_path / f"{next(count)}.onnx"
        onnx.save(made, file)
        report = audit(file, data)
        assert bool(report) == (not report.findings)
        return report

    return run


def names(report: Any) -> list[str]:
    return [each.fault for each in report.findings]


FREE = f"float[T, B, {I}] x"
LSTM = f"LSTM <hidden_size = {O}>"
GRU = f"GRU <hidden_size = {O}, linear_before_reset = 1>"
STATE = f"{FREE}, float[1, B, {O}] begin"
LAYER = f"y, last, cell = {LSTM} (x, W, R, , , begin, begin)"
BOTH = f'LSTM <hidden_size = {O}, direction = "bidirectional"> (x, WW, RR'
LENGTHS = f"{FREE}, int32[B] lens"
QUANTIZED = f"com.microsoft.DynamicQuantizeLSTM <hidden_size = {O}>"
PACKED = f"h0, c0 = Split <axis = 0> (state, halves) y, hn, cn = {LSTM} (x, W, R, , , h0, c0)"
ONE_STEP = {"inputs": f"float[1, 1, {I}] x"}
CASES: list[tuple[str, dict[str, Any], list[str]]] = [
    # torch.nn.GRU resets after its product; Keras has both.
    (f"y = GRU <hidden_size = {O}> (x, W3, R3)", TORCH, ["reset_before_product"]),
    (f"y = GRU <hidden_size = {O}, linear_before_reset = 0> (x, W3, R3)", TORCH,
     ["reset_before_product"]),
    (f"y = {GRU} (x, W3, R3)", TORCH, []),
    (f"y = GRU <hidden_size = {O}> (x, W3, R3)", {"producer_name": "tf2onnx"}, []),
    # torch.onnx writes proj_size=2 of 4 units as hidden_size=2, and cuts the weights to that.
    ("y = LSTM <hidden_size = 2> (x, W2, R2, , , h2, c)", {}, ["projection_cut"]),
    ("y = LSTM <hidden_size = 2> (x, W2, R2, , , h2, c2)", {}, []),
    (f"y = {QUANTIZED} (x, bytes_w, bytes_r, , , , , , s, z, s, z)", {}, ["batch_changes_steps"]),
    # Layers of one step that forget it.
    (f"y = {LSTM} (x, W, R)", ONE_STEP, ["states_forgotten"]),
    (f"y = {GRU} (x, W3, R3)", ONE_STEP, ["states_forgotten"]),
    (f"y = {LSTM} (x, W, R, , , zeros, zeros)", ONE_STEP, ["states_forgotten"]),
    (f"y = {LSTM} (x, W, R, , , h, c)", ONE_STEP, []),
    (f"y, last = {LSTM} (x, W, R)", {**ONE_STEP, "outputs": "y, last"}, []),
    (f"y, last = {GRU} (x, W3, R3)", {**ONE_STEP, "outputs": "y, last"}, []),
    (f"y = {LSTM} (x, W, R)", {}, []),
    (f"y = {LSTM} (x, W, R)", {"inputs": f"float[?, 1, {I}] x"}, []),
    # Constants of one batch beside an input of any.
    (f"y = {LSTM} (x, W, R, , , zeros, zeros)", {"inputs": FREE}, ["states_of_one_batch"]),
    (f"y = {LSTM} (x, W, R, , , h, c)", {"inputs": FREE}, ["states_of_one_batch"]),
    (f"y = {LSTM} (x, W, R, , , begin, c)", {"inputs": STATE}, ["states_of_one_batch"]),
    (f"y = {LSTM} (x, W, R, , , begin, begin)", {"inputs": STATE}, []),
    (f"y = {LSTM} (x, W, R, , , h, c)", {}, []),
    (f"y = {LSTM} (x, W, R, , one)", {"inputs": FREE}, ["lengths_of_one_batch"]),
    (f"y = {LSTM} (x, W, R, , one)", {}, []),
    # Declared lengths that no layer reads; a forward layer may need them for the last step only.
    (f"y = {LSTM} (x, W, R, , lens)", {"inputs": LENGTHS}, []),
    (f"n = Cast <to = 6> (lens) y = {BOTH}, , n)", {"inputs": f"{FREE}, int64[B] lens"}, []),
    (f"y = {LSTM} (x, W, R)", {"inputs": LENGTHS}, ["lengths_unread"]),
    (f"y = {BOTH})", {"inputs": LENGTHS}, ["lengths_unread"]),
    (f"y = {BOTH}) z = Cast <to = 1> (lens)", {"inputs": LENGTHS}, ["lengths_unread"]),
    (f"y = {LSTM} (x, W, R) z = Cast <to = 1> (lens)", {"inputs": LENGTHS}, []),
    (f"y = LSTM <hidden_size = {O}, layout = 1> (x, W, R)", {"inputs": "float[5, 2, 3] x"},
     ["layout_refused"]),
    (f"y = LSTM <hidden_size = {O}, layout = 0> (x, W, R)", {}, []),
    # A state output that is its input; models of speech pack both states.
    *(
        (f"{LAYER} {body}", {"inputs": STATE, "outputs": "y, hn"}, expected)
        for body, expected in (
            ("hn = Identity (begin)", ["state_returned"]),
            ("hn = Identity (last)", []),
            ("flat = Transpose <perm = [1, 0, 2]> (begin) hn = Identity (flat)",
             ["state_returned"]),
            ("twice = Add (begin, begin) hn = Identity (twice)", []),
        )
    ),
    *(
        (
            f"{PACKED} new = Concat <axis = 0> ({joined})",
            {"inputs": f"{FREE}, float[2, B, {O}] state", "outputs": "y, new"},
            expected,
        )
        for joined, expected in (("hn, cn", []), ("h0, c0", ["state_returned"]))
    ),
]  # fmt: skip


@pytest.mark.parametrize("body, more, expected", CASES)
def test_each_fault_is_found_and_not_in_the_healthy_file(
    audited: Any, body: str, more: dict[str, Any], expected: list[str]
) -> None:
    report = audited(model(body, **more))
    assert names(report) == expected
    refuses = {"projection_cut", "states_of_one_batch", "lengths_of_one_batch", "layout_refused"}
    for finding in report.findings:
        assert (finding.effect == "refuses") == (finding.fault in refuses)


def test_how_far_such_a_gru_is_off_is_what_onnxruntime_gives(audited: Any) -> None:
    x, made = uniform(5, 1, I, seed=7), list[Array]()
    for reset_after in (0, 1):
        node = f"GRU <hidden_size = {O}, linear_before_reset = {reset_after}> (x, W3, R3)"
        wrong = model(f"y = {node}", **TORCH).SerializeToString()
        made.append(onnxruntime.InferenceSession(wrong).run(["y"], {"x": x})[0])
    node = f"GRU <hidden_size = {O}> (x, W3, R3)"
    (finding,) = audited(model(f"y = {node}", **TORCH), {"in__x": x}).findings
    assert finding.max_abs == pytest.approx(np.abs(made[0] - made[1]).max(), abs=1e-5)
    assert finding.max_abs > 1e-2 and "pytorch 2.10.0" in finding.text


def test_a_file_that_is_known_by_its_hash(
    audited: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The known ones cannot be in here; another file takes their place, and one byte differs."""
    content = model(f"y = {LSTM} (x, W, R)").SerializeToString()
    listed = {(len(content), hashlib.sha256(content).hexdigest()): "what is wrong"}
    monkeypatch.setattr(faults, "_FILES", listed)
    file = tmp_path / "file.onnx"
    file.write_bytes(content)
    report = audit(file)
    assert names(report) == ["other_weights"] and report.findings[0].text == "what is wrong"
    at = content.index(ARRAYS["W"].tobytes())
    file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    assert names(audit(file)) == []
