"""Records that travel between processes: only their fields, read-only again on arrival."""

from __future__ import annotations

from dataclasses import fields
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from onernn.ir.arrays import sealed


class Immutable:
    """A frozen record whose arrays and mappings nobody changes.

    A pickle holds its fields, not what was derived from them. From protocol 5 on arrays are
    out-of-band buffers, and stay in these: nothing is copied on arrival, nor checked again. An
    array that several records share stays one. A copy, also a deep one, is the record itself.
    """

    def __getstate__(self) -> dict[str, Any]:
        named = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {n: dict(v) if isinstance(v, MappingProxyType) else v for n, v in named.items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({name: _read_only(value) for name, value in state.items()})

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self


def _read_only(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return sealed(np.asarray(value))  # a subclass may be one that is mapped from a file
    if type(value) is dict:
        return MappingProxyType({name: _read_only(each) for name, each in value.items()})
    return value
