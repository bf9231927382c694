"""Scores the windows of a corpus on the nodes of Ray's cluster, which also read and write."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from onernn.adapters.common.adapter import require
from onernn.ir.errors import BudgetError, LibraryError
from onernn.scoring.corpus import Corpus, Window
from onernn.scoring.folder import MOST_ATTEMPTS

T = TypeVar("T")
_LARGEST = 2**31 - 2**20
"""Maximum number of bytes of a row of a Ray data set."""


class GivenUp(NamedTuple):
    """The description of a window that three processes began to score and did not finish."""

    window: str


def score_windows(
    corpus: Corpus,
    size: int,
    done: Collection[int],
    only: Collection[int] | None,
    work: Callable[[Window], T],
    workers: int | None,
) -> Iterator[T | tuple[int, GivenUp]]:
    """Yields the results of ``work`` for windows of a corpus, in any order.

    ``size``: the number of rows of a window. The windows are those in ``only``, or if it is None
    those that are not in ``done``. Each Ray task reads the windows that begin in one block of the
    corpus. ``workers`` actors, by default one per CPU of the cluster, call ``work``. Ray starts
    tasks and actors again if their process or node is lost. Each row of the Ray data set holds one
    window, so that Ray never divides a window.

    Raises the errors that reading the corpus and ``work`` raise on a node, and `LibraryError` for
    Ray's own errors.
    """
    ray, data = require("ray", "ray"), require("ray.data", "ray")
    if not ray.is_initialized():
        ray.init()  # at RAY_ADDRESS, or on this machine
    count = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
    context = data.DataContext.get_current().copy()
    context.target_max_block_size = context.target_min_block_size = 1  # byte: each row is a block
    context.enable_progress_bars = False

    def read(step: _Step, items: Sequence[Any]) -> Any:
        rows = data.from_items([_row(each) for each in items], override_num_blocks=len(items))
        tasks = data.TaskPoolStrategy(min(count, len(items)))
        return rows.flat_map(step, num_cpus=0, compute=tasks)

    with data.DataContext.current(context):
        kept = ray.put(corpus)
        if corpus.lines_unknown:
            counts = dict(_results(read(_Step(_count_lines, kept), range(len(corpus.paths)))))
            corpus.set_lines([counts[file] for file in sorted(counts)])
            kept = ray.put(corpus)
        windows = range(max(1, -(-corpus.rows // size)))
        wanted = [n for n in windows if (n not in done if only is None else n in only)]
        if not wanted:
            return
        attempts = ray.remote(_Attempts).options(num_cpus=0).remote()
        results = read(_Step(_read, kept, size), corpus.runs(size, wanted)).flat_map(
            _Step,
            fn_constructor_args=(_work, ray.put(work), attempts),
            num_cpus=1,
            compute=data.ActorPoolStrategy(min_size=1, max_size=count),
        )
    yield from _results(results)


class _Step:
    """A function from a row of a Ray data set to the rows of its results.

    It calls ``function`` with three arguments: the object that ``kept`` refers to in Ray's object
    store, the arguments ``more``, and the content of the row. If ``function`` raises an error, the
    error becomes the content of a row.
    """

    def __init__(self, function: Callable[..., Iterator[Any]], kept: Any, *more: Any) -> None:
        self._function, self._kept, self._more = function, kept, more
        self._value: Any = None

    def __call__(self, row: dict[str, bytes]) -> Iterator[dict[str, bytes]]:
        item = pickle.loads(row["content"])
        if isinstance(item, Exception):
            yield row
            return
        try:
            if self._value is None:
                self._value = require("ray", "ray").get(self._kept)
            for result in self._function(self._value, *self._more, item):
                yield _row(result)
        except Exception as error:
            try:
                yield _row(error)
            except Exception:  # the error cannot be pickled
                yield _row(RuntimeError(f"{type(error).__name__}: {error}"))


def _row(item: Any) -> dict[str, bytes]:
    return {"content": pickle.dumps(item)}


def _results(rows: Any) -> Iterator[Any]:
    try:
        for row in rows.iter_rows():
            result = pickle.loads(row["content"])
            if isinstance(result, Exception):
                raise result
            yield result
    except require("ray", "ray").exceptions.RayError as error:
        raise LibraryError(f"Ray: {error}") from error


def _count_lines(corpus: Corpus, file: int) -> Iterator[tuple[int, int]]:
    yield file, corpus.count_lines(file)


def _read(corpus: Corpus, size: int, run: range) -> Iterator[Window]:
    """Yields the windows of a run, with each table as bytes in Arrow's format. A pickle of a part
    of a table would hold the whole table.
    """
    for one in corpus.windows(size, only=run):
        content = pa.BufferOutputStream()
        with pa.ipc.new_stream(content, one.table.schema) as stream:
            stream.write_table(one.table)
        table = content.getvalue().to_pybytes()
        if len(table) > _LARGEST:
            raise BudgetError(
                f"{one}: expected at most {_LARGEST:,} bytes for Ray, got {len(table):,}; score"
                " fewer rows at once (window=, --window)"
            )
        yield one._replace(table=table)


def _work(
    work: Callable[[Window], T], attempts: Any, one: Window
) -> Iterator[T | tuple[int, GivenUp]]:
    get = require("ray", "ray").get
    if get(attempts.begin.remote(one.number)) > MOST_ATTEMPTS:
        yield one.number, GivenUp(str(one))
        return
    yield work(one._replace(table=pa.ipc.open_stream(one.table).read_all()))
    get(attempts.end.remote(one.number))


class _Attempts:
    """A Ray actor that counts, for each window, how often processes began and did not finish it."""

    def __init__(self) -> None:
        self._counts = Counter[int]()

    def begin(self, window: int) -> int:
        self._counts[window] += 1
        return self._counts[window]

    def end(self, window: int) -> None:
        del self._counts[window]
