"""python examples/weights_only/g2p.py WORD...: phonemes by g2p-en's network, from its arrays."""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import onernn
from onernn import Graph, Node, Ragged, Session, Value

LETTERS = {letter: k for k, letter in enumerate("abcdefghijklmnopqrstuvwxyz", 3)}
UNKNOWN, END = 1, 2
BEGIN, STOP, LONGEST = 2, 3, 20  # phonemes
SOUNDS = "AA AE AH AO AW AY B CH D DH EH ER EY F G HH IH IY JH K L M N NG OW OY P R S SH T TH UH UW"
PHONEMES = ["<pad>", "<unk>", "<s>", "</s>"]
for each in (*SOUNDS.split(), "V", "W", "Y", "Z", "ZH"):
    stressed = each[0] in "AEIOU"
    PHONEMES += [f"{each}{k}" for k in range(3)] if stressed else [each]
    PHONEMES += ["UW"] * (each == "UH")  # the network's list has it without stress, too


def gru(weights, part):
    """A GRU with the layout of PyTorch, under names of its own."""
    kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    arrays = {f"{kind}_l0": weights[f"{part}_{kind[0]}_{kind[-2:]}"] for kind in kinds}
    return onernn.read_layer(arrays, source="torch")


def networks(file):
    """What reads all letters, and one step of what writes phonemes."""
    weights = onernn.read_weights(file)
    encoder = Graph(
        "encoder",
        (Value("letters", "int64", (None,), lod_depth=1),),
        (Value("h"),),
        (
            Node("Gather", ("enc_emb", "letters"), ("x",)),
            Node("Rnn", ("x",), ("", "h"), gru(weights, "enc")._asdict()),
        ),
        {"enc_emb": weights["enc_emb"]},
    )
    decoder = Graph(
        "decoder",
        (
            Value("phoneme", "int64", (1, None)),
            Value("h", "float32", (1, 1, None, weights["dec_w_hh"].shape[1])),
        ),
        (Value("scores"), Value("hN")),
        (
            Node("Gather", ("dec_emb", "phoneme"), ("x",)),
            Node("Rnn", ("x", "h"), ("y", "hN"), gru(weights, "dec")._asdict()),
            Node("MatMul", ("y", "fc_w"), ("product",)),
            Node("Add", ("product", "fc_b"), ("scores",)),
        ),
        {"dec_emb": weights["dec_emb"], "fc_w": weights["fc_w"].T, "fc_b": weights["fc_b"]},
    )
    return Session(encoder), Session(decoder)


def pronounced(words, encoder, decoder):
    """The phonemes of each word, as `G2p.predict` gives them; all words at once."""
    letters = [[*(LETTERS.get(letter, UNKNOWN) for letter in word), END] for word in words]
    batch = Ragged.from_lengths(np.array(sum(letters, []), np.int64), [*map(len, letters)])
    state = encoder.run({"letters": batch})["h"]
    phonemes, made = np.full((1, len(words)), BEGIN), []
    for _ in range(LONGEST):
        out = decoder.run({"phoneme": phonemes, "h": state})
        phonemes, state = out["scores"].argmax(-1), out["hN"]
        made.append(phonemes[0])
    rows = np.stack(made, 1)
    ends = [[*row, STOP].index(STOP) for row in rows.tolist()]
    return [[PHONEMES[k] for k in row[:end]] for row, end in zip(rows, ends, strict=True)]


if __name__ == "__main__":
    folder = Path(find_spec("g2p_en").origin).parent  # nothing of it is imported
    found = pronounced(sys.argv[1:], *networks(folder / "checkpoint20.npz"))
    for word, sounds in zip(sys.argv[1:], found, strict=True):
        print(word, *sounds)
