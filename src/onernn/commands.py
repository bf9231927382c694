"""What every command has without asking: --quiet, --json, a bar while it works, its examples."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import wraps
from typing import Any

import typer

from onernn.options import Json, Quiet
from onernn.showing import show_json, working

FORWARDED = {"allow_interspersed_args": False, "ignore_unknown_options": True}
"""Context of a command that runs another program: what stands behind its name is the program's."""

Function = Callable[..., None]


class Commands(typer.Typer):
    """Commands, each of which gets what is the same for all of them."""

    def command(  # type: ignore[override]
        self, name: str | None = None, *, examples: Sequence[str] = (), **options: Any
    ) -> Callable[[Function], Function]:
        """As `typer.Typer.command`. ``examples``: lines as one types them, for ``--help``.

        The function gets ``--quiet``, and ``--json`` where it does not take ``json`` itself: the
        lines that it prints are JSON's ``lines`` then.
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
    def run(**given: Any) -> None:
        json, quiet = given["json"], given["quiet"]
        own = {name: value for name, value in given.items() if name in taken}
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


def _run_for_json(function: Function, given: dict[str, Any]) -> None:
    """Runs a command that knows nothing of JSON, and prints its lines as JSON."""
    code, printed = 0, io.StringIO()
    try:
        with redirect_stdout(printed):
            function(**given)
    except typer.Exit as done:
        code = done.exit_code
    show_json("fail" if code else "pass", lines=printed.getvalue().splitlines())
    raise typer.Exit(code)
