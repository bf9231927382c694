"""Corpora of Parquet and JSON lines, windows from any beginning."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onernn.ir.errors import ModelFormatError, OnernnError, ShapeError, UnsupportedError
from onernn.scoring.corpus import Corpus, Window

COUNT = 2500
ROWS = [{"id": i, "name": f'n "{i}", é', "tokens": [i] * (i % 5)} for i in range(COUNT)]
SPLIT = 1700


def write(folder: Path, kind: str) -> str:
    """The rows as two files, and what they are called."""
    for at, rows in enumerate((ROWS[:SPLIT], ROWS[SPLIT:])):
        file = folder / f"{at}.{kind}"
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=300)
        else:
            file.write_bytes(gzip.compress(lines) if kind == "jsonl.gz" else lines)
    return str(folder)


def rows_of(windows: Any) -> list[dict[str, Any]]:
    return [row for window in windows for row in window.table.to_pylist()]


def read(folder: Path, *chosen: Any) -> Window:
    """The one window of a folder; ``chosen``: columns to keep."""
    (window,) = Corpus(str(folder), ["x"], *chosen).windows(5000)
    return window


def read_lines(folder: Path, lines: Iterable[str]) -> Window:
    (folder / "x.jsonl").write_text("\n".join(lines))
    return read(folder)


def save_tables(folder: Path, *columns: dict[str, Any]) -> None:
    """A file of Parquet for each."""
    for at, each in enumerate(columns):
        pq.write_table(pa.table(each), folder / f"{at}.parquet")


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "jsonl.gz"])
def test_all_rows_come_in_order_and_a_window_is_the_same_wherever_reading_begins(
    tmp_path: Path, kind: str
) -> None:
    source = Corpus(write(tmp_path, kind), ["tokens"])
    for size in (700, 1024, 1700, 10_000):
        windows = list(source.windows(size))
        assert rows_of(windows) == ROWS
        assert [each.number for each in windows] == list(range(len(windows)))
        assert {each.table.num_rows for each in windows[:-1]} <= {size}
        again = list(Corpus(str(tmp_path), ["tokens"]).windows(size, {0, 1, 3}))
        assert {each.number for each in again} == {*range(len(windows))} - {0, 1, 3}
        assert all(each.table.equals(windows[each.number].table) for each in again)


def test_columns_are_kept_as_asked_and_folders_may_name_some(tmp_path: Path) -> None:
    (tmp_path / "year=2024").mkdir()
    write(tmp_path / "year=2024", "parquet")
    (window,) = Corpus(f"{tmp_path}", ["tokens"], ["year"]).windows(COUNT)
    assert window.table.column_names == ["year", "tokens"]
    assert window.table.column("year").unique().to_pylist() == [2024]
    with pytest.raises(ShapeError, match="column 'no': expected one of"):
        Corpus(str(tmp_path), ["tokens"], ["no"])


def test_files_of_parquet_may_lack_columns_and_have_other_types_but_no_column_is_lost(
    tmp_path: Path,
) -> None:
    tables = [{"x": [1, 2], "y": ["a", "b"]}, {"x": pa.array([3], pa.int8())}]
    save_tables(tmp_path, *tables, {"x": [4], "z": [1]})
    want = {"x": [1, 2, 3, 4], "y": ["a", "b", None, None], "z": [None, None, None, 1]}
    assert read(tmp_path).table.to_pydict() == want
    assert read(tmp_path, []).table.to_pydict() == {"x": want["x"]}


def test_lists_of_a_dictionary_are_read_from_several_row_groups(tmp_path: Path) -> None:
    words = pa.array(["a", None, "b", "a", "c"]).dictionary_encode()
    rows = pa.ListArray.from_arrays(pa.array([0, 2, 3, 5]), words)
    pq.write_table(pa.table({"x": rows}), tmp_path / "rows.parquet", row_group_size=1)
    (one,) = Corpus(str(tmp_path), ["x"]).windows(10)
    assert one.table["x"].to_pylist() == [["a", None], ["b"], ["a", "c"]]


@pytest.mark.parametrize(
    "column, text",
    [
        (pa.array([0, 10**18 + 1], pa.timestamp("ns")), '"2001-09-09 01:46:40.000000001"'),
        (pa.array([0, 10**7], pa.date32()), '"29349-01-26"'),
        (pa.array(["a", "b"], pa.string_view()), '"b"'),
        (pa.array([[0], [10**9 + 1]], pa.list_(pa.time64("ns"))), '"[ 00:00:01.000000001 ]"'),
        (pa.FixedShapeTensorArray.from_numpy_ndarray(np.float32([[1, 2], [3, 4]])), "[3.0, 4.0]"),
    ],
    ids=lambda each: getattr(each, "type", None) and str(each.type)[:12],
)
def test_a_rejected_row_has_a_text_whatever_its_other_columns_hold(
    column: Any, text: str, tmp_path: Path
) -> None:
    """Also values for which Python has no object."""
    save_tables(tmp_path, {"x": [1, 2], "kept": column})
    one = read(tmp_path)
    scored = pa.table({"rejected": pa.array([None, "a reason"])})
    assert one.rejected(scored)["text"].to_pylist() == [f'{{"x": 2, "kept": {text}}}']


def test_a_uri_is_a_corpus_and_hidden_names_are_none_of_it(tmp_path: Path) -> None:
    write(tmp_path, "parquet")
    for name in ("_0.parquet", ".1.parquet", "_scoring.json"):
        (tmp_path / name).write_text("nothing")
    assert rows_of(Corpus(f"file://{tmp_path}", ["tokens"]).windows(COUNT)) == ROWS
    assert rows_of(Corpus(str(tmp_path / "1.parquet"), ["tokens"]).windows(COUNT)) == ROWS[SPLIT:]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("PAR1")
    with pytest.raises(ModelFormatError, match="Parquet"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["x.csv", "x.txt", "x"])
def test_a_file_of_another_format_is_refused_and_parquet_has_any_name(
    tmp_path: Path, name: str
) -> None:
    file = tmp_path / name
    file.write_text("x\n1\n")
    expected = rf"{file}: .*expected Parquet or JSON lines .*, got {file.suffix or 'no suffix'};"
    with pytest.raises(ModelFormatError, match=expected):
        read(tmp_path)
    pq.write_table(pa.table({"x": [1]}), file)
    assert read(tmp_path).table.to_pydict() == {"x": [1]}


def test_a_missing_corpus_is_named_with_advice(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="check the path") as raised:
        Corpus(str(tmp_path / "no.parquet"), ["x"])
    assert raised.value.filename == str(tmp_path / "no.parquet")


@pytest.mark.parametrize("damage", ["magic", "footer", "length", "page", "empty", "gzip"])
def test_the_damaged_file_among_several_is_named(tmp_path: Path, damage: str) -> None:
    kind = "jsonl.gz" if damage == "gzip" else "parquet"
    write(tmp_path, kind)
    file = tmp_path / f"1.{kind}"
    content = bytearray(file.read_bytes())
    match damage:
        case "magic":
            content[-1] ^= 1
        case "footer":
            begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
            content[begin : begin + 40] = b"\xff" * 40
        case "length":
            content[-5] ^= 1
        case "page":
            content[4:4000] = b"\xff" * 3996
        case "empty":
            content.clear()
        case "gzip":
            content = content[: len(content) // 2]
    file.write_bytes(content)
    with pytest.raises(ModelFormatError, match=f"1.{kind}: "):
        list(Corpus(str(tmp_path), ["tokens"]).windows(1000))


def test_folders_whose_names_are_numbers_keep_their_zeros(tmp_path: Path) -> None:
    for code in ("007", "12"):
        (tmp_path / f"code={code}").mkdir()
        save_tables(tmp_path / f"code={code}", {"x": [1]})
    assert read(tmp_path).table["code"].to_pylist() == ["007", "12"]


def test_integers_that_other_files_would_round_are_refused(tmp_path: Path) -> None:
    exact = pa.array(["1.25"]).cast(pa.decimal128(9, 2))
    for second, named in (
        ([2**60 + 1], "1152921504606846977"),
        (exact, "'x': expected double, .* got decimal"),
    ):
        save_tables(tmp_path, {"x": [1.5]}, {"x": second})
        with pytest.raises(ModelFormatError, match=rf"1\.parquet: .*{named}"):
            read(tmp_path)


def test_columns_without_values_in_the_first_rows_get_the_type_of_later_ones(
    tmp_path: Path,
) -> None:
    rows = [{"x": [1], "late": None, "never": None, "lists": []}] * 1500
    rows.append({"x": [1], "late": "007", "never": None, "lists": [[1.5]]})
    window = read_lines(tmp_path, map(json.dumps, rows))
    assert window.bad == {} and window.table.to_pylist() == rows
    assert window.table.schema.field("never").type == pa.string()


@pytest.mark.parametrize("shape", ["%s", "[0.5, %s]", '{"a": %s}', '[{"a": [%s]}]'])
def test_a_number_beyond_float64_is_not_infinity(tmp_path: Path, shape: str) -> None:
    lines = [f'{{"x": [1], "k": {shape % number}}}' for number in ("1.5", "1e999", "-Infinity")]
    window = read_lines(tmp_path, lines)
    assert (
        list(window.bad) == [1]
        and "1e999: expected a number in the range of float64" in window.bad[1]
    )
    kept = window.table["k"].to_pylist()
    assert kept == [json.loads(shape % "1.5"), None, json.loads(shape % "-Infinity")]


@pytest.mark.parametrize("first", [1, 1.5, "a", True, {"a": 1}, [1], [True], [{"a": "b"}]])
def test_a_json_value_is_kept_or_its_row_is_rejected(tmp_path: Path, first: Any) -> None:
    values = [7, 7.5, -0.0, "007", "7", True, False, None, [], [7], [True], ["7"], {"a": 2}, {}]
    values += [{"a": None}, {"b": 1}, {"a": 1, "b": 2}, [{"a": 1}], [None], 2**53 + 1, 2**63, 1e300]
    lines = [{"k": first, "x": [1]}] * 1000 + [{"k": value, "x": [1]} for value in values]
    window = read_lines(tmp_path, map(json.dumps, lines))
    kept = window.table["k"].to_pylist()[1000:]
    for row, (value, got) in enumerate(zip(values, kept, strict=True), 1000):
        if row in window.bad:
            assert got is None and json.dumps(value) in window.bad[row]
        else:
            same = {"a": None} if value == {} and isinstance(first, dict) else value
            assert got == same and isinstance(got, bool) == isinstance(value, bool), (value, got)
            assert isinstance(got, str) == isinstance(value, str)
    assert len(window.bad) < len(values) - 1 and window.bad


BAD: dict[int, tuple[bytes, str]] = {
    3: (b'{"id": 3', "delimiter"),
    7: (b"[1]", "expected a JSON object"),
    8: (b"null", "expected a JSON object"),
    1011: (b'{"id": "a", "x": [1]}', "'a'"),
    1012: (b'{"id": 1, "x": "a"}', "column 'x': expected list<"),
    1013: (b"\xff", "decode"),
    1014: (b"[" * 10**5, "recursion"),
    1015: (b'{"id": 1, "x": [1.5]}', "1.5"),
    1016: (b'{"id": 1, "x": [99999999999999999999]}', "too large"),
    1018: (b'{"id": 1, "x": [1], "id": 2}', "each name once"),
    1019: (b'{"id": true, "x": [1]}', "True"),
    1020: (b'{"id": "007", "x": [1]}', "'007'"),
    1021: (b'{"id": 7.50, "x": [1]}', "7.5"),
    1022: (b'{"id": 1, "x": [true]}', "[True]"),
    1023: (b'{"id": 1, "x": ["1"]}', "['1']"),
    1024: (b'{"id": 1, "x": [1e999]}', "[inf]"),
    1017: (b'{"id": 1, "x": [1], "later": 1}', "'later'"),
}
"""Lines by their number, and what is said of them; the first 1000 give the columns' types."""


def test_a_line_that_cannot_be_read_is_one_bad_row(tmp_path: Path) -> None:
    lines = [json.dumps({"id": i, "x": [i, i]}).encode() for i in range(1030)]
    for row, (line, _) in BAD.items():
        lines[row] = line
    (tmp_path / "x.jsonl").write_bytes(b"\n\n".join(lines))
    windows = list(Corpus(str(tmp_path / "x.jsonl"), ["x"]).windows(10))
    bad = {
        10 * each.number + row: f"{each.origins[row]}: {why}"
        for each in windows
        for row, why in each.bad.items()
    }
    assert sorted(bad) == sorted(BAD)
    for row, (line, said) in BAD.items():
        where = f"x.jsonl, line {2 * row + 1}: "
        assert bad[row].startswith(where) and said in bad[row], bad[row]
        assert line.decode(errors="backslashreplace")[:10_000] in bad[row]
    want = [None if row in BAD else row for row in range(1030)]
    assert [row["id"] for row in rows_of(windows)] == want


def test_first_rows_of_several_types_have_the_type_of_most_and_others_are_bad(
    tmp_path: Path,
) -> None:
    lines = ['{"x": "a"}', '{"x": [1]}', '{"x": null}', '{"x": [2]}']
    window = read_lines(tmp_path, lines)
    assert window.table["x"].to_pylist() == [None, [1], None, [2]]
    assert list(window.bad) == [0] and "column 'x': expected list<" in window.bad[0]


def test_the_first_rows_may_all_be_bad(tmp_path: Path) -> None:
    window = read_lines(tmp_path, ["{"] * 1500 + ['{"x": [1]}'])
    assert list(window.bad) == [*range(1500)]
    assert window.table["x"].to_pylist() == [None] * 1500 + [[1]]


def test_columns_that_come_late_do_not_matter_where_columns_are_chosen(tmp_path: Path) -> None:
    rows = [{"x": [1]}] * 1000 + [{"x": [1], "later": 1}]
    assert list(read_lines(tmp_path, map(json.dumps, rows)).bad) == [1000]
    window = read(tmp_path, [])
    assert window.bad == {} and window.table.num_rows == 1001


def test_numbers_beyond_float64_do_not_matter_in_columns_that_are_not_read(tmp_path: Path) -> None:
    lines = ['{"x": [1], "k": 1e999, "m": 1}', '{"x": [1], "k": 2, "m": -Infinity}']
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    assert read(tmp_path, ["m"]).bad == {}
    assert list(read(tmp_path, ["k"]).bad) == [0]


@pytest.mark.parametrize(
    "names, message",
    [
        ([], "got no files"),
        (["a.parquet", "b.jsonl"], "got JSON and other files"),
        (["a.jsonl"], "expected a JSON object per line, got none"),
    ],
)
def test_what_is_no_corpus_is_refused(tmp_path: Path, names: list[str], message: str) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(UnsupportedError, match=message):
        Corpus(str(tmp_path), ["x"])
    with pytest.raises((OnernnError, OSError)):
        Corpus(str(tmp_path / "absent"), ["x"])
