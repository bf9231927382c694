"""Scores a corpus into a folder, and goes on where an earlier scoring ended."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from onernn.adapters.requirements import require
from onernn.batch.digest import digest
from onernn.batch.output import Output
from onernn.batch.scorer import WORDS, Scorer
from onernn.batch.sources import Source
from onernn.batch.worker import Job, NothingFits
from onernn.batch.workers import Workers
from onernn.core.errors import UnsupportedError
from onernn.core.graph import Graph, graph_of
from onernn.runtime.sharing import shared

WINDOW = 4096
"""Rows of an output file: what is lost at most where a worker is killed."""


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Progress(NamedTuple):
    """How far a scoring is. ``share``: of the corpus, by its bytes; ``seconds`` since it began."""

    rows: int
    words: int
    rejected: int
    share: float
    seconds: float


class Summary(NamedTuple):
    """What is in the folder, and what this run did of it: ``words`` in ``seconds``."""

    rows: int
    rejected: int
    windows: int
    windows_before: int
    words: int
    seconds: float


def score(
    model: Graph | str | Path,
    corpus: str | Path,
    output: str | Path,
    *,
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
    ``keep``: the columns that the output has besides the model's, by default all. ``window``: rows
    of a file. ``workers``: processes, by default one a core. What `Scorer` takes is as there, and
    ``options`` are those of `Session`.

    Called again with the same arguments it goes on: only windows that are not whole are scored, and
    files have the same bytes whoever was killed when, for any number of workers. Rows that cannot
    be scored have null outputs and a line in ``rejected``; ``strict`` raises for the first one.
    """
    require("pyarrow", "score")
    if window < 1 or words < 1 or (workers is not None and workers < 1):
        raise UnsupportedError("window, words, workers: expected 1 or more")
    started = time.monotonic()
    model = graph_of(model)
    how = {"inputs": inputs, "outputs": outputs, "words": words, "batch_axis": batch_axis}
    named = {name: str(value) for name, value in options.items()}
    asked = {
        "model": digest(model),
        "window": window,
        "keep": None if keep is None else list(keep),
        **how,
        **named,
    }
    scorer = Scorer(model, **how, strict=strict, threads=1, **options)  # type: ignore[arg-type]
    taken = scorer.columns.values()
    source = Source(os.fspath(corpus), taken, keep, format)
    scorer.check_columns(source.columns)
    folder = Path(os.path.abspath(output))
    if any(Path(path).is_relative_to(folder) for path in source.files.paths):
        raise UnsupportedError(f"{folder}: the corpus lies in the folder of the output")
    into = Output(folder)
    with into.held({**asked, "corpus": source.files.fingerprint}) as before:
        rows, rejected, words_done = len(before) * window, into.rejected(), 0
        if not into.is_complete:
            drop = () if keep is None else tuple({*taken} - {*keep})
            count = workers or len(os.sched_getaffinity(0))
            try:
                with (
                    shared(scorer, into.hidden) as lent,
                    Workers(Job(lent, drop, folder), count) as pool,
                ):
                    del model, scorer
                    for each in pool.run(source.windows(window, before)):
                        rows, words_done = rows + each.rows, words_done + each.words
                        rejected += each.rejected
                        seconds = time.monotonic() - started
                        progress(Progress(rows, words_done, rejected, each.read, seconds))
            except NothingFits:
                into.discard_all_but(before)
                raise
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                told = f"{error.strerror}; make room, and start the same again: it goes on"
                raise OSError(error.errno, told, error.filename or str(folder)) from None
            into.complete()
        windows = len(into.done())
        return Summary(
            into.rows(windows, window),
            into.rejected(),
            windows,
            len(before),
            words_done,
            time.monotonic() - started,
        )
