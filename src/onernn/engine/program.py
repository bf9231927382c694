"""A graph before it becomes a plan: the types of its values, and the steps that run each node."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from onernn.backend.process import align
from onernn.ir.arrays import Array
from onernn.ir.errors import ShapeError, UnsupportedError
from onernn.ir.graph import Graph, Node, Sizes
from onernn.ir.records import dataclass, replace
from onernn.ir.spec import RnnSpec
from onernn.ir.types import Shape, Size, Type, volume
from onernn.ir.weights import RnnWeights
from onernn.ops.elementwise import Expression

# [lex.key] and [lex.digraph] of C++23, identifiers with a meaning of their own, and `register`.
_KEYWORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
char32_t class co_await co_return co_yield compl concept const const_cast consteval constexpr
constinit continue contract_assert decltype default delete do double dynamic_cast else enum
explicit export extern false final float for friend goto if import inline int long module mutable
namespace new noexcept not not_eq nullptr operator or or_eq override private protected public
register reinterpret_cast requires return short signed sizeof static static_assert static_cast
struct switch template this thread_local throw true try typedef typeid typename union unsigned
using virtual void volatile wchar_t while xor xor_eq
"""
# Standard macros in small letters, and the most common macros of Linux, windows.h and Qt.
_MACROS = """
alloca assert complex errno fpclassify imaginary isfinite isgreater isgreaterequal isinf isless
islessequal islessgreater isnan isnormal isunordered kill_dependency linux longjmp math_errhandling
noreturn offsetof setjmp signbit stderr stdin stdout unix va_arg va_copy va_end va_start
cdecl emit far foreach hyper interface major makedev max min minor near pascal signals slots small
"""
# Macros have names in capitals: EOF, NAN, M_PI, INT8_MAX, TRUE. complex.h defines I.
_CAPITALS = re.compile(r"[A-Z][A-Z0-9_]+|I|(M|L|P|PRI|SCN)_\w+|(PRI|SCN)[a-zA-Z]\w*")
# Names that a generated header defines, and names that its callers may use for variables.
_OWN = """
Inputs Model N Outputs Sizes Status T W Weights arguments count detail file in infer load model most
onernn out reset run sizes status std step team weights
"""
RESERVED = frozenset(f"{_KEYWORDS} {_MACROS} {_OWN}".split())
"""Names that generated code must not use, because C++, its libraries or the generated header use
them.
"""

# Names of C libraries or CMake that are used for models.
_GLOBAL = """
abort abs accept access acos acosh alarm all asctime asin asinh atan atan2 atanh atexit atof
atoi atol atoll basename bind brk bsearch calloc cbrt ceil chdir chmod chown clean clearenv
clearerr clock clone close con connect copysign cos cosh ctime daylight detail difftime div drem
dup edit_cache environ erf erfc error exec execl execv exit exp exp10 exp2 expm1 fabs fclose
fdim feof ferror fflush ffs fgetc finite floor fma fmax fmin fmod fopen fork fprintf fputc fread
free frexp fscanf fseek ftell fwrite gamma getc getchar getenv getline getopt getpid gets gmtime
help hypot index initstate install isalnum isalpha isdigit islower isspace isupper j0 j1 jn kill
labs ldexp ldiv lgamma link listen llabs localtime log log10 log1p log2 logb lrint lround lseek
main malloc memchr memcmp memcpy memmove memset mktime modf nan nice nul open package pause
perror pipe popen pow preinstall printf prn putc putenv puts qsort raise rand random read
realloc rebuild_cache recv remainder remove rename rewind rindex rint round scalb scanf select
send setbuf setenv setstate signal significand sin sincos sinh sleep socket sprintf sqrt srand
srandom sscanf stat strcat strchr strcmp strcpy strdup strlen strsep strtok swab symlink sync
system tan tanh tempnam test tgamma time time_t times timezone tmpfile tmpnam tolower toupper
trunc tzname tzset umask ungetc unlink usleep utime vfork wait write y0 y1 yn
""".split()
_MOST = 80
"""Limit for the length of a generated C++ name: a longer name does not help a reader."""


def _join_words(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", text[: 4 * _MOST])[:_MOST].strip("_")


def identifier(text: str) -> str:
    """Returns a C++ name of letters, digits and single underscores between them.

    Different texts may result in the same name.
    """
    result = _join_words(text) or "value"
    is_taken = result[0].isdigit() or result in RESERVED or _CAPITALS.fullmatch(result)
    return f"v{result}" if is_taken else result


def namespace(text: str) -> str:
    """Returns a C++ name for a model's namespace, files and program, from the name of the model's
    file.
    """
    result = _join_words(text).lower()
    if not result or result[0].isdigit() or result in RESERVED.union(_GLOBAL):
        return f"model_{result}".rstrip("_")
    return result


# The kinds of steps: calls of the kernels' functions, loops over an expression, layers.


def name_kept(name: str, what: str) -> str:
    """Returns the name of memory that an operator needs besides its outputs. The name contains a
    NUL, so that no value has the same name.
    """
    return f"{name}\0{what}"


@dataclass(frozen=True)
class LodLevel:
    """A LoD level: the offsets that divide the steps of the value ``name`` into ``count``
    sequences.

    ``words``: the number of steps; in an upper level, the number of sequences of the next level.
    ``level`` counts from the end: -1 is the innermost level, whose sequences consist of steps.
    """

    name: str
    count: Size
    words: Size
    level: int = -1

    @property
    def offsets(self) -> str:
        """The name of the offsets' memory."""
        return name_kept(self.name, "offsets" if self.level == -1 else f"offsets{self.level}")


@dataclass(frozen=True)
class At:
    """The address of the value ``name``; null if the name is empty."""

    name: str


@dataclass(frozen=True, eq=False)
class Packed:
    """A constant array that the plan stores; ``narrow``: whether it may be stored in fewer bits.

    The array begins at a cache line. NumPy's arrays begin 16 bytes after one, so that half of the
    kernels' loads would read two cache lines.
    """

    numbers: Array
    narrow: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", align(np.ascontiguousarray(self.numbers)))


@dataclass(frozen=True)
class RuntimeSize:
    """The argument of a `Call` to which the function writes a size that it computes."""

    size: Size


class Team:
    """The argument of a `Call` by which the function gets the threads of a run."""


def find_moved_type(dtype: str) -> str:
    """Returns the type in `Call` for functions that only move elements: u1, u2, u4 or u8, by bytes
    per element.
    """
    return f"u{np.dtype(dtype).itemsize}"


Argument = At | Packed | RuntimeSize | Team | Size | tuple[Size, ...] | float


class Call:
    """A call of one of the functions in `kernels/steps`.

    A string argument names a value; a `LodLevel` means its offsets. Integers and booleans become
    sizes; a list holds the sizes of axes. The call writes the first argument. ``types`` selects the
    function's instance: dtypes, or u1, u2, u4, u8 if elements are only moved. ``checks``: the
    function examines indices or lengths, and may refuse them.
    """

    def __init__(
        self, function: str, *arguments: Any, types: Sequence[str] = (), checks: bool = False
    ) -> None:
        self.function, self.types, self.checks = function, tuple(types), checks
        self.arguments: tuple[Argument, ...] = tuple(map(_argument, arguments))

    @property
    def makes(self) -> str | None:
        """The name of the value that the call writes, "" if the node lacks this output; None if the
        call writes no value.
        """
        first = self.arguments[0]
        return first.name if isinstance(first, At) else None


def _argument(value: Any) -> Argument:
    if isinstance(value, str):
        return At(value)
    if isinstance(value, LodLevel):
        return At(value.offsets)
    if isinstance(value, int):
        return Size.of(value)
    if isinstance(value, list):
        return tuple(map(Size.of, value))
    return value


@dataclass(frozen=True)
class Access:
    """Access to the elements of a value: the one at i, j, ... is ``start`` + i * strides[0] + j *
    strides[1].
    """

    name: str
    strides: tuple[Size, ...]
    start: Size = Size(())


@dataclass(frozen=True, eq=False)
class Nest:
    """Nested loops that compute out = expression(reads), element by element."""

    loops: tuple[Size, ...]
    out: Access
    reads: tuple[Access, ...]
    expression: Expression

    @property
    def makes(self) -> str:
        return self.out.name

    @property
    def merged(self) -> Nest:
        """Returns the same computation in fewer loops: merges neighbouring loops if possible."""
        accesses = [self.out, *self.reads]
        result: list[tuple[Size, list[Size]]] = []
        for index, size in enumerate(self.loops):
            if size.number == 1:
                continue
            strides = [access.strides[index] for access in accesses]
            if result and result[-1][1] == [stride * size for stride in strides]:
                result[-1] = result[-1][0] * size, strides
            else:
                result.append((size, strides))
        out, *reads = [
            replace(access, strides=tuple(strides[index] for _, strides in result))
            for index, access in enumerate(accesses)
        ]
        return Nest(tuple(size for size, _ in result), out, tuple(reads), self.expression)


@dataclass(frozen=True, eq=False)
class Run:
    """One direction of one layer, whose cell runs over a batch.

    ``index``: the position in the list of all layers' directions. ``offset``: the position of the
    direction's first channel along the last axis of y.
    """

    title: str
    spec: RnnSpec
    weights: RnnWeights
    x: str
    y: str
    width: int
    offset: int
    backwards: bool
    added: bool
    index: int


@dataclass(frozen=True)
class State:
    """One of a layer's states, h or c.

    ``given``: the initial state, which is "" if absent. ``final``: the final state. ``held``: the
    memory that keeps the state between calls if each call runs one step.
    """

    name: str
    given: str
    final: str
    held: str
    width: int


@dataclass(frozen=True, eq=False)
class Layer:
    """A recurrent node. ``time``: the number of steps, None if the batch is ragged.

    ``cells``: the output with the cell state of every step, "" if no node reads it.
    """

    node: Node
    runs: tuple[Run, ...]
    states: tuple[State, ...]
    attention: str
    words: Size
    time: Size | None
    count: Size
    lod: LodLevel | None
    real: str
    cells: str
    makes = None


@dataclass(frozen=True)
class Mark:
    """A step of a branch or loop, which may jump over other steps. ``kind`` is one of:

    ``if``: jumps over a branch, unless the condition holds. ``else``: jumps from the end of the
    first branch to the end of the second. ``end``: ends the second branch. ``while``: begins a
    loop. ``leave``: jumps to the end of the loop, unless the condition holds. ``again``: jumps back
    to the beginning of the loop. ``refuse``: ends the call.

    ``operators``: the number of operators in an iteration.
    """

    kind: str
    condition: str = ""
    operators: int = 0
    makes = None


@dataclass(frozen=True)
class DelayLine:
    """Memory for previous steps, in generated code that runs step by step.

    Each call copies ``held`` over the first ``width`` elements of each row of ``out``. Then it
    stores ``width`` elements of the row, from ``begin`` on, in ``held``. ``out`` has ``rows`` rows
    of ``size`` elements.
    """

    out: str
    held: str
    rows: Size
    size: Size
    width: Size
    begin: Size
    makes = None


Step = Call | Nest | Layer | Mark | DelayLine


def finds(steps: Iterable[Step]) -> set[str]:
    """Returns the names of the sizes that steps compute during a call."""
    calls = [step for step in steps if isinstance(step, Call)]
    sizes = [arg.size for call in calls for arg in call.arguments if isinstance(arg, RuntimeSize)]
    return {name for size in sizes for name in size.names}


def stretch_over_loops(spans: dict[str, tuple[int, int]], loops: Iterable[tuple[int, int]]) -> None:
    """Extends ``spans``, the first and last step that use each value's memory, because of loops.

    A value that is made before a loop and read in it keeps its memory until the loop ends. A value
    that is made in a loop and read after the loop has its memory from the beginning of the loop.
    ``loops``: for each loop the step before its first step, and its last step; inner loops first.
    """
    for begin, end in loops:
        for name, (first, last) in spans.items():
            if first <= begin <= last < end:
                spans[name] = first, end
            elif begin <= first <= end < last:
                spans[name] = begin, last


@dataclass(frozen=True, eq=False)
class WrittenNode:
    """A node, and the steps that its rule returned.

    ``codes``: the steps that run the node. ``reads``: the inputs that must be in memory when it
    runs. ``views``: the values that are parts of another value's memory, each with the name of that
    value and the position of the part's first element.
    """

    node: Node
    codes: list[Step]
    reads: list[str]
    views: dict[str, tuple[str, Size]]

    @property
    def mark(self) -> str:
        """The kind of the first `Mark` among its steps, "" if there is none."""
        return next((step.kind for step in self.codes if isinstance(step, Mark)), "")


CTYPES = {
    "float32": "float",
    "float64": "double",
    "float16": "onernn::Half",
    "int64": "std::int64_t",
    "int32": "std::int32_t",
    "int16": "std::int16_t",
    "uint16": "std::uint16_t",
    "int8": "std::int8_t",
    "uint8": "std::uint8_t",
    "bool": "std::uint8_t",
}


class UnknownError(Exception):
    """Raised if a type or a shape is not known yet."""


@dataclass
class Program:
    """The steps of a graph while `onernn.engine.inferring` adds to them.

    ``codes``: the nodes that need steps, in the order of the graph. ``lods``: LoD levels by their
    names in types. ``inner``: sizes that only a call computes, each with its upper bound.
    ``given_sizes``: names of sizes of inputs. ``memory``: types of the memory that operators need
    besides their outputs; ``held``: the names of memory that only calls of one step need.
    ``sizes``: the size that each name is bound to (`bind`); ``grew``: whether ``sizes`` changed.
    ``longest``: for each input, the number of steps of its longest sequence, if needed.
    ``no_step``: why the model cannot run step by step. ``undetermined``: nodes whose result has a
    shape that only a call knows. ``reasons``: why nodes have no steps. ``left``: the reason why an
    If or loop is not part of the outer graph, by its first output. ``refused``: the reason why a
    branch ends the call. ``sources``: for each node of a branch or loop, the original node.
    """

    graph: Graph
    types: Mapping[str, Type] = field(default_factory=dict)
    codes: list[WrittenNode] = field(default_factory=list)
    lods: dict[str, LodLevel] = field(default_factory=dict)
    inner: dict[str, Size] = field(default_factory=dict)
    given_sizes: set[str] = field(default_factory=set)
    longest: dict[str, Size] = field(default_factory=dict)
    memory: dict[str, Type] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    sizes: Sizes = field(default_factory=Sizes)
    static: Mapping[str, int] = field(default_factory=dict)
    grew: bool = False
    no_step: str = ""
    undetermined: set[Node] = field(default_factory=set)
    reasons: dict[Node, str] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)
    sources: Mapping[Node, Node] = field(default_factory=dict)
    idents: dict[str, str] = field(default_factory=dict)
    _taken: dict[str, int] = field(default_factory=dict)  # the last suffix of each identifier

    def ident(self, name: str) -> str:
        """Returns the value's name in C++, which is unique."""
        if name not in self.idents:
            self.idents[name] = self.new_ident(name)
        return self.idents[name]

    def new_ident(self, text: str) -> str:
        """Returns a new unique name in C++ that is similar to ``text``."""
        text = result = identifier(text)
        while result in self._taken:
            self._taken[text] += 1
            result = f"{text}_{self._taken[text]}"
        self._taken[result] = 1
        return result

    def new_value(self, text: str) -> str:
        """Returns a name similar to ``text`` that no value has."""
        while text in self.types:
            text += "'"
        return text

    def size(self, value: Any) -> Size:
        """Returns a size in which each bound name is replaced by the size that it is bound to
        (`bind`).
        """
        return self.sizes.settle_size(Size.of(value))

    def bind(self, name: str, size: Size) -> None:
        """Records that a name is equal to this size, so that types are inferred again."""
        self.sizes.bound[name], self.grew = size, True

    def rename(self, size: Size | None, new: Any) -> None:
        """Binds a size that is one name, which inference chose, to ``new``."""
        if size is not None and size.name and size != Size.of(new):
            self.sizes.bound[size.name] = Size.of(new)

    def same(self, a: Size, b: Size, what: str | Node) -> Size:
        """Returns the common value of two sizes that must be equal; binds a name if necessary.

        Raises `UnsupportedError` if they are not known to be equal.
        """
        a, b = self.size(a), self.size(b)
        if a == b:
            return a
        # If one of the two names is the size of an input, the other name is bound to it.
        pairs = sorted(((a, b), (b, a)), key=lambda pair: pair[0].name in self.given_sizes)
        for one, other in pairs:
            if one.name and one.name not in other.names and one.name not in self.inner:
                self.bind(one.name, other)
                return other
            if len(one.terms) == 1 and len(one.terms[0][0]) == 1 and other.number is not None:
                (((name,), times),) = one.terms  # such as 20 * T, if the other size is 80
                if isinstance(name, str) and name not in self.inner and other.number % times == 0:
                    self.bind(name, Size.of(other.number // times))
                    return other
        what = what if isinstance(what, str) else what.label
        if a.number is not None and b.number is not None:
            raise ShapeError(f"{what}: expected equal sizes, got {a} and {b}")
        why = "which are not known to be equal: fix the sizes"
        raise UnsupportedError(f"{what}: expected equal sizes, got {a} and {b}, {why}")

    def type(self, name: str) -> Type:
        """Returns the type of a value, or of memory that an operator keeps."""
        return self.memory.get(name) or self.types[name]

    def dtype(self, name: str) -> str:
        """Returns the dtype of a value. Raises `UnknownError`, or `UnsupportedError` for a dtype
        that is not in `CTYPES`.
        """
        dtype = self.type(name).dtype
        if dtype is None:
            raise UnknownError(name)
        if dtype not in CTYPES:
            known = ", ".join(CTYPES)
            raise UnsupportedError(f"{name!r}: expected one of {known}, got {dtype}")
        return dtype

    def ctype(self, name: str) -> str:
        return CTYPES[self.dtype(name)]

    def shape(self, name: str) -> Shape:
        """Returns the shape of a value, in sizes with C++ names. Raises `UnknownError`."""
        sizes = self.type(name).shape
        if sizes is None:
            raise UnknownError(name)
        result = [self.size(size) for size in sizes if size is not None]
        if len(result) < len(sizes) or any("." in name for size in result for name in size.names):
            raise UnknownError(name)
        return tuple(result)

    def add_levels(self, name: str, sizes: Sequence[Size]) -> tuple[LodLevel, ...]:
        """Adds and returns the LoD levels whose offsets belong to a value. ``sizes``: the number of
        sequences of each level, then the number of steps.
        """
        lod = self.types[name].lod or ()
        for index, level in enumerate(lod):
            count, words = map(self.size, sizes[index : index + 2])
            self.lods[level] = LodLevel(name, count, words, index - len(lod))
        return self.levels(name)

    def levels(self, name: str) -> tuple[LodLevel, ...]:
        """Returns the LoD levels of a value, the outermost first; () if the value is dense.

        Raises `UnknownError`.
        """
        lod = self.type(name).lod
        if lod is None or not self.lods.keys() >= set(
            lod
        ):  # no step makes these offsets, because their node was refused
            raise UnknownError(name)
        return tuple(self.lods[level] for level in lod)

    def sentences(self, name: str) -> LodLevel | None:
        """Returns the innermost LoD level of a value; None if the value is dense. Raises
        `UnknownError`.
        """
        levels = self.levels(name)
        return levels[-1] if levels else None

    def settle(self, name: str) -> Type:
        """Returns the type of a value. Names of sizes are replaced by the sizes that they are bound
        to so far.
        """
        return self.sizes.settle(self.types[name])

    def numbers(self, name: str) -> Array | None:
        """Returns the elements of a value, integers or sizes; None if they are not known."""
        return self.settle(name).sizes

    def most(self, name: str) -> Size:
        """Returns the maximum number of elements of a value, for all sizes that a call may compute.

        Leaves out subtracted terms, because a size that a call computes may be 0.
        """
        return volume(self.shape(name)).most().substitute(self.inner).most()

    @property
    def steps(self) -> list[Step]:
        """All steps, in the order of a run."""
        return [step for each in self.codes for step in each.codes]

    @property
    def views(self) -> dict[str, tuple[str, Size]]:
        """Each value that is a part of another value's memory, with the value that owns the memory
        and the position of the first element there.
        """
        direct = {name: at for code in self.codes for name, at in code.views.items()}
        result: dict[str, tuple[str, Size]] = {}
        for name in direct:
            way = [name]
            while way[-1] in direct and way[-1] not in result:
                way.append(direct[way[-1]][0])
            for inner in reversed(way[:-1]):
                value, start = direct[inner]
                outer, before = result.get(value, (value, Size(())))
                result[inner] = outer, self.size(before + start)
        return result

    def dims(self, name: str) -> list[Size]:
        """Returns the sizes of an input's axes, then the number of sequences of each level of its
        LoD, then the steps of the longest sequence, if needed.

        Raises `UnknownError`.
        """
        counts = [self.size(level.count) for level in self.levels(name)]
        longest = [self.size(self.longest[name])] if name in self.longest else []
        return [*self.shape(name), *counts, *longest]

    def longest_of(self, level: LodLevel) -> Size:
        """Returns the number of steps of the longest sequence of an input; a call passes this
        number.
        """
        size = Size.of(f"{self.ident(level.name)}_longest")
        return self.size(self.longest.setdefault(level.name, size))

    def is_known(self, name: str) -> bool:
        """Returns whether a value is a constant, or consists of known sizes and integers."""
        return name in self.graph.constants or self.types[name].value is not None

    def has_no_step(self, node: Node) -> bool:
        """Returns whether a node needs no step because all its outputs are known. A FoundSize needs
        a step unless its input is known.
        """
        known = all(self.is_known(name) for name in node.outputs if name)
        return known and (node.op != "FoundSize" or self.is_known(node.inputs[0]))


def sizes_in(program: Program, name: str) -> tuple[Size, ...]:
    """Returns the elements of a value as sizes; () if they are not known."""
    result = program.numbers(name)
    return () if result is None else tuple(map(Size.of, result.reshape(-1)))
