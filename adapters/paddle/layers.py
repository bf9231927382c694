"""The rules of Paddle's recurrent layers, quantization operators, convolutions and norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import gt
from typing import Any, NamedTuple

import numpy as np

from onernn.adapters.common.bodies import (
    NEAREST,
    PAD_MODES,
    count_up,
    over_channels,
    pool_whole,
    pool_windows,
    recurrent_stack,
)
from onernn.adapters.common.signatures import OneOf, refuse
from onernn.adapters.paddle.table import PaddleOperator, ScaleOf, list_places, paddle
from onernn.ir.arrays import Array
from onernn.ir.spec import Cell, Direction, RnnSpec
from onernn.ir.weights import OWN, LayerPrecision, PartScales, RnnWeights, Scale, layers_of
from onernn.reorders import paddle as reorders
from onernn.reorders.gates import GateLayout, input_layer

# The rules of operators that convert between floats and int8, and the precision of a recurrent
# layer.
#
# Formulas: quantize_mkldnn_op.cc, dequantize_mkldnn_op.cc, requantize_mkldnn_op.cc and
# fusion_gru_kernel.cc of Paddle 2.6. The order of roundings was measured with 2.6.2.


def _round(x: Any, scale: Scale, dtype: str) -> Any:
    """Returns x * factor + shift in float32, rounded half to even and saturated to ``dtype``."""
    moved = x.Mul(scale.factor).Add(scale.shift)
    return moved.QuantizeLinear(1.0, np.zeros((), dtype))


def _floats(q: Any, scale: Scale) -> Any:
    """Returns the dequantized q: (q - shift) * (1 / factor), where 1 / factor is rounded to
    float32.
    """
    factor = float(np.float32(1) / np.float32(scale.factor))
    return q.cast("float32").Sub(scale.shift).Mul(factor)


def _is_bfloat16(bfloat16: bool, scale: Scale) -> bool:
    """Returns whether the operator converts from or to bf16. Raises `UnsupportedError` for bf16
    with a scale, which Paddle's passes never set.
    """
    if bfloat16 and scale != (1, 0):
        refuse(
            "attribute bfloat16=True: expected a scale of 1 and a shift of 0, got"
            f" {scale.factor:g} and {scale.shift:g}"
        )
    return bfloat16


# The attribute ``output_format`` names an image layout and does not change results.


@paddle("quantize")
def quantize(
    Input,
    *,
    Scale=ScaleOf("Shift"),
    is_negative_input=False,
    bfloat16=False,
    output_format="NHWC",
    op,
):
    op.narrow("Output")
    if _is_bfloat16(bfloat16, Scale):
        return Input.Cast(to="bfloat16")
    return _round(Input, Scale, "int8" if is_negative_input and not Scale.shift else "uint8")


@paddle("dequantize")
def dequantize(Input, *, Scale=ScaleOf("Shift"), bfloat16=False, output_format="NHWC"):
    if _is_bfloat16(bfloat16, Scale) or Input.dtype.kind == "f":
        return Input
    return _floats(Input, Scale)


@paddle("requantize")
def requantize(Input, *, Scale_in=ScaleOf("Shift_in"), Scale_out=ScaleOf("Shift_out"), op):
    signed = Input.dtype == np.int8
    if signed and Scale_in.shift:
        refuse(f"attribute Shift_in={Scale_in.shift:g}: expected 0 for an int8 input")
    ratio = float(np.float32(Scale_out.factor) / np.float32(Scale_in.factor))
    shift = Scale_out.shift - ratio * Scale_in.shift
    if not 0 <= np.rint(shift) <= 255:
        refuse(
            f"attributes Shift_in, Shift_out: expected a total shift of 0 to 255, got {shift:g};"
            " Paddle saturates it, and computes different values than the scales state"
        )
    op.narrow("Output")
    dtype = "int8" if signed and not Scale_out.shift else "uint8"
    return _round(Input.cast("float32"), Scale(ratio, float(np.rint(shift))), dtype)


class LayerNumbers(NamedTuple):
    """The float32 input ``x`` and the ``precision`` of a recurrent layer.

    ``scale``: the quantization scale of uint8 hidden states, None for other hidden states.
    """

    x: Any
    precision: LayerPrecision = OWN
    scale: Scale | None = None

    def round_hidden(self, y: Any) -> Any:
        """Returns the hidden states in the dtype that Paddle's operator returns."""
        if not self.precision or y.op.attribute("force_fp32_output", False):
            return y
        y.op.narrow("Hidden")
        return _round(y, self.scale, "uint8") if self.scale else y.Cast(to="bfloat16")


def _layer_numbers(X: Any, spec: RnnSpec, factors: Sequence[Array]) -> LayerNumbers:
    """Returns a layer's input and precision. Like Paddle, chooses the precision by the dtype of X.

    ``factors``: the Scale_weights of each layer and direction. Each holds a single scale, or a
    scale per gate and output channel. Paddle passes the scales to oneDNN unchanged, in the order of
    oneDNN's gates.
    """
    x, dtype = X.with_lod(), X.dtype.name
    if dtype == "float32" and not X.narrow:
        return LayerNumbers(x)
    if dtype not in ("float32", "uint8"):
        refuse(f"input X: expected float32 or uint8, got {dtype}")
    if spec.activations or spec.peephole:
        refuse("in int8 or bf16: expected the activations sigmoid and tanh, and no peepholes")
    if dtype == "float32":
        return LayerNumbers(x, LayerPrecision("bf16"))
    scale = ScaleOf("Shift_data").read(X.op, "Scale_data")
    parts = [PartScales(scale, scale, each, each) for each in _weight_factors(spec, factors)]
    return LayerNumbers(_before_rounding(x, scale), LayerPrecision("u8", tuple(parts)), scale)


def _weight_factors(spec: RnnSpec, scales: Sequence[Array]) -> list[Array]:
    count = spec.gates * spec.hidden_size
    for each in scales:
        if each.size not in (1, count):
            refuse(
                f"Scale_weights: expected 1 or {count} values ({spec.gates} gates of"
                f" {spec.hidden_size} channels), got {each.size}"
            )
    shape = (spec.gates, spec.hidden_size)
    return [np.broadcast_to(each.reshape(-1), count).reshape(shape) for each in scales]


def _before_rounding(q: Any, scale: Scale) -> Any:
    """Returns the input of `_round` if `_round` computed q with this scale. Otherwise returns the
    dequantized q.
    """
    builder, value, numbers = q.op.builder, q.name, dict[str, Array]()
    for kind, role in {"QuantizeLinear": "zero", "Add": "shift", "Mul": "factor"}.items():
        node = builder.maker(value)
        number = None if node is None else builder.constants.get(node.inputs[-1])
        if node is None or node.op != kind or number is None:
            return _floats(q, scale)
        value, numbers[role] = node.inputs[0], number
    same = numbers["factor"] == np.float32(scale.factor) and numbers["shift"] == scale.shift
    same = same and numbers["zero"].dtype == np.uint8
    return q.new(value) if same else _floats(q, scale)


# The rules of Paddle's recurrent operators.
#
# Formulas and slots (names of inputs and outputs): lstm_op.cc, fusion_lstm_op.cc,
# fused_embedding_fc_lstm_op.cc and rnn_kernel.cc of Paddle 2.6, and the documentation of paddle.nn.

_FUNCTIONS = {name: name for name in ("sigmoid", "tanh", "relu", "identity")}
_SIGMOID, _TANH = OneOf("sigmoid", _FUNCTIONS), OneOf("tanh", _FUNCTIONS)
_UNIT_FUNCTIONS = {0: "identity", 1: "sigmoid", 2: "tanh", 3: "relu"}
_DIRECTION = OneOf(False, {False: "left2right", True: "right2left"})


class CellAttributes(NamedTuple):
    """The attributes that all operators of one cell type share.

    ``functions``: the activations by attribute name. ``flag`` and ``default``: the name and default
    of a bool attribute, ``origin_mode`` or ``use_peepholes``.
    """

    functions: Mapping[str, OneOf]
    flag: str
    default: bool

    def read(self, op: PaddleOperator, _: str) -> tuple[tuple[str, ...], bool, Direction]:
        functions = tuple(each.read(op, name) for name, each in self.functions.items())
        return (
            functions,
            bool(op.attribute(self.flag, self.default)),
            _DIRECTION.read(op, "is_reverse"),
        )


_GRU = CellAttributes({"gate_activation": _SIGMOID, "activation": _TANH}, "origin_mode", False)
_GRU_UNIT = _GRU._replace(
    functions={
        "gate_activation": OneOf(1, _UNIT_FUNCTIONS),
        "activation": OneOf(2, _UNIT_FUNCTIONS),
    }
)
_LSTM = CellAttributes(
    {"gate_activation": _SIGMOID, "candidate_activation": _TANH, "cell_activation": _TANH},
    "use_peepholes",
    True,
)


def _check_float32(weights: Array) -> None:
    if weights.dtype != np.float32:
        refuse(f"its weights: expected float32, got {weights.dtype}; cast them and save again")


def _run_over_words(
    x: Any,
    spec: RnnSpec,
    weights: RnnWeights,
    *states: Any,
    outputs: int = 1,
    precision: LayerPrecision = OWN,
) -> Any:
    """Adds a recurrent layer and returns its outputs. Raises `UnsupportedError` if only one of an
    LSTM's initial states (N, O) is given.
    """
    weights.check(spec)
    if states.count(None) not in (0, len(states)):
        refuse("inputs H0, C0: expected both or none")
    begin = [state and state.dense.unsqueeze(0, 1) for state in states]
    return x.Rnn(*begin, spec=spec, weights=weights, precision=precision, outputs=outputs)


def _gru_cell(
    attributes: Any, weight_h: Any, bias: Any, weight_x: Any = None
) -> tuple[RnnSpec, RnnWeights, GateLayout]:
    """Returns a GRU, its weights and the order of its gates. If ``weight_x`` is None, the layer's
    input is already multiplied by the input weights.
    """
    functions, origin_mode, direction = attributes
    flat, projection = weight_h.array, weight_x and weight_x.array
    _check_float32(flat)
    layout, update = reorders.gru_layout(origin_mode=origin_mode, gate_activation=functions[0])
    inputs = 3 * len(flat) if projection is None else len(projection)
    cell = RnnSpec(Cell.GRU, inputs, len(flat), direction=direction)
    weights = reorders.gru_weights(flat, bias and bias.array, layout, projection)
    return replace(cell, activations=functions, update=update), weights, layout


@paddle("gru")
def gru(Input, Weight, Bias=None, H0=None, *, cell=_GRU):
    spec, weights, layout = _gru_cell(cell, Weight, Bias)
    return _run_over_words(Input.with_lod().GateLayout(layout=layout), spec, weights, H0)[0]


@paddle("gru_unit")
def gru_unit(Input, HiddenPrev, Weight, Bias=None, *, cell=_GRU_UNIT):
    """Runs one GRU step of N sequences as a layer over one step."""
    spec, weights, layout = _gru_cell(cell, Weight, Bias)
    x = Input.dense.GateLayout(layout=layout).unsqueeze(0)
    return _run_over_words(x, spec, weights, HiddenPrev)[0].squeeze(0)


@paddle("fusion_gru")
def fusion_gru(X, WeightX, WeightH, Bias=None, H0=None, *, cell=_GRU, Scale_weights=(1.0,)):
    spec, weights, _ = _gru_cell(cell, WeightH, Bias, WeightX)
    x, precision, _ = numbers = _layer_numbers(X, spec, [np.asarray(Scale_weights, np.float32)])
    return numbers.round_hidden(_run_over_words(x, spec, weights, H0, precision=precision)[0])


@paddle("multi_gru")
def multi_gru(X, WeightX=(), WeightH=(), Bias=(), Scale_weights=(), *, layers=1, cell=_GRU):
    """Runs a stack of bidirectional GRUs. Weights are in the order layer 0 forward, layer 0
    backward, layer 1 forward, ...
    """
    biases = Bias or [None] * 2 * layers
    counts = [len(WeightX), len(WeightH), len(biases)]
    if layers < 1 or {*counts} != {2 * layers}:
        refuse(
            f"attribute {layers=}: expected 1 or more, and {2 * layers} arrays each of WeightX,"
            f" WeightH and Bias, got {counts}"
        )
    cells = [_gru_cell(cell, *each) for each in zip(WeightH, biases, WeightX, strict=True)]
    halves = [weights for _, weights, _ in cells]
    stack = [RnnWeights.join(halves[at : at + 2], 1) for at in range(0, 2 * layers, 2)]
    spec = replace(cells[0][0], layers=layers, direction="bidirectional_concat")
    layers_of(spec, stack)
    weights = stack if layers > 1 else stack[0]
    x, precision, _ = numbers = _layer_numbers(X, spec, [each.array for each in Scale_weights])
    return numbers.round_hidden(x.Rnn(spec=spec, weights=weights, precision=precision))


@paddle("lstm")
def lstm(Input, Weight, Bias, H0=None, C0=None, *, cell=_LSTM):
    """Runs an LSTM whose input is already multiplied by the input weights. ``Bias`` holds the
    gates' bias, then the peephole weights if ``use_peepholes`` is true.
    """
    layer = _lstm_cell(cell, Weight.array, Bias.array)
    return _run_lstm(Input.with_lod().GateLayout(layout=reorders.LSTM), *layer, H0, C0)


@paddle("fusion_lstm")
def fusion_lstm(X, WeightX, WeightH, Bias, H0=None, C0=None, *, cell=_LSTM, Scale_weights=(1.0,)):
    """Runs an LSTM. Like Paddle's kernel, uses Scale_weights in oneDNN's gate order i, f, c, o,
    although Paddle's passes compute them in the order c, i, f, o (design/0014).
    """
    layer = _lstm_cell(cell, WeightH.array, Bias.array, WeightX.array)
    numbers = _layer_numbers(X, layer[0], [np.asarray(Scale_weights, np.float32)])
    results = _run_lstm(numbers.x, *layer, H0, C0, precision=numbers.precision)
    if numbers.precision:
        return {"Hidden": numbers.round_hidden(results["Hidden"])}  # Paddle does not write Cell
    return results


@paddle("fused_embedding_fc_lstm")
def fused_embedding_fc_lstm(Ids, Embeddings, WeightH, Bias, H0=None, C0=None, *, cell=_LSTM):
    """Runs an LSTM on rows of ``Embeddings``, which are already multiplied by the input weights and
    include the gates' bias. ``Bias`` provides the peephole weights.
    """
    gates = Ids.constant(reorders.LSTM(Embeddings.array))
    rows = gates.Gather(Ids.with_lod().squeeze(-1), axis=0, non_negative=True)
    bias = Bias.array.copy()
    bias[..., : WeightH.array.shape[1]] = 0
    return _run_lstm(rows, *_lstm_cell(cell, WeightH.array, bias), H0, C0)


def _run_lstm(x: Any, *layer: Any, precision: LayerPrecision = OWN) -> dict[str, Any]:
    """Returns the states of all steps by slot. Like Paddle, returns no final states."""
    y, _, _, cells = _run_over_words(x, *layer, outputs=4, precision=precision)
    return {"Hidden": y, "Cell": cells}


def _lstm_cell(
    attributes: Any, weight_h: Array, bias: Array, weight_x: Array | None = None
) -> tuple[RnnSpec, RnnWeights]:
    functions, peephole, direction = attributes
    _check_float32(weight_h)
    biases, diagonal = reorders.lstm_bias(bias, peephole=peephole)
    weights = RnnWeights(
        None if weight_x is None else input_layer(weight_x, reorders.LSTM),
        input_layer(weight_h, reorders.LSTM),
        biases,
        diagonal,
    )
    inputs, hidden = weight_h.shape[1] if weight_x is None else len(weight_x), len(weight_h)
    spec = RnnSpec(Cell.LSTM, inputs, hidden, direction=direction, peephole=peephole)
    return replace(spec, activations=functions), weights


@paddle("attention_lstm")
def attention_lstm():
    refuse(
        "onernn cannot compute attention over the whole sequence in each step; pass a rule for it"
        " (onernn.Replacing)"
    )


@paddle("rnn")
def rnn(
    Input,
    PreState=(),
    WeightList=(),
    SequenceLength=None,
    *,
    mode=OneOf("RNN_TANH", {mode: mode for mode in reorders.RNN_CELLS}),
    num_layers=1,
    input_size=10,
    hidden_size=100,
    is_bidirec=False,
    dropout_prob=0.0,
    op,
):
    """Runs recurrent layers over a time-major input. The outputs after the end of a sequence are
    zeros.
    """
    if dropout_prob:
        op.note_dropout()
    arrays = [each.array for each in WeightList]
    if others := {array.dtype.name for array in arrays} - {arrays[0].dtype.name}:
        refuse(
            f"its weights: expected one dtype, got {arrays[0].dtype} and {others.pop()}; cast them"
            " and save again"
        )
    if arrays[0].dtype.name not in ("float32", "float64"):
        refuse(
            f"its weights: expected float32 or float64, got {arrays[0].dtype}; cast them and save"
            " again"
        )
    stack = reorders.rnn_weights(arrays, mode, num_layers, 2 if is_bidirec else 1)
    spec = RnnSpec(
        reorders.RNN_CELLS[mode][0],
        input_size,
        hidden_size,
        layers=num_layers,
        direction="bidirectional_concat" if is_bidirec else "left2right",
    )
    layers_of(spec, stack)
    if len(PreState) != len(spec.cell.states):
        refuse(
            f"input PreState: expected {len(spec.cell.states)} states for {spec.cell.name}, got"
            f" {len(PreState)}"
        )
    y, *finals = recurrent_stack(Input.dense, PreState, spec, stack, SequenceLength)
    return {"Out": y, **dict(list_places("State", finals))}


# The rules of convolutions, poolings and related operators. Each rule computes on (N, C, H, W), so
# an NHWC input is transposed.
#
# Slots and defaults come from the OpMaker classes of Paddle 2.6. Formulas were measured with 2.6.2
# and 3.3.1.

_LAST = ("NHWC", "NDHWC", "NLC")
_UNFUSED: dict[str, Any] = {
    **{"use_addto": False, "fuse_relu_before_depthwise_conv": False, "exhaustive_search": False},
    **{"fuse_relu": False, "fuse_residual_connection": False, "fuse_activation": ""},
    **{"fuse_brelu": False, "Scale_in": 1.0, "Scale_in_eltwise": 1.0, "Scale_out": 1.0},
}


def _over_images(x: Any, layout: str, compute: Callable[[Any], Any]) -> Any:
    if x.ragged:
        refuse(f"input {x.slot}: expected images without a LoD")
    return over_channels(x, layout in _LAST, compute)


def _pads(paddings: Sequence[int], algorithm: str, axes: int) -> dict[str, Any]:
    """Returns ONNX's padding attributes. ONNX's ``pads`` lists all starts, then all ends. Paddle's
    ``paddings`` has one number per axis, or a start and an end per axis.
    """
    pads = tuple(paddings) or (0,) * axes
    if algorithm == "SAME":
        return {"auto_pad": "SAME_UPPER"}
    if algorithm == "VALID":
        return {"pads": (0,) * 2 * axes}
    if algorithm != "EXPLICIT" or len(pads) not in (axes, 2 * axes):
        refuse(
            f"attributes padding_algorithm={algorithm!r}, paddings={pads}: expected SAME, VALID, or"
            f" EXPLICIT with {axes} or {2 * axes} paddings"
        )
    return {"pads": (*pads, *pads) if len(pads) == axes else (*pads[::2], *pads[1::2])}


@paddle(
    "conv2d depthwise_conv2d conv3d conv2d_transpose depthwise_conv2d_transpose",
    output_size=(),
    OutputSize="",
    **_UNFUSED,
)
def convolution(
    Input,
    Filter,
    Bias=None,
    *,
    strides=(),
    paddings=(),
    padding_algorithm="EXPLICIT",
    dilations=(),
    groups=1,
    output_padding=(),
    data_format="NCHW",
    op,
):
    """Computes a convolution or a transposed convolution. Refuses ``output_size``; use a larger
    ``output_padding`` instead.
    """
    axes, kind = Input.rank - 2, "Conv"
    windows = {"strides": strides or (1,) * axes, "group": groups}
    windows |= _pads(paddings, padding_algorithm, axes)
    dilated = dilations and "auto_pad" not in windows  # with auto_pad Paddle ignores dilations
    windows["dilations"] = dilations if dilated else (1,) * axes
    if op.at.type.endswith("transpose"):
        if "auto_pad" in windows:
            refuse(
                f"attribute {padding_algorithm=}: expected EXPLICIT or VALID for a transposed"
                " convolution; set paddings"
            )
        kind, windows["output_padding"] = "ConvTranspose", output_padding or (0,) * axes

    def compute(image: Any) -> Any:
        out = getattr(image, kind)(Filter, **windows)
        return out + Bias.reshape(1, -1, *[1] * axes) if Bias else out

    return _over_images(Input, data_format, compute)


_POOLS = OneOf("max", {"max": "max", "avg": "avg"})


@paddle("pool2d pool3d max_pool2d_with_index")
def pool(
    X,
    *,
    ksize=(),
    pooling_type=_POOLS,
    strides=(),
    paddings=(),
    padding_algorithm="EXPLICIT",
    exclusive=True,
    ceil_mode=False,
    global_pooling=False,
    adaptive=False,
    data_format="NCHW",
    op,
):
    """Computes the maximum or mean of each window. A mean includes padding unless ``exclusive``."""
    axes, kernel = X.rank - 2, tuple(ksize)
    pads = _pads(paddings, padding_algorithm, axes)
    windows = {"strides": strides or (1,) * axes, "ceil_mode": int(ceil_mode), **pads}
    whole = global_pooling or adaptive and kernel == (1,) * axes
    if adaptive and not whole:
        kernel = _equal_parts(X.shape[1:-1] if data_format in _LAST else X.shape[2:], kernel)
        windows, exclusive = {"strides": kernel}, True
    elif not whole and pooling_type == "avg" and not exclusive:
        sides = pads.get("pads")
        if ceil_mode or sides is None or any(map(gt, sides[axes:], sides)):
            # Paddle divides by the part of a window that ends at most one start pad after the image
            refuse(
                "attribute exclusive=False: expected True with ceil_mode, SAME pads, or end pads"
                " larger than start pads"
            )
    windows["counts_pads"] = not exclusive

    def compute(image: Any) -> Any:
        if whole:
            return pool_whole(image, pooling_type)
        return pool_windows(image, pooling_type, kernel, **windows)

    return _over_images(X, data_format, compute)


def _equal_parts(sizes: Sequence[int | None], counts: Sequence[int]) -> tuple[int, ...]:
    """Returns the window size of an adaptive pooling along each axis. Raises `UnsupportedError`
    unless windows of equal size fill each axis.
    """
    if len(counts) != len(sizes) or any(
        size is None or part < 1 or size % part for size, part in zip(sizes, counts, strict=True)
    ):
        refuse(
            f"attribute adaptive=True: expected parts of equal known sizes, or one part, got sizes"
            f" {tuple(sizes)} and parts {tuple(counts)}; export the model with a fixed image size"
        )
    return tuple((size or 0) // part for size, part in zip(sizes, counts, strict=True))


def _affine(X: Any, Scale: Any, Bias: Any) -> tuple[Any, Any]:
    channels = X.shape[1]
    if channels is None and not (Scale and Bias):
        refuse("inputs Scale, Bias: expected both, because the number of channels is not known")
    return Scale or X.fill((channels,), 1), Bias or X.fill((channels,), 0)


@paddle("instance_norm")
def instance_norm(X, Scale=None, Bias=None, *, epsilon=1e-5):
    return X.dense.InstanceNormalization(*_affine(X, Scale, Bias), epsilon=epsilon)


@paddle("group_norm")
def group_norm(X, Scale=None, Bias=None, *, groups=1, epsilon=1e-5, data_layout="NCHW"):
    if data_layout in _LAST:
        refuse(f"attribute {data_layout=}: expected 'NCHW'; transpose the input to (N, C, ...)")
    affine = _affine(X, Scale, Bias)
    return X.dense.GroupNormalization(*affine, num_groups=groups, epsilon=epsilon)


_LAYOUTS = {layout: layout for layout in ("NCHW", "AnyLayout", *_LAST)}


@paddle("batch_norm", trainable_statistics=False, fuse_with_relu=False)
def batch_norm(
    X,
    Scale,
    Bias,
    Mean,
    Variance,
    *,
    is_test=False,
    use_global_stats=False,
    momentum=0.9,
    epsilon=1e-5,
    data_layout=OneOf("NCHW", _LAYOUTS),
):
    """Normalizes by the mean and variance from training. Returns both unchanged, because a layer
    that is called twice reads them again.
    """
    if not (is_test or use_global_stats):
        refuse(
            "attributes is_test=False, use_global_stats=False: expected one True, or it normalizes"
            " by the batch; call eval() before you save the model"
        )
    numbers = Scale, Bias, Mean, Variance
    layout = data_layout if X.rank > 2 else "NCHW"
    out = over_channels(
        X, layout in _LAST, lambda x: x.BatchNormalization(*numbers, epsilon=epsilon)
    )
    return {"Y": out, "MeanOut": Mean.name, "VarianceOut": Variance.name}


@paddle("norm")
def norm(X, *, axis, epsilon=1e-10):
    """Returns x / sqrt(sum(x * x) + epsilon), with the sum along an axis."""
    x = X.dense
    return x / ((x * x).ReduceSum([axis], keepdims=1) + epsilon).Sqrt()


@paddle("im2sequence", out_stride=(1, 1), Y="")
def im2sequence(X, *, kernels=(), strides=(1, 1), paddings=(0, 0, 0, 0)):
    """Returns each image as a sequence with one step per window: (N * windows, C * kernel size)."""
    if X.ragged:
        refuse("input X: expected images without a LoD")
    steps, kernel = tuple(strides), tuple(kernels)
    if [len(each) for each in (kernel, steps, paddings)] != [2, 2, 4] or min(*kernel, *steps) < 1:
        refuse(
            f"attributes kernels={kernel}, strides={steps}, paddings={tuple(paddings)}: expected"
            " two kernel sizes and two strides of 1 or more, and four paddings"
        )
    image = X.Pad(paddings, X.scalar(0), [2, 3])
    counts = []
    for axis, step, size in zip((2, 4), steps, kernel, strict=True):
        count = (image.Shape(start=axis, end=axis + 1).Sub([size])).Div([step]).Add([1])
        begins = count_up(count.squeeze(0)).Mul([step])
        places = begins.unsqueeze(1).Add(np.arange(size))
        image = image.Gather(places, axis=axis, non_negative=True)  # (..., windows, size, ...)
        counts.append(count)
    width = X.Shape(start=1, end=2).Mul([math.prod(kernel)])
    sizes = width.constant(np.asarray([-1])).join(width)
    rows = image.transpose(0, 2, 4, 1, 3, 5).Reshape(sizes)
    ends = X.Shape(start=0, end=1).Add([1]).squeeze(0)
    offsets = count_up(ends).Mul(counts[0]).Mul(counts[1])
    return rows.SequenceReset(offsets)


@paddle("prelu")
def prelu(X, Alpha, *, mode="all", data_format="NCHW"):
    if mode not in ("all", "channel"):
        refuse(f"attribute {mode=}: expected all or channel")
    later = 0 if data_format in _LAST else X.rank - 2
    return X.PRelu(Alpha.reshape(-1, *[1] * later) if mode == "channel" else Alpha.reshape(1))


def _pad(X: Any, first: int, pads: Sequence[int], value: float, mode: str = "constant") -> Any:
    """Pads the axes from ``first`` on. ``pads`` lists the start and the end of each axis."""
    axes = range(first, first + len(pads) // 2)
    mode = {"edge": "replicate"}.get(mode, mode)
    if mode not in PAD_MODES or len(pads) % 2 or len(axes) > X.rank - first:
        refuse(
            f"attributes mode={mode!r}, paddings={pads}: expected one of {', '.join(PAD_MODES)},"
            f" and two paddings per axis for at most {X.rank - first} axes"
        )
    if 0 in axes and X.ragged and any(pads[:2]):
        refuse(f"attribute paddings={pads}: expected none on axis 0 of an input with a LoD")
    ends = [*pads[::2], *pads[1::2]]
    return X.dense.Pad(ends, X.scalar(value), list(axes), mode=PAD_MODES[mode])


@paddle("pad")
def pad(X, *, paddings=(0,), pad_value=0.0):
    return _pad(X, 0, paddings, pad_value)


@paddle("pad2d", Paddings="")
def pad2d(X, *, paddings=(0,), pad_value=0.0, mode="constant", data_format="NCHW"):
    return _pad(X, 1 if data_format in _LAST else 2, paddings, pad_value, mode)


@paddle("pad3d", Paddings="")
def pad3d(X, *, paddings=(0,), value=0.0, mode="constant", data_format="NCHW"):
    """Pads the image axes. ``paddings`` lists the last axis first."""
    places = reversed(range(0, len(paddings), 2))
    pads = [number for at in places for number in paddings[at : at + 2]]
    return _pad(X, 1 if data_format in _LAST else 2, pads, value, mode)


_METHODS = {method: method for method in ("nearest", "bilinear", "linear")}


@paddle(
    "nearest_interp_v2 bilinear_interp_v2 linear_interp_v2 nearest_interp bilinear_interp",
    OutSize="",
    SizeTensor="",
    Scale="",
)
def interpolate(
    X,
    *,
    interp_method=OneOf("bilinear", _METHODS),
    align_corners=True,
    align_mode=1,
    out_d=-1,
    out_h=-1,
    out_w=-1,
    data_layout="NCHW",
    op,
):
    """Resizes images. Like Paddle's kernel, "nearest" rounds coordinates down. ``align_mode`` 1 is
    ONNX's "asymmetric", 0 is "half_pixel".
    """
    axes, scale = X.rank - 2, ()
    sizes = [out_d, out_h, out_w][-axes:]
    if op.at.type.endswith("v2"):
        scale = op.attribute("scale", ())
    else:  # Paddle uses another factor if it rounds the output size
        op.only(scale=0.0)
    if interp_method == "nearest":
        attributes = NEAREST
        if align_corners:
            refuse("attribute align_corners=True: expected False for interp_method='nearest'")
    else:
        place = "align_corners" if align_corners else "asymmetric" if align_mode else "half_pixel"
        attributes = {"coordinate_transformation_mode": place, "mode": "linear"}
    if not scale and min(sizes) < 1:
        refuse(f"attributes out_d, out_h, out_w: expected sizes of 1 or more, got {sizes}")

    def compute(image: Any) -> Any:
        if scale:
            by = np.array([1, 1, *(scale * axes if len(scale) == 1 else scale)], np.float32)
            return image.Resize(None, by, **attributes)
        shape = image.Shape(start=0, end=2).join(sizes)
        return image.Resize(None, None, shape, **attributes)

    return _over_images(X, data_layout, compute)


@paddle("unstack unbind")
def unstack(X, *, axis=0, num=0, op):
    """Returns the slices of X along an axis, without that axis."""
    count = len(op.outputs.get("Y") or op.outputs.get("Out", ()))
    parts = X.dense.Split(axis=axis, outputs=count)
    return tuple(part.squeeze(axis % X.rank) for part in parts)
