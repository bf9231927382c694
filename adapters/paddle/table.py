"""The table of rules for Paddle's operators, the operator that a rule gets, the graph builder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np

from onernn.adapters.common.caller_rules import CallerRule, check_declared, find_caller
from onernn.adapters.common.lowering import (
    PASS_RULE,
    FoldingBudget,
    GraphBuilder,
    LoweringStep,
    NativeOperator,
    Output,
    Results,
    Rules,
    lower_steps,
)
from onernn.adapters.common.native import NativeGraph, NativeNode
from onernn.adapters.common.signatures import Signature, Tensor, refuse
from onernn.adapters.paddle import messages
from onernn.adapters.paddle.read import OPERAND, RESULT, RESULTS, Block, Operator, Variable
from onernn.ir.errors import UnsupportedError
from onernn.ir.graph import UNSUPPORTED
from onernn.ir.records import dataclass
from onernn.ir.types import Size, Type
from onernn.ir.weights import Scale

# Finds the variables that a program's blocks read and write, before any block is lowered.

_BLOCKS = ("sub_block", "true_block", "false_block")
_GIVEN = ("given", "then", "otherwise")
"""Attributes that list variables of an inner block."""
_LISTED = {"while": "X", "conditional_block": "Input", "recurrent": "parameters"}
"""By operator type, the input slot that lists the variables that its block may read."""
_DEEPEST = 32  # nested blocks


class BlockError(UnsupportedError):
    """Raised for a missing block, and for blocks that are nested in a cycle or too deep."""


class Blocks:
    """The blocks of a program by number. Block 0 is the outermost.

    ``declared``: the variables that are assigned once. Other variables may change their type.
    ``kinds``: the VarType.Type of each variable.
    """

    def __init__(self, blocks: Mapping[int, Block]) -> None:
        self._blocks, self._graphs = blocks, dict[int, NativeGraph]()
        self._waiting: list[int] = []
        self._readers: dict[str, set[int]] = {}
        written: Counter[str] = Counter()
        declared: Counter[str] = Counter()
        variables: dict[str, Variable] = {}
        for number, block in blocks.items():
            declared.update(block.variables.keys())
            variables |= block.variables
            for op in block.operators:
                written.update({*op.writes})
                for name in _own_reads(op):
                    self._readers.setdefault(name, set()).add(number)
        written.update(name for name, each in variables.items() if each.persistable)
        self.kinds = {name: each.kind for name, each in variables.items()}
        self.declared = {
            name: each
            for name, each in variables.items()
            if written[name] < 2 and declared[name] < 2
        }

    def operators(self, number: int) -> Sequence[Operator]:
        if number not in self._blocks:
            raise BlockError(f"expected a block of the program, got {number}")
        return self._blocks[number].operators

    def graph(self, number: int) -> NativeGraph:
        """Returns the reads and writes of a block's operators. The block's variables are local."""
        if number not in self._graphs:
            if number in self._waiting or len(self._waiting) > _DEEPEST:
                raise BlockError(f"expected at most {_DEEPEST} blocks inside blocks, no circle")
            self._waiting.append(number)
            try:
                nodes = [self._node(op) for op in self.operators(number)]
            finally:
                self._waiting.pop()
            self._graphs[number] = NativeGraph(nodes, {"", *self._blocks[number].variables})
        return self._graphs[number]

    def reads(self, op: Operator) -> frozenset[str]:
        """Returns the variables that an operator and its inner blocks read."""
        return self._node(op).all_reads

    def results(self, op: Operator | NativeOperator) -> list[tuple[str, str]]:
        """Returns (slot, variable) for each variable that an operator assigns. The slot is
        ``=name`` for a variable that an inner block assigns.
        """
        named = [each for slot, names in op.outputs.items() for each in list_places(slot, names)]
        written = set[str]().union(*(self.graph(n).outer_writes for n in _inside(op)))
        if any(key in op.attributes for key in _GIVEN):
            written -= {name for _, name in named}
        named = [(slot, name) for slot, name in named if name not in written]
        return [*named, *((f"={name}", name) for name in sorted(written))]

    def read_outside(self, variable: str, number: int) -> bool:
        """Returns whether an operator outside of a block reads a variable."""
        within, waiting = {number}, [number]
        while waiting:
            for op in self.operators(waiting.pop()):
                more = set(_inside(op)) - within
                within |= more
                waiting += more
        return bool(self._readers.get(variable, set()) - within)

    def _node(self, op: Operator) -> NativeNode:
        bodies = tuple(map(self.graph, _inside(op)))
        reads = _own_reads(op).difference(*(body.local for body in bodies))
        writes = frozenset(name for _, name in self.results(op))
        return NativeNode(op.type, reads, writes, bodies)


def _own_reads(op: Operator) -> frozenset[str]:
    slots = [names for slot, names in op.inputs.items() if slot != _LISTED.get(op.type)]
    given = [op.attributes.get(key) for key in _GIVEN if op.type in ("while", "if")]
    return frozenset().union(*slots, *(names for names in given if isinstance(names, tuple)))


def list_places(slot: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """Returns (key, variable) for each variable of a slot. The keys of slot "Out" are "Out",
    "Out.1", "Out.2" and so on.
    """
    return [(f"{slot}.{at}" if at else slot, name) for at, name in enumerate(names)]


def _inside(op: Operator | NativeOperator) -> Iterator[int]:
    for name in _BLOCKS:
        number = op.attributes.get(name)
        if isinstance(number, int):
            yield number


def join_branches(operators: Sequence[Operator]) -> list[Operator]:
    """Returns the operators, with one operator `if` for each `static.nn.cond`, like a file of
    Paddle 3.

    Paddle 2 has a block for the condition, a block for its negation, and an operator select_input
    for each result.
    """
    makers = {name: op for op in operators for name in op.writes}
    selects: dict[int, list[Operator]] = {}
    for op in operators:
        if op.type == "select_input" and (branch := _branch_of(op, makers)):
            selects.setdefault(branch.position, []).append(op)
    out: list[Operator] = []
    gone: set[int] = set()
    for op in operators:
        if len(out) > 1 and _are_opposite(out[-2], out[-1], op):
            then = out.pop(-2)
            chosen = [*selects.get(then.position, ()), *selects.get(op.position, ())]
            condition = then.inputs["Cond"]
            chosen = [each for each in chosen if _source(each, "Mask", makers) == condition]
            gone.update(each.position for each in chosen)
            out.append(_branches(then, op, chosen))
        elif op.position not in gone:
            out.append(op)
    return out


def _are_opposite(then: Operator, negation: Operator, other: Operator) -> bool:
    return (
        then.type == other.type == "conditional_block"
        and negation.type == "logical_not"
        and negation.inputs.get("X") == then.inputs.get("Cond")
        and negation.outputs.get("Out") == other.inputs.get("Cond")
    )


def _branch_of(select: Operator, makers: Mapping[str, Operator]) -> Operator | None:
    """Returns the conditional_block that computes an input of a select_input."""
    makes = [makers.get(name) for name in select.inputs.get("X", ())]
    blocks = [op for op in makes if op is not None and op.type == "conditional_block"]
    return blocks[-1] if blocks and len(makes) == 2 else None


def _source(op: Operator, slot: str, makers: Mapping[str, Operator]) -> tuple[str, ...]:
    """Returns the variables in a slot. If a cast computes them, returns the input of the cast."""
    names = op.inputs.get(slot, ())
    cast = makers.get(names[0]) if names else None
    return cast.inputs.get("X", ()) if cast is not None and cast.type == "cast" else names


def _branches(then: Operator, other: Operator, selects: Sequence[Operator]) -> Operator:
    attributes = {
        "true_block": then.attributes.get("sub_block"),
        "false_block": other.attributes.get("sub_block"),
        "then": tuple(each.inputs["X"][1] for each in selects),
        "otherwise": tuple(each.inputs["X"][0] for each in selects),
    }
    outputs = {"Out": tuple(name for each in selects for name in each.outputs.get("Out", ()))}
    inputs = {"Cond": then.inputs["Cond"]}
    return replace(other, type="if", inputs=inputs, outputs=outputs, attributes=attributes)


# Tensor arrays (lists of tensors) exist only while a program is lowered, because graphs have no
# such type.
#
# A loop outputs the stack of the elements that it appends. The last of them is also a loop-carried
# value.


@dataclass(frozen=True)
class Part:
    """Consecutive elements of a tensor array. ``value``: the name of one element, or of ``count``
    elements that are ``stacked`` along a new first axis.

    ``value`` is "" for elements that a loop appended in earlier iterations. ``last``: the name of
    the last element. ``ranked``: whether each element has one row per sequence, and Paddle sorts
    these rows by sequence length.
    """

    value: str
    count: Size | None
    last: str = ""
    stacked: bool = False
    ranked: bool = False

    @classmethod
    def of(cls, element: str) -> Part:
        return cls(element, Size.of(1), element)

    @property
    def single(self) -> bool:
        return bool(self.value) and not self.stacked


_FILLING = "while a loop fills an array, expected reads of the element that it appended last only"


@dataclass(frozen=True)
class TensorArray:
    parts: tuple[Part, ...] = ()

    @property
    def length(self) -> Size | None:
        """The number of elements, None if unknown."""
        counts = [part.count for part in self.parts]
        return None if None in counts else sum(filter(None, counts), Size.of(0))

    def write(self, at: Size | None, value: str) -> TensorArray:
        """Returns the array with an element appended, or with the existing element at this index
        replaced.
        """
        behind = self._behind(at)
        if behind == 0:
            return TensorArray((*self.parts, Part.of(value)))
        place = len(self.parts) - (behind or 0)
        if (behind or 0) < 1 or place < 0 or not all(each.single for each in self.parts[place:]):
            raise UnsupportedError(
                "input I: expected the index after the array's last element; append to it"
            )
        return TensorArray((*self.parts[:place], Part.of(value), *self.parts[place + 1 :]))

    def element(self, at: Size | None) -> str:
        """Returns the name of an element, "" if a Gather from the stack must compute it."""
        behind = self._behind(at)
        if behind is not None and behind < 1:
            raise UnsupportedError("input I: expected the index of an element that was written")
        if behind is not None and behind <= len(self.parts):
            part, *later = self.parts[-behind:]
            if part.last and all(each.single for each in later):
                return part.last
        if not all(part.value for part in self.parts):
            raise UnsupportedError(_FILLING)
        return ""

    def _behind(self, at: Size | None) -> int | None:
        """Returns the array's length minus an index, None if unknown."""
        length = self.length
        return None if at is None or length is None else (length - at).number


TURN = "this turn"
"""The name of the input of a loop's block that holds the iteration number."""
_MOST = 10**5
"""The maximum number of operators that are lowered. A loop's block is lowered repeatedly, until the
types of carried values no longer change. The block's operators count each time.
"""


class PaddleBuilder(GraphBuilder):
    """A graph builder for Paddle programs, whose variables may also be tensor arrays.

    ``version``: the version of Paddle that saved the program. ``arrays``: the tensor arrays by
    variable. ``stacked``: by variable, the tensor array whose elements the variable holds along its
    first axis. ``narrow``: the variables that hold quantized floats or bf16 numbers. In a block,
    ``outer`` is the builder of the graph around it, ``indices`` are the values 0, 1, 2, ..., and
    ``turn`` is the iteration number of a loop.
    """

    def __init__(
        self,
        name: str,
        budget: FoldingBudget | None = None,
        blocks: Blocks | None = None,
        version: int = 0,
        outer: PaddleBuilder | None = None,
    ) -> None:
        super().__init__(name, budget)
        self.rules = outer.rules if outer else {}
        self.blocks, self.version, self.outer = blocks or Blocks({}), version, outer
        self.arrays: dict[str, TensorArray] = {}
        self.stacked: dict[str, TensorArray] = {}
        self.narrow: set[str] = outer.narrow if outer else set()
        self.indices: set[str] = set()
        self.turn: Size | None = None
        self.depth: int = outer.depth + 1 if outer else 0
        self._lowered: list[int] = outer._lowered if outer else [0]

    def inner(self, name: str) -> PaddleBuilder:
        """Returns a builder for an inner block."""
        return PaddleBuilder(name, self.budget, self.blocks, self.version, self)

    def count(self, operators: int) -> None:
        """Counts lowered operators. Raises `UnsupportedError` if an inner block exceeds the
        limit.
        """
        self._lowered[0] += operators
        if self._lowered[0] > _MOST and self.outer:
            raise UnsupportedError(f"its blocks: expected at most {_MOST:,} operators in all")

    def holds(self, variable: str) -> bool:
        """Returns whether a variable has a value in the graph."""
        value = self.value(variable)
        return value != variable or value in self._names

    def is_array(self, variable: str) -> bool:
        return variable in self.arrays or self.blocks.kinds.get(variable) == messages.ARRAY

    def array_of(self, variable: str) -> TensorArray:
        """Returns the tensor array that a variable holds. It is empty before the first write."""
        result = self.arrays.get(variable)
        if result is None and (self.holds(variable) or not self.is_array(variable)):
            value = self.value(variable)
            refused = (n for n in self.nodes if n.op == UNSUPPORTED and value in n.outputs)
            reason = next((node.attributes["reason"] for node in refused), "expected an array")
            raise UnsupportedError(f"{variable!r}: {reason}")
        return result or TensorArray()

    def stack(self, array: TensorArray) -> str:
        """Returns the elements of an array along a new first axis."""
        zero = self.constant([0], "axes")
        if not array.parts:
            raise UnsupportedError("expected an array with elements, got an empty one")
        if not all(part.value for part in array.parts):
            raise UnsupportedError(_FILLING)
        parts = [
            part.value if part.stacked else self.emit("Unsqueeze", (part.value, zero))
            for part in array.parts
        ]
        return parts[0] if len(parts) == 1 else self.emit("Concat", parts, {"axis": 0})

    def take_variable(self, variable: str) -> None:
        """Makes a variable of the outer block an input of this block, if it has a value."""
        assert self.outer is not None
        if self.outer.is_array(variable):
            array = self.outer.array_of(variable)
            if not array.parts:
                self.arrays[variable] = array
                return
            value = self.outer.stack(array)
            self.arrays[variable] = TensorArray((Part(variable, array.length, stacked=True),))
        elif self.outer.holds(variable) and self.blocks.kinds.get(variable) != messages.TABLE:
            value = self.outer.value(variable)
        else:
            return
        self.take(self.outer, value, variable)
        if variable in self.taken and self.outer.counts_up(value):
            self.indices.add(variable)

    def enter(self, name: str, known: Type) -> None:
        """Adds an input of a block. Raises `UnsupportedError` if it has a LoD."""
        if known.lod != ():
            raise UnsupportedError(
                f"{name!r}: expected no LoD in a loop or a branch; pad its sequences first"
            )
        super().enter(name, known)

    def counts_up(self, value: str) -> bool:
        """Returns whether a value is 0, 1, 2, ..."""
        if value in self.indices:
            return True
        made = self.maker(value)
        if made is None or made.op != "Range":
            return False
        first, _, step = (self.type_of(name).numbers for name in made.inputs)
        return first is not None and step is not None and (int(first), int(step)) == (0, 1)

    def turn_outside(self, value: str, axis: int, rank: int) -> str:
        """Returns an input of the block that holds an outer value, transposed so that ``axis`` is
        the first axis. The outer block transposes it once, before the loop. Returns "" if ``axis``
        is 0 or the value is not an outer one.
        """
        if axis == 0 or value not in self.taken or self.outer is None:
            return ""
        perm = [axis, *(at for at in range(rank) if at != axis)]
        made = self.outer.emit("Transpose", (self.taken[value],), {"perm": perm})
        name = self.fresh(f"{value}/turned")
        del self._names[name]  # `input` registers it again
        self.enter(name, self.outer.type_of(made))
        self.taken[name] = made
        return name


INERT = frozenset(
    """
    op_callstack op_device op_namescope op_role op_role_var with_quant_attr is_test use_mkldnn
    use_onednn use_cudnn use_quantizer mkldnn_data_type onednn_data_type use_seq
    skip_eager_deletion_vars mkldnn_cache_capacity Scale_data Shift_data Scale_weights
    workspace_size_MB force_fp32_output
    @ENABLE_CACHE_RUNTIME_CONTEXT@ @NOT_ALLOW_INFERSHAPE_CACHE@ is_sparse
    @ALL_KERNELS_MUST_COMPUTE_RUNTIME_SHAPE@
    is_distributed remote_prefetch trainer_id slot epmap table_names height_sections table_class
    entry_config entry x_data_format y_data_format grad_inplace fix_seed seed fuse_alpha fuse_beta
    fuse_brelu_threshold
    """.split()
)
"""Attributes that cannot change the result of a float32 model on CPU."""

COMPUTED = frozenset("bool uint8 int8 int16 int32 int64 float32 float64".split())
"""The dtypes in which NumPy computes like Paddle. bfloat16 parameters are read as float32."""

_DTYPES = f"one of {', '.join(sorted(COMPUTED))}"
STALE_LOD = (
    "Paddle keeps a LoD that no longer fits the rows: expected an input without a LoD; pad its"
    " sequences first"
)
"""The error for an input whose LoD would be invalid for Paddle's result."""

_MOVING = frozenset(
    """
    assign cast concat flatten_contiguous_range gather reshape reshape2 slice split squeeze squeeze2
    stack strided_slice transpose transpose2 unsqueeze unsqueeze2
    """.split()
)
"""Operators that take parameters of any dtype. They move elements, or convert them exactly to a
wider dtype.
"""

_NARROW = _MOVING | {"dequantize", "requantize", "fusion_gru", "fusion_lstm", "multi_gru", "fetch"}
"""Operators that may read int8 or bf16 variables. Other operators of Paddle compute differently in
int8 or bf16.
"""


class PaddleOperator(NativeOperator):
    """One of a program's operators. ``version``: the version of Paddle that saved it."""

    builder: PaddleBuilder

    def __init__(
        self,
        builder: PaddleBuilder,
        variables: Mapping[str, Variable],
        op: Operator,
        version: int,
    ) -> None:
        super().__init__(builder, op.native, op.inputs, op.outputs, op.attributes, INERT)
        self.version, self._variables = version, variables
        for slot, names in op.inputs.items():
            dtypes = {variables[name].dtype for name in names if name in variables}
            held = all(builder.value(name) in builder.constants for name in names)
            widened = op.type in _MOVING and held
            if (others := dtypes - COMPUTED - {None}) and not widened:
                raise UnsupportedError(
                    f"input {slot}: expected {_DTYPES}, got {others.pop()}; save one of these"
                )
            if builder.narrow.intersection(names):
                if op.type not in _NARROW:
                    raise UnsupportedError(
                        f"input {slot}: expected float32, because Paddle's {op.type} computes"
                        " differently in int8 or bf16; dequantize it first"
                    )
                if op.type in _MOVING:
                    builder.narrow.update(*op.outputs.values())

    def run_rule(self, rule: Callable[[Self], Results]) -> Mapping[str, str]:
        """Returns the results of a rule by the keys of `list_places`. Results without slots are in
        the main output slots.
        """
        results = super().run_rule(rule)
        if isinstance(results, Mapping):
            return results
        results = (results,) if isinstance(results, str) else results
        (slot, *others) = self._main_slots()
        if others:
            return dict(zip(self._main_places(), results, strict=False))
        return dict(list_places(slot, results))

    def _main_slots(self) -> list[str]:
        """Returns the main output slot. Unknown operators of Paddle 3 have one main slot per
        result.
        """
        filled = [slot for slot, names in self.outputs.items() if names]
        if RESULT in filled or len(filled) == 1 and self.at.type not in RULES:
            return filled
        return [next((slot for slot in RESULTS if slot in filled), "Out")]

    def _main_places(self) -> list[str]:
        slots = self._main_slots()
        return [each for slot in slots for each, _ in list_places(slot, self.outputs.get(slot, ()))]

    def miscounted(self, count: int) -> str:
        places = self._main_places()
        return "" if len(places) == count else f"the operator has {len(places)}: {places}"

    def narrow(self, slot: str) -> None:
        """Records that an output slot holds quantized floats or bf16 numbers."""
        self.builder.narrow.update(self.outputs.get(slot, ()))

    def shape(self, slot: str, at: int = 0) -> tuple[int | None, ...]:
        """Returns the declared or inferred sizes of an input, with None for a dynamic size."""
        variable = self.variables(slot)[at]
        value = self.builder.value(variable)
        if value in self.builder.constants:
            return self.builder.constants[value].shape
        declared = self._variables.get(variable)
        if declared is not None and declared.shape is not None:
            return declared.shape
        inferred = self.builder.type_of(value)
        if inferred.shape is None:
            raise UnsupportedError(f"input {slot}: expected a known number of axes of {variable!r}")
        return inferred.counts

    def dtype(self, slot: str) -> np.dtype[Any]:
        variable = self.variable(slot)
        declared = self._variables.get(variable)
        dtype = declared and declared.dtype
        dtype = dtype or self.builder.type_of(self.builder.value(variable)).dtype
        if dtype is None:
            raise UnsupportedError(f"input {slot}: expected a known dtype")
        return np.dtype("float32" if dtype == "bfloat16" else dtype)  # bfloat16 is read as float32

    def note_dropout(self) -> None:
        if not self.attributes.get("is_test", False):
            self.builder.notes["dropout saved in training mode runs as in inference"] = None

    def gives_one(self) -> bool:
        """Returns whether the output is declared with the shape (1,). Paddle before 2.5 had no
        scalars.
        """
        names = self.outputs.get("Out", ())
        declared = self._variables.get(names[0]) if names else None
        return declared is not None and declared.shape == (1,)


# Paddle's operators by type, with the rules that lower them.

Rule = Callable[[PaddleOperator], Results]
"""A function that returns the value of the main output slot, a list of the slot's values, or values
by slot.
"""
RULES = Rules[Rule]()


class PaddleTensor(Tensor):
    """A tensor in the rules for Paddle's operators. It may have a LoD, which holds the offsets of
    ragged sequences.
    """

    copied = True

    @property
    def shape(self) -> tuple[int | None, ...]:
        return self.op.shape(self.slot, self.place) if self.slot else super().shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.op.dtype(self.slot) if self.slot and not self.place else super().dtype

    @property
    def depth(self) -> int:
        """The number of LoD levels."""
        lod = self.type.lod
        if lod is None:
            raise UnsupportedError(f"{self.name!r}: expected a known number of LoD levels")
        return len(lod)

    @property
    def ragged(self) -> bool:
        return self.depth > 0

    @property
    def dense(self) -> Self:
        """The tensor without its LoD, for operators of Paddle whose result has no LoD."""
        return self.SequenceData() if self.ragged else self

    def under(self, like: PaddleTensor) -> Self:
        """Returns this tensor with the LoD, if any, of another tensor with as many rows."""
        return self.SequenceLike(like) if like.ragged else self

    def reduce(self, kind: str, axes: Sequence[int], rank: int, keep: bool) -> Self:
        """Returns the reduction ``kind`` over axes. A reduction over all axes has the shape (1,) in
        Paddle before 2.5.
        """
        out: Self = getattr(self, kind)(axes, keepdims=int(keep))
        whole = not keep and len(axes) == rank
        return out.reshape(1) if whole and self.op.gives_one() else out

    def with_lod(self, levels: int | None = None) -> Self:
        """Returns this input. Raises `UnsupportedError` if it has no LoD, or not ``levels`` LoD
        levels.
        """
        if not self.depth:
            maker = self.op.builder.maker(self.name)
            if maker and maker.op == UNSUPPORTED:
                refuse(f"input {self.slot}: {maker.label} is refused")
            refuse(f"input {self.slot}: expected a LoD; save the model with lod_level=1")
        if levels not in (None, self.depth):
            refuse(f"input {self.slot}: expected {levels} LoD levels, got {self.depth}")
        return self

    @property
    def narrow(self) -> bool:
        """Whether this input holds quantized floats or bf16 numbers."""
        return self.op.variables(self.slot)[self.place] in self.op.builder.narrow


class DenseTensor(PaddleTensor):
    """A tensor of Paddle's dynamic mode, which has no LoD. An input with a LoD is refused."""

    def __init__(self, op: Any, name: str, slot: str = "", place: int = 0) -> None:
        super().__init__(op, name, slot, place)
        if slot and self.ragged:
            refuse(f"input {slot}: expected no LoD, got {self.depth} levels")


class DtypeNumber(NamedTuple):
    """An attribute that holds Paddle's number of a dtype. The attribute's value is the dtype's
    name, or "" for -1 if the default is -1.
    """

    default: int

    def read(self, op: PaddleOperator, name: str) -> str:
        number = op.attribute(name, self.default)
        dtype = messages.DTYPES.get(number, "")
        if self.default == -1 == number:
            return ""
        if dtype not in COMPUTED:
            refuse(f"attribute {name}={number}: expected {_DTYPES}, got {dtype or 'no dtype'}")
        return dtype


class Elements(NamedTuple):
    """A list of elements from an attribute whose name may begin with a dtype: ``fp32_values``."""

    kinds: tuple[str, ...] = ("bool", "fp32", "fp64", "int32", "int64")

    def read(self, op: PaddleOperator, name: str) -> list[Any]:
        names = [name, *(f"{kind}_{name}" for kind in self.kinds)]
        elements, *others = [*filter(None, (op.attribute(each, ()) for each in names)), ()]
        if len(others) > 1:
            refuse(f"attributes {', '.join(names)}: expected one of them, got {len(others)}")
        return list(elements)


class Integers(NamedTuple):
    """A list of integers from the input slot ``tensor``, the list slot ``tensors`` or, if both are
    empty, an attribute.
    """

    tensor: str
    tensors: str

    def read(self, op: PaddleOperator, name: str) -> PaddleTensor:
        numbers = op.attribute(name, ())
        part, whole = (
            [PaddleTensor(op, value).dense for value in op.values(slot)]
            for slot in (self.tensors, self.tensor)
        )
        if part:
            result = PaddleTensor(op, op.join(*(each.reshape(1).name for each in part)))
        elif whole:
            (result,) = whole
        else:
            return PaddleTensor(op, op.ints(*numbers))
        return result.reshape(-1).Cast(to="int64")


class ScaleOf(NamedTuple):
    """Two attributes, factor and shift, of a quantization scale: q = x * factor + shift.

    Paddle truncates a shift to an integer.
    """

    shift: str

    def read(self, op: PaddleOperator, name: str) -> Scale:
        result = Scale(op.attribute(name, 1.0), float(int(op.attribute(self.shift, 0.0))))
        if not (result.factor > 0 and np.isfinite(result.factor) and 0 <= result.shift <= 255):
            refuse(
                f"attributes {name}={result.factor:g}, {self.shift}={result.shift:g}: expected a"
                " positive scale and a shift of 0 to 255"
            )
        return result


def paddle(names: str, *, tensor: type[PaddleTensor] = PaddleTensor, **only: Any) -> Any:
    """Registers a rule for the operators ``names``. The rule's signature lists their inputs and
    attributes; see `Signature`.
    """
    return RULES(names, lambda rule: Signature(rule, only, tensor))


dygraph = partial(paddle, tensor=DenseTensor)
"""Registers a rule for operators whose inputs must not have a LoD."""


# Lowers a program's operators, in block 0 and in inner blocks.


def lower_operators(
    builder: PaddleBuilder, operators: Sequence[Operator], kept: Iterable[str]
) -> None:
    """Adds the operators of a block to the graph. ``kept``: variables that are read after the
    block.
    """
    builder.count(len(operators))
    lower_steps(builder, [_step(builder, op) for op in join_branches(operators)], kept)


def _step(builder: PaddleBuilder, op: Operator) -> LoweringStep:
    def lower() -> Results:
        names = (op.type, op.type.rpartition(".")[2])
        callers, read = find_caller(builder.rules, names, op.type in RULES), op
        if callers:
            read = replace(op, inputs=_name_slots(op.inputs, callers))
        elif op.type not in RULES:
            raise UnsupportedError(f"this operator is not known{PASS_RULE}")
        result = PaddleOperator(builder, builder.blocks.declared, read, builder.version)
        results = result.run_rule(callers or RULES[op.type])
        if callers:
            with callers.naming():
                for slot, name in builder.blocks.results(op):
                    check_declared(
                        builder, results.get(slot, ""), builder.blocks.declared.get(name)
                    )
        return results

    def outputs(count: int) -> list[Output]:
        """Returns all outputs except tensor arrays, which are not values of a graph. The tensor
        arrays of a refused operator (``count`` is 0) are outputs too.
        """
        results = [Output(*each) for each in builder.blocks.results(op)]
        if not count:
            for each in results:
                builder.arrays.pop(each.variable, None)
        return [each for each in results if each.variable not in builder.arrays]

    reads = tuple(sorted(builder.blocks.reads(op)))
    return LoweringStep(op.native, reads, lower, outputs)


def _name_slots(
    inputs: Mapping[str, tuple[str, ...]], rule: CallerRule
) -> Mapping[str, tuple[str, ...]]:
    """Returns an operator's inputs by the slot names of a caller's rule.

    Paddle 3 does not save the slot names of an unknown operator, so the rule's slots are used in
    order. Paddle 2 saves the slots of a user's operator with a suffix, for example "X@VECTOR".
    """
    if OPERAND in inputs:
        count, result = len(rule.slots), dict(zip(rule.slots, inputs.values(), strict=False))
        more = dict([*inputs.items()][count:])
        if rule.rest:
            more = {rule.rest: tuple(name for names in more.values() for name in names)}
        return result | more
    return {slot.partition("@")[0]: names for slot, names in inputs.items()}
