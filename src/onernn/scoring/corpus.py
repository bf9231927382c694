"""Corpora: the rows of files, cut into windows that are the same whenever they are read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds

from onernn.ir.errors import ModelFormatError, ShapeError, UnsupportedError

_JSON = re.compile(r"\.(jsonl|ndjson|json)(\.(gz|bz2|zst|lz4|br))?$")
_SAMPLE = 1000
"""Rows of JSON that give the columns and their types."""
_CHUNK = 1024  # rows


class Window(NamedTuple):
    """The rows that become one file. ``bad``: why some could not be read, by their number."""

    number: int
    table: pa.Table
    bad: dict[int, str]


class Corpus:
    """The rows of a file, or of all files in a folder or under a URI, in the order of their names.

    Files are Parquet, or lines of JSON where their names say so. Names that begin with _ or a dot
    are passed over, and folders named NAME=VALUE are columns. ``inputs``: columns that the model
    takes; ``keep``: those to read besides, or all. Columns are those of all files together, null
    where a file lacks them; of JSON, those of the first rows. ``fingerprint``: the files' paths,
    sizes and times; ``rows``: how many there are, 0 where that is not known before they are read.

    Raises `ShapeError` for a column that is not there, `ModelFormatError` for files that cannot be
    read, `UnsupportedError` if there are none, or some of both kinds; `OSError` as the file system
    does.
    """

    def __init__(
        self, where: str, inputs: Collection[str], keep: Collection[str] | None = None
    ) -> None:
        self.paths, self.rows = [where], 0
        with self._format_errors():
            where = where if "://" in where else os.path.abspath(where)
            found = ds.dataset(where, schema=pa.schema([]), format="parquet")
            self._system, self.paths = found.filesystem, found.files
            kinds = {bool(_JSON.search(path.lower())) for path in self.paths}
            if len(kinds) != 1:
                what = "files of JSON and others" if kinds else "no files"
                raise UnsupportedError(f"{where}: there are {what}; give a folder of one format")
            (self._json,) = kinds
            if self._json:
                self._schema = self._sampled()
            else:
                data = ds.dataset(where, format="parquet", partitioning="hive")
                own = (each.physical_schema for each in data.get_fragments())
                self._schema = pa.unify_schemas([data.schema, *own], promote_options="permissive")
                self._dataset = data.replace_schema(self._schema)
                self.rows = data.count_rows()
        infos = self._system.get_file_info(self.paths)
        self.fingerprint = [[each.path, each.size or 0, each.mtime_ns or 0] for each in infos]
        names = self._schema.names
        self._all = keep is None
        self.columns: list[str] = names if keep is None else [*dict.fromkeys([*keep, *inputs])]
        if missing := [name for name in self.columns if name not in names]:
            raise ShapeError(f"there is no column {missing[0]!r}; the columns are {names}")

    @contextmanager
    def _format_errors(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{error}: it is no file or folder") from error
        except pa.ArrowException as error:
            files = ", ".join(self.paths[:3])
            raise ModelFormatError(f"the rows cannot be read: {error}", files) from error

    def windows(self, size: int, done: Collection[int] = ()) -> Iterator[Window]:
        """All windows but those that are done; a corpus without rows is one window."""
        with self._format_errors():
            pieces = self._json_pieces(size) if self._json else self._pieces(size)
            for index, piece in enumerate(pieces):
                if index not in done:
                    yield Window(index, *(self._read(piece) if self._json else (piece, {})))

    def _pieces(self, size: int) -> Iterator[pa.Table]:
        rows, first = self._schema.empty_table().select(self.columns), True
        for batch in self._dataset.to_batches(
            columns=self.columns, batch_size=_CHUNK, batch_readahead=1, fragment_readahead=1
        ):
            rows = pa.concat_tables([rows, pa.Table.from_batches([batch])])
            while rows.num_rows >= size:
                yield rows.slice(0, size)
                rows, first = rows.slice(size), False
        if rows.num_rows or first:
            yield rows

    def _json_pieces(self, size: int) -> Iterator[list[bytes]]:
        lines = self._lines()
        while piece := list(islice(lines, size)):
            yield piece

    def _lines(self) -> Iterator[bytes]:
        for path in self.paths:
            with self._system.open_input_stream(path) as stream:
                yield from filter(bytes.strip, BufferedReader(stream))

    def _sampled(self) -> pa.Schema:
        rows = []
        for line in islice(self._lines(), _SAMPLE):
            with suppress(ValueError, RecursionError):  # a bad row says nothing of the others
                rows.append(_row(line))
        if not rows:
            raise UnsupportedError(f"{self.paths[0]}: there are no rows that can be read")
        fields = []
        for name in dict.fromkeys(name for row in rows for name in row):
            try:
                fields.append((name, pa.array([row.get(name) for row in rows]).type))
            except (pa.ArrowException, ValueError, OverflowError) as error:
                text = f"column {name!r} of the first {_SAMPLE:,} rows has several types: {error}"
                raise ModelFormatError(text, self.paths[0]) from error
        return pa.schema(fields)

    def _read(self, lines: list[bytes]) -> tuple[pa.Table, dict[int, str]]:
        """The rows of JSON; one that cannot be read has nulls. pyarrow's reader drops columns that
        come late, gives a file up at a bad line, and crashes at some."""
        fields = [self._schema.field(name) for name in self.columns]
        try:
            rows = [_row(line) for line in lines]
            late = {name for row in rows for name in row} - {*self._schema.names}
            if late and self._all:
                raise ValueError(f"none of the first {_SAMPLE:,} rows has a column {min(late)!r}")
            columns = [pa.array([r.get(f.name) for r in rows]).cast(f.type) for f in fields]
            return pa.table(columns, schema=pa.schema(fields)), {}
        except (pa.ArrowException, ValueError, OverflowError, RecursionError) as error:
            if len(lines) == 1:
                none = [pa.nulls(1, field.type) for field in fields]
                return pa.table(none, schema=pa.schema(fields)), {0: str(error)}
        each = [self._read([line]) for line in lines]
        bad = {row: bad[0] for row, (_, bad) in enumerate(each) if bad}
        return pa.concat_tables(table for table, _ in each), bad


def _row(line: bytes) -> dict[str, Any]:
    """The row. Raises `ValueError` or `RecursionError` for what is none."""
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError(f"expected an object, got {str(row)[:40]!r}")
    return row
