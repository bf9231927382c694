"""A process that scores windows and writes them: one thread, ended with who started it."""

from __future__ import annotations

import os
import pickle
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any, NamedTuple

from onernn.batch.output import Output
from onernn.batch.scorer import Scorer
from onernn.core.errors import ShapeError
from onernn.runtime.sharing import Shared


class Job(NamedTuple):
    """What every window is scored with, and where to. ``drop``: columns not to be kept."""

    scorer: Shared[Scorer]
    drop: tuple[str, ...]
    output: Path


class NothingFits(ShapeError):
    """The first window has no row that the model takes: it is not meant for such a corpus."""


def work(connection: Connection) -> None:
    """Scores what comes, until nobody sends anything any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started us decides
    import pyarrow as pa

    pa.set_cpu_count(1)
    tasks: Queue[Any] = Queue()
    Thread(target=_receive, args=(connection, tasks), daemon=True).start()
    try:
        job: Job = tasks.get()
        scorer, output = job.scorer.open(), Output(job.output)
        while True:
            index, first, bad, content = tasks.get()
            table = pa.ipc.open_stream(content).read_all()
            scored = scorer(table, first, bad)
            refused = scored.rejected.num_rows
            if not index and refused == table.num_rows > 0:
                raise NothingFits(
                    f"all {refused:,} rows of the first window are rejected, the first one:"
                    f" {scored.rejected['reason'][0]}"
                )
            output.write(index, scored.table.drop_columns(list(job.drop)), scored.rejected)
            connection.send(("done", index, table.num_rows, scored.words, refused))
            del table, scored, content
    except Exception as error:
        connection.send(("failed", type(error), error.args, getattr(error, "filename", None)))


def _receive(connection: Connection, tasks: Queue[Any]) -> None:
    """Reads ahead, and ends the process in the midst of a window when the sender is gone."""
    try:
        tasks.put(pickle.loads(connection.recv_bytes()))
        while True:
            index, first, bad = connection.recv()
            tasks.put((index, first, bad, connection.recv_bytes()))
    except (EOFError, OSError):
        os._exit(1)
