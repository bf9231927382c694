"""From a model to C++ in five steps, called as in ROOT's SOFIE; `generating` is the last one.

Parse, TypeInference, ShapeInference, Initialize, Generate: design/0053 has the tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from os import PathLike

import numpy as np

from onernn.backend.compiled.packing import BYTES, STORED, check_bytes
from onernn.engine import inferring
from onernn.engine.emit.cells import CellCode
from onernn.engine.emit.rendering import words
from onernn.engine.emit.storing import Store
from onernn.engine.emit.streaming import goes_on, pads_apart, prepare_step
from onernn.engine.inferring import name_inputs, write
from onernn.engine.naming import identifier
from onernn.engine.program import CTYPES, Program, UnknownError
from onernn.engine.steps import Call, Layer, Packed, Step
from onernn.fuse_passes import PASSES, fuse
from onernn.ir.errors import OnernnError, Refusal, ShapeError, UnsupportedError, did_you_mean
from onernn.ir.graph import Graph, Value, graph_of
from onernn.ir.weights import NO_SCALES

LAYERS = {**STORED, "int8": BYTES}
"""How matrices of layers are stored, in C++, by ``--weights``."""
_NAMES = {"u8": "int8"}
"""Of data types, where ``--weights`` has another name."""


def parse(
    model: Graph | str | PathLike[str], declared: Mapping[str, Value] | None = None
) -> Program:
    """The fused model, or that of a path, as a program.

    ``declared`` says what it leaves open of its inputs. Raises what `onernn.load` raises.
    """
    model = graph_of(model)
    names = [value.name for value in model.inputs]
    if unknown := sorted(set(declared or ()) - set(names)):
        hint = did_you_mean(unknown[0], names)
        raise ShapeError(f"--input {unknown}: the model takes {names}{hint}")
    inputs = tuple((declared or {}).get(value.name, value) for value in model.inputs)
    return Program(pads_apart(fuse(replace(model, inputs=inputs), PASSES).model))


def _refusal(graph: Graph, refusals: list[Refusal]) -> UnsupportedError:
    return UnsupportedError(f"{graph.name}: no C++ is generated:", refusals)


def _refused(value: Value) -> Iterator[str]:
    """Why C++ does not take an input."""
    if value.dtype is None or value.shape is None:
        lacks = " and ".join(w for w in ("dtype", "shape") if getattr(value, w) is None)
        hint = f"say --input '{value.name}={value.dtype or 'float32'}(T, N, 128)', for instance"
        yield f"the model does not declare its {lacks}: {hint}, or --data io.npz"
    elif value.dtype not in CTYPES:
        yield f"of {value.dtype}"
    elif bad := [s for s in value.shape if isinstance(s, str) and not is_size_name(s)]:
        yield f"sizes {bad}: names that C++ or its header uses; say T, N, or longer ones"


def infer_types(program: Program) -> dict[str, str | None]:
    """The dtype of each value by its name, None where nothing tells it."""
    types = program.types or program.graph.types
    return {name: found.dtype for name, found in types.items()}


def infer_shapes(
    program: Program, static: Mapping[str, int] | None = None
) -> dict[str, tuple[int | str, ...]]:
    """The shape of each value by its name: numbers, and expressions of sizes that stay open.

    What each node becomes is known behind it: see `onernn.engine.inferring.infer`. ``static``:
    sizes fixed now. Raises `UnsupportedError` that names the nodes.
    """
    graph = program.graph
    if program.types:
        raise UnsupportedError(f"{graph.name}: its shapes are inferred; parse it anew for others")
    every = {*graph.constants, *(name for node in graph.nodes for name in node.outputs)}
    every |= {value.name for value in graph.inputs}
    refusals = [Refusal("a name with a NUL", repr(name)) for name in every if "\0" in name]
    refusals += [Refusal(why, value.name) for value in graph.inputs for why in _refused(value)]
    if refusals:
        name_inputs(program)
        raise _refusal(graph, [*refusals, *write(program)])
    if found := inferring.infer(program, static):
        raise _refusal(program.graph, found)
    shapes = dict[str, tuple[int | str, ...]]()
    for name in program.types:
        with suppress(UnknownError):  # of what nobody reads
            sizes = program.shape(name)
            shapes[name] = tuple(str(s) if s.number is None else s.number for s in sizes)
    return shapes


def is_size_name(name: str) -> bool:
    """Whether a size may be called so: it becomes a variable beside those of the templates."""
    beside = name in words() or name.endswith(("_at", "_in", "_out"))
    return name in ("T", "N", "W") or (identifier(name) == name and not beside)


def initialize(program: Program, weights: str = "f32") -> Store:
    """The weights file, constants packed as the kernels read them.

    ``weights``: f32, f16 or bf16, how matrices are stored, or int8: those of recurrent layers are
    bytes, the others float32. A layer that has a precision of its own keeps it. Raises
    `UnsupportedError` for weights that do not fit, or are no numbers.
    """
    if not program.types:
        raise UnsupportedError(f"{program.graph.name}: call infer_shapes before initialize")
    if weights not in LAYERS:
        hint = did_you_mean(weights, LAYERS)
        raise UnsupportedError(f"--weights {weights}: expected one of {', '.join(LAYERS)}{hint}")
    stored = STORED.get(weights, STORED["f32"])
    store = Store(stored, packed_for=program, layers=LAYERS[weights])
    program.no_step = prepare_step(program)
    layers = [step for each in program.codes for step in each.codes if isinstance(step, Layer)]
    states = [state for layer in layers if goes_on(program, layer) for state in layer.states]
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
    """Puts a step's matrices into the store."""
    if isinstance(step, Call):
        for one in step.arguments:
            if isinstance(one, Packed):
                dtype = one.numbers.dtype
                narrow = one.narrow and dtype == np.float32
                stored = store.stored if narrow else CTYPES[dtype.name]
                store.places[one] = stored, store.add(one.numbers, narrow=one.narrow)
    if isinstance(step, Layer):
        precision = step.node.at.precision
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
            scales = precision.parts[run.at] if precision.parts else NO_SCALES
            store.places[run] = code, code.pack(run.weights, store, scales)
