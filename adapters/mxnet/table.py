"""One MXNet operator as a rule reads it, the table of rules, and the loop over a symbol's nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from onernn.adapters.common.files import pairs
from onernn.adapters.common.lowering import (
    GraphBuilder,
    LoweringStep,
    NativeOperator,
    Output,
    Results,
    Slot,
    lower_steps,
)
from onernn.adapters.common.signatures import Signature, Tensor
from onernn.adapters.mxnet import attributes as parse
from onernn.adapters.mxnet.read import VARIABLE, Symbol, SymbolNode
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import NativeOp, Value
from onernn.ir.records import dataclass

# Other names of the same operators, as MXNet 1.9.1 registers them.

ALIASES = pairs(
    """
    Softmax=SoftmaxOutput concat=Concat split=SliceChannel swapaxes=SwapAxis reshape=Reshape
    flatten=Flatten broadcast_axes=broadcast_axis flip=reverse cast=Cast identity=_copy
    ElementWiseSum=add_n stop_gradient=BlockGrad sum_axis=sum max_axis=max min_axis=min
    _plus=elemwise_add _add=elemwise_add _minus=elemwise_sub _sub=elemwise_sub _mul=elemwise_mul
    _div=elemwise_div broadcast_plus=broadcast_add broadcast_minus=broadcast_sub
    _contrib_SparseEmbedding=Embedding choose_element_0index=pick crop=slice pad=Pad
    uniform=_random_uniform normal=_random_normal random_uniform=_random_uniform
    random_normal=_random_normal random_gamma=_random_gamma random_exponential=_random_exponential
    random_poisson=_random_poisson sample_uniform=_sample_uniform sample_normal=_sample_normal
    sample_gamma=_sample_gamma sample_exponential=_sample_exponential sample_poisson=_sample_poisson
    _np_product=_np_prod _np_repeat=repeat _np_amax=_np_max _np_amin=_np_min
    _npi_abs=_npi_absolute _npi_amax=_np_max _npi_amin=_np_min _npi_cast=Cast
    _npi_clip=clip _npi_copy=_np_copy _npi_dot=_np_dot _npi_expand_dims=expand_dims _npi_full=_full
    _npi_hypot_scalar=_hypot_scalar _npi_max=_np_max _npi_maximum=broadcast_maximum
    _npi_maximum_scalar=_maximum_scalar _npi_min=_np_min _npi_minimum=broadcast_minimum
    _npi_minimum_scalar=_minimum_scalar _npi_prod=_np_prod _npi_reshape=_npx_reshape
    _npi_rnn_param_concat=_rnn_param_concat _npi_slice=slice _npi_split=_split_v2
    _npi_squeeze=_np_squeeze _npi_sum=_np_sum _npi_swapaxes=SwapAxis _npi_take=take
    _npi_tile=tile _npi_transpose=_np_transpose
    _npx_activation=Activation _npx_batch_dot=batch_dot _npx_batch_flatten=Flatten
    _npx_batch_norm=BatchNorm _npx_cast=Cast _npx_convolution=Convolution
    _npx_deconvolution=Deconvolution _npx_pooling=Pooling _npx_dropout=Dropout
    _npx_embedding=Embedding _npx_erf=erf _npx_fully_connected=FullyConnected
    _npx_layer_norm=LayerNorm _npx_leaky_relu=LeakyReLU _npx_log_softmax=log_softmax
    _npx_one_hot=one_hot _npx_pick=pick _npx_reshape_like=reshape_like _npx_rnn=RNN
    _npx_sequence_mask=SequenceMask _npx_slice=slice _npx_softmax=softmax
    """
)


def names_of(name: str) -> list[str]:
    """An operator's name, and others of the same.

    ``_sparse_relu`` is ``relu`` on any storage, and ``_PlusScalar`` is ``_plus_scalar`` of old.
    """
    plain = name.removeprefix("_sparse_")
    if re.match("_[A-Z]", name):
        plain = re.sub(r"(?<=[a-z])_?(?=[A-Z])", "_", name).lower()
    return [name, plain, ALIASES.get(name, ""), ALIASES.get(plain, "")]


# One MXNet operator as a rule of the tables reads it, and the graph that it is lowered into.

T = TypeVar("T")
DType = np.dtype[Any]
FIRST, LAST = -(2**62), 2**62
"""Beyond every axis: slices are cut there."""
COMPUTED = frozenset("bool uint8 int8 int32 int64 float32 float64".split())
"""What NumPy computes in like MXNet; float16 parameters are read as float32."""


@dataclass
class Context:
    """The graph under construction, and what is known of it beside types.

    ``inferred``: variables made from ``_zeros`` of unknown size, which MXNet infers from what they
    are added to. Here the unknown sizes are 1, and broadcasting gives the same numbers.
    ``unranked``: values whose rank an operator lacked.
    ``notes``: what a user should know, and the nodes it is true of; ``differing`` are those of
    them that say where the two meanings differ. ``seed``: the input that random numbers are made
    of, once there are any. ``is_body``: whether this is a part that another graph runs.
    """

    builder: GraphBuilder
    semantics: str
    symbol: Symbol
    inferred: set[str] = field(default_factory=set)
    unranked: set[str] = field(default_factory=set)
    notes: dict[str, list[str]] = field(default_factory=dict)
    differing: set[str] = field(default_factory=set)
    seed: str = ""
    is_body: bool = False

    def note(self, text: str, node: str) -> None:
        nodes = self.notes.setdefault(text, [])
        if node not in nodes:
            nodes.append(node)

    def labelled(self, texts: Iterable[str]) -> list[str]:
        """The notes with their nodes in front, each once."""
        return [": ".join(filter(None, [", ".join(self.notes[text]), text])) for text in texts]


class MxnetOperator(NativeOperator):
    """One operator with the graph it is lowered into.

    ``name``: its name in the table. ``numpy``: whether it is one of NumPy mode's. ``inferred``:
    values of its inputs.
    """

    def __init__(
        self,
        context: Context,
        at: NativeOp,
        name: str,
        node: SymbolNode,
        inputs: Mapping[str, Sequence[str]],
        inferred: Collection[str] = (),
    ) -> None:
        read = {k: v for k, v in node.attributes.items() if not parse.TRAINING.fullmatch(k)}
        super().__init__(context.builder, at, inputs, {}, read, parse.INERT, node.name)
        self.context, self.node = context, node
        self.name, self.numpy = name, at.type.startswith("_np")
        self.inferred, self.gives_inferred = inferred, False

    def values(self, slot: Slot) -> list[str]:
        result = self.variables(slot)
        for value in result:
            dtype = self.builder.type_of(value).dtype
            if dtype is not None and dtype not in COMPUTED:
                raise UnsupportedError(f"input {slot}: {dtype} numbers are not supported")
        return result

    def _parsed(self, name: str, default: T, parser: Callable[[str], T]) -> T:
        text = self.attribute(name, None)
        if text is None:
            return default
        try:
            return parser(text)
        except UnsupportedError as error:
            raise UnsupportedError(f"attribute {name}: {error}") from None

    def maybe(self, name: str, default: T | None, parser: Callable[[str], T]) -> T | None:
        return None if self.attribute(name, None) == "None" else self._parsed(name, default, parser)

    def keyword(self, name: str, default: Any) -> Any:
        """Returns an attribute, parsed as text of the kind of its default."""
        readers: Any = {bool: self.flag, int: self.integer, float: self.number, tuple: self.sizes}
        return readers.get(type(default), self.text)(name, default)

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.maybe(name, default, parse.flag))

    def integer(self, name: str, default: int | None = None) -> int:
        result = self.maybe(name, default, parse.integer)
        if result is None:
            raise UnsupportedError(f"attribute {name} is missing")
        return result

    def number(self, name: str, default: float) -> float:
        return self._parsed(name, default, parse.number)

    def sizes(self, name: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        return self._parsed(name, default, parse.sizes)

    def bounds(self, name: str) -> tuple[int | None, ...]:
        return self._parsed(name, (), parse.numbers)

    def text(self, name: str, default: str) -> str:
        return str(self.attribute(name, default))

    def dtype(self, name: str, default: str = "float32") -> DType:
        """A dtype that is an attribute. Raises `UnsupportedError` for those not computed in."""
        result = self.text(name, default)
        if result not in COMPUTED:
            raise UnsupportedError(f"attribute {name}={result}: only {', '.join(sorted(COMPUTED))}")
        return np.dtype(result)

    def rank(self, value: str) -> int | None:
        """How many axes a value has, None where the symbol does not say."""
        return self.builder.type_of(value).rank

    def known_rank(self, value: str, why: str) -> int:
        """The same. Raises `UnsupportedError` where the symbol does not say."""
        result = self.rank(value)
        if result is None:
            self.context.unranked.add(value)
            silent = [each.name for each in self.builder.inputs if self.rank(each.name) is None]
            raise UnsupportedError(
                f"{why}: the symbol does not say how many axes {value!r} has; it declares no shape"
                f" (__shape__) of {', '.join(silent)}"
            )
        return result

    def dtype_of(self, value: str) -> DType:
        """A value's dtype, MXNet's default where the symbol does not say."""
        return np.dtype(self.builder.type_of(value).dtype or np.float32)

    def share_rank(self, *values: str) -> None:
        """What is known of the rank of one holds for all: they have one shape."""
        ranks = {value: self.rank(value) for value in values}
        known = next((rank for rank in ranks.values() if rank is not None), None)
        for value, rank in ranks.items():
            if rank is None and known is not None:
                self.declare_rank(value, known)

    def declare_rank(self, value: str, rank: int) -> None:
        """Notes the rank that an operator wants of a value; inputs of the graph declare it."""
        declared = Value(value, shape=(None,) * rank)
        known = replace(self.builder.type_of(value), shape=declared.type.shape)
        self.builder.declare(value, known)
        self.builder.inputs = [
            replace(given, shape=declared.shape) if given.name == value else given
            for given in self.builder.inputs
        ]

    def check_floats(self, *values: str) -> None:
        """Refuses whole numbers, which NumPy would promote where MXNet does not."""
        for value in values:
            dtype = self.dtype_of(value)
            if dtype.kind != "f":
                raise UnsupportedError(f"of {dtype} values")

    def is_inferred(self, value: str) -> bool:
        return value in self.inferred

    def note(self, text: str) -> None:
        """What a user should know of this operator."""
        self.context.note(text, f"{self.node.name} ({self.node.op})")

    def as_documented(self, documented: str, on_cpu: str) -> bool:
        """Whether to compute what is documented, or what MXNet's CPU gave; noted either way."""
        chosen = self.context.semantics == "documented"
        if chosen:
            text = f"{documented}, as documented; MXNet 1.9.1 on CPU did otherwise: {on_cpu}"
            text += " (semantics='mxnet-cpu' gives its numbers)"
        else:
            text = f"{on_cpu}, as in MXNet 1.9.1 on CPU; documented is: {documented}"
            text += " (semantics='documented')"
        self.context.differing.add(text)
        self.note(text)
        return chosen

    def matrix(self, value: str) -> str:
        """The value with all axes but the first as one."""
        return value if self.rank(value) == 2 else self.emit("Flatten", value, axis=1)

    def part(self, value: str, first: int, end: int, axis: int = 0) -> str:
        """A part of a list, such as a shape, or of a value along an axis."""
        return self.emit("Slice", value, *map(self.ints, (first, end, axis)))

    def resized(self, whole: str, axis: int, size: int) -> str:
        """A shape with another size at an axis."""
        before, after = self.part(whole, 0, axis), self.part(whole, axis + 1 or LAST, LAST)
        return self.joined(before, [size], after)

    def listed(self, value: str, *gone: int) -> str:
        """The value; a list of one number where it would be a scalar, which only NumPy mode knows.

        ``gone``: the axes that it has lost, where not all of them may be.
        """
        rank = self.rank(value)
        some_left = gone and not (max(gone) < len(gone) and min(gone) >= -len(gone))
        if rank or some_left or self.numpy:
            return value
        if rank == 0:
            return self.reshaped(value, 1)
        sizes = self.sizes_of(value)
        skipped = self.emit("Min", self.sizes_of(sizes), [1])  # 0 for a scalar
        whole = self.joined([1], sizes)
        kept = self.emit("Slice", whole, skipped, [LAST], [0])
        return self.emit("Reshape", value, kept)


# The registry of the tables: MXNet's operators and the rules that lower them.


class Rule(NamedTuple):
    """How an operator is lowered.

    ``name``: its name in the table. ``slots``: those of its inputs; ``rest`` takes all others.
    ``inferred``: what becomes of inputs whose sizes MXNet infers (`Context.inferred`). Outputs
    are of inferred size if the "first" input is, or "all" are, or "none"; "" refuses.
    """

    name: str
    slots: tuple[str, ...]
    rest: str
    lower: Callable[[MxnetOperator], Results]
    inferred: str

    def slots_of(self, count: int) -> list[str]:
        """Returns the slot of each of ``count`` inputs; raises `UnsupportedError` for too many."""
        if count > len(self.slots) and not self.rest:
            raise UnsupportedError(f"{count} inputs, expected {', '.join(self.slots)}")
        return [*self.slots, *[self.rest] * count][:count]


RULES: dict[str, Rule] = {}


class MxnetTensor(Tensor):
    """A value as MXNet's rules compute with it; the symbol may not say its rank or dtype."""

    @property
    def rank(self) -> Any:
        """The number of axes, None if the symbol does not say."""
        return self.op.rank(self.name)

    def known_rank(self, why: str) -> int:
        """Returns the rank; raises `UnsupportedError` if the symbol does not say."""
        return self.op.known_rank(self.name, why)

    @property
    def floats(self) -> Self:
        """The value; raises `UnsupportedError` for integers, which MXNet does not promote."""
        self.op.check_floats(self.name)
        return self

    @property
    def inferred(self) -> bool:
        """Whether MXNet infers its size from other inputs."""
        return self.op.is_inferred(self.name)

    @property
    def matrix(self) -> Self:
        """The value with all axes after the first as one."""
        return self.new(self.op.matrix(self.name))

    def part(self, first: int, end: int, axis: int = 0) -> Self:
        """Returns a part of a list, such as a shape, or of a value along an axis."""
        return self.new(self.op.part(self.name, first, end, axis))

    def resize(self, axis: int, size: int) -> Self:
        """Returns a shape with another size at an axis."""
        return self.new(self.op.resized(self.name, axis, size))

    def at_least_one(self, *gone: int) -> Self:
        """Returns a list of one element in place of a scalar, which only NumPy mode knows."""
        return self.new(self.op.listed(self.name, *gone))


class Maybe(NamedTuple):
    """An attribute without a default, or "None"; ``kind``: its parser in `attributes`."""

    kind: str

    def read(self, op: MxnetOperator, name: str) -> Any:
        return op.maybe(name, None, getattr(parse, self.kind))


class Bounds(NamedTuple):
    """An attribute that holds a list of integers, some of which may be None."""

    def read(self, op: MxnetOperator, name: str) -> tuple[int | None, ...]:
        return op.bounds(name)


class Dtype(NamedTuple):
    """An attribute that names a dtype. ``none``: what "None" means, "" if that is an error."""

    none: str | None = ""

    def read(self, op: MxnetOperator, name: str) -> DType | None:
        if self.none != "" and op.text(name, "None") == "None":
            return None if self.none is None else np.dtype(self.none)
        return op.dtype(name)


def mxnet(names: str, *, inferred: str = "", **only: Any) -> Any:
    """Enters a rule whose signature is the schema of the operators ``names``; see `Signature`."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = Signature(function, only, MxnetTensor)
        for name in names.split():
            RULES[name] = Rule(name, signature.slots, signature.rest, signature, inferred)
        return function

    return enter


@lru_cache(maxsize=1024)
def find_rule(name: str) -> Rule | None:
    return next((RULES[each] for each in names_of(name) if each in RULES), None)


def known_name(name: str) -> str:
    """The operator's name in the table; the same where it is not known."""
    result = find_rule(name)
    return result.name if result else name


def slots_of_node(node: SymbolNode) -> list[str]:
    """The slot of each of a node's inputs, "" where that is not known."""
    result = find_rule(node.op)
    try:
        return result.slots_of(len(node.inputs)) if result else [""] * len(node.inputs)
    except UnsupportedError:
        return [""] * len(node.inputs)


def needed(symbol: Symbol) -> set[int]:
    """The nodes that the outputs depend on; what makes labels is only for training."""
    result = {entry.node for entry in symbol.heads}
    for at in reversed(range(len(symbol.nodes))):
        if at in result:
            node = symbol.nodes[at]
            pairs = zip(node.inputs, slots_of_node(node), strict=True)
            result |= {entry.node for entry, slot in pairs if slot != "label"}
    return result


# Lowers the nodes of a symbol, one after the other, by the rules.

_OUTPUTS = {
    "SliceChannel": ("output0",),
    "RNN": ("output", "state_output", "statecell_output"),
    "_npi_matmul": ("out",),
    "_npi_concatenate": ("out",),
}
"""What an operator calls its outputs, where it names them (FListOutputNames)."""

_NAMED_BEFORE = 900  # until 0.9.0 auxiliary states were no inputs in the file


def lower_nodes(context: Context) -> list[str]:
    """The value of each head, under MXNet's name of it.

    The builder has the variables already, as inputs or constants. What cannot be lowered becomes a
    node with the reason.
    """
    builder, symbol = context.builder, context.symbol
    heads = [(entry.node, entry.output) for entry in symbol.heads]
    used, ends = needed(symbol), set(heads)
    read: dict[int, set[int]] = {}
    for entry in (*symbol.heads, *(each for at in used for each in symbol.nodes[at].inputs)):
        read.setdefault(entry.node, set()).add(entry.output)
    # Nodes may share a name: those whose values are outputs come first.
    taken = {output_name(symbol.nodes[at], out, n) for at, out in heads for n in (1, 2)}
    counts: dict[int, int] = {}

    def step(position: int, node: SymbolNode) -> LoweringStep:
        def outputs(count: int) -> Iterator[Output]:
            counts[position] = count or len(read[position])  # none where it was refused
            for k in sorted({*range(count), *read[position]}):
                name = output_name(node, k, counts[position])
                if name in taken and (position, k) not in ends:
                    name = f"{name}#{position}"
                yield Output(str(k), variable_of(position, k), name)

        reads = tuple(variable_of(*each[:2]) if each.node in used else "" for each in node.inputs)
        lower = partial(_lower, context, position, node, reads)
        return LoweringStep(NativeOp(position, node.op, node.name), reads, lower, outputs)

    steps = [step(at, node) for at, node in enumerate(symbol.nodes) if at in used]
    lower_steps(builder, steps, [variable_of(*head) for head in heads])
    values: dict[str, None] = {}
    for at, out in heads:
        node, result = symbol.nodes[at], builder.value(variable_of(at, out))
        name = output_name(node, out, counts[at])
        if (
            result in values or result.split("#")[0] != name
        ):  # another node's value, or a second time
            builder.origin = (NativeOp(at, node.op, node.name),)
            result = builder.copied(result, name)
        values[result] = None
    return list(values)


def variable_of(position: int, output: int) -> str:
    """What the builder calls an output of a node."""
    return f"{position}:{output}"


def _lower(context: Context, position: int, node: SymbolNode, reads: Sequence[str]) -> Results:
    if node.op == VARIABLE:
        return node.name
    result = find_rule(node.op)
    if result is None:
        raise UnsupportedError("this operator is not known")
    inputs = [each and context.builder.value(each) for each in reads]
    inputs += late_inputs(context, result, node, len(inputs))
    slots: dict[str, list[str]] = {}
    for slot, value in zip(result.slots_of(len(inputs)), inputs, strict=True):
        slots.setdefault(slot, []).append(value)
    unsized = [each in context.inferred for each in reads]
    if any(unsized) and not result.inferred:
        raise UnsupportedError("an input of zeros, whose size MXNet would infer from other inputs")
    inferred = {value for value, each in zip(inputs, unsized, strict=False) if each}
    op = MxnetOperator(
        context, NativeOp(position, node.op, node.name), result.name, node, slots, inferred
    )
    results = op.lowered(result.lower)
    decisive = unsized[:1] if result.inferred == "first" else unsized
    if op.gives_inferred or decisive and all(decisive) and result.inferred != "none":
        count = 1 if isinstance(results, str) else len(results)
        context.inferred.update(variable_of(position, k) for k in range(count))
    return results


def late_inputs(context: Context, chosen: Rule, node: SymbolNode, count: int) -> list[str]:
    """The auxiliary states that files of MXNet before 0.9 leave out."""
    if context.symbol.version >= _NAMED_BEFORE:
        return []
    names = [f"{node.name}_{slot}" for slot in chosen.slots[count:]]
    return [name for name in names if name in context.builder.constants]


def output_name(node: SymbolNode, output: int, count: int) -> str:
    """What MXNet calls an output of a node of ``count`` outputs (Symbol::ListOutputNames)."""
    if node.op == VARIABLE:
        return node.name
    given = _OUTPUTS.get(known_name(node.op), ())
    if output < len(given):
        kind = given[output]
    else:
        kind = "output" if count == 1 else f"output{output}"
    return f"{node.name}_{kind}" if node.name else kind
