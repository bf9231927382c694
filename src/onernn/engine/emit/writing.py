"""Files of C++ from a model: what the command line and Python call."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from onernn.engine.emit.generating import checked_name, generate
from onernn.engine.emit.pipeline import infer_shapes, initialize, is_size_name, parse
from onernn.engine.emit.storing import HEADER, MAGIC, Store
from onernn.engine.naming import namespace
from onernn.engine.program import CTYPES, Program
from onernn.ir.arrays import Array
from onernn.ir.errors import ShapeError, UnsupportedError, guarded
from onernn.ir.files import replacing_all
from onernn.ir.graph import Graph, Value
from onernn.ir.ragged import Ragged, data_of

_MARK = "Written by onernn emit. SHA-256 of the lines below, which shows whether they were edited: "
_DECLARED = re.compile(r"(?P<name>.+)=(?P<dtype>\w+)\((?P<sizes>[^()]*)\)")


def write_cpp(
    model: Graph,
    folder: str | Path,
    *,
    name: str | None = None,
    weights: str = "f32",
    static: Mapping[str, int] | None = None,
    declared: Mapping[str, Value] | None = None,
    like: Mapping[str, Ragged | Array] | None = None,
    embed: bool = False,
    threads: int = 1,
    force: bool = False,
) -> list[Path]:
    """A C++17 header that runs the model, its weights, an example and a CMakeLists.txt.

    ``name``: of files and namespace, that of the model's file or folder by default. ``weights``:
    f32, f16 or bf16, how matrices are stored; everything is computed in float32, but that with bf16
    products round inputs and states, too, on targets that multiply it; int8: recurrent layers
    compute in bytes as a `Session` of dtype u8. Layers with a precision of their own keep it, and
    its scales. ``static``: sizes fixed
    now, by their names. ``declared``: types and shapes of inputs that the model does not tell;
    ``like``: batches that tell them, their sizes stay open where the model allows it.
    ``embed``: weights in the header. ``threads``: 2 lets a model use two. ``force``: overwrites
    files that are not as this function wrote them.

    All files are replaced, or none. Raises `UnsupportedError` naming every node that C++ cannot be
    generated for, or a file that somebody else wrote or edited.
    """
    chosen = namespace(_usual_name(Path(model.name))) if name is None else checked_name(name)
    with guarded(lambda: model.name):
        program = _understood(model, static, declared or {}, like or {})
        store = initialize(program, weights)
        files = generate(program, store, name=chosen, embed=embed, threads=threads)
    target = Path(folder)
    for file in files:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
    written = {
        target / file: content if isinstance(content, bytes) else _marked(file, content)
        for file, content in files.items()
    }
    edited = [str(file) for file in written if os.path.lexists(file) and not _is_ours(file)]
    if edited and not force:
        raise UnsupportedError(
            f"{', '.join(edited)}: not as onernn emit wrote it; move it away, or say --force"
        )
    with replacing_all(written) as streams:
        for stream, data in zip(streams, written.values(), strict=True):
            stream.write(data)
    return list(written)


def _understood(
    model: Graph,
    static: Mapping[str, int] | None,
    declared: Mapping[str, Value],
    like: Mapping[str, Ragged | Array],
) -> Program:
    """Types and shapes of all values; those of ``like`` with their sizes open, else as they are.

    Branches that are generated for some sizes only make these the better ones.
    """
    best: Program | None = None
    for sizes_open in (True, False) if like else (True,):
        program = parse(model, {**told(model.inputs, like, sizes_open=sizes_open), **declared})
        try:
            infer_shapes(program, static)
        except UnsupportedError:
            if best is None and not (like and sizes_open):
                raise
            continue
        if best is None or len(program.refused) < len(best.refused):
            best = program
        if not best.refused:
            break
    assert best is not None
    return best


def told(
    inputs: Iterable[Value], like: Mapping[str, Ragged | Array], *, sizes_open: bool
) -> dict[str, Value]:
    """Inputs with the types and shapes that the model leaves to batches."""
    found = {}
    for value in inputs:
        if value.name in like and (value.dtype is None or value.shape is None):
            array = data_of(like[value.name])
            shape = (None,) * array.ndim if sizes_open else array.shape
            found[value.name] = replace(
                value,
                dtype=value.dtype or array.dtype.name,
                shape=shape if value.shape is None else value.shape,
            )
    return found


def _marked(file: str, content: str) -> bytes:
    """With a first line that tells whether the rest was edited."""
    sign, data = "#" if file == "CMakeLists.txt" else "//", content.encode()
    return f"{sign} {_MARK}{hashlib.sha256(data).hexdigest()}\n".encode() + data


def _is_ours(file: Path) -> bool:
    """Whether a file is as an emit wrote it, whichever."""
    if not file.is_file():
        return False
    data = file.read_bytes()
    if file.suffix == ".weights":
        return data[:16] == MAGIC + Store.fingerprint(data[HEADER:])
    text = data.decode(errors="replace").replace("\r\n", "\n")  # as Git may have checked it out
    return text.encode() == _marked(file.name, text.partition("\n")[2])


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
                f"--input {text}: expected numbers and names as sizes, such as T and N, got {bad}:"
                " C++ or the header uses these"
            )
        shape = tuple(int(s) if s.isdigit() else s for s in sizes)
        found[match["name"]] = Value(match["name"], match["dtype"], shape)  # type: ignore[arg-type]
    return found
