"""What a model is, before and after fusion, and what runs it: `onernn inspect`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from onernn.adapters.registry import pass_name
from onernn.engine.session import Explained, Session, unsupported
from onernn.fuse_passes import FuseResult, fuse, passes_for
from onernn.ir.errors import LibraryError, Refusal
from onernn.ir.graph import Graph, Value, native_types
from onernn.ir.records import dataclass


@dataclass(frozen=True)
class Inspection:
    """A model, what fusion makes of it, which nodes nobody can run, and what runs the layers.

    ``missing``: why nobody knows the kernels, "" otherwise. Without a library, or with operators
    that cannot run, there are none.
    """

    model: Graph
    result: FuseResult
    unsupported: tuple[Refusal, ...]
    kernels: tuple[Explained, ...]
    missing: str = ""

    @property
    def operators(self) -> dict[str, tuple[int, int]]:
        """How many nodes of each kind there are before and after fusion."""
        before, after = (Counter(n.op for n in g.nodes) for g in (self.model, self.result.model))
        return {op: (before[op], after[op]) for op in sorted(before | after)}

    @property
    def fused(self) -> list[dict[str, str]]:
        """Which pass fired where, on what, and what its framework calls it."""
        return [
            {
                "pass": each.name,
                "where": each.where,
                "from": native_types(each.origin),
                "called": pass_name(each),
            }
            for each in self.result.applied
        ]

    def as_json(self) -> dict[str, Any]:
        """What ``--json`` prints beside the keys of all commands."""
        return {
            "model": self.model.name,
            "interface": {
                "inputs": list(map(_described, self.model.inputs)),
                "outputs": list(map(_described, self.model.outputs)),
            },
            "operators": {op: list(counts) for op, counts in self.operators.items()},
            "fused": self.fused,
            "refusals": [vars(each) for each in self.result.refusals],
            "unsupported": [vars(each) for each in self.unsupported],
            "kernels": [vars(each) for each in self.kernels],
            "kernels_unknown": self.missing or None,
            "notes": list(self.model.notes),
        }


def inspect_model(
    model: Graph, *, dtype: str = "f32", threads: int | None = None, backend: str = "auto"
) -> Inspection:
    """Fuses a model and prepares it as `Session` does; nothing is run.

    Raises `UnsupportedError` for a ``dtype`` or ``backend`` that is none.
    """
    result = fuse(model, passes_for(dtype))
    refusals = unsupported(result.model)
    if refusals:
        return Inspection(model, result, refusals, ())
    try:
        session = Session(model, dtype=dtype, threads=threads, backend=backend)
    except LibraryError as error:
        return Inspection(model, result, (), (), str(error))
    return Inspection(model, result, (), session.explained)


def _described(value: Value) -> dict[str, Any]:
    shape = None if value.shape is None else list(value.shape)
    return {"name": value.name, "dtype": value.dtype, "shape": shape, "lod_depth": value.lod_depth}
