"""Folders that are continued: in other words, from touched files, after bad and deadly rows."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.graphs import new_nodes
from support.interpreters import run_python
from support.scoring import INPUTS, MODEL, corpus, files, reasons_of

from onernn import Graph
from onernn.ir.errors import OnernnError, ShapeError, UnsupportedError
from onernn.ir.graph import Value
from onernn.scoring import Summary, folder, score

TAGS = "save_infer_model/scale_1.tmp_0"
ROWS, WINDOW = 39, 8
BAD = {1: None, 17: [99], 18: [-1]}
GIVEN: dict[str, Any] = {"inputs": INPUTS, "window": WINDOW, "workers": 1}


def run(source: Path, out: Path, **options: Any) -> Summary:
    return score(MODEL, source, out, **{**GIVEN, **options})


def command(*words: Any) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "onernn.cli", "score", *words)


def parts(out: Path) -> dict[str, bytes]:
    return {name: each for name, each in files(out).items() if name.startswith("part-")}


def save(file: Path, rows: int = ROWS, **columns: Any) -> Path:
    table = corpus(rows, longest=8, bad=BAD)
    for name, column in columns.items():
        table = table.append_column(name, [column])
    pq.write_table(table, file)
    return file


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save(tmp_path / "corpus.parquet")


def rewrite_manifest(out: Path, **changes: Any) -> None:
    """Changes what a folder says of how it was begun, as another onernn would have written it."""
    content = {**json.loads((out / "_scoring.json").read_text()), **changes}
    content["request"] = folder._digest(content)
    (out / "_scoring.json").write_text(json.dumps(content))


def test_a_command_and_python_continue_each_other_in_any_spelling(
    source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ["--input", "letters=text", "--window", WINDOW, "--output", f"{TAGS}=tags"]
    command(MODEL, os.path.relpath(source), os.path.relpath(out), *words)
    before = files(out)
    (out / "part-000001.parquet").unlink()
    spellings: list[dict[str, Any]] = [
        {},
        {"dtype": "f32", "backend": "auto", "max_bytes": None, "batch_axis": {"letters": 0}},
        {"keep": ("id", "text"), "types": {TAGS: "list<int64>"}, "workers": 2},
    ]
    for each in spellings:
        summary = run(source, out, outputs={TAGS: "tags"}, **each)
        assert summary.windows == 5 and not summary.repaired
        assert files(out) == before
    (out / "part-000002.parquet").unlink()
    command(MODEL, source, out, *words, "--dtype", "f32")
    assert files(out) == before


@pytest.mark.parametrize(
    "key, value",
    [
        ("onernn", "0.0.1"),
        ("instruction_set", "another"),
        ("columns", {}),
        ("outputs", {TAGS: "tags", "save_infer_model/scale_0.tmp_0": "a name of many words"}),
    ],
)
def test_another_version_or_instruction_set_is_refused_by_name(
    source: Path, tmp_path: Path, key: str, value: Any
) -> None:
    out = tmp_path / "out"
    run(source, out)
    rewrite_manifest(out, **{key: value})
    before = files(out)
    was = re.escape(json.dumps(value))
    with pytest.raises(UnsupportedError, match=f"expected {key} {was}, "):
        run(source, out)
    assert files(out) == before


def test_a_folder_of_an_older_onernn_is_refused_and_kept(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(source, out)
    old = {"model": "0" * 64, "window": WINDOW, "keep": None, "inputs": INPUTS, "dtype": "f32"}
    (out / "_scoring.json").write_text(json.dumps({**old, "corpus": []}))
    before = files(out)
    with pytest.raises(UnsupportedError, match="older onernn"):
        run(source, out)
    assert files(out) == before


def touch(file: Path) -> Path:
    os.utime(file, ns=(1, 1))
    return file


def rename(file: Path) -> Path:
    return file.rename(file.with_name("renamed.parquet"))


def pack(file: Path) -> Path:
    pq.write_table(pq.read_table(file), file, compression="zstd", row_group_size=7)
    return file


def with_column(file: Path) -> Path:
    return save(file, more=list(range(ROWS)))


@pytest.mark.parametrize("change", [touch, rename, pack, with_column])
def test_files_that_were_touched_are_compared_by_their_rows(
    source: Path, tmp_path: Path, change: Callable[[Path], Path]
) -> None:
    out = tmp_path / "out"
    run(source, out, keep=["id"])
    (out / "part-000003.parquet").unlink()
    before = parts(out)
    source = change(source)
    for times in (4, 5):
        summary = run(source, out, keep=["id"])
        assert (summary.windows, summary.windows_before, summary.repaired) == (5, times, ())
        assert before.items() <= parts(out).items()


def test_a_window_of_rejected_rows_has_the_same_bytes_in_a_run_that_continues(
    source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run(source, out, window=1)
    whole = parts(out)
    (out / "part-000017.parquet").unlink()
    assert run(source, out, window=1).windows_before == ROWS - 1
    assert parts(out) == whole


@pytest.mark.parametrize("index", [pa.int8(), pa.int32()])
def test_a_column_of_a_dictionary_has_the_same_bytes_in_a_run_that_continues(
    index: pa.DataType, source: Path, tmp_path: Path
) -> None:
    """A file without dictionary pages: the reader lists the values in the order of its reading."""
    kind, table = pa.dictionary(index, pa.string()), pq.read_table(source)
    words = pa.array([None if row == 5 else "abc"[-row % 3] for row in range(ROWS)])
    table = table.append_column("word", words.cast(kind))
    pq.write_table(table, source, row_group_size=2, use_dictionary=False)
    out = tmp_path / "out"
    run(source, out)
    whole = parts(out)
    for name in [*whole][1::2]:
        (out / name).unlink()
    run(source, out)
    assert parts(out) == whole
    assert pq.read_table(out)["word"].to_pylist() == words.to_pylist()
    assert pq.read_schema(out / "part-000000.parquet").field("word").type == kind


def test_rows_that_were_changed_are_refused_or_scored_again(source: Path, tmp_path: Path) -> None:
    out, table = tmp_path / "out", pq.read_table(source)
    run(source, out)
    before = files(out)
    text = table["text"].to_pylist()
    text[20] = [1, 2, 3]
    pq.write_table(table.set_column(1, "text", pa.array(text, table["text"].type)), source)
    with pytest.raises(UnsupportedError, match=r"window 2 \(corpus.parquet, row 16 to .*row 23\)"):
        run(source, out)
    assert files(out) == before
    done = command(
        MODEL, source, out, "--input", "letters=text", "--window", WINDOW, "--accept-input"
    )
    assert "part-000002.parquet" in done.stderr
    run(source, tmp_path / "new")
    unchanged = parts(out).items() & before.items()
    assert len(unchanged) == 4
    assert pq.read_table(out).equals(pq.read_table(tmp_path / "new"))
    assert run(source, out).windows_before == 5


def test_a_corpus_that_lost_rows_is_refused(source: Path, tmp_path: Path) -> None:
    lines, out = tmp_path / "x.jsonl", tmp_path / "out"
    rows = [*map(json.dumps, pq.read_table(source).to_pylist())]
    lines.write_text("\n".join(rows))
    run(lines, out)
    before = files(out)
    lines.write_text("\n".join(rows[:30]))
    for accept, reason in ((False, "window 3"), (True, "part-000004.parquet")):
        with pytest.raises(UnsupportedError, match=reason):
            run(lines, out, accept_input=accept)
        assert parts(out).keys() == {name for name in before if name.startswith("part-")}


def open_type() -> Graph:
    """A model whose output has a type that only a row shows."""
    return Graph("g", (Value("x", None, (None, 2)),), (Value("y"),), new_nodes("y = Relu x"), {})


def test_windows_without_a_row_wait_for_the_types_that_others_show(tmp_path: Path) -> None:
    rows: list[Any] = [None] * 9 + [[1.5, -1]] * 3
    pq.write_table(pa.table({"x": pa.array(rows, pa.list_(pa.float32()))}), tmp_path / "x.parquet")
    summary = score(open_type(), tmp_path / "x.parquet", tmp_path / "out", window=4)
    got = pq.read_table(tmp_path / "out")
    assert (summary.rows, summary.rejected, summary.windows) == (12, 9, 3)
    assert got["y"].to_pylist() == [None] * 9 + [[1.5, 0]] * 3


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_columns_that_are_not_kept_may_be_of_any_types(tmp_path: Path, kind: str) -> None:
    letters = pa.array([[1, 2], [3]], pa.list_(pa.int64()))
    (tmp_path / "in").mkdir()
    for at, other in enumerate((pa.array([1, 2]), pa.array(["a", "b"]))):
        file = tmp_path / "in" / f"{at}.{kind}"
        table = pa.table({"letters": letters, "other": other, "tags": other})
        if kind == "parquet":
            pq.write_table(table, file)
        else:
            file.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    with pytest.raises(OnernnError, match="keep"):
        score(MODEL, tmp_path / "in", tmp_path / "out", outputs={TAGS: "tags"})
    options: Any = {"keep": ["letters"], "outputs": {TAGS: "tags"}}
    summary = score(MODEL, tmp_path / "in", tmp_path / "out", **options)
    assert (summary.rows, summary.rejected) == (4, 0)


LINES = ['{"id": 0, "text": [1]}', '{"id": 1, "text": [1', "", '{"id": 2, "text": [99], "é": 1}']


def test_rejected_rows_are_in_a_folder_with_file_line_and_text(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("\n".join([LINES[0]] * 9))
    (tmp_path / "in" / "b.jsonl").write_text("\n".join(LINES))
    out, bad = tmp_path / "out", tmp_path / "bad"
    run(tmp_path / "in", out, keep=["id"], rejected=bad)
    rows = pq.read_table(bad).to_pylist()
    assert [(row["file"], row["line"], row["row"], row["text"]) for row in rows] == [
        ("b.jsonl", 2, None, LINES[1]),
        ("b.jsonl", 4, None, LINES[3]),
    ]
    reasons = reasons_of(pq.read_table(out))
    assert [*reasons] == [10, 11]
    for row, why in zip(rows, reasons.values(), strict=True):
        assert why == f"{row['file']}, line {row['line']}: {row['reason']}"
    assert os.listdir(bad) == ["part-000001.parquet", "_scoring.json"] or len(os.listdir(bad)) == 2


def test_the_folder_of_rejected_rows_may_be_asked_for_later_and_is_repaired(
    source: Path, tmp_path: Path
) -> None:
    out, bad = tmp_path / "out", tmp_path / "bad"
    run(source, out)
    before = files(out)
    for damage in (lambda: None, lambda: (bad / "part-000002.parquet").write_bytes(b"")):
        damage()
        run(source, out, rejected=bad)
        rows = pq.read_table(bad).to_pylist()
        assert [(row["file"], row["row"]) for row in rows] == [
            ("corpus.parquet", row) for row in BAD
        ]
        assert [json.loads(row["text"])["text"] for row in rows] == [*BAD.values()]
        assert files(out) == before
    assert run(source, out, rejected=bad).windows_before == 5
    for wrong in (out, out / "bad", tmp_path, source, tmp_path / "other"):
        if wrong == tmp_path / "other":
            shutil.copytree(out, wrong)
        with pytest.raises(UnsupportedError):
            run(source, out, rejected=wrong)


def test_a_folder_inside_another_one_is_refused_unless_its_name_is_hidden(
    source: Path, tmp_path: Path
) -> None:
    for where in (".", "out", "file:"):
        out = tmp_path / where
        with pytest.raises(UnsupportedError, match="readers"):
            run(tmp_path, f"file://{tmp_path}/out" if where == "file:" else out)
    assert os.listdir(tmp_path) == [source.name]
    run(tmp_path, tmp_path / "_out", rejected=tmp_path / "_out" / "_bad")
    assert run(tmp_path, tmp_path / "_out").windows_before == 5


@pytest.mark.parametrize("content", ["[1]", '{"a": 3}', '{"1": "x"}', '{"1": -5}', "{", "\0"])
def test_notes_of_attempts_that_nobody_wrote_do_no_harm(
    source: Path, tmp_path: Path, content: str
) -> None:
    out = tmp_path / "out"
    run(source, out)
    (out / "part-000001.parquet").unlink()
    (out / "_attempts.json").write_text(content)
    assert run(source, out).windows == 5
    assert "_attempts.json" not in os.listdir(out) or content[0] != "{"


DEADLY = """
import os, sys
from onernn.scoring import runner

class Deadly(runner.Scorer):
    def __call__(self, rows, known_bad=None):
        if 20 in rows["id"].to_pylist():
            os.kill(os.getpid(), 9)
        return super().__call__(rows, known_bad)

if sys.argv[4] == "deadly":
    runner.Scorer = Deadly
try:
    runner.score(*sys.argv[1:4], inputs={"letters": "text"}, window=8, workers=2)
except Exception as error:
    print(error)
"""


def test_a_window_that_kills_its_process_is_given_up_after_three_and_named(
    source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"

    def attempt(kind: str) -> subprocess.CompletedProcess[str]:
        return run_python("-c", DEADLY, MODEL, source, out, kind, status=None)

    for _ in range(3):
        assert attempt("deadly").returncode == -9
    told = attempt("deadly").stdout
    assert "window 2 (corpus.parquet, row 16 to corpus.parquet, row 23)" in told
    names = {f"part-00000{k}.parquet" for k in (0, 1, 3, 4)}
    assert names == {each for each in os.listdir(out) if each.startswith("part-")}
    assert attempt("deadly").returncode == -9  # the same command tries again
    assert attempt("well").stdout == ""
    run(source, tmp_path / "new")
    assert files(out) == files(tmp_path / "new")


def test_strict_names_the_file_and_row(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match=r"^corpus\.parquet, row 1: column 'text': null$"):
        run(source, tmp_path / "out", strict=True)


def test_memory_depends_on_the_window_not_on_a_row_group(tmp_path: Path) -> None:
    count = 300_000
    values = pa.array(np.zeros(100 * count, np.int64))
    offsets = pa.array(np.arange(0, 100 * count + 1, 100, dtype=np.int32))
    lists = pa.ListArray.from_arrays(offsets, values)
    table = pa.table({"x": lists, "more": pa.array(np.random.default_rng(0).random(count))})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=count, compression="none")
    code = """
import sys, pyarrow as pa
from onernn.scoring.corpus import Corpus
rows = sum(w.table.num_rows for w in Corpus(sys.argv[1], ["x"], ["more"]).windows(1000))
print(rows, pa.default_memory_pool().max_memory())
"""
    rows, most = map(int, run_python("-c", code, tmp_path / "x.parquet").stdout.split())
    assert rows == count and most < 30 * 2**20 < values.nbytes / 5
