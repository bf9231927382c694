"""Corpora: the rows of files, cut into windows that are the same whenever they are read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import FileSystem

from onernn.ir.errors import ModelFormatError, ShapeError, UnsupportedError

_JSON = re.compile(r"\.(jsonl|ndjson|json)(\.(gz|bz2|zst|lz4|br))?$")
_INTEGER = re.compile(r"0|-?[1-9]\d{0,8}")
_NULL = "__HIVE_DEFAULT_PARTITION__"
_SAMPLE = 1000
"""Rows of JSON that give the columns and their types."""
_CHUNK = 1024  # rows
NOTE = "onernn"
"""The key of a note in the metadata of each file that a scoring writes."""
_RAW = 10_000
"""Bytes of a line that cannot be read, in the reason for its rejection."""


class Window(NamedTuple):
    """The rows that become one file. ``bad``: why some could not be read, by their number."""

    number: int
    table: pa.Table
    bad: dict[int, str]


class _Line(NamedTuple):
    """A line of JSON: its file, its number there from 1 on, and its bytes."""

    path: str
    number: int
    text: bytes


class Corpus:
    """The rows of a file, or of all files in a folder or under a URI, in the order of their names.

    Files are Parquet, or lines of JSON where their names say so. Names that begin with _ or a dot
    are passed over. Folders named NAME=VALUE are columns: of integers if every value is written as
    one, else of text. ``inputs``: columns that the model takes; ``keep``: those to read besides,
    or all. Columns are those of all files together, null where a file lacks them; of JSON, those of
    the first rows. A JSON value that its column cannot hold unchanged makes the row a bad one.
    ``fingerprint``: the files' paths, sizes and times; ``rows``: how many there are, 0 where that
    is not known before they are read.

    Raises `ShapeError` for a column that is not there, `ModelFormatError` naming the file that
    cannot be read, `UnsupportedError` if there are none, or some of both kinds; `OSError` as the
    file system does.
    """

    def __init__(
        self, where: str, inputs: Collection[str], keep: Collection[str] | None = None
    ) -> None:
        self.rows, self._inputs = 0, inputs
        root = where if "://" in where else os.path.abspath(where)
        with _format_errors(where):
            found = ds.dataset(root, schema=pa.schema([]), format="parquet")
        self._system, self.paths = found.filesystem, found.files
        kinds = {bool(_JSON.search(path.lower())) for path in self.paths}
        if len(kinds) != 1:
            what = "files of JSON and others" if kinds else "no files"
            raise UnsupportedError(f"{root}: there are {what}; give a folder of one format")
        (self._json,) = kinds
        if self._json:
            self._schema = self._sample_schema()
        else:
            base = FileSystem.from_uri(root)[1] if "://" in root else root
            folders = _folders(base, self.paths)
            parts = ds.partitioning(folders, flavor="hive")
            found = ds.dataset(root, schema=pa.schema([]), format="parquet", partitioning=parts)
            self._fragments = list(found.get_fragments())
            self._schema = folders
            for each in self._fragments:
                with _format_errors(each.path):
                    self._schema = _join_schemas(each.physical_schema, self._schema)
                    self.rows += each.count_rows()
            first = self._fragments[0].physical_schema.metadata or {}
            self._schema = self._schema.with_metadata(
                {key: text for key, text in first.items() if key != NOTE.encode()}
            )
        self.fingerprint = self._fingerprint()
        names = self._schema.names
        self._all = keep is None
        self.columns: list[str] = names if keep is None else [*dict.fromkeys([*keep, *inputs])]
        if missing := [name for name in self.columns if name not in names]:
            raise ShapeError(f"there is no column {missing[0]!r}; the columns are {names}")

    def _fingerprint(self) -> list[list[Any]]:
        infos = self._system.get_file_info(self.paths)
        return [[each.path, each.size or 0, each.mtime_ns or 0] for each in infos]

    def check_unchanged(self) -> None:
        """Raises `UnsupportedError` if a file was changed since it was listed."""
        for was, now in zip(self.fingerprint, self._fingerprint(), strict=True):
            if was != now:
                raise UnsupportedError(
                    f"{now[0]}: this file was changed while it was scored; score it into a new"
                    " folder"
                )

    def windows(self, size: int, done: Collection[int] = ()) -> Iterator[Window]:
        """Yields all windows but those that are done; a corpus without rows is one window."""
        pieces = self._json_pieces(size) if self._json else self._pieces(size)
        for index, piece in enumerate(pieces):
            if index not in done:
                yield Window(index, *(self._read(piece) if self._json else (piece, {})))

    def _pieces(self, size: int) -> Iterator[pa.Table]:
        rows, first = self._schema.empty_table().select(self.columns), True
        for batch in self._batches():
            rows = pa.concat_tables([rows, pa.Table.from_batches([batch])])
            while rows.num_rows >= size:
                yield rows.slice(0, size)
                rows, first = rows.slice(size), False
        if rows.num_rows or first:
            yield rows

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for each in self._fragments:
            with _format_errors(each.path):
                yield from each.to_batches(
                    schema=self._schema,
                    columns=self.columns,
                    batch_size=_CHUNK,
                    batch_readahead=1,
                )

    def _json_pieces(self, size: int) -> Iterator[list[_Line]]:
        lines = self._lines()
        while piece := list(islice(lines, size)):
            yield piece

    def _lines(self) -> Iterator[_Line]:
        for path in self.paths:
            with _format_errors(path), self._system.open_input_stream(path) as stream:
                for number, text in enumerate(BufferedReader(stream), 1):
                    if text.strip():
                        yield _Line(path, number, text)

    def _sample_schema(self) -> pa.Schema:
        """Returns the columns of the first rows. Rows after these give the type of a column that
        has no values there; a column without any is of text, or if the model takes it, of integers.
        """
        rows, lines = list[dict[str, Any]](), self._lines()
        for line in islice(lines, _SAMPLE):
            with suppress(ValueError, RecursionError):  # a bad row says nothing of the others
                rows.append(_row(line.text))
        if not rows:
            raise UnsupportedError(f"{self.paths[0]}: there are no rows that can be read")
        types = dict[str, pa.DataType]()
        for name in dict.fromkeys(name for row in rows for name in row):
            try:
                types[name] = pa.array([row.get(name) for row in rows]).type
            except (pa.ArrowException, ValueError, OverflowError) as error:
                text = f"column {name!r} of the first {_SAMPLE:,} rows has several types: {error}"
                raise ModelFormatError(text, self.paths[0]) from error
        while unknown := [name for name, kind in types.items() if not _is_known(kind)]:
            if (next_line := next(lines, None)) is None:
                break
            with suppress(pa.ArrowException, ValueError, OverflowError, RecursionError):
                row = _row(next_line.text)
                for name in unknown:
                    types[name] = _unify(types[name], pa.array([row.get(name)]).type)
        for name in unknown:
            if name not in self._inputs:
                types[name] = _settle(types[name], pa.string())
            elif not pa.types.is_null(types[name]):
                types[name] = _settle(types[name], pa.int64())
        return pa.schema(types.items())

    def _read(self, lines: list[_Line]) -> tuple[pa.Table, dict[int, str]]:
        """Returns the rows of JSON; one that cannot be read has nulls. pyarrow's reader drops
        columns that come late, gives a file up at a bad line, and crashes at some.
        """
        schema = pa.schema([self._schema.field(name) for name in self.columns])
        rows, bad = list[dict[str, Any]](), dict[int, str]()
        for index, line in enumerate(lines):
            try:
                rows.append(self._check_row(_row(line.text), schema))
            except (ValueError, RecursionError) as error:
                rows.append({})
                bad[index] = _explain_line(line, error)
        try:
            table = _table(rows, schema)
            if not any(map(_is_infinite, table.combine_chunks().columns)):
                return table, bad
        except (pa.ArrowException, ValueError, OverflowError):
            pass
        for index, (line, row) in enumerate(zip(lines, rows, strict=True)):
            try:
                _table([row], schema)
                if index not in bad:
                    json.loads(line.text, parse_float=_finite)
            except (pa.ArrowException, ValueError, OverflowError) as error:
                rows[index], bad[index] = {}, _explain_line(line, error)
        return _table(rows, schema), bad

    def _check_row(self, row: dict[str, Any], schema: pa.Schema) -> dict[str, Any]:
        """Returns the row. Raises `ValueError` for values that their column would change or
        lose.
        """
        late = row.keys() - {*self._schema.names}
        if late and self._all:
            raise ValueError(f"none of the first {_SAMPLE:,} rows has a column {min(late)!r}")
        for field in schema:
            if not _holds(field.type, row.get(field.name)):
                value = f"{row[field.name]!r:.60}"
                raise ValueError(f"column {field.name!r} is of {field.type}, got {value}")
        return row


@contextmanager
def _format_errors(path: str) -> Iterator[None]:
    """Errors name the file that cannot be read."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}: it is no file or folder") from error
    except (pa.ArrowException, OSError, EOFError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ModelFormatError(f"the rows cannot be read: {error}", path) from error


def _join_schemas(own: pa.Schema, schema: pa.Schema) -> pa.Schema:
    """Returns the columns of both, each of a type that holds the values of both."""
    result = pa.unify_schemas([schema, own.remove_metadata()], promote_options="permissive")
    for field in own:
        kinds = [each.field(field.name).type for each in (own, schema) if field.name in each.names]
        if any(map(pa.types.is_decimal, kinds)) and pa.types.is_floating(
            result.field(field.name).type
        ):
            raise pa.ArrowInvalid(
                f"column {field.name!r} is {kinds[0]} here, {kinds[-1]} elsewhere"
            )
    return result


def _folders(base: str, paths: Iterable[str]) -> pa.Schema:
    """Returns the columns that folders named NAME=VALUE are."""
    values: dict[str, set[str]] = {}
    for path in paths:
        for part in path.removeprefix(base).split("/")[:-1]:
            name, equals, value = part.partition("=")
            if equals:
                values.setdefault(unquote(name), set()).add(unquote(value))
    return pa.schema(
        (name, pa.int32() if all(map(_INTEGER.fullmatch, texts - {_NULL})) else pa.string())
        for name, texts in values.items()
    )


def _unify(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Returns the type that holds values of both. Raises `pa.ArrowException` if there is none."""
    schemas = [pa.schema([("", one)]), pa.schema([("", other)])]
    return pa.unify_schemas(schemas, promote_options="permissive").field(0).type


def _inner(kind: pa.DataType) -> list[pa.Field]:
    """Returns the fields of a list or struct."""
    return [kind.field(index) for index in range(kind.num_fields)]


def _is_known(kind: pa.DataType) -> bool:
    return not pa.types.is_null(kind) and all(_is_known(each.type) for each in _inner(kind))


def _settle(kind: pa.DataType, leaf: pa.DataType) -> pa.DataType:
    """Returns the type with ``leaf`` for what no row has a value of."""
    if pa.types.is_null(kind):
        return leaf
    inner = [each.with_type(_settle(each.type, leaf)) for each in _inner(kind)]
    if pa.types.is_list(kind):
        return pa.list_(*inner)
    return pa.struct(inner) if pa.types.is_struct(kind) else kind


def _holds(kind: pa.DataType, value: Any) -> bool:
    """Returns whether a column of this type holds a JSON value unchanged."""
    if value is None:
        return True
    if pa.types.is_list(kind):
        if type(value) is not list:
            return False
        inner = kind.value_type
        accepted = _ACCEPTED.get(inner)
        if accepted is not None:
            return accepted.issuperset(map(type, value))
        return all(_holds(inner, each) for each in value)
    if pa.types.is_struct(kind):
        fields = {each.name: each.type for each in _inner(kind)}
        return type(value) is dict and all(
            name in fields and _holds(fields[name], each) for name, each in value.items()
        )
    return type(value) in _ACCEPTED.get(kind, frozenset())


_ACCEPTED: dict[pa.DataType, frozenset[type]] = {
    pa.bool_(): frozenset({bool, type(None)}),
    pa.int64(): frozenset({int, type(None)}),
    pa.float64(): frozenset({float, int, type(None)}),  # integers that it cannot hold are refused
    pa.string(): frozenset({str, type(None)}),
}
"""Types of values by the type of a JSON column; `pa.array` would make 7 of "007" and 1 of true."""


def _table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.table(columns, schema=schema)


def _explain_line(line: _Line, error: Exception) -> str:
    """Returns why a line is not a row: the file, the line, and its text."""
    text = line.text.strip()
    cut = f"... ({len(text):,} bytes)" if len(text) > _RAW else ""
    raw = text[:_RAW].decode(errors="backslashreplace")
    return f"{line.path}, line {line.number}: {error}: {raw}{cut}"


def _row(line: bytes) -> dict[str, Any]:
    """Returns the row. Raises `ValueError` or `RecursionError` for what is none, and for what a
    dictionary would lose.
    """
    row = _DECODER.decode(line.decode(json.detect_encoding(line), "surrogatepass"))
    if not isinstance(row, dict):
        raise ValueError(f"expected an object, got {str(row)[:40]!r}")
    return row


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("an object has a name twice")
    return result


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def _is_infinite(column: Any) -> bool:
    """Returns whether a column has infinity somewhere: a number beyond float64 may have become
    it.
    """
    kind = column.type
    if pa.types.is_list(kind):
        return _is_infinite(pc.list_flatten(column))
    if pa.types.is_struct(kind):
        return any(_is_infinite(pc.struct_field(column, k)) for k in range(kind.num_fields))
    return pa.types.is_floating(kind) and bool(pc.any(pc.is_inf(column)).as_py())


def _finite(text: str) -> float:
    if np.isinf(number := float(text)):
        raise ValueError(f"{text[:40]} is too large for a float64")
    return number
