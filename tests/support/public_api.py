"""What semantic versions promise: public names with their signatures, and the command line.

`make api` writes the snapshot.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer

from onernn.cli import app
from onernn.commands import FORWARDED

SNAPSHOT = Path(__file__).parents[1] / "project" / "public_api.txt"

LISTED = ("onernn", "onernn.backend", "onernn.scoring", "onernn.engine.emit")
"""Modules whose ``__all__`` is public."""
NAMED = {
    "onernn.adapters.onnx": ["optimize", "plug"],
    "onernn.adapters.paddle": ["explain", "optimize", "restore"],
    "onernn.recording": ["save"],
    "onernn.scoring.spark": ["score_frame"],
    "onernn.verification.suite": ["Case", "Conformance"],
    "onernn.verification.node_suite": ["NodeConformance", "node_cases", "write_node_cases"],
}
"""Public names of other modules."""
READ = {
    "onernn.adapters.mxnet": (
        "onernn.adapters.mxnet.plugin",
        ["explain", "optimize", "restore", "rnn"],
    ),
    "onernn.adapters.torch": (
        "onernn.adapters.torch.plugin",
        ["explain", "optimize", "refresh", "restore"],
    ),
    "onernn.scoring.beam": ("onernn.scoring.beam", ["ScorerHandler"]),
}
"""Those whose modules import a framework: their source is read."""


def lines() -> list[str]:
    """A line a name, sorted, each as one writes it in Python or in a shell."""
    return sorted({*_python(), *_commands()})


def _python() -> Iterator[str]:
    read = {(module, name) for module, (_, names) in READ.items() for name in names}
    listed = {module: importlib.import_module(module).__all__ for module in LISTED}
    for module, names in {**listed, **NAMED}.items():
        place = importlib.import_module(module)
        for name in names:
            if (module, name) not in read:
                yield from _described(f"{module}.{name}", getattr(place, name))
    for module, (source, names) in READ.items():
        spec = find_spec(source)
        assert spec and spec.origin
        tree = ast.parse(Path(spec.origin).read_text())
        made = dict[str, ast.FunctionDef]()
        for node in tree.body:
            for each in node.body if isinstance(node, ast.ClassDef) else [node]:
                if isinstance(each, ast.FunctionDef) and (each is node or each.name == "__init__"):
                    made[node.name] = each  # a class has the signature of its __init__
        for name in names:
            returns = f" -> {ast.unparse(found)}" if (found := made[name].returns) else ""
            yield f"{module}.{name}({ast.unparse(made[name].args)}){returns}"


def _described(path: str, found: Any) -> Iterator[str]:
    if inspect.isclass(found):
        yield from _class(path, found)
    elif callable(found) and hasattr(found, "__module__") and inspect.isroutine(found):
        yield f"{path}{_signature(found)}"
    else:
        yield path


def _class(path: str, found: type) -> Iterator[str]:
    bases = [base.__name__ for base in found.__bases__ if base is not object]
    yield f"class {path}({', '.join(bases)})"
    if issubclass(found, enum.Enum):
        yield from (f"{path}.{each.name} = {each.value!r}" for each in found)
    if "__init__" in vars(found) or hasattr(found, "__dataclass_fields__"):
        yield f"{path}.__init__{_signature(found.__init__)}"  # type: ignore[misc]
    ours = [each for each in found.__mro__ if each.__module__.startswith("onernn")]
    for name in sorted({name for each in ours for name in vars(each) if name[0] != "_"}):
        value = inspect.getattr_static(found, name)
        if isinstance(value, enum.Enum):
            continue
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        told = _signature(value) if inspect.isfunction(value) else ""
        yield f"{path}.{name}{told}"


def _signature(function: Any) -> str:
    """Annotations as they are written; of defaults, those that are literals."""
    signature = inspect.signature(function)
    empty = inspect.Parameter.empty
    parts, kinds = [], inspect.Parameter
    starred = False
    for each in signature.parameters.values():
        stars = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}.get(each.kind, "")
        if each.kind is kinds.KEYWORD_ONLY and not starred:
            parts.append("*")
        starred |= each.kind in (kinds.KEYWORD_ONLY, kinds.VAR_POSITIONAL)
        text = f"{stars}{each.name}"
        text += "" if each.annotation is empty else f": {_type(each.annotation)}"
        text += "" if each.default is empty else f" = {_literal(each.default)}"
        parts.append(text)
    returns = signature.return_annotation
    return f"({', '.join(parts)})" + ("" if returns is empty else f" -> {_type(returns)}")


def _type(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _literal(value: Any) -> str:
    try:
        ast.literal_eval(repr(value))
    except (ValueError, SyntaxError):
        return "..."
    return repr(value)


def _commands() -> Iterator[str]:
    group: Any = typer.main.get_command(app)
    for name, command in {"": group, **group.commands}.items():
        line = f"$ onernn {name}".rstrip()
        yield line
        for each in command.params:
            names = ", ".join(sorted(each.opts))
            needed = " (required)" if each.required else ""
            yield f"{line} {names}{needed}"
        if command.context_settings == FORWARDED:
            yield f"{line} ..."


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join(lines()) + "\n")
    print(f"{SNAPSHOT}: {len(lines())} lines; a change of them belongs into CHANGELOG.md")
