"""Models against models, recordings and frameworks: verdicts, exit codes, numbers, JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import planted
from support.command_line import onernn as run
from support.graphs import new_node, new_nodes
from support.planted import model, planted_pair, read, recording

import onernn
from onernn import Ragged
from onernn.ir.errors import MissingDependencyError, ModelFormatError, UnsupportedError
from onernn.ir.graph import Graph, Node, Value
from onernn.verification import input_generation, verifying
from onernn.verification.comparing import feed_for, in_one_form, outputs_for
from onernn.verification.input_generation import make_inputs
from onernn.verification.profiles import Axes, axes_of, errors, profile
from onernn.verification.references import Against, open_against
from onernn.verification.tracing import trace
from onernn.verification.verifying import verify


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return planted.write_swapped(tmp_path)


def test_exit_codes_tell_equal_different_and_cannot_be_run(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    sound, wrong = files
    assert run("verify", sound, "--against", sound).returncode == 0
    told = run("verify", wrong, "--against", sound)
    assert told.returncode == 1 and "gates u (update) and r (reset)" in told.stdout
    missing = run("verify", sound, "--against", tmp_path / "none.onnx")
    assert missing.returncode == 2 and "none.onnx" in missing.stderr
    nothing = run("verify", sound)
    assert nothing.returncode == 2 and "--against" in nothing.stderr
    assert "Traceback" not in missing.stderr + nothing.stderr


def test_json_holds_the_verdict_the_cause_and_nothing_else(files: tuple[Path, Path]) -> None:
    sound, wrong = files
    told = run("verify", wrong, "--against", f"onnxruntime:{sound}", "--json")
    found = json.loads(told.stdout)
    assert told.returncode == 1 and found["status"] == "fail"
    assert set(found["cause"]) == {"id", "text", "evidence"}
    assert found["cause"]["id"] == "gates_swapped" and found["cause"]["evidence"] == "proved"
    for output in found["outputs"]:
        assert set(output) == {"name", "pass", "max_abs", "max_rel"}
    assert found["details"]["first_apart"]["value"].startswith("X/")
    told = run("verify", sound, "--against", f"onnxruntime:{sound}", "--json")
    assert json.loads(told.stdout)["status"] == "pass" and told.returncode == 0


def test_data_gives_the_inputs_and_the_other_model_the_outputs(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    sound, wrong = files
    recorded = recording(wrong.read_bytes())  # outputs of the wrong one: not looked at
    np.savez(tmp_path / "io.npz", **recorded)
    report = verify(onernn.load(sound), tmp_path / "io.npz", against=open_against(str(sound)))
    assert report.passed
    assert np.array_equal(report.evidence.inputs["X"], recorded["in__X"])  # type: ignore[arg-type]
    assert not verify(onernn.load(sound), tmp_path / "io.npz").passed


def test_tolerances_that_are_given_are_not_widened(files: tuple[Path, Path]) -> None:
    sound = read(files[0].read_bytes())
    recorded = recording(files[0].read_bytes())
    recorded["out__Y"] = recorded["out__Y"] + np.float32(1e-3)
    assert not verify(sound, recorded, diagnose=False).passed
    assert verify(sound, recorded, atol=2e-3).passed
    assert not verify(sound, recorded, atol=5e-4, rtol=0, diagnose=False).passed


def test_a_model_that_amplifies_rounding_is_given_room_but_not_much() -> None:
    """(3 x + 4096) - 4096: of seven digits three are left, an error of about 2e-4."""
    nodes = new_nodes("""
        a = Mul x three
        b = Add a one
        y = Sub b other
    """)
    numbers = {"three": 3, "one": 4096, "other": 4096}
    constants = {name: np.full(3, number, np.float32) for name, number in numbers.items()}
    inputs = (Value("x", "float32", (None, 3)),)
    graph = Graph("cancel", inputs, (Value("y"),), nodes, constants)
    x = np.random.default_rng(0).uniform(-1, 1, (4, 3)).astype(np.float32)
    report = verify(graph, {"in__x": x, "out__y": 3 * x})
    (note,) = (note for note in report.notes if "rounding errors" in note)
    atol = f"{report.evidence.tolerances['y'].atol:.3g}"  # type: ignore[union-attr]
    assert report.passed and f"output 'y': atol is {atol} in place of 1e-06" in note
    assert not verify(graph, {"in__x": x, "out__y": 3 * x + np.float32(0.01)}).passed


def test_a_framework_that_is_not_installed_is_named() -> None:
    if any(__import__("importlib.util").util.find_spec(name) for name in ("mxnet",)):
        pytest.skip("mxnet is installed")
    graph = read(model("RNN", planted.weights("RNN")))
    against = Against(graph, str(Path(__file__)), "mxnet")
    with pytest.raises((MissingDependencyError, UnsupportedError), match="mxnet"):
        verify(graph, against=against)


def test_what_a_framework_refuses_is_told_in_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    graph = read(model("RNN", planted.weights("RNN")))
    with pytest.raises(UnsupportedError, match="^onnxruntime .*broken") as caught:
        verify(graph, against=Against(graph, str(broken), "onnxruntime"))
    assert "\n" not in str(caught.value)


# --- numbers


def test_error_statistics_are_those_of_their_definitions() -> None:
    rng = np.random.default_rng(3)
    b = rng.normal(size=(40, 5))
    a = b + rng.normal(size=b.shape) * 1e-3
    found = errors(a, b)
    apart, size = np.abs(a - b), np.abs(b)
    assert (found.max_abs, found.mean_abs) == pytest.approx((apart.max(), apart.mean()))
    assert found.median_abs == pytest.approx(np.median(apart))
    assert np.sort(apart, axis=None)[196] <= found.p99_abs <= np.sort(apart, axis=None)[198]
    assert found.max_rel == pytest.approx(apart.max() / size.max())
    cosine = (a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum())
    assert found.cosine == pytest.approx(cosine)
    small = errors(np.array([1.01, 1e-9]), np.array([1.0, 1e-12]))  # no relative error of its own
    assert small.mean_rel == pytest.approx(0.01) and small.p99_rel == pytest.approx(0.01)


def test_nothing_and_what_is_not_finite_have_no_statistics() -> None:
    assert np.isnan(errors(np.zeros((0, 3)), np.zeros((0, 3))).max_abs)
    assert np.isnan(errors(np.array([np.nan]), np.array([1.0])).cosine)
    assert errors(np.array([1.0, np.inf]), np.array([1.5, np.inf])).max_abs == 0.5


def largest(rows: Iterable[tuple[str, float, float]]) -> dict[str, float]:
    return {at: worst for at, worst, _ in rows}


def test_profiles_tell_steps_lengths_directions_and_ends_apart() -> None:
    lengths = np.array([3, 1])
    reference = np.zeros((2, 3, 4))  # (N, T, C)
    actual = reference.copy()
    actual[0, 2, 0] = 0.5  # the last word of the long sentence, forward half
    actual[1, 2, 3] = 2.0  # behind the end of the short one, backward half
    found = profile("y", actual, reference, Axes(1, 0, -1, False, lengths))
    assert largest(found.steps) == {"0": 0, "1": 0, "2": 0.5}
    assert largest(found.lengths) == {"1": 0, "3": 0.5}
    assert largest(found.directions) == {"forward": 0.5, "backward": 2}
    assert largest(found.ends) == {"inside": 0.5, "beyond the end": 2}


def test_profiles_of_ragged_outputs_count_from_each_sentences_start() -> None:
    reference = Ragged(np.zeros((4, 2)), np.array([0, 3, 3, 4]))
    actual = reference.with_data(np.array([[0, 0], [0, 0.25], [0, 0], [1, 0]]))
    found = profile("y", actual, reference, None)
    assert largest(found.steps) == {"0": 1, "1": 0.25, "2": 0}
    assert largest(found.lengths) == {"1": 1, "3": 0.25}


# --- where time, sentences and directions stand


@pytest.mark.parametrize("directions", [1, 2])
def test_axes_are_found_behind_transposes_and_joins(directions: int) -> None:
    graph = read(model("LSTM", planted.weights("LSTM", directions)))
    report = verify(graph, against=Against(graph))
    shapes = {p.name: (p.state, len(p.steps), len(p.lengths), len(p.ends)) for p in report.profiles}
    assert shapes == {"Y": (False, 14, 4, 2), "Y_h": (True, 0, 5, 0), "Y_c": (True, 0, 5, 0)}
    sides = {len(p.directions) for p in report.profiles}
    assert sides == ({2} if directions == 2 else {0})


def test_a_pooled_sentence_has_no_time(data: Path) -> None:
    graph = onernn.load(data / "paddle" / "pooled")
    axes = axes_of(graph, trace(graph, make_inputs(graph)))
    assert all(each.time is None for each in axes.values())


# --- inputs


def test_made_inputs_hold_short_and_long_sentences_states_and_loud_words() -> None:
    made = make_inputs(read(model("LSTM", planted.weights("LSTM", 2))))
    lengths = made["lens"].tolist()  # type: ignore[union-attr]
    assert {0, 1} < set(lengths) and max(lengths) == made["X"].shape[0]  # type: ignore[union-attr]
    assert lengths != sorted(lengths) != lengths[::-1]
    for name in ("h0", "c0"):
        assert np.abs(made[name]).min() > 0  # type: ignore[type-var]
    assert np.abs(made["X"]).max() > 3  # type: ignore[type-var]
    for n, length in enumerate(lengths):
        assert np.abs(made["X"][length:, n]).min(initial=1) > 0, "numbers behind the ends"


def test_inputs_are_made_for_every_recorded_model(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        input_generation, "process_time", lambda: 1.0
    )  # a slow machine tries as much
    models = [*(data / "paddle").iterdir(), *(p for p in (data / "mxnet").iterdir() if p.is_dir())]
    assert len(models) > 20
    for each in models:
        graph = onernn.load(each)
        assert set(make_inputs(graph)) == {value.name for value in graph.inputs}, each


@pytest.mark.parametrize(
    "node",
    new_nodes("""
        moved = Flatten ids
        moved = ReverseSequence ids lengths time_axis=1 batch_axis=0
    """),
    ids=lambda node: node.op,
)
def test_ids_are_ids_behind_whatever_only_moves_them(node: Node) -> None:
    inputs = (Value("ids", "int64", (5, 3)),)
    nodes = (node, new_node("y = Gather table moved"))
    constants = {"table": np.zeros((100, 2), np.float32), "lengths": np.array([3, 1, 2, 3, 0])}
    graph = Graph("g", inputs, (Value("y"),), nodes, constants)
    assert np.max(make_inputs(graph)["ids"]) > 20  # of 100 rows


def test_a_model_whose_inputs_cannot_be_guessed_asks_for_data() -> None:
    node, constants = new_node("y = Reshape x s"), {"s": np.array([7919])}
    graph = Graph("odd", (Value("x"),), (Value("y"),), (node,), constants)
    with pytest.raises(UnsupportedError, match="pass --data"):
        make_inputs(graph)


# --- one model's inputs and outputs in another's form


def test_a_converted_model_takes_the_ragged_inputs_padded(data: Path, tmp_path: Path) -> None:
    for name in ("bigru_concat", "embedding_crf", "two_levels", "lstm_states_reverse"):
        graph = onernn.load(data / "paddle" / name)
        onernn.convert(graph, tmp_path / f"{name}.onnx", check=data / "paddle" / name / "io.npz")
        other = onernn.load(tmp_path / f"{name}.onnx")
        for one, two in ((graph, other), (other, graph)):
            assert verify(one, against=Against(two)).passed, name


def test_inputs_of_other_names_are_matched_in_order_and_said_so() -> None:
    x = np.zeros((2, 3), np.float32)
    found, notes = feed_for([Value("data", "float32", (None, 3))], {"x": x}, "the model")
    assert found["data"] is x and "'data' of the model is given 'x'" in notes[0]
    with pytest.raises(ModelFormatError, match="expected 'data'"):
        feed_for([Value("data", "float32", (None, 4))], {"x": x}, "the model")


def test_outputs_of_other_names_are_matched_in_order_and_said_so() -> None:
    found, notes = outputs_for(["a", "b"], {"b": np.ones(1), "c": np.zeros(1)})
    assert found["a"][0] == "c" and found["b"][0] == "b" and "'c'" in notes[0]
    with pytest.raises(ModelFormatError, match="expected a .*, got b, c"):
        outputs_for(["a"], {"b": np.ones(1), "c": np.zeros(1)})


def test_padded_and_ragged_outputs_are_compared_word_by_word() -> None:
    ragged = Ragged(np.arange(8.0).reshape(4, 2), np.array([0, 1, 1, 4]))
    padded = ragged.to_padded(time=5)
    padded[0, 4] = 9  # behind an end: no word of the reference
    for one, other in ((padded, ragged), (ragged, padded), (np.swapaxes(padded, 0, 1), ragged)):
        a, b = in_one_form(one, other)
        assert isinstance(a, Ragged) and isinstance(b, Ragged)
        assert np.array_equal(a.data, ragged.data) and np.array_equal(b.data, ragged.data)


# --- layer by layer


def test_the_first_node_apart_is_the_one_that_was_changed(tmp_path: Path) -> None:
    sound, wrong = planted_pair("gates_of_one_direction", 1)
    report = verify(wrong, against=Against(sound))
    assert report.first.part is not None
    assert report.first.part.direction == "backward"
    assert "GRU that makes 'Y1'" in str(report.first.part)
    before = report.layers[: report.layers.index(report.first)]
    assert before and all(each.comparison.passed for each in before)
    assert any(each.part for each in before), "the first layer agrees"
    assert report.cause.text.endswith("backward")
    assert report.cause.evidence == "proved"
    _, wrong = planted_pair("dense_scaled")
    report = verify(wrong, against=Against(sound), diagnose=False)
    assert report.first.op == "MatMul" and report.cause is None


def test_equal_models_are_neither_traced_nor_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    def traced(*_: object) -> None:
        raise AssertionError("a run that keeps every value")

    monkeypatch.setattr(verifying, "trace_layers", traced)
    graph = read(model("GRU", planted.weights("GRU", 2)))
    report = verify(graph, against=Against(graph))
    assert report.passed and json.loads(report.to_json())["details"]["profiles"] == []


def test_a_kernels_fault_is_not_blamed_on_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    from onernn.backend import reference_stack
    from onernn.backend.auto import AutoBackend

    def prepare(self: object, spec: Any, weights: Any, **_: object) -> Any:
        layer: Any = reference_stack(spec, weights)
        true = layer.run

        def run(*arguments: object, **more: object) -> object:
            y, state = true(*arguments, **more)
            return y.with_data(y.data * 1.1), state

        layer.run = run
        return layer

    monkeypatch.setattr(AutoBackend, "prepare", prepare)
    graph = read(model("GRU", planted.weights("GRU")))
    report = verify(graph, against=Against(graph))
    assert not report.passed and report.cause is None
    assert any("the fault is in the kernel" in note for note in report.notes)
