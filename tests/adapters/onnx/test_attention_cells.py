"""Cells with attention, written in many ways, become layers; what only looks like one does not.

The oracles are a loop over sentences and steps in NumPy, and ONNX Runtime.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.attention_cells import (
    MIXTURES,
    ROUTES,
    SCALES,
    SHAPES,
    WRONG,
    Computed,
    Written,
    by_hand,
    feed,
    inputs,
    model,
    weights,
)
from support.onnx_models import read, theirs

from onernn import Cell, Session, fuse

STEPS = 4
TOLERANCE = {"rtol": 0, "atol": 2e-6}
"""Sums of a dozen terms of size 1 in float32, over a few contractive steps."""


def layers(proto: Any) -> list[Any]:
    return [node.attributes["spec"] for node in fuse(read(proto)).model.nodes if node.op == "Rnn"]


def lies(how: Written, y: np.ndarray) -> np.ndarray:
    """y (T, N, O) as the model gives it."""
    return y.swapaxes(0, 1) if how.batch_first else y


def checked(how: Written, what: Computed, seed: int = 0) -> list[Any]:
    """The layers' specs, after both oracles."""
    numbers, batch = weights(seed), inputs(STEPS, seed, what)
    proto = model(how, what, numbers, STEPS)
    fed = feed(how, what, batch)
    y, last = by_hand(what, numbers, batch)
    for want, by_them in zip((lies(how, y), last), theirs(proto, fed), strict=True):
        np.testing.assert_allclose(by_them, want, **TOLERANCE)
    for backend in ("reference", "auto"):
        got = Session(read(proto), backend=backend).run(fed)
        for want, name in ((lies(how, y), "y"), (last, "last")):
            np.testing.assert_allclose(got[name], want, **TOLERANCE, err_msg=f"{backend} {name}")
    return layers(proto)


def is_one_layer(specs: list[Any], what: Computed) -> None:
    (spec,) = specs
    assert spec.cell is (Cell.AUGRU if what.before else Cell.LBR_AUGRU)
    assert spec.direction == ("right2left" if what.backwards else "left2right")
    assert spec.layers == 1


@st.composite
def cells(draw: Any) -> tuple[Written, Computed]:
    route = draw(st.sampled_from(ROUTES))
    joined, squashed = draw(st.booleans()), draw(st.booleans())
    how = Written(
        route,
        draw(st.sampled_from(MIXTURES)),
        draw(st.sampled_from(SCALES)),
        flipped=draw(st.booleans()),
        joined=joined,
        hoisted=joined and not squashed and route != "unrolled" and draw(st.booleans()),
        batch_first=draw(st.booleans()),
        shape=draw(st.sampled_from(SHAPES)),
        order="".join(draw(st.permutations("urn"))),
        open_sizes=draw(st.booleans()),
        squashed=squashed,
        flat_mask=draw(st.booleans()),
    )
    masked = route == "loop" or route == "scan" and not how.batch_first and how.shape[0] == "T"
    what = Computed(
        *(draw(st.booleans()) for _ in range(3)),
        backwards=route != "loop" and draw(st.booleans()),
        lengths=masked and draw(st.booleans()),
        begins=draw(st.booleans()),
    )
    return how, what


@given(cells(), st.integers(0, 99))
def test_every_way_to_write_a_cell_with_attention_is_one_layer(
    written: tuple[Written, Computed], seed: int
) -> None:
    how, what = written
    is_one_layer(checked(how, what, seed), what)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_another_cell_is_never_mistaken(wrong: str, route: str) -> None:
    right = Computed(before=False)
    how, what = Written(route), replace(right, wrong=wrong)
    numbers, batch = weights(0), inputs(STEPS, 0, what)
    proto, fed = model(how, what, numbers, STEPS), feed(how, what, batch)
    want = theirs(proto, fed)
    for backend in ("reference", "auto"):
        got = Session(read(proto), backend=backend).run(fed)
        for each, name in zip(want, ("y", "last"), strict=True):
            np.testing.assert_allclose(got[name], each, **TOLERANCE)
    assert np.abs(want[0] - by_hand(right, numbers, batch)[0]).max() > 0.01
    attended = [spec.cell for spec in layers(proto) if spec.cell.has_attention]
    assert attended == ([Cell.LBR_AUGRU] if WRONG[wrong] == "augru" else [])
