"""One Paddle operator as a rule of the table reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np

from onernn.adapters.lowering import NativeOperator, Results
from onernn.adapters.paddle import messages
from onernn.adapters.paddle.lower.blocks import listed
from onernn.adapters.paddle.lower.builder import PaddleBuilder
from onernn.adapters.paddle.read.program import Operator, Variable
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError

INERT = frozenset(
    """
    op_callstack op_device op_namescope op_role op_role_var with_quant_attr is_test use_mkldnn
    use_onednn use_cudnn use_quantizer mkldnn_data_type onednn_data_type use_seq
    skip_eager_deletion_vars mkldnn_cache_capacity Scale_data Shift_data Scale_weights
    force_fp32_output @ENABLE_CACHE_RUNTIME_CONTEXT@ @NOT_ALLOW_INFERSHAPE_CACHE@ is_sparse
    is_distributed remote_prefetch trainer_id slot epmap table_names height_sections table_class
    entry_config entry x_data_format y_data_format grad_inplace fix_seed seed
    """.split()
)
"""Attributes that cannot change the result of a float32 model on CPU."""

COMPUTED = frozenset("bool uint8 int8 int16 int32 int64 float32 float64".split())
"""What NumPy computes in like Paddle; bfloat16 parameters are read as float32."""

_MOVING = frozenset(
    """
    assign cast concat flatten_contiguous_range gather reshape reshape2 slice split squeeze squeeze2
    stack strided_slice transpose transpose2 unsqueeze unsqueeze2
    """.split()
)
"""What parameters of any number type may go through: their numbers stay, or are widened exactly."""

_NARROW = _MOVING | {"dequantize", "requantize", "fusion_gru", "fusion_lstm", "multi_gru", "fetch"}
"""What may read the bytes of an int8 program, or its bf16 numbers: others compute in them."""


class PaddleOperator(NativeOperator):
    """One operator with the graph it is lowered into, and the Paddle ``version`` that saved it."""

    def __init__(
        self,
        builder: PaddleBuilder,
        variables: Mapping[str, Variable],
        op: Operator,
        version: int,
    ) -> None:
        at = op.native
        super().__init__(at, op.inputs, op.outputs, op.attributes, INERT)
        self.builder, self.version, self._variables = builder, version, variables
        for slot, names in op.inputs.items():
            dtypes = {variables[name].dtype for name in names if name in variables}
            widened = op.type in _MOVING and self._parameters(names)
            if (others := dtypes - COMPUTED - {None}) and not widened:
                raise UnsupportedError(f"input {slot}: {others.pop()} numbers are not supported")
            if builder.narrow.intersection(names):
                if op.type not in _NARROW:
                    raise UnsupportedError(
                        f"input {slot}: in int8 or bf16 Paddle's {op.type} is"
                        " another one than in float32"
                    )
                if op.type in _MOVING:
                    builder.narrow.update(*op.outputs.values())

    def lowered(self, rule: Callable[[Self], Results]) -> Mapping[str, str]:
        """What a rule returns, by slot and place."""
        results = super().lowered(rule)
        if isinstance(results, Mapping):
            return results
        return dict(listed("Out", (results,) if isinstance(results, str) else results))

    def _parameters(self, names: tuple[str, ...]) -> bool:
        return all(self.builder.value(name) in self.builder.constants for name in names)

    def value(self, slot: str) -> str:
        """The value in a required input slot."""
        variable = self.variable(slot)
        if not variable:
            raise UnsupportedError(f"input {slot} is missing")
        return self.builder.value(variable)

    def values(self, slot: str) -> list[str]:
        """The values in an input slot that is a list."""
        return [self.builder.value(name) for name in self.variables(slot)]

    def optional(self, slot: str) -> str:
        variable = self.variable(slot)
        return variable and self.builder.value(variable)

    def narrow(self, slot: str) -> None:
        """Tells that an output slot holds bytes that stand for floats, or bf16 numbers."""
        self.builder.narrow.update(self.outputs.get(slot, ()))

    def is_narrow(self, slot: str) -> bool:
        return self.variable(slot) in self.builder.narrow

    def ragged(self, slot: str, levels: int | None = None) -> str:
        """The value in a required input slot; it must have (so many) LoD levels."""
        value = self.value(slot)
        depth = self.depth(value)
        if not depth:
            raise UnsupportedError(f"input {slot} carries no LoD")
        if levels not in (None, depth):
            raise UnsupportedError(f"input {slot}: {depth} LoD levels, only {levels} is supported")
        return value

    def absent(self, *slots: str) -> None:
        """Refuses inputs in the place of attributes, which only a run tells."""
        for slot in slots:
            if self.variables(slot):
                raise UnsupportedError(f"input {slot}: computed at run time")

    def constant(self, slot: str) -> Array:
        return self.builder.array(self.value(slot), slot)

    def optional_constant(self, slot: str) -> Array | None:
        return self.constant(slot) if self.variable(slot) else None

    def constants(self, slot: str) -> list[Array]:
        return [self.builder.array(value, slot) for value in self.values(slot)]

    def shape(self, slot: str, at: int = 0) -> tuple[int | None, ...]:
        """The sizes of an input as the model declares or computes it, None where dynamic."""
        variable = self.variables(slot)[at]
        value = self.builder.value(variable)
        if value in self.builder.constants:
            return self.builder.constants[value].shape
        declared = self._variables.get(variable)
        if declared is not None and declared.shape is not None:
            return declared.shape
        inferred = self.builder.type_of(value)
        if inferred.shape is None:
            raise UnsupportedError(f"input {slot}: nobody knows the rank of {variable!r}")
        return inferred.counts

    def dtype(self, slot: str) -> np.dtype[Any]:
        variable = self.variable(slot)
        declared = self._variables.get(variable)
        dtype = declared and declared.dtype
        dtype = dtype or self.builder.type_of(self.builder.value(variable)).dtype
        if dtype is None:
            raise UnsupportedError(f"input {slot}: nobody knows its dtype")
        return np.dtype("float32" if dtype == "bfloat16" else dtype)  # as it is read

    def chosen_dtype(self, name: str, default: int) -> str:
        """The dtype that an attribute tells."""
        number = self.attribute(name, default)
        dtype = messages.DTYPES.get(number, "")
        if dtype not in COMPUTED:
            raise UnsupportedError(f"attribute {name}={number}: {dtype or 'unknown'} numbers")
        return dtype

    def depth(self, value: str) -> int:
        """How many LoD levels a value has."""
        lod = self.builder.type_of(value).lod
        if lod is None:
            raise UnsupportedError(f"nobody knows whether {value!r} carries a LoD")
        return len(lod)

    def is_ragged(self, value: str) -> bool:
        return self.depth(value) > 0

    def emit(self, op: str, *inputs: str, **attributes: Any) -> str:
        return self.builder.emit(op, inputs, attributes)

    def dense(self, value: str) -> str:
        """The value without its LoD, for operators of Paddle that do not hand it on."""
        return self.emit("SequenceData", value) if self.is_ragged(value) else value

    def under(self, out: str, like: str) -> str:
        """The value with the LoD of another one that has as many rows, if that has one."""
        return self.emit("SequenceLike", out, like) if self.is_ragged(like) else out

    def note_dropout(self) -> None:
        if not self.attributes.get("is_test", False):
            self.builder.notes["dropout saved in training mode runs as in inference"] = None

    def gives_one(self) -> bool:
        """Whether the output is declared as one number: before 2.5 Paddle had no scalars."""
        names = self.outputs.get("Out", ())
        declared = self._variables.get(names[0]) if names else None
        return declared is not None and declared.shape == (1,)

    def ints(self, values: Any) -> str:
        """A constant list of int64: axes or a shape."""
        return self.builder.constant(np.asarray(values, np.int64), f"{self.at.type}/ints")

    def integers(self, attribute: str, tensor: str, tensors: str) -> str:
        """A list of int64 from a list of tensors, else from a tensor, else from an attribute."""
        found = self.attribute(attribute, ())
        parts = [self.dense(value) for value in self.values(tensors)]
        whole = self.optional(tensor)
        if parts:
            parts = [self.emit("Reshape", part, self.ints([1])) for part in parts]
            whole = self.emit("Concat", *parts, axis=0)
        elif not whole:
            return self.ints(found)
        flat = self.emit("Reshape", self.dense(whole), self.ints([-1]))
        return self.emit("Cast", flat, to="int64")
