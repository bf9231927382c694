"""Writes convolutions, poolings, norms, padding and resizing as Paddle's operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onernn.adapters.paddle.writer import ALL, Variable, Writing, integers, rule
from onernn.ir.errors import UnsupportedError
from onernn.ops.windows import Window, windows_of

# Convolutions and poolings over (N, C, ...).
#
# Paddle has them for two and three axes, so a sequence (N, C, T) becomes an image of one row. Slots
# and attributes come from the OpMaker classes of Paddle 2.6, and are the same in 3.x.


def _as_image(x: Variable) -> Variable:
    """Returns (N, C, T) as (N, C, 1, T), and other shapes unchanged."""
    if x.rank not in (3, 4, 5):
        raise UnsupportedError(f"expected windows over one to three axes, got {x.rank - 2}")
    if x.rank > 3:
        return x
    return x.unsqueeze2(axes=[2]) if x.known is None else x.w.constant(x.known[:, :, None])


def _as_before(y: Variable, x: Variable) -> Variable:
    return y.squeeze2(axes=[2]) if x.rank == 3 else y


def _windows(attrs: Any, kernel: Sequence[int], sizes: Sequence[int | None]) -> dict[str, Any]:
    """Returns Paddle's attributes (ksize, strides, ...) for windows over axes of ``sizes``."""
    windows, algorithm = windows_of(attrs, kernel), "EXPLICIT"
    if windows[0].same and None not in sizes:
        windows = [window.around(size or 0) for window, size in zip(windows, sizes, strict=True)]
    elif windows[0].same and all(window.stride == 1 for window in windows):
        windows = [window.around(1) for window in windows]  # at stride 1, pads fit any size
    elif windows[0].same:
        if attrs.auto_pad == "SAME_LOWER" or any(window.dilation > 1 for window in windows):
            raise UnsupportedError(
                f"attributes auto_pad={attrs.auto_pad}, dilations={attrs.dilations}: expected sizes"
                " that are known before a run; set pads"
            )
        algorithm = "SAME"
    if len(windows) == 1:  # a sequence is an image of one row
        windows = [Window(1, 1, 1, 0, 0), *windows]
    return {
        "ksize": [window.size for window in windows],
        "strides": [window.stride for window in windows],
        "dilations": [window.dilation for window in windows],
        "paddings": [added for window in windows for added in (window.before, window.after)],
        "padding_algorithm": algorithm,
        "data_format": "NCDHW" if len(windows) == 3 else "NCHW",
    }


def _add_bias(y: Variable, bias: Variable | None) -> Variable:
    if bias is None:
        return y
    shape = (1, -1, *[1] * (y.rank - 2))
    return y + (
        bias.reshape(*shape) if bias.known is None else y.w.constant(bias.known.reshape(shape))
    )


@rule("Conv")
def conv(x, weights, bias=None, *, auto_pad, dilations, pads, strides, kernel_shape, group, w):
    kernel = _kernel(weights)
    windows = _windows(w.node.attrs, kernel, x.sizes[2:])
    del windows["ksize"]
    kind = "conv3d" if len(kernel) == 3 else "conv2d"
    out = w.emit(kind, _as_image(x.dense), Filter=_as_image(weights), groups=group, **windows)
    return _add_bias(_as_before(out, x), bias)


@rule("ConvTranspose")
def conv_transpose(
    x,
    weights,
    bias=None,
    *,
    auto_pad,
    dilations,
    pads,
    strides,
    kernel_shape,
    group,
    output_padding,
    output_shape,
    w,
):
    kernel = _kernel(weights)
    if output_shape or auto_pad not in ("NOTSET", "VALID"):
        raise UnsupportedError(f"attributes {auto_pad=}, {output_shape=}: expected pads instead")
    if len(kernel) == 3:
        raise UnsupportedError("expected a transposed convolution over one or two axes, got three")
    windows = _windows(w.node.attrs, kernel, x.sizes[2:])
    del windows["ksize"]
    more = tuple(output_padding or (0,) * len(kernel))
    windows["output_padding"] = (0,) * (2 - len(more)) + more
    out = w.emit(
        "conv2d_transpose",
        _as_image(x.dense),
        Filter=_as_image(weights),
        groups=group,
        output_size=[],
        **windows,
    )
    return _add_bias(_as_before(out, x), bias)


def _kernel(weights: Variable) -> list[int]:
    if None in weights.sizes:
        raise UnsupportedError(f"weights {weights.type}: expected sizes known before a run")
    return [size or 0 for size in weights.sizes[2:]]


def _pool(x: Variable, w: Writing, **more: Any) -> Variable:
    attrs = w.node.attrs
    windows = _windows(attrs, attrs.kernel_shape, x.sizes[2:])
    if set(windows.pop("dilations")) != {1}:
        raise UnsupportedError(
            f"attribute dilations={attrs.dilations}: expected 1, because Paddle's pools have none"
        )
    whole = {"global_pooling": False, "adaptive": False, "ceil_mode": bool(attrs.ceil_mode)}
    kind = "pool3d" if len(attrs.kernel_shape) == 3 else "pool2d"
    return _as_before(w.emit(kind, _as_image(x.dense), **windows, **whole, **more), x)


@rule("MaxPool")
def max_pool(x, *, auto_pad, dilations, pads, strides, kernel_shape, ceil_mode, storage_order, w):
    if any(map(w.graph.is_read, w.node.outputs[1:])):
        raise UnsupportedError("output Indices: expected that nothing reads it")
    return _pool(x, w, pooling_type="max", exclusive=True)


@rule("AveragePool")
def average_pool(
    x, *, auto_pad, dilations, pads, strides, kernel_shape, ceil_mode, count_include_pad, w
):
    pads_count = count_include_pad and (any(pads or ()) or auto_pad.startswith("SAME"))
    return _pool(x, w, pooling_type="avg", exclusive=not pads_count)


@rule("GlobalMaxPool GlobalAveragePool")
def pool_whole(x, *, w):
    kind = "reduce_max" if w.node.op == "GlobalMaxPool" else "reduce_mean"
    return w.emit(kind, x.dense, dim=list(range(2, x.rank)), keep_dim=True, reduce_all=False)


# Norms.


@rule("BatchNormalization")
def batch_norm(x, *numbers, epsilon, momentum, w):
    """Writes batch_norm with its own copies of the parameters, because it assigns two of them."""
    names = ("Scale", "Bias", "Mean", "Variance")
    own = {
        slot: w.constant(each.array, f"{w.node.outputs[0]}.{slot}")
        for slot, each in zip(names, numbers, strict=True)
    }
    outputs = {"Y": 1, "SavedMean": 1, "SavedVariance": 1}
    outputs |= {"MeanOut": own["Mean"], "VarianceOut": own["Variance"]}
    return w.emit_all(
        "batch_norm",
        x,
        outputs,
        **own,
        is_test=True,
        use_global_stats=True,
        trainable_statistics=False,
        momentum=0.9,
        data_layout="NCHW",
        epsilon=float(epsilon),
    )["Y"]


@rule("InstanceNormalization")
def instance_norm(x, scale, bias, *, epsilon):
    return x.dense.instance_norm(Scale=scale, Bias=bias, epsilon=float(epsilon))


@rule("GroupNormalization")
def group_norm(x, scale, bias, *, epsilon, num_groups, stash_type):
    return x.dense.group_norm(
        Scale=scale, Bias=bias, epsilon=float(epsilon), groups=num_groups, data_layout="NCHW"
    )


# Padding and resizing.

_MODES = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}


@rule("Pad")
def pad(x, pads, value=None, axes=None, *, mode, w):
    """Writes a padding. Negative pads are written as a slice first.

    For modes other than constant, Paddle pads only the last three of five axes.
    """
    x, chosen = x.dense, [axis % x.rank for axis in integers(axes)] if axes else [*range(x.rank)]
    ends, around = integers(pads), [[0, 0] for _ in range(x.rank)]
    for at, axis in enumerate(chosen):
        around[axis] = [ends[at], ends[at + len(chosen)]]
    cuts = {
        axis: (-min(low, 0), min(high, 0) or ALL)
        for axis, (low, high) in enumerate(around)
        if min(low, high) < 0
    }
    x = x.take(cuts) if cuts else x
    added = [[max(end, 0) for end in each] for each in around]
    if not any(map(any, added)):
        return x.copy()
    if mode == "constant":
        number = 0.0 if value is None else float(value.array.reshape(()))
        return x.pad(paddings=[end for each in added for end in each], pad_value=number)
    first = min(2, *(axis for axis, each in enumerate(added) if any(each)))
    before, after = [0] * (2 - first), [*range(2, 5 - (x.rank - first))]
    if x.rank - first > 3:
        raise UnsupportedError(
            f"attribute {mode=}: expected pads of the last three axes only, got axis {first} of"
            f" {x.rank}"
        )
    most = {"reflect": -1, "wrap": 0}.get(mode)
    for size, each in zip(x.sizes, added, strict=True):
        if most is not None and size is not None and max(each) > size + most:
            raise UnsupportedError(
                f"attribute {mode=}: expected at most {size + most} pads of {size} elements, got"
                f" {max(each)}"
            )
    wide = x.unsqueeze2(axes=[*before, *after]) if x.rank < 5 else x
    last_first = [end for each in reversed(added[first:]) for end in each]
    last_first += [0, 0] * (3 - (x.rank - first))
    out = wide.pad3d(paddings=last_first, mode=_MODES[mode], value=0.0, data_format="NCDHW")
    return out.squeeze2(axes=[*range(2 - first), *after]) if x.rank < 5 else out


_PLACES = {
    "align_corners": {"align_corners": True, "align_mode": 1},
    "asymmetric": {"align_corners": False, "align_mode": 1},
    "half_pixel": {"align_corners": False, "align_mode": 0},
}
_INTERPOLATIONS = {3: "linear", 4: "bilinear"}


@rule("Resize")
def resize(
    x,
    roi=None,
    factors=None,
    sizes=None,
    *,
    mode,
    coordinate_transformation_mode,
    nearest_mode,
    scales,
    antialias,
    axes,
    exclude_outside,
    extrapolation_value,
    keep_aspect_ratio_policy,
    cubic_coeff_a,
    w,
):
    place = coordinate_transformation_mode
    if antialias or axes or exclude_outside or keep_aspect_ratio_policy != "stretch":
        raise UnsupportedError(
            "attributes antialias, axes, exclude_outside, keep_aspect_ratio_policy: expected their"
            " defaults"
        )
    by = list(scales) or ([] if factors is None else factors.array.tolist())
    known = w.types[w.node.inputs[3]].sizes if sizes else None
    to = [] if known is None else [size.number for size in known.tolist()]
    if known is not None and tuple(known[:2]) != (w.types[w.node.inputs[0]].shape or ())[:2]:
        raise UnsupportedError(
            f"sizes {known.tolist()}: expected the input's sizes for batch and channels"
        )
    last = by[1:2] not in ([], [1]) and by[-1] == 1
    if last:  # Keras's (N, ..., C)
        x, by = x.transpose(0, x.rank - 1, *range(1, x.rank - 1)), [by[0], by[-1], *by[1:-1]]
    if by[:2] not in ([], [1, 1]) or by and to or not by and None in to[2:] or not (by or to):
        raise UnsupportedError(
            f"scales {by}, sizes {to}: expected numbers, 1 for batch and channels"
        )
    more: dict[str, Any] = {}
    if mode == "nearest" and (place, nearest_mode) == ("asymmetric", "floor"):
        kind = "nearest"
    elif mode == "linear" and place in _PLACES and x.rank in _INTERPOLATIONS:
        kind = _INTERPOLATIONS[x.rank]
    else:
        raise UnsupportedError(
            f"attributes {mode=}, {coordinate_transformation_mode=}, {nearest_mode=}: expected"
            " nearest with asymmetric and floor, or linear over one or two axes with one of"
            f" {', '.join(_PLACES)}, got {x.rank} axes"
        )
    rows = int(kind == "nearest" and x.rank == 3)
    image = _as_image(x.dense) if rows else x.dense
    if by:
        more["scale"] = [1.0] * rows + [float(each) for each in by[2:]]
    whole: dict[str, int] = dict.fromkeys(("out_d", "out_h", "out_w"), -1)
    whole |= zip([*whole][2 - image.rank :], [1] * rows + to[2:], strict=False)
    out = w.emit(
        f"{kind}_interp_v2",
        image,
        interp_method=kind,
        data_layout="NCHW",
        **whole,
        **_PLACES[place],
        **more,
    )
    out = _as_before(out, x) if rows else out
    return out.transpose(0, *range(2, x.rank), 1) if last else out
