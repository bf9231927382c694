"""Turns a model into C++ in five steps, named like the steps of ROOT's code generator SOFIE;
`generating` is the last one.

The steps are Parse, TypeInference, ShapeInference, Initialize and Generate; design/0053 compares
them with SOFIE's steps.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from onernn.backend.compiled.packing import BYTES, STORED, check_bytes
from onernn.engine import inferring
from onernn.engine.emit.generating import check_name, generate
from onernn.engine.emit.rendering import HEADER, MAGIC, CellCode, Store, words
from onernn.engine.emit.streaming import list_kept_states, pads_apart, prepare_step
from onernn.engine.inferring import lacking, name_inputs, sizes_of, write
from onernn.engine.program import (
    CTYPES,
    Call,
    Layer,
    Packed,
    Program,
    Step,
    UnknownError,
    identifier,
    namespace,
)
from onernn.fuse_passes import PASSES, fuse
from onernn.fuse_passes.over_time import bind
from onernn.ir.arrays import Array
from onernn.ir.errors import (
    MISFITS,
    OnernnError,
    Refusal,
    ShapeError,
    UnsupportedError,
    did_you_mean,
    guard,
)
from onernn.ir.feeds import Feed
from onernn.ir.files import replacing_all
from onernn.ir.graph import Graph, Value, graph_of
from onernn.ir.ragged import Ragged, data_of
from onernn.ir.weights import NO_SCALES

LAYERS = {**STORED, "int8": BYTES}
"""C++ types in which matrices of layers are stored, by ``--weights``."""
_NAMES = {"u8": "int8"}
"""The names in ``--weights`` of data types that have a different name there."""


def parse(model: Graph | str | PathLike[str], declared: Mapping[str, Any] | None = None) -> Program:
    """Fuses a model, or the model at a path, and returns its program.

    ``declared``: types and shapes of inputs that the model leaves open. Raises the errors of
    `onernn.load`.

    >>> x, y = onernn.Value("x", "float32", (None, 2)), onernn.Value("y")
    >>> relu = onernn.Node("Relu", ("x",), ("y",))
    >>> model = onernn.Graph("relu", (x,), (y,), (relu,), {})
    >>> from onernn.engine.emit import parse
    >>> [node.op for node in parse(model).graph.nodes]
    ['Relu']
    """
    return Program(pads_apart(fuse(bind(graph_of(model), {}, declared or {}), PASSES).model))


def _refusal(graph: Graph, refusals: list[Refusal]) -> UnsupportedError:
    why = "no C++ is generated; onernn.Session may run it:"
    return UnsupportedError(f"{graph.name}: {why}", refusals)


def _refuse(value: Value) -> Iterator[str]:
    if lacks := lacking(value):
        yield f"{lacks}, or --data io.npz"
    elif value.dtype not in CTYPES:
        yield f"expected one of {', '.join(CTYPES)}, got {value.dtype}"
    elif bad := [s for s in value.shape or () if isinstance(s, str) and not is_size_name(s)]:
        yield f"sizes {bad}: C++ or the header uses these names; write T, N or longer names"


def infer_types(program: Program) -> dict[str, str | None]:
    """Returns the dtype of each value by the value's name; the dtype is None if it is not known.

    >>> x, y = onernn.Value("x", "float32", (None, 2)), onernn.Value("y")
    >>> relu = onernn.Node("Relu", ("x",), ("y",))
    >>> model = onernn.Graph("relu", (x,), (y,), (relu,), {})
    >>> from onernn.engine.emit import infer_types, parse
    >>> infer_types(parse(model))
    {'x': 'float32', 'y': 'float32'}
    """
    types = program.types or program.graph.types
    return {name: found.dtype for name, found in types.items()}


def infer_shapes(
    program: Program, static: Mapping[str, int] | None = None
) -> dict[str, tuple[int | str, ...]]:
    """Returns the shape of each value by the value's name: numbers, and expressions of open sizes.

    Afterwards the steps of each node are known: see `onernn.engine.inferring.infer`. ``static``:
    sizes that are fixed now. Raises `UnsupportedError` that names the nodes without C++ code.

    >>> x, y = onernn.Value("x", "float32", (None, 2)), onernn.Value("y")
    >>> relu = onernn.Node("Relu", ("x",), ("y",))
    >>> model = onernn.Graph("relu", (x,), (y,), (relu,), {})
    >>> from onernn.engine.emit import infer_shapes, parse
    >>> infer_shapes(parse(model), {"x_0": 7})["y"]
    (7, 2)
    """
    graph = program.graph
    if program.types:
        raise UnsupportedError(f"{graph.name}: its shapes are inferred already; call parse again")
    every = {*graph.constants, *(name for node in graph.nodes for name in node.outputs)}
    every |= {value.name for value in graph.inputs}
    refusals = [
        Refusal("expected a name without NUL", repr(name)) for name in every if "\0" in name
    ]
    refusals += [Refusal(why, value.name) for value in graph.inputs for why in _refuse(value)]
    if refusals:
        name_inputs(program)
        raise _refusal(graph, [*refusals, *write(program)])
    if result := inferring.infer(program, static):
        raise _refusal(program.graph, [*result, *_advise(graph, static or {})])
    shapes = dict[str, tuple[int | str, ...]]()
    for name in program.types:
        with suppress(UnknownError):  # a value that no node reads may have no known type
            sizes = program.shape(name)
            shapes[name] = tuple(str(s) if s.number is None else s.number for s in sizes)
    return shapes


def _advise(graph: Graph, static: Mapping[str, int]) -> Iterator[Refusal]:
    def works(numbers: Mapping[str, int]) -> bool:
        try:
            return not inferring.infer(Program(graph), {**static, **numbers})
        except (OnernnError, UnknownError, *MISFITS):
            return False

    program = Program(graph, graph.types)
    name_inputs(program)
    names = list[str]()
    with suppress(OnernnError):  # raised for inputs without a known shape
        names = [name for name in sizes_of(program) if name not in static]
    if sizes := inferring.find_sufficient(names, works):
        said = ",".join(f"{name}={number}" for name, number in sizes.items())
        yield inferring.advice(f"--static {said}")


def is_size_name(name: str) -> bool:
    """Returns whether a size may have this name: it becomes a C++ variable, and the templates must
    not have the same variable.
    """
    beside = name in words() or name.endswith(("_at", "_in", "_out"))
    return name in ("T", "N", "W") or (identifier(name) == name and not beside)


def initialize(program: Program, weights: str = "f32") -> Store:
    """Returns the weights file, with constants packed in the form that the kernels read.

    ``weights`` says how matrices are stored. With f32, f16 or bf16, all are stored in this type.
    With int8, the matrices of recurrent layers are stored as int8 and all further matrices as
    float32. A layer whose node sets a precision keeps this precision. Raises `UnsupportedError` for
    weights that the type cannot represent.

    >>> x, y = onernn.Value("x", "float32", (None, 2)), onernn.Value("y")
    >>> relu = onernn.Node("Relu", ("x",), ("y",))
    >>> model = onernn.Graph("relu", (x,), (y,), (relu,), {})
    >>> from onernn.engine.emit import infer_shapes, initialize, parse
    >>> program = parse(model)
    >>> shapes = infer_shapes(program)
    >>> initialize(program, "bf16").packed_for is program
    True
    """
    if not program.types:
        raise UnsupportedError(f"{program.graph.name}: call infer_shapes before initialize")
    if weights not in LAYERS:
        hint = did_you_mean(weights, LAYERS)
        raise UnsupportedError(f"--weights {weights}: expected one of {', '.join(LAYERS)}{hint}")
    stored = STORED.get(weights, STORED["f32"])
    store = Store(stored, packed_for=program, layers=LAYERS[weights])
    program.no_step = prepare_step(program)
    states = list_kept_states(program)
    unread = program.held - {name for state in states for name in (state.held, state.final)}
    program.memory = {k: v for k, v in program.memory.items() if k not in unread}
    for each in program.codes:
        try:
            for step in each.codes:
                _pack(step, store)
        except OnernnError as error:
            raise UnsupportedError(f"{each.node.label}: {error}") from error
    return store


def _pack(step: Step, store: Store) -> None:
    if isinstance(step, Call):
        for one in step.arguments:
            if isinstance(one, Packed):
                dtype = one.numbers.dtype
                narrow = one.narrow and dtype == np.float32
                stored = store.stored if narrow else CTYPES[dtype.name]
                store.places[one] = stored, store.add(one.numbers, narrow=one.narrow)
    if isinstance(step, Layer):
        precision = step.node.attrs.precision
        name = _NAMES.get(precision.dtype, precision.dtype)
        if precision and name not in LAYERS:
            precision.refuse("generated code")
        stored = LAYERS[name] if precision else store.layers
        for run in step.runs:
            if stored == BYTES:
                check_bytes(run.spec, run.weights.iter.dtype)
            spec = replace(run.spec, direction="left2right")
            of_cell = "double" if step.real == "double" else stored
            code = CellCode(spec, run.weights.layer is not None, step.real, of_cell)
            scales = precision.parts[run.index] if precision.parts else NO_SCALES
            store.places[run] = code, code.pack(run.weights, store, scales)


# Files of C++ from a model: the function that the command line and Python call.

_MARK = "Written by onernn emit. SHA-256 of the lines below, which shows whether they were edited: "
_DECLARED = re.compile(r"(?P<name>.+)=(?P<dtype>\w+)\((?P<sizes>[^()]*)\)")


def write_cpp(
    model: Graph,
    folder: str | Path,
    *,
    name: str | None = None,
    weights: str = "f32",
    static: Mapping[str, int] | None = None,
    declared: Mapping[str, Any] | None = None,
    like: Mapping[str, Ragged | Array] | None = None,
    embed: bool = False,
    threads: int = 1,
    force: bool = False,
) -> list[Path]:
    """Writes a C++17 header that runs the model, its weights, an example and a CMakeLists.txt.

    ``name``: the name of the files and of the namespace, by default the name of the model's file or
    folder. ``weights``: how matrices are stored: f32, f16 or bf16. Everything is computed in
    float32. With bf16, on targets that multiply bf16, products also round inputs and states to
    bf16. With int8, recurrent layers compute in int8 in the same way as a `Session` of dtype u8.
    Layers with a precision of their own keep this precision and its scales. ``static``: sizes that
    are fixed now, by their names. ``declared``: types and shapes of inputs that the model does not
    declare. ``like``: batches from which types and shapes are read; sizes stay open if C++ can be
    generated for open sizes. ``embed``: stores the weights in the header. ``threads``: the maximum
    number of threads of a model, 1 to 64. ``force``: overwrites files that this function did not
    write, or that were edited.

    All files are replaced, or none. Raises `UnsupportedError` naming every node that C++ cannot
    be generated for, or a file that was edited or is from a different program.

    >>> x, y = onernn.Value("x", "float32", (None, 2)), onernn.Value("y")
    >>> relu = onernn.Node("Relu", ("x",), ("y",))
    >>> model = onernn.Graph("relu", (x,), (y,), (relu,), {})
    >>> from onernn.engine.emit import write_cpp
    >>> "relu.hpp" in [path.name for path in write_cpp(model, "cpp")]
    True
    """
    chosen = namespace(_usual_name(Path(model.name))) if name is None else check_name(name)
    with guard(lambda: model.name):
        program = _find_understood(model, static, declared or {}, like or {})
        store = initialize(program, weights)
        files = generate(program, store, name=chosen, embed=embed, threads=threads)
    target = Path(folder)
    for file in files:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
    written = {
        target / file: content if isinstance(content, bytes) else _mark(file, content)
        for file, content in files.items()
    }
    edited = [str(file) for file in written if os.path.lexists(file) and not _is_ours(file)]
    if edited and not force:
        raise UnsupportedError(
            f"{', '.join(edited)}: not as onernn emit wrote it; move it away, or pass --force"
        )
    with replacing_all(written) as streams:
        for stream, data in zip(streams, written.values(), strict=True):
            stream.write(data)
    return list(written)


def _find_understood(
    model: Graph,
    static: Mapping[str, int] | None,
    declared: Mapping[str, Any],
    like: Feed,
) -> Program:
    """Returns the program with types and shapes of all values. The sizes of ``like`` are open if
    possible, otherwise fixed.

    If some branches cannot be generated with open sizes, fixed sizes are tried; the program with
    fewer such branches is returned.
    """
    best: Program | None = None
    for sizes_open in (True, False) if like else (True,):
        program = parse(
            model, {**resolve_inputs(model.inputs, like, sizes_open=sizes_open), **declared}
        )
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


def resolve_inputs(inputs: Iterable[Value], like: Feed, *, sizes_open: bool) -> dict[str, Value]:
    """Returns the inputs without a declared type, with the types and shapes of the arrays in
    ``like``.
    """
    result = {}
    for value in inputs:
        if value.name in like and (value.dtype is None or value.shape is None):
            array = data_of(like[value.name])
            result[value.name] = value.complete(array) if sizes_open else value.declare(array)
    return result


def _mark(file: str, content: str) -> bytes:
    """Returns the content with a first line that shows whether the rest was edited."""
    sign, data = "#" if file == "CMakeLists.txt" else "//", content.encode()
    return f"{sign} {_MARK}{hashlib.sha256(data).hexdigest()}\n".encode() + data


def _is_ours(file: Path) -> bool:
    if not file.is_file():
        return False
    data = file.read_bytes()
    if file.suffix == ".weights":
        return data[:16] == MAGIC + Store.fingerprint(data[HEADER:])
    text = data.decode(errors="replace").replace("\r\n", "\n")  # Git may have changed the line ends
    return text.encode() == _mark(file.name, text.partition("\n")[2])


def _usual_name(file: Path) -> str:
    """Returns a file's name; if that is a generic name such as "model", the name of its folder."""
    stem = file.stem.removesuffix("-symbol")
    return file.parent.name or stem if stem.strip("_") == "model" else stem


def read_static(text: str) -> dict[str, int]:
    """Returns the sizes in a text such as ``T=25,N=1``. Raises `ShapeError`."""
    result = {}
    for part in filter(None, text.split(",")):
        name, _, number = part.partition("=")
        if not number.isdigit() or not name.strip().isidentifier():
            raise ShapeError(f"--static {text}: expected NAME=NUMBER,..., such as T=25,N=1")
        result[name.strip()] = int(number)
    return result


def read_declared(texts: list[str]) -> dict[str, Value]:
    """Returns the inputs in texts like ``NAME=float32(T, N, 128)``. A size is a number or a name.

    Raises `ShapeError`.
    """
    result = {}
    for text in texts:
        match = _DECLARED.fullmatch(text)
        if match is None or match["dtype"] not in CTYPES:
            types = ", ".join(CTYPES)
            raise ShapeError(
                f"--input {text}: expected NAME=TYPE(SIZES), such as x=float32(T, N, 128), or"
                f" lengths=int64(N); types are {types}"
            )
        sizes = [part.strip() for part in match["sizes"].split(",") if part.strip()]
        bad = [s for s in sizes if not s.isdigit() and not is_size_name(s)]
        if bad:
            raise ShapeError(
                f"--input {text}: expected numbers and names as sizes, such as T and N, got {bad};"
                " C++ or the header uses these names"
            )
        shape = tuple(int(s) if s.isdigit() else s for s in sizes)
        result[match["name"]] = Value(match["name"], match["dtype"], shape)  # type: ignore[arg-type]
    return result
