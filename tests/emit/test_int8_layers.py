"""Generated code computes in bytes to the bit as a session does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.emitting import build
from support.graphs import reference, rnn_node, small
from support.layers import random_ragged
from support.tiles import TILES

from onernn import Cell, Graph, RnnSpec, Session, UnsupportedError
from onernn.backend.compiled.library import load_kernels
from onernn.engine.emit import write_cpp
from onernn.ir.ragged import data_of
from onernn.ir.weights import OWN, LayerPrecision, PartScales, Scale

FLAGS = ("-O0", "-march=native", "-ffp-contract=off")
BOTH = RnnSpec(Cell.GRU, 12, 20, layers=2, direction="bidirectional_concat")
PEEPHOLE = RnnSpec(Cell.LSTM, 12, 20, peephole=True)
PROJECTED = RnnSpec(Cell.LSTM, 12, 20, projection_size=9)


def calibrated(spec: RnnSpec, seed: int = 0) -> LayerPrecision:
    """Scales of each layer and direction, x with a shift of its own."""
    rng, rows = np.random.default_rng(seed), (spec.gates, spec.hidden_size)
    count = spec.layers * spec.directions
    return LayerPrecision(
        "u8",
        tuple(
            PartScales(
                Scale(60.0 + k, 100.0 + k), Scale(120.0, 128.0), *rng.uniform(200, 400, (2, *rows))
            )
            for k in range(count)
        ),
    )


def graph_of(spec: RnnSpec, precision: LayerPrecision = OWN) -> Graph:
    return small(
        (rnn_node("y = Rnn x", spec, precision=precision),), {"x": [None, spec.input_size]}
    )


def mixed() -> Graph:
    """Three layers in three kinds of numbers; the middle one in those of the whole model."""
    first, upper = RnnSpec(Cell.LBR_GRU, 12, 20), RnnSpec(Cell.LBR_GRU, 20, 20)
    nodes = [
        rnn_node(f"{made} = Rnn {read}", spec, seed, precision=precision)
        for seed, (read, made, spec, precision) in enumerate(
            [
                ("x", "a", first, calibrated(first)),
                ("a", "b", upper, OWN),
                ("b", "y", upper, LayerPrecision("bf16")),
            ]
        )
    ]
    return small(nodes, {"x": [None, 12]})


MODELS = {
    "calibrated": graph_of(BOTH, calibrated(BOTH)),
    "found": graph_of(PEEPHOLE),
    "projected": graph_of(PROJECTED, LayerPrecision("u8")),
    "mixed": mixed(),
}


@pytest.mark.usefixtures("built")
def test_generated_code_gives_the_bits_of_a_session(tmp_path: Path) -> None:
    emitted = build(MODELS, tmp_path, FLAGS, weights="int8")
    for name, model in MODELS.items():
        x = random_ragged([5, 0, 9, 1, 3], 12, 1)
        want = Session(model, dtype="u8", backend="kernels").run({"x": x})
        status, got = emitted[name].run({"x": x}, want)
        assert status == 0, got
        # Tiles add the products of bf16 in another order, and emitted code has none: a layer of 8
        # units is apart by some roundings of float32. Sums of bytes are exact.
        has_tiles = name == "mixed" and load_kernels().isa == TILES
        apart = np.abs(got["y"] - data_of(want["y"]).reshape(-1)).max()
        assert apart <= (1e-6 if has_tiles else 0), name
        wide = reference(model, {"x": x})
        assert 1e-5 < np.abs(data_of(wide["y"]) - data_of(want["y"])).max() < 0.1


def test_a_layers_own_precision_goes_before_that_of_the_model(tmp_path: Path) -> None:
    write_cpp(MODELS["calibrated"], tmp_path, name="one")
    code = (tmp_path / "one.hpp").read_text()
    assert "onernn/quads.hpp" in code and "onernn::Traits<float, ByteQuad>" in code
    assert "{0.016666668f, 100}, {0.008333334f, 128}" in code
    write_cpp(mixed(), tmp_path, name="three", weights="f16")
    code = (tmp_path / "three.hpp").read_text()
    kinds = [kind for kind in ("ByteQuad", "Half", "BrainPair") if f"Traits<float, {kind}>" in code]
    assert kinds == ["ByteQuad", "Half", "BrainPair"]


def test_layers_that_bytes_get_wrong_are_refused_by_name(tmp_path: Path) -> None:
    hidden = ("sigmoid", ("thresholdedrelu", 1.0), "tanh")
    model = graph_of(RnnSpec(Cell.LSTM, 4, 4, activations=hidden))
    with pytest.raises(UnsupportedError, match="'y'.*thresholdedrelu"):
        write_cpp(model, tmp_path, weights="int8")
    other = graph_of(RnnSpec(Cell.LSTM, 4, 4), LayerPrecision("int3"))
    with pytest.raises(UnsupportedError, match="int3"):
        write_cpp(other, tmp_path)
    assert not list(tmp_path.iterdir())
