"""Writes small models of every recurrent operator of Paddle, and of what stands around them.

    python -m tests.frameworks.record_paddle_layers tests/data/paddle

As record_paddle.py does for the GRUs over LoD.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tests.frameworks import record_paddle
from tests.frameworks.paddle_graphs import Variable
from tests.frameworks.record_paddle import Builder, model, record
from tests.frameworks.recording import record_each, strip_call_stacks

from onernn import Ragged

OTHERS = set(record_paddle.MODELS)
FILLED = [0, 3, 4, 9, 11]
GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}


def without_words(seed: int) -> Builder:
    """A graph whose inputs are all its own."""
    b = Builder(seed)
    b.graph._feeds.remove(b.x)
    return b


def lstm(b: Builder, x: Variable, hidden: int, **attributes: Any) -> tuple[Variable, Variable]:
    """(Hidden, Cell) of a projected input."""
    rows = 7 if attributes.setdefault("use_peepholes", True) else 4
    weight, bias = b.parameter(hidden, 4 * hidden), b.parameter(1, rows * hidden)
    return b.op("lstm", Input=x, Weight=weight, Bias=bias, **attributes)


def rnn(b: Builder, x: Variable, mode: str, states: list[Variable], **attributes: Any) -> Any:
    """[Out, *states] of a stack of hidden size 3 over (T, N, 4)."""
    layers, both = attributes["num_layers"], attributes["is_bidirec"]
    matrices, biases = [], []
    for layer, _ in itertools.product(range(layers), range(1 + both)):
        width, rows = 4 if layer == 0 else 3 * (1 + both), 3 * GATES[mode]
        matrices += [b.parameter(rows, width), b.parameter(rows, 3)]
        biases += [b.parameter(rows), b.parameter(rows)]
    made = b.op(
        "rnn",
        Input=x,
        PreState=states,
        WeightList=matrices + biases,
        counts={"State": len(states)},
        mode=mode,
        input_size=4,
        hidden_size=3,
        is_test=True,
        **attributes,
    )
    return [made[0], *made[1]]


def state_feed(b: Builder, name: str, rows: int) -> Variable:
    """(L*D, N, 3), five sentences."""
    b.feeds[name] = b.array(rows, 5, 3)
    return b.graph.feed(name, [rows, -1, 3])


def batch_first(b: Builder, name: str, steps: int) -> Variable:
    """(N, T, 4) as the operator wants it, (T, N, 4)."""
    x = b.feed(name, b.array(5, steps, 4) * 2)
    return b.op("transpose2", X=x, axis=[1, 0, 2])


@model
def lstm_states_reverse() -> Any:
    """Peepholes, both initial states, right to left; the cell of every word is asked for."""
    b = Builder(21)
    states = {"H0": b.feed("h0", b.array(5, 3)), "C0": b.feed("c0", b.array(5, 3))}
    return b.done(*lstm(b, b.fc(b.x, 4, 12), 3, **states, is_reverse=True))


@model
def lstm_cell_used() -> Any:
    """No projection bias; somebody reads Cell, which Paddle's oneDNN kernel never writes."""
    b = Builder(22)
    hidden, cell = lstm(b, b.mul(b.x, 4, 12), 3, use_peepholes=False)
    return b.done(hidden, b.op("tanh", X=cell))


@model
def lstm_pair() -> Any:
    """Two directions, concatenated."""
    b = Builder(23)
    halves = [lstm(b, b.fc(b.x, 4, 12), 3, is_reverse=back)[0] for back in (False, True)]
    return b.done(b.op("concat", X=halves, axis=1))


@model
def fusion_lstm() -> Any:
    b = Builder(24)
    b.feeds["x"] = Ragged(b.feeds["x"].data, FILLED)  # Paddle's kernel needs words everywhere
    weights = {"WeightX": b.parameter(4, 12), "WeightH": b.parameter(3, 12)}
    weights["Bias"] = b.parameter(1, 21)
    return b.done(*b.op("fusion_lstm", X=b.x, **weights, use_peepholes=True))


@model
def fused_embedding_fc_lstm() -> Any:
    """A table of projected words; of Bias only the peepholes are read."""
    b = without_words(25)
    ids = b.feed("ids", Ragged(b.rng.integers(0, 6, (11, 1)), FILLED))
    weights = {"Embeddings": b.parameter(6, 12), "WeightH": b.parameter(3, 12)}
    weights |= {"Bias": b.parameter(1, 21), "use_peepholes": True, "is_reverse": True}
    return b.done(*b.op("fused_embedding_fc_lstm", Ids=ids, **weights))


@model
def mul_gru_bare() -> Any:
    """Neither the projection nor the GRU has a bias: Paddle's pass leaves it alone."""
    b = Builder(26)
    return b.done(b.gru(b.mul(b.x, 4, 15)))


@model
def multi_gru_two_layers() -> Any:
    b = Builder(27)
    b.feeds["x"] = Ragged(b.feeds["x"].data, FILLED)
    rows = {"WeightX": (4, 4, 6, 6), "WeightH": [3] * 4, "Bias": [1] * 4}
    weights = {slot: [b.parameter(count, 9) for count in counts] for slot, counts in rows.items()}
    return b.done(b.op("multi_gru", X=b.x, **weights, layers=2, use_mkldnn=True))


@model
def rnn_gru() -> Any:
    """paddle.nn.GRU: two layers, both directions, lengths from zero to all steps, batch first."""
    b = without_words(28)
    x = batch_first(b, "padded", 4)
    states = [state_feed(b, "h", 4)]
    lengths = b.feed("lengths", np.array([2, 0, 4, 1, 3]))
    out, state = rnn(b, x, "GRU", states, num_layers=2, is_bidirec=True, SequenceLength=lengths)
    return b.done(b.op("transpose2", X=out, axis=[1, 0, 2]), state)


@model
def rnn_lstm() -> Any:
    """paddle.nn.LSTM without lengths."""
    b = without_words(29)
    states = [state_feed(b, name, 2) for name in ("h", "c")]
    return b.done(
        *rnn(b, batch_first(b, "padded", 4), "LSTM", states, num_layers=2, is_bidirec=False)
    )


@model
def rnn_simple() -> Any:
    """Both functions of paddle.nn.SimpleRNN; dropout between layers does nothing in a test."""
    b = without_words(30)
    x = batch_first(b, "padded", 4)
    lengths, state = b.feed("lengths", np.array([2, 0, 4, 1, 3])), state_feed(b, "h", 2)
    options = {"SequenceLength": lengths, "num_layers": 1, "is_bidirec": True, "dropout_prob": 0.5}
    return b.done(
        *(out for mode in ("RNN_TANH", "RNN_RELU") for out in rnn(b, x, mode, [state], **options))
    )


@model
def gru_unit() -> Any:
    """One step."""
    b = without_words(31)
    x, h = b.feed("gates", b.array(5, 9)), b.feed("h", b.array(5, 3))
    weight, bias = b.parameter(3, 9), b.parameter(1, 9)
    return b.done(b.op("gru_unit", Input=x, HiddenPrev=h, Weight=weight, Bias=bias))


@model
def pooled() -> Any:
    """One row a sentence, in every way; sentences without words give a number."""
    b = Builder(32)
    kinds = ("AVERAGE", "SUM", "SQRT", "LAST", "FIRST", "MAX")
    return b.done(*(b.op("sequence_pool", X=b.x, pooltype=kind, pad_value=0.5) for kind in kinds))


@model
def attention() -> Any:
    """What weighs the words of a sentence by its mean."""
    b = Builder(33)
    b.feeds["x"] = Ragged(b.feeds["x"].data, FILLED)
    mean = b.op("sequence_pool", X=b.x, pooltype="AVERAGE")
    both = b.op("elementwise_mul", X=b.x, Y=b.op("sequence_expand", X=mean, Y=b.x))
    score = b.op("sequence_softmax", X=b.mul(both, 4, 1))
    return b.done(b.op("elementwise_mul", X=b.x, Y=score, axis=0), score)


@model
def sentences() -> Any:
    """A window of words, backwards, beside the words themselves, padded and back."""
    b = Builder(34)
    window = {"Filter": b.parameter(12, 4), "contextLength": 3, "contextStart": -1}
    seen = b.op("sequence_conv", X=b.x, **window)
    back = b.op("sequence_reverse", X=seen)
    joined = b.op("sequence_concat", X=[b.x, back])
    padded, lengths = b.op("sequence_pad", X=joined, PadValue=b.parameter(1))
    words = b.op("sequence_unpad", X=b.op("tanh", X=padded), Length=lengths)
    return b.done(padded, lengths, words)


@model
def normalized() -> Any:
    """layer_norm and batch_norm around a GRU, and the best two of its last states."""
    b = Builder(35)
    x = b.op("layer_norm", X=b.x, Scale=b.parameter(4), Bias=b.parameter(4), begin_norm_axis=1)
    last = b.op("sequence_pool", X=b.fc_gru(x, 3), pooltype="LAST")
    numbers = {slot: b.parameter(3) for slot in ("Scale", "Bias", "Mean")}
    numbers["Variance"] = b.graph.parameter(np.abs(b.array(3)))
    y = b.op("batch_norm", X=last, **numbers, is_test=True, data_layout="NCHW")
    return b.done(*b.op("top_k_v2", X=y, k=2))


@model
def shuffled() -> Any:
    """split, stack, slice, reduce_*, cast and a state of zeros made from a batch's size."""
    b = Builder(36)
    left, right = b.op("split", X=b.x, counts={"Out": 2}, num=2, axis=1)
    stacked = b.op("stack", X=[left, right], axis=1)
    cut = b.op(
        "slice", Input=stacked, axes=[1], starts=[1], ends=[2], infer_flags=[1],
        decrease_axis=[1],
    )  # fmt: skip
    less = b.op("elementwise_sub", X=cut, Y=b.op("reduce_mean", X=left, dim=[0]))
    signs = b.op("cast", X=less, gives="int64", in_dtype=5, out_dtype=3)
    zeros = b.op("fill_constant_batch_size_like", Input=b.x, shape=[-1, 2], dtype=5, value=0.0)
    hidden = b.gru(b.fc(less, 2, 6), 2, state=zeros)
    return b.done(hidden, signs, b.op("reduce_max", X=hidden, dim=[1], keep_dim=True))


@model
def half_weights() -> Any:
    """Parameters stored as float16, computed with as float32."""
    b = Builder(37)
    halves = [b.graph.parameter(b.array(*shape).astype(np.float16)) for shape in ((4, 12), (12,))]
    weight, bias = (b.op("cast", X=half, in_dtype=4, out_dtype=5) for half in halves)
    x = b.add(b.op("mul", X=b.x, Y=weight), bias)
    return b.done(b.gru(x, 4, bias=b.parameter(1, 12)))


CLIPPED = ("initial_state", "lstm_states_reverse", "normalized")
"""Saved once more as Paddle does by default: its own executor cannot run these gru and lstm."""


def clip(name: str, folder: Path) -> None:
    """The recorded model without the outputs and attributes that Paddle calls extra."""
    graph, fetches, _ = record_paddle.MODELS[name]()
    clipped = folder / f"{name}_clipped"
    clipped.mkdir(exist_ok=True)
    graph.save(clipped, fetches, clip_extra=True)
    strip_call_stacks(clipped / "model.pdmodel")
    arrays = np.load(folder / name / "io.npz")
    # Fetches bear other names in each process: by position.
    names = [key for key in arrays if key.startswith(("out__", "outlod__"))]
    stems = dict.fromkeys(key.partition("__")[2] for key in names)
    places = {stem: str(place) for place, stem in enumerate(stems)}
    np.savez_compressed(
        clipped / "io.npz",
        **{
            key.partition("__")[0] + "__" + places[key.partition("__")[2]]
            if key in names
            else key: arrays[key]
            for key in arrays
        },
    )


if __name__ == "__main__":
    record_each([each for each in record_paddle.MODELS if each not in OTHERS], record)
    for each in CLIPPED:
        clip(each, Path(sys.argv[1]))
