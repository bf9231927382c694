"""Scores a corpus on a cluster of Ray, and goes on where an earlier scoring ended."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onernn.adapters.requirements import require
from onernn.batch.digest import digest
from onernn.batch.files import Files, find_files
from onernn.batch.output import MANIFEST, check_same
from onernn.batch.ray_scorer import RayScorer
from onernn.batch.rejecting import REJECTED
from onernn.batch.scorer import WORDS, Scorer
from onernn.batch.scoring import WINDOW, Summary
from onernn.core import errors
from onernn.core.errors import ShapeError, UnsupportedError
from onernn.core.graph import Graph, graph_of
from onernn.runtime.session import Session

ROW = "row_hash"
"""The column that Ray makes for Parquet: the same number for the same row of the same file."""


def score_on_ray(
    model: Graph | str | Path,
    corpus: str | Path,
    output: str | Path,
    *,
    id: str | None = None,
    inputs: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
    keep: Collection[str] | None = None,
    format: str | None = None,
    words: int = WORDS,
    window: int = WINDOW,
    workers: int | None = None,
    strict: bool = False,
    batch_axis: int | Mapping[str, int] = 0,
    show_progress: bool = True,
    **options: Any,
) -> Summary:
    """The rows of a corpus with a model's outputs, as Parquet files in a folder or object store.

    The cluster is the one that ``RAY_ADDRESS`` tells or that runs on this machine; without either
    this machine is one. It needs onernn on each node, and ``corpus`` and ``output`` where each node
    finds them; the model travels through the object store. ``id``: a column whose values differ,
    by which Ray knows the rows that are done; for Parquet Ray makes one, ``row_hash``. ``workers``:
    actors, at most. The other arguments are those of `score`.

    Rows and values are those of `score`; files, and the order of rows, are Ray's. The column
    ``rejected`` tells why a row could not be scored, as do lines in the folder ``rejected``. Called
    again with the same arguments it goes on behind the files that are whole.
    """
    ray: Any = require("ray", "ray")
    require("ray.data", "ray")
    from ray.data.checkpoint import CheckpointConfig

    started = time.monotonic()
    model = graph_of(model)
    how = {"inputs": inputs, "outputs": outputs, "words": words, "batch_axis": batch_axis}
    session = Session(model, threads=1, **options)
    taken = Scorer(session, **how).columns.values()  # type: ignore[arg-type]
    files = find_files(os.fspath(corpus), format)
    if id is None and files.format != "parquet":
        raise UnsupportedError(
            f"{corpus}: only rows of Parquet files have numbers of their own on Ray; tell a column"
            " whose values differ (id=, --id)"
        )
    named = {name: str(value) for name, value in options.items()}
    asked = {"engine": "ray", "id": id, "model": digest(model), "window": window, "keep": keep}
    folder = _Folder(os.fspath(output))
    done = folder.begin({**asked, **how, **named, "corpus": files.fingerprint})
    before = len(folder.parts())
    if not done:
        cores = _cores(ray, show_progress)
        checkpoint = CheckpointConfig(
            id or ROW, f"{folder.where}/{_CHECKPOINT}", delete_checkpoint_on_success=False
        )
        with _context(ray, checkpoint, show_progress), _own_errors():
            data = _read(ray, files, id)
            if keep is not None:
                data = data.select_columns(list(dict.fromkeys([*keep, *taken, id or ROW])))
            # Each window is a file, and what is lost at most where a worker is.
            data = data.repartition(target_num_rows_per_block=window).map_batches(
                RayScorer,
                fn_constructor_args=(ray.put(session),),
                fn_constructor_kwargs={**how, "strict": strict},
                batch_format="pyarrow",
                batch_size=window,
                compute=ray.data.ActorPoolStrategy(min_size=1, max_size=workers or cores - 2),
                udf_modifying_row_count=False,
            )
            if keep is not None and (surplus := {*taken} - {*keep, id}):
                data = data.drop_columns(list(surplus))
            data.write_parquet(folder.path, filesystem=folder.system)
        folder.finish(id or ROW)
    rows, rejected = folder.counts()
    return Summary(rows, rejected, len(folder.parts()), before, 0, time.monotonic() - started)


_CHECKPOINT = "_checkpoint"
_CORES = 4
_REJECTED = "rejected/_rows.jsonl"


class _Folder:
    """Where the files go; names with ``_`` in front are none of the rows'."""

    def __init__(self, where: str) -> None:
        import pyarrow as pa
        import pyarrow.fs as pafs

        self.where = where if "://" in where else os.path.abspath(where)
        try:
            self.system, self.path = pafs.FileSystem.from_uri(self.where)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UnsupportedError(f"{where}: {error}") from error
        self._inside = pafs.SubTreeFileSystem(self.path, self.system)

    def begin(self, asked: Mapping[str, Any]) -> bool:
        """Whether all is done already. Raises `UnsupportedError` for another scoring's folder."""
        self.system.create_dir(self.path)
        known = self._read(MANIFEST)
        if known is None:
            if self.parts():
                raise UnsupportedError(f"{self.where} holds files and no scoring; take a new one")
            self._write(MANIFEST, json.dumps(asked))
            return False
        found: dict[str, Any] = json.loads(known)
        check_same(self.where, found, asked)
        return bool(found.get("complete"))

    def finish(self, id: str) -> None:
        """Tells the rejected rows, and that all is done."""
        import pyarrow.dataset as ds

        if self.parts():
            bad = self._data().to_table([id, REJECTED], ds.field(REJECTED).is_valid()).to_pylist()
            lines = [json.dumps({id: row[id], "reason": row[REJECTED]}) for row in bad]
            if lines:
                self._inside.create_dir("rejected")
                self._write(_REJECTED, "".join(f"{line}\n" for line in lines))
        asked = json.loads(self._read(MANIFEST) or b"{}")
        self._write(MANIFEST, json.dumps({**asked, "complete": True}))
        self._inside.delete_dir(_CHECKPOINT)

    def parts(self) -> list[str]:
        import pyarrow.fs as pafs

        found = self._inside.get_file_info(pafs.FileSelector(""))
        return [each.path for each in found if each.path.endswith(".parquet")]

    def counts(self) -> tuple[int, int]:
        """Rows, and those of them that were rejected."""
        rows = self._data().count_rows() if self.parts() else 0
        return rows, (self._read(_REJECTED) or b"").count(b"\n")

    def _data(self) -> Any:
        import pyarrow.dataset as ds

        return ds.dataset(self.parts(), filesystem=self._inside, format="parquet")

    def _read(self, name: str) -> bytes | None:
        try:
            with self._inside.open_input_stream(name) as stream:
                content: bytes = stream.read()
                return content
        except FileNotFoundError:
            return None

    def _write(self, name: str, text: str) -> None:
        with self._inside.open_output_stream(name) as stream:
            stream.write(text.encode())


def _cores(ray: Any, show_progress: bool) -> int:
    """How many CPUs Ray has to give, once it runs.

    Where it goes on an actor of its own passes over what is done, and a reader and a writer have to
    find a place beside that and a scorer: with less it would wait for ever.
    """
    if not ray.is_initialized():
        try:
            ray.init("auto", log_to_driver=show_progress)
        except ConnectionError:  # no cluster is here: this machine becomes one
            ray.init("local", num_cpus=max(_CORES, os.cpu_count() or 1), log_to_driver=False)
    cores = int(ray.cluster_resources().get("CPU", 0))
    if cores < _CORES:
        raise UnsupportedError(
            f"this cluster of Ray has {cores} CPUs, scoring needs {_CORES}: add a node, or start it"
            f" with --num-cpus={_CORES}"
        )
    return cores


def _read(ray: Any, files: Files, id: str | None) -> Any:
    """The rows of files, as Ray reads them."""
    paths, given = list(files.paths), {"filesystem": files.system}
    match files.format:
        case "parquet":
            data = ray.data.read_parquet(paths, include_row_hash=id is None, **given)
            if id is None and ROW in ray.data.read_parquet(paths[0], **given).schema().names:
                raise ShapeError(f"there is a column {ROW!r} already: tell an id (id=, --id)")
            return data
        case "json":
            return ray.data.read_json(paths, lines=True, **given)
        case "csv":
            return ray.data.read_csv(paths, **given)
    raise UnsupportedError(f"Ray's engine takes Parquet, JSON lines and CSV, not {files.format}")


@contextmanager
def _context(ray: Any, checkpoint: Any, show_progress: bool) -> Iterator[None]:
    """Ray's own settings for this scoring alone."""
    context = ray.data.DataContext.get_current()
    before = context.checkpoint_config, context.enable_progress_bars
    context.checkpoint_config = checkpoint
    context.enable_progress_bars = before[1] and show_progress
    try:
        yield
    finally:
        context.checkpoint_config, context.enable_progress_bars = before


@contextmanager
def _own_errors() -> Iterator[None]:
    """An error of ours in a worker is the same here; Ray hands on its text alone."""
    try:
        yield
    except Exception as error:
        found = re.search(r"onernn\.core\.errors\.(\w+): (.+)", str(error))
        if found is None:
            raise
        raise getattr(errors, found[1])(found[2]) from error
