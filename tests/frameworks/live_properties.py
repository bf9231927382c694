"""What holds for live layers of all frameworks; their test files have a fixture ``host``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any, Protocol

import numpy as np
import pytest
from support.arrays import uniform

from onernn import plugins_disabled
from onernn.ir.arrays import Array

__all__ = [
    "test_a_frozen_layer_keeps_what_its_first_call_packed",
    "test_a_layer_that_is_disabled_or_restored_has_its_frameworks_bits",
    "test_a_write_to_one_gate_or_one_number_is_read_by_the_next_call",
]


class Host(Protocol):
    """A kind of layer in a framework. ``ways``: how a user writes ``values`` to ``rows`` of a
    parameter; the tests take one after the other."""

    units: int
    is_rounded: bool
    freezes: bool
    ways: Sequence[Callable[[Any, slice, Array], Any]]

    def layer(self) -> Any:
        """Returns a layer of the framework with random numbers."""

    def copy(self, layer: Any) -> Any:
        """Returns another layer of the framework with a layer's numbers."""

    def optimize(self, layer: Any, **options: Any) -> Any:
        """Returns the layer, changed in place to run here, small batches, too."""

    def restore(self, layer: Any) -> Any:
        """Undoes `optimize`."""

    def run(self, layer: Any, steps: int) -> list[Array]:
        """Returns what the layer predicts for batches of so many steps."""

    def parameters(self, layer: Any) -> Mapping[str, Any]:
        """Returns the parameters by name; each has a shape."""


def close(host: Host, found: list[Array], right: list[Array]) -> None:
    """Equal up to the order of sums; narrow types: to the bit."""
    off = 0 if host.is_rounded else 5e-6
    for one, other in zip(found, right, strict=True):
        np.testing.assert_allclose(one, other, rtol=4 * off, atol=off)


def equal(found: list[Array], right: list[Array]) -> bool:
    return all(map(np.array_equal, found, right))


def test_a_write_to_one_gate_or_one_number_is_read_by_the_next_call(host: Host) -> None:
    """The framework's layer says what is right; narrow types, what a new layer computes."""
    ours, ways, turn = host.optimize(host.layer()), cycle(host.ways), 0
    for name in host.parameters(ours):
        length = host.parameters(ours)[name].shape[0]
        size = length // max(1, length // host.units)
        for begin in range(0, length, size):
            middle = begin + size // 2
            for rows in (slice(begin, begin + size), slice(middle, middle + 1)):
                parameter, before, turn = host.parameters(ours)[name], host.run(ours, 30), turn + 1
                shape = (rows.stop - rows.start, *parameter.shape[1:])
                next(ways)(parameter, rows, 0.6 * uniform(*shape, seed=[turn]))
                right = host.copy(ours)
                if host.is_rounded:
                    right = host.optimize(right)
                for steps in (1, 30):
                    close(host, host.run(ours, steps), host.run(right, steps))
                assert not equal(host.run(ours, 30), before)


def test_a_frozen_layer_keeps_what_its_first_call_packed(host: Host) -> None:
    if not host.freezes:
        pytest.skip("its layers do not freeze")
    ours = host.optimize(host.layer(), frozen=True)
    before = host.run(ours, 3)
    for parameter in host.parameters(ours).values():
        host.ways[0](parameter, slice(0, 1), np.ones((1, *parameter.shape[1:]), np.float32))
    assert equal(host.run(ours, 3), before)
    assert not equal(host.run(host.optimize(host.copy(ours)), 3), before)


def test_a_layer_that_is_disabled_or_restored_has_its_frameworks_bits(host: Host) -> None:
    stock = host.layer()
    ours, kept = host.copy(stock), host.run(stock, 4)
    names = [*host.parameters(ours)]
    host.optimize(ours)
    assert isinstance(ours, type(stock)) and [*host.parameters(ours)] == names
    ran = host.run(ours, 4)
    assert not equal(ran, kept) or not host.is_rounded
    with plugins_disabled():
        assert equal(host.run(ours, 4), kept)
    assert equal(host.run(ours, 4), ran)
    assert host.restore(ours) is ours and type(ours) is type(stock)
    assert equal(host.run(ours, 4), kept)
