"""A node's own precision: sessions honour it, passes and pickles keep it, others refuse it."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from support.graphs import new_node, reference, rnn_node, small
from support.layers import random_layer, random_ragged, random_weights, words
from support.planning import as_it_is

from onernn import Cell, Graph, RnnSpec, Session, ShapeError, UnsupportedError, fuse
from onernn.adapters.converting import write_model
from onernn.backend import open_backend
from onernn.fuse_passes import passes_for
from onernn.fuse_passes.expand_layers import ExpandLayers
from onernn.ir.graph import Node, Value
from onernn.ir.rnn import Recurrent, with_precision
from onernn.ir.weights import OWN, LayerPrecision, PartScales, Scale

pytestmark = pytest.mark.usefixtures("built")

SPEC = RnnSpec(Cell.LSTM, 8, 8)
LENGTHS = [4, 0, 7, 1]


def u8(count: int = 1, first: int = 0) -> LayerPrecision:
    """Scales of their own for each part."""
    each = (PartScales(Scale(60.0 + k, 90.0), Scale(127.0, 128.0)) for k in range(first, count))
    return LayerPrecision("u8", tuple(each))


def layers(*names: str, spec: RnnSpec = SPEC) -> Graph:
    """One layer on the other."""
    nodes = [
        rnn_node(f"{y} = Rnn {x}", spec, at)
        for at, (x, y) in enumerate(zip(("x", *names), names, strict=False))
    ]
    return small(nodes, {"x": [None, spec.input_size]}, names[-1])


def precisions(graph: Graph) -> dict[str, LayerPrecision]:
    found = (Recurrent.of(node) for node in graph.nodes if node.op == "Rnn")
    return {rnn.y: rnn.precision for rnn in found}


@pytest.mark.parametrize("dtype", ["f32", "bf16", "u8"])
def test_layers_of_one_model_run_in_u8_bf16_and_f32_whatever_the_session_says(dtype: str) -> None:
    chosen = {"a": u8(), "b": LayerPrecision("bf16"), "y": LayerPrecision("f32")}
    model = with_precision(layers("a", "b", "y"), chosen)
    session = Session(model, dtype=dtype, backend="kernels")
    assert [each.dtype for each in session.explained] == ["u8", "bf16", "f32"]
    x = below = random_ragged(LENGTHS, 8, 1)
    backend: Any = open_backend("kernels")
    for at, precision in enumerate(chosen.values()):
        more = {"scales": precision.parts} if precision.parts else {}
        layer = backend.prepare(SPEC, random_weights(SPEC, at), dtype=precision.dtype, **more)
        below, _ = layer.run(below)
    assert_array_equal(words(session.run({"x": x})["y"]), words(below))


def test_one_layer_of_the_same_weights_runs_in_two_precisions() -> None:
    """Sessions pack the weights of equal layers once: not those of other precisions."""
    spec, weights = SPEC, random_weights(SPEC, 0)
    nodes = [
        Node("Rnn", ("x",), (y,), {"spec": spec, "weights": weights} | more)
        for y, more in (("a", {}), ("b", {"precision": u8()}), ("c", {"precision": u8(2, 1)}))
    ]
    graph = small(nodes, {"x": [None, 8]}, "a b c")
    made = Session(graph, backend="kernels").run({"x": random_ragged(LENGTHS, 8, 1)})
    assert len({words(value).tobytes() for value in made.values()}) == 3


def test_pickles_of_graphs_and_sessions_keep_it() -> None:
    factors = np.full((4, 8), 90, np.float32)
    scales = PartScales(Scale(60.0, 90.0), layer=factors)
    model = with_precision(layers("a", "y"), {"a": LayerPrecision("u8", (scales,))})
    x = random_ragged(LENGTHS, 8, 1)
    want = words(Session(model, backend="kernels").run({"x": x})["y"])
    again = pickle.loads(pickle.dumps(model))
    (part,) = precisions(again)["a"].parts
    assert part.data == scales.data and not part.layer.flags.writeable
    assert_array_equal(part.layer, factors)
    session = pickle.loads(pickle.dumps(Session(model, backend="kernels")))
    for each in (Session(again, backend="kernels"), session, session.with_graph(again)):
        assert_array_equal(words(each.run({"x": x})["y"]), want)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "u8"])
def test_a_layer_of_its_own_precision_gives_a_sequence_the_same_bits_in_every_batch(
    dtype: str,
) -> None:
    """Also where other batches run faster on oneDNN: sizes at which tables differ by the batch."""
    x = np.random.default_rng(0).normal(0, 1, (20, 64, 64)).astype(np.float32)
    for hidden in (64, 128):
        spec = RnnSpec(Cell.LSTM, 64, hidden)
        model = layers("y", spec=spec)
        dense = replace(model, inputs=(Value("x", "float32", (None, None, 64)),))
        session = Session(with_precision(dense, {"y": LayerPrecision(dtype)}), threads=1)
        whole = session.run({"x": x})["y"]
        for count in (1, 4, 8, 32):
            part = session.run({"x": np.ascontiguousarray(x[:, :count])})["y"]
            assert_array_equal(part, whole[:, :count])


def test_the_reference_is_float32() -> None:
    model = layers("a", "y")
    x = random_ragged(LENGTHS, 8, 1)
    session = Session(with_precision(model, {"a": u8()}), backend="reference")
    want = reference(model, {"x": x})
    assert_array_equal(words(session.run({"x": x})["y"]), words(want["y"]))
    assert {each.dtype for each in pickle.loads(pickle.dumps(session)).explained} == {"f32"}


def test_stacks_are_made_of_equal_precisions_only() -> None:
    model = layers("a", "y")
    both = with_precision(model, {"a": u8(1), "y": u8(2, 1)})
    (rnn,) = (Recurrent.of(node) for node in fuse(both).model.nodes)
    assert rnn.spec.layers == 2
    assert [part.data.factor for part in rnn.precision.parts] == [60, 61]
    x = random_ragged(LENGTHS, 8, 1)
    apart = as_it_is(both).run({"x": x})["y"]
    stacked = Session(both, backend="kernels").run({"x": x})["y"]
    assert_array_equal(words(apart), words(stacked))
    for other in ({"a": u8()}, {"a": u8(), "y": LayerPrecision("u8")}):
        result = fuse(with_precision(model, other))
        assert len(result.model.nodes) == 2
        assert any("precisions of their own" in each.reason for each in result.refusals)


def test_directions_are_paired_of_equal_precisions_only() -> None:
    sides = [replace(SPEC, direction=side) for side in ("left2right", "right2left")]
    nodes = [rnn_node(f"{y} = Rnn x", spec) for y, spec in zip("ab", sides, strict=True)]
    nodes.append(new_node("y = Concat a b", axis=-1))
    model = small(nodes, {"x": [None, 8]})
    (pair,) = fuse(with_precision(model, {"a": u8(1), "b": u8(2, 1)})).model.nodes
    parts = Recurrent.of(pair).precision.parts
    assert [part.data.factor for part in parts] == [60, 61]
    assert len(fuse(with_precision(model, {"a": u8()})).model.nodes) == 3


@pytest.mark.parametrize("apart", [True, False])
def test_stacks_taken_apart_have_the_scales_of_their_parts(apart: bool) -> None:
    spec = replace(SPEC, layers=3, direction="bidirectional_concat")
    model = with_precision(layers("y", spec=spec), {"y": u8(6)})
    expanded = fuse(model, (ExpandLayers(directions=lambda _: apart),)).model
    found = [part.data.factor for each in precisions(expanded).values() for part in each.parts]
    assert found == [60, 61, 62, 63, 64, 65]
    x = random_ragged(LENGTHS, 8, 1)
    want, got = (words(as_it_is(each).run({"x": x})["y"]) for each in (model, expanded))
    assert_array_equal(got, want)


def test_what_changes_the_input_leaves_a_layer_with_a_precision_alone() -> None:
    model = layers("y")
    (rnn,) = model.nodes
    table = np.zeros((5, 600), np.float32)
    before = {
        "MatMul": (new_node("x = MatMul w m"), np.zeros((2, 8), np.float32)),
        "Gather": (new_node("x = Gather m w", axis=0), table),
    }
    for node, constant in before.values():
        wide = constant.shape[1]
        spec = replace(SPEC, input_size=wide)
        layer = replace(rnn, attributes=random_layer(spec, 0))
        kind = ("int64", (None,)) if node.op == "Gather" else ("float32", (None, 2))
        whole = replace(
            model,
            inputs=(Value("w", *kind, 1),),
            nodes=(node, layer),
            constants={"m": constant},
        )
        assert len(fuse(whole, passes_for("f32")).applied) == 1
        (one,) = fuse(
            with_precision(whole, {"y": LayerPrecision("f32")}), passes_for("f32")
        ).applied
        assert one.where == "y"
        kept = fuse(with_precision(whole, {"y": LayerPrecision("bf16")}), passes_for("f32"))
        assert not kept.applied and any("belongs to the input" in r.reason for r in kept.refusals)


def test_files_that_cannot_say_it_are_refused(tmp_path: Path) -> None:
    model = with_precision(layers("a", "y"), {"a": LayerPrecision("bf16")})
    with pytest.raises(UnsupportedError, match="bf16"):
        write_model(model, tmp_path / "m.pdmodel")
    assert not list(tmp_path.iterdir())


def test_a_record_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(ShapeError, match="'u8'.* 'bf16'"):
        LayerPrecision("bf16", u8().parts)
    model = with_precision(layers("y"), {"y": u8(3)})
    with pytest.raises(ShapeError, match="expected scales of 1 layers in 1 directions, 1 parts"):
        Session(model, backend="kernels")
    with pytest.raises(UnsupportedError, match="dtype 'int3': expected one of"):
        Session(with_precision(layers("y"), {"y": LayerPrecision("int3")}))
    assert with_precision(model, {}).nodes[0].attributes.keys() == {"spec", "weights"}
    assert precisions(with_precision(model, {})) == {"y": OWN}
