"""One MXNet operator as a rule reads it, the table of rules, and the loop over a symbol's nodes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple, Self

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
from onernn.adapters.common.signatures import Signature, Tensor, refuse
from onernn.adapters.mxnet import attributes as parse
from onernn.adapters.mxnet.read import VARIABLE, Entry, Symbol, SymbolNode
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import NativeOp, Value
from onernn.ir.records import dataclass

# Other names of the same operators in MXNet 1.9.1.

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
    """Returns an operator's name, and others of the same.

    ``_sparse_relu`` is ``relu`` on any storage, and ``_PlusScalar`` is ``_plus_scalar`` of old.
    """
    plain = name.removeprefix("_sparse_")
    if re.match("_[A-Z]", name):
        plain = re.sub(r"(?<=[a-z])_?(?=[A-Z])", "_", name).lower()
    return [name, plain, ALIASES.get(name, ""), ALIASES.get(plain, "")]


# One MXNet operator as a rule of the tables reads it, and the graph that it is lowered into.

DType = np.dtype[Any]
FIRST, LAST = -(2**62), 2**62
"""Beyond every axis: slices are cut there."""
COMPUTED = frozenset("bool uint8 int8 int32 int64 float32 float64".split())
"""What NumPy computes in like MXNet; float16 parameters are read as float32."""


@dataclass
class Context:
    """The graph under construction, and what is known of it apart from types.

    ``inferred``: variables made from ``_zeros`` of unknown size, which MXNet infers from what they
    are added to. Here the unknown sizes are 1, and broadcasting computes the same.
    ``unranked``: values whose rank an operator lacked.
    ``notes``: texts for the user, with the names of nodes; ``differing``: the notes about places
    at which the two meanings differ. ``seed``: the input that random numbers are made
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

    def label(self, texts: Iterable[str]) -> list[str]:
        """Returns the notes after the names of their nodes, each once."""
        return [": ".join(filter(None, [", ".join(self.notes[text]), text])) for text in texts]


_PARSERS: Mapping[type, Callable[[str], Any]] = {
    bool: parse.flag,
    int: parse.integer,
    float: parse.number,
    tuple: parse.sizes,
}
"""Parsers of attributes by the types of their defaults."""


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

    def parse(self, name: str, default: Any, parser: Callable[[str], Any]) -> Any:
        """Returns an attribute, None for the text "None"."""
        text = self.attribute(name, None)
        if text is None or text == "None":
            return default if text is None else None
        try:
            return parser(text)
        except UnsupportedError as error:
            raise UnsupportedError(f"attribute {name}: {error}") from None

    def keyword(self, name: str, default: Any) -> Any:
        """Returns an attribute, parsed as text of the kind of its default."""
        if isinstance(default, str):
            return str(self.attribute(name, default))
        result = self.parse(name, default, _PARSERS[type(default)])
        if result is None:
            return False if default is False or default is True else self._refuse_missing(name)
        return result

    def integer(self, name: str, default: int | None = None) -> int:
        result = self.parse(name, default, parse.integer)
        return self._refuse_missing(name) if result is None else result

    def _refuse_missing(self, name: str) -> Any:
        raise UnsupportedError(f"attribute {name} is missing")

    def dtype_of(self, value: str) -> DType:
        """Returns a value's dtype, MXNet's default if the symbol does not say."""
        return np.dtype(self.builder.type_of(value).dtype or np.float32)

    def declare_rank(self, value: str, rank: int) -> None:
        """Notes the rank that an operator wants of a value; inputs of the graph declare it."""
        declared = Value(value, shape=(None,) * rank)
        known = replace(self.builder.type_of(value), shape=declared.type.shape)
        self.builder.declare(value, known)
        self.builder.inputs = [
            replace(given, shape=declared.shape) if given.name == value else given
            for given in self.builder.inputs
        ]

    def note(self, text: str) -> None:
        """Adds what a user should know of this operator."""
        self.context.note(text, f"{self.node.name} ({self.node.op})")

    def as_documented(self, documented: str, on_cpu: str) -> bool:
        """Returns whether to compute what is documented, or what MXNet's CPU returned; notes it."""
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


# The registry of the tables: MXNet's operators and the rules that lower them.


class Rule(NamedTuple):
    """How an operator is lowered.

    ``name``: its name in the table. ``inferred``: what becomes of inputs whose sizes MXNet infers
    (`Context.inferred`). Outputs are of inferred size if the "first" input is, or "all" are, or
    "none"; "" refuses.
    """

    name: str
    lower: Signature
    inferred: str

    def slots_of(self, count: int) -> list[str]:
        """Returns the slot of each of ``count`` inputs; raises `UnsupportedError` for too many."""
        slots, rest = self.lower.slots, self.lower.rest
        if count > len(slots) and not rest:
            raise UnsupportedError(f"{count} inputs, expected {', '.join(slots)}")
        return [*slots, *[rest] * count][:count]


RULES: dict[str, Rule] = {}


class MxnetTensor(Tensor):
    """A value as MXNet's rules compute with it; the symbol may not say its rank or dtype."""

    @property
    def rank(self) -> Any:
        """The number of axes, None if the symbol does not say."""
        return self.type.rank

    def known_rank(self, why: str) -> int:
        """Returns the rank; raises `UnsupportedError` if the symbol does not say."""
        if self.rank is None:
            self.op.context.unranked.add(self.name)
            builder = self.op.builder
            names = [
                each.name for each in builder.inputs if builder.type_of(each.name).rank is None
            ]
            refuse(
                f"{why}: the symbol does not say how many axes {self.name!r} has; it declares no"
                f" shape (__shape__) of {', '.join(names)}"
            )
        return int(self.rank)

    def share_rank(self, other: MxnetTensor) -> None:
        """Notes that two values have the same shape: the rank of one is the rank of both."""
        for one, known in ((self, other.rank), (other, self.rank)):
            if one.rank is None and known is not None:
                self.op.declare_rank(one.name, known)

    @property
    def floats(self) -> Self:
        """The value; raises `UnsupportedError` for integers, which MXNet does not promote."""
        return self if self.dtype.kind == "f" else refuse(f"of {self.dtype} values")

    @property
    def inferred(self) -> bool:
        """Whether MXNet infers its size from other inputs."""
        return self.name in self.op.inferred

    @property
    def matrix(self) -> Self:
        """The value with all axes after the first as one."""
        return self if self.rank == 2 else self.Flatten(axis=1)

    def part(self, first: int, end: int, axis: int = 0) -> Self:
        """Returns a part of a list, such as a shape, or of a value along an axis."""
        return self.Slice([first], [end], [axis])

    def resize(self, axis: int, size: int) -> Self:
        """Returns a shape with a new size at an axis."""
        return self.part(0, axis).join([size], self.part(axis + 1 or LAST, LAST))

    def at_least_one(self, *gone: int) -> Self:
        """Returns a list of one element in place of a scalar, which only NumPy mode knows.

        ``gone``: the axes that the value has lost, if some are left.
        """
        some_left = gone and not (max(gone) < len(gone) and min(gone) >= -len(gone))
        if self.rank or some_left or self.op.numpy:
            return self
        if self.rank == 0:
            return self.reshape(1)
        sizes = self.sizes
        skipped = sizes.sizes.Min([1])  # 0 for a scalar
        whole = self.new(self.op.joined([1], sizes.name))
        return self.Reshape(whole.Slice(skipped, [LAST], [0]))


class Parsed(NamedTuple):
    """An attribute that may be "None"; ``kind``: its parser in `attributes`."""

    kind: str
    default: Any = None

    def read(self, op: MxnetOperator, name: str) -> Any:
        return op.parse(name, self.default, getattr(parse, self.kind))


class Dtype(NamedTuple):
    """An attribute that names a dtype. ``none``: what "None" means, "" if that is an error."""

    none: str | None = ""

    def read(self, op: MxnetOperator, name: str) -> DType | None:
        result = str(op.attribute(name, "float32" if self.none == "" else "None"))
        if self.none != "" and result == "None":
            return None if self.none is None else np.dtype(self.none)
        if result not in COMPUTED:
            refuse(f"attribute {name}={result}: only {', '.join(sorted(COMPUTED))}")
        return np.dtype(result)


def mxnet(names: str, *, inferred: str = "", **only: Any) -> Any:
    """Enters a rule whose signature is the schema of the operators ``names``; see `Signature`."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = Signature(function, only, MxnetTensor)
        for name in names.split():
            RULES[name] = Rule(name, signature, inferred)
        return function

    return enter


@lru_cache(maxsize=1024)
def find_rule(name: str) -> Rule | None:
    return next((RULES[each] for each in names_of(name) if each in RULES), None)


def known_name(name: str) -> str:
    """Returns the operator's name in the table; the same name if it is not known."""
    result = find_rule(name)
    return result.name if result else name


def slots_of_node(node: SymbolNode) -> list[str]:
    """Returns the slot of each of a node's inputs, "" if it is not known."""
    result = find_rule(node.op)
    try:
        return result.slots_of(len(node.inputs)) if result else [""] * len(node.inputs)
    except UnsupportedError:
        return [""] * len(node.inputs)


def find_needed(symbol: Symbol) -> set[int]:
    """Returns the nodes that the outputs depend on; what makes labels is only for training."""
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


def lower_nodes(context: Context) -> list[str]:
    """Returns the value of each head, under MXNet's name of it.

    The builder has the variables already, as inputs or constants. An operator that cannot be
    lowered becomes a node with the reason.
    """
    builder, symbol = context.builder, context.symbol
    used, ends = find_needed(symbol), {head.name for head in symbol.heads}
    read = defaultdict[int, set[int]](set)
    for entry in (*symbol.heads, *(each for at in used for each in symbol.nodes[at].inputs)):
        read[entry.node].add(entry.output)
    # Nodes may share a name: those whose values are outputs come first.
    taken = {output_name(symbol.nodes[at], out, n) for at, out, _ in symbol.heads for n in (1, 2)}
    counts: dict[int, int] = {}

    def step(position: int, node: SymbolNode) -> LoweringStep:
        def outputs(count: int) -> Iterator[Output]:
            counts[position] = count or len(read[position])  # none if it was refused
            for k in sorted({*range(count), *read[position]}):
                name, variable = output_name(node, k, counts[position]), Entry(position, k).name
                unique = name if variable in ends or name not in taken else f"{name}#{position}"
                yield Output(str(k), variable, unique)

        at = NativeOp(position, node.op, node.name)
        reads = tuple(each.name if each.node in used else "" for each in node.inputs)
        return LoweringStep(at, reads, partial(_lower, context, at, node, reads), outputs)

    steps = [step(at, node) for at, node in enumerate(symbol.nodes) if at in used]
    lower_steps(builder, steps, [head.name for head in symbol.heads])
    values: list[str] = []
    for head in symbol.heads:
        node, result = symbol.nodes[head.node], builder.value(head.name)
        name = output_name(node, head.output, counts[head.node])
        if result in values or result.split("#")[0] != name:  # a second time, or another node's
            builder.origin = (NativeOp(head.node, node.op, node.name),)
            result = builder.copied(result, name)
        values.append(result)
    return values


def _lower(context: Context, at: NativeOp, node: SymbolNode, reads: Sequence[str]) -> Results:
    if node.op == VARIABLE:
        return node.name
    rule = find_rule(node.op)
    if rule is None:
        raise UnsupportedError("this operator is not known")
    inputs = [each and context.builder.value(each) for each in reads]
    if context.symbol.is_old:  # it leaves out auxiliary states
        names = [f"{node.name}_{slot}" for slot in rule.lower.slots[len(inputs) :]]
        inputs += [name for name in names if name in context.builder.constants]
    slots = defaultdict[str, list[str]](list)
    for slot, value in zip(rule.slots_of(len(inputs)), inputs, strict=True):
        slots[slot].append(value)
    unsized = [each in context.inferred for each in reads]
    if any(unsized) and not rule.inferred:
        raise UnsupportedError("an input of zeros, whose size MXNet would infer from other inputs")
    inferred = {value for value, each in zip(inputs, unsized, strict=False) if each}
    op = MxnetOperator(context, at, rule.name, node, slots, inferred)
    results = op.lowered(rule.lower)
    decisive = unsized[:1] if rule.inferred == "first" else unsized
    if op.gives_inferred or decisive and all(decisive) and rule.inferred != "none":
        count = 1 if isinstance(results, str) else len(results)
        context.inferred.update(Entry(at.position, k).name for k in range(count))
    return results


def output_name(node: SymbolNode, output: int, count: int) -> str:
    """Returns MXNet's name of an output of a node of ``count`` outputs (ListOutputNames)."""
    if node.op == VARIABLE:
        return node.name
    given = _OUTPUTS.get(known_name(node.op), ())
    if output < len(given):
        kind = given[output]
    else:
        kind = "output" if count == 1 else f"output{output}"
    return f"{node.name}_{kind}" if node.name else kind
