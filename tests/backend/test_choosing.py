"""Which way a batch runs: the nearest point of a table, and nothing where nobody measured."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from onernn.backend import choosing
from onernn.backend.choosing import MARGIN, Choice, Kind, Way, isa_of, kind_of, measurements
from onernn.core.spec import Cell, RnnSpec

TABLE = """# a comment
way     dtype threads cell     batch       128   512  2048
kernels f32   2       LSTM       1 step   1.06     -  0.90
kernels f32   2       LSTM       1 dense  1.00  1.04  1.06
kernels f32   2       LSTM       8 dense  1.00  1.05  1.00
kernels f32   2       LSTM      64 dense  1.00  1.00  1.00
kernels f32   2       GRU       64 ragged 2.00  2.00  2.00
kernels f32   2       GRU       32 training 1.0  1.1  1.0
kernels bf16  1       GRU       64 ragged 2.00  2.00  2.00
kernels f32   1       GRU       32 training 2.0  1.0  2.0
kernels f32   1       GRU        1 dense  1.00  1.00  2.00
kernels f32   2       LBR_GRU   32 training 1.1  1.1  1.1
inside  f32   1       LSTM       1 step   1.10     -  1.10
inside  f32   1       LSTM       1 dense  1.30     -  2.00
inside  f32   1       LSTM       4 dense  1.00     -  0.96
"""


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "v9.txt").write_text(TABLE)
    monkeypatch.setattr(choosing, "TABLES", tmp_path)
    measurements.cache_clear()


@pytest.fixture(autouse=True, scope="module")
def forget() -> object:
    yield
    measurements.cache_clear()


def choice(hidden: int, cell: Cell = Cell.LSTM, **other: object) -> Choice:
    told = {"way": "kernels", "isa": "v9", "dtype": "f32", "threads": 2} | other
    return Choice(**told, spec=RnnSpec(cell, 3, hidden))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "hidden, kind, sentences, faster",
    [
        (512, "dense", 8, True),
        (1023, "dense", 8, True),  # nearer to 512 than to 2048
        (1025, "dense", 8, False),
        (512, "dense", 3, True),  # nearer to 8 than to 1
        (512, "dense", 2, False),
        (512, "dense", 23, False),  # nearer to 64
        (4000, "dense", 1, True),
        (1, "step", 1000, True),
        (512, "step", 1, False),  # not measured
        (512, "ragged", 8, False),
        (512, "dense", 0, False),
    ],
)
def test_the_nearest_point_decides(hidden: int, kind: str, sentences: int, faster: bool) -> None:
    for _ in range(2):  # again, from what is known then
        assert choice(hidden).prefers(kind, sentences) == faster  # type: ignore[arg-type]


def test_the_margin_itself_is_enough() -> None:
    assert MARGIN == 1.05  # the row of 8 above


@pytest.mark.parametrize(
    "other",
    [{"way": "chain"}, {"isa": "v10"}, {"isa": "amx"}, {"dtype": "bf16"}, {"threads": 1}],
    ids=str,
)
def test_nothing_is_faster_where_nobody_measured(other: dict[str, object]) -> None:
    made = choice(512, **other)
    assert not made.ever and not made.prefers("dense", 8)


def test_one_thread_tells_of_two_that_nobody_measured_and_of_no_more() -> None:
    told = [choice(9, Cell.GRU, dtype="bf16", threads=n).prefers("ragged", 64) for n in range(1, 5)]
    assert told == [True, True, False, False]
    assert not choice(512, threads=1).prefers("dense", 8)  # two do not tell of one
    assert choice(512, Cell.GRU).prefers("training", 32)  # a kind that was measured stays
    assert choice(2048, Cell.GRU).prefers("dense", 1)


def test_cells_of_the_same_products_share_rows() -> None:
    assert choice(512, Cell.AUGRU).prefers("ragged", 5)
    assert not choice(512, Cell.LBR_AUGRU).prefers("ragged", 5)
    assert not choice(512, Cell.RNN_RELU).ever


def test_batches_that_the_other_way_runs_are_told() -> None:
    assert choice(512).others == ["1 step", "1 dense", "64 dense"]
    assert choice(2048, Cell.GRU).others == []


@pytest.mark.parametrize(
    "hidden, kinds, sentences, faster",
    [
        (128, ("dense",), 1, True),
        (128, ("dense",), 2, True),  # as near to 1 as to 4, the first one counts
        (128, ("dense",), 4, False),  # no gain
        (128, ("dense",), None, True),  # 1.30 and 1.00: a gain of 1.14 together
        (128, ("step", "dense"), None, True),
        (128, ("step", "dense"), 4, False),
        (2048, ("dense",), 1, True),
        (2048, ("dense",), None, False),  # 4 sentences would lose
        (128, ("ragged",), None, False),  # not measured
        (128, ("dense", "ragged"), None, False),
    ],
)
def test_one_way_for_many_batches_gains_and_loses_nowhere(
    hidden: int, kinds: tuple[Kind, ...], sentences: int | None, faster: bool
) -> None:
    assert choice(hidden, way="inside").prefers_all(kinds, sentences) == faster


def test_training_is_chosen_by_itself() -> None:
    assert choice(512, Cell.GRU).prefers("training", 32)
    trained = choice(512, Cell.LBR_GRU)
    assert trained.prefers("training", 32) and not trained.ever


def test_kinds_of_batches() -> None:
    assert kind_of(True, 7, 3) == "ragged" and kind_of(False, 6, 3) == "dense"
    assert kind_of(True, 3, 3) == kind_of(False, 3, 3) == "step"


def test_onednns_names_find_their_table() -> None:
    assert isa_of("avx512_core_amx_fp16") == "amx"
    assert isa_of("avx512_core_bf16") == "avx512_bf16"
    assert isa_of("avx512_core_vnni") == isa_of("avx512_core") == "avx512"
    assert isa_of("avx2_vnni") == "avx2" and isa_of("sse41") == "v2"
    assert isa_of("sve_256") == "sve_256"


def test_every_table_of_the_package_can_be_read(repo: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choosing, "TABLES", repo / "backend" / "measurements")
        files = list((repo / "backend" / "measurements").glob("*.txt"))
        assert len(files) >= 2
        for file in files:
            rows = measurements(file.stem)
            lines = [line for line in file.read_text().splitlines() if line[0] != "#"]
            assert len(rows) == len(lines) - 1 == len({row[:6] for row in rows})
            for row in rows:
                assert row.way in get_args(Way) and row.kind in get_args(Kind)
                assert Cell[row.cell] and row.threads in (1, 2)
                assert file.stem != "amx" or row.way == "chain"  # not measured there
