"""A model as those that tag the words of sentences, and batches of these."""

from __future__ import annotations

import numpy as np

from onernn import Graph, Ragged
from onernn.ir.graph import Node, Value
from support.graphs import new_node, rnn_node
from support.operator_cases import SPEC


def tagger(*, in_python: bool = False) -> Graph:
    """A gather, a layer over sentences, a product and Viterbi.

    ``in_python``: Python runs an operator between the last two, an equation without a result.
    """
    rng = np.random.default_rng(3)
    constants = {
        "table": rng.normal(size=(50, SPEC.input_size)).astype(np.float32),
        "w": rng.normal(size=(SPEC.hidden_size, 5)).astype(np.float32),
        "b": rng.normal(size=5).astype(np.float32),
        "mix": rng.normal(size=(5, 5)).astype(np.float32),
        "crf": rng.normal(size=(7, 5)).astype(np.float32),
    }
    product: tuple[Node, ...] = (new_node("scores = Gemm y w b"),)
    if in_python:
        product = (
            new_node("product = Gemm y w b"),
            new_node("plain = SequenceData product"),
            new_node("mixed = Einsum plain mix", equation="ai,ib"),
            new_node("scores = SequenceLike mixed y"),
        )
    nodes = (
        new_node("x = Gather table words"),
        rnn_node("y = Rnn x", SPEC),
        *product,
        new_node("tags = CrfDecode scores crf"),
    )
    words = Value("words", "int64", (None,), 1)
    return Graph("tagger", (words,), (Value("tags"), Value("scores")), nodes, constants)


def padder() -> Graph:
    """Sentences padded to the longest one: words first for a layer, and with a number behind."""
    nodes = (
        new_node("padded = SequencePad x", time_major=1),
        rnn_node("y = Rnn padded", SPEC),
        new_node("negative = Neg x"),
        new_node("filled = SequenceFill negative low"),
        new_node("softmax = Softmax filled", axis=1),
        new_node("shape = Shape softmax"),
    )
    x = Value("x", "float32", (None, SPEC.input_size), 1)
    outputs = tuple(map(Value, ("padded", "y", "softmax", "shape")))
    return Graph("padder", (x,), outputs, nodes, {"low": np.array(-1, np.float32)})


def unpadded(rng: np.random.Generator, count: int) -> dict[str, Ragged]:
    lengths = rng.integers(0, 5, count)
    words = rng.normal(size=(lengths.sum(), SPEC.input_size)).astype(np.float32)
    return {"x": Ragged.from_lengths(words, lengths)}


def documents() -> Graph:
    """Two LoD levels: sentences of words, documents of sentences."""
    nodes = (
        rnn_node("y = Rnn x", SPEC),
        new_node("twice = SequenceAppend y y"),
        new_node("sentences = SequencePool twice", kind="last"),
        new_node("turned = SequenceReverse sentences"),
        new_node("documents = SequencePool turned", kind="sum"),
        new_node("each = SequenceExpand documents twice", level=0),
    )
    inputs = (Value("x", "float32", (None, SPEC.input_size), 2),)
    outputs = tuple(map(Value, ("y", "twice", "turned", "documents", "each")))
    return Graph("documents", inputs, outputs, nodes, {})


def of_documents(rng: np.random.Generator, count: int) -> dict[str, Ragged]:
    outer = np.cumsum([0, *rng.integers(0, 4, count)])
    offsets = np.cumsum([0, *rng.integers(0, 6, outer[-1])])
    words = rng.normal(size=(offsets[-1], SPEC.input_size)).astype(np.float32)
    return {"x": Ragged(words, offsets, (outer,))}


def sentences(rng: np.random.Generator, count: int) -> dict[str, Ragged]:
    lengths = rng.integers(0, 9, count)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    return {"words": Ragged(rng.integers(0, 50, offsets[-1]), offsets)}
