"""Corpora: the rows of files, cut into windows that are the same whenever they are read."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from itertools import islice
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
from pyarrow import csv

from onernn.ir.errors import ModelFormatError, ShapeError, UnsupportedError, did_you_mean
from onernn.ir.ragged import data_of
from onernn.ir.records import dataclass
from onernn.scoring.columns import array_of, lists
from onernn.verification.recording import INPUTS, read_arrays, read_given

Chunk = tuple[pa.Table, dict[int, str], float]
"""Rows, why some cannot be read, and which share of the corpus ends here."""

FORMATS = {
    "parquet": (".parquet", ".pq"),
    "arrow": (".arrow", ".feather", ".ipc"),
    "orc": (".orc",),
    "json": (".jsonl", ".ndjson", ".json"),
    "csv": (".csv",),
    "tsv": (".tsv", ".tab"),
    "npz": (".npz",),
}
_BLOCK = 2**25
"""Bytes of CSV whose rows give the types of columns; no row may be longer."""
_SAMPLE = 1000
"""Rows of JSON that give the columns and their types."""
_CHUNK = 1024  # rows


@dataclass(frozen=True, eq=False)
class Files:
    """Files of one format, in the order of their names. ``fingerprint``: paths, sizes and times,
    which a changed corpus would change."""

    system: pafs.FileSystem
    paths: list[str]
    format: str
    fingerprint: list[list[Any]]


def file_system(where: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a path or URI, and the path in it, or raises `UnsupportedError`."""
    try:
        result: tuple[pafs.FileSystem, str] = pafs.FileSystem.from_uri(
            where if "://" in where else os.path.abspath(where)
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UnsupportedError(f"{where}: {error}") from error
    return result


def find_files(where: str, format: str | None = None) -> Files:
    """The files of a path, folder, URI or glob, without those whose names begin with _ or a dot.

    A glob is of this machine. Raises `UnsupportedError` if there are no files, or of several
    formats; `OSError` as the file system does.
    """
    if format is not None and format not in FORMATS:
        hint = did_you_mean(format, FORMATS)
        raise UnsupportedError(
            f"format {format!r} is unknown; known are {', '.join(FORMATS)}{hint}"
        )
    system, root = file_system(where)
    if glob.has_magic(where) and "://" not in where and not os.path.exists(where):
        infos = system.get_file_info(list(map(os.path.abspath, glob.glob(where, recursive=True))))
    else:
        infos = system.get_file_info([root])
        if not infos[0].is_file:
            below = system.get_file_info(pafs.FileSelector(root, recursive=True))
            infos = [each for each in below if not _hidden(each.path[len(root) :])]
    result = sorted((each for each in infos if each.is_file), key=lambda each: each.path)
    if not result:
        raise UnsupportedError(f"{where}: there are no files")
    formats = {format} if format else {_format_of(each.path) for each in result}
    if len(formats) > 1:
        names = ", ".join(sorted(formats))
        raise UnsupportedError(f"{where}: files of several formats, {names}; choose some by a glob")
    stamps = [[each.path, each.size or 0, each.mtime_ns or 0] for each in result]
    return Files(system, [each.path for each in result], formats.pop(), stamps)


def _hidden(path: str) -> bool:
    return any(part[0] in "_." for part in PurePosixPath(path.strip("/")).parts)


def _format_of(path: str) -> str:
    name = re.sub(r"\.(gz|bz2|zst|lz4|br)$", "", path.lower())
    for format, suffixes in FORMATS.items():
        if name.endswith(suffixes):
            return format
    raise UnsupportedError(
        f"{path}: expected one of {', '.join(s for each in FORMATS.values() for s in each)}; give"
        " the format (format=, --format), or leave the file out by a glob"
    )


@dataclass(frozen=True, eq=False)
class Window:
    """The rows from ``first`` on that become one file. ``content``: these rows as a stream of
    Arrow; ``bad``: why some cannot be read; ``read``: the share of the corpus before their end."""

    index: int
    first: int
    content: pa.Buffer
    bad: dict[int, str]
    read: float

    @classmethod
    def of(cls, index: int, first: int, rows: pa.Table, bad: dict[int, str], read: float) -> Window:
        stream = pa.BufferOutputStream()  # pickled, a slice of a table takes along the rest of it
        with pa.ipc.new_stream(stream, rows.schema) as writer:
            writer.write_table(rows)
        return cls(index, first, stream.getvalue(), bad, read)

    @property
    def table(self) -> pa.Table:
        return pa.ipc.open_stream(self.content).read_all()


class Corpus:
    """The rows of files, with columns from folders named NAME=VALUE.

    ``inputs``: columns that the model takes, which stay text where files of CSV have them;
    ``keep``: those to read besides, or all. Columns are those of all files together, null where a
    file lacks them; of JSON, those of the first rows. Raises `ShapeError` for a column that is not
    there, `ModelFormatError` for a file that cannot be read, and what `find_files` raises.
    """

    def __init__(
        self,
        where: str,
        inputs: Collection[str],
        keep: Collection[str] | None = None,
        format: str | None = None,
    ) -> None:
        self.files = find_files(where, format)
        self._rows: Any = None
        with self._format_errors():
            if self.files.format == "json":
                self._schema = self._sampled()
            elif self.files.format == "npz":
                self._rows = ds.dataset(pa.concat_tables(map(self._recording, self.files.paths)))
            else:
                self._rows = self._dataset(inputs)
        if self._rows is not None:
            self._schema = self._rows.schema
        names = self._schema.names
        self.columns: Sequence[str] = names
        if keep is not None:
            self.columns = list(dict.fromkeys([*keep, *inputs]))
        self._chosen = keep is not None
        if missing := [name for name in self.columns if name not in names]:
            raise ShapeError(f"there is no column {missing[0]!r}; the columns are {names}")

    def _dataset(self, inputs: Collection[str]) -> Any:
        kind: Any = self.files.format
        if kind in ("csv", "tsv"):
            kind = ds.CsvFileFormat(
                csv.ParseOptions(delimiter="," if kind == "csv" else "\t", newlines_in_values=True),
                convert_options=csv.ConvertOptions(column_types=dict.fromkeys(inputs, pa.string())),
                read_options=csv.ReadOptions(block_size=_BLOCK),
            )
        options = {"filesystem": self.files.system, "format": kind, "partitioning": "hive"}
        data = ds.dataset(self.files.paths, **options)
        own = (each.physical_schema for each in data.get_fragments())
        schema = pa.unify_schemas([data.schema, *own], promote_options="permissive")
        return ds.dataset(self.files.paths, schema=schema, **options)

    def _recording(self, path: str) -> pa.Table:
        """in__NAME and lod__NAME: a row is a sequence, or an entry of the first axis."""
        if not isinstance(self.files.system, pafs.LocalFileSystem):
            raise UnsupportedError(f"{path}: recordings (.npz) are read from local files only")
        inputs = read_given(read_arrays(path, INPUTS))
        columns = {name: lists(each, data_of(each).shape[1:]) for name, each in inputs.items()}
        return pa.table(columns)

    @contextmanager
    def _format_errors(self) -> Iterator[None]:
        try:
            yield
        except pa.ArrowException as error:
            files = ", ".join(self.files.paths[:3])
            raise ModelFormatError(f"the rows cannot be read: {error}", files) from error

    def windows(self, size: int, done: Collection[int] = ()) -> Iterator[Window]:
        """All windows but those that are done; a corpus without rows is one window."""
        index, read, bad = 0, 0.0, dict[int, str]()
        rows = self._schema.empty_table().select(self.columns)
        with self._format_errors():
            for table, reasons, read in self._chunks() if self._rows else self._json_chunks():
                bad |= {rows.num_rows + row: why for row, why in reasons.items()}
                rows = pa.concat_tables([rows, table])
                while rows.num_rows >= size:
                    if index not in done:
                        now = {row: why for row, why in bad.items() if row < size}
                        yield Window.of(index, index * size, rows.slice(0, size), now, read)
                    bad = {row - size: why for row, why in bad.items() if row >= size}
                    index, rows = index + 1, rows.slice(size)
        if index not in done and (rows.num_rows or not index):
            yield Window.of(index, index * size, rows, bad, read)

    def _chunks(self) -> Iterator[Chunk]:
        fragments = list(self._rows.get_fragments())
        for index, fragment in enumerate(fragments):
            # CSV would be read twice: its share grows file by file.
            total = 0 if self.files.format in ("csv", "tsv") else fragment.count_rows()
            rows = 0
            for batch in fragment.to_batches(
                schema=self._schema, columns=self.columns, batch_size=_CHUNK, batch_readahead=1
            ):
                rows += batch.num_rows
                share = (index + (rows / total if total else 1)) / len(fragments)
                yield pa.Table.from_batches([batch]), {}, share

    def _sampled(self) -> pa.Schema:
        rows = [row for row, _ in islice(self._json_rows(), _SAMPLE) if isinstance(row, dict)]
        if not rows:
            raise UnsupportedError(f"{self.files.paths[0]}: there are no rows that can be read")
        names = dict.fromkeys(name for row in rows for name in row)
        columns = ((name, [row[name] for row in rows if name in row]) for name in names)
        return pa.schema([(name, array_of(values, {}).type) for name, values in columns])

    def _json_chunks(self) -> Iterator[Chunk]:
        """pyarrow gives a file up at the first bad line, and drops columns that come later."""
        schema = pa.schema([self._schema.field(name) for name in self.columns])
        records = self._json_rows()
        while some := list(islice(records, _CHUNK)):
            bad = {index: row for index, (row, _) in enumerate(some) if isinstance(row, str)}
            rows = [row if isinstance(row, dict) else {} for row, _ in some]
            for index, row in enumerate(rows):
                if not self._chosen and (more := row.keys() - {*self.columns}):
                    known = f"none of the first {_SAMPLE:,} rows has"
                    bad[index] = f"it has the column {min(more)!r}, which {known}"
            columns = []
            for field in schema:
                misfits: dict[int, str] = {}
                columns.append(array_of([r.get(field.name) for r in rows], misfits, field.type))
                bad = {row: f"column {field.name!r}: {why}" for row, why in misfits.items()} | bad
            yield pa.table(columns, schema=schema), bad, some[-1][1]

    def _json_rows(self) -> Iterator[tuple[dict[str, Any] | str, float]]:
        """Each row, or why there is none; and which share of the corpus ends with its file."""
        for index, path in enumerate(self.files.paths):
            with self.files.system.open_input_stream(path) as stream:
                for line in filter(bytes.strip, BufferedReader(stream)):
                    yield _json_row(line), (index + 1) / len(self.files.paths)


def _json_row(line: bytes) -> dict[str, Any] | str:
    """The row, or why there is none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"no JSON: {error or type(error).__name__}"
    return row if isinstance(row, dict) else f"expected an object, got {str(row)[:40]!r}"
