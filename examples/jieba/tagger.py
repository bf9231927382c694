"""jieba's paddle mode without Paddle: its folder has parameters, and no program.

The network is that of jieba/lac_small/nets.py: an embedding, two bidirectional GRU layers, scores
of the tags, a CRF. Importing this module enables ``use_paddle=True`` of jieba.
"""

import sys
from pathlib import Path

import numpy as np

from onernn import Graph, Ragged, RnnSpec, RnnWeights, Session
from onernn.adapters.paddle import inference
from onernn.adapters.paddle.inference.tensors import create_lod_tensor
from onernn.adapters.paddle.read import read_tensors
from onernn.ir.graph import Node, Value
from onernn.ir.spec import Cell
from onernn.reorders import paddle
from onernn.reorders.gates import input_layer, split_bias

inference.install()  # jieba imports paddle before it looks for its network

import jieba  # noqa: E402
from jieba.lac_small import reader_small, utils  # noqa: E402

PARAMETERS = Path(jieba.__file__).parent / "lac_small" / "model_baseline"
HIDDEN, LAYERS = 128, 2


def parameter(name):
    return read_tensors(PARAMETERS / name, {name: None})[name]


def layer(number):
    """Both directions of a bidirectional GRU with their projections, `nets._bigru_layer`."""
    layout, _ = paddle.gru_layout(origin_mode=False, gate_activation="sigmoid")
    directions = [
        RnnWeights(
            input_layer(parameter(f"fc_{k}.w_0"), layout),
            paddle.weight_h(parameter(f"gru_{k}.w_0"), layout),
            split_bias(parameter(f"fc_{k}.b_0") + parameter(f"gru_{k}.b_0"), layout),
        )
        for k in (2 * number, 2 * number + 1)
    ]
    return RnnWeights.join(directions, 1)


def network():
    """`nets.lex_net`: characters of sentences in, the best path of tags out."""
    spec = RnnSpec(Cell.GRU, HIDDEN, HIDDEN, layers=LAYERS, direction="bidirectional_concat")
    nodes = (
        Node("Gather", ("word_emb", "words"), ("x",)),
        Node("Rnn", ("x",), ("y",), {"spec": spec, "weights": [layer(k) for k in range(LAYERS)]}),
        Node("Gemm", ("y", "fc_4.w_0", "fc_4.b_0"), ("scores",)),
        Node("CrfDecode", ("scores", "crfw"), ("tags",)),
    )
    constants = {name: parameter(name) for name in ("word_emb", "fc_4.w_0", "fc_4.b_0", "crfw")}
    words = Value("words", "int64", (None,), lod_depth=1)
    return Graph("jieba", (words,), (Value("tags"),), nodes, constants)


DATASET = reader_small.Dataset()
SESSION = Session(network(), threads=1)


def get_result(text):
    """Words and tags of a text, as `jieba.lac_small.predict` gives them."""
    ids = np.array(DATASET.get_vars(text), np.int64)
    if not len(ids):
        return [], []
    tags = SESSION.run({"words": Ragged.from_lengths(ids, [len(ids)])})["tags"]
    found = (create_lod_tensor(each.reshape(-1, 1), [[len(ids)]]) for each in (ids, tags.data))
    return utils.parse_result(*found, DATASET)


def get_sent(text):
    return get_result(text)[0]


sys.modules["jieba.lac_small.predict"] = sys.modules[__name__]  # instead of building it in Paddle
jieba.enable_paddle()
