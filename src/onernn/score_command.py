"""The command that scores a corpus."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

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
from onernn.showing import complain, hide_bar, progress, show_json, stdout


def score(
    model: Model,
    corpus: Annotated[
        str,
        typer.Argument(metavar="INPUT", help="A file, folder or URI of Parquet or JSON lines."),
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
    output_type: Annotated[
        list[str] | None,
        typer.Option(
            "--output-type",
            help="NAME=TYPE, if the model leaves an output's type open; repeatable.",
        ),
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option(help="A column to keep; all by default. Repeatable.")
    ] = None,
    words: Annotated[int, typer.Option(min=1, help="The most steps in a batch.")] = 20_000,
    window: Annotated[int, typer.Option(min=1, help="The rows of an output file.")] = 4096,
    workers: Annotated[
        int | None,
        typer.Option(min=1, show_default="one per core", help="The number of threads."),
    ] = None,
    batch_axis: Annotated[
        int, typer.Option(min=0, help="The axis of rows in dense inputs and outputs.")
    ] = 0,
    engine: Annotated[
        str, typer.Option(metavar="<local|ray>", help="Where rows are scored: here, or by Ray.")
    ] = "local",
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at a row that is rejected.")
    ] = False,
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
    that cannot be scored have no outputs, and the column "rejected" says why.
    """
    from onernn.scoring import score

    with _stopped_by_signals(), progress() as tell:
        result = score(
            load(model, params, semantics),
            corpus,
            output,
            inputs=pairs("--input", "NAME=COLUMN", input),
            outputs=pairs("--output", "NAME=COLUMN", output_column) or None,
            types=pairs("--output-type", "NAME=TYPE", output_type),
            keep=keep,
            words=words,
            window=window,
            workers=workers,
            batch_axis=batch_axis,
            engine=engine,
            strict=strict,
            dtype=dtype,
            backend=backend,
            max_bytes=max_bytes,
            max_steps=max_steps,
            progress=lambda rows, rejected, total: tell(
                f"{rows:,} rows, {rejected:,} rejected", rows, total
            ),
        )
    for each in result.repaired:
        complain(f"scored anew: {each}")
    if json:
        show_json("pass", **result._asdict(), output=output)
    elif not quiet:
        went_on = f", {result.windows_before:,} of them before" if result.windows_before else ""
        stdout().print(
            f"{output}: rows {result.rows:,}, files {result.windows:,}{went_on};"
            f" {result.seconds:,.1f} s"
        )
        if result.rejected:
            stdout().print(f"rows rejected: {result.rejected:,}, see the column 'rejected'")


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the process in the midst of windows, which are scored again."""

    def stop(number: int, _: object) -> None:
        hide_bar()
        complain("stopped; the same command continues from here")
        os._exit(128 + number)

    before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
