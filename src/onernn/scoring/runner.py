"""Scores a corpus into a folder, and goes on where an earlier scoring ended."""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from onernn.adapters.common.adapter import require
from onernn.backend.process import usable_cpus
from onernn.ir.arrays import digest
from onernn.ir.errors import ShapeError, UnsupportedError
from onernn.ir.files import replacing
from onernn.ir.graph import Graph, graph_of
from onernn.scoring.columns import parse_type
from onernn.scoring.corpus import NOTE, Corpus, Window
from onernn.scoring.scorer import REJECTED, WORDS, Scorer

WINDOW = 4096
"""Rows of an output file: what is lost at most where a run is killed, by each of its threads."""
MANIFEST = "_scoring.json"
_PART = re.compile(r"part-(\d{6,})\.parquet")
_DIGEST = re.compile(rb'"sha256": "([0-9a-f]{64})"')
_BLANK = b"0" * 64
"""What a part's digest is computed with in its own place."""
_FOOTER = 2**26
"""Bytes of the largest footer that is read."""


class Summary(NamedTuple):
    """The content of the folder. ``windows_before``: those that an earlier run had scored;
    ``repaired``: files that are not as a run left them, with the reason; they were scored anew."""

    rows: int
    rejected: int
    windows: int
    windows_before: int
    seconds: float
    repaired: tuple[str, ...] = ()


class Part(NamedTuple):
    """The rows of a window in the folder, and how many of them were not scored."""

    rows: int
    rejected: int

    @classmethod
    def of(cls, table: pa.Table) -> Part:
        return cls(table.num_rows, table.num_rows - table[REJECTED].null_count)


def score(
    model: Graph | str | Path,
    corpus: str | Path,
    output: str | Path,
    *,
    inputs: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
    keep: Collection[str] | None = None,
    words: int = WORDS,
    window: int = WINDOW,
    workers: int | None = None,
    batch_axis: int | Mapping[str, int] = 0,
    types: Mapping[str, Any] | None = None,
    engine: str = "local",
    strict: bool = False,
    progress: Callable[[int, int, int], None] = lambda rows, rejected, total: None,
    **options: Any,
) -> Summary:
    """Returns the rows of a corpus with a model's outputs, as Parquet files in a folder.

    ``corpus``: a file, folder or URI of Parquet or JSON lines. ``output``: a folder on this
    machine. ``keep``: the columns that the output has besides the model's, by default all.
    ``window``: rows of a file. ``workers``: threads, by default one a core. ``engine``: "ray"
    scores on all nodes of Ray's cluster; this machine reads and writes. ``progress`` is called
    with the rows that are done, those of them that were rejected, and all rows, 0 where unknown.
    What `Scorer` takes is as there, and ``options`` are those of `Session`.

    Called again with the same arguments it goes on: windows are scored whose file is missing or
    differs in any byte from what a run of these arguments wrote, and files have the same bytes
    whoever was killed when, for any number of workers. When it returns, the folder has every row
    once. The column ``rejected`` says why a row has no outputs; ``strict`` raises `ShapeError` for
    such a row instead.

    Raises `UnsupportedError` for a folder of another model, corpus or options, for one that holds
    files of something else, and if the corpus changes during the run.
    """
    if window < 1 or words < 1 or (workers is not None and workers < 1):
        raise UnsupportedError("window, words, workers: expected 1 or more")
    started, count = time.monotonic(), workers or usable_cpus()
    model = graph_of(model)
    parts = (model.inputs, model.outputs, model.nodes, dict(model.constants))
    how = {"inputs": inputs, "outputs": outputs, "words": words, "batch_axis": batch_axis}
    given = {name: str(parse_type(kind)) for name, kind in (types or {}).items()}
    asked = {"model": digest(parts), "window": window, "keep": None if keep is None else [*keep]}
    asked |= {**how, "types": given, **{name: str(value) for name, value in options.items()}}
    scorer = Scorer(model, **how, types=given, threads=1, **options)  # type: ignore[arg-type]
    taken = scorer.columns.values()
    source = Corpus(os.fspath(corpus), taken, keep)
    scorer.check_columns(source.columns)
    compute: Callable[[pa.Table, Mapping[int, str]], pa.Table] = scorer
    if engine not in ("local", "ray"):
        raise UnsupportedError(f"engine {engine!r}: expected 'local' or 'ray'")
    asked["corpus"] = source.fingerprint
    folder = Folder(os.fspath(output), () if keep is None else {*taken} - {*keep})

    def scored(one: Window) -> Part:
        table = compute(one.table, one.bad)
        part = Part.of(table)
        if strict and part.rejected:
            at, reason = next(row for row in enumerate(table[REJECTED].to_pylist()) if row[1])
            raise ShapeError(f"row {one.number * window + at}: {reason}")
        if not one.number and part.rejected == part.rows > 0:
            raise ShapeError(
                f"all {part.rows:,} rows of the first window are rejected, the first one:"
                f" {table[REJECTED][0]}"
            )
        folder.write(one.number, table)
        return part

    with folder.held(asked):
        if source.rows:
            folder.check_parts(-(-source.rows // window))
        if folder.parts:
            scorer.expect(pq.read_schema(folder.path / _name(min(folder.parts))))
        if engine == "ray":
            compute, count = on_ray(scorer, workers)
        windows = before = len(folder.parts)
        rows = sum(part.rows for part in folder.parts.values())
        rejected = sum(part.rejected for part in folder.parts.values())
        if strict and rejected:
            raise ShapeError(
                f"{folder.path}: {rejected:,} rows were rejected before, see the column"
                f" {REJECTED!r}; drop strict (--strict), or take another folder"
            )
        for part in in_turn(scored, source.windows(window, folder.parts), count):
            windows, rows, rejected = windows + 1, rows + part.rows, rejected + part.rejected
            progress(rows, rejected, source.rows)
        folder.check_parts(windows, complete=True)
        source.check_unchanged()
    seconds, repaired = time.monotonic() - started, tuple(folder.repaired)
    return Summary(rows, rejected, windows, before, seconds, repaired)


def on_ray(
    scorer: Scorer, workers: int | None
) -> tuple[Callable[[pa.Table, Mapping[int, str]], pa.Table], int]:
    """Returns the scorer as tasks of one CPU, which Ray starts again where a node is lost, and how
    many.
    """
    ray = require("ray", "ray")
    ray.init(ignore_reinit_error=True)  # at RAY_ADDRESS, or here
    kept = ray.put(scorer)
    task = ray.remote(lambda scorer, table, bad: scorer(table, bad)).options(max_retries=-1)
    count = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
    return lambda table, bad: ray.get(task.remote(kept, table, bad)), count


def in_turn(
    work: Callable[[Window], Part], windows: Iterator[Window], threads: int
) -> Iterator[Part]:
    """Yields the results in order, by threads: few windows wait, and the next ones are not read."""
    waiting = deque[Future[Part]]()
    pool = ThreadPoolExecutor(threads)
    try:
        for window in windows:
            waiting.append(pool.submit(work, window))
            if len(waiting) >= 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class Folder:
    """The files of windows in a folder on this machine, without the columns that are ``dropped``.

    A file has its name once all its bytes are on the disk. Its metadata holds its window, its rows,
    a digest of how the folder is scored, and one of the file's other bytes. ``parts``: the windows
    whose files are as a run wrote them; ``repaired``: files that are not, and why. How the folder
    is scored stands in `MANIFEST`; readers of data sets skip names that begin with ``_``.
    """

    def __init__(self, where: str, dropped: Collection[str]) -> None:
        if "://" in where:
            raise UnsupportedError(
                f"{where}: the output is a folder on this machine; Ray Data, Spark and Beam write"
                " to object stores, and call a Scorer: see the manual's page on corpora"
            )
        self.path, self._dropped = Path(os.path.abspath(where)), list(dropped)
        self.parts: dict[int, Part] = {}
        self.repaired: list[str] = []
        self._request = ""

    @contextmanager
    def held(self, asked: Mapping[str, Any]) -> Iterator[None]:
        """Checks the folder, and locks it while the block runs.

        Raises `UnsupportedError` if another process scores into it, if it was begun in another way
        than ``asked``, and if it holds something else. Nothing is changed then.
        """
        if self.path.exists() and not self.path.is_dir():
            raise UnsupportedError(f"{self.path} is no folder; give one for the output")
        self.path.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UnsupportedError(f"{self.path}: another scoring runs into it") from None
            text = json.dumps(asked, sort_keys=True)
            self._request = sha256(text.encode()).hexdigest()
            self._check(json.loads(text))
            with replacing(self.path / MANIFEST) as stream:
                stream.write(text.encode())
            yield
        finally:
            os.close(handle)

    def _check(self, asked: Mapping[str, Any]) -> None:
        names = sorted(each.name for each in self.path.iterdir() if each.name[0] != ".")
        parts = self._windows(names)
        for name in names:
            file = self.path / name
            if MANIFEST not in names or not (name in parts or name[0] == "_"):
                raise self._foreign(name)
            if name in (MANIFEST, *parts) and (file.is_symlink() or not file.is_file()):
                raise UnsupportedError(
                    f"{file} is a link, a folder or a device, where a run writes a file; move it"
                    " away, or take a new folder"
                )
        begun = _content(self.path / MANIFEST) if parts else asked
        for key in {**begun, **asked}:
            if begun.get(key) != asked.get(key):
                was, now = (f"{json.dumps(each.get(key)):.80}" for each in (begun, asked))
                raise UnsupportedError(
                    f"{self.path}: this folder was begun with {key} {was}, now it is {now}; go on"
                    " as it was begun, or take another folder"
                )
        for name, window in parts.items():
            result = _read_part(self.path / name, window, self._request)
            if isinstance(result, Part):
                self.parts[window] = result
            else:
                self.repaired.append(f"{self.path}/{name}: {result}")

    @staticmethod
    def _windows(names: Iterable[str]) -> dict[str, int]:
        """Returns the windows of files by their names, as `write` forms them."""
        numbers = {name: int(match[1]) for name in names if (match := _PART.fullmatch(name))}
        return {name: number for name, number in numbers.items() if name == _name(number)}

    def _foreign(self, name: str) -> UnsupportedError:
        return UnsupportedError(
            f"{self.path} holds {name!r}, which is no part of this scoring and would be read with"
            " its rows; move it away, or take a new folder"
        )

    def check_parts(self, count: int, complete: bool = False) -> None:
        """Raises `UnsupportedError` for a part after the last window, or if one is missing where
        the folder should be ``complete``."""
        there = self._windows(each.name for each in self.path.iterdir())
        for name, window in there.items():
            if window >= count:
                raise self._foreign(name)
        missing = set(range(count)).difference(there.values()) if complete else ()
        if missing:
            name = _name(min(missing))
            raise UnsupportedError(f"{self.path / name} was removed during the run; run it again")

    def write(self, window: int, table: pa.Table) -> None:
        """Writes the file of a window with all its bytes, or none. Raises `OSError` naming it."""
        part, content = Part.of(table), pa.BufferOutputStream()
        table = table.drop_columns(self._dropped)
        note = {"window": window, **part._asdict(), "request": self._request}
        with pq.ParquetWriter(
            content, table.schema, compression="zstd", write_page_checksum=True
        ) as writer:
            writer.write_table(table)
            text = json.dumps({**note, "sha256": _BLANK.decode()})
            writer.add_key_value_metadata({NOTE: text})
        blank = content.getvalue().to_pybytes()
        place = [*_DIGEST.finditer(blank)][-1].start(1)  # columns may hold such a text, too
        digest = sha256(blank).hexdigest().encode()
        with replacing(self.path / _name(window)) as stream:
            stream.write(blank[:place] + digest + blank[place + len(digest) :])


def _name(window: int) -> str:
    return f"part-{window:06}.parquet"


def _read_part(file: Path, window: int, request: str) -> Part | str:
    """Returns the part, or why the file is not what a run of ``request`` writes for a window."""
    with open(file, "rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(size - 8, 0))
        length = int.from_bytes(stream.read(8)[:4], "little") + 8
        if not 8 < length <= min(size, _FOOTER):
            return "not a whole Parquet file"
        stream.seek(size - length)
        footer = stream.read(length)
        if not (places := [*_DIGEST.finditer(footer)]):
            return "its footer has no digest"
        begin, end = places[-1].span(1)
        stream.seek(0)
        result, left = sha256(), size - length
        while left and (piece := stream.read(min(left, 2**20))):
            result.update(piece)
            left -= len(piece)
    result.update(footer[:begin] + _BLANK + footer[end:])
    if result.hexdigest().encode() != places[-1][1]:
        return "its bytes are not those that were written"
    note = json.loads(pq.read_metadata(file).metadata[NOTE.encode()])
    if note["request"] != request:
        return "it belongs to another model, corpus or options"
    if note["window"] != window:
        return f"it is the file of window {note['window']}"
    return Part(note["rows"], note["rejected"])


def _content(file: Path) -> dict[str, Any]:
    """Returns how a folder was begun; empty if that cannot be read."""
    try:
        content = json.loads(file.read_bytes())
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
