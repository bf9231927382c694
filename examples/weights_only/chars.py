"""python examples/weights_only/chars.py WORD...: chars2vec's vectors of words, from its arrays."""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import onernn
from onernn import Activation, Graph, Node, Session, Value

LETTERS = "!\"#$%&'()*+,-./0123456789:;<=>?@_abcdefghijklmnopqrstuvwxyz"
"""Those of its models whose names begin with eng."""
SIGMOID = Activation("sigmoid")
"""Of the gates, as Keras has it from 2.3 on; before, it was hardsigmoid with 0.2 and 0.5."""


def network(file, gates=SIGMOID):
    """Two LSTMs over one-hot letters, of which the last state is the vector."""
    layers = onernn.read_weights(file)
    functions = (gates, Activation("tanh"), Activation("tanh"))
    nodes = []
    for k, (x, made) in enumerate((("x", ("y", "")), ("y", ("", "h"))), 1):
        names = {n: f"lstm_{k}/lstm_{k}/{n}:0" for n in ("kernel", "recurrent_kernel", "bias")}
        arrays = {name: layers[path] for name, path in names.items()}
        layer = onernn.read_layer(arrays, source="keras", activations=functions)
        nodes.append(Node("Rnn", (x,), made, layer._asdict()))
    x = Value("x", "float32", (None, None, len(LETTERS)))
    return Session(Graph("chars2vec", (x,), (Value("h"),), tuple(nodes), {}))


def vectors(words, session):
    """A row for each word, as `vectorize_words` gives them; it pads words in front with zeros."""
    longest = max(map(len, words))
    x = np.zeros((longest, len(words), len(LETTERS)), np.float32)
    for n, word in enumerate(words):
        for t, letter in enumerate(word.lower(), longest - len(word)):
            if letter in LETTERS:
                x[t, n, LETTERS.index(letter)] = 1
    return session.run({"x": x})["h"][0, 0]


if __name__ == "__main__":
    folder = Path(find_spec("chars2vec").origin).parent  # nothing of it is imported
    session = network(folder / "trained_models" / "eng_50" / "weights.h5")
    for word, vector in zip(sys.argv[1:], vectors(sys.argv[1:], session), strict=True):
        print(word, *vector[:4].round(4), "...")
