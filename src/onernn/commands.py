"""Arguments, options and help that several commands share, and the options --quiet and --json."""

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
from typer.core import TyperCommand, TyperGroup

from onernn.adapters.common.caller_rules import read_rules
from onernn.adapters.loading import load
from onernn.adapters.registry import ADAPTERS, SEMANTICS, WRITERS
from onernn.backend import BACKENDS
from onernn.backend.onednn.precision import DTYPES
from onernn.ir.arrays import Array
from onernn.ir.errors import UnsupportedError, did_you_mean
from onernn.ir.files import COMPILED
from onernn.ir.graph import Graph
from onernn.showing import broken_pipes, show_json, working
from onernn.verification.comparing import TOLERANCES
from onernn.verification.references import Against, open_against
from onernn.verification.verifying import SECONDS


def one_of(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Returns a function for shell completion, which lists the names that begin with a text."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


COMMON = "Common options"
"""The heading, in a command's help, of the options that several commands share. The help of a
command shows the first sentence about such an option, and ``onernn --help`` shows all sentences.
"""


def _common(metavar: str | None, *names: str, help: str, **options: Any) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, rich_help_panel=COMMON, **options)


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A model's file or folder; onernn --help lists the kinds."
    ),
]
Params = Annotated[
    str | None,
    _common(
        "PATH",
        help="The parameters, if they are not next to the model. PATH is their file or folder.",
    ),
]
Semantics = Annotated[
    str,
    _common(
        "NAME",
        help="The meaning of ambiguous operators. documented: as the framework documents them."
        " mxnet-cpu: RNN ignores lengths and clips, as in MXNet on the"
        " CPU. onnxruntime: DynamicQuantizeLSTM has one scale per batch, as in ONNX Runtime on one"
        " thread.",
        autocompletion=one_of(SEMANTICS),
    ),
]
Rules = Annotated[
    Any,
    _common(
        "FILE.py",
        parser=read_rules,
        help="Python functions for operators that onernn does not know. onernn runs the file: its"
        " dict RULES has a function for each such operator.",
    ),
]
Dtype = Annotated[
    str,
    _common(
        "DTYPE",
        help=f"The dtype of recurrent layers. One of {', '.join(DTYPES)}.",
        autocompletion=one_of(DTYPES),
    ),
]
Threads = Annotated[int | None, _common("N", min=1, help="The number of threads of the backend.")]
Backend = Annotated[
    str,
    _common(
        "NAME",
        help="The code that runs recurrent layers. auto: the kernels run each layer that they"
        " support, and oneDNN runs the rest. kernels, onednn: only these. reference: NumPy.",
        autocompletion=one_of(BACKENDS),
    ),
]
MaxBytes = Annotated[
    int | None,
    _common(
        "N",
        min=1,
        show_default="3/4 of the memory",
        help="The maximum number of bytes of a run. All values that the run holds count.",
    ),
]
MaxSteps = Annotated[
    int,
    _common(
        "N",
        min=1,
        help="The maximum number of operators of a run. Operators in loops and layers count.",
    ),
]
Atol = Annotated[
    float | None,
    typer.Option(
        metavar="NUMBER",
        min=0,
        show_default=f"{TOLERANCES['f32'].atol:g} for f32",
        help="The absolute tolerance.",
    ),
]
Rtol = Annotated[
    float | None,
    typer.Option(
        metavar="NUMBER",
        min=0,
        show_default=f"{TOLERANCES['f32'].rtol:g} for f32",
        help="The tolerance relative to the reference's largest absolute value.",
    ),
]
Json = Annotated[bool, _common(None, "--json", help="Print JSON only.")]
Quiet = Annotated[bool, _common(None, "--quiet", "-q", help="Print only warnings and errors.")]
AllowFunctions = Annotated[
    bool, typer.Option("--allow-functions", help="Write operators that ONNX lacks as functions.")
]
AgainstParams = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="The parameters of --against, if they are elsewhere."),
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
    typer.Option(metavar="NAME=NUMBER", help="The value of an input without axes, now a constant."),
]
Inputs = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.npz", help="A recording to take inputs from; without it, inputs are made."
    ),
]
Seconds = Annotated[
    float | None,
    typer.Option(
        metavar="N",
        min=0,
        show_default=f"no limit, and {SECONDS:g} for the search of causes",
        help="The time limit of the whole command, in seconds; 0 compares without a search of"
        " causes.",
    ),
]
Mapped = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="MINE=THEIRS",
        help="The model's input or output, and its name in --against or --data if it differs.",
    ),
]
Typed = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="NAME=TYPE(SIZES)",
        help="The type of an input, if the model leaves it open, such as 'x=float32(1, 576)'.",
    ),
]
Written = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help=f"The file to write; its suffix sets the format: {', '.join(WRITERS)}.",
    ),
]
Opset = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="The version of ONNX's operators; by default the lowest that has all."
    ),
]


def pairs(option: str, form: str, texts: Iterable[str] | None) -> dict[str, str]:
    """Returns a dict with the entry OLD: NEW for each text ``OLD=NEW``.

    Raises `UnsupportedError`, which names the option, for a text of a different form.
    """
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
    """Returns a model, and its reference or None if ``against`` is None.

    Raises the errors of `load`.
    """
    graph = load(model, params, semantics, rules=rules)
    if against is None:
        return graph, None
    return graph, open_against(against, against_params, semantics, rules)


def numbers(graph: Graph, given: Iterable[str] | None) -> dict[str, Array]:
    """Returns the values of ``--given`` by input, as arrays without axes in the input's dtype.

    Raises `UnsupportedError` for an unknown input, or a value that the dtype cannot hold.
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


# --- the help of a command, and of all commands


class Command(TyperCommand):
    """A command whose help explains the command's own options, and lists the common options."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Returns the usage line's parts: arguments, required options, and ``[OPTIONS]`` for the
        other options.
        """
        arguments = [_value_of(each) for each in self.params if _is_argument(each)]
        if self.context_settings is FORWARDED:  # options must precede the name of the program
            return ["[OPTIONS]", *arguments]
        needed = (each for each in self.params if each.required and not _is_argument(each))
        return [*arguments, *(f"{each.opts[0]} {_value_of(each)}" for each in needed), "[OPTIONS]"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        every: list[Any] = self.params
        arguments = [(_value_of(each), each.help or "") for each in every if _is_argument(each)]
        common = sorted(filter(_is_common, every), key=lambda each: bool(each.is_flag))
        own = [each for each in every if not _is_argument(each) and not _is_common(each)]
        (common or own).append(self.get_help_option(ctx))
        _write_section(formatter, "Arguments", arguments)
        _write_section(formatter, "Options", map(_describe, own))
        title = f"{COMMON}, which onernn --help explains"
        _write_section(formatter, title, (_describe(each, brief=True) for each in common))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        formatter.write(f"\n{self.epilog}\n" if self.epilog else "")


class CommandGroup(TyperGroup):
    """All commands. The help explains the argument MODEL and the common options."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        commands = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        summaries = [(name, (each.help or "").partition("\n\n")[0]) for name, each in commands]
        own = [each for each in self.get_params(ctx) if not _is_common(each)]
        every = (each for _, command in commands for each in command.params if _is_common(each))
        common = {each.opts[0]: _describe(each) for each in every}
        kinds = [(each.name, each.files) for each in ADAPTERS]
        kinds.append(("onernn", f"a {COMPILED} that onernn compile wrote, for onernn run"))
        _write_section(formatter, "Commands", summaries)
        _write_section(formatter, "Options", map(_describe, own))
        _write_section(formatter, "MODEL, a file or folder that a framework saved", kinds)
        _write_section(formatter, COMMON, common.values())


_BRIEF = 58
"""The number of characters that fit on a line after the name of a common option."""


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _is_common(parameter: Any) -> bool:
    return not _is_argument(parameter) and parameter.rich_help_panel == COMMON


def _value_of(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _describe(option: Any, brief: bool = False) -> tuple[str, str]:
    """Returns the names of an option with its value, and the help of the option.

    If ``brief``, the help is cut after the first full stop, and a default that would make the line
    too long is left out.
    """
    names = sorted(option.opts, key=lambda name: name.startswith("--"))
    text = ", ".join(names) + "".join(f" / {name}" for name in option.secondary_opts)
    text += "" if option.is_flag else f" {_value_of(option)}"
    notes = ["repeatable"] if option.multiple else []
    default = option.show_default if isinstance(option.show_default, str) else option.default
    if option.required:
        notes.append("required")
    elif isinstance(default, str | int | float) and not isinstance(default, bool) and default != "":
        notes.append(f"default: {default}")
    help = option.help or ""
    whole = help.partition(". ")[0].removesuffix(".") + "." if brief else help
    noted = f"{whole}  [{'; '.join(notes)}]" if notes else whole
    return text, whole if brief and len(noted) > _BRIEF else noted


def _write_section(formatter: Any, title: str, rows: Iterable[tuple[str, str]]) -> None:
    if listed := list(rows):
        with formatter.section(title):
            formatter.write_dl(listed)


# --- features of all commands: --quiet, --json, a progress bar, examples


FORWARDED = {"allow_interspersed_args": False, "ignore_unknown_options": True}
"""Typer's settings of a command that runs a program. The command passes all arguments after the
program's name to the program.
"""

Function = Callable[..., None]


class Commands(typer.Typer):
    """A typer application that adds ``--quiet`` and ``--json`` to its commands."""

    def command(  # type: ignore[override]
        self, name: str | None = None, *, examples: Sequence[str] = (), **options: Any
    ) -> Callable[[Function], Function]:
        """Returns a decorator that registers a command, as `typer.Typer.command` does.

        ``examples``: lines that ``--help`` shows at its end. The decorator adds the option
        ``--quiet`` to the command. If the function has no parameter ``json``, the decorator also
        adds ``--json``: then the printed lines become the key ``lines`` of a JSON object.
        """
        if examples:
            options["epilog"] = "Examples:\n" + "\n".join(f"  {line}" for line in examples)
        register = super().command(name, cls=Command, **options)
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
        if "-" in map(str, own.values()):
            raise UnsupportedError(
                "'-': expected the name of a file or folder; for standard output, type /dev/stdout"
                " and --quiet"
            )
        with working(title, quiet or json), broken_pipes():
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
    """Runs a command, and prints a JSON object with the lines that the command printed."""
    code, printed = 0, io.StringIO()
    try:
        with redirect_stdout(printed):
            function(**arguments)
    except typer.Exit as done:
        code = done.exit_code
    show_json(not code, lines=printed.getvalue().splitlines())
    raise typer.Exit(code)
