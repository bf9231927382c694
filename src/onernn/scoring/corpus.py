"""Corpora: the rows of files, cut into windows. Each read of a corpus returns the same windows."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from io import BufferedReader
from itertools import chain, filterfalse, groupby, islice
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileInfo, LocalFileSystem

from onernn.ir.errors import ModelFormatError, ShapeError, UnsupportedError
from onernn.scoring.scorer import REJECTED
from onernn.scoring.systems import list_files, open_system, relative, shown

_JSON = re.compile(r"\.(jsonl|ndjson|json)(\.(gz|bz2|zst|lz4|br))?$")
_CODECS = {"gz": "gzip", "bz2": "bz2", "zst": "zstd", "lz4": "lz4", "br": "brotli"}
_INTEGER = re.compile(r"0|-?[1-9]\d{0,8}")
_NULL = "__HIVE_DEFAULT_PARTITION__"
_SAMPLE = 1000
"""Number of first rows of JSON from which the columns and their types are determined."""
_CHUNK = 1024
"""Maximum number of rows of Parquet that are read at a time."""
_BUFFER = 2**20
"""Number of bytes of each column that are read at a time."""
_LINE = 2**30
"""Maximum number of bytes of a line."""
NOTE = "onernn"
"""The key in the metadata of an output file under which `Folder.write` stores its facts."""
_MISFITS = (pa.ArrowException, ValueError, OverflowError)
"""Errors of pyarrow for values that do not fit a type."""
_RAW = 10_000
"""Maximum number of bytes of an unreadable line in the reason for its rejection."""


class Origin(NamedTuple):
    """The place in the corpus from which a row was read.

    ``file``: the path of a file relative to the corpus. A row of JSON has its line's number, which
    begins at 1, in ``line``, and the line in ``text``. A row of Parquet has its number in the file,
    which begins at 0, in ``row``.
    """

    file: str
    line: int | None
    row: int | None
    text: bytes = b""

    def __str__(self) -> str:
        return f"{self.file}, " + (f"row {self.row}" if self.line is None else f"line {self.line}")


class Window(NamedTuple):
    """Consecutive rows of a corpus, which become one output file. Windows are numbered from 0 on.

    ``table``: the rows. ``bad``: why a row could not be read, by the row's number. ``origins``: the
    origin of each row.
    """

    number: int
    table: pa.Table
    bad: dict[int, str]
    origins: Sequence[Origin]

    def digest(self) -> str:
        """Returns a digest of the rows. It does not depend on the files, row groups or compression
        of the corpus.
        """
        content = pa.BufferOutputStream()
        table = self.table.replace_schema_metadata().combine_chunks()
        pq.write_table(table, content, compression="none", use_dictionary=False, store_schema=False)
        view = memoryview(content.getvalue())
        footer = int.from_bytes(view[-8:-4], "little") + 8  # the footer depends on pyarrow
        result = sha256(view[:-footer])
        result.update(repr((table.num_rows, sorted(self.bad.items()))).encode())
        return result.hexdigest()

    def __str__(self) -> str:
        if not len(self.origins):
            return f"window {self.number}"
        return f"window {self.number} ({self.origins[0]} to {self.origins[-1]})"

    def trace(self, scored: pa.Table) -> pa.Table:
        """Returns the scored rows, with the origin of each rejected row added to its reason."""
        column = scored[REJECTED]
        if column.null_count < len(column):
            reasons = [
                why and f"{self.origins[row]}: {why}" for row, why in enumerate(column.to_pylist())
            ]
            at = scored.column_names.index(REJECTED)
            scored = scored.set_column(at, REJECTED, pa.array(reasons, pa.string()))
        return scored

    def rejected(self, scored: pa.Table) -> pa.Table:
        """Returns a table of the rejected rows with the columns file, line, row, reason and text.

        The text of a row of Parquet is the row as JSON.
        """
        reasons = {row: why for row, why in enumerate(scored[REJECTED].to_pylist()) if why}
        origins = [self.origins[row] for row in reasons]
        names = self.table.column_names
        values = [{name: _entry(self.table[name], row) for name in names} for row in reasons]
        texts = [
            json.dumps(row, default=str, ensure_ascii=False)
            if origin.line is None
            else origin.text.decode(errors="backslashreplace").rstrip("\r\n")
            for origin, row in zip(origins, values, strict=True)
        ]
        return pa.table(
            {
                "file": pa.array([each.file for each in origins], pa.string()),
                "line": pa.array([each.line for each in origins], pa.int64()),
                "row": pa.array([each.row for each in origins], pa.int64()),
                "reason": pa.array(reasons.values(), pa.string()),
                "text": pa.array(texts, pa.large_string()),
            }
        )


class _Ranges(Sequence[Origin]):
    """A sequence of the origins of rows of Parquet, stored as ranges: a file, the number of the
    first row, and the number of rows.
    """

    def __init__(self, ranges: Iterable[tuple[str, int, int]] = ()) -> None:
        self._ranges = [*ranges]

    def append(self, file: str, start: int, count: int) -> None:
        self._ranges.append((file, start, count))

    def take(self, size: int) -> _Ranges:
        """Removes the first ``size`` origins and returns them."""
        taken, ranges, self._ranges = _Ranges(), self._ranges, []
        for file, start, count in ranges:
            first = min(size, count)
            taken.append(file, start, first)
            self.append(file, start + first, count - first)
            size -= first
        self._ranges = [each for each in self._ranges if each[2]]
        return taken

    def __len__(self) -> int:
        return sum(count for *_, count in self._ranges)

    def __getitem__(self, row: Any) -> Any:
        row %= max(len(self), 1)
        for file, start, count in self._ranges:
            if row < count:
                return Origin(file, None, start + row)
            row -= count
        raise IndexError


class Block(NamedTuple):
    """Rows that can be read without reading earlier rows: a row group of Parquet, or a file of
    JSON.

    ``file`` is the file's index in the corpus, ``group`` is the row group's index in the file (0
    for JSON), and ``start`` is the first row's index in the file. ``rows`` counts the rows.
    """

    file: int
    group: int
    start: int
    rows: int


class Corpus:
    """The rows of a file, or of all files in a folder or under a URI, in the order of their names.

    Files are JSON lines if their names end in .jsonl, .ndjson or .json, otherwise Parquet. Names
    that begin with _ or a dot are skipped. A folder named NAME=VALUE adds the column NAME to its
    files: a column of integers if all its values are integers, otherwise of text. ``inputs``: the
    columns that the model takes. ``keep``: the columns to read in addition; by default all. Other
    columns may have any types. The corpus has the columns of all files; rows of a file without the
    column have nulls. The first rows of JSON decide the columns of JSON. A row is bad if it has a
    JSON value that the column cannot hold unchanged.

    ``name``: the name of the corpus in errors. ``fingerprint``: the files' names, sizes and times.
    ``rows``: the number of rows, 0 for JSON before `set_lines`. ``estimate``: the number of rows;
    for JSON an estimate from the bytes read so far. ``blocks``: the blocks of Parquet, and of JSON
    after `set_lines`. A corpus can be pickled.

    Raises `ShapeError` if a column of ``keep`` does not exist, and `ModelFormatError`, which names
    the file, if a file cannot be read. Raises `UnsupportedError` for a folder without files, for a
    folder with files of both formats, and for the folder of a table format. Also raises the
    `OSError`s of the file system.
    """

    def __init__(
        self, where: str, inputs: Collection[str], keep: Collection[str] | None = None
    ) -> None:
        self.rows = self.estimate = 0
        self._inputs = inputs
        self._system, self._root = open_system(where)
        is_local = isinstance(self._system, LocalFileSystem)
        self.name = self._root if is_local else shown(where).rstrip("/")
        self.blocks = list[Block]()
        files = self._list()
        self.fingerprint = self._fingerprint(files)
        self.paths = [each.path for each in files]
        self._sizes = [each.size or 0 for each in files]
        kinds = {bool(_JSON.search(self._name(path).lower())) for path in self.paths}
        if len(kinds) != 1:
            what = "JSON and other files" if kinds else "no files"
            raise UnsupportedError(f"{self.name}: expected files of one format, got {what}")
        (self._json,) = kinds
        self._all = keep is None
        chosen = None if keep is None else [*dict.fromkeys([*keep, *inputs])]
        self._schema = self._sample_schema(chosen) if self._json else self._file_schema(chosen)
        names = self._schema.names
        # The scorer names the missing columns of inputs.
        self.columns: list[str] = [
            name for name in chosen or names if name in names or name in (keep or ())
        ]
        if missing := [name for name in self.columns if name not in names]:
            raise ShapeError(f"column {missing[0]!r}: expected one of {self._names}")
        self.schema = pa.schema(map(self._schema.field, self.columns), self._schema.metadata)

    def _list(self) -> list[FileInfo]:
        with _format_errors(self.name):
            return list_files(self._system, self._root, self.name)

    def _fingerprint(self, files: list[FileInfo]) -> list[list[Any]]:
        return [[self._name(each.path), each.size or 0, each.mtime_ns or 0] for each in files]

    def _name(self, path: str) -> str:
        return relative(path, self._root)

    def check_unchanged(self) -> None:
        """Raises `UnsupportedError` if a file was changed since this object was made."""
        was, now = (
            {*map(tuple, each)} for each in (self.fingerprint, self._fingerprint(self._list()))
        )
        if changed := was ^ now:
            raise UnsupportedError(
                f"{self.name}: {min(changed)[0]} was changed while it was scored; run the same"
                " command again, which compares its rows with the scored ones"
            )

    def windows(
        self, size: int, done: Collection[int] = (), only: Collection[int] | None = None
    ) -> Iterator[Window]:
        """Yields windows of ``size`` rows in order. A corpus without rows has one window.

        ``only``: which windows are yielded, by number. If it is None, all windows are yielded
        except those in ``done``.
        """
        if only is not None and not only:
            return
        first = min(only) if only else next(filterfalse(done.__contains__, range(len(done) + 1)))
        if not self.blocks:
            first = 0
        elif first and first * size >= self.rows:
            return
        block, skipped = self._seek(first * size)
        pieces: Iterator[Any] = (self._json_pieces if self._json else self._pieces)(
            size, int(block), int(skipped)
        )
        last = max(only) if only else None
        for index, piece in enumerate(pieces, first):
            if index not in done and (only is None or index in only):
                yield self._read(index, piece) if self._json else piece._replace(number=index)
            if index == last:
                return

    def _seek(self, rows: Any) -> tuple[Any, Any]:
        """Returns the index of the block that holds a row, and the row's index in this block.

        ``rows``: the row's number in the corpus, or an array of such numbers.
        """
        ends = np.cumsum([0, *(each.rows for each in self.blocks)])
        blocks = np.searchsorted(ends[1:], rows, side="right")
        return blocks, rows - ends[blocks]

    def runs(self, size: int, windows: Sequence[int]) -> list[range]:
        """Returns sorted window numbers, grouped into ranges of consecutive windows that begin in
        the same block. ``size``: the number of rows of a window.
        """
        blocks, _ = self._seek(np.array(windows) * size)
        result = list[range]()
        for index, (number, block) in enumerate(zip(windows, blocks, strict=True)):
            if index and result[-1].stop == number and block == blocks[index - 1]:
                result[-1] = range(result[-1].start, number + 1)
            else:
                result.append(range(number, number + 1))
        return result

    @property
    def lines_unknown(self) -> bool:
        """Whether `runs` cannot be called yet, because `set_lines` was not called for JSON."""
        return self._json and not self.blocks

    def count_lines(self, file: int) -> int:
        """Returns the number of rows of a JSON file."""
        return sum(1 for _ in self._lines(file, file + 1))

    def set_lines(self, counts: Sequence[int]) -> None:
        """Sets ``blocks`` and ``rows`` from the number of rows of each JSON file."""
        self.blocks = [Block(file, 0, 0, lines) for file, lines in enumerate(counts)]
        self.rows = self.estimate = sum(counts)

    def _file_schema(self, chosen: Collection[str] | None) -> pa.Schema:
        """Returns the schema of the chosen columns of Parquet files. Sets the blocks and the number
        of rows.
        """
        folders = {path: _folders(self._name(path)) for path in self.paths}
        result = _folder_types(folders.values())
        self._folders = folders
        names, first = dict.fromkeys(result.names), dict[bytes, bytes]()
        for number, path in enumerate(self.paths):
            with _format_errors(path), self._open(path) as file:
                own, start = file.schema_arrow, 0
                names |= dict.fromkeys(own.names)
                if twice := [name for name, times in Counter(own.names).items() if times > 1]:
                    raise pa.ArrowInvalid(f"expected each column once, got {twice[0]!r} twice")
                if path == self.paths[0]:
                    first = own.metadata or {}
                if chosen is not None:
                    own = pa.schema(each for each in own if each.name in chosen)
                try:
                    result = _join_schemas(own, result)
                except pa.ArrowException as error:
                    raise pa.ArrowInvalid(
                        f"{error}; columns can be left out (keep=, --keep)"
                    ) from error
                for group in range(file.num_row_groups):
                    rows = file.metadata.row_group(group).num_rows
                    self.blocks.append(Block(number, group, start, rows))
                    start += rows
                self.rows += start
        self._names, self.estimate = [*names], self.rows
        return result.with_metadata({key: x for key, x in first.items() if key != NOTE.encode()})

    @contextmanager
    def _open(self, path: str) -> Iterator[pq.ParquetFile]:
        """Opens a Parquet file so that only a piece of each column is in memory at a time. By
        default pyarrow would read whole row groups.
        """
        with self._system.open_input_file(path) as stream:
            suffix = PurePosixPath(self._name(path)).suffix.lower()
            if suffix != ".parquet" and stream.read_at(3, 0) != b"PAR":
                raise pa.ArrowInvalid(
                    "expected Parquet or JSON lines (.parquet, .jsonl, .ndjson, .json), got"
                    f" {suffix or 'no suffix'}; convert the file, for example with pyarrow.csv"
                )
            with pq.ParquetFile(stream, buffer_size=_BUFFER, pre_buffer=False) as file:
                yield file

    def _pieces(self, size: int, block: int, skipped: int) -> Iterator[Window]:
        rows, origins, first = pa.Table.from_batches([], self.schema), _Ranges(), True
        for path, start, table in self._tables(block, skipped):
            rows = pa.concat_tables([rows, table])
            origins.append(path, start, table.num_rows)
            while rows.num_rows >= size:
                yield Window(0, _in_one_chunk(rows.slice(0, size)), {}, origins.take(size))
                rows, first = rows.slice(size), False
        if rows.num_rows or first:
            yield Window(0, _in_one_chunk(rows), {}, origins)

    def _tables(self, first: int, skipped: int) -> Iterator[tuple[str, int, pa.Table]]:
        """Yields consecutive rows of Parquet: the file's name, the number of the first row in the
        file, and a table of the rows.

        The block with the index ``first`` is read first. The first ``skipped`` rows of this block
        are not yielded.
        """
        for number, blocks in groupby(self.blocks[first:], lambda each: each.file):
            groups = [*blocks]
            path, start = self.paths[number], groups[0].start
            folders = self._folders[path]
            with _format_errors(path), self._open(path) as file:
                here = {*file.schema_arrow.names}.intersection(self.columns) - {*folders}
                indices = [each.group for each in groups]
                # pyarrow reads dictionaries inside of lists from one row group at a time
                apart = any(map(_has_inner_dictionary, self.schema.types))
                for batch in chain.from_iterable(
                    file.iter_batches(_CHUNK, each, [*here], use_threads=False)
                    for each in ([[index] for index in indices] if apart else [indices])
                ):
                    dropped = min(skipped, batch.num_rows)
                    batch, start, skipped = batch.slice(dropped), start + dropped, skipped - dropped
                    columns = [
                        _cast(batch.column(each.name), each.type)
                        if each.name in here
                        else _repeat(folders.get(each.name), each.type, batch.num_rows)
                        for each in self.schema
                    ]
                    yield self._name(path), start, pa.table(columns, schema=self.schema)
                    start += batch.num_rows

    def _json_pieces(self, size: int, block: int, skipped: int) -> Iterator[list[Origin]]:
        self._bytes, total = 0, sum(self._sizes)
        lines, rows = islice(self._lines(block), skipped, None), 0
        while piece := list(islice(lines, size)):
            rows += len(piece)
            if not self.blocks:
                self.estimate = max(rows, round(rows * total / max(self._bytes, 1)))
            yield piece
        if not self.blocks:
            self.estimate = rows

    def _lines(self, first: int = 0, stop: int | None = None) -> Iterator[Origin]:
        """Yields the lines that are not blank, of the JSON files from ``first`` to ``stop`` - 1."""
        before = 0
        for path, size in [*zip(self.paths, self._sizes, strict=True)][first:stop]:
            name = self._name(path)
            with _format_errors(path), self._system.open_input_file(path) as raw:
                with _unpack(raw, name) as stream:
                    lines = iter(partial(BufferedReader(stream).readline, _LINE), b"")
                    for number, text in enumerate(lines, 1):
                        if len(text) == _LINE and not text.endswith(b"\n"):
                            raise OSError(f"line {number}: expected at most {_LINE:,} bytes")
                        self._bytes = before + raw.tell()
                        if text.strip():
                            yield Origin(name, number, None, text)
            before += size

    def _sample_schema(self, chosen: Collection[str] | None) -> pa.Schema:
        """Returns the schema of the chosen columns of JSON, from the first rows.

        If a column has no values in these rows, later rows decide its type. A column without any
        value in the corpus is text. But if the model takes the column, the column is null, or has
        lists of integers if its rows have lists.
        """
        rows, lines = list[dict[str, Any]](), self._lines()
        for count, line in enumerate(lines, 1):
            with suppress(ValueError, RecursionError):  # a bad row does not affect the others
                rows.append(_row(line.text))
            if rows and count >= _SAMPLE:
                break
        if not rows:
            raise UnsupportedError(f"{self.paths[0]}: expected a JSON object per line, got none")
        self._names = [*dict.fromkeys(name for row in rows for name in row)]
        types = {
            name: _common_type([row.get(name) for row in rows])
            for name in (self._names if chosen is None else chosen)
            if name in self._names
        }
        while unknown := [name for name, kind in types.items() if not _is_known(kind)]:
            if (next_line := next(lines, None)) is None:
                break
            with suppress(*_MISFITS, RecursionError):
                row = _row(next_line.text)
                for name in unknown:
                    types[name] = _unify(types[name], pa.array([row.get(name)]).type)
        for name in unknown:
            if name not in self._inputs:
                types[name] = _settle(types[name], pa.string())
            elif not pa.types.is_null(types[name]):
                types[name] = _settle(types[name], pa.int64())
        return pa.schema(types.items())

    def _read(self, number: int, lines: list[Origin]) -> Window:
        """Returns a window of rows of JSON. Rows that cannot be read have nulls.

        This does not use pyarrow's JSON reader, which drops columns that are missing in the first
        rows, stops at a bad line, and crashes at some lines.
        """
        schema = self.schema
        rows, bad = list[dict[str, Any]](), dict[int, str]()
        for index, line in enumerate(lines):
            try:
                rows.append(self._check_row(_row(line.text)))
            except (ValueError, RecursionError) as error:
                rows.append({})
                bad[index] = _explain_line(line, error)
        try:
            table = _table(rows, schema)
            if not any(map(_is_infinite, table.combine_chunks().columns)):
                return Window(number, table, bad, lines)
        except _MISFITS:
            pass
        for index, (line, row) in enumerate(zip(lines, rows, strict=True)):
            try:
                one = _table([row], schema)
                if index not in bad and any(map(_is_infinite, one.columns)):
                    json.loads(line.text, parse_float=_finite)
            except _MISFITS as error:
                rows[index], bad[index] = {}, _explain_line(line, error)
        return Window(number, _table(rows, schema), bad, lines)

    def _check_row(self, row: dict[str, Any]) -> dict[str, Any]:
        """Returns the row. Raises `ValueError` if a value has no column, or if the value's column
        cannot hold it unchanged.
        """
        late = row.keys() - {*self._schema.names}
        if late and self._all:
            raise ValueError(
                f"column {min(late)!r}: expected a column of the first {_SAMPLE:,} rows; leave it"
                " out (keep=, --keep)"
            )
        for field in self.schema:
            if not holds(field.type, row.get(field.name)):
                value = f"{row[field.name]!r:.60}"
                raise ValueError(f"column {field.name!r}: expected {field.type}, got {value}")
        return row


@contextmanager
def _format_errors(path: str) -> Iterator[None]:
    """Raises `ModelFormatError`, which names the file, if the block cannot read the content of the
    file.
    """
    try:
        yield
    except (pa.ArrowException, OSError, EOFError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ModelFormatError(f"the rows cannot be read: {error}", path) from error


def _join_schemas(own: pa.Schema, schema: pa.Schema) -> pa.Schema:
    """Returns the columns of both schemas. The type of a common column holds the values of both.

    Raises `pa.ArrowException` if there is no such type.
    """
    result = pa.unify_schemas([schema, own.remove_metadata()], promote_options="permissive")
    for field in own:
        kinds = [each.field(field.name).type for each in (own, schema) if field.name in each.names]
        if any(map(pa.types.is_decimal, kinds)) and pa.types.is_floating(
            result.field(field.name).type
        ):
            raise pa.ArrowInvalid(
                f"column {field.name!r}: expected {kinds[-1]}, as in other files, got {kinds[0]}"
            )
    return result


def _folders(name: str) -> dict[str, str | None]:
    """Returns VALUE by NAME for each folder named NAME=VALUE in the path of a file."""
    pairs = (part.partition("=") for part in name.split("/")[:-1] if "=" in part)
    result = {unquote(column): unquote(value) for column, _, value in pairs}
    return {column: None if value == _NULL else value for column, value in result.items()}


def _folder_types(folders: Iterable[Mapping[str, str | None]]) -> pa.Schema:
    values: dict[str, list[str]] = {}
    for each in folders:
        for name, value in each.items():
            values.setdefault(name, []).extend([] if value is None else [value])
    return pa.schema(
        (name, pa.int32() if all(map(_INTEGER.fullmatch, texts)) else pa.string())
        for name, texts in values.items()
    )


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)  # extension types cannot be cast


def _in_one_chunk(rows: pa.Table) -> pa.Table:
    """Returns rows, which may come from several blocks, in one chunk.

    The dictionary of a column lists the values of these rows in their order. The dictionary
    of pyarrow also depends on earlier rows. An ordered dictionary is kept.
    """
    rows = rows.combine_chunks()
    for index, field in enumerate(rows.schema):
        kind = field.type
        if pa.types.is_dictionary(kind) and not kind.ordered:
            plain = rows[index].cast(kind.value_type)
            rows = rows.set_column(index, field, plain.dictionary_encode().cast(kind))
    return rows


def _repeat(value: str | None, kind: pa.DataType, count: int) -> pa.Array:
    return pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value).cast(kind), count)


def _unpack(raw: Any, name: str) -> Any:
    codec = _CODECS.get(name.lower().rpartition(".")[2])
    return pa.CompressedInputStream(raw, codec) if codec else raw


def _unify(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Returns a type that holds the values of both types. Raises `pa.ArrowException` if there is
    none.
    """
    schemas = [pa.schema([("", one)]), pa.schema([("", other)])]
    return pa.unify_schemas(schemas, promote_options="permissive").field(0).type


def _common_type(values: list[Any]) -> pa.DataType:
    """Returns a type that holds all of these JSON values, or else as many of their types as
    possible, beginning with the most frequent type.
    """
    with suppress(*_MISFITS):
        return pa.array(values).type
    kinds = Counter[pa.DataType]()
    for value in values:
        with suppress(*_MISFITS):
            kinds[pa.array([value]).type] += 1
    result = pa.null()
    for kind, _ in kinds.most_common():
        with suppress(pa.ArrowException):
            result = _unify(result, kind)
    return result


def _inner(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(index) for index in range(kind.num_fields)]


def _has_inner_dictionary(kind: pa.DataType) -> bool:
    types = [each.type for each in _inner(kind)]
    return any(map(pa.types.is_dictionary, types)) or any(map(_has_inner_dictionary, types))


def _is_known(kind: pa.DataType) -> bool:
    return not pa.types.is_null(kind) and all(_is_known(each.type) for each in _inner(kind))


def _settle(kind: pa.DataType, leaf: pa.DataType) -> pa.DataType:
    """Returns the type with ``leaf`` in place of each null type in it."""
    if pa.types.is_null(kind):
        return leaf
    inner = [each.with_type(_settle(each.type, leaf)) for each in _inner(kind)]
    if pa.types.is_list(kind):
        return pa.list_(*inner)
    return pa.struct(inner) if pa.types.is_struct(kind) else kind


def holds(kind: pa.DataType, value: Any) -> bool:
    """Returns whether a column of this type can hold a Python value unchanged.

    Returns True for types that JSON lacks; pyarrow raises an error if a value does not fit them.
    """
    if value is None:
        return True
    if pa.types.is_list(kind):
        if type(value) is not list:
            return False
        inner = kind.value_type
        accepted = _ACCEPTED.get(inner)
        if accepted is not None:
            return accepted.issuperset(map(type, value))
        return all(holds(inner, each) for each in value)
    if pa.types.is_struct(kind):
        fields = {each.name: each.type for each in _inner(kind)}
        return type(value) is dict and all(
            name in fields and holds(fields[name], each) for name, each in value.items()
        )
    return kind not in _ACCEPTED or type(value) in _ACCEPTED[kind]


_ACCEPTED: dict[pa.DataType, frozenset[type]] = {
    pa.null(): frozenset({type(None)}),
    pa.bool_(): frozenset({bool, type(None)}),
    pa.string(): frozenset({str, type(None)}),
    **{
        pa.type_for_alias(f"{sign}int{bits}"): frozenset({int, type(None)})
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },  # pyarrow raises an error for integers outside of the type's range
    **dict.fromkeys((pa.float32(), pa.float64()), frozenset({float, int, type(None)})),
}
"""The Python types of values that a column may hold, by the column's type. Without this check
`pa.array` would convert "007" to 7 and true to 1.
"""


def _table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.table(columns, schema=schema)


def _entry(column: pa.ChunkedArray, row: int) -> Any:
    """Returns an entry as a Python object, or as text if Python cannot hold it: times finer than
    microseconds or after the year 9999, text that is not UTF-8, and structs with equal names.
    """
    try:
        return column[row].as_py()
    except (*_MISFITS, NotImplementedError):
        text = column.slice(row, 1).combine_chunks().to_string()
        return " ".join(text.split()).removeprefix("[").removesuffix("]").strip()


def _explain_line(line: Origin, error: Exception) -> str:
    """Returns the reason why a line is not a row, followed by the text of the line."""
    text = line.text.strip()
    cut = f"... ({len(text):,} bytes)" if len(text) > _RAW else ""
    raw = text[:_RAW].decode(errors="backslashreplace")
    return f"{error}: {raw}{cut}"


def _row(line: bytes) -> dict[str, Any]:
    """Returns the JSON object in a line. Raises `ValueError` if the line is not a valid JSON object
    or has a name twice, and `RecursionError` if it is nested too deeply.
    """
    row = _DECODER.decode(line.decode(json.detect_encoding(line), "surrogatepass"))
    if not isinstance(row, dict):
        raise ValueError(f"expected a JSON object, got {str(row)[:40]!r}")
    return row


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("expected each name once in a JSON object")
    return result


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def _is_infinite(column: Any) -> bool:
    """Returns whether a column holds infinity, which JSON numbers beyond float64 become."""
    kind = column.type
    if pa.types.is_list(kind):
        return _is_infinite(pc.list_flatten(column))
    if pa.types.is_struct(kind):
        return any(_is_infinite(pc.struct_field(column, k)) for k in range(kind.num_fields))
    return pa.types.is_floating(kind) and bool(pc.any(pc.is_inf(column)).as_py())


def _finite(text: str) -> float:
    if np.isinf(number := float(text)):
        raise ValueError(f"{text[:40]}: expected a number in the range of float64")
    return number
