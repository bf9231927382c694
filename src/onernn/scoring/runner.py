"""Scores a corpus into a folder, and continues an earlier scoring."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from platform import node
from typing import Any, TypeVar

from onernn.backend.compiled.library import load_kernels
from onernn.backend.process import usable_cpus
from onernn.fuse_passes import Pass
from onernn.ir.arrays import digest
from onernn.ir.budget import STEPS
from onernn.ir.errors import LibraryError, ShapeError, UnforeseenError, UnsupportedError
from onernn.ir.graph import Graph, graph_of
from onernn.ir.records import NamedTuple
from onernn.scoring.columns import OpenTypeError
from onernn.scoring.corpus import Corpus, Window
from onernn.scoring.folder import Attempts, Folder, Part
from onernn.scoring.ray import GivenUp, score_windows
from onernn.scoring.scorer import REJECTED, WORDS, Scorer
from onernn.scoring.systems import hiding_secrets

WINDOW = 4096
"""Default number of rows of an output file. If a run is killed, each of its threads loses the work
of at most this many rows.
"""
T = TypeVar("T")


class Summary(NamedTuple):
    """The result of `score`, whose docstring has an example.

    ``rows``, ``rejected`` and ``windows``: the number of rows, of rejected rows and of files in the
    folder. ``windows_before``: the number of files that earlier runs wrote. ``seconds``: the time
    of this run. ``repaired``: the files of earlier runs that were scored again, with the reason.
    """

    rows: int
    rejected: int
    windows: int
    windows_before: int
    seconds: float
    repaired: tuple[str, ...] = ()


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
    rejected: str | Path | None = None,
    accept_input: bool = False,
    progress: Callable[[int, int, int], None] = lambda rows, rejected, total: None,
    dtype: str = "f32",
    backend: str = "auto",
    passes: tuple[Pass, ...] | None = None,
    max_bytes: int | None = None,
    max_steps: int = STEPS,
    rules: Mapping[str, Any] | None = None,
) -> Summary:
    """Writes the rows of a corpus with a model's outputs, as Parquet files in a folder.

    ``corpus``: a file, folder or URI of Parquet or JSON lines. ``output``: a folder, or its URI in
    an object store. ``keep``: the columns that are copied to the output, by default all.
    ``window``: the number of rows of an output file; the rows of one file are called a window. The
    memory of the run depends on this number, not on the size of the corpus. ``workers``: the number
    of threads, or of actors of Ray; by default one per core. ``engine``: with "ray", the nodes of
    Ray's cluster read, score and write; each node must have access to the corpus and the folders.
    ``rejected``: a folder for a table of the rows that cannot be scored, with file, line or row,
    reason and text. ``progress``: a function that is called with the number of finished rows, of
    rejected rows, and of all rows (0 if unknown, an estimate for JSON lines). `Scorer` explains the
    other arguments, and `Session` the arguments from ``dtype`` on.

    A second call with the same arguments, or the command ``onernn score``, continues an unfinished
    run. It scores a window if the window's file is missing or has changed in any byte. The files
    have the same bytes after any kill and for any number of workers. When the function returns,
    the folder has every row once. If a row has no outputs, the column ``rejected`` says why; with
    ``strict`` such a row raises `ShapeError` instead. If names, sizes or times of the corpus's
    files changed, the rows of the corpus are compared with the rows that were scored. Changed rows
    raise `UnsupportedError`, or with ``accept_input`` their windows are scored again.

    Raises `UnsupportedError` if the folder was begun with a different model, corpus, option,
    version or instruction set, if the folder holds foreign files, or if the corpus changes during
    the run. Raises `UnforeseenError`, which names the windows that three processes began and did
    not finish.

    >>> x, y = onernn.Value("x", "float32", (None, 2)), onernn.Value("y")
    >>> relu = onernn.Node("Relu", ("x",), ("y",))
    >>> model = onernn.Graph("relu", (x,), (y,), (relu,), {})
    >>> from onernn.scoring import score
    >>> with open("rows.jsonl", "w") as file:
    ...     print('{"x": [-1.0, 2.0]}', file=file)
    >>> summary = score(model, "rows.jsonl", "scored")
    >>> summary.rows, summary.rejected
    (1, 0)
    """
    where = [os.fspath(each) for each in (corpus, output, rejected) if each is not None]
    if window < 1 or words < 1 or (workers is not None and workers < 1):
        got = f"window={window}, words={words}, workers={workers}"
        raise UnsupportedError(f"{got}: expected 1 or more")
    if engine not in ("local", "ray"):
        raise UnsupportedError(f"engine {engine!r}: expected 'local' or 'ray'")
    started = time.monotonic()
    model = graph_of(model, rules)
    options: dict[str, Any] = {
        "dtype": dtype,
        "backend": backend,
        "max_bytes": max_bytes,
        "max_steps": max_steps,
        "passes": passes,
    }
    how: dict[str, Any] = {"words": words, "batch_axis": batch_axis, "types": types, "keep": keep}
    scorer = Scorer(model, inputs, outputs, **how, threads=1, **options)
    with hiding_secrets(*where), ExitStack() as stack:
        source = Corpus(where[0], scorer.columns.values(), keep)
        scorer.check_columns(source.columns)
        folder, *traces = map(Folder, where[1:])
        _check_places(source.name, [each.name for each in (folder, *traces)])
        asked = _describe(model, scorer, source, options) | {"window": window, "words": words}
        stack.enter_context(folder.hold(asked, source.fingerprint))
        for each in traces:
            stack.enter_context(each.hold(asked | {"rows": "rejected"}, source.fingerprint))
        for each in (folder, *traces):
            _check_corpus(each, source, window, accept_input)
        run = _Run(Work(scorer, folder, traces, strict, _environment()), source, window, progress)
        stack.callback(run.attempts.close)
        _running.append(run.attempts)
        stack.callback(_running.remove, run.attempts)
        before = len(folder.parts)
        run(engine, workers)
        source.check_unchanged()
        parts = folder.parts.values()
        return Summary(
            sum(part.rows for part in parts),
            sum(part.rejected for part in parts),
            len(parts),
            before,
            time.monotonic() - started,
            tuple(folder.repaired),
        )


def _check_places(corpus: str, folders: list[str]) -> None:
    """Raises `UnsupportedError` if an output folder is inside the corpus or another output folder.

    A reader of the outer folder would read the files of the inner one, unless the inner folder's
    name begins with _ or a dot.
    """
    for index, folder in enumerate(folders, 1):
        for other in (each for at, each in enumerate([corpus, *folders]) if at != index):
            inside = f"{folder}/".startswith(f"{other}/")
            if inside and not re.search(r"/[_.]", folder.removeprefix(other)):
                raise UnsupportedError(
                    f"{folder} is in {other}, whose readers would read its files; choose a"
                    " different folder"
                )


def _describe(
    model: Graph, scorer: Scorer, source: Corpus, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns all settings that, together with the rows, decide the bytes of the output files.

    Different spellings of the same setting have the same value.
    """
    named = dict(options)
    if passes := named.pop("passes", None):
        named["passes"] = [each.name for each in passes]
    return {
        **named,
        **_environment(),
        "model": digest((model.inputs, model.outputs, model.nodes, dict(model.constants))),
        "inputs": scorer.columns,
        "outputs": scorer.outputs,
        "batch_axis": scorer.axes,
        "columns": {each.name: str(each.type) for each in source.schema},
        "keep": source.columns if scorer.keep is None else scorer.keep,
    }


@cache
def _environment() -> dict[str, str]:
    """Returns onernn's version and the instruction set, which decide the last bits of results."""
    try:
        instructions = load_kernels().isa
    except LibraryError:
        instructions = "none"
    return {"onernn": version("onernn"), "instruction_set": instructions}


def _check_corpus(folder: Folder, source: Corpus, window: int, accept: bool) -> None:
    """Compares the rows of finished windows with the corpus, if the corpus's files were changed.

    Drops the windows with changed rows if ``accept`` is true, else raises `UnsupportedError`.
    """
    if source.rows:
        folder.check_parts(-(-source.rows // window))
    if folder.was_scored_from(source.fingerprint):
        return
    changed = {number: f"window {number}" for number in folder.parts}
    for one in source.windows(window, only=folder.parts):
        if one.digest() == folder.parts[one.number].source:
            del changed[one.number]
        else:
            changed[one.number] = str(one)
    if changed and not accept:
        raise UnsupportedError(
            f"{folder.name}: the corpus differs from the rows that were scored, first in"
            f" {next(iter(changed.values()))}; score changed windows again (accept_input=True,"
            " --accept-input), or take a different folder"
        )
    for number in changed:
        folder.drop(number, "its rows were changed in the corpus")
    folder.accept(source.fingerprint)


@dataclass(frozen=True)
class Work:
    """A function that scores a window and writes its file. It can be pickled.

    ``folder``: the folder of the files. ``traces``: the folders for rejected rows, at most one.
    ``strict``: whether a rejected row is an error. ``environment``: the result of `_environment` in
    the process that began the run.
    """

    scorer: Scorer
    folder: Folder
    traces: list[Folder]
    strict: bool
    environment: dict[str, str]

    def __call__(self, one: Window) -> tuple[int, Part | OpenTypeError]:
        """Returns the window's number, and the `Part` that describes the window's file.

        If no row of the window shows the type of an output, returns an `OpenTypeError` in place of
        the part: then the window must wait until another window has shown the type. Writes the file
        of rejected rows before the window's file. Raises the errors of `Scorer`, `ShapeError` for a
        rejected row if ``strict``, and `UnsupportedError` if this process has a different
        ``environment``.
        """
        for name, here in _environment().items():
            if here != self.environment[name]:
                raise UnsupportedError(
                    f"node {node()!r}: expected {name} {self.environment[name]}, with which the run"
                    f" began, got {here}; results would differ in the last bits: use nodes of one"
                    " kind, or set ONERNN_MAX_ISA to the lowest of their instruction sets"
                )
        try:
            scored = self.scorer(one.table, one.bad)
        except OpenTypeError as error:
            return one.number, error
        table = one.trace(scored)
        reasons = table[REJECTED].drop_null()
        if self.strict and len(reasons):
            raise ShapeError(reasons[0].as_py())
        part = Part(table.num_rows, len(reasons), one.digest())
        for each in self.traces:
            if part.rejected:
                each.write(one.number, one.rejected(scored), part._replace(rows=part.rejected))
            else:
                each.remove(one.number)
        self.folder.write(one.number, table, part)
        return one.number, part


class _Run:
    """A run that scores all windows whose files are missing from a folder.

    ``progress``: see `score`.
    """

    def __init__(
        self,
        work: Work,
        source: Corpus,
        window: int,
        progress: Callable[[int, int, int], None],
    ) -> None:
        self._work, self._source, self._window, self._progress = work, source, window, progress
        self._folder = work.folder
        for number, part in [*self._folder.parts.items()]:
            if part.rejected and any(number not in each.parts for each in work.traces):
                self._folder.drop(number, "its rejected rows are in no file")
        self.attempts = Attempts(self._folder)
        self._open: dict[int, OpenTypeError] = {}
        self._given_up: dict[int, str] = {}

    def __call__(self, engine: str, workers: int | None) -> None:
        """Scores the missing windows. Raises `UnforeseenError`, which names the windows that three
        processes began and did not finish.
        """
        parts = self._folder.parts
        self._rows = sum(part.rows for part in parts.values())
        self._rejected = sum(part.rejected for part in parts.values())
        if self._work.strict and self._rejected:
            raise ShapeError(
                f"{self._folder.name}: {self._rejected:,} rows were rejected before, see the column"
                f" {REJECTED!r}; drop strict (--strict), or take a different folder"
            )
        self._progress(self._rows, self._rejected, self._source.estimate)
        self._pass(engine, workers)
        if self._open and not parts:
            raise self._open[min(self._open)]
        if self._open:  # the types are known from other windows
            self._pass(engine, workers, again=True)
        self._folder.check_parts(len(parts) + len(self._given_up), complete=not self._given_up)
        if self._given_up:
            raise UnforeseenError(
                f"{self._folder.name}: three processes began and did not end"
                f" {'; '.join(self._given_up.values())}; the other windows are scored. Run the same"
                " command again, for example on a machine with more memory"
            )

    def _pass(self, engine: str, workers: int | None, again: bool = False) -> None:
        """Scores the windows that are not done. ``again``: scores only the windows that waited
        because the type of an output was not known.
        """
        done, only = {*self._folder.parts}, [*self._open] if again else None
        if done:
            self._work.scorer.expect(self._folder.schema())
        results: Iterator[tuple[int, Part | OpenTypeError | GivenUp]]
        if engine == "ray":
            results = score_windows(self._source, self._window, done, only, self._work, workers)
        else:
            windows = self._possible(self._source.windows(self._window, done, only))
            count = workers or usable_cpus()
            results = in_turn(self._attempt, windows, count, self.attempts.suspects)
        for number, result in results:
            if isinstance(result, Part):
                self._folder.parts[number] = result
                self._rows += result.rows
                self._rejected += result.rejected
            elif isinstance(result, GivenUp):
                self._given_up[number] = result.window
            elif again:
                raise result
            else:
                self._open[number] = result
            self._progress(self._rows, self._rejected, self._source.estimate)

    def _attempt(self, one: Window) -> tuple[int, Part | OpenTypeError]:
        with self.attempts.attempt(one.number):
            return self._work(one)

    def _possible(self, windows: Iterator[Window]) -> Iterator[Window]:
        for one in windows:
            if one.number in self.attempts.given_up:
                self._given_up[one.number] = str(one)
            else:
                yield one


_running: list[Attempts] = []


def stop() -> None:
    """Ends the attempts of all runs of this process, so that the windows which are being scored do
    not count as failed. For use before a signal ends the process.
    """
    for each in _running:
        each.close()


def in_turn(
    work: Callable[[Window], T],
    windows: Iterator[Window],
    threads: int,
    alone: Collection[int] = (),
) -> Iterator[T]:
    """Yields the results of ``work`` in the order of the windows.

    At most 2 * ``threads`` windows are read before their results are yielded. While a window whose
    number is in ``alone`` runs, no other window runs.
    """
    waiting = deque[Future[T]]()
    pool = ThreadPoolExecutor(threads)
    try:
        for window in windows:
            is_alone = window.number in alone
            while waiting and is_alone:
                yield waiting.popleft().result()
            waiting.append(pool.submit(work, window))
            if is_alone or len(waiting) >= 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
