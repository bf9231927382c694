"""Symbols of MXNet: built, run by MXNet on CPU, saved as users do, run by us."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

from onernn import Session, load
from onernn.adapters.mxnet import plugin
from onernn.adapters.mxnet.lower import lower
from onernn.adapters.mxnet.read import Symbol, parse_symbol
from onernn.ir.arrays import Array
from onernn.ir.graph import Graph
from onernn.verification.comparing import TOLERANCES, Tolerance, compare

Arrays = Mapping[str, Array]


@contextlib.contextmanager
def numpy_mode(on: bool = True) -> Iterator[None]:
    """MXNet's NumPy mode: a size of 0 is empty, results may be scalars."""
    with mx.util.np_shape(on), mx.util.np_array(on):
        yield


@dataclass(frozen=True, eq=False)
class Case:
    """One small symbol: ``build`` makes it from variables; inputs and parameters by name."""

    name: str
    build: Callable[..., Any]
    inputs: Arrays
    params: Arrays = field(default_factory=dict)
    numpy: bool = False

    @cached_property
    def symbol(self) -> Any:
        with numpy_mode(self.numpy):
            whole = {**self.inputs, **self.params}
            made = {
                name: mx.sym.Variable(name, dtype=None if a.dtype == np.float32 else a.dtype)
                for name, a in whole.items()
            }
            if self.numpy:
                made = {name: each.as_np_ndarray() for name, each in made.items()}
            return self.build(**made)

    def expected(self) -> list[Array]:
        return run(self.symbol, {**self.inputs, **self.params}, numpy=self.numpy)

    @cached_property
    def text(self) -> str:
        with numpy_mode(self.numpy):  # the file says in which mode it was written
            return str(self.symbol.tojson())

    def parsed(self) -> Symbol:
        return parse_symbol(self.text)

    def graph(self, semantics: str = "documented") -> Graph:
        return lower(self.parsed(), self.params, semantics, self.name)


def run(symbol: Any, arrays: Arrays, *, numpy: bool = False) -> list[Array]:
    """What MXNet computes on CPU, in inference; labels, which it wants to be there, are zeros."""
    with numpy_mode(numpy):
        auxiliary = symbol.list_auxiliary_states()
        made = {name: mx.nd.array(a, dtype=a.dtype) for name, a in arrays.items()}
        labels = [name for name in symbol.list_arguments() if name.endswith("_label")]
        if labels:
            sizes = symbol.infer_shape(**{name: a.shape for name, a in arrays.items()})[0]
            sized = dict(zip(symbol.list_arguments(), sizes, strict=True))
            made |= {name: mx.nd.zeros(sized[name]) for name in labels}
        bound = symbol.bind(
            mx.cpu(),
            {name: made[name] for name in symbol.list_arguments() if name in made},
            aux_states={name: made[name] for name in auxiliary},
        )
        return [out.asnumpy() for out in bound.forward(is_train=False)]


def save(symbol: Any, params: Arrays, prefix: Path) -> Path:
    """``prefix-symbol.json`` and ``prefix-0000.params``, as Module and export write them."""
    auxiliary = set(symbol.list_auxiliary_states())
    symbol.save(f"{prefix}-symbol.json")
    keyed = {
        f"{'aux' if name in auxiliary else 'arg'}:{name}": mx.nd.array(a, dtype=a.dtype)
        for name, a in params.items()
    }
    mx.nd.save(f"{prefix}-0000.params", keyed)
    return Path(f"{prefix}-symbol.json")


def differences(
    actual: Mapping[str, Any],
    expected: Sequence[Array],
    names: Sequence[str],
    tolerance: Tolerance = TOLERANCES["f32"],
) -> list[str]:
    """What is not the same in names, values, dtype or shape; none if all is."""
    if list(actual) != list(names):
        return [f"outputs {list(actual)}, MXNet's are {list(names)}"]
    found = []
    for (name, ours), theirs in zip(actual.items(), expected, strict=True):
        if ours.dtype != theirs.dtype:
            found.append(f"{name}: dtype {ours.dtype}, MXNet's is {theirs.dtype}")
        elif not (verdict := compare(name, ours, theirs, tolerance)).passed:
            found.append(f"{name}: {verdict.reason}")
    return found


def check(case: Case, backend: str = "reference", semantics: str = "mxnet-cpu") -> None:
    """Ours and MXNet's give the same."""
    actual = Session(case.graph(semantics), backend=backend).run(case.inputs)
    found = differences(actual, case.expected(), case.symbol.list_outputs())
    assert not found, (case.name, found)


def operators_of(symbol: Any) -> set[str]:
    """The names of all operators in a symbol, subgraphs included."""

    def walk(graph: Any) -> set[str]:
        found = {node["op"] for node in graph["nodes"]}
        for node in graph["nodes"]:
            for inner in node.get("subgraphs", []):
                found |= walk(inner)
        return found

    return walk(json.loads(symbol.tojson())) - {"null"}


def optimize(target: Any, params: Any = None, **options: Any) -> Any:
    """The plug-in's, where small layers become ours, too: those that MXNet is faster at."""
    return plugin.optimize(target, params, **{"backend": "kernels", **options})


def load_saved(prefix: Path, **options: Any) -> Graph:
    return load(f"{prefix}-symbol.json", **options)
