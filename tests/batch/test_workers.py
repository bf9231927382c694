"""Processes that die while they score."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.dying import Dying

from onernn.batch.sources import Window
from onernn.batch.worker import Job
from onernn.batch.workers import Workers
from onernn.core.errors import UnforeseenError
from onernn.runtime.sharing import shared


def windows(count: int, deadly: int) -> Iterator[Window]:
    for index in range(count):
        x = [-1 if index == deadly else index] * 3
        yield Window(index, 3 * index, pa.table({"x": x}), {}, (index + 1) / count)


def scored(folder: Path, count: int, deadly: int, often: int) -> set[int]:
    (folder / "deaths").mkdir()
    (folder / "out").mkdir()
    done = set()
    with shared(Dying(str(folder / "deaths"), often)) as lent:
        with Workers(Job(lent, (), folder / "out"), 2) as pool:  # type: ignore[arg-type]
            for each in pool.run(windows(count, deadly)):
                assert each.index not in done
                done.add(each.index)
    return done


@pytest.mark.parametrize("deadly", [0, 4, 9])
def test_windows_of_a_worker_that_died_are_scored_once_more(tmp_path: Path, deadly: int) -> None:
    assert scored(tmp_path, 10, deadly, often=2) == set(range(10))
    tables = [pq.read_table(tmp_path / "out" / f"part-{i:06}.parquet") for i in range(10)]
    for index, table in enumerate(tables):
        x = -1 if index == deadly else index
        assert table.column("y").to_pylist() == [2 * x] * 3


def test_a_window_that_kills_every_worker_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnforeseenError, match=r"rows 12 to 14 \(window 4\) ended .* by SIGKILL"):
        scored(tmp_path, 10, deadly=4, often=100)
    assert not (tmp_path / "out" / "part-000004.parquet").exists()
