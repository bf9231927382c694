"""Convolutions and what stands around them, in files that Paddle 2.6.2 and 3.3.1 saved and ran.

Recorded by tests/frameworks/record_paddle_images.py.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.paddle_operators import op, program

from onernn import Session, UnsupportedError, fuse, load
from onernn.adapters.paddle.lower import lower
from onernn.adapters.paddle.read import Variable
from onernn.verification.recording import read_arrays

DATA = Path(__file__).parents[2] / "data" / "paddle"
IMAGE = Variable("x", 7, "float32", (None, 2, None, None), 0, False)


@pytest.mark.parametrize("form", [2, 3])
def test_a_crnn_reads_lines_of_any_width(form: int) -> None:
    """A line alone gives what it gives among others; its two layers are one stack."""
    model = load(DATA / f"image_crnn_{form}")
    assert [n.attributes["spec"].layers for n in fuse(model).model.nodes if n.op == "Rnn"] == [2]
    session = Session(model)
    x = read_arrays(DATA / f"image_crnn_{form}" / "io.npz", ("in__",))["in__x"]
    wide = np.concatenate([x, x[..., ::-1], x], axis=-1)
    (both,) = session.run({"x": wide}).values()
    (alone,) = session.run({"x": wide[1:]}).values()
    assert both.shape == (2, wide.shape[-1] // 2 - 1, 7)
    np.testing.assert_allclose(alone[0], both[1], atol=1e-6)


POOL = {"ksize": (3, 3), "strides": (2, 2), "paddings": (0, 0), "pooling_type": "avg"}
REFUSED = {
    "adaptive": ({"adaptive": True}, "parts of equal known sizes"),
    "exclusive": ({"exclusive": False, "ceil_mode": True}, "exclusive=False: expected True"),
    "end pads": ({"exclusive": False, "paddings": (1, 0, 0, 1)}, "end pads larger than start pads"),
    "nothing but pads": ({"paddings": (2, 2), "ceil_mode": True}, "only padding"),
    "algorithm": ({"padding_algorithm": "MOST"}, "padding_algorithm='MOST'"),
    "pads": ({"paddings": (1, 1, 1)}, "paddings="),
    "kind": ({"pooling_type": "min"}, "expected one of max, avg"),
    "unknown": ({"novel": 1}, "not understood: attribute novel"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_pools_that_nobody_can_follow_are_refused_by_name(name: str) -> None:
    changed, reason = REFUSED[name]
    pool = op("pool2d X=x -> Out=y", **{**POOL, **changed})
    with pytest.raises(UnsupportedError, match=reason):
        Session(lower(program(pool, x=IMAGE)))
