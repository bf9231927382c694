"""Parses MXNet's operator attributes, in the same way as dmlc's parameter parsers."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from os.path import commonprefix

from onernn.ir.errors import UnsupportedError
from onernn.reorders import mxnet


def cell_of(weights: Collection[str]) -> str:
    """Returns the common prefix of the names of a cell's weights, up to their last underscore."""
    return commonprefix([*weights]).rpartition("_")[0]


INERT = frozenset(
    """
    num_args workspace cudnn_off cudnn_tune cudnn_algo_verbose cudnn_algo_fwd cudnn_algo_bwd_data
    cudnn_algo_bwd_filter sparse_grad ctx forward_stype name momentum grad_scale out_grad
    normalization ignore_label use_ignore smooth_alpha valid_thresh min_calib_range max_calib_range
    """.split()
)
"""Attributes that cannot change the result of inference on CPU."""

TRAINING = re.compile(
    r"__.*__|(.*_)?(ctx_group|lr_mult|wd_mult|force_mirroring|mirror_stage|profiler_scope)"
)
"""The names of attributes that users and initializers add: kHiddenKeys of
src/nnvm/legacy_json_util.cc.
"""

GATES = frozenset("Activation relu sigmoid tanh _npx_relu _npx_sigmoid _npi_tanh".split())
"""Operators that compute the gates of cells."""

_FLAGS = {"True": True, "true": True, "1": True, "False": False, "false": False, "0": False}


def flag(text: str) -> bool:
    if text not in _FLAGS:
        raise UnsupportedError(f"expected True or False, got {text!r}")
    return _FLAGS[text]


def is_set(attributes: Mapping[str, str], name: str) -> bool:
    """Returns the bool attribute ``name`` of an operator, False if it is absent."""
    text = attributes.get(name, "None")
    return text != "None" and flag(text)


def integer(text: str) -> int:
    """Returns the integer in a text such as "3", or "3L", which Python 2 wrote."""
    if not re.fullmatch(r"\s*[+-]?\d{1,18}L?\s*", text):
        raise UnsupportedError(f"expected an integer, got {text!r}")
    return int(text.strip().rstrip("L"))


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UnsupportedError(f"expected a number, got {text!r}") from None


def numbers(text: str) -> tuple[int | None, ...]:
    """Returns the integers in a list such as "(2, 0, 48)", "[1]", "-1" or "(None, 3)"."""
    inner = re.fullmatch(r"\s*(?:\((.*)\)|\[(.*)\]|([^()\[\]]*))\s*", text)
    if inner is None:
        raise UnsupportedError(f"expected a list of integers, got {text!r}")
    items = next((group for group in inner.groups() if group is not None), "").split(",")
    items = [item.strip() for item in items]
    if items[-1] == "":
        items.pop()
    return tuple(None if item == "None" else integer(item) for item in items)


def sizes(text: str) -> tuple[int, ...]:
    result = numbers(text)
    if None in result:
        raise UnsupportedError(f"expected integers, got {text!r}")
    return tuple(size for size in result if size is not None)


def read_shape(text: str, *, np_shape: bool) -> tuple[int | None, ...] | None:
    """Returns the sizes in a variable's ``__shape__``, None for each unknown size. Returns None if
    the number of axes is unknown.
    """
    result = sizes(text)
    if not result and not np_shape:
        return None
    return tuple(None if size == -1 or not (size or np_shape) else size for size in result)


DTYPES = dict(enumerate("float32 float64 float16 uint8 int32 int8 int64 bool".split()))
DTYPES[12] = "bfloat16"


def read_dtype(text: str) -> str | None:
    """Returns a variable's dtype from the integer ``__dtype__``, which is -1 if it is unknown."""
    return DTYPES.get(integer(text))


def finite(value: float) -> float:
    if not math.isfinite(value):
        raise UnsupportedError(f"expected a finite number, got {value}")
    return value


# The attributes of the recurrent operator.


def stack_of(attributes: Mapping[str, str]) -> mxnet.Stack:
    """Returns the layout of an RNN operator's parameters. Raises `UnsupportedError` for invalid
    attributes.
    """
    mode = attributes.get("mode", "")
    if mode not in mxnet.CELLS:
        raise UnsupportedError(f"attribute mode={mode!r}: expected one of {', '.join(mxnet.CELLS)}")

    def whole(name: str) -> int:
        try:
            return integer(attributes.get(name, "0"))
        except UnsupportedError as error:
            raise UnsupportedError(f"attribute {name}: {error}") from None

    projected = attributes.get("projection_size", "None") != "None"
    stack = mxnet.Stack(
        mode,
        whole("state_size"),
        whole("num_layers"),
        1 + is_set(attributes, "bidirectional"),
        whole("projection_size") if projected else None,
    )
    if projected and mode != "lstm":
        raise UnsupportedError(
            f"attribute projection_size={stack.projection}: expected None for mode={mode!r}; only"
            " mode='lstm' has a projection"
        )
    sizes = (stack.hidden, stack.recurrent)
    if not (all(0 < size < 2**31 for size in sizes) and 0 < stack.layers < 2**10):
        raise UnsupportedError(
            f"attributes state_size={stack.hidden}, num_layers={stack.layers},"
            f" projection_size={stack.projection}: expected sizes from 1 to 2147483647,"
            " and 1 to 1023 layers"
        )
    return stack


Shape = tuple[int | None, ...]


def input_shapes(
    stack: mxnet.Stack, time: int | None, batch: int | None, width: int | None
) -> dict[str, Shape]:
    """Returns the shapes of an RNN operator's inputs by their names, ``sequence_length`` last."""
    rows = stack.layers * stack.directions
    shapes: dict[str, Shape] = {
        "data": (time, batch, width),
        "parameters": (stack.elements(width) if width else None,),
        "state": (rows, batch, stack.recurrent),
    }
    if stack.mode == "lstm":
        shapes["state_cell"] = (rows, batch, stack.hidden)
    return {**shapes, "sequence_length": (batch,)}


CLIPS = ("lstm_state_clip_min", "lstm_state_clip_max", "lstm_state_clip_nan")


def cell_clip(attributes: Mapping[str, str]) -> tuple[float, float] | None:
    """Returns the range to which an LSTM's cell state is clipped, None without clipping."""
    low, high = (attributes.get(name, "None") for name in CLIPS[:2])
    if (low == "None") != (high == "None"):
        raise UnsupportedError(
            f"attributes lstm_state_clip_min={low}, lstm_state_clip_max={high}: expected two"
            " numbers, or None for both"
        )
    if low == "None" or attributes["mode"] != "lstm":
        return None
    least, most = number(low), number(high)
    if not least <= most:
        raise UnsupportedError(
            f"attributes lstm_state_clip_min={least:g}, lstm_state_clip_max={most:g}: expected a"
            " minimum that is not above the maximum"
        )
    return least, most
