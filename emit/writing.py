"""Files of C++ from a model: what the command line and Python call."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from onernn.core.errors import ShapeError
from onernn.core.graph import Graph, Value
from onernn.core.guard import guarded
from onernn.emit.generating import generate
from onernn.emit.naming import namespace
from onernn.emit.pipeline import infer_shapes, infer_types, initialize, is_size_name, parse
from onernn.emit.program import CTYPES

_DECLARED = re.compile(r"(?P<name>.+)=(?P<dtype>\w+)\((?P<sizes>[^()]*)\)")


def write_cpp(
    model: Graph,
    folder: str | Path,
    *,
    name: str | None = None,
    weights: str = "f32",
    static: Mapping[str, int] | None = None,
    declared: Mapping[str, Value] | None = None,
    embed: bool = False,
    threads: int = 1,
) -> list[Path]:
    """A C++17 header that runs the model, its weights, an example and a CMakeLists.txt.

    ``name``: of files and namespace, that of the model's file or folder by default. ``weights``:
    f32, f16 or bf16, how matrices are stored; everything is computed in float32, but that with bf16
    products round inputs and states, too, on targets that multiply it. ``static``: sizes fixed
    now, by their names. ``declared``: types and shapes of inputs that the model does not tell.
    ``embed``: weights in the header. ``threads``: 2 lets a model use two.

    Raises `UnsupportedError` naming every node that C++ cannot be generated for.
    """
    chosen = namespace(name or _usual_name(Path(model.name)))
    if name is not None and chosen != name:
        raise ShapeError(f"--name {name}: expected a C++ name, such as {chosen}")
    with guarded(lambda: model.name):
        program = parse(model, declared)
        infer_types(program)
        infer_shapes(program, static)
        store = initialize(program, weights)
        files = generate(program, store, name=chosen, embed=embed, threads=threads)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for file, content in files.items():
        data = content if isinstance(content, bytes) else content.encode()
        (target / file).write_bytes(data)
        written.append(target / file)
    return written


def _usual_name(file: Path) -> str:
    """A file's name; where that says no more than that it is a model, its folder's."""
    stem = file.stem.removesuffix("-symbol")
    return file.parent.name or stem if stem.strip("_") == "model" else stem


def read_static(text: str) -> dict[str, int]:
    """``T=25,N=1`` as a dict. Raises `ShapeError`."""
    found = {}
    for part in filter(None, text.split(",")):
        name, _, number = part.partition("=")
        if not number.isdigit() or not name.strip().isidentifier():
            raise ShapeError(f"--static {text}: expected NAME=NUMBER,..., such as T=25,N=1")
        found[name.strip()] = int(number)
    return found


def read_declared(texts: list[str]) -> dict[str, Value]:
    """``NAME=float32(T, N, 128)`` for each; a size is a number or a name. Raises `ShapeError`."""
    found = {}
    for text in texts:
        match = _DECLARED.fullmatch(text)
        if match is None or match["dtype"] not in CTYPES:
            types = ", ".join(CTYPES)
            raise ShapeError(
                f"--input {text}: expected NAME=TYPE(SIZES), such as x=float32(T, N, 128);"
                f" types are {types}"
            )
        sizes = [part.strip() for part in match["sizes"].split(",") if part.strip()]
        bad = [s for s in sizes if not s.isdigit() and not is_size_name(s)]
        if bad:
            raise ShapeError(
                f"--input {text}: expected numbers and names as sizes, such as T and N, got {bad}: C++ or the header uses these"
            )
        shape = tuple(int(s) if s.isdigit() else s for s in sizes)
        found[match["name"]] = Value(match["name"], match["dtype"], shape)  # type: ignore[arg-type]
    return found
