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
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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
def model(repo: Path) -> Path:
    return repo / "examples" / "segmenter"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    rows: list[Any] = [rng.integers(0, 26, n).tolist() for n in rng.integers(0, LONGEST + 1, ROWS)]
    for row, bad in BAD.items():
        rows[row] = bad
    file = tmp_path_factory.mktemp("corpus") / "corpus.parquet"
    pq.write_table(pa.table({"id": range(ROWS), "text": rows}), file, row_group_size=333)
    return file


@pytest.fixture(scope="module")
def finished(
    model: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """An undisturbed run: its folder, and what it tells."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    done = run(model, corpus, folder, "--workers", "3", "--json")
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


@pytest.fixture(scope="module")
def whole(finished: tuple[Path, Any]) -> dict[str, bytes]:
    """The files of an undisturbed run."""
    return files(finished[0])


def command(model: Path, corpus: Path, folder: Path, *more: str) -> list[str]:
    options = f"--input letters=text --output {TAGS}=tags --window {WINDOW} --words 1000"
    names = (str(model), str(corpus), str(folder))
    return [sys.executable, "-m", "onernn.cli", "score", *names, *options.split(), *more]


def run(
    model: Path, corpus: Path, folder: Path, *more: str, **options: Any
) -> subprocess.CompletedProcess[str]:
    words = command(model, corpus, folder, *more)
    return subprocess.run(words, capture_output=True, text=True, check=False, **options)


def files(folder: Path) -> dict[str, bytes]:
    """All but the manifest, which tells when the corpus was written."""
    found = {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}
    found.pop("_scoring.json")
    return found


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
    model: Path, corpus: Path, finished: tuple[Path, dict[str, Any]]
) -> None:
    folder, summary = finished
    assert summary["rows"] == ROWS and summary["rejected"] == len(BAD)
    assert summary["windows"] == -(-ROWS // WINDOW) and summary["windows_before"] == 0
    got, given = pq.read_table(folder), pq.read_table(corpus)
    assert got.select(["id", "text"]).equals(given)
    scorer = Scorer(onernn.load(model), {"letters": "text"}, {TAGS: "tags"}, threads=1)
    wanted = scorer(given)
    assert got.select(wanted.column_names).equals(wanted)
    reasons = got.column("rejected").to_pylist()
    assert [row for row, why in enumerate(reasons) if why is not None] == sorted(BAD)


def test_bytes_are_the_same_for_any_number_of_workers(
    model: Path, corpus: Path, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    assert run(model, corpus, tmp_path / "out", "--workers", "1").returncode == 0
    assert files(tmp_path / "out") == whole


@pytest.mark.long
def test_a_scoring_that_is_killed_goes_on_to_the_same_bytes(
    model: Path, corpus: Path, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    rng = random.Random(0)
    folder = tmp_path / "out"
    kept = 0
    for _ in range(KILLS):
        with started(*command(model, corpus, folder)) as process:
            wait_for(lambda n=kept: process.poll() is not None or parts_in(folder) > n)
            time.sleep(rng.random() * 0.3)
            process.kill()
            process.wait()
        now = files(folder)
        parts = {name for name in now if name.startswith("part-")}
        assert parts and all(now[name] == whole[name] for name in parts)
        kept = min(len(parts), len(list(folder.glob("part-*"))))
    done = run(model, corpus, folder)
    assert done.returncode == 0, done.stderr
    assert files(folder) == whole


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_at_once_and_the_same_command_goes_on(
    model: Path, corpus: Path, tmp_path: Path, whole: dict[str, bytes], number: int
) -> None:
    for attempt in range(ATTEMPTS):
        folder = tmp_path / f"out {attempt}"
        with started(*command(model, corpus, folder)) as process:
            assert wait_for(lambda out=folder: parts_in(out))
            process.send_signal(number)
            _, err = process.communicate(timeout=600)
        if process.returncode:
            break
    assert process.returncode == 128 + number
    assert err == "onernn: stopped; the same command continues from here\n"
    assert run(model, corpus, folder).returncode == 0
    assert files(folder) == whole


@pytest.mark.long
def test_a_full_disk_is_told_and_what_is_whole_stays(
    model: Path, corpus: Path, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    folder = tmp_path / "out"
    sizes = sorted(len(content) for name, content in whole.items() if name.startswith("part-"))

    def limit() -> None:  # some windows fit, not all of them
        resource.setrlimit(resource.RLIMIT_FSIZE, (sizes[len(sizes) // 2],) * 2)

    done = run(model, corpus, folder, "--workers", "2", preexec_fn=limit)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "File too large" in done.stderr and "part-" in done.stderr
    assert all(whole[name] == content for name, content in files(folder).items())
    assert run(model, corpus, folder).returncode == 0
    assert files(folder) == whole


def test_two_scorings_into_one_folder_are_refused(
    model: Path, corpus: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    holding = os.open(tmp_path / "out", os.O_RDONLY)
    try:
        fcntl.flock(holding, fcntl.LOCK_SH)
        done = run(model, corpus, tmp_path / "out")
    finally:
        os.close(holding)
    assert done.returncode == 2 and "another scoring runs into it" in done.stderr


GIVEN: Any = {"inputs": {"letters": "text"}, "window": 200, "workers": 1}


@pytest.fixture(scope="module")
def begun(model: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus of two windows, and what was scored of it."""
    folder = tmp_path_factory.mktemp("begun")
    pq.write_table(pq.read_table(corpus).slice(0, 300), folder / "small.parquet")
    summary = score(model, folder / "small.parquet", folder / "out", **GIVEN)
    assert (summary.rows, summary.windows, summary.windows_before) == (300, 2, 0)
    again = score(model, folder / "small.parquet", folder / "out", **GIVEN)
    assert (again.rows, again.windows, again.windows_before) == (300, 2, 2)
    return folder


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"window": 100}, "begun with window 200, now it is 100"),
        ({"words": 7}, "begun with words 20000, now it is 7"),
        ({"dtype": "bf16"}, "begun with dtype null, now it is"),
        ({"keep": ["text"]}, r'begun with keep null, now it is \["text"\]'),
        ({"model": "fc_gru"}, "begun with model"),
        ({"corpus": "other"}, "begun with corpus"),
    ],
)
def test_a_scoring_goes_on_as_it_was_begun_only(
    model: Path, corpus: Path, begun: Path, tmp_path: Path, more: dict[str, Any], message: str
) -> None:
    small, before = begun / "small.parquet", files(begun / "out")
    changed: Any = onernn.load(model)
    if more.pop("model", None):
        constants = dict(changed.constants)
        name = next(iter(constants))
        constants[name] = constants[name] + 1
        changed = type(changed)(
            changed.name, changed.inputs, changed.outputs, changed.nodes, constants
        )
    if more.pop("corpus", None):
        small = tmp_path / "small.parquet"
        pq.write_table(pq.read_table(corpus).slice(0, 301), small)
    with pytest.raises(UnsupportedError, match=message):
        score(changed, small, begun / "out", **{**GIVEN, **more})
    assert files(begun / "out") == before


def test_strict_stops_with_the_first_bad_row(model: Path, corpus: Path, tmp_path: Path) -> None:
    done = run(model, corpus, tmp_path / "out", "--strict")
    assert (done.returncode, done.stderr) == (2, "onernn: row 5: column 'text': null\n")


def test_a_corpus_that_does_not_fit_at_all_stops_at_once(model: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"letters": [[99], [98]]}), tmp_path / "x.parquet")
    with pytest.raises(ShapeError, match=r"all 2 rows of the first window .* 99 is outside"):
        score(model, tmp_path / "x.parquet", tmp_path / "out", workers=1)
    assert os.listdir(tmp_path / "out") == ["_scoring.json"]  # and other options may be tried
    with pytest.raises(ShapeError, match="takes column 'words'; the columns are"):
        score(model, tmp_path / "x.parquet", tmp_path / "new", inputs={"letters": "words"})
    assert not (tmp_path / "new").exists()


def test_folders_that_hold_something_else_are_left_alone(model: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"letters": [[1]]}), tmp_path / "x.parquet")
    with pytest.raises(UnsupportedError, match="holds 'x.parquet', which is no part"):
        score(model, tmp_path / "x.parquet", tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(UnsupportedError, match="holds 'mine', which is no part"):
        score(model, tmp_path / "x.parquet", tmp_path / "out")
    assert os.listdir(tmp_path / "out") == ["mine"]
    with pytest.raises(
        UnsupportedError, match="s3://b/out: the output is a folder on this machine"
    ):
        score(model, tmp_path / "x.parquet", "s3://b/out")


def test_lines_of_json_are_scored_the_same_and_bad_ones_set_aside(
    model: Path, tmp_path: Path
) -> None:
    rows: list[Any] = [[1, 2, 3], [4], None, [], [5, 6]]
    lines = [json.dumps({"id": i, "letters": row}) for i, row in enumerate(rows)]
    (tmp_path / "x.jsonl").write_text("\n".join([*lines, '{"id": 5, "letters": [7']))
    summary = score(model, tmp_path / "x.jsonl", tmp_path / "out", outputs={TAGS: "tags"}, keep=[])
    got = pq.read_table(tmp_path / "out")
    assert got.column_names == ["tags", "rejected"]
    assert (summary.rows, summary.rejected) == (6, 2)
    assert got["rejected"].is_valid().to_pylist() == [False, False, True, False, False, True]
    table = pa.table({"letters": pa.array([*rows, None], pa.list_(pa.int64()))})
    scorer = Scorer(onernn.load(model), outputs={TAGS: "tags"})
    assert got["tags"].to_pylist() == scorer(table)["tags"].to_pylist()


def test_a_corpus_without_rows_is_one_file_with_the_columns(model: Path, tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"letters": pa.array([], pa.list_(pa.int64()))}), tmp_path / "x.parquet"
    )
    summary = score(model, tmp_path / "x.parquet", tmp_path / "out", outputs={TAGS: "tags"})
    assert (summary.rows, summary.windows) == (0, 1)
    assert pq.read_table(tmp_path / "out").column_names == ["letters", "tags", "rejected"]
