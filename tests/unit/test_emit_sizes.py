"""Sizes: polynomials that behave as the numbers which they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onernn.core.sizes import Size

NUMBERS = {"T": 7, "N": 3, "W": 11}
SIZES = st.recursive(
    st.one_of(st.sampled_from(list(NUMBERS)).map(Size.of), st.integers(-4, 4).map(Size.of)),
    lambda inner: st.tuples(st.sampled_from("+-*"), inner, inner),
    max_leaves=6,
)


def computed(tree: Any) -> tuple[Size, int]:
    """A size, and the number that plain integers give."""
    if isinstance(tree, Size):
        return tree, eval(str(tree), dict(NUMBERS))
    sign, *sides = tree
    (a, one), (b, other) = map(computed, sides)
    both = {"+": (a + b, one + other), "-": (a - b, one - other), "*": (a * b, one * other)}
    return both[sign]


@given(SIZES)
def test_sizes_compute_as_numbers_and_say_so_in_c(tree: Any) -> None:
    size, number = computed(tree)
    assert size.put(NUMBERS).number == number
    assert eval(str(size), dict(NUMBERS)) == number
    assert size.most().put(NUMBERS).number >= number


@given(SIZES, st.sampled_from(["T", "N"]), st.integers(1, 5))
def test_a_quotient_is_whole_or_refused(tree: Any, name: str, count: int) -> None:
    size, number = computed(tree)
    by = Size.of(name) * count
    assert (size * by) // by == size
    try:
        quotient = size // by
    except ValueError as error:
        assert "not known to be whole" in str(error)
    else:
        assert quotient * by == size
    with pytest.raises(ValueError, match="not known to be whole"):
        size // (Size.of("T") + 1)


def test_numpys_numbers_leave_arithmetic_to_sizes() -> None:
    assert np.int64(3) * Size.of("T") == Size.of("T") * 3
    assert np.int64(3) - Size.of("T") == Size.of(3) - "T"
