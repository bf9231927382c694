"""Processes that die while they score."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.dying import Dying

from onernn.engine.sharing import shared
from onernn.ir.errors import UnforeseenError
from onernn.scoring.corpus import Window
from onernn.scoring.folder import Folder
from onernn.scoring.runner import local_workers, run


def windows(count: int, deadly: int) -> Iterator[Window]:
    for index in range(count):
        x = [-1 if index == deadly else index] * 3
        yield Window.of(index, 3 * index, pa.table({"x": x}), {}, (index + 1) / count)


def scored(path: Path, count: int, deadly: int, often: int) -> set[int]:
    (path / "deaths").mkdir()
    (path / "out").mkdir()
    done = set()
    dying = Dying(str(path / "deaths"), often)
    with shared(dying) as lent, local_workers(lent, ()) as ask:
        for part, _, _ in run(windows(count, deadly), ask, Folder(str(path / "out")), 2):
            assert part.window not in done
            done.add(part.window)
    return done


@pytest.mark.parametrize("deadly", [0, 4, 9])
def test_windows_of_a_worker_that_died_are_scored_once_more(tmp_path: Path, deadly: int) -> None:
    assert scored(tmp_path, 10, deadly, often=2) == set(range(10))
    tables = [pq.read_table(tmp_path / "out" / f"part-{i:06}.parquet") for i in range(10)]
    for index, table in enumerate(tables):
        x = -1 if index == deadly else index
        assert table.column("y").to_pylist() == [2 * x] * 3


def test_a_window_that_kills_every_worker_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnforeseenError, match=r"rows 12 to 14 \(window 4\) ended .* by SIGKILL"):
        scored(tmp_path, 10, deadly=4, often=100)
    assert not (tmp_path / "out" / "part-000004.parquet").exists()
