"""A small symbol for each convolution and pooling, and for each of their attributes."""

from __future__ import annotations

from typing import Any

from tests.frameworks.mxnet_cases import POSITIVE, S, case, values

KERNELS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "1d": ((7,), {"kernel": (3,)}),
    "1d_all": ((9,), {"kernel": (3,), "stride": (2,), "pad": (1,), "dilate": (2,)}),
    "2d": ((5, 6), {"kernel": (3, 2)}),
    "2d_all": ((7, 8), {"kernel": (3, 2), "stride": (2, 1), "pad": (1, 2), "dilate": (1, 2)}),
    "2d_layout": ((5, 6), {"kernel": (1, 1), "layout": "NCHW", "workspace": 512}),
    "3d": ((4, 5, 6), {"kernel": (2, 3, 2), "pad": (1, 0, 1)}),
}
for name, (sizes, options) in KERNELS.items():
    for groups in (1, 2):
        case(
            f"Convolution_{name}_{groups}",
            lambda x, W, B, options=options, groups=groups: S.Convolution(
                x, W, B, num_filter=6, num_group=groups, **options
            ),
            x=(2, 4, *sizes),
            W=(6, 4 // groups, *options["kernel"]),
            B=(6,),
        )
case(
    "Convolution_no_bias",
    lambda x, W: S.Convolution(x, W, num_filter=3, kernel=(2, 2), no_bias=True),
    x=(2, 3, 4, 4),
    W=(3, 3, 2, 2),
)
case(
    "Convolution_depthwise",
    lambda x, W: S.Convolution(x, W, num_filter=3, kernel=(2, 2), num_group=3, no_bias=True),
    x=(2, 3, 4, 4),
    W=(3, 1, 2, 2),
)

POOLS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "1d": ((7,), {"kernel": (2,), "stride": (2,)}),
    "2d": ((5, 6), {"kernel": (3, 2), "stride": (2, 1)}),
    "2d_pad": ((7, 8), {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1)}),
    "2d_crnn": ((4, 9), {"kernel": (2, 2), "stride": (2, 1), "pad": (0, 1)}),
    "3d": ((4, 5, 6), {"kernel": (2, 2, 2), "stride": (2, 2, 2)}),
}
for name, (sizes, options) in POOLS.items():
    for convention in ("valid", "full"):
        if (name, convention) == ("2d_crnn", "full"):  # windows may see nothing but pads
            continue
        told = {**options, "pooling_convention": convention}
        shape = (2, 3, *sizes)
        case(
            f"Pooling_max_{name}_{convention}",
            lambda x, told=told: S.Pooling(x, pool_type="max", **told),
            x=shape,
        )
        for counts in (None, True, False):
            more = {} if counts is None else {"count_include_pad": counts}
            case(
                f"Pooling_avg_{name}_{convention}_{counts}",
                lambda x, told=told, more=more: S.Pooling(x, pool_type="avg", **told, **more),
                x=shape,
            )
for kind in ("max", "avg"):
    case(
        f"Pooling_{kind}_global",
        lambda x, kind=kind: S.Pooling(x, global_pool=True, pool_type=kind, kernel=(2, 2)),
        x=(2, 3, 4, 5),
    )
for axis in (2, 3, -2):
    case(
        f"BatchNorm_axis_{axis}",
        lambda x, GAMMA, BETA, MEAN, VAR, axis=axis: S.BatchNorm(
            S.Pooling(x, kernel=(1, 1)), GAMMA, BETA, MEAN, VAR, axis=axis, fix_gamma=False
        ),
        x=(2, 4, 3, 3),
        GAMMA=(3,),
        BETA=(3,),
        MEAN=(3,),
        VAR=POSITIVE[0],
    )

BACK: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "1d": ((5,), {"kernel": (3,), "stride": (2,), "pad": (1,), "adj": (1,)}),
    "2d": ((4, 5), {"kernel": (3, 2)}),
    "2d_all": (
        (4, 5),
        {"kernel": (3, 4), "stride": (2, 3), "pad": (1, 0), "adj": (1, 2), "dilate": (2, 1)},
    ),
    "2d_target": ((4, 5), {"kernel": (3, 4), "stride": (2, 2), "target_shape": (7, 10)}),
    "2d_target_odd": ((4, 5), {"kernel": (4, 4), "stride": (2, 2), "target_shape": (7, 9)}),
}
for name, (sizes, options) in BACK.items():
    for groups in (1, 2):
        # MXNet's float32 cannot cut to a shape.
        dtype = "float64" if "target_shape" in options else "float32"
        case(
            f"Deconvolution_{name}_{groups}",
            lambda x, W, B, options=options, groups=groups: S.Deconvolution(
                x, W, B, num_filter=6, num_group=groups, no_bias=False, **options
            ),
            x=values(2, 4, *sizes, dtype=dtype),
            W=values(4, 6 // groups, *options["kernel"], seed=1, dtype=dtype),
            B=values(6, seed=2, dtype=dtype),
        )
case(
    "Deconvolution_no_bias",
    lambda x, W: S.Deconvolution(x, W, num_filter=3, kernel=(2, 2)),
    x=(2, 3, 4, 4),
    W=(3, 3, 2, 2),
)
case(
    "UpSampling_nearest",
    lambda x: S.UpSampling(x, scale=3, sample_type="nearest"),
    x=(2, 3, 4, 5),
)
for mode in ("concat", "sum"):
    case(
        f"UpSampling_{mode}",
        lambda x, y, mode=mode: S.UpSampling(
            x, y, scale=2, sample_type="nearest", num_args=2, multi_input_mode=mode
        ),
        x=(2, 3, 4, 6),
        y=(2, 3, 2, 3),
    )
for scale in (2, 3):
    case(
        f"UpSampling_bilinear_{scale}",
        lambda x, W, scale=scale: S.UpSampling(
            x, W, scale=scale, sample_type="bilinear", num_filter=3, num_args=2
        ),
        x=(2, 3, 4, 5),
        W=(3, 1, *[2 * scale - scale % 2] * 2),
    )
case(
    "InstanceNorm",
    lambda x, GAMMA, BETA: S.InstanceNorm(x, GAMMA, BETA, eps=0.01),
    x=(2, 3, 4, 5),
    GAMMA=(3,),
    BETA=(3,),
)
for mode in ("constant", "edge", "reflect"):
    case(
        f"Pad_{mode}",
        lambda x, mode=mode: S.Pad(
            x, mode=mode, pad_width=(0, 0, 0, 0, 1, 2, 3, 0), constant_value=0.5
        ),
        x=(2, 3, 4, 5),
    )
