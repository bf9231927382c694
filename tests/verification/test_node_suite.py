"""The kit's cases as nodes of ONNX: right backends pass, planted faults and a poor one fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import onnxruntime.backend
import pytest
from onnx.backend.test.loader import load_model_tests
from onnx.reference import ReferenceEvaluator

from onernn.adapters.onnx import backend
from onernn.verification.node_suite import CELLS, NodeConformance, node_cases, write_node_cases
from onernn.verification.suite import Combination


class TestOnnxRuntime(NodeConformance):
    """None of the cases fails: what they expect is not ours alone."""

    backend = onnxruntime.backend
    sizes, lengths = ("odd",), ("ragged", "equal")


class TestOurs(NodeConformance):
    backend = backend
    sizes, lengths, states = ("odd",), ("ragged",), ("given",)


class Evaluator:
    """onnx.reference as a backend, which has run_model alone."""

    @staticmethod
    def run_model(model: Any, inputs: list[Any], _: str) -> list[Any]:
        names = [value.name for value in model.graph.input]
        return ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))


class TestEvaluator(NodeConformance):
    backend = Evaluator
    known_failures = "onnx_reference_known_failures.toml"
    sizes, states, lengths = ("small",), ("given",), ("filled", "equal")


def drop_state(model: Any) -> None:
    for at, name in enumerate(model.graph.node[0].input):
        if name.startswith("initial"):
            model.graph.node[0].input[at] = ""


def drop_lengths(model: Any) -> None:
    model.graph.node[0].input[4] = ""


def forget_the_direction(model: Any) -> None:
    for each in model.graph.node[0].attribute:
        if each.name == "direction" and each.s == b"reverse":
            each.s = b"forward"


def forget_the_clip(model: Any) -> None:
    kept = [each for each in model.graph.node[0].attribute if each.name != "clip"]
    del model.graph.node[0].attribute[:]
    model.graph.node[0].attribute.extend(kept)


def swap_biases(model: Any) -> None:
    """Where the reset gate stands before the candidate's second bias, and behind it."""
    for each in model.graph.node[0].attribute:
        if each.name == "linear_before_reset":
            each.i = 1 - each.i


class Faulty:
    change: ClassVar[Any] = None

    @classmethod
    def run_model(cls, model: Any, inputs: list[Any], device: str) -> Any:
        changed = onnx.ModelProto.FromString(model.SerializeToString())
        cls.change(changed)
        return onnxruntime.backend.prepare(changed, device).run(inputs)


FAULTS = {
    drop_state: "lstm-bidirectional_concat-",
    drop_lengths: "gru-right2left-",
    forget_the_direction: "rnn_tanh-right2left-",
    forget_the_clip: "lstm_gate_clip-left2right-",
    swap_biases: "lbr_gru-left2right-",
}


def one(cell: str, direction: Any) -> Combination:
    return Combination(cell, direction, 1, "ragged", "given", "f32", "odd")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_fails_in_the_cell_that_it_concerns(fault: Any) -> None:
    class Suite(NodeConformance):
        backend = type("Backend", (Faulty,), {"change": staticmethod(fault)})

    cell, direction, _ = FAULTS[fault].split("-")
    with pytest.raises(pytest.fail.Exception, match="apart, .* allowed"):
        Suite().test_conforms(one(cell, direction))


def read_arrays(folder: Path, kind: str, count: int) -> list[np.ndarray]:
    files = [folder / f"{kind}_{k}.pb" for k in range(count)]
    return [onnx.numpy_helper.to_array(onnx.load_tensor(file)) for file in files]


def test_folders_are_those_of_onnx_s_own_suite(tmp_path: Path) -> None:
    chosen = list(node_cases(("gru", "lstm_peephole"), sizes=("odd",), dtypes=("f32", "f64")))
    assert write_node_cases(tmp_path / "onernn", chosen) == len(chosen)
    found = load_model_tests(str(tmp_path), "onernn")
    assert {each.name for each in found} == {each.name for each in chosen}
    for each in found:
        assert each.model_dir is not None
        model = onnx.load(Path(each.model_dir, "model.onnx"))
        data = Path(each.model_dir, "test_data_set_0")
        made = backend.run_model(model, read_arrays(data, "input", len(model.graph.input)))
        for given, want in zip(
            made, read_arrays(data, "output", len(model.graph.output)), strict=True
        ):
            np.testing.assert_allclose(given, want, rtol=each.rtol, atol=each.atol)


def test_what_an_unknown_axis_and_a_missing_backend_are_told() -> None:
    with pytest.raises(ValueError, match="cells: expected some of"):
        list(node_cases(("gru", "no_cell")))
    with pytest.raises(TypeError, match=r"say which backend: backend = \.\.\."):
        NodeConformance().layer(None)  # type: ignore[arg-type]
    assert len(CELLS) == len(set(CELLS))


class Answering:
    answer: Any = None

    @classmethod
    def run_model(cls, *_: Any) -> Any:
        return cls.answer


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (None, "expected a list of Y, Y_h, got NoneType"),
        ([np.zeros(3)], "expected a list of Y, Y_h, got list"),
        ([np.zeros((7, 4, 5)), np.zeros(3)], r"Y: expected \(T, D, N, O\) = \(7, 1, 4, 5\), got"),
    ],
)
def test_a_wrong_answer_says_what_is_expected(answer: Any, told: str) -> None:
    class Suite(NodeConformance):
        backend = type("Backend", (Answering,), {"answer": answer})

    with pytest.raises(TypeError, match=told):
        Suite().test_conforms(one("gru", "left2right"))
