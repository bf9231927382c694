"""One Paddle operator as a rule of the table reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onernn.adapters.lowering import GraphBuilder, NativeOperator
from onernn.adapters.paddle.read import Operator, Variable
from onernn.core.arrays import Array
from onernn.core.errors import UnsupportedError
from onernn.core.graph import NativeOp

INERT = frozenset(
    """
    op_callstack op_device op_namescope op_role op_role_var with_quant_attr is_test
    use_mkldnn use_onednn use_cudnn use_quantizer mkldnn_data_type onednn_data_type use_seq mkldnn_cache_capacity
    Scale_data Shift_data Scale_weights force_fp32_output
    is_sparse is_distributed remote_prefetch trainer_id slot epmap table_names height_sections
    table_class     entry_config entry x_data_format y_data_format grad_inplace fix_seed seed
    """.split()
)
"""Attributes that cannot change the result of a float32 model on CPU."""

DTYPES = frozenset("bool uint8 int8 int16 int32 int64 float32 float64".split())
"""What NumPy computes in like Paddle; bfloat16 parameters are read as float32."""

_MOVING = frozenset(
    """
    assign cast concat flatten_contiguous_range gather reshape reshape2 slice split squeeze squeeze2
    stack strided_slice transpose transpose2 unsqueeze unsqueeze2
    """.split()
)
"""What parameters of any number type may go through: their numbers stay, or are widened exactly."""


class PaddleOperator(NativeOperator):
    """One operator with the graph it is lowered into."""

    def __init__(
        self, builder: GraphBuilder, variables: Mapping[str, Variable], op: Operator
    ) -> None:
        at = NativeOp(op.position, op.type)
        super().__init__(at, op.inputs, op.outputs, op.attributes, INERT)
        self.builder, self._variables = builder, variables
        self.given: dict[str, str] = {}
        for slot, names in op.inputs.items():
            dtypes = {variables[name].dtype for name in names if name in variables}
            widened = op.type in _MOVING and self._parameters(names)
            if (others := dtypes - DTYPES - {None}) and not widened:
                raise UnsupportedError(f"input {slot}: {others.pop()} numbers are not supported")

    def _parameters(self, names: tuple[str, ...]) -> bool:
        return all(self.builder.value(name) in self.builder.constants for name in names)

    def value(self, slot: str) -> str:
        """The value in a required input slot."""
        variable = self.variable(slot)
        if not variable:
            raise UnsupportedError(f"input {slot} is missing")
        return self.builder.value(variable)

    def optional(self, slot: str) -> str:
        variable = self.variable(slot)
        return variable and self.builder.value(variable)

    def constant(self, slot: str) -> Array:
        return self.builder.array(self.value(slot), slot)

    def optional_constant(self, slot: str) -> Array | None:
        return self.constant(slot) if self.variable(slot) else None

    def shape(self, slot: str, at: int = 0) -> tuple[int | None, ...]:
        """The declared sizes of an input, None where dynamic."""
        variable = self.variables(slot)[at]
        value = self.builder.value(variable)
        if value in self.builder.constants:
            return self.builder.constants[value].shape
        declared = self._variables.get(variable)
        if declared is None or declared.shape is None:
            raise UnsupportedError(
                f"input {slot}: the model does not declare the rank of {variable!r}"
            )
        return declared.shape

    def is_ragged(self, value: str) -> bool:
        return self.builder.depth.get(value, 0) > 0

    def dense(self, value: str) -> str:
        """The value without its LoD, for operators of Paddle that do not hand it on."""
        return self.emit("SequenceData", value, depth=0) if self.is_ragged(value) else value

    def dtype(self, slot: str) -> np.dtype[Any]:
        declared = self._variables.get(self.variable(slot))
        if declared is None or declared.dtype is None:
            raise UnsupportedError(f"input {slot}: the model does not declare its dtype")
        return np.dtype(declared.dtype)

    def declared(self, slot: str) -> tuple[int | None, ...] | None:
        """The declared sizes of an output, where the model tells them."""
        names = self.outputs.get(slot, ())
        found = self._variables.get(names[0]) if names else None
        return None if found is None else found.shape

    def emit(self, op: str, *inputs: str, depth: int | None = None, **attributes: Any) -> str:
        return self.builder.emit(op, inputs, attributes, depth=depth)

    def ints(self, values: Any) -> str:
        """A constant list of int64: axes or a shape."""
        return self.builder.constant(np.asarray(values, np.int64), f"{self.at.type}/ints")

    def give(self, slot: str, value: str) -> None:
        """Tells the value of an output slot's variable, where the model wants it."""
        for variable in self.outputs.get(slot, ())[:1]:
            self.given[variable] = value
