"""Scores a corpus into a folder, and goes on where an earlier scoring ended."""

from __future__ import annotations

import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Queue
from socket import socketpair
from threading import Lock, Thread
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from onernn.adapters.common.adapter import require
from onernn.backend.process import usable_cpus
from onernn.engine.sharing import Shared, shared
from onernn.ir.errors import ShapeError, UnforeseenError, UnsupportedError
from onernn.ir.graph import Graph, graph_of
from onernn.scoring.corpus import Corpus, Window
from onernn.scoring.folder import Folder, Part, digest
from onernn.scoring.scorer import WORDS, Scorer

WINDOW = 4096
"""Rows of an output file: what is lost at most where a worker is killed."""
_MOST_DEATHS = 8  # of workers in one window: some may be killed for other reasons
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Progress(NamedTuple):
    """The progress of a scoring. ``share``: of the corpus; ``seconds`` since it began."""

    rows: int
    words: int
    rejected: int
    share: float
    seconds: float


class Summary(NamedTuple):
    """The content of the folder, and this run's part of it: ``words`` in ``seconds``.

    ``repaired``: what was missing or changed in a folder that was scored before; it was scored
    anew.
    """

    rows: int
    rejected: int
    windows: int
    windows_before: int
    words: int
    seconds: float
    repaired: tuple[str, ...] = ()


class Done(NamedTuple):
    """A window that was scored: Parquet, and lines of JSON for its rejected rows."""

    content: bytes
    rejected: bytes
    rows: int
    words: int


Ask = Callable[[Window], Done]
"""Scores a window somewhere; called by many threads."""


def score(
    model: Graph | str | Path,
    corpus: str | Path,
    output: str | Path,
    *,
    engine: str = "local",
    inputs: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
    keep: Collection[str] | None = None,
    format: str | None = None,
    words: int = WORDS,
    window: int = WINDOW,
    workers: int | None = None,
    strict: bool = False,
    batch_axis: int | Mapping[str, int] = 0,
    progress: Callable[[Progress], None] = lambda _: None,
    **options: Any,
) -> Summary:
    """The rows of a corpus with a model's outputs, as Parquet files in a folder.

    ``corpus``: a file, folder, glob or URI of Parquet, Arrow, ORC, JSON lines, CSV or recordings.
    ``output``: a folder on this machine. ``engine``: "local", or "ray" for the cluster at
    ``RAY_ADDRESS`` or on this machine, which gets model and rows from here. ``keep``: the columns
    that the output has besides the model's, by default all. ``window``: rows of a file.
    ``workers``: processes, by default one a core. What `Scorer` takes is as there, and ``options``
    are those of `Session`.

    Called again with the same arguments it goes on: windows that are missing, or whose files are
    not those that were written, are scored, and files have the same bytes whoever was killed when,
    for any number of workers. When it returns, every row is in the folder. Rows that cannot be
    scored have null outputs and a line in ``rejected``; ``strict`` raises for the first one.

    Raises `UnsupportedError` for a folder of another model, corpus or options, and for one that
    holds files of something else.
    """
    if window < 1 or words < 1 or (workers is not None and workers < 1):
        raise UnsupportedError("window, words, workers: expected 1 or more")
    if engine not in ("local", "ray"):
        raise UnsupportedError(f"engine {engine!r}: expected local or ray")
    started = time.monotonic()
    model = graph_of(model)
    how = {"inputs": inputs, "outputs": outputs, "words": words, "batch_axis": batch_axis}
    asked = {"model": digest(model), "window": window, "keep": None if keep is None else [*keep]}
    asked |= {**how, **{name: str(value) for name, value in options.items()}}
    scorer = Scorer(model, **how, strict=strict, threads=1, **options)  # type: ignore[arg-type]
    taken = scorer.columns.values()
    source = Corpus(os.fspath(corpus), taken, keep, format)
    scorer.check_columns(source.columns)
    folder = Folder(os.fspath(output))
    if any(Path(p).is_relative_to(folder.path) for p in source.files.paths):
        raise UnsupportedError(f"{folder.path}: the corpus lies in the folder of the output")
    dropped = () if keep is None else tuple({*taken} - {*keep})
    count, done = workers or usable_cpus(), 0
    asked["corpus"] = source.files.fingerprint
    with folder.held(asked, count), _advice_to_make_room(folder.path):
        before = len(folder.parts)
        rows = sum(part.rows for part in folder.parts.values())
        rejected = sum(part.rejected for part in folder.parts.values())
        if before != folder.windows:
            with ExitStack() as stack:
                if engine == "ray":
                    ask, cores = _ray_tasks(scorer, dropped)
                    count = workers or cores
                else:
                    lent = stack.enter_context(shared(scorer, folder.scratch))
                    ask = stack.enter_context(local_workers(lent, dropped))
                windows = source.windows(window, {*folder.parts})
                for part, steps, share in run(windows, ask, folder, count):
                    folder.add(part)
                    rows, rejected, done = rows + part.rows, rejected + part.rejected, done + steps
                    progress(Progress(rows, done, rejected, share, time.monotonic() - started))
            folder.finish()
        seconds, repaired = time.monotonic() - started, tuple(folder.repaired)
    return Summary(rows, rejected, len(folder.parts), before, done, seconds, repaired)


@contextmanager
def _advice_to_make_room(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        advice = f"{error.strerror}; make room, and start the same again: it goes on"
        raise OSError(error.errno, advice, error.filename or str(folder)) from None


def run(
    windows: Iterator[Window], ask: Ask, folder: Folder, count: int
) -> Iterator[tuple[Part, int, float]]:
    """Each window once it is in the folder, with its words and the share of the corpus."""

    def written(window: Window) -> tuple[Part, int, float]:
        scored = ask(window)
        hashes = folder.write(window.index, scored.content, scored.rejected)
        part = Part(window.index, scored.rows, scored.rejected.count(b"\n"), hashes)
        return part, scored.words, window.read

    waiting: set[Future[tuple[Part, int, float]]] = set()
    pool = ThreadPoolExecutor(count)
    try:
        for window in windows:
            waiting.add(pool.submit(written, window))
            if len(waiting) >= 2 * count:  # the next windows wait for a worker, not for a reader
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                yield from (each.result() for each in done)
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            yield from (each.result() for each in done)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def score_window(scorer: Scorer, dropped: tuple[str, ...], window: Window) -> Done:
    """Runs where the rows are scored.

    Raises `ShapeError` if the model takes no row of the first window: it is not meant for this
    corpus.
    """
    table = window.table
    scored = scorer(table, window.first, window.bad)
    if not window.index and scored.rejected.num_rows == table.num_rows > 0:
        raise ShapeError(
            f"all {table.num_rows:,} rows of the first window are rejected, the first one:"
            f" {scored.rejected['reason'][0]}"
        )
    stream = pa.BufferOutputStream()
    pq.write_table(scored.table.drop_columns(list(dropped)), stream, compression="zstd")
    lines = "".join(json.dumps(row) + "\n" for row in scored.rejected.to_pylist())
    return Done(stream.getvalue().to_pybytes(), lines.encode(), table.num_rows, scored.words)


@contextmanager
def local_workers(scorer: Shared[Any], dropped: tuple[str, ...]) -> Iterator[Ask]:
    """Processes of this machine, one for each thread that asks; they end with the block.

    One that dies is replaced. Raises `UnforeseenError` for a window that many died of.
    """
    job = pickle.dumps((scorer, dropped), protocol=5)
    lock, idle, alive = Lock(), list[_Worker](), set[_Worker]()
    open_ = True

    def ask(window: Window) -> Done:
        how = ""
        for _ in range(_MOST_DEATHS):
            with lock:
                if not open_:
                    break
                worker = idle.pop() if idle else _Worker(job)
                alive.add(worker)
            try:
                result = worker.ask(window)
            except (EOFError, OSError):
                how = worker.end()
                alive.discard(worker)
                continue
            idle.append(worker)
            if isinstance(result, Exception):
                raise result
            return result
        last = window.first + window.table.num_rows - 1
        raise UnforeseenError(
            f"rows {window.first:,} to {last:,} (window {window.index}) ended {_MOST_DEATHS}"
            f" workers, the last one by {how}; nothing of them is written. Take these rows out, or"
            " give fewer words or rows at once (--words, --window) where memory is short"
        )

    try:
        yield ask
    finally:
        with lock:
            open_ = False
            for worker in list(alive):
                worker.end()


class _Worker:
    """A process of one thread, in a session of its own: a terminal's interrupt is not for it."""

    def __init__(self, job: bytes) -> None:
        here, there = socketpair()
        with there:
            handle = there.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from onernn.scoring.runner import work; work({handle})"],
                pass_fds=[handle],
                stdin=subprocess.DEVNULL,
                env={
                    **os.environ,
                    **dict.fromkeys(_ONE_THREAD, "1"),
                    "PYTHONPATH": os.pathsep.join(sys.path),
                },
                start_new_session=True,
            )
        self._connection = Connection(here.detach())
        self._job: bytes | None = job

    def ask(self, window: Window) -> Done | Exception:
        """Raises `EOFError` or `OSError` if the process has died."""
        if self._job is not None:
            self._connection.send_bytes(self._job)
            self._job = None
        self._connection.send(window)
        result: Done | Exception = self._connection.recv()
        return result

    def end(self) -> str:
        """Ends the process at once, and says how it ended."""
        self._process.kill()
        code = self._process.wait()
        return signal.Signals(-code).name if code < 0 else f"exit {code}"


def work(handle: int) -> None:
    """Scores the windows that come through a socket, until its other end is closed."""
    pa.set_cpu_count(1)
    connection, received = Connection(handle), Queue[Any]()

    def receive() -> None:  # ends the process in the midst of a window, too
        try:
            while True:
                received.put(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(1)

    Thread(target=receive, daemon=True).start()
    scorer, dropped = pickle.loads(received.get())
    scorer = scorer.open()
    while True:
        window = pickle.loads(received.get())
        try:
            connection.send(score_window(scorer, dropped, window))
        except Exception as error:
            connection.send(error)


def _ray_tasks(scorer: Scorer, dropped: tuple[str, ...]) -> tuple[Ask, int]:
    """Tasks of Ray, which it starts again where a node is lost; and the cluster's cores."""
    ray: Any = require("ray", "ray")
    if not ray.is_initialized():
        try:
            ray.init("auto", log_to_driver=False)
        except ConnectionError:  # no cluster is here: this machine becomes one
            ray.init("local", log_to_driver=False)
    task, reference = ray.remote(max_retries=_MOST_DEATHS)(_ray_task), ray.put(scorer)

    def ask(window: Window) -> Done:
        try:
            done: Done = ray.get(task.remote([reference], dropped, window))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        return done

    return ask, int(ray.cluster_resources().get("CPU", 1))


def _ray_task(references: list[Any], dropped: tuple[str, ...], window: Window) -> Done:
    return score_window(_fetch(references[0]), dropped, window)


@lru_cache(1)
def _fetch(reference: Any) -> Scorer:
    """The model, once for each process: its plans are made at its first run."""
    import ray

    scorer: Scorer = ray.get(reference)
    return scorer
