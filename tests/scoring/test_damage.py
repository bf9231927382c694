"""Damaged folders of `onernn score`: what is missing or changed is named, and scored anew."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onernn.ir.errors import UnsupportedError
from onernn.scoring.runner import Summary, score

ROWS, WINDOW, BEGUN = 39, 8, 4
"""Five windows, the last one not full; an unfinished folder has the first four."""
BAD = {1: None, 17: [99], 18: [-1], 33: None}
"""Rows of windows 0, 2 and 4."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    rows: list[Any] = [rng.integers(0, 26, n).tolist() for n in rng.integers(0, 9, ROWS)]
    for row, bad in BAD.items():
        rows[row] = bad
    file = tmp_path_factory.mktemp("corpus") / "corpus.parquet"
    pq.write_table(pa.table({"id": range(ROWS), "letters": rows}), file)
    return file


@pytest.fixture(scope="module")
def run(repo: Path, corpus: Path) -> Callable[..., Summary]:
    def run(folder: Path, **options: Any) -> Summary:
        given: dict[str, Any] = {"window": WINDOW, "workers": 1, **options}
        return score(repo / "examples" / "segmenter", given.pop("corpus", corpus), folder, **given)

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

    def stop(now: Any) -> None:
        if now.rows == BEGUN * WINDOW:
            raise Stopped

    with pytest.raises(Stopped):
        run(folder, progress=stop)
    part(folder, BEGUN).unlink(missing_ok=True)  # the worker may have been ahead
    rejects(folder, BEGUN).unlink(missing_ok=True)
    return folder


@pytest.fixture(params=["finished", "unfinished"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(request.getfixturevalue(request.param), tmp_path / "out"))


def part(folder: Path, index: int) -> Path:
    return folder / f"part-{index:06}.parquet"


def rejects(folder: Path, index: int) -> Path:
    return folder / "rejected" / f"_part-{index:06}.jsonl"


def manifest(folder: Path) -> Path:
    (file,) = folder.glob("_scoring*")
    return file


def files(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def truncate(file: Path, share: float = 0.5) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def exchange(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def as_folder(file: Path, *names: str) -> None:
    file.unlink()
    file.mkdir()
    for name in names:
        (file / name).write_text("mine")


def as_link(file: Path) -> None:
    file.unlink()
    file.symlink_to("gone.parquet")


def fewer_rows(file: Path) -> None:
    pq.write_table(pq.read_table(file).slice(1), file, compression="zstd")


def without_parts(folder: Path) -> None:
    for file in folder.glob("part-*"):
        file.unlink()


def without_line(folder: Path, index: int) -> None:
    lines = manifest(folder).read_text().splitlines(keepends=True)
    assert f'"window": {index}' in lines[1 + index]
    del lines[1 + index]
    manifest(folder).write_text("".join(lines))


PART, LAST, REJECTS = "part-000001.parquet", "part-000003.parquet", "_part-000002.jsonl"
DAMAGE: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "the first part deleted": (lambda f: part(f, 0).unlink(), ["part-000000.parquet"]),
    "a part deleted": (lambda f: part(f, 1).unlink(), [PART]),
    "the last part deleted": (lambda f: part(f, 3).unlink(), [LAST]),
    "all parts deleted": (without_parts, [PART, LAST]),
    "a part truncated": (lambda f: truncate(part(f, 1)), [PART]),
    "the last part truncated": (lambda f: truncate(part(f, 3)), [LAST]),
    "a part without its last byte": (lambda f: truncate(part(f, 3), 0.9999), [LAST]),
    "a part emptied": (lambda f: part(f, 1).write_bytes(b""), [PART]),
    "a bit of a value flipped": (lambda f: flip(part(f, 1), 60), [PART]),
    "a bit of a footer flipped": (lambda f: flip(part(f, 1), -20), [PART]),
    "bytes behind a part": (
        lambda f: part(f, 1).write_bytes(part(f, 1).read_bytes() + b"more"),
        [PART],
    ),
    "two parts exchanged": (lambda f: exchange(part(f, 1), part(f, 3)), [PART, LAST]),
    "a part copied over another": (lambda f: shutil.copy(part(f, 3), part(f, 1)), [PART]),
    "a part with fewer rows": (lambda f: fewer_rows(part(f, 1)), [PART]),
    "a part replaced by a link": (lambda f: as_link(part(f, 1)), [PART]),
    "rejects removed": (lambda f: rejects(f, 2).unlink(), [REJECTS]),
    "all rejects removed": (lambda f: shutil.rmtree(f / "rejected"), [REJECTS]),
    "rejects truncated": (lambda f: truncate(rejects(f, 2)), [REJECTS]),
    "rejects emptied": (lambda f: rejects(f, 2).write_bytes(b""), [REJECTS]),
    "rejects of another window": (lambda f: shutil.copy(rejects(f, 0), rejects(f, 2)), [REJECTS]),
    "rejects left over": (lambda f: shutil.copy(rejects(f, 0), rejects(f, 1)), ["_part-000001"]),
    "a line of the manifest removed": (lambda f: without_line(f, 1), []),
    "the manifest without its last bytes": (lambda f: truncate(manifest(f), 0.95), []),
    "the manifest with a torn line": (
        lambda f: manifest(f).write_bytes(manifest(f).read_bytes() + b'{"window": 9'),
        [],
    ),
}


CASES = [(how, ("finished", "unfinished")[k % 2]) for k, how in enumerate(DAMAGE)]
"""Each damage once: parts, rejects and the manifest are read alike before and after the end."""


@pytest.mark.parametrize(("how", "folder"), CASES, indirect=["folder"])
@pytest.mark.long
def test_what_is_damaged_is_named_and_gets_its_bytes_again(
    run: Any, finished: Path, folder: Path, how: str
) -> None:
    damage, named = DAMAGE[how]
    damage(folder)
    summary = run(folder)
    assert (summary.rows, summary.rejected, summary.windows) == (ROWS, len(BAD), 5)
    assert files(folder) == files(finished)
    said = "\n".join(summary.repaired)
    assert all(name in said for name in named), said
    again = run(folder)
    assert (again.rows, again.windows_before, again.repaired) == (ROWS, 5, ())


@pytest.mark.parametrize(
    ("put", "name"),
    [
        (lambda f: as_folder(part(f, 1), "mine"), PART),
        (lambda f: as_folder(rejects(f, 2), "mine"), f"rejected/{REJECTS}"),
        (lambda f: shutil.rmtree(f / "rejected") or (f / "rejected").touch(), "rejected"),
    ],
    ids=["folder", "folder of rejects", "file"],
)
def test_what_somebody_put_in_place_of_the_files_is_refused_and_kept(
    run: Any, folder: Path, put: Callable[[Path], Any], name: str
) -> None:
    put(folder)
    before = files(folder)
    with pytest.raises(UnsupportedError, match=f"holds '{name}', .*move it away"):
        run(folder)
    assert files(folder) == before


@pytest.mark.parametrize("name", ["part-000099.parquet", "other.parquet"])
def test_rows_that_are_none_of_the_corpus_are_an_error(run: Any, folder: Path, name: str) -> None:
    shutil.copy(part(folder, 1), folder / name)
    with pytest.raises(UnsupportedError, match=f"holds '{name}', .*move it away"):
        run(folder)
    assert (folder / name).exists()
    (folder / name).unlink()
    assert run(folder).rows == ROWS


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
    with pytest.raises(UnsupportedError, match="folder") as told:
        run(folder)
    assert str(folder) in str(told.value)
    assert files(folder) == before


def test_a_folder_without_any_part_is_begun_anew_only_as_it_was_begun(
    run: Any, folder: Path
) -> None:
    without_parts(folder)
    before = files(folder)
    with pytest.raises(UnsupportedError, match=r"was begun with words 20000, now it is 7"):
        run(folder, words=7)
    assert files(folder) == before
