"""Paddle's programs that we write: read again they give the same, in Paddle's own operators."""

from __future__ import annotations

import struct
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from support import command_line
from support.checking import assert_close
from support.graphs import new_node, reference, unfused
from support.oracle import run_oracle
from support.paddle_writing import (
    CANONICAL,
    CONTROL,
    LAYERS,
    OPERATORS,
    PARTLY,
    RECORDED,
    RECORDINGS,
    UNWRITTEN,
    Case,
    layer,
    of_nodes,
    one,
    recorded,
    through_onnx,
    words,
)

from onernn import Cell, Graph, Ragged, RnnSpec, UnsupportedError, convert, fuse, load, verify
from onernn.adapters.paddle.messages import message
from onernn.adapters.paddle.read import Program, read_program
from onernn.adapters.paddle.write import write_paddle
from onernn.ir.graph import Value
from onernn.ir.ragged import data_of
from onernn.ir.weights import LayerPrecision, layers_of
from onernn.verification.comparing import TOLERANCES, compare

DATA = Path(__file__).parents[2] / "data" / "paddle"
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fused": {"fused": True},
    "onednn": {"place": "onednn"},
}


@cache
def written(name: str, form: str) -> tuple[Graph, Graph, Program]:
    """A recorded model, the same read again from a written program, and that program."""
    model = fuse(load(DATA / name)).model
    with TemporaryDirectory() as folder:
        file = Path(folder) / "m.pdmodel"
        write_paddle(model, file, **FORMS[form])
        return model, load(file), read_program(file)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", RECORDED)
def test_a_written_recording_gives_what_paddle_gave(name: str, form: str) -> None:
    report = verify(written(name, form)[1], DATA / name / "io.npz", backend="reference")
    assert report.matches and report.outputs, report.outputs
    assert report.passed == (name != "gru_unit")  # its recording has a single step


def parts(model: Graph) -> list[tuple[RnnSpec, Any]]:
    """Each layer and direction by itself, as a specification and its arrays."""
    found = []
    for node in fuse(model).model.nodes:
        if node.op == "Rnn":
            spec = node.attributes["spec"]
            for each in layers_of(spec, node.attributes["weights"]):
                found.append((spec, each))
    return found


@pytest.mark.parametrize("form", ["plain", "fused"])
@pytest.mark.parametrize("name", RECORDED)
def test_layers_come_back_to_the_bit(name: str, form: str) -> None:
    if name == "gru_unit":
        pytest.skip("gru_unit: its step of columns is written as a batch of sentences")
    model, again, _ = written(name, form)
    for (spec, weights), (spec_back, back) in zip(parts(model), parts(again), strict=True):
        assert spec == spec_back
        for field in fields(weights):
            one, other = getattr(weights, field.name), getattr(back, field.name)
            if one is None and field.name == "bias":  # lstm and rnn must have one
                assert other is None or not other.any()
            else:
                np.testing.assert_array_equal(one, other)


def check(case: Case, folder: Path, tolerance: str = "f32", **options: Any) -> Graph:
    """The written case gives what the NumPy kernels give."""
    graph, feeds = case
    expected = unfused(graph, feeds)
    write_paddle(graph, folder / "m.pdmodel", inputs=feeds, **options)
    model = load(folder / "m.pdmodel")
    got = reference(model, feeds)
    assert list(got) == list(expected)
    for name, value in expected.items():
        assert isinstance(got[name], Ragged) == isinstance(value, Ragged), name
        verdict = compare(name, got[name], value, TOLERANCES[tolerance])
        assert verdict.passed, verdict
        assert data_of(got[name]).dtype == data_of(value).dtype
    return model


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_means_the_same(name: str, tmp_path: Path) -> None:
    check(OPERATORS[name], tmp_path)


@pytest.mark.parametrize("name", CANONICAL)
def test_a_case_of_every_operator_means_the_same_or_is_refused(name: str, tmp_path: Path) -> None:
    try:
        check(CANONICAL[name], tmp_path)
    except UnsupportedError:
        assert name.split()[0] in PARTLY and not list(tmp_path.iterdir())


# In each direction each cell has another kind of batch; `make long` takes all three kinds.
EACH_LAYER = [
    name if k % 3 == k // 3 % 3 else pytest.param(name, marks=pytest.mark.long)
    for k, name in enumerate(LAYERS)
]


@pytest.mark.parametrize("name", EACH_LAYER)
def test_a_layer_means_the_same(name: str, tmp_path: Path) -> None:
    """Against an oracle in float64 that walks sentences one by one and knows no Paddle."""
    graph, feeds = LAYERS[name]
    write_paddle(graph, tmp_path / "m.pdmodel")
    got = reference(load(tmp_path / "m.pdmodel"), feeds)
    rnn = next(node for node in graph.nodes if node.op == "Rnn")
    spec, x = rnn.attributes["spec"], feeds["x"]
    if "n" in feeds:
        x = Ragged.from_padded(x, feeds["n"], time_major=True)
    sentences = x.to_list() if isinstance(x, Ragged) else list(x.swapaxes(0, 1))
    shape = (spec.layers, spec.directions, len(sentences), spec.hidden_size)
    states = tuple(feeds.get(k, np.zeros(shape)) for k in "hc"[: len(spec.cell.states)])
    layers = layers_of(spec, rnn.attributes["weights"])
    if spec.activations is not None:  # of which the oracle knows nothing
        check(LAYERS[name], tmp_path)
        return
    outputs, ends = run_oracle(spec, list(layers), sentences, states)
    y = got["y"]
    if "n" in feeds:
        y = Ragged.from_padded(y, feeds["n"], time_major=True)
    found = y.to_list() if isinstance(y, Ragged) else list(y.swapaxes(0, 1))
    for ours, theirs in zip(found, outputs, strict=True):
        assert_close(ours, theirs)
    for state, end in zip(spec.cell.states, ends, strict=True):
        assert_close(got[f"final_{state}"], end)


@pytest.mark.parametrize("name", RECORDED)
def test_onednn_is_asked_for_on_fused_layers_only_and_nowhere_else(name: str) -> None:
    for form in FORMS:
        for op in written(name, form)[2].operators:
            asked = op.attributes.get("use_mkldnn", False)
            assert not asked or form == "onednn" and op.type in ("fusion_gru", "fusion_lstm")


def test_onednn_is_asked_for_where_it_is_right() -> None:
    both = [
        [op for op in written("bigru_concat", form)[2].operators if op.type == "fusion_gru"]
        for form in ("onednn", "fused")
    ]
    for ops, asked in zip(both, (True, False), strict=True):
        assert [bool(op.attributes.get("use_mkldnn")) for op in ops] == [asked] * 2
    assert not any("H0" in op.inputs for op in both[0])


@pytest.mark.parametrize(
    "folder, reason",
    [
        ("initial_state", "keeps the initial state of an earlier batch"),
        ("relu_candidate", "supports sigmoid and tanh only"),
        ("lstm_cell_used", "writes no cell states"),
    ],
)
def test_what_paddle_gets_wrong_on_onednn_stays_off_it_with_a_reason(
    folder: str, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "m.pdmodel"
    notes: list[str] = []
    write_paddle(fuse(load(DATA / folder)).model, file, place="onednn", note=notes.append)
    (refusal,) = notes
    assert reason in refusal
    assert not any(op.attributes.get("use_mkldnn") for op in read_program(file).operators)


@pytest.mark.parametrize("name", RECORDED)
def test_plain_layers_are_no_pattern_of_paddles_own_fuse_passes(name: str) -> None:
    """These drop initial states, cells and functions: see design/0014."""
    program = written(name, "plain")[2].operators
    made = {name: op.type for op in program for names in op.outputs.values() for name in names}
    for op in program:
        assert op.type not in ("fusion_gru", "fusion_lstm", "multi_gru")
        if op.type in ("gru", "lstm"):
            assert made[op.inputs["Input"][0]] == "assign"


@pytest.mark.parametrize("name", RECORDED)
def test_a_fused_native_layer_has_its_own_zero_state(name: str) -> None:
    """Without H0 Paddle's native kernels go wrong over sentences without words."""
    for op in written(name, "fused")[2].operators:
        if op.type.startswith("fusion_"):
            assert {"H0"} <= set(op.inputs) and op.attributes["use_seq"]
            assert not op.attributes.get("origin_mode")


def rnn_case(cell: Cell, **more: Any) -> Case:
    return layer(RnnSpec(cell, 4, 3, **more), "dense")


REFUSED: dict[str, Case] = {
    "Paddle has no plain RNN with sigmoid": rnn_case(Cell.RNN_SIGMOID),
    "Paddle has no GRU with attention .AUGRU": rnn_case(Cell.AUGRU),
    "Paddle has no LSTM with a projection": rnn_case(Cell.LSTM, projection_size=2),
    "Paddle has no LSTM with a clipped cell state": rnn_case(Cell.LSTM, cell_clip=(-1.0, 1.0)),
    "Paddle has no LSTM with coupled input": rnn_case(Cell.LSTM, input_forget=True),
    "Paddle has no LBR_GRU with functions sigmoid, relu, only with sigmoid, tanh": rnn_case(
        Cell.LBR_GRU, activations=("sigmoid", "relu")
    ),
    "Paddle has no GRU with function softsign, only with sigmoid": rnn_case(
        Cell.GRU, activations=("sigmoid", "softsign")
    ),
    "Paddle has no LBR_GRU that replaces": rnn_case(Cell.LBR_GRU, update="replace"),
    "operator DFT has no equivalent in Paddle; ONNX has one: write .onnx": one(
        "DFT", {"x": np.ones((2, 4, 1), np.float32)}
    ),
    "steps .2.: expected 1 between ends": one(
        "Slice", {"x": np.ones((3, 4), np.float32), "s": np.array([0]), "e": np.array([2])},
        a=np.array([0]), t=np.array([2]),
    ),
    "step -1: expected an end before the last element": one(
        "Slice", {"x": np.ones((3, 4), np.float32)}, s=np.array([2]), e=np.array([-1]),
        a=np.array([0]), t=np.array([-1]),
    ),
    "expected one or two values": one(
        "Einsum", dict.fromkeys("xyz", np.ones((3, 3))), equation="ij,jk,kl->il"
    ),
    "no letter twice": one("Einsum", {"x": np.ones((3, 3))}, equation="ii->i"),
    "expected at most 3 pads of 4 elements, got 4": one(
        "Pad", {"x": np.ones((3, 4), np.float32)}, p=np.array([0, 4, 0, 0]), mode="reflect"
    ),
    "auto_pad=SAME_LOWER, .*: expected sizes that are known before a run; set pads": of_nodes(
        [new_node("y = Conv x w", auto_pad="SAME_LOWER", strides=(2,)),
         new_node("x = Transpose d", perm=(1, 2, 0))][::-1],
        {"d": np.ones((5, 2, 3), np.float32)}, "y", w=np.ones((2, 3, 2), np.float32),
    ),
    "Paddle takes the first": one("ArgMax", {"x": np.ones((3, 4))}, select_last_index=1),
    "end pads larger than start pads": one(
        "AveragePool", {"x": np.ones((1, 2, 6, 7), np.float32)}, kernel_shape=(3, 2),
        pads=(1, 0, 1, 1), count_include_pad=1,
    ),
    "expected 1 LoD levels, got 2": one(
        "SequenceSoftmax",
        {"x": Ragged(np.ones((3, 1), np.float32), np.array([0, 1, 3]), (np.array([0, 2]),))},
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_what_paddle_cannot_say_is_refused_by_name_and_nothing_is_written(
    reason: str, tmp_path: Path
) -> None:
    graph, _ = REFUSED[reason]
    if "AUGRU" in reason:
        rnn = replace(graph.nodes[0], inputs=("x", "", "", "a"))
        values = (*graph.inputs, Value("a", "float32", (None, None, 1)))
        graph = replace(graph, inputs=values, nodes=(rnn,))
    with pytest.raises(UnsupportedError, match=reason):
        write_paddle(graph, tmp_path / "m.pdmodel")
    assert not list(tmp_path.iterdir())


def test_all_that_paddle_cannot_say_is_refused_at_once_and_older_files_stay(tmp_path: Path) -> None:
    """What a refused node makes is tried as an input: what reads it may be refused, too."""
    nodes = [
        new_node("a = ArgMax x", select_last_index=1),
        new_node("b = Cast a", to="float32"),
        new_node("c = Cast b", to="float16"),
        new_node("y = Exp b"),
    ]
    graph, _ = of_nodes(nodes, {"x": np.ones((3, 4), np.float32)}, "y", "c")
    file = tmp_path / "m.pdmodel"
    for each in (file, file.with_suffix(".pdiparams")):
        each.write_text("older")
    with pytest.raises(UnsupportedError) as caught:
        convert(graph, file)
    assert [each.where for each in caught.value.refusals] == [nodes[0].label, nodes[2].label]
    assert {each.read_text() for each in tmp_path.iterdir()} == {"older"}
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_of_any_framework_is_written_or_refused(name: str, tmp_path: Path) -> None:
    model, feeds, expected = recorded(name)
    try:
        convert(model, tmp_path / "m.pdmodel", inputs=feeds)
    except UnsupportedError as error:
        assert UNWRITTEN[name] in str(error) and not list(tmp_path.iterdir())
        return
    assert name not in UNWRITTEN
    got = reference(load(tmp_path / "m.pdmodel"), feeds)
    for key, want in expected.items():
        verdict = compare(key, got[key], want, TOLERANCES["f32"])
        assert verdict.passed, verdict


@pytest.mark.parametrize("name", CONTROL)
def test_a_loop_or_branch_means_the_same(name: str, tmp_path: Path) -> None:
    check(CONTROL[name], tmp_path)


def test_a_tagger_comes_back_from_onnx_with_the_same_tags(tmp_path: Path) -> None:
    file, feeds, expected = through_onnx("paddle/embedding_crf", tmp_path)
    got = reference(load(file), feeds)
    assert list(got) == list(expected)
    for key, want in expected.items():
        verdict = compare(key, got[key], want, TOLERANCES["f32"])
        assert verdict.passed, verdict


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"place": "gpu"}, "expected one of"),
        ({"place": "onednn", "fused": False}, "fused=False: expected True"),
    ],
)
def test_options_that_cannot_be_are_refused(options: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=reason):
        write_paddle(load(DATA / "bigru_concat"), tmp_path / "m.pdmodel", **options)


def test_a_layer_with_a_precision_of_its_own_is_refused(tmp_path: Path) -> None:
    graph, _ = layer(RnnSpec(Cell.GRU, 4, 3), "ragged")
    attributes = {**graph.nodes[0].attributes, "precision": LayerPrecision("u8")}
    quantized = replace(graph, nodes=(replace(graph.nodes[0], attributes=attributes),))
    with pytest.raises(UnsupportedError, match="a Paddle program cannot store .* in u8"):
        write_paddle(quantized, tmp_path / "m.pdmodel")


def test_two_lod_levels_of_a_layer_are_refused(tmp_path: Path) -> None:
    graph, _ = layer(RnnSpec(Cell.GRU, 4, 3), "ragged")
    deep = replace(graph, inputs=(Value("x", "float32", (None, 4), 2),))
    with pytest.raises(UnsupportedError, match="expected at most one LoD level, got 2"):
        write_paddle(deep, tmp_path / "m.pdmodel")


def test_files_are_the_same_every_time_and_replace_what_stood_there(tmp_path: Path) -> None:
    model, kept = fuse(load(DATA / "bigru_concat")).model, []
    for _ in range(2):
        write_paddle(model, tmp_path / "m.pdmodel")
        kept.append([path.read_bytes() for path in sorted(tmp_path.iterdir())])
    assert kept[0] == kept[1] and len(kept[0]) == 2
    with pytest.raises(FileNotFoundError):
        write_paddle(model, tmp_path / "nowhere" / "m.pdmodel")


def test_parameters_stand_in_the_order_of_their_names(tmp_path: Path) -> None:
    """As Paddle's loader reads them; the first one by hand, from the bytes."""
    write_paddle(fuse(load(DATA / "bigru_concat")).model, tmp_path / "m.pdmodel")
    desc = message("ProgramDesc").FromString((tmp_path / "m.pdmodel").read_bytes())
    saved = sorted(v.name for v in desc.blocks[0].vars if v.is_parameter)
    assert saved == sorted(read_program(tmp_path / "m.pdmodel").parameters)
    data = (tmp_path / "m.pdiparams").read_bytes()
    version, levels, again, length = struct.unpack_from("<IQIi", data)
    assert (version, levels, again) == (0, 0, 0)
    tensor = message("TensorDesc").FromString(data[20 : 20 + length])
    first = read_program(tmp_path / "m.pdmodel").parameters[saved[0]]
    assert tuple(tensor.dims) == first.shape
    assert data[20 + length :][: first.nbytes] == first.tobytes()
    assert not any("op_callstack" in each.name for op in desc.blocks[0].ops for each in op.attrs)


def test_a_model_without_parameters_and_outputs_of_every_kind(tmp_path: Path) -> None:
    """A value under two names, an input that is an output, a constant that is one."""
    nodes = [new_node("a = SequenceData d"), new_node("b = SequenceData d")]
    graph, feeds = of_nodes(nodes, {"d": np.ones((2, 3), np.float32)}, "a", "b", "d")
    model = check((graph, feeds), tmp_path)
    assert len(read_program(tmp_path / "m.pdmodel").parameters) == 1
    assert [value.name for value in model.outputs] == ["a", "b", "d"]
    check(of_nodes(nodes, feeds, "a", "k", k=np.arange(3)), tmp_path)


def test_names_that_the_writer_makes_do_not_meet_those_of_the_model(tmp_path: Path) -> None:
    nodes = [
        new_node("scale.out = Tanh split.out"),
        new_node("mul.out = MatMul scale.out assign.out"),
    ]
    feeds = {"split.out": words(4)}
    weight = {"assign.out": np.ones((4, 2), np.float32)}
    check(of_nodes(nodes, feeds, "mul.out", "scale.out", **weight), tmp_path)


def test_the_command_line_writes_checks_and_tells(tmp_path: Path) -> None:
    source, out = DATA / "initial_state", tmp_path / "out.pdmodel"
    run = command_line.onernn(
        "convert", source, out, "--check", source / "io.npz", "--place", "onednn"
    )
    assert run.returncode == 0 and "pass" in run.stdout, run.stderr
    assert "not placed on oneDNN: gru_10: Paddle's oneDNN kernel keeps" in run.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.pdiparams", "out.pdmodel"]
    run = command_line.onernn("convert", source, out, "--opset", 14)
    assert run.returncode == 2 and "opset" in run.stderr and ".pdmodel" in run.stderr
