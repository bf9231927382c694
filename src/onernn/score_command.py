"""The command that scores a corpus."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from onernn.adapters.loading import load
from onernn.commands import (
    Backend,
    Dtype,
    Json,
    MaxBytes,
    MaxSteps,
    Model,
    Params,
    Quiet,
    Semantics,
    pairs,
)
from onernn.ir.budget import STEPS
from onernn.ir.errors import UnsupportedError
from onernn.showing import complain, progress, show_json, stdout

if TYPE_CHECKING:
    from onernn.scoring import Progress


def score(
    model: Model,
    corpus: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A file, folder, glob or URI: Parquet, JSON lines, CSV, Arrow, ORC or recordings.",
        ),
    ],
    output: Annotated[
        str,
        typer.Argument(metavar="OUTPUT", help="The folder for the Parquet files."),
    ],
    input: Annotated[
        list[str] | None,
        typer.Option(help="NAME=COLUMN, if the column has another name; repeatable."),
    ] = None,
    output_column: Annotated[
        list[str] | None,
        typer.Option("--output", help="NAME=COLUMN: write only these outputs; repeatable."),
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option(help="A column to keep; all by default. Repeatable.")
    ] = None,
    format: Annotated[
        str | None, typer.Option(help="The format of INPUT, if the files' names do not show it.")
    ] = None,
    words: Annotated[int, typer.Option(min=1, help="The most steps in a batch.")] = 20_000,
    window: Annotated[int, typer.Option(min=1, help="The rows of an output file.")] = 4096,
    workers: Annotated[
        int | None,
        typer.Option(min=1, show_default="one per core", help="The number of processes."),
    ] = None,
    batch_axis: Annotated[
        list[str] | None,
        typer.Option(
            help="AXIS or NAME=AXIS: the axis of rows in dense inputs and outputs; repeatable."
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="local, or ray: the cluster at RAY_ADDRESS or on this machine.")
    ] = "local",
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad row.")] = False,
    quiet: Quiet = False,
    json: Json = False,
    dtype: Dtype = "f32",
    backend: Backend = "auto",
    max_bytes: MaxBytes = None,
    max_steps: MaxSteps = STEPS,
    params: Params = None,
    semantics: Semantics = "documented",
) -> None:
    """Scores the rows of INPUT with MODEL into the folder OUTPUT.

    Rows keep their order; outputs are further columns. Killed and started again, it goes on. Rows
    that cannot be scored have no outputs, and OUTPUT/rejected says why.
    """
    from onernn.scoring import score

    with _ended_by_signals(), progress() as tell:
        result = score(
            load(model, params, semantics),
            corpus,
            output,
            engine=engine,
            inputs=pairs("--input", "NAME=COLUMN", input),
            outputs=pairs("--output", "NAME=COLUMN", output_column) or None,
            keep=keep,
            format=format,
            words=words,
            window=window,
            workers=workers,
            batch_axis=_axes(batch_axis),
            strict=strict,
            dtype=dtype,
            backend=backend,
            max_bytes=max_bytes,
            max_steps=max_steps,
            progress=partial(_show_progress, tell),
        )
    for each in result.repaired:
        complain(f"scored anew: {each}")
    speed = result.words / max(result.seconds, 1e-9)
    if json:
        summary = {**result._asdict(), "words_per_second": speed, "output": str(output)}
        show_json("pass", **summary)
    elif not quiet:
        went_on = f", {result.windows_before:,} of them before" if result.windows_before else ""
        stdout().print(
            f"{output}: rows {result.rows:,}, files {result.windows:,}{went_on};"
            + (
                f" {result.words:,} steps in {result.seconds:,.1f} s, {speed:,.0f} a second"
                if result.words
                else f" {result.seconds:,.1f} s"
            )
        )
        if result.rejected:
            stdout().print(f"rows rejected: {result.rejected:,}, see {output}/rejected")


def _axes(texts: list[str] | None) -> int | dict[str, int]:
    try:
        if texts and len(texts) == 1 and "=" not in texts[0]:
            return int(texts[0])
        named = pairs("--batch-axis", "NAME=AXIS", texts)
        return {name: int(axis) for name, axis in named.items()}
    except ValueError as error:
        raise UnsupportedError(f"--batch-axis: {error}") from error


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the workers; a second start continues from the finished windows."""

    def interrupt(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # once is enough
        raise _Stopped(number)

    before = {each: signal.signal(each, interrupt) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except _Stopped as stopped:
        complain("stopped; the same command continues from here")
        raise typer.Exit(128 + stopped.number) from None
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class _Stopped(BaseException):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _show_progress(tell: Callable[[str, float, float], None], done: Progress) -> None:
    """Rows and steps a second, and which part of the corpus is done."""
    refused = f", {done.rejected:,} rejected" if done.rejected else ""
    speed = done.words / max(done.seconds, 1e-9)
    tell(f"{done.rows:,} rows{refused}, {speed:,.0f} steps/s", done.share, 1)
