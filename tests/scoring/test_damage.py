"""Damaged folders of `onernn score`: what is missing or changed is named, and scored anew."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
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


def files(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def truncate(file: Path, share: float = 0.5) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def change_value(file: Path) -> None:
    """Flips a bit of a value that only a checksum tells."""
    content, table = file.read_bytes(), pq.read_table(file)
    for at in range(4, len(content)):
        flip(file, at)
        with suppress(pa.ArrowException, OSError):
            if pq.read_table(file) != table:
                return
        file.write_bytes(content)
    raise AssertionError("each bit is told")


def without_parts(folder: Path) -> None:
    for file in folder.glob("part-*"):
        file.unlink()


PART, LAST = "part-000001.parquet", "part-000003.parquet"
DAMAGE: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "the first part deleted": (lambda f: part(f, 0).unlink(), []),
    "a part deleted": (lambda f: part(f, 1).unlink(), []),
    "all parts deleted": (without_parts, []),
    "a part truncated": (lambda f: truncate(part(f, 1)), [PART]),
    "a part without its last byte": (lambda f: truncate(part(f, 3), 0.9999), [LAST]),
    "a part emptied": (lambda f: part(f, 1).write_bytes(b""), [PART]),
    "a bit of a value flipped": (lambda f: change_value(part(f, 1)), [PART]),
    "a bit of the magic number flipped": (lambda f: flip(part(f, 1), -1), [PART]),
    "a table of somebody else": (
        lambda f: pq.write_table(pa.table({"id": [1]}), part(f, 1)),
        [PART],
    ),
    "a file that was being written": (lambda f: (f / ".onernn-0.part").touch(), []),
}
"""What happens to a folder, and the files that are named."""


CASES = [(how, ("finished", "unfinished")[k % 2]) for k, how in enumerate(DAMAGE)]
"""Each damage once: a folder is read alike before and after the end."""


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


def test_files_that_are_none_of_the_scoring_are_an_error(run: Any, folder: Path) -> None:
    shutil.copy(part(folder, 1), folder / "other.parquet")
    before = files(folder)
    with pytest.raises(UnsupportedError, match="holds 'other.parquet', .*move it away"):
        run(folder)
    assert files(folder) == before
    (folder / "other.parquet").unlink()
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
