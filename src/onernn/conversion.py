"""The command that writes another framework's file, and turns steps into sequences and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onernn.adapters.loading import load
from onernn.adapters.registry import WRITERS
from onernn.engine.chunks import exposed
from onernn.ir.errors import UnsupportedError
from onernn.options import Atol, Json, Model, Opset, Params, Rtol, Semantics, numbers, pairs
from onernn.showing import complain, progress, show_report
from onernn.verification.checked_conversion import convert
from onernn.verification.stepping import over_time
from onernn.verification.verifying import Report


def convert_command(
    model: Model,
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT",
            help=f"The file to write; its suffix sets the format: {', '.join(WRITERS)}.",
        ),
    ],
    check: Annotated[
        Path | None, typer.Option(help="A recording that the written file must reproduce.")
    ] = None,
    opset: Opset = WRITERS[".onnx"].options["opset"],
    output_dtype: Annotated[
        str,
        typer.Option(help="The dtype in which weights are stored: float32, float16 or bfloat16."),
    ] = "float32",
    names: Annotated[
        list[str] | None, typer.Option(help="OLD=NEW: rename an input or output; repeatable.")
    ] = None,
    allow_functions: Annotated[
        bool,
        typer.Option("--allow-functions", help="Write operators that ONNX lacks as functions."),
    ] = False,
    place: Annotated[
        str,
        typer.Option(help="Where a .pdmodel runs: cpu, or onednn (use_mkldnn on fused layers)."),
    ] = "cpu",
    fused: Annotated[
        bool | None,
        typer.Option(help="In a .pdmodel, write recurrent layers as fusion_gru and fusion_lstm."),
    ] = None,
    states: Annotated[
        list[str] | None,
        typer.Option(
            "--over-time",
            help="STATE=NEXT, an input and an output: turn a model of one frame into a model of"
            " sequences; every other input and output becomes (T, ...); repeatable.",
        ),
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option(
            help="With --over-time: NAME=NUMBER, the value of an input without axes; repeatable."
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", help="With --over-time, a type that the model lacks: 'x=float32(N, 576)'."
        ),
    ] = None,
    expose_states: Annotated[
        bool,
        typer.Option(
            "--expose-states",
            help="Let a model of sequences take any number of steps at a time: its states become"
            " inputs and outputs, zeros before the first step.",
        ),
    ] = False,
    json: Json = False,
    atol: Atol = None,
    rtol: Rtol = None,
    params: Params = None,
    semantics: Semantics = "documented",
) -> None:
    """Writes MODEL as another framework's file. Exit 1: --check finds other outputs."""
    graph = load(model, params, semantics)
    if states:
        from onernn.engine.emit.pipeline import read_declared  # with all of emit

        graph = over_time(
            graph,
            pairs("--over-time", "STATE=NEXT", states),
            given=numbers(graph, pairs("--given", "NAME=NUMBER", given)),
            inputs=read_declared(inputs or []),
        )
    elif given or inputs:
        raise UnsupportedError("--given and --input belong to --over-time")
    if expose_states:
        made = exposed(graph)
        graph = made.graph
        for note in made.notes:
            complain(note)
    with progress() as tell:
        report = convert(
            graph,
            out,
            check=check,
            atol=atol,
            rtol=rtol,
            names=pairs("--names", "OLD=NEW", names),
            output_dtype=output_dtype,
            opset=opset,
            allow_functions=allow_functions,
            place=place,
            fused=fused,
            progress=tell,
            note=complain,
        )
    report = Report((), "") if report is None else report
    show_report(report, json)
    raise typer.Exit(0 if report.passed else 1)
