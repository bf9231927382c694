"""`quantize`: scales from batches, precisions from a budget, and the same bits in any batch."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command_line import failed
from support.command_line import onernn as command_line
from support.graphs import new_node, rnn_node
from support.layers import random_ragged, words

import onernn
from onernn import Cell, Graph, Ragged, RnnSpec, Session, UnsupportedError
from onernn.ir.graph import Value
from onernn.ir.rnn import Recurrent, with_precision
from onernn.ir.weights import UNIT, PartScales, Scale
from onernn.verification.quantizing import Budget, Quantized, scale_over

pytestmark = pytest.mark.usefixtures("built")

HIDDEN = 16
EXAMPLES = Path(__file__).parents[2] / "examples"


def layers(*specs: RnnSpec) -> Graph:
    """One layer on the other, b and y."""
    names = "by"[-len(specs) :]
    nodes = [
        rnn_node(f"{y} = Rnn {x}", spec, at)
        for at, (spec, x, y) in enumerate(zip(specs, "x" + names, names, strict=False))
    ]
    inputs = (Value("x", "float32", (None, specs[0].input_size), 1),)
    return Graph("layers", inputs, (Value(names[-1]),), tuple(nodes), {})


def two() -> Graph:
    """Two layers that cannot become one."""
    return layers(RnnSpec(Cell.LSTM, 8, HIDDEN), RnnSpec(Cell.LBR_GRU, HIDDEN, HIDDEN))


def batches(count: int = 4, channels: int = 8, sentences: int = 6) -> list[dict[str, Ragged]]:
    rng = np.random.default_rng(0)
    lengths = [rng.integers(0, 12, sentences).tolist() for _ in range(count)]
    return [{"x": random_ragged(each, channels, at)} for at, each in enumerate(lengths)]


def dtypes(found: Quantized) -> list[str]:
    return [each.dtype for each in found.layers]


def scales_in(found: Quantized) -> list[PartScales]:
    """Of each layer and direction, as the model has them."""
    nodes = [node for node in found.model.nodes if node.op == "Rnn"]
    return [part for node in nodes for part in node.attrs.precision.parts]


def test_ranges_hold_zero_and_every_number() -> None:
    assert scale_over(0.0, 6.0) == Scale(255 / 6, 0)
    assert scale_over(-3.0, 0.0) == Scale(255 / 3, 255)
    assert scale_over(-1.0, 3.0) == Scale(191 / 3, 64)
    assert scale_over(0.0, 0.0) is None
    for tiny in (1e-30, 1e-42, 3e38):
        made = scale_over(0.0, tiny)
        assert np.isfinite(made.factor) and made.factor > 0


def test_without_a_budget_all_is_u8_and_states_have_their_natural_range() -> None:
    found = onernn.quantize(two(), batches())
    assert dtypes(found) == ["u8", "u8"]
    numbers = np.concatenate([each["x"].data for each in batches()[::2]])
    first, second = scales_in(found)
    assert first.data == scale_over(float(numbers.min()), float(numbers.max()))
    assert first.state == UNIT
    assert second.data and second.data.shift not in (0, 255)  # of a hidden state


@pytest.mark.parametrize("budget", ["max_abs 0.004", "rmse 0.001", "labels 60%", "max_abs 0"])
def test_the_error_is_that_of_a_session_on_held_out_batches(budget: str) -> None:
    """Computed here once more, from the model that was given back."""
    given, held = batches(2), batches(5)[2:]
    found = onernn.quantize(two(), given, budget=budget, held_out=held)
    kind, limit = budget.split()
    exact, session = Session(two(), threads=1), Session(found.model, threads=1)
    pairs = [(words(session.run(f)["y"]), words(exact.run(f)["y"])) for f in held]
    a, b = (np.concatenate(each).astype(np.float64) for each in zip(*pairs, strict=True))
    error = {
        "max_abs": np.abs(a - b).max(),
        "rmse": np.sqrt(np.mean((a - b) ** 2)),
        "labels": np.mean(a.argmax(axis=1) != b.argmax(axis=1)),
    }[kind]
    allowed = float(limit.rstrip("%")) / (100 if "%" in limit else 1)
    assert found.error == pytest.approx(error, rel=1e-9) and error <= allowed
    if budget == "max_abs 0":
        assert dtypes(found) == ["f32", "f32"]
    else:  # a layer more in bytes would break it: else it would be in bytes
        assert set(dtypes(found)) != {"f32"} and found.bound <= allowed


def test_the_layer_that_does_harm_is_given_back_and_the_other_one_is_not() -> None:
    """One number of 1000 makes the steps of all others 8."""
    model = two()
    first, *rest = model.nodes
    weights = first.attributes["weights"][0]
    layer = weights.layer.copy()
    layer[:, :, 0] = 0  # it means nothing
    first = replace(
        first, attributes={**first.attributes, "weights": replace(weights, layer=layer)}
    )
    model = replace(model, nodes=(first, *rest))
    given = batches()
    for feed in given:
        feed["x"].data[:, 0] = 1000
    found = onernn.quantize(model, given, budget="max_abs 0.03")
    assert [each.name for each in found.layers] == ["b", "y"] and dtypes(found) == ["bf16", "u8"]
    assert found.layers[0].alone["u8"] > 0.03 > found.layers[1].alone["u8"]


CELLS = {
    "gru": RnnSpec(Cell.GRU, 8, HIDDEN),
    "lbr": RnnSpec(Cell.LBR_GRU, 8, HIDDEN, layers=2, direction="bidirectional_concat"),
    "tanh": RnnSpec(Cell.RNN_TANH, 8, HIDDEN),
    "relu": RnnSpec(Cell.RNN_RELU, 8, HIDDEN),
    "peepholes": RnnSpec(Cell.LSTM, 8, HIDDEN, peephole=True, direction="bidirectional_sum"),
    "projected": RnnSpec(Cell.LSTM, 8, HIDDEN, projection_size=5),
    "stack": RnnSpec(Cell.LSTM, HIDDEN, HIDDEN, layers=3, stacking="onednn"),
}


@pytest.mark.parametrize("name", CELLS)
def test_every_cell_is_calibrated(name: str) -> None:
    spec = CELLS[name]
    given = batches(channels=spec.input_size)
    found = onernn.quantize(layers(spec), given)
    assert set(dtypes(found)) == {"u8"} and 0 < found.error < 0.06
    scales = scales_in(found)
    assert len(scales) == spec.layers * spec.directions
    assert all((each.state == UNIT) == (name not in ("relu", "projected")) for each in scales)


def test_states_that_are_given_and_read_calibrate_each_layer_of_a_stack() -> None:
    spec = RnnSpec(Cell.GRU, 8, 8, layers=2)
    node = rnn_node(" end = Rnn x h", spec)
    inputs = (Value("x", "float32", (None, None, 8)), Value("h", "float32", (2, 1, None, 8)))
    model = Graph("steps", inputs, (Value("end"),), (node,), {})
    rng = np.random.default_rng(0)
    given = [
        {
            "x": rng.normal(0, 1, (5, 3, 8)).astype("f"),
            "h": rng.normal(0, 2, (2, 1, 3, 8)).astype("f"),
        }
        for _ in range(2)
    ]
    found = onernn.quantize(model, given)
    assert len(found.layers) == 2 and scales_in(found)[0].state != UNIT  # 2 leaves [-1, 1]
    made = Session(found.model).run(given[1])["end"]
    assert np.abs(made - Session(model).run(given[1])["end"]).max() == pytest.approx(found.error)


def of_lengths(*lengths: int) -> dict[str, Ragged]:
    return {"x": random_ragged([*lengths], 8, 0)}


MADE = {
    "one sentence": [of_lengths(7)],
    "empty batches": [of_lengths(0, 0), of_lengths(0, 0), *batches(2)],
    "an empty one": [of_lengths(7, 0)],
}


@pytest.mark.parametrize("make", MADE)
def test_few_sentences_and_empty_ones_calibrate(make: str) -> None:
    found = onernn.quantize(two(), MADE[make], budget="max_abs 0.05")
    assert dtypes(found) == ["u8", "u8"] and 0 < found.error <= 0.05
    told = "was measured on the batch that calibrated" in " ".join(found.notes)
    assert told == (make != "empty batches")


def test_what_cannot_calibrate_is_refused_by_name() -> None:
    bad = batches(3)
    bad[2]["x"].data[1, 1] = np.nan
    for given, message in (
        (bad, "batch 2: input 'x' has NaN or infinity"),
        ([], "batches: expected at least one with steps"),
        ([of_lengths(0, 0)] * 2, "at least one with steps"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            onernn.quantize(two(), given)
    over = new_node("d = Div x zero")
    first, *rest = two().nodes
    model = replace(
        two(),
        nodes=(over, replace(first, inputs=("d",)), *rest),
        constants={"zero": np.zeros(1, np.float32)},
    )
    with pytest.raises(UnsupportedError, match="batch 0: layer 'b' reads or gives NaN or infinity"):
        onernn.quantize(model, batches())
    plain = Graph("plain", two().inputs, (Value("y"),), (new_node("y = Relu x"),), {})
    with pytest.raises(UnsupportedError, match="^plain: "):
        onernn.quantize(plain, batches())


BAD = ["", "labels", "labels 0.1", "labels 0.1 %x", "max_abs -1", "rmse 1%", "rmse nan", "f1 1"]


@pytest.mark.parametrize("text", BAD)
def test_a_budget_that_is_none_is_refused(text: str) -> None:
    message = re.escape(f"budget {text!r}: expected 'labels 0.1%'")
    with pytest.raises(UnsupportedError, match=message):
        Budget.of(text)
    assert Budget.of("labels 0.1%")[:2] == ("labels", 0.001)


def test_a_model_that_was_quantized_is_quantized_anew_alike() -> None:
    once = onernn.quantize(two(), batches(), budget="max_abs 0.01")
    again = onernn.quantize(once.model, batches(), budget="max_abs 0.01")
    assert dtypes(once) == dtypes(again) and once.error == again.error


def segmenter() -> tuple[Graph, Graph, list[np.ndarray]]:
    """The model, the same in u8, and sentences that it did not see."""
    model = onernn.load(EXAMPLES / "segmenter")
    (value,) = model.inputs
    rng = np.random.default_rng(0)
    shape = tuple(1 if size is None else size for size in (value.shape or ())[1:])
    sentences = [
        rng.integers(0, 26, (length, *shape)).astype(value.dtype)
        for length in rng.integers(0, 30, 48)
    ]
    given = [{value.name: Ragged.from_list(sentences[k : k + 8])} for k in (0, 8)]
    return model, onernn.quantize(model, given, backend="kernels").model, sentences[16:]


def test_a_thousand_compositions_of_batches_have_the_same_bits() -> None:
    """Each sentence has the bits that it has alone: in any company, order and number of threads."""
    model, narrow, sentences = segmenter()
    (name,) = (value.name for value in model.inputs)
    layers = [Recurrent.of(node) for node in narrow.nodes if node.op == "Rnn"]
    assert {layer.precision.dtype for layer in layers} == {"u8"}
    sessions = [Session(narrow, backend="kernels", threads=1), Session(narrow, threads=2)]
    alone = [
        {k: words(v).tobytes() for k, v in sessions[0].run({name: Ragged.from_list([s])}).items()}
        for s in sentences
    ]
    exact = Session(model, backend="kernels").run({name: Ragged.from_list(sentences)})
    assert any(b"".join(each[k] for each in alone) != words(v).tobytes() for k, v in exact.items())
    rng = np.random.default_rng(1)
    for trial in range(1000):
        chosen = rng.permutation(len(sentences))[: rng.integers(1, 9)]
        feed = {name: Ragged.from_list([sentences[k] for k in chosen])}
        for output, value in sessions[trial % 2].run(feed).items():
            for k, own in zip(chosen, value.to_list(), strict=True):
                assert own.tobytes() == alone[k][output]


def test_padding_changes_no_bit() -> None:
    """Dense batches, whose shorter sentences somebody filled with whatever there was."""
    found = onernn.quantize(two(), batches()).model
    dense = replace(found, inputs=(Value("x", "float32", (None, None, 8)),))
    x = random_ragged([9, 4, 1], 8, 3)
    for fill in (0.0, 1e4):
        padded = np.full((9, 3, 8), fill, np.float32)
        for n, own in enumerate(x.to_list()):
            padded[: len(own), n] = own
        y = Session(dense, backend="kernels").run({"x": padded})["y"]
        ragged = Session(found, backend="kernels").run({"x": x})["y"].to_list()
        for n, own in enumerate(ragged):
            np.testing.assert_array_equal(y[: len(own), n], own)


@pytest.mark.parametrize("budget", ["max_abs 0", "labels 0.1%"])
def test_a_model_that_stays_in_float32_is_said_to_be_unchanged_with_the_reason(
    budget: str,
) -> None:
    found = onernn.quantize(two(), batches(), budget=budget)
    assert dtypes(found) == ["f32", "f32"] and found.error == found.bound == 0
    (note,) = (each for each in found.notes if each.startswith("nothing was narrowed"))
    assert ("3 / budget" in note) == budget.startswith("labels")


def saved(path: Path, feed: dict[str, Ragged]) -> Path:
    arrays = {f"in__{name}": value.data for name, value in feed.items()}
    np.savez(path, **arrays, **{f"lod__{name}": value.offsets for name, value in feed.items()})
    return path


def test_recordings_are_batches(tmp_path: Path) -> None:
    files = [saved(tmp_path / f"{at}.npz", feed) for at, feed in enumerate(batches())]
    found = onernn.quantize(two(), files, budget="rmse 0.01")
    want = onernn.quantize(two(), batches(), budget="rmse 0.01")
    assert found.error == want.error
    told = json.loads(found.to_json())
    assert told["error"] == found.error and [each["name"] for each in told["layers"]] == ["b", "y"]
    assert list(told["layers"][0]["alone"]) == ["u8", "u8 rows", "bf16"]


def test_reference_runs_of_the_model_are_those_of_f32() -> None:
    found = onernn.quantize(two(), batches()).model
    x = batches(1)[0]
    same = Session(found, backend="reference").run(x)["y"]
    want = Session(with_precision(found, {}), backend="reference").run(x)["y"]
    np.testing.assert_array_equal(words(same), words(want))


@pytest.mark.parametrize("measure", ["max_abs", "rmse"])
def test_what_held_out_sequences_promise_has_a_confidence(measure: str) -> None:
    """With 95 %, a share p with (1 - p)**K = 5 % is worse than the worst of K sequences."""
    given, held = batches(2), batches(5)[2:]
    found = onernn.quantize(two(), given, budget=f"{measure} 0.1", held_out=held)
    exact, session = Session(two(), threads=1), Session(found.model, threads=1)
    worst = []
    for feed in held:
        one, other = (each.run(feed)["y"] for each in (session, exact))
        apart = np.abs(one.data.astype(np.float64) - other.data)
        parts = np.split(apart, one.offsets[1:-1])
        by = {"max_abs": np.max, "rmse": lambda a: np.sqrt(np.mean(a**2))}[measure]
        worst += [by(part) for part in parts if part.size]
    share = 1 - 0.05 ** (1 / len(worst))
    for part in ("95%", f"{share:.2%}", f"than {max(worst):.3g}", f"of {len(worst)} sequences"):
        assert part in found.promise and part in found.verdict
    told = json.loads(found.to_json())
    assert told["confidence"] == 0.95 and told["promise"] == found.promise
    assert not onernn.quantize(two(), batches(1), budget=f"{measure} 0.1").promise  # not held out


@pytest.mark.parametrize("limit, warns", [(0.0, True), (np.inf, False)])
def test_a_choice_that_is_slower_than_f32_is_noted_and_decides_nothing(
    limit: float, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onernn.verification.quantizing._SLOWER", limit)
    found = onernn.quantize(two(), batches(), budget="max_abs 0.1")
    assert any("slower than f32" in note for note in found.notes) == warns
    assert dtypes(found) == ["u8", "u8"]
    none = onernn.quantize(two(), batches(), budget="max_abs 0")
    assert not any("slower than f32" in note for note in none.notes)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Any]:
    """Runs ``onernn quantize`` beside the segmenter ``m`` and batches."""
    (tmp_path / "m").symlink_to(EXAMPLES / "segmenter")
    letters = np.random.default_rng(0).integers(0, 26, 40)
    saved(tmp_path / "io.npz", {"letters": Ragged(letters, np.array([0, 9, 9, 40]))})
    monkeypatch.chdir(tmp_path)
    return lambda line: command_line("quantize", *shlex.split(line))


@pytest.mark.parametrize(
    "line, message",
    [
        ("m o.onnx --data none.npz", "no such file"),
        ("m o.onnx --data io.npz --budget f1", "budget 'f1': expected 'labels 0.1%'"),
        ("m o.onnx --data io.npz --budget 'labels 9%' --labels-of o", "labels of 'o'"),
        ("m o.onnx --data io.npz --labels-of o", "expected a budget of labels"),
        ("m o.txt --data io.npz", "cannot write .txt"),
        ("m o.pdmodel --data io.npz", "cannot store that this layer computes in u8"),
    ],
)
def test_the_command_refuses_and_writes_nothing(
    command: Callable[[str], Any], tmp_path: Path, line: str, message: str
) -> None:
    assert message in failed(command(line))
    assert {each.name for each in tmp_path.iterdir()} == {"m", "io.npz"}


def test_the_command_writes_a_file_that_runs_in_bytes(
    command: Callable[[str], Any], tmp_path: Path
) -> None:
    done = command("m o.onnx --data io.npz --budget 'rmse 1'")
    assert done.returncode == 0, done.stderr
    (layer,) = Session(tmp_path / "o.onnx").explained
    assert layer.dtype == "u8"
    assert "u8 (u8 alone " in done.stdout and "rmse: " in done.stdout


def test_rows_of_very_different_sizes_keep_a_step_each() -> None:
    """Quiet words are lost in the steps of loud ones, and count as much."""
    model, given = layers(RnnSpec(Cell.LBR_GRU, 8, HIDDEN)), batches()
    rng = np.random.default_rng(1)
    for feed in given:
        feed["x"].data[...] *= 10 ** rng.uniform(-2, 1.5, (len(feed["x"].data), 1))
    alone = onernn.quantize(model, given).layers[0].alone
    assert alone["u8 rows"] < 0.6 * alone["u8"]
    between = (alone["u8 rows"] + alone["u8"]) / 2
    found = onernn.quantize(model, given, budget=f"max_abs {between}")
    assert dtypes(found) == ["u8 rows"] and found.error == alone["u8 rows"]
    (layer,) = Session(found.model).explained
    assert layer.dtype == "u8" and layer.kernel.startswith("kernels ")  # each row, not the batch
