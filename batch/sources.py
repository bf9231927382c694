"""Corpora as windows of rows: always the same rows in the same window, wherever reading begins."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from onernn.batch.files import Files, find_files
from onernn.batch.results import lists
from onernn.batch.text import TextRows
from onernn.core.errors import ShapeError, UnsupportedError
from onernn.core.ragged import data_of
from onernn.core.records import dataclass
from onernn.verification.recording import INPUTS, read_arrays, read_given

if TYPE_CHECKING:
    import pyarrow as pa

_CHUNK = 1024  # rows
_BUFFER = 2**20  # bytes of a file


class Chunk(NamedTuple):
    """Some rows; what could not be read is null, and ``bad`` says why. ``read``: of all bytes."""

    table: pa.Table
    bad: dict[int, str]
    read: float


@dataclass(frozen=True, eq=False)
class Window:
    """The rows from ``first`` on that become one file. ``read``: the share of the corpus before
    the window's end."""

    index: int
    first: int
    table: pa.Table
    bad: dict[int, str]
    read: float


class Rows(Protocol):
    """The rows of files of one kind."""

    columns: Collection[str]

    def chunks(self, start: int) -> Iterator[Chunk]:
        """All rows from this one on."""


class Source:
    """A corpus. ``inputs``: columns that the model takes; ``keep``: those to read besides, or all.

    A window holds the same rows wherever reading begins.
    """

    def __init__(
        self,
        where: str,
        inputs: Collection[str],
        keep: Collection[str] | None = None,
        format: str | None = None,
    ) -> None:
        self.files = find_files(where, format)
        wanted = None if keep is None else list(dict.fromkeys([*keep, *inputs]))
        self._rows: Rows
        match self.files.format:
            case "json" | "csv" | "tsv":
                self._rows = TextRows(self.files, inputs, wanted)
            case "npz":
                self._rows = _Recordings(self.files, wanted)
            case _:
                self._rows = _Dataset(self.files, wanted)

    @property
    def columns(self) -> Collection[str]:
        return self._rows.columns

    def windows(self, size: int, done: Collection[int] = ()) -> Iterator[Window]:
        """All windows but those that are done; a corpus without rows is one window."""
        import pyarrow as pa

        index = 0
        while index in done:
            index += 1
        count, read = 0, 0.0
        held: list[pa.Table] = []
        bad: dict[int, str] = {}
        for table, why, read in self._rows.chunks(index * size):
            held.append(table.slice(0, size - count))
            bad |= {count + row: each for row, each in why.items()}
            count += table.num_rows
            while count >= size:
                now = {row: each for row, each in bad.items() if row < size}
                if index not in done:
                    yield Window(index, index * size, pa.concat_tables(held), now, read)
                index, count = index + 1, count - size
                held = [table.slice(table.num_rows - count, size)]
                bad = {row - size: each for row, each in bad.items() if row >= size}
        if index not in done and (count or not index):
            yield Window(index, index * size, pa.concat_tables(held), bad, read)


class _Dataset:
    """Files that pyarrow's datasets know, with columns from folders named NAME=VALUE."""

    def __init__(self, files: Files, wanted: list[str] | None) -> None:
        import pyarrow.dataset as ds

        self._data = ds.dataset(
            list(files.paths), filesystem=files.system, format=files.format, partitioning="hive"
        )
        names = self._data.schema.names
        if missing := [name for name in wanted or () if name not in names]:
            raise ShapeError(f"there is no column {missing[0]!r}; the columns are {names}")
        self.columns = names if wanted is None else wanted
        self._files, self._chosen = files, wanted is not None

    def chunks(self, start: int) -> Iterator[Chunk]:

        schema, whole, before = self._data.schema, sum(self._files.sizes) or 1, 0
        yield Chunk(schema.empty_table().select(self.columns), {}, 0.0)
        for fragment, size in zip(self._data.get_fragments(), self._files.sizes, strict=True):
            rows = fragment.count_rows()
            if start < rows:
                at, tables = self._tables(fragment, start)
                for table in tables:
                    skip = min(max(start - at, 0), table.num_rows)
                    at += table.num_rows
                    if skip < table.num_rows:
                        yield Chunk(table.slice(skip), {}, (before + size * at / rows) / whole)
            start, before = max(start - rows, 0), before + size

    def _tables(self, fragment: Any, start: int) -> tuple[int, Iterator[pa.Table]]:
        """The rows of a file from this one on, or an earlier one: its number, and tables."""
        import pyarrow as pa

        if self._files.format == "parquet":
            return self._pages(fragment, start)
        batches = fragment.to_batches(
            schema=self._data.schema, columns=self.columns, batch_size=_CHUNK, use_threads=False
        )
        return 0, (pa.Table.from_batches([batch]) for batch in batches)

    def _pages(self, fragment: Any, start: int) -> tuple[int, Iterator[pa.Table]]:
        """As `_tables`, page by page: the dataset would read a row group as a whole."""
        import pyarrow as pa
        import pyarrow.dataset as ds
        import pyarrow.parquet as pq

        schema = pa.schema([self._data.schema.field(name) for name in self.columns])
        in_path = ds.get_partition_keys(fragment.partition_expression)
        file = pq.ParquetFile(
            self._files.system.open_input_file(fragment.path), buffer_size=_BUFFER, pre_buffer=False
        )
        names = file.schema_arrow.names
        if not self._chosen and (more := {*names} - {*schema.names}):
            raise ShapeError(
                f"{fragment.path}: column {min(more)!r} is not in the first file; choose columns"
                " (keep=, --keep)"
            )
        first, groups = 0, list[int]()
        for number in range(file.num_row_groups):
            count = file.metadata.row_group(number).num_rows
            if groups or first + count > start:
                groups.append(number)
            else:
                first += count

        def column(batch: pa.RecordBatch, field: pa.Field) -> Any:
            if field.name in names:
                return batch.column(field.name).cast(field.type)
            if field.name in in_path:
                value = pa.scalar(in_path[field.name]).cast(field.type)
                return pa.repeat(value, batch.num_rows)
            return pa.nulls(batch.num_rows, field.type)

        own = [name for name in schema.names if name in names]
        batches = file.iter_batches(_CHUNK, groups, own, use_threads=False)
        return first, (
            pa.table([column(batch, field) for field in schema], schema) for batch in batches
        )


class _Recordings:
    """Files of in__NAME and lod__NAME: a row is a sequence, or an entry of the first axis."""

    def __init__(self, files: Files, wanted: list[str] | None) -> None:
        self._files, self._wanted = files, wanted
        self.columns = self._read(files.paths[0]).column_names

    def chunks(self, start: int) -> Iterator[Chunk]:
        for at, path in enumerate(self._files.paths):
            table = self._read(path)
            rows = table.num_rows
            if start < rows or not rows:
                yield Chunk(table.slice(start), {}, (at + 1) / len(self._files.paths))
            start = max(start - rows, 0)

    def _read(self, path: str) -> pa.Table:
        import pyarrow as pa
        import pyarrow.fs as pafs

        if not isinstance(self._files.system, pafs.LocalFileSystem):
            raise UnsupportedError(f"{path}: recordings (.npz) are read from local files only")
        given = read_given(read_arrays(path, INPUTS))
        columns = {name: lists(each, data_of(each).shape[1:]) for name, each in given.items()}
        if len({len(column) for column in columns.values()}) > 1:
            told = {name: len(column) for name, column in columns.items()}
            raise ShapeError(f"{path}: expected as many rows of each input, got {told}")
        table = pa.table(columns)
        return table if self._wanted is None else table.select(self._wanted)
