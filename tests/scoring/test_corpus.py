"""Corpora in every format, windows from any beginning."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

import onernn
from onernn.ir.errors import ModelFormatError, OnernnError, ShapeError, UnsupportedError
from onernn.ir.ragged import Ragged
from onernn.scoring.corpus import Corpus

COUNT = 2500
ROWS = [{"id": i, "name": f'n "{i}", é', "tokens": [i] * (i % 5)} for i in range(COUNT)]
SPLIT = 1700


def write(folder: Path, kind: str) -> str:
    """The rows as two files, and what they are called."""
    for at, rows in enumerate((ROWS[:SPLIT], ROWS[SPLIT:])):
        table = pa.Table.from_pylist(rows)
        file = folder / f"{at}.{kind}"
        match kind:
            case "parquet":
                pq.write_table(table, file, row_group_size=300)
            case "arrow":
                feather.write_feather(table, file)
            case "orc":
                orc.write_table(table, file)
            case "jsonl":
                file.write_text("".join(json.dumps(row) + "\n" for row in rows))
            case "jsonl.gz":
                with gzip.open(file, "wt") as stream:
                    stream.writelines(json.dumps(row) + "\n" for row in rows)
            case "csv":
                with file.open("w", newline="") as stream:
                    writer = csv.writer(stream)
                    writer.writerow(["id", "name", "tokens"])
                    for row in rows:
                        writer.writerow([row["id"], row["name"], " ".join(map(str, row["tokens"]))])
            case "npz":
                tokens = Ragged.from_list([np.array(row["tokens"], np.int64) for row in rows])
                id = np.array([row["id"] for row in rows])
                onernn.recording.save(file, {"id": id, "tokens": tokens}, {})
    return str(folder)


def rows_of(windows: Any) -> list[dict[str, Any]]:
    return [row for window in windows for row in window.table.to_pylist()]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "orc", "jsonl", "jsonl.gz", "csv", "npz"])
def test_all_rows_come_in_order_and_a_window_is_the_same_wherever_reading_begins(
    tmp_path: Path, kind: str
) -> None:
    source = Corpus(write(tmp_path, kind), ["tokens"])
    for size in (700, 1024, 1700, 10_000):
        windows = list(source.windows(size))
        got = rows_of(windows)
        if kind == "csv":  # the input reads the cells
            for row in got:
                row["tokens"] = [int(cell) for cell in row["tokens"].split()]
        wanted = [{k: v for k, v in row.items() if k != "name"} for row in ROWS]
        assert got == (wanted if kind == "npz" else ROWS)
        assert [each.index for each in windows] == list(range(len(windows)))
        assert {each.table.num_rows for each in windows[:-1]} <= {size}
        assert [each.first for each in windows] == [size * each.index for each in windows]
        assert windows[-1].read == pytest.approx(1)
        again = list(Corpus(str(tmp_path), ["tokens"]).windows(size, {0, 1, 3}))
        assert [each.index for each in again] == [
            i for i in range(len(windows)) if i not in (0, 1, 3)
        ]
        assert all(each.table.equals(windows[each.index].table) for each in again)


def test_columns_are_kept_as_asked_and_folders_may_name_some(tmp_path: Path) -> None:
    (tmp_path / "year=2024").mkdir()
    write(tmp_path / "year=2024", "parquet")
    (window,) = Corpus(f"{tmp_path}", ["tokens"], ["year"]).windows(COUNT)
    assert window.table.column_names == ["year", "tokens"]
    assert window.table.column("year").unique().to_pylist() == [2024]
    with pytest.raises(ShapeError, match="no column 'no'; the columns are"):
        Corpus(str(tmp_path), ["tokens"], ["no"])


def test_files_of_parquet_may_lack_columns_and_have_other_types_but_no_column_is_lost(
    tmp_path: Path,
) -> None:
    pq.write_table(pa.table({"x": [1, 2], "y": ["a", "b"]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"x": pa.array([3], pa.int8())}), tmp_path / "1.parquet")
    (window,) = Corpus(str(tmp_path), ["x"]).windows(10)
    assert window.table.to_pydict() == {"x": [1, 2, 3], "y": ["a", "b", None]}
    pq.write_table(pa.table({"x": [4], "z": [1]}), tmp_path / "2.parquet")
    (window,) = Corpus(str(tmp_path), ["x"]).windows(10)
    assert window.table.column("z").to_pylist() == [None, None, None, 1]
    (window,) = Corpus(str(tmp_path), ["x"], []).windows(10)
    assert window.table.to_pydict() == {"x": [1, 2, 3, 4]}


@pytest.mark.parametrize("where", ["*/1.parquet", "**/1.parquet", "file://{}/a/1.parquet"])
def test_globs_and_uris_choose_files(tmp_path: Path, where: str) -> None:
    (tmp_path / "a").mkdir()
    write(tmp_path / "a", "parquet")
    where = where.format(tmp_path) if "{}" in where else f"{tmp_path}/{where}"
    assert rows_of(Corpus(where, ["tokens"]).windows(COUNT)) == ROWS[SPLIT:]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.csv", "id,x\n1,1 2\n2\n", "Row #3: Expected 2 columns, got 1: 2"),
        ("x.parquet", "PAR1", "Parquet"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ModelFormatError, match=message):
        list(Corpus(str(tmp_path / name), ["x"]).windows(10))


def test_cells_are_numbers_but_for_inputs_and_may_hold_lines(tmp_path: Path) -> None:
    text = 'id,name,x\n1,a,7\n2.5,"b\n""c""",1 2\n'
    (tmp_path / "x.csv").write_text("\ufeff" + text)
    (window,) = Corpus(str(tmp_path / "x.csv"), ["x"]).windows(100)
    assert window.table.to_pydict() == {
        "id": [1, 2.5],
        "name": ["a", 'b\n"c"'],
        "x": ["7", "1 2"],
    }


def test_a_line_that_cannot_be_read_is_one_bad_row(tmp_path: Path) -> None:
    lines = [json.dumps({"id": i, "x": [i, i]}).encode() for i in range(30)]
    lines[3], lines[7], lines[11] = b'{"id": 3', b"[1]", b'{"id": "a", "x": [1]}'
    lines[12], lines[13], lines[14] = b'{"id": 1, "x": "a"}', b"\xff", b"[" * 10**5
    (tmp_path / "x.jsonl").write_bytes(b"\n\n".join(lines))
    windows = list(Corpus(str(tmp_path / "x.jsonl"), ["x"]).windows(10))
    bad = {each.first + row: why for each in windows for row, why in each.bad.items()}
    assert sorted(bad) == [3, 7, 11, 12, 13, 14]
    assert "no JSON" in bad[3] and "object" in bad[7] and "'a'" in bad[11] and "list" in bad[12]
    assert [row["id"] for row in rows_of(windows)] == [
        None if i in (3, 7, 11, 13, 14) else 1 if i == 12 else i for i in range(30)
    ]


def test_rows_with_columns_of_their_own_are_told_unless_columns_are_chosen(tmp_path: Path) -> None:
    rows = [{"x": [1]}] * 1000 + [{"x": [1], "later": 1}]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (window,) = Corpus(str(tmp_path), ["x"]).windows(2000)
    assert list(window.bad) == [1000] and "'later'" in window.bad[1000]
    (window,) = Corpus(str(tmp_path), ["x"], []).windows(2000)
    assert window.bad == {}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "there are no files"),
        (["a.parquet", "b.csv"], "files of several formats, csv, parquet"),
        (["a.txt"], "expected one of .parquet"),
        (["a.jsonl"], "no rows that can be read"),
    ],
)
def test_what_is_no_corpus_is_refused(tmp_path: Path, names: list[str], message: str) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(UnsupportedError, match=message):
        Corpus(str(tmp_path), ["x"])
    with pytest.raises((OnernnError, OSError)):
        Corpus(str(tmp_path / "absent"), ["x"])
