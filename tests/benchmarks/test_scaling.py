"""The account of how threads share work, on cases that are easily computed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.interpreters import run_python
from support.layers import prepare_on

from onernn import Cell, RnnSpec

pytestmark = pytest.mark.usefixtures("built")

MiB = 1 << 20
LSTM_512 = 4 * 512 * 512  # multiplications of h, and of x, a step; of h none in the first one


def spec(size: int, direction: Any = "left2right") -> RnnSpec:
    return RnnSpec(Cell.LSTM, size, size, direction=direction)


@pytest.mark.parametrize(
    "layer, lengths, threads, expected",
    [
        pytest.param(  # 16384 multiplications a step: no thread is worth waiting for
            spec(64),
            [10],
            8,
            {"take_part": 1, "groups": [0], "turns": 0, "held": 2 * 65536, "cache": "L2"}
            | {"read": 10 * 65536, "largest_over_mean": 1},
            id="small-step",
        ),
        pytest.param(  # a turn a step but the first, and one for x; a quarter of 32 panels each
            spec(512),
            [25],
            4,
            {"take_part": 4, "groups": [0], "turns": 25, "held": 2 * MiB, "cache": "L3"}
            | {"read": 25 * MiB, "largest_over_mean": 1},
            id="each-step",
        ),
        pytest.param(  # eleven panels of 32 are a third and a third of a panel more
            spec(512),
            [25],
            3,
            {"take_part": 3, "groups": [0], "turns": 25, "held": 2 * 11 * MiB // 8, "cache": "L3"}
            | {"read": 25 * 11 * MiB // 8, "largest_over_mean": 33 / 32},
            id="uneven-panels",
        ),
        pytest.param(  # four sequences each; x's products of at most 4 + 32 words at a time
            spec(256),
            [16] * 16,
            4,
            {"take_part": 4, "groups": [4], "turns": 1, "held": 2 * MiB, "cache": "L3"}
            | {"read": 17 * MiB, "largest_over_mean": 1},
            id="sequences",
        ),
        pytest.param(  # three fifths of the words on one thread, and so in each direction
            spec(128, "bidirectional_concat"),
            [60, 40],
            4,
            {"take_part": 4, "groups": [2], "turns": 1, "held": MiB // 2, "cache": "L2"}
            | {"read": 61 * MiB // 4, "largest_over_mean": 119 / 99},
            id="directions",
        ),
    ],
)
def test_an_account_is_that_of_a_count_by_hand(
    module: Any, layer: RnnSpec, lengths: list[int], threads: int, expected: dict[str, Any]
) -> None:
    scaling = module("scaling")
    stack = prepare_on("kernels", layer, 1)
    result = scaling.account(scaling.Row("", stack, lengths), threads)
    assert result == result | expected
    assert result["foretold_two_sockets"] - result["foretold"] == pytest.approx(
        result["turns"] * 0.5e-6
    )


def test_multiplications_are_those_of_the_matrices_on_any_number_of_threads() -> None:
    layer = spec(512)
    stack = prepare_on("kernels", layer, 1).compiled
    for threads in (1, 2, 4, 8, 16, 32):
        for lengths in ([25], [9, 4, 4, 1]):
            (account,) = stack.with_threads(threads).account(lengths)
            steps = 2 * sum(lengths) - len(lengths)
            assert sum(share.products for share in account.shares) == steps * LSTM_512


def test_more_threads_are_never_foretold_to_take_longer() -> None:
    """Nor less than their part of the work."""
    for layer in (spec(64), spec(256), spec(1024), spec(256, "bidirectional_concat")):
        stack = prepare_on("kernels", layer, 1).compiled
        for lengths in ([25], [25] * 4, np.arange(1, 65).tolist()):
            times = [
                stack.with_threads(threads).account(lengths)[0].seconds for threads in range(1, 65)
            ]
            assert min(times) > 0 and max(times) == times[0]


@pytest.mark.long
def test_the_program_shows_each_row_and_number_of_threads(repo: Path) -> None:
    command = ["-m", "benchmarks.scaling", "--workloads", "smoke,examples", "--measure", "1"]
    command += ["--only", "LSTM|segmenter", "--threads", "2,16", "--seconds", "0"]
    done, tables = (run_python(*command, *more, cwd=repo) for more in (["--json"], []))
    rows = json.loads(done.stdout)["rows"]
    assert rows[0]["row"] == "LSTM 8->16" and len(rows) > 2
    for row in rows:
        one, two, sixteen = row["threads"]
        assert [each["threads"] for each in row["threads"]] == [1, 2, 16]
        assert one["wall"] > 0 and "wall" not in two and one["turns"] == 0
        assert one["foretold"] >= sixteen["foretold"] > 0
        assert f"\n{row['row']}\n" in "\n" + tables.stdout
