"""The form in which rules read an MXNet operator, the table of rules, and the lowering of a
symbol's nodes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import field, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple, NoReturn, Self

import numpy as np

from onernn.adapters.common.caller_rules import CallerRule, find_caller
from onernn.adapters.common.files import pairs
from onernn.adapters.common.lowering import (
    PASS_RULE,
    GraphBuilder,
    LoweringStep,
    NativeOperator,
    Output,
    Results,
    Slot,
    lower_steps,
)
from onernn.adapters.common.native import sort_positions
from onernn.adapters.common.signatures import Signature, Tensor, refuse
from onernn.adapters.mxnet import attributes as parse
from onernn.adapters.mxnet.read import VARIABLE, Entry, Symbol, SymbolNode
from onernn.ir.budget import loading, spend
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
    _npx_topk=topk _npi_argsort=argsort _npi_sort=sort cumsum=_np_cumsum
    _npx_gather_nd=gather_nd _npi_gather_nd=gather_nd _npx_arange_like=_contrib_arange_like
    _npx_sequence_mask=SequenceMask _npx_slice=slice _npx_softmax=softmax
    """
)


def names_of(name: str) -> list[str]:
    """Returns an operator's name, and other names of the same operator.

    ``_sparse_relu`` is ``relu`` on any storage, and ``_PlusScalar`` is the old name of
    ``_plus_scalar``.
    """
    plain = name.removeprefix("_sparse_")
    if re.match("_[A-Z]", name):
        plain = re.sub(r"(?<=[a-z])_?(?=[A-Z])", "_", name).lower()
    return [name, plain, ALIASES.get(name, ""), ALIASES.get(plain, "")]


# An MXNet operator in the form that rules read, and the graph into which it is lowered.

DType = np.dtype[Any]
FIRST, LAST = -(2**62), 2**62
"""Positions before and after all elements of an axis, for slices without a start or end."""
COMPUTED = frozenset("bool uint8 int8 int32 int64 float32 float64".split())
"""The dtypes in which NumPy computes like MXNet; float16 is computed in float32."""

Place = tuple[str, int]
"""The name of a variable, and one of its axes."""


@dataclass
class Context:
    """The graph under construction, and facts about its variables other than types.

    MXNet infers unknown sizes of ``_zeros`` from the values to which they are added. onernn sets
    these sizes to 1, and broadcasting computes the same results.

    ``inferred``: the variables that are computed from such zeros; each axis of unknown size is
    mapped to the axis of the zeros from which it comes. ``unsized``: zeros for which a size of 1
    would change the results of an operator. ``equal``: for an axis of zeros, the axes of other
    variables with the same size. ``sized``: for an axis of zeros, the axis whose size it gets when
    the symbol is lowered again. ``halves``: variables that are float16 in MXNet and float32 in
    onernn. ``unranked``: values whose unknown rank an operator needed. ``notes``: texts for the
    user, with the names of nodes. ``differing``: the notes about operators that MXNet computes
    differently from its documentation. ``seed``: the input from which random numbers are computed,
    "" without any. ``is_body``: whether the graph is the body of an operator.
    """

    builder: GraphBuilder
    semantics: str
    symbol: Symbol
    inferred: dict[str, dict[int, Place]] = field(default_factory=dict)
    unsized: set[str] = field(default_factory=set)
    equal: dict[Place, list[Place]] = field(default_factory=dict)
    sized: Mapping[Place, Place] = field(default_factory=dict)
    halves: set[str] = field(default_factory=set)
    unranked: set[str] = field(default_factory=set)
    notes: dict[str, list[str]] = field(default_factory=dict)
    differing: set[str] = field(default_factory=set)
    seed: str = ""
    is_body: bool = False

    def note(self, text: str, node: str) -> None:
        nodes = self.notes.setdefault(text, [])
        if node not in nodes:
            nodes.append(node)

    def share(self, variable: str, axis: int, other: str, other_axis: int) -> None:
        """Records that two values have the same size along an axis, if MXNet infers the first
        value's size.
        """
        origin = self.inferred.get(variable, {}).get(axis)
        if origin and other not in self.inferred:
            self.equal.setdefault(origin, []).append((other, other_axis))

    def zeros_of(self, variable: str) -> set[str]:
        """Returns the ``_zeros`` from which the inferred sizes of a variable come."""
        return {zeros for zeros, _ in self.inferred.get(variable, {}).values()}

    def label(self, texts: Iterable[str]) -> list[str]:
        """Returns the notes ``texts``, each preceded by the names of its nodes."""
        return [": ".join(filter(None, [", ".join(self.notes[text]), text])) for text in texts]


_PARSERS: Mapping[type, Callable[[str], Any]] = {
    bool: parse.flag,
    int: parse.integer,
    float: parse.number,
    tuple: parse.sizes,
}
"""Parsers of attributes by the types of their defaults."""


class MxnetOperator(NativeOperator):
    """An MXNet operator as a rule reads it, and the graph into which it is lowered.

    ``name``: its name in the table. ``numpy``: whether it is an operator of NumPy mode.
    ``inferred``: the inputs whose sizes MXNet infers. ``unknown``: the axes of its output whose
    size MXNet infers. ``states_dtype``: whether an attribute states its dtype. ``gives_half``:
    whether this dtype is float16. ``count``: the number of outputs that the symbol reads.
    """

    def __init__(
        self,
        context: Context,
        at: NativeOp,
        name: str,
        node: SymbolNode,
        inputs: Mapping[str, Sequence[str]],
        inferred: Collection[str],
        count: int,
    ) -> None:
        read = {k: v for k, v in node.attributes.items() if not parse.TRAINING.fullmatch(k)}
        spend(count)
        loading().ask(100 * count, f"a list of the {count:,} outputs that the model reads")
        outputs = {str(k): () for k in range(count)}
        super().__init__(context.builder, at, inputs, outputs, read, parse.INERT, node.name)
        self.context, self.node = context, node
        self.name, self.numpy = name, at.type.startswith("_np")
        self.inferred, self.states_dtype, self.gives_half = inferred, False, False
        self.unknown: tuple[int, ...] = ()

    def miscounted(self, count: int) -> str:
        read = len(self.outputs)
        return "" if count >= read else f"the model reads {read}"

    def values(self, slot: Slot) -> list[str]:
        result = self.variables(slot)
        for value in result:
            dtype = self.builder.type_of(value).dtype
            if dtype is not None and dtype not in COMPUTED:
                raise UnsupportedError(
                    f"input {slot}: expected one of {', '.join(sorted(COMPUTED))}, got {dtype};"
                    " save one of these"
                )
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
        """Returns an attribute, parsed by the type of its default."""
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
        raise UnsupportedError(f"attribute {name} is missing: expected a value")

    def dtype_of(self, value: str) -> DType:
        """Returns a value's dtype, MXNet's default if the symbol does not say."""
        return np.dtype(self.builder.type_of(value).dtype or np.float32)

    def declare_rank(self, value: str, rank: int) -> None:
        """Records the rank that an operator needs of a value. If the value is an input, it is
        declared with this rank.
        """
        declared = Value(value, shape=(None,) * rank)
        known = replace(self.builder.type_of(value), shape=declared.type.shape)
        self.builder.declare(value, known)
        self.builder.inputs = [
            replace(given, shape=declared.shape) if given.name == value else given
            for given in self.builder.inputs
        ]

    def note(self, text: str) -> None:
        """Adds a note for the user about this operator."""
        self.context.note(text, f"{self.node.name} ({self.node.op})")

    def need_sizes(self) -> NoReturn:
        """Raises `UnsupportedError` because MXNet infers a size of an input; records the zeros with
        this size.
        """
        for entry in self.node.inputs:
            self.context.unsized |= self.context.zeros_of(entry.name)
        raise UnsupportedError(UNSIZED)

    def round_to_half(self, value: str) -> str:
        return self.emit("Cast", self.emit("Cast", value, to="float16"), to="float32")

    def as_documented(self, documented: str, on_cpu: str) -> bool:
        """Returns whether to compute what MXNet documents rather than what it computes on the CPU;
        notes the choice.
        """
        chosen = self.context.semantics == "documented"
        if chosen:
            text = f"{documented}, as documented; MXNet 1.9.1 on CPU did otherwise: {on_cpu}"
            text += " (semantics='mxnet-cpu' does the same)"
        else:
            text = f"{on_cpu}, as in MXNet 1.9.1 on CPU; documented is: {documented}"
            text += " (semantics='documented')"
        self.context.differing.add(text)
        self.note(text)
        return chosen


# The table of MXNet's operators and of the rules that lower them.


class Rule(NamedTuple):
    """A rule that lowers an operator.

    ``name``: the operator's name in the table. ``inferred``: what the operator does if MXNet infers
    sizes of its inputs (`Context.inferred`). "first": the output has the inferred size of the first
    input, which must be on axis 0. "all": the output has an inferred size if all inputs have one.
    "alike": all inputs must have inferred sizes on the same axes, but not on the axis in the
    attribute ``axis`` or ``dim``. "none": the output has no inferred size. "": the operator needs
    the sizes. ``shares``: the axes on which all inputs have the same size. "all": every axis.
    "axis": every axis except the axis in the attribute ``dim`` or ``axis``. "first": axis 0. "": no
    axis.
    """

    name: str
    lower: Signature | CallerRule
    inferred: str
    shares: str

    def slots_of(self, count: int) -> list[str]:
        """Returns the names of the first ``count`` inputs. Raises `UnsupportedError` for too
        many.
        """
        slots, rest = self.lower.slots, self.lower.rest
        if count > len(slots) and not rest:
            raise UnsupportedError(f"expected at most the inputs {', '.join(slots)}, got {count}")
        return [*slots, *[rest] * count][:count]


RULES: dict[str, Rule] = {}


class MxnetTensor(Tensor):
    """A tensor in the rules for MXNet operators. The symbol may not state its rank or dtype."""

    @property
    def rank(self) -> Any:
        """The number of axes, None if the symbol does not say."""
        return self.type.rank

    def require_rank(self, why: str) -> int:
        """Returns the rank; raises `UnsupportedError` if the symbol does not say."""
        if self.rank is None:
            self.op.context.unranked.add(self.name)
            builder = self.op.builder
            names = [
                each.name for each in builder.inputs if builder.type_of(each.name).rank is None
            ]
            refuse(
                f"{why}: expected a known number of axes of {self.name!r}; declare the shapes of"
                f" {', '.join(names) or 'all inputs'} (mx.sym.var(name, shape=...)), and save again"
            )
        return int(self.rank)

    def share_rank(self, other: MxnetTensor) -> None:
        """Gives two values of the same shape the same rank, if the rank of one is known."""
        for one, known in ((self, other.rank), (other, self.rank)):
            if one.rank is None and known is not None:
                self.op.declare_rank(one.name, known)

    @property
    def floats(self) -> Self:
        """This value, if it is floating point; else raises `UnsupportedError`, because MXNet does
        not convert integers.
        """
        if self.dtype.kind == "f":
            return self
        return refuse(
            f"input {self.slot or self.name}: expected floating point, got {self.dtype}; cast it"
            " first"
        )

    @property
    def inferred(self) -> bool:
        """Whether MXNet infers a size of this value from other values."""
        return self.name in self.op.inferred

    @property
    def matrix(self) -> Self:
        """The value as a matrix: all axes after the first become one."""
        return self if self.rank == 2 else self.Flatten(axis=1)

    def part(self, first: int, end: int, axis: int = 0) -> Self:
        """Returns the elements from ``first`` to ``end`` along an axis."""
        return self.Slice([first], [end], [axis])

    def resize(self, axis: int, size: int) -> Self:
        """Returns this tensor, which is a shape, with ``size`` as the size of an axis."""
        return self.part(0, axis).join([size], self.part(axis + 1 or LAST, LAST))

    def at_least_one(self, *gone: int) -> Self:
        """Returns a scalar as a list of one element, because only NumPy mode has scalars.

        ``gone``: the axes that were removed from the value, () if all were removed.
        """
        some_left = gone and not (max(gone) < len(gone) and min(gone) >= -len(gone))
        if self.rank or some_left or self.op.numpy:
            return self
        if self.rank == 0:
            return self.reshape(1)
        sizes = self.sizes
        skipped = sizes.sizes.Min([1])  # 0 for a scalar, otherwise 1
        whole = self.new(self.op.join([1], sizes.name))
        return self.Reshape(whole.Slice(skipped, [LAST], [0]))


class Parsed(NamedTuple):
    """An attribute that may be "None"; ``kind`` is the name of its parser in `attributes`."""

    kind: str
    default: Any = None

    def read(self, op: MxnetOperator, name: str) -> Any:
        return op.parse(name, self.default, getattr(parse, self.kind))


class Dtype(NamedTuple):
    """An attribute that names a dtype. ``none``: the dtype for the text "None", "" if the text is
    an error.
    """

    none: str | None = ""

    def read(self, op: MxnetOperator, name: str) -> DType | None:
        result = str(op.attribute(name, "float32" if self.none == "" else "None"))
        if self.none != "" and result == "None":
            return None if self.none is None else np.dtype(self.none)
        op.states_dtype = True
        if result == "float16":
            op.gives_half, result = True, "float32"
        if result not in COMPUTED:
            names = ", ".join(sorted({*COMPUTED, "float16"}))
            refuse(f"attribute {name}={result}: expected one of {names}")
        return np.dtype(result)


def mxnet(names: str, *, inferred: str = "", shares: str = "", **only: Any) -> Any:
    """Returns a decorator that adds a rule for the operators ``names`` to `RULES`; see
    `Signature`.
    """

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = Signature(function, only, MxnetTensor)
        for name in names.split():
            RULES[name] = Rule(name, signature, inferred, shares)
        return function

    return enter


@lru_cache(maxsize=1024)
def find_rule(name: str) -> Rule | None:
    return next((RULES[each] for each in names_of(name) if each in RULES), None)


def resolve_name(name: str) -> str:
    """Returns the operator's name in the table; the same name if it is not known."""
    result = find_rule(name)
    return result.name if result else name


def slots_of_node(node: SymbolNode) -> list[str]:
    """Returns the name of each input of a node, "" if it is not known."""
    result = find_rule(node.op)
    try:
        return result.slots_of(len(node.inputs)) if result else [""] * len(node.inputs)
    except UnsupportedError:
        return [""] * len(node.inputs)


def find_needed(symbol: Symbol) -> set[int]:
    """Returns the nodes that the outputs depend on, without nodes that compute labels for
    training.
    """
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
"""The names of an operator's outputs, if it names them (FListOutputNames)."""


def lower_nodes(context: Context) -> list[str]:
    """Lowers the nodes of a symbol, and returns the values of its outputs, which have MXNet's
    names.

    The variables are already inputs or constants of the builder. An operator that cannot be lowered
    becomes a node that contains the reason.
    """
    builder, symbol = context.builder, context.symbol
    used, ends = find_needed(symbol), {head.name for head in symbol.heads}
    read = defaultdict[int, set[int]](set)
    for entry in (*symbol.heads, *(each for at in used for each in symbol.nodes[at].inputs)):
        read[entry.node].add(entry.output)
    # Nodes may have the same name. An output of the symbol keeps it, inner values get a suffix.
    taken = {output_name(symbol.nodes[at], out, n) for at, out, _ in symbol.heads for n in (1, 2)}
    counts: dict[int, int] = {}

    def step(position: int) -> LoweringStep:
        node = symbol.nodes[position]

        def outputs(count: int) -> Iterator[Output]:
            counts[position] = count or len(read[position])  # ``count`` is 0 if it was refused
            for k in sorted({*range(count), *read[position]}):
                name, variable = output_name(node, k, counts[position]), Entry(position, k).name
                last = variable in ends and variable not in context.halves
                unique = name if last or name not in taken else f"{name}#{position}"
                yield Output(str(k), variable, unique)

        at = NativeOp(position, node.op, node.name)
        reads = tuple(each.name if each.node in used else "" for each in node.inputs)
        lower = partial(_lower, context, at, node, reads, max(read[position], default=0) + 1)
        return LoweringStep(at, (*reads, *sources[position]), lower, outputs)

    sources = defaultdict[int, list[str]](list)
    for (zeros, _), (variable, _) in context.sized.items():
        sources[_node_of(zeros)].append(variable)
    needs = {
        at: {entry.node for entry in symbol.nodes[at].inputs} & used | {*map(_node_of, sources[at])}
        for at in used
    }
    steps = map(step, sort_positions(needs))
    lower_steps(builder, [*steps], [head.name for head in symbol.heads])
    values: list[str] = []
    for head in symbol.heads:
        node, result = symbol.nodes[head.node], builder.value(head.name)
        name = output_name(node, head.output, counts[head.node])
        if head.name in context.halves and not context.is_body:
            builder.origin = (NativeOp(head.node, node.op, node.name),)
            builder.give(f"={name}", builder.emit("Cast", (result,), {"to": "float16"}), name)
            result = builder.value(f"={name}")
        elif head.name in context.inferred and not context.is_body:
            context.unsized |= context.zeros_of(head.name)
            builder.refuse(f"={name}", UNSIZED, (), name)
            result = builder.value(f"={name}")
        if result in values or result.split("#")[0] != name:  # needs a copy with its own name
            builder.origin = (NativeOp(head.node, node.op, node.name),)
            result = builder.copy(result, name)
        values.append(result)
    return values


def _node_of(variable: str) -> int:
    return int(variable.partition(":")[0])


def find_sizes(context: Context) -> dict[Place, Place]:
    """Returns, for axes of zeros whose size operators need, an axis of another variable with this
    size.

    The other variable must not be computed from such zeros.
    """
    result = dict[Place, Place]()
    zeros = {*map(_node_of, context.unsized)}
    for variable in sorted(context.unsized):
        for axis in context.inferred[variable]:
            for other, other_axis in context.equal.get((variable, axis), ()):
                if zeros.isdisjoint(_find_ancestors(context, _node_of(other))):
                    result[variable, axis] = other, other_axis
                    break
    return result


def _find_ancestors(context: Context, at: int) -> set[int]:
    sources = [
        (_node_of(zeros), _node_of(other)) for (zeros, _), (other, _) in context.sized.items()
    ]
    result, waiting = {at}, [at]
    while waiting:
        reader = waiting.pop()
        more = {entry.node for entry in context.symbol.nodes[reader].inputs}
        more |= {other for zeros, other in sources if zeros == reader}
        more -= result
        result |= more
        waiting += more
    return result


UNSIZED = (
    "MXNet infers a size from other inputs: expected known sizes; create zeros and ones with a full"
    " shape, and save again"
)
"""The reason to refuse an operator that needs a size that MXNet infers."""


def _find_callers(context: Context, node: SymbolNode) -> CallerRule | None:
    """Returns the caller's rule of a node. A "Custom" node has the name of its registered class."""
    names = [node.attributes.get("op_type", "")] if node.op == "Custom" else []
    is_known = find_rule(node.op) is not None
    return find_caller(context.builder.rules, [*names, node.op], is_known)


def _lower(
    context: Context, at: NativeOp, node: SymbolNode, reads: Sequence[str], count: int
) -> Results:
    builder = context.builder
    if node.op == VARIABLE:
        if builder.type_of(node.name).dtype != "float16":
            return node.name
        context.halves.add(Entry(at.position).name)
        return builder.emit("Cast", (node.name,), {"to": "float32"})
    callers = _find_callers(context, node)
    rule = Rule(node.op, callers, "", "") if callers else find_rule(node.op)
    if rule is None:
        raise UnsupportedError(f"this operator is not known{PASS_RULE}")
    inputs = [each and builder.value(each) for each in reads]
    if context.symbol.is_old:  # the file leaves out auxiliary states
        names = [f"{node.name}_{slot}" for slot in rule.lower.slots[len(inputs) :]]
        inputs += [name for name in names if name in builder.constants]
    slots = defaultdict[str, list[str]](list)
    with callers.naming() if callers else nullcontext():
        names_of_slots = rule.slots_of(len(inputs))
    for slot, value in zip(names_of_slots, inputs, strict=True):
        slots[slot].append(value)
    inferred = {value for value, each in zip(inputs, reads, strict=False) if context.zeros_of(each)}
    op = MxnetOperator(context, at, rule.name, node, slots, inferred, count)
    if callers:
        op.ignore("op_type")
    axes = _infer_axes(op, rule, reads)
    results = op.run_rule(rule.lower)
    names = [results] if isinstance(results, str) else [*results]
    variables = [Entry(at.position, k).name for k in range(len(names))]
    if op.unknown:
        axes = {axis: (variables[0], axis) for axis in op.unknown}
    if axes:
        context.inferred.update(dict.fromkeys(variables, axes))
    if op.gives_half or not op.states_dtype and not context.halves.isdisjoint(reads):
        for k, name in enumerate(names):
            if builder.type_of(name).dtype == "float32":
                context.halves.add(variables[k])
                names[k] = op.round_to_half(name) if op.gives_half else name
        context.notes[
            "float16 values are computed in float32, and rounded where they are cast"
        ] = []
    return tuple(names)


def _infer_axes(op: MxnetOperator, rule: Rule, reads: Sequence[str]) -> dict[int, Place]:
    """Returns the axes of the outputs whose size MXNet infers, each with the axis of zeros from
    which it comes.

    Records which other inputs have the same sizes. Raises `UnsupportedError` if the operator needs
    a size that MXNet infers.
    """
    known = [op.context.inferred.get(each, {}) for each in reads]
    if not any(known):
        return {}
    apart = op.node.attributes.get("dim", op.node.attributes.get("axis", "1"))
    for variable, axes in zip(reads, known, strict=True):
        for axis in axes:
            equal = {"all": True, "axis": apart != str(axis), "first": axis == 0, "": False}
            if equal[rule.shares]:
                for other in reads:
                    op.context.share(variable, axis, other, axis)
    fits = {
        "all": True,
        "none": True,
        "first": all(axes.keys() <= {0} for axes in known),
        "alike": all(known)
        and len({*map(frozenset, known)}) == 1
        and apart not in map(str, known[0]),
        "": False,
    }
    if not fits[rule.inferred]:
        op.need_sizes()
    if rule.inferred == "none" or not (known[0] if rule.inferred == "first" else all(known)):
        return {}
    return known[0]


def output_name(node: SymbolNode, output: int, count: int) -> str:
    """Returns MXNet's name of an output of a node with ``count`` outputs (ListOutputNames)."""
    if node.op == VARIABLE:
        return node.name
    given = _OUTPUTS.get(resolve_name(node.op), ())
    if output < len(given):
        kind = given[output]
    else:
        kind = "output" if count == 1 else f"output{output}"
    return f"{node.name}_{kind}" if node.name else kind
