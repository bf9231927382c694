"""A graph on its way to a plan: what is known of its values, and what every operator becomes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from onernn.ir.arrays import Array
from onernn.ir.errors import ShapeError, UnsupportedError
from onernn.ir.graph import Graph, Node
from onernn.ir.records import dataclass
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
# Standard macros in small letters, and those of Linux, windows.h and Qt that are met most.
_MACROS = """
alloca assert complex errno fpclassify imaginary isfinite isgreater isgreaterequal isinf isless
islessequal islessgreater isnan isnormal isunordered kill_dependency linux longjmp math_errhandling
noreturn offsetof setjmp signbit stderr stdin stdout unix va_arg va_copy va_end va_start
cdecl emit far foreach hyper interface major makedev max min minor near pascal signals slots small
"""
# Capitals belong to macros: EOF, NAN, M_PI, INT8_MAX, TRUE; I is complex.h's.
_CAPITALS = re.compile(r"[A-Z][A-Z0-9_]+|I|(M|L|P|PRI|SCN)_\w+|(PRI|SCN)[a-zA-Z]\w*")
# The header's own names, and names that its callers like to use beside those of values.
_OWN = """
Inputs Model N Outputs Sizes Status T W Weights arguments count detail file in infer load model most
onernn out reset run sizes status std step team weights
"""
RESERVED = frozenset(f"{_KEYWORDS} {_MACROS} {_OWN}".split())
"""Names that C++, its libraries or the header use already."""

# Names of C libraries or CMake that people give to models.
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
"""Letters of a name: more of them do not help a reader."""


def identifier(text: str) -> str:
    """Returns a C++ name of letters, digits and single underscores between them.

    Different texts may give the same name.
    """
    result = re.sub(r"[^A-Za-z0-9]+", "_", text[: 4 * _MOST])[:_MOST].strip("_") or "value"
    is_taken = result[0].isdigit() or result in RESERVED or _CAPITALS.fullmatch(result)
    return f"v{result}" if is_taken else result


def namespace(text: str) -> str:
    """Returns a C++ name for a whole model, its files and its program, made of a file's name."""
    result = re.sub(r"[^A-Za-z0-9]+", "_", text[: 4 * _MOST])[:_MOST].strip("_").lower()
    if not result or result[0].isdigit() or result in RESERVED.union(_GLOBAL):
        return f"model_{result}".rstrip("_")
    return result


# What runs a node: calls of the kernels' functions, loops over an expression, layers.


def name_kept(name: str, what: str) -> str:
    """Returns the name of memory that an operator keeps; no value of a program has a NUL in its
    name.
    """
    return f"{name}\0{what}"


@dataclass(frozen=True)
class LodLevel:
    """A LoD level of ragged values: how many sentences and words, and the value with these offsets.

    ``words`` of an upper level are the sentences of the next one. ``level``: counted from the
    end, -1 is the level of the words.
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
    """The address of a value; null for ""."""

    name: str


@dataclass(frozen=True, eq=False)
class Packed:
    """Numbers that are stored for the run; ``narrow``: of a matrix, which may be stored in fewer
    bits."""

    numbers: Array
    narrow: bool = False


@dataclass(frozen=True)
class RuntimeSize:
    """A size that a call writes."""

    size: Size


class Team:
    """The threads of a run."""


def find_moved_type(dtype: str) -> str:
    """Returns the type of functions that only move numbers of a dtype."""
    return f"u{np.dtype(dtype).itemsize}"


Argument = At | Packed | RuntimeSize | Team | Size | tuple[Size, ...] | float


class Call:
    """A call of a function of `kernels/steps`: pointers to values, sizes, numbers.

    A string names a value, `LodLevel` stand for their offsets, integers and truths are sizes,
    lists are sizes of axes. The first argument is the value that the call makes. ``types``: the
    function's instance in the library: dtypes, or u1, u4, u8 for elements that are
    only moved. ``checks``: it looks at indices or lengths, and may refuse them.
    """

    def __init__(
        self, function: str, *arguments: Any, types: Sequence[str] = (), checks: bool = False
    ) -> None:
        self.function, self.types, self.checks = function, tuple(types), checks
        self.arguments: tuple[Argument, ...] = tuple(map(_argument, arguments))

    @property
    def makes(self) -> str | None:
        """The value that it fills; it may be absent, as some parts of a Split."""
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
    """Elements of a value: the one at i, j, ... is ``start`` + i * strides[0] + j * strides[1]."""

    name: str
    strides: tuple[Size, ...]
    start: Size = Size(())


@dataclass(frozen=True, eq=False)
class Nest:
    """out = expression(reads), element by element, over all loops."""

    loops: tuple[Size, ...]
    out: Access
    reads: tuple[Access, ...]
    expression: Expression

    @property
    def makes(self) -> str:
        return self.out.name

    @property
    def merged(self) -> Nest:
        """The same in fewer loops: neighbouring ones become one where they can."""
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
    """A cell that runs over a batch: one layer and direction. ``index``: its position
    among the parts of the stack.

    ``offset``: of its first channel in a row of y.
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
    """h or c of a layer: names of what is given ("" if nothing), of the last one, and of what steps
    hold."""

    name: str
    given: str
    final: str
    held: str
    width: int


@dataclass(frozen=True, eq=False)
class Layer:
    """A recurrent layer; ``time`` is None where the batch is ragged.

    ``cells``: the cell state of every word, "" where it is not read.
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
    """A jump over other steps.

    ``if``: over a branch, unless the condition holds; ``else``: behind the first branch; ``end``:
    behind the last one. ``while``: a loop begins; ``leave``: behind it, unless the condition holds;
    ``again``: back to where it begins. ``refuse``: the call ends here. ``operators``: of a turn.
    """

    kind: str
    condition: str = ""
    operators: int = 0
    makes = None


@dataclass(frozen=True)
class DelayLine:
    """The words before, in generated code that goes word by word: what is ``held`` goes over the
    first ``width`` numbers of each row of ``out``, and those from ``begin`` on are held.

    There are ``rows`` of ``size`` numbers.
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
    """Returns the names of sizes that steps find."""
    calls = [step for step in steps if isinstance(step, Call)]
    sizes = [arg.size for call in calls for arg in call.arguments if isinstance(arg, RuntimeSize)]
    return {name for size in sizes for name in size.names}


@dataclass(frozen=True, eq=False)
class WrittenNode:
    """A node, and the result of its rule.

    ``codes``: what runs it. ``reads``: the inputs that stand in memory when it runs. ``views``:
    values that stand inside of others, each with the name of the other one and its first element
    there.
    """

    node: Node
    codes: list[Step]
    reads: list[str]
    views: dict[str, tuple[str, Size]]

    @property
    def mark(self) -> str:
        """The kind of its mark, "" where it has none."""
        return next((step.kind for step in self.codes if isinstance(step, Mark)), "")


CTYPES = {
    "float32": "float",
    "float64": "double",
    "float16": "onernn::Half",
    "int64": "std::int64_t",
    "int32": "std::int32_t",
    "int8": "std::int8_t",
    "uint8": "std::uint8_t",
    "bool": "std::uint8_t",
}


class UnknownError(Exception):
    """A type or a shape is not known yet."""


@dataclass
class Program:
    """The steps of a graph while `onernn.engine.inferring` adds to them.

    ``codes``: the operators that are left to be run, in order. ``lods``: by their names in types.
    ``inner``: sizes that only a call finds out, each with what it does not exceed. ``memory``:
    types of what operators keep for themselves; ``held``: what of it only steps need.
    ``bindings``: what names of sizes turned out to be, ``grew``: whether that became more.
    ``longest``: by inputs, how many words the longest sentence has, where that is needed.
    ``no_step``: why sentences cannot come word by word. ``undetermined``: nodes whose result has
    a shape that only a call knows.
    ``left``: by their first outputs, why nodes with graphs inside were not opened; ``refused``: why
    a call ends in a branch; ``sources``: by nodes from such graphs, what they were there.
    """

    graph: Graph
    types: Mapping[str, Type] = field(default_factory=dict)
    codes: list[WrittenNode] = field(default_factory=list)
    lods: dict[str, LodLevel] = field(default_factory=dict)
    inner: dict[str, Size] = field(default_factory=dict)
    longest: dict[str, Size] = field(default_factory=dict)
    memory: dict[str, Type] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    bindings: dict[str, Size] = field(default_factory=dict)
    static: Mapping[str, int] = field(default_factory=dict)
    grew: bool = False
    no_step: str = ""
    undetermined: set[Node] = field(default_factory=set)
    left: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)
    sources: Mapping[Node, Node] = field(default_factory=dict)
    idents: dict[str, str] = field(default_factory=dict)
    _taken: dict[str, int] = field(default_factory=dict)  # identifiers, and the last number behind

    def ident(self, name: str) -> str:
        """Returns the value's name in C++, of no other value."""
        if name not in self.idents:
            self.idents[name] = self.new_ident(name)
        return self.idents[name]

    def new_ident(self, text: str) -> str:
        """Returns a name in C++ like this one, which nothing else has."""
        text = result = identifier(text)
        while result in self._taken:
            self._taken[text] += 1
            result = f"{text}_{self._taken[text]}"
        self._taken[result] = 1
        return result

    def size(self, value: Any) -> Size:
        """Returns a size after all that is known of its names."""
        out = Size.of(value)
        bound = {name: self._settle(name) for name in out.names if name in self.bindings}
        return out.put(bound) if bound else out

    def _settle(self, name: str) -> Size:
        """Returns the size that a bound name stands for; shortens the chain of bindings."""
        way, result = [name], self.bindings[name]
        while result.name in self.bindings:
            way.append(result.name)
            result = self.bindings[result.name]
        result = self.size(result) if result.name is None else result
        self.bindings |= dict.fromkeys(way, result)
        return result

    def bind(self, name: str, size: Size) -> None:
        """A name turned out to be this size: types are inferred again."""
        self.bindings[name], self.grew = size, True

    def rename(self, size: Size | None, new: Any) -> None:
        """The C++ name of a size that inference has named."""
        if size is not None and size.name and size != Size.of(new):
            self.bindings[size.name] = Size.of(new)

    def same(self, a: Size, b: Size, what: str) -> Size:
        """Returns the size that two sizes have to be; binds a name where that makes them equal.

        Raises `UnsupportedError` where they are not known to be equal.
        """
        a, b = self.size(a), self.size(b)
        if a == b:
            return a
        for one, other in ((a, b), (b, a)):
            if one.name and one.name not in other.names and one.name not in self.inner:
                self.bind(one.name, other)
                return other
            if len(one.terms) == 1 and len(one.terms[0][0]) == 1 and other.number is not None:
                (((name,), times),) = one.terms  # 20 * T is 80
                if isinstance(name, str) and name not in self.inner and other.number % times == 0:
                    self.bind(name, Size.of(other.number // times))
                    return other
        if a.number is not None and b.number is not None:
            raise ShapeError(f"{what}: sizes {a} and {b} should be one")
        raise UnsupportedError(f"{what}: sizes {a} and {b} are not known to be equal")

    def type(self, name: str) -> Type:
        """Returns the shape of a value, or of memory that an operator keeps."""
        return self.memory.get(name) or self.types[name]

    def dtype(self, name: str) -> str:
        """Returns a dtype that C++ has. Raises `UnknownError`, or `UnsupportedError` for others."""
        dtype = self.type(name).dtype
        if dtype is None:
            raise UnknownError(name)
        if dtype not in CTYPES:
            raise UnsupportedError(f"{name!r} is of {dtype}")
        return dtype

    def ctype(self, name: str) -> str:
        return CTYPES[self.dtype(name)]

    def shape(self, name: str) -> Shape:
        """Returns the sizes, in names that C++ has. Raises `UnknownError`."""
        sizes = self.type(name).shape
        if sizes is None:
            raise UnknownError(name)
        result = [self.size(size) for size in sizes if size is not None]
        if len(result) < len(sizes) or any("." in name for size in result for name in size.names):
            raise UnknownError(name)
        return tuple(result)

    def add_levels(self, name: str, sizes: Sequence[Size]) -> tuple[LodLevel, ...]:
        """Returns the LoD that begins with a value; ``sizes``: sentences of each level, then
        words.
        """
        lod = self.types[name].lod or ()
        for index, level in enumerate(lod):
            count, words = map(self.size, sizes[index : index + 2])
            self.lods[level] = LodLevel(name, count, words, index - len(lod))
        return self.levels(name)

    def levels(self, name: str) -> tuple[LodLevel, ...]:
        """Returns the LoD of a value from the outermost level, () where it is dense.

        Raises `UnknownError`.
        """
        lod = self.type(name).lod
        if lod is None or not self.lods.keys() >= set(
            lod
        ):  # the node that makes these offsets is refused
            raise UnknownError(name)
        return tuple(self.lods[level] for level in lod)

    def sentences(self, name: str) -> LodLevel | None:
        """Returns the level of a value's words, None where it is dense. Raises `UnknownError`."""
        levels = self.levels(name)
        return levels[-1] if levels else None

    def settled(self, name: str) -> Type:
        """Returns the type of a value in sizes as they are known now."""
        result = self.types[name]
        shape, value = result.shape, result.value
        if shape is not None:
            shape = tuple(size and self.size(size) for size in shape)
        if value is not None:
            value = self.size(value) if isinstance(value, Size) else tuple(map(self.size, value))
        return replace(result, shape=shape, value=value)

    def numbers(self, name: str) -> Array | None:
        """Returns the integers of a value that are known now, sizes among them; None for other
        values.
        """
        return self.settled(name).sizes

    def most(self, name: str) -> Size:
        """Returns how many numbers a value has at most, whatever a call finds.

        What is subtracted goes first: a size that a call finds may be small.
        """
        return volume(self.shape(name)).most().put(self.inner).most()

    @property
    def views(self) -> dict[str, tuple[str, Size]]:
        """Values that stand inside of others: the outermost of these, and the first element."""
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
        """Returns the sizes of an input's axes, how many sentences each level of its LoD has, and
        how many words the longest sentence, where that is needed.

        Raises `UnknownError`.
        """
        counts = [self.size(level.count) for level in self.levels(name)]
        longest = [self.size(self.longest[name])] if name in self.longest else []
        return [*self.shape(name), *counts, *longest]

    def longest_of(self, level: LodLevel) -> Size:
        """Returns the words of the longest sentence; a call passes them for inputs.

        Raises `UnsupportedError` for others.
        """
        if level.level != -1 or level.name not in {value.name for value in self.graph.inputs}:
            raise UnsupportedError("padded to the longest of sentences that a call makes")
        size = Size.of(f"{self.ident(level.name)}_longest")
        return self.size(self.longest.setdefault(level.name, size))

    def is_known(self, name: str) -> bool:
        """Returns whether a value is known before a run."""
        return name in self.graph.constants or self.types[name].value is not None


def sizes_in(program: Program, name: str) -> tuple[Size, ...]:
    """Returns the integers of a value that is known, one after the other."""
    result = program.numbers(name)
    return () if result is None else tuple(map(Size.of, result.reshape(-1)))
