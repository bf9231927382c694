"""The common parts of commands: arguments, options, --quiet, --json, a progress bar, examples."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from onernn.adapters.common.caller_rules import read_rules
from onernn.adapters.loading import load
from onernn.adapters.registry import ADAPTERS, SEMANTICS, WRITERS
from onernn.backend import BACKENDS
from onernn.backend.onednn.precision import DTYPES
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError, did_you_mean
from onernn.ir.graph import Graph
from onernn.showing import show_json, working
from onernn.verification.references import Against, open_against
from onernn.verification.verifying import SECONDS


def one_of(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Returns a completion for shells that offers these names."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help=f"The model: {'; '.join(adapter.files for adapter in ADAPTERS)}."
    ),
]
Params = Annotated[
    str | None, typer.Option(help="The parameters, if they are in another folder than the model.")
]
Semantics = Annotated[
    str,
    typer.Option(
        help="documented; mxnet-cpu: RNN ignores lengths and clips, as in MXNet on the CPU;"
        " onnxruntime: DynamicQuantizeLSTM has one scale for a batch, as in ONNX Runtime on one"
        " thread.",
        autocompletion=one_of(SEMANTICS),
    ),
]
Rules = Annotated[
    Any,
    typer.Option(
        parser=read_rules,
        metavar="FILE.py",
        help="A Python file, which is run: its dict RULES has a function for each operator that"
        " onernn does not know.",
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        help=f"The dtype in which recurrent layers compute: {', '.join(DTYPES)}.",
        autocompletion=one_of(DTYPES),
    ),
]
Threads = Annotated[int | None, typer.Option(min=1, help="The number of threads of the backend.")]
Backend = Annotated[
    str,
    typer.Option(
        help="auto (kernels for each layer that they have, oneDNN for the rest), kernels, onednn,"
        " or reference (NumPy).",
        autocompletion=one_of(BACKENDS),
    ),
]
MaxBytes = Annotated[
    int | None,
    typer.Option(
        min=1,
        show_default="3/4 of the memory",
        help="The most bytes that the values of one run may take.",
    ),
]
MaxSteps = Annotated[
    int,
    typer.Option(min=1, help="The most operators that the loops and layers of one run may run."),
]
Atol = Annotated[float | None, typer.Option(help="The absolute tolerance.")]
Rtol = Annotated[float | None, typer.Option(help="The tolerance relative to max|ref|.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print nothing but warnings and errors.")
]
AllowFunctions = Annotated[
    bool, typer.Option("--allow-functions", help="Write operators that ONNX lacks as functions.")
]
AgainstParams = Annotated[
    str | None, typer.Option(help="The parameters of --against, if they are in another folder.")
]
ExposeStates = Annotated[
    bool,
    typer.Option(
        "--expose-states",
        help="Let a model of sequences take any number of steps at a time: its states become inputs"
        " and outputs, zeros before the first step.",
    ),
]
Given = Annotated[
    list[str] | None,
    typer.Option(help="NAME=NUMBER, the value of an input without axes; repeatable."),
]
Inputs = Annotated[
    Path | None,
    typer.Option(help="A recording to take inputs from; without it, inputs are made."),
]
Seconds = Annotated[
    float | None,
    typer.Option(
        min=0,
        show_default=f"no limit, and {SECONDS:g} for the search of causes",
        help="The limit of the whole command; 0 compares without a search of causes.",
    ),
]
Mapped = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        help="MINE=THEIRS: the model's input or output, and its name in --against or --data if it"
        " differs; repeatable.",
    ),
]
Typed = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        help="A type or sizes that the model leaves open: 'x=float32(1, 576)'; repeatable.",
    ),
]
Written = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        help=f"The file to write; its suffix sets the format: {', '.join(WRITERS)}.",
    ),
]
Opset = Annotated[
    int | None,
    typer.Option(help="The version of ONNX's operators; by default the lowest that has all."),
]


def pairs(option: str, form: str, texts: Iterable[str] | None) -> dict[str, str]:
    """Returns a dict of texts ``OLD=NEW``. Raises `UnsupportedError` naming the option."""
    parts = [each.partition("=") for each in texts or ()]
    if wrong := [before for before, _, after in parts if not (before and after)]:
        raise UnsupportedError(f"{option}: expected {form}, got {wrong}")
    return {before: after for before, _, after in parts}


def open_pair(
    model: str,
    params: str | None,
    against: str | None,
    against_params: str | None,
    semantics: str,
    rules: Any,
) -> tuple[Graph, Against | None]:
    """Returns a model and its reference, if there is one. Raises the errors of `load`."""
    graph = load(model, params, semantics, rules=rules)
    if against is None:
        return graph, None
    return graph, open_against(against, against_params, semantics, rules)


def numbers(graph: Graph, given: Iterable[str] | None) -> dict[str, Array]:
    """Returns a number for each input of ``--given``, of the input's dtype.

    Raises `UnsupportedError`.
    """
    texts, result = pairs("--given", "NAME=NUMBER", given), {}
    dtypes = {value.name: value.dtype for value in graph.inputs}
    if unknown := sorted(texts.keys() - dtypes.keys()):
        hint = did_you_mean(unknown[0], dtypes)
        raise UnsupportedError(f"--given {unknown}: the model takes {', '.join(dtypes)}{hint}")
    for name, text in texts.items():
        try:
            result[name] = np.array(float(text) if "." in text else int(text), dtypes[name])
        except (ValueError, OverflowError) as error:
            raise UnsupportedError(f"--given {name}={text}: {error}") from error
    return result


# --- the common options of all commands: --quiet, --json, a progress bar, examples


FORWARDED = {"allow_interspersed_args": False, "ignore_unknown_options": True}
"""Context of a command that runs another program: the arguments after the program's name are its
own.
"""

Function = Callable[..., None]


class Commands(typer.Typer):
    """Commands, each of which gets the common options."""

    def command(  # type: ignore[override]
        self, name: str | None = None, *, examples: Sequence[str] = (), **options: Any
    ) -> Callable[[Function], Function]:
        """Registers a command in the same way as `typer.Typer.command`. ``examples``: lines for
        ``--help``.

        The function gets ``--quiet``, and ``--json`` if it does not take ``json`` itself: its
        output then becomes ``lines`` of a JSON object.
        """
        if examples:
            options["epilog"] = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in examples)
        register = super().command(name, **options)
        if options.get("context_settings") is FORWARDED:
            return register
        return lambda function: register(_with_common_options(function))


def _with_common_options(function: Function) -> Function:
    taken = inspect.signature(function, eval_str=True).parameters
    added = {name: kind for name, kind in (("json", Json), ("quiet", Quiet)) if name not in taken}
    title = function.__name__.removesuffix("_command").replace("_", "-")

    @wraps(function)
    def run(**arguments: Any) -> None:
        json, quiet = arguments["json"], arguments["quiet"]
        own = {name: value for name, value in arguments.items() if name in taken}
        with working(title, quiet or json):
            if json and "json" in added:
                _run_for_json(function, own)
            elif quiet and not json:
                with redirect_stdout(io.StringIO()):
                    function(**own)
            else:
                function(**own)

    only = inspect.Parameter.KEYWORD_ONLY
    flags = [inspect.Parameter(n, only, default=False, annotation=a) for n, a in added.items()]
    every = [*taken.values(), *flags]
    run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in every}
    return run


def _run_for_json(function: Function, arguments: dict[str, Any]) -> None:
    """Runs a command without support for JSON, and prints its lines as JSON."""
    code, printed = 0, io.StringIO()
    try:
        with redirect_stdout(printed):
            function(**arguments)
    except typer.Exit as done:
        code = done.exit_code
    show_json(not code, lines=printed.getvalue().splitlines())
    raise typer.Exit(code)
