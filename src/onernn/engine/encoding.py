"""Encodes a program as the integers of a plan of the library; see kernels/library/engine.cpp."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from onernn.backend.compiled.backend import CompiledStack
from onernn.backend.compiled.library import Kernels
from onernn.engine.inferring import sizes_of
from onernn.engine.kernels import PreparedNode, recurrence_of
from onernn.engine.operators.elementwise import COPY
from onernn.engine.operators.sequences import batch_of
from onernn.engine.program import (
    At,
    Call,
    Layer,
    Mark,
    Nest,
    Packed,
    Program,
    RuntimeSize,
    Step,
    Team,
    WrittenNode,
    finds,
    name_kept,
    sizes_in,
    stretch_over_loops,
)
from onernn.ir.arrays import Array
from onernn.ir.budget import Recurrence
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import Node
from onernn.ir.records import NamedTuple, dataclass
from onernn.ir.types import Quotient, Size, volume
from onernn.ops.elementwise import BETWEEN_HALVES, TRUE_OR_FALSE

_MOST_OPERANDS = 24
MOST_AXES = 16
"""The maximum numbers of operands and axes in kernels/library/nests.hpp and kernels/moves.hpp."""
CALL, NEST, LAYER, OUTSIDE, VIEW, JUMP, REFUSE = range(7)


class NotEncoded(Exception):
    """Raised if the library has no function for a step."""


class EncodedLayer(NamedTuple):
    """A recurrent layer. The library runs it, or Python if the layer takes long.

    ``words``: the index of the number of rows in the plan's table of sizes. ``steps``: the index of
    a size that is at least the length of each sequence.
    """

    node: Node
    recurrence: Recurrence
    words: int
    steps: int


@dataclass
class Encoded:
    """The integers that encode a plan, and the tables that Python needs for a call.

    ``prepared``: the session's recurrent layers. ``names``: the names of the open sizes. ``dims``:
    the sizes of the inputs' axes, in the order in which a call passes them. ``inputs``: the values
    and offsets that a call passes. ``outside``: the nodes that Python runs, by the index of their
    step. ``reasons``: why the library cannot run these nodes. ``layers``: the recurrent layers, by
    the index of their step. ``places``: the place of each value, its index in the plan's table of
    addresses. ``keeps``: the arrays that the plan points to. ``open``: the indices of jumps whose
    target is not known yet, and of the first steps of unfinished loops. ``loops``: the first and
    last step of each loop, inner loops first. ``functions``: the names of functions, by their
    addresses in the plan. ``makers``: the node of each step; None if a step belongs to no node.
    """

    program: Program
    kernels: Kernels
    prepared: Mapping[Node, PreparedNode]
    names: list[str]
    dims: list[Size]
    sizes: dict[Size | Quotient, int] = field(default_factory=dict)
    polynomials: list[tuple[Size, int]] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)
    constants: list[int] = field(default_factory=list)
    steps: list[tuple[int, list[int]]] = field(default_factory=list)
    makers: list[Node | None] = field(default_factory=list)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    outside: dict[int, Node] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    layers: dict[int, EncodedLayer] = field(default_factory=dict)
    stacks: list[CompiledStack] = field(default_factory=list)
    keeps: list[Any] = field(default_factory=list)
    arena: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    open: list[int] = field(default_factory=list)
    loops: list[tuple[int, int]] = field(default_factory=list)
    functions: dict[int, str] = field(default_factory=dict)
    done: bool = False

    def __post_init__(self) -> None:
        self._views = self.program.views

    def size(self, size: Any) -> int:
        """Returns the index of a size in the plan's table of sizes; appends the size if
        necessary.
        """
        size = self.program.size(size)
        if size.name in self.names:
            return self.names.index(size.name)
        if size.names - set(self.names):
            raise UnsupportedError(f"size {size} is not known before a run: fix the size")
        return self._index_size(size, size, 1)

    def _index_size(self, key: Size | Quotient, dividend: Size, by: int) -> int:
        if key not in self.sizes:
            assert not self.done, f"{key}: the plan is made already"
            for inner in dividend.quotients:
                self._index_size(inner, inner.whole, inner.by)
            self.sizes[key] = len(self.names) + len(self.polynomials)
            self.polynomials.append((dividend, by))
        return self.sizes[key]

    def root(self, name: str) -> str:
        """Returns the value whose memory contains this value's memory."""
        return self._views[name][0] if name in self._views else name

    def owner(self, name: str) -> str:
        """Returns the value whose place ``name`` uses, because both begin at the same address."""
        return name if name in self._views and self._views[name][1].terms else self.root(name)

    def place(self, name: str) -> int:
        """Returns the place of a value (see `Encoded`), and records that the next step uses the
        value.
        """
        root, now = self.root(name), len(self.steps)
        self.spans[root] = self.spans.get(root, (now,))[0], now
        return self.places.setdefault(self.owner(name), len(self.places))

    def view(self, name: str) -> list[int]:
        """Returns the integers of a view: (its place, the place of the value that contains it, the
        index of its first element there, bytes per element).
        """
        root, start = self._views[name]
        return [self.place(name), self.place(root), self.size(start), self.width(root)]

    def constant(self, array: Array, name: str = "") -> int:
        """Adds a constant array and returns its place; ``name``: the name of its value, "" if it
        has none.
        """
        array = np.require(array, requirements=("C", "A"))
        self.keeps.append(array)
        place = self.place(name or name_kept(name, str(len(self.keeps))))
        self.constants += [place, array.ctypes.data, array.nbytes]
        return place

    def count(self, name: str, *, most: bool = False) -> int:
        """Returns the index of a value's number of elements in the plan's table of sizes. With
        ``most``, the index of the maximum number.
        """
        if name in self.offsets:
            return self.size(self.offsets[name] + 1)
        program = self.program
        size = program.size(volume(program.shape(name)))
        is_open = most and not program.inner.keys().isdisjoint(size.names)
        return self.size(program.most(name) if is_open else size)

    @property
    def offsets(self) -> dict[str, Size]:
        """Returns how many sequences each level has, by the name of the level's offsets."""
        return {level.offsets: level.count for level in self.program.lods.values()}

    def words(self) -> list[int]:
        """Returns the plan in the form that the library reads; sizes cannot be added afterwards."""
        at = {name: place for place, name in enumerate(self.dims)}
        result = [len(self.names), *(at.get(Size.of(name), -1) for name in self.names)]
        checks = [self.size(size) for size in self.dims]
        buffers = [self._buffer(name) for name in self.arena]
        inputs, outputs = (list(map(self._memory, names)) for names in (self.inputs, self.outputs))
        result += [len(self.polynomials)]
        for size, divisor in self.polynomials:
            result += [divisor, len(size.terms)]
            for factors, by in size.terms:
                result += [by, len(factors)]
                result += [
                    self.names.index(factor) if isinstance(factor, str) else self.sizes[factor]
                    for factor in factors
                ]
        roots = [self.places[self.root(name)] for name in self.places]
        result += [len(checks), *checks, len(roots), *roots]
        for group in (inputs, outputs, buffers):
            result += [len(group), *(word for buffer in group for word in buffer)]
        self.done = True
        result += [len(self.constants), *self.constants, len(self.steps)]
        for kind, words in self.steps:
            result += [kind, len(words), *words]
        return result

    def _memory(self, name: str) -> tuple[int, ...]:
        counts = self.count(name), self.count(name, most=True)
        return self.places[name], *counts, self.width(name)

    def width(self, name: str) -> int:
        """Returns the number of bytes per element of a value."""
        is_lod = name in self.offsets
        return np.dtype("int64" if is_lod else self.program.dtype(name)).itemsize

    def _buffer(self, name: str) -> tuple[int, ...]:
        program, (first, last) = self.program, self.spans[name]
        return self.places[name], self.size(program.most(name)), self.width(name), first, last

    def append(self, steps: Sequence[Step]) -> None:
        """Adds all steps of a node, or none."""
        before = len(self.steps)
        try:
            for step in steps:
                if isinstance(step, Mark):
                    self._mark(step)
                    continue
                words = self._step(step)
                self.steps.append(words)
        except NotEncoded:
            del self.steps[before:]
            raise

    def note_layer(self, code: WrittenNode) -> None:
        recurrence = recurrence_of(self.program.graph, code.node, self.prepared)
        if recurrence is not None:
            words, time, *_ = batch_of(self.program, code.node.inputs[0])
            rows, steps = self.size(words), self.size(words if time is None else time)
            self.layers[len(self.steps) - 1] = EncodedLayer(code.node, recurrence, rows, steps)

    def _mark(self, mark: Mark) -> None:
        if mark.kind == "refuse":
            self.steps.append((REFUSE, []))
            return
        now = len(self.steps)
        if mark.kind in ("else", "end", "again"):
            self.steps[self.open.pop()][1][1] = now + (mark.kind != "end")
        if mark.kind in ("if", "else", "leave"):
            place = -1 if mark.kind == "else" else self.place(mark.condition)
            self.steps.append((JUMP, [place, -1, 0]))
        if mark.kind == "again":
            self.loops.append((self.open.pop(), now))
            self.steps.append((JUMP, [-1, self.loops[-1][0], mark.operators]))
        elif mark.kind != "end":
            self.open.append(now)

    def place_arena(self) -> None:
        """Sets ``outputs``, the values that are written to a caller's memory, and ``arena``, the
        values in the plan's own memory.

        Values that Python reads keep their memory until the end, since Python may return them.
        """
        program = self.program
        stretch_over_loops(self.spans, ((begin - 1, end) for begin, end in self.loops))
        python = set(map(self.root, self.inputs))
        for node in self.outside.values():
            python |= set(filter(None, node.outputs))
            for name in filter(None, node.inputs):
                first, _ = self.spans[self.root(name)]
                self.spans[self.root(name)] = first, len(self.steps)
        # the caller reads the offsets of outputs after the last step
        for lod in program.lods.values():
            if lod.offsets in self.spans:
                self.spans[lod.offsets] = self.spans[lod.offsets][0], len(self.steps)
        python |= program.graph.constants.keys()
        outputs = {self.root(value.name): None for value in program.graph.outputs}
        own = [name for name in self.spans if name not in python and name[0] != "\0"]
        self.arena = sorted(
            (name for name in own if name not in outputs), key=lambda name: self.spans[name][0]
        )
        self.outputs = [name for name in outputs if name in own]

    def add_numbers(self) -> dict[str, frozenset[str]]:
        """Adds the constants. Returns the values that are integers computed from sizes, each with
        the names of these sizes.
        """
        program = self.program
        names = [name for node in program.graph.nodes for name in node.inputs if name]
        names += [value.name for value in program.graph.outputs]
        result = {}
        for name in dict.fromkeys(map(self.root, names)):
            if name in program.graph.constants:
                self.constant(program.graph.constants[name], name)
            elif name in program.types and program.is_known(name):
                result[name] = frozenset[str]().union(
                    *(size.names for size in sizes_in(program, name))
                )
        return result

    def write_sizes(self, pending: dict[str, frozenset[str]], unknown: set[str]) -> None:
        """Adds steps that write the ``pending`` integers, except integers computed from ``unknown``
        sizes.
        """
        for name in [name for name, names in pending.items() if names.isdisjoint(unknown)]:
            del pending[name]
            dtype = self.program.dtype(name)
            tell = Call("tell", name, list(sizes_in(self.program, name)), types=[dtype])
            try:
                self.steps.append((CALL, self._call(tell)))
            except NotEncoded as error:
                raise UnsupportedError(f"{name!r}: {error}") from None

    def _step(self, step: Step) -> tuple[int, list[int]]:
        if isinstance(step, Call):
            return CALL, self._call(step)
        if isinstance(step, Nest):
            step = step.merged
            return NEST, self._nest(step)
        assert isinstance(step, Layer)
        return LAYER, self._layer(step)

    def _call(self, step: Call) -> list[int]:
        ffi, takes = self.kernels.ffi, self.kernels.ffi.new("char **")
        name = f"{step.function}:{','.join(step.types)}"
        function = self.kernels.lib.onernn_call(name.encode(), takes)
        if function == ffi.NULL:
            raise NotEncoded(f"the kernels have no {name}")
        letters, words, expected = "", [], ffi.string(takes[0]).decode()
        for argument, parameter in zip(step.arguments, expected, strict=False):
            letter, *codes = self._argument(argument, parameter)
            letters += letter
            words += codes
        if letters != expected or len(step.arguments) > len(expected):
            raise AssertionError(f"{name} takes {expected}, not {letters}")
        return [self._address(function, name), "f" in letters, *words]

    def _address(self, function: Any, name: str) -> int:
        result = int(self.kernels.ffi.cast("intptr_t", function))
        self.functions[result] = name
        return result

    def _argument(self, argument: Any, parameter: str) -> tuple[Any, ...]:
        """Returns (a letter for the kind of argument, its integers...). ``parameter``: the letter
        that the function expects.

        For a result, the integers contain the maximum number of elements, since a call may write
        fewer.
        """
        match argument:
            case At(name):
                writes = parameter == "w"
                places = (self.place(name), self.count(name, most=writes)) if name else (-1, -1)
                return "w" if writes else "r", *places
            case Packed(numbers):
                return "r", self.constant(numbers), self.size(numbers.size)
            case RuntimeSize(size):
                return "f", self.size(size)
            case Team():
                return ("t",)
            case Size():
                return "s", self.size(argument)
            case tuple():
                if len(argument) > MOST_AXES:
                    raise NotEncoded(f"{len(argument)} axes: expected at most {MOST_AXES}")
                return ("D", len(argument), *map(self.size, argument))
        return "d", *struct.unpack("<q", struct.pack("<d", argument))  # the bits of the number

    def _nest(self, step: Nest) -> list[int]:
        program, copies = self.program, step.expression == COPY
        if len(step.loops) > MOST_AXES or (step.out.strides[-1:] == (Size(()),) and not copies):
            # The innermost loop computes several elements at a time, so it must not be a loop over
            # a sum.
            raise NotEncoded(
                f"{len(step.loops)} loops: expected at most {MOST_AXES}, no inner sums"
            )
        words = [len(step.loops), *map(self.size, step.loops), len(step.reads)]
        for access in (step.out, *step.reads):
            words += [self.place(access.name), self.width(access.name)]
            words += map(self.size, (access.start, *access.strides))
        if copies:
            return [*words, -1]
        dtypes = [program.dtype(access.name) for access in step.reads]
        numbers: list[tuple[float, str]] = []
        formulas: list[list[Any]] = []
        accesses = 1 + len(step.reads)

        def operand_of(expression: Any) -> tuple[str, Any]:
            """Returns (dtype, operand) of an expression; the operand is a literal, ("number", n) or
            ("formula", n).
            """
            if isinstance(expression, int):
                return dtypes[expression], 1 + expression
            function, *arguments = expression
            inner = [None if isinstance(arg, float) else operand_of(arg) for arg in arguments]
            real = next(operand[0] for operand in reversed(inner) if operand is not None)
            types = [operand[0] for operand in inner if operand is not None]
            if any(dtype != real for dtype in types[function == "chosen" :]):
                raise NotEncoded(f"{function}: expected operands of one dtype, got {types}")
            operands = []
            for argument, operand in zip(arguments, inner, strict=True):
                if operand is None:
                    numbers.append((argument, real))
                    operands.append(("number", len(numbers) - 1))
                else:
                    operands.append(operand[1])
            to = (
                "bool"
                if function in (*TRUE_OR_FALSE, "truth")
                else BETWEEN_HALVES.get(function, real)
            )
            to = program.dtype(step.out.name) if function == "cast" else to
            name = (
                f"{function}:{real},{to}" if function in ("cast", "truth") else f"{function}:{real}"
            )
            result = self.kernels.lib.onernn_formula(name.encode())
            if result == self.kernels.ffi.NULL:
                raise NotEncoded(f"the kernels have no {name}")
            formulas.append([self._address(result, name), len(operands), *operands])
            return to, ("formula", len(formulas) - 1)

        if isinstance(step.expression, int):
            raise NotEncoded("a plain copy: expected a formula")
        if operand_of(step.expression)[0] != program.dtype(step.out.name):
            raise NotEncoded("the result does not have the dtype of the formula")
        if accesses + len(numbers) + len(formulas) > _MOST_OPERANDS:
            raise NotEncoded(f"its formula has more than {_MOST_OPERANDS} operands")
        begins = {"number": accesses, "formula": accesses + len(numbers)}
        words.append(len(numbers))
        for number, dtype in numbers:
            array = np.array(number, dtype)
            words += [int.from_bytes(array.tobytes().ljust(8, b"\0"), "little", signed=True)]
            words.append(array.itemsize)
        words.append(len(formulas))
        for formula in formulas:
            words += [w if isinstance(w, int) else begins[w[0]] + w[1] for w in formula]
        return words

    def _layer(self, step: Layer) -> list[int]:
        prepared = self.prepared[step.node]
        stack = prepared.layer.compiled
        if stack is None:
            raise NotEncoded("another library runs it")
        if not step.node.outputs[0]:
            raise NotEncoded("its output has no name, so the layer has no memory to write to")
        self.stacks.append(stack)
        layout = self.kernels.lib.ONERNN_LOD if step.lod else self.kernels.lib.ONERNN_TNC
        program, y = self.program, step.node.outputs[0]
        read = {name for each in program.graph.nodes for name in each.inputs}
        read |= {value.name for value in program.graph.outputs}
        states = {state.name: state for state in step.states}
        if stack.holds_finite:
            read.add(states["h"].final)
        first = [states[n].given if n in states else "" for n in ("h", "c")]
        finals = [s.final if (s := states.get(n)) and s.final in read else "" for n in ("h", "c")]
        names = [step.lod.offsets if step.lod else "", step.node.inputs[0], step.attention, *first]
        words = [
            len(self.stacks) - 1,
            layout,
            self.size(step.time or Size(())),
            self.size(step.count),
        ]
        words.append(stack.holds_finite)
        for name in (*names, y, *finals, step.cells):
            words += (
                (self.place(name), self.count(name), self.width(name)) if name else (-1, -1, -1)
            )
        return words


def encode(program: Program, kernels: Kernels, layers: Mapping[Node, PreparedNode]) -> Encoded:
    """Returns the plan of a program.

    Raises `UnsupportedError` if steps need sizes or offsets that the library does not compute.
    """
    dims = [size for value in program.graph.inputs for size in program.dims(value.name)]
    open_sizes = sizes_of(program)
    if not {size.name for size in dims}.issuperset(
        open_sizes
    ) or not program.inner.keys().isdisjoint(open_sizes):
        raise UnsupportedError(f"sizes {open_sizes} do not follow from the inputs: fix the sizes")
    encoded = Encoded(program, kernels, layers, [*open_sizes, *program.inner], dims)
    codes = {id(each.node): each for each in program.codes}
    stepless = {each.node.outputs[0] for each in program.codes if not (each.codes or each.views)}
    for value in program.graph.inputs:
        encoded.inputs += [value.name, *(each.offsets for each in program.levels(value.name))]
    for name in encoded.inputs:
        encoded.place(name)
    pending, unknown = encoded.add_numbers(), set(program.inner)
    encoded.write_sizes(pending, unknown)
    encoded.makers = [None] * len(encoded.steps)
    for node in program.graph.nodes:
        if program.has_no_step(node):
            continue
        for name in node.outputs:
            if name and encoded.owner(name) != encoded.root(name):
                encoded.steps.append((VIEW, encoded.view(name)))
        code = codes.get(id(node))
        try:
            if code is None:
                raise NotEncoded
            encoded.append(code.codes)
            encoded.note_layer(code)
            if sizes := finds(code.codes):
                unknown -= sizes
                encoded.write_sizes(pending, unknown)
        except NotEncoded as error:
            makes_lod = any(lod.name == node.outputs[0] for lod in program.lods.values())
            if code and (code.mark or finds(code.codes) or makes_lod):
                raise UnsupportedError(
                    f"{node.label}: only Python runs this node, and sizes depend on it"
                ) from None
            if not stepless.isdisjoint(node.inputs):
                raise UnsupportedError(f"{node.label}: no step produces its inputs") from None
            encoded.outside[len(encoded.steps)] = node
            encoded.reasons[len(encoded.steps)] = str(error)
            for name in filter(None, (*node.inputs, *node.outputs)):
                encoded.place(name)
            encoded.steps.append((OUTSIDE, []))
        encoded.makers += [node] * (len(encoded.steps) - len(encoded.makers))
    encoded.place_arena()
    return encoded
