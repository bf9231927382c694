"""A case for every canonical operator, of sizes that are left open, and inputs for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from onernn import Cell, Graph, Ragged, RnnSpec
from onernn.ir.graph import Node, Value
from onernn.ir.ragged import data_of
from onernn.reorders.gates import GateLayout
from support.graphs import new_node
from support.layers import random_layer

RNG = np.random.default_rng(0)
T, N, WIDTH = 4, 3, 6
SPEC = RnnSpec(Cell.GRU, WIDTH, 4)


def floats(*shape: int) -> np.ndarray:
    return RNG.uniform(-2, 2, shape).astype(np.float32)


def whole(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


X = floats(T, N, WIDTH)
X[0, 0] = [0, -0.0, 1, 1, -1, np.nan]  # equal ones, and what is no number
FEED: dict[str, Any] = {
    "x": X,
    "p": np.abs(floats(T, N, WIDTH)) + np.float32(0.1),
    "i": RNG.integers(-2, 3, (T, N, WIDTH)),
    "b": RNG.integers(0, 2, (T, N, WIDTH)).astype(bool),
    "r": Ragged(floats(11, WIDTH), np.array([0, 4, 4, 5, 11])),
    "q": Ragged(floats(6, WIDTH), np.array([0, 1, 3, 3, 6])),
    "d": Ragged(floats(11, WIDTH), np.array([0, 4, 4, 5, 11]), (np.array([0, 3, 3, 4]),)),
    "tags": Ragged(floats(11, 5), np.array([0, 4, 4, 5, 11])),
    "lengths": whole(0, 4, 2),
    "short": np.array([0, 4, 2], np.int32),
    "bytes": RNG.integers(0, 256, (T, N, WIDTH), np.uint8),
    "updates": floats(2, N, WIDTH),
    "n_rows": floats(4, WIDTH),
    "three_rows": floats(3, WIDTH),
    "small": floats(5, 2, WIDTH),
    "image": floats(2, 4, 5, WIDTH),
    "samples": floats(2, 11, 1),
    "spectrum": floats(2, 5, 2),
    "moved": whole(0, 2, 11),
    "going": np.array(True),
}
CONSTANTS: dict[str, np.ndarray] = {
    "row": floats(WIDTH),
    "w": floats(WIDTH, 5),
    "one_word": floats(1, WIDTH),
    "matrix": floats(5, 5),
    "axis0": whole(0),
    "axis1": whole(1),
    "axis2": whole(2),
    "axes12": whole(1, 2),
    "two": whole(2),
    "three": whole(3),
    "minus": whole(-1),
    "some": whole(2, 0, -1, 5),
    "low": np.array(-0.5, np.float32),
    "high": np.array(0.75, np.float32),
    "divisor": whole(3, -2, 5, 7, -4, 2),
    "to_rows": whole(-1, WIDTH),
    "one_best": whole(1),
    "everywhere": whole(2, 1, 1),
    "within0": RNG.integers(0, T, (2, N, WIDTH)),
    "stretched": whole(1, 1, 1, WIDTH),
    "repeats": whole(1, 2, 3),
    "around": whole(2, 0, 3, 1, 0, 4),
    "cut": whole(0, 0, -2, 0, 0, 3),
    "last_axes": whole(7, 9),
    "off_on": np.array([-1, 3], np.float32),
    "choice": np.array([True, False, True, True, False, False]),
    "scale": np.abs(floats(N)) + np.float32(0.5),
    "middle": floats(N),
    "picks": RNG.integers(-3, 3, (4, 2, 1)),
    "within": RNG.integers(-WIDTH, WIDTH, (T, N, 2)),
    "crf": floats(7, 5),
    "per_tensor": np.array(0.02, np.float32),
    "per_column": np.abs(floats(WIDTH)) / 30 + np.float32(0.01),
    "zero_s8": np.array(-3, np.int8),
    "zero_u8": np.array(117, np.uint8),
    "one_zero_u8": np.array([117], np.uint8),
    "zeros_u8": RNG.integers(0, 256, WIDTH, np.uint8),
    "zeros_w": RNG.integers(0, 256, 70, np.uint8),
    "bytes_w": RNG.integers(0, 256, (WIDTH, 70), np.uint8),
    "bytes_kernel": RNG.integers(0, 256, (5, N, 3), np.uint8),
    "lstm_w": RNG.integers(-127, 128, (2, WIDTH, 80), np.int8),
    "lstm_r": RNG.integers(0, 256, (2, 20, 80), np.uint8),
    "lstm_b": floats(2, 160),
    "lstm_p": floats(2, 60),
    "lstm_s": np.abs(floats(2, 80)) / 400 + np.float32(0.001),
    "lstm_one": np.array([0.002, 0.003], np.float32),
    "lstm_zw": np.zeros(2, np.int8),
    "lstm_zr": np.full((2, 80), 140, np.uint8),
    "places_nd": np.array([[0, 2], [3, -1]]),
    "updates_nd": floats(2, WIDTH),
    "true": np.array(True),
    "long": np.zeros((1, 9, WIDTH), np.float32),
    "taps": floats(5, N, 3),
    "filters": floats(6, 2, 3, 2),
    "bias": floats(6),
    "back": floats(N, 2, 3),
    "back2": floats(4, 1, 2, 3),
    "pair": floats(2),
    "four": floats(4),
    "wider": whole(T, N, 9),
    "nine": whole(9),
    "minus3": whole(-3),
    "hop": np.array(2),
    "seven": np.array(7),
    "three0": np.array(3),
    "window": np.abs(floats(4)),
    "far": np.array([2**63 - 1]),
    "first": np.array([-(2**63)]),
    "backwards": whole(-2),
    "outside": whole(0, 2),
    "lengths_like": whole(1, 2, 0, 3, 1, 1),
}
LSTM = "p lstm_w lstm_r lstm_b {}   {} lstm_one lstm_zw lstm_s lstm_zr"
BOTH = {"direction": "bidirectional"}
COUNTS = {"Split": 2, "TopK": 2, "Dropout": 2, "LayerNormalization": 3}
COUNTS |= dict.fromkeys(("DynamicQuantizeLinear", "DynamicQuantizeLSTM"), 3)
UNARY = (
    "Abs Neg Sign Floor Ceil Round Sin Cos Atan Erf Exp Tanh Sigmoid Relu Softplus Softsign"
    " LeakyRelu ThresholdedRelu HardSigmoid HardSwish Elu Selu Celu Gelu IsNaN Identity"
).split()
CONV = {"strides": (2, 1), "pads": (1, 0, 2, 1), "dilations": (1, 2), "group": 2}
POOL = {"kernel_shape": (3, 2), "strides": (2, 2), "pads": (1, 0, 0, 1)}
CASES: list[tuple[str, str, dict[str, Any]]] = [
    *((op, "x", {}) for op in UNARY),
    *((op, "p", {}) for op in ("Log", "Sqrt", "Reciprocal")),
    *((op, "i", {}) for op in ("Abs", "Neg", "Sign", "Relu")),
    *((op, "x row", {}) for op in ("Add", "Sub", "Mul", "Div", "Min", "Max", "Sum", "Mean")),
    *((op, "x row p", {}) for op in ("Min", "Max", "Sum", "Mean")),
    *((op, "i i", {}) for op in ("Add", "Mul", "Min", "Max", "Sum")),
    *((op, "x row", {}) for op in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")),
    *((op, "b choice", {}) for op in ("And", "Or", "Xor")),
    ("Not", "b", {}),
    ("Pow", "p row", {}),
    ("Mod", "i divisor", {}),
    ("Mod", "i divisor", {"fmod": 1}),
    ("Mod", "i divisor", {"fmod": True}),
    ("Mod", "x row", {"fmod": 1}),
    ("Div", "i divisor", {}),
    ("Gelu", "x", {"approximate": "tanh"}),
    *((op, "x", {"rational": 1}) for op in ("Tanh", "Sigmoid")),
    ("LeakyRelu", "x", {"alpha": 0.3}),
    ("Selu", "x", {"alpha": 1.5, "gamma": 1.25}),
    ("Celu", "x", {"alpha": 0.5}),
    ("PRelu", "x row", {}),
    ("Clip", "x low high", {}),
    ("Clip", "x  high", {}),
    ("Clip", "x", {}),
    ("Where", "b x row", {}),
    ("Cast", "x", {"to": "bool"}),
    ("Cast", "i", {"to": "float32"}),
    ("CastLike", "i x", {}),
    ("QuantizeLinear", "p per_tensor", {}),
    ("QuantizeLinear", "p per_tensor zero_s8", {}),
    ("QuantizeLinear", "p per_column zeros_u8", {"axis": 2}),
    ("QuantizeLinear", "p per_tensor one_zero_u8", {}),
    ("DequantizeLinear", "bytes per_tensor zero_u8", {}),
    ("DequantizeLinear", "bytes per_tensor one_zero_u8", {}),
    ("DequantizeLinear", "bytes per_column zeros_u8", {"axis": -1}),
    ("DynamicQuantizeLinear", "p", {}),
    ("MatMulInteger", "bytes bytes_w", {}),
    ("MatMulInteger", "bytes bytes_w zero_u8 zeros_w", {}),
    ("ConvInteger", "bytes bytes_kernel zero_u8", {"pads": (1, 2), "strides": (2,)}),
    ("DynamicQuantizeLSTM", LSTM.format("", ""), {**BOTH, "hidden_size": 20}),
    (
        "DynamicQuantizeLSTM",
        LSTM.format("short", "lstm_p"),
        {**BOTH, "hidden_size": 20, "clip": 1.5, "input_forget": 1},
    ),
    *(
        (
            "DynamicQuantizeLSTM",
            LSTM.format("short", ""),
            {**BOTH, "hidden_size": 20, "together": k},
        )
        for k in (1, 2)
    ),
    ("ScatterElements", "x within0 updates", {}),
    *(
        ("ScatterElements", "p within0 updates", {"reduction": how})
        for how in ("add", "mul", "max", "min")
    ),
    ("ScatterND", "x places_nd updates_nd", {}),
    ("ScatterND", "p places_nd updates_nd", {"reduction": "add"}),
    ("Dropout", "x", {}),
    ("MatMul", "x w", {}),
    ("MatMul", "x row", {}),
    ("MatMul", "row w", {}),
    ("Gemm", "one_word w", {"alpha": 0.5}),
    ("Einsum", "x", {"equation": "tnw->wtn"}),
    ("Einsum", "x", {"equation": "...w->..."}),
    ("Einsum", "p p", {"equation": "tnw,tnw->tn"}),
    ("Einsum", "x w", {"equation": "...w,wk->...k"}),
    ("Einsum", "p p", {"equation": "tnw,snw->nts"}),
    ("Einsum", "matrix", {"equation": "ii->i"}),
    ("Einsum", "w x", {"equation": "wk,tnw->tnk"}),
    ("Einsum", "p p", {"equation": "tnw,tmw->tnm"}),
    ("Einsum", "p p", {"equation": "tnw,tmw->tmn"}),
    ("Einsum", "p p", {"equation": "tnw,tnv->wv"}),
    ("Einsum", "p p", {"equation": "tnw,tnw->"}),
    ("Einsum", "p row row", {"equation": "tnw,w,w->nt"}),
    ("Einsum", "x one_word", {"equation": "tnw,nw->tw"}),
    ("Einsum", "i", {"equation": "tnw->wt"}),
    ("Transpose", "x", {"perm": (2, 0, 1)}),
    ("Softmax", "x", {"axis": 1}),
    ("LogSoftmax", "x", {}),
    *(
        (op, "x", {"axis": 2, "select_last_index": k})
        for op in ("ArgMax", "ArgMin")
        for k in (0, 1)
    ),
    ("ArgMax", "i", {"axis": 1, "select_last_index": 1, "keepdims": 0}),
    *((f"Reduce{op}", "p axis1", {}) for op in "L1 L2 LogSum LogSumExp Max Mean Min Prod".split()),
    *((f"Reduce{op}", "p axes12", {"keepdims": 0}) for op in ("Sum", "SumSquare", "LogSumExp")),
    *((f"Reduce{op}", "i axis2", {}) for op in ("Sum", "Max", "Min", "Prod")),
    *((f"Reduce{op}", "x", {"noop_with_empty_axes": 1}) for op in ("Sum", "SumSquare", "L2")),
    ("CumSum", "p axis1", {}),
    ("CumSum", "i axis2", {"exclusive": 1, "reverse": 1}),
    ("TopK", "x three", {"axis": 2}),
    ("TopK", "x two", {"axis": 1, "largest": 0}),
    ("TopK", "i three", {"axis": 2}),
    ("Trilu", "x", {}),
    ("Trilu", "x minus", {"upper": 0}),
    ("LayerNormalization", "p row row", {}),
    ("BatchNormalization", "x scale middle middle scale", {}),
    ("Reshape", "x to_rows", {}),
    ("Squeeze", "one_word axis0", {}),
    ("Unsqueeze", "x axis1", {}),
    ("Flatten", "x", {"axis": 2}),
    ("Concat", "x p x", {"axis": 1}),
    ("Slice", "x axis1 three axis2", {}),
    ("Slice", "x axis1 far axis0", {}),
    ("Slice", "x minus far axis1", {}),
    ("Slice", "x axis0 far axis0 three", {}),
    ("Slice", "x axis1 far axis0 two", {}),
    ("Slice", "x far first axis0 backwards", {}),
    ("Split", "x", {"axis": 2}),
    ("Expand", "x stretched", {}),
    ("Tile", "x repeats", {}),
    ("Pad", "x around", {}),
    ("Pad", "x around high", {}),
    *(("Pad", "x around", {"mode": mode}) for mode in ("edge", "reflect", "wrap")),
    *(("Pad", "x cut", {"mode": mode}) for mode in ("constant", "edge", "reflect", "wrap")),
    ("Pad", "x last_axes  minus", {"mode": "reflect"}),
    ("Gather", "x some", {"axis": 2}),
    ("GatherElements", "x within", {"axis": 2}),
    ("GatherND", "x picks", {"batch_dims": 1}),
    ("GatherND", "x picks", {}),
    ("ReverseSequence", "x lengths", {}),
    ("OneHot", "i three off_on", {}),
    ("OneHot", "i three off_on", {"axis": 1}),
    ("GateLayout", "x", {"layout": GateLayout((2, 0, 1), (1, -1, 1))}),
    *(("Rnn", name, random_layer(SPEC, 0)) for name in ("p", "small", "d")),
    ("SequencePool", "r", {"kind": "average"}),
    ("SequenceReverse", "r", {}),
    ("SequenceContext", "r", {"length": 3, "start": -1}),
    ("SequenceConcat", "r q r", {}),
    ("SequenceAppend", "r q", {}),
    ("SequenceAppend", "d d d", {}),
    ("SequenceConcat", "d q d", {}),
    ("SequencePool", "d", {"kind": "sum"}),
    ("SequenceReverse", "d", {}),
    ("SequenceLengths", "d", {}),
    ("SequencePad", "d long", {}),
    ("Add", "d row", {}),
    ("SequenceExpand", "n_rows r", {}),
    ("SequenceExpand", "n_rows d", {}),
    ("SequenceExpand", "three_rows d", {"level": 0}),
    ("SequenceLengths", "r", {}),
    ("SequencePad", "r long", {}),
    ("SequenceFill", "r low", {"time": 6}),
    ("SequenceFill", "r row", {"time": 7}),
    ("SequenceReset", "r moved", {}),
    ("SequenceLike", "tags r", {}),
    ("SequenceData", "r", {}),
    ("SequenceUnpad", "x lengths", {"time_major": 1}),
    ("CrfDecode", "tags crf", {}),
    ("Conv", "p taps", {}),
    ("Conv", "p taps", {"strides": (2,), "auto_pad": "SAME_LOWER"}),
    ("Conv", "image filters bias", CONV),
    ("Conv", "image filters", {"group": 2, "auto_pad": "VALID", "kernel_shape": (3, 2)}),
    ("MaxPool", "x", {"kernel_shape": (2,)}),
    ("MaxPool", "image", {**POOL, "dilations": (1, 2)}),
    ("MaxPool", "image", {**POOL, "ceil_mode": 1}),
    ("AveragePool", "image", POOL),
    ("AveragePool", "image", {**POOL, "ceil_mode": 1, "count_include_pad": 1}),
    ("GlobalAveragePool", "image", {}),
    ("ConvTranspose", "p back", {"strides": (2,), "output_padding": (1,)}),
    ("ConvTranspose", "image back2 pair", {"group": 2, "pads": (1, 0, 0, 1), "dilations": (2, 1)}),
    ("ConvTranspose", "p back", {"strides": (2,), "auto_pad": "SAME_UPPER"}),
    ("ConvTranspose", "p back", {"output_shape": (7,)}),
    ("InstanceNormalization", "p scale middle", {}),
    ("GroupNormalization", "image four four", {"num_groups": 2}),
    ("GlobalMaxPool", "image", {}),
    ("Resize", "p   nine", {"axes": (2,), "mode": "linear"}),
    ("Resize", "p   three", {"axes": (-1,), "nearest_mode": "floor"}),
    ("DFT", "samples seven", {"onesided": 1}),
    ("STFT", "samples hop window", {}),
    ("STFT", "samples hop  three0", {"onesided": 0}),
    ("ReduceSum", "x outside", {}),
]
"""Cases whose sizes are known before a call."""


WALKED: list[tuple[str, str, dict[str, Any]]] = [
    ("Resize", "image", {"scales": (2.0, 0.5), "axes": (2, 3)}),
    ("Resize", "p   wider", {"nearest_mode": "floor"}),
    ("DFT", "samples  minus3", {}),
    ("DFT", "spectrum", {"onesided": 1, "inverse": 1}),
    ("Sample", "one p p", {"distribution": "gamma", "shape": (2,)}),
]
"""Cases of operators that Python runs, also in plans: their open sizes decide what they read."""


def cases() -> tuple[list[Node], list[str]]:
    """The nodes of all cases, and what is compared."""
    nodes, names = [], []
    for at, (op, inputs, attributes) in enumerate(CASES):
        count = COUNTS.get(op, 1)
        made = [f"v{at}_{k}" for k in range(count)]
        nodes.append(Node(op, tuple(inputs.split(" ")), tuple(made), attributes))
        names += made
    # What only a call counts is no output: it is brought to a size that is known.
    nodes += [
        new_node("chosen = Compress p choice", axis=2),
        new_node("few = ReduceSum chosen axis2"),
        new_node("flat = Compress p choice"),
        new_node("few_flat = ReduceSum flat axis0"),
        new_node("places = NonZero i"),
        new_node("where = ReduceSum places axis1"),
        new_node("last = ReduceMax places axis1"),
    ]
    unpadded = next(node for node in nodes if node.op == "SequenceUnpad")
    names.remove(unpadded.outputs[0])
    nodes += [
        Node("SequencePool", unpadded.outputs, ("ends",), {"kind": "last"}),
        new_node("groups = SequencePool d", kind="average"),
        new_node("group_ends = SequencePool groups", kind="last"),
        new_node("groups_reversed = SequenceReverse groups"),
        new_node("sizes = Shape x"),
        new_node("size = Size x"),
        new_node("zeros = ConstantOfShape sizes"),
        new_node("time = Gather sizes zero"),
        new_node("steps = Range zero time one"),
        new_node("fewer_tags = Slice tags axis1 three axis1"),
        new_node("scores = ReduceSum tags axis1"),
        new_node("attention = SequenceSoftmax scores"),
    ]
    return nodes, [
        *names,
        "few",
        "few_flat",
        "where",
        "last",
        "ends",
        "groups",
        "group_ends",
        "groups_reversed",
        "sizes",
        "size",
        "zeros",
        "steps",
        "attention",
        "fewer_tags",
    ]


def model(nodes: list[Node], names: list[str], takes: Iterable[str] = FEED) -> Graph:
    inputs = []
    for name in takes:
        value = FEED[name]
        array = data_of(value)
        shape = tuple(
            None if axis < array.ndim - 1 or array.ndim == 1 else size
            for axis, size in enumerate(array.shape)
        )
        inputs.append(Value(name, array.dtype.name, shape, len(getattr(value, "lod", ()))))
    constants = {**CONSTANTS, "zero": np.array(0), "one": np.array(1)}
    outputs = tuple(map(Value, names))
    return Graph("every", tuple(inputs), outputs, tuple(nodes), constants).prune()


def half(value: Any) -> Any:
    """Floats as halves, others as they are."""
    array = data_of(value)
    if array.dtype != np.float32:
        return value
    array = array.astype(np.float16)
    return value.with_data(array) if isinstance(value, Ragged) else array


def in_halves() -> tuple[Graph, dict[str, Any]]:
    """All cases but the layers, with halves in the place of floats; inputs for them."""
    nodes, names = cases()
    nodes = [node for node in nodes if node.op not in ("Rnn", "DynamicQuantizeLSTM")]
    made = {name for node in nodes for name in node.outputs}
    graph = model(nodes, [name for name in names if name in made])
    inputs = tuple(
        replace(value, dtype="float16") if value.dtype == "float32" else value
        for value in graph.inputs
    )
    constants = {name: half(array) for name, array in graph.constants.items()}
    feed = {value.name: half(FEED[value.name]) for value in inputs}
    return replace(graph, inputs=inputs, constants=constants), feed


def half_apart(got: np.ndarray, want: np.ndarray) -> bool:
    """Whether numbers are apart by more than the last bit of a half; others by anything."""
    if want.dtype != np.float16:
        return differs(got, want)
    told = np.isfinite(want)
    bits = np.spacing(np.abs(want[told])).astype(np.float32)
    apart = np.abs(got[told].astype(np.float32) - want[told]) > bits
    return bool(apart.any()) or not np.array_equal(got[~told], want[~told], equal_nan=True)


def differs(got: np.ndarray, want: np.ndarray) -> bool:
    """Whether numbers are apart; what is no number, or infinite, is so in both."""
    if want.dtype.kind != "f":
        return got.tolist() != want.tolist()
    told = np.isfinite(want)
    apart = np.abs(got[told] - want[told]).max(initial=0)
    same = np.array_equal(got[~told], want[~told], equal_nan=True)
    return not same or apart > 2e-6 + 1e-5 * np.abs(want[told]).max(initial=0)
