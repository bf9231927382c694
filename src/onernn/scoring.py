"""The command that scores a corpus."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from onernn.adapters.loading import load
from onernn.core.budget import STEPS
from onernn.core.errors import UnsupportedError
from onernn.options import (
    Backend,
    Dtype,
    Json,
    MaxBytes,
    MaxSteps,
    Model,
    Params,
    Quiet,
    Semantics,
)
from onernn.showing import complain, progress, show_json, stdout

if TYPE_CHECKING:
    from onernn.batch import scoring


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
        typer.Argument(
            metavar="OUTPUT", help="The folder of Parquet files to write; Ray: or a URI."
        ),
    ],
    input: Annotated[
        list[str] | None,
        typer.Option(help="NAME=COLUMN, where the column has another name; repeatable."),
    ] = None,
    output_column: Annotated[
        list[str] | None,
        typer.Option("--output", help="NAME=COLUMN, only these outputs; repeatable."),
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option(help="A column to keep; all by default. Repeatable.")
    ] = None,
    format: Annotated[
        str | None, typer.Option(help="Of the input, where names of files do not tell it.")
    ] = None,
    words: Annotated[int, typer.Option(min=1, help="Words of a batch, at most.")] = 20_000,
    window: Annotated[int, typer.Option(min=1, help="Rows of an output file.")] = 4096,
    workers: Annotated[
        int | None, typer.Option(min=1, show_default="one a core", help="Processes.")
    ] = None,
    batch_axis: Annotated[
        list[str] | None,
        typer.Option(help="AXIS or NAME=AXIS of dense inputs' and outputs' rows; repeatable."),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="local, or ray: the cluster at RAY_ADDRESS or on this machine.")
    ] = "local",
    id: Annotated[
        str | None,
        typer.Option(help="Ray: a column of values that differ; Parquet needs none."),
    ] = None,
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
    that cannot be scored have no outputs, and OUTPUT/rejected tells why. On Ray rows come in any
    order.
    """
    with _ended_by_signals(), _on(engine, id, quiet or json) as run:
        found = run(
            load(model, params, semantics),
            corpus,
            output,
            inputs=_pairs("--input", input),
            outputs=_pairs("--output", output_column) if output_column else None,
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
        )
    speed = found.words / max(found.seconds, 1e-9)
    if json:
        told_as = {**found._asdict(), "words_per_second": speed, "output": str(output)}
        show_json("pass", **told_as)
    elif not quiet:
        went_on = f", {found.windows_before:,} of them before" if found.windows_before else ""
        stdout().print(
            f"{output}: rows {found.rows:,}, files {found.windows:,}{went_on};"
            + (
                f" {found.words:,} steps in {found.seconds:,.1f} s, {speed:,.0f} a second"
                if found.words
                else f" {found.seconds:,.1f} s"
            )
        )
        if found.rejected:
            stdout().print(f"rows rejected: {found.rejected:,}, see {output}/rejected")


@contextmanager
def _on(engine: str, id: str | None, hidden: bool) -> Iterator[Callable[..., scoring.Summary]]:
    """What scores on an engine, while its progress is shown."""
    from onernn.batch import scoring

    match engine:
        case "local":
            if id is not None:
                raise UnsupportedError("--id is for --engine ray: here rows are known by numbers")
            with progress() as tell:
                yield partial(scoring.score, progress=partial(_told, tell))
        case "ray":
            from onernn.batch.ray_scoring import score_on_ray

            yield partial(score_on_ray, id=id, show_progress=not hidden)
        case _:
            raise UnsupportedError(f"--engine {engine}: expected local or ray")


def _pairs(option: str, given: list[str] | None) -> dict[str, str]:
    """NAME=VALUE; names of values hold = in no framework, columns may."""
    pairs = [each.partition("=") for each in given or ()]
    if wrong := [name for name, equals, value in pairs if not (name and equals and value)]:
        raise UnsupportedError(f"{option}: expected NAME=COLUMN, got {wrong[0]!r}")
    return {name: value for name, _, value in pairs}


def _axes(given: list[str] | None) -> int | dict[str, int]:
    try:
        if given and len(given) == 1 and "=" not in given[0]:
            return int(given[0])
        return {name: int(axis) for name, axis in _pairs("--batch-axis", given).items()}
    except ValueError as error:
        raise UnsupportedError(f"--batch-axis: {error}") from error


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM end workers, and leave what a second start goes on with."""

    def interrupt(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # once is enough
        raise _Stopped(number)

    before = {each: signal.signal(each, interrupt) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except _Stopped as stopped:
        complain("stopped; the same command goes on where it ended")
        raise typer.Exit(128 + stopped.number) from None
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class _Stopped(BaseException):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _told(tell: Callable[[str, float, float], None], found: scoring.Progress) -> None:
    """Rows and steps a second, and which part of the corpus is done."""
    refused = f", {found.rejected:,} rejected" if found.rejected else ""
    speed = found.words / max(found.seconds, 1e-9)
    tell(f"{found.rows:,} rows{refused}, {speed:,.0f} steps/s", found.share, 1)
