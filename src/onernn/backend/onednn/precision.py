"""The data types that layers may have, and the scales of u8. Importing this module loads no
library.

The tables have one row for each data type of x, and follow oneDNN's guide and the oneAPI
specification. Primitives, error messages, the checks of `onernn doctor --full` and a table of the
README use them. The tables are Python code, because every process that runs a layer reads them, and
importing a TOML parser takes longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, TypedDict

import numpy as np

from onernn.ir.errors import ShapeError, UnsupportedError, did_you_mean
from onernn.ir.records import NamedTuple
from onernn.ir.rnn import Limits
from onernn.ir.spec import Cell, RnnSpec
from onernn.ir.weights import NO_SCALES, UNIT, LayerPrecision, PartScales, Scale


class Row(NamedTuple):
    """A row of a table of data types: the data type of each argument of a layer. Fields such as
    ``projection`` express the notes of oneDNN's guide.

    ``peephole`` and ``projection``: whether an LSTM may have one. ``recurrent``: the type of h.
    ``cell_state``: the type of c.
    """

    propagation: Literal["forward and backward", "forward", "forward inference"]
    cells: Literal["all"] | list[str]
    peephole: bool
    projection: bool
    data: str
    recurrent: str
    cell_state: str
    weights: str
    bias: str
    output: list[str]

    def has(self, cell: Cell, *, peephole: bool, projection: bool, training: bool) -> bool:
        """Returns whether the row covers this kind of layer; ``training``: with a backward pass."""
        return (
            (self.cells == "all" or cell.name in self.cells)
            and (self.peephole or not peephole)
            and (self.projection or not projection)
            and (self.propagation == "forward and backward" or not training)
        )


_F32 = Row(
    propagation="forward and backward",
    cells="all",
    peephole=True,
    projection=True,
    data="f32",
    recurrent="f32",
    cell_state="f32",
    weights="f32",
    bias="f32",
    output=["f32"],
)
_BF16 = _F32._replace(
    projection=False, data="bf16", recurrent="bf16", weights="bf16", output=["bf16"]
)
_U8 = _F32._replace(
    propagation="forward inference",
    cells=["LSTM", "GRU"],
    peephole=False,
    data="u8",
    recurrent="u8",
    weights="s8",
    output=["u8", "f32"],
)
GUIDE = {
    "f32": _F32,
    "bf16": _BF16,
    "f16": _BF16._replace(
        propagation="forward",
        data="f16",
        recurrent="f16",
        cell_state="f16",
        weights="f16",
        bias="f16",
        output=["f16"],
    ),
    "u8": _U8,
    "s8": _U8._replace(cells=["LSTM"], data="s8", recurrent="s8", output=["s8", "f32"]),
}
"""oneDNN's RNN developer guide, "Data Type Support"; its notes (1) to (3) are fields of `Row`."""
SPECIFICATION = {
    "f32": _F32,
    "bf16": _BF16,
    "f16": GUIDE["f16"]._replace(cell_state="f32"),
    "u8": _U8._replace(cells=["LSTM"], projection=False),
}
"""The oneAPI 1.3 specification, RNN, "Data Types Support", with the notes of its table as fields of
`Row`.
"""


class Ours(NamedTuple):
    """How far onernn supports the row ``row`` of the guide's table.

    ``output``: the type of y that the primitive writes; callers always get float32. ``since``: the
    first libdnnl version that has the row. ``ran``: the instruction sets on which `onernn doctor`
    compared the row with the reference. If it is empty, no machine has run the row. ``refused``:
    why onernn does not support the row.
    """

    row: str
    output: str = ""
    since: str = ""
    ran: Sequence[str] = ()
    refused: str = ""

    def is_in(self, version: str) -> bool:
        """Returns whether this version of libdnnl supports the row."""
        first, this = (tuple(map(int, v.split(".")[:2])) for v in (self.since, version))
        return this >= first


OURS = {
    "f32": Ours(
        row="f32",
        output="f32",
        since="3.2",
        ran=["avx2", "avx512_core", "avx512_core_vnni", "avx512_core_bf16"],
    ),
    "bf16": Ours(
        row="bf16",
        output="bf16",
        since="3.2",
        ran=["avx512_core", "avx512_core_vnni", "avx512_core_bf16"],
    ),
    "f16": Ours(row="f16", output="f16", since="3.6"),
    "u8": Ours(row="u8", output="f32", since="3.2", ran=["avx512_core_vnni", "avx512_core_bf16"]),
    "s8": Ours(
        row="s8",
        refused="negative states of s8 data are cut to 0 in several cells; u8 with a shift holds"
        " them",
    ),
}


class Precision(NamedTuple):
    """The data types of a primitive's arguments; the comment of each field lists the arguments of
    this type.
    """

    data: str  # src_layer, src_iter, dst_iter, attention
    weights: str
    bias: str
    cell: str  # src_iter_c, dst_iter_c
    out: str  # dst_layer


PRECISIONS = {
    dtype: Precision(row.data, row.weights, row.bias, row.cell_state, support.output)
    for dtype, support, row in (
        (dtype, support, GUIDE[support.row]) for dtype, support in OURS.items()
    )
    if not support.refused
}
"""The values of ``dtype`` in `prepare` that oneDNN supports."""

KERNELS_ONLY = ("int8-dynamic", "int8-weights")
"""The values of ``dtype`` that only the kernels support (design/0034)."""
DTYPES = (*PRECISIONS, *KERNELS_ONLY)
"""All values of ``dtype``."""


def unknown(dtype: str) -> str:
    """Returns the error message for a ``dtype`` that a backend does not support."""
    if dtype in KERNELS_ONLY:
        return f"oneDNN has no {dtype}; use backend='auto' or 'kernels'"
    why = OURS[dtype].refused if dtype in OURS else ""
    why = f"; {why}" if why else did_you_mean(dtype, DTYPES)
    return f"dtype {dtype!r}: expected one of {', '.join(DTYPES)}{why}"


class Quantization(TypedDict, total=False):
    """The options of `prepare` for u8: see `U8Options`.

    ``per_channel``: if False, each matrix has one scale. ``scales``: the scales of each layer and
    direction, in the order of `ir.rnn.parts`; they replace all other scales. ``weights_scales`` and
    ``projection_scales``: see `column_scales`.
    """

    data_scale: float | None
    data_shift: float
    per_channel: bool
    scales: Sequence[PartScales]
    weights_scales: Any
    projection_scales: Any


class U8Options:
    """The quantization of x and states in u8: q = x * data_scale + data_shift.

    If ``data_scale`` is None, x is divided by 2**k. The number k is chosen for each batch so that x
    / 2**k is in [-1, 1]. The input weights are multiplied by 2**k before they are rounded, so that
    the states still use all 256 codes. ``scales``: the scales of each layer and direction; () if
    none are passed. ``is_whole``: whether the caller passed ``scales``, which replace
    ``data_scale``. If not, ``scales`` contains only the scales of weights.
    """

    def __init__(
        self,
        data_scale: float | None,
        data_shift: float,
        per_channel: bool,
        scales: Sequence[PartScales] = (),
    ) -> None:
        if data_scale is not None and not 0 < data_scale < math.inf:
            raise ValueError(f"data_scale: expected a positive number, got {data_scale}")
        if not 0 <= data_shift <= 255:
            raise ValueError(f"data_shift: expected 0 to 255, got {data_shift}")
        self.per_channel, self.scales, self.is_whole = per_channel, tuple(scales), False
        self.fixed = None if data_scale is None else Scale(data_scale, data_shift)

    @classmethod
    def of(
        cls,
        spec: RnnSpec,
        dtype: str,
        *,
        data_scale: float | None = None,
        data_shift: float = UNIT.shift,
        per_channel: bool = True,
        scales: Sequence[PartScales] = (),
        weights_scales: Any = None,
        projection_scales: Any = None,
    ) -> U8Options | None:
        """Returns the options for u8, default options for int8-dynamic, and None for other types.

        Raises `UnsupportedError` for u8 options if ``dtype`` is not u8, `ValueError` for a setting
        that is passed twice, and `ShapeError` if the number of scales does not match the layer's
        gates and channels.
        """
        of_weights = {"weights_scales": weights_scales, "projection_scales": projection_scales}
        if dtype != "u8":
            is_set = {"scales": bool(scales)}
            is_set |= {name: scale is not None for name, scale in of_weights.items()}
            if dtype in KERNELS_ONLY:  # kernels of these dtypes compute the scales from the values
                is_set |= {"data_scale": data_scale is not None, "per_channel": not per_channel}
            for name, is_given in is_set.items():
                if is_given:
                    raise UnsupportedError(f"{name}: expected only with dtype='u8', got {dtype!r}")
            return cls(None, UNIT.shift, True) if dtype == "int8-dynamic" else None
        for name, scale in of_weights.items():
            if not per_channel and np.size(scale) > 1:
                got = np.size(scale)
                raise ValueError(f"{name}: expected one value for per_channel=False, got {got}")
        for name, scale in ({"data_scale": data_scale} | of_weights).items():
            if scales and scale is not None:
                raise ValueError(f"{name}: expected either it or scales=, got both")
        LayerPrecision("u8", tuple(scales)).check(spec)
        parts = scales or column_scales(spec, weights_scales, projection_scales)
        result = cls(data_scale, data_shift, per_channel, parts)
        result.is_whole = bool(scales)
        return result

    def part(self, index: int, directions: int) -> PartScales:
        """Returns the scales of a layer and direction; ``data_scale`` applies to x of the first
        layer.
        """
        scales = self.scales[index] if self.scales else NO_SCALES
        return replace(scales, data=self.fixed) if self.fixed and index < directions else scales

    def with_one_scale(self, index: int) -> U8Options:
        """Returns the options of one layer and direction, with one scale for x and h."""
        scales = self.scales[index] if self.scales else NO_SCALES
        fixed = self.fixed or scales.data
        scale, shift = fixed or (None, UNIT.shift)
        return U8Options(scale, shift, self.per_channel, (scales,))

    @property
    def packs(self) -> Any:
        """The options on which the kernels' packed weights depend, as a dictionary key."""
        return self.per_channel, self.scales, self.fixed


def has_one_scale(part: PartScales) -> bool:
    """Returns whether x and h have equal scales, and the weights of x and h have equal column
    scales.

    oneDNN requires both.
    """
    of_x, of_h = part.layer, part.iter
    same = of_x is of_h or of_x is not None and of_h is not None and np.array_equal(of_x, of_h)
    return same and part.data == part.state


def is_onednns(part: PartScales) -> bool:
    """Returns whether oneDNN can use these scales in u8. In oneDNN, states and outputs are u8 and
    saturate.
    """
    return part.layer is not None and has_one_scale(part)


def column_scales(spec: RnnSpec, weights: Any, projection: Any) -> list[PartScales]:
    """Returns the column scales of int8 weights for every layer and direction; [] if there are
    none.

    ``weights``: one number; (G, O) or (G*O,) in the gate order of the spec, for all layers and
    directions; or (L, D, G, O). ``projection``: one number, or numbers of shape (R,) or (L, D, R).
    The arguments are oneDNN's rnn_weights_qparams and rnn_weights_projection_qparams, with one
    scale (mask 0) or one per output channel.
    """
    if weights is None and projection is None:
        return []
    parts = (spec.layers, spec.directions)
    if projection is not None and spec.projection_size is None:
        raise ShapeError("projection_scales: expected None for a layer without projection")
    of = {
        "weights_scales": (weights, (spec.gates, spec.hidden_size)),
        "projection_scales": (projection, (spec.projection_size or 0,)),
    }
    result = []
    for name, (factors, columns) in of.items():
        if factors is None:
            result.append([None] * math.prod(parts))
            continue
        array, count = np.asarray(factors, np.float32), math.prod(columns)
        if array.shape not in ((), (1,), (count,), columns, (*parts, *columns)):
            raise ShapeError(
                f"{name}: expected one value, {count} or {columns} values, or"
                f" {(*parts, *columns)}, one for each layer, direction, gate and channel;"
                f" got {array.shape}"
            )
        if array.shape == (count,):
            array = array.reshape(columns)
        whole = np.broadcast_to(array, (*parts, *columns))
        result.append(list(whole.reshape(-1, *columns)))
    return [PartScales(layer=w, iter=w, projection=p) for w, p in zip(*result, strict=True)]


# The layers that oneDNN can run, as tables that need no loaded library.

CREATORS = {
    Cell.RNN_TANH: "vanilla_rnn",
    Cell.RNN_RELU: "vanilla_rnn",
    Cell.RNN_SIGMOID: "vanilla_rnn",
    Cell.LSTM: "lstm",
    Cell.GRU: "gru",
    Cell.LBR_GRU: "lbr_gru",
    Cell.AUGRU: "augru",
    Cell.LBR_AUGRU: "lbr_augru",
}
"""oneDNN's name of each cell that it has."""

FLOAT = Limits(
    who="oneDNN",
    cells=tuple(CREATORS),
    functions=(),
    replaces=False,
    gate_clip=False,
    cell_clip=False,
    input_forget=False,
    dtypes=("float32",),
)
U8 = replace(
    FLOAT,
    kind="u8",
    cells=tuple(Cell[name] for name in _U8.cells),
    peephole=_U8.peephole,
    projection=_U8.projection,
    projected=False,
)


# Faults of oneDNN: kernels that report success with wrong results. onernn does not use them. Each
# one was measured on 3.2.0 and 3.6.2 against the float64 reference (design/0013). `onernn doctor
# --full` looks for more faults on the current machine.


class Wrong(NamedTuple):
    """A fault of oneDNN. ``where(spec, dtype)`` returns whether it affects this layer."""

    reason: str
    where: Callable[[RnnSpec, str], bool]


OWN_LAYOUTS = (
    # The kernel misreads the layout that it chose for the projection.
    Wrong(
        "narrow projection",
        lambda spec, dtype: spec.projection_size is not None and dtype in ("bf16", "f16"),
    ),
    # The brgemm kernel uses the attention of its first block of rows for every block, so the
    # results are wrong if a batch has two blocks. The number of blocks depends on N, O, threads and
    # instruction set (two with AVX-512, O up to 32 and N = 16, 20, 24, 25, 28, 30, 32, 35, ...).
    # 3.2 has the fault for AUGRU in bf16, 3.6 also for LBR_AUGRU in f32. The kernel of plain
    # layouts is always right.
    Wrong("attention of another sentence", lambda spec, _: spec.cell.has_attention),
)
"""Faults that occur with layouts that the primitive chooses, but not with plain layouts."""

GRADIENTS = (
    Wrong(  # in 3.2, 3.6 and 3.13
        "has wrong gradients unless attention is 0", lambda spec, _: spec.cell.has_attention
    ),
    # oneDNN stores the gradient of the projected state in the rows for the gradients of the four
    # gates. The length of a row is rounded up to 16. A longer gradient overwrites the next row.
    Wrong(
        "has wrong gradients where the projection is wider than the gates",
        lambda spec, _: spec.recurrent_size > 4 * spec.hidden_size,
    ),
)
"""Faults of the backward pass; error messages have the cell's name before each reason."""


def reason(table: tuple[Wrong, ...], spec: RnnSpec, dtype: str) -> str:
    """Returns the reason of the first fault that a layer has, or "" if it has none."""
    return next((wrong.reason for wrong in table if wrong.where(spec, dtype)), "")
