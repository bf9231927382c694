"""The rules of Paddle's layers: recurrent ones, quantized ones, convolutions and norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.common.bodies import (
    NEAREST,
    PAD_MODES,
    channels_first,
    channels_last,
    pooled,
    pooled_whole,
    recurrent_stack,
)
from onernn.adapters.common.lowering import Results
from onernn.adapters.paddle.table import PaddleOperator, listed, rule
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError
from onernn.ir.spec import Activation, Cell, Direction, RnnSpec
from onernn.ir.weights import OWN, LayerPrecision, PartScales, RnnWeights, Scale, layers_of
from onernn.reorders import paddle
from onernn.reorders.gates import GateLayout, input_layer

# Paddle's operators between floats and bytes, and the numbers in which an int8 or bf16 layer runs.
#
# Formulas: quantize_mkldnn_op.cc, dequantize_mkldnn_op.cc, requantize_mkldnn_op.cc and
# fusion_gru_kernel.cc of 2.6; the order of roundings is measured with 2.6.2.


def _number(op: PaddleOperator, value: float, dtype: str = "float32") -> str:
    return op.constant(np.asarray(value, dtype), dtype)


def _scale(op: PaddleOperator, scale: str, shift: str) -> Scale:
    """q = x * factor + shift. Paddle cuts a shift to a whole number."""
    result = Scale(op.attribute(scale, 1.0), float(int(op.attribute(shift, 0.0))))
    if not (result.factor > 0 and np.isfinite(result.factor) and 0 <= result.shift <= 255):
        raise UnsupportedError(
            f"attributes {scale}={result.factor:g}, {shift}={result.shift:g}: expected a positive"
            " scale and a shift of 0 to 255"
        )
    return result


def _rounded(op: PaddleOperator, x: str, scale: Scale, dtype: str) -> str:
    """x * factor + shift in float32, then rounded half to even, then saturated."""
    x = op.emit("Mul", x, _number(op, scale.factor))
    x = op.emit("Add", x, _number(op, scale.shift))
    return op.emit("QuantizeLinear", x, _number(op, 1), _number(op, 0, dtype))


def _floats(op: PaddleOperator, q: str, scale: Scale) -> str:
    """(q - shift) times the float32 next to 1 / factor."""
    whole = op.emit("Sub", op.cast(q, "float32"), _number(op, scale.shift))
    return op.emit("Mul", whole, _number(op, float(np.float32(1) / np.float32(scale.factor))))


def _bfloat16(op: PaddleOperator, scale: Scale) -> bool:
    """Whether the other side is bf16; Paddle's passes give that no scale."""
    op.attribute("output_format", "NHWC")  # of images; the numbers are the same
    result = op.attribute("bfloat16", False)
    if result and scale != (1, 0):
        raise UnsupportedError(f"bfloat16 numbers with scale {scale.factor:g}, {scale.shift:g}")
    return result


@rule("quantize")
def _quantize(op: PaddleOperator) -> Results:
    x, scale = op.value("Input"), _scale(op, "Scale", "Shift")
    signed = op.attribute("is_negative_input", False) and not scale.shift
    op.narrow("Output")
    if _bfloat16(op, scale):
        return op.emit("Cast", x, to="bfloat16")
    return _rounded(op, x, scale, "int8" if signed else "uint8")


@rule("dequantize")
def _dequantize(op: PaddleOperator) -> Results:
    q, scale = op.value("Input"), _scale(op, "Scale", "Shift")
    if _bfloat16(op, scale) or op.dtype("Input").kind == "f":
        return op.emit("Identity", q)
    return _floats(op, q, scale)


@rule("requantize")
def _requantize(op: PaddleOperator) -> Results:
    q, old = op.value("Input"), _scale(op, "Scale_in", "Shift_in")
    new, signed = _scale(op, "Scale_out", "Shift_out"), op.dtype("Input") == np.int8
    if signed and old.shift:
        raise UnsupportedError("attribute Shift_in: int8 numbers have none")
    ratio = float(np.float32(new.factor) / np.float32(old.factor))
    shift = new.shift - ratio * old.shift
    if not 0 <= np.rint(shift) <= 255:
        raise UnsupportedError(
            f"attributes Shift_in, Shift_out: bytes move by {shift:g}, which Paddle cuts off at 0"
            " and 255, so that it computes other numbers than its scales say"
        )
    op.narrow("Output")
    dtype = "int8" if signed and not new.shift else "uint8"
    to = Scale(ratio, float(np.rint(shift)))
    return _rounded(op, op.cast(q, "float32"), to, dtype)


class LayerNumbers(NamedTuple):
    """How an operator's layer computes: from ``x`` in float32, in ``precision``."""

    op: PaddleOperator
    x: str
    precision: LayerPrecision = OWN
    scale: Scale | None = None

    def hidden(self, y: str) -> str:
        """Hidden states as the operator gives them; ``scale``: of those that are bytes."""
        if not self.precision or self.op.attribute("force_fp32_output", False):
            return y
        self.op.narrow("Hidden")
        if self.scale:
            return _rounded(self.op, y, self.scale, "uint8")
        return self.op.emit("Cast", y, to="bfloat16")


def layer_numbers(op: PaddleOperator, spec: RnnSpec, factors: Sequence[Array]) -> LayerNumbers:
    """By the numbers in X, as Paddle chooses its kernel, whatever the attributes say.

    ``factors``: Scale_weights of each layer and direction, one number or one a gate and output
    channel, which Paddle gives to oneDNN as they are: in the order of oneDNN's gates.
    """
    x, dtype = op.ragged("X"), op.dtype("X").name
    if dtype == "float32" and not op.is_narrow("X"):
        return LayerNumbers(op, x)
    if dtype not in ("float32", "uint8"):
        raise UnsupportedError(f"input X: {dtype} numbers; Paddle's layers take float32 and uint8")
    if spec.activations or spec.peephole:
        raise UnsupportedError("in int8 or bf16: only sigmoid and tanh, and no peepholes")
    if dtype == "float32":
        return LayerNumbers(op, x, LayerPrecision("bf16"))
    scale = _scale(op, "Scale_data", "Shift_data")
    parts = [PartScales(scale, scale, each, each) for each in _factors(spec, factors)]
    return LayerNumbers(op, _unrounded(op, x, scale), LayerPrecision("u8", tuple(parts)), scale)


def _factors(spec: RnnSpec, scales: Sequence[Array]) -> list[Array]:
    count = spec.gates * spec.hidden_size
    for each in scales:
        if each.size not in (1, count):
            raise UnsupportedError(
                f"Scale_weights: expected 1 or {count} numbers ({spec.gates} gates of"
                f" {spec.hidden_size} channels), got {each.size}"
            )
    shape = (spec.gates, spec.hidden_size)
    return [np.broadcast_to(each.reshape(-1), count).reshape(shape) for each in scales]


def _unrounded(op: PaddleOperator, q: str, scale: Scale) -> str:
    """The input of `_rounded` where it made the bytes q by this scale; else their floats."""
    value, numbers = q, dict[str, Array]()
    for kind, which in {"QuantizeLinear": "zero", "Add": "shift", "Mul": "factor"}.items():
        node = op.builder.maker(value)
        number = None if node is None else op.builder.constants.get(node.inputs[-1])
        if node is None or node.op != kind or number is None:
            return _floats(op, q, scale)
        value, numbers[which] = node.inputs[0], number
    same = numbers["factor"] == np.float32(scale.factor) and numbers["shift"] == scale.shift
    same = same and numbers["zero"].dtype == np.uint8
    return value if same else _floats(op, q, scale)


# The rules of Paddle's recurrent operators.
#
# Formulas and slots: lstm_op.cc, fusion_lstm_op.cc, fused_embedding_fc_lstm_op.cc and rnn_kernel.cc
# of 2.6, and the documentation of paddle.nn.

_FUNCTIONS: Mapping[Any, str] = {name: name for name in ("sigmoid", "tanh", "relu", "identity")}
_UNIT_FUNCTIONS: Mapping[Any, str] = {0: "identity", 1: "sigmoid", 2: "tanh", 3: "relu"}


def _functions(
    op: PaddleOperator, table: Mapping[Any, str], **defaults: str
) -> tuple[Activation, ...]:
    """The functions of ``table`` that attributes with these names and defaults choose."""
    keys = {name: key for key, name in table.items()}
    return tuple(
        Activation(table[op.one_of(name, keys[default], table)])
        for name, default in defaults.items()
    )


def _direction(op: PaddleOperator) -> Direction:
    return "right2left" if op.attribute("is_reverse", False) else "left2right"


def _check_float32(*weights: Array) -> None:
    if others := {array.dtype.name for array in weights} - {"float32"}:
        raise UnsupportedError(f"its weights are {others.pop()}, only float32 layers are supported")


def _over_words(
    op: PaddleOperator,
    x: str,
    spec: RnnSpec,
    weights: RnnWeights,
    count: int,
    *slots: str,
    precision: LayerPrecision = OWN,
) -> tuple[str, ...]:
    """``count`` outputs of a layer with initial states (N, O) in these slots, all or none."""
    weights.check(spec)
    states = [op.optional(slot) for slot in slots]
    if "" in states and any(states):
        raise UnsupportedError(f"inputs {' and '.join(slots)} go together")
    states = [state and op.unsqueezed(op.dense(state), 0, 1) for state in states]
    return op.emit_many("Rnn", count, x, *states, spec=spec, weights=weights, precision=precision)


def _gru_cell(
    op: PaddleOperator, flat: Array, table: Mapping[Any, str] = _FUNCTIONS
) -> tuple[RnnSpec, GateLayout]:
    """A GRU whose input is projected already."""
    _check_float32(flat)
    activations = _functions(op, table, gate_activation="sigmoid", activation="tanh")
    origin_mode = op.attribute("origin_mode", False)
    layout, update = paddle.gru_layout(origin_mode=origin_mode, gate_activation=activations[0].name)
    hidden, direction = flat.shape[0], _direction(op)
    cell = RnnSpec(Cell.GRU, 3 * hidden, hidden, direction=direction)
    return replace(cell, activations=activations, update=update), layout


@rule("gru gru_unit")
def _gru(op: PaddleOperator) -> Results:
    """A unit is one step of N sentences: a batch of one word each."""
    unit, flat = op.at.type == "gru_unit", op.array("Weight")
    spec, layout = _gru_cell(op, flat, _UNIT_FUNCTIONS if unit else _FUNCTIONS)
    weights = paddle.gru_weights(flat, op.optional_array("Bias"), layout)
    if not unit:
        x = op.emit("GateLayout", op.ragged("Input"), layout=layout)
        return _over_words(op, x, spec, weights, 1, "H0")[0]
    op.value("HiddenPrev")
    x = op.unsqueezed(op.emit("GateLayout", op.plain("Input"), layout=layout), 0)
    return op.squeezed(_over_words(op, x, spec, weights, 1, "HiddenPrev")[0], 0)


@rule("fusion_gru")
def _fusion_gru(op: PaddleOperator) -> Results:
    flat, projection = op.array("WeightH"), op.array("WeightX")
    spec, layout = _gru_cell(op, flat)
    weights = paddle.gru_weights(flat, op.optional_array("Bias"), layout, projection)
    spec = spec.one_layer(projection.shape[0], spec.direction)
    numbers = layer_numbers(op, spec, [_scale_weights(op)])
    (y,) = _over_words(op, numbers.x, spec, weights, 1, "H0", precision=numbers.precision)
    return numbers.hidden(y)


def _scale_weights(op: PaddleOperator) -> Array:
    return np.asarray(op.attribute("Scale_weights", (1.0,)), np.float32)


@rule("multi_gru")
def _multi_gru(op: PaddleOperator) -> Results:
    """A stack of bidirectional layers: weights of l0 forward, l0 backward, l1 forward, ..."""
    layers = op.attribute("layers", 1)
    slots = {slot: op.arrays(slot) for slot in ("WeightX", "WeightH", "Bias")}
    biases = slots["Bias"] or [None] * 2 * layers
    if layers < 1 or {len(slots["WeightX"]), len(slots["WeightH"]), len(biases)} != {2 * layers}:
        counts = {slot: len(arrays) for slot, arrays in slots.items()}
        raise UnsupportedError(f"{layers} layers in two directions of {counts} arrays")
    spec, layout = _gru_cell(op, slots["WeightH"][0])
    halves = [
        paddle.gru_weights(h, bias, layout, x)
        for x, h, bias in zip(slots["WeightX"], slots["WeightH"], biases, strict=True)
    ]
    stack = [RnnWeights.joined(halves[at : at + 2], 1) for at in range(0, 2 * layers, 2)]
    spec = replace(
        spec,
        input_size=slots["WeightX"][0].shape[0],
        layers=layers,
        direction="bidirectional_concat",
    )
    layers_of(spec, stack)
    weights = stack if layers > 1 else stack[0]
    numbers = layer_numbers(op, spec, op.arrays("Scale_weights"))
    attributes = {"spec": spec, "weights": weights, "precision": numbers.precision}
    return numbers.hidden(op.emit("Rnn", numbers.x, **attributes))


@rule("lstm")
def _lstm(op: PaddleOperator) -> Results:
    """The input is projected already; its bias is that of the gates."""
    x = op.emit("GateLayout", op.ragged("Input"), layout=paddle.LSTM)
    return _lstm_layer(op, x, op.array("Weight"), op.array("Bias"))


@rule("fusion_lstm")
def _fusion_lstm(op: PaddleOperator) -> Results:
    """Paddle's passes make Scale_weights for the gates c, i, f, o, but its kernel hands them to
    oneDNN for i, f, c, o: what it computes is what counts here, as for each fusion (0014)."""
    weight_x, weight_h, bias = (op.array(slot) for slot in ("WeightX", "WeightH", "Bias"))
    spec, weights = _lstm_cell(op, weight_x, weight_h, bias)
    numbers = layer_numbers(op, spec, [_scale_weights(op)])
    result = _over_words(op, numbers.x, spec, weights, 4, "H0", "C0", precision=numbers.precision)
    if numbers.precision:
        return {"Hidden": numbers.hidden(result[0])}  # Paddle writes no Cell either
    return {"Hidden": result[0], "Cell": result[3]}


@rule("fused_embedding_fc_lstm")
def _fused_embedding_fc_lstm(op: PaddleOperator) -> Results:
    """Rows of a table that is projected and has the gates' bias added: Bias is for peepholes."""
    ids = op.squeezed(op.ragged("Ids"), -1)
    gates = op.constant(paddle.LSTM(op.array("Embeddings")), "gates")
    rows = op.emit("Gather", gates, ids, axis=0, non_negative=True)
    weight_h, bias = op.array("WeightH"), op.array("Bias").copy()
    bias[..., : weight_h.shape[1]] = 0
    return _lstm_layer(op, rows, weight_h, bias)


def _lstm_layer(op: PaddleOperator, x: str, weight_h: Array, bias: Array) -> Results:
    """The input is projected. The final states are no outputs of Paddle's; each word's cell is."""
    spec, weights = _lstm_cell(op, None, weight_h, bias)
    y, _, _, cells = _over_words(op, x, spec, weights, 4, "H0", "C0")
    return {"Hidden": y, "Cell": cells}


def _lstm_cell(
    op: PaddleOperator, weight_x: Array | None, weight_h: Array, bias: Array
) -> tuple[RnnSpec, RnnWeights]:
    _check_float32(weight_h)
    activations = _functions(
        op,
        _FUNCTIONS,
        gate_activation="sigmoid",
        candidate_activation="tanh",
        cell_activation="tanh",
    )
    peephole = op.attribute("use_peepholes", True)
    biases, diagonal = paddle.lstm_bias(bias, peephole=peephole)
    weights = RnnWeights(
        None if weight_x is None else input_layer(weight_x, paddle.LSTM),
        input_layer(weight_h, paddle.LSTM),
        biases,
        diagonal,
    )
    inputs, hidden = weight_h.shape[1] if weight_x is None else len(weight_x), len(weight_h)
    spec = RnnSpec(Cell.LSTM, inputs, hidden, direction=_direction(op), peephole=peephole)
    return replace(spec, activations=activations), weights


@rule("attention_lstm")
def _attention_lstm(op: PaddleOperator) -> Results:
    raise UnsupportedError(
        "each step attends to the whole sentence anew: no recurrent primitive computes that"
    )


@rule("rnn")
def _rnn(op: PaddleOperator) -> Results:
    """Time-major; steps beyond a sentence's length do not run, and give zeros."""
    if op.attribute("dropout_prob", 0.0):
        op.note_dropout()
    mode, layers = op.one_of("mode", "RNN_TANH", paddle.RNN_CELLS), op.attribute("num_layers", 1)
    both = op.attribute("is_bidirec", False)
    arrays = op.arrays("WeightList")
    if others := {array.dtype.name for array in arrays} - {arrays[0].dtype.name}:
        raise UnsupportedError(f"its weights are {arrays[0].dtype} and {others.pop()}")
    if arrays[0].dtype.name not in ("float32", "float64"):
        raise UnsupportedError(f"its weights are {arrays[0].dtype}, not float32 or float64")
    stack = paddle.rnn_weights(arrays, mode, layers, 2 if both else 1)
    spec = RnnSpec(
        paddle.RNN_CELLS[mode][0],
        op.attribute("input_size", 10),
        op.attribute("hidden_size", 100),
        layers=layers,
        direction="bidirectional_concat" if both else "left2right",
    )
    layers_of(spec, stack)
    states = op.values("PreState")
    if len(states) != len(spec.cell.states):
        raise UnsupportedError(f"input PreState: {len(states)} states for {spec.cell.name}")
    lengths = op.optional("SequenceLength")
    y, *finals = recurrent_stack(op, op.plain("Input"), states, spec, stack, lengths)
    return {"Out": y, **dict(listed("State", finals))}


# The rules of convolutions, pools and what stands around them: (N, C, H, W), or NHWC turned.
#
# Slots and defaults: the operators' makers in 2.6; formulas measured with 2.6.2 and 3.3.1.

_LAST = ("NHWC", "NDHWC", "NLC")
_UNFUSED = {
    **{"use_addto": False, "fuse_relu_before_depthwise_conv": False, "exhaustive_search": False},
    **{"fuse_relu": False, "fuse_residual_connection": False, "fuse_activation": ""},
    **{"fuse_brelu": False, "Scale_in": 1.0, "Scale_in_eltwise": 1.0, "Scale_out": 1.0},
}


def _image(op: PaddleOperator, slot: str, name: str = "data_format") -> tuple[str, bool]:
    """The input with its channels as axis 1, and whether they were the last one."""
    layout, x = op.attribute(name, "NCHW"), op.value(slot)
    if op.is_ragged(x):
        raise UnsupportedError(f"input {slot}: a LoD over images")
    if layout not in _LAST:
        return x, False
    return channels_first(op, x), True


def _back(op: PaddleOperator, out: str, last: bool) -> str:
    return channels_last(op, out) if last else out


def _pads(op: PaddleOperator, axes: int) -> dict[str, Any]:
    """Pads of each axis, of both ends, or by an algorithm; ONNX lists all starts, then all ends."""
    algorithm, pads = (
        op.attribute("padding_algorithm", "EXPLICIT"),
        op.attribute("paddings", (0,) * axes),
    )
    if algorithm == "SAME":
        return {"auto_pad": "SAME_UPPER"}
    if algorithm == "VALID":
        return {"pads": (0,) * 2 * axes}
    if algorithm != "EXPLICIT" or len(pads) not in (axes, 2 * axes):
        raise UnsupportedError(f"attributes padding_algorithm={algorithm!r}, paddings={pads}")
    return {"pads": (*pads, *pads) if len(pads) == axes else (*pads[::2], *pads[1::2])}


def _attributes(op: PaddleOperator, axes: int) -> dict[str, Any]:
    op.only(**_UNFUSED)
    op.ignore("workspace_size_MB", "use_cudnn")
    op.ignore(
        "fuse_alpha", "fuse_beta", "fuse_brelu_threshold"
    )  # of a fused activation: there is none
    pads = _pads(op, axes)
    dilations = op.attribute("dilations", (1,) * axes)
    if "auto_pad" in pads:  # then Paddle takes each element that stands there
        dilations = (1,) * axes
    strides = op.attribute("strides", (1,) * axes)
    return {"strides": strides, "dilations": dilations, "group": op.attribute("groups", 1), **pads}


@rule("conv2d depthwise_conv2d conv3d conv2d_transpose depthwise_conv2d_transpose")
def _convolution(op: PaddleOperator) -> Results:
    """A given ``output_size`` is one that a larger ``output_padding`` would give."""
    axes, kind = op.rank("Input") - 2, "Conv"
    (x, last), attributes = _image(op, "Input"), _attributes(op, axes)
    if op.at.type.endswith("transpose"):
        if op.attribute("output_size", ()) or op.optional("OutputSize"):
            raise UnsupportedError("attribute output_size: give output_padding instead")
        if "auto_pad" in attributes:
            raise UnsupportedError("attribute padding_algorithm='SAME' of a convolution back")
        more = op.attribute("output_padding", ()) or (0,) * axes
        kind, attributes = "ConvTranspose", {"output_padding": more, **attributes}
    out = op.emit(kind, x, op.value("Filter"), **attributes)
    if bias := op.optional("Bias"):
        out = op.emit("Add", out, op.reshaped(bias, 1, -1, *[1] * axes))
    return _back(op, out, last)


@rule("pool2d pool3d max_pool2d_with_index")
def _pool(op: PaddleOperator) -> Results:
    """``exclusive``: a mean counts no pads. Else it counts the whole window everywhere."""
    rank = op.rank("X")
    (x, last), axes = _image(op, "X"), rank - 2
    op.absent("KernelSize of run time")
    kind = "max" if "index" in op.at.type else op.one_of("pooling_type", "max", ("max", "avg"))
    kernel, ceil = tuple(op.attribute("ksize", ())), op.attribute("ceil_mode", False)
    strides, pads = op.attribute("strides", (1,) * axes), _pads(op, axes)
    exclusive = op.attribute("exclusive", True)
    op.attribute("use_cudnn", False)
    if op.attribute("global_pooling", False) or op.attribute("adaptive", False):
        whole = op.attributes.get("global_pooling", False) or kernel == (1,) * axes
        op.attribute("adaptive", False)
        if whole:
            return _back(op, pooled_whole(op, x, kind), last)
        parts = _parts(op.shape("X")[1:-1] if last else op.shape("X")[2:], kernel)
        return _back(op, pooled(op, x, kind, parts, strides=parts), last)
    windows = {"strides": strides, "ceil_mode": int(ceil), **pads}
    if kind == "avg" and not exclusive and (ceil or "auto_pad" in pads):
        raise UnsupportedError("attribute exclusive=False with ceil_mode or SAME pads")
    out = pooled(op, x, kind, kernel, counts_pads=not exclusive, **windows)
    return _back(op, out, last)


def _parts(sizes: Sequence[int | None], counts: Sequence[int]) -> tuple[int, ...]:
    """The windows of an adaptive pool: equal ones, beside each other."""
    if len(counts) != len(sizes) or any(
        size is None or part < 1 or size % part for size, part in zip(sizes, counts, strict=True)
    ):
        raise UnsupportedError(
            f"attribute adaptive: {tuple(sizes)} into {tuple(counts)} parts; only of known and"
            " equal sizes, or of one part over all axes"
        )
    return tuple((size or 0) // part for size, part in zip(sizes, counts, strict=True))


@rule("instance_norm group_norm")
def _norm(op: PaddleOperator) -> Results:
    """Scale and Bias: ones and zeros where they are absent."""
    channels, epsilon, affine = op.shape("X")[1], op.attribute("epsilon", 1e-5), []
    for slot, number in (("Scale", 1), ("Bias", 0)):
        value = op.optional(slot)
        if not value and channels is None:
            raise UnsupportedError(f"input {slot} is missing, and the channels are not known")
        sizes, dtype = (channels or 0,), op.dtype("X")
        affine.append(value or op.filled(sizes, number, dtype, slot.lower()))
    if op.at.type == "instance_norm":
        return op.emit("InstanceNormalization", op.plain("X"), *affine, epsilon=epsilon)
    layout, groups = op.attribute("data_layout", "NCHW"), op.attribute("groups", 1)
    if layout in _LAST:
        raise UnsupportedError(f"attribute data_layout={layout!r}: give (N, C, ...)")
    x = op.plain("X")
    return op.emit("GroupNormalization", x, *affine, num_groups=groups, epsilon=epsilon)


@rule("batch_norm")
def _batch_norm(op: PaddleOperator) -> Results:
    """Inference: with the statistics that training left."""
    fixed = op.attributes.get("is_test", False) or op.attribute("use_global_stats", False)
    op.attribute("use_global_stats", False)
    op.attribute("momentum", 0.9)
    if not fixed or op.attribute("trainable_statistics", False):
        raise UnsupportedError("saved in training mode: it normalizes by the statistics of a batch")
    op.only(fuse_with_relu=False)
    layout = op.one_of("data_layout", "NCHW", ("NCHW", "AnyLayout", *_LAST))
    x, last = op.value("X"), layout in _LAST and op.rank("X") > 2
    numbers = [op.value(slot) for slot in ("Scale", "Bias", "Mean", "Variance")]
    epsilon = op.attribute("epsilon", 1e-5)
    x = channels_first(op, x) if last else x
    return _back(op, op.emit("BatchNormalization", x, *numbers, epsilon=epsilon), last)


@rule("prelu")
def _prelu(op: PaddleOperator) -> Results:
    mode, layout = op.attribute("mode", "all"), op.attribute("data_format", "NCHW")
    rank = op.rank("X")
    slope = op.value("Alpha")
    if mode == "channel":
        behind = 0 if layout in _LAST else rank - 2
        slope = op.reshaped(slope, -1, *[1] * behind)
    elif mode == "all":
        slope = op.reshaped(slope, 1)
    else:
        raise UnsupportedError(f"attribute mode={mode!r}: expected all or channel")
    return op.emit("PRelu", op.value("X"), slope)


@rule("pad pad2d pad3d")
def _pad(op: PaddleOperator) -> Results:
    """``pad3d`` and ``pad2d`` list the last axis first, ``pad`` all axes in order."""
    if op.variables("Paddings of run time") or op.variables("Paddings"):
        raise UnsupportedError("input Paddings: computed at run time")
    rank, pads, x = op.rank("X"), list(op.attribute("paddings", (0,))), op.value("X")
    mode, value = "constant", op.attribute("pad_value", 0.0) if op.at.type != "pad3d" else 0.0
    first = 0
    if op.at.type != "pad":
        mode = {"edge": "replicate"}.get(name := op.attribute("mode", "constant"), name)
        value = op.attribute("value", 0.0) if op.at.type == "pad3d" else value
        first = 1 if op.attribute("data_format", "NCHW") in _LAST else 2
    axes = range(first, first + len(pads) // 2)
    if op.at.type == "pad3d":
        pads = [number for at in reversed(range(0, len(pads), 2)) for number in pads[at : at + 2]]
    if mode not in PAD_MODES or len(pads) % 2 or len(axes) > rank - first:
        raise UnsupportedError(f"attributes mode={mode!r}, paddings={pads} of {rank} axes")
    if 0 in axes and op.is_ragged(x) and any(pads[:2]):
        raise UnsupportedError("attribute paddings: the words of a LoD")
    filled = op.scalar(value, op.dtype("X"))
    ends = [*pads[::2], *pads[1::2]]
    return op.emit("Pad", op.dense(x), ends, filled, axes, mode=PAD_MODES[mode])


@rule(
    "nearest_interp_v2 bilinear_interp_v2 linear_interp_v2 nearest_interp bilinear_interp",
)
def _interpolated(op: PaddleOperator) -> Results:
    """Nearest rounds down, as Paddle's kernel does; ``align_mode`` 1 counts from the corner."""
    rank = op.rank("X")
    x, last = _image(op, "X", "data_layout")
    op.absent("OutSize", "SizeTensor", "Scale")
    method = op.one_of("interp_method", "bilinear", ("nearest", "bilinear", "linear"))
    corners = op.attribute("align_corners", True)
    mode, scale = op.attribute("align_mode", 1), op.attribute("scale", ())
    scale = tuple(scale) if isinstance(scale, tuple | list) else (scale,) if scale else ()
    sizes = [op.attribute(name, -1) for name in ("out_d", "out_h", "out_w")][-(rank - 2) :]
    if method == "nearest":
        if corners:
            raise UnsupportedError("attribute align_corners of nearest elements")
        attributes = NEAREST
    else:
        way = "align_corners" if corners else "half_pixel" if mode == 0 else "asymmetric"
        attributes = {"coordinate_transformation_mode": way, "mode": "linear"}
    if scale:
        scale = scale * (rank - 2) if len(scale) == 1 else scale
        by = op.constant(np.array([1, 1, *scale], np.float32), "scales")
        return _back(op, op.emit("Resize", x, "", by, **attributes), last)
    if min(sizes) < 1:
        raise UnsupportedError(f"attributes out_h, out_w: {sizes}")
    shape = op.joined(op.emit("Shape", x, start=0, end=2), sizes)
    return _back(op, op.emit("Resize", x, "", "", shape, **attributes), last)


@rule("unstack unbind")
def _unstack(op: PaddleOperator) -> Results:
    """Each part along an axis, without that axis."""
    axis, rank = op.attribute("axis", 0), op.rank("X")
    op.attribute("num", 0)
    slot = "Y" if op.at.type == "unstack" else "Out"
    parts = op.emit_many("Split", len(op.outputs.get(slot, ())), op.plain("X"), axis=axis)
    return tuple(op.squeezed(part, axis % rank) for part in parts)
