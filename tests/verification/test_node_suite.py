"""The kit's cases as nodes of ONNX: right backends pass, planted faults and a poor one fail."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import onnxruntime.backend
import pytest
from onnx.backend.test.loader import load_model_tests
from onnx.reference import ReferenceEvaluator
from support.interpreters import run_python

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
    def run_model(model: Any, inputs: list[Any], device: str) -> Any:
        changed = onnx.ModelProto.FromString(model.SerializeToString())
        fault(changed)
        return onnxruntime.backend.prepare(changed, device).run(inputs)

    class Suite(NodeConformance):
        backend = SimpleNamespace(run_model=run_model)

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
        model = onnx.load(Path(each.model_dir, "model.onnx"))
        data = Path(each.model_dir, "test_data_set_0")
        made = backend.run_model(model, read_arrays(data, "input", len(model.graph.input)))
        wanted = read_arrays(data, "output", len(model.graph.output))
        for given, want in zip(made, wanted, strict=True):
            np.testing.assert_allclose(given, want, rtol=each.rtol, atol=each.atol)


def test_what_an_unknown_axis_and_a_missing_backend_are_told() -> None:
    with pytest.raises(ValueError, match="cells: expected some of"):
        list(node_cases(("gru", "no_cell")))
    with pytest.raises(TypeError, match=r"expected a backend: write backend = \.\.\."):
        NodeConformance().layer(None)  # type: ignore[arg-type]
    assert len(CELLS) == len(set(CELLS))


@pytest.mark.parametrize(
    "answer, told",
    [
        (None, "expected a list of Y, Y_h, got NoneType"),
        ([np.zeros(3)], "expected a list of Y, Y_h, got list"),
        ([np.zeros((7, 4, 5)), np.zeros(3)], r"Y: expected \(T, D, N, O\) = \(7, 1, 4, 5\), got"),
    ],
)
def test_a_wrong_answer_says_what_is_expected(answer: Any, told: str) -> None:
    class Suite(NodeConformance):
        backend = SimpleNamespace(run_model=lambda *_: answer)

    with pytest.raises(TypeError, match=told):
        Suite().test_conforms(one("gru", "left2right"))


SUBJECTS = """
from onernn.adapters.onnx import backend as right
from onernn.verification.node_suite import NodeConformance


class Wrong:
    @staticmethod
    def run_model(model, inputs, device):
        return [-each for each in right.run_model(model, inputs)]


class Small(NodeConformance):
    cells, directions, sizes = ("gru", "lstm"), ("left2right",), ("odd",)
    lengths, states = ("equal", "word"), ("given",)


class TestRight(Small):
    framework, backend = "onnx", right


class TestWrong(Small):
    backend, known_failures = Wrong, "known.toml"


class TestAbsent(Small):
    framework, backend = "no_such_framework", right


def test_of_another_kind(): ...
"""


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_run_writes_a_table_and_a_report_for_ci(processes: str, tmp_path: Path) -> None:
    (tmp_path / "test_subjects.py").write_text(SUBJECTS)
    (tmp_path / "known.toml").write_text('"gru-*" = "the sign | is wrong"\n')
    options = ("-n", processes, "-p", "no:cacheprovider")
    files = ("--junitxml=report.xml", "--conformance-table=report.md")
    command = ["-m", "pytest", "-q", *options, *files, "test_subjects.py"]
    run_python(*command, cwd=tmp_path, status=1)
    right = f"Right (onnx {onnx.__version__})"
    wrong = "test_subjects.py::TestWrong::test_conforms[lstm-left2right-1layer-{}-given-f32-odd]"
    assert (tmp_path / "report.md").read_text().splitlines() == [
        f"| cell | Absent (no_such_framework) | {right} | Wrong |",
        "| --- | --- | --- | --- |",
        "| gru | 2 skipped | 2 passed | 2 known |",
        "| lstm | 2 skipped | 2 passed | 2 FAIL |",
        "",
        "- Wrong: 2 known failures: the sign | is wrong",
        *(f"- FAIL: `{wrong.format(lengths)}`" for lengths in ("equal", "word")),
    ]
    cases = [*ElementTree.parse(tmp_path / "report.xml").iter("testcase")]
    assert len(cases) == 13
    (case,) = (
        each
        for each in cases
        if "TestRight" in each.get("classname", "")
        and (each.get("name") == "test_conforms[lstm-left2right-1layer-word-given-f32-odd]")
    )
    properties = {each.get("name"): each.get("value") for each in case.iter("property")}
    assert properties == {
        **{"subject": right, "cell": "lstm", "direction": "left2right", "layers": "1"},
        **{"lengths": "word", "state": "given", "dtype": "f32", "size": "odd"},
    }
    assert sum(each.find("failure") is not None for each in cases) == 2


def test_a_table_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    options = [f"--conformance-table={tmp_path / 'nowhere' / 'a.md'}"]
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *options, tmp_path]
    done = run_python(*command, cwd=tmp_path, status=pytest.ExitCode.USAGE_ERROR)
    assert "No such file" in done.stderr
