"""Running a graph: what goes in is checked, what cannot run is named."""

from __future__ import annotations

import numpy as np
import pytest
from support.graphs import ADD, MATMUL, constants, graph, new_node, projected_gru, small

from onernn import Ragged, Session, ShapeError, UnsupportedError
from onernn.ir.graph import UNSUPPORTED, Node

WORDS = np.ones((3, 4), np.float32)
H0 = np.zeros((1, 1, 2, 3), np.float32)
FEED = {"x": Ragged(WORDS, [0, 1, 3]), "h0": H0}


@pytest.fixture
def session() -> Session:
    nodes = [MATMUL, ADD, *projected_gru("y", "xwb", state="h0")]
    return Session(graph(nodes, ["y"], **constants()), backend="reference")


def test_outputs_come_by_name_with_the_offsets_of_the_input(session: Session) -> None:
    out = session.run(FEED)
    assert list(out) == ["y"]
    assert isinstance(out["y"], Ragged) and out["y"].lod == [[0, 1, 3]]


@pytest.mark.parametrize(
    "feed, message",
    [
        ({}, r"missing \['x', 'h0'\]; the model takes x: float32\(\?, 4\), LoD depth 1; h0"),
        (FEED | {"z": H0}, r"unknown \['z'\]"),
        (FEED | {"x": WORDS}, r"'x' is ragged: expected onernn.Ragged.*lod__x"),
        (FEED | {"h0": Ragged(WORDS, [0, 3])}, "'h0' is dense"),
        (FEED | {"x": Ragged(WORDS, [0, 3], ([0, 1],))}, "expected 1 LoD levels, got 2"),
        (
            FEED | {"x": Ragged(WORDS[:, :3], [0, 3])},
            r"\(\?, 4\).*got float32 \(3, 3\); axis 1: expected 4, got 3",
        ),
        (FEED | {"x": Ragged(WORDS[:, 0], [0, 3])}, r"\(\?, 4\).*expected 2 axes, got 1"),
        (FEED | {"x": Ragged(WORDS.astype(str), [0, 3])}, "which float32 cannot hold"),
        (FEED | {"h0": H0[:, :, :1]}, r"node 'y'.*state h: expected .*\(1, 1, 2, 3\)"),
    ],
)
def test_wrong_inputs_are_refused_by_name(session: Session, feed: dict, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        session.run(feed)


def test_inputs_are_not_changed_and_results_do_not_alias_them(session: Session) -> None:
    kept = {"x": WORDS.copy(), "h0": H0.copy()}
    out = session.run(FEED)["y"]
    out.data[:] = 7
    np.testing.assert_array_equal(WORDS, kept["x"])
    np.testing.assert_array_equal(H0, kept["h0"])


def test_wider_numbers_are_narrowed_and_integers_must_fit() -> None:
    model = small((new_node("y = Identity x"),), {"x": ("int32", None)})
    run = Session(model, backend="reference").run
    assert run({"x": np.array([5, 7])})["y"].dtype == np.int32
    with pytest.raises(ShapeError, match="which int32 cannot hold"):
        run({"x": np.array([2**40])})
    with pytest.raises(ShapeError, match="got float64; floats are not converted .* pass int32"):
        run({"x": np.array([5.0])})


@pytest.mark.parametrize("names", [None, ["y"]])
def test_a_call_in_the_order_of_onnx_runtime_names_the_drop_in(
    session: Session, names: list[str] | None
) -> None:
    with pytest.raises(
        ShapeError, match=r"run\(inputs\).*InferenceSession takes run\(output_names"
    ):
        session.run(names, FEED)  # type: ignore[arg-type]


def test_all_unsupported_operators_are_named_at_once() -> None:
    nodes = (
        Node(UNSUPPORTED, (), ("a",), {"reason": "because one"}),
        Node("NoSuchOp", (), ("b",)),
    )
    model = small(nodes, {}, "a b")
    with pytest.raises(UnsupportedError) as caught:
        Session(model)
    assert "because one" in str(caught.value) and "NoSuchOp" in str(caught.value)
    assert len(caught.value.refusals) == 2


def test_an_observer_sees_each_node_with_its_outputs(session: Session) -> None:
    seen = []
    session.run(
        FEED, observe=lambda node, outputs, seconds: seen.append((node.op, outputs, seconds))
    )
    ((op, outputs, seconds),) = seen
    assert op == "Rnn" and outputs[0].data.shape == (3, 3) and seconds >= 0


def test_explain_names_what_runs_and_why(session: Session) -> None:
    assert "GRU left2right, f32, NumPy reference (asked for by name)" in session.explain()


def test_an_unknown_backend_or_thread_count_is_refused() -> None:
    model = small((), {}, "")
    with pytest.raises(UnsupportedError, match="'auto' or 'kernels' or 'onednn' or 'reference'"):
        Session(model, backend="cuda")
    with pytest.raises(ValueError, match="at least 1"):
        Session(model, threads=0)
