"""What is made of parameters is made again when, and only when, their numbers have changed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onernn.adapters.common.live import Repacked


class Counted:
    """Sums parameters, and counts how often."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, key: str, parameters: Sequence[np.ndarray]) -> tuple[str, float]:
        self.calls += 1
        return key, float(sum(each.sum() for each in parameters))


def test_a_change_in_place_is_seen_and_equal_numbers_elsewhere_are_none() -> None:
    make, weights, bias = Counted(), np.ones((2, 3)), np.zeros(3)
    packed = Repacked(make)
    assert packed("a", [weights, bias]) == ("a", 6.0)
    assert packed("a", [weights.copy(), bias.copy()]) == ("a", 6.0) and make.calls == 1
    bias[1] = 4
    assert packed("a", [weights, bias]) == ("a", 10.0) and make.calls == 2
    assert packed("a", [weights]) == ("a", 6.0)
    assert packed("a", [weights.reshape(3, 2)]) == ("a", 6.0) and make.calls == 4


def test_each_key_has_its_own_until_the_numbers_change() -> None:
    make, weights = Counted(), np.ones(3)
    packed = Repacked(make)
    assert [packed(key, [weights])[0] for key in "abab"] == [*"abab"] and make.calls == 2
    weights += 1
    assert [packed(key, [weights]) for key in "ab"] == [("a", 6.0), ("b", 6.0)]


def test_constant_parameters_are_those_of_the_first_call() -> None:
    make, weights = Counted(), np.ones(3)
    packed = Repacked(make, constant=True)
    packed("a", [weights])
    weights += 1
    assert packed("a", [weights]) == ("a", 3.0) and packed("b", [weights]) == ("b", 3.0)


def test_what_is_made_keeps_no_array_that_a_caller_can_change() -> None:
    seen: list[np.ndarray] = []
    weights = np.ones(3)
    Repacked(lambda _, arrays: seen.extend(arrays))((), [weights])
    assert not np.shares_memory(seen[0], weights) and not seen[0].flags.writeable
