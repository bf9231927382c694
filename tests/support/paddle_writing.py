"""Graphs of one operator or layer, with a batch each, for what writes Paddle's programs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from onernn import Cell, Graph, Ragged, RnnSpec, convert, load
from onernn.adapters.onnx.write import pad
from onernn.adapters.paddle.write import RULES
from onernn.ir.graph import Node, Value
from onernn.ir.ragged import data_of
from onernn.verification.recording import read_arrays, read_inputs, read_outputs
from support import branching, looping, operator_cases
from support.arrays import uniform
from support.graphs import new_node
from support.layers import random_state, random_weights

Case = tuple[Graph, dict[str, Any]]
LENGTHS = np.array([2, 0, 3, 1])
DATA = Path(__file__).parents[1] / "data"
RECORDED = sorted(
    path.parent.name
    for path in (DATA / "paddle").glob("*/model.pdmodel")
    if not path.parent.name.startswith(("loop_", "image_", "dygraph_"))
)
"""The recorded models of Paddle's layers over sequences."""
UNWRITTEN = {
    "keras/old_gates": "has no GRU with function hardsigmoid",
    "onnx/keras2_gru_before_relu": "has no GRU with function hardsigmoid",
    "onnx/keras2_gru_hard": "has no LBR_GRU with functions hardsigmoid",
    "onnx/keras2_lstm_elu": "has no LSTM with function elu",
    "onnx/keras2_masked_gru_hard": "has no LBR_GRU with functions hardsigmoid",
    "onnx/keras2_rnn_elu_both": "has no RNN_TANH with functions elu",
    "onnx/tensorflow1_lstm_peepholes": "has no LSTM with a clipped cell state",
    "onnx/onnxruntime_quantized_signed": "DynamicQuantizeLSTM has no equivalent",
    "onnx/onnxruntime_quantized_unsigned": "DynamicQuantizeLSTM has no equivalent",
    "paddle/dygraph_assigned_2": "is not known before a run",
    "torch/projected": "has no LSTM with a projection",
    "mxnet/gluon_control": "has no LSTM with a projection",
}
"""Recordings that Paddle cannot say, and why."""
RECORDINGS = sorted(
    f"{path.parent.parent.name}/{path.parent.name}"
    for path in DATA.glob("*/*/io.npz")
    if path.parent.parent.name != "paddle_int8" and path.parent.name not in RECORDED
)
"""The recorded models of all frameworks, but for RECORDED."""


def recorded(name: str) -> tuple[Graph, dict[str, Any], dict[str, Any]]:
    """A recorded model, its inputs and its outputs."""
    (file,) = (path for path in (DATA / name).glob("model*") if path.suffix in _MODELS)
    model, arrays = load(file), read_arrays(DATA / name / "io.npz")
    return model, read_inputs(arrays, model.inputs), read_outputs(arrays, model.outputs)


_MODELS = (".pdmodel", ".json", ".onnx", ".keras", ".h5", ".pt2")


def through_onnx(name: str, folder: Path) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """A recorded model as ONNX and back, and what it takes and gives: padded sequences."""
    model, feeds, expected = recorded(name)
    convert(model, folder / "model.onnx")
    convert(folder / "model.onnx", folder / "model.pdmodel")
    time = max(int(each.lengths.max()) for each in feeds.values() if isinstance(each, Ragged))
    padded = {
        key: each.to_padded(time=time) if isinstance(each, Ragged) else each
        for key, each in expected.items()
    }
    return folder / "model.pdmodel", pad(feeds), padded


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return uniform(*shape, seed=[seed, *shape], bound=2)


def words(*sizes: int, seed: int = 0) -> Ragged:
    """Four sentences, one of them without words."""
    return Ragged.from_lengths(numbers(int(LENGTHS.sum()), *sizes, seed=seed), LENGTHS)


def of_nodes(nodes: list[Node], feeds: Mapping[str, Any], *outputs: str, **constants: Any) -> Case:
    """Sizes of inputs are declared but for the first: sentences, words or steps."""
    inputs = []
    for name, value in feeds.items():
        data = data_of(value)
        depth = len(value.lod) if isinstance(value, Ragged) else 0
        inputs.append(Value(name, str(data.dtype), (None, *data.shape[1:]), depth))
    graph = Graph("case", tuple(inputs), tuple(map(Value, outputs)), tuple(nodes), constants)
    return graph, dict(feeds)


def one(op: str, feeds: Mapping[str, Any], outputs: int = 1, **rest: Any) -> Case:
    """One operator of all feeds, then of the constants (arrays); the rest are attributes."""
    constants = {k: v for k, v in rest.items() if isinstance(v, np.ndarray)}
    attributes = {k: v for k, v in rest.items() if not isinstance(v, np.ndarray)}
    names = tuple(f"y{k}" for k in range(outputs))
    node = Node(op, (*feeds, *constants), names, attributes)
    return of_nodes([node], feeds, *names, **constants)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


W, D = {"x": words(4)}, {"x": numbers(3, 4)}
PAIR = {"x": words(4), "z": numbers(4)}
# Of NaN Paddle's relu, maximum and arg_max make other numbers.
FEED = {**operator_cases.FEED, "x": np.nan_to_num(operator_cases.X, nan=0.5)}
KNOWN = {"", *FEED, *operator_cases.CONSTANTS}
CANONICAL: dict[str, Case] = {
    f"{node.op} {at}": (operator_cases.model([node], [node.outputs[0]], feeds), feeds)
    for at, node in enumerate(operator_cases.cases()[0])
    if node.op in RULES and KNOWN.issuperset(node.inputs)
    for feeds in [{k: v for k, v in FEED.items() if k in node.inputs}]
}
"""The cases of every canonical operator that is written."""
PARTLY = set(
    "ArgMax ArgMin AveragePool ConvTranspose Einsum MaxPool Mod Pad Relu Resize Rnn"
    " ScatterElements SequenceConcat SequenceLengths SequencePad SequenceReverse".split()
)
"""Operators of which some cases have no form in Paddle."""
OPERATORS: dict[str, Case] = {
    **{
        f"{op} of words": one(op, W)
        for op in ("Relu", "Exp", "Floor", "Sign", "Abs", "Neg", "Softplus", "Identity", "Erf")
    },
    **{f"{op} of words and a row": one(op, PAIR) for op in ("Add", "Sub", "Mul", "Div")},
    "Sub of a row and words": one("Sub", {"z": numbers(4), "x": words(4)}),
    "Sum": one("Sum", {"a": words(4), "b": words(4, seed=1), "c": words(4, seed=2)}),
    "Clip": one("Clip", W, low=np.array(-1, np.float32), high=np.array(0.5, np.float32)),
    "Cast": one("Cast", W, to="int64"),
    "MatMul of words": one("MatMul", W, w=numbers(4, 3)),
    "MatMul of two batches": one("MatMul", {"x": numbers(2, 3, 4), "z": numbers(2, 4, 5)}),
    "Gemm": one("Gemm", W, w=numbers(3, 4), b=numbers(3), transB=1, alpha=0.5, beta=2.0),
    "Gather rows of a table": of_nodes(
        [new_node("y = Gather t i", axis=0, non_negative=True)],
        {"i": Ragged.from_lengths(np.array([0, 3, 1, 2, 0, 3]), LENGTHS)},
        "y",
        t=numbers(4, 3),
    ),
    "Gather from the end": of_nodes(
        [new_node("y = Gather t i", axis=0)],
        {"i": np.array([0, -1, 2, -4])},
        "y",
        t=numbers(4, 3),
    ),
    "Gather of columns": one("Gather", D, at=ints(2, 0), axis=1),
    "Gather of one row": one("Gather", D, at=np.array(1), axis=0),
    "Concat of columns": one("Concat", {"x": words(4), "z": words(2)}, axis=1),
    "Split into equal parts": one("Split", W, 2, axis=1),
    "Split into sizes": one("Split", W, 2, s=ints(1, 3), axis=-1),
    "Split, the last part smaller": one("Split", D, 3, axis=1),
    "Softmax": one("Softmax", W, axis=-1),
    "LogSoftmax far below the maximum": one("LogSoftmax", {"x": 60 * numbers(3, 4)}, axis=-1),
    "LogSoftmax of words": one("LogSoftmax", W, axis=-1),
    "TopK of equal elements": one("TopK", {"x": np.floor(numbers(3, 40))}, 2, k=ints(7), axis=-1),
    "TopK of equal smallest columns": one(
        "TopK", {"x": np.floor(numbers(2, 20, 3))}, 2, k=ints(5), axis=1, largest=0
    ),
    "TopK of a computed count": one("TopK", {"x": np.floor(numbers(3, 40)), "k": ints(7)}, 2),
    "TopK of words": one("TopK", {"x": words(4)}, 2, k=ints(2), axis=-1),
    "Reshape": one("Reshape", W, s=ints(0, 2, 2)),
    "Flatten": one("Flatten", {"x": numbers(3, 4, 2)}),
    "Squeeze": one("Squeeze", {"x": words(1)}, a=ints(-1)),
    "Unsqueeze": one("Unsqueeze", W, a=ints(1, 3)),
    "Slice of columns": one("Slice", W, s=ints(1), e=ints(2**62), a=ints(1)),
    "Slice of rows, by steps": one("Slice", D, s=ints(0), e=ints(3), a=ints(0), t=ints(2)),
    "Slice between ends of run time": one("Slice", {**D, "s": ints(1), "e": ints(3)}, a=ints(0)),
    "ConstantOfShape": of_nodes(
        [new_node("s = Shape x"), new_node("y0 = ConstantOfShape s", value=2.5)],
        {"x": numbers(2, 3)}, "y0",
    ),
    "ReduceSum of int32": one("ReduceSum", {"x": np.ones((3, 4), np.int32)}, a=ints(0), keepdims=1),
    "ReduceMax of truths": one("ReduceMax", {"x": numbers(3, 4) > 1}, a=ints(1), keepdims=0),
    "LayerNormalization": one("LayerNormalization", W, s=numbers(4), b=numbers(4), axis=-1),
    "BatchNormalization": one("BatchNormalization", W, s=numbers(4), b=numbers(4), m=numbers(4),
                              v=np.abs(numbers(4)), epsilon=1e-3),
    **{f"SequencePool {kind}": one("SequencePool", W, kind=kind, empty=0.5)
       for kind in ("sum", "average", "sqrt", "max", "first", "last")},
    "SequenceSoftmax": one("SequenceSoftmax", {"x": words(1)}),
    "SequenceReverse": one("SequenceReverse", W),
    "SequenceReverse of matrices": one("SequenceReverse", {"x": words(2, 3)}),
    "SequenceContext": one("SequenceContext", W, length=3, start=-1),
    "SequenceContext times a filter": of_nodes(
        [new_node("w = SequenceContext x", length=2, start=0),
         new_node("y = MatMul w f")],
        W, "y", f=numbers(8, 3),
    ),
    "SequenceExpand": one("SequenceExpand", {"r": numbers(4, 2), "x": words(3)}, level=0),
    "SequenceConcat": one("SequenceConcat", {"x": words(2), "z": Ragged.from_lengths(
        numbers(5, 2, seed=3), np.array([0, 3, 1, 1])), "u": words(2, seed=4)}),
    "SequenceLengths": one("SequenceLengths", W),
    "SequenceFill": one("SequenceFill", W, v=numbers(4), time=5),
    "SequenceFill with a number": one("SequenceFill", W, v=np.array(0.5, np.float32)),
    "SequenceData": one("SequenceData", W),
    "SequenceLike": one("SequenceLike", {"d": numbers(6, 2), "x": words(3)}),
    "SequenceReset": one("SequenceReset", {"d": numbers(6, 2), "o": np.array([0, 2, 2, 6])}),
    "SequenceReset to known offsets": one("SequenceReset", {"d": numbers(6, 2)}, o=ints(0, 2, 6)),
    "SequenceAppend": one("SequenceAppend", {"x": words(2), "z": words(2, seed=1)}),
    "SequenceUnpad": one("SequenceUnpad", {"p": numbers(4, 3, 2), "n": LENGTHS}),
    "SequenceUnpad of steps": one("SequenceUnpad", {"p": numbers(3, 4, 2), "n": LENGTHS},
                                  time_major=True),
    "SequencePad": one("SequencePad", W),
    "SequencePad to a length": of_nodes(
        [new_node("y = SequencePad x p", time_major=True)],
        {"x": words(2), "p": numbers(5, 4, 1)}, "y",
    ),
    "CrfDecode": one("CrfDecode", {"x": words(3)}, t=numbers(5, 3)),
    **{
        f"SequenceUnpad and SequencePad, time-major {before}, {after}, {like}": of_nodes(
            [
                new_node("w = SequenceUnpad x n", time_major=before),
                new_node(f"y = SequencePad w {like}", time_major=after),
            ],
            {"x": numbers(*(6, 4, 2) if before else (4, 6, 2)), "n": LENGTHS}
            | ({"p": numbers(5, 5, 1)} if like == "p" else {}),
            "y",
        )
        for before, after in product((True, False), repeat=2)
        for like in ("x", "p", "")
    },
}  # fmt: skip


# Without turns there is nothing to collect, which ends Paddle's run.
CONTROL: dict[str, Case] = {
    f"{name}, batch {at}": (graph, feeds[at])
    for graphs, feeds, chosen in (
        (looping.GRAPHS, looping.feeds(), (0, 9)),
        (branching.GRAPHS, branching.feeds(), (0, 3, 6)),
    )
    for name, graph in graphs.items()
    for at in chosen
}
"""Loops and branches, in each other, too."""


def layer(spec: RnnSpec, kind: str, *, states: bool = False, seed: int = 0) -> Case:
    """One Rnn and its final states, over ragged words, dense steps, or padded words and lengths."""
    weights = random_weights(spec, seed)
    x = words(spec.input_size) if kind == "ragged" else numbers(3, 4, spec.input_size)
    feeds: dict[str, Any] = {"x": x}
    feeds |= {"n": LENGTHS} if kind == "padded" else {}
    if states:
        feeds |= dict(zip("hc", random_state(spec, 4, seed), strict=False))
    given = tuple(name if name in feeds else "" for name in "hc"[: len(spec.cell.states)])
    ends = tuple(f"final_{state}" for state in spec.cell.states)
    attributes = {"spec": spec, "weights": weights if spec.layers > 1 else weights[0]}
    nodes = [Node("Rnn", ("x", *given), ("y", *ends), attributes)]
    if kind == "padded":
        turned = {"time_major": True}
        nodes[0] = Node("Rnn", ("words", *given), ("of_words", *ends), attributes)
        nodes.insert(0, new_node("words = SequenceUnpad x n", **turned))
        nodes.append(new_node("y = SequencePad of_words x", **turned))
    graph, _ = of_nodes(nodes, feeds, "y", *ends)
    inputs = [
        Value(v.name, v.dtype, (None, None, v.shape[2]))
        if v.name == "x" and kind != "ragged" and v.shape
        else Value(v.name, v.dtype, (spec.layers, spec.directions, None, spec.hidden_size))
        if v.name in ("h", "c")
        else v
        for v in graph.inputs
    ]
    return Graph(graph.name, tuple(inputs), graph.outputs, graph.nodes, {}), feeds


_CELLS: dict[str, tuple[Cell, dict[str, Any]]] = {
    "GRU": (Cell.GRU, {}),
    "GRU replace": (Cell.GRU, {"activations": ("tanh", "relu"), "update": "replace"}),
    "GRU keep": (Cell.GRU, {"activations": ("relu", "tanh")}),
    "LBR_GRU": (Cell.LBR_GRU, {}),
    "LSTM": (Cell.LSTM, {}),
    "LSTM peephole": (Cell.LSTM, {"peephole": True}),
    "LSTM functions": (Cell.LSTM, {"activations": ("sigmoid", "relu", "identity")}),
    "RNN_TANH": (Cell.RNN_TANH, {}),
    "RNN_RELU": (Cell.RNN_RELU, {}),
}
_DIRECTIONS = ("left2right", "right2left", "bidirectional_concat", "bidirectional_sum")
_STACKS = ((1, True), (2, False))
LAYERS: dict[str, Case] = {
    f"{name}, {direction}, {kind}, {'states' if states else 'zero states'}, layers {layers}": layer(
        RnnSpec(cell, 4, 3, direction=direction, layers=layers, **more),
        kind,
        states=states,
    )
    for at, ((name, (cell, more)), direction, kind) in enumerate(
        product(_CELLS.items(), _DIRECTIONS, ("ragged", "dense", "padded"))
    )
    for layers, states in (_STACKS[(at + at // 12) % 2],)
}
"""Each cell in each direction over each kind of batch, and each two of them with each stack."""
