"""LSTM on quantized weights: ONNX Runtime's numbers for a sentence alone, the same in any batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from support.arrays import uniform
from support.onnx_models import parsed, read

from onernn import BudgetError, Session, ShapeError, UnsupportedError, convert, load

WIDTH, UNITS = 5, 6
NAMES = ("Y", "Y_h", "Y_c")


def weights(count: int = 1, dtype: Any = np.int8, zero: int = 0, channels: bool = False) -> dict:
    rng = np.random.default_rng(7)
    info, sizes = np.iinfo(dtype), (count, 4 * UNITS) if channels else (count,)
    # Seven bits: on CPUs without VNNI ONNX Runtime adds pairs of products in 16 bits.
    low, high = (info.min // 2, info.max // 2) if info.min else (info.min, info.max)
    made: dict[str, Any] = {}
    for name, rows in (("w", WIDTH), ("r", UNITS)):
        made[name] = rng.integers(low, high, (count, rows, 4 * UNITS), dtype, endpoint=True)
        made[f"{name}_scale"] = rng.uniform(0.002, 0.006, sizes).astype(np.float32)
        made[f"{name}_zero"] = np.full(sizes, zero, dtype)
    made["b"] = rng.uniform(-0.5, 0.5, (count, 8 * UNITS)).astype(np.float32)
    return made


def model_of(constants: dict, takes: tuple[str, ...] = (), **attributes: Any) -> onnx.ModelProto:
    """``takes``: what comes as an input beside x."""
    order = "x w r b lengths h c p w_scale w_zero r_scale r_zero".split()
    known, count = {"x", *constants, *takes}, len(constants["w"])
    kinds = {"lengths": "int32[N]", **dict.fromkeys("hc", f"float[{count}, N, {UNITS}]")}
    faces = ", ".join([f"float[T, N, {WIDTH}] x", *(f"{kinds[name]} {name}" for name in takes)])
    read = ", ".join(name if name in known else "" for name in order)
    made = ", ".join(NAMES)
    model = parsed(
        f"({faces}) => ({made}) {{ {made} = com.microsoft.DynamicQuantizeLSTM ({read}) }}",
        constants,
        opsets=[helper.make_opsetid("com.microsoft", 1)],
    )
    for name, value in {"hidden_size": UNITS, **attributes}.items():
        model.graph.node[0].attribute.append(helper.make_attribute(name, value))
    return model


def ours(model: onnx.ModelProto, **options: Any) -> Session:
    return Session(read(model), **options)


def theirs(model: onnx.ModelProto, threads: int = 1) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def sentences(lengths: list[int]) -> np.ndarray:
    """Padded with numbers that nobody may see."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(max(lengths), len(lengths), WIDTH)).astype(np.float32)
    for n, length in enumerate(lengths):
        x[:, n] *= 3**n  # each of a range of its own
        x[length:, n] = 1e6
    return x


def feed_of(constants: dict, lengths: list[int]) -> dict[str, Any]:
    """Sequences with initial states."""
    states = np.random.default_rng(1).normal(size=(2, len(constants["w"]), len(lengths), UNITS))
    feed: dict[str, Any] = dict(zip("hc", states.astype(np.float32), strict=True))
    return feed | {"x": sentences(lengths), "lengths": np.array(lengths, np.int32)}


def check(got: dict[str, Any], want: list[Any]) -> None:
    """Sums are exact; a few roundings of gates. A byte apart would be 1e-3."""
    for mine, other in zip(got.values(), want, strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=5e-7)


P = {"p": uniform(2, 3 * UNITS, seed=5, bound=0.5)}
BOTH: dict[str, Any] = {"direction": "bidirectional"}
CASES: dict[str, tuple[dict, dict]] = {
    "forward": (weights(), {}),
    "reverse": (weights(), {"direction": "reverse"}),
    "bidirectional": (weights(2), BOTH),
    "unsigned": (weights(2, np.uint8, 131), BOTH),
    "channels": (weights(2, channels=True), BOTH),
    "unsigned channels": (weights(2, np.uint8, 128, True), BOTH),
    "peepholes": (weights(2) | P, BOTH),
    "clip": (weights(), {"clip": 0.3}),
    "input_forget": (weights(2) | P, {**BOTH, "input_forget": 1}),
    "activations": (weights(), {"activations": ["sigmoid", "TANH", "Tanh"]}),
    "no bias": ({k: v for k, v in weights().items() if k != "b"}, {}),
}


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("case", CASES)
def test_a_sentence_alone_is_as_onnx_runtime_has_it_on_one_thread(case: str, backend: str) -> None:
    constants, attributes = CASES[case]
    model = model_of(constants, ("lengths", "h", "c"), **attributes)
    feed = feed_of(constants, [7])
    for length in (7, 4):  # ONNX Runtime's step sees a longer time, too
        feed |= {"x": feed["x"][:length], "lengths": np.array([length], np.int32)}
        # A state that falls between two bytes could go to the other one: none of these does.
        check(ours(model, backend=backend).run(feed), theirs(model).run(None, feed))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_a_sentence_has_the_same_bits_in_any_batch(case: str, threads: int) -> None:
    constants, attributes = CASES[case]
    session = ours(model_of(constants, ("lengths",), **attributes), threads=threads)
    lengths = [4, 0, 7, 1, 6]
    x = sentences(lengths)
    batch = session.run({"x": x, "lengths": np.array(lengths, np.int32)})
    assert np.abs(batch["Y"]).max() > 0.1
    for n, length in enumerate(lengths):
        alone = session.run({"x": x[:length, n : n + 1], "lengths": np.array([length], np.int32)})
        assert np.array_equal(batch["Y"][:length, :, n], alone["Y"][:, :, 0])
        assert not batch["Y"][length:, :, n].any()
        for name in NAMES[1:]:
            assert np.array_equal(batch[name][:, n], alone[name][:, 0])


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("made", [NAMES, ("", "Y_h", "Y_c")], ids=["Y", "no Y"])
@pytest.mark.parametrize("case", CASES)
def test_a_batch_is_as_onnx_runtime_has_it_on_one_thread(
    case: str, made: tuple[str, ...], backend: str
) -> None:
    constants, attributes = CASES[case]
    model = model_of(constants, ("lengths", "h", "c"), **attributes)
    model.graph.node[0].output[:] = made
    gone = [value for value in model.graph.output if value.name not in made]
    for value in gone:
        model.graph.output.remove(value)
    # Without Y ONNX Runtime has no state of a sequence of no steps but what its memory held.
    lengths = [4, 0, 7, 1, 6] if made[0] else [4, 3, 7, 1, 6]
    feed = feed_of(constants, lengths)
    feed["x"][feed["x"] == 1e6] = 2  # it counts
    got = Session(read(model, "onnxruntime"), backend=backend, threads=2).run(feed)
    want = theirs(model).run(None, feed)
    assert len(got) == len(want) == len(made) - (not made[0])
    check(got, want)
    assert np.abs(want[0] - next(iter(ours(model).run(feed).values()))).max() > 1e-3


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("op", ["Sigmoid", "Tanh"])
def test_functions_in_front_of_a_quantization_have_onnx_runtimes_bits(
    op: str, backend: str
) -> None:
    model = parsed(f"(float[N] x) => (float[N] y) {{ y = {op} (x) }}", {})
    x = np.random.default_rng(0).normal(scale=6, size=100003).astype(np.float32)
    x[:4] = np.nan, np.inf, -np.inf, 0
    (want,) = theirs(model).run(None, {"x": x})
    (got,) = Session(read(model, "onnxruntime"), backend=backend).run({"x": x}).values()
    assert np.isnan(got[0])
    # Without fused products ONNX Runtime rounds in other places.
    np.testing.assert_allclose(got[1:], want[1:], rtol=0, atol=2.5e-7)
    assert op == "Tanh" or (got[1:3] == [1, 0]).all()


@pytest.mark.parametrize(
    "semantics, said",
    [("documented", "each sequence separately"), ("onnxruntime", "together, like")],
)
def test_loading_says_once_which_meaning_is_taken(
    semantics: str, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = model_of(weights())
    again = onnx.NodeProto()
    again.CopyFrom(model.graph.node[0])
    again.output[:] = ["y2", "h2", "c2"]
    model.graph.node.append(again)
    onnx.save(model, tmp_path / "model.onnx")
    graph = load(tmp_path / "model.onnx", semantics=semantics)
    (record,) = caplog.records
    assert said in record.message and "0.21 in ddddocr" in record.message
    assert str(tmp_path) in record.message and sum(said in note for note in graph.notes) == 1
    caplog.clear()
    convert(graph, tmp_path / "again.onnx")
    feed = {"x": sentences([7])}
    again = theirs(onnx.load(tmp_path / "again.onnx")).run(None, feed)
    check({name: Session(graph).run(feed)[name] for name in NAMES}, again)


def test_onnx_runtime_itself_gives_a_sentence_other_numbers_in_a_batch() -> None:
    """Why there is a definition of ours."""
    model = model_of(weights())
    x = sentences([7, 7, 7])
    alone, batch = (theirs(model).run(None, {"x": x[:, :n]})[0][:, :, 0] for n in (1, 3))
    assert np.abs(alone - batch).max() > 1e-3


def test_nan_stays_in_its_sentence() -> None:
    session = ours(model_of(weights(2), ("lengths",), **BOTH))
    lengths = np.array([7, 5, 6], np.int32)
    x = sentences([7, 5, 6])
    plain = session.run({"x": x, "lengths": lengths})["Y"]
    for bad in (np.nan, np.inf):
        spoilt = x.copy()
        spoilt[2, 1, 3] = bad
        got = session.run({"x": spoilt, "lengths": lengths})["Y"]
        assert np.isnan(got[:5, :, 1]).all() and not got[5:, :, 1].any()
        assert np.array_equal(got[:, :, [0, 2]], plain[:, :, [0, 2]])


def test_it_is_written_and_read_again(tmp_path: Path) -> None:
    constants, attributes = CASES["peepholes"]
    model = model_of(constants, ("lengths",), **attributes, clip=0.4)
    graph = read(model)
    convert(graph, tmp_path / "again.onnx")
    feed = {"x": sentences([7])[:7], "lengths": np.array([7], np.int32)}
    again = theirs(onnx.load(tmp_path / "again.onnx")).run(None, feed)
    check(Session(graph).run(feed), again)
    back = load(tmp_path / "again.onnx")
    assert back.nodes[0].op == "DynamicQuantizeLSTM"


@pytest.mark.parametrize(
    "change, reason",
    [
        (
            {"w_scale": np.zeros(1, np.float32)},
            "scale of w: expected finite float32 values above 0",
        ),
        ({"r_scale": np.full(1, np.nan, np.float32)}, "scale of r"),
        ({"w_scale": np.ones(3, np.float32)}, r"scale \(3,\).* of w: expected \(1,\) or \(1, 24\)"),
        ({"w_zero": np.zeros(1, np.uint8)}, "w: expected .*, got int8 and uint8"),
        ({"w": np.zeros((1, WIDTH + 1, 4 * UNITS), np.int8)}, "w: expected"),
        ({"r": np.zeros((1, UNITS), np.int8)}, "r: expected|w: expected"),
        ({"b": np.zeros((1, 4 * UNITS), np.float32)}, "b: expected"),
        ({"w": np.zeros((1, WIDTH, 4 * UNITS), np.int16)}, "w: expected .*, got int16"),
    ],
)
def test_what_is_no_quantized_layer_is_refused(change: dict, reason: str) -> None:
    session = ours(model_of({**weights(), **change}))
    with pytest.raises(ShapeError, match=reason):
        session.run({"x": sentences([3])})


@pytest.mark.parametrize(
    "attributes, reason",
    [
        ({"activations": ["Sigmoid", "Relu", "Tanh"]}, "expected .'sigmoid', 'tanh', 'tanh'."),
        ({"activation_alpha": [1.0]}, "not understood: attribute activation_alpha"),
        ({"layout": 1}, "not understood: attribute layout"),
    ],
)
def test_attributes_that_are_not_run_are_refused_by_name(attributes: dict, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        ours(model_of(weights(), **attributes))


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_gates_of_all_words_count_as_memory(backend: str) -> None:
    session = ours(model_of(weights()), backend=backend, max_bytes=2**20)
    session.run({"x": np.zeros((100, 4, WIDTH), np.float32)})
    with pytest.raises(BudgetError):
        session.run({"x": np.zeros((5000, 4, WIDTH), np.float32)})


def test_other_directions_and_lengths_are_refused() -> None:
    with pytest.raises(ShapeError, match="attribute direction='sideways'"):
        ours(model_of(weights(), direction="sideways")).run({"x": sentences([3])})
    session = ours(model_of(weights(), ("lengths",)))
    for length in (-1, 4):
        with pytest.raises(ShapeError, match="expected 0 to 3"):
            session.run({"x": sentences([3]), "lengths": np.array([length], np.int32)})
