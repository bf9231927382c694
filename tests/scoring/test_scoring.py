"""Folders that `onernn score` writes: undisturbed, and killed and begun again."""

from __future__ import annotations

import fcntl
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.scoring import INPUTS, MODEL, corpus, files, reasons_of

import onernn
from onernn.ir.errors import ShapeError, UnsupportedError
from onernn.scoring.runner import score
from onernn.scoring.scorer import Scorer

KILLS = int(os.environ.get("ONERNN_SCORE_KILLS", "1"))
"""Of a scoring at random moments; make score-faults takes more."""
ATTEMPTS = 20
"""To disturb a scoring: on a busy machine one may have ended before it is."""
ROWS, LONGEST, WINDOW = 1000 * max(1, KILLS // 2), 60, 150
TAGS = "save_infer_model/scale_1.tmp_0"
BAD = {
    5: None,
    60: [26],
    61: [5, -7],
    199: [99],
    200: [-1],
    201: [1, None],
    777: [10**12],
    778: [1, None, 2],
    998: [26] * 9,
    999: None,
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("corpus") / "corpus.parquet"
    pq.write_table(corpus(ROWS, longest=LONGEST, bad=BAD), file, row_group_size=333)
    return file


@pytest.fixture(scope="module")
def finished(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """An undisturbed run: its folder, and what it tells."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    done = run(source, folder, "--workers", "3", "--json")
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


@pytest.fixture(scope="module")
def whole(finished: tuple[Path, Any]) -> dict[str, bytes]:
    """The files of an undisturbed run."""
    return rows_in(finished[0])


def command(source: Path, folder: Path, *more: str) -> list[str]:
    options = f"--input letters=text --output {TAGS}=tags --window {WINDOW} --words 1000"
    names = (str(MODEL), str(source), str(folder))
    return [sys.executable, "-m", "onernn.cli", "score", *names, *options.split(), *more]


def run(source: Path, folder: Path, *more: str, **options: Any) -> subprocess.CompletedProcess[str]:
    words = command(source, folder, *more)
    return subprocess.run(words, capture_output=True, text=True, check=False, **options)


def rows_in(folder: Path) -> dict[str, bytes]:
    """All files but the manifest, which tells when the corpus was written."""
    return {name: content for name, content in files(folder).items() if name != "_scoring.json"}


def check_continued(source: Path, folder: Path, whole: dict[str, bytes]) -> None:
    """The same command goes on to the same bytes."""
    done = run(source, folder)
    assert done.returncode == 0, done.stderr
    assert rows_in(folder) == whole


@contextmanager
def started(*words: Any) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def parts_in(folder: Path) -> int:
    return len(list(folder.glob("part-*")))


def wait_for(condition: Any, seconds: float = 300) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_rows_come_in_order_with_outputs_and_bad_ones_are_told(
    source: Path, finished: tuple[Path, dict[str, Any]]
) -> None:
    folder, summary = finished
    assert summary["rows"] == ROWS and summary["rejected"] == len(BAD)
    assert summary["windows"] == -(-ROWS // WINDOW) and summary["windows_before"] == 0
    got, given = pq.read_table(folder), pq.read_table(source)
    wanted = Scorer(MODEL, INPUTS, {TAGS: "tags"}, threads=1)(given)
    reasons = [f"corpus.parquet, row {k}: {w}" for k, w in reasons_of(wanted).items()]
    assert got["rejected"].drop_null().to_pylist() == reasons
    wanted = wanted.drop_columns(["rejected"])
    assert got.select(wanted.column_names).equals(wanted)
    assert reasons_of(got).keys() == BAD.keys()


def test_bytes_are_the_same_for_any_number_of_workers(
    source: Path, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    assert run(source, tmp_path / "out", "--workers", "1").returncode == 0
    assert rows_in(tmp_path / "out") == whole


@pytest.mark.long
def test_a_scoring_that_is_killed_goes_on_to_the_same_bytes(
    source: Path, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    rng = random.Random(0)
    folder = tmp_path / "out"
    kept = 0
    for _ in range(KILLS):
        with started(*command(source, folder)) as process:
            wait_for(lambda n=kept: process.poll() is not None or parts_in(folder) > n)
            time.sleep(rng.random() * 0.3)
            process.kill()
            process.wait()
        now = rows_in(folder)
        parts = {name for name in now if name.startswith("part-")}
        assert parts and all(now[name] == whole[name] for name in parts)
        kept = min(len(parts), len(list(folder.glob("part-*"))))
    check_continued(source, folder, whole)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_at_once_and_the_same_command_goes_on(
    source: Path, tmp_path: Path, whole: dict[str, bytes], number: int
) -> None:
    for attempt in range(ATTEMPTS):
        folder = tmp_path / f"out {attempt}"
        with started(*command(source, folder)) as process:
            assert wait_for(lambda out=folder: parts_in(out))
            process.send_signal(number)
            _, err = process.communicate(timeout=600)
        if process.returncode:
            break
    assert process.returncode == 128 + number
    assert err == "onernn: stopped; the same command continues from here\n"
    check_continued(source, folder, whole)


@pytest.mark.long
def test_a_full_disk_is_told_and_what_is_whole_stays(
    source: Path, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    folder = tmp_path / "out"
    sizes = sorted(len(content) for name, content in whole.items() if name.startswith("part-"))

    def limit() -> None:  # some windows fit, not all of them
        resource.setrlimit(resource.RLIMIT_FSIZE, (sizes[len(sizes) // 2],) * 2)

    done = run(source, folder, "--workers", "2", preexec_fn=limit)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "File too large" in done.stderr and "part-" in done.stderr
    assert all(whole[name] == content for name, content in rows_in(folder).items())
    check_continued(source, folder, whole)


def test_two_scorings_into_one_folder_are_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    holding = os.open(tmp_path / "out", os.O_RDONLY)
    try:
        fcntl.flock(holding, fcntl.LOCK_SH)
        done = run(source, tmp_path / "out")
    finally:
        os.close(holding)
    assert done.returncode == 2 and f"{tmp_path}/out: a different process" in done.stderr


GIVEN: Any = {"inputs": INPUTS, "window": 200, "workers": 1}


@pytest.fixture(scope="module")
def begun(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus of two windows, and what was scored of it."""
    folder = tmp_path_factory.mktemp("begun")
    pq.write_table(pq.read_table(source).slice(0, 300), folder / "small.parquet")
    for before in (0, 2):
        summary = score(MODEL, folder / "small.parquet", folder / "out", **GIVEN)
        assert (summary.rows, summary.windows, summary.windows_before) == (300, 2, before)
    return folder


@pytest.mark.parametrize(
    "more, change",
    [
        ({"window": 100}, "expected window 200, .* got 100"),
        ({"words": 7}, "expected words 20000, .* got 7"),
        ({"dtype": "bf16"}, 'expected dtype "f32", .* got "bf16"'),
        ({"keep": ["text"]}, "expected columns .*, with which this folder was begun, got"),
        ({}, "model"),
        ({}, "corpus"),
    ],
)
def test_a_scoring_goes_on_as_it_was_begun_only(
    source: Path, begun: Path, tmp_path: Path, more: dict[str, Any], change: str
) -> None:
    small, before, model = begun / "small.parquet", rows_in(begun / "out"), onernn.load(MODEL)
    if change == "model":
        name, first = next(iter(model.constants.items()))
        model = replace(model, constants={**model.constants, name: first + 1})
    elif change == "corpus":
        small = tmp_path / "small.parquet"
        pq.write_table(pq.read_table(source).slice(0, 301), small)
    with pytest.raises(UnsupportedError, match=change):
        score(model, small, begun / "out", **{**GIVEN, **more})
    assert rows_in(begun / "out") == before


def test_strict_stops_with_the_first_bad_row(source: Path, tmp_path: Path) -> None:
    done = run(source, tmp_path / "out", "--strict")
    said = "onernn: corpus.parquet, row 5: column 'text': null\n"
    assert (done.returncode, done.stderr) == (2, said)


def write_rows(folder: Path, rows: list[Any]) -> Path:
    """A corpus of one column."""
    table = pa.table({"letters": pa.array(rows, pa.list_(pa.int64()))})
    pq.write_table(table, folder / "x.parquet")
    return folder / "x.parquet"


def test_rows_may_all_be_bad_and_a_missing_column_changes_nothing(tmp_path: Path) -> None:
    file = write_rows(tmp_path, [[99], [98]])
    summary = score(MODEL, file, tmp_path / "out", workers=1)
    assert (summary.rows, summary.rejected) == (2, 2)
    with pytest.raises(ShapeError, match="expected column 'words', got"):
        score(MODEL, file, tmp_path / "new", inputs={"letters": "words"})
    assert not (tmp_path / "new").exists()


def test_folders_that_hold_something_else_are_left_alone(tmp_path: Path) -> None:
    file = write_rows(tmp_path, [[1]])
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    outputs = {tmp_path: "'out'", tmp_path / "out": "'mine'", "nowhere://b/out": "nowhere"}
    for folder, named in outputs.items():
        with pytest.raises(UnsupportedError, match=named):
            score(MODEL, file, folder)
    assert os.listdir(tmp_path / "out") == ["mine"]


def test_lines_of_json_are_scored_the_same_and_bad_ones_set_aside(tmp_path: Path) -> None:
    rows: list[Any] = [[1, 2, 3], [4], None, [], [5, 6]]
    lines = [json.dumps({"id": i, "letters": row}) for i, row in enumerate(rows)]
    (tmp_path / "x.jsonl").write_text("\n".join([*lines, '{"id": 5, "letters": [7']))
    summary = score(MODEL, tmp_path / "x.jsonl", tmp_path / "out", outputs={TAGS: "tags"}, keep=[])
    got = pq.read_table(tmp_path / "out")
    assert got.column_names == ["tags", "rejected"]
    assert (summary.rows, summary.rejected) == (6, 2)
    assert [*reasons_of(got)] == [2, 5]
    table = pq.read_table(write_rows(tmp_path, [*rows, None]))
    assert got["tags"].equals(Scorer(MODEL, outputs={TAGS: "tags"})(table)["tags"])


def test_a_corpus_without_rows_is_one_file_with_the_columns(tmp_path: Path) -> None:
    file = write_rows(tmp_path, [])
    summary = score(MODEL, file, tmp_path / "out", outputs={TAGS: "tags"})
    assert (summary.rows, summary.windows) == (0, 1)
    assert pq.read_table(tmp_path / "out").column_names == ["letters", "tags", "rejected"]
