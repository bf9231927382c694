"""The command that removes the faults that `verify` proved."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onernn.adapters.loading import load
from onernn.adapters.registry import RUNTIMES, WRITERS
from onernn.options import Atol, Json, Model, Params, Rtol, Semantics
from onernn.showing import complain, progress, section, show_json, stdout
from onernn.verification.references import open_against
from onernn.verification.repairing import Repair, repair
from onernn.verification.verifying import SECONDS, verify


def repair_command(
    model: Model,
    against: Annotated[
        str,
        typer.Option(help=f"A correct model, or FRAMEWORK:PATH of one: {', '.join(RUNTIMES)}."),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help=f"The file to write; its suffix sets the format: {', '.join(WRITERS)}.",
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(help="A recording to take inputs from; without it, inputs are made."),
    ] = None,
    json: Json = False,
    atol: Atol = None,
    rtol: Rtol = None,
    params: Params = None,
    against_params: Annotated[
        str | None, typer.Option(help="The parameters of --against, if they are in another folder.")
    ] = None,
    semantics: Semantics = "documented",
    seconds: Annotated[
        float, typer.Option(min=0, help="Seconds to search for the causes of a difference.")
    ] = SECONDS,
) -> None:
    """Writes MODEL without its proved faults and shows the diff.

    The new file is verified on fresh inputs before it gets its name. Exit 1, and no file: a
    cause is only a candidate, or no cause is known.
    """
    graph = load(model, params, semantics)
    reference = open_against(against, against_params, semantics)
    with progress() as tell:
        found = verify(
            graph, data, against=reference, atol=atol, rtol=rtol, seconds=seconds, progress=tell
        )
        done = Repair(refused="nothing to repair: the outputs agree")
        if not found.passed:
            done = repair(
                found, output, reference, progress=tell, note=complain, atol=atol, rtol=rtol
            )
    causes = [each.as_json() for each in found.causes]
    if json:
        outputs = [each.as_json() for each in (done.after or found).outputs]
        show_json(
            "pass" if done or found.passed else "fail",
            outputs=outputs,
            cause=found.cause_json(),
            causes=causes,
            changes=list(done.changes),
            written=str(output) if done else None,
            refused=done.refused,
        )
    else:
        section(stdout(), "causes", [f"{each.text} [{each.id}]" for each in found.causes])
        section(stdout(), "diff", done.changes)
        if done:
            section(stdout(), "written", [f"{output}, which agrees with {against} on fresh inputs"])
    if not done:
        complain(done.refused)
    raise typer.Exit(0 if done or found.passed else 1)
