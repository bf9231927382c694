"""Each named cause is needed, harmless differences are none, and texts name what differs."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import planted
from support.onnx_models import parsed
from support.planted import FAULTS, Arrays, Tagger, compared, file, named, read, recording, sound

from onernn import Graph, convert
from onernn.ir.weights import LayerPrecision
from onernn.verification.conversion import repair
from onernn.verification.diagnosis.cause import undo_causes
from onernn.verification.references import Against
from onernn.verification.verifying import Report, verify

# --- harmless differences in the same places as faults


def other_epsilon(graph: Graph) -> Graph:
    """The same number in float32, written as float64."""
    return with_attribute(graph, "LayerNormalization", epsilon=1e-5)


def near_epsilon(graph: Graph) -> Graph:
    """Another number that changes less than rounding does."""
    return with_attribute(graph, "LayerNormalization", epsilon=1.00001e-5)


def other_axis(graph: Graph) -> Graph:
    """The same axis, counted from the other end."""
    return with_attribute(graph, "Softmax", axis=2)


def wide_clip(graph: Graph) -> Graph:
    """A clip that no gate reaches."""
    (layer,) = (node for node in graph.nodes if node.op == "Rnn")
    spec = replace(layer.attributes["spec"], gate_clip=1e4)
    return with_attribute(graph, "Rnn", spec=spec)


def with_attribute(graph: Graph, op: str, **new: object) -> Graph:
    (chosen,) = (node for node in graph.nodes if node.op == op)
    changed = replace(chosen, attributes={**chosen.attributes, **new})
    nodes = (changed if node is chosen else node for node in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


HARMLESS = [other_epsilon, near_epsilon, other_axis, wide_clip]


def scaled_norm(tagger: Tagger) -> str:
    tagger.arrays["scale"] = tagger.arrays["scale"] * np.float32(1.1)
    return "constant_changed"


PLANTED: dict[str, tuple[Callable[[Tagger], str], ...]] = {
    "scaled norm": (scaled_norm,),
    "forget bias": (FAULTS["forget_bias"],),
    "gates and norm": (FAULTS["gates"], scaled_norm),
}


@pytest.mark.parametrize("faults", PLANTED.values(), ids=PLANTED)
@pytest.mark.parametrize("harmless", [None, *HARMLESS], ids=lambda f: f and f.__name__)
def test_each_cause_is_needed_and_harmless_differences_are_none(
    faults: tuple[Callable[[Tagger], str], ...], harmless: Callable[[Graph], Graph] | None
) -> None:
    good = sound("LSTM", 8, seed=4)
    bad = deepcopy(good)
    wanted = sorted(plant(bad) for plant in faults)
    right, model = read(file(good)), read(file(bad))
    model = harmless(model) if harmless else model
    report = verify(model, against=Against(right), seconds=60)
    assert sorted(named(report)) == [(id, "proved") for id in wanted], report.causes
    assert verify(undo_causes(model, report.causes), against=Against(right), diagnose=False).passed
    for cause in report.causes:
        others = [each for each in report.causes if each is not cause]
        alone = undo_causes(model, others) if others else model
        assert not verify(alone, against=Against(right), diagnose=False).matches, cause.text


@pytest.mark.parametrize("harmless", HARMLESS, ids=lambda f: f.__name__)
def test_harmless_differences_pass(harmless: Callable[[Graph], Graph]) -> None:
    right = read(file(sound("LSTM", 8, seed=4)))
    assert verify(harmless(right), against=Against(right), diagnose=False).passed


@pytest.mark.parametrize("name", ["gates", "relu_dropped", "epsilon", "dense_scaled"])
def test_what_our_own_export_adds_is_no_cause(tmp_path: Path, name: str) -> None:
    """Cast, Reshape, Transpose and Identity around the operators."""
    good = sound("GRU", 8, 2, 1, seed=4)
    bad = deepcopy(good)
    wanted = FAULTS[name](bad)
    convert(read(file(bad)), tmp_path / "bad.onnx")
    report = verify(tmp_path / "bad.onnx", against=Against(read(file(good))), seconds=60)
    assert named(report) == [(wanted, "proved")]
    text = report.causes[0].text
    assert not any(op in text for op in ("Cast", "Reshape", "Identity")), text


# --- what a text names


HELD: Arrays = {
    name: np.random.default_rng(seed).normal(0, 0.4, shape).astype(np.float32)
    for seed, (name, shape) in enumerate(
        {"W": (1, 16, 5), "R": (1, 16, 4), "B": (1, 32), "V": (1, 16, 5), "S": (1, 16, 4)}.items()
    )
}
HELD["one"] = np.array([1])
FORWARD = "F, hn, cn = LSTM <hidden_size = 4> (X, W, R, B, , h0, c0) f = Squeeze (F, one) "
BACKWARD = 'G = LSTM <hidden_size = 4, direction = "reverse"> (X, V, S) b = Squeeze (G, one) '
INPUTS = "float[T, N, 5] X, float[1, N, 4] h0, float[1, N, 4] c0"


def written(body: str, outputs: str = "y, hn, cn") -> bytes:
    """A file of these nodes, with the arrays that they read."""
    made = parsed(f"({INPUTS}) => ({outputs}) {{ {body} }}", HELD)
    names = {name for node in made.graph.node for name in node.input}
    kept = [each for each in made.graph.initializer if each.name in names]
    del made.graph.initializer[:]
    made.graph.initializer.extend(kept)
    return made.SerializeToString()


GOOD = FORWARD + BACKWARD + "t = Tanh (f) c = Concat <axis = 0> (t, b) y = Relu (c)"
NAMED = {
    "Identity for Tanh": (
        "t = Tanh (f)",
        "t = Identity (f)",
        "operator_missing",
        ["Identity that makes 't'", "Tanh that makes 't'"],
    ),
    "Identity for Concat": (
        "c = Concat <axis = 0> (t, b)",
        "c = Identity (t)",
        "operator_missing",
        ["Identity that makes 'c'", "Concat that makes 'c'"],
    ),
    "edge to the other half": (
        "(t, b)",
        "(t, t)",
        "input_exchanged",
        ["reads 't' where the reference reads 'b'", "Concat that makes 'c'"],
    ),
    "edge past the function": (
        "(t, b)",
        "(f, b)",
        "operator_missing",
        ["skips what the reference has as Tanh that makes 't'", "Concat that makes 'c'"],
    ),
    "edges exchanged": ("(t, b)", "(b, t)", "input_exchanged", ["exchanges 'b' and 't'"]),
    "function added": (
        "y = Relu (c)",
        "n = Neg (c) y = Relu (n)",
        "operator_added",
        ["Neg that makes 'n'", "which the reference has not"],
    ),
    "state returned": (
        "F, hn, cn = LSTM",
        "hn = Identity (h0) F, , cn = LSTM",
        "state_returned",
        ["returns its input 'h0' unchanged", "final hidden state of LSTM that makes 'F'", "'hn'"],
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_texts_name_the_node_that_differs(name: str) -> None:
    old, new, id, parts = NAMED[name]
    assert old in GOOD
    body = GOOD.replace(old, new).replace("F, , cn", "F, unused, cn")
    report = compared(written(body), written(GOOD), seconds=60)
    (cause,) = report.causes
    assert named(report) == [(id, "proved")], cause.text
    assert all(part in cause.text for part in parts), cause.text
    left, where, right = cause.text.partition(" where the reference ")
    assert not where or left.split(" ", 1)[1] != right.split(" ", 1)[1].partition(",")[0]


@pytest.mark.parametrize("states", [["hn"], ["cn"], ["hn", "cn"]])
@pytest.mark.parametrize("recorded", [False, True])
def test_states_that_come_back_unchanged_have_a_cause(states: list[str], recorded: bool) -> None:
    """Against the right file, and against a recording of ONNX Runtime."""
    body = GOOD
    for name in states:
        body = body.replace(f"{name} = LSTM", f"{name}_ = LSTM").replace(f"{name},", f"{name}_,")
        body += f" {name} = Identity ({name[0]}0)"
    good = GOOD.replace("Concat <axis = 0>", "Add")  # one row for each sequence
    bad = body.replace("Concat <axis = 0>", "Add")
    against = None if recorded else Against(read(written(good)))
    data = recording(written(good)) if recorded else None
    report = verify(read(written(bad)), data, against=against, seconds=60)
    evidence = "candidate" if recorded else "proved"
    assert set(named(report)) == {("state_returned", evidence)}
    assert all(any(name in each.text for each in report.causes) for name in states)


# --- layers of which one side has fewer arrays


def layer(op: str, names: str, **attributes: int) -> bytes:
    """A file of one layer with some of W, R, B, h (initial states) and P (peepholes)."""
    peepholes = np.random.default_rng(0).normal(0, 0.5, (1, 12)).astype(np.float32)
    arrays = {**planted.weights(op), "P": peepholes}
    chosen = {name: array for name, array in arrays.items() if name in names}
    return planted.model(op, chosen, lengths=False, states="h" in names, **attributes)


LBR = {"linear_before_reset": 1}
SIDES = [
    (("RNN", "WRB", {}), ("RNN", "WR", {})),
    (("GRU", "WRB", {}), ("GRU", "WR", {})),
    (("GRU", "WRB", LBR), ("GRU", "WR", {})),
    (("GRU", "WRB", LBR), ("GRU", "WR", LBR)),
    (("LSTM", "WRBP", {}), ("LSTM", "WRB", {})),
    (("LSTM", "WRBP", {}), ("LSTM", "WR", {})),
    (("LSTM", "WRBh", {}), ("LSTM", "WRP", {})),
]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("sides", SIDES, ids=str)
def test_layers_with_and_without_bias_or_peepholes_are_repaired(
    tmp_path: Path, sides: tuple[tuple[str, str, dict[str, int]], ...], turned: bool
) -> None:
    good, bad = (layer(op, names, **more) for op, names, more in sides[:: -1 if turned else 1])
    report: Report = compared(bad, good, seconds=60)
    done = repair(report, tmp_path / "fixed.onnx", Against(read(good)))
    assert done and all("'' -> None" not in line for line in done.changes), done.refused
    fixed, given = (tmp_path / "fixed.onnx").read_bytes(), planted.feed(good)
    made, wanted = (planted.outputs(each, given)["Y"] for each in (fixed, good))
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-6)


# --- a narrow dtype that was asked for


def test_the_kernel_is_not_blamed_for_the_dtype_that_a_file_asks_for() -> None:
    right = read(planted.model("GRU", planted.weights("GRU")))
    assert any(node.op == "Rnn" for node in right.nodes)
    narrow = with_attribute(right, "Rnn", precision=LayerPrecision("bf16"))
    report = verify(narrow, against=Against(right))
    notes = " ".join(report.notes)
    assert not report.matches and not report.causes
    assert "in float32 the outputs match" in notes and "bf16" in notes and "kernel" not in notes
    assert verify(narrow, against=Against(right), rtol=2e-2).passed
