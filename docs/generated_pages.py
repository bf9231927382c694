"""Generates pages of the manual from the code into docs/generated."""

from __future__ import annotations

import ast
import inspect
import re
import shutil
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

REPO = Path(__file__).resolve().parents[1]


def write(docs: Path) -> None:
    """Writes all pages into the folder ``generated``, after removing the old ones."""
    folder = docs / "generated"
    shutil.rmtree(folder, ignore_errors=True)
    for name, text in pages():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def pages() -> Iterator[tuple[str, str]]:
    yield "python.rst", python_page()
    yield "command_line.md", command_line_page()
    yield "operators.md", canonical_page()
    for framework in RULES:
        yield f"operators_{framework}.md", framework_page(framework)
    yield from checkout_pages()


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Returns a table in Markdown. The cells are Markdown, in which | is escaped."""
    lines = [list(head)]
    lines += [["---"] * len(lines[0]), *map(list, rows)]
    cells = [[re.sub(r"(?<!\\)\|", r"\\|", cell).replace("\n", " ") for cell in line]
             for line in lines]  # fmt: skip
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def code(text: object) -> str:
    """Returns a text as inline code in Markdown, also if the text contains backticks."""
    shown = str(text)
    return f"`` {shown} ``" if "`" in shown else f"`{shown}`" if shown else ""


# Python


class Task(NamedTuple):
    """A section of the page. ``text``: a sentence. ``names``: the public names by module."""

    text: str
    names: Mapping[str, tuple[str, ...]]


TASKS: Mapping[str, Task] = {
    "Load and inspect": Task(
        "Models become a `Graph` of ONNX's operators; `fuse` makes layers of cells and loops.",
        {"onernn": ("load", "read_weights", "fuse", "FuseResult")},
    ),
    "Run": Task(
        "A `Session` runs models. `open_backend` runs one recurrent layer on arrays.",
        {
            "onernn": ("Session", "CompiledModel", "share", "Shared"),
            "onernn.backend": (
                "open_backend", "Backend", "Stack", "reference_stack", "State", "Layout",
            ),
        },
    ),
    "Check and repair": Task(
        "`verify` compares a model with a reference and names the fault; `repair` undoes it;"
        " `audit` finds known faults of frameworks.",
        {"onernn": ("verify", "Report", "repair", "Repair", "audit", "AuditReport", "recording")},
    ),
    "Convert and write": Task(
        "Each function writes a different kind of file, or converts one layer.",
        {
            "onernn": (
                "convert", "compile_model", "over_time", "join", "convert_weights", "read_layer",
            ),
            "onernn.engine.emit": (
                "write_cpp", "parse", "infer_types", "infer_shapes", "initialize", "generate",
            ),
        },
    ),
    "Quantize": Task(
        "`quantize` returns a `Quantized`.",
        {"onernn": ("quantize",), "onernn.verification.quantizing": ("Quantized",)},
    ),
    "Train": Task(
        "`Stack.run_training` runs a layer forward, `Stack.backward` returns its gradients.",
        {"onernn.backend": ("Tape", "Gradients")},
    ),
    "Streams and scoring": Task(
        "`Session.streams` returns `Streams`; `CompiledModel.steps` returns `Steps`; `score`"
        " writes the outputs for all rows of a table.",
        {
            "onernn.engine.streams": ("Streams",),
            "onernn.engine.compiled_model": ("Steps",),
            "onernn.scoring": ("score", "Summary", "Scorer"),
            "onernn.scoring.spark": ("score_frame",),
            "onernn.scoring.beam": ("ScorerHandler",),
        },
    ),
    "Values": Task(
        "The arguments and results of the functions above.",
        {
            "onernn": (
                "Ragged", "Graph", "Node", "Value", "RnnSpec", "RnnWeights", "Cell", "Activation",
                "Refusal",
            ),
        },
    ),
    "Inside frameworks": Task(
        "onernn runs the recurrent layers of a model that its framework runs.",
        {
            "onernn.adapters.torch": ("optimize", "explain", "refresh", "restore"),
            "onernn.adapters.onnx": ("InferenceSession", "optimize", "plug"),
            "onernn.adapters.mxnet": ("optimize", "explain", "restore", "rnn", "rnn_param_size"),
            "onernn.adapters.paddle": ("optimize", "explain", "restore"),
            "onernn": ("plugins_disabled",),
        },
    ),
    "Extend": Task(
        "Rules for operators that onernn lacks, backends, and tests of an adapter.",
        {
            "onernn": ("Replacing",),
            "onernn.backend": ("register_backend",),
            "onernn.verification.suite": ("Conformance", "Case"),
            "onernn.verification.node_suite": (
                "NodeConformance", "node_cases", "write_node_cases",
            ),
        },
    ),
    "Errors": Task(
        "All errors of onernn are `OnernnError`; messages say what to do.",
        {
            "onernn": (
                "OnernnError", "ModelFormatError", "UnsupportedError", "ShapeError", "BudgetError",
                "FrameError", "LibraryError", "MissingDependencyError", "UnforeseenError",
            ),
            "onernn.backend": ("TapeError",),
        },
    ),
}  # fmt: skip
"""The public names, and the classes that public functions return, by the reader's task."""

READ = {
    "onernn.adapters.mxnet": "adapters/mxnet/plugin.py",
    "onernn.adapters.onnx": "adapters/onnx/plugin.py",
    "onernn.adapters.paddle": "adapters/paddle/plugin.py",
    "onernn.adapters.torch": "adapters/torch/plugin.py",
    "onernn.scoring.beam": "src/onernn/scoring/beam.py",
}
"""The source files of modules that import a framework. The page is generated from these sources, so
that no framework must be installed.
"""

ALIASES = {"onernn.backend": ("onernn.backend.arguments", ("State", "Layout"))}
"""Type aliases by the module that exports them: the module that documents them, and their names."""

_PYTHON = """Python
======

Public names by task. The examples begin after ``import numpy as np`` and ``import onernn``; tests
run them.
"""


def python_page() -> str:
    lines = [_PYTHON]
    for title, task in TASKS.items():
        lines += [title, "-" * len(title), "", task.text, ""]
        for module, names in task.names.items():
            lines += [f".. py:currentmodule:: {module}", ""]
            lines += [f"From ``{module}``:", ""] if [*task.names] != ["onernn"] else []
            for name in names:
                lines += _entry(module, name)
    return "\n".join(lines)


def _entry(module: str, name: str) -> Iterator[str]:
    """Yields the lines of a public name: a directive of autodoc, or the signature and docstring
    from the source.
    """
    if module in READ and (shown := [*read_entry((REPO / READ[module]).read_text(), name)]):
        yield from shown
        return
    source, aliases = ALIASES.get(module, ("", ()))
    if name in aliases:
        yield from (f".. autodata:: {source}.{name}", "")
        return
    found = getattr(import_module(module), name)
    if not isinstance(found, type):
        kind = "function" if callable(found) else "module"
    else:
        kind = "exception" if issubclass(found, BaseException) else "class"
    yield f".. auto{kind}:: {module}.{name}"
    yield from (["   :members:"] if kind in ("class", "module") else [])
    yield ""


def read_entry(source: str, name: str) -> Iterator[str]:
    """Yields the lines of a function or class, with its signature and docstring, from the source of
    its module. Yields nothing if the source does not define the name.
    """
    kinds = ast.FunctionDef | ast.ClassDef
    found = next((node for node in ast.walk(ast.parse(source))
                  if isinstance(node, kinds) and node.name == name), None)  # fmt: skip
    if found is None:
        return
    maker: ast.AST = found
    if isinstance(found, ast.ClassDef):
        maker = next(node for node in found.body if getattr(node, "name", "") == "__init__")
    shown = ast.unparse(maker.args).removeprefix("self, ")  # type: ignore[attr-defined]
    returns = getattr(found, "returns", None)
    arrow = f" -> {ast.unparse(returns)}" if returns else ""
    yield f".. py:{'class' if maker is not found else 'function'}:: {name}({shown}){arrow}"
    yield ""
    for line in with_code_blocks((ast.get_docstring(found) or "").splitlines()):
        yield f"   {line}".rstrip()
    yield ""


def with_code_blocks(lines: Iterable[str]) -> Iterator[str]:
    """Yields the lines of a docstring, with Markdown's code fences as reStructuredText's blocks."""
    inside = False
    for line in lines:
        if line.strip().startswith("```"):
            inside = not inside
            yield from ("", ".. code-block:: python", "") if inside else ("",)
        else:
            yield f"   {line}" if inside else line


# The command line


def command_line_page() -> str:
    import typer
    from typer.testing import CliRunner

    from onernn.cli import app

    def help_of(*command: str) -> str:
        asked = CliRunner().invoke(app, [*command, "--help"], prog_name="onernn", env=_WIDE)
        assert asked.exit_code == 0, asked.output
        return f"```text\n{asked.output.strip()}\n```\n"

    out = [_COMMAND_LINE, help_of()]
    for name in typer.main.get_command(app).commands:  # type: ignore[attr-defined]
        out.append(f"(command-{name})=\n\n## onernn {name}\n\n{help_of(name)}")
    return "\n".join(out)


_WIDE = {"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"}
_COMMAND_LINE = """# Commands

Each command with its arguments, options and examples, as `onernn COMMAND --help` prints them. See
also [exit codes and `--json`](../reference/exit_codes.md) and
[environment variables](../reference/environment.md).
"""


# Operators


def canonical_page() -> str:
    from onernn.adapters.onnx.opsets import schemas
    from onernn.ops import OPERATORS

    def row(name: str) -> tuple[str, ...]:
        one = OPERATORS[name]
        first = max(one.since, schemas().get(name, {}).get("since", 0))
        inputs = ", ".join(
            f"{'*' * each.variadic}{each.name}{'?' * each.optional}" for each in one.slots
        )
        ours = f"ONNX {first}" if one.since else "onernn"
        return code(name), ours, one.kind, inputs, _attributes(one.attributes)

    head = ("operator", "since opset", "kind", "inputs", "attributes and defaults")
    return _CANONICAL + table(head, map(row, sorted(OPERATORS)))


_CANONICAL = """# Canonical operators

A reader turns every model into a graph of these operators. Most of them are ONNX's operators, with
their names and meanings, in their newest version. onernn defines the others. `x?` marks an input
that may be absent, `*x` any number of inputs.

"""


def _attributes(attributes: Mapping[str, Any]) -> str:
    from onernn.ir.operator import REQUIRED

    shown = (f"{k} (required)" if v is REQUIRED else f"{k}={v!r}" for k, v in attributes.items())
    return ", ".join(map(code, shown))


class Framework(NamedTuple):
    title: str
    rules: Callable[[], Mapping[str, Any]]


def _paddle() -> Mapping[str, Any]:
    from onernn.adapters.paddle.lower import RULES

    return RULES


def _mxnet() -> Mapping[str, Any]:
    import_module("onernn.adapters.mxnet.lower")
    from onernn.adapters.mxnet.table import RULES

    return {name: rule.lower for name, rule in RULES.items()}


def _onnx() -> Mapping[str, Any]:
    from onernn.adapters.onnx.rules import RULES
    from onernn.ops import OPERATORS

    plain = {name: one for name, one in OPERATORS.items() if one.since and not one.domain}
    return plain | RULES


def _torch() -> Mapping[str, Any]:
    import_module("onernn.adapters.torch.lower")
    from onernn.adapters.torch.table import RULES

    return RULES


def _keras() -> Mapping[str, Any]:
    import_module("onernn.adapters.keras.lower")
    from onernn.adapters.keras.table import OPERATIONS, RULES, TENSORFLOW

    functions = {f"keras.ops {name}": rule for name, rule in OPERATIONS.items()}
    functions |= {f"TensorFlow's {name}": rule for name, rule in TENSORFLOW.items()}
    return {**RULES, **functions}


RULES = {
    "paddle": Framework("Paddle's operators", _paddle),
    "mxnet": Framework("MXNet's operators", _mxnet),
    "onnx": Framework("ONNX's operators", _onnx),
    "torch": Framework("PyTorch's operators", _torch),
    "keras": Framework("Keras's layers and operations", _keras),
}

READERS = {
    "attribute", "only", "flag", "integer", "integers", "number", "sizes", "text", "option",
    "dtype", "chosen_dtype",
}  # fmt: skip
"""Methods with which a rule reads an attribute. The first argument is the attribute's name."""


class Facts(NamedTuple):
    """Facts in the source of a rule: the canonical operators that it makes, the attributes that it
    reads with their defaults, and the reasons for which it refuses an operator.
    """

    makes: dict[str, None]
    attributes: dict[str, str]
    refuses: dict[str, None]


def framework_page(framework: str) -> str:
    title, rules = RULES[framework]
    found = rules()
    rows = []
    for name in sorted(found, key=str.lower):
        facts = facts_of(found[name], framework, name)
        rows.append((
            code(name), ", ".join(map(code, facts.makes)),
            ", ".join(map(code, (f"{k}{v}" for k, v in facts.attributes.items()))),
            "; ".join(facts.refuses),
        ))  # fmt: skip
    head = ("operator", "becomes", "attributes read", "refused")
    return f"# {title}\n\n{_FRAMEWORK.format(count=len(rows))}" + table(head, rows)


_FRAMEWORK = """onernn reads {count} operators. This page is generated from the rules that read
them.

*becomes*
: The [canonical operators](operators.md) that the rule can produce; recurrent operators become
  `Rnn`. An empty cell means that an attribute chooses the operator, or that the rule produces none.

*attributes read*
: The attributes that the rule reads, with their defaults. `is` means that any other value is
  refused. An attribute that no rule reads is an error.

*refused*
: The reasons for which the rule refuses an operator. `…` is replaced by what the model has.

Similar operators share helper functions: such a row also lists what the helper does for the others.

"""


def facts_of(rule: Any, framework: str, name: str) -> Facts:
    from onernn.ir.operator import Operator

    facts = Facts({}, {}, {})
    if isinstance(rule, Operator):
        facts.makes[name] = None
        for key, value in rule.attributes.items():
            shown = _attributes({key: value}).strip("`")
            facts.attributes[key] = shown.removeprefix(key)
        return facts
    package = f"onernn.adapters.{framework}.", "onernn.adapters.common.bodies"
    seen: dict[str, FunctionType] = {}
    _tell(rule, facts, package, seen)
    for function in seen.values():  # its tables may have the canonical operator by ``name``
        for found in map(function.__globals__.get, function.__code__.co_names):
            if isinstance(found, Mapping):
                _tell(found.get(name.split()[-1]), facts, package, {})
    return facts


def _tell(
    given: Any, facts: Facts, package: tuple[str, ...], seen: dict[str, FunctionType]
) -> None:
    """Adds the facts about a rule, or about an argument from which a rule was made, to ``facts``.

    An argument may be another rule, the name of an operator, or a row of Paddle's table.
    """
    from onernn.adapters.common.signatures import OneOf, Signature
    from onernn.ops import OPERATORS

    if isinstance(given, Signature):
        for each in given.parameters:
            if each.kind is each.KEYWORD_ONLY and each.name != "op":
                default = getattr(each.default, "default", each.default)
                known = default is not each.empty and not hasattr(default, "read")
                facts.attributes[each.name] = f"={default!r}" if known else ""
                if isinstance(each.default, OneOf):
                    for meaning in each.default.meanings.values():
                        _tell(meaning, facts, package, seen)
        for name, value in given.only.items():
            facts.attributes[name] = f" is {value!r}"
        _tell(given.rule, facts, package, seen)
    elif isinstance(given, partial):
        for each in (given.func, *given.args, *given.keywords.values()):
            _tell(each, facts, package, seen)
    elif isinstance(given, FunctionType):
        _read(given, facts, package, seen)
    elif isinstance(given, str) and given in OPERATORS:
        facts.makes[given] = None
    elif hasattr(given, "op") and hasattr(given, "only"):  # a row of Paddle's table
        facts.makes[given.op] = None
        for named in given.attributes.values():
            facts.attributes[named.name] = f"={named.default!r}"
        for name, value in given.only.items():
            facts.attributes[name] = f" is {value!r}"


_ARITHMETIC = {
    ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul", ast.Div: "Div", ast.MatMult: "MatMul",
}  # fmt: skip


@cache
def _functions(module: str) -> Mapping[str, ast.FunctionDef]:
    found = inspect.getsource(import_module(module))
    return {node.name: node for node in ast.parse(found).body if isinstance(node, ast.FunctionDef)}


def _read(
    function: FunctionType, facts: Facts, package: tuple[str, ...], seen: dict[str, FunctionType]
) -> None:
    """Adds the facts in the sources of a function, and of the functions of ``package`` that it
    calls, to ``facts``.

    ``seen``: the functions that were read already.
    """
    from onernn.ops import OPERATORS

    place = f"{function.__module__}.{function.__name__}"
    if place in seen:
        return
    seen[place] = function
    tree = _functions(function.__module__).get(function.__name__)
    if tree is None:  # an inner function: its constants may be names of operators
        cells = (cell.cell_contents for cell in function.__closure__ or ())
        for each in (*function.__code__.co_consts, *function.__code__.co_names, *cells):
            _tell(each, facts, package, seen)
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise):
            facts.refuses.update(dict.fromkeys(text for _, text in _raised(node)))
        if isinstance(node, ast.IfExp):  # a choice between two operators
            chosen = [getattr(each, "value", None) for each in (node.body, node.orelse)]
            if all(each in OPERATORS for each in chosen):
                facts.makes.update(dict.fromkeys(chosen))
        if isinstance(node, ast.Name):
            found = function.__globals__.get(node.id)
            if isinstance(found, FunctionType) and found.__module__.startswith(package):
                _read(found, facts, package, seen)
        if isinstance(node, ast.BinOp) and function.__annotations__ == {}:  # a rule by signature
            facts.makes.update(dict.fromkeys(filter(None, [_ARITHMETIC.get(type(node.op))])))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "refuse":
            facts.refuses.update(dict.fromkeys(filter(None, [_template(node.args[0])])))
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr in OPERATORS:
            facts.makes[node.func.attr] = None
        first = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        if not isinstance(first, str):
            continue
        method = node.func.attr
        if method.startswith("emit"):
            facts.makes[first] = None
        elif method in READERS and not ("dtype" in method and "dtype" not in first):
            default = ast.unparse(node.args[1]) if len(node.args) > 1 else ""
            sign = " is " if method == "only" else "="
            facts.attributes.setdefault(first, f"{sign}{default}" if default else "")


def _raised(node: ast.Raise) -> Iterator[tuple[str, str]]:
    """Yields the class and the text of a raised error, if the source has both."""
    call = node.exc
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.args:
        if text := _template(call.args[0]):
            yield call.func.id, text


def _template(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(each) or "…" for each in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return f"{_template(node.left) or '…'}{_template(node.right) or '…'}"
    return ""


# Pages of the checkout


COPIED = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""The pages of the checkout that are copied into the manual, and their names in docs/generated."""


def checkout_pages() -> Iterator[tuple[str, str]]:
    """Yields the pages of the checkout, of the examples and of measurements, with links that work
    in the manual.
    """
    for file, name in COPIED.items():
        yield name, with_manual_links((REPO / file).read_text(), REPO, "")
    for file in sorted((REPO / "examples").glob("*/README.md")):
        text = with_manual_links(file.read_text(), file.parent, "../")
        yield f"examples/{file.parent.name}.md", text
    for file in sorted((REPO / "benchmarks" / "results").glob("*.md")):
        yield f"results/{file.name}", file.read_text()


def with_manual_links(text: str, folder: Path, up: str) -> str:
    """Returns the text of a page in ``folder``, with its links changed: they point to pages of the
    manual, or else to the repository.

    ``up``: the relative path from the new page to docs/generated.
    """

    def link(match: re.Match[str]) -> str:
        path = (folder / match[1]).resolve().relative_to(REPO).as_posix()
        if path in COPIED:
            return f"]({up}{COPIED[path]}{match[2]})"
        if path.startswith("docs/"):
            return f"]({up}../{path.removeprefix('docs/')}{match[2]})"
        return f"]({repository()}/blob/main/{path}{match[2]})"

    return re.sub(r"\]\((?!https?:|#)([^)#]+)((?:#[^)]*)?)\)", link, text)


@cache
def repository() -> str:
    """Returns the address of the repository."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    return str(project["urls"]["Homepage"])
