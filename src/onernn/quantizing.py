"""The command that quantizes recurrent layers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from onernn.adapters.converting import write_model, writer_for
from onernn.adapters.loading import load
from onernn.adapters.registry import WRITERS
from onernn.options import Backend, Json, Model, Opset, Params, Semantics, Threads
from onernn.showing import complain, progress, section, stdout


def quantize_command(
    model: Model,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The .onnx to write.")],
    data: Annotated[
        list[Path],
        typer.Option(help="An .npz to calibrate with, with in__NAME and lod__NAME; repeatable."),
    ],
    budget: Annotated[
        str | None,
        typer.Option(
            help="'labels 0.1%', 'max_abs 0.02' or 'rmse 0.001'; without it all layers are u8."
        ),
    ] = None,
    held_out: Annotated[
        list[Path] | None,
        typer.Option(
            help="An .npz to measure the error with; else every other of --data; repeatable."
        ),
    ] = None,
    labels_of: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="An output whose labels count; by default integers, or scores; repeatable.",
        ),
    ] = None,
    json: Json = False,
    opset: Opset = WRITERS[".onnx"].options["opset"],
    allow_functions: Annotated[
        bool,
        typer.Option("--allow-functions", help="Write operators that ONNX lacks as functions."),
    ] = False,
    threads: Threads = 1,
    backend: Backend = "auto",
    params: Params = None,
    semantics: Semantics = "documented",
) -> None:
    """Writes MODEL with layers in u8, bf16 or f32, within a budget."""
    from onernn.verification.quantizing import quantize  # no other command's

    writer_for(out)
    graph = load(model, params, semantics)
    with progress() as tell:
        found = quantize(
            graph,
            data,
            budget=budget,
            held_out=held_out or None,
            labels_of=labels_of or (),
            backend=backend,
            threads=threads,
            progress=tell,
        )
        options: dict[str, Any] = {"opset": opset, "allow_functions": allow_functions}
        write_model(found.model, out, inputs=found.example, note=complain, **options)
    for note in found.notes:
        complain(note)
    if json:
        print(found.to_json())
        return
    section(stdout(), "layers", found.of_layers())
    section(stdout(), "whole model", found.of_model())
