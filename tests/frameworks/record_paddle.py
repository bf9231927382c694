"""Writes small models of Paddle, with its own inputs and outputs, for tests that have no Paddle.

    python -m tests.frameworks.record_paddle tests/data/paddle

Run in an environment with PaddlePaddle 2.6.2; what each model is for stands in its function.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tests.frameworks.paddle_graphs import Batch, PaddleGraph, SavedModel, Variable
from tests.frameworks.recording import record_each, registry, strip_call_stacks

from onernn import Ragged
from onernn.ir.arrays import Array

Feeds = dict[str, Batch]
OFFSETS = [0, 3, 3, 4, 9, 11]


MODELS, model = registry()


class Builder:
    """A graph over sentences of 4 features, hidden size 5 unless told; numbers from a seed."""

    def __init__(self, seed: int, levels: int = 1) -> None:
        self.rng, self.graph, self.op = np.random.default_rng(seed), PaddleGraph(), None
        outer = ([0, 2, 2, 5],) if levels == 2 else ()
        self.feeds: Feeds = {"x": Ragged(self.array(11, 4) * 2, OFFSETS, outer)}
        self.x = self.graph.feed_like("x", self.feeds["x"])
        self.op = self.graph.op

    def array(self, *shape: int) -> Array:
        """Contractive: within 1 / sqrt(rows)."""
        bound = 1 / np.sqrt(shape[0])
        return self.rng.uniform(-bound, bound, shape).astype(np.float32)

    def parameter(self, *shape: int, name: str = "") -> Variable:
        return self.graph.parameter(self.array(*shape), name)

    def feed(self, name: str, value: Batch) -> Variable:
        self.feeds[name] = value
        return self.graph.feed_like(name, value)

    def mul(self, x: Variable, rows: int, columns: int) -> Variable:
        return self.op("mul", X=x, Y=self.parameter(rows, columns))

    def add(self, x: Variable, bias: Variable) -> Variable:
        return self.op("elementwise_add", X=x, Y=bias, axis=1)

    def fc(self, x: Variable, rows: int, columns: int) -> Variable:
        return self.add(self.mul(x, rows, columns), self.parameter(columns))

    def gru(
        self,
        projected: Variable,
        hidden: int = 5,
        bias: Variable | None = None,
        state: Variable | None = None,
        **attributes: Any,
    ) -> Variable:
        weight = self.parameter(hidden, 3 * hidden)
        return self.op("gru", Input=projected, Weight=weight, Bias=bias, H0=state, **attributes)

    def fc_gru(
        self, x: Variable | None = None, hidden: int = 5, width: int = 4, **more: Any
    ) -> Variable:
        """A GRU with a bias over the projection, with a bias, of ``width`` features."""
        projected = self.fc(self.x if x is None else x, width, 3 * hidden)
        return self.gru(projected, hidden, **{"bias": self.parameter(1, 3 * hidden), **more})

    def done(self, *fetches: Variable) -> tuple[PaddleGraph, list[Variable], Feeds]:
        return self.graph, list(fetches), self.feeds


@model
def initial_state() -> Any:
    """Paddle's own pass fuses this and drops H0."""
    b = Builder(1)
    state = b.feed("h0", b.array(5, 5))
    return b.done(b.fc_gru(state=state))


@model
def shared_bias() -> Any:
    """Two GRUs add one bias; Paddle's own pass adds into it in place, twice."""
    b = Builder(2)
    bias = b.parameter(1, 15)
    return b.done(*(b.gru(b.fc(b.x, 4, 15), bias=bias) for _ in range(2)))


@model
def shared_projection() -> Any:
    """Two GRUs read one fc output, which is fetched, too."""
    b = Builder(3)
    projected = b.fc(b.x, 4, 9)
    return b.done(b.gru(projected, 3), b.gru(projected, 3, is_reverse=True), projected)


@model
def two_levels() -> Any:
    """Paddle's GRU takes one level: lod_reset makes it so, and gives the others back."""
    b = Builder(4, levels=2)
    one = b.feed("one", Ragged(b.array(11, 1), OFFSETS))
    projected = b.op("lod_reset", X=b.fc(b.x, 4, 15), Y=one)
    hidden = b.gru(projected, bias=b.parameter(1, 15))
    return b.done(hidden, b.op("lod_reset", X=hidden, Y=b.x))


@model
def origin_mode_reverse() -> Any:
    """h = u h' + (1-u) c, from the ends of the sentences; no gru bias."""
    b = Builder(5)
    return b.done(b.gru(b.fc(b.x, 4, 15), origin_mode=True, is_reverse=True))


@model
def relu_candidate() -> Any:
    """A function that oneDNN's GRU lacks; the projection has no bias."""
    b = Builder(6)
    projected = b.mul(b.x, 4, 15)
    return b.done(b.gru(projected, bias=b.parameter(1, 15), activation="relu"))


@model
def tanh_gate() -> Any:
    """Under another gate than a sigmoid, origin_mode False is no sign."""
    b = Builder(7)
    return b.done(b.fc_gru(gate_activation="tanh"))


@model
def matmul_v2_lod_reset() -> Any:
    """matmul_v2 drops the LoD, lod_reset takes it back from x."""
    b = Builder(8)
    product = b.op("matmul_v2", X=b.x, Y=b.parameter(15, 4), trans_y=True)
    projected = b.op("lod_reset", X=b.add(product, b.parameter(15)), Y=b.x)
    return b.done(b.gru(projected, bias=b.parameter(1, 15)))


@model
def fc_relu() -> Any:
    """The fc operator with an activation is not linear: it stays in front of the GRU."""
    b = Builder(9)
    options = {"in_num_col_dims": 1, "activation_type": "relu"}
    projected = b.op("fc", Input=b.x, W=b.parameter(4, 15), Bias=b.parameter(15), **options)
    return b.done(b.gru(projected, bias=b.parameter(1, 15)))


@model
def dropout_downgrade() -> Any:
    """In inference this dropout multiplies by 1 - p."""
    b = Builder(10)
    kept = b.op("dropout", X=b.x, dropout_prob=0.3, is_test=True)
    return b.done(b.fc_gru(kept))


@model
def embedding_crf() -> Any:
    """A tagger: embedding with a row that is padding, GRU, emission of 5 tags, Viterbi path."""
    b = Builder(11)
    ids = b.feed("ids", Ragged(b.rng.integers(0, 7, (11, 1)), OFFSETS))
    words = b.op("lookup_table", Ids=ids, W=b.parameter(7, 4), padding_idx=3)
    both = b.op("elementwise_add", X=words, Y=b.x, axis=-1)
    emission = b.fc(b.fc_gru(both), 5, 5)
    return b.done(emission, b.op("crf_decoding", Emission=emission, Transition=b.parameter(7, 5)))


@model
def bidirectional_states() -> Any:
    """A pair of opposite directions, each from its own initial state, one without a gru bias."""
    b = Builder(12)
    states = [b.feed(name, b.array(5, 4)) for name in ("h_forward", "h_backward")]
    forward = b.fc_gru(hidden=4, state=states[0])
    backward = b.gru(b.fc(b.x, 4, 12), 4, state=states[1], is_reverse=True)
    return b.done(b.op("concat", X=[forward, backward], axis=1))


@model
def running_weight() -> Any:
    """The weight of the projection is computed at run time."""
    b = Builder(13)
    weight = b.op("scale", X=b.parameter(4, 15), scale=0.5)
    projected = b.op("mul", X=b.x, Y=weight)
    return b.done(b.gru(projected, bias=b.parameter(1, 15)))


def arrays(prefix: str, lod_prefix: str, values: Mapping[str, Batch]) -> dict[str, Array]:
    """Keys of a recording, as `onernn verify` reads them."""
    found: dict[str, Array] = {}
    for name, value in values.items():
        found[prefix + name] = value.data if isinstance(value, Ragged) else value
        if isinstance(value, Ragged):
            found[lod_prefix + name] = value.offsets
            found |= {f"{lod_prefix}{name}__{k}": level for k, level in enumerate(value.outer)}
    return found


def record(name: str, folder: Path) -> None:
    graph, fetches, feeds = MODELS[name]()
    folder.mkdir(parents=True, exist_ok=True)
    graph.save(folder, fetches)
    strip_call_stacks(folder / "model.pdmodel")
    record_runs(SavedModel(folder / "model"), feeds)


def record_runs(saved: SavedModel, feeds: Feeds) -> None:
    """``io.npz`` beside the model."""
    used = {name: feeds[name] for name in saved.inputs}
    outputs = dict(zip([v.name for v in saved.fetches], saved.run(used), strict=True))
    # NAME is the fetch's own name; compressed, the folder stays below 15 kB
    recording = arrays("in__", "lod__", used) | arrays("out__", "outlod__", outputs)
    np.savez_compressed(saved.folder / "io.npz", **recording)


if __name__ == "__main__":
    record_each(MODELS, record)
