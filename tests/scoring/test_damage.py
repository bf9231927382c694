"""Damaged folders of `onernn score`: what is missing or changed is named, and scored anew."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.scoring import INPUTS, MODEL, corpus, files

import onernn
from onernn.ir.errors import ShapeError, UnsupportedError
from onernn.scoring.folder import _read_note
from onernn.scoring.runner import Summary, score

ROWS, WINDOW, BEGUN = 39, 8, 4
"""Five windows, the last one not full; an unfinished folder has the first four."""
BAD = {1: None, 17: [99], 18: [-1], 33: None}
"""Rows of windows 0, 2 and 4."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("corpus") / "corpus.parquet"
    pq.write_table(corpus(ROWS, longest=8, bad=BAD), file)
    return file


@pytest.fixture(scope="module")
def run(source: Path) -> Callable[..., Summary]:
    def run(folder: Path, model: Any = MODEL, corpus: Path = source, **options: Any) -> Summary:
        given: dict[str, Any] = {"inputs": INPUTS, "window": WINDOW, "workers": 1, **options}
        return score(model, corpus, folder, **given)

    return run


@pytest.fixture(scope="module")
def finished(run: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "out"
    assert run(folder).rows == ROWS
    return folder


@pytest.fixture(scope="module")
def unfinished(run: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unfinished") / "out"

    class Stopped(Exception):
        pass

    def stop(rows: int, rejected: int, total: int) -> None:
        assert total == ROWS
        if rows == BEGUN * WINDOW:
            raise Stopped

    with pytest.raises(Stopped):
        run(folder, progress=stop)
    part(folder, BEGUN).unlink(missing_ok=True)  # a thread may have been ahead
    return folder


@pytest.fixture(params=["finished", "unfinished"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(request.getfixturevalue(request.param), tmp_path / "out"))


def part(folder: Path, index: int) -> Path:
    return folder / f"part-{index:06}.parquet"


def manifest(folder: Path) -> Path:
    return folder / "_scoring.json"


def truncate(file: Path, share: float = 0.5) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def rewritten(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], Any]:
    """A file whose rows somebody changed; its metadata stays."""

    def damage(file: Path) -> None:
        note = {b"onernn": pq.read_metadata(file).metadata[b"onernn"]}
        table = pq.read_table(file).replace_schema_metadata(note)
        pq.write_table(change(table), file, compression="zstd", write_page_checksum=True)

    return damage


def edit(table: pa.Table) -> pa.Table:
    column = pa.array([7, *table["id"].to_pylist()[1:]])
    return table.set_column(0, "id", column)


def swap(file: Path) -> None:
    other = part(file.parent, 2)
    one, two = file.read_bytes(), other.read_bytes()
    file.write_bytes(two)
    other.write_bytes(one)


PART = "part-000001.parquet"
DAMAGE: dict[str, Callable[[Path], Any]] = {
    "deleted": Path.unlink,
    "all deleted": lambda file: [each.unlink() for each in file.parent.glob("part-*")],
    "truncated": truncate,
    "without its last byte": lambda file: truncate(file, 0.9999),
    "emptied": lambda file: file.write_bytes(b""),
    "a table of somebody else": lambda file: pq.write_table(pa.table({"id": [1]}), file),
    "another file being written": lambda file: (file.parent / ".onernn-0.part").touch(),
    "rows removed": rewritten(lambda t: t.slice(0, 4)),
    "a value edited": rewritten(edit),
    "a column added": rewritten(lambda t: t.append_column("more", t["id"])),
    "no metadata": rewritten(lambda t: t.replace_schema_metadata(None)),
    "another part in its place": lambda file: part(file.parent, 0).replace(file),
    "swapped with another part": swap,
    "bytes after the end": lambda file: file.open("ab").write(b"more"),
    "a huge length of the footer": lambda file: flip(file, -5),
    "nothing but a footer": lambda file: file.write_bytes(b"\0\0\0\0PAR1"),
}
"""What happens to the file of window 1."""


CASES = [(how, ("finished", "unfinished")[k % 2]) for k, how in enumerate(DAMAGE)]
"""Each damage once: a folder is read alike before and after the end."""


@pytest.mark.parametrize("how, folder", CASES, indirect=["folder"])
def test_what_is_damaged_is_named_and_gets_its_bytes_again(
    run: Any, finished: Path, folder: Path, how: str
) -> None:
    DAMAGE[how](part(folder, 1))
    there = (folder / PART).exists()
    summary = run(folder)
    assert (summary.rows, summary.rejected, summary.windows) == (ROWS, len(BAD), 5)
    assert files(folder) == files(finished)
    named = any(PART in each for each in summary.repaired)
    assert named == (there and how != "another file being written"), summary.repaired
    again = run(folder)
    assert (again.rows, again.windows_before, again.repaired) == (ROWS, 5, ())


@pytest.mark.parametrize("other", ["model", "input", "options"])
def test_a_part_of_another_scoring_is_scored_again(
    run: Any, finished: Path, folder: Path, source: Path, tmp_path: Path, other: str
) -> None:
    options: dict[str, Any] = {}
    match other:
        case "model":  # an edge more makes the layers' numbers no others
            model = replace(onernn.load(MODEL), name="another")
            name = max(model.constants, key=lambda name: model.constants[name].size)
            changed = model.constants[name] * np.float32(1.5)
            options["model"] = replace(model, constants={**model.constants, name: changed})
        case "input":
            options["corpus"] = shutil.copy(source, tmp_path / "corpus.parquet")
        case "options":
            options["words"] = 19
    run(tmp_path / "other", **options)
    shutil.copy(part(tmp_path / "other", 1), part(folder, 1))
    (repaired,) = run(folder).repaired
    assert PART in repaired and "another model, corpus or options" in repaired
    assert files(folder) == files(finished)


def test_every_bit_of_a_part_counts(finished: Path, run: Any, tmp_path: Path) -> None:
    """A damaged part is never taken for a whole one, wherever the damage is."""
    whole = part(finished, 1).read_bytes()
    note = json.loads(pq.read_metadata(part(finished, 1)).metadata[b"onernn"])
    file = tmp_path / "part"
    rng = np.random.default_rng(0)
    for at in {*rng.integers(0, len(whole), 100).tolist(), *range(len(whole) - 20, len(whole))}:
        file.write_bytes(whole)
        flip(file, at)
        assert isinstance(_read_note(pa.OSFile(str(file))), str), at
    file.write_bytes(whole)
    assert _read_note(pa.OSFile(str(file))) == note
    assert (note["window"], note["rows"], note["rejected"]) == (1, 8, 0)


def a_link(folder: Path, name: str) -> None:
    part(folder, 1).replace(folder / "_moved.parquet")
    (folder / name).symlink_to("_moved.parquet")


FOREIGN: dict[str, Callable[[Path], Any]] = {
    "other.parquet": lambda f: shutil.copy(part(f, 1), f / "other.parquet"),
    "part-000005.parquet": lambda f: shutil.copy(part(f, 1), part(f, 5)),
    "part-1.parquet": lambda f: part(f, 1).replace(f / "part-1.parquet"),
    "more": lambda f: (f / "more").mkdir(),
    "part-000001.parquet": lambda f: a_link(f, PART),
    "part-000004.parquet": lambda f: (part(f, 4).unlink(missing_ok=True), part(f, 4).mkdir()),
    "part-000002.parquet": lambda f: (part(f, 2).unlink(), os.mkfifo(part(f, 2))),
    "_scoring.json": lambda f: (
        manifest(f).replace(f / "_kept.json"),
        manifest(f).symlink_to("_kept.json"),
    ),
}
"""Files, links, folders and devices that no run writes into a folder."""


@pytest.mark.parametrize("name", FOREIGN)
def test_files_that_are_none_of_the_scoring_are_an_error(run: Any, folder: Path, name: str) -> None:
    FOREIGN[name](folder)
    before = {each.name for each in folder.iterdir()}
    with pytest.raises(UnsupportedError) as error:
        run(folder)
    assert name in str(error.value)
    assert {each.name for each in folder.iterdir()} == before


def test_a_part_more_is_an_error_where_only_the_end_shows_it(
    run: Any, tmp_path: Path, source: Path
) -> None:
    lines = tmp_path / "corpus.jsonl"
    lines.write_text("\n".join(map(json.dumps, pq.read_table(source).to_pylist())))
    folder = tmp_path / "out"
    run(folder, corpus=lines)
    shutil.copy(part(folder, 1), part(folder, 5))
    with pytest.raises(UnsupportedError, match=r"part-000005\.parquet"):
        run(folder, corpus=lines)


def test_a_corpus_that_changes_during_the_run_is_an_error(
    run: Any, tmp_path: Path, source: Path
) -> None:
    copy = Path(shutil.copy(source, tmp_path / "corpus.parquet"))

    def touch(rows: int, rejected: int, total: int) -> None:
        os.utime(copy, ns=(1, rows))

    with pytest.raises(UnsupportedError, match=r"corpus\.parquet"):
        run(tmp_path / "out", corpus=copy, progress=touch)


def test_strict_notices_rows_that_an_earlier_run_rejected(run: Any, folder: Path) -> None:
    with pytest.raises(ShapeError, match="rejected"):
        run(folder, strict=True)


@pytest.mark.parametrize("kind", ["gone", "empty", "cut", "flipped", "no JSON", "of another"])
def test_a_damaged_manifest_is_refused_and_nothing_is_overwritten(
    run: Any, folder: Path, tmp_path: Path, kind: str
) -> None:
    file = manifest(folder)
    match kind:
        case "gone":
            file.unlink()
        case "empty":
            file.write_bytes(b"")
        case "cut":
            truncate(file, 0.1)
        case "flipped":
            flip(file, file.read_bytes().index(b"corpus.parquet"))
        case "no JSON":
            file.write_bytes(b"[1]\n\xff\n")
        case "of another":
            run(tmp_path / "other", window=9)
            shutil.copy(manifest(tmp_path / "other"), file)
    before = files(folder)
    with pytest.raises(UnsupportedError, match=str(folder)):
        run(folder)
    assert files(folder) == before
