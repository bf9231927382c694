"""Any number of threads gives the same bits, in every call and beside other callers."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.checking import assert_same
from support.gradients import by_name, ragged_problem
from support.interpreters import printed
from support.layers import prepare_on, random_ragged, random_weights

from onernn import Cell, LibraryError, Ragged, RnnSpec
from onernn.backend import open_backend, process
from onernn.backend.process import TEAM, team_of, usable_cpus, usable_threads
from onernn.ir.arrays import Array
from onernn.ir.ragged import data_of

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
TRAINED = {
    **{name: SPECS[name] for name in ("gru", "lbr_gru, two layers", "lstm, projected", "rnn")},
    "augru, a sum of directions": RnnSpec(Cell.AUGRU, 20, 40, direction="bidirectional_sum"),
    "lstm, both directions": RnnSpec(Cell.LSTM, 70, 24, direction="bidirectional_concat"),
}


def assert_same_bits(outputs: Callable[[], list[Array]], monkeypatch: pytest.MonkeyPatch) -> None:
    """What one thread computes is what every team computes."""
    monkeypatch.delenv(TEAM, raising=False)
    expected = outputs()
    for threads in TEAMS:
        monkeypatch.setenv(TEAM, str(threads))
        assert_same(outputs(), expected)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "u8", "int8-weights"])
@pytest.mark.parametrize("name", SPECS)
def test_every_team_gives_the_bits_of_one_thread(
    name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = SPECS[name]
    weights = random_weights(spec, 1)

    def outputs() -> list[Array]:
        layer = prepare_on("kernels", spec, weights, dtype=dtype, strict=True)
        results = [layer.run(random_ragged(each, spec.input_size, 2)) for each in LENGTHS.values()]
        return [array for y, state in results for array in (y.data, *state)]

    assert_same_bits(outputs, monkeypatch)


@pytest.mark.parametrize("seed", range(8))
def test_shares_of_ragged_sequences_are_nearly_the_same(seed: int) -> None:
    """Where the longest of 64 sequences is at most half of what each of 16 threads has to do."""
    spec = RnnSpec(Cell.LSTM, 128, 256)
    lengths = np.random.default_rng(seed).lognormal(3, 0.7, 64).astype(int).clip(1)
    lengths = np.minimum(lengths, lengths.sum() // 40)
    assert lengths.max() <= lengths.sum() / 16 / 2
    stack = prepare_on("kernels", spec, 1).compiled
    (account,) = stack.with_threads(16).account(lengths.tolist())
    products = [share.products for share in account.shares]
    assert len(products) == account.groups == 16
    mean = sum(products) / 16
    assert 0.9 * mean <= min(products) and max(products) <= 1.1 * mean


def test_a_layer_says_how_many_threads_it_uses_and_why() -> None:
    def said(threads: int, spec: RnnSpec) -> str:
        stack = prepare_on("kernels", spec, 1).compiled
        return stack.with_threads(threads).threads

    assert said(1, RnnSpec(Cell.LSTM, 512, 512)) == "1"
    assert said(8, RnnSpec(Cell.LSTM, 64, 64)) == (
        "up to 8; a sequence of 20 steps uses 1 (its steps are too small to divide),"
        " a batch of 64 uses 8 (each thread runs its own sequences or direction)"
    )
    assert said(4, RnnSpec(Cell.LSTM, 512, 512)).startswith(
        "up to 4; a sequence of 20 steps uses 4 (each thread computes part of each step),"
    )


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", TRAINED)
def test_every_team_trains_to_the_bits_of_one_thread(
    name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences that are dealt out, directions beside each other, steps that all share."""
    spec = TRAINED[name]
    ragged = ragged_problem(spec, LENGTHS["ragged"], 1)
    dense = ragged_problem(spec, [5] * 3, 1)

    def arrays(x: Ragged) -> Array:
        return np.stack(x.to_list(), axis=1)

    def outputs() -> list[Array]:
        layer = prepare_on("kernels", spec, ragged.weights, dtype=dtype, strict=True)
        results = list[Array]()
        for p, batch in ((ragged, lambda x: x), (dense, arrays)):
            scale = batch(p.attention) if spec.cell.has_attention else None
            y, state, tape = layer.run_training(batch(p.x), p.state, scale)
            gradients = layer.backward(tape, batch(p.dy), p.dstate)
            results += [data_of(y), *state, *by_name(gradients).values()]
        return results

    assert_same_bits(outputs, monkeypatch)


def test_callers_beside_each_other_get_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them leads the team, the others run on their own threads."""
    monkeypatch.setenv(TEAM, "4")
    spec = SPECS["gru"]
    layer = prepare_on("kernels", spec, 1)
    x = random_ragged(LENGTHS["ragged"], spec.input_size, 2)
    expected, _ = layer.run(x)
    with ThreadPoolExecutor(8) as pool:
        for y, _ in pool.map(lambda _: layer.run(x), range(64)):
            assert_same(y.data, expected.data)


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


STARTED = """
    import os
    from onernn import Cell, RnnSpec
    from onernn.backend import open_backend
    from support.layers import prepare_on, random_ragged, random_weights

    def started(units):
        spec = RnnSpec(Cell.LSTM, units, units)
        layer = open_backend("kernels", threads=2).prepare(spec, random_weights(spec, 1))
        before = len(os.listdir("/proc/self/task"))
        for _ in range(3):
            layer.run(random_ragged([1], units, 2))
        return len(os.listdir("/proc/self/task")) - before

    print(started(128), started(512))
"""


def test_small_frames_start_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TEAM, raising=False)
    assert printed(STARTED) == ["0", str(min(usable_cpus(), 2) - 1)]


V1 = "4:memory:/docker/a\n3:cpu,cpuacct:/docker/a\n"


def quota(quota: object, folder: str = "cpu") -> dict[str, str]:
    """The files of version 1."""
    files = {"cpu.cfs_quota_us": quota, "cpu.cfs_period_us": 100000}
    return {f"{folder}/{name}": f"{number}\n" for name, number in files.items()}


@pytest.mark.parametrize(
    "files, groups, cpus",
    [
        ({"cpu.max": "150000 100000\n"}, "0::/\n", [2]),
        ({"cpu.max": "50000 100000\n"}, "0::/\n", [1]),
        ({"cpu.max": "800000 100000\n"}, None, [8]),
        ({"cpu.max": "max 100000\n"}, "0::/\n", []),
        ({"a/b/cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n"}, "0::/a/b\n", [3]),
        ({"a/b/cpu.max": "20000 10000", "a/cpu.max": "90000 100000"}, "0::/a/b\n", [1, 2]),
        ({"other/cpu.max": "100000 100000\n"}, "0::/a\n", []),
        ({"cpu.max": "400000 100000\n"}, "0::/../elsewhere\n", [4]),
        (quota(400000), V1, [4]),
        (quota(-1), V1, []),
        (quota(-1) | quota(250000, "cpu/docker/a"), V1, [3]),
        (quota(250000, "cpu/docker/b"), V1, []),
        (quota(400000), None, [4]),
        (quota(""), V1, []),
        ({"cpu/cpu.cfs_quota_us": "100000"}, V1, []),
        ({"cpu.max": "nonsense\n"}, "nonsense", []),
        ({"cpu.max": "100000"}, "0::/", []),
        ({"cpu.max": "100000 0"}, "0::/", []),
        ({"cpu.max": "0 100000"}, "0::/", []),
        ({"cpu.max": "1.5 1"}, "0::/a\0b\n::::\n\n", []),
        ({"cpu.max/folder": ""}, "0::/", []),
        ({}, "", []),
    ],
)
def test_quotas_of_cgroups_count_as_cpus(
    tmp_path: Path, files: dict[str, str], groups: str | None, cpus: list[int]
) -> None:
    """As docker run --cpus and systemd's CPUQuota set them, in version 2 of cgroups and 1."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    if groups is not None:
        (tmp_path / "groups").write_text(groups)
    assert sorted({*process._quotas(tmp_path, tmp_path / "groups")}) == cpus


def test_an_affinity_bounds_the_number_of_threads() -> None:
    everywhere = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(everywhere)})
        assert usable_cpus() == 1 and team_of(8) == 1
    finally:
        os.sched_setaffinity(0, everywhere)


def test_openmps_variable_is_the_default_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wishes = {"3": 3, " 4 ": 4, "5,2": 5, "9999": 9999}
    wishes |= dict.fromkeys(("", "0", "-2", "many", "1.5", ",3"), usable_cpus())
    for wish, threads in wishes.items():
        monkeypatch.setenv("OMP_NUM_THREADS", wish)
        assert usable_threads() == open_backend().threads == threads
        assert open_backend("kernels").threads == min(threads, 64)
