"""torch.compile(backend="onernn"): recurrent modules on ours, the rest as it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onernn.adapters.torch.live.modules import ours_in_place, trace_through_ours
from onernn.core.errors import UnsupportedError


def onernn(
    graph: Any, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """What runs a traced graph. ``options={"rest": "inductor"}``: which backend runs the operators
    that are not ours, by its name for torch.compile; PyTorch's own eager ones where none is named.

    The recurrent modules of the model become ours in place while it is traced.
    """
    from torch._dynamo.backends.registry import lookup_backend

    rest = dict(options or {})
    name = rest.pop("rest", "eager")
    if rest:
        raise UnsupportedError(f"options: expected 'rest' alone, got {', '.join(sorted(rest))}")
    return lookup_backend(name)(graph, inputs)


def _becomes_ours(module: Any, compiler: Any) -> bool:
    while compiler is not None and compiler is not onernn:
        compiler = getattr(compiler, "compiler_fn", None)
    return compiler is onernn and ours_in_place(module)


trace_through_ours(_becomes_ours)
