"""Any number of threads gives the same bits, in every call and beside other callers."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.layers import random_ragged, random_weights

from onernn import Cell, LibraryError, RnnSpec
from onernn.backend import open_backend, process
from onernn.backend.process import TEAM, team_of, usable_cpus, usable_threads
from onernn.ir.arrays import Array

pytestmark = pytest.mark.usefixtures("built")

TEAMS = (2, 3, 4, 7, 8, 16, 64)
LENGTHS = {
    "one": [7],
    "ragged": [3, 9, 1, 7, 2, 30, 4, 4, 8, 1, 1, 1, 17, 20, 3, 5, 6, 7],
    "empty": [0, 3, 0],
}
SPECS = {
    "gru": RnnSpec(Cell.GRU, 16, 130),
    "lbr_gru, both directions": RnnSpec(Cell.LBR_GRU, 16, 40, direction="bidirectional_concat"),
    "lbr_gru, two layers": RnnSpec(Cell.LBR_GRU, 40, 40, layers=2),
    "lstm, a sum of directions": RnnSpec(Cell.LSTM, 40, 40, direction="bidirectional_sum"),
    "lstm, projected": RnnSpec(Cell.LSTM, 16, 64, projection_size=40, peephole=True),
    "rnn": RnnSpec(Cell.RNN_TANH, 300, 8, direction="right2left"),
}


@pytest.mark.parametrize("dtype", ["f32", "bf16", "u8", "int8-weights"])
@pytest.mark.parametrize("name", SPECS)
def test_every_team_gives_the_bits_of_one_thread(
    name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = SPECS[name]
    weights = random_weights(spec, 1)

    def outputs() -> list[Array]:
        layer = open_backend("kernels").prepare(spec, weights, dtype=dtype, strict=True)
        results = [layer.run(random_ragged(each, spec.input_size, 2)) for each in LENGTHS.values()]
        return [array for y, state in results for array in (y.data, *state)]

    monkeypatch.delenv(TEAM, raising=False)
    expected = outputs()
    for threads in TEAMS:
        monkeypatch.setenv(TEAM, str(threads))
        for array, one in zip(outputs(), expected, strict=True):
            np.testing.assert_array_equal(array, one)


@pytest.mark.parametrize("seed", range(8))
def test_shares_of_ragged_sequences_are_nearly_the_same(seed: int) -> None:
    """Where the longest of 64 sequences is at most half of what each of 16 threads has to do."""
    spec = RnnSpec(Cell.LSTM, 128, 256)
    lengths = np.random.default_rng(seed).lognormal(3, 0.7, 64).astype(int).clip(1)
    lengths = np.minimum(lengths, lengths.sum() // 40)
    assert lengths.max() <= lengths.sum() / 16 / 2
    stack = open_backend("kernels").prepare(spec, random_weights(spec, 1)).compiled
    (account,) = stack.with_threads(16).account(lengths.tolist())
    products = [share.products for share in account.shares]
    assert len(products) == account.groups == 16
    mean = sum(products) / 16
    assert 0.9 * mean <= min(products) and max(products) <= 1.1 * mean


def test_a_layer_says_how_many_threads_it_uses_and_why() -> None:
    def said(threads: int, spec: RnnSpec) -> str:
        stack = open_backend("kernels").prepare(spec, random_weights(spec, 1)).compiled
        return stack.with_threads(threads).threads

    assert said(1, RnnSpec(Cell.LSTM, 512, 512)) == "1"
    assert said(8, RnnSpec(Cell.LSTM, 64, 64)) == (
        "up to 8; a sequence of 20 steps runs on 1 (its steps are too small to divide),"
        " 64 of them on 8 (each runs its own sequences or direction)"
    )
    assert said(4, RnnSpec(Cell.LSTM, 512, 512)).startswith(
        "up to 4; a sequence of 20 steps runs on 4 (they share each step), 64 of them on 4"
    )


def test_callers_beside_each_other_get_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them leads the team, the others run on their own threads."""
    monkeypatch.setenv(TEAM, "4")
    spec = SPECS["gru"]
    layer = open_backend("kernels").prepare(spec, random_weights(spec, 1))
    x = random_ragged(LENGTHS["ragged"], spec.input_size, 2)
    expected, _ = layer.run(x)
    with ThreadPoolExecutor(8) as pool:
        for y, _ in pool.map(lambda _: layer.run(x), range(64)):
            np.testing.assert_array_equal(y.data, expected.data)


def test_a_team_has_no_more_threads_than_there_are_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TEAM, raising=False)
    assert team_of(1) == 1 and team_of(1000) == min(usable_cpus(), 64)
    assert usable_cpus() <= len(os.sched_getaffinity(0))
    monkeypatch.setenv(TEAM, "9")
    assert team_of(1) == -9
    for wrong in ("0", "65", "-2", "many"):
        monkeypatch.setenv(TEAM, wrong)
        with pytest.raises(LibraryError, match=f"{TEAM}={wrong}: expected a number from 1 to 64"):
            team_of(1)


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, 64),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64),
        ({"cpu.max": "nonsense\n"}, 64),
        ({}, 64),
    ],
)
def test_a_cgroups_quota_counts_as_cpus(tmp_path: Path, files: dict[str, str], cpus: int) -> None:
    """As docker run --cpus sets it: version 2 of cgroups, then version 1."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert process._quota(tmp_path) == cpus


def test_openmps_variable_is_the_default_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for wish, threads in (("3", 3), ("5,2", 5), ("", usable_cpus()), ("0", usable_cpus())):
        monkeypatch.setenv("OMP_NUM_THREADS", wish)
        assert usable_threads() == threads
