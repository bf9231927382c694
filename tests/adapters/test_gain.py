"""From which sizes on a layer runs faster here: one table, by instruction set."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from onernn.adapters.common import gain
from onernn.ir.errors import LibraryError
from onernn.kernels import build

SIZES = [*itertools.product((1, 7, 16, 64), (1, 4, 64), (3, 16, 128, 512, 1024))]
CASES = {case for table in gain.TABLE.values() for case in table} | {*gain.ANYWHERE}


@pytest.fixture(autouse=True)
def fresh() -> None:
    gain._table.cache_clear()
    gain.is_faster.cache_clear()


@pytest.mark.parametrize(
    "least, rule",
    [
        (gain.Least(), lambda T, N, H: True),
        (gain.Least(steps=16), lambda T, N, H: T >= 16),
        (gain.Least(units=128), lambda T, N, H: H >= 128),
        (gain.Least(words=64), lambda T, N, H: T * N >= 64),
        (gain.Least(share=1 / 8), lambda T, N, H: 8 * T * N >= H),
        (gain.Least(work=4096), lambda T, N, H: T * N * H >= 4096),
        (gain.Least(steps=7, work=4096), lambda T, N, H: T >= 7 and T * N * H >= 4096),
        (gain.Least(large=128, words=64), lambda T, N, H: H < 128 or T * N >= 64),
        (gain.NEVER, lambda T, N, H: False),
    ],
)
def test_every_bound_counts(least: gain.Least, rule: object) -> None:
    assert [least.holds(*size) for size in SIZES] == [rule(*size) for size in SIZES]  # type: ignore[operator]


@pytest.mark.parametrize("isa", build.isas())
def test_a_cpu_has_the_table_of_its_instructions(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gain, "load_kernels", lambda: SimpleNamespace(isa=isa))
    table = gain.TABLE["avx512" if "avx512" in isa else "avx2"]
    for case in CASES:
        least = gain.ANYWHERE.get(case) or table.get(case, gain.NEVER)
        assert [gain.is_faster(case, *s) for s in SIZES] == [least.holds(*s) for s in SIZES]
    assert not gain.is_faster("a case that nobody measured", 64, 64, 1024)


def test_without_kernels_nothing_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise LibraryError("no library")

    monkeypatch.setattr(gain, "load_kernels", missing)
    for case in CASES - {*gain.ANYWHERE}:
        assert not any(gain.is_faster(case, *size) for size in SIZES)
